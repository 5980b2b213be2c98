// The float64 primitives of math.h, which includes this file (real = double). Bounds:
// spec/kernels. exp, log and all that is built on them are own and vectorise; the rest is libm.

// ---- exponentials -----------------------------------------------------------------------------

// As in math_f32.h: e^(hi - lo) = (1 + q) * s1 * s2.
struct m_exp_parts_ {
  double q, s1, s2;
};
MOTH_FN struct m_exp_parts_ m_exp_split_(double hi, double lo) {
  struct m_exp_parts_ e;
  double t = (hi - lo) * 1.4426950408889634 + (0x1.8p52 + 2046.0);
  unsigned long long kb = m_f64_bits(t);
  double n = t - (0x1.8p52 + 2046.0);
  e.q = m_wide_exp_poly_(((hi - n * 0.6931471806019545) - lo) + n * 4.2009150726810846e-11);
  e.s1 = m_f64_from_bits((kb >> 1) << 52);
  e.s2 = m_f64_from_bits((kb - (kb >> 1)) << 52);
  return e;
}
MOTH_FN double m_exp_clamp_(double x) {
  x = x > 711.0 ? 711.0 : x;
  return x < -800.0 ? -800.0 : x;
}
MOTH_FN double m_exp_mul(double c, double x) {
  struct m_exp_parts_ e = m_exp_split_(m_exp_clamp_(x), 0.0);
  return (c * e.q + c) * e.s1 * e.s2;
}
// <= 1 ULP.
MOTH_FN double m_exp(double x) {
  struct m_exp_parts_ e = m_exp_split_(m_exp_clamp_(x), 0.0);
  return (e.q * e.s1 + e.s1) * e.s2;
}
// m_exp of x <= 0 and NaN.
MOTH_FN double m_exp_down(double x) {
  return m_exp(x);
}
// As in math_f32.h.
MOTH_FN double m_exp_rough(double x) {
  return m_exp(x);
}
MOTH_FN double m_exp_soft(double x) {
  return m_exp(x);
}
// <= 1.5 ULP; exact for whole x.
MOTH_FN double m_exp2(double x) {
  x = x > 1030.0 ? 1030.0 : x;
  x = x < -1100.0 ? -1100.0 : x;
  double t = x + (0x1.8p52 + 2046.0);
  unsigned long long kb = m_f64_bits(t);
  double r = x - (t - (0x1.8p52 + 2046.0));
  double p =
      ((((4.4574024575333283e-10 * r + 7.073886918994943e-09) * r + 1.0178046391766515e-07) * r +
        1.3215434715888247e-06) *
           r +
       1.5252733867595322e-05) *
          r +
      0.00015403530458147298;
  p = ((((p * r + 0.0013333558146379168) * r + 0.009618129107593418) * r + 0.05550410866482174) *
           r +
       0.24022650695910133) *
          r +
      0.6931471805599453;
  return (p * r + 1.0) * m_f64_from_bits((kb >> 1) << 52) * m_f64_from_bits((kb - (kb >> 1)) << 52);
}
// e^x - 1 for -700 < x < 709.9, without care for -0 and denormals.
MOTH_FN double m_expm1_core_(double x) {
  double t = x * 1.4426950408889634 + (0x1.8p52 + 1022.0);
  double n = t - (0x1.8p52 + 1022.0);
  double q = m_wide_exp_poly_((x - n * 0.6931471806019545) + n * 4.2009150726810846e-11);
  double s = m_f64_from_bits(m_f64_bits(t) << 52);
  return 2.0 * (q * s + (s - 0.5));
}
MOTH_FN double m_expm1_half_(double x) {
  return 0.5 * m_expm1_core_(x + x);
}
// <= 2 ULP.
MOTH_FN double m_expm1(double x) {
  double c = x < -50.0 ? -50.0 : x;
  c = c > 709.8 ? 709.8 : c;
  double y = m_expm1_core_(c);
  return moth_libm_fabs(x) < 0x1p-55 ? x : y;
}

// ---- logarithms -------------------------------------------------------------------------------

// x = 2^k * (1 + f), f in [sqrt(1/2) - 1, sqrt(2) - 1]; p = log(1 + f) - f.
struct m_log_parts_ {
  double k, f, p;
};
MOTH_FN double m_log_poly_(double f) {
  return m_wide_log_poly_(f);
}
MOTH_FN struct m_log_parts_ m_log_split_(double x) {
  struct m_log_parts_ l;
  int tiny = x < 0x1p-1022;
  unsigned long long u = m_f64_bits(tiny ? x * 0x1p52 : x) - 0x3fe6a09e667f3bcdull;
  // the exponent as a double: put into the mantissa of 2^52, biased by 2048 to be positive
  double e = m_f64_from_bits(((u >> 52) ^ 0x800u) | 0x4330000000000000ull);
  l.k = (e - (0x1p52 + 2048.0)) - (tiny ? 52.0 : 0.0);
  l.f = m_f64_from_bits((u & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull) - 1.0;
  l.p = m_log_poly_(l.f);
  return l;
}
// The value of every logarithm of x for x = 0, Inf, NaN and x < 0; else y.
MOTH_FN double m_log_special_(double x, double y) {
  double special = x == 0.0 ? -m_inf() : m_nan();
  y = x < m_inf() ? y : x;
  return x > 0.0 ? y : special;
}
// <= 1 ULP.
MOTH_FN double m_log(double x) {
  struct m_log_parts_ l = m_log_split_(x);
  double y = (l.f + (l.p - l.k * 4.2009150726810846e-11)) + l.k * 0.6931471806019545;
  return m_log_special_(x, y);
}
// <= 2 ULP; exact for powers of two.
MOTH_FN double m_log2(double x) {
  struct m_log_parts_ l = m_log_split_(x);
  double y = l.f * 1.4426950408889634 + (l.f * 2.0355273740931033e-17 + l.p * 1.4426950408889634);
  return m_log_special_(x, y + l.k);
}
// <= 2.5 ULP.
MOTH_FN double m_log10(double x) {
  struct m_log_parts_ l = m_log_split_(x);
  double y = l.f * 0.4342944819032518 + (l.f * 1.098319650216765e-17 + l.p * 0.4342944819032518);
  return m_log_special_(x, (y + l.k * 1.1451100898021838e-10) + l.k * 0.3010299955494702);
}
// log(1 + x), without care for special values.
MOTH_FN double m_log1p_core_(double x) {
  double u = x + 1.0;
  unsigned long long b = m_f64_bits(u) - 0x3fe6a09e667f3bcdull;
  double e = m_f64_from_bits(((b >> 52) ^ 0x800u) | 0x4330000000000000ull);
  double k = e - (0x1p52 + 2048.0);
  double m = m_f64_from_bits((b & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull) - 1.0;
  double s = m_f64_from_bits((1023ull - (b >> 52)) << 52); // 2^-k
  double f = u > 0x1p54 ? m : x * s + (s - 1.0);
  return (f + (m_log_poly_(f) - k * 4.2009150726810846e-11)) + k * 0.6931471806019545;
}
// <= 1.5 ULP.
MOTH_FN double m_log1p(double x) {
  double y = m_log1p_core_(x);
  double special = x == -1.0 ? -m_inf() : m_nan();
  y = x < m_inf() && x != 0.0 ? y : x;
  return x > -1.0 ? y : special;
}

// ---- trigonometry -----------------------------------------------------------------------------

// A formula m_x_fast that is m_x where m_x_easy: loops over contiguous elements take it for blocks that are easy.
MOTH_FN int m_sin_easy(double x) {
  return moth_libm_fabs(x) < 0x1p20;
}
MOTH_FN int m_cos_easy(double x) {
  return m_sin_easy(x);
}
MOTH_FN double m_sin_fast(double x) {
  double y = m_wide_sin_fast_(x);
  return x == 0.0 ? x : y;
}
MOTH_FN double m_cos_fast(double x) {
  return m_wide_cos_fast_(x);
}
// <= 1 ULP.
MOTH_FN double m_sin(double x) {
  return m_sin_easy(x) ? m_sin_fast(x) : moth_libm_sin(x);
}
MOTH_FN double m_cos(double x) {
  return m_cos_easy(x) ? m_cos_fast(x) : moth_libm_cos(x);
}

// ---- from libm --------------------------------------------------------------------------------

MOTH_FN double m_tan(double x) {
  return moth_libm_tan(x);
}
MOTH_FN double m_asin(double x) {
  return moth_libm_asin(x);
}
MOTH_FN double m_acos(double x) {
  return moth_libm_acos(x);
}
MOTH_FN double m_atan(double x) {
  return moth_libm_atan(x);
}
MOTH_FN double m_atan2(double y, double x) {
  return moth_libm_atan2(y, x);
}
MOTH_FN double m_erf(double x) {
  return moth_libm_erf(x);
}
MOTH_FN double m_erfc(double x) {
  return moth_libm_erfc(x);
}
MOTH_FN double m_hypot(double x, double y) {
  return moth_libm_hypot(x, y);
}
MOTH_FN double m_pow(double x, double y) {
  return moth_libm_pow(x, y);
}
// The remainder of a division by b in two parts: exact, where the quotient has at most 26 bits.
MOTH_FN int m_fmod_easy(double a, double b) {
  double d = moth_libm_fabs(b);
  return (moth_libm_fabs(a) < d * 0x1p25) & (d < 0x1p990) & (d > 0x1p-900);
}
MOTH_FN double m_fmod_fast(double a, double b) {
  double h = m_f64_from_bits(m_f64_bits(b) & 0xfffffffff8000000ull), l = b - h;
  double q = a / b + 0x1.8p52;
  q = q - 0x1.8p52;
  double r = (a - q * h) - q * l; // in [-|b| / 2, |b| / 2]
  double d = moth_libm_copysign(b, a);
  r = (r < 0) != (a < 0) && r != 0 ? r + d : r;
  return moth_libm_copysign(r, a);
}
MOTH_FN double m_fmod(double a, double b) {
  return m_fmod_easy(a, b) ? m_fmod_fast(a, b) : moth_libm_fmod(a, b);
}
MOTH_FN double m_lgamma(double x) {
  return moth_libm_lgamma(x);
}
// x * Phi(x); relative error (2 + x^2) * 2^-52 in the lower tail.
MOTH_FN double m_gelu(double x) {
  double c = x < -40.0 ? -40.0 : x;
  return 0.5 * c * moth_libm_erfc(c * -0.7071067811865476);
}
// g * (Phi(x) + x phi(x)); bound as for m_gelu, near the root at -0.75 of the value 0.5.
MOTH_FN double m_gelu_backward(double g, double x) {
  double c = x < -40.0 ? -40.0 : x > 40.0 ? 40.0 : x;
  double d = 0.5 * moth_libm_erfc(c * -0.7071067811865476);
  return g * (m_exp_mul(c * 0.3989422804014327, -0.5 * c * c) + d);
}

// ---- normal numbers ---------------------------------------------------------------------------

// Two independent standard normal numbers of random bits, by Box and Muller's method; see
// math_f32.h.
MOTH_FN void m_normal_f64(unsigned lo0, unsigned hi0, unsigned lo1, unsigned hi1, double *z0,
                          double *z1) {
  double r = moth_libm_sqrt(-2.0 * m_log(1.0 - m_uniform_f64(lo0, hi0)));
  double t = m_uniform_f64(lo1, hi1) * 6.283185307179586;
  *z0 = r * m_cos(t);
  *z1 = r * m_sin(t);
}
