/* native_dropout: output and mask in one pass; the mask's bits are the CPU's. */
#include "kernels/cuda/util.h"
#include "unpack/nn.h"

MothStatus moth_cuda_native_dropout(MothCall *c) {
  MOTH_UNPACK_NATIVE_DROPOUT(c)
  MothTensor *out = c->results[0].u.t;
  cudaStream_t stream;
  MothOwned in;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  MOTH_TRY(moth_cuda_contiguous(self, &in.t));
  MothCudaPhilox philox = moth_cuda_philox(out->device.index, generator, out->numel);
  return moth_cuda_kernels[out->dtype]->dropout(
      stream, out->data, (uint8_t *)c->results[1].u.t->data, in->data, out->numel, philox, p);
}
