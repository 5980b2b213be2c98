/* Sums by index: the sort that comes before the typed kernels (kernels/cuda/typed/scatter.cuh), which add in a fixed
 * order. */
#ifndef MOTH_CUDA_SCATTER_H
#define MOTH_CUDA_SCATTER_H
#include "kernels/common/scatter.h"
#include "kernels/cuda/table.h"

/* n pairs of key and position, uint64_t if wide, else uint32_t. */
typedef struct MothPairs {
  bool wide;
  int64_t n;
  void *key, *pos;
} MothPairs;

/* A stable sort by the lowest `bits` bits of the keys. *sorted has the arrays of `in` or of `spare`. */
MothStatus moth_cuda_sort_pairs(int device, cudaStream_t stream, const MothPairs *in,
                                const MothPairs *spare, int bits, MothPairs *sorted);

/* Adds by pairs in any order; `spare`: as many unused pairs. Pairs are sorted and summed segment by
 * segment, so that every run gives the same bits. Sums are atomic where order cannot change the bits (int32, int64),
 * and for float32 and float64 after moth.use_deterministic_algorithms(false); not for 16-bit floats, whose atomic
 * sums would round at every addition. */
MothStatus moth_cuda_scatter_pairs(const MothCudaRun *run, MothDType dtype, const MothScatter *s,
                                   const MothPairs *spare);
#endif
