/* The reductions that the typed kernels know, beyond those of MothReduceOp, and how partial results
 * are joined. A partial result is a MothParam: `d` for float dtypes, `i` for the others, and `i`
 * always for any and all. */
#ifndef MOTH_CPU_REDUCE_H
#define MOTH_CPU_REDUCE_H
#include <stdbool.h>

#include "kernels/common/param.h"

/* How a reduction reads: `rows` runs of `n` elements, element step and row step in bytes. */
typedef enum MothReduceOp {
  MOTH_REDUCE_SUM,
  MOTH_REDUCE_PROD,
  MOTH_REDUCE_MAX,
  MOTH_REDUCE_MIN,
  MOTH_REDUCE_ANY,
  MOTH_REDUCE_ALL,
  MOTH_NREDUCE
} MothReduceOp;

enum {
  MOTH_REDUCE_SQDEV = MOTH_NREDUCE, /* sum of (x - shift)^2, floats only */
  MOTH_REDUCE_SUMEXP                /* sum of exp(x - shift), floats only */
};

static inline MothParam moth_reduce_identity(int op, bool is_float) {
  MothParam p;
  if (op == MOTH_REDUCE_ANY || op == MOTH_REDUCE_ALL)
    p.i = op == MOTH_REDUCE_ALL;
  else if (op == MOTH_REDUCE_MAX || op == MOTH_REDUCE_MIN) {
    if (is_float)
      p.d = op == MOTH_REDUCE_MAX ? -__builtin_inf() : __builtin_inf();
    else
      p.i = op == MOTH_REDUCE_MAX ? INT64_MIN : INT64_MAX;
  } else if (is_float)
    p.d = op == MOTH_REDUCE_PROD;
  else
    p.i = op == MOTH_REDUCE_PROD;
  return p;
}

static inline void moth_reduce_join(int op, bool is_float, MothParam *a, MothParam b) {
  if (op == MOTH_REDUCE_ANY)
    a->i |= b.i;
  else if (op == MOTH_REDUCE_ALL)
    a->i &= b.i;
  else if (op == MOTH_REDUCE_MAX) {
    if (is_float)
      a->d = b.d > a->d || b.d != b.d ? b.d : a->d;
    else
      a->i = b.i > a->i ? b.i : a->i;
  } else if (op == MOTH_REDUCE_MIN) {
    if (is_float)
      a->d = b.d < a->d || b.d != b.d ? b.d : a->d;
    else
      a->i = b.i < a->i ? b.i : a->i;
  } else if (op == MOTH_REDUCE_PROD) {
    if (is_float)
      a->d *= b.d;
    else
      a->i = (int64_t)((uint64_t)a->i * (uint64_t)b.i);
  } else if (is_float)
    a->d += b.d;
  else
    a->i = (int64_t)((uint64_t)a->i + (uint64_t)b.i);
}
#endif
