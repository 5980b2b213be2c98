/* Transposing columns to rows. */
#ifndef MOTH_CUDA_SPLIT_H
#define MOTH_CUDA_SPLIT_H
#include "kernels/cuda/util.h"

/* Whether columns are so few and long that they should be transposed to rows: a kernel over columns has one or a few
 * threads for each, a kernel over rows splits them. */
static inline bool moth_cuda_should_transpose(const MothSplit &s, int device) {
  return s.inner > 1 && s.n >= 1024 &&
         s.outer * s.inner < (int64_t)moth_cuda_props(device)->multiprocessors * 64;
}
/* to [outer][inner][n] = from [outer][n][inner], of one dtype; `back`: the inverse. */
MothStatus moth_cuda_transpose(int device, MothDType dtype, void *to, const void *from,
                               const MothSplit &s, bool back);
#endif
