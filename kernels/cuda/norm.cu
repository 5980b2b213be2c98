/* Normalisation, as kernels/cpu/norm.c. */
#include "kernels/common/norm.h"

#include "kernels/cuda/util.h"
#include "unpack/norm.h"

static MothDType real_of(int dtype) {
  return dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
}
static MothStatus own(const MothTensor *t, int dtype, MothOwned *out, const void **p) {
  if (t) {
    MOTH_TRY(moth_cuda_contiguous_as(t, (MothDType)dtype, &out->t));
    *p = out->t->data;
  }
  return MOTH_OK;
}
/* Memory for a result that kernels write in `real`: t's, or a tensor's that is copied to t at the end. */
static MothStatus target(MothTensor *t, MothDType real, MothOwned *out, void **p) {
  if (t->dtype == real && t->contiguous) {
    moth_tensor_retain(t);
    out->t = t;
  } else {
    MOTH_TRY(moth_tensor_new(t->ndim, t->shape, real, t->device, &out->t));
  }
  *p = out->t->data;
  return MOTH_OK;
}
static MothStatus finish(MothTensor *t, const MothOwned &h) {
  return h.t && h.t != t ? moth_cuda_copy(t, h.t) : MOTH_OK;
}
static const MothCudaKernels *kernels(const MothTensor *t) {
  return moth_cuda_kernels[t->dtype];
}

static MothStatus forward_rows(MothCall *c, const MothTensor *self, const MothTensor *weight,
                               const MothTensor *bias, double eps, MothTensor *mean,
                               MothTensor *rstd) {
  MothNorm m = {};
  MothCudaRun run;
  MothOwned in, w, b;
  MOTH_TRY(moth_cuda_run(c, &run));
  MOTH_TRY(own(self, self->dtype, &in, &m.in));
  MOTH_TRY(own(weight, real_of(self->dtype), &w, &m.weight));
  MOTH_TRY(own(bias, real_of(self->dtype), &b, &m.bias));
  m.rows = rstd->numel;
  m.n = m.rows ? self->numel / m.rows : 0;
  m.eps = eps;
  m.rms = !mean;
  m.out = c->results[0].u.t->data;
  m.mean = mean ? mean->data : NULL;
  m.rstd = rstd->data;
  return kernels(self)->norm_rows(&run, &m);
}
MothStatus moth_cuda_native_layer_norm(MothCall *c) {
  MOTH_UNPACK_NATIVE_LAYER_NORM(c)
  return forward_rows(c, self, weight, bias, eps, c->results[1].u.t, c->results[2].u.t);
}
MothStatus moth_cuda_native_rms_norm(MothCall *c) {
  MOTH_UNPACK_NATIVE_RMS_NORM(c)
  return forward_rows(c, self, weight, NULL, eps, NULL, c->results[1].u.t);
}

/* Shared by all derivatives: the inputs, and memory for the gradients. */
struct Back {
  MothNorm m = {};
  MothCudaRun run;
  MothOwned g, in, w, mu, rs, dw, db;
  MothStatus open(MothCall *c, const MothTensor *grad, const MothTensor *self,
                  const MothTensor *mean, const MothTensor *rstd, const MothTensor *weight,
                  int64_t need) {
    MothDType real = real_of(self->dtype);
    const void *p = NULL;
    MOTH_TRY(moth_cuda_run(c, &run));
    MOTH_TRY(own(grad, self->dtype, &g, &m.grad));
    MOTH_TRY(own(self, self->dtype, &in, &m.in));
    MOTH_TRY(own(weight, real, &w, &m.weight));
    MOTH_TRY(own(mean, real, &mu, &p));
    m.mean = const_cast<void *>(p);
    MOTH_TRY(own(rstd, real, &rs, &p));
    m.rstd = const_cast<void *>(p);
    m.out = need & 1 ? c->results[0].u.t->data : NULL;
    if (need & 2)
      MOTH_TRY(target(c->results[1].u.t, real, &dw, &m.dweight));
    if (need & 4)
      MOTH_TRY(target(c->results[2].u.t, real, &db, &m.dbias));
    return MOTH_OK;
  }
  MothStatus close(MothCall *c) {
    MOTH_TRY(finish(c->results[1].u.t, dw));
    return db.t ? finish(c->results[2].u.t, db) : MOTH_OK;
  }
};

static MothStatus backward_rows(MothCall *c, const MothTensor *grad, const MothTensor *self,
                                const MothTensor *mean, const MothTensor *rstd,
                                const MothTensor *weight, int64_t dims, int64_t need) {
  Back b;
  MOTH_TRY(b.open(c, grad, self, mean, rstd, weight, need));
  b.m.n = 1;
  for (int i = self->ndim - (int)dims; i < self->ndim; i++)
    b.m.n *= self->shape[i];
  b.m.rows = rstd->numel;
  b.m.rms = !mean;
  MOTH_TRY(kernels(self)->norm_back_rows(&b.run, &b.m));
  return b.close(c);
}
MothStatus moth_cuda_layer_norm_backward(MothCall *c) {
  MOTH_UNPACK_LAYER_NORM_BACKWARD(c)
  return backward_rows(c, grad_output, self, mean, rstd, weight, dims, need);
}
MothStatus moth_cuda_rms_norm_backward(MothCall *c) {
  MOTH_UNPACK_RMS_NORM_BACKWARD(c)
  return backward_rows(c, grad_output, self, NULL, rstd, weight, dims, need);
}

static void channels(MothNorm *m, const MothTensor *self) {
  m->batch = self->shape[0];
  m->channels = self->shape[1];
  m->inner = 1;
  for (int i = 2; i < self->ndim; i++)
    m->inner *= self->shape[i];
}
static MothStatus forward_channels(MothCall *c, MothCudaRun *run, MothNorm *m,
                                   const MothTensor *self, const MothTensor *weight,
                                   const MothTensor *bias, double eps) {
  MothOwned in, w, b;
  MOTH_TRY(moth_cuda_run(c, run));
  MOTH_TRY(own(self, self->dtype, &in, &m->in));
  MOTH_TRY(own(weight, real_of(self->dtype), &w, &m->weight));
  MOTH_TRY(own(bias, real_of(self->dtype), &b, &m->bias));
  channels(m, self);
  m->eps = eps;
  m->out = c->results[0].u.t->data;
  m->mean = c->results[1].u.t->data;
  m->rstd = c->results[2].u.t->data;
  return kernels(self)->norm_channels(run, m);
}
MothStatus moth_cuda_native_group_norm(MothCall *c) {
  MOTH_UNPACK_NATIVE_GROUP_NORM(c)
  MothNorm m = {};
  MothCudaRun run;
  m.groups = groups;
  m.own = true;
  return forward_channels(c, &run, &m, self, weight, bias, eps);
}
MothStatus moth_cuda_native_batch_norm(MothCall *c) {
  MOTH_UNPACK_NATIVE_BATCH_NORM(c)
  MothNorm m = {};
  MothCudaRun run;
  MothOwned rm, rv;
  MothDType real = real_of(self->dtype);
  m.own = training;
  m.momentum = momentum;
  if (running_mean) {
    MOTH_TRY(target(running_mean, real, &rm, &m.running_mean));
    MOTH_TRY(target(running_var, real, &rv, &m.running_var));
    if (rm.t != running_mean)
      MOTH_TRY(moth_cuda_copy(rm, running_mean));
    if (rv.t != running_var)
      MOTH_TRY(moth_cuda_copy(rv, running_var));
  }
  MOTH_TRY(forward_channels(c, &run, &m, self, weight, bias, eps));
  if (!training || !running_mean)
    return MOTH_OK;
  MOTH_TRY(finish(running_mean, rm));
  return finish(running_var, rv);
}

MothStatus moth_cuda_group_norm_backward(MothCall *c) {
  MOTH_UNPACK_GROUP_NORM_BACKWARD(c)
  Back b;
  MOTH_TRY(b.open(c, grad_output, self, mean, rstd, weight, need));
  channels(&b.m, self);
  b.m.groups = groups;
  b.m.own = true;
  MOTH_TRY(kernels(self)->norm_back_channels(&b.run, &b.m));
  return b.close(c);
}
MothStatus moth_cuda_batch_norm_backward(MothCall *c) {
  MOTH_UNPACK_BATCH_NORM_BACKWARD(c)
  Back b;
  MOTH_TRY(b.open(c, grad_output, self, mean, rstd, weight, need));
  channels(&b.m, self);
  b.m.own = training;
  MOTH_TRY(kernels(self)->norm_back_channels(&b.run, &b.m));
  return b.close(c);
}
