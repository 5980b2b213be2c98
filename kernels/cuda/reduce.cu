/* Reductions but those of arg.cu: layout and results; the kernels are those of kernels/cuda/typed/reduce.cuh. */
#include "kernels/cuda/reduce.h"

#include "kernels/cuda/util.h"
#include "unpack/reduce.h"

void moth_cuda_reduce_plan(MothReduce *r, const MothTensor *t, uint32_t mask) {
  r->in = t->data;
  moth_reduce_layout(r, t, mask);
  if (r->count == 0) { /* there is nothing to walk */
    r->nred = 0;
    r->rows = false;
  }
}

static MothStatus reduce_run(MothCall *c, const MothTensor *t, int op, int finish,
                             int64_t correction) {
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
  r.out.finish = finish;
  r.out.divisor = (double)(r.count - correction);
  return moth_cuda_kernels[t->dtype]->reduce(&r);
}

/* Every reduction whose join is a simple one, by its record. */
MothStatus moth_cuda_reduce(MothCall *c) {
  const MothReduction *r = c->op->reduction;
  const MothTensor *t = c->args[0].u.t, *out = c->results[0].u.t;
  bool truth = r->join == MOTH_JOIN_ANY || r->join == MOTH_JOIN_ALL;
  MothOwned cast;
  if (!truth && moth_reduce_converts((MothDType)t->dtype, (MothDType)out->dtype)) {
    MOTH_TRY(moth_cuda_contiguous_as(t, (MothDType)out->dtype, &cast.t));
    t = cast;
  }
  return reduce_run(c, t, r->loop, r->nfinish, 0);
}
MothStatus moth_cuda_logsumexp(MothCall *c) {
  return reduce_run(c, c->args[0].u.t, MOTH_REDUCE_LOGSUMEXP, 0, 0);
}
MothStatus moth_cuda_var(MothCall *c) {
  MOTH_UNPACK_VAR(c)
  return reduce_run(c, self, MOTH_REDUCE_VAR, 0, correction);
}
