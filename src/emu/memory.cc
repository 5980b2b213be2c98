/* Memory of the emulated devices, pinned memory, and copies.
 *
 * Device memory is the host's heap, so that AddressSanitizer finds accesses out of bounds. With
 * MOTH_CUDA_EMU_PROTECT=1 it is pages that are accessible only while a device works: host code that touches device
 * memory ends with a segmentation fault. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <map>

#include "emu/emu.h"

namespace {

enum Kind { PAGEABLE, PINNED, DEVICE };
struct Piece {
  size_t size;
  Kind kind;
  int device;
  bool registered; /* by cudaHostRegister */
};
std::map<uintptr_t, Piece> &pieces = *new std::map<uintptr_t, Piece>;

bool protecting() {
  static const char *s = getenv("MOTH_CUDA_EMU_PROTECT");
  static const bool on = s && *s && strcmp(s, "0") != 0;
  return on;
}

const std::pair<const uintptr_t, Piece> *find(const void *p) {
  auto i = pieces.upper_bound((uintptr_t)p);
  if (i == pieces.begin())
    return nullptr;
  --i;
  return (uintptr_t)p - i->first < i->second.size ? &*i : nullptr;
}

/* The block that holds n bytes from p. Error: they exceed it. */
cudaError_t kind_of(const void *p, size_t n, Kind *kind) {
  auto i = find(p);
  *kind = i ? i->second.kind : PAGEABLE;
  return i && n > i->second.size - ((uintptr_t)p - i->first) ? cudaErrorInvalidValue : cudaSuccess;
}

size_t rounded(size_t n) {
  return (n + 511) / 512 * 512;
}
size_t pages(size_t n) {
  return (n + 4095) / 4096 * 4096;
}

cudaError_t take(void **p, size_t n, Kind kind) {
  *p = nullptr;
  MOTH_EMU_TRY(moth_emu_unsafe());
  if (n == 0)
    return cudaSuccess;
  MothEmuDevice *d = &moth_emu_devices[moth_emu_device_now];
  size_t limit = moth_emu_memory_limit();
  if (kind == DEVICE && (n > limit || rounded(n) > limit - d->used))
    return moth_emu_note(cudaErrorMemoryAllocation);
  bool map = kind == DEVICE && protecting();
  if (map) {
    *p = mmap(nullptr, pages(n), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*p == MAP_FAILED)
      *p = nullptr;
  } else if (posix_memalign(p, 512, n) != 0) {
    *p = nullptr;
  }
  if (!*p)
    return moth_emu_note(cudaErrorMemoryAllocation);
  memset(*p, MOTH_EMU_PATTERN, n);
  if (map)
    mprotect(*p, pages(n), PROT_NONE);
  if (kind == DEVICE)
    d->used += rounded(n);
  pieces[(uintptr_t)*p] = {n, kind, moth_emu_device_now, false};
  return cudaSuccess;
}

void give_back(std::map<uintptr_t, Piece>::iterator i) {
  void *p = (void *)i->first;
  const Piece &piece = i->second;
  ASAN_UNPOISON_MEMORY_REGION(p, piece.size);
  if (piece.kind == DEVICE)
    moth_emu_devices[piece.device].used -= rounded(piece.size);
  if (piece.kind == DEVICE && protecting())
    munmap(p, pages(piece.size));
  else
    free(p);
  pieces.erase(i);
}

/* As the real one: waits for work that uses the memory. */
cudaError_t release(void *p, Kind kind) {
  if (!p)
    return cudaSuccess;
  MOTH_EMU_TRY(moth_emu_unsafe());
  auto i = pieces.find((uintptr_t)p);
  if (i == pieces.end() || i->second.kind != kind || i->second.registered)
    return moth_emu_note(cudaErrorInvalidValue);
  MOTH_EMU_TRY(moth_emu_wait_device(i->second.device));
  give_back(i);
  return cudaSuccess;
}

struct Copy {
  void *to;
  const void *from;
  size_t width, height, to_pitch, from_pitch;
  size_t extent(size_t pitch) const { return height ? pitch * (height - 1) + width : 0; }
};

cudaError_t check(const Copy &c, cudaMemcpyKind kind, Kind *to, Kind *from) {
  MOTH_EMU_TRY(kind_of(c.to, c.extent(c.to_pitch), to));
  MOTH_EMU_TRY(kind_of(c.from, c.extent(c.from_pitch), from));
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
    return cudaErrorInvalidMemcpyDirection;
  bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind != cudaMemcpyDefault && ((to_device ? *to == PAGEABLE : *to == DEVICE) ||
                                    (from_device ? *from == PAGEABLE : *from == DEVICE)))
    return cudaErrorInvalidValue;
  return cudaSuccess;
}

/* Pageable host memory is read or written before this returns; pinned memory when the operation runs. */
cudaError_t copy(Copy c, cudaMemcpyKind kind, cudaStream_t s, bool wait) {
  Kind to, from;
  MOTH_EMU_TRY(moth_emu_stream(s, &s));
  MOTH_EMU_TRY(check(c, kind, &to, &from));
  if (c.width == 0 || c.height == 0)
    return cudaSuccess;
  if (s->capture && (wait || to == PAGEABLE || from == PAGEABLE))
    return moth_emu_note(moth_emu_spoil(s, cudaErrorStreamCaptureUnsupported));
  std::shared_ptr<std::vector<char>> staged;
  if (from == PAGEABLE && to != PAGEABLE) {
    staged = std::make_shared<std::vector<char>>(c.width * c.height);
    for (size_t y = 0; y < c.height; y++)
      memcpy(staged->data() + y * c.width, (const char *)c.from + y * c.from_pitch, c.width);
    c.from = staged->data();
    c.from_pitch = c.width;
  }
  MothEmuMarkRef mark;
  MOTH_EMU_TRY(moth_emu_put(
      s,
      [c, staged]() {
        for (size_t y = 0; y < c.height; y++)
          memmove((char *)c.to + y * c.to_pitch, (const char *)c.from + y * c.from_pitch, c.width);
        return cudaSuccess;
      },
      {}, &mark));
  if (wait || to == PAGEABLE)
    MOTH_EMU_TRY(moth_emu_wait(mark));
  return cudaSuccess;
}

cudaError_t set(void *p, int value, size_t n, cudaStream_t s) {
  Kind kind;
  MOTH_EMU_TRY(moth_emu_stream(s, &s));
  MOTH_EMU_TRY(kind_of(p, n, &kind));
  if (kind == PAGEABLE)
    return moth_emu_note(cudaErrorInvalidValue);
  if (n)
    MOTH_EMU_TRY(moth_emu_put(s, [=]() {
      memset(p, value, n);
      return cudaSuccess;
    }));
  return cudaSuccess;
}

} // namespace

void moth_emu_memory_reset(int device) {
  for (auto i = pieces.begin(); i != pieces.end();) {
    auto next = std::next(i);
    if (i->second.kind == DEVICE && i->second.device == device)
      give_back(i);
    i = next;
  }
}
void moth_emu_protect(bool closed) {
  if (protecting())
    for (auto &i : pieces)
      if (i.second.kind == DEVICE)
        mprotect((void *)i.first, pages(i.second.size),
                 closed ? PROT_NONE : PROT_READ | PROT_WRITE);
}

cudaError_t cudaMalloc(void **p, size_t n) {
  MOTH_EMU_ENTER();
  return take(p, n, DEVICE);
}
cudaError_t cudaFree(void *p) {
  MOTH_EMU_ENTER();
  return release(p, DEVICE);
}
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned) {
  MOTH_EMU_ENTER();
  return take(p, n, PINNED);
}
cudaError_t cudaMallocHost(void **p, size_t n) {
  return cudaHostAlloc(p, n, cudaHostAllocDefault);
}
cudaError_t cudaFreeHost(void *p) {
  MOTH_EMU_ENTER();
  return release(p, PINNED);
}
cudaError_t cudaHostRegister(void *p, size_t n, unsigned) {
  MOTH_EMU_ENTER();
  if (!p || n == 0)
    return moth_emu_note(cudaErrorInvalidValue);
  if (find(p) || find((char *)p + n - 1))
    return moth_emu_note(cudaErrorHostMemoryAlreadyRegistered);
  pieces[(uintptr_t)p] = {n, PINNED, moth_emu_device_now, true};
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *p) {
  MOTH_EMU_ENTER();
  auto i = pieces.find((uintptr_t)p);
  if (i == pieces.end() || !i->second.registered)
    return moth_emu_note(cudaErrorHostMemoryNotRegistered);
  pieces.erase(i);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned) {
  MOTH_EMU_ENTER();
  auto i = find(host);
  *device = host;
  return i && i->second.kind == PINNED ? cudaSuccess : moth_emu_note(cudaErrorInvalidValue);
}
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  MOTH_EMU_ENTER();
  *total = moth_emu_memory_limit();
  *free = *total - moth_emu_devices[moth_emu_device_now].used;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p) {
  MOTH_EMU_ENTER();
  auto i = find(p);
  Kind kind = i ? i->second.kind : PAGEABLE;
  a->type = kind == DEVICE   ? cudaMemoryTypeDevice
            : kind == PINNED ? cudaMemoryTypeHost
                             : cudaMemoryTypeUnregistered;
  a->device = i ? i->second.device : -2;
  a->devicePointer = i ? (void *)p : nullptr;
  a->hostPointer = kind == DEVICE ? nullptr : (void *)p;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  MOTH_EMU_ENTER();
  return moth_emu_note(copy({to, from, n, 1, n, n}, kind, stream, false));
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind kind) {
  MOTH_EMU_ENTER();
  MOTH_EMU_TRY(moth_emu_unsafe());
  return moth_emu_note(copy({to, from, n, 1, n, n}, kind, nullptr, true));
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  MOTH_EMU_ENTER();
  if (width > to_pitch || width > from_pitch)
    return moth_emu_note(cudaErrorInvalidValue);
  return moth_emu_note(copy({to, from, width, height, to_pitch, from_pitch}, kind, stream, false));
}
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t n, cudaStream_t stream) {
  MOTH_EMU_ENTER();
  auto t = find(to), f = find(from);
  if (n && (!t || !f || t->second.kind != DEVICE || f->second.kind != DEVICE ||
            t->second.device != to_device || f->second.device != from_device))
    return moth_emu_note(cudaErrorInvalidValue);
  return moth_emu_note(copy({to, from, n, 1, n, n}, cudaMemcpyDefault, stream, false));
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t stream) {
  MOTH_EMU_ENTER();
  return set(p, value, n, stream);
}
cudaError_t cudaMemset(void *p, int value, size_t n) {
  MOTH_EMU_ENTER();
  return set(p, value, n, nullptr);
}

/* Memory is marked in the order of the stream: operations queued before may still use it. */
cudaError_t moth_emu_fresh(void *p, size_t n, cudaStream_t s) {
  MOTH_EMU_ENTER();
  MOTH_EMU_TRY(moth_emu_stream(s, &s));
  if (s->capture || n == 0)
    return cudaSuccess;
  return moth_emu_put(s, [=]() {
    ASAN_UNPOISON_MEMORY_REGION(p, n);
    memset(p, MOTH_EMU_PATTERN, n);
    return cudaSuccess;
  });
}
cudaError_t moth_emu_stale(void *p, size_t n, cudaStream_t s) {
  MOTH_EMU_ENTER();
  MOTH_EMU_TRY(moth_emu_stream(s, &s));
  if (s->capture || n == 0)
    return cudaSuccess;
  return moth_emu_put(s, [=]() {
    memset(p, MOTH_EMU_PATTERN, n);
    ASAN_POISON_MEMORY_REGION(p, n);
    return cudaSuccess;
  });
}
