/* The typed attention kernels (kernels/cuda/typed/attention.cuh), of which the generated files
 * build/gen/cuda/<dtype>_attention.cu make one table per float dtype; and the interface to cuDNN. */
#ifndef MOTH_CUDA_ATTENTION_H
#define MOTH_CUDA_ATTENTION_H
#include "kernels/common/attention.h"
#include "kernels/cuda/table.h"

typedef struct MothCudaAttentionKernels {
  MothStatus (*forward)(const MothCudaRun *run, const MothAttention *a);
  MothStatus (*backward)(const MothCudaRun *run, const MothAttention *a);
} MothCudaAttentionKernels;

/* By dtype, generated; NULL for dtypes that are not float. */
extern const MothCudaAttentionKernels *const moth_cuda_attention[MOTH_NDTYPES];

/* The same by cuDNN. *done is false, and nothing was queued, where cuDNN is missing or has no engine. */
MothStatus moth_cudnn_attention(const MothCudaRun *run, MothDType dtype, const MothAttention *a,
                                bool backward, bool *done);
#endif
