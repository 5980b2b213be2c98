/* Included first by every generated kernel file, which has defined, as for the CPU,
 *   stored          type of an element in memory
 *   real            type that is computed in
 *   MOTH_REAL_KIND  1 float32, 2 float64, 3 signed, 4 unsigned, 5 bool
 *   MOTH_STORED     0 stored is real, 1 float16, 2 bfloat16
 *   MOTH_SELF       the MothDType
 * Everything after it stands in a nameless namespace: its names need no dtype, the file has one. */
#include <utility>

#include "kernels/cuda/fastdiv.h"
#include "kernels/cuda/table.h"

#define MOTH_FN static __host__ __device__ __forceinline__
#ifndef __CUDACC__
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wtautological-compare"
#endif
#include "kernels/math.h"

#if MOTH_STORED == 1
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
#define LOAD(x)  f16_load(x)
#define STORE(x) f16_store(x)
#else
#define LOAD(x)  m_f16_to_f32(x)
#define STORE(x) m_f32_to_f16(x)
#endif
#elif MOTH_STORED == 2
#define LOAD(x)  m_bf16_to_f32(x)
#define STORE(x) m_f32_to_bf16(x)
#elif MOTH_REAL_KIND == 5
#define LOAD(x)  (x)
#define STORE(x) ((stored)((x) != 0))
#else
#define LOAD(x)  (x)
#define STORE(x) ((stored)(x))
#endif

#define MOTH_IS_FLOAT (MOTH_REAL_KIND <= 2)
#if MOTH_IS_FLOAT
#define PARAM(k) ((real)(k).d)
#else
#define PARAM(k) ((real)(k).i)
#endif

/* What sums are kept in. */
#if MOTH_REAL_KIND == 1
typedef float accum;
#elif MOTH_REAL_KIND == 2
typedef double accum;
#else
typedef long long accum;
#endif
