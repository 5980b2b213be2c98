/* Running results (records of kind "scan"), as in kernels/cpu/scan.c. */
#include "kernels/cuda/split.h"
#include "unpack/reduce.h"
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
  MothScan s = {c->op->reduction->loop,
                in->data,
                out->data,
                split.outer,
                split.n,
                split.inner,
                split.inner,
                nullptr};
  if (!moth_cuda_should_transpose(split, run.device))
    return k->scan(&run, &s);
  MothScratch rows, results;
  MOTH_TRY(rows.take(run.device, (size_t)(self->numel * moth_itemsize(self))));
  MOTH_TRY(results.take(run.device, (size_t)(out->numel * moth_itemsize(out))));
  MOTH_TRY(moth_cuda_transpose(run.device, from, rows.p, in->data, split, false));
  s = MothScan{s.op, rows.p, results.p, split.outer * split.inner, split.n, 1, 1, nullptr};
  MOTH_TRY(k->scan(&run, &s));
  return moth_cuda_transpose(run.device, to, out->data, results.p, split, true);
}

namespace {

enum { LINE_THREADS = 128 };

/* A thread for each line, as kernels/cpu/typed/scan.h. */
template <class R>
__global__ void __launch_bounds__(LINE_THREADS)
    cumprod_backward(const R *x, const R *g, R *out, int64_t outer, int64_t n, int64_t inner) {
  int64_t line = (int64_t)blockIdx.x * LINE_THREADS + threadIdx.x;
  if (line >= outer * inner)
    return;
  int64_t from = line / inner * n * inner + line % inner;
  double h = 0, before = 1;
  for (int64_t k = n - 1; k >= 0; k--) {
    int64_t at = from + k * inner;
    h = (double)g[at] + (k + 1 < n ? (double)x[at + inner] * h : 0);
    out[at] = (R)h;
  }
  for (int64_t k = 0; k < n; k++) {
    int64_t at = from + k * inner;
    out[at] = (R)((double)out[at] * before);
    before *= (double)x[at];
  }
}

template <class R> MothStatus backward(MothCall *c, MothDType dtype) {
  MOTH_UNPACK_NATIVE_CUMPROD_BACKWARD(c)
  MothTensor *out = c->results[0].u.t;
  MothCudaRun run;
  MothOwned x, g, wide;
  MOTH_TRY(moth_cuda_run(c, &run));
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_contiguous_as(self, dtype, &x.t));
  MOTH_TRY(moth_cuda_contiguous_as(grad, dtype, &g.t));
  MOTH_TRY(moth_tensor_new(out->ndim, out->shape, dtype, out->device, &wide.t));
  MothSplit split = moth_split(x, (int)dim);
  MOTH_TRY(
      moth_launch(c->op->name, cumprod_backward<R>,
                  dim3((unsigned)moth_ceil_div(split.outer * split.inner, (int64_t)LINE_THREADS)),
                  dim3(LINE_THREADS), 0, run.stream, (const R *)x->data, (const R *)g->data,
                  (R *)wide->data, split.outer, split.n, split.inner));
  return moth_cuda_copy(out, wide);
}

} // namespace

MothStatus moth_cuda_native_cumprod_backward(MothCall *c) {
  return c->results[0].u.t->dtype == MOTH_FLOAT64 ? backward<double>(c, MOTH_FLOAT64)
                                                  : backward<float>(c, MOTH_FLOAT32);
}
