// Formulas of float32 and float64, made of the primitives in math_f32.h and math_f64.h. Only math.h includes this.

#if MOTH_REAL_KIND == 1
#define MOTH_REAL_LIBM_(name) moth_libm_##name##f
MOTH_FN float m_inf(void) {
  return m_f32_from_bits(0x7f800000u);
}
MOTH_FN float m_nan(void) {
  return m_f32_from_bits(0x7fc00000u);
}
#include "math_f32.h"
#else
#define MOTH_REAL_LIBM_(name) moth_libm_##name
MOTH_FN double m_inf(void) {
  return m_f64_from_bits(0x7ff0000000000000ull);
}
MOTH_FN double m_nan(void) {
  return m_f64_from_bits(0x7ff8000000000000ull);
}
#include "math_f64.h"
#endif

MOTH_FN real m_abs(real x) {
  return MOTH_REAL_LIBM_(fabs)(x);
}
MOTH_FN real m_floor(real x) {
  return MOTH_REAL_LIBM_(floor)(x);
}
MOTH_FN real m_ceil(real x) {
  return MOTH_REAL_LIBM_(ceil)(x);
}
MOTH_FN real m_trunc(real x) {
  return MOTH_REAL_LIBM_(trunc)(x);
}
// Half to even.
MOTH_FN real m_round(real x) {
  return MOTH_REAL_LIBM_(rint)(x);
}
MOTH_FN real m_frac(real x) {
  return x - m_trunc(x);
}
MOTH_FN real m_copysign(real x, real y) {
  return MOTH_REAL_LIBM_(copysign)(x, y);
}
MOTH_FN real m_nextafter(real x, real y) {
  return MOTH_REAL_LIBM_(nextafter)(x, y);
}
MOTH_FN real m_sqrt(real x) {
  return MOTH_REAL_LIBM_(sqrt)(x);
}
// <= 1.5 ULP.
MOTH_FN real m_rsqrt(real x) {
  return 1 / m_sqrt(x);
}
MOTH_FN real m_reciprocal(real x) {
  return 1 / x;
}
MOTH_FN real m_angle(real x) {
  real angle = x < 0 ? (real)3.14159265358979323846 : (real)0;
  return x == x ? angle : x;
}
MOTH_FN real m_isnan(real x) {
  return x != x ? (real)1 : (real)0;
}
MOTH_FN real m_isinf(real x) {
  return m_abs(x) == m_inf() ? (real)1 : (real)0;
}
MOTH_FN real m_isfinite(real x) {
  return m_abs(x) < m_inf() ? (real)1 : (real)0;
}
// e^|x| / 2.
MOTH_FN real m_half_exp_(real x) {
  return m_exp_mul((real)0.5, m_abs(x));
}
// <= 2 ULP.
MOTH_FN real m_cosh(real x) {
  real e = m_half_exp_(x);
  return e + (real)0.25 / e;
}
// <= 2.5 ULP.
MOTH_FN real m_sinh(real x) {
  real a = m_abs(x), s = a > 1 ? 1 : a;
  real e = m_half_exp_(x), m = m_expm1_core_(s);
  real big = e - (real)0.25 / e;
  real small = (real)0.5 * (m + m / (m + 1));
  return x == 0 ? x : m_copysign(a > 1 || x != x ? big : small, x);
}
// <= 2.5 ULP: (e^2a - 1) / (e^2a + 1).
MOTH_FN real m_tanh(real x) {
  real a = m_abs(x);
  real h = m_expm1_half_(a > 20 ? 20 : a);
  return m_copysign(h / (h + 1), x);
}
// <= 2.5 ULP.
MOTH_FN real m_asinh(real x) {
  real a = m_abs(x), b = a > 268435456 ? 268435456 : a, z = b * b;
  real t = b + z / (1 + m_sqrt(1 + z));
  real y =
      m_log1p_core_(a < 268435456 ? t : a - 1) + (a < 268435456 ? 0 : (real)0.69314718055994531);
  y = a < m_inf() && a != 0 ? y : a;
  return m_copysign(y, x);
}
// <= 2.5 ULP.
MOTH_FN real m_acosh(real x) {
  real t = x - 1, b = t > 268435456 ? 268435456 : t;
  real z = b + m_sqrt(b + b + b * b);
  real y = m_log1p_core_(t < 268435456 ? z : t) + (t < 268435456 ? 0 : (real)0.69314718055994531);
  y = x < m_inf() ? y : x;
  return t < 0 ? m_nan() : y;
}
// <= 2.5 ULP.
MOTH_FN real m_atanh(real x) {
  real a = m_abs(x);
  real y = (real)0.5 * m_log1p((a + a) / (1 - a));
  return m_copysign(y, x);
}
// log(1 + e) for 0 <= e <= 1, where the exponent of 1 + e is 0 or 1: <= 1.5 ULP.
MOTH_FN real m_log1p_unit_(real e) {
  int high = e > (real)0.41421356;
  real f = high ? (real)0.5 * e - (real)0.5 : e;
  return f + m_log_poly_(f) + (high ? (real)0.69314718055994531 : 0);
}
// <= 2.5 ULP.
MOTH_FN real m_sigmoid(real x) {
  real e = m_exp(-m_abs(x));
  return (x < 0 ? e : 1) / (1 + e);
}
// <= 3 ULP.
MOTH_FN real m_log_sigmoid(real x) {
  return (x < 0 ? x : 0) - m_log1p_unit_(m_exp(-m_abs(x)));
}
// x sigmoid(z) for x and z of the same sign, also where sigmoid(z) is denormal.
MOTH_FN real m_x_sigmoid_(real x, real z) {
  struct m_exp_parts_ p = m_exp_split_(m_exp_clamp_(-m_abs(z)), 0);
  real e = (p.q + 1) * p.s1 * p.s2, n = (x * p.q + x) * p.s1 * p.s2;
  return (x < 0 ? n : x) / (1 + e);
}
// <= 3 ULP.
MOTH_FN real m_silu(real x) {
  return m_x_sigmoid_(x < -1000 ? -1000 : x, x);
}
// log(1 + e^(beta x)) / beta, x where beta x > threshold: <= 4 ULP.
MOTH_FN real m_softplus(real x, real beta, real threshold) {
  real z = x * beta;
  real y = ((z > 0 ? z : 0) + m_log1p_unit_(m_exp(-m_abs(z)))) / beta;
  return z > threshold ? x : z != z ? z : y;
}
// The argument of the sigmoid in gelu_tanh: 2 sqrt(2/pi) (x + 0.044715 x^3).
MOTH_FN real m_gelu_tanh_arg_(real x) {
  return x * ((real)0.07135481627260025 * x * x + (real)1.5957691216057308);
}
// x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): relative error (3 + 4|u|) ULP.
MOTH_FN real m_gelu_tanh(real x) {
  real c = x < -30 ? -30 : x;
  return m_x_sigmoid_(c, m_gelu_tanh_arg_(c));
}
MOTH_FN real m_relu6(real x) {
  x = x < 0 ? 0 : x;
  return x > 6 ? 6 : x;
}
MOTH_FN real m_leaky_relu(real x, real slope) {
  return x > 0 ? x : x * slope;
}
// <= 2 ULP.
MOTH_FN real m_elu(real x, real alpha) {
  return x > 0 ? x : alpha * m_expm1(x);
}
// <= 3 ULP.
MOTH_FN real m_celu(real x, real alpha) {
  return x > 0 ? x : alpha * m_expm1(x / alpha);
}
// <= 3 ULP.
MOTH_FN real m_selu(real x) {
  real y = x > 0 ? x : (real)1.6732632423543772848170429916717 * m_expm1(x);
  return (real)1.0507009873554804934193349852946 * y;
}
MOTH_FN real m_hardtanh(real x, real lo, real hi) {
  x = x < lo ? lo : x;
  return x > hi ? hi : x;
}
// relu6(x + 3) / 6: <= 1 ULP of the larger of result and 0.5.
MOTH_FN real m_hardsigmoid(real x) {
  return m_relu6(x + 3) / 6;
}
MOTH_FN real m_hardswish(real x) {
  real c = x < -3 ? -3 : x;
  return c * (m_relu6(c + 3) / 6);
}
// x tanh(softplus(x)) = x w / (w + 2), w = e^x (e^x + 2): <= 4 ULP.
MOTH_FN real m_mish(real x) {
  real c = x < -1000 ? -1000 : x, b = c > 20 ? 20 : c;
  real e = m_exp(b), d = e * (e + 2) + 2;
  real y = m_exp_mul(c * ((e + 2) / d), b);
  return x > 20 ? x : y;
}
MOTH_FN real m_softsign(real x) {
  real y = x / (1 + m_abs(x));
  return m_abs(x) == m_inf() ? m_copysign(1, x) : y;
}
// y + digamma(d) for d > 0: recurrence up to 10, then the asymptotic series.
MOTH_FN double m_digamma_up_(double d, double y) {
  for (; d < 10; d += 1)
    y -= 1 / d;
  double z = 1 / (d * d);
  double s =
      ((((((1.0 / 12 * z - 691.0 / 32760) * z + 1.0 / 132) * z - 1.0 / 240) * z + 1.0 / 252) * z -
        1.0 / 120) *
           z +
       1.0 / 12) *
      z;
  return d > 1e100 ? moth_libm_log(d) : y + (moth_libm_log(d) - 0.5 / d - s);
}
#if MOTH_REAL_KIND == 2
// Relative to max(1, |result|) 2^-47.
// Poles are NaN, as in PyTorch, 0 is -+Inf.
MOTH_FN real m_digamma(real x) {
  double d = (double)x, y = 0;
  if (x == 0)
    return m_copysign(m_inf(), -x);
  if (x < 0) {
    double f = d - moth_libm_rint(d);
    if (!(m_abs(x) < m_inf()) || f == 0)
      return m_nan();
    y = -3.14159265358979324 / moth_libm_tan(3.14159265358979324 * f);
    d = 1 - d;
  }
  return (real)m_digamma_up_(d, y);
}
#endif
// Hurwitz' zeta(s, q), the sum of (q + k)^-s over k >= 0, for whole s >= 2 and q > 0: ten terms or more,
// then Euler and Maclaurin's series; relative error 1e-15.
MOTH_FN double m_zeta_(double s, double q) {
  double a = q, sum = moth_libm_pow(q, -s), b = 0;
  if (!(q < (double)m_inf()))
    return q != q ? q : 0;
  for (int i = 0; i < 9 || a <= 9; i++) {
    a += 1;
    b = moth_libm_pow(a, -s);
    sum += b;
    if (b < 1e-17 * sum)
      return sum;
  }
  sum += b * a / (s - 1) - 0.5 * b;
  // B_2k / (2k)!, times s (s + 1) ... (s + 2k - 2), over a^(s + 2k - 1)
  const double even[12] = {
      1.0 / 12,
      -1.0 / 720,
      1.0 / 30240,
      -1.0 / 1209600,
      1.0 / 47900160,
      -691.0 / 1307674368000,
      1.0 / 74724249600,
      -3617.0 / 10670622842880000,
      43867.0 / 5109094217170944000,
      -174611.0 / 802857662698291200000.0,
      77683.0 / 14101100039391805440000.0,
      -236364091.0 / 1693824136731743669452800000.0,
  };
  double rising = s, power = b / a;
  for (int k = 0; k < 12; k++) {
    double term = rising * power * even[k];
    sum += term;
    rising *= (s + 2 * k + 1) * (s + 2 * k + 2);
    power /= a * a;
  }
  return sum;
}
// The first derivative of digamma: that of a + 8 and eight squares of reciprocals, and its asymptotic series; left of 0 by
// reflection. In double for both kinds, and branch-free.
MOTH_FN real m_trigamma(real x) {
  double a = (double)m_abs(x);
  int left = x < 0, low = a < 8;
  double b = left ? a + 1 : a, c = low ? b : 1; // trigamma(1 + |x|) on the left
  double q1 = 1 / c, down = q1 * q1;
  double p = (c + 1) * (c + 1), q = (c + 2) * (c + 2), r = (c + 3) * (c + 3), s = (c + 4) * (c + 4);
  double t = (c + 5) * (c + 5), u = (c + 6) * (c + 6), v = (c + 7) * (c + 7);
  down += ((p + q) * r + p * q) / (p * q * r) + (s + t) / (s * t) + (u + v) / (u * v);
  double d = low ? b + 8 : b, w = 1 / d, z = w * w;
  double tail =
      (((((((43867.0 / 798 * z - 3617.0 / 510) * z + 7.0 / 6) * z - 691.0 / 2730) * z + 5.0 / 66) *
             z -
         1.0 / 30) *
            z +
        1.0 / 42) *
           z -
       1.0 / 30) *
          z +
      1.0 / 6;
  double y = w + 0.5 * z + w * z * tail + (low ? down : 0);
  double f = a - moth_libm_rint(a), sine = m_wide_sin_fast_(3.14159265358979324 * f);
  y = left ? 9.8696044010893586 / (sine * sine) - y : y;
  y = ((x <= 0) & (f == 0)) ? (double)m_inf() : y;
  return x == m_inf() ? 0 : x == -m_inf() ? m_nan() : (real)y;
}
// The n-th derivative of digamma, (-1)^(n+1) n! zeta(n + 1, x); left of 0 through the sum over all
// integers, which has a period of 1. NaN where n is no whole number >= 0. In double for both kinds: float32
// <= 1.5 ULP; float64 (n = 1, 2) relative to max(1, |result|) 200 ULP, the worst beside roots left of 0.
MOTH_FN real m_polygamma(real x, real order) {
  double n = (double)order, s = n + 1, q = (double)x,
         sign = s / 2 == moth_libm_rint(s / 2) ? 1 : -1;
  double factorial = 1, f = q - moth_libm_rint(q), z;
  if (n == 0)
    return m_digamma(x);
  if (n == 1)
    return m_trigamma(x);
  if (!(n > 0) || n != moth_libm_rint(n))
    return m_nan();
  for (double k = 2; k <= n && k < 172; k++)
    factorial *= k;
  if (q > 0) {
    z = m_zeta_(s, q);
  } else if (f == 0 || x == -m_inf()) { // a pole: from the right
    return sign > 0 ? m_inf() : -m_inf();
  } else {
    double near = f < 0 ? -f : f;
    z = f > 0 ? m_zeta_(s, near) + sign * m_zeta_(s, 1 - near)
              : m_zeta_(s, 1 - near) + sign * m_zeta_(s, near);
    z -= sign * m_zeta_(s, 1 - q);
  }
  return (real)(sign * factorial * z);
}
// As PyTorch: from the nearer end.
MOTH_FN real m_lerp(real a, real b, real w) {
  real d = b - a;
  return m_abs(w) < (real)0.5 ? a + w * d : b - d * (1 - w);
}
// x moved towards 0 by k, 0 within k of it; and its derivative, times g.
MOTH_FN real m_softshrink(real x, real k) {
  real d = x - m_copysign(k, x);
  return m_abs(x) <= k ? 0 : d;
}
MOTH_FN real m_shrink(real g, real x, real k) {
  return m_abs(x) <= k ? 0 : g;
}
// g where x > 0, else g w: prelu of g = x.
MOTH_FN real m_prelu(real g, real x, real w) {
  return x > 0 ? g : g * w;
}
// x sigmoid(z): <= 3.5 ULP; and its derivative by z, times g.
MOTH_FN real m_gated(real x, real z) {
  return x * m_sigmoid(z);
}
MOTH_FN real m_gated_backward(real g, real x, real z) {
  return g * x * m_sigmoid(z) * m_sigmoid(-z);
}
// d^2 / (2 beta) where |d| < beta, else |d| - beta / 2, of d = x - y; times `scale`. And its derivative by x, times g.
MOTH_FN real m_smooth_l1(real x, real y, real beta, real scale) {
  real d = m_abs(x - y), c = d < beta ? d : beta;
  real near = c * (scale / beta) * (d - c * (real)0.5);
  return beta == 0 ? d * scale : near;
}
MOTH_FN real m_smooth_l1_backward(real g, real x, real y, real beta, real scale) {
  real d = x - y, sign = d > 0 ? 1 : d < 0 ? -1 : d;
  real slope = m_abs(d) < beta ? d / beta : sign;
  return g * (slope * scale);
}
// log(e^a + e^b): <= 2 ULP of max(|a|, |b|, |result|).
MOTH_FN real m_logaddexp(real a, real b) {
  real m = a > b ? a : b, d = a == b ? 0 : -m_abs(a - b);
  return m + m_log1p_unit_(m_exp(d));
}

// ---- derivatives, g times that of the function ------------------------------------------------

// Where a derivative has a root, terms cancel; those of gelu, gelu_tanh, silu and mish are within
// 6 ULP of max(|result|, |g| / 2), the others within 3 ULP of the result.

MOTH_FN real m_gelu_tanh_backward(real g, real x) {
  real c = x < -30 ? -30 : x > 30 ? 30 : x, z = m_gelu_tanh_arg_(c);
  real s = m_sigmoid(z), dz = (real)0.21406444881780076 * c * c + (real)1.5957691216057308;
  return g * (s + c * dz * s * m_sigmoid(-z));
}
MOTH_FN real m_silu_backward(real g, real x) {
  real c = x < -1000 ? -1000 : x > 1000 ? 1000 : x, s = m_sigmoid(c);
  return g * (s + s * (c * m_sigmoid(-c)));
}
MOTH_FN real m_softplus_backward(real g, real x, real beta, real threshold) {
  real z = x * beta;
  return z > threshold ? g : g * m_sigmoid(z);
}
MOTH_FN real m_elu_backward(real g, real x, real alpha) {
  return x > 0 ? g : g * alpha * m_exp(x);
}
MOTH_FN real m_celu_backward(real g, real x, real alpha) {
  return x > 0 ? g : g * m_exp(x / alpha);
}
MOTH_FN real m_selu_backward(real g, real x) {
  real d = (real)(1.0507009873554804934193349852946 * 1.6732632423543772848170429916717) * m_exp(x);
  return g * (x > 0 ? (real)1.0507009873554804934193349852946 : d);
}
MOTH_FN real m_leaky_relu_backward(real g, real x, real slope) {
  return x > 0 ? g : g * slope;
}
MOTH_FN real m_threshold_backward(real g, real x, real threshold) {
  return x <= threshold ? 0 : g;
}
// The gradient passes where x is between the bounds.
MOTH_FN real m_clamp_backward(real g, real x, real lo, real hi) {
  return ((x > lo) & (x < hi)) ? g : 0;
}
// The place of x on the grid of quantised values.
MOTH_FN real m_grid_(real x, real scale, real zero) {
  return m_round(x * (1 / scale)) + zero;
}
MOTH_FN real m_fake_quantize(real x, real scale, real zero, real lo, real hi) {
  real q = m_grid_(x, scale, zero);
  q = q < lo ? lo : q;
  q = q > hi ? hi : q;
  return (q - zero) * scale;
}
MOTH_FN real m_fake_quantize_backward(real g, real x, real scale, real zero, real lo, real hi) {
  real q = m_grid_(x, scale, zero);
  return ((q >= lo) & (q <= hi)) ? g : 0;
}
// dropout's gradient
MOTH_FN real m_masked_scale(real g, unsigned char mask, real scale) {
  return mask ? g * scale : 0;
}
MOTH_FN real m_hardtanh_backward(real g, real x, real lo, real hi) {
  return x <= lo || x >= hi ? 0 : g;
}
MOTH_FN real m_hardsigmoid_backward(real g, real x) {
  return x > -3 && x < 3 ? g / 6 : 0;
}
MOTH_FN real m_hardswish_backward(real g, real x) {
  real y = x < 3 ? g * (x / 3 + (real)0.5) : g;
  return x <= -3 ? 0 : y;
}
MOTH_FN real m_mish_backward(real g, real x) {
  real c = x < -1000 ? -1000 : x > 20 ? 20 : x;
  real e = m_exp(c), w = e * (e + 2), d = w + 2;
  real y = g * (w / d + 4 * c * e * (1 + e) / (d * d));
  return x > 20 ? g : y;
}
// The next two take the result y of the function.
MOTH_FN real m_sigmoid_backward(real g, real y) {
  return g * (y * (1 - y));
}
MOTH_FN real m_tanh_backward(real g, real y) {
  return g * (1 - y * y);
}
MOTH_FN real m_log_sigmoid_backward(real g, real x) {
  return g * m_sigmoid(-x);
}

// ---- arithmetic, floating point ---------------------------------------------------------------

MOTH_FN real m_add(real a, real b, real alpha) {
  return a + alpha * b;
}
MOTH_FN real m_sub(real a, real b, real alpha) {
  return a - alpha * b;
}
MOTH_FN real m_mul(real a, real b) {
  return a * b;
}
MOTH_FN real m_div(real a, real b) {
  return a / b;
}
MOTH_FN real m_div_trunc(real a, real b) {
  return m_trunc(a / b);
}
// The floor of the exact quotient, rounded (float64: 2 ULP for quotients of 2^50 and more); zero
// divisors, Inf and NaN as in PyTorch.
MOTH_FN real m_div_floor(real a, real b) {
#if MOTH_REAL_KIND == 1
  double q = (double)a / (double)b; // not whole unless the exact quotient is, below 2^29
  real f = (real)moth_libm_floor(q);
  f = m_abs(b) == m_inf() && m_abs(a) > 0 && (a < 0) != (b < 0) ? (real)-1 : f;
  return b != b || (m_abs(a) == m_inf() && b != 0) ? m_nan() : f;
#else
  real m = m_fmod(a, b), d = (a - m) / b, q = a / b;
  d = m != 0 && (b < 0) != (m < 0) ? d - 1 : d;
  real f = m_floor(d);
  f = d - f > (real)0.5 ? f + 1 : f;
  f = d == 0 ? m_copysign(0, q) : f;
  return b == 0 ? q : f;
#endif
}
// With the divisor's sign.
MOTH_FN real m_remainder(real a, real b) {
  real m = m_fmod(a, b);
  return ((m != 0) & ((b < 0) != (m < 0))) ? m + b : m;
}
MOTH_FN int m_remainder_easy(real a, real b) {
  return m_fmod_easy(a, b);
}
MOTH_FN real m_remainder_fast(real a, real b) {
  real m = m_fmod_fast(a, b);
  return ((m != 0) & ((b < 0) != (m < 0))) ? m + b : m;
}
// NaN propagates through maximum and minimum, and is ignored by fmax and fmin.
MOTH_FN real m_maximum(real a, real b) {
  return a > b || a != a ? a : b;
}
MOTH_FN real m_minimum(real a, real b) {
  return a < b || a != a ? a : b;
}
MOTH_FN real m_fmax(real a, real b) {
  return a > b || b != b ? a : b;
}
MOTH_FN real m_fmin(real a, real b) {
  return a < b || b != b ? a : b;
}
MOTH_FN real m_neg(real x) {
  return -x;
}
// 0 for NaN, as in PyTorch.
MOTH_FN real m_sign(real x) {
  return (real)((x > 0 ? 1 : 0) - (x < 0 ? 1 : 0));
}
MOTH_FN real m_addcmul(real a, real b, real c, real value) {
  return a + value * b * c;
}
MOTH_FN real m_addcdiv(real a, real b, real c, real value) {
  return a + value * b / c;
}

// ---- parts of a number ------------------------------------------------------------------------

// The exponent e with 0.5 <= |x| 2^-e < 1; 0 for 0, Inf and NaN. In double: no float32 is denormal there.
MOTH_FN real m_frexp_exponent(real x) {
  double d = (double)m_abs(x), scaled = d < 0x1p-1022 ? d * 0x1p54 : d;
  int e = (int)(m_f64_bits(scaled) >> 52) - 1022 - (d < 0x1p-1022 ? 54 : 0);
  return d > 0 && d < (double)m_inf() ? (real)e : 0;
}
MOTH_FN real m_frexp_mantissa(real x) {
  double d = (double)x, a = d < 0 ? -d : d, scaled = a < 0x1p-1022 ? d * 0x1p54 : d;
  unsigned long long bits = m_f64_bits(scaled) & 0x800fffffffffffffull;
  return a > 0 && a < (double)m_inf() ? (real)m_f64_from_bits(bits | 0x3fe0000000000000ull) : x;
}

#include "math_special.h"
