/* native_dropout and its mask: word i of the op's Philox counters decides about element i, for any number of threads. */
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

/* Drops with in and out, which both may be NULL: the mask alone. */
static MothStatus drop(MothDType dtype, const void *in, void *out, MothTensor *mask, double p,
                       MothGenerator *generator) {
  MothPhilox philox = moth_generator_take(generator, mask->numel);
  Dropout d = {.r = {.what = MOTH_RANDOM_DROPOUT,
                     .out = out,
                     .n = mask->numel,
                     .a = p,
                     .in = in,
                     .mask = (uint8_t *)mask->data,
                     .seed = philox.seed,
                     .offset = philox.offset},
               .k = moth_cpu_kernels((int)dtype)};
  moth_parallel_for(mask->numel, moth_cpu_random_grain(mask->numel), dropout_range, &d);
  return MOTH_OK;
}

MothStatus moth_cpu_native_dropout(MothCall *c) {
  MOTH_UNPACK_NATIVE_DROPOUT(c)
  MothTensor *in;
  MOTH_TRY(moth_cpu_contiguous(self, &in));
  MothStatus s = drop((MothDType)self->dtype, in->data, c->results[0].u.t->data, c->results[1].u.t,
                      p, generator);
  moth_tensor_release(in);
  return s;
}

MothStatus moth_cpu_native_dropout_mask(MothCall *c) {
  MOTH_UNPACK_NATIVE_DROPOUT_MASK(c)
  return drop(MOTH_FLOAT32, NULL, NULL, c->results[0].u.t, p, generator);
}
