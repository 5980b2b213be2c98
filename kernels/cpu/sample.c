/* Samples of gamma, Poisson and binomial distributions: the same bits for any number of threads, as each element has a
 * stream of its own (kernels/common/sample.h). */
#include "core/parallel.h"
#include "core/random.h"
#include "kernels/cpu/util.h"
#include "unpack/random.h"

#undef MOTH_FN
#define MOTH_FN        static inline __attribute__((unused))
#define real           double
#define MOTH_REAL_KIND 2
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "kernels/math.h"
#pragma GCC diagnostic pop
/* behind math.h, whose functions it calls */
#include "kernels/common/sample.h"

typedef struct Job {
  int what;
  MothPhilox philox;
  const double *a, *b;
  double *out, tiny;
} Job;

static void job_range(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  for (int64_t i = begin; i < end; i++) {
    MothStream s = {j->philox.seed, j->philox.offset, (uint64_t)i};
    j->out[i] = m_sample(j->what, &s, j->a[i], j->b[i], j->tiny);
  }
}

static double least_normal(const MothTensor *t) {
  return t->dtype == MOTH_FLOAT64 ? 0x1p-1022 : t->dtype == MOTH_FLOAT16 ? 0x1p-14 : 0x1p-126;
}

/* a and b in the shape of the result, b or NULL. */
static MothStatus run(MothCall *c, int what, const MothTensor *a, const MothTensor *b,
                      MothGenerator *g) {
  MothTensor *out = c->results[0].u.t, *x = NULL, *y = NULL, *z = NULL;
  MothStatus s = moth_cpu_broadcast_as(a, MOTH_FLOAT64, out->ndim, out->shape, &x);
  if (s == MOTH_OK && b)
    s = moth_cpu_broadcast_as(b, MOTH_FLOAT64, out->ndim, out->shape, &y);
  if (s == MOTH_OK)
    s = moth_tensor_new(out->ndim, out->shape, MOTH_FLOAT64, out->device, &z);
  if (s == MOTH_OK) {
    Job j = {what,
             moth_generator_take(g, MOTH_SAMPLE_WORDS),
             (const double *)x->data,
             (const double *)(y ? y : x)->data,
             (double *)z->data,
             least_normal(out)};
    moth_parallel_for(out->numel, 256, job_range, &j);
    moth_cpu_copy(out, z);
  }
  moth_tensor_release(x);
  moth_tensor_release(y);
  moth_tensor_release(z);
  return s == MOTH_OK && moth_stopped() ? moth_interrupted() : s;
}

MothStatus moth_cpu_standard_gamma(MothCall *c) {
  MOTH_UNPACK_STANDARD_GAMMA(c)
  return run(c, MOTH_SAMPLE_GAMMA, self, NULL, generator);
}
MothStatus moth_cpu_poisson(MothCall *c) {
  MOTH_UNPACK_POISSON(c)
  return run(c, MOTH_SAMPLE_POISSON, self, NULL, generator);
}
MothStatus moth_cpu_binomial(MothCall *c) {
  MOTH_UNPACK_BINOMIAL(c)
  return run(c, MOTH_SAMPLE_BINOMIAL, count, prob, generator);
}
