/* Matrix products on the CPU. */
#ifndef MOTH_CPU_BLAS_H
#define MOTH_CPU_BLAS_H
#include "kernels/common/gemm.h"
#include "moth.h"

static inline double moth_gemm_flops(const MothGemm *g) {
  return 2.0 * (double)g->m * (double)g->n * (double)g->k;
}

/* Arguments of kernels/cpu/typed/rows.h. A is of C's dtype, but `native` of B's: the processor multiplies that one. */
typedef struct MothRows {
  MothGemm gemm;
  bool native;
} MothRows;

/* Arguments of kernels/cpu/typed/product.h: an operand to be packed (`to`), or a product. a, b: whole operands that are packed;
 * NULL: they are packed in `work`, as many elements as product_work says. */
typedef struct MothProduct {
  MothGemm gemm;
  bool is_a;
  const void *a, *b;
  void *to, *work;
} MothProduct;

/* Arguments of kernels/cpu/typed/wide.h: C (m, n) = alpha * the sum over k of x[m][k] * y[n][k] + beta * C, where
 * element (m, k) of X is x[m * x_row + k * x_col]; likewise Y's and C's. packed: X as float32; work: for a call. */
typedef struct MothWide {
  const void *x, *y;
  float *c, *packed, *work;
  int64_t m, n, k;
  int64_t x_row, x_col, y_row, y_col, c_row, c_col;
  int64_t from, to; /* panels of X, or blocks of Y */
  double alpha, beta;
} MothWide;

/* By BLAS for float32 and float64, or by own kernels where there is none; else by a plain loop. `parallel`: false inside a parallel loop. Results do not depend on
 * the number of threads. */
void moth_gemm(const MothGemm *g, bool parallel);
/* The BLAS in use: its path, or "none". */
MOTH_API const char *moth_blas_name(void);
/* The processor that its kernels are for, and why that one, or why there is no library; or "". */
MOTH_API const char *moth_blas_core(void);
MOTH_API const char *moth_blas_note(void);
/* A function of that library; NULL: there is none. */
void *moth_blas_symbol(const char *symbol);
#endif
