/* The device runtime, for CUDA kernels: streams, memory, faults. Include it from .cu files. */
#ifndef MOTH_CUDA_CUDA_H
#define MOTH_CUDA_CUDA_H
#include <string.h>

#include "cuda/rt.h"

enum { MOTH_CUDA_MAX_DEVICES = 64 };

/* Properties of a device that kernels need. */
typedef struct MothCudaProps {
  int multiprocessors;
  int major, minor;        /* compute capability */
  size_t shared_per_block; /* the most bytes of dynamic shared memory of a block */
  size_t l2;               /* bytes */
  size_t total;            /* bytes of memory */
  char name[128];
} MothCudaProps;

const MothCudaProps *moth_cuda_props(int device);

/* The first call of a kernel's host side: makes the call's device current, checks that all its tensors are
 * on it, and sets *stream to this thread's current stream on it. */
MothStatus moth_cuda_enter(const MothCall *c, cudaStream_t *stream);
/* This thread's current stream on a device. */
cudaStream_t moth_cuda_stream(int device);
/* Makes a device current for this thread (cached: costs nothing if it is). */
MothStatus moth_cuda_set_device(int device);

/* Device memory from the caching allocator, for use on the device's current stream; once freed, it can be
 * reused at once on the same stream. NULL: out of memory (see moth_last_error). */
void *moth_cuda_alloc(int device, size_t n);
void moth_cuda_free(int device, void *p, size_t n);

/* Temporary device memory of a kernel's host side. */
struct MothScratch {
  void *p = nullptr;
  size_t n = 0;
  int device = 0;
  MothStatus take(int on, size_t bytes) {
    device = on;
    n = bytes ? bytes : 1;
    p = moth_cuda_alloc(device, n);
    return p ? MOTH_OK : MOTH_ERR_MEMORY;
  }
  template <class T> T *as() const { return static_cast<T *>(p); }
  ~MothScratch() {
    if (p)
      moth_cuda_free(device, p, n);
  }
};

/* Another stream uses the block, too: once freed, it is reused only after the work that this stream has
 * queued at the time of the free. A block's own stream needs no call. */
MothStatus moth_cuda_record_stream(int device, void *p, cudaStream_t stream);

/* `later` waits for all work queued in `earlier` by now; the streams may be on different devices. */
MothStatus moth_cuda_order(int device, cudaStream_t earlier, int later_device, cudaStream_t later);
/* Whether calls are recorded into a graph: nothing may wait for the device then. */
bool moth_cuda_is_capturing(cudaStream_t stream);

/* n bytes; done when it returns. */
MothStatus moth_cuda_memcpy(int device, void *to, const void *from, size_t n, cudaMemcpyKind kind);
/* An asynchronous copy on the stream will read or write p. False: p is ordinary host memory, and the copy
 * must be waited for; true: it is pinned, and kept from reuse until the copy has run. */
bool moth_cuda_pinned_use(const void *p, int device, cudaStream_t stream);
/* MothDeviceOps.copy: kernels/cuda/copy.cu. */
MothStatus moth_cuda_copy_across(MothTensor *dst, MothTensor *src, bool non_blocking);

/* The kernels of all ops: generated; the last one has no name. */
typedef struct MothCudaOp {
  const char *name;
  MothKernel kernel;
  const void *loops; /* MothOp.loops; NULL: it is not pointwise */
} MothCudaOp;
extern const MothCudaOp moth_cuda_ops[];

/* --- faults: errors that only the device can see ------------------------------------------------ */

/* An index out of range is found while a kernel runs. The kernel leaves the element out, writes the
 * first fault of the device into host memory that it can reach, and continues; the next synchronizing call raises it,
 * and so does the call itself under MOTH_CUDA_SYNC=1. */
enum {
  MOTH_FAULT_INDEX,
  MOTH_FAULT_CLASS,
  MOTH_FAULT_PROBABILITY, /* value: the bits of a double */
  MOTH_FAULT_WEIGHT,      /* the same */
  MOTH_FAULT_SAMPLES,     /* value: the number of samples requested; size: how many there are */
  MOTH_FAULT_SOURCE       /* value: elements that a mask selects; size: those of the source */
};
typedef struct MothFault {
  unsigned set;
  int op;          /* the id of the op */
  int dim;         /* from 0; -1: unnamed */
  int what;        /* MOTH_FAULT_... */
  long long value; /* as it was written */
  long long base, size;
  unsigned whole; /* set last: then the host may read the others */
} MothFault;

/* As device code sees it; host side of this device. */
MothFault *moth_cuda_fault(int device);

__device__ __forceinline__ void moth_fault(MothFault *f, int op, int what, int dim, long long value,
                                           long long base, long long size) {
  if (atomicCAS(&f->set, 0u, 1u) == 0u) {
    f->op = op;
    f->what = what;
    f->dim = dim;
    f->value = value;
    f->base = base;
    f->size = size;
    __threadfence_system();
    *(volatile unsigned *)&f->whole = 1;
  }
}
__device__ __forceinline__ void moth_fault_number(MothFault *f, int op, int what, double value) {
  long long bits;
  memcpy(&bits, &value, sizeof bits);
  moth_fault(f, op, what, -1, bits, 0, 0);
}
/* value as a position from 0 in [0, size), or -1 after noting the fault. */
__device__ __forceinline__ long long moth_index(MothFault *f, int op, int what, int dim,
                                                long long value, long long base, long long size) {
  long long i = value - base;
  if (i >= 0 && i < size)
    return i;
  moth_fault(f, op, what, dim, value, base, size);
  return -1;
}

/* The error of a fault that was noted, once; MOTH_OK if there is none. Call after a synchronisation. */
MothStatus moth_cuda_take_fault(int device);
/* Called last by the host side of kernels that may fault: under MOTH_CUDA_SYNC=1 synchronizes and raises. */
MothStatus moth_cuda_leave(const MothCall *c);

/* --- random numbers ----------------------------------------------------------------------------- */

/* MothPhilox for kernels. In a captured graph the generator's seed and counter are read from the device
 * when the kernel runs, so that each replay draws new numbers: `extra` holds {counter, seed} then, and
 * `offset` counts from the graph's beginning; else extra is NULL. Kernels use the two functions. */
typedef struct MothCudaPhilox {
  uint64_t seed, offset;
  const uint64_t *extra;
} MothCudaPhilox;
/* Takes `words` 32-bit words from g (NULL: the default generator) for a kernel that will be started next
 * on the device's current stream. The numbers are those that the CPU draws. */
MothCudaPhilox moth_cuda_philox(int device, MothGenerator *g, int64_t words);

__device__ __forceinline__ uint64_t moth_philox_offset(const MothCudaPhilox &p) {
  return p.offset + (p.extra ? p.extra[0] : 0);
}
__device__ __forceinline__ uint64_t moth_philox_seed(const MothCudaPhilox &p) {
  return p.extra ? p.extra[1] : p.seed;
}

/* --- choices ------------------------------------------------------------------------------------ */

/* Whether results must be the same bits in every run (the default): else an op may use atomic sums. */
bool moth_cuda_deterministic(void);

/* --- launching ---------------------------------------------------------------------------------- */

static inline int64_t moth_ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
#endif
