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
