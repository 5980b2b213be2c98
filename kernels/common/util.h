/* Helpers of the kernels of all devices: numbers as parameters of typed kernels, and the view of a row-major tensor
 * as outer x n x inner around one dimension. */
#ifndef MOTH_COMMON_UTIL_H
#define MOTH_COMMON_UTIL_H
#include "core/tensor.h"
#include "dispatch/dispatch.h"
#include "kernels/common/param.h"

/* A number as a parameter of the typed kernels of a dtype. */
MOTH_API MothParam moth_param_of(MothValue v, MothDType dtype);
/* Argument i of a pointwise op, a number, for its loop; without one, the limit that the record names. */
MOTH_API MothParam moth_pointwise_param(const MothOp *op, int i, MothValue v, MothDType dtype);
/* A row-major tensor around dimension dim: element (o, i, k) is at (o * n + i) * inner + k. */
typedef struct MothSplit {
  int64_t outer, n, inner;
} MothSplit;

/* A 0-dim tensor is one row of one element. */
MOTH_API MothSplit moth_split(const MothTensor *t, int dim);

/* Positions (bytes) along a set of dimensions, the last one fastest. */
typedef struct MothWalk {
  int ndim;
  int64_t index[MOTH_MAX_DIMS], size[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS];
  int64_t at;
} MothWalk;

MOTH_API void moth_walk_init(MothWalk *w, int ndim, const int64_t *size, const int64_t *stride,
                             int64_t begin);
static inline void moth_walk_next(MothWalk *w) {
  for (int i = w->ndim - 1; i >= 0; i--) {
    w->at += w->stride[i];
    if (++w->index[i] < w->size[i])
      return;
    w->at -= w->stride[i] * w->size[i];
    w->index[i] = 0;
  }
}

static inline int64_t moth_min64(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static inline int64_t moth_max64(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/* Argument i: the tensor, or NULL where there is none. */
static inline MothTensor *moth_tensor_arg(const MothCall *c, int i) {
  return c->args[i].tag == MOTH_V_TENSOR ? c->args[i].u.t : NULL;
}
#endif
