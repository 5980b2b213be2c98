/* argmax, argmin, max_dim, min_dim: reductions with a position, as kernels/cpu/arg.c. */
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/util.h"
#include "unpack/reduce.h"

/* dim -1: all of t as one row. */
static MothStatus arg_run(MothCall *c, const MothTensor *t, int dim, int op, int64_t base,
                          MothTensor *value, MothTensor *index) {
  MothOwned whole;
  MothReduce r = {};
  MOTH_TRY(moth_cuda_enter(c, &r.stream));
  if (index->numel == 0)
    return MOTH_OK;
  if (dim < 0) { /* positions are those of row-major order */
    MOTH_TRY(moth_cuda_contiguous(t, &whole.t));
    t = whole;
  }
  uint32_t all = (1u << t->ndim) - 1;
  moth_cuda_reduce_plan(&r, t, dim < 0 ? all : all & 1u << dim);
  r.op = op;
  r.device = c->device.index;
  r.out.values = value ? value->data : NULL;
  r.out.pos = reinterpret_cast<long long *>(index->data);
  r.out.base = base;
  return moth_cuda_kernels[t->dtype]->reduce(&r);
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
