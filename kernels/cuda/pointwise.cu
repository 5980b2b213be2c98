/* The kernel of all pointwise ops: operands to the compute dtype, then one loop of the table. */
#include "kernels/cuda/util.h"
extern "C" {
#include "kernels/cpu/util.h"
}

MothStatus moth_cuda_pointwise(MothCall *c) {
  const MothOp *op = c->op;
  MothDType dtype = (MothDType)c->dtype;
  MothTensor *out = c->results[0].u.t;
  MothParam params[MOTH_MAX_ARGS];
  MothOwned cast[MOTH_ITER_OPERANDS];
  MothPointwise p = {};
  MothIter it;
  int nparams = 0, k = 1;
  MOTH_TRY(moth_cuda_enter(c, &p.stream));
  if (out->numel == 0)
    return MOTH_OK;
  moth_iter_init(&it, out->ndim, out->shape);
  moth_iter_add(&it, out);
  for (int i = 0; i < op->nargs; i++) {
    MothValue v = c->args[i];
    if (op->args[i].type == MOTH_T_SCALAR) {
      params[nparams++] = moth_pointwise_param(op, i, v, dtype);
      continue;
    }
    if (v.tag == MOTH_V_TENSOR && v.u.t->device.type == MOTH_CPU) {
      /* 0-dim: the dispatcher lets no others pass */
      if (moth_dtype_is_complex((MothDType)v.u.t->dtype)) {
        MothTensor one = *v.u.t;
        one.dtype = (uint8_t)dtype;
        one.data = reinterpret_cast<char *>(p.number[k++]);
        moth_cpu_copy(&one, v.u.t);
        moth_iter_add_scalar(&it, NULL);
        continue;
      }
      MOTH_TRY(moth_tensor_item(v.u.t, &v));
    }
    if (v.tag != MOTH_V_TENSOR) {
      moth_dtype_store(i == op->cond ? MOTH_BOOL : dtype, p.number[k++], v);
      moth_iter_add_scalar(&it, NULL);
      continue;
    }
    MothTensor *t = v.u.t;
    if (t->dtype != dtype && i != op->cond) {
      MOTH_TRY(moth_tensor_new(t->ndim, t->shape, dtype, t->device, &cast[k].t));
      MOTH_TRY(moth_cuda_copy(cast[k], t));
      t = cast[k];
    }
    moth_iter_add(&it, t);
    k++;
  }
  moth_iter_prepare(&it);
  p.it = &it;
  p.params = params;
  const MothCudaLoop *loops = static_cast<const MothCudaLoop *>(op->loops[MOTH_CUDA]);
  return loops[dtype](&p);
}
