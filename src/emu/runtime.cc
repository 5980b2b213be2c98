/* The rest of the emulation's runtime: errors, devices, launches. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unordered_map>

#include "emu/emu.h"

MothEmuDevice moth_emu_devices[MOTH_EMU_MAX_DEVICES];
thread_local int moth_emu_device_now;
thread_local bool moth_emu_in_host_function;
std::mutex moth_emu_mutex;

static thread_local cudaError_t last;
static char message[512];

static long long number(const char *name, long long otherwise, long long least, long long most) {
  const char *s = getenv(name);
  long long n = s && *s ? strtoll(s, nullptr, 10) : otherwise;
  return n < least ? least : n > most ? most : n;
}
uint64_t moth_emu_seed(void) {
  static const uint64_t seed = (uint64_t)number("MOTH_CUDA_EMU_SEED", 1, 0, INT64_MAX);
  return (seed + 1) * 0x9e3779b97f4a7c15ull | 1;
}
int moth_emu_device_count(void) {
  static const int n = (int)number("MOTH_CUDA_EMU_DEVICES", 2, 0, MOTH_EMU_MAX_DEVICES);
  return n;
}
size_t moth_emu_memory_limit(void) {
  static const size_t n = (size_t)number("MOTH_CUDA_EMU_MEMORY", 1 << 30, 512, INT64_MAX);
  return n;
}

/* --- errors ------------------------------------------------------------------------------------- */

void moth_emu_say(const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
}
const char *moth_emu_error(void) {
  return message;
}
cudaError_t moth_emu_note(cudaError_t e) {
  if (e != cudaSuccess)
    last = e;
  return e;
}
cudaError_t moth_emu_barred(void) {
  return moth_emu_devices[moth_emu_device_now].sticky;
}
cudaError_t cudaGetLastError(void) {
  cudaError_t e = last;
  last = cudaSuccess;
  return e;
}
cudaError_t cudaPeekAtLastError(void) {
  return last;
}

#define ERRORS(X)                                                                                  \
  X(cudaSuccess, "no error")                                                                       \
  X(cudaErrorInvalidValue, "invalid argument")                                                     \
  X(cudaErrorMemoryAllocation, "out of memory")                                                    \
  X(cudaErrorInvalidConfiguration, "invalid configuration argument")                               \
  X(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy")                          \
  X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                       \
  X(cudaErrorInvalidDevice, "invalid device ordinal")                                              \
  X(cudaErrorInvalidKernelImage, "device kernel image is invalid")                                 \
  X(cudaErrorSymbolNotFound, "named symbol not found")                                             \
  X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                     \
  X(cudaErrorNotReady, "device not ready")                                                         \
  X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                           \
  X(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled")                           \
  X(cudaErrorHostMemoryAlreadyRegistered, "part or all of the memory is already registered")       \
  X(cudaErrorHostMemoryNotRegistered, "the memory is not registered")                              \
  X(cudaErrorLaunchFailure, message[0] ? message : "unspecified launch failure")                   \
  X(cudaErrorNotPermitted, "operation not permitted")                                              \
  X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")         \
  X(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture")  \
  X(cudaErrorStreamCaptureUnmatched, "capture was not started on this stream")                     \
  X(cudaErrorStreamCaptureUnjoined, "capture has streams that were not joined to it")              \
  X(cudaErrorStreamCaptureIsolation, "dependency on work outside of the capture")                  \
  X(cudaErrorStreamCaptureImplicit, "capture would depend on the legacy default stream")           \
  X(cudaErrorCapturedEvent, "operation not permitted on an event recorded in a capture")           \
  X(cudaErrorStreamCaptureWrongThread, "capture was not started by this thread")

const char *cudaGetErrorString(cudaError_t e) {
  switch (e) {
#define X(name, text)                                                                              \
  case name:                                                                                       \
    return text;
    ERRORS(X)
#undef X
  }
  return "unrecognized error code";
}
const char *cudaGetErrorName(cudaError_t e) {
  switch (e) {
#define X(name, text)                                                                              \
  case name:                                                                                       \
    return #name;
    ERRORS(X)
#undef X
  }
  return "unrecognized error code";
}

/* --- devices ------------------------------------------------------------------------------------ */

cudaError_t cudaDriverGetVersion(int *version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *n) {
  *n = moth_emu_device_count();
  return *n ? cudaSuccess : moth_emu_note(cudaErrorNoDevice);
}
static bool exists(int device) {
  return device >= 0 && device < moth_emu_device_count();
}
cudaError_t cudaSetDevice(int device) {
  if (moth_emu_in_host_function)
    return moth_emu_note(cudaErrorNotPermitted);
  if (!exists(device))
    return moth_emu_note(cudaErrorInvalidDevice);
  moth_emu_device_now = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
  *device = moth_emu_device_now;
  return cudaSuccess;
}
/* The figures of an sm_90 device as far as kernels depend on them, but few multiprocessors: grids that depend on it
 * stay small. */
enum { SHARED = 48 << 10, SHARED_OPTIN = 227 << 10, SHARED_ALL = 228 << 10, SMS = 4 };
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
  if (!exists(device))
    return moth_emu_note(cudaErrorInvalidDevice);
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "emulated CUDA device");
  p->totalGlobalMem = moth_emu_memory_limit();
  p->sharedMemPerBlock = SHARED;
  p->sharedMemPerBlockOptin = SHARED_OPTIN;
  p->sharedMemPerMultiprocessor = SHARED_ALL;
  p->multiProcessorCount = SMS;
  p->major = 9;
  p->l2CacheSize = 1 << 20;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxThreadsPerBlock = 1024;
  p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->clockRate = 1000000;
  p->memoryBusWidth = 64;
  p->pciBusID = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  if (cudaError_t e = cudaGetDeviceProperties(&p, device))
    return e;
  switch (attribute) {
  case cudaDevAttrMaxThreadsPerBlock:
    return *value = p.maxThreadsPerBlock, cudaSuccess;
  case cudaDevAttrMaxSharedMemoryPerBlock:
    return *value = SHARED, cudaSuccess;
  case cudaDevAttrWarpSize:
    return *value = 32, cudaSuccess;
  case cudaDevAttrClockRate:
    return *value = p.clockRate, cudaSuccess;
  case cudaDevAttrMultiProcessorCount:
    return *value = SMS, cudaSuccess;
  case cudaDevAttrMemoryClockRate:
    return *value = 1000000, cudaSuccess;
  case cudaDevAttrGlobalMemoryBusWidth:
    return *value = p.memoryBusWidth, cudaSuccess;
  case cudaDevAttrL2CacheSize:
    return *value = p.l2CacheSize, cudaSuccess;
  case cudaDevAttrMaxThreadsPerMultiProcessor:
    return *value = p.maxThreadsPerMultiProcessor, cudaSuccess;
  case cudaDevAttrComputeCapabilityMajor:
    return *value = p.major, cudaSuccess;
  case cudaDevAttrComputeCapabilityMinor:
    return *value = p.minor, cudaSuccess;
  case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
    return *value = SHARED_ALL, cudaSuccess;
  case cudaDevAttrConcurrentManagedAccess:
    return *value = 0, cudaSuccess;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin:
    return *value = SHARED_OPTIN, cudaSuccess;
  }
  return moth_emu_note(cudaErrorInvalidValue);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  if (!exists(device) || !exists(peer))
    return moth_emu_note(cudaErrorInvalidDevice);
  *can = device != peer;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return exists(peer) && peer != moth_emu_device_now ? cudaSuccess
                                                     : moth_emu_note(cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceReset(void) {
  std::lock_guard<std::mutex> lock(moth_emu_mutex);
  moth_emu_drop(moth_emu_device_now);
  moth_emu_memory_reset(moth_emu_device_now);
  moth_emu_devices[moth_emu_device_now].sticky = cudaSuccess;
  message[0] = 0;
  last = cudaSuccess;
  return cudaSuccess;
}

/* --- kernels ------------------------------------------------------------------------------------ */

/* The dynamic shared memory that kernels may use, of those that asked for more than 48 KB. */
static std::unordered_map<const void *, int> &opted = *new std::unordered_map<const void *, int>;

cudaError_t cudaFuncSetAttribute(const void *f, cudaFuncAttribute attribute, int value) {
  MOTH_EMU_ENTER();
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value < 0 || value > SHARED_OPTIN)
      return moth_emu_note(cudaErrorInvalidValue);
    opted[f] = value;
  }
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *f) {
  MOTH_EMU_ENTER();
  memset(a, 0, sizeof *a);
  auto i = opted.find(f);
  a->maxDynamicSharedSizeBytes = i == opted.end() ? SHARED : i->second;
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->ptxVersion = a->binaryVersion = 90;
  return cudaSuccess;
}
cudaError_t moth_emu_occupancy(int *blocks, int threads, size_t shared) {
  if (threads < 1 || threads > 1024)
    return moth_emu_note(cudaErrorInvalidValue);
  size_t by_shared = shared ? SHARED_ALL / (shared + 1024) : 32;
  *blocks = 2048 / ((threads + 31) / 32 * 32);
  *blocks = *blocks > 32 ? 32 : *blocks;
  *blocks = (size_t)*blocks > by_shared ? (int)by_shared : *blocks;
  return cudaSuccess;
}

cudaError_t moth_emu_launch(const char *name, std::function<void()> body, dim3 grid, dim3 block,
                            size_t shared, cudaStream_t stream, const void *f) {
  MOTH_EMU_ENTER();
  MOTH_EMU_TRY(moth_emu_stream(stream, &stream));
  if (stream->device != moth_emu_device_now)
    return moth_emu_note(cudaErrorInvalidResourceHandle);
  auto i = opted.find(f);
  size_t limit = i == opted.end() ? (size_t)SHARED : (size_t)i->second;
  unsigned long long threads = (unsigned long long)block.x * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.x > 1024 || block.y > 1024 || block.z > 64 ||
      grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > INT32_MAX || grid.y > 65535 ||
      grid.z > 65535)
    return moth_emu_note(cudaErrorInvalidConfiguration);
  if (shared > limit)
    return moth_emu_note(cudaErrorInvalidValue);
  MOTH_EMU_TRY(moth_emu_put(stream, [=, body = std::move(body)]() {
    return moth_emu_run(name, body, grid, block, shared);
  }));
  /* An earlier error that was not fetched, as cudaPeekAtLastError after a launch gives it. */
  return cudaGetLastError();
}
