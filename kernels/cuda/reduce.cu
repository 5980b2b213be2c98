/* Reductions but those of arg.cu. */
#include "kernels/cuda/reduce.h"

#include "kernels/cuda/util.h"

void moth_cuda_reduce_plan(MothReduce *r, const MothTensor *t, uint32_t mask) {
  r->in = t->data;
  moth_reduce_layout(r, t, mask);
  if (r->count == 0) { /* there is nothing to walk */
    r->nred = 0;
    r->rows = false;
  }
}

static MothStatus reduce_run(MothCall *c, const MothTensor *t, int op, int64_t correction) {
  MothTensor *out = c->results[0].u.t;
  MothReduce r = {};
  MOTH_TRY(moth_cuda_enter(c, &r.stream));
  if (out->numel == 0)
    return MOTH_OK;
  moth_cuda_reduce_plan(&r, t, moth_reduce_mask(c->args[1], t->ndim));
  r.op = op;
  r.device = c->device.index;
  r.out.values = out->data;
  r.out.dtype = out->dtype;
  r.out.divisor = correction >= 0 ? (double)(r.count - correction) : 1;
  return moth_cuda_kernels[t->dtype]->reduce(&r);
}

static MothStatus reduce_as(MothCall *c, int op, bool mean) {
  const MothTensor *t = c->args[0].u.t, *out = c->results[0].u.t;
  MothOwned cast;
  if (moth_reduce_converts((MothDType)t->dtype, (MothDType)out->dtype)) {
    MOTH_TRY(moth_cuda_contiguous_as(t, (MothDType)out->dtype, &cast.t));
    t = cast;
  }
  return reduce_run(c, t, op, mean ? 0 : -1);
}

MothStatus moth_cuda_sum(MothCall *c) {
  return reduce_as(c, MOTH_CUDA_SUM, false);
}
MothStatus moth_cuda_mean(MothCall *c) {
  return reduce_as(c, MOTH_CUDA_SUM, true);
}
MothStatus moth_cuda_prod(MothCall *c) {
  return reduce_as(c, MOTH_CUDA_PROD, false);
}
MothStatus moth_cuda_amax(MothCall *c) {
  return reduce_run(c, c->args[0].u.t, MOTH_CUDA_MAX, -1);
}
MothStatus moth_cuda_amin(MothCall *c) {
  return reduce_run(c, c->args[0].u.t, MOTH_CUDA_MIN, -1);
}
MothStatus moth_cuda_any(MothCall *c) {
  return reduce_run(c, c->args[0].u.t, MOTH_CUDA_ANY, -1);
}
MothStatus moth_cuda_all(MothCall *c) {
  return reduce_run(c, c->args[0].u.t, MOTH_CUDA_ALL, -1);
}
MothStatus moth_cuda_logsumexp(MothCall *c) {
  return reduce_run(c, c->args[0].u.t, MOTH_CUDA_LOGSUMEXP, -1);
}
MothStatus moth_cuda_var(MothCall *c) {
  MOTH_UNPACK_VAR(c)
  return reduce_run(c, self, MOTH_CUDA_VAR, correction);
}
