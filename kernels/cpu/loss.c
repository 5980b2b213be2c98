/* cross_entropy and its derivative: PyTorch's meaning of weight, ignore_index, label_smoothing and
 * reduction. 'mean' divides by the sum of the weights of the targets that are not ignored. */
#include <string.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/cpu/util.h"
#include "unpack/nn.h"

typedef struct Loss {
  const MothKernels *k;
  MothTensor *in, *target, *weight; /* row-major; int64; float64 or NULL */
  int64_t rows, n, itemsize;
  int64_t *classes; /* from 0; -1: ignored */
  double total;     /* sum of the weights of all classes */
  double counted;   /* sum of the weights of the targets */
  double smoothing;
  double *loss; /* [rows] */
  /* backward */
  char *out;
  const double *grad;
  int64_t grad_step;
} Loss;

static void loss_close(Loss *l) {
  size_t n = (size_t)l->rows;
  moth_tensor_release(l->in);
  moth_tensor_release(l->target);
  moth_tensor_release(l->weight);
  if (l->classes)
    moth_free(l->classes, n * sizeof(int64_t));
  if (l->loss)
    moth_free(l->loss, n * sizeof(double));
}

static MothStatus loss_open(Loss *l, const MothTensor *in, const MothTensor *target,
                            const MothTensor *weight, int64_t ignore, double smoothing,
                            int64_t base) {
  memset(l, 0, sizeof *l);
  l->k = moth_cpu_kernels(in->dtype);
  l->rows = target->numel;
  l->n = in->shape[in->ndim - 1];
  l->itemsize = moth_itemsize(in);
  l->smoothing = smoothing;
  MOTH_TRY(moth_cpu_contiguous(in, &l->in));
  MOTH_TRY(moth_cpu_contiguous_as(target, MOTH_INT64, &l->target));
  if (weight)
    MOTH_TRY(moth_cpu_contiguous_as(weight, MOTH_FLOAT64, &l->weight));
  l->classes = moth_alloc((size_t)l->rows * sizeof(int64_t));
  l->loss = moth_alloc((size_t)l->rows * sizeof(double));
  if (!l->classes || !l->loss)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: %lld rows", (long long)l->rows);
  const double *w = weight ? (const double *)l->weight->data : NULL;
  l->total = w ? 0 : (double)l->n;
  for (int64_t i = 0; w && i < l->n; i++)
    l->total += w[i];
  const int64_t *given = (const int64_t *)l->target->data;
  for (int64_t i = 0; i < l->rows; i++) {
    int64_t t = -1;
    if (given[i] != ignore) {
      uint64_t at = (uint64_t)given[i] - (uint64_t)base;
      if (at >= (uint64_t)l->n)
        return moth_fail(MOTH_ERR_INDEX, "class %lld is out of range: expected %lld to %lld",
                         (long long)given[i], (long long)base, (long long)(l->n - 1 + base));
      t = (int64_t)at;
      l->counted += w ? w[t] : 1;
    }
    l->classes[i] = t;
  }
  return MOTH_OK;
}

static void forward_range(void *ctx, int64_t begin, int64_t end) {
  const Loss *l = ctx;
  const double *w = l->weight ? (const double *)l->weight->data : NULL;
  l->k->cross_entropy_rows(l->in->data + begin * l->n * l->itemsize, end - begin, l->n,
                           l->classes + begin, w, l->total, l->smoothing, l->loss + begin);
}

static void backward_range(void *ctx, int64_t begin, int64_t end) {
  const Loss *l = ctx;
  const double *w = l->weight ? (const double *)l->weight->data : NULL;
  int64_t at = begin * l->n * l->itemsize;
  l->k->cross_entropy_grad_rows(l->out + at, l->in->data + at, end - begin, l->n,
                                l->classes + begin, w, l->total, l->smoothing,
                                l->grad + begin * l->grad_step, l->grad_step);
}

MothStatus moth_cpu_cross_entropy(MothCall *c) {
  MOTH_UNPACK_CROSS_ENTROPY(c)
  MothTensor *out = c->results[0].u.t;
  Loss l;
  MothStatus status;
  MOTH_GO(loss_open(&l, self, target, weight, ignore_index, label_smoothing, index_base));
  moth_parallel_for(l.rows, moth_cpu_grain(4 * l.n), forward_range, &l);
  if (reduction == MOTH_REDUCTION_NONE) {
    for (int64_t i = 0; i < l.rows; i++)
      moth_dtype_store((MothDType)out->dtype, out->data + i * l.itemsize, moth_v_float(l.loss[i]));
  } else {
    double sum = 0;
    for (int64_t i = 0; i < l.rows; i++)
      sum += l.loss[i];
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
  l.out = c->results[0].u.t->data;
  l.grad = (const double *)grad->data;
  l.grad_step = 1;
  if (reduction != MOTH_REDUCTION_NONE) {
    g = l.grad[0];
    if (reduction == MOTH_REDUCTION_MEAN)
      g /= l.counted;
    l.grad = &g;
    l.grad_step = 0;
  }
  moth_parallel_for(l.rows, moth_cpu_grain(4 * l.n), backward_range, &l);
done:
  moth_tensor_release(grad);
  loss_close(&l);
  return status;
}
