/* The kernel of all pointwise ops: operands to the compute dtype, then one loop of the table. */
#include "core/dtype.h"
#include "dispatch/dispatch.h"
#include "kernels/common/iter.h"
#include "kernels/cpu/util.h"

MothStatus moth_cpu_pointwise(MothCall *c) {
  const MothOp *op = c->op;
  MothDType dtype = (MothDType)c->dtype;
  MothTensor *out = c->results[0].u.t;
  MothLoop loop = moth_cpu_loop(op->loops[MOTH_CPU], (int)dtype);
  MothParam params[MOTH_MAX_ARGS];
  MothComplex128 scalars[MOTH_ITER_OPERANDS]; /* the largest element */
  MothTensor *cast[MOTH_ITER_OPERANDS];
  const MothTensor *operand[MOTH_ITER_OPERANDS]; /* NULL: a number, at data[k] */
  char *data[MOTH_ITER_OPERANDS];
  int64_t strides[MOTH_ITER_OPERANDS];
  int nparams = 0, ncast = 0, n = 1;
  bool flat = out->contiguous; /* all row-major and of one size */
  MothStatus s = MOTH_OK;
  if (out->numel == 0)
    return MOTH_OK;
  operand[0] = out;
  data[0] = out->data;
  strides[0] = moth_itemsize(out);
  for (int i = 0; i < op->nargs && s == MOTH_OK; i++) {
    MothValue v = c->args[i];
    if (op->args[i].type == MOTH_T_SCALAR) {
      params[nparams++] = moth_pointwise_param(op, i, v, dtype);
    } else if (v.tag == MOTH_V_TENSOR) {
      MothTensor *t = v.u.t;
      if (t->dtype != dtype && i != op->cond) {
        s = moth_tensor_new(t->ndim, t->shape, dtype, t->device, &cast[ncast]);
        if (s != MOTH_OK)
          break;
        t = cast[ncast++];
        moth_cpu_copy(t, v.u.t);
      }
      flat = flat && t->contiguous && t->numel == out->numel;
      operand[n] = t;
      data[n] = t->data;
      strides[n++] = moth_itemsize(t);
    } else {
      moth_dtype_store(dtype, &scalars[n], v);
      operand[n] = NULL;
      data[n] = (char *)&scalars[n];
      strides[n++] = 0;
    }
  }
  if (s == MOTH_OK && flat && out->numel <= MOTH_GRAIN) {
    loop(data, strides, out->numel, params);
  } else if (s == MOTH_OK) {
    MothIter it;
    moth_iter_init(&it, out->ndim, out->shape);
    for (int k = 0; k < n; k++) {
      if (operand[k])
        moth_iter_add(&it, operand[k]);
      else
        moth_iter_add_scalar(&it, data[k]);
    }
    moth_iter_prepare(&it);
    moth_iter_run(&it, loop, params, MOTH_GRAIN);
  }
  for (int k = 0; k < ncast; k++)
    moth_tensor_release(cast[k]);
  return s;
}
