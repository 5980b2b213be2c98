/* The rule of all pointwise ops: one broadcast shape, one compute dtype. */
#include <stdio.h>

#include "core/dtype.h"
#include "dispatch/dispatch.h"

/* Whether t has this shape. Shapes are short: a call of memcmp would cost more than it compares. */
static inline bool has_shape(const MothTensor *t, int ndim, const int64_t *shape) {
  bool same = t->ndim == ndim;
  for (int i = 0; same && i < ndim; i++)
    same = t->shape[i] == shape[i];
  return same;
}

/* Whether this argument takes part in promotion: parameters (alpha) and masks do not. */
static inline bool promotes(const MothOp *op, int i) {
  return op->args[i].type != MOTH_T_SCALAR && i != op->cond;
}

static MothStatus broadcast_all(const MothCall *c, int *ndim, int64_t *shape) {
  *ndim = 0;
  for (int i = 0; i < c->op->nargs; i++)
    if (c->args[i].tag == MOTH_V_TENSOR && c->op->args[i].type != MOTH_T_SCALAR) {
      const MothTensor *t = c->args[i].u.t;
      MOTH_TRY(moth_broadcast(*ndim, shape, t->ndim, t->shape, ndim, shape));
    }
  return MOTH_OK;
}

static MothStatus promoted(const MothCall *c, MothDType *out) {
  MothValue typed[MOTH_MAX_ARGS];
  int n = 0;
  for (int i = 0; i < c->op->nargs; i++)
    if (promotes(c->op, i))
      typed[n++] = c->args[i];
  return moth_result_type(n, typed, out);
}

/* An error for numbers that the compute dtype has not: out of range (limits of clamp may be), or
 * complex. */
static MothStatus check_numbers(const MothCall *c, MothDType dtype) {
  const MothOp *op = c->op;
  bool is_float = moth_dtype_is_inexact(dtype);
  for (int i = 0; i < op->nargs; i++) {
    MothValue v = c->args[i];
    bool parameter = op->args[i].type == MOTH_T_SCALAR;
    int limit = op->limits ? op->limits[i] : 0;
    if (v.tag == MOTH_V_TENSOR && op->promote == MOTH_PROMOTE_SELF && i != op->cond &&
        moth_dtype_is_complex((MothDType)v.u.t->dtype) && !moth_dtype_is_complex(dtype))
      return moth_fail(MOTH_ERR_TYPE, "argument '%s' is %s, but the computation is in %s",
                       op->args[i].name, moth_dtype_name((MothDType)v.u.t->dtype),
                       moth_dtype_name(dtype));
    if (v.tag != MOTH_V_FLOAT && v.tag != MOTH_V_INT)
      continue;
    if (!is_float && v.tag == MOTH_V_FLOAT && (parameter || op->promote == MOTH_PROMOTE_SELF))
      return moth_fail(
          MOTH_ERR_TYPE,
          "argument '%s' is %.6g, but the computation is in %s; convert the tensor with "
          "x:float() or give an integer",
          op->args[i].name, v.u.d, moth_dtype_name(dtype));
    if (limit == 3 && !is_float && v.u.i < 0)
      return moth_fail(MOTH_ERR_VALUE,
                       "integers to negative integer powers are not allowed: '%s' is %lld; convert "
                       "with x:float()",
                       op->args[i].name, (long long)v.u.i);
    if ((limit == 0 || limit == 3) && !(parameter && is_float) && !moth_dtype_fits(dtype, v)) {
      char what[64];
      snprintf(what, sizeof what, "argument '%s'", op->args[i].name);
      return moth_dtype_check_number(dtype, v, what);
    }
  }
  return MOTH_OK;
}

MothStatus moth_shape_pointwise(const MothCall *c, MothMeta *out) {
  const MothOp *op = c->op;
  const MothTensor *first = NULL;
  int typed = -1; /* the dtype of the first that promotes */
  bool one_shape = true, one_dtype = true;
  for (int i = 0; i < op->nargs; i++) {
    if (op->args[i].type == MOTH_T_SCALAR)
      continue;
    const MothTensor *t = c->args[i].tag == MOTH_V_TENSOR ? c->args[i].u.t : NULL;
    if (!first)
      first = t;
    else if (t && one_shape)
      one_shape = has_shape(t, first->ndim, first->shape);
    if (i == op->cond)
      continue;
    if (t && typed < 0)
      typed = t->dtype;
    one_dtype = one_dtype && t && t->dtype == typed && !t->is_number;
  }
  if (!first)
    return moth_fail(MOTH_ERR_TYPE, "at least one argument must be a tensor");
  int ndim = first->ndim;
  const int64_t *shape = first->shape;
  int64_t wide[MOTH_MAX_DIMS];
  if (!one_shape) {
    MOTH_TRY(broadcast_all(c, &ndim, wide));
    shape = wide;
  }
  MothDType dtype = (MothDType)typed;
  if (!one_dtype && op->promote != MOTH_PROMOTE_SELF)
    MOTH_TRY(promoted(c, &dtype));
  bool is_float = moth_dtype_is_inexact(dtype);
  if (op->promote == MOTH_PROMOTE_FLOAT && !is_float) {
    dtype = moth_default_dtype();
    is_float = true;
  }
  MOTH_TRY(moth_check_opt_in(op, dtype));
  if (!(op->dtypes >> dtype & 1))
    return moth_fail(MOTH_ERR_TYPE, "not implemented for %s", moth_dtype_name(dtype));
  if (!is_float || !one_dtype)
    MOTH_TRY(check_numbers(c, dtype));
  if (op->out_dtype == MOTH_OUT_REAL && c->variant == MOTH_INPLACE && moth_dtype_is_complex(dtype))
    return moth_fail(MOTH_ERR_TYPE, "a %s tensor cannot hold the float result in place",
                     moth_dtype_name(dtype));
  out->compute = (uint8_t)dtype;
  MothDType to = op->out_dtype >= 0               ? (MothDType)op->out_dtype
                 : op->out_dtype == MOTH_OUT_REAL ? moth_dtype_real(dtype)
                                                  : dtype;
  return moth_meta_set(out, to, ndim, shape);
}
