/* Running results along one dimension of a row-major tensor, seen as outer x n x inner: every record of kind "scan". */
#include "kernels/common/scan.h"

#include "core/parallel.h"
#include "kernels/common/reduce.h"
#include "kernels/cpu/util.h"
#include "unpack/reduce.h"

enum { BLOCK = 256 }; /* columns of a task */

typedef struct Job {
  MothScan s;
  void (*kernel)(const struct MothScan *);
  int64_t blocks, from, to; /* blocks of columns; bytes of an element of in and of out */
} Job;

static void scan_range(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  MothScan s = j->s;
  int64_t n = s.n, inner = s.inner;
  if (inner == 1) {
    s.outer = end - begin;
    s.in = (const char *)s.in + begin * n * j->from;
    s.out = (char *)s.out + begin * n * j->to;
    s.grad = s.grad ? (const char *)s.grad + begin * n * j->from : NULL;
    j->kernel(&s);
    return;
  }
  s.outer = 1;
  for (int64_t i = begin; i < end; i++) {
    int64_t first = i % j->blocks * BLOCK, at = i / j->blocks * n * inner + first;
    s.cols = moth_min64(BLOCK, inner - first);
    s.in = (const char *)j->s.in + at * j->from;
    s.out = (char *)j->s.out + at * j->to;
    s.grad = j->s.grad ? (const char *)j->s.grad + at * j->from : NULL;
    j->kernel(&s);
  }
}

static void run(Job *j, const MothTensor *in, MothTensor *out, int64_t dim) {
  MothSplit split = moth_split(in, (int)dim);
  j->s.in = in->data;
  j->s.out = out->data;
  j->s.outer = split.outer;
  j->s.n = split.n;
  j->s.inner = split.inner;
  j->blocks = (split.inner + BLOCK - 1) / BLOCK;
  j->from = moth_itemsize(in);
  j->to = moth_itemsize(out);
  moth_parallel_for(split.outer * j->blocks,
                    moth_cpu_grain(split.n * moth_min64(split.inner, BLOCK)), scan_range, j);
}

MothStatus moth_cpu_scan(MothCall *c) {
  MothTensor *out = c->results[0].u.t, *in;
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cpu_contiguous(c->args[0].u.t, &in));
  Job j = {.s = {.op = c->op->reduction->loop}, .kernel = moth_cpu_kernels(in->dtype)->scan};
  run(&j, in, out, c->args[1].u.i);
  moth_tensor_release(in);
  return MOTH_OK;
}

MothStatus moth_cpu_native_cumprod_backward(MothCall *c) {
  MOTH_UNPACK_NATIVE_CUMPROD_BACKWARD(c)
  MothTensor *out = c->results[0].u.t, *x = NULL, *g = NULL, *wide = NULL;
  MothDType dtype = out->dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
  MothStatus status = MOTH_OK;
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_GO(moth_cpu_contiguous_as(self, dtype, &x));
  MOTH_GO(moth_cpu_contiguous_as(grad, dtype, &g));
  MOTH_GO(moth_tensor_new(out->ndim, out->shape, dtype, out->device, &wide));
  Job j = {.s = {.grad = g->data}, .kernel = moth_cpu_kernels((int)dtype)->cumprod_backward};
  run(&j, x, wide, dim);
  moth_cpu_copy(out, wide);
done:
  moth_tensor_release(x);
  moth_tensor_release(g);
  moth_tensor_release(wide);
  return status;
}
