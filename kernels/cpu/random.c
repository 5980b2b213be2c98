/* Random fills by typed kernels over ranges; core/random.h says why they are repeatable. */
#include "core/random.h"

#include <math.h>

#include "core/dtype.h"
#include "core/parallel.h"
#include "dispatch/dispatch.h"
#include "kernels/common/iter.h"
#include "kernels/common/random.h"
#include "kernels/cpu/util.h"
#include "unpack/random.h"

typedef struct Job {
  MothRandom r;
  const MothKernels *k;
} Job;

static void job_range(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  MothRandom r = j->r;
  r.begin = begin;
  r.end = end;
  j->k->random_fill(&r);
}

/* Fills t; a strided t through a row-major temporary, so that the values do not depend on strides. */
static MothStatus run(Job *j, MothTensor *t, MothGenerator *g) {
  int64_t words = j->r.what == MOTH_RANDOM_INTEGERS ||
                          (t->dtype == MOTH_FLOAT64 && j->r.what != MOTH_RANDOM_BERNOULLI)
                      ? 2
                      : 1;
  MothPhilox p = moth_generator_take(g, t->numel * words);
  j->k = moth_cpu_kernels(t->dtype);
  MothTensor *whole = t;
  if (!t->contiguous)
    MOTH_TRY(moth_tensor_new(t->ndim, t->shape, (MothDType)t->dtype, t->device, &whole));
  j->r.out = whole->data;
  j->r.n = t->numel;
  j->r.seed = p.seed;
  j->r.offset = p.offset;
  moth_parallel_for(t->numel, moth_cpu_random_grain(t->numel), job_range, j);
  if (whole != t) {
    moth_cpu_copy(t, whole);
    moth_tensor_release(whole);
  }
  return moth_stopped() ? moth_interrupted() : MOTH_OK;
}

static MothStatus check_probability(double p) {
  if (!(p >= 0 && p <= 1))
    return moth_fail(MOTH_ERR_VALUE, "the probability must be between 0 and 1, got %g", p);
  return MOTH_OK;
}

MothStatus moth_cpu_rand(MothCall *c) {
  Job j = {.r = {.what = MOTH_RANDOM_UNIFORM, .a = 0, .b = 1}};
  return run(&j, c->results[0].u.t, c->args[3].u.g);
}

MothStatus moth_cpu_randn(MothCall *c) {
  Job j = {.r = {.what = MOTH_RANDOM_NORMAL, .a = 0, .b = 1}};
  return run(&j, c->results[0].u.t, c->args[3].u.g);
}

MothStatus moth_cpu_randint(MothCall *c) {
  MOTH_UNPACK_RANDINT(c)
  Job j = {.r = {.what = MOTH_RANDOM_INTEGERS, .lo = low, .hi = high}};
  return run(&j, c->results[0].u.t, generator);
}

MothStatus moth_cpu_uniform_(MothCall *c) {
  MOTH_UNPACK_UNIFORM_(c)
  Job j = {.r = {.what = MOTH_RANDOM_UNIFORM, .a = from, .b = to}};
  return run(&j, self, generator);
}

MothStatus moth_cpu_normal_(MothCall *c) {
  MOTH_UNPACK_NORMAL_(c)
  Job j = {.r = {.what = MOTH_RANDOM_NORMAL, .a = mean, .b = std}};
  return run(&j, self, generator);
}

MothStatus moth_cpu_bernoulli_(MothCall *c) {
  MOTH_UNPACK_BERNOULLI_(c)
  Job j = {.r = {.what = MOTH_RANDOM_BERNOULLI, .a = p}};
  return run(&j, self, generator);
}

enum { LOOK = 1 << 20 }; /* elements between checks for Ctrl-C */

/* Compares a uniform number with each element, a probability. */
MothStatus moth_cpu_bernoulli(MothCall *c) {
  MOTH_UNPACK_BERNOULLI(c)
  MothTensor *out = c->results[0].u.t, *p, *u;
  MOTH_TRY(moth_cpu_contiguous_as(self, MOTH_FLOAT64, &p));
  MothStatus s = moth_tensor_new(self->ndim, self->shape, MOTH_FLOAT64, self->device, &u);
  if (s == MOTH_OK) {
    Job j = {.r = {.what = MOTH_RANDOM_UNIFORM, .a = 0, .b = 1}};
    s = run(&j, u, generator);
    const double *x = (const double *)p->data;
    double *y = (double *)u->data;
    for (int64_t i = 0; i < self->numel && s == MOTH_OK; i++) {
      if (i % LOOK == 0 && moth_stopped())
        break;
      s = check_probability(x[i]);
      y[i] = y[i] < x[i];
    }
    if (s == MOTH_OK)
      moth_cpu_copy(out, u);
    moth_tensor_release(u);
  }
  moth_tensor_release(p);
  return s;
}

/* Fisher-Yates, serial: the order of the swaps is the permutation. */
MothStatus moth_cpu_randperm(MothCall *c) {
  MOTH_UNPACK_RANDPERM(c)
  MothTensor *out = c->results[0].u.t, *p, *r;
  MothDevice cpu = {MOTH_CPU, 0};
  MOTH_TRY(moth_tensor_new(1, &n, MOTH_INT64, cpu, &p));
  MothStatus s = moth_tensor_new(1, &n, MOTH_INT64, cpu, &r);
  if (s == MOTH_OK) {
    Job j = {.r = {.what = MOTH_RANDOM_INTEGERS, .lo = 0, .hi = INT64_MAX}};
    s = run(&j, r, generator);
    int64_t *a = (int64_t *)p->data;
    const int64_t *x = (const int64_t *)r->data;
    for (int64_t i = 0; i < n; i++)
      a[i] = i + index_base;
    for (int64_t i = n - 1; i > 0 && s == MOTH_OK; i--) {
      if (i % LOOK == 0 && moth_stopped())
        break;
      int64_t k = (int64_t)((unsigned __int128)(uint64_t)x[i] * (uint64_t)(i + 1) >> 63);
      int64_t keep = a[i];
      a[i] = a[k];
      a[k] = keep;
    }
    if (s == MOTH_OK)
      moth_cpu_copy(out, p);
    moth_tensor_release(r);
  }
  moth_tensor_release(p);
  return s;
}

MothStatus moth_cpu_multinomial(MothCall *c) {
  MOTH_UNPACK_MULTINOMIAL(c)
  MothTensor *out = c->results[0].u.t, *w, *u;
  int64_t classes = self->shape[self->ndim - 1], rows = classes ? self->numel / classes : 0;
  MOTH_TRY(moth_tensor_new(self->ndim, self->shape, MOTH_FLOAT64, self->device, &w));
  moth_cpu_copy(w, self);
  MothStatus s = moth_tensor_new(1, &out->numel, MOTH_FLOAT64, self->device, &u);
  if (s != MOTH_OK) {
    moth_tensor_release(w);
    return s;
  }
  Job j = {.r = {.what = MOTH_RANDOM_UNIFORM, .a = 0, .b = 1}};
  s = run(&j, u, generator);
  for (int64_t r = 0; r < rows && s == MOTH_OK; r++) {
    double *p = (double *)w->data + r * classes, total = 0;
    int64_t positive = 0;
    for (int64_t k = 0; k < classes; k++) {
      if (!(p[k] >= 0) || !isfinite(p[k])) {
        s = moth_fail(MOTH_ERR_VALUE, "weights must not be negative, infinite or NaN, got %g",
                      p[k]);
        break;
      }
      total += p[k];
      positive += p[k] > 0;
    }
    if (s == MOTH_OK && (total <= 0 || (!replacement && positive < num_samples)))
      s = moth_fail(MOTH_ERR_VALUE, "cannot draw %lld samples: more than the %lld positive weights",
                    (long long)num_samples, (long long)positive);
    for (int64_t i = 0; i < num_samples && s == MOTH_OK && !moth_stopped(); i++) {
      double x = ((double *)u->data)[r * num_samples + i] * total;
      int64_t k = 0, last = 0;
      for (; k < classes; k++) {
        if (p[k] > 0)
          last = k;
        if (x < p[k])
          break;
        x -= p[k];
      }
      if (k == classes)
        k = last; /* rounding */
      ((int64_t *)out->data)[r * num_samples + i] = k + index_base;
      if (!replacement) {
        total -= p[k];
        p[k] = 0;
      }
    }
  }
  moth_tensor_release(u);
  moth_tensor_release(w);
  return s;
}
