/* Matrix products on the CPU. */
#ifndef MOTH_CPU_BLAS_H
#define MOTH_CPU_BLAS_H
#include "moth.h"

/* C (m x n, row stride ldc) = alpha * A (m x k) * B (k x n) + beta * C. Element (i, j) of A is at
 * a[i * a_row + j * a_col], in elements; one of the two strides is 1 (callers copy other matrices).
 * `parallel`: false inside a parallel loop. Results do not depend on the number of threads. */
typedef struct MothGemm {
  int dtype; /* float32, float64; others run through a plain loop */
  int64_t m, n, k;
  const void *a, *b;
  void *c;
  int64_t a_row, a_col, b_row, b_col, ldc;
  double alpha, beta;
} MothGemm;

static inline double moth_gemm_flops(const MothGemm *g) {
  return 2.0 * (double)g->m * (double)g->n * (double)g->k;
}

void moth_gemm(const MothGemm *g, bool parallel);
/* The BLAS in use: its path, or "none". */
MOTH_API const char *moth_blas_name(void);
#endif
