/* Running results (records of kind "scan"), as in kernels/cpu/scan.c. */
#include "kernels/cuda/split.h"
extern "C" {
#include "kernels/common/reduce.h"
#include "kernels/common/scan.h"
}

MothStatus moth_cuda_scan(MothCall *c) {
  MothTensor *self = c->args[0].u.t, *out = c->results[0].u.t;
  MothDType from = (MothDType)self->dtype, to = (MothDType)out->dtype;
  const MothCudaKernels *k = moth_cuda_kernels[from];
  MothCudaRun run;
  MothOwned in;
  MOTH_TRY(moth_cuda_run(c, &run));
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_contiguous(self, &in.t));
  MothSplit split = moth_split(out, (int)c->args[1].u.i);
  MothScan s = {
      c->op->reduction->loop, in->data, out->data, split.outer, split.n, split.inner, split.inner};
  if (!moth_cuda_should_transpose(split, run.device))
    return k->scan(&run, &s);
  MothScratch rows, results;
  MOTH_TRY(rows.take(run.device, (size_t)(self->numel * moth_itemsize(self))));
  MOTH_TRY(results.take(run.device, (size_t)(out->numel * moth_itemsize(out))));
  MOTH_TRY(moth_cuda_transpose(run.device, from, rows.p, in->data, split, false));
  s = MothScan{s.op, rows.p, results.p, split.outer * split.inner, split.n, 1, 1};
  MOTH_TRY(k->scan(&run, &s));
  return moth_cuda_transpose(run.device, to, out->data, results.p, split, true);
}
