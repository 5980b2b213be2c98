/* The interface below all matrix products of the CUDA backend. */
#ifndef MOTH_CUDA_GEMM_H
#define MOTH_CUDA_GEMM_H
#include "cuda/cuda.h"

/* For each i of `batch`: C = alpha * A @ B + beta * C + bias, with A (m, k), B (k, n), C (m, n) and
 * bias (n), or NULL, added to every row. Element (r, c) of A i is a[i * a_batch + r * a_row + c * a_col],
 * in elements; one of the two strides is 1, the other at least the number of elements along it; the same for
 * B. Rows of C are contiguous. With beta = 0, C is not read. float16 and bfloat16 are summed in float32,
 * integers wrap. */
typedef struct MothCudaGemm {
  MothDType dtype;
  int64_t batch, m, n, k;
  const void *a, *b, *bias;
  void *c;
  int64_t a_row, a_col, a_batch;
  int64_t b_row, b_col, b_batch;
  int64_t c_row, c_batch;
  double alpha, beta;
} MothCudaGemm;

/* Queues the product on a stream of the current device `device`: by cuBLASLt if it is available and supports the
 * product, else by the kernel of typed/gemm.cuh. */
MothStatus moth_cuda_gemm(int device, cudaStream_t stream, const MothCudaGemm *g);

/* The product by cuBLASLt. *done is false, and nothing was queued, if cuBLASLt is missing or has no kernel for it. */
MothStatus moth_cublaslt_gemm(int device, cudaStream_t stream, const MothCudaGemm *g, bool *done);
#endif
