// Formulas of complex numbers, structs of two parts. Only math.h includes this, and only src/codegen reads it: the names
// of the structs get the suffixes of dtypes.lua.
//
// Not C's _Complex: its product calls a slow function that repairs infinities, and CUDA C has none. Transcendental
// functions compute in double for both dtypes, so that those of complex64 neither overflow in between nor lose digits;
// branch cuts and signed zeros are those of C99 (Kahan, Branch Cuts for Complex Elementary Functions, 1987).

#if MOTH_REAL_KIND == 6
#define part float
#else
#define part double
#endif

struct complex {
  part re, im;
};
struct wide {
  double re, im;
};

MOTH_FN struct wide z_wide(struct complex a) {
  struct wide z = {(double)a.re, (double)a.im};
  return z;
}
MOTH_FN struct complex z_narrow(struct wide a) {
  struct complex z = {(part)a.re, (part)a.im};
  return z;
}
MOTH_FN struct wide z_of(double re, double im) {
  struct wide z = {re, im};
  return z;
}
// a * b, where b = 0 counts more than an infinite a.
MOTH_FN double z_times(double a, double b) {
  return b == 0 ? moth_libm_copysign(1.0, a) * b : a * b;
}
MOTH_FN double z_abs(struct wide z) {
  return moth_libm_hypot(z.re, z.im);
}
MOTH_FN struct wide z_mul(struct wide a, struct wide b) {
  return z_of(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re);
}
// Smith's division: no overflow in between.
MOTH_FN struct wide z_div(struct wide a, struct wide b) {
  if (b.re == 0 && b.im == 0)
    return z_of(a.re / moth_libm_fabs(b.re), a.im / moth_libm_fabs(b.re));
  if (moth_libm_fabs(b.re) >= moth_libm_fabs(b.im)) {
    double r = b.im / b.re, d = b.re + b.im * r;
    return z_of((a.re + a.im * r) / d, (a.im - a.re * r) / d);
  }
  double r = b.re / b.im, d = b.re * r + b.im;
  return z_of((a.re * r + a.im) / d, (a.im * r - a.re) / d);
}
MOTH_FN struct wide z_exp(struct wide z) {
  if (z.im == 0)
    return z_of(moth_libm_exp(z.re), z.im);
  if (z.re > 709) {
    double h = moth_libm_exp(z.re * 0.5);
    return z_of(h * moth_libm_cos(z.im) * h, h * moth_libm_sin(z.im) * h);
  }
  double e = moth_libm_exp(z.re);
  if (e == 0)
    return z_of(0, 0);
  return z_of(e * moth_libm_cos(z.im), e * moth_libm_sin(z.im));
}
MOTH_FN struct wide z_log(struct wide z) {
  double h = z_abs(z), angle = moth_libm_atan2(z.im, z.re);
  if (h > 0.5 && h < 2) {
    double a = moth_libm_fabs(z.re), b = moth_libm_fabs(z.im);
    double x = a > b ? a : b, y = a > b ? b : a;
    return z_of(0.5 * moth_libm_log1p((x - 1) * (x + 1) + y * y), angle);
  }
  if (h < 1e-300 || h > 1e300) // hypot may have left the range
    return z_of(moth_libm_log(z_abs(z_of(z.re * 0x1p-2 * (h < 1 ? 0x1p66 : 1),
                                         z.im * 0x1p-2 * (h < 1 ? 0x1p66 : 1)))) +
                    (h < 1 ? -64 : 2) * 0.69314718055994531,
                angle);
  return z_of(moth_libm_log(h), angle);
}
MOTH_FN struct wide z_sqrt(struct wide z) {
  if (z.re == 0 && z.im == 0)
    return z_of(0, z.im);
  double big = moth_libm_fabs(z.re) > 4e307 || moth_libm_fabs(z.im) > 4e307;
  double scale = big ? 0.25 : 1, back = big ? 2 : 1;
  double t = moth_libm_sqrt(
                 (moth_libm_fabs(z.re * scale) + z_abs(z_of(z.re * scale, z.im * scale))) * 0.5) *
             back;
  if (z.im - z.im != 0 && z.im == z.im)
    return z_of(t, z.im);
  if (z.re >= 0)
    return z_of(t, z.im / (2 * t));
  if (z.re < 0)
    return z_of(moth_libm_fabs(z.im) / (2 * t), moth_libm_copysign(t, z.im));
  return z_of(t, z.re); // NaN
}
MOTH_FN struct wide z_sinh(struct wide z) {
  return z_of(z_times(moth_libm_sinh(z.re), moth_libm_cos(z.im)),
              z_times(moth_libm_cosh(z.re), moth_libm_sin(z.im)));
}
MOTH_FN struct wide z_cosh(struct wide z) {
  return z_of(z_times(moth_libm_cosh(z.re), moth_libm_cos(z.im)),
              z_times(moth_libm_sinh(z.re), moth_libm_sin(z.im)));
}
MOTH_FN struct wide z_tanh(struct wide z) {
  if (moth_libm_fabs(z.re) > 22) {
    double e = moth_libm_exp(-2 * moth_libm_fabs(z.re));
    double s = z.im - z.im == 0 ? moth_libm_sin(z.im) * moth_libm_cos(z.im) : 0;
    return z_of(moth_libm_copysign(1.0, z.re), 4 * s * e);
  }
  double t = moth_libm_tan(z.im), b = 1 + t * t, s = moth_libm_sinh(z.re),
         r = moth_libm_sqrt(1 + s * s);
  return z_of(b * r * s / (1 + b * s * s), t / (1 + b * s * s));
}
MOTH_FN struct wide z_asin(struct wide z) {
  struct wide a = z_sqrt(z_of(1 - z.re, -z.im)), b = z_sqrt(z_of(1 + z.re, z.im));
  return z_of(moth_libm_atan2(z.re, a.re * b.re - a.im * b.im),
              moth_libm_asinh(a.re * b.im - a.im * b.re));
}
MOTH_FN struct wide z_acos(struct wide z) {
  struct wide a = z_sqrt(z_of(1 - z.re, -z.im)), b = z_sqrt(z_of(1 + z.re, z.im));
  return z_of(2 * moth_libm_atan2(a.re, b.re), moth_libm_asinh(b.re * a.im - b.im * a.re));
}
MOTH_FN struct wide z_acosh(struct wide z) {
  struct wide a = z_sqrt(z_of(z.re - 1, z.im)), b = z_sqrt(z_of(z.re + 1, z.im));
  return z_of(moth_libm_asinh(a.re * b.re + a.im * b.im), 2 * moth_libm_atan2(a.im, b.re));
}
MOTH_FN struct wide z_atanh(struct wide z) {
  double x = moth_libm_fabs(z.re), y = z.im, re;
  if (x > 1e150 || moth_libm_fabs(y) > 1e150) { // x / |z|^2, and its limits
    double h = z_abs(z);
    re = h - h == 0 ? x / h / h : 0;
    return z_of(moth_libm_copysign(re, z.re), moth_libm_copysign(1.5707963267948966, y));
  }
  re = 0.25 * moth_libm_log1p(4 * x / ((1 - x) * (1 - x) + y * y));
  return z_of(moth_libm_copysign(re, z.re),
              0.5 * moth_libm_atan2(2 * y, (1 - x) * (1 + x) - y * y));
}
// Small whole exponents by multiplication, which is exact where the result is whole.
MOTH_FN struct wide z_pow(struct wide a, struct wide b) {
  if (b.im == 0 && b.re == moth_libm_floor(b.re) && moth_libm_fabs(b.re) <= 64) {
    int n = (int)moth_libm_fabs(b.re);
    struct wide r = z_of(1, 0);
    for (; n; n >>= 1) {
      if (n & 1)
        r = z_mul(r, a);
      a = z_mul(a, a);
    }
    return b.re < 0 ? z_div(z_of(1, 0), r) : r;
  }
  if (a.re == 0 && a.im == 0)
    return b.re > 0 ? z_of(0, 0) : z_div(z_of(1, 0), z_of(0, 0));
  return z_exp(z_mul(b, z_log(a)));
}

// ---- arithmetic -------------------------------------------------------------------------------

MOTH_FN real m_add(real a, real b, real alpha) {
  struct complex z = {a.re + alpha.re * b.re, a.im + alpha.re * b.im};
  return z;
}
MOTH_FN real m_sub(real a, real b, real alpha) {
  struct complex z = {a.re - alpha.re * b.re, a.im - alpha.re * b.im};
  return z;
}
MOTH_FN real m_mul(real a, real b) {
  struct complex z = {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  return z;
}
MOTH_FN real m_div(real a, real b) {
  return z_narrow(z_div(z_wide(a), z_wide(b)));
}
MOTH_FN real m_pow(real a, real b) {
  return z_narrow(z_pow(z_wide(a), z_wide(b)));
}
MOTH_FN real m_lerp(real a, real b, real w) {
  struct complex d = {b.re - a.re, b.im - a.im};
  struct complex z = {a.re + (w.re * d.re - w.im * d.im), a.im + (w.re * d.im + w.im * d.re)};
  return z;
}
MOTH_FN real m_addcmul(real a, real b, real c, real value) {
  struct complex z = {a.re + value.re * (b.re * c.re - b.im * c.im),
                      a.im + value.re * (b.re * c.im + b.im * c.re)};
  return z;
}
MOTH_FN real m_addcdiv(real a, real b, real c, real value) {
  real q = m_div(b, c);
  struct complex z = {a.re + value.re * q.re, a.im + value.re * q.im};
  return z;
}
MOTH_FN real m_neg(real x) {
  struct complex z = {-x.re, -x.im};
  return z;
}
MOTH_FN real m_conj(real x) {
  struct complex z = {x.re, -x.im};
  return z;
}
MOTH_FN real m_square(real x) {
  return m_mul(x, x);
}
#if MOTH_REAL_KIND == 6
MOTH_FN part m_abs(real x) { // in double nothing leaves the range
  double a = moth_libm_fabs((double)x.re), b = moth_libm_fabs((double)x.im);
  double r = moth_libm_sqrt(a * a + b * b);
  r = a > 1.7976931348623157e308 ? a : r;
  return (part)(b > 1.7976931348623157e308 ? b : r);
}
#else
MOTH_FN part m_abs(real x) {
  return (part)z_abs(z_wide(x));
}
#endif
MOTH_FN part m_angle(real x) {
  double angle = moth_libm_atan2((double)x.im, (double)x.re);
  return (part)(x.re == x.re ? x.im == x.im ? angle : (double)x.im : (double)x.re);
}
MOTH_FN real m_sgn(real x) {
#if MOTH_REAL_KIND == 6
  double h = moth_libm_sqrt((double)x.re * (double)x.re + (double)x.im * (double)x.im);
#else
  double h = z_abs(z_wide(x));
#endif
  struct complex z = {(part)(h == 0 ? 0 : (double)x.re / h), (part)(h == 0 ? 0 : (double)x.im / h)};
  return z;
}
MOTH_FN real m_reciprocal(real x) {
  return z_narrow(z_div(z_of(1, 0), z_wide(x)));
}

// ---- transcendental functions -----------------------------------------------------------------

MOTH_FN real m_exp(real x) {
  return z_narrow(z_exp(z_wide(x)));
}
MOTH_FN real m_exp2(real x) {
  struct wide z = z_wide(x);
  return z_narrow(z_exp(z_of(z.re * 0.69314718055994531, z.im * 0.69314718055994531)));
}
MOTH_FN real m_expm1(real x) {
  struct wide z = z_wide(x);
  double s = moth_libm_sin(z.im * 0.5), e = moth_libm_exp(z.re);
  return z_narrow(z_of(z_times(moth_libm_expm1(z.re), moth_libm_cos(z.im)) - 2 * s * s,
                       z_times(e, moth_libm_sin(z.im))));
}
MOTH_FN real m_log(real x) {
  return z_narrow(z_log(z_wide(x)));
}
MOTH_FN real m_log2(real x) {
  struct wide z = z_log(z_wide(x));
  return z_narrow(z_of(z.re * 1.4426950408889634, z.im * 1.4426950408889634));
}
MOTH_FN real m_log10(real x) {
  struct wide z = z_log(z_wide(x));
  return z_narrow(z_of(z.re * 0.43429448190325183, z.im * 0.43429448190325183));
}
MOTH_FN real m_log1p(real x) {
  struct wide z = z_wide(x);
  if (moth_libm_fabs(z.re) < 0.5 && moth_libm_fabs(z.im) < 1)
    return z_narrow(z_of(0.5 * moth_libm_log1p(z.re * (2 + z.re) + z.im * z.im),
                         moth_libm_atan2(z.im, 1 + z.re)));
  return z_narrow(z_log(z_of(1 + z.re, z.im)));
}
MOTH_FN real m_sqrt(real x) {
  return z_narrow(z_sqrt(z_wide(x)));
}
MOTH_FN real m_rsqrt(real x) {
  return z_narrow(z_div(z_of(1, 0), z_sqrt(z_wide(x))));
}
// Of i x, times -i, where the functions of circles follow from those of hyperbolas.
MOTH_FN real m_sin(real x) {
  struct wide z = z_sinh(z_of(-(double)x.im, (double)x.re));
  return z_narrow(z_of(z.im, -z.re));
}
MOTH_FN real m_cos(real x) {
  return z_narrow(z_cosh(z_of(-(double)x.im, (double)x.re)));
}
MOTH_FN real m_tan(real x) {
  struct wide z = z_tanh(z_of(-(double)x.im, (double)x.re));
  return z_narrow(z_of(z.im, -z.re));
}
MOTH_FN real m_asin(real x) {
  return z_narrow(z_asin(z_wide(x)));
}
MOTH_FN real m_acos(real x) {
  return z_narrow(z_acos(z_wide(x)));
}
MOTH_FN real m_atan(real x) {
  struct wide z = z_atanh(z_of(-(double)x.im, (double)x.re));
  return z_narrow(z_of(z.im, -z.re));
}
MOTH_FN real m_sinh(real x) {
  return z_narrow(z_sinh(z_wide(x)));
}
MOTH_FN real m_cosh(real x) {
  return z_narrow(z_cosh(z_wide(x)));
}
MOTH_FN real m_tanh(real x) {
  return z_narrow(z_tanh(z_wide(x)));
}
MOTH_FN real m_asinh(real x) {
  struct wide z = z_asin(z_of(-(double)x.im, (double)x.re));
  return z_narrow(z_of(z.im, -z.re));
}
MOTH_FN real m_acosh(real x) {
  return z_narrow(z_acosh(z_wide(x)));
}
MOTH_FN real m_atanh(real x) {
  return z_narrow(z_atanh(z_wide(x)));
}
MOTH_FN real m_sigmoid(real x) {
  struct wide z = z_wide(x);
  if (z.re < 0) { // exp(x) / (1 + exp(x)): no overflow
    struct wide e = z_exp(z);
    return z_narrow(z_div(e, z_of(1 + e.re, e.im)));
  }
  struct wide e = z_exp(z_of(-z.re, -z.im));
  return z_narrow(z_div(z_of(1, 0), z_of(1 + e.re, e.im)));
}
MOTH_FN real m_silu(real x) {
  return m_mul(x, m_sigmoid(x));
}
MOTH_FN real m_sigmoid_backward(real grad, real y) {
  struct complex rest = {1 - y.re, -y.im};
  return m_mul(grad, m_mul(y, rest));
}
MOTH_FN real m_tanh_backward(real grad, real y) {
  real s = m_mul(y, y);
  struct complex rest = {1 - s.re, -s.im};
  return m_mul(grad, rest);
}

// ---- choices and comparisons ------------------------------------------------------------------

MOTH_FN real m_where(unsigned char c, real a, real b) {
  struct complex z = {c ? a.re : b.re, c ? a.im : b.im};
  return z;
}
MOTH_FN real m_masked_fill(real x, unsigned char mask, real value) {
  return m_where(mask, value, x);
}
MOTH_FN unsigned char m_eq(real a, real b) {
  return (unsigned char)((a.re == b.re) & (a.im == b.im));
}
MOTH_FN unsigned char m_ne(real a, real b) {
  return (unsigned char)((a.re != b.re) | (a.im != b.im));
}
MOTH_FN unsigned char z_true(real x) {
  return (unsigned char)((x.re != 0) | (x.im != 0));
}
MOTH_FN unsigned char m_logical_and(real a, real b) {
  return (unsigned char)(z_true(a) & z_true(b));
}
MOTH_FN unsigned char m_logical_or(real a, real b) {
  return (unsigned char)(z_true(a) | z_true(b));
}
MOTH_FN unsigned char m_logical_xor(real a, real b) {
  return (unsigned char)(z_true(a) ^ z_true(b));
}
MOTH_FN unsigned char m_logical_not(real x) {
  return (unsigned char)(z_true(x) ^ 1);
}
MOTH_FN unsigned char m_isnan(real x) {
  return (unsigned char)((x.re != x.re) | (x.im != x.im));
}
MOTH_FN unsigned char m_isfinite(real x) {
  return (unsigned char)((x.re - x.re == 0) & (x.im - x.im == 0));
}
MOTH_FN unsigned char m_isinf(real x) {
  return (unsigned char)(((x.re == x.re) & (x.re - x.re != 0)) |
                         ((x.im == x.im) & (x.im - x.im != 0)));
}
