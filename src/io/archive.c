#include "io/archive.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"

/* What is needed of archive.h and archive_entry.h. */
enum { ARCHIVE_OK = 0, ARCHIVE_EOF = 1, ARCHIVE_WARN = -20, AE_IFMT = 0170000, AE_IFREG = 0100000 };
enum { BLOCK = 1 << 16 };
static const size_t MAX_MEMBER = (size_t)1 << 31;

static union {
  void *symbols[14];
  struct {
    void *(*new)(void);
    int (*free)(void *);
    int (*filters)(void *);
    int (*tar)(void *);
    int (*zip)(void *);
    int (*open)(void *, const char *, size_t);
    int (*next)(void *, void **);
    long (*read)(void *, void *, size_t);
    const char *(*error)(void *);
    const char *(*name)(void *);
    int64_t (*size)(void *);
    unsigned (*type)(void *);
    int (*open_stream)(void *, void *, void *, long (*)(void *, void *, const void **), void *);
    int (*code)(void *);
  } f;
} lib;
static bool found;

static void open_library(void) {
  static const char *const names[] = {"archive_read_new",
                                      "archive_read_free",
                                      "archive_read_support_filter_all",
                                      "archive_read_support_format_tar",
                                      "archive_read_support_format_zip",
                                      "archive_read_open_filename",
                                      "archive_read_next_header",
                                      "archive_read_data",
                                      "archive_error_string",
                                      "archive_entry_pathname",
                                      "archive_entry_size",
                                      "archive_entry_filetype",
                                      "archive_read_open",
                                      "archive_errno"};
  void *library = dlopen("libarchive.so.13", RTLD_NOW | RTLD_LOCAL);
  for (int i = 0; i < 14 && library; i++) {
    lib.symbols[i] = dlsym(library, names[i]);
    if (!lib.symbols[i])
      library = NULL;
  }
  found = library != NULL;
}

struct MothArchive {
  void *handle;
  char *name, *bytes; /* name: of the file or stream, for errors */
  size_t capacity;
  const MothArchiveStream *stream; /* NULL: a file */
};

static long on_pull(void *handle, void *archive, const void **block) {
  (void)handle;
  const MothArchive *a = archive;
  return a->stream->pull(a->stream->data, block);
}

/* What the stream says of its end. */
static MothStatus stream_end(const MothArchive *a, bool damaged) {
  return a->stream ? a->stream->end(a->stream->data, a->name, damaged) : MOTH_OK;
}

static MothStatus fail(MothArchive *a, const char *what) {
  MothStatus s = stream_end(a, true);
  if (s)
    return s;
  const char *why = lib.f.error(a->handle);
  int code = lib.f.code(a->handle);
  char text[128];
  if (code > 0 && code != EILSEQ && code != EINVAL) /* which libarchive has for damaged files */
    why = strerror_r(code, text, sizeof text);
  return moth_fail(MOTH_ERR_VALUE, "archive: %s %s: %s", what, a->name, why ? why : "damaged");
}

static MothStatus new_archive(const char *name, MothArchive **out) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_library);
  if (!found)
    return moth_fail(MOTH_ERR_IO, "archive: libarchive.so.13 is not on this machine; HINT: install "
                                  "libarchive13 (Debian), or run make deps");
  MothArchive *a = calloc(1, sizeof *a);
  if (a)
    a->name = strdup(name);
  if (a)
    a->handle = lib.f.new();
  if (!a || !a->name || !a->handle) {
    moth_archive_close(a);
    return moth_no_memory(0);
  }
  lib.f.filters(a->handle);
  lib.f.tar(a->handle);
  lib.f.zip(a->handle);
  *out = a;
  return MOTH_OK;
}

static MothStatus opened(MothArchive *a, int code, MothArchive **out) {
  if (code != ARCHIVE_OK) {
    MothStatus s = fail(a, "cannot open");
    moth_archive_close(a);
    return s;
  }
  *out = a;
  return MOTH_OK;
}

MothStatus moth_archive_open(const char *path, MothArchive **out) {
  MothArchive *a;
  MothStatus s = new_archive(path, &a);
  return s ? s : opened(a, lib.f.open(a->handle, path, BLOCK), out);
}

MothStatus moth_archive_open_stream(const char *name, const MothArchiveStream *stream,
                                    MothArchive **out) {
  MothArchive *a;
  MothStatus s = new_archive(name, &a);
  if (s)
    return s;
  a->stream = stream;
  return opened(a, lib.f.open_stream(a->handle, a, NULL, on_pull, NULL), out);
}

static bool grow(MothArchive *a, size_t n) {
  if (n <= a->capacity)
    return true;
  size_t capacity = n > 2 * a->capacity ? n : 2 * a->capacity;
  char *bytes = realloc(a->bytes, capacity);
  if (!bytes)
    return false;
  a->bytes = bytes;
  a->capacity = capacity;
  return true;
}

MothStatus moth_archive_next(MothArchive *a, const char **name, const void **bytes, size_t *n) {
  void *entry;
  do {
    int got = lib.f.next(a->handle, &entry);
    if (got == ARCHIVE_EOF) {
      *name = NULL;
      return stream_end(a, false);
    }
    if (got != ARCHIVE_OK && got != ARCHIVE_WARN)
      return fail(a, "cannot read");
  } while ((lib.f.type(entry) & AE_IFMT) != AE_IFREG);
  *name = lib.f.name(entry);
  if (!*name)
    *name = "";
  int64_t size = lib.f.size(entry);
  if (size > (int64_t)MAX_MEMBER)
    return moth_fail(MOTH_ERR_VALUE, "archive: member %s of %s has %lld bytes; 2 GB are allowed",
                     *name, a->name, (long long)size);
  size_t at = 0;
  if (!grow(a, size > 0 ? (size_t)size : 1))
    return moth_no_memory(0);
  for (;;) {
    if (at == a->capacity && !grow(a, a->capacity + BLOCK))
      return moth_no_memory(0);
    size_t most = a->capacity - at;
    long got = lib.f.read(a->handle, a->bytes + at, most < BLOCK * 16 ? most : BLOCK * 16);
    if (got < 0)
      return fail(a, "cannot read");
    if (got == 0)
      break;
    at += (size_t)got;
    if (at > MAX_MEMBER)
      return moth_fail(MOTH_ERR_VALUE, "archive: member %s of %s has more than 2 GB", *name,
                       a->name);
    if (size > 0 && at == (size_t)size)
      break;
  }
  *bytes = a->bytes;
  *n = at;
  return MOTH_OK;
}

void moth_archive_close(MothArchive *a) {
  if (!a)
    return;
  if (a->handle)
    lib.f.free(a->handle);
  free(a->name);
  free(a->bytes);
  free(a);
}
