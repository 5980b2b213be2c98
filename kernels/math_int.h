// Formulas of integers and bool. Only math.h includes this.

#if MOTH_REAL_KIND == 5

// ---- bool: add is or, mul is and --------------------------------------------------------------

MOTH_FN real m_add(real a, real b, real alpha) {
  return (real)(a | (b & alpha));
}
MOTH_FN real m_sub(real a, real b, real alpha) {
  return (real)(a ^ (b & alpha));
}
MOTH_FN real m_mul(real a, real b) {
  return (real)(a & b);
}
MOTH_FN real m_div_floor(real a, real b) {
  return (real)(a & b);
}
MOTH_FN real m_div_trunc(real a, real b) {
  return (real)(a & b);
}
MOTH_FN real m_remainder(real a, real b) {
  return (real)(a & b & 0);
}
MOTH_FN real m_fmod(real a, real b) {
  return (real)(a & b & 0);
}
MOTH_FN real m_neg(real x) {
  return x;
}
MOTH_FN real m_abs(real x) {
  return x;
}
MOTH_FN real m_sign(real x) {
  return x;
}
MOTH_FN real m_addcmul(real a, real b, real c, real value) {
  return (real)(a | (b & c & value));
}
MOTH_FN real m_bitwise_not(real x) {
  return (real)(x ^ 1);
}
MOTH_FN real m_shift_left(real a, real b) {
  return (real)(a & (b ^ 1));
}
MOTH_FN real m_shift_right(real a, real b) {
  return (real)(a & (b ^ 1));
}
MOTH_FN real m_pow(real a, real b) {
  return (real)(a | (b ^ 1));
}
MOTH_FN real m_heaviside(real x, real zero) {
  return (real)(x | zero);
}

#else

// ---- from floats: towards zero, out of range the nearest limit, NaN 0 ---------------------------
// Casts out of range are undefined in C, and instruction sets differ in their results.

#if MOTH_REAL_KIND == 3
MOTH_FN real m_from_f64(double x) {
  if (sizeof(real) < 8) {
    const double top = sizeof(real) == 1   ? 127
                       : sizeof(real) == 2 ? 32767
                                           : 2147483647,
                 low = -top - 1;
    x = x == x ? x : 0;
    x = x < low ? low : x;
    x = x > top ? top : x;
    return (real)(int)x;
  } else {
    long long r = (long long)(((x > -0x1p63) & (x < 0x1p63)) ? x : 0);
    r = x >= 0x1p63 ? 0x7fffffffffffffffLL : r;
    return (real)(x <= -0x1p63 ? -0x7fffffffffffffffLL - 1 : r);
  }
}
MOTH_FN real m_from_f32(float x) {
  if (sizeof(real) <= 2) {
    const float top = sizeof(real) == 1 ? 127 : 32767, low = -top - 1;
    x = x == x ? x : 0;
    x = x < low ? low : x;
    x = x > top ? top : x;
    return (real)(int)x;
  }
  return m_from_f64((double)x);
}
#else
MOTH_FN real m_from_f64(double x) {
  if (sizeof(real) < 8) {
    const double top = sizeof(real) == 1 ? 255 : sizeof(real) == 2 ? 65535 : 4294967295;
    x = x > 0 ? x : 0; // NaN, too
    x = x > top ? top : x;
    return (real)(long long)x;
  } else {
    unsigned long long r = (unsigned long long)(((x > 0) & (x < 0x1p64)) ? x : 0);
    return (real)(x >= 0x1p64 ? 0xffffffffffffffffULL : r);
  }
}
MOTH_FN real m_from_f32(float x) {
  if (sizeof(real) <= 2) {
    const float top = sizeof(real) == 1 ? 255 : 65535;
    x = x > 0 ? x : 0;
    x = x > top ? top : x;
    return (real)(int)x;
  }
  return m_from_f64((double)x);
}
#endif

// ---- integers: wraps around, never traps ------------------------------------------------------

MOTH_FN real m_add(real a, real b, real alpha) {
  return (real)(a + alpha * b);
}
MOTH_FN real m_sub(real a, real b, real alpha) {
  return (real)(a - alpha * b);
}
MOTH_FN real m_mul(real a, real b) {
  return (real)(a * b);
}
MOTH_FN real m_neg(real x) {
  return (real)(0 - x);
}
MOTH_FN real m_addcmul(real a, real b, real c, real value) {
  return (real)(a + value * b * c);
}
MOTH_FN real m_bitwise_not(real x) {
  return (real)~x;
}
#if MOTH_REAL_KIND == 3
MOTH_FN int m_negative_(real x) {
  return x < 0;
}
#else
MOTH_FN int m_negative_(real x) {
  (void)x;
  return 0;
}
#endif
// Whether x is -1; the quotient by it may overflow, so it is taken as a negation.
MOTH_FN int m_minus_one_(real x) {
  return m_negative_(x) & ((real)(x + 1) == 0);
}
MOTH_FN real m_abs(real x) {
  return m_negative_(x) ? m_neg(x) : x;
}
MOTH_FN real m_sign(real x) {
  return (real)((x > 0) - m_negative_(x));
}
MOTH_FN real m_floor(real x) {
  return x;
}
MOTH_FN real m_ceil(real x) {
  return x;
}
MOTH_FN real m_trunc(real x) {
  return x;
}
MOTH_FN real m_round(real x) {
  return x;
}
// The integer quotients and remainders by zero are 0.
MOTH_FN real m_div_trunc(real a, real b) {
  real d = b == 0 || m_minus_one_(b) ? (real)1 : b;
  real q = (real)(a / d);
  q = m_minus_one_(b) ? m_neg(a) : q;
  return b == 0 ? (real)0 : q;
}
// With the dividend's sign.
MOTH_FN real m_fmod(real a, real b) {
  real d = b == 0 || m_minus_one_(b) ? (real)1 : b;
  return (real)(a % d);
}
// With the divisor's sign.
MOTH_FN real m_remainder(real a, real b) {
  real r = m_fmod(a, b);
  return r != 0 && m_negative_(r) != m_negative_(b) ? (real)(r + b) : r;
}
MOTH_FN real m_div_floor(real a, real b) {
  real r = m_fmod(a, b), q = m_div_trunc(a, b);
  return r != 0 && m_negative_(r) != m_negative_(b) ? (real)(q - 1) : q;
}
// Vectors have no division of integers: blocks of elements whose quotient a division of floats gives exactly take that
// (src/codegen/c.lua). It does, for a of as many bits as the mantissa has: a quotient that is not whole differs from the
// next whole number by 1 / b or more, relative to it by 1 / a. Not by 0, nor by -1, which may overflow.
MOTH_FN int m_div_trunc_easy(real a, real b) {
  const unsigned long long limit = 1ull << 53;
  int small = sizeof(real) < 8 || (((unsigned long long)a + limit < 2 * limit) &
                                   ((unsigned long long)b + limit < 2 * limit));
  return small & (b != 0) & !m_minus_one_(b);
}
MOTH_FN real m_div_trunc_fast(real a, real b) {
  if (sizeof(real) <= 2)
    return (real)(int)((float)a / (float)b);
  if (sizeof(real) == 4 && m_negative_((real)-1))
    return (real)(int)((double)a / (double)b);
  return (real)(long long)((double)a / (double)b);
}
MOTH_FN int m_fmod_easy(real a, real b) {
  return m_div_trunc_easy(a, b);
}
MOTH_FN real m_fmod_fast(real a, real b) {
  return (real)(a - m_div_trunc_fast(a, b) * b);
}
MOTH_FN int m_remainder_easy(real a, real b) {
  return m_div_trunc_easy(a, b);
}
MOTH_FN real m_remainder_fast(real a, real b) {
  real r = m_fmod_fast(a, b);
  return ((r != 0) & (m_negative_(r) != m_negative_(b))) ? (real)(r + b) : r;
}
MOTH_FN int m_div_floor_easy(real a, real b) {
  return m_div_trunc_easy(a, b);
}
MOTH_FN real m_div_floor_fast(real a, real b) {
  real q = m_div_trunc_fast(a, b), r = (real)(a - q * b);
  return ((r != 0) & (m_negative_(r) != m_negative_(b))) ? (real)(q - 1) : q;
}
// |x| without a sign: `real` has no such number for its smallest one.
MOTH_FN unsigned long long m_magnitude_(real x) {
  unsigned long long u = (unsigned long long)x;
  return m_negative_(x) ? 0 - u : u;
}
// Narrow types divide 32 bits, which takes a fraction of the time.
MOTH_FN unsigned long long m_common_(unsigned long long a, unsigned long long b) {
  if (sizeof(real) < 8) {
    unsigned x = (unsigned)a, y = (unsigned)b;
    while (y != 0) {
      unsigned r = x % y;
      x = y;
      y = r;
    }
    a = x;
  } else {
    while (b != 0) {
      unsigned long long r = a % b;
      a = b;
      b = r;
    }
  }
  return a;
}
MOTH_FN real m_gcd(real a, real b) {
  return (real)m_common_(m_magnitude_(a), m_magnitude_(b));
}
// The lowest bits of the multiple; of 4 bytes and more, their absolute value, as PyTorch has it.
MOTH_FN real m_lcm(real a, real b) {
  unsigned long long x = m_magnitude_(a), y = m_magnitude_(b), g = m_common_(x, y);
  real r = (real)(g == 0 ? 0 : x / g * y);
  return sizeof(real) < 4 ? r : m_abs(r);
}
MOTH_FN real m_hardtanh(real x, real lo, real hi) {
  x = x < lo ? lo : x;
  return x > hi ? hi : x;
}
MOTH_FN real m_relu6(real x) {
  return m_hardtanh(x, 0, 6);
}
MOTH_FN real m_heaviside(real x, real zero) {
  return x == 0 ? zero : (real)(x > 0);
}
// Shifts by a negative number or by all bits or more leave 0, or -1 of a negative number >> b.
MOTH_FN real m_shift_left(real a, real b) {
  int over = m_negative_(b) || b >= (real)(8 * sizeof(real));
  real s = over ? (real)0 : b;
  return over ? (real)0 : (real)(a << s);
}
MOTH_FN real m_shift_right(real a, real b) {
  int over = m_negative_(b) || b >= (real)(8 * sizeof(real));
  real s = over ? (real)(8 * sizeof(real) - 1) : b;
  return (real)(m_negative_(a) || !over ? a >> s : 0);
}
// By squaring. b < 0: 1 / a^|b|, truncated: +-1 for a = +-1, else 0.
MOTH_FN real m_pow(real a, real b) {
  real r = 1, x = a, e = b;
  if (m_negative_(b))
    return a == 1 ? a : m_minus_one_(a) ? (b & 1 ? a : (real)1) : (real)0;
  for (; e != 0; e = (real)(e >> 1)) {
    r = e & 1 ? (real)(r * x) : r;
    x = (real)(x * x);
  }
  return r;
}

#endif
