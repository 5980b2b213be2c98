/* Convolutions of one channel by one kernel, without copies: a group of a depthwise convolution. Rows of the image are read
 * where they are, under masks, so that padding and the ends of short rows cost nothing. Some rows of the result are summed
 * side by side, in registers. float32 on AVX-512; elsewhere shifted planes (kernels/cpu/conv.h) do the same. */
#if defined(__AVX512F__) && MOTH_REAL_KIND == 1 && defined(__x86_64__)
#include <immintrin.h>
#endif
#include "kernels/cpu/conv.h"
#include "kernels/cpu/typed/prelude.h"

/* Whether conv_depthwise has these sizes. */
MOTH_TYPED_REAL int64_t conv_suits_depthwise(const struct MothConvDepthwise *p) {
#if defined(__AVX512F__) && MOTH_REAL_KIND == 1 && defined(__x86_64__)
  const MothConv *g = p->g;
  return g->stride[1] <= 2 && g->kernel[0] <= 7 && g->kernel[1] <= 7 && g->w < INT32_MAX &&
         (g->stride[1] == 1 || g->dilation[1] == 1);
#else
  (void)p;
  return 0;
#endif
}

#if defined(__AVX512F__) && MOTH_REAL_KIND == 1 && defined(__x86_64__)
enum {
  DEPTH_ROWS = 4,
  DEPTH_SHARED = 8,
  DEPTH_MOST = 7
}; /* rows that are summed side by side; of a kernel */
#define DEPTH_UNROLL _Pragma("GCC unroll 8")

/* The lanes j of 16 with first + j in [0, size). */
static inline __mmask16 depth_mask(int64_t first, int64_t size) {
  int64_t lo = first < 0 ? -first : 0, hi = size - first;
  lo = lo > 16 ? 16 : lo;
  hi = hi > 16 ? 16 : hi;
  return hi <= lo ? 0 : (__mmask16)((1u << hi) - (1u << lo));
}

/* Results of `rows` rows from y on, columns [x, x + 16), of a kernel kh x kw, stride s along a row. */
static inline __attribute__((always_inline)) void depth_block(const struct MothConvDepthwise *p,
                                                              int64_t y, int64_t x, int rows,
                                                              int kh, int kw, int s) {
  const MothConv *g = p->g;
  const real *src = p->src, *w = p->weight;
  const int64_t down = g->stride[0], deep = g->dilation[0], far = g->dilation[1];
  const int64_t left = x * s - g->padding[1], top = y * down - g->padding[0];
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  const __mmask16 out = depth_mask(0, g->ow - x);
  __mmask16 low[DEPTH_MOST] = {0}, high[DEPTH_MOST] = {0};
  __m512 acc[DEPTH_ROWS];
  DEPTH_UNROLL for (int j = 0; j < kw; j++) {
    low[j] = depth_mask(left + j * far, g->w);
    high[j] = s == 2 ? depth_mask(left + j * far + 16, g->w) : 0;
  }
  DEPTH_UNROLL for (int r = 0; r < rows; r++) acc[r] =
      _mm512_set1_ps(p->bias ? *(const real *)p->bias : 0);
  for (int i = 0; i < kh; i++) {
    __m512 k[DEPTH_MOST] = {acc[0]};
    DEPTH_UNROLL for (int j = 0; j < kw; j++) k[j] = _mm512_set1_ps(w[i * kw + j]);
    DEPTH_UNROLL for (int r = 0; r < rows; r++) {
      int64_t row = top + r * down + i * deep;
      if (row < 0 || row >= g->h)
        continue;
      const real *from = src + row * g->w + left;
      __m512 a = acc[r], b = a;
      DEPTH_UNROLL for (int j = 0; j < kw; j++) {
        if (s == 1) {
          a = _mm512_maskz_loadu_ps(low[j], from + j * far);
        } else if (j % 2 == 0) {
          a = _mm512_maskz_loadu_ps(low[j], from + j);
          b = _mm512_maskz_loadu_ps(high[j], from + j + 16);
        }
        __m512 v = s == 1 ? a : _mm512_permutex2var_ps(a, j % 2 ? odd : even, b);
        acc[r] = _mm512_fmadd_ps(k[j], v, acc[r]);
      }
    }
  }
  real *to = (real *)p->out + y * g->ow + x;
  DEPTH_UNROLL for (int r = 0; r < rows; r++) _mm512_mask_storeu_ps(to + r * g->ow, out, acc[r]);
}

/* The same where rows of the image follow each other, stride 1: a vector of it is read once for all rows of the result that take
 * it, with a column of the kernel in registers. Else reading takes longer than the products. */
static inline __attribute__((always_inline)) void
depth_shared(const struct MothConvDepthwise *p, int64_t y, int64_t x, int rows, int kh, int kw) {
  const MothConv *g = p->g;
  const real *src = p->src, *w = p->weight;
  const int64_t left = x - g->padding[1], top = y - g->padding[0];
  __m512 acc[DEPTH_SHARED];
  DEPTH_UNROLL for (int r = 0; r < rows; r++) acc[r] =
      _mm512_set1_ps(p->bias ? *(const real *)p->bias : 0);
  for (int j = 0; j < kw; j++) {
    const int64_t at = left + j * g->dilation[1];
    const __mmask16 inside = depth_mask(at, g->w);
    __m512 k[DEPTH_MOST];
    DEPTH_UNROLL for (int i = 0; i < kh; i++) k[i] = _mm512_set1_ps(w[i * kw + j]);
    _Pragma("GCC unroll 16") for (int t = 0; t < rows + kh - 1; t++) {
      if (top + t < 0 || top + t >= g->h)
        continue;
      const __m512 v = _mm512_maskz_loadu_ps(inside, src + (top + t) * g->w + at);
      DEPTH_UNROLL for (int r = 0; r < rows; r++) if (t - r >= 0 && t - r < kh) acc[r] =
          _mm512_fmadd_ps(k[t - r], v, acc[r]);
    }
  }
  real *to = (real *)p->out + y * g->ow + x;
  const __mmask16 out = depth_mask(0, g->ow - x);
  DEPTH_UNROLL for (int r = 0; r < rows; r++) _mm512_mask_storeu_ps(to + r * g->ow, out, acc[r]);
}

#define DEPTH_CASE(n, block, ...)                                                                  \
  case n:                                                                                          \
    block(p, y, x, n, __VA_ARGS__);                                                                \
    break;
#define DEPTH_KERNEL(name, most, block, ...)                                                       \
  static __attribute__((noinline)) void depth_##name(const struct MothConvDepthwise *p) {          \
    const MothConv *g = p->g;                                                                      \
    for (int64_t x = 0; x < g->ow; x += 16) {                                                      \
      int64_t y = 0;                                                                               \
      for (; y + most <= g->oh; y += most)                                                         \
        block(p, y, x, most, __VA_ARGS__);                                                         \
      switch (g->oh - y) {                                                                         \
        DEPTH_CASE(1, block, __VA_ARGS__)                                                          \
        DEPTH_CASE(2, block, __VA_ARGS__)                                                          \
        DEPTH_CASE(3, block, __VA_ARGS__)                                                          \
        DEPTH_MORE_##most(block, __VA_ARGS__)                                                      \
      }                                                                                            \
    }                                                                                              \
  }
#define DEPTH_MORE_4(block, ...)
#define DEPTH_MORE_8(block, ...)                                                                   \
  DEPTH_CASE(4, block, __VA_ARGS__)                                                                \
  DEPTH_CASE(5, block, __VA_ARGS__)                                                                \
  DEPTH_CASE(6, block, __VA_ARGS__)                                                                \
  DEPTH_CASE(7, block, __VA_ARGS__)
DEPTH_KERNEL(3_1, 8, depth_shared, 3, 3)
DEPTH_KERNEL(3_2, 4, depth_block, 3, 3, 2)
DEPTH_KERNEL(5_1, 8, depth_shared, 5, 5)
DEPTH_KERNEL(5_2, 4, depth_block, 5, 5, 2)
DEPTH_KERNEL(7_1, 8, depth_shared, 7, 7)
DEPTH_KERNEL(any_1, 4, depth_block, (int)g->kernel[0], (int)g->kernel[1], 1)
DEPTH_KERNEL(any_2, 4, depth_block, (int)g->kernel[0], (int)g->kernel[1], 2)
#endif

MOTH_TYPED_REAL void conv_depthwise(const struct MothConvDepthwise *p) {
#if defined(__AVX512F__) && MOTH_REAL_KIND == 1 && defined(__x86_64__)
  const MothConv *g = p->g;
  const bool one = g->stride[1] == 1, shared = g->stride[0] == 1 && g->dilation[0] == 1;
  const int64_t size = g->kernel[0] == g->kernel[1] && (shared || !one) ? g->kernel[0] : 0;
  if (size == 3)
    one ? depth_3_1(p) : depth_3_2(p);
  else if (size == 5)
    one ? depth_5_1(p) : depth_5_2(p);
  else if (size == 7 && one)
    depth_7_1(p);
  else
    one ? depth_any_1(p) : depth_any_2(p);
#else
  (void)p;
#endif
}
