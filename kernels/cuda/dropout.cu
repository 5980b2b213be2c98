/* native_dropout: output and mask in one pass, and the mask alone; its bits are the CPU's.
 */
#include "kernels/common/random.h"
#include "kernels/cuda/util.h"
#include "unpack/nn.h"

MothStatus moth_cuda_native_dropout(MothCall *c) {
  MOTH_UNPACK_NATIVE_DROPOUT(c)
  MothTensor *out = c->results[0].u.t;
  MothCudaRun run;
  MothOwned in;
  MOTH_TRY(moth_cuda_run(c, &run));
  MOTH_TRY(moth_cuda_contiguous(self, &in.t));
  MothCudaPhilox philox = moth_cuda_philox(out->device.index, generator, out->numel);
  MothRandom r = {};
  r.what = MOTH_RANDOM_DROPOUT;
  r.out = out->data;
  r.n = out->numel;
  r.a = p;
  r.in = in->data;
  r.mask = (uint8_t *)c->results[1].u.t->data;
  return moth_cuda_kernels[out->dtype]->random_fill(&run, &r, philox);
}

MothStatus moth_cuda_native_dropout_mask(MothCall *c) {
  MOTH_UNPACK_NATIVE_DROPOUT_MASK(c)
  MothTensor *mask = c->results[0].u.t;
  MothCudaRun run;
  MOTH_TRY(moth_cuda_run(c, &run));
  MothCudaPhilox philox = moth_cuda_philox(mask->device.index, generator, mask->numel);
  MothRandom r = {};
  r.what = MOTH_RANDOM_DROPOUT;
  r.n = mask->numel;
  r.a = p;
  r.mask = (uint8_t *)mask->data;
  return moth_cuda_kernels[MOTH_FLOAT32]->random_fill(&run, &r, philox);
}
