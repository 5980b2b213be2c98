/* The micro-kernels of convolution, float32 and float64: see kernels/cpu/conv.h. */
#if defined(__AVX512F__) && MOTH_REAL_KIND == 1
#include <immintrin.h>
#endif
#include "kernels/cpu/conv.h"
#include "kernels/cpu/typed/prelude.h"

#if defined __AVX512F__
enum { CONV_BYTES = 64, CONV_M = 8, CONV_V = 3, DOTS_M = 4, DOTS_K = 6 };
#define CONV_M_TIMES(X) X(8)
#define DOTS_TIMES(X)   X(4, 6, full) X(1, 6, one)
#elif defined __AVX2__
enum { CONV_BYTES = 32, CONV_M = 4, CONV_V = 3, DOTS_M = 2, DOTS_K = 6 };
#define CONV_M_TIMES(X) X(4)
#define DOTS_TIMES(X)   X(2, 6, full) X(1, 6, one)
#elif defined __aarch64__
enum { CONV_BYTES = 16, CONV_M = 8, CONV_V = 2, DOTS_M = 2, DOTS_K = 4 };
#define CONV_M_TIMES(X) X(8)
#define DOTS_TIMES(X)   X(2, 4, full) X(1, 4, one)
#else
enum { CONV_BYTES = 16, CONV_M = 4, CONV_V = 2, DOTS_M = 2, DOTS_K = 4 };
#define CONV_M_TIMES(X) X(4)
#define DOTS_TIMES(X)   X(2, 4, full) X(1, 4, one)
#endif
enum {
  CONV_LANES = CONV_BYTES / sizeof(real),
  CONV_WIDTH = CONV_V * CONV_LANES,
  CONV_FEW = 64,
  CONV_SHORT = 256,
  CONV_MOST = 256,
  CONV_WEIGHTS = 512 << 10,
  CONV_AHEAD = 2048 / sizeof(real)
};
typedef real conv_vec __attribute__((vector_size(CONV_BYTES), aligned(sizeof(real)), may_alias));
#define CONV_UNROLL _Pragma("GCC unroll 16")

MOTH_TYPED_REAL int64_t conv_lanes(void) {
  return CONV_LANES;
}

/* Rows of the weight are packed in panels of CONV_M, k first; one or two remaining rows in panels of one, more in
 * a panel padded with zeros. */
static int64_t conv_panel(int64_t left) {
  return left >= CONV_M || left > 2 ? CONV_M : 1;
}

MOTH_TYPED_REAL void conv_pack(const struct MothConvPack *p) {
  real *o = p->out;
  const int64_t row = p->row, m = p->m, kk = p->kk;
  const int32_t *at = p->at;
  for (int64_t i = 0; i < m;) {
    int64_t n = conv_panel(m - i), have = m - i < n ? m - i : n;
    const real *w = (const real *)p->weight + i * row;
    for (int64_t k = 0; k < kk; k++, o += n)
      for (int64_t r = 0; r < n; r++)
        o[r] = r < have ? w[r * row + at[k]] : 0;
    i += n;
  }
}

/* Rows are short: a call of memcpy and loops over remainders cost more than the copy. Masked vectors need
 * neither. */
#if defined __AVX512F__ && MOTH_REAL_KIND == 1
/* The mask of the lanes of a vector at j that are in [from, to). */
static inline __mmask16 conv_mask(int64_t j, int64_t from, int64_t to) {
  int64_t lo = from - j < 0 ? 0 : from - j, hi = to - j > 16 ? 16 : to - j;
  return hi <= lo ? 0 : (__mmask16)((1u << hi) - (1u << lo));
}
static inline void conv_copy(real *to, const real *from, int64_t n) {
  for (int64_t j = 0; j < n; j += 16) {
    __mmask16 k = conv_mask(j, 0, n);
    _mm512_mask_storeu_ps(to + j, k, _mm512_maskz_loadu_ps(k, from + j));
  }
}
/* rows of o[0, n): s in [from, to), else 0 */
static inline void conv_padded(real *o, const real *s, int64_t s_row, int64_t rows, int64_t from,
                               int64_t to, int64_t n) {
  for (int64_t j = 0; j < n; j += 16) {
    __mmask16 all = conv_mask(j, 0, n), in = conv_mask(j, from, to);
    for (int64_t i = 0; i < rows; i++)
      _mm512_mask_storeu_ps(o + i * n + j, all, _mm512_maskz_loadu_ps(in, s + i * s_row + j));
  }
}
/* o[j] = s[j * stride] */
static inline void conv_strided(real *o, const real *s, int64_t stride, int64_t n) {
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  if (stride != 2) {
    for (int64_t j = 0; j < n; j++)
      o[j] = s[j * stride];
    return;
  }
  for (int64_t j = 0; j < n; j += 16) {
    __m512 a = _mm512_maskz_loadu_ps(conv_mask(0, 0, 2 * (n - j) - 1), s + 2 * j);
    __m512 b = _mm512_maskz_loadu_ps(conv_mask(16, 0, 2 * (n - j) - 1), s + 2 * j + 16);
    _mm512_mask_storeu_ps(o + j, conv_mask(0, 0, n - j), _mm512_permutex2var_ps(a, even, b));
  }
}
#else
static inline void conv_strided(real *o, const real *s, int64_t stride, int64_t n) {
  for (int64_t j = 0; j < n; j++)
    o[j] = s[j * stride];
}
static inline void conv_copy(real *to, const real *from, int64_t n) {
  for (int64_t j = 0; j < n; j++)
    to[j] = from[j];
}
static inline void conv_padded(real *o, const real *s, int64_t s_row, int64_t rows, int64_t from,
                               int64_t to, int64_t n) {
  for (int64_t i = 0; i < rows; i++, o += n, s += s_row) {
    for (int64_t j = 0; j < from; j++)
      o[j] = 0;
    memcpy(o + from, s + from, (size_t)(to - from) * sizeof(real));
    for (int64_t j = to; j < n; j++)
      o[j] = 0;
  }
}
#endif

MOTH_TYPED_REAL void conv_planes(const struct MothConvPlanes *p) {
  const MothConvAxis *y = p->y, *x = p->x;
  const real *src = p->src;
  real *out = p->out;
  const int64_t high = p->rows + y->span - 1, pitch = p->pitch, stride = x->stride;
  const int64_t down = y->stride * x->size;
  for (int64_t c = 0; c < p->channels; c++, src += p->src_plane)
    for (int a = 0; a < y->nphases; a++)
      for (int b = 0; b < x->nphases; b++, out += p->plane) {
        int64_t first = x->offset[b], top = p->row * y->stride + y->offset[a], from, to, lo, hi;
        inside(first, stride, x->size, pitch, &from, &to);
        inside(top, y->stride, y->size, high, &lo, &hi);
        const real *s = src + (top + lo * y->stride) * x->size + first;
        real *o = out + lo * pitch;
        memset(out, 0, (size_t)(lo * pitch) * sizeof(real));
        if (stride == 1)
          conv_padded(o, s, down, hi - lo, from, to, pitch);
        else
          for (int64_t i = lo; i < hi; i++, o += pitch, s += down) {
            for (int64_t j = 0; j < from; j++)
              o[j] = 0;
            conv_strided(o + from, s + from * stride, stride, to - from);
            for (int64_t j = to; j < pitch; j++)
              o[j] = 0;
          }
        memset(out + hi * pitch, 0, (size_t)(p->plane - hi * pitch) * sizeof(real));
      }
}

/* c[M][V vectors] = a (k x M) times the rows b + at[k], plus the bias, or with `more` plus c */
#define CONV_TILE(M, V)                                                                            \
  static void conv_tile_##M##_##V(real *restrict c, int64_t ldc, const real *restrict a,           \
                                  const real *restrict b, const int32_t *restrict at, int64_t kk,  \
                                  const real *bias, bool more) {                                   \
    conv_vec acc[M][V];                                                                            \
    CONV_UNROLL for (int m = 0; m < M; m++) {                                                      \
      conv_vec start = (conv_vec){0} + (bias ? bias[m] : 0);                                       \
      CONV_UNROLL for (int v = 0; v < V; v++) acc[m][v] =                                          \
          more ? *(const conv_vec *)(c + m * ldc + v * CONV_LANES) : start;                        \
    }                                                                                              \
    for (int64_t k = 0; k < kk; k++, a += M) {                                                     \
      __builtin_prefetch(a + CONV_AHEAD);                                                          \
      const real *p = b + at[k];                                                                   \
      conv_vec x[V];                                                                               \
      CONV_UNROLL for (int v = 0; v < V; v++) x[v] = *(const conv_vec *)(p + v * CONV_LANES);      \
      CONV_UNROLL for (int m = 0; m < M; m++) CONV_UNROLL for (int v = 0; v < V; v++) acc[m][v] += \
          a[m] * x[v];                                                                             \
    }                                                                                              \
    CONV_UNROLL for (int m = 0; m < M; m++) CONV_UNROLL for (int v = 0; v < V; v++) *              \
        (conv_vec *)(c + m * ldc + v * CONV_LANES) = acc[m][v];                                    \
  }
typedef void (*ConvTile)(real *restrict, int64_t, const real *restrict, const real *restrict,
                         const int32_t *restrict, int64_t, const real *, bool);
#define CONV_TILES(M) CONV_TILE(M, 1) CONV_TILE(M, 2) CONV_TILE(M, 3)
#define CONV_NAMES(M)                                                                              \
  { conv_tile_##M##_1, conv_tile_##M##_2, conv_tile_##M##_3 }
CONV_M_TIMES(CONV_TILES)
CONV_TILES(1)
static const ConvTile conv_tiles[2][3] = {CONV_NAMES(1), CONV_M_TIMES(CONV_NAMES)};

/* n channels, row by row: the excess of a row's last vector is written to the next row, which is computed
 * later. The last row goes through a tile. */
static void conv_rows(const struct MothConvStrip *s, int64_t n, const real *w, const real *bias,
                      real *out) {
  const real *planes = s->planes;
  real tile[CONV_M * CONV_WIDTH];
  for (int64_t y = 0; y < s->rows; y++)
    for (int64_t x = 0; x < s->cols; x += CONV_WIDTH) {
      int64_t left = s->cols - x, width = left < CONV_WIDTH ? left : CONV_WIDTH;
      int v = (int)((width + CONV_LANES - 1) / CONV_LANES);
      ConvTile run = conv_tiles[n > 1][v - 1];
      const real *from = planes + y * s->pitch + x;
      real *to = out + y * s->out_row + x;
      if (width == v * CONV_LANES || y + 1 < s->rows) {
        run(to, s->out_m, w, from, s->at, s->kk, bias, false);
        continue;
      }
      run(tile, CONV_WIDTH, w, from, s->at, s->kk, bias, false);
      for (int64_t r = 0; r < n; r++)
        conv_copy(to + r * s->out_m, tile + r * CONV_WIDTH, width);
    }
}

/* Copies the valid ones of `width` columns of a tile, from (y, x) of the planes on, to rows of the result. */
static void conv_put(const struct MothConvStrip *s, int64_t rows, const real *tile, int64_t y,
                     int64_t x, int64_t width, real *out) {
  for (int64_t from = 0; from < width; y++, x = 0) {
    int64_t run = s->pitch - x < width - from ? s->pitch - x : width - from;
    int64_t valid = s->cols - x < run ? s->cols - x : run;
    real *o = out + y * s->out_row + x * s->out_col;
    for (int64_t r = 0; r < rows; r++) {
      const real *t = tile + r * CONV_WIDTH + from;
      real *to = o + r * s->out_m;
      if (s->out_col == 1)
        conv_copy(to, t, valid);
      else
        for (int64_t j = 0; j < valid; j++)
          to[j * s->out_col] = t[j];
    }
    from += run;
  }
}

/* The bias of a panel of n channels from i on, padded; NULL: there is none. */
static const real *conv_bias_of(const struct MothConvStrip *s, int64_t i, int64_t n, real *to) {
  for (int64_t r = 0; s->bias && r < n; r++)
    to[r] = i + r < s->m ? ((const real *)s->bias)[i + r] : 0;
  return s->bias ? to : NULL;
}

/* The columns of the weight [from, to) that read the source for some result of rows [top, bottom] of a strip. */
static void conv_needed(const struct MothConvStrip *s, int64_t top, int64_t bottom, int64_t *from,
                        int64_t *to) {
  const MothConvAxis *y = s->y;
  const int64_t each = s->kk / y->ntaps;
  int first = y->ntaps, last = -1;
  for (int t = 0; t < y->ntaps; t++) {
    const int64_t offset = y->offset[y->phase[t]] + (s->row + y->shift[t]) * y->stride;
    if (bottom * y->stride + offset < 0 || top * y->stride + offset >= y->size)
      continue;
    first = first < t ? first : t;
    last = t;
  }
  *from = last < 0 ? 0 : first * each;
  *to = (last + 1) * each;
}

/* Channels [begin, end) with the planes as one run: vectors cross the ends of rows. A piece of a run and of the sum is in the
 * first cache while all channels take it; their sums wait in `tiles`. */
static void conv_flat(const struct MothConvStrip *s, int64_t begin, int64_t end, const real *w) {
  const real *planes = s->planes;
  real tiles[CONV_MOST * CONV_WIDTH], bias[CONV_M];
  int64_t length = (s->rows - 1) * s->pitch + s->cols;
  int64_t y = 0, x = 0; /* coordinates of l */
  for (int64_t l = 0; l < length; l += CONV_WIDTH) {
    int64_t left = length - l, width = left < CONV_WIDTH ? left : CONV_WIDTH;
    int v = (int)((width + CONV_LANES - 1) / CONV_LANES);
    bool whole = width == v * CONV_LANES && x + width <= s->cols && s->out_col == 1;
    int64_t k = 0, least = 0, most = s->kk;
    if (s->y) {
      const int64_t bottom = y + (x + width - 1) / s->pitch;
      conv_needed(s, y, bottom < s->rows ? bottom : s->rows - 1, &least, &most);
      k = least;
    }
    do { /* once where nothing is read, too */
      int64_t kn = most - k < s->deep ? most - k : s->deep;
      real *tile = tiles;
      const real *panel = w;
      for (int64_t i = begin, n; i < end; i += n, panel += n * s->kk, tile += n * CONV_WIDTH) {
        n = conv_panel(s->m - i);
        int64_t have = s->m - i < n ? s->m - i : n;
        ConvTile run = conv_tiles[n > 1][v - 1];
        const real *b = k > least ? NULL : conv_bias_of(s, i, n, bias);
        const real *a = panel + k * n;
        const int32_t *at = s->at + k;
        real *out = (real *)s->out + i * s->out_m;
        if (kn == most - least && have == n && whole) {
          run(out + y * s->out_row + x, s->out_m, a, planes + l, at, kn, b, false);
          continue;
        }
        run(tile, CONV_WIDTH, a, planes + l, at, kn, b, k > least);
        if (k + kn == most)
          conv_put(s, have, tile, y, x, width, out);
      }
      k += kn;
    } while (k < most);
    x += width;
    while (x >= s->pitch) {
      x -= s->pitch;
      y++;
    }
  }
}

/* What comes behind rows [i, i + n) of the result. */
static void conv_behind(const struct MothConvStrip *s, int64_t i, int64_t n) {
  const MothBehind *b = s->behind;
  int64_t first = s->first + i * s->out_m, run = s->rows * s->cols;
  if (run == s->out_m) {
    b->run(b->ctx, first, first + n * run);
    return;
  }
  for (int64_t r = 0; r < n; r++, first += s->out_m)
    b->run(b->ctx, first, first + run);
}

MOTH_TYPED_REAL void conv_strip(const struct MothConvStrip *s) {
  const real *w = s->weight;
  /* Vectors across the ends of rows must be split afterwards: not worth it for short sums. */
  bool by_rows =
      s->kk <= CONV_FEW && s->out_col == 1 && s->out_row == s->cols && s->cols >= CONV_LANES;
  int64_t most = CONV_WEIGHTS / (int64_t)sizeof(real) / s->kk / CONV_M * CONV_M;
  most = most > CONV_MOST ? CONV_MOST : most < CONV_M || s->kk <= CONV_SHORT ? CONV_M : most;
  real bias[CONV_M];
  for (int64_t i = 0; i < s->m;) {
    int64_t n = conv_panel(s->m - i), have = s->m - i < n ? s->m - i : n;
    if (by_rows && have == n) {
      conv_rows(s, n, w, conv_bias_of(s, i, n, bias), (real *)s->out + i * s->out_m);
    } else { /* some panels; all, if they are short of a block */
      n = by_rows ? n : most;
      have = s->m - i < n ? s->m - i : n;
      conv_flat(s, i, i + have, w);
    }
    if (s->behind)
      conv_behind(s, i, have);
    w += n * s->kk;
    i += n;
  }
}

/* The sum of all lanes, halves first. */
static inline real conv_sum(conv_vec v) {
  typedef real quarter __attribute__((vector_size(16)));
  enum { N = CONV_BYTES / 16 };
  quarter q[N];
  memcpy(q, &v, sizeof v);
  CONV_UNROLL for (int n = N / 2; n > 0; n /= 2) CONV_UNROLL for (int i = 0; i < n; i++) q[i] +=
      q[i + n];
#if MOTH_REAL_KIND == 2
  return q[0][0] + q[0][1];
#else
  return (q[0][0] + q[0][2]) + (q[0][1] + q[0][3]);
#endif
}

#define CONV_DOTS(M, K, name)                                                                      \
  static void conv_dots_##name(const struct MothConvDots *d, int64_t i, int64_t j) {               \
    conv_vec acc[M][K];                                                                            \
    int64_t at[K];                                                                                 \
    CONV_UNROLL for (int m = 0; m < M; m++) CONV_UNROLL for (int k = 0; k < K; k++) acc[m][k] =    \
        (conv_vec){0};                                                                             \
    for (int k = 0; k < K; k++)                                                                    \
      at[k] = d->at[j + k < d->kk ? j + k : d->kk - 1];                                            \
    for (int64_t u = 0; u < d->units; u++) {                                                       \
      const real *a = (const real *)d->a + u * d->a_unit + i * d->a_row;                           \
      const real *b = (const real *)d->b + u * d->b_unit;                                          \
      for (int64_t l = 0; l < d->length; l += CONV_LANES) {                                        \
        conv_vec y[M];                                                                             \
        CONV_UNROLL for (int m = 0; m < M; m++) y[m] = *(const conv_vec *)(a + m * d->a_row + l);  \
        CONV_UNROLL for (int k = 0; k < K; k++) {                                                  \
          conv_vec x = *(const conv_vec *)(b + at[k] + l);                                         \
          CONV_UNROLL for (int m = 0; m < M; m++) acc[m][k] += y[m] * x;                           \
        }                                                                                          \
      }                                                                                            \
    }                                                                                              \
    real *out = (real *)d->out + i * d->out_row + j;                                               \
    for (int m = 0; m < M; m++)                                                                    \
      for (int k = 0; k < K && j + k < d->kk; k++)                                                 \
        out[m * d->out_row + k] += conv_sum(acc[m][k]);                                            \
  }
DOTS_TIMES(CONV_DOTS)

MOTH_TYPED_REAL void conv_dots(const struct MothConvDots *d) {
  for (int64_t j = 0; j < d->kk; j += DOTS_K) {
    int64_t i = 0;
    for (; i + DOTS_M <= d->m; i += DOTS_M)
      conv_dots_full(d, i, j);
    for (; i < d->m; i++)
      conv_dots_one(d, i, j);
  }
}

MOTH_TYPED_REAL void conv_bias_rows(const struct MothConvBias *p) {
  for (int64_t i = 0; i < p->rows; i++) {
    real *to = (real *)p->out + i * p->row;
    const real bias = ((const real *)p->bias)[i];
    MOTH_VECTOR for (int64_t j = 0; j < p->n; j++) to[j] += bias;
  }
}

/* --- columns: kernels/cpu/conv_columns.c --------------------------------------------------------- */

#if defined __AVX512F__ && MOTH_REAL_KIND == 1
static inline void conv_add(real *to, const real *from, int64_t n) {
  for (int64_t j = 0; j < n; j += 16) {
    __mmask16 k = conv_mask(j, 0, n);
    __m512 sum =
        _mm512_add_ps(_mm512_maskz_loadu_ps(k, to + j), _mm512_maskz_loadu_ps(k, from + j));
    _mm512_mask_storeu_ps(to + j, k, sum);
  }
}
#else
static inline void conv_add(real *to, const real *from, int64_t n) {
  MOTH_VECTOR for (int64_t j = 0; j < n; j++) to[j] += from[j];
}
#endif

/* What kernel position t reads: results [from, to) of a row, rows [lo, hi); pixel (y, x) for result (0, 0). */
typedef struct ConvTap {
  int64_t from, to, lo, hi, y, x;
} ConvTap;
static ConvTap conv_tap(const MothConv *g, int64_t t) {
  ConvTap a = {.y = t / g->kernel[1] * g->dilation[0] - g->padding[0],
               .x = t % g->kernel[1] * g->dilation[1] - g->padding[1]};
  inside(a.x, g->stride[1], g->w, g->ow, &a.from, &a.to);
  inside(a.y, g->stride[0], g->h, g->oh, &a.lo, &a.hi);
  return a;
}

MOTH_TYPED_REAL void conv_columns(const struct MothConvColumns *p) {
  const MothConv *g = p->g;
  const int64_t n = p->inner, line = g->ow * n, down = g->stride[0] * g->w * n;
  for (int64_t i = 0; i < p->channels * p->ntaps; i++) {
    const ConvTap a = conv_tap(g, p->taps ? p->taps[i % p->ntaps] : i % p->ntaps);
    real *o = (real *)p->columns + i * p->row;
    const real *image = (const real *)p->image + i / p->ntaps * p->channel_stride;
    for (int64_t u = 0; u < p->outer; u++, o += g->oh * line, image += p->image_stride) {
      const real *s = image + ((a.y + a.lo * g->stride[0]) * g->w + a.x) * n;
      real *to = o + a.lo * line;
      memset(o, 0, (size_t)(a.lo * line) * sizeof(real));
      if (g->stride[1] == 1) {
        conv_padded(to, s, down, a.hi - a.lo, a.from * n, a.to * n, line);
        to += (a.hi - a.lo) * line;
      } else {
        for (int64_t y = a.lo; y < a.hi; y++, to += line, s += down) {
          memset(to, 0, (size_t)(a.from * n) * sizeof(real));
          if (n == 1)
            conv_strided(to + a.from, s + a.from * g->stride[1], g->stride[1], a.to - a.from);
          else
            for (int64_t x = a.from; x < a.to; x++)
              conv_copy(to + x * n, s + x * g->stride[1] * n, n);
          memset(to + a.to * n, 0, (size_t)((g->ow - a.to) * n) * sizeof(real));
        }
      }
      memset(to, 0, (size_t)((g->oh - a.hi) * line) * sizeof(real));
    }
  }
}

/* The other way: each column's elements are added to their pixels. */
MOTH_TYPED_REAL void conv_images(const struct MothConvColumns *p) {
  const MothConv *g = p->g;
  const int64_t n = p->inner, line = g->ow * n, down = g->stride[0] * g->w * n;
  for (int64_t c = 0; c < p->channels; c++)
    for (int64_t u = 0; u < p->outer; u++) {
      real *image = (real *)p->image + c * p->channel_stride + u * p->image_stride;
      memset(image, 0, (size_t)(g->h * g->w * n) * sizeof(real));
      for (int64_t t = 0; t < p->ntaps; t++) {
        const ConvTap a = conv_tap(g, p->taps ? p->taps[t] : t);
        const real *from = (const real *)p->columns + (c * p->ntaps + t) * p->row;
        from += (u * g->oh + a.lo) * line;
        real *to = image + ((a.y + a.lo * g->stride[0]) * g->w + a.x) * n;
        for (int64_t y = a.lo; y < a.hi; y++, to += down, from += line) {
          if (g->stride[1] == 1)
            conv_add(to + a.from * n, from + a.from * n, (a.to - a.from) * n);
          else if (n == 1)
            for (int64_t x = a.from; x < a.to; x++)
              to[x * g->stride[1]] += from[x];
          else
            for (int64_t x = a.from; x < a.to; x++)
              conv_add(to + x * g->stride[1] * n, from + x * n, n);
        }
      }
    }
}

/* By blocks, whose lines stay in cache. */
MOTH_TYPED_REAL void conv_transpose(const struct MothConvTranspose *p) {
  enum { BLOCK = 16 };
  for (int64_t j = 0; j < p->cols; j += BLOCK)
    for (int64_t i = 0; i < p->rows; i += BLOCK) {
      int64_t rows = p->rows - i < BLOCK ? p->rows - i : BLOCK;
      int64_t cols = p->cols - j < BLOCK ? p->cols - j : BLOCK;
      const real *from = (const real *)p->from + i * p->from_row + j;
      real *to = (real *)p->to + j * p->to_row + i;
      for (int64_t x = 0; x < cols; x++)
        for (int64_t y = 0; y < rows; y++)
          to[x * p->to_row + y] = from[y * p->from_row + x];
    }
}
