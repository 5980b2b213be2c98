/* Arguments of scaled_dot_product_attention's kernels, on every device. */
#ifndef MOTH_COMMON_ATTENTION_H
#define MOTH_COMMON_ATTENTION_H
#include <stdbool.h>
#include <stdint.h>

/* (B, heads, rows, columns), columns contiguous; strides in elements. */
typedef struct MothHeads {
  void *data;
  int64_t batch, head, row;
} MothHeads;

/* Queries (B, H, L, E), keys (B, K, S, E), values (B, K, S, V); K divides H. All of the dtype that is computed in on the
 * CPU, of the tensors' on CUDA. */
typedef struct MothAttention {
  int64_t B, H, K, L, S, E, V;
  MothHeads q, k, v, o;       /* o: the output (in backward an input) */
  MothHeads grad, dq, dk, dv; /* backward: gradient of o; the results */
  void *lse;                  /* (B, H, L) in float, of float64 in double */
  const void *grad_lse;       /* the same; NULL: none */
  void *delta;                /* backward: workspace, as lse */
  const uint8_t *mask_bool;   /* at most one of mask_bool and mask_add is set */
  const void *mask_add;       /* in lse's type */
  int64_t mask[4];            /* strides of the mask, 0 where it is broadcast */
  uint64_t seed, offset;      /* the CPU: of dropout's random numbers */
  const uint64_t *state;      /* CUDA: the same, on the device */
  double p, scale;
  bool causal;
} MothAttention;
#endif
