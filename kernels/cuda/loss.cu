/* cross_entropy and its derivative, as kernels/cpu/loss.c. */
#include <string.h>

#include "kernels/common/softmax.h"
#include "kernels/cuda/util.h"
#include "unpack/nn.h"

/* Row-major arguments, which `owned` retains until the kernels are queued. */
static MothStatus loss_open(MothCudaRun *run, MothLoss *l, MothCall *c, MothOwned owned[3],
                            const MothTensor *self, const MothTensor *target,
                            const MothTensor *weight, int reduction, int64_t ignore,
                            double smoothing, int64_t base) {
  memset(l, 0, sizeof *l);
  MOTH_TRY(moth_cuda_run(c, run));
  MOTH_TRY(moth_cuda_contiguous(self, &owned[0].t));
  MOTH_TRY(moth_cuda_contiguous_as(target, MOTH_INT64, &owned[1].t));
  if (weight)
    MOTH_TRY(moth_cuda_contiguous_as(weight, MOTH_FLOAT64, &owned[2].t));
  l->in = owned[0]->data;
  l->rows = target->numel;
  l->n = self->shape[self->ndim - 1];
  l->target = reinterpret_cast<const int64_t *>(owned[1]->data);
  l->weight = weight ? reinterpret_cast<const double *>(owned[2]->data) : NULL;
  l->ignore = ignore;
  l->base = base;
  l->smoothing = smoothing;
  l->none = reduction == MOTH_REDUCTION_NONE;
  l->mean = reduction == MOTH_REDUCTION_MEAN;
  l->out = c->results[0].u.t->data;
  return MOTH_OK;
}

MothStatus moth_cuda_cross_entropy(MothCall *c) {
  MOTH_UNPACK_CROSS_ENTROPY(c)
  MothOwned owned[3];
  MothLoss l;
  MothCudaRun run;
  MOTH_TRY(loss_open(&run, &l, c, owned, self, target, moth_tensor_arg(c, 2), reduction,
                     ignore_index, label_smoothing, index_base));
  MOTH_TRY(moth_cuda_kernels[self->dtype]->cross_entropy(&run, &l));
  return moth_cuda_leave(c);
}

MothStatus moth_cuda_cross_entropy_backward(MothCall *c) {
  MOTH_UNPACK_CROSS_ENTROPY_BACKWARD(c)
  MothOwned owned[3], grad;
  MothLoss l;
  MothCudaRun run;
  MOTH_TRY(loss_open(&run, &l, c, owned, self, target, moth_tensor_arg(c, 3), reduction,
                     ignore_index, label_smoothing, index_base));
  MOTH_TRY(moth_cuda_contiguous_as(grad_output, MOTH_FLOAT64, &grad.t));
  l.grad = reinterpret_cast<const double *>(grad->data);
  if (self->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_kernels[self->dtype]->cross_entropy_backward(&run, &l));
  return moth_cuda_leave(c);
}
