/* rope: rows of the last dimension, each with its angles. */
#include "kernels/cpu/rope.h"
#include "core/parallel.h"
#include "dispatch/eval.h"
#include "kernels/cpu/util.h"
#include "unpack/paged.h"

enum { INPUT, COS, SIN, OUT, TENSORS };
typedef struct Job {
  MothTensor *t[TENSORS]; /* owned */
  MothRope p;
  const MothKernels *k;
} Job;

static void rope_range(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  MothRope p = j->p;
  p.from = begin;
  p.to = end;
  j->k->rope_rows(&p);
}

/* Cosines or sines with rows of `half` elements. */
static MothStatus angles_as(const MothTensor *t, MothDType real, int64_t half, MothTensor **out) {
  if (t->ndim && t->shape[t->ndim - 1] == half)
    return moth_cpu_contiguous_as(t, real, out);
  int64_t shape[MOTH_MAX_DIMS] = {0};
  int ndim = t->ndim ? t->ndim : 1;
  for (int i = 0; i < ndim - 1; i++)
    shape[i] = t->shape[i];
  shape[ndim - 1] = half;
  return moth_cpu_broadcast_as(t, real, ndim, shape, out);
}

MothStatus moth_cpu_rope(MothCall *c) {
  MOTH_UNPACK_ROPE(c)
  MothTensor *out = c->results[0].u.t;
  if (out->numel == 0)
    return MOTH_OK;
  MothDType real = moth_working_dtype(out);
  Job j = {.k = moth_cpu_kernels((int)real)};
  int ndim = self->ndim;
  int64_t half = self->shape[ndim - 1] / 2;
  MothStatus status = MOTH_OK;
  MOTH_GO(moth_cpu_contiguous_as(self, real, &j.t[INPUT]));
  MOTH_GO(angles_as(cos, real, half, &j.t[COS]));
  MOTH_GO(angles_as(sin, real, half, &j.t[SIN]));
  if (out->dtype != (int)real || !out->contiguous) {
    MOTH_GO(moth_tensor_new(ndim, out->shape, real, c->device, &j.t[OUT]));
  } else {
    moth_tensor_retain(out);
    j.t[OUT] = out;
  }
  j.p = (MothRope){.in = j.t[INPUT]->data,
                   .cos = j.t[COS]->data,
                   .sin = j.t[SIN]->data,
                   .out = j.t[OUT]->data,
                   .half = half,
                   .interleaved = interleaved,
                   .ndim = ndim - 1};
  const MothTensor *angles = j.t[COS];
  for (int d = 0; d < ndim - 1; d++) {
    int own = d - (ndim - angles->ndim);
    j.p.shape[d] = self->shape[d];
    j.p.stride[d] = own >= 0 && angles->shape[own] > 1 ? angles->stride[own] : 0;
  }
  moth_parallel_for(self->numel / (2 * half), moth_cpu_grain(2 * half), rope_range, &j);
  if (j.t[OUT] != out)
    moth_cpu_copy(out, j.t[OUT]);
done:
  for (int i = 0; i < TENSORS; i++)
    moth_tensor_release(j.t[i]);
  return status;
}
