#include "kernels/common/util.h"

#include "core/dtype.h"

MothParam moth_param_of(MothValue v, MothDType dtype) {
  MothParam p;
  if (moth_dtype_is_inexact(dtype))
    p.d = moth_as_double(v);
  else
    moth_dtype_store(MOTH_INT64, &p.i, v);
  if (dtype == MOTH_BOOL && v.tag == MOTH_V_FLOAT)
    p.i = v.u.d != 0;
  else if (dtype == MOTH_BOOL)
    p.i = v.u.i != 0;
  return p;
}

/* An absent limit: beyond every number of the dtype. */
static MothParam limit(int which, MothDType dtype) {
  MothParam p;
  if (moth_dtype_is_float(dtype))
    p.d = which == 1 ? -__builtin_inf() : __builtin_inf();
  else
    p.i = which == 1 ? moth_dtype_limits(dtype).low : (int64_t)moth_dtype_limits(dtype).high;
  return p;
}

/* Limits given for a narrow integer dtype saturate instead of wrapping. */
static MothParam clip_param(MothParam p, MothDType dtype) {
  if (!moth_dtype_is_float(dtype)) {
    MothParam lo = limit(1, dtype), hi = limit(2, dtype);
    if (p.i < lo.i)
      p.i = lo.i;
    if (p.i > hi.i)
      p.i = hi.i;
  }
  return p;
}

MothParam moth_pointwise_param(const MothOp *op, int i, MothValue v, MothDType dtype) {
  int which = op->limits ? op->limits[i] : 0;
  if (v.tag == MOTH_V_NONE)
    return limit(which, dtype);
  MothParam p = moth_param_of(v, dtype);
  return which ? clip_param(p, dtype) : p;
}

MothSplit moth_split(const MothTensor *t, int dim) {
  MothSplit s = {1, t->ndim ? t->shape[dim] : 1, 1};
  for (int i = 0; i < dim; i++)
    s.outer *= t->shape[i];
  for (int i = dim + 1; i < t->ndim; i++)
    s.inner *= t->shape[i];
  return s;
}

void moth_walk_init(MothWalk *w, int ndim, const int64_t *size, const int64_t *stride,
                    int64_t begin) {
  w->ndim = ndim;
  w->at = 0;
  for (int i = ndim - 1; i >= 0; i--) {
    w->size[i] = size[i];
    w->stride[i] = stride[i];
    w->index[i] = size[i] ? begin % size[i] : 0;
    begin = size[i] ? begin / size[i] : 0;
    w->at += w->index[i] * stride[i];
  }
}
