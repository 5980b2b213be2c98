#include "io/idx.h"

#include <inttypes.h>
#include <string.h>

#include "core/error.h"
#include "io/elements.h"

/* The dtype of a type byte, or -1. */
static int find_dtype(uint8_t type) {
  switch (type) {
  case 0x08:
    return MOTH_UINT8;
  case 0x09:
    return MOTH_INT8;
  case 0x0b:
    return MOTH_INT16;
  case 0x0c:
    return MOTH_INT32;
  case 0x0d:
    return MOTH_FLOAT32;
  case 0x0e:
    return MOTH_FLOAT64;
  default:
    return -1;
  }
}

/* All but the data; *header and out->nbytes make the file. */
static MothStatus read_header(const uint8_t *bytes, size_t n, MothIdx *out, size_t *header) {
  *out = (MothIdx){0};
  if (n < 4 || n > PTRDIFF_MAX || bytes[0] != 0 || bytes[1] != 0)
    return moth_fail(MOTH_ERR_VALUE, "idx: not an IDX file: it must begin with two zero bytes");
  int dtype = find_dtype(bytes[2]);
  if (dtype < 0)
    return moth_fail(MOTH_ERR_VALUE, "idx: unknown type 0x%02x", bytes[2]);
  int ndim = bytes[3];
  if (ndim < 1 || ndim > MOTH_MAX_DIMS)
    return moth_fail(MOTH_ERR_VALUE, "idx: %d dimensions; expected 1 to %d", ndim, MOTH_MAX_DIMS);
  *header = 4 + 4 * (size_t)ndim;
  if (n < *header)
    return moth_fail(MOTH_ERR_VALUE, "idx: the file ends within its header");

  int64_t size = moth_dtype_size((MothDType)dtype);
  for (int d = 0; d < ndim; d++) {
    const uint8_t *p = bytes + 4 + 4 * d;
    out->shape[d] = (int64_t)p[0] << 24 | (int64_t)p[1] << 16 | (int64_t)p[2] << 8 | p[3];
    if (__builtin_mul_overflow(size, out->shape[d], &size))
      return moth_fail(MOTH_ERR_VALUE, "idx: the shape is too large");
  }
  out->dtype = (MothDType)dtype;
  out->ndim = ndim;
  out->nbytes = size;
  return MOTH_OK;
}

MothStatus moth_idx_total(const uint8_t *bytes, size_t n, size_t *total) {
  MothIdx idx;
  size_t header;
  MOTH_TRY(read_header(bytes, n, &idx, &header));
  if (__builtin_add_overflow(header, (uint64_t)idx.nbytes, total) || *total > PTRDIFF_MAX)
    return moth_fail(MOTH_ERR_VALUE, "idx: the shape is too large");
  return MOTH_OK;
}

MothStatus moth_idx_parse(const uint8_t *bytes, size_t n, MothIdx *out) {
  size_t header;
  MOTH_TRY(read_header(bytes, n, out, &header));
  int64_t size = out->nbytes;
  if (size != (int64_t)(n - header))
    return moth_fail(MOTH_ERR_VALUE,
                     "idx: the shape needs %" PRId64 " bytes of data, but there are %zu%s", size,
                     n - header, size > (int64_t)(n - header) ? " (truncated?)" : "");
  out->data = bytes + header;
  return MOTH_OK;
}

void moth_idx_copy(const MothIdx *idx, void *out) {
  const uint16_t one = 1;
  moth_elements_copy(idx->dtype, *(const uint8_t *)&one == 1, out, idx->data, idx->nbytes);
}
