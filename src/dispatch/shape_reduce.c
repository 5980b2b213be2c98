/* Shape rules of reductions and scans. */
#include "core/dtype.h"
#include "dispatch/dispatch.h"

static uint32_t mask_of(MothValue dims) {
  uint32_t mask = 0;
  for (uint32_t i = 0; i < dims.n; i++)
    mask |= 1u << dims.u.ints[i];
  return mask;
}

static int reduced_shape(const MothTensor *t, uint32_t mask, bool keepdim, int64_t *shape) {
  int n = 0;
  for (int i = 0; i < t->ndim; i++)
    if (!(mask & 1u << i))
      shape[n++] = t->shape[i];
    else if (keepdim)
      shape[n++] = 1;
  return n;
}

static MothStatus reduced_result(const MothCall *c, MothMeta *out, MothDType dtype, uint32_t mask,
                                 bool keepdim) {
  int64_t shape[MOTH_MAX_DIMS];
  int n = reduced_shape(c->args[0].u.t, mask, keepdim, shape);
  return moth_meta_set(out, dtype, n, shape);
}

static MothStatus need_float(MothDType d) {
  if (moth_dtype_is_float(d))
    return MOTH_OK;
  return moth_fail(MOTH_ERR_TYPE, "expected a float dtype, got %s", moth_dtype_name(d));
}

/* Largest, smallest and their positions: there must be something to choose from. */
static MothStatus need_elements(const MothTensor *t, uint32_t mask) {
  for (int i = 0; i < t->ndim; i++)
    if (mask & 1u << i && t->shape[i] == 0)
      return moth_fail(MOTH_ERR_VALUE,
                       "dimension " MOTH_AT
                       "%d has size 0, and this reduction has no identity for no elements",
                       i);
  return MOTH_OK;
}

/* sum, prod: (self, dim, keepdim, dtype) */
MothStatus moth_shape_sum(const MothCall *c, MothMeta *out) {
  MothTensor *t = c->args[0].u.t;
  uint32_t mask;
  mask = mask_of(c->args[1]);
  MothDType d = (MothDType)t->dtype;
  if (c->args[3].tag == MOTH_V_DTYPE)
    d = (MothDType)c->args[3].u.i;
  else if (!moth_dtype_is_float(d))
    d = MOTH_INT64;
  return reduced_result(c, out, d, mask, c->args[2].u.b);
}

/* mean: (self, dim, keepdim, dtype), var: (self, dim, correction, keepdim), logsumexp: (self, dim,
 * keepdim). */
MothStatus moth_shape_mean(const MothCall *c, MothMeta *out) {
  MothTensor *t = c->args[0].u.t;
  uint32_t mask;
  MothDType d = (MothDType)t->dtype;
  bool keepdim = c->args[c->op == MOTH_OP(var) ? 3 : 2].u.b;
  if (c->op == MOTH_OP(mean) && c->args[3].tag == MOTH_V_DTYPE)
    d = (MothDType)c->args[3].u.i;
  MOTH_TRY(need_float(d));
  mask = mask_of(c->args[1]);
  return reduced_result(c, out, d, mask, keepdim);
}

/* amax, amin: (self, dim, keepdim) */
MothStatus moth_shape_amax(const MothCall *c, MothMeta *out) {
  MothTensor *t = c->args[0].u.t;
  uint32_t mask;
  mask = mask_of(c->args[1]);
  MOTH_TRY(need_elements(t, mask));
  return reduced_result(c, out, (MothDType)t->dtype, mask, c->args[2].u.b);
}

/* any, all: (self, dim, keepdim) */
MothStatus moth_shape_anyall(const MothCall *c, MothMeta *out) {
  uint32_t mask;
  mask = mask_of(c->args[1]);
  return reduced_result(c, out, MOTH_BOOL, mask, c->args[2].u.b);
}

/* argmax, argmin: (self, dim, keepdim, index_base) */
MothStatus moth_shape_argmax(const MothCall *c, MothMeta *out) {
  MothTensor *t = c->args[0].u.t;
  uint32_t mask = t->ndim ? (1u << t->ndim) - 1 : 0;
  if (c->args[1].tag == MOTH_V_INT)
    mask &= 1u << c->args[1].u.i;
  MOTH_TRY(need_elements(t, mask));
  return reduced_result(c, out, MOTH_INT64, mask, c->args[2].u.b);
}

/* max_dim, min_dim: (self, dim, keepdim, index_base) */
MothStatus moth_shape_max_dim(const MothCall *c, MothMeta *out) {
  MothTensor *t = c->args[0].u.t;
  uint32_t mask = t->ndim ? 1u << c->args[1].u.i : 0;
  MOTH_TRY(need_elements(t, mask));
  MOTH_TRY(reduced_result(c, out, (MothDType)t->dtype, mask, c->args[2].u.b));
  return reduced_result(c, out + 1, MOTH_INT64, mask, c->args[2].u.b);
}

/* cumsum: (self, dim) */
MothStatus moth_shape_cumsum(const MothCall *c, MothMeta *out) {
  MothTensor *t = c->args[0].u.t;
  MothDType dtype = moth_dtype_is_float((MothDType)t->dtype) ? (MothDType)t->dtype : MOTH_INT64;
  return moth_meta_set(out, dtype, t->ndim, t->shape);
}
