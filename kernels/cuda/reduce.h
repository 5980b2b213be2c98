/* A reduction as the typed kernels take it (kernels/cuda/typed/reduce.cuh). */
#ifndef MOTH_CUDA_REDUCE_H
#define MOTH_CUDA_REDUCE_H
#include "cuda/cuda.h"
extern "C" {
#include "kernels/common/reduce.h"
}

/* Where results go: elements of `dtype` (sums of integers: of any integer dtype), or NULL; positions of
 * the arg reductions, counted from base. */
typedef struct MothReduceOut {
  void *values;
  long long *pos;
  int dtype;
  double divisor; /* var: count - correction; else the count */
  int finish;     /* MothReduction.nfinish */
  long long base;
} MothReduceOut;

struct MothReduce : MothReduceLayout {
  int op, device; /* MOTH_REDUCE_... */
  cudaStream_t stream;
  const char *in;
  MothReduceOut out;
};

/* The layout of a reduction of t over the dimensions in mask; out is not touched. */
void moth_cuda_reduce_plan(MothReduce *r, const MothTensor *t, uint32_t mask);
#endif
