/* cumsum, as in kernels/cpu/arg.c. */
#include "kernels/cuda/split.h"
#include "unpack/reduce.h"

MothStatus moth_cuda_cumsum(MothCall *c) {
  MOTH_UNPACK_CUMSUM(c)
  MothTensor *out = c->results[0].u.t;
  MothDType from = (MothDType)self->dtype, to = (MothDType)out->dtype;
  const MothCudaKernels *k = moth_cuda_kernels[from];
  int d = (int)dim, device = c->device.index;
  cudaStream_t stream;
  MothOwned in;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_contiguous(self, &in.t));
  MothSplit s = moth_split(out, d);
  if (!moth_cuda_should_transpose(s, device))
    return k->cumsum(device, stream, out->data, in->data, s.outer, s.n, s.inner);
  MothScratch rows, sums;
  MOTH_TRY(rows.take(device, (size_t)(self->numel * moth_itemsize(self))));
  MOTH_TRY(sums.take(device, (size_t)(out->numel * moth_itemsize(out))));
  MOTH_TRY(moth_cuda_transpose(device, from, rows.p, in->data, s, false));
  MOTH_TRY(k->cumsum(device, stream, sums.p, rows.p, s.outer * s.inner, s.n, 1));
  return moth_cuda_transpose(device, to, out->data, sums.p, s, true);
}
