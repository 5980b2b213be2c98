/* softmax, log_softmax and their derivatives along any dimension: row-major inputs as outer x n x
 * inner; inner = 1 goes by rows, else blocks of columns. */
#include "core/parallel.h"
#include "kernels/cpu/util.h"

enum { BLOCK = 512 }; /* columns of a task: long enough runs of memory */

typedef struct Softmax {
  const MothKernels *k;
  MothSplit split;
  int64_t blocks, itemsize;
  bool log, backward;
  const char *a, *b; /* input; or gradient and result */
  char *out;
} Softmax;

static void softmax_range(void *ctx, int64_t begin, int64_t end) {
  const Softmax *s = ctx;
  int64_t n = s->split.n, inner = s->split.inner;
  if (inner == 1) {
    int64_t at = begin * n * s->itemsize;
    if (s->backward)
      s->k->softmax_backward_rows(s->log, s->out + at, s->a + at, s->b + at, end - begin, n);
    else
      s->k->softmax_rows(s->log, s->out + at, s->a + at, end - begin, n);
    return;
  }
  for (int64_t i = begin; i < end; i++) {
    int64_t from = i % s->blocks * BLOCK, cols = moth_min64(BLOCK, inner - from);
    int64_t at = (i / s->blocks * n * inner + from) * s->itemsize;
    if (s->backward)
      s->k->softmax_backward_cols(s->log, s->out + at, s->a + at, s->b + at, n, inner, cols);
    else
      s->k->softmax_cols(s->log, s->out + at, s->a + at, n, inner, cols);
  }
}

static void softmax_run(Softmax *s, const MothTensor *out, int64_t dim) {
  if (out->numel == 0)
    return;
  s->k = moth_cpu_kernels(out->dtype);
  s->split = moth_split(out, (int)dim);
  s->blocks = (s->split.inner + BLOCK - 1) / BLOCK;
  s->itemsize = moth_itemsize(out);
  s->out = out->data;
  int64_t width = moth_min64(s->split.inner, BLOCK);
  /* exp costs about four additions */
  moth_parallel_for(s->split.outer * s->blocks, moth_cpu_grain(4 * s->split.n * width),
                    softmax_range, s);
}

static MothStatus softmax_forward(MothCall *c, bool log) {
  const MothTensor *out = c->results[0].u.t;
  MothTensor *in;
  MOTH_TRY(moth_cpu_contiguous_as(c->args[0].u.t, (MothDType)out->dtype, &in));
  Softmax s = {.log = log, .a = in->data};
  softmax_run(&s, out, c->args[1].u.i);
  moth_tensor_release(in);
  return MOTH_OK;
}

static MothStatus softmax_back(MothCall *c, bool log) {
  const MothTensor *out = c->results[0].u.t;
  MothTensor *grad, *y;
  MOTH_TRY(moth_cpu_contiguous_as(c->args[0].u.t, (MothDType)out->dtype, &grad));
  MothStatus status = moth_cpu_contiguous_as(c->args[1].u.t, (MothDType)out->dtype, &y);
  if (status == MOTH_OK) {
    Softmax s = {.log = log, .backward = true, .a = grad->data, .b = y->data};
    softmax_run(&s, out, c->args[2].u.i);
    moth_tensor_release(y);
  }
  moth_tensor_release(grad);
  return status;
}

MothStatus moth_cpu_softmax(MothCall *c) {
  return softmax_forward(c, false);
}
MothStatus moth_cpu_log_softmax(MothCall *c) {
  return softmax_forward(c, true);
}
MothStatus moth_cpu_softmax_backward(MothCall *c) {
  return softmax_back(c, false);
}
MothStatus moth_cpu_log_softmax_backward(MothCall *c) {
  return softmax_back(c, true);
}
