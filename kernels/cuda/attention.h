/* Arguments of the typed attention kernels (kernels/cuda/typed/attention.cuh), of which the generated files
 * build/gen/cuda/<dtype>_attention.cu make one table per float dtype; and the interface to cuDNN. */
#ifndef MOTH_CUDA_ATTENTION_H
#define MOTH_CUDA_ATTENTION_H
#include "cuda/cuda.h"

/* (B, heads, rows, columns) of the dtype, columns contiguous; strides in elements. */
typedef struct MothHeads {
  void *data;
  int64_t batch, head, row;
} MothHeads;

/* Queries (B, H, L, E), keys (B, K, S, E), values (B, K, S, V); K divides H. */
typedef struct MothAttention {
  int device;
  cudaStream_t stream;
  int64_t B, H, K, L, S, E, V;
  MothHeads q, k, v, o;       /* o: the output (in backward an input) */
  MothHeads grad, dq, dk, dv; /* backward: gradient of o; the results */
  void *lse;                  /* (B, H, L) in float, of float64 in double */
  const void *grad_lse;       /* the same; NULL: none */
  void *delta;                /* backward: workspace, as lse */
  const uint8_t *mask_bool;   /* at most one of mask_bool and mask_add is set */
  const void *mask_add;       /* in lse's type */
  int64_t mask[4];            /* strides of the mask, 0 where it is broadcast */
  const uint64_t *state;      /* seed and counter of dropout's random numbers, on the device */
  double p, scale;
  bool causal;
} MothAttention;

typedef struct MothCudaAttentionKernels {
  MothStatus (*forward)(const MothAttention *a);
  MothStatus (*backward)(const MothAttention *a);
} MothCudaAttentionKernels;

/* By dtype, generated; NULL for dtypes that are not float. */
extern const MothCudaAttentionKernels *const moth_cuda_attention[MOTH_NDTYPES];

/* The same by cuDNN. *done is false, and nothing was queued, where cuDNN is missing or has no engine. */
MothStatus moth_cudnn_attention(MothDType dtype, const MothAttention *a, bool backward, bool *done);
#endif
