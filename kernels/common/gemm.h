/* Arguments of matrix products, on every device. */
#ifndef MOTH_COMMON_GEMM_H
#define MOTH_COMMON_GEMM_H
#include <stdint.h>

/* C (m, n) = alpha * A (m, k) @ B (k, n) + beta * C. Element (i, j) of A is a[i * a_row + j * a_col], in elements; one of
 * the two strides is 1, the other at least the number of elements along it; the same for B. Rows of C are contiguous,
 * c_row apart. With beta = 0, C is not read. Products of float16 and bfloat16 are summed in float32 (on the CPU, C is
 * float32 then), integers wrap. */
typedef struct MothGemm {
  int dtype;
  int64_t m, n, k;
  const void *a, *b;
  void *c;
  int64_t a_row, a_col, b_row, b_col, c_row;
  double alpha, beta;
  /* CUDA: `batch` products, their matrices *_batch elements apart; bias (n), or NULL, is added to every row. */
  int64_t batch, a_batch, b_batch, c_batch;
  const void *bias;
} MothGemm;
#endif
