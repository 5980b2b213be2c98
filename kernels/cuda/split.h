/* Row-major tensors around one dimension, and columns turned into rows. */
#ifndef MOTH_CUDA_SPLIT_H
#define MOTH_CUDA_SPLIT_H
#include "kernels/cuda/util.h"

/* As moth_cpu_split; a 0-dim tensor is one row of one element. */
static inline MothSplit moth_cuda_split(const MothTensor *t, int dim) {
  MothSplit s = {1, t->ndim ? t->shape[dim] : 1, 1};
  for (int i = 0; i < t->ndim; i++)
    *(i < dim ? &s.outer : i > dim ? &s.inner : &s.n) *= i == dim ? 1 : t->shape[i];
  return s;
}
/* Whether columns are so few and long that they are better turned into rows: a kernel of columns has a
 * thread or a few for each, a kernel of rows cuts them. */
static inline bool moth_cuda_should_turn(const MothSplit &s, int device) {
  return s.inner > 1 && s.n >= 1024 &&
         s.outer * s.inner < (int64_t)moth_cuda_props(device)->multiprocessors * 64;
}
/* to [outer][inner][n] = from [outer][n][inner]; `back`: the other way round. Of one dtype. */
MothStatus moth_cuda_turn(int device, MothDType dtype, void *to, const void *from,
                          const MothSplit &s, bool back);
#endif
