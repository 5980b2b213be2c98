/* The emulation: as much of CUDA's language as moth's .cu files use, for g++ and one CPU; its runtime is
 * in api.h.
 *
 * A block runs at a time; each of its threads is a fiber that runs until it reaches a barrier, a
 * shuffle or its end. __shared__ variables are statics. What it cannot do: inline PTX, tensor cores,
 * cp.async, races between blocks, speed. */
#ifndef MOTH_EMU_CUDAEMU_H
#define MOTH_EMU_CUDAEMU_H
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "emu/api.h"

#define __global__
#define __device__
#define __host__
#define __constant__
/* Begins a declaration inside a function: the variable holds NaNs when a block begins. */
#define __shared__                                                                                 \
  moth_emu_shared_here(__func__);                                                                  \
  static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#ifndef __restrict__
#define __restrict__ __restrict
#endif

/* Fills the shared memory of `function`, and the dynamic one, with NaNs once a block. */
void moth_emu_shared_here(const char *function);
void *moth_emu_shared(void);

struct uint3 {
  unsigned x, y, z;
};
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
enum { warpSize = 32 };

/* --- barriers and warps ------------------------------------------------------------------------- */

void moth_emu_barrier(void);
/* The barrier with a count of predicates that hold. */
int moth_emu_barrier_count(bool p);
static inline void __syncthreads(void) {
  moth_emu_barrier();
}
static inline int __syncthreads_count(int p) {
  return moth_emu_barrier_count(p != 0);
}
static inline int __syncthreads_or(int p) {
  return moth_emu_barrier_count(p != 0) != 0;
}
static inline int __syncthreads_and(int p) {
  return moth_emu_barrier_count(p == 0) == 0;
}

/* Those up to ALL do not wait for lanes of the mask that have ended. */
enum MothEmuMeeting {
  MOTH_EMU_SYNC,
  MOTH_EMU_BALLOT,
  MOTH_EMU_ANY,
  MOTH_EMU_ALL,
  MOTH_EMU_SHUFFLE,
  MOTH_EMU_REDUCE,
  MOTH_EMU_MATCH
};
/* Each waits for the lanes of `mask`, and returns: the bits of the predicates; the value of lane `from`; the mask of
 * the lanes that took part, with all values. */
unsigned moth_emu_vote(MothEmuMeeting what, unsigned mask, bool predicate);
uint64_t moth_emu_exchange(MothEmuMeeting what, unsigned mask, uint64_t value, int from);
unsigned moth_emu_gather(MothEmuMeeting what, unsigned mask, uint64_t value, uint64_t *values);
int moth_emu_lane(void);

static inline void __syncwarp(unsigned mask = 0xffffffffu) {
  moth_emu_vote(MOTH_EMU_SYNC, mask, false);
}
static inline unsigned __ballot_sync(unsigned mask, int p) {
  return moth_emu_vote(MOTH_EMU_BALLOT, mask, p != 0);
}
static inline int __any_sync(unsigned mask, int p) {
  return moth_emu_vote(MOTH_EMU_ANY, mask, p != 0) != 0;
}
static inline int __all_sync(unsigned mask, int p) {
  return moth_emu_vote(MOTH_EMU_ALL, mask, p == 0) == 0;
}
/* Which lanes run together is up to the hardware: here each runs alone. */
static inline unsigned __activemask(void) {
  return 1u << moth_emu_lane();
}

template <class T> static inline uint64_t moth_emu_bits(T x) {
  static_assert(sizeof(T) <= 8, "lanes exchange at most 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &x, sizeof x);
  return bits;
}
template <class T> static inline T moth_emu_shuffle(unsigned mask, T x, int from) {
  uint64_t bits = moth_emu_exchange(MOTH_EMU_SHUFFLE, mask, moth_emu_bits(x), from);
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
template <class T>
static inline T __shfl_down_sync(unsigned mask, T x, unsigned d, int width = 32) {
  int lane = moth_emu_lane();
  return moth_emu_shuffle(mask, x, (lane & (width - 1)) + (int)d < width ? lane + (int)d : lane);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T x, unsigned d, int width = 32) {
  int lane = moth_emu_lane();
  return moth_emu_shuffle(mask, x, (lane & (width - 1)) >= (int)d ? lane - (int)d : lane);
}
template <class T> static inline unsigned __match_any_sync(unsigned mask, T x) {
  uint64_t values[32], bits = moth_emu_bits(x);
  unsigned came = moth_emu_gather(MOTH_EMU_MATCH, mask, bits, values), same = 0;
  for (int l = 0; l < 32; l++)
    same |= (unsigned)((came >> l & 1) && values[l] == bits) << l;
  return same;
}
template <class T, class F> static inline T moth_emu_reduce(unsigned mask, T x, F f) {
  uint64_t values[32];
  unsigned came = moth_emu_gather(MOTH_EMU_REDUCE, mask, moth_emu_bits(x), values);
  int first = __builtin_ctz(came);
  T sum, y;
  memcpy(&sum, &values[first], sizeof sum);
  for (int l = first + 1; l < 32; l++)
    if (came >> l & 1) {
      memcpy(&y, &values[l], sizeof y);
      sum = f(sum, y);
    }
  return sum;
}
#define MOTH_EMU_REDUCE_OF(name, type, expression)                                                 \
  static inline type name(unsigned mask, type x) {                                                 \
    return moth_emu_reduce(mask, x, [](type a, type b) { return (type)(expression); });            \
  }
MOTH_EMU_REDUCE_OF(__reduce_add_sync, unsigned, a + b)
MOTH_EMU_REDUCE_OF(__reduce_add_sync, int, a + b)
MOTH_EMU_REDUCE_OF(__reduce_min_sync, unsigned, a < b ? a : b)
MOTH_EMU_REDUCE_OF(__reduce_min_sync, int, a < b ? a : b)
MOTH_EMU_REDUCE_OF(__reduce_max_sync, unsigned, a > b ? a : b)
MOTH_EMU_REDUCE_OF(__reduce_max_sync, int, a > b ? a : b)
MOTH_EMU_REDUCE_OF(__reduce_and_sync, unsigned, a &b)
MOTH_EMU_REDUCE_OF(__reduce_or_sync, unsigned, a | b)
MOTH_EMU_REDUCE_OF(__reduce_xor_sync, unsigned, a ^ b)

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
template <class T> static inline T atomicSub(T *p, T x) {
  return atomicAdd(p, (T)-x);
}
template <class T> static inline T atomicAnd(T *p, T x) {
  T old = *p;
  *p = old & x;
  return old;
}
template <class T> static inline T atomicXor(T *p, T x) {
  T old = *p;
  *p = old ^ x;
  return old;
}
static inline unsigned atomicInc(unsigned *p, unsigned most) {
  unsigned old = *p;
  *p = old >= most ? 0 : old + 1;
  return old;
}
#define MOTH_EMU_LOAD(name)                                                                        \
  template <class T> static inline T name(const T *p) {                                            \
    return *p;                                                                                     \
  }
MOTH_EMU_LOAD(__ldg)
MOTH_EMU_LOAD(__ldca)
MOTH_EMU_LOAD(__ldcg)
MOTH_EMU_LOAD(__ldcs)
MOTH_EMU_LOAD(__ldlu)
MOTH_EMU_LOAD(__ldcv)
#define MOTH_EMU_STORE(name)                                                                       \
  template <class T> static inline void name(T *p, T x) {                                          \
    *p = x;                                                                                        \
  }
MOTH_EMU_STORE(__stwb)
MOTH_EMU_STORE(__stcg)
MOTH_EMU_STORE(__stcs)
MOTH_EMU_STORE(__stwt)
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
static inline int __popcll(unsigned long long x) {
  return __builtin_popcountll(x);
}
static inline int __ffs(int x) {
  return __builtin_ffs(x);
}
static inline int __ffsll(long long x) {
  return __builtin_ffsll(x);
}
static inline int __clz(int x) {
  return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __clzll(long long x) {
  return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++)
    r |= (x >> i & 1) << (31 - i);
  return r;
}
template <class To, class From> static inline To moth_emu_as(From x) {
  static_assert(sizeof(To) == sizeof(From), "");
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}
static inline float __int_as_float(int x) {
  return moth_emu_as<float>(x);
}
static inline int __float_as_int(float x) {
  return moth_emu_as<int>(x);
}
static inline float __uint_as_float(unsigned x) {
  return moth_emu_as<float>(x);
}
static inline unsigned __float_as_uint(float x) {
  return moth_emu_as<unsigned>(x);
}
static inline double __longlong_as_double(long long x) {
  return moth_emu_as<double>(x);
}
static inline long long __double_as_longlong(double x) {
  return moth_emu_as<long long>(x);
}
static inline float rsqrtf(float x) {
  return 1.0f / sqrtf(x);
}
static inline double rsqrt(double x) {
  return 1.0 / sqrt(x);
}
static inline float __fdividef(float a, float b) {
  return a / b;
}
#define __expf expf /* the C library has functions of these names */
#define __logf logf
/* Lets other threads run: a thread that spins must call it. */
void moth_emu_pause(void);
static inline void __nanosleep(unsigned) {
  moth_emu_pause();
}
static inline long long clock64(void) {
  return 0;
}

/* --- vectors: as CUDA aligns them --------------------------------------------------------------- */

#define MOTH_EMU_VECTORS(T, name)                                                                  \
  struct alignas(2 * sizeof(T)) name##2 {                                                          \
    T x, y;                                                                                        \
  };                                                                                               \
  struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) name##4 {                                     \
    T x, y, z, w;                                                                                  \
  };                                                                                               \
  static inline name##2 make_##name##2(T x, T y) {                                                 \
    return {x, y};                                                                                 \
  }                                                                                                \
  static inline name##4 make_##name##4(T x, T y, T z, T w) {                                       \
    return {x, y, z, w};                                                                           \
  }
MOTH_EMU_VECTORS(signed char, char)
MOTH_EMU_VECTORS(unsigned char, uchar)
MOTH_EMU_VECTORS(short, short)
MOTH_EMU_VECTORS(unsigned short, ushort)
MOTH_EMU_VECTORS(int, int)
MOTH_EMU_VECTORS(unsigned, uint)
MOTH_EMU_VECTORS(long long, longlong)
MOTH_EMU_VECTORS(unsigned long long, ulonglong)
MOTH_EMU_VECTORS(float, float)
MOTH_EMU_VECTORS(double, double)
#endif
