/* Reductions, and argmax, argmin, max_dim, min_dim, which are reductions with a position: layout and results; the kernels
 * are those of kernels/cuda/typed/reduce.cuh. */
extern "C" {
#include "kernels/common/reduce.h"
}
#include "kernels/cuda/util.h"
#include "unpack/reduce.h"

/* Reduces t over the dimensions in mask; `out` says where to. */
static MothStatus reduce_run(MothCall *c, const MothTensor *t, uint32_t mask, int op,
                             const MothReduceOut &out, double correction = 0) {
  MothReduceLayout layout;
  MothReduce r = {};
  MothCudaRun run;
  MOTH_TRY(moth_cuda_run(c, &run));
  if (c->results[0].u.t->numel == 0)
    return MOTH_OK;
  moth_reduce_layout(&layout, t, mask);
  if (layout.count == 0) { /* there is nothing to walk */
    layout.nred = 0;
    layout.rows = false;
  }
  r.op = op;
  r.in = t->data;
  r.layout = &layout;
  r.out = out;
  r.out.divisor = (double)layout.count - correction;
  return moth_cuda_kernels[t->dtype]->reduce(&run, &r);
}

/* Values alone. */
static MothStatus values_run(MothCall *c, const MothTensor *t, int op, int finish,
                             double correction) {
  const MothTensor *values = c->results[0].u.t;
  MothReduceOut out = {};
  out.values = values->data;
  out.dtype = values->dtype;
  out.finish = finish;
  return reduce_run(c, t, moth_reduce_mask(c->args[1], t->ndim), op, out, correction);
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
  return values_run(c, t, r->loop, r->nfinish, 0);
}
MothStatus moth_cuda_logsumexp(MothCall *c) {
  return values_run(c, c->args[0].u.t, MOTH_REDUCE_LOGSUMEXP, 0, 0);
}
MothStatus moth_cuda_var(MothCall *c) {
  MOTH_UNPACK_VAR(c)
  return values_run(c, self, MOTH_REDUCE_VAR, 0, correction);
}

/* dim -1: all of t as one row. */
static MothStatus arg_run(MothCall *c, const MothTensor *t, int dim, int op, int64_t base,
                          MothTensor *value, MothTensor *index) {
  MothOwned whole;
  MothReduceOut out = {};
  if (dim < 0) { /* positions are those of row-major order */
    MOTH_TRY(moth_cuda_contiguous(t, &whole.t));
    t = whole;
  }
  uint32_t all = (1u << t->ndim) - 1;
  out.values = value ? value->data : nullptr;
  out.pos = (int64_t *)index->data;
  out.base = base;
  return reduce_run(c, t, dim < 0 ? all : all & 1u << dim, op, out);
}

static MothStatus arg(MothCall *c, int op) {
  MOTH_UNPACK_ARGMAX(c)
  int d = dim.tag == MOTH_V_INT ? (int)dim.u.i : -1;
  return arg_run(c, self, d, op, index_base, NULL, c->results[0].u.t);
}

static MothStatus extreme(MothCall *c, int op) {
  MOTH_UNPACK_MAX_DIM(c)
  return arg_run(c, self, (int)dim, op, index_base, c->results[0].u.t, c->results[1].u.t);
}

MothStatus moth_cuda_argmax(MothCall *c) {
  return arg(c, MOTH_REDUCE_ARGMAX);
}
MothStatus moth_cuda_argmin(MothCall *c) {
  return arg(c, MOTH_REDUCE_ARGMIN);
}
MothStatus moth_cuda_max_dim(MothCall *c) {
  return extreme(c, MOTH_REDUCE_ARGMAX);
}
MothStatus moth_cuda_min_dim(MothCall *c) {
  return extreme(c, MOTH_REDUCE_ARGMIN);
}
