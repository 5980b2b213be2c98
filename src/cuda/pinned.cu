/* The caching allocator of pinned host memory. CUDA's allocation pins page by page and synchronizes with
 * the device, so freed blocks are kept, in sizes that are powers of two. An asynchronous copy outlives its
 * call, so it notes its stream in the block that it reads or writes; a freed block is reused once events
 * in those streams have completed. */
#include <stdlib.h>
#include <string.h>

#include "cuda/runtime.h"
extern "C" {
#include "core/alloc.h"
}

namespace {

enum { LEAST = 9, CLASSES = 48, NUSES = 8 };

struct Use {
  int device;
  cudaStream_t stream;
  cudaEvent_t event;
};
struct Pinned {
  char *p;
  int klass; /* 2^klass bytes */
  int nuses;
  bool used;
  Use uses[NUSES];
  Pinned *next;  /* in the list of its class or of waiting blocks */
  Pinned *chain; /* in the list of all blocks */
};

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
Pinned *cached[CLASSES], *waiting, *all;
int64_t live_bytes, cached_bytes;

/* The block that contains p. There are few blocks (batches of data), so a list is fast enough. */
Pinned *find(const void *p) {
  for (Pinned *b = all; b; b = b->chain)
    if ((const char *)p >= b->p && (const char *)p < b->p + ((size_t)1 << b->klass))
      return b;
  return nullptr;
}

void keep(Pinned *b) {
  b->next = cached[b->klass];
  cached[b->klass] = b;
  cached_bytes += (int64_t)1 << b->klass;
}

/* Frees blocks whose copies have completed. */
void process(bool wait) {
  for (Pinned **at = &waiting; *at;) {
    Pinned *b = *at;
    MothRelaxed relaxed; /* the events belong to no capture */
    while (b->nuses > 0) {
      Use *u = &b->uses[b->nuses - 1];
      cudaError_t e = wait ? cudaEventSynchronize(u->event) : cudaEventQuery(u->event);
      if (e != cudaSuccess && !wait) {
        cudaGetLastError();
        break;
      }
      moth_cuda_event_give(u->device, u->event);
      b->nuses--;
    }
    if (b->nuses) {
      at = &b->next;
      continue;
    }
    *at = b->next;
    keep(b);
  }
}

void empty(void) {
  process(true);
  for (int k = 0; k < CLASSES; k++)
    while (Pinned *b = cached[k]) {
      cached[k] = b->next;
      cached_bytes -= (int64_t)1 << k;
      Pinned **at = &all;
      while (*at != b)
        at = &(*at)->chain;
      *at = b->chain;
      MothRelaxed relaxed;
      cudaFreeHost(b->p);
      moth_free(b, sizeof *b);
    }
}

Pinned *fresh(int klass, cudaError_t *e) {
  Pinned *b = (Pinned *)moth_alloc(sizeof *b);
  *e = cudaErrorMemoryAllocation;
  if (!b)
    return nullptr;
  void *p = nullptr;
  if (moth_cuda_set_device(moth_device_ops(MOTH_CUDA)->current()) == MOTH_OK) {
    MothRelaxed relaxed;
    *e = cudaHostAlloc(&p, (size_t)1 << klass, cudaHostAllocPortable);
  }
  if (*e != cudaSuccess) {
    cudaGetLastError();
    moth_free(b, sizeof *b);
    return nullptr;
  }
  memset((void *)b, 0, sizeof *b);
  b->p = (char *)p;
  b->klass = klass;
  b->chain = all;
  all = b;
  return b;
}

void release(void *ctx) {
  moth_cuda_pinned_free(ctx);
}

} // namespace

void *moth_cuda_pinned_alloc(size_t n) {
  int klass = LEAST;
  while (klass < CLASSES - 1 && (size_t)1 << klass < n)
    klass++;
  cudaError_t e = cudaErrorMemoryAllocation;
  Pinned *b = nullptr;
  if (n <= (size_t)1 << klass && !moth_alloc_must_fail()) {
    MothLock guard(&lock);
    process(false);
    b = cached[klass];
    if (b) {
      cached[klass] = b->next;
      cached_bytes -= (int64_t)1 << klass;
    } else {
      b = fresh(klass, &e);
      if (!b && e == cudaErrorMemoryAllocation && (cached_bytes || waiting)) {
        empty();
        b = fresh(klass, &e);
      }
    }
    if (b) {
      b->used = true;
      live_bytes += (int64_t)1 << klass;
      return b->p;
    }
  }
  if (e == cudaErrorMemoryAllocation)
    moth_fail(MOTH_ERR_MEMORY,
              "out of pinned memory: could not allocate %zu bytes (%lld bytes are live, %lld "
              "cached); HINT: pin less, the system limits it",
              n, (long long)live_bytes, (long long)cached_bytes);
  else
    moth_cuda_check(e, "cudaHostAlloc");
  return nullptr;
}

void moth_cuda_pinned_free(void *p) {
  MothLock guard(&lock);
  Pinned *b = find(p);
  if (!b || !b->used)
    return;
  b->used = false;
  live_bytes -= (int64_t)1 << b->klass;
  moth_alloc_count_device(-((int64_t)1 << b->klass));
  if (!b->nuses) {
    keep(b);
    return;
  }
  /* from here on the uses' events are to be waited for: one is recorded behind all copies */
  int n = 0;
  for (int i = 0; i < b->nuses; i++) {
    Use u = b->uses[i];
    if (moth_cuda_event_take(u.device, &u.event) != MOTH_OK)
      return; /* never reused: the device is lost */
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (moth_cuda_any_capture())
      cudaStreamIsCapturing(u.stream, &status);
    if (status != cudaStreamCaptureStatusNone ||
        cudaEventRecord(u.event, u.stream) != cudaSuccess) {
      cudaGetLastError();
      return; /* a graph reads it at each replay */
    }
    b->uses[n++] = u;
  }
  b->next = waiting;
  waiting = b;
}

bool moth_cuda_pinned_use(const void *p, int device, cudaStream_t stream) {
  {
    MothLock guard(&lock);
    Pinned *b = find(p);
    if (b) {
      for (int i = 0; i < b->nuses; i++)
        if (b->uses[i].stream == stream)
          return true;
      if (b->nuses == NUSES)
        return false; /* the caller waits for the copy */
      b->uses[b->nuses++] = Use{device, stream, nullptr};
      return true;
    }
  }
  cudaPointerAttributes a;
  if (cudaPointerGetAttributes(&a, p) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return a.type == cudaMemoryTypeHost;
}

bool moth_cuda_is_pinned(const MothTensor *t) {
  if (t->device.type != MOTH_CPU || !t->storage->data || t->storage->embedded)
    return false;
  if (t->storage->foreign && t->storage->release == release)
    return true;
  cudaPointerAttributes a;
  if (!t->storage->foreign || cudaPointerGetAttributes(&a, t->storage->data) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return a.type == cudaMemoryTypeHost;
}

MothStatus moth_cuda_pinned_new(int ndim, const int64_t *shape, MothDType dtype, MothTensor **out) {
  int64_t numel = 1;
  for (int i = 0; i < ndim; i++)
    numel *= shape[i]; /* of an existing tensor: no overflow */
  size_t n = (size_t)(numel * moth_dtype_size(dtype));
  void *p = moth_cuda_pinned_alloc(n ? n : 1);
  if (!p)
    return MOTH_ERR_MEMORY;
  MothStatus s = moth_tensor_from_ptr(p, ndim, shape, dtype, release, p, out);
  if (s != MOTH_OK)
    moth_cuda_pinned_free(p);
  return s;
}

MothStatus moth_cuda_pin(MothTensor *t, MothTensor **out) {
  MOTH_TRY(moth_cuda_pinned_new(t->ndim, t->shape, (MothDType)t->dtype, out));
  MothValue args[2] = {moth_v_tensor(*out), moth_v_tensor(t)}, result;
  MothThread *thread = moth_thread_state();
  uint32_t exclude = thread->exclude; /* a copy of bytes, which is not recorded */
  thread->exclude |= ~(uint32_t)MOTH_KEYS_DATA;
  MothStatus s = moth_op_call(moth_op_find("copy_"), 2, args, &result);
  thread->exclude = exclude;
  moth_tensor_release(s == MOTH_OK ? result.u.t : *out);
  return s;
}

void moth_cuda_pinned_stats(int64_t *live, int64_t *unused) {
  MothLock guard(&lock);
  *live = live_bytes;
  *unused = cached_bytes;
}
MothStatus moth_cuda_pinned_empty(void) {
  if (moth_cuda_any_capture())
    return moth_fail(MOTH_ERR_STATE, "a graph is being captured");
  MothLock guard(&lock);
  empty();
  return MOTH_OK;
}
