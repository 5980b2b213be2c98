/* What shape rules share: results, dimensions, broadcasting, promotion. */
#include <string.h>

#include "core/dtype.h"
#include "dispatch/dispatch.h"

MothStatus moth_check_stored(const MothOp *op, MothDType dtype) {
  if (!moth_dtype_is_stored(dtype) || op->dtypes >> dtype & 1)
    return MOTH_OK;
  const char *wide = dtype == MOTH_UINT16 ? "int32" : "int64";
  return moth_fail(MOTH_ERR_TYPE, "not implemented for %s; convert with x:to(moth.%s)",
                   moth_dtype_name(dtype), wide);
}

MothStatus moth_result(MothCall *c, int i, MothDType dtype, int ndim, const int64_t *shape) {
  MothTensor *t;
  MOTH_TRY(moth_check_stored(c->op, dtype));
  if (c->target && c->op->kind == MOTH_KIND_POINTWISE) {
    MothTensor *target = c->target[i];
    if (moth_tensor_self_overlaps(target))
      return moth_fail(MOTH_ERR_VALUE,
                       "the tensor written to holds several elements in one place (an expanded "
                       "view?); clone() it first");
    bool direct = target->dtype == dtype && target->ndim == ndim &&
                  !memcmp(target->shape, shape, sizeof(int64_t) * (size_t)ndim);
    for (int k = 0; k < c->op->nargs && direct; k++)
      if (c->args[k].tag == MOTH_V_TENSOR && moth_tensor_overlap(target, c->args[k].u.t) == 2)
        direct = false;
    if (direct)
      return moth_result_same(c, i, target);
  }
  if (c->keys & MOTH_KEY_FAKE)
    MOTH_TRY(moth_tensor_new_fake(ndim, shape, dtype, c->device, &t));
  else
    MOTH_TRY(moth_tensor_new(ndim, shape, dtype, c->device, &t));
  c->results[i] = moth_v_tensor(t);
  return MOTH_OK;
}

MothStatus moth_result_view(MothCall *c, int i, MothTensor *t, int ndim, const int64_t *shape,
                            const int64_t *stride, int64_t offset) {
  MothTensor *view;
  MOTH_TRY(moth_tensor_view(t, ndim, shape, stride, offset, &view));
  if (moth_thread.no_grad && (t->keys & MOTH_KEY_AUTOGRAD)) { /* no differentiable view is wanted */
    moth_tensor_release(view->base);
    view->base = NULL;
  }
  c->results[i] = moth_v_tensor(view);
  return MOTH_OK;
}

MothStatus moth_result_same(MothCall *c, int i, MothTensor *t) {
  moth_tensor_retain(t);
  c->results[i] = moth_v_tensor(t);
  return MOTH_OK;
}

MothStatus moth_wrap_dim(int64_t dim, int ndim, int *out) {
  int n = ndim ? ndim : 1;
  if (dim < -n || dim >= n)
    return moth_fail(MOTH_ERR_INDEX,
                     "dimension out of range: expected " MOTH_AT "0 to " MOTH_AT
                     "%d (or %d to -1), got " MOTH_AT "%lld",
                     n - 1, -n, (long long)dim);
  *out = (int)(dim < 0 ? dim + n : dim);
  return MOTH_OK;
}

MothStatus moth_broadcast(int na, const int64_t *a, int nb, const int64_t *b, int *nout,
                          int64_t *out) {
  int n = na > nb ? na : nb;
  for (int i = 0; i < n; i++) { /* from the last dimension */
    int64_t x = i < na ? a[na - 1 - i] : 1, y = i < nb ? b[nb - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) {
      char sa[200], sb[200];
      return moth_fail(MOTH_ERR_VALUE,
                       "shapes %s and %s cannot be broadcast together: sizes %lld and %lld at "
                       "dimension " MOTH_AT "%d must match or be 1",
                       moth_shape_format(na, a, sa, sizeof sa),
                       moth_shape_format(nb, b, sb, sizeof sb), (long long)x, (long long)y,
                       n - 1 - i);
    }
    out[n - 1 - i] = x == 1 ? y : x;
  }
  *nout = n;
  return MOTH_OK;
}

MothStatus moth_result_type(int n, const MothValue *values, MothDType *out) {
  int best[3] = {-1, -1, -1}; /* with dimensions, 0-dim, numbers */
  MothDType both;
  for (int i = 0; i < n; i++) {
    MothValue v = values[i];
    int k;
    MothDType d;
    if (v.tag == MOTH_V_TENSOR) {
      k = v.u.t->ndim ? 0 : 1;
      d = (MothDType)v.u.t->dtype;
    } else if (v.tag == MOTH_V_FLOAT) {
      k = 2;
      d = moth_default_dtype();
    } else if (v.tag == MOTH_V_INT) {
      k = 2;
      d = MOTH_INT64;
    } else if (v.tag == MOTH_V_BOOL) {
      k = 2;
      d = MOTH_BOOL;
    } else {
      continue;
    }
    both = d;
    if (best[k] >= 0)
      MOTH_TRY(moth_dtype_common((MothDType)best[k], d, &both));
    best[k] = (int)both;
  }
  int result = -1;
  for (int k = 0; k < 3; k++) {
    if (best[k] < 0)
      continue;
    /* A lower category counts only if it is of a higher class. */
    if (result < 0)
      result = best[k];
    else if (moth_dtype_class((MothDType)best[k]) > moth_dtype_class((MothDType)result)) {
      MOTH_TRY(moth_dtype_common((MothDType)result, (MothDType)best[k], &both));
      result = (int)both;
    }
  }
  *out = result < 0 ? moth_default_dtype() : (MothDType)result;
  return MOTH_OK;
}
