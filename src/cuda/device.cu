/* Opening the backend: devices, the current device and stream, copies to and from the host, faults.
 * What the core sees of it is the MothDeviceOps at the end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda.h"
#include "no_cuda/cuda.h"

extern const MothKernel moth_cuda_kernels_of_ops[MOTH_NOPS]; /* generated */

static int device_count;
static MothCudaProps props[MOTH_CUDA_MAX_DEVICES];
static cudaStream_t default_stream[MOTH_CUDA_MAX_DEVICES];
static MothFault *faults[MOTH_CUDA_MAX_DEVICES];
static bool sync_always;
static char why[512];
static __thread int current_device = -1;

MothStatus moth_cuda_check(cudaError_t e, const char *what) {
  if (e == cudaSuccess)
    return MOTH_OK;
  cudaGetLastError(); /* else the next launch would report it again */
  return moth_fail(e == cudaErrorMemoryAllocation ? MOTH_ERR_MEMORY : MOTH_ERR_STATE,
                   "CUDA: %s (%s)", cudaGetErrorString(e), what);
}

const MothCudaProps *moth_cuda_props(int device) {
  return &props[device];
}

MothStatus moth_cuda_set_device(int device) {
  if (device == current_device)
    return MOTH_OK;
  MOTH_CUDA_TRY(cudaSetDevice(device));
  current_device = device;
  return MOTH_OK;
}

cudaStream_t moth_cuda_stream(int device) {
  return default_stream[device];
}

MothStatus moth_cuda_enter(const MothCall *c, cudaStream_t *stream) {
  int device = c->device.index;
  MOTH_TRY(moth_cuda_set_device(device));
  *stream = moth_cuda_stream(device);
  return MOTH_OK;
}

/* --- faults ------------------------------------------------------------------------------------- */

MothFault *moth_cuda_fault(int device) {
  return faults[device];
}

MothStatus moth_cuda_take_fault(int device) {
  MothFault f = *faults[device];
  if (!f.set)
    return MOTH_OK;
  memset(faults[device], 0, sizeof f);
  char dim[48] = "";
  if (f.dim >= 0)
    snprintf(dim, sizeof dim, " of dimension %d", f.dim + 1);
  return moth_fail(
      MOTH_ERR_INDEX, "[%s] %s %lld is out of range: expected %lld to %lld%s%s",
      moth_ops[f.op].name, f.what ? "class" : "index", f.value, f.base, f.size - 1 + f.base, dim,
      sync_always ? ""
                  : " (found while an earlier call ran on the device; MOTH_CUDA_SYNC=1 "
                    "raises it there)");
}

MothStatus moth_cuda_leave(const MothCall *c) {
  if (!sync_always)
    return MOTH_OK;
  MOTH_CUDA_TRY(cudaStreamSynchronize(moth_cuda_stream(c->device.index)));
  return moth_cuda_take_fault(c->device.index);
}

/* --- what the core sees ------------------------------------------------------------------------- */

static const char *why_not(int index) {
  if (index >= device_count) {
    snprintf(why, sizeof why, "there are %d CUDA devices, from cuda:0", device_count);
    return why;
  }
  return NULL;
}
static void *device_alloc(int index, size_t n) {
  return moth_cuda_alloc(index, n ? n : 1);
}
static void device_free(int index, void *p, size_t n) {
  moth_cuda_free(index, p, n ? n : 1);
}
MothStatus moth_cuda_memcpy(int index, void *to, const void *from, size_t n, cudaMemcpyKind kind) {
  cudaStream_t s = moth_cuda_stream(index);
  MOTH_TRY(moth_cuda_set_device(index));
  MOTH_CUDA_TRY(cudaMemcpyAsync(to, from, n, kind, s));
  MOTH_CUDA_TRY(cudaStreamSynchronize(s));
  return moth_cuda_take_fault(index);
}
static MothStatus to_host(int index, void *to, const void *from, size_t n) {
  return moth_cuda_memcpy(index, to, from, n, cudaMemcpyDeviceToHost);
}
static MothStatus from_host(int index, void *to, const void *from, size_t n) {
  return moth_cuda_memcpy(index, to, from, n, cudaMemcpyHostToDevice);
}

static const MothDeviceOps ops = {"cuda",  why_not,   device_alloc,         device_free,
                                  to_host, from_host, moth_cuda_copy_across};

/* For now without a cache. */
void *moth_cuda_alloc(int device, size_t n) {
  void *p;
  if (moth_cuda_set_device(device) != MOTH_OK ||
      moth_cuda_check(cudaMalloc(&p, n), "cudaMalloc") != MOTH_OK)
    return NULL;
  return p;
}
void moth_cuda_free(int device, void *p, size_t n) {
  (void)device;
  (void)n;
  cudaFree(p);
}

static MothStatus open_device(int i) {
  cudaDeviceProp p;
  MOTH_TRY(moth_cuda_set_device(i));
  MOTH_CUDA_TRY(cudaGetDeviceProperties(&p, i));
  props[i].multiprocessors = p.multiProcessorCount;
  props[i].major = p.major;
  props[i].minor = p.minor;
  props[i].shared_per_block = p.sharedMemPerBlockOptin;
  props[i].l2 = (size_t)p.l2CacheSize;
  props[i].total = p.totalGlobalMem;
  snprintf(props[i].name, sizeof props[i].name, "%.127s", p.name);
  MOTH_CUDA_TRY(cudaStreamCreateWithFlags(&default_stream[i], cudaStreamNonBlocking));
  void *f;
  MOTH_CUDA_TRY(cudaHostAlloc(&f, sizeof(MothFault), cudaHostAllocPortable | cudaHostAllocMapped));
  memset(f, 0, sizeof(MothFault));
  faults[i] = (MothFault *)f;
  return MOTH_OK;
}

/* Called once, by src/no_cuda. Returns why there is no device, or NULL. */
extern "C" MOTH_API const char *moth_cuda_open(void) {
  cudaError_t e = cudaGetDeviceCount(&device_count);
  if (e != cudaSuccess || device_count == 0) {
    device_count = 0;
    snprintf(why, sizeof why, "no CUDA device: %s",
             e != cudaSuccess ? cudaGetErrorString(e) : "none is visible");
    cudaGetLastError();
    return why;
  }
  if (device_count > MOTH_CUDA_MAX_DEVICES)
    device_count = MOTH_CUDA_MAX_DEVICES;
  for (int i = device_count - 1; i >= 0; i--)
    if (open_device(i) != MOTH_OK) {
      snprintf(why, sizeof why, "%s", moth_last_error());
      return why;
    }
  const char *s = getenv("MOTH_CUDA_SYNC");
  sync_always = s && strcmp(s, "0") != 0;
  for (int i = 0; i < MOTH_NOPS; i++)
    moth_ops[i].kernels[MOTH_CUDA] = moth_cuda_kernels_of_ops[i];
  moth_device_register(MOTH_CUDA, &ops);
  return NULL;
}
