/* The emulation's CUDA runtime: device memory is host memory, streams run at once. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cuda/emu/emu.h"

struct MothEmuStream {
  int device;
};
struct MothEmuEvent {
  double at;
};

static int device_now;
static cudaError_t last;

static cudaError_t note(cudaError_t e) {
  if (e != cudaSuccess)
    last = e;
  return e;
}
const char *cudaGetErrorString(cudaError_t e) {
  switch (e) {
  case cudaSuccess:
    return "no error";
  case cudaErrorInvalidValue:
    return "invalid argument";
  case cudaErrorMemoryAllocation:
    return "out of memory";
  case cudaErrorInvalidConfiguration:
    return "invalid configuration argument";
  case cudaErrorInvalidDevice:
    return "invalid device ordinal";
  case cudaErrorLaunchFailure:
    return "unspecified launch failure";
  default:
    return "emulated CUDA error";
  }
}
cudaError_t cudaGetLastError(void) {
  cudaError_t e = last;
  last = cudaSuccess;
  return e;
}
cudaError_t cudaPeekAtLastError(void) {
  return last;
}
cudaError_t moth_emu_launch(const char *name, std::function<void()> body, dim3 grid, dim3 block,
                            size_t shared, cudaStream_t stream, const void *) {
  (void)stream;
  return note(moth_emu_run(name, body, grid, block, shared));
}
cudaError_t cudaGetDeviceCount(int *n) {
  *n = 2;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device > 1)
    return note(cudaErrorInvalidDevice);
  device_now = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
  *device = device_now;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
  (void)device;
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "emulated CUDA device");
  p->totalGlobalMem = (size_t)1 << 30;
  p->sharedMemPerBlockOptin = 227 << 10;
  p->multiProcessorCount = 2;
  p->major = 9;
  p->l2CacheSize = 1 << 20;
  p->maxThreadsPerMultiProcessor = 2048;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
  return cudaSuccess;
}
cudaError_t cudaMalloc(void **p, size_t n) {
  *p = aligned_alloc(512, (n + 511) / 512 * 512);
  return *p ? cudaSuccess : note(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void *p) {
  free(p);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void **p, size_t n) {
  return cudaMalloc(p, n);
}
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags) {
  (void)flags;
  return cudaMalloc(p, n);
}
cudaError_t cudaFreeHost(void *p) {
  return cudaFree(p);
}
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  *free = *total = (size_t)1 << 30;
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind kind) {
  (void)kind;
  memmove(to, from, n);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  (void)stream;
  return cudaMemcpy(to, from, n, kind);
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t stream) {
  (void)stream;
  memset(p, value, n);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
  (void)flags;
  *s = new MothEmuStream{device_now};
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
  (void)priority;
  return cudaStreamCreateWithFlags(s, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  delete s;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  (void)s;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
  (void)s;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
  (void)s;
  (void)e;
  (void)flags;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
  (void)flags;
  *e = new MothEmuEvent{0};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  delete e;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  (void)s;
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  e->at = (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  (void)e;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  (void)e;
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
  *ms = (float)(b->at - a->at);
  return cudaSuccess;
}
