// Checks kernels/math.h against libm in the next wider type, for one compute type:
//   cc -DMOTH_REAL_KIND=1 -Dreal=float ... math_check.c -lm
// Prints "name max_ulp mean_ulp bound OK|FAIL" for every function and fails if one fails; with
// the argument "bench", prints nanoseconds per element instead. Every function runs inside a
// plain loop over an array, so what is checked is the code the vectoriser made of it.

#ifndef MOTH_FN
#define MOTH_FN static inline __attribute__((always_inline))
#endif
#include "../../kernels/math.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int failures, checked;

static void verdict(const char *name, double max, double mean, double bound) {
  int ok = max <= bound;
  checked++;
  failures += !ok;
  printf("%-22s %9.3f %7.4f %8g %s\n", name, max, mean, bound, ok ? "OK" : "FAIL");
}
static void expect(const char *name, int bad) {
  verdict(name, bad, 0, 0);
}

#if MOTH_REAL_KIND <= 2

static unsigned random_bits(void) {
  static unsigned long long s = 88172645463325252ull;
  s ^= s << 13, s ^= s >> 7, s ^= s << 17;
  return (unsigned)(s >> 32);
}

#if MOTH_REAL_KIND == 1
typedef double wide;
#define L(f)       f
#define KIND(a, b) (a)
#define DIGITS     FLT_MANT_DIG
#define EXP_MIN    FLT_MIN_EXP
#define REAL_MAX   FLT_MAX
#define REAL_MIN   FLT_MIN
#define SAMPLES    (1 << 19)
#else
typedef long double wide;
#define L(f)       f##l
#define KIND(a, b) (b)
#define DIGITS     DBL_MANT_DIG
#define EXP_MIN    DBL_MIN_EXP
#define REAL_MAX   DBL_MAX
#define REAL_MIN   DBL_MIN
#define SAMPLES    (1 << 16)
#endif

// The distance of got and want in units of the last place of the larger of want and scale.
static double ulps(real got, wide want, wide scale) {
  if (want != want)
    return got != got ? 0 : INFINITY;
  if (got != got)
    return INFINITY;
  wide top = L(ldexp)(1, KIND(128, 1024));
  if (want > top)
    want = top;
  if (want < -top)
    want = -top;
  wide g = (wide)got;
  if (g > top)
    g = top;
  if (g < -top)
    g = -top;
  if (g == want)
    return 0;
  wide s = L(fabs)(want) > scale ? L(fabs)(want) : scale;
  int e = s > 0 ? L(ilogb)(s) + 1 : EXP_MIN;
  e = e < EXP_MIN ? EXP_MIN : e;
  return (double)L(ldexp)(L(fabs)(g - want), DIGITS - e);
}

static const real specials[] = {0,
                                (real)-0.0,
                                1,
                                -1,
                                (real)0.5,
                                (real)-0.5,
                                2,
                                -2,
                                3,
                                -3,
                                (real)INFINITY,
                                (real)-INFINITY,
                                (real)NAN,
                                REAL_MAX,
                                -REAL_MAX,
                                REAL_MIN,
                                -REAL_MIN,
                                REAL_MIN / 2,
                                -REAL_MIN / 2,
                                REAL_MIN / (1 << (DIGITS > 30 ? 30 : DIGITS - 1)),
                                (real)1e-30,
                                (real)1e30,
                                (real)100.5,
                                (real)-100.5,
                                (real)88.72284,
                                (real)-103.97,
                                (real)709.7827,
                                (real)-745.2,
                                (real)10.869833946228027,  // found where a bound did not hold: tan,
                                (real)0.39098714185570316, // expm1
                                (real)-3.9232995510101318}; // and lgamma
#define SPECIALS (int)(sizeof(specials) / sizeof(specials[0]))

static real from_bits(unsigned long long u) {
  real x;
  memcpy(&x, &u, sizeof x);
  return x == x ? x : (real)NAN; // a signalling one is not ours to judge
}
// Sample i: the specials, then bit patterns at a fixed stride, then points of [lo, hi].
static real sample(int i, double lo, double hi) {
  int half = SAMPLES / 2;
  if (i < SPECIALS)
    return specials[i];
  if (i < half)
    return from_bits((unsigned long long)i * KIND(4294967295ull / (SAMPLES / 2) - 6,
                                                  18446744073709551615ull / (SAMPLES / 2) - 999));
  double t = (i - half + random_bits() * 0x1p-32) / half;
  return (real)(lo + (hi - lo) * t);
}

static real in_x[SAMPLES], in_y[SAMPLES], out[SAMPLES];

typedef void unary_loop(const real *x, real *y, int n);
typedef void binary_loop(const real *x, const real *y, real *z, int n);

// What -Inf goes to in functions x * f(x) with f(-Inf) = 0, where the product is NaN.
#define TAIL(expr) (x == -(wide)INFINITY ? (wide)0 : (wide)(expr))
#define SQRT1_2W   0.707106781186547524400844362104849039L
#define PIW        3.141592653589793238462643383279502884L
#define PHI(x)     ((wide)0.5 * L(erfc)(-(x) * (wide)SQRT1_2W))
#define DENS(x)    (L(exp)(-(x) * (x) / 2) * (wide)0.398942280401432677939946059934L)
#define SIG(x)     (1 / (1 + L(exp)(-(x))))
#define GT(x)      ((wide)1.59576912160573071175978423973L * ((x) + (wide)0.044715L * (x) * (x) * (x)))
#define SP(x)      ((x) > 40 ? (x) : L(log1p)(L(exp)(x)))
#define LIM(x, m)  ((x) < -(m) ? -(m) : (x) > (m) ? (m) : (x))

// Digamma by the recurrence up to 40 and the reflection formula, in the wide type.
static wide ref_digamma(wide x) {
  if (x == 0)
    return L(copysign)((wide)INFINITY, -x);
  if (x < 0) {
    wide f = x - L(nearbyint)(x);
    if (x == -(wide)INFINITY || f == 0)
      return (wide)NAN;
    return ref_digamma(1 - x) - (wide)PIW / L(tan)((wide)PIW * f);
  }
  wide y = 0;
  for (; x < 40; x += 1)
    y -= 1 / x;
  if (x > 1e40L)
    return L(log)(x);
  wide z = 1 / (x * x);
  wide s = z * (1 / (wide)12 -
                z * (1 / (wide)120 - z * (1 / (wide)252 - z * (1 / (wide)240 - z / 132))));
  return y + L(log)(x) - 1 / (2 * x) - s;
}

// The derivatives of digamma, n = 1 and 2, by the recurrence up to 60, the asymptotic series and reflection.
static wide ref_polygamma(wide x, int n) {
  if (x != x || (x == -(wide)INFINITY && n == 1))
    return (wide)NAN;
  if (x <= 0) {
    if (x == L(nearbyint)(x)) /* a pole, as PyTorch has it */
      return n == 1 ? (wide)INFINITY : -(wide)INFINITY;
    wide f = x - L(nearbyint)(x), t = (wide)PIW * f;
    wide cosecant = (wide)PIW / L(sin)(t), square = cosecant * cosecant;
    if (n == 1)
      return square - ref_polygamma(1 - x, 1);
    wide cotangent = L(fabs)(f) == (wide)0.5 ? 0 : 1 / L(tan)(t);
    return ref_polygamma(1 - x, 2) - 2 * square * (wide)PIW * cotangent;
  }
  wide y = 0, z = x;
  for (; z < 60; z += 1)
    y += n == 1 ? 1 / (z * z) : -2 / (z * z * z);
  wide w = 1 / z, v = w * w;
  if (n == 1)
    return y + w + v / 2 + w * v * (1 / (wide)6 - v * (1 / (wide)30 - v * (1 / (wide)42 - v / 30)));
  return y - v - w * v - v * v * (1 / (wide)2 - v * (1 / (wide)6 - v * (1 / (wide)6 - v * 3 / 10)));
}

// Newton's steps on erf, and on erfc in the tails, from Giles' approximation.
static wide ref_erfinv(wide x) {
  wide a = L(fabs)(x), w = -L(log)((1 - x) * (1 + x)), y;
  if (!(a < 1))
    return a == 1 ? x * (wide)INFINITY : (wide)NAN;
  if (a < (wide)1e-10L)
    return x * (wide)0.886226925452758013649083741670572591L;
  y = w < 5 ? 1 : L(sqrt)(w);
  for (int i = 0; i < 60; i++) {
    wide f = a < (wide)0.5 ? L(erf)(y) - a : (1 - a) - L(erfc)(y);
    wide step = f / ((wide)1.12837916709551257389615890312154517L * L(exp)(-y * y));
    y -= step / (1 + y * step);
  }
  return L(copysign)(y, x);
}

// name, ours of real x, libm's of wide x, bound for float, for double, scale, range
#define UNARY_TABLE(F)                                                                             \
  F(exp, m_exp(x), L(exp)(x), 1.012, 1, 0, -104, 89)                                               \
  F(exp2, m_exp2(x), L(exp2)(x), 1.5, 1.5, 0, -150, 128)                                           \
  F(expm1, m_expm1(x), L(expm1)(x), 1.5, 2, 0, -20, 20)                                            \
  F(log, m_log(x), L(log)(x), 1, 1, 0, 0, 4)                                                       \
  F(log2, m_log2(x), L(log2)(x), 2, 2, 0, 0, 4)                                                    \
  F(log10, m_log10(x), L(log10)(x), 2, 2.5, 0, 0, 4)                                               \
  F(log1p, m_log1p(x), L(log1p)(x), 1.5, 1.5, 0, -1, 4)                                            \
  F(sqrt, m_sqrt(x), L(sqrt)(x), 0.5, 0.501, 0, 0, 4)                                              \
  F(rsqrt, m_rsqrt(x), 1 / L(sqrt)(x), 1.5, 1.5, 0, 0, 4)                                          \
  F(reciprocal, m_reciprocal(x), 1 / x, 0.501, 0.501, 0, -4, 4)                                    \
  F(sin, m_sin(x), L(sin)(x), 2, 1.5, 0, -20, 20)                                                  \
  F(cos, m_cos(x), L(cos)(x), 2, 1.5, 0, -20, 20)                                                  \
  F(tan, m_tan(x), L(tan)(x), 2.5, 2.5, 0, -20, 20)                                                \
  F(asin, m_asin(x), L(asin)(x), 2.5, 2, 0, -1, 1)                                                 \
  F(acos, m_acos(x), L(acos)(x), 2, 2, 0, -1, 1)                                                   \
  F(atan, m_atan(x), L(atan)(x), 2, 2, 0, -8, 8)                                                   \
  F(sinh, m_sinh(x), L(sinh)(x), 2.5, 2.5, 0, -10, 10)                                             \
  F(cosh, m_cosh(x), L(cosh)(x), 2, 2, 0, -10, 10)                                                 \
  F(tanh, m_tanh(x), L(tanh)(x), 2.5, 2.5, 0, -10, 10)                                             \
  F(asinh, m_asinh(x), L(asinh)(x), 2.5, 2.5, 0, -10, 10)                                          \
  F(acosh, m_acosh(x), L(acosh)(x), 2.5, 2.5, 0, 1, 20)                                            \
  F(atanh, m_atanh(x), L(atanh)(x), 2.5, 2.5, 0, -1, 1)                                            \
  F(erf, m_erf(x), L(erf)(x), 1.5, 1.5, 0, -4, 4)                                                  \
  F(erfc, m_erfc(x), L(erfc)(x), 2.5, 5, 0, -4, 10)                                                \
  F(lgamma, m_lgamma(x), L(lgamma)(x), 1, 8, 0, -10, 30)                                           \
  F(digamma, m_digamma(x), ref_digamma(x), 1.5, 32, KIND(0, 1), -10, 30)                           \
  F(trigamma, m_polygamma(x, 1), ref_polygamma(x, 1), 1.5, 32, KIND(0, 1), -10, 30)                \
  F(tetragamma, m_polygamma(x, 2), ref_polygamma(x, 2), 1.5, 200, KIND(0, 1), -10, 30)             \
  F(sigmoid, m_sigmoid(x), SIG(x), 2.5, 2.5, 0, -30, 30)                                           \
  F(log_sigmoid, m_log_sigmoid(x), x == -(wide)INFINITY ? x : -SP(-x), 3, 3, 0, -30, 30)           \
  F(silu, m_silu(x), TAIL(x *SIG(x)), 3, 3, 0, -110, 30)                                           \
  F(softplus, m_softplus(x, 1, 20), x > 20 ? x : SP(x), 3, 3, 0, -30, 30)                          \
  F(softplus_beta, m_softplus(x, 2, 30), x > 15 ? x : SP(2 * x) / 2, 4, 4, 0, -30, 30)             \
  F(gelu, m_gelu(x), TAIL(x *PHI(x)), 7, 1500, 0, -15, 5)                                          \
  F(gelu_body, m_gelu(x), TAIL(x *PHI(x)), 6, 40, (wide)1e-3L, -5, 5)                              \
  F(gelu_tanh, m_gelu_tanh(x), TAIL(x *SIG(GT(x))), 200, 1600, 0, -12, 5)                          \
  F(gelu_tanh_body, m_gelu_tanh(x), TAIL(x *SIG(GT(x))), 12, 12, (wide)1e-2L, -5, 5)               \
  F(mish, m_mish(x), TAIL(x *L(tanh)(SP(x))), 4, 4, 0, -30, 20)                                    \
  F(elu, m_elu(x, (real)1.5), x > 0 ? x : (wide)1.5 * L(expm1)(x), 2, 2, 0, -10, 3)                \
  F(celu, m_celu(x, 2), x > 0 ? x : 2 * L(expm1)(x / 2), 2, 2, 0, -10, 3)                          \
  F(selu, m_selu(x),                                                                               \
    (wide)1.0507009873554804934193349852946L *                                                     \
        (x > 0 ? x : (wide)1.6732632423543772848170429916717L * L(expm1)(x)),                      \
    3, 3, 0, -10, 3)                                                                               \
  F(softsign, m_softsign(x), L(fabs)(x) == INFINITY ? L(copysign)(1, x) : x / (1 + L(fabs)(x)),    \
    1.5, 1.5, 0, -10, 10)                                                                          \
  F(relu, m_relu(x), x < 0 ? 0 : x, 0, 0, 0, -3, 3)                                                \
  F(relu6, m_relu6(x), x<0 ? 0 : x> 6 ? 6 : x, 0, 0, 0, -3, 9)                                     \
  F(leaky_relu, m_leaky_relu(x, (real)0.25), x < 0 ? x / 4 : x, 0.5, 0.5, 0, -3, 3)                \
  F(hardtanh, m_hardtanh(x, -1, 2), x<-1 ? -1 : x> 2 ? 2 : x, 0, 0, 0, -3, 3)                      \
  F(hardsigmoid, m_hardsigmoid(x), x<-3 ? 0 : x> 3 ? 1 : (x + 3) / 6, 1, 1, (wide)0.5, -4, 4)      \
  F(hardswish, m_hardswish(x), x<-3 ? 0 : x> 3 ? x : x *(x + 3) / 6, 2, 2, (wide)0.5, -4, 4)       \
  F(floor, m_floor(x), L(floor)(x), 0, 0, 0, -9, 9)                                                \
  F(ceil, m_ceil(x), L(ceil)(x), 0, 0, 0, -9, 9)                                                   \
  F(round, m_round(x), L(nearbyint)(x), 0, 0, 0, -9, 9)                                            \
  F(trunc, m_trunc(x), L(trunc)(x), 0, 0, 0, -9, 9)                                                \
  F(frac, m_frac(x), L(fabs)(x) == INFINITY ? (wide)NAN : x - L(trunc)(x), 0, 0, 0, -9, 9)         \
  F(isnan, m_isnan(x), x != x, 0, 0, 0, -9, 9)                                                     \
  F(isinf, m_isinf(x), L(fabs)(x) == INFINITY, 0, 0, 0, -9, 9)                                     \
  F(isfinite, m_isfinite(x), L(fabs)(x) < INFINITY, 0, 0, 0, -9, 9)                                \
  F(abs, m_abs(x), L(fabs)(x), 0, 0, 0, -9, 9)                                                     \
  F(sign, m_sign(x), (x > 0) - (x < 0), 0, 0, 0, -9, 9)                                            \
  F(clamp, m_clamp(x, -1, 2), x<-1 ? -1 : x> 2 ? 2 : x, 0, 0, 0, -3, 3)                            \
  F(clamp_backward, m_clamp_backward(3, x, -1, 2), x > -1 && x < 2 ? 3 : 0, 0, 0, 0, -3, 3)        \
  F(masked_scale, m_masked_scale(x, x > 0, 2), x > 0 ? 2 * x : 0, 0, 0, 0, -3, 3)                  \
  F(gelu_backward, m_gelu_backward(1, x), PHI(x) + LIM(x, 99) * DENS(LIM(x, 99)), 6, 4, (wide)0.5, \
    -15, 15)                                                                                       \
  F(gelu_backward_tail, m_gelu_backward(1, x < -2 ? x : 0),                                        \
    x < -2 ? PHI(x) + LIM(x, 99) * DENS(LIM(x, 99)) : (wide)0.5, 6, 1e9, 0, -15, 0)                \
  F(gelu_tanh_backward, m_gelu_tanh_backward(1, x),                                                \
    x != x ? x                                                                                     \
           : SIG(GT(LIM(x, 30))) + LIM(x, 30) * SIG(GT(LIM(x, 30))) * SIG(-GT(LIM(x, 30))) *       \
                                       (wide)1.59576912160573071175978423973L *                    \
                                       (1 + (wide)0.134145L * LIM(x, 30) * LIM(x, 30)),            \
    6, 6, (wide)0.5L, -12, 12)                                                                     \
  F(silu_backward, m_silu_backward(1, x), SIG(x) + LIM(x, 9999) * SIG(x) * SIG(-LIM(x, 9999)), 6,  \
    6, (wide)0.5, -30, 30)                                                                         \
  F(softplus_backward, m_softplus_backward(1, x, 1, 20), x > 20 ? 1 : SIG(x), 3, 3, 0, -30, 30)    \
  F(elu_backward, m_elu_backward(1, x, 2), x > 0 ? 1 : 2 * L(exp)(x), 1.5, 1.5, 0, -30, 3)         \
  F(celu_backward, m_celu_backward(1, x, 2), x > 0 ? 1 : L(exp)(x / 2), 1, 1, 0, -30, 3)           \
  F(selu_backward, m_selu_backward(1, x),                                                          \
    (wide)1.0507009873554804934193349852946L *                                                     \
        (x > 0 ? 1 : (wide)1.6732632423543772848170429916717L * L(exp)(x)),                        \
    3, 3, 0, -30, 3)                                                                               \
  F(leaky_relu_backward, m_leaky_relu_backward(1, x, (real)0.25), x > 0 ? 1 : 0.25, 0, 0, 0, -3,   \
    3)                                                                                             \
  F(threshold_backward, m_threshold_backward(3, x, 1), x <= 1 ? 0 : 3, 0, 0, 0, -3, 3)             \
  F(hardtanh_backward, m_hardtanh_backward(3, x, -1, 1), x <= -1 || x >= 1 ? 0 : 3, 0, 0, 0, -3,   \
    3)                                                                                             \
  F(hardsigmoid_backward, m_hardsigmoid_backward(3, x), x > -3 && x < 3 ? 0.5 : 0, 0, 0, 0, -4, 4) \
  F(hardswish_backward, m_hardswish_backward(1, x),                                                \
    x <= -3 ? 0                                                                                    \
    : x < 3 ? x / 3 + (wide)0.5                                                                    \
            : 1,                                                                                   \
    2, 2, (wide)0.5, -4, 4)                                                                        \
  F(mish_backward, m_mish_backward(1, x),                                                          \
    L(tanh)(SP(x)) + LIM(x, 9999) * SIG(x) * (1 - L(tanh)(SP(x)) * L(tanh)(SP(x))), 6, 6,          \
    (wide)0.5, -30, 30)                                                                            \
  F(sigmoid_backward, m_sigmoid_backward(1, x), x *(1 - x), 2, 2, (wide)0, 0, 1)                   \
  F(tanh_backward, m_tanh_backward(1, x), 1 - x * x, 2, 2, 1, -1, 1)                               \
  F(log_sigmoid_backward, m_log_sigmoid_backward(1, x), SIG(-x), 2.5, 2.5, 0, -30, 30)             \
  F(erfinv, m_erfinv(x), ref_erfinv(x), 1, 4, 0, -1, 1)

#define UNARY_LOOP(name, ours, libm, b32, b64, scale, lo, hi)                                      \
  static void loop_##name(const real *restrict xs, real *restrict ys, int n) {                     \
    for (int i = 0; i < n; i++) {                                                                  \
      real x = xs[i];                                                                              \
      ys[i] = ours;                                                                                \
    }                                                                                              \
  }                                                                                                \
  static wide ref_##name##_(wide x) {                                                              \
    return (wide)(libm);                                                                           \
  }
UNARY_TABLE(UNARY_LOOP)

static void check_unary(const char *name, unary_loop *ours, wide (*libm)(wide), double bound,
                        wide scale, double lo, double hi) {
  double max = 0, sum = 0;
  for (int i = 0; i < SAMPLES; i++)
    in_x[i] = sample(i, lo, hi);
  ours(in_x, out, SAMPLES);
  real worst = 0;
  for (int i = 0; i < SAMPLES; i++) {
    real x = in_x[i];
    wide want = libm((wide)x);
    double u = ulps(out[i], want, scale);
    if (x == 0 && want == 0 && out[i] == 0 && !signbit(want) != !signbit(out[i]))
      u = INFINITY;
    sum += u;
    if (u > max) {
      max = u;
      worst = x;
    }
  }
  verdict(name, max, sum / SAMPLES, bound);
  if (max > bound)
    printf("  %s(%.17g = %a)\n", name, (double)worst, (double)worst);
}

// fmod and all that is made of it, exact but for the sign of zero
static wide ref_remainder(wide x, wide y) {
  wide m = L(fmod)(x, y);
  return m != 0 && (m < 0) != (y < 0) ? (wide)(real)(m + y) : m;
}
static wide ref_div_floor(wide x, wide y) {
  wide m = ref_remainder(x, y);
  return y == 0 ? x / y : L(fabs)(y) == INFINITY && x - x == 0 ? (m == x ? 0 : -1) : (x - m) / y;
}
static wide ref_logaddexp(wide x, wide y) {
  wide m = x > y ? x : y;
  return x != x || y != y ? x + y : x == y ? x + L(log)(2) : m + L(log1p)(L(exp)(-L(fabs)(x - y)));
}
static wide ref_maximum(wide x, wide y) {
  return x != x ? x : y != y ? y : x > y ? x : y;
}
static wide ref_minimum(wide x, wide y) {
  return x != x ? x : y != y ? y : x < y ? x : y;
}
static wide largest(wide x, wide y) {
  x = L(fabs)(x), y = L(fabs)(y);
  wide m = x > y ? x : y;
  return m < INFINITY ? m : 0;
}

// name, ours of real x and y, libm's, bounds, scale (may depend on x, y), ranges of x and y
#define BINARY_TABLE(F)                                                                            \
  F(pow, m_pow(x, y), L(pow)(x, y), 1.5, 1.5, 0, 0, 10, -40, 40)                                   \
  F(pow_near_1, m_pow(x, y), L(pow)(x, y), 1.5, 1.5, 0, 0.9, 1.1, -900, 900)                       \
  F(pow_whole, m_pow(x, m_round(y)), L(pow)(x, L(nearbyint)(y)), 1.5, 1.5, 0, -10, 10, -30, 30)    \
  F(atan2, m_atan2(x, y), L(atan2)(x, y), 2.5, 2.5, 0, -5, 5, -5, 5)                               \
  F(hypot, m_hypot(x, y), L(hypot)(x, y), 0.6, 1.1, 0, -5, 5, -5, 5)                               \
  F(copysign, m_copysign(x, y), L(copysign)(x, y), 0, 0, 0, -5, 5, -5, 5)                          \
  F(fmod, m_fmod(x, y), L(fmod)(x, y), 0, 0, 0, -50, 50, -5, 5)                                    \
  F(remainder, m_remainder(x, y), ref_remainder(x, y), 0.5, 0.5, 0, -50, 50, -5, 5)                \
  F(div_floor, m_div_floor(x, y), ref_div_floor(x, y), 1, 2, 0, -50, 50, -5, 5)                    \
  F(logaddexp, m_logaddexp(x, y), ref_logaddexp(x, y), 2, 2, largest(x, y), -50, 50, -50, 50)      \
  F(maximum, m_maximum(x, y), ref_maximum(x, y), 0, 0, 0, -5, 5, -5, 5)                            \
  F(minimum, m_minimum(x, y), ref_minimum(x, y), 0, 0, 0, -5, 5, -5, 5)                            \
  F(fmax, m_fmax(x, y), L(fmax)(x, y), 0, 0, 0, -5, 5, -5, 5)                                      \
  F(fmin, m_fmin(x, y), L(fmin)(x, y), 0, 0, 0, -5, 5, -5, 5)                                      \
  F(add, m_add(x, y, (real)0.5), x + y / 2, 1, 1, largest(x, y), -5, 5, -5, 5)                     \
  F(sub, m_sub(x, y, (real)0.5), x - y / 2, 1, 1, largest(x, y), -5, 5, -5, 5)                     \
  F(lerp, m_lerp(x, y, (real)0.25), x + (wide)(real)(y - x) / 4, 2, 2, largest(x, y), -5, 5, -5,   \
    5)                                                                                             \
  F(div, m_div(x, y), x / y, 0.501, 0.501, 0, -5, 5, -5, 5)

#define BINARY_LOOP(name, ours, libm, b32, b64, scale, xlo, xhi, ylo, yhi)                         \
  static void loop_##name(const real *restrict xs, const real *restrict ys, real *restrict zs,     \
                          int n) {                                                                 \
    for (int i = 0; i < n; i++) {                                                                  \
      real x = xs[i], y = ys[i];                                                                   \
      zs[i] = ours;                                                                                \
    }                                                                                              \
  }                                                                                                \
  static wide ref_##name##_(wide x, wide y) {                                                      \
    return (wide)(libm);                                                                           \
  }                                                                                                \
  static wide scale_##name(wide x, wide y) {                                                       \
    (void)x, (void)y;                                                                              \
    return (wide)(scale);                                                                          \
  }
BINARY_TABLE(BINARY_LOOP)

static void check_binary(const char *name, binary_loop *ours, wide (*libm)(wide, wide),
                         double bound, wide (*scale)(wide, wide), double xlo, double xhi,
                         double ylo, double yhi) {
  double max = 0, sum = 0;
  int n = SAMPLES / 2, i = 0;
  for (int j = 0; j < SPECIALS * SPECIALS; j++, i++)
    in_x[i] = specials[j / SPECIALS], in_y[i] = specials[j % SPECIALS];
  for (; i < n; i++) {
    unsigned long long u = (unsigned long long)random_bits() << 32 | random_bits();
    unsigned long long v = (unsigned long long)random_bits() << 32 | random_bits();
    in_x[i] = i % 4 ? (real)(xlo + (xhi - xlo) * (double)u * 0x1p-64) : from_bits(u);
    in_y[i] = i % 4 ? (real)(ylo + (yhi - ylo) * (double)v * 0x1p-64) : from_bits(v);
  }
  ours(in_x, in_y, out, n);
  int worst = 0;
  for (i = 0; i < n; i++) {
    wide want = libm((wide)in_x[i], (wide)in_y[i]);
    double u = ulps(out[i], want, scale((wide)in_x[i], (wide)in_y[i]));
    sum += u;
    if (u > max) {
      max = u;
      worst = i;
    }
  }
  verdict(name, max, sum / n, bound);
  if (max > bound)
    printf("  %s(%.17g, %.17g) = %.17g\n", name, (double)in_x[worst], (double)in_y[worst],
           (double)out[worst]);
}

// m_exp_down gives the bits of m_exp for x <= 0 and NaN: patterns at a fixed stride, and the range in
// which results are neither 0 nor 1 closely.
static void check_exp_down(void) {
  int bad = 0;
  for (int i = 0; i < SAMPLES; i++) {
    in_x[i] = i % 2 ? (real)(KIND(-106, -750) * (i / (double)SAMPLES))
                    : from_bits(KIND(0x80000000ull, 0x8000000000000000ull) +
                                (unsigned long long)i *
                                    KIND(0x7fffffffull / SAMPLES, 0x7fffffffffffffffull / SAMPLES));
    out[i] = m_exp(in_x[i]), in_y[i] = m_exp_down(in_x[i]);
  }
  for (int i = 0; i < SAMPLES; i++)
    bad += out[i] == out[i] ? !!memcmp(&out[i], &in_y[i], sizeof(real)) : in_y[i] == in_y[i];
  expect("exp_down", bad + (m_exp_down(-m_inf()) != 0) + !isnan(m_exp_down(m_nan())));
}

// Loops take m_x_fast for blocks that are all easy: it must have the bits of m_x.
static void check_fast(void) {
  int bad = 0;
  for (int i = 0; i < SAMPLES; i++) {
    real x = sample(i, -30, 30), y = sample((int)(random_bits() % SAMPLES), -3, 3);
    in_x[i] = x, in_y[i] = y;
  }
#define FAST(name)                                                                                 \
  for (int i = 0; i < SAMPLES; i++)                                                                \
    out[i] = m_##name##_fast(in_x[i]);                                                             \
  for (int i = 0; i < SAMPLES; i++) {                                                              \
    real want = m_##name(in_x[i]);                                                                 \
    bad += m_##name##_easy(in_x[i]) && memcmp(&out[i], &want, sizeof want);                        \
  }
#define FAST2(name)                                                                                \
  for (int i = 0; i < SAMPLES; i++)                                                                \
    out[i] = m_##name##_fast(in_x[i], in_y[i]);                                                    \
  for (int i = 0; i < SAMPLES; i++) {                                                              \
    real want = m_##name(in_x[i], in_y[i]);                                                        \
    bad += m_##name##_easy(in_x[i], in_y[i]) && memcmp(&out[i], &want, sizeof want);               \
  }
  FAST(sin)
  FAST(cos)
#if MOTH_REAL_KIND == 1
  FAST(tan)
#endif
  FAST2(fmod)
  FAST2(remainder)
  expect("fast", bad);
}

// The signs of zeros, which ulps() does not see.
static void check_signs(void) {
  const real z = 0, i = m_inf();
  real pi = (real)PIW;
  expect("signed_zeros",
         !signbit(m_pow(-z, 3)) + !!signbit(m_pow(-z, 2)) + !signbit(m_pow(-i, -3)) +
             (m_pow(-z, -3) != -i) + (m_atan2(z, -z) != pi) + (m_atan2(-z, -z) != -pi) +
             !signbit(m_atan2(-z, z)) + !signbit(m_fmod(-z, 3)) + !signbit(m_trunc((real)-0.5)) +
             !signbit(m_div_floor(-z, 3)) + !signbit(m_neg(z)) + !!signbit(m_abs(-z)));
}
static struct m_moments join_moments(struct m_moments a, struct m_moments b) {
  return m_join_moments(a, b, b.n > 0 ? b.n / (a.n + b.n) : 0);
}
static void check_reductions(void) {
  struct m_moments a = {0, 0, 0}, b = a, none = a;
  real max[2] = {m_lowest(), m_lowest()};
  double sums[2] = {0, 0}, sum = 0;
  for (int i = 0; i < 1000; i++) {
    real x = (real)(i * 7 % 1000), y = x / 10;
    struct m_moments one = {1, (double)x, 0};
    int k = i >= 300;
    *(k ? &b : &a) = join_moments(k ? b : a, one);
    real top = m_join_max(max[k], y), s = m_lse_shift(top);
    sums[k] = M_JOIN_LSE(sums[k], (double)m_exp(max[k] - s), 1.0, (double)m_exp(y - s));
    max[k] = top;
    sum += exp((double)y - 100);
  }
  struct m_moments c = join_moments(join_moments(none, a), join_moments(b, none));
  expect("moments", !(fabs(c.mean - 499.5) < 1e-9 && fabs(c.sq / (1000 * 83333.25) - 1) < 1e-12 &&
                      c.n == 1000));
  real top = m_join_max(max[0], max[1]), inf = m_inf(), nan = m_nan();
  double v = m_lse_value((double)top, M_JOIN_LSE(sums[0], (double)m_exp(max[0] - top), sums[1],
                                                 (double)m_exp(max[1] - top)));
  expect("lse", !(fabs(v - (100 + log(sum))) < 400 * ldexp(1, -DIGITS)) + (m_lse_shift(-inf) != 0) +
                    !(m_lse_value(-(double)inf, 0) == -(double)inf) +
                    !(m_lse_value((double)inf, 1) == (double)inf));
  expect("extremes",
         (m_join_max(1, 2) != 2) + (m_join_min(1, 2) != 1) + !isnan(m_join_max(nan, 1)) +
             !isnan(m_join_max(1, nan)) + !isnan(m_join_min(nan, 1)) + !isnan(m_join_min(1, nan)) +
             (m_join_max(m_lowest(), -inf) != -inf) + !M_BEATS_MAX(2, 1) + M_BEATS_MAX(1, 1) +
             !M_BEATS_MIN(nan, (real)1) + M_BEATS_MIN(nan, nan) + M_BEATS_MAX((real)1, nan));
}
static void check_normal(void) {
  double m1 = 0, m2 = 0, m4 = 0, c = 0;
  int n = 1 << 17, bad = 0;
  for (int i = 0; i < n; i++) {
    struct m_philox r = m_philox(1, 2, (unsigned)i, 0, 0, 0);
    real x, y;
#if MOTH_REAL_KIND == 1
    m_normal_f32(r.v[0], r.v[1], &x, &y);
#else
    m_normal_f64(r.v[0], r.v[1], r.v[2], r.v[3], &x, &y);
#endif
    double a = (double)x, b = (double)y;
    bad += !(fabs(a) < 9 && fabs(b) < 9);
    m1 += a + b, m2 += a * a + b * b, m4 += a * a * a * a + b * b * b * b, c += a * b;
  }
  expect("normal", bad + (fabs(m1 / n / 2) > 0.01) + (fabs(m2 / n / 2 - 1) > 0.02) +
                       (fabs(m4 / n / 2 - 3) > 0.1) + (fabs(c / n) > 0.015));
}

static void run_checks(void) {
#define UNARY_CHECK(name, ours, libm, b32, b64, scale, lo, hi)                                     \
  check_unary(#name, loop_##name, ref_##name##_, KIND(b32, b64), scale, lo, hi);
#define BINARY_CHECK(name, ours, libm, b32, b64, scale, xlo, xhi, ylo, yhi)                        \
  check_binary(#name, loop_##name, ref_##name##_, KIND(b32, b64), scale_##name, xlo, xhi, ylo, yhi);
  UNARY_TABLE(UNARY_CHECK)
  BINARY_TABLE(BINARY_CHECK)
  check_exp_down();
  check_fast();
  check_signs();
  check_reductions();
  check_normal();
}

// Nanoseconds an element, of arrays in the level 2 cache; the best of several rounds.
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}
static real within(double lo, double hi) {
  lo = lo < -8 ? -8 : lo;
  hi = hi > 8 ? 8 : hi;
  return (real)(lo + (hi - lo) * (random_bits() * 0x1p-32));
}
static void run_bench(void) {
  int n = 16384;
  double best;
#define BENCH(call)                                                                                \
  best = 1e30;                                                                                     \
  for (int r = 0; r < 60; r++) {                                                                   \
    double t = now();                                                                              \
    call;                                                                                          \
    t = now() - t;                                                                                 \
    best = t < best ? t : best;                                                                    \
  }
#define UNARY_BENCH(name, ours, libm, b32, b64, scale, lo, hi)                                     \
  for (int i = 0; i < n; i++)                                                                      \
    in_x[i] = within(lo, hi);                                                                      \
  BENCH(loop_##name(in_x, out, n))                                                                 \
  printf("%-22s %7.3f\n", #name, best / n);
#define BINARY_BENCH(name, ours, libm, b32, b64, scale, xlo, xhi, ylo, yhi)                        \
  for (int i = 0; i < n; i++) {                                                                    \
    in_x[i] = within(xlo, xhi);                                                                    \
    in_y[i] = within(ylo, yhi);                                                                    \
  }                                                                                                \
  BENCH(loop_##name(in_x, in_y, out, n))                                                           \
  printf("%-22s %7.3f\n", #name, best / n);
  UNARY_TABLE(UNARY_BENCH)
  BINARY_TABLE(BINARY_BENCH)
}

#else // integers

static void run_bench(void) {}
// All pairs of 8-bit numbers; wider types: the same, and those numbers next to their ends.
static real value(int i) {
#if MOTH_REAL_KIND == 5
  return (real)(i & 1);
#else
  real near = (real)(i - 128), end = (real)((unsigned long long)1 << (8 * sizeof(real) - 1));
  return sizeof(real) == 1 || i < 128 ? near : (real)((i & 1 ? near / 2 : 0) + end + (i & 2) - 1);
#endif
}
static void run_checks(void) {
  int div = 0, mod = 0, shift = 0, power = 0, arith = 0, logic = 0, order = 0;
  for (int i = 0; i < 256 * 256; i++) {
    real a = value(i / 256), b = value(i % 256);
    __int128 x = a, y = b, q = y ? x / y : 0, r = y ? x % y : 0, p = 1;
    __int128 down = y && r && (r < 0) != (y < 0);
#if MOTH_REAL_KIND == 5
    (void)down, (void)p;
    div += m_div_trunc(a, b) != q || m_div_floor(a, b) != q;
    mod += m_fmod(a, b) != r || m_remainder(a, b) != r;
    shift += m_shift_left(a, b) != (b ? 0 : a) || m_shift_right(a, b) != (b ? 0 : a);
    power += m_pow(a, b) != (b ? a : 1);
    arith += m_add(a, b, 1) != (a | b) || m_mul(a, b) != (a & b) || m_sub(a, b, 1) != (a ^ b) ||
             m_neg(a) != a || m_abs(a) != a || m_sign(a) != a || m_square(a) != a ||
             m_addcmul(a, b, b, 1) != (a | b) || m_bitwise_not(a) != !a;
#else
    div += m_div_trunc(a, b) != (real)q || m_div_floor(a, b) != (real)(q - down);
    mod += m_fmod(a, b) != (real)r || m_remainder(a, b) != (real)(down ? r + y : r);
    if (m_div_trunc_easy(a, b))
      div += m_div_trunc_fast(a, b) != (real)q || m_div_floor_fast(a, b) != (real)(q - down) ||
             m_fmod_fast(a, b) != (real)r || m_remainder_fast(a, b) != (real)(down ? r + y : r);
    int bits = 8 * (int)sizeof(real), over = y < 0 || y >= bits;
    shift += m_shift_left(a, b) != (real)(over ? 0 : x << (int)y);
    shift += m_shift_right(a, b) != (real)(over ? (x < 0 ? -1 : 0) : x >> (int)y);
    if (y < 0)
      p = x == 1 ? 1 : x == -1 ? (y % 2 ? -1 : 1) : 0;
    for (int k = 0; k < y && y < 300; k++)
      p = (real)(unsigned long long)((unsigned long long)p * (unsigned long long)a);
    power += y < 300 && m_pow(a, b) != (real)p;
    arith += m_add(a, b, 3) != (real)(x + 3 * y) || m_sub(a, b, 3) != (real)(x - 3 * y) ||
             m_mul(a, b) != (real)(x * y) || m_neg(a) != (real)-x ||
             m_abs(a) != (real)(x < 0 ? -x : x) || m_sign(a) != (real)((x > 0) - (x < 0)) ||
             m_square(a) != (real)(x * x) || m_addcmul(a, b, 2, 3) != (real)(x + 6 * y) ||
             m_bitwise_not(a) != (real)~x;
#endif
    logic += m_bitwise_and(a, b) != (real)(x & y) || m_bitwise_or(a, b) != (real)(x | y) ||
             m_bitwise_xor(a, b) != (real)(x ^ y) || m_logical_and(a, b) != (x && y) ||
             m_logical_or(a, b) != (x || y) || m_logical_xor(a, b) != (!x != !y) ||
             m_logical_not(a) != !x || m_where((unsigned char)(i & 1), a, b) != (i & 1 ? a : b);
    order += m_maximum(a, b) != (x > y ? a : b) || m_minimum(a, b) != (x < y ? a : b) ||
             m_fmax(a, b) != (x > y ? a : b) || m_fmin(a, b) != (x < y ? a : b) ||
             m_relu(a) != (x < 0 ? 0 : a) || m_clamp(a, b, b) != b || m_eq(a, b) != (x == y) ||
             m_ne(a, b) != (x != y) || m_lt(a, b) != (x < y) || m_le(a, b) != (x <= y) ||
             m_gt(a, b) != (x > y) || m_ge(a, b) != (x >= y);
  }
  expect("div", div);
  expect("mod", mod);
  expect("shift", shift);
  expect("pow", power);
  expect("arithmetic", arith);
  expect("logic", logic);
  expect("order", order);
}

#endif

// ---- what exists for all kinds ----------------------------------------------------------------

static unsigned short halves[65536];
static float floats[65536];

// The value of a 16-bit float of the given mantissa width, by its definition.
static double half_value(unsigned h, int mantissa) {
  int bias = (1 << (14 - mantissa)) - 1, e = (int)(h & 0x7fff) >> mantissa;
  double m = h & ((1u << mantissa) - 1);
  double v = e ? ldexp(m + (1 << mantissa), e - bias - mantissa) : ldexp(m, 1 - bias - mantissa);
  v = e == 2 * bias + 1 ? (m != 0 ? NAN : INFINITY) : v;
  return h & 0x8000 ? -v : v;
}
// Whether h is x rounded to nearest even.
static int rounded(unsigned h, float x, int mantissa) {
  int e_min = 2 - (1 << (14 - mantissa)), bias = 1 - e_min;
  if (x != x)
    return half_value(h, mantissa) != half_value(h, mantissa) && (h >> 15) == m_f32_bits(x) >> 31;
  double a = fabs((double)x), want = a;
  if (a > 0 && a < INFINITY) {
    int e = ilogb(a) < e_min ? e_min : ilogb(a);
    want = ldexp(nearbyint(ldexp(a, mantissa - e)), e - mantissa);
    want = want >= ldexp(1, bias + 1) ? INFINITY : want;
  }
  return half_value(h & 0x7fff, mantissa) == want && (h >> 15) == m_f32_bits(x) >> 31;
}
static void check_half(const char *name, int mantissa) {
  int f16 = mantissa == 10, decode = 0, encode = 0;
  for (int i = 0; i < 65536; i++)
    halves[i] = (unsigned short)i;
  if (f16)
    for (int i = 0; i < 65536; i++)
      floats[i] = m_f16_to_f32(halves[i]);
  else
    for (int i = 0; i < 65536; i++)
      floats[i] = m_bf16_to_f32(halves[i]);
  for (int i = 0; i < 65536; i++) {
    double v = half_value((unsigned)i, mantissa);
    decode += v == v ? (double)floats[i] != v : floats[i] == floats[i];
    decode += m_f32_bits(floats[i]) >> 31 != (unsigned)i >> 15;
  }
  // all values, the points halfway between, the floats around these, and a walk over all floats
  for (int round = -3; round < 24; round++) {
    for (int i = 0; i < 65536; i++) {
      unsigned u = m_f32_bits(m_bf16_to_f32((unsigned short)i));
      if (f16)
        u = m_f32_bits(m_f16_to_f32((unsigned short)i));
      unsigned halfway = f16 ? (i & 0x7c00 ? 0x1000u : 0) : 0x8000u;
      if (round <= 0)
        u = round == -3 ? u : u + halfway + (unsigned)(round + 1);
      else
        u = (unsigned)(i * 23 + round - 1) * 2849u;
      floats[i] = m_f32_from_bits(u);
      if (f16 && round == 0 && !(i & 0x7c00)) // halfway between denormals
        floats[i] = (float)ldexp((i & 0x3ff) + 0.5, -24);
    }
    if (f16)
      for (int i = 0; i < 65536; i++)
        halves[i] = m_f32_to_f16(floats[i]);
    else
      for (int i = 0; i < 65536; i++)
        halves[i] = m_f32_to_bf16(floats[i]);
    for (int i = 0; i < 65536; i++)
      encode += !rounded(halves[i], floats[i], mantissa);
  }
  verdict(name, decode + encode, 0, 0);
}
static void check_random(void) {
  struct m_philox a = m_philox(0, 0, 0, 0, 0, 0);
  struct m_philox b = m_philox(~0u, ~0u, ~0u, ~0u, ~0u, ~0u);
  struct m_philox c =
      m_philox(0xa4093822u, 0x299f31d0u, 0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u);
  static const unsigned known[3][4] = {{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u},
                                       {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu},
                                       {0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u}};
  expect("philox",
         !!memcmp(a.v, known[0], 16) + !!memcmp(b.v, known[1], 16) + !!memcmp(c.v, known[2], 16));
  expect("uniform", (m_uniform_f32(~0u) != 1 - 0x1p-24f) + (m_uniform_f32(0) != 0) +
                        (m_uniform_f64(~0u, ~0u) != 1 - 0x1p-53) + (m_uniform_f64(0, 0) != 0) +
                        (m_uniform_f64(1u << 11, 1u << 31) != 0.5 + 0x1p-53));
}

int main(int argc, char **argv) {
  if (argc > 1 && !strcmp(argv[1], "bench")) {
    run_bench();
    return 0;
  }
  run_checks();
  check_half("float16", 10);
  check_half("bfloat16", 7);
  check_random();
  printf("%d checked, %d failed\n", checked, failures);
  return failures != 0;
}
