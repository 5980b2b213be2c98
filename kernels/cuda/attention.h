/* Attention as the typed kernels take it (kernels/cuda/typed/attention.cuh): one table per float dtype,
 * filled by the generated files build/gen/cuda/<dtype>_attention.cu; and the seam to cuDNN. */
#ifndef MOTH_CUDA_ATTENTION_H
#define MOTH_CUDA_ATTENTION_H
#include "cuda/cuda.h"

/* (B, heads, rows, columns) of the dtype, columns side by side; steps in elements. */
typedef struct MothHeads {
  void *data;
  int64_t batch, head, row;
} MothHeads;

/* Queries (B, H, L, E), keys (B, K, S, E), values (B, K, S, V); K divides H. */
typedef struct MothAttention {
  int device;
  cudaStream_t stream;
  int64_t B, H, K, L, S, E, V;
  MothHeads q, k, v, o;       /* o: the result; backward: as it came out */
  MothHeads grad, dq, dk, dv; /* backward: gradient of o; the results */
  void *lse;                  /* (B, H, L) in float, of float64 in double */
  const void *grad_lse;       /* the same; NULL: none */
  void *delta;                /* backward: room, as lse */
  const uint8_t *mask_bool;   /* one of the two or none */
  const void *mask_add;       /* in lse's type */
  int64_t mask[4];            /* steps, 0 where it is broadcast */
  const uint64_t *state;      /* seed and counter of dropout's numbers, on the device */
  double p, scale;
  bool causal;
} MothAttention;

typedef struct MothCudaAttentionKernels {
  MothStatus (*forward)(const MothAttention *a);
  MothStatus (*backward)(const MothAttention *a);
} MothCudaAttentionKernels;

/* By dtype, generated; NULL where it is no float dtype. */
extern const MothCudaAttentionKernels *const moth_cuda_attention[MOTH_NDTYPES];

/* The same by cuDNN. *done is false, and nothing was queued, where cuDNN is missing or has no engine. */
MothStatus moth_cudnn_attention(MothDType dtype, const MothAttention *a, bool backward, bool *done);
#endif
