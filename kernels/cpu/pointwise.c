/* The kernel of all pointwise ops: operands to the compute dtype, then one loop of the table. */
#include "core/dtype.h"
#include "dispatch/dispatch.h"
#include "kernels/cpu/iter.h"
#include "kernels/cpu/util.h"

/* None for a limit: beyond every number of the dtype. */
static MothParam limit(int which, MothDType dtype) {
  MothParam p;
  bool low = which == 1;
  switch (dtype) {
  case MOTH_INT8:
    p.i = low ? INT8_MIN : INT8_MAX;
    break;
  case MOTH_UINT8:
    p.i = low ? 0 : UINT8_MAX;
    break;
  case MOTH_INT16:
    p.i = low ? INT16_MIN : INT16_MAX;
    break;
  case MOTH_INT32:
    p.i = low ? INT32_MIN : INT32_MAX;
    break;
  case MOTH_INT64:
    p.i = low ? INT64_MIN : INT64_MAX;
    break;
  case MOTH_BOOL:
    p.i = !low;
    break;
  default:
    p.d = low ? -__builtin_inf() : __builtin_inf();
    break;
  }
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
  MothParam p = moth_cpu_param(v, dtype);
  return which ? clip_param(p, dtype) : p;
}

MothStatus moth_cpu_pointwise(MothCall *c) {
  const MothOp *op = c->op;
  MothDType dtype = (MothDType)c->dtype;
  MothTensor *out = c->results[0].u.t;
  MothLoop loop = moth_cpu_kernels((int)dtype)->pointwise[op->pointwise];
  MothParam params[MOTH_MAX_ARGS];
  double scalars[MOTH_ITER_OPERANDS];
  MothTensor *cast[MOTH_ITER_OPERANDS];
  const MothTensor *operand[MOTH_ITER_OPERANDS]; /* NULL: scalars[k] */
  int nparams = 0, ncast = 0, n = 0;
  bool flat = out->contiguous;
  MothStatus s = MOTH_OK;
  if (out->numel == 0)
    return MOTH_OK;
  for (int i = 0; i < op->nargs && s == MOTH_OK; i++) {
    MothValue v = c->args[i];
    if (op->args[i].type == MOTH_T_SCALAR) {
      params[nparams++] = moth_pointwise_param(op, i, v, dtype);
    } else if (v.tag == MOTH_V_TENSOR) {
      MothTensor *t = v.u.t;
      if (t->dtype != dtype && i != op->cond) {
        s = moth_tensor_new(t->ndim, t->shape, dtype, t->device, &cast[ncast]);
        if (s == MOTH_OK) {
          t = cast[ncast++];
          moth_cpu_copy(t, v.u.t);
        }
      }
      operand[n++] = t;
      flat = flat && t->contiguous && t->numel == out->numel;
    } else {
      moth_dtype_store(dtype, &scalars[n], v);
      operand[n++] = NULL;
    }
  }
  if (s == MOTH_OK) {
    MothIter it;
    if (flat) { /* all row-major and of one size: one run */
      it.nops = 0;
      it.ndim = 1;
      it.numel = it.shape[0] = out->numel;
      it.data[it.nops] = out->data;
      it.stride[it.nops++][0] = moth_itemsize(out);
      for (int k = 0; k < n; k++) {
        it.data[it.nops] = operand[k] ? operand[k]->data : (char *)&scalars[k];
        it.stride[it.nops++][0] = operand[k] ? moth_itemsize(operand[k]) : 0;
      }
    } else {
      moth_iter_init(&it, out->ndim, out->shape);
      moth_iter_add(&it, out);
      for (int k = 0; k < n; k++) {
        if (operand[k])
          moth_iter_add(&it, operand[k]);
        else
          moth_iter_add_scalar(&it, &scalars[k]);
      }
      moth_iter_prepare(&it);
    }
    moth_iter_run(&it, loop, params, MOTH_GRAIN);
  }
  for (int k = 0; k < ncast; k++)
    moth_tensor_release(cast[k]);
  return s;
}
