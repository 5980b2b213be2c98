/* softmax, log_softmax and their derivatives, as kernels/cpu/softmax.c. */
#include "kernels/common/softmax.h"

#include "kernels/cuda/split.h"

MothStatus moth_cuda_transpose(int device, MothDType dtype, void *to, const void *from,
                               const MothSplit &s, bool back) {
  int64_t item = moth_dtype_size(dtype), shape[3] = {s.outer, s.inner, s.n};
  int64_t rows[3] = {s.n * s.inner * item, s.n * item, item};
  int64_t cols[3] = {s.n * s.inner * item, item, s.inner * item};
  MothIter it;
  moth_iter_init(&it, 3, shape);
  moth_iter_add_raw(&it, to, back ? cols : rows);
  moth_iter_add_raw(&it, const_cast<void *>(from), back ? rows : cols);
  moth_iter_prepare(&it);
  MothPointwise p = {};
  p.it = &it;
  p.stream = moth_cuda_stream(device);
  return moth_cuda_casts[dtype][dtype](&p);
}

static MothStatus softmax_run(MothCall *c, const MothTensor *in, const MothTensor *back,
                              int64_t dim, bool log) {
  const MothTensor *out = c->results[0].u.t;
  MothDType dtype = (MothDType)out->dtype;
  const MothCudaKernels *k = moth_cuda_kernels[dtype];
  MothSoftmax s = {};
  MothCudaRun run;
  MothOwned a, b;
  int d = (int)dim;
  MOTH_TRY(moth_cuda_run(c, &run));
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_contiguous_as(in, dtype, &a.t));
  s.log = log;
  s.out = out->data;
  s.in = a->data;
  if (back) {
    MOTH_TRY(moth_cuda_contiguous_as(back, dtype, &b.t));
    s.back = b->data;
  }
  MothSplit split = moth_split(out, d);
  s.outer = split.outer;
  s.n = split.n;
  s.inner = split.inner;
  if (!moth_cuda_should_transpose(split, run.device))
    return back ? k->softmax_backward(&run, &s) : k->softmax(&run, &s);
  MothScratch transposed, transposed_back;
  MOTH_TRY(transposed.take(run.device, (size_t)(out->numel * moth_itemsize(out))));
  MOTH_TRY(moth_cuda_transpose(run.device, dtype, transposed.p, s.in, split, false));
  if (back) {
    MOTH_TRY(transposed_back.take(run.device, (size_t)(out->numel * moth_itemsize(out))));
    MOTH_TRY(moth_cuda_transpose(run.device, dtype, transposed_back.p, s.back, split, false));
    s.back = transposed_back.p;
  }
  s.in = s.out = transposed.p; /* a thread writes what it has read, statistics are done before */
  s.outer *= s.inner;
  s.inner = 1;
  MOTH_TRY(back ? k->softmax_backward(&run, &s) : k->softmax(&run, &s));
  return moth_cuda_transpose(run.device, dtype, out->data, transposed.p, split, true);
}

static MothStatus forward(MothCall *c, bool log) {
  return softmax_run(c, c->args[0].u.t, NULL, c->args[1].u.i, log);
}
static MothStatus backward(MothCall *c, bool log) {
  return softmax_run(c, c->args[0].u.t, c->args[1].u.t, c->args[2].u.i, log);
}
MothStatus moth_cuda_softmax(MothCall *c) {
  return forward(c, false);
}
MothStatus moth_cuda_log_softmax(MothCall *c) {
  return forward(c, true);
}
MothStatus moth_cuda_softmax_backward(MothCall *c) {
  return backward(c, false);
}
MothStatus moth_cuda_log_softmax_backward(MothCall *c) {
  return backward(c, true);
}
