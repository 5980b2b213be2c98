/* Opening the backend: devices, errors, faults, copies to and from the host. Its interface to the core is
 * the MothDeviceOps and the MothCudaApi at the end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/lib.h"
#include "cuda/rtc.h"
#include "cuda/runtime.h"
#include "cuda/trace.h"
#include "layout.h"

static int device_count;
static MothCudaProps props[MOTH_CUDA_MAX_DEVICES];
static MothCudaInfo infos[MOTH_CUDA_MAX_DEVICES];
static MothFault *faults[MOTH_CUDA_MAX_DEVICES];
static pthread_mutex_t faults_lock = PTHREAD_MUTEX_INITIALIZER;
bool moth_cuda_sync_always;
static char why[512];
static thread_local int runtime_device = -1; /* CUDA's current device, as this file has set it */
static thread_local int chosen_device;       /* what "cuda" means */

/* --- errors ------------------------------------------------------------------------------------- */

/* Errors after which CUDA refuses every other call of this process: ECC errors and faults in kernels. */
static bool is_lost(int e) {
  return e == 214 || e == 700 || e == 702 || e == 710 || (e >= 714 && e <= 719) || e == 721;
}

MothStatus moth_cuda_check_on(int device, cudaError_t e, const char *what) {
  if (e == cudaSuccess)
    return MOTH_OK;
  cudaGetLastError(); /* else the next launch would report it again */
  const char *text = cudaGetErrorString(e);
  if (e == cudaErrorMemoryAllocation)
    return moth_fail(MOTH_ERR_MEMORY, "CUDA: %s on cuda:%d (%s)", text, device, what);
  if (is_lost((int)e))
    return moth_fail(
        MOTH_ERR_STATE,
        "CUDA: %s on cuda:%d (seen at %s%s). The device is lost to this process: save nothing from "
        "it and start anew; HINT: %s",
        text, device, what, moth_cuda_sync_always ? "" : ", caused there or by an earlier call",
        moth_cuda_sync_always ? "compute-sanitizer shows the access"
                              : "with MOTH_CUDA_SYNC=1 the error shows at the call that caused it");
  if ((int)e >= 900 && (int)e < 910)
    return moth_fail(MOTH_ERR_STATE,
                     "CUDA: %s on cuda:%d (%s); HINT: while a graph is captured nothing may wait "
                     "for the device: no item(), no printing, no copy from or to ordinary memory",
                     text, device, what);
  return moth_fail(MOTH_ERR_STATE, "CUDA: %s on cuda:%d (%s)", text, device, what);
}
MothStatus moth_cuda_check(cudaError_t e, const char *what) {
  return e == cudaSuccess ? MOTH_OK
                          : moth_cuda_check_on(runtime_device < 0 ? 0 : runtime_device, e, what);
}

MothStatus moth_cuda_launched(const char *name, cudaError_t e, cudaStream_t stream) {
  if (e == cudaSuccess && moth_cuda_sync_always && !moth_cuda_is_capturing(stream))
    e = cudaStreamSynchronize(stream);
  return moth_cuda_check(e, name);
}

/* --- devices ------------------------------------------------------------------------------------ */

int moth_cuda_device_count(void) {
  return device_count;
}
const MothCudaProps *moth_cuda_props(int device) {
  return &props[device];
}

/* A device is opened when it is first used: that costs memory on it, and time. */
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static bool opened[MOTH_CUDA_MAX_DEVICES];

static MothStatus open_device(int device) {
  void *fault;
  MothLock lock(&open_lock);
  if (opened[device])
    return MOTH_OK;
  MothRelaxed relaxed;
  moth_cuda_memory_open(device);
  MOTH_TRY(moth_cuda_streams_open(device));
  MOTH_CUDA_TRY(
      cudaHostAlloc(&fault, sizeof(MothFault), cudaHostAllocPortable | cudaHostAllocMapped));
  memset(fault, 0, sizeof(MothFault));
  faults[device] = (MothFault *)fault;
  __atomic_store_n(&opened[device], true, __ATOMIC_RELEASE);
  return MOTH_OK;
}

MothStatus moth_cuda_set_device(int device) {
  if (device == runtime_device)
    return MOTH_OK;
  cudaError_t e = cudaSetDevice(device);
  if (e != cudaSuccess)
    return moth_cuda_check_on(device, e, "cudaSetDevice");
  if (!__atomic_load_n(&opened[device], __ATOMIC_ACQUIRE))
    MOTH_TRY(open_device(device));
  runtime_device = device;
  return MOTH_OK;
}

MothStatus moth_cuda_enter(const MothCall *c, cudaStream_t *stream) {
  int device = c->device.index;
  MOTH_TRY(moth_cuda_set_device(device));
  *stream = moth_cuda_stream(device);
  return MOTH_OK;
}

bool moth_cuda_deterministic(void) {
  return moth_deterministic;
}

/* --- faults ------------------------------------------------------------------------------------- */

MothFault *moth_cuda_fault(int device) {
  return faults[device];
}

MothStatus moth_cuda_take_fault(int device) {
  if (!faults[device] || !*(volatile unsigned *)&faults[device]->whole)
    return MOTH_OK;
  MothFault f;
  {
    MothLock lock(&faults_lock);
    f = *faults[device];
    memset(faults[device], 0, sizeof f);
  }
  if (!f.whole) /* a fault of another thread is being written */
    return MOTH_OK;
  const char *op = moth_registry_at(f.op)->name;
  const char *late = moth_cuda_sync_always ? ""
                                           : " (" MOTH_FOUND_LATER "; "
                                             "MOTH_CUDA_SYNC=1 raises it there)";
  double number;
  memcpy(&number, &f.value, sizeof number);
  switch (f.what) {
  case MOTH_FAULT_PROBABILITY:
    return moth_fail(MOTH_ERR_VALUE, "[%s] the probability must be between 0 and 1, got %g%s", op,
                     number, late);
  case MOTH_FAULT_WEIGHT:
    return moth_fail(MOTH_ERR_VALUE, "[%s] weights must not be negative, infinite or NaN, got %g%s",
                     op, number, late);
  case MOTH_FAULT_SAMPLES:
    return moth_fail(MOTH_ERR_VALUE,
                     "[%s] cannot draw %lld samples: more than the %lld positive weights%s", op,
                     f.value, f.size, late);
  case MOTH_FAULT_SOURCE:
    return moth_fail(MOTH_ERR_VALUE, "[%s] mask selects %lld elements, but source has only %lld%s",
                     op, f.value, f.size, late);
  }
  const char *what = f.what == MOTH_FAULT_CLASS ? "class" : "index";
  char dim[80] = "";
  if (f.dim >= 0)
    snprintf(dim, sizeof dim, " (dimension %lld has size %lld)", f.dim + f.base, f.size);
  if (f.size == 0)
    return moth_fail(MOTH_ERR_INDEX, "[%s] %s %lld is out of range: there are no positions%s%s", op,
                     what, f.value, dim, late);
  return moth_fail(MOTH_ERR_INDEX, "[%s] %s %lld is out of range: expected %lld to %lld%s%s", op,
                   what, f.value, f.base, f.size - 1 + f.base, dim, late);
}

MothStatus moth_cuda_leave(const MothCall *c) {
  cudaStream_t stream = moth_cuda_stream(c->device.index);
  if (!moth_cuda_sync_always || moth_cuda_is_capturing(stream))
    return MOTH_OK;
  MOTH_CUDA_TRY(cudaStreamSynchronize(stream));
  return moth_cuda_take_fault(c->device.index);
}

/* --- the interface to the core ------------------------------------------------------------------------- */

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
  MOTH_TRY(moth_cuda_stream_poll(index, s)); /* the copy itself must end before the call does */
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

static int current(void) {
  return chosen_device;
}

/* --- moth.cuda ------------------------------------------------------------------------------------ */

static void set_current(int device) {
  chosen_device = device;
}
static void info(int device, MothCudaInfo *out) {
  *out = infos[device];
}
static MothStatus mem_get_info(int device, size_t *available, size_t *total) {
  MOTH_TRY(moth_cuda_set_device(device));
  MOTH_CUDA_TRY(cudaMemGetInfo(available, total));
  return MOTH_OK;
}
static const MothDeviceOps ops = {{"cuda", why_not, device_alloc, device_free, to_host, from_host},
                                  moth_cuda_copy_across,
                                  current,
                                  set_current,
                                  &moth_cuda_streams};

static bool is_capturing(int device) {
  return moth_cuda_is_capturing(moth_cuda_stream(device));
}

static const MothCudaApi api = {moth_cuda_device_count,
                                current,
                                set_current,
                                info,
                                mem_get_info,
                                moth_cuda_memory_stats,
                                moth_cuda_memory_visit,
                                moth_cuda_memory_reset_peak,
                                moth_cuda_memory_reset_accumulated,
                                moth_cuda_empty_cache,
                                moth_cuda_set_fraction,
                                moth_cuda_pin,
                                moth_cuda_is_pinned,
                                moth_cuda_pinned_stats,
                                moth_cuda_pinned_empty,
                                moth_cuda_graph_new,
                                moth_cuda_graph_free,
                                moth_cuda_graph_begin,
                                moth_cuda_graph_end,
                                moth_cuda_graph_replay,
                                moth_cuda_graph_reset,
                                moth_cuda_graph_pool,
                                moth_cuda_pool_new,
                                is_capturing,
                                moth_cuda_program_new,
                                moth_cuda_program_retain,
                                moth_cuda_program_free,
                                moth_cuda_program_kernel,
                                moth_cuda_function_launch,
                                moth_cuda_function_occupancy,
                                moth_cuda_trace_start,
                                moth_cuda_trace_begin,
                                moth_cuda_trace_end,
                                moth_cuda_trace_stop,
                                moth_cuda_library};

static MothStatus look_at(int i) {
  cudaDeviceProp p;
  MothCudaInfo *f = &infos[i];
  cudaError_t e = cudaGetDeviceProperties(&p, i);
  if (e != cudaSuccess)
    return moth_cuda_check_on(i, e, "cudaGetDeviceProperties");
  snprintf(f->name, sizeof f->name, "%.127s", p.name);
  f->major = p.major;
  f->minor = p.minor;
  f->multiprocessors = p.multiProcessorCount;
  f->threads_per_multiprocessor = p.maxThreadsPerMultiProcessor;
  f->warp = p.warpSize;
  f->total = p.totalGlobalMem;
  f->shared_per_block = p.sharedMemPerBlockOptin;
  f->l2 = (size_t)p.l2CacheSize;
  MothCudaProps *q = &props[i];
  memcpy(q->name, f->name, sizeof q->name);
  q->multiprocessors = f->multiprocessors;
  q->major = f->major;
  q->minor = f->minor;
  q->shared_per_block = f->shared_per_block;
  q->l2 = f->l2;
  q->total = f->total;
  return MOTH_OK;
}

#ifndef __CUDACC__
/* For specs of the emulation: a kernel that fails, after which the device is lost. */
static __global__ void fail(int *out) {
  if (threadIdx.x == 0)
    *out = __shfl_sync(0xffffffffu, 1, 1);
}
extern "C" MOTH_API void moth_cuda_lose(int device) {
  if (moth_cuda_set_device(device) == MOTH_OK)
    moth_launch("fail", fail, 1, 2, 0, moth_cuda_stream(device), (int *)faults[device]);
}
#endif

/* Compared with libmoth's own before anything else is called. */
extern "C" MOTH_API const char moth_cuda_layout[] = MOTH_LAYOUT;

/* Called once, by src/device. Returns why there is no device, or NULL. */
extern "C" MOTH_API const char *moth_cuda_open(const MothCudaApi **out) {
  cudaError_t e = cudaGetDeviceCount(&device_count);
  if (e != cudaSuccess || device_count == 0) {
    device_count = 0;
    snprintf(why, sizeof why, "no CUDA device: %s (error %d)",
             e != cudaSuccess ? cudaGetErrorString(e) : "none is visible", (int)e);
    cudaGetLastError();
    return why;
  }
  if (device_count > MOTH_CUDA_MAX_DEVICES)
    device_count = MOTH_CUDA_MAX_DEVICES;
  for (int i = device_count - 1; i >= 0; i--)
    if (look_at(i) != MOTH_OK) {
      device_count = 0;
      snprintf(why, sizeof why, "%.500s", moth_last_error());
      return why;
    }
  for (int i = 0; i < device_count; i++)
    moth_cuda_stream_default(i)->head.device = MothDevice{MOTH_CUDA, (uint8_t)i};
  moth_cuda_sync_always = moth_env_flag("MOTH_CUDA_SYNC", false);
  for (const MothCudaOp *op = moth_cuda_ops; op->name; op++)
    if ((op->loops && moth_op_set_loops(op->name, MOTH_CUDA, op->loops) != MOTH_OK) ||
        moth_op_register(op->name, MOTH_CUDA, op->kernel) != MOTH_OK) {
      device_count = 0;
      snprintf(why, sizeof why, "this build of the backend is of another version: %.400s",
               moth_last_error());
      return why;
    }
  moth_device_replace(MOTH_CUDA, &ops);
  *out = &api;
  return NULL;
}
