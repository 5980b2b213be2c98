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

/* By BLAS for float32 and float64, else by a plain loop. `parallel`: false inside a parallel loop. Results do not depend on
 * the number of threads. */
void moth_gemm(const MothGemm *g, bool parallel);
/* The BLAS in use: its path, or "none". */
MOTH_API const char *moth_blas_name(void);
/* A function of that library; NULL: there is none. */
void *moth_blas_symbol(const char *symbol);
#endif
