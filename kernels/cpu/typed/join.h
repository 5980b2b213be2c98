/* Blocks of elements joined to one partial result, for the kernels that are made of them: printed by src/codegen/reduce.lua
 * into reduce_shared.h. What is added stays exact enough by two levels: blocks of at most BLOCK elements go into LANES
 * accumulators (a vector's worth and more, so that additions do not wait for each other), which a fixed tree joins; blocks
 * are joined in double or int64. The order depends on n only: never on threads, and not on the ISA level. */
#ifndef MOTH_CPU_TYPED_JOIN_H
#define MOTH_CPU_TYPED_JOIN_H
#include "kernels/cpu/typed/prelude.h"

enum { LANES = 64, FEW = 8, BLOCK = 4096, TMP = 1024, FLUSH = 64 };

#if MOTH_IS_FLOAT
typedef real sum_lane;
typedef double wide;
#define WIDE(p) (p).d
#else
typedef int64_t sum_lane;
typedef int64_t wide;
#define WIDE(p) (p).i
#endif
/* A position among elements, as wide as they are. */
typedef __typeof__(__builtin_choose_expr(sizeof(real) == 8, (int64_t)0, (int32_t)0)) arg_pos;

#include "reduce_shared.h"

#if MOTH_IS_FLOAT
/* The sum of n numbers. */
static real lane_sum(const real *a, int64_t n) {
  real lane[LANES];
  int64_t i = 0;
  if (n < 2 * FEW) {
    real sum = 0;
    for (; i < n; i++)
      sum += a[i];
    return sum;
  }
  for (int k = 0; k < LANES; k++)
    lane[k] = 0;
  for (; i + LANES <= n; i += LANES)
    for (int k = 0; k < LANES; k++)
      lane[k] = a[i + k] + lane[k];
  for (int k = 0; i + k < n; k++)
    lane[k] = a[i + k] + lane[k];
  for (int half = LANES / 2; half; half /= 2)
    for (int k = 0; k < half; k++)
      lane[k] = lane[k] + lane[k + half];
  return lane[0];
}
#endif
#endif
