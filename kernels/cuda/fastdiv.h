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

/* x / d for any 0 <= x, 0 < d: fast where both have 32 bits. */
struct WideDiv {
  FastDiv fast;
  long long d;
};
static inline WideDiv wide_div(long long d) {
  return WideDiv{fast_div(d >> 32 ? 1u : (unsigned)d), d};
}
static __device__ __forceinline__ long long div_wide(long long x, const WideDiv &f) {
  if (((unsigned long long)x | (unsigned long long)f.d) >> 32 == 0)
    return div_fast((unsigned)x, f.fast);
  return x / f.d;
}
#endif
