/* Pointwise ops on 16-bit floats: blocks are widened to float32, computed by the float32 loop of the op and
 * rounded once. No op has 16-bit code of its own: only the conversions are compiled, and a block stays in the
 * first-level cache. */
#if MOTH_STORED == 1 && defined(__F16C__)
#include <immintrin.h>
#elif MOTH_STORED == 1 && defined(__aarch64__)
#include <arm_neon.h>
#endif
#include "kernels/cpu/typed/prelude.h"
enum { HALF_BLOCK = 512, HALF_OPERANDS = 6 }; /* operands: MOTH_ITER_OPERANDS */

static void widen(float *o, const char *p, int64_t stride, int64_t n) {
  int64_t i = 0;
  if (stride == sizeof(stored)) {
    const stored *a = (const stored *)p;
#if MOTH_STORED == 1 && defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
      _mm512_storeu_ps(o + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(a + i))));
#elif MOTH_STORED == 1 && defined(__F16C__)
    for (; i + 8 <= n; i += 8)
      _mm256_storeu_ps(o + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(a + i))));
#elif MOTH_STORED == 1 && defined(__aarch64__)
    for (; i + 4 <= n; i += 4)
      vst1q_f32(o + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)(a + i)))));
#endif
    MOTH_VECTOR for (; i < n; i++) o[i] = LOAD(a[i]);
  } else {
    for (; i < n; i++)
      o[i] = LOAD(*(const stored *)(p + i * stride));
  }
}

static void narrow(char *p, int64_t stride, const float *a, int64_t n) {
  int64_t i = 0;
  if (stride == sizeof(stored)) {
    stored *o = (stored *)p;
#if MOTH_STORED == 1 && defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
      _mm256_storeu_si256((__m256i *)(o + i),
                          _mm512_cvtps_ph(_mm512_loadu_ps(a + i), _MM_FROUND_TO_NEAREST_INT));
#elif MOTH_STORED == 1 && defined(__F16C__)
    for (; i + 8 <= n; i += 8)
      _mm_storeu_si128((__m128i *)(o + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(a + i), _MM_FROUND_TO_NEAREST_INT));
#elif MOTH_STORED == 1 && defined(__aarch64__)
    for (; i + 4 <= n; i += 4)
      vst1_u16((uint16_t *)(o + i), vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(a + i))));
#endif
    MOTH_VECTOR for (; i < n; i++) o[i] = STORE(a[i]);
  } else {
    for (; i < n; i++)
      *(stored *)(p + i * stride) = STORE(a[i]);
  }
}

/* Operands: p[0], written, and `inputs` more; bit k of `bytes`: p[k] has bools, which are not converted. */
MOTH_TYPED_HALF void through_float32(MothLoop loop, int inputs, unsigned bytes, char **p,
                                     const int64_t *s, int64_t n, const MothParam *k) {
  float block[HALF_OPERANDS][HALF_BLOCK];
  char *at[HALF_OPERANDS];
  int64_t strides[HALF_OPERANDS];
  for (int j = 0; j <= inputs; j++) {
    at[j] = (char *)block[j];
    strides[j] = bytes >> j & 1 ? s[j] : (int64_t)sizeof(float);
    if (j > 0 && s[j] == 0 && !(bytes >> j & 1)) {
      strides[j] = 0;
      widen(block[j], p[j], 0, 1);
    }
  }
  for (int64_t i = 0; i < n; i += HALF_BLOCK) {
    int64_t m = n - i < HALF_BLOCK ? n - i : HALF_BLOCK;
    for (int j = 0; j <= inputs; j++) {
      if (bytes >> j & 1)
        at[j] = p[j] + i * s[j];
      else if (j > 0 && strides[j] != 0)
        widen(block[j], p[j] + i * s[j], s[j], m);
    }
    loop(at, strides, m, k);
    if (!(bytes & 1))
      narrow(p[0] + i * s[0], s[0], block[0], m);
  }
}
