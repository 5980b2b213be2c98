/* Conversions of float16 by the processor's instructions, with the bits of the formulas of kernels/math_bits.h. They convert
 * the first elements, as many as fill vectors, and return their number: the caller's loop does the rest. */
#ifndef MOTH_CPU_F16_H
#define MOTH_CPU_F16_H
#include <stdint.h>
#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

static inline int64_t f16_widen(float *o, const uint16_t *a, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16)
    _mm512_storeu_ps(o + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(a + i))));
#elif defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(o + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(a + i))));
#elif defined(__aarch64__)
  for (; i + 4 <= n; i += 4)
    vst1q_f32(o + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(a + i))));
#else
  (void)o, (void)a, (void)n;
#endif
  return i;
}

static inline int64_t f16_narrow(uint16_t *o, const float *a, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16)
    _mm256_storeu_si256((__m256i *)(o + i),
                        _mm512_cvtps_ph(_mm512_loadu_ps(a + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128((__m128i *)(o + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(a + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
  for (; i + 4 <= n; i += 4)
    vst1_u16(o + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(a + i))));
#else
  (void)o, (void)a, (void)n;
#endif
  return i;
}
#endif
