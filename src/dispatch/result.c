/* Helpers of shape rules: results, dimensions, broadcasting, promotion. */
#include <string.h>

#include "core/dtype.h"
#include "dispatch/dispatch.h"

MothStatus moth_check_opt_in(const MothOp *op, MothDType dtype) {
  if (!moth_dtype_is_opt_in(dtype) || op->dtypes >> dtype & 1)
    return MOTH_OK;
  if (moth_dtype_is_complex(dtype))
    return moth_fail(MOTH_ERR_TYPE,
                     "not implemented for %s; compute with its parts: moth.view_as_real(x), "
                     "moth.real(x), moth.imag(x), moth.abs(x)",
                     moth_dtype_name(dtype));
  const char *wide = dtype == MOTH_UINT16 ? "int32" : "int64";
  return moth_fail(MOTH_ERR_TYPE, "not implemented for %s; convert with x:to(moth.%s)",
                   moth_dtype_name(dtype), wide);
}

MothStatus moth_meta_too_long(int ndim, const int64_t *shape) {
  int64_t numel;
  MOTH_TRY(moth_shape_numel(ndim, shape, 1, &numel));
  return moth_fail(MOTH_ERR_VALUE, "a tensor has at most %d dimensions, got %d", MOTH_MAX_DIMS,
                   ndim);
}

static inline MothStatus make(MothCall *c, int i, MothDType dtype, MothDevice device, int ndim,
                              const int64_t *shape) {
  MothTensor *t;
  if (__builtin_expect(moth_dtype_is_opt_in(dtype), 0))
    MOTH_TRY(moth_check_opt_in(c->op, dtype));
  if (__builtin_expect((c->keys & MOTH_KEY_FAKE) != 0, 0))
    MOTH_TRY(moth_tensor_new_fake(ndim, shape, dtype, device, &t));
  else
    MOTH_TRY(moth_tensor_new(ndim, shape, dtype, device, &t));
  c->results[i] = moth_v_tensor(t);
  return MOTH_OK;
}

MothStatus moth_result(MothCall *c, int i, MothDType dtype, int ndim, const int64_t *shape) {
  return make(c, i, dtype, c->device, ndim, shape);
}

static void use(MothCall *c, int i, MothTensor *t) {
  moth_tensor_retain(t);
  c->results[i] = moth_v_tensor(t);
}

/* Whether writing to `target` while argument k, t, is read gives the same as a separate result. Pointwise ops read the
 * elements of their arguments before they write that of the result; scatters begin with the elements of self. */
static bool apart(const MothCall *c, const MothTensor *target, int k, const MothTensor *t) {
  int overlap = moth_tensor_overlap(target, t);
  return overlap == 0 ||
         (overlap == 1 && (c->op->kind == MOTH_KIND_POINTWISE ||
                           (c->op->kind == MOTH_KIND_SCATTER && c->op->inplace && k == 0)));
}

/* Kernels write pointwise results by strides, others row-major, in CUDA's by 16 bytes at a time. */
static bool writable(const MothCall *c, const MothTensor *target) {
  if (c->op->kind == MOTH_KIND_POINTWISE)
    return true;
  return target->contiguous && (c->device.type == MOTH_CPU || (uintptr_t)target->data % 16 == 0);
}

/* Whether result i can be computed into its target. */
static bool goes_to_target(const MothCall *c, int i, const MothMeta *m) {
  const MothTensor *target = c->target[i];
  if (target->device.type != m->device.type || target->device.index != m->device.index ||
      target->dtype != m->dtype || target->ndim != m->ndim ||
      memcmp(target->shape, m->shape, sizeof(int64_t) * m->ndim) != 0 || !writable(c, target))
    return false;
  for (int k = 0; k < c->op->nargs; k++) {
    MothValue v = c->args[k];
    if (v.tag == MOTH_V_TENSOR && !apart(c, target, k, v.u.t))
      return false;
    for (uint32_t n = 0; v.tag == MOTH_V_TENSORS && n < v.n; n++)
      if (!apart(c, target, k, v.u.tensors[n]))
        return false;
  }
  for (int k = 0; k < c->op->nresults; k++)
    if (k != i && moth_tensor_overlap(target, c->target[k]) != 0)
      return false;
  return true;
}

static MothStatus make_view(MothCall *c, const MothMeta *m) {
  MothTensor *t = c->args[0].u.t, *view;
  if (!c->op->backward) { /* detach: without history, and of the same subclass */
    MOTH_TRY(moth_tensor_alias(t, false, &view));
    c->results[0] = moth_v_tensor(view);
    return MOTH_OK;
  }
  MOTH_TRY(
      moth_tensor_view_as(t, (MothDType)m->dtype, m->ndim, m->shape, m->stride, m->offset, &view));
  if (moth_thread.no_grad && (t->keys & MOTH_KEY_AUTOGRAD)) { /* the view is not differentiable */
    moth_tensor_release(view->base);
    view->base = NULL;
  }
  c->results[0] = moth_v_tensor(view);
  return MOTH_OK;
}

MothStatus moth_make_results(MothCall *c, const MothMeta *metas) {
  const MothOp *op = c->op;
  if (op->memory == MOTH_MEMORY_VIEW)
    return make_view(c, metas);
  if (op->memory == MOTH_MEMORY_SELF) {
    use(c, 0, c->args[0].u.t);
    return MOTH_OK;
  }
  if (op->nresults == 1 && !c->target)
    return make(c, 0, (MothDType)metas->dtype, metas->device, metas->ndim, metas->shape);
  for (int i = 0; i < c->op->nresults; i++) {
    const MothMeta *m = &metas[i];
    if (__builtin_expect(c->target != NULL, 0)) {
      if (moth_tensor_self_overlaps(c->target[i]))
        return moth_fail(MOTH_ERR_VALUE,
                         "the tensor written to holds several elements in one place (an expanded "
                         "view?); clone() it first");
      if (goes_to_target(c, i, m)) {
        if (moth_dtype_is_opt_in((MothDType)m->dtype))
          MOTH_TRY(moth_check_opt_in(c->op, (MothDType)m->dtype));
        use(c, i, c->target[i]);
        continue;
      }
    }
    MOTH_TRY(make(c, i, (MothDType)m->dtype, m->device, m->ndim, m->shape));
  }
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
      if (v.u.t->is_number) {
        k = 2;
        d = moth_dtype_complex(moth_default_dtype());
      }
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
