/* The interface below all matrix products of the CUDA backend. */
#ifndef MOTH_CUDA_GEMM_H
#define MOTH_CUDA_GEMM_H
#include "kernels/common/gemm.h"
#include "kernels/cuda/table.h"

/* Queues the product: by cuBLASLt if it is available and supports the
 * product, else by the kernel of typed/gemm.cuh. */
MothStatus moth_cuda_gemm(const MothCudaRun *run, const MothGemm *g);

/* The product by cuBLASLt. *done is false, and nothing was queued, if cuBLASLt is missing or has no kernel for it. */
MothStatus moth_cublaslt_gemm(const MothCudaRun *run, const MothGemm *g, bool *done);
#endif
