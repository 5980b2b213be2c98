/* Arguments of the typed kernels of softmax and cross_entropy (kernels/cuda/typed/softmax.cuh, loss.cuh). */
#ifndef MOTH_CUDA_SOFTMAX_H
#define MOTH_CUDA_SOFTMAX_H
#include "cuda/cuda.h"

/* Row-major, seen as outer x n x inner. */
typedef struct MothSoftmax {
  int device;
  cudaStream_t stream;
  bool log;
  void *out;
  const void *in;   /* backward: the gradient */
  const void *back; /* backward: the result */
  int64_t outer, n, inner;
} MothSoftmax;

/* Logits of `rows` rows and n classes. */
typedef struct MothLoss {
  int device;
  cudaStream_t stream;
  int op; /* the id of the op, for faults */
  MothFault *fault;
  const void *in;
  int64_t rows, n;
  const long long *target; /* classes, counted from `base` */
  long long ignore, base;
  const double *weight; /* [n] or NULL: all 1 */
  double smoothing;
  bool none, mean; /* the reduction, else a sum */
  void *out;       /* the loss; backward: [rows][n] */
  const double *grad;
} MothLoss;
#endif
