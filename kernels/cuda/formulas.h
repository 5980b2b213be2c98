/* Definitions that the formulas of kernels/math*.h need in CUDA, and loads and stores of float16 elements: by GPU
 * instructions; on the host, and in the emulation, by formulas, which the file must include, too. */
#ifndef MOTH_CUDA_FORMULAS_H
#define MOTH_CUDA_FORMULAS_H
#include <utility>

#include "kernels/cuda/fastdiv.h"
#include "kernels/cuda/table.h"
#include "kernels/math_libm.h"

#define MOTH_FN static __host__ __device__ __forceinline__
#ifndef __CUDACC__
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wtautological-compare"
#endif

#ifdef __CUDA_ARCH__
static __device__ __forceinline__ float f16_load(uint16_t x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
static __device__ __forceinline__ uint16_t f16_store(float x) {
  uint16_t y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
#else
#define f16_load(x)  m_f16_to_f32(x)
#define f16_store(x) m_f32_to_f16(x)
#endif
#endif
