/* The IDX format of MNIST and Fashion-MNIST: two zero bytes, a type, the number of dimensions,
 * their sizes as 32-bit big-endian numbers, then the elements, big-endian too.
 * http://yann.lecun.com/exdb/mnist/ */
#ifndef MOTH_IO_IDX_H
#define MOTH_IO_IDX_H
#include <stddef.h>

#include "moth.h"

typedef struct MothIdx {
  MothDType dtype; /* uint8, int8, int16, int32, float32 or float64 */
  int ndim;        /* at least 1 */
  int64_t shape[MOTH_MAX_DIMS];
  const uint8_t *data; /* points into the bytes given; big-endian and without alignment */
  int64_t nbytes;
} MothIdx;

/* Reads a whole file of n bytes; the elements must fill it exactly. Allocates nothing.
 * Errors: MOTH_ERR_VALUE. */
MOTH_API MothStatus moth_idx_parse(const uint8_t *bytes, size_t n, MothIdx *out);

/* *total: the size of the whole file, read from the header in its first n bytes; MOTH_IDX_HEADER bytes are enough.
 * Errors: MOTH_ERR_VALUE. */
#define MOTH_IDX_HEADER (4 + 4 * MOTH_MAX_DIMS)
MOTH_API MothStatus moth_idx_total(const uint8_t *bytes, size_t n, size_t *total);

/* Copies the elements into out (nbytes of them) in this machine's byte order. Cannot fail. */
MOTH_API void moth_idx_copy(const MothIdx *idx, void *out);

#endif
