/* native_dropout: output and mask in one pass; the mask's bits are the CPU's.
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
