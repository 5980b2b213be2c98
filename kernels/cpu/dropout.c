/* native_dropout: word i of the op's Philox counters decides about element i, for any number of threads. */
#include "core/parallel.h"
#include "core/random.h"
#include "kernels/common/random.h"
#include "kernels/cpu/util.h"
#include "unpack/nn.h"

typedef struct Dropout {
  MothRandom r;
  const MothKernels *k;
} Dropout;

static void dropout_range(void *ctx, int64_t begin, int64_t end) {
  const Dropout *d = ctx;
  MothRandom r = d->r;
  r.begin = begin;
  r.end = end;
  d->k->random_fill(&r);
}

MothStatus moth_cpu_native_dropout(MothCall *c) {
  MOTH_UNPACK_NATIVE_DROPOUT(c)
  MothTensor *in;
  MOTH_TRY(moth_cpu_contiguous(self, &in));
  MothPhilox philox = moth_generator_take(generator, self->numel);
  Dropout d = {.r = {.what = MOTH_RANDOM_DROPOUT,
                     .out = c->results[0].u.t->data,
                     .n = self->numel,
                     .a = p,
                     .in = in->data,
                     .mask = (uint8_t *)c->results[1].u.t->data,
                     .seed = philox.seed,
                     .offset = philox.offset},
               .k = moth_cpu_kernels(self->dtype)};
  moth_parallel_for(self->numel, moth_cpu_random_grain(self->numel), dropout_range, &d);
  moth_tensor_release(in);
  return MOTH_OK;
}
