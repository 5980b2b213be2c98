/* Shape arithmetic that rules and composites share. */
#ifndef MOTH_DISPATCH_SHAPE_H
#define MOTH_DISPATCH_SHAPE_H
#include "core/tensor.h"
#include "dispatch/dispatch.h"

/* `size` with its -1 replaced, checked against t's number of elements. */
MothStatus moth_infer_size(const MothTensor *t, int n, const int64_t *size, int64_t *out);
/* Strides by which `shape` is a view of t; false if there are none. */
bool moth_view_strides(const MothTensor *t, int n, const int64_t *shape, int64_t *stride);
/* The rule of in-place ops: the result is the first argument, whose elements must not overlap. */
MothStatus moth_shape_self(const MothCall *c, MothMeta *out);

/* gather_nd and scatter_nd_: self's dimensions other than `dims`, with those of the index between them
 * (before rest[before]): `shape` is that of the elements read or written. */
typedef struct MothNd {
  int k, dims[MOTH_MAX_DIMS]; /* the dimensions that the index points into */
  int nrest, before, rest[MOTH_MAX_DIMS];
  int ndim;
  int64_t shape[MOTH_MAX_DIMS];
  int64_t count; /* of positions in the index */
  bool together; /* dims follow one another */
} MothNd;

MOTH_API MothStatus moth_nd(const MothTensor *self, MothValue dims, const MothTensor *index,
                            MothNd *out);
#endif
