/* PyTorch's files of tensors (.pt, .pth): a zip archive with a pickle of the saved values,
 * <name>/data.pkl, and the elements of each storage, <name>/data/<key>. */
#ifndef MOTH_IO_PTH_H
#define MOTH_IO_PTH_H
#include <stddef.h>

#include "io/pickle.h"
#include "io/zip.h"

typedef struct MothPth {
  MothPickle *pickle;
  const MothZipEntry **members; /* of each storage; its size is that of the declared elements */
  uint8_t *text;                /* the pickle, if it was deflated */
} MothPth;

/* Whether an archive is such a file: it has a member <name>/data.pkl. Cannot fail. */
MOTH_API bool moth_pth_is(const MothZip *zip);

/* Why an archive is not read that is a program of PyTorch's (.pt2), and what to do; NULL if it is none. Cannot
 * fail. */
MOTH_API const char *moth_pth_program(const MothZip *zip);

/* Reads the pickle and finds the members of its storages, whose elements are then read by
 * moth_zip_read (and moth_elements_copy, for bool). The result points into the archive and its
 * bytes. On success *out is to be freed by moth_pth_free. Errors: MOTH_ERR_VALUE (what is refused
 * and why: a TorchScript program, big-endian elements, any name that is not one of tensors;
 * *out is NULL), MOTH_ERR_MEMORY, MOTH_ERR_STATE (no zlib). */
MOTH_API MothStatus moth_pth_open(const MothZip *zip, MothPth **out);

/* Reads the index of a distributed checkpoint, n bytes that must outlive the result, as such a file without
 * tensors. On success *out is to be freed by moth_pth_free. Errors: MOTH_ERR_VALUE, MOTH_ERR_MEMORY. */
MOTH_API MothStatus moth_pth_open_records(const uint8_t *bytes, size_t n, MothPth **out);
MOTH_API void moth_pth_free(MothPth *pth); /* NULL is allowed */

/* Why moth does not read n bytes that are no archive but another file of Python or PyTorch, and what to
 * do; NULL if they are none. Cannot fail. */
MOTH_API const char *moth_pth_refusal(const uint8_t *bytes, size_t n);

#endif
