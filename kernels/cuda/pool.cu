/* The pooling ops of src/ops/conv.lua. */
#include "kernels/common/pool.h"
extern "C" {
#include "kernels/common/window.h"
}
#include "kernels/cuda/util.h"
#include "unpack/conv.h"

static MothPoolPlanes planes(const MothPool *shape, const MothTensor *in, MothTensor *out) {
  MothPoolPlanes q = {};
  q.shape = shape;
  q.in = in->data;
  q.out = out->data;
  return q;
}

static MothStatus forward(MothCall *c, bool max) {
  MothTensor *self = c->args[0].u.t, *out = c->results[0].u.t;
  const MothCudaKernels *k = moth_cuda_kernels[out->dtype];
  MothCudaRun run;
  MothOwned in;
  MothPool p;
  MOTH_TRY(moth_cuda_run(c, &run));
  moth_pool_geometry(c, self->ndim, self->shape, &p);
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_contiguous(self, &in.t));
  MothPoolPlanes q = planes(&p, in, out);
  if (!max)
    return k->avg_pool(&run, &q);
  q.positions = (int64_t *)c->results[1].u.t->data;
  q.base = c->args[c->op->nargs - 1].u.i; /* index_base is the last argument */
  return k->max_pool(&run, &q);
}

MothStatus moth_cuda_max_pool2d_with_indices(MothCall *c) {
  return forward(c, true);
}
MothStatus moth_cuda_adaptive_max_pool2d_with_indices(MothCall *c) {
  return forward(c, true);
}
MothStatus moth_cuda_avg_pool2d(MothCall *c) {
  return forward(c, false);
}
MothStatus moth_cuda_adaptive_avg_pool2d(MothCall *c) {
  return forward(c, false);
}

static MothStatus backward(MothCall *c) {
  MothTensor *out = c->results[0].u.t;
  MothCudaRun run;
  MothOwned g;
  MothPool p;
  MOTH_TRY(moth_cuda_run(c, &run));
  moth_pool_geometry(c, out->ndim, out->shape, &p);
  if (out->numel == 0)
    return MOTH_OK;
  if (p.oh == 0 || p.ow == 0)
    return moth_cuda_fill(out, moth_v_int(0));
  MOTH_TRY(moth_cuda_contiguous(c->args[0].u.t, &g.t));
  MothPoolPlanes q = planes(&p, g, out);
  return moth_cuda_kernels[out->dtype]->avg_pool_backward(&run, &q);
}
MothStatus moth_cuda_avg_pool2d_backward(MothCall *c) {
  return backward(c);
}
MothStatus moth_cuda_adaptive_avg_pool2d_backward(MothCall *c) {
  return backward(c);
}

MothStatus moth_cuda_max_pool2d_backward(MothCall *c) {
  MOTH_UNPACK_MAX_POOL2D_BACKWARD(c)
  MothTensor *out = c->results[0].u.t;
  MothCudaRun run;
  MothOwned g, at;
  MothPool p;
  MOTH_TRY(moth_cuda_run(c, &run));
  moth_pool_geometry(c, out->ndim, out->shape, &p);
  if (out->numel == 0)
    return MOTH_OK;
  if (grad_output->numel == 0)
    return moth_cuda_fill(out, moth_v_int(0));
  MOTH_TRY(moth_cuda_contiguous(grad_output, &g.t));
  MOTH_TRY(moth_cuda_contiguous_as(indices, MOTH_INT64, &at.t));
  MothPoolPlanes q = planes(&p, g, out);
  q.positions = (int64_t *)at->data;
  q.base = index_base;
  MOTH_TRY(moth_cuda_kernels[out->dtype]->max_pool_backward(&run, &q));
  return moth_cuda_leave(c);
}
