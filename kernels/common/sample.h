/* Samples by rejection, of one element with a stream of random numbers of its own: the Philox blocks whose upper counter
 * is the element's number. For the CPU and CUDA; the includer has kernels/math.h with real = double. */
#ifndef MOTH_COMMON_SAMPLE_H
#define MOTH_COMMON_SAMPLE_H
#include <stdint.h>

enum { MOTH_SAMPLE_GAMMA, MOTH_SAMPLE_POISSON, MOTH_SAMPLE_BINOMIAL };
/* What a call takes of its generator, in words: more blocks than any element uses but with probability 1e-20. */
enum { MOTH_SAMPLE_WORDS = 4 * 4096 };

typedef struct MothStream {
  uint64_t seed, block, element;
} MothStream;

/* Two uniform numbers in [0, 1). */
MOTH_FN void m_sample_pair_(MothStream *s, double *u, double *v) {
  uint64_t e = s->element + 1; /* 0: the blocks of other random ops */
  struct m_philox p = m_philox((unsigned)s->seed, (unsigned)(s->seed >> 32), (unsigned)s->block,
                               (unsigned)(s->block >> 32), (unsigned)e, (unsigned)(e >> 32));
  s->block++;
  *u = m_uniform_f64(p.v[0], p.v[1]);
  *v = m_uniform_f64(p.v[2], p.v[3]);
}

/* Marsaglia and Tsang, "A simple method for generating gamma variables" (2000); a shape below 1 through one above. */
MOTH_FN double m_sample_gamma(MothStream *s, double a) {
  double u, v, scale = 1, inf = m_inf();
  if (!(a > 0) || a == inf)
    return m_nan();
  if (a < 1) {
    m_sample_pair_(s, &u, &v);
    scale = moth_libm_pow(1 - u, 1 / a);
    a += 1;
  }
  double d = a - 1.0 / 3, c = 1 / moth_libm_sqrt(9 * d);
  for (int k = 0; k < 2000; k++) {
    m_sample_pair_(s, &u, &v);
    double x = moth_libm_sqrt(-2 * moth_libm_log(1 - u)) * moth_libm_cos(v * 6.283185307179586);
    double y = 1 + c * x;
    if (y <= 0)
      continue;
    y = y * y * y;
    m_sample_pair_(s, &u, &v);
    if (moth_libm_log(1 - u) < 0.5 * x * x + d - d * y + d * moth_libm_log(y))
      return scale * d * y;
  }
  return scale * a;
}

/* Below 10 by products of uniform numbers, else by Hörmann's PTRS, "The transformed rejection method for generating
 * Poisson random variables" (1993). Beyond 2^52 there is no integer between a normal sample's neighbours. */
MOTH_FN double m_sample_poisson(MothStream *s, double mean) {
  double u, v, inf = m_inf();
  if (!(mean >= 0))
    return m_nan();
  if (mean == 0 || mean == inf)
    return mean;
  if (mean < 10) {
    double least = moth_libm_exp(-mean), product = 1;
    for (int k = 0; k < 2000; k += 2) {
      m_sample_pair_(s, &u, &v);
      product *= 1 - u;
      if (product < least)
        return k;
      product *= 1 - v;
      if (product < least)
        return k + 1;
    }
    return mean;
  }
  if (mean > 0x1p52) {
    m_sample_pair_(s, &u, &v);
    double x = moth_libm_sqrt(-2 * moth_libm_log(1 - u)) * moth_libm_cos(v * 6.283185307179586);
    return moth_libm_floor(mean + moth_libm_sqrt(mean) * x + 0.5);
  }
  double log = moth_libm_log(mean), b = 0.931 + 2.53 * moth_libm_sqrt(mean);
  double a = -0.059 + 0.02483 * b, inverse = 1.1239 + 1.1328 / (b - 3.4);
  double edge = 0.9277 - 3.6224 / (b - 2);
  for (int k = 0; k < 2000; k++) {
    m_sample_pair_(s, &u, &v);
    u -= 0.5;
    v = 1 - v;
    double us = 0.5 - (u < 0 ? -u : u), n = moth_libm_floor((2 * a / us + b) * u + mean + 0.43);
    if (us >= 0.07 && v <= edge)
      return n;
    if (n < 0 || (us < 0.013 && v > us) || !(us > 0))
      continue;
    if (moth_libm_log(v * inverse / (a / (us * us) + b)) <=
        n * log - mean - moth_libm_lgamma(n + 1))
      return n;
  }
  return moth_libm_floor(mean);
}

/* log(k!) - (k + 1/2) log(k + 1) + k + 1 - log(2 pi) / 2 */
MOTH_FN double m_sample_tail_(double k) {
  double z = 1 / (k + 1);
  if (k < 10)
    return moth_libm_lgamma(k + 1) - (k + 0.5) * moth_libm_log(k + 1) + k + 1 - 0.91893853320467274;
  return (1.0 / 12 - (1.0 / 360 - 1.0 / 1260 * z * z) * z * z) * z;
}
/* For p <= 1/2: with few expected successes by the waiting times between them, else by Hörmann's BTRS, "The generation
 * of binomial random variates" (1993). */
MOTH_FN double m_sample_binomial_(MothStream *s, double n, double p) {
  double u, v, q = 1 - p;
  if (n * p < 10) {
    double log = moth_libm_log1p(-p), at = 0;
    for (int k = 0; k < 2000; k += 2) {
      m_sample_pair_(s, &u, &v);
      at += moth_libm_floor(moth_libm_log(1 - u) / log) + 1;
      if (at > n)
        return k;
      at += moth_libm_floor(moth_libm_log(1 - v) / log) + 1;
      if (at > n)
        return k + 1;
    }
    return moth_libm_floor(n * p);
  }
  double spread = moth_libm_sqrt(n * p * q), b = 1.15 + 2.53 * spread;
  double a = -0.0873 + 0.0248 * b + 0.01 * p, c = n * p + 0.5, edge = 0.92 - 4.2 / b, r = p / q;
  double alpha = (2.83 + 5.1 / b) * spread, mode = moth_libm_floor((n + 1) * p);
  for (int i = 0; i < 2000; i++) {
    m_sample_pair_(s, &u, &v);
    u -= 0.5;
    v = 1 - v;
    double us = 0.5 - (u < 0 ? -u : u), k = moth_libm_floor((2 * a / us + b) * u + c);
    if (us >= 0.07 && v <= edge)
      return k;
    if (!(k >= 0 && k <= n) || !(us > 0))
      continue;
    v = moth_libm_log(v * alpha / (a / (us * us) + b));
    double bound = (mode + 0.5) * moth_libm_log((mode + 1) / (r * (n - mode + 1))) +
                   (n + 1) * moth_libm_log((n - mode + 1) / (n - k + 1)) +
                   (k + 0.5) * moth_libm_log(r * (n - k + 1) / (k + 1)) + m_sample_tail_(mode) +
                   m_sample_tail_(n - mode) - m_sample_tail_(k) - m_sample_tail_(n - k);
    if (v <= bound)
      return k;
  }
  return mode;
}
MOTH_FN double m_sample_binomial(MothStream *s, double count, double p) {
  double n = moth_libm_floor(count), inf = m_inf();
  if (n != n || p != p || n == inf)
    return m_nan();
  if (n <= 0 || p <= 0)
    return 0;
  if (p >= 1)
    return n;
  return p <= 0.5 ? m_sample_binomial_(s, n, p) : n - m_sample_binomial_(s, n, 1 - p);
}

/* Element i of a call; b is read for the binomial distribution alone. The least gamma sample is `tiny`. */
MOTH_FN double m_sample(int what, MothStream *s, double a, double b, double tiny) {
  if (what == MOTH_SAMPLE_POISSON)
    return m_sample_poisson(s, a);
  if (what == MOTH_SAMPLE_BINOMIAL)
    return m_sample_binomial(s, a, b);
  double x = m_sample_gamma(s, a);
  return x < tiny ? tiny : x;
}
#endif
