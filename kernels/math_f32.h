// The float32 primitives of math.h, which includes this file (real = float). Bounds: spec/kernels.

// ---- exponentials -----------------------------------------------------------------------------

// e^(hi - lo) = (1 + q) * s1 * s2, |q| < 0.5. The magic number rounds to an integer n in the low
// bits of the float; adding 254 to it makes kb >> 1 and kb - (kb >> 1) the biased exponents of
// two factors whose product is 2^n, so that -250 < n < 250 and denormal results need no branch.
struct m_exp_parts_ {
  float q, s1, s2;
};
MOTH_FN struct m_exp_parts_ m_exp_split_(float hi, float lo) {
  struct m_exp_parts_ e;
  float t = (hi - lo) * 1.44269502f + (0x1.8p23f + 254.0f);
  unsigned kb = m_f32_bits(t);
  float n = t - (0x1.8p23f + 254.0f);
  float r = ((hi - n * 0.693359375f) - lo) + n * 0.00021219444f;
  float p = M_EXP_POLY_F32(r);
  e.q = r * r * p + r;
  e.s1 = m_f32_from_bits((kb >> 1) << 23);
  e.s2 = m_f32_from_bits((kb - (kb >> 1)) << 23);
  return e;
}
// The range in which m_exp_split_ is right and outside of which every result is 0 or Inf.
MOTH_FN float m_exp_clamp_(float x) {
  x = x > 90.0f ? 90.0f : x;
  return x < -120.0f ? -120.0f : x;
}
// c * e^(hi - lo) with one rounding at the end; hi - lo in [-120, 90], |c| moderate.
MOTH_FN float m_exp_mul2_(float c, float hi, float lo) {
  struct m_exp_parts_ e = m_exp_split_(hi, lo);
  return (c * e.q + c) * e.s1 * e.s2;
}
// c * e^x for moderate |c|: right where e^x alone is denormal or overflows.
MOTH_FN float m_exp_mul(float c, float x) {
  return m_exp_mul2_(c, m_exp_clamp_(x), 0.0f);
}
// <= 1 ULP of all floats; without FMA 1.012 ULP at 18 of them.
MOTH_FN float m_exp(float x) {
  struct m_exp_parts_ e = m_exp_split_(m_exp_clamp_(x), 0.0f);
  return (e.q * e.s1 + e.s1) * e.s2;
}
// m_exp of x <= 0 and NaN, the same bits: nothing overflows, so that one factor 2^n * 2^64 will do.
MOTH_FN float m_exp_down(float x) {
  x = x < -120.0f ? -120.0f : x;
  float t = x * 1.44269502f + (0x1.8p23f + 191.0f);
  unsigned kb = m_f32_bits(t);
  float n = t - (0x1.8p23f + 191.0f);
  float r = (x - n * 0.693359375f) + n * 0.00021219444f;
  float p = M_EXP_POLY_F32(r);
  float s = m_f32_from_bits(kb << 23);
  return ((r * r * p + r) * s + s) * 0x1p-64f;
}
// e^x for x <= 0 where a GPU's own 2^x will do: 2 ULP, and without the correction (rough) what float16 and bfloat16 keep.
// m_exp elsewhere.
MOTH_FN float m_exp_rough(float x) {
#ifdef __CUDA_ARCH__
  float y, c = x < -120.0f ? -120.0f : x;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(c * 1.44269502f));
  return y;
#else
  return m_exp(x);
#endif
}
MOTH_FN float m_exp_soft(float x) {
#ifdef __CUDA_ARCH__
  float c = x < -120.0f ? -120.0f : x, t = c * 1.44269502f, y = m_exp_rough(x);
  float lost = moth_libm_fmaf(c, 1.44269502f, -t) + c * 1.92596299e-8f; // by the rounding of t
  return moth_libm_fmaf(y, lost * 0.693147182f, y);
#else
  return m_exp(x);
#endif
}
// <= 1.5 ULP; exact for whole x.
MOTH_FN float m_exp2(float x) {
  x = x > 130.0f ? 130.0f : x;
  x = x < -160.0f ? -160.0f : x;
  float t = x + (0x1.8p23f + 254.0f);
  unsigned kb = m_f32_bits(t);
  float r = x - (t - (0x1.8p23f + 254.0f));
  float p =
      ((((0.000154633031f * r + 0.00133912021f) * r + 0.00961806159f) * r + 0.0555035919f) * r +
       0.240226507f) *
          r +
      0.693147182f;
  return (p * r + 1.0f) * m_f32_from_bits((kb >> 1) << 23) *
         m_f32_from_bits((kb - (kb >> 1)) << 23);
}
// e^x - 1 for -80 < x < 88.9, without care for -0 and denormals. Half of it is summed up, so that
// 2^n = 2^128 does not overflow.
MOTH_FN float m_expm1_core_(float x) {
  float t = x * 1.44269502f + (0x1.8p23f + 126.0f);
  float n = t - (0x1.8p23f + 126.0f);
  float r = (x - n * 0.693359375f) + n * 0.00021219444f;
  float p = M_EXP_POLY_F32(r);
  float s = m_f32_from_bits(m_f32_bits(t) << 23);
  return 2.0f * ((r * r * p + r) * s + (s - 0.5f));
}
// (e^2x - 1) / 2 for 0 <= x < 44: m_expm1_core_ of 2x with its r halved, the same bits.
MOTH_FN float m_expm1_half_(float x) {
  float t = x * (2 * 1.44269502f) + (0x1.8p23f + 127.0f);
  float n = t - (0x1.8p23f + 127.0f);
  float r = (x - n * (0.693359375f / 2)) + n * (0.00021219444f / 2);
  float p = (((32 * 0.00138186966f * r + 16 * 0.00836871564f) * r + 8 * 0.0416682921f) * r +
             4 * 0.166665211f) *
                r +
            2 * 0.49999994f;
  float s = m_f32_from_bits(m_f32_bits(t) << 23);
  return (r * r * p + r) * s + (s * 0.5f - 0.5f);
}
// <= 1.5 ULP.
MOTH_FN float m_expm1(float x) {
  float c = x < -30.0f ? -30.0f : x;
  c = c > 88.8f ? 88.8f : c;
  float y = m_expm1_core_(c);
  return moth_libm_fabsf(x) < 0x1p-26f ? x : y;
}

// ---- logarithms -------------------------------------------------------------------------------

// x = 2^k * (1 + f), f in [sqrt(1/2) - 1, sqrt(2) - 1]; p = log(1 + f) - f.
struct m_log_parts_ {
  float k, f, p;
};
MOTH_FN float m_log_poly_(float f) {
  float z = f * f;
  float p = (((((((0.068030633f * f - 0.117219046f) * f + 0.118852347f) * f - 0.123961642f) * f +
                0.142187297f) *
                   f -
               0.16668652f) *
                  f +
              0.200022012f) *
                 f -
             0.24999994f) *
                f +
            0.333333105f;
  return f * z * p - 0.5f * z;
}
MOTH_FN struct m_log_parts_ m_log_split_(float x) {
  struct m_log_parts_ l;
  int tiny = x < 0x1p-126f;
  unsigned u = m_f32_bits(tiny ? x * 0x1p23f : x) - 0x3f3504f3u;
  l.k = (float)(((int)u >> 23) - (tiny ? 23 : 0));
  l.f = m_f32_from_bits((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  l.p = m_log_poly_(l.f);
  return l;
}
// The value of every logarithm of x for x = 0, Inf, NaN and x < 0; else y.
MOTH_FN float m_log_special_(float x, float y) {
  float special = x == 0.0f ? -m_inf() : m_nan();
  y = x < m_inf() ? y : x;
  return x > 0.0f ? y : special;
}
// <= 1 ULP.
MOTH_FN float m_log(float x) {
  struct m_log_parts_ l = m_log_split_(x);
  float y = (l.f + (l.p - l.k * 0.00021219444f)) + l.k * 0.693359375f;
  return m_log_special_(x, y);
}
// <= 2 ULP; exact for powers of two.
MOTH_FN float m_log2(float x) {
  struct m_log_parts_ l = m_log_split_(x);
  float y = l.f * 1.44238281f + (l.f * 0.000312228628f + l.p * 1.44269502f);
  return m_log_special_(x, y + l.k);
}
// <= 2 ULP.
MOTH_FN float m_log10(float x) {
  struct m_log_parts_ l = m_log_split_(x);
  float y = l.f * 0.434082031f + (l.f * 0.000212450897f + l.p * 0.434294492f);
  return m_log_special_(x, (y + l.k * 0.000248745664f) + l.k * 0.30078125f);
}
// log(1 + x), without care for special values.
MOTH_FN float m_log1p_core_(float x) {
  float u = x + 1.0f;
  unsigned b = m_f32_bits(u) - 0x3f3504f3u;
  int k = (int)b >> 23;
  float m = m_f32_from_bits((b & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  float s = m_f32_from_bits((unsigned)(127 - k) << 23); // 2^-k
  float f = u > 0x1p25f ? m : x * s + (s - 1.0f);
  float n = (float)k;
  return (f + (m_log_poly_(f) - n * 0.00021219444f)) + n * 0.693359375f;
}
// <= 1.5 ULP.
MOTH_FN float m_log1p(float x) {
  float y = m_log1p_core_(x);
  float special = x == -1.0f ? -m_inf() : m_nan();
  y = x < m_inf() && x != 0.0f ? y : x;
  return x > -1.0f ? y : special;
}

// ---- trigonometry -----------------------------------------------------------------------------

// x = (4j + quadrant) * pi/2 + r, |r| <= pi/4, for all finite x: Payne and Hanek's method with
// four windows of 2/pi instead of a table. x * scale is whole in the upper three windows, so
// multiples of 4 may be taken off the constant; h and m have 29 bits, so that both products are
// exact, and what is left over after taking multiples of 4 off these is good to 2^-54.
struct m_angle_ {
  float r, lo; // lo: what the rounding of r left over
  unsigned quadrant;
};
MOTH_FN struct m_angle_ m_rem_pio2_(float x) {
  struct m_angle_ a;
  float ax = moth_libm_fabsf(x);
  int w1 = ax >= 0x1p27f, w2 = ax >= 0x1p62f, w3 = ax >= 0x1p97f;
  double d = (double)(x * (w3 ? 0x1p-74f : w2 ? 0x1p-39f : w1 ? 0x1p-4f : 1.0f));
  double h = w3 ? 0x1.3abe8fcp-1 : w2 ? -0x1.bbead6p-1 : w1 ? -0x1.d067c92p+0 : 0x1.45f306cp-1;
  double m = w3 ? -0x1.65911f9p-29 : w2 ? -0x1.ec5417p-32 : w1 ? 0x1.391054ap-30 : 0x1.c9c882ap-29;
  double l = w3   ? -0x1.275a99b0ef1bfp-60
             : w2 ? -0x1.596447e493ad5p-62
             : w1 ? 0x1.fc2757d1f534ep-60
                  : 0x1.4fe13abe8fa9ap-59;
  double f1 = d * h, f2 = d * m;
  f1 = f1 - 4.0 * moth_libm_rint(f1 * 0.25);
  f2 = f2 - ((f2 + 0x1.8p54) - 0x1.8p54);
  double f3 = d * l, t = (f1 + f2 + f3) + 0x1.8p52, n = t - 0x1.8p52;
  double r = ((f1 - n) + f2) + f3;
  r *= 1.5707963267948966;
  a.r = (float)r;
  a.lo = (float)(r - (double)a.r);
  a.quadrant = (unsigned)m_f64_bits(t);
  return a;
}
// For |x| < 2^20, where the product of n and the first 33 bits of pi/2 is exact.
MOTH_FN struct m_angle_ m_rem_pio2_easy_(float x) {
  struct m_angle_ a;
  double d = (double)x, t = d * 0.63661977236758134 + 0x1.8p52, n = t - 0x1.8p52;
  double r = (d - n * 0x1.921fb544p0) - n * 0x1.0b4611a626331p-34;
  a.r = (float)r;
  a.lo = (float)(r - (double)a.r);
  a.quadrant = (unsigned)m_f64_bits(t);
  return a;
}
// sin (quadrant even) or cos (odd) of r in [-pi/4, pi/4], negated in quadrants 2 and 3.
MOTH_FN float m_sin_quadrant_(float r, unsigned quadrant) {
  float z = r * r;
  float s = ((2.83724717e-06f * z - 0.000198534981f) * z + 0.00833338033f) * z - 0.166666672f;
  float c = (2.44323273e-05f * z - 0.00138873095f) * z + 0.0416666456f;
  s = r * z * s + r;
  c = z * z * c + (1.0f - 0.5f * z);
  float y = (quadrant & 1u) ? c : s;
  return m_f32_from_bits(m_f32_bits(y) ^ ((quadrant & 2u) << 30));
}
// For blocks of elements that are easy (src/codegen/c.lua).
MOTH_FN int m_sin_easy(float x) {
  return moth_libm_fabsf(x) < 0x1p20f;
}
MOTH_FN float m_sin_fast(float x) {
  struct m_angle_ a = m_rem_pio2_easy_(x);
  float y = m_sin_quadrant_(a.r, a.quadrant);
  return x == 0.0f ? x : y;
}
// <= 2 ULP for all finite x.
MOTH_FN float m_sin(float x) {
  if (m_sin_easy(x))
    return m_sin_fast(x);
  struct m_angle_ a = m_rem_pio2_(x);
  return m_sin_quadrant_(a.r, a.quadrant);
}
MOTH_FN int m_cos_easy(float x) {
  return moth_libm_fabsf(x) < 0x1p20f;
}
MOTH_FN float m_cos_fast(float x) {
  struct m_angle_ a = m_rem_pio2_easy_(x);
  return m_sin_quadrant_(a.r, a.quadrant + 1u);
}
// <= 2 ULP for all finite x.
MOTH_FN float m_cos(float x) {
  if (m_cos_easy(x))
    return m_cos_fast(x);
  struct m_angle_ a = m_rem_pio2_(x);
  return m_sin_quadrant_(a.r, a.quadrant + 1u);
}
MOTH_FN float m_tan_of_(struct m_angle_ a) {
  float r = a.r, z = r * r;
  float p = ((((0.0094840955f * z + 0.00294396887f) * z + 0.0245466679f) * z + 0.053376317f) * z +
             0.133392558f) *
                z +
            0.333331376f;
  float u = r * z * p, s = r + u;
  float t = r + (u + (s * s * a.lo + a.lo)); // the small parts first: one rounding at the size of t
  return (a.quadrant & 1u) ? -1.0f / t : t;
}
MOTH_FN int m_tan_easy(float x) {
  return moth_libm_fabsf(x) < 0x1p20f;
}
MOTH_FN float m_tan_fast(float x) {
  float y = m_tan_of_(m_rem_pio2_easy_(x));
  return x == 0.0f ? x : y;
}
// <= 2.5 ULP for all finite x.
MOTH_FN float m_tan(float x) {
  return m_tan_easy(x) ? m_tan_fast(x) : m_tan_of_(m_rem_pio2_(x));
}
// asin(x) for |x| <= 1/2; z = x * x.
MOTH_FN float m_asin_core_(float x, float z) {
  float p = (((0.0422196984f * z + 0.024148168f) * z + 0.0454766564f) * z + 0.0749524906f) * z +
            0.166667536f;
  return x * z * p + x;
}
// <= 2.5 ULP.
MOTH_FN float m_asin(float x) {
  float a = moth_libm_fabsf(x);
  int big = a > 0.5f;
  float z = big ? 0.5f - 0.5f * a : a * a;
  float y = m_asin_core_(big ? moth_libm_sqrtf(z) : a, z);
  y = big ? 1.57079637f - (2.0f * y + 4.371139e-08f) : y;
  return moth_libm_copysignf(y, x);
}
// <= 2 ULP.
MOTH_FN float m_acos(float x) {
  float a = moth_libm_fabsf(x);
  int big = a > 0.5f;
  float z = big ? 0.5f - 0.5f * a : a * a;
  float y = m_asin_core_(big ? moth_libm_sqrtf(z) : x, z);
  float y_big = x > 0.0f ? 2.0f * y : 3.14159274f - (2.0f * y + 8.742278e-08f);
  return big ? y_big : 1.57079637f - (y + 4.371139e-08f);
}
// atan(lo / hi), 0 <= lo <= hi, and pi/2 minus that if steep.
MOTH_FN float m_atan_core_(float lo, float hi, int steep) {
  float t = lo / hi, z = t * t;
  float p =
      (((((((-0.0018187419f * z + 0.0110290442f) * z - 0.0313945375f) * z + 0.0581781007f) * z -
          0.084164612f) *
             z +
         0.109566577f) *
            z -
        0.142650917f) *
           z +
       0.199986264f) *
          z -
      0.333333015f;
  t = t * z * p + t;
  return steep ? 1.57079637f - (t + 4.371139e-08f) : t;
}
// <= 2 ULP.
MOTH_FN float m_atan(float x) {
  float a = moth_libm_fabsf(x);
  int steep = a > 1.0f;
  return moth_libm_copysignf(m_atan_core_(steep ? 1.0f : a, steep ? a : 1.0f, steep), x);
}
// <= 2.5 ULP.
MOTH_FN float m_atan2(float y, float x) {
  float ax = moth_libm_fabsf(x), ay = moth_libm_fabsf(y);
  int steep = ay > ax;
  float lo = steep ? ax : ay, hi = steep ? ay : ax;
  float one = lo == m_inf() ? 1.0f : lo;
  float r = m_atan_core_(hi == 0.0f ? 0.0f : one, hi == 0.0f || lo == m_inf() ? 1.0f : hi, steep);
  r = (m_f32_bits(x) >> 31) ? 3.14159274f - (r + 8.742278e-08f) : r;
  r = moth_libm_copysignf(r, y);
  return x != x || y != y ? x + y : r;
}

// ---- error function ---------------------------------------------------------------------------

// a^2 in two parts, hi + lo: what the product rounds off, or products of a's upper half, which are exact.
struct m_square_ {
  float hi, lo;
};
MOTH_FN struct m_square_ m_square_split_(float a) {
  struct m_square_ s;
#ifdef __FMA__
  s.hi = a * a;
  s.lo = moth_libm_fmaf(a, a, -s.hi);
#else
  float h = m_f32_from_bits(m_f32_bits(a) & 0xfffff000u);
  s.hi = h * h;
  s.lo = (a - h) * (a + h);
#endif
  return s;
}
// c * e^(-a^2) for 0 <= a <= 14.6.
MOTH_FN float m_exp_square_(float c, float a) {
  struct m_square_ s = m_square_split_(a);
  return m_exp_mul2_(c, -s.hi, s.lo);
}
// erf(x) - x for |x| < 0.95.
MOTH_FN float m_erf_small_(float x) {
  float z = x * x;
  float p =
      (((((7.99379923e-05f * z - 0.000804855255f) * z + 0.00519226585f) * z - 0.0268556736f) * z +
        0.112836249f) *
           z -
       0.376126289f) *
          z +
      0.128379166f;
  return x * p;
}
// <= 1.5 ULP. Beyond 0.93, erf = 1 - e^-g(x) with a polynomial g.
MOTH_FN float m_erf(float x) {
  float a = moth_libm_fabsf(x);
  float b = a > 4.0f ? 4.0f : a;
  float g =
      (((((-0.000198213078f * b + 0.00306544686f) * b - 0.0223151091f) * b + 0.104113571f) * b +
        0.636976123f) *
           b +
       1.12779725f) *
          b +
      0.000166444806f;
  float y = -m_expm1_core_(-g);
  y = a < 0.93f ? m_erf_small_(a) + a : y;
  return moth_libm_copysignf(y, x);
}
// <= 2.5 ULP. As m_mills_, whose roundings would add up to 5 ULP, in double.
MOTH_FN float m_erfc(float x) {
  float b = moth_libm_fabsf(x);
  b = b > 10.2f ? 10.2f : b;
  double a = (double)b * 1.4142135623730951;
  double p = (((0.0041087600380690726 * a + 0.040582433445906334) * a + 0.18308455764951417) * a +
              0.4380918335799632) *
                 a +
             0.5000000029144535;
  double q = ((((0.010299012623570272 * a + 0.10173159180308929) * a + 0.46907307733846587) * a +
               1.2018779030699278) *
                  a +
              1.6740686432391791) *
                 a +
             1.0;
  float y = m_exp_square_((float)(2.0 * p / q), b);
  y = x < 0.0f ? 2.0f - y : y;
  return moth_libm_fabsf(x) < 0.5f ? (1.0f - x) - m_erf_small_(x) : y;
}
// |x|, but at most 14.6 (NaN too): as integers one instruction less.
MOTH_FN float m_gauss_clamp_(float x) {
  unsigned u = m_f32_bits(x) & 0x7fffffffu, top = 0x4169999au;
  return m_f32_from_bits(u < top ? u : top);
}
// c/2 * e^(a^2/2) times the normal distribution's upper tail at a, 0 <= a <= 14.6. Pairs of terms are
// joined by a^2, whose rounding cancels in the quotient; q begins with a^5 alone, an addition, which
// has units of its own beside those of the products.
MOTH_FN float m_mills_(float c, float a) {
  float z = a * a;
  float p =
      (0.199473485f * z + (1.97021019f * a + 8.88845062f)) * z + (21.2686367f * a + 24.2741699f);
  float q = ((a + 9.87780094f) * z + (45.5454407f * a + 116.698372f)) * z +
            (162.546524f * a + 97.0966797f);
  return c * p / q;
}
// 2c * e^(-a^2/2) for 0 <= a <= 14.6. As m_exp_mul2_, but with the doubled rest, r = -a^2 - 2n ln 2
// and g = 2 (e^(r/2) - 1), and one factor 2^n * 2^64, since n lies in [-154, 0].
MOTH_FN float m_gauss_mul_(float c, float a) {
  struct m_square_ s = m_square_split_(a);
  float t = s.hi * -0.72134751f + (0x1.8p23f + 191.0f);
  unsigned kb = m_f32_bits(t);
  float n = (0x1.8p23f + 191.0f) - t; // -n
  float r = ((n * 1.38671875f - s.hi) - s.lo) - n * 0.00042438888f;
  float p =
      (((4.31834269e-05f * r + 0.000523044728f) * r + 0.00520853652f) * r + 0.0416663028f) * r +
      0.24999997f;
  float g = r * r * p + r;
  return (c * g + (c + c)) * m_f32_from_bits(kb << 23) * 0x1p-64f;
}
// x * Phi(x) = max(x, 0) - |x| Phi(-|x|): <= 7 ULP (mean 0.4), also in the tail.
MOTH_FN float m_gelu(float x) {
  float a = m_gauss_clamp_(x);
  return (x < 0.0f ? 0.0f : x) - m_gauss_mul_(m_mills_(a, a), a);
}
// g * (Phi(x) + x phi(x)): <= 6 ULP in the tail too, near the root at -0.75 of the value 0.5.
MOTH_FN float m_gelu_backward(float g, float x) {
  float a = m_gauss_clamp_(x);
  float m = m_mills_(1.0f, a), p = a * 0.19947114f;
  float d = m_gauss_mul_(m - p, a); // the derivative at -|x|; at |x| it is 1 - d
  d = x < 0.0f ? d : 1.0f - d;
  return g * (x == x ? d : x);
}

// ---- powers -----------------------------------------------------------------------------------

// Both take the square root in double, so that nothing overflows: <= 0.6 ULP.
MOTH_FN float m_hypot(float x, float y) {
  double a = (double)x, b = (double)y;
  float r = (float)moth_libm_sqrt(a * a + b * b);
  return moth_libm_fabsf(x) == m_inf() || moth_libm_fabsf(y) == m_inf() ? m_inf() : r;
}
// <= 1.5 ULP, IEEE special cases. y * log2|x| is taken in double (log2 to 2^-37).
MOTH_FN float m_pow(float x, float y) {
  float ax = moth_libm_fabsf(x), ay = moth_libm_fabsf(y);
  int tiny = ax < 0x1p-126f;
  unsigned u = m_f32_bits(tiny ? ax * 0x1p23f : ax) - 0x3f3504f3u;
  double k = (double)(((int)u >> 23) - (tiny ? 23 : 0));
  double f = (double)(m_f32_from_bits((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f);
  double p = ((((((-0.07188358047107303 * f + 0.134363795364872) * f - 0.13449102662336465) * f +
                 0.12981515353320314) *
                    f -
                0.14245346156300037) *
                   f +
               0.16026010898006474) *
                  f -
              0.18044292801114334) *
                 f +
             0.2061051910429034;
  p = (((((p * f - 0.24044615642633302) * f + 0.28853883607094666) * f - 0.36067379779863407) * f +
        0.4808983484771844) *
           f -
       0.721347520306655) *
          f +
      1.4426950408870305;
  double t = (p * f + k) * (double)y;
  t = t > 200.0 ? 200.0 : t;
  t = t < -200.0 ? -200.0 : t;
  double m = t + (0x1.8p52 + 254.0);
  unsigned kb = (unsigned)m_f64_bits(m);
  float r = (float)(t - (m - (0x1.8p52 + 254.0)));
  float q =
      ((((0.000154633031f * r + 0.00133912021f) * r + 0.00961806159f) * r + 0.0555035919f) * r +
       0.240226507f) *
          r +
      0.693147182f;
  float z =
      (q * r + 1.0f) * m_f32_from_bits((kb >> 1) << 23) * m_f32_from_bits((kb - (kb >> 1)) << 23);
  // special cases, those that win come last; & and |, for && would be a branch
  float half = 0.5f * y;
  int whole = moth_libm_rintf(y) == y, even = moth_libm_rintf(half) == half;
  int neg = (m_f32_bits(x) >> 31) != 0, odd = whole & !even;
  int end = (ax == 0.0f) | (ax == m_inf());
  z = end ? ((y < 0.0f) == (ax == 0.0f) ? m_inf() : 0.0f) : z;
  z = ay == m_inf() ? ((y < 0.0f) == (ax < 1.0f) ? m_inf() : 0.0f) : z;
  z = (neg & odd) ? -z : z;
  z = (neg & !end & !whole) ? m_nan() : z;
  z = ((ax == 1.0f) & (!neg | (ay == m_inf()))) ? 1.0f : z;
  z = ((x != x) | ((y != y) & (x != 1.0f))) ? x + y : z;
  return y == 0.0f ? 1.0f : z;
}
// Exact: in double, the quotient is whole only if the exact one is, and so is what is taken off.
MOTH_FN int m_fmod_easy(float a, float b) {
  float d = moth_libm_fabsf(b);
  return ((double)moth_libm_fabsf(a) < (double)d * 0x1p29) & (d < m_inf());
}
MOTH_FN float m_fmod_fast(float a, float b) {
  double x = (double)a, d = (double)b;
  return moth_libm_copysignf((float)(x - moth_libm_trunc(x / d) * d), a);
}
MOTH_FN float m_fmod(float a, float b) {
  return m_fmod_easy(a, b) ? m_fmod_fast(a, b) : moth_libm_fmodf(a, b);
}
// log(Gamma(a)) / ((a - 1) (a - 2)) for a = 2 + t in [1, 3], to 2^-34.
MOTH_FN double m_lgamma_near_(double t) {
  double p = 1.2468288375393661e-6;
  p = p * t - 2.4597511816361852e-6;
  p = p * t - 1.1836582091173055e-7;
  p = p * t - 4.5068384901261115e-7;
  p = p * t + 1.0371814578428346e-5;
  p = p * t - 2.1127370002604728e-5;
  p = p * t + 3.6823637825927295e-5;
  p = p * t - 8.1153873719829455e-5;
  p = p * t + 0.00018303771411834658;
  p = p * t - 0.00040631294603848148;
  p = p * t + 0.00091527976155102844;
  p = p * t - 0.0021080317278949089;
  p = p * t + 0.0049986508446021349;
  p = p * t - 0.012384199426667664;
  p = p * t + 0.032965000251641063;
  p = p * t - 0.10031730152107928;
  p = p * t + 0.42278433510078118;
  return p;
}
// sin(pi f) / f and cos(pi f) for |f| <= 1/2, z = f * f.
MOTH_FN double m_sin_pi_(double z) {
  double p = -2.228375224664824e-8;
  p = p * z + 7.9485394883650771e-7;
  p = p * z - 2.1915250322993031e-5;
  p = p * z + 0.00046630278746467181;
  p = p * z - 0.0073704309437029233;
  p = p * z + 0.082145886610993626;
  p = p * z - 0.5992645293207869;
  p = p * z + 2.5501640398773453;
  p = p * z - 5.16771278004997;
  p = p * z + 3.1415926535897932;
  return p;
}
MOTH_FN double m_cos_pi_(double z) {
  return ((((((-0.00010041698903468872 * z + 0.001927870511963925) * z - 0.02580653213381588) * z +
             0.23533058834009698) *
                z -
            1.3352627661841194) *
               z +
           4.058712126333393) *
              z -
          4.9348022005436874) *
             z +
         0.99999999999999806;
}
// <= 1 ULP, in double. Between 0 and 3 by that polynomial, at a = x or x + 1; else by Stirling's series from 8 on, below
// from a + 8 and the product a (a + 1) ... (a + 7), left of 0 by reflection: its roots there need 2^-50. Poles are Inf.
MOTH_FN float m_lgamma(float x) {
  double a = (double)moth_libm_fabsf(x);
  int left = x < 0.0f, low = a < 8.0, near = (x >= 0.0f) & (x <= 3.0f);
  double f = a - moth_libm_rint(a), s = a * moth_libm_fabs(f) * m_sin_pi_(f * f);
  double c = low ? a : 0.0, q = c * c + 7.0 * c,
         product = low ? q * (q + 6.0) * (q + 10.0) * (q + 12.0) : 1.0;
  product = left ? 3.1415926535897931 * product / (s == 0.0 ? 1.0 : s) : product;
  double l = m_wide_log_(near ? (a < 1.0 ? a : 1.0) : product);
  double t = (a < 1.0 ? a + 1.0 : a > 3.0 ? 3.0 : a) - 2.0;
  double b = low ? a + 8.0 : a, w = 1.0 / b, z = w * w;
  double tail =
      ((((1.0 / 1188 * z - 1.0 / 1680) * z + 1.0 / 1260) * z - 1.0 / 360) * z + 1.0 / 12) * w;
  double far = (b - 0.5) * (m_wide_log_(b) - 1.0) + (0.41893853320467274 + tail);
  double y = near ? t * (t + 1.0) * m_lgamma_near_(t) - l : left ? l - far : far - l;
  int pole = (x == 0.0f) | (left & (f == 0.0)) | (moth_libm_fabsf(x) == m_inf());
  y = pole ? (double)m_inf() : y;
  return x != x ? x : (float)(y + 0.0); // not -0
}
// <= 1.5 ULP: in double. Digamma is that of a + 6 less six reciprocals, and its asymptotic series.
MOTH_FN float m_digamma(float x) {
  double a = (double)moth_libm_fabsf(x);
  int low = a < 6.0, left = x < 0.0f;
  double b = low ? a : 1.0, c = a == 0.0 ? 1.0 : low ? a + 6.0 : a;
  double p = b * (b + 5.0), q = (b + 1.0) * (b + 4.0), r = (b + 2.0) * (b + 3.0), m = 2.0 * b + 5.0;
  p = a == 0.0 ? 1.0 : p;
  double down = low ? m * ((p + q) * r + p * q) / (p * q * r) : 0.0;
  double w = 1.0 / c, z = w * w;
  double tail =
      (((((691.0 / 32760 * z - 1.0 / 132) * z + 1.0 / 240) * z - 1.0 / 252) * z + 1.0 / 120) * z -
       1.0 / 12) *
      z;
  double y = (m_wide_log_(c) - 0.5 * w) + tail - down;
  double f = a - moth_libm_rint(a), g = f == 0.0 ? 1.0 : f;
  double mirror = y + 1.0 / (a == 0.0 ? 1.0 : a) +
                  3.1415926535897931 * m_cos_pi_(g * g) / (g * m_sin_pi_(g * g));
  float e = left ? (f == 0.0 ? m_nan() : (float)mirror) : (float)y;
  e = x == m_inf() ? x : e;
  e = x == 0.0f ? moth_libm_copysignf(m_inf(), -x) : e;
  return x != x ? x : e;
}

// ---- normal numbers ---------------------------------------------------------------------------

// Two independent standard normal numbers of random bits, by Box and Muller's method; the angle's
// upper two bits are the quadrant, so that the rest is reduced exactly.
MOTH_FN void m_normal_f32(unsigned u0, unsigned u1, float *z0, float *z1) {
  float u = ((float)(int)(u0 >> 8) + 1.0f) * 0x1p-24f; // in (0, 1]
  float r = moth_libm_sqrtf(-2.0f * m_log(u));
  float t =
      ((float)(int)((u1 & 0x3fffffffu) >> 6) - 0x1p23f) * (float)(1.5707963267948966 * 0x1p-24);
  *z0 = r * m_sin_quadrant_(t, (u1 >> 30) + 1u);
  *z1 = r * m_sin_quadrant_(t, u1 >> 30);
}
