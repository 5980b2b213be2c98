/* Sums into places that an index names, in a fixed order, as the typed kernels take them
 * (kernels/cuda/typed/scatter.cuh), and the sort that comes before. */
#ifndef MOTH_CUDA_SCATTER_H
#define MOTH_CUDA_SCATTER_H
#include "cuda/cuda.h"

/* n pairs, sorted by key (of which `bits` bits count), those of one key in the order they were in.
 * Keys and positions are uint64_t if wide, else uint32_t. */
typedef struct MothPairs {
  bool wide;
  int64_t n;
  void *key, *pos;
} MothPairs;

/* Sorts in and leaves the result in *sorted, whose arrays are either in's or those of spare. */
MothStatus moth_cuda_sort_pairs(int device, cudaStream_t stream, const MothPairs *in,
                                const MothPairs *spare, int bits, MothPairs *sorted);

/* out[o][key][c] += the sum of src[o][pos][c] over pairs of that key, for o < outer, c < inner. Keys
 * from `keys` on are left out. */
typedef struct MothSegments {
  int device;
  cudaStream_t stream;
  MothPairs pairs; /* for segment_sum: sorted */
  int64_t outer, inner, keys, positions;
  void *out;
  const void *src;
} MothSegments;

/* The sums of g, whose pairs lie in any order; `spare` is room for as many. Sorted and added up segment
 * by segment, so that every run gives the same bits; by atomic sums where order cannot change the bits
 * (int32, int64), and for float32 and float64 after moth.use_deterministic_algorithms(false). 16-bit
 * floats are always sorted: their atomic sums would round at every step. */
MothStatus moth_cuda_sum_segments(MothDType dtype, const MothSegments *g, const MothPairs *spare);
#endif
