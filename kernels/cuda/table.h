/* The typed kernels of CUDA: one table per dtype, filled by the generated files
 * build/gen/cuda/<dtype>_*.cu, which include kernels/cuda/typed/. As kernels/cpu/table.h, but what stands in the tables are host functions that launch kernels. */
#ifndef MOTH_CUDA_TABLE_H
#define MOTH_CUDA_TABLE_H
#include "cuda/cuda.h"
extern "C" {
#include "kernels/common/iter.h"
#include "kernels/common/param.h"
}

/* One pointwise call. Operand 0 of the iterator is written; of the others, those whose data is NULL are
 * numbers: an element in stored form each. */
typedef struct MothPointwise {
  const MothIter *it;
  unsigned char number[MOTH_ITER_OPERANDS][16];
  const MothParam *params;
  cudaStream_t stream;
} MothPointwise;

typedef MothStatus (*MothCudaLoop)(const MothPointwise *p);

/* Where a typed kernel runs. What it computes is in a structure that the CPU's
 * kernel of that family takes, too (kernels/common). */
typedef struct MothCudaRun {
  int device;
  cudaStream_t stream;
  int op; /* the id of the op, for faults (cuda.h) */
} MothCudaRun;

#include "cuda/typed_kernels.h"

/* A function for each definition of kernels/cuda/typed that says MOTH_TYPED: on the host; it launches and returns. Pointers
 * are those of the device unless a structure of the host is meant. */
typedef struct MothCudaKernels {
  MOTH_CUDA_TYPED_MEMBERS
} MothCudaKernels;

/* The loops of a pointwise op are MothOp.loops[MOTH_CUDA]: a MothCudaLoop for each dtype, NULL where the op has not this
 * one. The tables, by dtype, generated: */
/* [to][from]: an elementwise copy with conversion. */
extern const MothCudaLoop *const moth_cuda_casts[MOTH_NDTYPES];
extern const MothCudaKernels *const moth_cuda_kernels[MOTH_NDTYPES];
#endif
