#include "io/gunzip.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "core/error.h"

/* What is needed of zlib.h, whose interface has been the same since 1.2 (2003). */
typedef struct ZStream {
  const uint8_t *next_in;
  unsigned avail_in;
  unsigned long total_in;
  uint8_t *next_out;
  unsigned avail_out;
  unsigned long total_out;
  const char *message;
  void *state;
  void *(*allocate)(void *, unsigned, unsigned);
  void (*release)(void *, void *);
  void *opaque;
  int data_type;
  unsigned long adler, reserved;
} ZStream;

enum { Z_OK = 0, Z_STREAM_END = 1, Z_MEM_ERROR = -4, Z_BUF_ERROR = -5 };
enum { GZIP_WINDOW = 15 + 16 }; /* the largest window, and a gzip header rather than zlib's */
enum { CHUNK = 1 << 30 };       /* zlib counts in 32 bits */

static struct {
  int (*init)(ZStream *, int, const char *, int);
  int (*inflate)(ZStream *, int);
  int (*reset)(ZStream *);
  int (*end)(ZStream *);
  bool found;
} zlib;

static void open_zlib(void) {
  void *library = dlopen("libz.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return;
  *(void **)&zlib.init = dlsym(library, "inflateInit2_");
  *(void **)&zlib.inflate = dlsym(library, "inflate");
  *(void **)&zlib.reset = dlsym(library, "inflateReset");
  *(void **)&zlib.end = dlsym(library, "inflateEnd");
  zlib.found = zlib.init && zlib.inflate && zlib.reset && zlib.end;
}

static size_t smaller(size_t a, size_t b) {
  return a < b ? a : b;
}

typedef struct Output {
  uint8_t *bytes;
  size_t n, capacity, limit; /* limit: cap and one byte more, by which too much is noticed */
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

static MothStatus expand(ZStream *z, const uint8_t *bytes, size_t n, Output *out) {
  const uint8_t *end = bytes + n;
  for (;;) {
    MOTH_TRY(make_room(out));
    unsigned room = (unsigned)smaller(out->capacity - out->n, CHUNK);
    z->next_out = out->bytes + out->n;
    z->avail_out = room;
    z->avail_in = (unsigned)smaller((size_t)(end - z->next_in), CHUNK);
    int result = zlib.inflate(z, 0);
    out->n += room - z->avail_out;
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
      zlib.reset(z);
    } else if (z->next_in == end && z->avail_out > 0) {
      return moth_fail(MOTH_ERR_VALUE, "gunzip: the data ends too early (truncated?)");
    }
  }
}

MothStatus moth_gunzip(const uint8_t *bytes, size_t n, size_t cap, uint8_t **out, size_t *out_n) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  *out = NULL;
  *out_n = 0;
  pthread_once(&once, open_zlib);
  if (!zlib.found)
    return moth_fail(MOTH_ERR_STATE,
                     "gunzip: libz.so.1 is not on this machine; HINT: install zlib1g");
  if (n < 2 || bytes[0] != 0x1f || bytes[1] != 0x8b)
    return moth_fail(MOTH_ERR_VALUE, "gunzip: not gzip data");

  ZStream z = {.next_in = bytes};
  Output result = {.limit = cap < SIZE_MAX ? cap + 1 : cap};
  result.capacity = smaller(result.limit, n < SIZE_MAX / 8 ? 4 * n + 4096 : n);
  result.bytes = malloc(result.capacity);
  if (!result.bytes)
    return moth_fail(MOTH_ERR_MEMORY, "gunzip: no memory for %zu bytes", result.capacity);
  MothStatus status = MOTH_OK;
  if (zlib.init(&z, GZIP_WINDOW, "1.2.11", (int)sizeof z) != Z_OK) {
    status = moth_fail(MOTH_ERR_MEMORY, "gunzip: zlib cannot start");
  } else {
    status = expand(&z, bytes, n, &result);
    zlib.end(&z);
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
