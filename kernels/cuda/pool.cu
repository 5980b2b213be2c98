/* The pooling ops of src/ops/conv.lua. */
#include "kernels/cuda/util.h"
#include "unpack/conv.h"

static MothStatus forward(MothCall *c, bool max) {
  MothTensor *self = c->args[0].u.t, *out = c->results[0].u.t;
  const MothCudaKernels *k = moth_cuda_kernels[out->dtype];
  cudaStream_t stream;
  MothOwned in;
  MothPool p;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  moth_pool_geometry(c, self->ndim, self->shape, &p);
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_contiguous(self, &in.t));
  if (!max)
    return k->avg_pool(stream, &p, in->data, out->data);
  int64_t base = c->args[c->op->nargs - 1].u.i; /* index_base is the last argument */
  return k->max_pool(stream, &p, in->data, out->data, (int64_t *)c->results[1].u.t->data, base);
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
  cudaStream_t stream;
  MothOwned g;
  MothPool p;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  moth_pool_geometry(c, out->ndim, out->shape, &p);
  if (out->numel == 0)
    return MOTH_OK;
  if (p.oh == 0 || p.ow == 0)
    return moth_cuda_fill(out, moth_v_int(0));
  MOTH_TRY(moth_cuda_contiguous(c->args[0].u.t, &g.t));
  return moth_cuda_kernels[out->dtype]->avg_pool_backward(stream, &p, g->data, out->data);
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
  cudaStream_t stream;
  MothOwned g, at;
  MothPool p;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  moth_pool_geometry(c, out->ndim, out->shape, &p);
  if (out->numel == 0)
    return MOTH_OK;
  if (grad_output->numel == 0)
    return moth_cuda_fill(out, moth_v_int(0));
  MOTH_TRY(moth_cuda_contiguous(grad_output, &g.t));
  MOTH_TRY(moth_cuda_contiguous_as(indices, MOTH_INT64, &at.t));
  MOTH_TRY(moth_cuda_kernels[out->dtype]->max_pool_backward(
      stream, &p, g->data, (const int64_t *)at->data, index_base, out->data,
      moth_cuda_fault(out->device.index), c->op->id));
  return moth_cuda_leave(c);
}
