// Special functions of float32 and float64, computed in double for both. Only math_float.h includes this.
//
// Where a function has no short form it is a sum of Chebyshev polynomials on a few intervals, fitted with 45 digits of
// the function itself, scaled by what it grows like. Beside roots the error is that of the largest value in the interval.

// The sum of c[k] T_k(t), by Clenshaw's recurrence. `few` terms, which are good to 2^-34, do for float32. The loop is
// unrolled: one inside a loop over elements would leave that without vectors.
MOTH_FN double m_chebyshev_(const double *c, int n, int few, double t) {
  double a = 0, b = 0;
#if MOTH_REAL_KIND == 1
  n = few;
#else
  (void)few;
#endif
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#pragma GCC unroll 32
#endif
  for (int k = n - 1; k > 0; k--) {
    double next = 2 * t * a - b + c[k];
    b = a;
    a = next;
  }
  return t * a - b + c[0];
}

// Functions of double that vectorise: without the care for denormals and Inf that float32 does not need.
MOTH_FN double m_wide_log_of_(double x) {
#if MOTH_REAL_KIND == 1
  return m_wide_log_(x);
#else
  return m_log(x);
#endif
}
MOTH_FN double m_wide_sin_(double x) {
  return moth_libm_fabs(x) < 0x1p20 ? m_wide_sin_fast_(x) : moth_libm_sin(x);
}
MOTH_FN double m_wide_cos_(double x) {
  return moth_libm_fabs(x) < 0x1p20 ? m_wide_cos_fast_(x) : moth_libm_cos(x);
}

// ---- error functions ---------------------------------------------------------------------------

// (1 + 2x) e^(x^2) erfc(x) at t = (x - 4) / (x + 4).
MOTH_FN double m_erfcx_sum_(double t) {
  const double c[26] = {
      1.1774832005374487,      -0.0072607966203019009,  -0.081265123236184997,
      0.060092128041222249,    -0.028753935580276661,   0.010595663363472859,
      -0.0031369272945542641,  0.00074564943725361843,  -0.0001369696503010054,
      1.7183861600300937e-05,  -7.1583646234503878e-07, -2.4261399442450232e-07,
      5.5765709395695505e-08,  -2.1057869513878783e-09, -1.1717889351924387e-09,
      1.9098355172464859e-10,  1.4088717646143637e-11,  -6.9011083135719611e-12,
      9.1679591522215126e-14,  2.145450895897435e-13,   -1.4716571260505223e-14,
      -6.6686752984767319e-15, 7.5045580979581365e-16,  2.2200252474862843e-16,
      -3.1712553836636332e-17, -8.2000275010609986e-18,
  };
  return m_chebyshev_(c, 26, 16, t);
}
MOTH_FN double m_erfcx_of_(double x) {
  double a = x < 0 ? -x : x;
  double t = a > 1e300 ? 1 : (a - 4) / (a + 4);
  double y = m_erfcx_sum_(t) / (1 + 2 * a);
  double square = m_wide_exp_(a * a);
  return x < 0 ? 2 * square - y : x != x ? x : x == 0 ? 1 : y;
}
MOTH_FN real m_erfcx(real x) {
  return (real)m_erfcx_of_((double)x);
}
// y / x, for x = erf(y), by w = -log(1 - x^2): up to 6.25, from there on by its root. Of float32 to 2^-35 and without the
// last interval, which it does not reach. Every second power by itself, of the first of float64 every fourth: fewer
// operations wait for each other.
#if MOTH_REAL_KIND == 1
MOTH_FN double m_erfinv_low_(double t) {
  double u = t * t, e = 1.7813430371061979e-7, o = -8.3549031198153649e-7;
  e = e * u - 6.3974887866056615e-8;
  o = o * u + 6.6220227590843473e-6;
  e = e * u - 1.1853398027065286e-5;
  o = o * u - 1.4512089713102134e-5;
  e = e * u + 9.3707595531310159e-5;
  o = o * u - 0.00011717343209106907;
  e = e * u - 0.00026450884647904046;
  o = o * u + 0.0012325730543003134;
  e = e * u - 0.0012716702344450852;
  o = o * u - 0.0041373285127279821;
  e = e * u + 0.017808359698676277;
  o = o * u - 0.022604446433053895;
  e = e * u - 0.0589225670250687;
  o = o * u + 0.75049432005854281;
  e = e * u + 1.6536545626826207;
  return e + o * t;
}
MOTH_FN double m_erfinv_mid_(double t) {
  double u = t * t, e = 2.3292475246036026e-7, o = 1.8802099649709059e-6;
  e = e * u - 8.3518179504979085e-6;
  o = o * u + 7.620989937762787e-6;
  e = e * u + 2.5150351822960476e-5;
  o = o * u - 0.00011973263283045551;
  e = e * u + 0.00029698654453876844;
  o = o * u - 0.00055645849604908675;
  e = e * u + 0.00095905774365873693;
  o = o * u - 0.0018322799758445671;
  e = e * u + 0.0031911823356427193;
  o = o * u + 0.88063799992545791;
  e = e * u + 3.2096201356409152;
  return e + o * t;
}
#else
MOTH_FN double m_erfinv_low_(double t) {
  double u = t * t, v = u * u;
  double a = -2.5466157998892667e-10, b = -8.557984074479201e-09, c = 1.4461050507676023e-09,
         d = 7.680990475576525e-10;
  a = a * v + 5.039596477958063e-09;
  b = b * v - 1.0167881522843899e-08;
  c = c * v - 9.905042307855316e-08;
  d = d * v + 3.914267100133108e-08;
  a = a * v + 5.397895417173957e-07;
  b = b * v + 7.1300663740767115e-06;
  c = c * v - 6.839448584111029e-07;
  d = d * v - 1.059336931327948e-06;
  a = a * v - 1.12572237422896e-05;
  b = b * v - 0.00011688883906368398;
  c = c * v + 9.336736525855553e-05;
  d = d * v - 1.5027713926607672e-05;
  a = a * v - 0.00026439366376450275;
  b = b * v - 0.004137314377403391;
  c = c * v - 0.001271692268923054;
  d = d * v + 0.001232485568550093;
  a = a * v + 0.017808361818321756;
  c = c * v - 0.05892256710377839;
  d = d * v - 0.022604447453450232;
  // The largest last, so that each half is rounded once at its size.
  return ((a * v + c * u) + 1.6536545626831027) + ((b * v + d * u) + 0.7504943200799635) * t;
}
MOTH_FN double m_erfinv_mid_(double t) {
  double u = t * t, e = 2.5141338270783813e-10, o = -8.4159228646791657e-11;
  e = e * u - 2.5341397440785191e-9;
  o = o * u + 2.0395778736400613e-10;
  e = e * u - 4.6711505636826827e-9;
  o = o * u + 6.8359862458495228e-9;
  e = e * u + 1.7351678987628939e-7;
  o = o * u - 3.8909918711401949e-8;
  e = e * u - 3.1179829582648244e-7;
  o = o * u - 2.8807242706758671e-7;
  e = e * u - 7.6371686472456751e-6;
  o = o * u + 2.9977437103567934e-6;
  e = e * u + 2.4675867882678086e-5;
  o = o * u + 6.1639960227409178e-6;
  e = e * u + 0.00029714979009542093;
  o = o * u - 0.00011884318959069889;
  e = e * u + 0.00095903086045671685;
  o = o * u - 0.00055672026268439694;
  e = e * u + 0.003191184001018939;
  o = o * u - 0.0018322470786513887;
  e = e * u + 3.209620135624037;
  o = o * u + 0.88063799874642311;
  return e + o * t;
}
#endif
MOTH_FN double m_erfinv_high_(double t) {
  double u = t * t, e = 3.8589897071314418e-11, o = -2.8435400987229123e-12;
  e = e * u + 3.8755213294104481e-10;
  o = o * u - 1.5787640005633369e-10;
  e = e * u + 1.6129877658394607e-9;
  o = o * u - 8.0673239589089851e-10;
  e = e * u + 7.8312695379528406e-9;
  o = o * u - 3.2194128582133601e-9;
  e = e * u + 1.3091385711880057e-7;
  o = o * u - 2.8147463570551814e-8;
  e = e * u + 3.118800136107095e-6;
  o = o * u - 6.4735017858289364e-7;
  e = e * u + 5.514872638423054e-5;
  o = o * u - 1.4023132508620284e-5;
  e = e * u - 0.00027432268759772977;
  o = o * u - 0.00015004600199715396;
  e = e * u + 5.1024697665054209;
  o = o * u + 1.0101951772794836;
  return e + o * t;
}
MOTH_FN double m_erfinv_root_(double w, double s) {
  double low = m_erfinv_low_(w * 0.32 - 1), mid = m_erfinv_mid_((s - 3.375) / 0.875);
#if MOTH_REAL_KIND == 1
  return w < 6.25 ? low : mid;
#else
  double high = m_erfinv_high_(s - 5.25);
  return w < 6.25 ? low : s < 4.25 ? mid : high;
#endif
}
MOTH_FN double m_erfinv_of_(double x) {
  double u = (1 - x) * (1 + x), w = -m_wide_log_(u > 0 ? u : 1), s = moth_libm_sqrt(w);
  double y = m_erfinv_root_(w, s);
  y = x == 1 || x == -1 ? (double)m_inf() : u >= 0 ? y : (double)m_nan();
  return x * y;
}
#if MOTH_REAL_KIND == 1
// The same up to |x| = 0.999 mostly in float32, its logarithm and all but the first two powers: to 0.81 ULP.
MOTH_FN float m_erfinv_powers_(float t) {
  float u = t * t, e = 1.781343e-07f, o = -8.35490312e-07f;
  e = e * u - 6.39748876e-08f;
  o = o * u + 6.62202274e-06f;
  e = e * u - 1.18533981e-05f;
  o = o * u - 1.45120894e-05f;
  e = e * u + 9.37075965e-05f;
  o = o * u - 0.000117173433f;
  e = e * u - 0.000264508853f;
  o = o * u + 0.00123257306f;
  e = e * u - 0.00127167022f;
  o = o * u - 0.00413732836f;
  e = e * u + 0.0178083591f;
  o = o * u - 0.0226044469f;
  e = e * u - 0.0589225665f;
  return o * t + e;
}
// For blocks of elements that are easy (src/codegen/c.lua), with the same bits.
MOTH_FN int m_erfinv_easy(float x) {
  return x < 0.999f && x > -0.999f;
}
MOTH_FN float m_erfinv_fast(float x) {
  float top = m_f32_from_bits(m_f32_bits(x) & 0xfffff000u); // its square is exact
  float square = (1.0f - top * top) - (x - top) * (x + top);
  unsigned b = m_f32_bits(square) - 0x3f3504f3u;
  float k = (float)((int)b >> 23);
  float f = m_f32_from_bits((b & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  float y = f + m_log_poly_(f);
  float t = -0.32f * (k * 0.693147182f + y) - 1.0f;
  double wide = ((double)k * -0.22180709777918249 - 1) - 0.32 * (double)y;
  double p = ((double)m_erfinv_powers_(t) * wide + 0.75049432005854281) * wide + 1.6536545626826207;
  return (float)((double)x * p);
}
MOTH_FN real m_erfinv(real x) {
  return m_erfinv_easy(x) ? m_erfinv_fast(x) : (real)m_erfinv_of_((double)x);
}
#else
MOTH_FN real m_erfinv(real x) {
  return (real)m_erfinv_of_((double)x);
}
// For blocks of elements that are easy (src/codegen/c.lua), with the same bits: w stays below 6.25.
MOTH_FN int m_erfinv_easy(real x) {
  return x < (real)0.999 && x > (real)-0.999;
}
MOTH_FN real m_erfinv_fast(real x) {
  double y = (double)x, w = -m_wide_log_((1 - y) * (1 + y));
  return (real)(y * m_erfinv_low_(w * 0.32 - 1));
}
#endif
// (z - log(z) / z - y) z, where the normal distribution is p below -y and z = sqrt(-2 log(p)), by 1 / z.
MOTH_FN double m_ndtri_near_(double t) {
  const double c[29] = {
      1.0296363247831735,      0.075340625225842187,    -0.0010644199475439984,
      -0.00015296963020105847, 7.1824352656331948e-05,  -2.2824732111645823e-05,
      6.302370118098129e-06,   -1.629725732595321e-06,  4.1425208589725299e-07,
      -1.0677841463587903e-07, 2.8333629196156087e-08,  -7.7569662473264244e-09,
      2.1810540858594501e-09,  -6.2609317194031603e-10, 1.8264448514793913e-10,
      -5.3993048049841407e-11, 1.6148391901453847e-11,  -4.8811792571887302e-12,
      1.4898508512603773e-12,  -4.5878750887928565e-13, 1.4241830265560299e-13,
      -4.4531085977099659e-14, 1.4015184611665934e-14,  -4.4371957001847989e-15,
      1.4124303228767117e-15,  -4.5183560713800156e-16, 1.4520455594525304e-16,
      -4.686164485051954e-17,  1.51830618246309e-17,
  };
  return m_chebyshev_(c, 29, 16, t);
}
MOTH_FN double m_ndtri_far_(double t) {
  const double c[27] = {
      0.93786917535793346,     0.015112253858249311,    0.00060345485409881653,
      -0.00011295105899142844, 1.8104324672632141e-05,  -3.1554685092256361e-06,
      6.1658428519154211e-07,  -1.3244478054008696e-07, 3.0534166463151449e-08,
      -7.4261294003487291e-09, 1.8829386730624519e-09,  -4.9358995238617436e-10,
      1.3294968805695556e-10,  -3.6626849961798884e-11, 1.0284163237977747e-11,
      -2.9349065307387287e-12, 8.4941101108416011e-13,  -2.488652987824336e-13,
      7.3705017076767024e-14,  -2.2038755151253117e-14, 6.6464559905104296e-15,
      -2.0198987372077698e-15, 6.1813497304323185e-16,  -1.9035910458110817e-16,
      5.8960294698535261e-17,  -1.8358230436201299e-17, 5.7438388436386316e-18,
  };
  return m_chebyshev_(c, 27, 13, t);
}
MOTH_FN double m_ndtri_of_(double p) {
  double tail = p > 0.5 ? 1 - p : p;
  double z = moth_libm_sqrt(-2 * m_wide_log_of_(tail)), t = 1 / z;
  double h = z < 9 ? m_ndtri_near_((2 * t - (1.0 / 9 + 0.5)) / (0.5 - 1.0 / 9))
                   : m_ndtri_far_((2 * t - (1.0 / 39 + 1.0 / 9)) / (1.0 / 9 - 1.0 / 39));
  double y = z - (h + m_wide_log_of_(z)) * t;
  double inside = 1.4142135623730951 * m_erfinv_of_(2 * p - 1);
  y = p > 0.5 ? y : -y;
  y = tail > 0.14 ? inside : y;
  return tail == 0  ? (p > 0.5 ? (double)m_inf() : -(double)m_inf())
         : tail < 0 ? (double)m_nan()
                    : y;
}
MOTH_FN real m_ndtri(real p) {
  return (real)m_ndtri_of_((double)p);
}
// erfc of double: for float32 to 2^-33.
MOTH_FN double m_wide_erfc_(double x) {
#if MOTH_REAL_KIND == 1
  double a = x < 0 ? -x : x, b = a > 60 ? 60 : a;
  double y = m_erfcx_sum_((b - 4) / (b + 4)) / (1 + 2 * b) * m_wide_exp_(-b * b);
  return x < 0 ? 2 - y : y;
#else
  return moth_libm_erfc(x);
#endif
}
// log(1 + x) for x > -1: what rounding 1 + x lost is added.
MOTH_FN double m_wide_log1p_(double x) {
#if MOTH_REAL_KIND == 1
  double w = 1 + x;
  return m_wide_log_(w) - ((w - 1) - x) / w;
#else
  return m_log1p(x);
#endif
}
MOTH_FN real m_ndtr(real x) {
  return (real)(0.5 * m_wide_erfc_((double)x * -0.70710678118654752));
}
// log of the normal distribution: in the lower tail by erfcx.
MOTH_FN real m_log_ndtr(real x) {
  double d = (double)x, t = d * 0.70710678118654752;
  double low = m_wide_log_of_(m_erfcx_of_(t > 0 ? t : -t) * 0.5) - t * t;
  double high = m_wide_log1p_(-0.5 * m_wide_erfc_(t < -1 ? -1 : t));
  return (real)(d < -1 ? low : high);
}

// ---- x log(y) and others that are 0 where x is 0 -------------------------------------------------

MOTH_FN real m_xlogy(real x, real y) {
  return y != y ? y : x == 0 ? 0 : x * m_log(y);
}
MOTH_FN real m_xlog1py(real x, real y) {
  return y != y ? y : x == 0 ? 0 : x * m_log1p(y);
}
// -x log(x); -Inf for x < 0.
MOTH_FN real m_entr(real x) {
  return x > 0 ? -x * m_log(x) : x == 0 ? 0 : x != x ? x : -m_inf();
}
// sin(pi x) / (pi x), its derivative and the second one: by the first terms of their series where they cancel.
MOTH_FN real m_sinc(real x) {
  real t = x * (real)3.14159265358979324;
  return x == 0 ? 1 : m_sin(t) / t;
}
MOTH_FN real m_sinc_backward_of_(real g, double t, double s, double c) {
  double z = t * t, a = z < 0.25 ? z : 0.25;
  double near = (((((((a / -22230464256000.0 + 1.0 / 93405312000.0) * a - 1.0 / 518918400) * a +
                     1.0 / 3991680) *
                        a -
                    1.0 / 45360) *
                       a +
                   1.0 / 840) *
                      a -
                  1.0 / 30) *
                     -a -
                 1.0 / 3) *
                t;
  double far = (c - s / t) / t;
  return g * (real)(3.14159265358979324 * (z < 0.25 ? near : far));
}
MOTH_FN real m_sinc_backward(real g, real x) {
  double t = (double)x * 3.14159265358979324;
  return m_sinc_backward_of_(g, t, m_wide_sin_(t), m_wide_cos_(t));
}
// For blocks of elements that are easy (src/codegen/c.lua), with the same bits.
MOTH_FN int m_sinc_backward_easy(real g, real x) {
  return (int)(m_abs(g) >= 0) & (int)(m_abs(x) < 262144);
}
MOTH_FN real m_sinc_backward_fast(real g, real x) {
  double t = (double)x * 3.14159265358979324;
  return m_sinc_backward_of_(g, t, m_wide_sin_fast_(t), m_wide_cos_fast_(t));
}
MOTH_FN real m_sinc_double_of_(double t, double sine, double c) {
  double z = t * t, a = z < 0.25 ? z : 0.25;
  double near =
      (((((((a / 1482030950400.0 - 1.0 / 7185024000.0) * a + 1.0 / 47174400) * a - 1.0 / 443520) *
              a +
          1.0 / 6480) *
             a -
         1.0 / 168) *
            a +
        1.0 / 10) *
           a -
       1.0 / 3);
  double s = sine / t, far = -s - 2 * (c - s) / z;
  return (real)(9.8696044010893586 * (z < 0.25 ? near : far));
}
MOTH_FN real m_sinc_double(real x) {
  double t = (double)x * 3.14159265358979324;
  return m_sinc_double_of_(t, m_wide_sin_(t), m_wide_cos_(t));
}
MOTH_FN int m_sinc_double_easy(real x) {
  return m_abs(x) < 262144;
}
MOTH_FN real m_sinc_double_fast(real x) {
  double t = (double)x * 3.14159265358979324;
  return m_sinc_double_of_(t, m_wide_sin_fast_(t), m_wide_cos_fast_(t));
}
// log(x / (1 - x)); around 1/2, where the quotient is about 1, by what it is more than that. And its derivative, times g.
MOTH_FN real m_logit(real x) {
  real far = m_log(x / (1 - x)), f = (x + x - 1) / (1 - x);
  int near = (f > (real)-0.29) & (f < (real)0.41);
  f = near ? f : 0;
  return near ? f + m_log_poly_(f) : far;
}
MOTH_FN real m_logit_backward(real g, real x) {
  return g / (x * (1 - x));
}
MOTH_FN real m_logaddexp2(real a, real b) {
  real m = a > b ? a : b, d = a == b ? 0 : -m_abs(a - b);
  return a != a || b != b ? a + b : m + m_log1p_unit_(m_exp2(d)) * (real)1.4426950408889634;
}
MOTH_FN real m_heaviside(real x, real zero) {
  return x == 0 ? zero : x > 0 ? 1 : 0;
}
MOTH_FN real m_signbit(real x) {
  return m_copysign(1, x) < 0 ? 1 : 0;
}

#include "math_bessel.h"

// ---- zeta, and the incomplete gamma functions -----------------------------------------------------

// Hurwitz' zeta: Inf at s = 1 and at the poles q = 0, -1, …; NaN for s < 1, and for q < 0 where s is not whole.
MOTH_FN real m_zeta(real s, real q) {
  double a = (double)s, b = (double)q;
  if (s != s || q != q)
    return m_nan();
  if (s == 1)
    return m_inf();
  if (s < 1)
    return m_nan();
  if (q <= 0 && b == moth_libm_floor(b))
    return m_inf();
  if (q <= 0 && (a != moth_libm_floor(a) || b < -1e6)) // below, its terms would be too many
    return m_nan();
  return (real)m_zeta_(a, b);
}
// log(1 + m) - m, without the cancellation near 0.
MOTH_FN double m_log1pmx_(double m) {
  double sum = 0, power = m;
  if (m > 0.3 || m < -0.3)
    return moth_libm_log1p(m) - m;
  for (int k = 2; k < 60; k++) {
    power *= -m;
    sum += power / k;
  }
  return sum;
}
// x^a e^-x / Gamma(a + 1), for large a by Stirling's series.
MOTH_FN double m_gamma_density_(double a, double x) {
  double z = 1 / (a * a);
  double tail =
      ((((1.0 / 1188 * z - 1.0 / 1680) * z + 1.0 / 1260) * z - 1.0 / 360) * z + 1.0 / 12) / a;
  if (a < 10)
    return moth_libm_exp(a * moth_libm_log(x) - x - moth_libm_lgamma(a + 1));
  return moth_libm_exp(a * m_log1pmx_((x - a) / a) - tail) /
         moth_libm_sqrt(6.28318530717958648 * a);
}
// The regularised lower (upper: 1) incomplete gamma function, by its series below a + 1, else by a continued fraction
// (Lentz's form).
MOTH_FN double m_incomplete_gamma_(double a, double x, int upper) {
  double inf = (double)m_inf();
  if (a != a || x != x || a < 0 || x < 0 || (a == inf && x == inf))
    return (double)m_nan();
  if (a == 0)
    return x > 0 ? 1 - upper : (double)m_nan();
  if (x == 0 || a == inf)
    return upper;
  if (x == inf)
    return 1 - upper;
  double density = m_gamma_density_(a, x);
  if (x < a + 1) {
    double sum = 1, term = 1;
    for (int k = 1; k < 20000 && term > sum * 1e-17; k++) {
      term *= x / (a + k);
      sum += term;
    }
    return upper ? 1 - density * sum : density * sum;
  }
  double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
  for (int k = 1; k < 20000; k++) {
    double n = k * (a - k), step;
    b += 2;
    d = n * d + b;
    c = b + n / c;
    d = 1 / (d == 0 ? 1e-300 : d);
    c = c == 0 ? 1e-300 : c;
    step = d * c;
    h *= step;
    if (step - 1 < 1e-16 && step - 1 > -1e-16)
      break;
  }
  return upper ? density * a * h : 1 - density * a * h;
}
MOTH_FN real m_igamma(real a, real x) {
  return (real)m_incomplete_gamma_((double)a, (double)x, 0);
}
MOTH_FN real m_igammac(real a, real x) {
  return (real)m_incomplete_gamma_((double)a, (double)x, 1);
}

// ---- derivatives of samples ----------------------------------------------------------------------
// A sample x = F^-1(u) of a distribution with a parameter a moves by -(dF/da) / p(x) if the parameter does and u stays.
// With R = F / p, that is -((d log p/da) R + dR/da); for 1 - F the sign is the other one. R needs no gamma function.

// For the gamma distribution of shape a and rate 1, for large a: Cornish and Fisher's expansion of x in the normal
// quantile z, and its derivative by a. From 400 on its relative error is below 1e-6. From 400 on its relative error is below 1e-6.
MOTH_FN double m_gamma_sample_far_(double a, double x) {
  double r = 1 / moth_libm_sqrt(a), z = (x - a) * r;
  for (int k = 0; k < 6; k++) {
    double q = z * z;
    double f = z + r * ((q - 1) / 3 + r * (z * (q - 7) / 36 - r * ((3 * q + 7) * q - 16) / 810));
    double g = 1 + r * (2 * z / 3 + r * ((3 * q - 7) / 36 - r * (12 * q + 14) * z / 810));
    z -= (f - (x - a) * r) / g;
  }
  double q = z * z;
  return 1 + r * (z / 2 - r * r * (z * (q - 7) / 72 - r * ((3 * q + 7) * q - 16) / 810));
}
// By the series of F below a + 1: x times the sum of x^n / (a ... (a + n)) (digamma(a + n + 1) - log x); else by the
// continued fraction of 1 - F (Lentz's form) and its derivative.
MOTH_FN double m_gamma_sample_of_(double a, double x) {
  double inf = (double)m_inf();
  if (!(a > 0) || !(x >= 0) || a == inf || x == inf)
    return (double)m_nan();
  if (x == 0)
    return 0;
  if (a > 400)
    return m_gamma_sample_far_(a, x);
  double logarithm = moth_libm_log(x), psi = m_digamma_up_(a, 0);
  if (x < a + 1) {
    double term = 1, sum = 0;
    for (int n = 0; n < 10000; n++) {
      term /= a + n;
      psi += 1 / (a + n);
      double add = term * (psi - logarithm);
      sum += add;
      if (n > 2 && add < 1e-16 * sum && add > -1e-16 * sum)
        break;
      term *= x;
    }
    return x * sum;
  }
  double b = x + 1 - a, c = 1e300, dc = 0, d = 1 / b, dd = d * d, h = d, dh = dd;
  for (int k = 1; k < 10000; k++) {
    double n = k * (a - k);
    b += 2;
    double e = n * d + b, de = k * d + n * dd - 1;
    double f = b + n / c, df = -1 + k / c - n * dc / (c * c);
    e = e == 0 ? 1e-300 : e;
    f = f == 0 ? 1e-300 : f;
    d = 1 / e;
    dd = -de * d * d;
    c = f;
    dc = df;
    double step = d * c, dstep = dd * c + d * dc;
    dh = dh * step + h * dstep;
    h *= step;
    if (step - 1 < 1e-15 && step - 1 > -1e-15 && dstep < 1e-15 && dstep > -1e-15)
      break;
  }
  return x * ((logarithm - psi) * h + dh);
}
MOTH_FN real m_standard_gamma_grad(real a, real x) {
  return (real)m_gamma_sample_of_((double)a, (double)x);
}
// For x of Beta(a, total - a), divided by 1 - x, by the continued fraction of the incomplete beta function of x, or of
// 1 - x, whichever converges, and its derivative by a.
MOTH_FN double m_dirichlet_grad_of_(double x, double a, double total) {
  double b = total - a;
  if (!(a > 0) || !(b > 0) || !(x >= 0) || !(x <= 1))
    return (double)m_nan();
  if (x == 0)
    return 0;
  int low = x <= (a + 1) / (total + 2);
  double p = low ? a : b, q = low ? b : a, y = low ? x : 1 - x, dp = low, dq = 1 - low;
  double c = 1, dc = 0, e = 1 - (p + q) * y / (p + 1);
  double de = -y * ((dp + dq) * (p + 1) - (p + q) * dp) / ((p + 1) * (p + 1));
  e = e == 0 ? 1e-300 : e;
  double d = 1 / e, dd = -de * d * d, h = d, dh = dd;
  for (int m = 1; m < 20000; m++) {
    double before = h, dbefore = dh;
    for (int odd = 0; odd < 2; odd++) {
      double s = p + 2 * m, num = odd ? -(p + m) * (p + q + m) * y : m * (q - m) * y;
      double dnum = odd ? -y * (dp * (p + q + m) + (p + m) * (dp + dq)) : m * dq * y;
      double den = odd ? s * (s + 1) : (s - 1) * s,
             dden = odd ? (2 * s + 1) * dp : (2 * s - 1) * dp;
      double n = num / den, dn = (dnum - n * dden) / den;
      e = 1 + n * d;
      de = dn * d + n * dd;
      double f = 1 + n / c, df = dn / c - n * dc / (c * c);
      e = e == 0 ? 1e-300 : e;
      f = f == 0 ? 1e-300 : f;
      d = 1 / e;
      dd = -de * d * d;
      c = f;
      dc = df;
      dh = dh * (d * c) + h * (dd * c + d * dc);
      h *= d * c;
    }
    double change = h - before, dchange = dh - dbefore, least = 1e-15 * (h < 0 ? -h : h);
    if (change < least && change > -least && dchange < least && dchange > -least)
      break;
  }
  double slope = moth_libm_log(x) - m_digamma_up_(a, 0) + m_digamma_up_(total, 0);
  // R / (1 - x) = x h / p
  double value = x / p * (slope * h + dh - (low ? h / p : 0));
  return low ? -value : value;
}
MOTH_FN real m_dirichlet_grad(real x, real a, real total) {
  return (real)m_dirichlet_grad_of_((double)x, (double)a, (double)total);
}

// ---- orthogonal polynomials of degree n, truncated; 0 for n < 0 --------------------------------------
// Their recurrences take n steps: NaN for a million and more, where there is no other form.

// Chebyshev's: p_k = 2 x p_(k-1) - p_(k-2) from 1 and p1.
MOTH_FN double m_chebyshev_terms_(double x, double p1, double n) {
  double p = 1, q = p1;
  if (!(n < 1e6))
    return (double)m_nan();
  for (double k = 2; k <= n && q == q; k += 1) {
    double next = 2 * x * q - p;
    p = q;
    q = next;
  }
  return n < 1 ? 1 : q;
}
MOTH_FN int m_even_(double n) {
  return moth_libm_floor(n * 0.5) * 2 == n;
}
MOTH_FN double m_chebyshev_t_of_(double x, double order) {
  double n = moth_libm_trunc(order);
  if (n < 0)
    return 0;
  if (x == 1 || x == -1)
    return x > 0 || m_even_(n) ? 1 : -1;
  if (n > 6 && x > -1 && x < 1)
    return moth_libm_cos(n * moth_libm_acos(x));
  return m_chebyshev_terms_(x, x, n);
}
MOTH_FN double m_chebyshev_u_of_(double x, double order) {
  double n = moth_libm_trunc(order);
  if (n < 0)
    return 0;
  if (x == 1 || x == -1)
    return x > 0 || m_even_(n) ? n + 1 : -(n + 1);
  if (n > 8 && x > -1 && x < 1)
    return moth_libm_sin((n + 1) * moth_libm_acos(x)) / moth_libm_sin(moth_libm_acos(x));
  return m_chebyshev_terms_(x, x + x, n);
}
MOTH_FN double m_chebyshev_v_of_(double x, double order) {
  double n = moth_libm_trunc(order);
  if (n < 0)
    return 0;
  if (x == 1 || x == -1)
    return x > 0 ? 1 : m_even_(n) ? n + n + 1 : -(n + n + 1);
  if (n > 8 && x > -1 && x < 1)
    return moth_libm_cos((n + 0.5) * moth_libm_acos(x)) / moth_libm_cos(0.5 * moth_libm_acos(x));
  return m_chebyshev_terms_(x, x + x - 1, n);
}
MOTH_FN double m_chebyshev_w_of_(double x, double order) {
  double n = moth_libm_trunc(order);
  if (n < 0)
    return 0;
  if (x == 1 || x == -1)
    return x > 0 ? n + n + 1 : m_even_(n) ? 1 : -1;
  if (n > 8 && x > -1 && x < 1)
    return moth_libm_sin((n + 0.5) * moth_libm_acos(x)) / moth_libm_sin(0.5 * moth_libm_acos(x));
  return m_chebyshev_terms_(x, x + x + 1, n);
}
MOTH_FN real m_chebyshev_polynomial_t(real x, real n) {
  return (real)m_chebyshev_t_of_((double)x, (double)n);
}
MOTH_FN real m_chebyshev_polynomial_u(real x, real n) {
  return (real)m_chebyshev_u_of_((double)x, (double)n);
}
MOTH_FN real m_chebyshev_polynomial_v(real x, real n) {
  return (real)m_chebyshev_v_of_((double)x, (double)n);
}
MOTH_FN real m_chebyshev_polynomial_w(real x, real n) {
  return (real)m_chebyshev_w_of_((double)x, (double)n);
}
MOTH_FN real m_shifted_chebyshev_polynomial_t(real x, real n) {
  return (real)m_chebyshev_t_of_(2 * (double)x - 1, (double)n);
}
MOTH_FN real m_shifted_chebyshev_polynomial_u(real x, real n) {
  return (real)m_chebyshev_u_of_(2 * (double)x - 1, (double)n);
}
MOTH_FN real m_shifted_chebyshev_polynomial_v(real x, real n) {
  return (real)m_chebyshev_v_of_(2 * (double)x - 1, (double)n);
}
MOTH_FN real m_shifted_chebyshev_polynomial_w(real x, real n) {
  return (real)m_chebyshev_w_of_(2 * (double)x - 1, (double)n);
}
// p_(k+1) = ((a k + b) + (c k + d) x) p_k - (e k) p_(k-1), over k + 1 where `over` is 1.
MOTH_FN double m_three_terms_(double x, double order, double p1, double a, double b, double c,
                              double d, double e, int over) {
  double n = moth_libm_trunc(order), p = 1, q = p1;
  if (n < 1)
    return n < 0 ? 0 : 1;
  if (!(n < 1e6))
    return (double)m_nan();
  for (double k = 1; k < n && q == q; k += 1) {
    double next = (a * k + b + (c * k + d) * x) * q - e * k * p;
    p = q;
    q = over ? next / (k + 1) : next;
  }
  return q;
}
MOTH_FN real m_hermite_polynomial_h(real x, real n) {
  double d = (double)x;
  return (real)m_three_terms_(d, (double)n, d + d, 0, 0, 0, 2, 2, 0);
}
MOTH_FN real m_hermite_polynomial_he(real x, real n) {
  double d = (double)x;
  return (real)m_three_terms_(d, (double)n, d, 0, 0, 0, 1, 1, 0);
}
MOTH_FN real m_laguerre_polynomial_l(real x, real n) {
  double d = (double)x;
  return (real)m_three_terms_(d, (double)n, 1 - d, 2, 1, 0, -1, 1, 1);
}
MOTH_FN real m_legendre_polynomial_p(real x, real n) {
  double d = (double)x;
  return (real)m_three_terms_(d, (double)n, d, 0, 0, 2, 1, 1, 1);
}
