/* The rule of all pointwise ops: one broadcast shape, one compute dtype. */
#include "core/dtype.h"
#include "dispatch/dispatch.h"

/* Whether t has this shape. Shapes are short: a call of memcmp would cost more than it compares. */
static inline bool has_shape(const MothTensor *t, int ndim, const int64_t *shape) {
  bool same = t->ndim == ndim;
  for (int i = 0; same && i < ndim; i++)
    same = t->shape[i] == shape[i];
  return same;
}

MothStatus moth_shape_pointwise(MothCall *c) {
  const MothOp *op = c->op;
  int ndim = -1;
  int64_t shape[MOTH_MAX_DIMS];
  MothValue typed[MOTH_MAX_ARGS];
  int ntyped = 0, tensors = 0;
  bool same = true; /* all tensors so far have one dtype */
  for (int i = 0; i < op->nargs; i++) {
    const MothValue *v = &c->args[i];
    if (op->args[i].type == MOTH_T_SCALAR) {
      /* A parameter promotes too: int_tensor:add(x, 0.5) with alpha is refused below. */
      continue;
    }
    if (v->tag == MOTH_V_TENSOR) {
      MothTensor *t = v->u.t;
      if (ndim < 0) {
        ndim = t->ndim;
        for (int k = 0; k < ndim; k++)
          shape[k] = t->shape[k];
      } else if (!has_shape(t, ndim, shape)) {
        MOTH_TRY(moth_broadcast(ndim, shape, t->ndim, t->shape, &ndim, shape));
      }
      tensors++;
    }
    if (i == op->cond) {
      if (v->u.t->dtype != MOTH_BOOL)
        return moth_fail(MOTH_ERR_TYPE, "'%s' must be bool, got %s; compare first, as in x:ne(0)",
                         op->args[i].name, moth_dtype_name((MothDType)v->u.t->dtype));
      continue;
    }
    typed[ntyped++] = *v;
    same = same && v->tag == MOTH_V_TENSOR && v->u.t->dtype == typed[0].u.t->dtype;
  }
  if (!tensors)
    return moth_fail(MOTH_ERR_TYPE, "at least one argument must be a tensor");
  MothDType dtype;
  if (same || op->promote == MOTH_PROMOTE_SELF)
    dtype = (MothDType)typed[0].u.t->dtype;
  else
    dtype = moth_result_type(ntyped, typed);
  if (op->promote == MOTH_PROMOTE_FLOAT && !moth_dtype_is_float(dtype))
    dtype = moth_default_dtype();
  if (!(op->dtypes >> dtype & 1))
    return moth_fail(MOTH_ERR_TYPE, "not implemented for %s", moth_dtype_name(dtype));
  for (int i = 0; i < op->nargs; i++)
    if ((op->args[i].type == MOTH_T_SCALAR || op->promote == MOTH_PROMOTE_SELF) &&
        c->args[i].tag == MOTH_V_FLOAT && !moth_dtype_is_float(dtype))
      return moth_fail(
          MOTH_ERR_TYPE,
          "argument '%s' is %.6g, but the computation is in %s; convert the tensor with "
          "x:float() or give an integer",
          op->args[i].name, c->args[i].u.d, moth_dtype_name(dtype));
  c->dtype = (uint8_t)dtype;
  MothDType out = op->out_dtype >= 0 ? (MothDType)op->out_dtype : dtype;
  return moth_result(c, 0, out, ndim, shape);
}
