// Functions of bits, the same for every compute type: reinterpretation, float16 and bfloat16, Philox and uniform
// numbers.

// ---- polynomials ------------------------------------------------------------------------------

// (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2, of float32: here, and a macro, for kernels/cpu/lanes.h takes it of vectors.
#define M_EXP_POLY_F32(r)                                                                          \
  ((((0.00138186966f * (r) + 0.00836871564f) * (r) + 0.0416682921f) * (r) + 0.166665211f) * (r) +  \
   0.49999994f)

// ---- bits -------------------------------------------------------------------------------------

MOTH_FN unsigned m_f32_bits(float x) {
  union {
    float f;
    unsigned u;
  } v;
  v.f = x;
  return v.u;
}
MOTH_FN float m_f32_from_bits(unsigned u) {
  union {
    float f;
    unsigned u;
  } v;
  v.u = u;
  return v.f;
}
MOTH_FN unsigned long long m_f64_bits(double x) {
  union {
    double f;
    unsigned long long u;
  } v;
  v.f = x;
  return v.u;
}
MOTH_FN double m_f64_from_bits(unsigned long long u) {
  union {
    double f;
    unsigned long long u;
  } v;
  v.u = u;
  return v.f;
}

// ---- logarithms of double, for formulas of float32 that compute in it --------------------------

// log(1 + f) - f for f in [sqrt(1/2) - 1, sqrt(2) - 1]. With s = f / (2 + f): log(1 + f) = f - (f^2/2 - s (f^2/2 +
// R(s^2))).
MOTH_FN double m_wide_log_poly_(double f) {
  double s = f / (f + 2.0), z = s * s, h = 0.5 * f * f;
  double p = (((((0.14797454563157994 * z + 0.15313918471023308) * z + 0.1818356868898179) * z +
                0.2222219850691762) *
                   z +
               0.28571428742826654) *
                  z +
              0.399999999994139) *
                 z +
             0.6666666666666734;
  return s * (z * p + h) - h;
}
// The logarithm of a normal number, <= 1 ULP.
MOTH_FN double m_wide_log_(double x) {
  unsigned long long u = m_f64_bits(x) - 0x3fe6a09e667f3bcdull;
  // the exponent as a double: put into the mantissa of 2^52, biased by 2048 to be positive
  double k = m_f64_from_bits(((u >> 52) ^ 0x800u) | 0x4330000000000000ull) - (0x1p52 + 2048.0);
  double f = m_f64_from_bits((u & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull) - 1.0;
  return (f + (m_wide_log_poly_(f) - k * 4.2009150726810846e-11)) + k * 0.6931471806019545;
}

// ---- exponentials and angles of double, for both ----------------------------------------------

// e^r - 1 for |r| <= ln(2) / 2.
MOTH_FN double m_wide_exp_poly_(double r) {
  double p =
      (((2.5117929339783598e-08 * r + 2.7631237160538635e-07) * r + 2.7557216199123306e-06) * r +
       2.4801490262481533e-05) *
          r +
      0.0001984126991732977;
  p = ((((p * r + 0.0013888888946460621) * r + 0.008333333333307337) * r + 0.04166666666651882) *
           r +
       0.166666666666667) *
          r +
      0.5000000000000012;
  return r * r * p + r;
}
// e^x, <= 1 ULP.
MOTH_FN double m_wide_exp_(double x) {
  x = x > 711.0 ? 711.0 : x;
  x = x < -800.0 ? -800.0 : x;
  double t = x * 1.4426950408889634 + (0x1.8p52 + 2046.0);
  unsigned long long kb = m_f64_bits(t);
  double n = t - (0x1.8p52 + 2046.0);
  double q = m_wide_exp_poly_((x - n * 0.6931471806019545) + n * 4.2009150726810846e-11);
  double s1 = m_f64_from_bits((kb >> 1) << 52), s2 = m_f64_from_bits((kb - (kb >> 1)) << 52);
  return (q * s1 + s1) * s2;
}
// |x| < 2^20 = n pi/2 + r + lo, |r| <= pi/4: pi/2 in four parts, the products of the first three are exact.
struct m_wide_angle_ {
  double r, lo;
  unsigned quadrant;
};
MOTH_FN struct m_wide_angle_ m_wide_rem_pio2_(double x) {
  struct m_wide_angle_ a;
  double t = x * 0.63661977236758134 + 0x1.8p52, n = t - 0x1.8p52;
  double r0 = x - n * 0x1.921fb544p+0, w = n * 0x1.0b4611a6p-34;
  double r1 = r0 - w, b1 = r1 - r0, e1 = (r0 - (r1 - b1)) - (w + b1);
  double v = n * 0x1.3198a2ep-69, r2 = r1 - v, b2 = r2 - r1, e2 = (r1 - (r2 - b2)) - (v + b2);
  double tail = (e1 + e2) - n * 0x1.b839a252049c1p-104;
  a.r = r2 + tail;
  a.lo = (r2 - a.r) + tail;
  a.quadrant = (unsigned)m_f64_bits(t);
  return a;
}
// sin (quadrant even) or cos (odd) of r + lo in [-pi/4, pi/4], negated in quadrants 2 and 3.
MOTH_FN double m_wide_sin_quadrant_(double r, double lo, unsigned quadrant) {
  double z = r * r, v = z * r;
  double s =
      (((1.58969099521155010e-10 * z - 2.50507602534068634e-08) * z + 2.75573137070700677e-06) * z -
       1.98412698298579493e-04) *
          z +
      8.33333333332248946e-03;
  s = r - ((z * (0.5 * lo - v * s) - lo) + v * 1.66666666666666324e-01);
  double c =
      (((((-1.13596475577881948e-11 * z + 2.08757232129817483e-09) * z - 2.75573143513906633e-07) *
             z +
         2.48015872894767294e-05) *
            z -
        1.38888888888741096e-03) *
           z +
       4.16666666666666019e-02) *
      z;
  double h = 0.5 * z, w = 1.0 - h;
  c = w + (((1.0 - w) - h) + (z * c - r * lo));
  unsigned long long sign = (unsigned long long)(quadrant & 2u) << 62;
  return m_f64_from_bits(m_f64_bits((quadrant & 1u) ? c : s) ^ sign);
}
MOTH_FN double m_wide_sin_fast_(double x) {
  struct m_wide_angle_ a = m_wide_rem_pio2_(x);
  return m_wide_sin_quadrant_(a.r, a.lo, a.quadrant);
}
MOTH_FN double m_wide_cos_fast_(double x) {
  struct m_wide_angle_ a = m_wide_rem_pio2_(x);
  return m_wide_sin_quadrant_(a.r, a.lo, a.quadrant + 1u);
}

// ---- 16 bits ----------------------------------------------------------------------------------

// Exact. NaN becomes quiet and keeps its payload, as with the F16C instructions.
MOTH_FN float m_f16_to_f32(unsigned short h) {
  unsigned a = h & 0x7fffu, u = (a << 13) + (112u << 23);
  unsigned tiny = m_f32_bits((float)(int)a * 0x1p-24f); // right for zero and denormals
  u = a >= 0x7c00u ? u + (112u << 23) : u;
  u = a > 0x7c00u ? u | 0x400000u : u;
  u = a < 0x0400u ? tiny : u;
  return m_f32_from_bits(u | ((unsigned)h & 0x8000u) << 16);
}
// Rounds to nearest, ties to even; denormals too, by adding 0.5, whose last place is 2^-24.
MOTH_FN unsigned short m_f32_to_f16(float x) {
  unsigned u = m_f32_bits(x), a = u & 0x7fffffffu;
  unsigned h = (a + 0xfffu + ((a >> 13) & 1u) - (112u << 23)) >> 13;
  unsigned tiny = m_f32_bits(m_f32_from_bits(a) + 0.5f) - 0x3f000000u;
  unsigned nan = ((a >> 13) & 0x3ffu) | 0x7e00u;
  h = a < 0x38800000u ? tiny : h;
  h = a >= 0x477ff000u ? 0x7c00u : h;
  h = a > 0x7f800000u ? nan : h;
  return (unsigned short)(h | (u >> 16 & 0x8000u));
}
MOTH_FN float m_bf16_to_f32(unsigned short h) {
  return m_f32_from_bits((unsigned)h << 16);
}
// Rounds to nearest, ties to even; NaN stays NaN.
MOTH_FN unsigned short m_f32_to_bf16(float x) {
  unsigned u = m_f32_bits(x);
  unsigned h = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  h = (u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : h;
  return (unsigned short)h;
}

// To float32 with the last place set if anything was cut off ("round to odd"): rounding that once more,
// to 16 bits, gives what rounding x itself would, ties included.
MOTH_FN float m_f64_to_odd_(double x) {
  float near = (float)x;
  unsigned u = m_f32_bits(near), a = u & 0x7fffffffu;
  double back = near, size = back < 0 ? -back : back, want = x < 0 ? -x : x;
  a = size > want ? a - 1 : a;
  a = back != x ? a | 1u : a;
  return m_f32_from_bits(a | (u & 0x80000000u));
}
MOTH_FN unsigned short m_f64_to_f16(double x) {
  return m_f32_to_f16(m_f64_to_odd_(x));
}
MOTH_FN unsigned short m_f64_to_bf16(double x) {
  return m_f32_to_bf16(m_f64_to_odd_(x));
}
// The same for integers beyond 2^53, on the way to 16 bits.
MOTH_FN double m_i64_to_odd(long long x) {
  long long cut = (x & ~0xfffLL) | (x & 0xfff ? 0x1000 : 0);
  return (double)(x > -(1LL << 53) && x < 1LL << 53 ? x : cut);
}
MOTH_FN double m_u64_to_odd(unsigned long long x) {
  unsigned long long cut = (x & ~0xfffULL) | (x & 0xfff ? 0x1000 : 0);
  return (double)(x < 1ULL << 53 ? x : cut);
}

// ---- random bits ------------------------------------------------------------------------------

// Philox-4x32-10 (Salmon et al., 2011): 128 random bits of a key and a counter.
struct m_philox {
  unsigned v[4];
};
MOTH_FN struct m_philox m_philox_round_(struct m_philox p, unsigned key0, unsigned key1) {
  unsigned long long a = (unsigned long long)p.v[0] * 0xd2511f53u;
  unsigned long long b = (unsigned long long)p.v[2] * 0xcd9e8d57u;
  p.v[0] = (unsigned)(b >> 32) ^ p.v[1] ^ key0;
  p.v[1] = (unsigned)b;
  p.v[2] = (unsigned)(a >> 32) ^ p.v[3] ^ key1;
  p.v[3] = (unsigned)a;
  return p;
}
// Written out to have no inner loop. Vectorises if each word goes to an array of its own.
MOTH_FN struct m_philox m_philox(unsigned key0, unsigned key1, unsigned c0, unsigned c1,
                                 unsigned c2, unsigned c3) {
  const unsigned d0 = 0x9e3779b9u, d1 = 0xbb67ae85u;
  struct m_philox p;
  p.v[0] = c0;
  p.v[1] = c1;
  p.v[2] = c2;
  p.v[3] = c3;
  p = m_philox_round_(p, key0, key1);
  p = m_philox_round_(p, key0 + 1u * d0, key1 + 1u * d1);
  p = m_philox_round_(p, key0 + 2u * d0, key1 + 2u * d1);
  p = m_philox_round_(p, key0 + 3u * d0, key1 + 3u * d1);
  p = m_philox_round_(p, key0 + 4u * d0, key1 + 4u * d1);
  p = m_philox_round_(p, key0 + 5u * d0, key1 + 5u * d1);
  p = m_philox_round_(p, key0 + 6u * d0, key1 + 6u * d1);
  p = m_philox_round_(p, key0 + 7u * d0, key1 + 7u * d1);
  p = m_philox_round_(p, key0 + 8u * d0, key1 + 8u * d1);
  p = m_philox_round_(p, key0 + 9u * d0, key1 + 9u * d1);
  return p;
}
// In [0, 1): the upper 24 bits.
MOTH_FN float m_uniform_f32(unsigned u) {
  return (float)(int)(u >> 8) * 0x1p-24f;
}
// In [0, 1): 53 bits, 32 of hi and the upper 21 of lo.
MOTH_FN double m_uniform_f64(unsigned lo, unsigned hi) {
  double h = m_f64_from_bits(0x4330000000000000ull | hi) - 0x1p52;
  double l = m_f64_from_bits(0x4330000000000000ull | lo >> 11) - 0x1p52;
  return h * 0x1p-32 + l * 0x1p-53;
}
