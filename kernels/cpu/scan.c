/* Running results along one dimension of a row-major tensor, seen as outer x n x inner: every record of kind "scan". */
#include "kernels/common/scan.h"

#include "core/parallel.h"
#include "kernels/common/reduce.h"
#include "kernels/cpu/util.h"

enum { BLOCK = 256 }; /* columns of a task */

typedef struct Job {
  MothScan s;
  const MothKernels *k;
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
    j->k->scan(&s);
    return;
  }
  s.outer = 1;
  for (int64_t i = begin; i < end; i++) {
    int64_t first = i % j->blocks * BLOCK, at = i / j->blocks * n * inner + first;
    s.cols = moth_min64(BLOCK, inner - first);
    s.in = (const char *)j->s.in + at * j->from;
    s.out = (char *)j->s.out + at * j->to;
    j->k->scan(&s);
  }
}

MothStatus moth_cpu_scan(MothCall *c) {
  MothTensor *out = c->results[0].u.t, *in;
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cpu_contiguous(c->args[0].u.t, &in));
  MothSplit split = moth_split(in, (int)c->args[1].u.i);
  Job j = {.s = {.op = c->op->reduction->loop,
                 .in = in->data,
                 .out = out->data,
                 .outer = split.outer,
                 .n = split.n,
                 .inner = split.inner},
           .k = moth_cpu_kernels(in->dtype),
           .blocks = (split.inner + BLOCK - 1) / BLOCK,
           .from = moth_itemsize(in),
           .to = moth_itemsize(out)};
  moth_parallel_for(split.outer * j.blocks,
                    moth_cpu_grain(split.n * moth_min64(split.inner, BLOCK)), scan_range, &j);
  moth_tensor_release(in);
  return MOTH_OK;
}
