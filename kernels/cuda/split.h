/* Columns turned into rows. */
#ifndef MOTH_CUDA_SPLIT_H
#define MOTH_CUDA_SPLIT_H
#include "kernels/cuda/util.h"

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
