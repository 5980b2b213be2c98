/* Division by numbers that the host knows, without dividing (Granlund and Montgomery, "Division by
 * invariant integers using multiplication", 1994). */
#ifndef MOTH_CUDA_FASTDIV_H
#define MOTH_CUDA_FASTDIV_H
#include "cuda/rt.h"

/* x / d for 32-bit x: the high half of x * m, plus x, shifted. */
struct FastDiv {
  unsigned d, m, s;
};
static inline FastDiv fast_div(unsigned d) {
  FastDiv f = {d, 0, 0};
  while (f.s < 32 && (1ull << f.s) < d)
    f.s++;
  f.m = (unsigned)(((1ull << 32) * ((1ull << f.s) - d)) / d + 1);
  return f;
}
static __device__ __forceinline__ unsigned div_fast(unsigned x, const FastDiv &f) {
  return (unsigned)(((unsigned long long)__umulhi(x, f.m) + x) >> f.s);
}

/* x / d for any 0 <= x < 2^63, 0 < d: the high half of x * m, shifted. m = 0 stands for d = 1. */
struct WideDiv {
  long long d;
  unsigned long long m;
  int s;
};
static inline WideDiv wide_div(long long d) {
  WideDiv f = {d, 0, 0};
  if (d <= 1)
    return f;
  int log = 1;
  while (log < 63 && 1ll << log < d)
    log++;
  unsigned __int128 one = (unsigned __int128)1 << (63 + log);
  f.m = (unsigned long long)((one + (unsigned __int128)(d - 1)) / (unsigned __int128)d);
  f.s = log - 1;
  return f;
}
static __device__ __forceinline__ long long div_wide(long long x, const WideDiv &f) {
  return f.m ? (long long)(__umul64hi((unsigned long long)x, f.m) >> f.s) : x;
}
#endif
