/* What the typed kernels of normalisation take (kernels/cuda/typed/norm.cuh). */
#ifndef MOTH_CUDA_NORM_H
#define MOTH_CUDA_NORM_H
#include "cuda/cuda.h"

/* Parameters, statistics and gradients of parameters are of the dtype's `real`; those that are NULL are
 * not there. Rows: [rows][n], a statistic each. Channels: [batch][channels][inner]; of groups > 0 each
 * sample's group of channels has a statistic, else each channel. */
typedef struct MothNorm {
  int device;
  cudaStream_t stream;
  int64_t rows, n;
  int64_t batch, channels, inner, groups;
  bool rms, own; /* own: the statistics are those of `in`; else they are given */
  double eps, momentum;
  const void *in, *grad, *weight, *bias;
  void *out; /* the result; backward: the gradient of in */
  void *mean, *rstd, *running_mean, *running_var;
  void *dweight, *dbias;
} MothNorm;
#endif
