/* The table of a kernel that unscales gradients (kernels/cuda/amp.cu): one launch takes up to SLOTS tensors of one dtype,
 * cut into chunks of a block each. */
#ifndef MOTH_CUDA_AMP_H
#define MOTH_CUDA_AMP_H
#include <stdint.h>

enum { MOTH_UNSCALE_SLOTS = 128, MOTH_UNSCALE_CHUNK = 8192 };
typedef struct MothUnscale {
  int n;
  const float *inv_scale;
  float *found_inf;
  unsigned first[MOTH_UNSCALE_SLOTS + 1]; /* number of each tensor's first chunk */
  int64_t numel[MOTH_UNSCALE_SLOTS];
  void *p[MOTH_UNSCALE_SLOTS];
} MothUnscale;
#endif
