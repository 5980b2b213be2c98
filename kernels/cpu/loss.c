/* cross_entropy and its derivative: PyTorch's meaning of weight, ignore_index, label_smoothing and
 * reduction. 'mean' divides by the sum of the weights of the targets that are not ignored. */
#include <string.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/common/softmax.h"
#include "kernels/cpu/util.h"
#include "unpack/nn.h"

typedef struct Loss {
  MothLoss q; /* of all rows */
  const MothKernels *k;
  MothTensor *in, *target, *weight; /* row-major; int64; float64 or NULL */
  int64_t itemsize;
  double counted; /* sum of the weights of the targets */
} Loss;

static void loss_close(Loss *l) {
  moth_tensor_release(l->in);
  moth_tensor_release(l->target);
  moth_tensor_release(l->weight);
  if (l->q.loss)
    moth_free(l->q.loss, (size_t)l->q.rows * sizeof(double));
}

static MothStatus loss_open(Loss *l, const MothTensor *in, const MothTensor *target,
                            const MothTensor *weight, int64_t ignore, double smoothing,
                            int64_t base) {
  memset(l, 0, sizeof *l);
  MothLoss *q = &l->q;
  l->k = moth_cpu_kernels(in->dtype);
  l->itemsize = moth_itemsize(in);
  q->rows = target->numel;
  q->n = in->shape[in->ndim - 1];
  q->ignore = ignore;
  q->base = base;
  q->smoothing = smoothing;
  MOTH_TRY(moth_cpu_contiguous(in, &l->in));
  MOTH_TRY(moth_cpu_contiguous_as(target, MOTH_INT64, &l->target));
  if (weight)
    MOTH_TRY(moth_cpu_contiguous_as(weight, MOTH_FLOAT64, &l->weight));
  q->in = l->in->data;
  q->target = (const int64_t *)l->target->data;
  q->weight = weight ? (const double *)l->weight->data : NULL;
  q->loss = moth_alloc((size_t)q->rows * sizeof(double));
  if (!q->loss)
    return moth_no_memory(0);
  q->total = q->weight ? 0 : (double)q->n;
  for (int64_t i = 0; q->weight && i < q->n; i++)
    q->total += q->weight[i];
  for (int64_t i = 0; i < q->rows; i++) {
    int64_t given = q->target[i];
    uint64_t at = (uint64_t)given - (uint64_t)base;
    if (given == ignore)
      continue;
    if (at >= (uint64_t)q->n)
      return moth_fail(MOTH_ERR_INDEX, "class %lld is out of range: expected %lld to %lld",
                       (long long)given, (long long)base, (long long)(q->n - 1 + base));
    l->counted += q->weight ? q->weight[at] : 1;
  }
  return MOTH_OK;
}

/* The rows [begin, end) alone. */
static MothLoss rows_of(const Loss *l, int64_t begin, int64_t end) {
  MothLoss q = l->q;
  int64_t at = begin * q.n * l->itemsize;
  q.rows = end - begin;
  q.in = (const char *)q.in + at;
  q.out = q.out ? (char *)q.out + at : NULL;
  q.target += begin;
  q.loss += begin;
  q.grad = q.grad ? q.grad + begin * q.grad_stride : NULL;
  return q;
}

static void forward_range(void *ctx, int64_t begin, int64_t end) {
  const Loss *l = ctx;
  MothLoss q = rows_of(l, begin, end);
  l->k->cross_entropy(&q);
}

static void backward_range(void *ctx, int64_t begin, int64_t end) {
  const Loss *l = ctx;
  MothLoss q = rows_of(l, begin, end);
  l->k->cross_entropy_backward(&q);
}

MothStatus moth_cpu_cross_entropy(MothCall *c) {
  MOTH_UNPACK_CROSS_ENTROPY(c)
  MothTensor *out = c->results[0].u.t;
  Loss l;
  MothStatus status;
  MOTH_GO(loss_open(&l, self, target, weight, ignore_index, label_smoothing, index_base));
  moth_parallel_for(l.q.rows, moth_cpu_grain(4 * l.q.n), forward_range, &l);
  if (reduction == MOTH_REDUCTION_NONE) {
    for (int64_t i = 0; i < l.q.rows; i++)
      moth_dtype_store((MothDType)out->dtype, out->data + i * l.itemsize,
                       moth_v_float(l.q.loss[i]));
  } else {
    double sum = 0;
    for (int64_t i = 0; i < l.q.rows; i++)
      sum += l.q.loss[i];
    if (reduction == MOTH_REDUCTION_MEAN)
      sum /= l.counted;
    moth_dtype_store((MothDType)out->dtype, out->data, moth_v_float(sum));
  }
done:
  loss_close(&l);
  return status;
}

MothStatus moth_cpu_cross_entropy_backward(MothCall *c) {
  MOTH_UNPACK_CROSS_ENTROPY_BACKWARD(c)
  MothTensor *grad = NULL;
  Loss l;
  MothStatus status;
  double g;
  MOTH_GO(loss_open(&l, self, target, weight, ignore_index, label_smoothing, index_base));
  MOTH_GO(moth_cpu_contiguous_as(grad_output, MOTH_FLOAT64, &grad));
  l.q.out = c->results[0].u.t->data;
  l.q.grad = (const double *)grad->data;
  l.q.grad_stride = 1;
  if (reduction != MOTH_REDUCTION_NONE) {
    g = l.q.grad[0];
    if (reduction == MOTH_REDUCTION_MEAN)
      g /= l.counted;
    l.q.grad = &g;
    l.q.grad_stride = 0;
  }
  moth_parallel_for(l.q.rows, moth_cpu_grain(4 * l.q.n), backward_range, &l);
done:
  moth_tensor_release(grad);
  loss_close(&l);
  return status;
}
