/* NumPy's .npy format, versions 1 to 3: a magic string, the version, the length of a header that is
 * a Python dictionary of three entries, and the elements.
 * https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html */
#ifndef MOTH_IO_NPY_H
#define MOTH_IO_NPY_H
#include <stddef.h>

#include "moth.h"

#define MOTH_NPY_MAX_HEADER 65536 /* bytes of the dictionary */

typedef struct MothNpy {
  MothDType dtype;
  bool swap;          /* the elements are big-endian: see moth_elements_copy */
  bool fortran_order; /* the first dimension runs fastest: column-major */
  int ndim;
  int64_t shape[MOTH_MAX_DIMS];
  const uint8_t *data; /* points into the bytes given, without alignment */
  int64_t nbytes;
} MothNpy;

/* Whether n bytes begin as a .npy file does. Cannot fail. */
MOTH_API bool moth_npy_is(const uint8_t *bytes, size_t n);

/* Reads a whole file of n bytes; the elements must fill it exactly. Allocates nothing. Errors:
 * MOTH_ERR_VALUE: damage, or a type that is none of moth's: Python objects, text, records, times,
 * complex and unsigned numbers of more than 8 bits are refused by name. */
MOTH_API MothStatus moth_npy_parse(const uint8_t *bytes, size_t n, MothNpy *out);

/* Checks, with only the first `here` of n bytes, whether the header asks for n. No error if the header does not end
 * within them. */
MOTH_API MothStatus moth_npy_check_size(const uint8_t *bytes, size_t here, size_t n);

/* Writes the header of a row-major array of this machine's byte order to out, with space for
 * MOTH_NPY_HEADER bytes; *n of them are used, a multiple of 64. Errors: MOTH_ERR_VALUE (bfloat16,
 * which NumPy does not have). */
#define MOTH_NPY_HEADER 512
MOTH_API MothStatus moth_npy_header(MothDType dtype, int ndim, const int64_t *shape, char *out,
                                    size_t *n);

#endif
