/* A reduction as the typed kernels take it (kernels/cuda/typed/reduce.cuh). */
#ifndef MOTH_CUDA_REDUCE_H
#define MOTH_CUDA_REDUCE_H
#include "cuda/cuda.h"

enum {
  MOTH_CUDA_SUM, /* divided by `divisor` */
  MOTH_CUDA_PROD,
  MOTH_CUDA_MAX,
  MOTH_CUDA_MIN,
  MOTH_CUDA_ANY,
  MOTH_CUDA_ALL,
  MOTH_CUDA_VAR, /* of float dtypes, as is the next */
  MOTH_CUDA_LOGSUMEXP,
  MOTH_CUDA_ARGMAX,
  MOTH_CUDA_ARGMIN
};

typedef struct MothReduceDim {
  int64_t size, in, out; /* strides: in the input (bytes), in the output (elements) */
} MothReduceDim;

/* Where results go: elements of `dtype` (sums of integers: of any integer dtype), or NULL; positions of
 * the arg reductions, counted from base. */
typedef struct MothReduceOut {
  void *values;
  long long *pos;
  int dtype;
  double divisor; /* sum: the count for a mean; var: count - correction */
  long long base;
} MothReduceOut;

/* Kept and reduced dimensions, each without sizes of 1, merged, outermost first by input stride. */
typedef struct MothReduce {
  int op, device;
  cudaStream_t stream;
  const char *in;
  MothReduceOut out;
  bool rows; /* the innermost step is a reduced one */
  int nkept, nred;
  MothReduceDim kept[MOTH_MAX_DIMS], red[MOTH_MAX_DIMS];
  int64_t outs, count; /* how many results, and elements for each */
} MothReduce;

/* The layout of a reduction of t over the dimensions in mask; out is not touched. */
void moth_cuda_reduce_plan(MothReduce *r, const MothTensor *t, uint32_t mask);
#endif
