#include "io/mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "io/file.h"

typedef struct MothMapping {
  void *bytes;
  size_t size;
  int users; /* its tensors, and who opened it */
} Mapping;

static void release(void *ctx) {
  Mapping *m = ctx;
  if (__atomic_sub_fetch(&m->users, 1, __ATOMIC_ACQ_REL))
    return;
  munmap(m->bytes, m->size);
  free(m);
}

/* Maps the whole file, writable in memory only: an op in place must not end the process. */
static MothStatus map(const char *path, Mapping **out) {
  struct stat info;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return moth_fail(MOTH_ERR_IO, "cannot open %s: %s", path, strerror(errno));
  MothStatus s = MOTH_OK;
  void *bytes = NULL;
  if (fstat(fd, &info) != 0)
    s = moth_fail(MOTH_ERR_IO, "cannot read %s: %s", path, strerror(errno));
  else if (!S_ISREG(info.st_mode))
    s = moth_fail(MOTH_ERR_IO, "cannot map %s: not a regular file", path);
  else if (info.st_size == 0)
    s = moth_fail(MOTH_ERR_VALUE, "cannot map %s: it is empty", path);
  if (!s) {
    bytes = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
                 fd, 0);
    if (bytes == MAP_FAILED)
      s = moth_fail(MOTH_ERR_IO, "cannot map %s: %s", path, strerror(errno));
  }
  close(fd);
  if (s)
    return s;
  if (!(*out = malloc(sizeof **out))) {
    munmap(bytes, (size_t)info.st_size);
    return moth_no_memory(sizeof **out);
  }
  **out = (Mapping){bytes, (size_t)info.st_size, 1};
  return MOTH_OK;
}

/* Takes over m. */
static MothStatus make(Mapping *m, const char *path, MothDType dtype, int64_t offset, int64_t count,
                       MothTensor **out) {
  MothStatus s = MOTH_OK;
  int64_t item = moth_dtype_size(dtype), left = (int64_t)m->size - offset;
  if (dtype == MOTH_BOOL)
    s = moth_fail(MOTH_ERR_VALUE, "cannot map %s as bool; HINT: uint8, and x:ne(0)", path);
  else if (offset < 0 || offset % item || left < 0)
    s = moth_fail(MOTH_ERR_VALUE,
                  "cannot map %s from byte %lld on: it has %zu bytes, an element of %s %lld", path,
                  (long long)offset, m->size, moth_dtype_name(dtype), (long long)item);
  else if (count < 0 && left % item)
    s = moth_fail(MOTH_ERR_VALUE, "cannot map %s: its %lld bytes are no whole number of %s", path,
                  (long long)left, moth_dtype_name(dtype));
  else if (count > left / item)
    s = moth_fail(MOTH_ERR_VALUE, "cannot map %s: it has %lld elements of %s, not %lld", path,
                  (long long)(left / item), moth_dtype_name(dtype), (long long)count);
  if (count < 0)
    count = left / item;
  if (!s)
    s = moth_tensor_from_ptr((char *)m->bytes + offset, 1, &count, dtype, release, m, out);
  if (s)
    release(m);
  return s;
}

MothStatus moth_tensor_map(const char *path, MothDType dtype, int64_t offset, int64_t count,
                           MothTensor **out) {
  Mapping *m;
  MOTH_TRY(map(path, &m));
  return make(m, path, dtype, offset, count, out);
}

MothStatus moth_npy_map(const char *path, MothNpy *info, MothTensor **out) {
  Mapping *m;
  MOTH_TRY(map(path, &m));
  MothStatus s = moth_npy_parse(m->bytes, m->size, info);
  if (!s && info->swap)
    s = moth_fail(MOTH_ERR_VALUE, "cannot map %s: its elements are big-endian; HINT: load it",
                  path);
  if (s) {
    release(m);
    return s;
  }
  int64_t offset = info->data - (const uint8_t *)m->bytes;
  info->data = NULL;
  return make(m, path, info->dtype, offset, info->nbytes / moth_dtype_size(info->dtype), out);
}

MothStatus moth_mapping_open(const char *path, MothMapping **out) {
  *out = NULL;
  return map(path, out);
}

const uint8_t *moth_mapping_bytes(const MothMapping *m, size_t *n) {
  *n = m->size;
  return m->bytes;
}

MothStatus moth_mapping_tensor(MothMapping *m, MothDType dtype, int64_t offset, int ndim,
                               const int64_t *shape, MothTensor **out) {
  int64_t item = moth_dtype_size(dtype), bytes = item;
  for (int i = 0; i < ndim; i++)
    if (shape[i] < 0 || __builtin_mul_overflow(bytes, shape[i], &bytes))
      return moth_fail(MOTH_ERR_VALUE, "cannot map a tensor: its size overflows");
  if (dtype == MOTH_BOOL || offset < 0 || offset % item || bytes > (int64_t)m->size - offset)
    return moth_fail(MOTH_ERR_VALUE, "cannot map %lld bytes of %s from byte %lld on",
                     (long long)bytes, moth_dtype_name(dtype), (long long)offset);
  __atomic_add_fetch(&m->users, 1, __ATOMIC_RELAXED);
  MothStatus s =
      moth_tensor_from_ptr((char *)m->bytes + offset, ndim, shape, dtype, release, m, out);
  if (s)
    release(m);
  return s;
}

void moth_mapping_close(MothMapping *m) {
  if (m)
    release(m);
}
