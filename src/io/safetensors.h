/* The safetensors format: 8 bytes of header length (little endian), a JSON header that names dtype,
 * shape and place of each tensor, and the tensors' bytes without gaps.
 * https://github.com/huggingface/safetensors#format
 *
 * Pure functions of bytes: no file, no Lua, no code from the file is ever run. */
#ifndef MOTH_IO_SAFETENSORS_H
#define MOTH_IO_SAFETENSORS_H
#include <stddef.h>

#include "io/elements.h"
#include "moth.h"

#define MOTH_SAFETENSORS_MAX_HEADER 100000000 /* bytes, as in the reference implementation */

typedef struct MothSafetensorsEntry {
  const char *name;            /* UTF-8 without NUL inside */
  MothDType dtype;             /* of small floats uint8, with the shape of their bytes */
  const MothSmallFloat *small; /* what the bytes are, or NULL */
  int ndim;
  int64_t shape[MOTH_MAX_DIMS];
  int64_t begin, end; /* bytes [begin, end) of the file, counted from the file's first byte */
} MothSafetensorsEntry;

typedef struct MothSafetensorsPair {
  const char *key, *value;
} MothSafetensorsPair;

/* Everything in it belongs to it and is freed with it. */
typedef struct MothSafetensors {
  int64_t count;
  MothSafetensorsEntry *entries; /* in the order of their bytes */
  int64_t metadata_count;
  MothSafetensorsPair *metadata; /* the strings of __metadata__, in the header's order */
  char *arena;
} MothSafetensors;

/* Reads the header of a whole file of n bytes and checks it against them: every dtype is one that
 * moth has, every size follows from its shape, and the tensors cover what follows the header
 * without holes, overlap or rest; names are unique. Nothing keeps pointing into bytes. A tensor may
 * begin at an address that does not suit its dtype. On success *out is to be freed by
 * moth_safetensors_free. Errors: MOTH_ERR_VALUE (what is wrong and where; *out is NULL),
 * MOTH_ERR_MEMORY. */
MOTH_API MothStatus moth_safetensors_parse(const uint8_t *bytes, size_t n, MothSafetensors **out);
MOTH_API void moth_safetensors_free(MothSafetensors *file); /* NULL is allowed */

/* Writes the part of a file before the tensors' bytes: its size and the header for count entries in this
 * order, padded with blanks so that the data begins at a multiple of 8. Reads name, dtype, ndim and shape
 * of an entry and sets begin and end. (Tensors in order of descending item size are all aligned.) *out, of
 * *out_n bytes, is to be freed by moth_safetensors_header_free. Errors:
 * MOTH_ERR_VALUE (a name twice or not UTF-8, a negative or too large shape, a header over 100 MB),
 * MOTH_ERR_MEMORY. */
MOTH_API MothStatus moth_safetensors_header(MothSafetensorsEntry *entries, int64_t count,
                                            const MothSafetensorsPair *metadata,
                                            int64_t metadata_count, uint8_t **out, size_t *out_n);
MOTH_API void moth_safetensors_header_free(uint8_t *header);

#endif
