/* Reductions: their layout, and the ops but those of arg.cu. The twin of kernels/cpu/reduce.c. */
#include "kernels/cuda/reduce.h"

#include "kernels/cuda/util.h"

static void add_dim(MothReduceDim *dims, int *n, MothReduceDim d) {
  int i = (*n)++;
  int64_t step = d.in ? d.in : INT64_MAX; /* expanded dimensions go outside */
  for (; i > 0 && (dims[i - 1].in ? dims[i - 1].in : INT64_MAX) < step; i--)
    dims[i] = dims[i - 1];
  dims[i] = d;
}

static int merge_dims(MothReduceDim *dims, int n) {
  int m = 0;
  for (int i = 1; i < n; i++) {
    MothReduceDim *a = &dims[m], b = dims[i];
    if (a->in == b.in * b.size && a->out == b.out * b.size)
      *a = MothReduceDim{a->size * b.size, b.in, b.out};
    else
      dims[++m] = b;
  }
  return n ? m + 1 : 0;
}

void moth_cuda_reduce_plan(MothReduce *r, const MothTensor *t, uint32_t mask) {
  r->in = t->data;
  r->nkept = r->nred = 0;
  r->outs = r->count = 1;
  for (int i = t->ndim - 1; i >= 0; i--) {
    int64_t size = t->shape[i], in = t->stride[i] * moth_itemsize(t);
    bool reduced = mask & 1u << i;
    if (size != 1)
      add_dim(reduced ? r->red : r->kept, reduced ? &r->nred : &r->nkept,
              MothReduceDim{size, in, reduced ? 0 : r->outs});
    *(reduced ? &r->count : &r->outs) *= size;
  }
  r->nred = r->count ? merge_dims(r->red, r->nred) : 0;
  r->nkept = merge_dims(r->kept, r->nkept);
  int64_t run = r->nred ? r->red[r->nred - 1].in : 0, width = 0;
  if (r->nkept)
    width = r->kept[r->nkept - 1].in;
  r->rows = r->nred && (!r->nkept || (run && (run < width || !width)));
}

static uint32_t mask_of(MothValue dims, int ndim) {
  uint32_t mask = 0;
  for (uint32_t i = 0; i < dims.n; i++)
    mask |= 1u << dims.u.ints[i];
  return mask ? mask : (1u << ndim) - 1;
}

static MothStatus reduce_run(MothCall *c, const MothTensor *t, int op, int64_t correction) {
  MothTensor *out = c->results[0].u.t;
  MothReduce r = {};
  MOTH_TRY(moth_cuda_enter(c, &r.stream));
  if (out->numel == 0)
    return MOTH_OK;
  moth_cuda_reduce_plan(&r, t, mask_of(c->args[1], t->ndim));
  r.op = op;
  r.device = c->device.index;
  r.out.values = out->data;
  r.out.dtype = out->dtype;
  r.out.divisor = correction >= 0 ? (double)(r.count - correction) : 1;
  return moth_cuda_kernels[t->dtype]->reduce(&r);
}

/* As on the CPU: sums are double or 64 bits wide until the end, so that only a change of class or a
 * wider float comes before them. */
static MothStatus reduce_as(MothCall *c, int op, bool mean) {
  const MothTensor *t = c->args[0].u.t, *out = c->results[0].u.t;
  MothHold cast;
  bool in_float = moth_dtype_is_float((MothDType)t->dtype);
  if (t->dtype != out->dtype && (in_float != moth_dtype_is_float((MothDType)out->dtype) ||
                                 out->dtype == MOTH_FLOAT64 || out->dtype == MOTH_BOOL)) {
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
