// Every scalar formula of moth, once.
//
// It is compiled by gcc and clang (CPU kernels) and nvcc (CUDA kernels), and src/codegen copies functions
// of it to generated kernels. It must also compile under NVRTC: it is both C17 and C++, without system
// headers. It is compiled once for each compute type; the includer defines
//   MOTH_FN         what a function starts with, as static inline __attribute__((always_inline)),
//   real            the compute type, as float,
//   MOTH_REAL_KIND  1 float32, 2 float64, 3 signed integer, 4 unsigned integer, 5 bool (0 or 1 in
//                   an unsigned char), 6 and 7 the structs of two of float32 and float64 (math_complex.h,
//                   for src/codegen alone),
// and may define moth_libm_<name> to replace a function of libm. float16 and bfloat16 compute in
// float32 between the conversions below.
//
// Functions are branch-free: specials are selected, never jumped to, so that a loop around one
// becomes a loop over vectors. The schemes are the classical ones: reduce the argument (exp: whole
// multiples of ln 2 in two parts, log: the exponent, sin: Payne and Hanek), evaluate a polynomial
// in Horner form, put the parts together small ones first. Polynomials are minimax fits of our own
// (Lawson's iteration for float32 with coefficients rounded one by one, Remez with 40 digits for
// float64). a * b + c is an FMA where there is one (-ffp-contract=fast); nothing depends on that,
// and x86-64-v2 keeps the same bounds. A trailing _ marks helpers that only these files use.
//
// What stops gcc from vectorising a loop: && and || before a call (write & and |), inner loops,
// and several results stored at a stride in one array (store each in an array of its own).
// Denormal results are right but cost some hundred cycles each, as they do in hardware.
//
// A bound in a comment is what spec/kernels/math_check.c enforces, against libm in the next wider
// type. Where a bound is relative to something other than the result, the comment says so.

#ifndef MOTH_KERNELS_MATH_H
#define MOTH_KERNELS_MATH_H

#include "math_bits.h"
#include "math_libm.h"
#if MOTH_REAL_KIND == 6 || MOTH_REAL_KIND == 7
#include "math_complex.h"
#else
#if MOTH_REAL_KIND == 1 || MOTH_REAL_KIND == 2
#include "math_float.h"
#else
#include "math_int.h"
#endif
#include "math_join.h"

// ---- all kinds --------------------------------------------------------------------------------

#if MOTH_REAL_KIND >= 3
MOTH_FN real m_bitwise_and(real a, real b) {
  return (real)(a & b);
}
MOTH_FN real m_bitwise_or(real a, real b) {
  return (real)(a | b);
}
MOTH_FN real m_bitwise_xor(real a, real b) {
  return (real)(a ^ b);
}
MOTH_FN real m_maximum(real a, real b) {
  return a > b ? a : b;
}
MOTH_FN real m_minimum(real a, real b) {
  return a < b ? a : b;
}
MOTH_FN real m_fmax(real a, real b) {
  return a > b ? a : b;
}
MOTH_FN real m_fmin(real a, real b) {
  return a < b ? a : b;
}
#endif
MOTH_FN real m_square(real x) {
  return m_mul(x, x);
}
MOTH_FN real m_sgn(real x) {
  return m_sign(x);
}
MOTH_FN real m_conj(real x) {
  return x;
}
#if MOTH_REAL_KIND == 4 || MOTH_REAL_KIND == 5
MOTH_FN real m_relu(real x) {
  return x;
}
#else
MOTH_FN real m_relu(real x) {
  return x < 0 ? 0 : x;
}
#endif
// NaN stays NaN; hi if lo > hi.
MOTH_FN real m_clamp(real x, real lo, real hi) {
  x = x < lo ? lo : x;
  return x > hi ? hi : x;
}
MOTH_FN real m_where(unsigned char c, real a, real b) {
  return c ? a : b;
}
MOTH_FN real m_masked_fill(real x, unsigned char mask, real value) {
  return mask ? value : x;
}
MOTH_FN unsigned char m_eq(real a, real b) {
  return (unsigned char)(a == b);
}
MOTH_FN unsigned char m_ne(real a, real b) {
  return (unsigned char)(a != b);
}
MOTH_FN unsigned char m_lt(real a, real b) {
  return (unsigned char)(a < b);
}
MOTH_FN unsigned char m_le(real a, real b) {
  return (unsigned char)(a <= b);
}
MOTH_FN unsigned char m_gt(real a, real b) {
  return (unsigned char)(a > b);
}
MOTH_FN unsigned char m_ge(real a, real b) {
  return (unsigned char)(a >= b);
}
MOTH_FN unsigned char m_logical_and(real a, real b) {
  return (unsigned char)((a != 0) & (b != 0));
}
MOTH_FN unsigned char m_logical_or(real a, real b) {
  return (unsigned char)((a != 0) | (b != 0));
}
MOTH_FN unsigned char m_logical_xor(real a, real b) {
  return (unsigned char)((a != 0) ^ (b != 0));
}
MOTH_FN unsigned char m_logical_not(real x) {
  return (unsigned char)(x == 0);
}
#endif

#endif
