/* Distances between rows, of every device: cdist's of each row of x and each of y, pdist's of the pairs of rows of x. */
#ifndef MOTH_COMMON_DISTANCE_H
#define MOTH_COMMON_DISTANCE_H
#include "moth.h"

/* Row-major matrices of float32 or float64. The norm: the number of elements that differ, sums of |d| and d^2, the largest
 * |d|, sums of |d|^p, for a small whole p by products. */
enum { MOTH_NORM_0, MOTH_NORM_1, MOTH_NORM_2, MOTH_NORM_INF, MOTH_NORM_P, MOTH_NORM_WHOLE };

enum { DISTANCE_FAR = 64 }; /* the CPU's derivative of norm 2 multiplies as many rows at once */

typedef struct MothDistance {
  const void *x, *y;         /* (rows, size), (others, size); y of the CPU's kernels: in panels */
  const void *grad, *dist;   /* of backward: (rows, others) or the pairs */
  const void *x_sum, *y_sum; /* sums of squares, where the distances come from a product */
  void *out;                 /* (rows, others) or the pairs; of backward (rows, size) */
  int64_t rows, others, size;
  int64_t from, to; /* the rows of a call */
  int norm;
  double p;
  bool pairs;      /* i < j alone, one row i after the other */
  bool transposed; /* grad and dist are (others, rows) */
  void *work;      /* of the rows of a call; y in panels, to be packed */
} MothDistance;

static inline int moth_norm_of(double p) {
  if (p == 0)
    return MOTH_NORM_0;
  if (p == 1)
    return MOTH_NORM_1;
  if (p == 2)
    return MOTH_NORM_2;
  if (p <= 8 && p == (double)(int)p)
    return MOTH_NORM_WHOLE;
  return p > 1.7976931348623157e308 ? MOTH_NORM_INF : MOTH_NORM_P;
}
#endif
