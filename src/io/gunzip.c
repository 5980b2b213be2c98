#include "io/gunzip.h"

#include <stdlib.h>

#include "core/error.h"
#include "io/zlib.h"

enum { GZIP_WINDOW = 15 + 16 }; /* the largest window, and a gzip header rather than zlib's */

static size_t smaller(size_t a, size_t b) {
  return a < b ? a : b;
}

typedef struct Output {
  uint8_t *bytes;
  size_t n, capacity, limit; /* limit: cap and one byte more, to notice that there is too much */
} Output;

static MothStatus make_room(Output *out) {
  if (out->n < out->capacity)
    return MOTH_OK;
  size_t capacity = out->capacity > out->limit / 2 ? out->limit : out->capacity * 2;
  uint8_t *bytes = capacity > out->capacity ? realloc(out->bytes, capacity) : NULL;
  if (!bytes)
    return moth_fail(MOTH_ERR_MEMORY, "gunzip: no memory for %zu bytes", capacity);
  out->bytes = bytes;
  out->capacity = capacity;
  return MOTH_OK;
}

static MothStatus expand(const MothZlib *zlib, MothZStream *z, const uint8_t *bytes, size_t n,
                         Output *out) {
  const uint8_t *end = bytes + n;
  for (;;) {
    MOTH_TRY(moth_z_look());
    MOTH_TRY(make_room(out));
    unsigned space = (unsigned)smaller(out->capacity - out->n, MOTH_Z_CHUNK);
    z->next_out = out->bytes + out->n;
    z->avail_out = space;
    z->avail_in = (unsigned)smaller((size_t)(end - z->next_in), MOTH_Z_CHUNK);
    int result = zlib->inflate(z, 0);
    out->n += space - z->avail_out;
    if (out->n == out->limit)
      return moth_fail(MOTH_ERR_VALUE, "gunzip: more than the allowed %zu bytes", out->limit - 1);
    if (result == Z_MEM_ERROR)
      return moth_fail(MOTH_ERR_MEMORY, "gunzip: no memory");
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
      return moth_fail(MOTH_ERR_VALUE, "gunzip: corrupt data at byte %td: %s", z->next_in - bytes,
                       z->message ? z->message : "not gzip");
    if (result == Z_STREAM_END) {
      if (z->next_in == end)
        return MOTH_OK;
      if (end - z->next_in < 2 || z->next_in[0] != 0x1f || z->next_in[1] != 0x8b)
        return moth_fail(MOTH_ERR_VALUE, "gunzip: something else follows at byte %td",
                         z->next_in - bytes);
      zlib->reset(z);
    } else if (z->next_in == end && z->avail_out > 0) {
      return moth_fail(MOTH_ERR_VALUE, "gunzip: the data ends too early (truncated?)");
    }
  }
}

static MothStatus check_gzip(const MothZlib *zlib, const uint8_t *bytes, size_t n) {
  if (!zlib)
    return moth_fail(MOTH_ERR_STATE, "gunzip: " MOTH_Z_MISSING);
  if (n < 2 || bytes[0] != 0x1f || bytes[1] != 0x8b)
    return moth_fail(MOTH_ERR_VALUE, "gunzip: not gzip data");
  return MOTH_OK;
}

MothStatus moth_gunzip_head(const uint8_t *bytes, size_t n, uint8_t *out, size_t want,
                            size_t *got) {
  const MothZlib *zlib = moth_zlib();
  *got = 0;
  MOTH_TRY(check_gzip(zlib, bytes, n));
  MothZStream z = {
      .next_in = bytes, .next_out = out, .avail_out = (unsigned)smaller(want, 1 << 20)};
  if (zlib->init(&z, GZIP_WINDOW, MOTH_Z_VERSION, (int)sizeof z) != Z_OK)
    return moth_fail(MOTH_ERR_MEMORY, "gunzip: zlib cannot start");
  int result;
  const uint8_t *before;
  do { /* a first member may be empty, or shorter than `want` */
    before = z.next_in;
    z.avail_in = (unsigned)smaller((size_t)(bytes + n - z.next_in), MOTH_Z_CHUNK);
    result = zlib->inflate(&z, 0);
    if (result == Z_STREAM_END)
      zlib->reset(&z);
  } while ((result == Z_OK || result == Z_STREAM_END) && z.avail_out && z.next_in != before);
  *got = (size_t)(z.next_out - out);
  zlib->end(&z);
  if (result == Z_MEM_ERROR)
    return moth_fail(MOTH_ERR_MEMORY, "gunzip: no memory");
  return MOTH_OK; /* moth_gunzip reports damage */
}

MothStatus moth_gunzip(const uint8_t *bytes, size_t n, size_t cap, uint8_t **out, size_t *out_n) {
  const MothZlib *zlib = moth_zlib();
  *out = NULL;
  *out_n = 0;
  MOTH_TRY(check_gzip(zlib, bytes, n));
  MothZStream z = {.next_in = bytes};
  Output result = {.limit = cap < SIZE_MAX ? cap + 1 : cap};
  result.capacity = smaller(result.limit, n < SIZE_MAX / 8 ? 4 * n + 4096 : n);
  result.bytes = malloc(result.capacity);
  if (!result.bytes)
    return moth_fail(MOTH_ERR_MEMORY, "gunzip: no memory for %zu bytes", result.capacity);
  MothStatus status = MOTH_OK;
  if (zlib->init(&z, GZIP_WINDOW, MOTH_Z_VERSION, (int)sizeof z) != Z_OK) {
    status = moth_fail(MOTH_ERR_MEMORY, "gunzip: zlib cannot start");
  } else {
    status = expand(zlib, &z, bytes, n, &result);
    zlib->end(&z);
  }
  if (status != MOTH_OK) {
    free(result.bytes);
    return status;
  }
  *out = result.bytes;
  *out_n = result.n;
  return MOTH_OK;
}

void moth_gunzip_free(uint8_t *bytes) {
  free(bytes);
}
