/* The iterator: walks several tensors over one broadcast shape, so that inner loops see contiguous,
 * broadcast (stride 0) or strided runs.
 *
 * Operands are added with their shapes aligned at the last dimension; dimensions are then ordered by
 * the strides of operand 0 (the output), merged where the strides of all operands allow it, and run by rows,
 * in parallel over ranges of the flattened index. */
#ifndef MOTH_COMMON_ITER_H
#define MOTH_COMMON_ITER_H
#include "core/tensor.h"
#include "kernels/common/param.h"

/* One run of the inner dimension: p[0] is written, p[1..] are read; strides in bytes. */
typedef void (*MothLoop)(char **p, const int64_t *stride, int64_t n, const MothParam *params);

enum { MOTH_ITER_OPERANDS = 6, MOTH_GRAIN = 32768 };

typedef struct MothIter {
  int nops, ndim;
  int64_t numel;
  int64_t shape[MOTH_MAX_DIMS];
  int64_t stride[MOTH_ITER_OPERANDS][MOTH_MAX_DIMS]; /* bytes */
  char *data[MOTH_ITER_OPERANDS];
} MothIter;

MOTH_API void moth_iter_init(MothIter *it, int ndim, const int64_t *shape);
/* The tensor's shape must broadcast to the iterator's. */
MOTH_API void moth_iter_add(MothIter *it, const MothTensor *t);
/* A single element, the same everywhere. */
MOTH_API void moth_iter_add_scalar(MothIter *it, void *element);
/* Raw memory with strides in bytes, one per dimension of the iterator. */
MOTH_API void moth_iter_add_raw(MothIter *it, void *data, const int64_t *stride);
MOTH_API void moth_iter_prepare(MothIter *it);
/* Calls loop(pointers, strides of the inner dimension, n, params) for all elements. `grain`: the least number of
 * elements that is worth using threads; 0: serial, in row-major order of the prepared dimensions. */
void moth_iter_run(const MothIter *it, MothLoop loop, const MothParam *params, int64_t grain);
#endif
