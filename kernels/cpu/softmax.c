/* softmax, log_softmax and their derivatives along any dimension: row-major
 * inputs as outer x n x inner; inner = 1 goes by rows, else blocks of columns.
 */
#include "kernels/common/softmax.h"

#include "core/parallel.h"
#include "kernels/cpu/util.h"

enum { BLOCK = 512 }; /* columns of a task: long enough runs of memory */

typedef struct Job {
  MothSoftmax s;
  const MothKernels *k;
  int64_t blocks, itemsize; /* blocks of columns */
} Job;

static void softmax_range(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  MothSoftmax s = j->s;
  void (*run)(const MothSoftmax *) = s.back ? j->k->softmax_backward : j->k->softmax;
  int64_t n = s.n, inner = s.inner;
  if (inner == 1) {
    s.outer = end - begin;
    begin *= n * j->itemsize;
    s.in = (const char *)s.in + begin;
    s.back = s.back ? (const char *)s.back + begin : NULL;
    s.out = (char *)s.out + begin;
    run(&s);
    return;
  }
  s.outer = 1;
  for (int64_t i = begin; i < end; i++) {
    int64_t from = i % j->blocks * BLOCK;
    int64_t at = (i / j->blocks * n * inner + from) * j->itemsize;
    s.cols = moth_min64(BLOCK, inner - from);
    s.in = (const char *)j->s.in + at;
    s.back = s.back ? (const char *)j->s.back + at : NULL;
    s.out = (char *)j->s.out + at;
    run(&s);
  }
}

static void softmax_run(Job *j, const MothTensor *out, int64_t dim) {
  if (out->numel == 0)
    return;
  MothSplit split = moth_split(out, (int)dim);
  j->k = moth_cpu_kernels(out->dtype);
  j->s.outer = split.outer;
  j->s.n = split.n;
  j->s.inner = split.inner;
  j->s.out = out->data;
  j->blocks = (split.inner + BLOCK - 1) / BLOCK;
  j->itemsize = moth_itemsize(out);
  int64_t width = moth_min64(split.inner, BLOCK);
  /* exp costs about four additions */
  moth_parallel_for(split.outer * j->blocks, moth_cpu_grain(4 * split.n * width), softmax_range, j);
}

static MothStatus softmax_forward(MothCall *c, bool log) {
  const MothTensor *out = c->results[0].u.t;
  MothTensor *in;
  MOTH_TRY(moth_cpu_contiguous_as(c->args[0].u.t, (MothDType)out->dtype, &in));
  Job j = {.s = {.log = log, .in = in->data}};
  softmax_run(&j, out, c->args[1].u.i);
  moth_tensor_release(in);
  return MOTH_OK;
}

static MothStatus softmax_back(MothCall *c, bool log) {
  const MothTensor *out = c->results[0].u.t;
  MothTensor *grad, *y;
  MOTH_TRY(moth_cpu_contiguous_as(c->args[0].u.t, (MothDType)out->dtype, &grad));
  MothStatus status = moth_cpu_contiguous_as(c->args[1].u.t, (MothDType)out->dtype, &y);
  if (status == MOTH_OK) {
    Job j = {.s = {.log = log, .in = grad->data, .back = y->data}};
    softmax_run(&j, out, c->args[2].u.i);
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
