// How partial results of reductions are joined. Only math.h includes this. Macros for values of any type, since partial
// results are wider than elements, and functions of elements where a compiler makes vectors of these alone.

#if MOTH_REAL_KIND <= 2
#define M_IS_NAN(x) ((x) != (x))
// What every element is at least, and at most.
MOTH_FN real m_lowest(void) {
  return -m_inf();
}
MOTH_FN real m_highest(void) {
  return m_inf();
}
#else
#define M_IS_NAN(x) 0
#if MOTH_REAL_KIND == 3
MOTH_FN real m_lowest(void) {
  return (real)(1ull << (8 * sizeof(real) - 1));
}
MOTH_FN real m_highest(void) {
  return (real) ~(1ull << (8 * sizeof(real) - 1));
}
#else
MOTH_FN real m_lowest(void) {
  return 0;
}
MOTH_FN real m_highest(void) {
  return (real)~0ull;
}
#endif
#endif

#define M_JOIN_SUM(a, b)  ((a) + (b))
#define M_JOIN_PROD(a, b) ((a) * (b))
#define M_JOIN_ANY(a, b)  ((a) | (b))
#define M_JOIN_ALL(a, b)  ((a) & (b))
// NaN wins.
#define M_JOIN_MAX(a, b) ((((a) > (b)) | M_IS_NAN(a)) ? (a) : (b))
#define M_JOIN_MIN(a, b) ((((a) < (b)) | M_IS_NAN(a)) ? (a) : (b))
// The same of elements. Two selects: gcc makes vectors of them, which it does not of one select by an `or`.
MOTH_FN real m_join_max(real a, real b) {
  real m = a > b ? a : b;
  return M_IS_NAN(a) ? a : m;
}
MOTH_FN real m_join_min(real a, real b) {
  real m = a < b ? a : b;
  return M_IS_NAN(a) ? a : m;
}
// argmax and argmin: whether x comes before the best so far; the first of equals and the first NaN win.
#define M_BEATS_MAX(x, best) (((x) > (best)) | (M_IS_NAN(x) & !M_IS_NAN(best)))
#define M_BEATS_MIN(x, best) (((x) < (best)) | (M_IS_NAN(x) & !M_IS_NAN(best)))

#if MOTH_REAL_KIND <= 2
// Count, mean and sum of squared differences from the mean; {0, 0, 0} is that of no values. In double for both kinds: a mean
// rounded to float32 is off by as much as the values differ where they are all near a large number. Joined as in Chan, Golub
// and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
struct m_moments {
  double n, mean, sq;
};
// part: b.n / (a.n + b.n), 0 where both are of no values; its error scales what little b moves the mean.
MOTH_FN struct m_moments m_join_moments(struct m_moments a, struct m_moments b, double part) {
  struct m_moments r;
  double d = b.mean - a.mean;
  r.n = a.n + b.n;
  r.mean = a.mean + d * part;
  r.sq = a.sq + b.sq + d * a.n * (d * part);
  return r;
}

// log(sum(exp(x))) is gathered as the largest x and the sum of exp(x - largest). What is subtracted under a maximum:
// -inf - -inf would be NaN.
MOTH_FN real m_lse_shift(real max) {
  return max == m_lowest() ? 0 : max;
}
// Two such sums as one, of any type; exp_of(max - shift) for the shift of the larger maximum.
#define M_JOIN_LSE(sum_a, exp_a, sum_b, exp_b) ((sum_a) * (exp_a) + (sum_b) * (exp_b))
// The sum has no meaning if the largest is not finite.
MOTH_FN double m_lse_value(double max, double sum) {
  return max - max == 0 ? moth_libm_log(sum) + max : max;
}
#endif
