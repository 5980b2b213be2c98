/* Copies elements from a file's bytes to a tensor's memory. */
#ifndef MOTH_IO_ELEMENTS_H
#define MOTH_IO_ELEMENTS_H
#include <stddef.h>

#include "moth.h"

/* Copies nbytes (a multiple of the item size) from `from`, which may be unaligned, to `out`; with
 * swap, the bytes of each element (of each part of a complex one) in reverse. `from` and `out` may be equal. Any byte but 0 is written
 * as 1 for bool: kernels require that, files do not ensure it. Cannot fail. */
MOTH_API void moth_elements_copy(MothDType dtype, bool swap, void *out, const uint8_t *from,
                                 int64_t nbytes);

/* shape[0] * … * item size in bytes; 0 if one of the sizes is 0, whatever the others are. False on a
 * negative size and on overflow. */
bool moth_elements_count(MothDType dtype, int ndim, const int64_t *shape, int64_t *nbytes);

/* Floats of 8 and 4 bits, which bfloat16 holds exactly. */
typedef struct MothSmallFloat {
  const char *name; /* in safetensors */
  int bits, exponent, mantissa, bias;
  bool has_infinity,    /* as IEEE's floats have; else the largest code alone is NaN */
      is_unsigned_zero, /* no -0: its code alone is NaN */
      is_finite;        /* no NaN */
} MothSmallFloat;

/* The kind of a name, or NULL. */
MOTH_API const MothSmallFloat *moth_small_float(const char *name, size_t n);

/* Writes the elements of n bytes, one or two a byte, the lower half first, as bfloat16. */
MOTH_API void moth_small_float_copy(const MothSmallFloat *kind, uint16_t *out, const uint8_t *from,
                                    int64_t n);

#endif
