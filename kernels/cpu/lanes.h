/* Loops for which AVX-512 has instructions that gcc does not find in the scalar formula: minima and maxima
 * that propagate NaN, and 2^n times a number, rounded once, also for denormal results. The formula
 * and its bits are those of kernels/math_f32.h (spec/kernels/lanes_spec.lua). For an op whose formula is
 * m_name, LANES_m_name(out, in, n) takes the place of the loop over contiguous float32 elements. Included behind the
 * formulas of float32. */
#if defined(__AVX512F__)
#include <immintrin.h>

static inline __attribute__((always_inline)) __m512 exp_lanes(__m512 x) {
  const __m512 magic = _mm512_set1_ps(0x1.8p23f);
  x = _mm512_max_ps(_mm512_set1_ps(-120.0f), _mm512_min_ps(_mm512_set1_ps(90.0f), x));
  __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(x, _mm512_set1_ps(1.44269502f), magic), magic);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(0.00021219444f), r);
  __m512 p = M_EXP_POLY_F32(r);
  __m512 q = _mm512_fmadd_ps(_mm512_mul_ps(r, r), p, r);
  return _mm512_scalef_ps(_mm512_add_ps(q, _mm512_set1_ps(1.0f)), n);
}
static void LANES_m_exp(float *out, const float *in, int64_t n) {
  enum { LINE = 16, AHEAD = 256, CACHED = 1 << 14 };
  int64_t i = 0;
  if (n > CACHED)
    for (; i + LINE <= n; i += LINE) {
      __builtin_prefetch(out + i + AHEAD, 1);
      __builtin_prefetch(in + i + AHEAD, 0);
      _mm512_storeu_ps(out + i, exp_lanes(_mm512_loadu_ps(in + i)));
    }
  for (; i + LINE <= n; i += LINE)
    _mm512_storeu_ps(out + i, exp_lanes(_mm512_loadu_ps(in + i)));
  __mmask16 rest = (__mmask16)((1u << (n - i)) - 1);
  _mm512_mask_storeu_ps(out + i, rest, exp_lanes(_mm512_maskz_loadu_ps(rest, in + i)));
}
#define LANES_m_exp LANES_m_exp
#endif
