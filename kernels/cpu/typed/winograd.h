/* Convolutions with 3x3 kernels by Winograd's F(2x2, 3x3): four results take 16 products and not 36. kernels/cpu/conv_winograd.c
 * says when.
 *
 * A tile is 2x2 results, and reads 4x4 pixels. Each channel's pixels become 16 numbers (sums of them), kernels too, when
 * they are packed; number by number, kernels are multiplied by tiles; and of the 16 products each tile's results are sums.
 * A strip is some rows of tiles, numbered row by row, in blocks of as many as a micro-kernel takes. float32 on AVX-512. */
#if defined(__AVX512F__) && MOTH_REAL_KIND == 1 && defined(__x86_64__)
#include <immintrin.h>
#define WINOGRAD 1
#else
#define WINOGRAD 0
#endif
#include "kernels/cpu/conv.h"
#include "kernels/cpu/typed/prelude.h"

MOTH_TYPED_REAL int64_t winograd_is_there(void) {
  return WINOGRAD;
}

#if WINOGRAD
enum { WINO_M = MOTH_WINOGRAD_M, WINO_T = MOTH_WINOGRAD_T, WINO_AHEAD = 512 };
#define WINO_UNROLL _Pragma("GCC unroll 16")

/* The lanes j of 16 with first + j in [0, size). */
static inline __mmask16 wino_mask(int64_t first, int64_t size) {
  int64_t lo = first < 0 ? -first : 0, hi = size - first;
  lo = lo > 16 ? 16 : lo;
  hi = hi > 16 ? 16 : hi;
  return hi <= lo ? 0 : (__mmask16)((1u << hi) - (1u << lo));
}

/* --- pixels ---------------------------------------------------------------------------------------------------- */

typedef struct WinoColumns {
  __mmask16 a, b, c, d; /* of pixels from the first on, 16, 2 and 18 further */
} WinoColumns;

/* Pixels 0 to 3 of 16 tiles of a row. */
static inline void wino_load(const real *from, const WinoColumns *m, __m512 *x) {
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  __m512 a = _mm512_maskz_loadu_ps(m->a, from), b = _mm512_maskz_loadu_ps(m->b, from + 16);
  __m512 c = _mm512_maskz_loadu_ps(m->c, from + 2), d = _mm512_maskz_loadu_ps(m->d, from + 18);
  x[0] = _mm512_permutex2var_ps(a, even, b);
  x[1] = _mm512_permutex2var_ps(a, odd, b);
  x[2] = _mm512_permutex2var_ps(c, even, d);
  x[3] = _mm512_permutex2var_ps(c, odd, d);
}

static inline void wino_pixels(__m512 *x, int step) {
  __m512 a = x[0], b = x[step], c = x[2 * step], d = x[3 * step];
  x[0] = _mm512_sub_ps(a, c);
  x[step] = _mm512_add_ps(b, c);
  x[2 * step] = _mm512_sub_ps(c, b);
  x[3 * step] = _mm512_sub_ps(b, d);
}

/* The numbers of channel c of all tiles of the strip, to v: [block][number][channel][tile of the block]. */
static void wino_channel(const struct MothWinograd *p, int64_t c, const real *plane, real *v) {
  const MothConv *g = p->g;
  for (int64_t r = 0; r < p->rows; r++)
    for (int64_t t = 0; t < p->across; t += 16) {
      const int64_t left = 2 * t - g->padding[1], top = 2 * (p->row + r) - g->padding[0];
      const WinoColumns m = {wino_mask(left, g->w), wino_mask(left + 16, g->w),
                             wino_mask(left + 2, g->w), wino_mask(left + 18, g->w)};
      __m512 x[16];
      WINO_UNROLL for (int i = 0; i < 4; i++) {
        if (top + i >= 0 && top + i < g->h)
          wino_load(plane + (top + i) * g->w + left, &m, x + 4 * i);
        else
          x[4 * i] = x[4 * i + 1] = x[4 * i + 2] = x[4 * i + 3] = _mm512_setzero_ps();
      }
      WINO_UNROLL for (int i = 0; i < 4; i++) wino_pixels(x + 4 * i, 1);
      WINO_UNROLL for (int i = 0; i < 4; i++) wino_pixels(x + i, 4);
      const int64_t tile = r * p->across + t, at = tile % WINO_T, fits = WINO_T - at;
      const int64_t n = p->across - t;
      real *to = v + (tile / WINO_T * 16 * p->c + c) * WINO_T + at;
      const __mmask16 low = wino_mask(0, n < fits ? n : fits);
      const __mmask16 high = wino_mask(0, n) & (__mmask16)~low;
      WINO_UNROLL for (int i = 0; i < 16; i++)
          _mm512_mask_storeu_ps(to + i * p->c * WINO_T, low, x[i]);
      if (high) { /* the rest belongs to the next block */
        to += 16 * p->c * WINO_T - WINO_T;
        WINO_UNROLL for (int i = 0; i < 16; i++)
            _mm512_mask_storeu_ps(to + i * p->c * WINO_T, high, x[i]);
      }
    }
}

/* --- products ---------------------------------------------------------------------------------------------------- */

/* c[WINO_M][V vectors] = a (k x WINO_M) times b (k x WINO_T); rows of c are WINO_T apart. */
#define WINO_TILE(V)                                                                               \
  static void wino_tile_##V(real *restrict c, const real *restrict a, const real *restrict b,      \
                            int64_t k) {                                                           \
    __m512 acc[WINO_M][V];                                                                         \
    WINO_UNROLL for (int m = 0; m < WINO_M; m++) WINO_UNROLL for (int v = 0; v < V; v++)           \
        acc[m][v] = _mm512_setzero_ps();                                                           \
    for (; k > 0; k--, a += WINO_M, b += WINO_T) {                                                 \
      __builtin_prefetch(a + WINO_AHEAD);                                                          \
      __m512 x[V];                                                                                 \
      WINO_UNROLL for (int v = 0; v < V; v++) x[v] = _mm512_loadu_ps(b + 16 * v);                  \
      WINO_UNROLL for (int m = 0; m < WINO_M; m++) {                                               \
        const __m512 y = _mm512_set1_ps(a[m]);                                                     \
        WINO_UNROLL for (int v = 0; v < V; v++) acc[m][v] = _mm512_fmadd_ps(y, x[v], acc[m][v]);   \
      }                                                                                            \
    }                                                                                              \
    WINO_UNROLL for (int m = 0; m < WINO_M; m++) WINO_UNROLL for (int v = 0; v < V; v++)           \
        _mm512_storeu_ps(c + m * WINO_T + 16 * v, acc[m][v]);                                      \
  }
WINO_TILE(1)
WINO_TILE(2)
WINO_TILE(3)

/* --- results ----------------------------------------------------------------------------------------------------- */

static inline void wino_sums(const __m512 *x, int step, __m512 *y) {
  y[0] = _mm512_add_ps(_mm512_add_ps(x[0], x[step]), x[2 * step]);
  y[1] = _mm512_sub_ps(_mm512_sub_ps(x[step], x[2 * step]), x[3 * step]);
}

/* Two rows of results of tiles [t, t + n) of a row of tiles, n <= 16, of their products at m, which are `apart` apart. */
static inline void wino_put(const struct MothWinograd *p, const real *m, int64_t apart, real bias,
                            real *plane, int64_t row, int64_t t, int64_t n) {
  const MothConv *g = p->g;
  const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i high =
      _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
  const __mmask16 some = wino_mask(0, n);
  __m512 x[16], half[8], y[4];
  WINO_UNROLL for (int i = 0; i < 16; i++) x[i] = _mm512_maskz_loadu_ps(some, m + i * apart);
  WINO_UNROLL for (int i = 0; i < 4; i++) wino_sums(x + 4 * i, 1, half + 2 * i);
  WINO_UNROLL for (int j = 0; j < 2; j++) {
    __m512 column[4] = {half[j], half[2 + j], half[4 + j], half[6 + j]};
    wino_sums(column, 1, y + 2 * j);
  }
  const int64_t left = g->ow - 2 * t < 2 * n ? g->ow - 2 * t : 2 * n;
  const __m512 b = _mm512_set1_ps(bias);
  WINO_UNROLL for (int i = 0; i < 2; i++) {
    if (2 * row + i >= g->oh)
      break;
    real *to = plane + (2 * row + i) * g->ow + 2 * t;
    __m512 even = _mm512_add_ps(y[i], b), odd = _mm512_add_ps(y[2 + i], b);
    _mm512_mask_storeu_ps(to, wino_mask(0, left), _mm512_permutex2var_ps(even, low, odd));
    if (left > 16)
      _mm512_mask_storeu_ps(to + 16, wino_mask(0, left - 16),
                            _mm512_permutex2var_ps(even, high, odd));
  }
}

/* Results of block b, of n tiles, of channels [from, to), whose products are in m: [number][channel - from][tile]. */
static void wino_results(const struct MothWinograd *p, const real *m, int64_t b, int64_t n,
                         int64_t from, int64_t to, int64_t most) {
  const MothConv *g = p->g;
  for (int64_t o = from; o < to; o++) {
    const real bias = p->bias ? ((const real *)p->bias)[o] : 0;
    real *plane = (real *)p->out + o * g->oh * g->ow;
    for (int64_t at = 0, run; at < n; at += run) {
      const int64_t tile = b * WINO_T + at, t = tile % p->across;
      run = p->across - t < 16 ? p->across - t : 16;
      run = run < n - at ? run : n - at;
      wino_put(p, m + (o - from) * WINO_T + at, most * WINO_T, bias, plane,
               p->row + tile / p->across, t, run);
    }
  }
}

static void wino_behind(const struct MothWinograd *p, int64_t from, int64_t to) {
  const MothConv *g = p->g;
  const int64_t plane = g->oh * g->ow, begin = 2 * p->row;
  const int64_t end = 2 * (p->row + p->rows) < g->oh ? 2 * (p->row + p->rows) : g->oh;
  const int64_t first = p->first + begin * g->ow, n = (end - begin) * g->ow;
  if (n == plane) {
    p->behind->run(p->behind->ctx, first + from * plane, first + to * plane);
    return;
  }
  for (int64_t o = from; o < to; o++)
    p->behind->run(p->behind->ctx, first + o * plane, first + o * plane + n);
}

/* Where number i of the kernels of panel o begins: [part of `channels` kernels][number][panel][channel][kernel]. */
static inline int64_t wino_at(const struct MothWinograd *p, int64_t o, int64_t i) {
  const int64_t from = o / p->channels * p->channels, left = p->k - from;
  const int64_t panels = (left < p->channels ? left + WINO_M - 1 : p->channels) / WINO_M;
  return (from * 16 + i * panels * WINO_M + (o - from)) * p->c;
}

static void wino_strip(const struct MothWinograd *p) {
  const MothConv *g = p->g;
  const int64_t tiles = p->rows * p->across, most = p->channels;
  real *v = p->work, *m = v + (tiles + WINO_T - 1) / WINO_T * 16 * p->c * WINO_T;
  for (int64_t c = 0; c < p->c; c++)
    wino_channel(p, c, (const real *)p->src + c * g->h * g->w, v);
  for (int64_t from = 0; from < p->k; from += most) {
    const int64_t to = p->k - from < most ? p->k : from + most;
    for (int64_t b = 0; b * WINO_T < tiles; b++) {
      const int64_t n = tiles - b * WINO_T < WINO_T ? tiles - b * WINO_T : WINO_T;
      for (int i = 0; i < 16; i++) {
        const real *x = v + (b * 16 + i) * p->c * WINO_T;
        for (int64_t o = from; o < to; o += WINO_M) {
          const real *w = (const real *)p->packed + wino_at(p, o, i);
          real *out = m + (i * most + o - from) * WINO_T;
          if (n > 32)
            wino_tile_3(out, w, x, p->c);
          else if (n > 16)
            wino_tile_2(out, w, x, p->c);
          else
            wino_tile_1(out, w, x, p->c);
        }
      }
      wino_results(p, m, b, n, from, to, most);
    }
    if (p->behind)
      wino_behind(p, from, to);
  }
}
#endif

MOTH_TYPED_REAL void winograd_strip(const struct MothWinograd *p) {
#if WINOGRAD
  wino_strip(p);
#else
  (void)p;
#endif
}

/* The numbers of kernels of one group, (k, c, 3, 3), to p->to, as wino_at says. */
MOTH_TYPED_REAL void winograd_pack(const struct MothWinograd *p) {
#if WINOGRAD
  real *to = p->to;
  for (int64_t o = 0; o < p->k; o += WINO_M)
    for (int64_t c = 0; c < p->c; c++)
      for (int64_t j = 0; j < WINO_M; j++) {
        const real *w = (const real *)p->weight + ((o + j) * p->c + c) * 9;
        double rows[4][3];
        for (int x = 0; x < 3; x++) {
          double a = o + j < p->k ? w[x] : 0, b = o + j < p->k ? w[3 + x] : 0,
                 d = o + j < p->k ? w[6 + x] : 0;
          rows[0][x] = a;
          rows[1][x] = (a + b + d) / 2;
          rows[2][x] = (a - b + d) / 2;
          rows[3][x] = d;
        }
        for (int y = 0; y < 4; y++) {
          const double *r = rows[y];
          const double four[4] = {r[0], (r[0] + r[1] + r[2]) / 2, (r[0] - r[1] + r[2]) / 2, r[2]};
          for (int x = 0; x < 4; x++)
            to[wino_at(p, o, 4 * y + x) + c * WINO_M + j] = (real)four[x];
        }
      }
#else
  (void)p;
#endif
}
