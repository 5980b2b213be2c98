/* Random fills by typed kernels over ranges; core/random.h says why they are repeatable. */
#include "core/random.h"

#include <math.h>
#include <string.h>

#include "core/alloc.h"
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

/* --- multinomial -------------------------------------------------------------------------------- */

/* A draw is the first class whose weights, summed from the first one on, exceed u times the sum of all. */
typedef struct Draw {
  double *weight; /* rows of `classes`; with replacement: their sums up to and with each class */
  const double *u;
  int64_t *out;
  int64_t classes, samples, base;
  bool replacement, is_full; /* is_full: out of memory */
} Draw;

/* Looks at the weights of a row, and sums them where draws are replaced. */
static MothStatus draw_check(const Draw *d, double *p) {
  double total = 0;
  int64_t positive = 0;
  for (int64_t k = 0; k < d->classes; k++) {
    double x = p[k];
    if (!(x >= 0) || !isfinite(x))
      return moth_fail(MOTH_ERR_VALUE, "weights must not be negative, infinite or NaN, got %g", x);
    total += x;
    positive += x > 0;
    if (d->replacement)
      p[k] = total;
  }
  if (total <= 0 || (!d->replacement && positive < d->samples))
    return moth_fail(MOTH_ERR_VALUE,
                     "cannot draw %lld samples: more than the %lld positive weights",
                     (long long)d->samples, (long long)positive);
  return MOTH_OK;
}

/* Draws [begin, end) of all rows, each by a binary search. */
static void draw_replaced(void *ctx, int64_t begin, int64_t end) {
  const Draw *d = ctx;
  for (int64_t i = begin; i < end; i++) {
    const double *sum = d->weight + i / d->samples * d->classes;
    double total = sum[d->classes - 1], x = d->u[i] * total;
    if (x >= total) /* rounding: the last class that has a weight */
      x = nextafter(total, 0);
    const double *at = sum;
    for (int64_t n = d->classes; n > 1; n -= n / 2)
      at += (int64_t)(at[n / 2 - 1] <= x) * (n / 2); /* no branch: a guess is wrong half the time */
    d->out[i] = at - sum + d->base;
  }
}

/* The levels of a tree of sums: weights, the sums of four, of four of those and so on, up to four at most. */
typedef struct Levels {
  int n;
  int64_t at[32], size; /* where each begins; of all */
} Levels;

static Levels levels_of(int64_t classes) {
  Levels l = {0};
  int64_t n = classes;
  do {
    l.at[l.n++] = l.size;
    l.size += (n + 3) / 4 * 4;
    n = (n + 3) / 4;
  } while (n > 1);
  return l;
}

static double sum_of_4(const double *w) {
  return (w[0] + w[1]) + (w[2] + w[3]);
}

/* Rows [begin, end). A draw, and what it takes away, cost the logarithm of the number of classes; sums are made anew, so
 * that no rounding is left of what is gone. */
static void draw_once(void *ctx, int64_t begin, int64_t end) {
  Draw *d = ctx;
  Levels l = levels_of(d->classes);
  size_t bytes = sizeof(double) * (size_t)l.size;
  double *tree = moth_alloc(bytes);
  if (!tree) {
    d->is_full = true;
    return;
  }
  for (int64_t r = begin; r < end; r++) {
    memset(tree, 0, bytes);
    memcpy(tree, d->weight + r * d->classes, sizeof(double) * (size_t)d->classes);
    for (int i = 1; i < l.n; i++)
      for (int64_t k = l.at[i - 1]; k < l.at[i]; k += 4)
        tree[l.at[i] + (k - l.at[i - 1]) / 4] = sum_of_4(tree + k);
    double *top = tree + l.at[l.n - 1];
    for (int64_t i = 0; i < d->samples; i++) {
      if (i % 4096 == 0 && moth_stopped())
        break;
      double x = d->u[r * d->samples + i] * sum_of_4(top);
      int64_t k = 0;
      for (int level = l.n - 1; level >= 0; level--) {
        const double *w = tree + l.at[level] + 4 * k;
        double two = w[0] + w[1], three = two + w[2];
        int64_t c1 = x >= w[0], c2 = x >= two, c3 = x >= three, c = c1 + c2 + c3;
        x -= w[0] * (double)c1 + w[1] * (double)c2 + w[2] * (double)c3;
        while (!(w[c] > 0)) /* rounding */
          c--;
        k = 4 * k + c;
      }
      d->out[r * d->samples + i] = k + d->base;
      tree[k] = 0;
      for (int level = 1; level < l.n; level++, k /= 4)
        tree[l.at[level] + k / 4] = sum_of_4(tree + l.at[level - 1] + k / 4 * 4);
    }
  }
  moth_free(tree, bytes);
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
  Draw d = {.weight = (double *)w->data,
            .u = (const double *)u->data,
            .out = (int64_t *)out->data,
            .classes = classes,
            .samples = num_samples,
            .base = index_base,
            .replacement = replacement};
  for (int64_t r = 0; r < rows && s == MOTH_OK && !moth_stopped(); r++)
    s = draw_check(&d, d.weight + r * classes);
  if (s == MOTH_OK && !moth_stopped()) {
    if (replacement)
      moth_parallel_for(out->numel, moth_cpu_grain(64), draw_replaced, &d);
    else
      moth_parallel_for(rows, moth_cpu_grain(8 * classes + 64 * num_samples), draw_once, &d);
    if (d.is_full)
      s = moth_fail(MOTH_ERR_MEMORY, "out of memory");
  }
  moth_tensor_release(u);
  moth_tensor_release(w);
  return s;
}
