/* The CUDA language and runtime as moth's .cu files see them: NVIDIA's under nvcc, the emulation's
 * (src/emu) under g++. The rest of a .cu file is the same text for both.
 *
 * Two things have names of their own: kernels start through moth_launch, and dynamic shared memory is named by
 * MOTH_SHARED. */
#ifndef MOTH_CUDA_RT_H
#define MOTH_CUDA_RT_H

#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include "emu/cudaemu.h"
#endif

#include <stdint.h>

extern "C" {
#include "core/dtype.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/random.h"
#include "core/tensor.h"
#include "device/device.h"
#include "dispatch/dispatch.h"
}

/* The status of a CUDA call, with a message that says what was tried. */
MothStatus moth_cuda_check(cudaError_t e, const char *what);
#define MOTH_CUDA_TRY(call) MOTH_TRY(moth_cuda_check((call), #call))

/* MOTH_CUDA_SYNC=1: each kernel is waited for, so that an error shows at the call that it belongs to. */
extern bool moth_cuda_sync_always;
/* The status of a launch: e, or under MOTH_CUDA_SYNC=1 the kernel's own result. */
MothStatus moth_cuda_launched(const char *name, cudaError_t e, cudaStream_t stream);

/* Starts kernel(args...) on a stream; a grid of no blocks is no launch. Errors: of the launch, or of an
 * earlier kernel. */
#ifdef __CUDACC__
template <class... P, class... A>
static inline MothStatus moth_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                                     size_t shared, cudaStream_t stream, A... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0)
    return MOTH_OK;
  kernel<<<grid, block, shared, stream>>>(static_cast<P>(args)...);
  cudaError_t e = cudaPeekAtLastError();
  return e == cudaSuccess && !moth_cuda_sync_always ? MOTH_OK : moth_cuda_launched(name, e, stream);
}
/* extern __shared__ memory as an array of T. */
#define MOTH_SHARED(T, name)                                                                       \
  extern __shared__ __align__(16) unsigned char moth_dynamic_shared[];                             \
  T *name = reinterpret_cast<T *>(moth_dynamic_shared)
#else
template <class... P, class... A>
static inline MothStatus moth_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                                     size_t shared, cudaStream_t stream, A... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0)
    return MOTH_OK;
  cudaError_t e = moth_emu_launch(
      name, [=]() { kernel(static_cast<P>(args)...); }, grid, block, shared, stream,
      reinterpret_cast<const void *>(kernel));
  return e == cudaSuccess && !moth_cuda_sync_always ? MOTH_OK : moth_cuda_launched(name, e, stream);
}
#define MOTH_SHARED(T, name) T *name = static_cast<T *>(moth_emu_shared())
#endif
#endif
