/* The emulation: as much of CUDA's language and runtime as moth's .cu files use, for g++ and one CPU.
 *
 * A block runs at a time; each of its threads is a fiber that runs until it reaches a barrier, a
 * shuffle or its end. __shared__ variables are statics. What it cannot do: inline PTX, tensor cores,
 * cp.async, races between blocks, speed. */
#ifndef MOTH_CUDA_EMU_H
#define MOTH_CUDA_EMU_H
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cuda/emu/api.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__      static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__    __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#ifndef __restrict__
#define __restrict__ __restrict
#endif

struct uint3 {
  unsigned x, y, z;
};
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
enum { warpSize = 32 };

/* --- rendezvous ------------------------------------------------------------------------------- */

void moth_emu_barrier(void);
/* Gives this lane's value, returns that of lane `from` (its own if from is out of the warp's threads)
 * once all lanes of `mask` have come. `ballot` gets the bits of all predicates. */
uint64_t moth_emu_exchange(unsigned mask, uint64_t value, int from, bool predicate,
                           unsigned *ballot);
void *moth_emu_shared(void);

static inline void __syncthreads(void) {
  moth_emu_barrier();
}
static inline unsigned moth_emu_ballot(unsigned mask, bool p) {
  unsigned b;
  moth_emu_exchange(mask, 0, -1, p, &b);
  return b;
}
static inline void __syncwarp(unsigned mask = 0xffffffffu) {
  moth_emu_ballot(mask, false);
}
static inline unsigned __ballot_sync(unsigned mask, int p) {
  return moth_emu_ballot(mask, p != 0);
}
static inline int __any_sync(unsigned mask, int p) {
  return moth_emu_ballot(mask, p != 0) != 0;
}
static inline int __all_sync(unsigned mask, int p) {
  return moth_emu_ballot(mask, p == 0) == 0;
}
int moth_emu_lane(void);
/* The barrier with a count of predicates that hold. */
int moth_emu_barrier_count(bool p);
static inline int __syncthreads_count(int p) {
  return moth_emu_barrier_count(p != 0);
}
static inline int __syncthreads_or(int p) {
  return moth_emu_barrier_count(p != 0) != 0;
}
static inline int __syncthreads_and(int p) {
  return moth_emu_barrier_count(p == 0) == 0;
}

template <class T> static inline T moth_emu_shuffle(unsigned mask, T x, int from) {
  static_assert(sizeof(T) <= 8, "shuffles move at most 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &x, sizeof x);
  unsigned ballot;
  bits = moth_emu_exchange(mask, bits, from, false, &ballot);
  memcpy(&x, &bits, sizeof x);
  return x;
}
template <class T> static inline T __shfl_sync(unsigned mask, T x, int from, int width = 32) {
  int lane = moth_emu_lane();
  return moth_emu_shuffle(mask, x, (lane & ~(width - 1)) | (from & (width - 1)));
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T x, int m, int width = 32) {
  int lane = moth_emu_lane(), from = lane ^ m;
  return moth_emu_shuffle(mask, x, (from & ~(width - 1)) > (lane & ~(width - 1)) ? lane : from);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T x, int d, int width = 32) {
  int lane = moth_emu_lane();
  return moth_emu_shuffle(mask, x, (lane & (width - 1)) + d < width ? lane + d : lane);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T x, int d, int width = 32) {
  int lane = moth_emu_lane();
  return moth_emu_shuffle(mask, x, (lane & (width - 1)) >= d ? lane - d : lane);
}

/* --- arithmetic and atomics ------------------------------------------------------------------- */

template <class T> static inline T atomicAdd(T *p, T x) {
  T old = *p;
  *p = (T)(old + x);
  return old;
}
template <class T> static inline T atomicMax(T *p, T x) {
  T old = *p;
  if (x > old)
    *p = x;
  return old;
}
template <class T> static inline T atomicMin(T *p, T x) {
  T old = *p;
  if (x < old)
    *p = x;
  return old;
}
template <class T> static inline T atomicExch(T *p, T x) {
  T old = *p;
  *p = x;
  return old;
}
template <class T> static inline T atomicOr(T *p, T x) {
  T old = *p;
  *p = old | x;
  return old;
}
template <class T> static inline T atomicCAS(T *p, T expected, T x) {
  T old = *p;
  if (old == expected)
    *p = x;
  return old;
}
template <class T> static inline T __ldg(const T *p) {
  return *p;
}
template <class T> static inline T __ldcs(const T *p) {
  return *p;
}
template <class T> static inline void __stcs(T *p, T x) {
  *p = x;
}
static inline void __threadfence(void) {}
static inline void __threadfence_block(void) {}
static inline void __threadfence_system(void) {}
static inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)((uint64_t)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
static inline int __ffs(int x) {
  return __builtin_ffs(x);
}
static inline int __clz(int x) {
  return x ? __builtin_clz((unsigned)x) : 32;
}
static inline float __int_as_float(int x) {
  float f;
  memcpy(&f, &x, sizeof f);
  return f;
}
static inline int __float_as_int(float f) {
  int x;
  memcpy(&x, &f, sizeof x);
  return x;
}
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

#endif
