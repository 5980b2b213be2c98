/* Sums and maxima over the lanes of a loop, n = 16, 32 or 64 of them: the upper half is joined to the lower,
 * down to one. By vectors and shuffles: the compiler splits loops over such an array into scalars, which was a
 * third of attention's time for rows of 64. */
#ifndef MOTH_CPU_TYPED_FOLD_H
#define MOTH_CPU_TYPED_FOLD_H
#include "kernels/cpu/typed/prelude.h"
#if MOTH_IS_FLOAT
#define LANES_OF(n)                                                                                \
  __attribute__((vector_size((n) * sizeof(real)), aligned(sizeof(real)), may_alias))
typedef real lanes16 LANES_OF(16);
typedef real lanes8 LANES_OF(8);
typedef real lanes4 LANES_OF(4);
typedef real lanes2 LANES_OF(2);

#define HALVES8(x)                                                                                 \
  __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7),                                           \
      __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15)
#define HALVES4(x)                                                                                 \
  __builtin_shufflevector(x, x, 0, 1, 2, 3), __builtin_shufflevector(x, x, 4, 5, 6, 7)
#define HALVES2(x)    __builtin_shufflevector(x, x, 0, 1), __builtin_shufflevector(x, x, 2, 3)
#define JOIN(OP, ...) OP(__VA_ARGS__)
#define LANES_FOLD(name, OP)                                                                       \
  MOTH_FN real name(const real *lane, int n) {                                                     \
    const lanes16 *p = (const lanes16 *)lane;                                                      \
    lanes16 a = p[0], upper = p[n > 16];                                                           \
    if (n == 64) {                                                                                 \
      a = OP(a, p[2]);                                                                             \
      upper = OP(upper, p[3]);                                                                     \
    }                                                                                              \
    if (n > 16)                                                                                    \
      a = OP(a, upper);                                                                            \
    lanes8 b = JOIN(OP, HALVES8(a));                                                               \
    lanes4 c = JOIN(OP, HALVES4(b));                                                               \
    lanes2 d = JOIN(OP, HALVES2(c));                                                               \
    d = OP(d, __builtin_shufflevector(d, d, 1, 0));                                                \
    return d[0];                                                                                   \
  }
#define PLUS(a, b) ((a) + (b))
/* b if the two are unordered. */
#define GREATER(a, b)                                                                              \
  ({                                                                                               \
    __typeof__(a) a_ = a, b_ = b;                                                                  \
    __typeof__(a_ > b_) m_ = a_ > b_;                                                              \
    (__typeof__(a_))(((__typeof__(m_))a_ & m_) | ((__typeof__(m_))b_ & ~m_));                      \
  })
LANES_FOLD(lanes_sum, PLUS)
LANES_FOLD(lanes_max, GREATER)
#endif
#endif
