/* Small and thin matrix products, float32, float64 and complex numbers of both: C = alpha A B + beta C, with sums in registers and nothing packed: a
 * number of A is multiplied by vectors of a row of B. BLAS packs both operands, which takes longer than such a product. Where
 * columns of B lie in one piece, B's panel is transposed first, in registers. An element's sum depends on k alone.
 * Complex numbers are pairs: the real part of one of A is multiplied by a row of B, the imaginary part by the row times i. */
#include "core/parallel.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/typed/prelude.h"
#if defined __AVX2__
#include <immintrin.h>
#endif

#if defined __AVX512F__
enum { SMALL_BYTES = 64, SMALL_M = 8, SMALL_V = 3 }; /* 24 sums of 32 registers */
#elif defined __AVX2__
enum { SMALL_BYTES = 32, SMALL_M = 4, SMALL_V = 3 };
#elif defined __aarch64__
enum { SMALL_BYTES = 16, SMALL_M = 8, SMALL_V = 3 };
#else
enum { SMALL_BYTES = 16, SMALL_M = 4, SMALL_V = 2 };
#endif
/* SMALL_K: terms that are summed by themselves; a panel of B that was transposed fits the first-level cache. */
enum {
  SMALL_LANES = SMALL_BYTES / sizeof(real),
  SMALL_WIDTH = SMALL_V * SMALL_LANES,
  SMALL_K = 256
};
typedef real small_vec __attribute__((vector_size(SMALL_BYTES), aligned(sizeof(real)), may_alias));
#define SMALL_UNROLL _Pragma("GCC unroll 16")

static int64_t small_least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* The first n of a vector's lanes; the others are 0. */
#if defined __AVX512F__ && MOTH_REAL_KIND == 1
MOTH_FN small_vec small_load(const real *p, int n) {
  return (small_vec)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
MOTH_FN void small_store(real *p, small_vec v, int n) {
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
}
#elif defined __AVX512F__
MOTH_FN small_vec small_load(const real *p, int n) {
  return (small_vec)_mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), p);
}
MOTH_FN void small_store(real *p, small_vec v, int n) {
  _mm512_mask_storeu_pd(p, (__mmask8)((1u << n) - 1), (__m512d)v);
}
#else
MOTH_FN small_vec small_load(const real *p, int n) {
  small_vec v = {0};
  if (n == SMALL_LANES)
    return *(const small_vec *)p;
  for (int i = 0; i < n; i++)
    v[i] = p[i];
  return v;
}
MOTH_FN void small_store(real *p, small_vec v, int n) {
  if (n == SMALL_LANES)
    *(small_vec *)p = v;
  else
    for (int i = 0; i < n; i++)
      p[i] = v[i];
}
#endif

/* Operands of a tile: B's rows are b_row apart; its last vector has `last` lanes. */
typedef struct Tile {
  const real *a, *b;
  real *c;
  int64_t a_row, a_col, b_row, c_row, k;
  real alpha, beta;
  int last;
} Tile;

/* c[rows][vectors] = alpha * (a times b) + beta * c */
MOTH_FN void small_tile(const Tile *t, int rows, int vectors) {
  small_vec sum[SMALL_M][SMALL_V];
  const real *a = t->a, *b = t->b;
  const int64_t a_row = t->a_row, a_col = t->a_col, b_row = t->b_row;
  const int last = t->last;
  SMALL_UNROLL for (int m = 0; m < rows; m++) SMALL_UNROLL for (int v = 0; v < vectors; v++)
      sum[m][v] = (small_vec){0};
  for (int64_t k = t->k; k > 0; k--, a += a_col, b += b_row) {
    small_vec x[SMALL_V];
    SMALL_UNROLL for (int v = 0; v < vectors - 1; v++) x[v] =
        *(const small_vec *)(b + v * SMALL_LANES);
    x[vectors - 1] = small_load(b + (vectors - 1) * SMALL_LANES, last);
    SMALL_UNROLL for (int m = 0; m < rows; m++) SMALL_UNROLL for (int v = 0; v < vectors; v++)
        sum[m][v] += a[m * a_row] * x[v];
  }
  const real alpha = t->alpha, beta = t->beta;
  SMALL_UNROLL for (int m = 0; m < rows; m++) SMALL_UNROLL for (int v = 0; v < vectors; v++) {
    real *to = t->c + m * t->c_row + v * SMALL_LANES;
    const int n = v == vectors - 1 ? last : SMALL_LANES;
    small_vec y = alpha * sum[m][v];
    if (beta != 0)
      y += beta * small_load(to, n);
    small_store(to, y, n);
  }
}

#define SMALL_CASE(N, V)                                                                           \
  case N:                                                                                          \
    small_tile(t, N, V);                                                                           \
    break;
#if defined __AVX512F__ || defined __aarch64__
#define SMALL_MORE(V) SMALL_CASE(4, V) SMALL_CASE(5, V) SMALL_CASE(6, V) SMALL_CASE(7, V)
#else
#define SMALL_MORE(V)
#endif
#define SMALL_TILES(V)                                                                             \
  static void small_tiles_##V(const Tile *t, int rows) {                                           \
    switch (rows) {                                                                                \
      SMALL_CASE(1, V)                                                                             \
      SMALL_CASE(2, V)                                                                             \
      SMALL_CASE(3, V)                                                                             \
      SMALL_MORE(V)                                                                                \
    default:                                                                                       \
      small_tile(t, SMALL_M, V);                                                                   \
    }                                                                                              \
  }
SMALL_TILES(1)
SMALL_TILES(2)
#if defined __AVX2__ || defined __aarch64__
SMALL_TILES(3)
#else
#define small_tiles_3 small_tiles_2
#endif
typedef void (*SmallTiles)(const Tile *, int);
static const SmallTiles small_tiles[3] = {small_tiles_1, small_tiles_2, small_tiles_3};

/* Lanes of two vectors in turn: the first halves', the second halves'. */
#if defined __AVX512F__ && MOTH_REAL_KIND == 1
#define SMALL_LOW  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define SMALL_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined __AVX512F__ || (defined __AVX2__ && MOTH_REAL_KIND == 1)
#define SMALL_LOW  0, 8, 1, 9, 2, 10, 3, 11
#define SMALL_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#elif defined __AVX2__ || MOTH_REAL_KIND == 1
#define SMALL_LOW  0, 4, 1, 5
#define SMALL_HIGH 2, 6, 3, 7
#else
#define SMALL_LOW  0, 2
#define SMALL_HIGH 1, 3
#endif

/* to[k][j] = from[j * line + k] for `lines` and `n` up to SMALL_LANES; rows of `to` are SMALL_WIDTH apart. */
static void small_turn(const real *from, int64_t line, int lines, int n, real *to) {
  small_vec x[SMALL_LANES], y[SMALL_LANES];
  SMALL_UNROLL for (int j = 0; j < SMALL_LANES; j++) {
    if (j < lines)
      x[j] = small_load(from + j * line, n);
    else
      x[j] = (small_vec){0};
  }
  /* Each shuffle of all lines moves the top bit of an element's place to its end. */
  SMALL_UNROLL for (int step = 1; step < SMALL_LANES; step *= 2) {
    SMALL_UNROLL for (int j = 0; j < SMALL_LANES / 2; j++) {
      y[2 * j] = __builtin_shufflevector(x[j], x[j + SMALL_LANES / 2], SMALL_LOW);
      y[2 * j + 1] = __builtin_shufflevector(x[j], x[j + SMALL_LANES / 2], SMALL_HIGH);
    }
    SMALL_UNROLL for (int j = 0; j < SMALL_LANES; j++) x[j] = y[j];
  }
  SMALL_UNROLL for (int k = 0; k < SMALL_LANES; k++) if (k < n) *
      (small_vec *)(to + k * SMALL_WIDTH) = x[k];
}

/* --- complex numbers ------------------------------------------------------------------------------ */

#if defined __AVX512F__ && MOTH_REAL_KIND == 1
#define SMALL_SWAP 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14
#define SMALL_SIGNS                                                                                \
  { -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1 }
#elif defined __AVX512F__ || (defined __AVX2__ && MOTH_REAL_KIND == 1)
#define SMALL_SWAP 1, 0, 3, 2, 5, 4, 7, 6
#define SMALL_SIGNS                                                                                \
  { -1, 1, -1, 1, -1, 1, -1, 1 }
#elif defined __AVX2__ || MOTH_REAL_KIND == 1
#define SMALL_SWAP 1, 0, 3, 2
#define SMALL_SIGNS                                                                                \
  { -1, 1, -1, 1 }
#else
#define SMALL_SWAP 1, 0
#define SMALL_SIGNS                                                                                \
  { -1, 1 }
#endif
enum { PAIRS_V = 2, PAIRS_WIDTH = PAIRS_V * SMALL_LANES, PAIRS_K = SMALL_K / 2 };

/* small_tile of pairs; strides and `last` count reals. */
MOTH_FN void pairs_tile(const Tile *t, int rows, int vectors) {
  const small_vec signs = SMALL_SIGNS;
  small_vec sum[SMALL_M][PAIRS_V];
  const real *a = t->a, *b = t->b;
  const int64_t a_row = t->a_row, a_col = t->a_col, b_row = t->b_row;
  const int last = t->last;
  SMALL_UNROLL for (int m = 0; m < rows; m++) SMALL_UNROLL for (int v = 0; v < vectors; v++)
      sum[m][v] = (small_vec){0};
  for (int64_t k = t->k; k > 0; k--, a += a_col, b += b_row) {
    small_vec x[PAIRS_V], turned[PAIRS_V];
    SMALL_UNROLL for (int v = 0; v < vectors - 1; v++) x[v] =
        *(const small_vec *)(b + v * SMALL_LANES);
    x[vectors - 1] = small_load(b + (vectors - 1) * SMALL_LANES, last);
    SMALL_UNROLL for (int v = 0; v < vectors; v++) turned[v] =
        signs * __builtin_shufflevector(x[v], x[v], SMALL_SWAP);
    SMALL_UNROLL for (int m = 0; m < rows; m++) SMALL_UNROLL for (int v = 0; v < vectors; v++) {
      sum[m][v] += a[m * a_row] * x[v];
      sum[m][v] += a[m * a_row + 1] * turned[v];
    }
  }
  const real alpha = t->alpha, beta = t->beta;
  SMALL_UNROLL for (int m = 0; m < rows; m++) SMALL_UNROLL for (int v = 0; v < vectors; v++) {
    real *to = t->c + m * t->c_row + v * SMALL_LANES;
    const int n = v == vectors - 1 ? last : SMALL_LANES;
    small_vec y = alpha * sum[m][v];
    if (beta != 0)
      y += beta * small_load(to, n);
    small_store(to, y, n);
  }
}

#undef SMALL_CASE
#define SMALL_CASE(N, V)                                                                           \
  case N:                                                                                          \
    pairs_tile(t, N, V);                                                                           \
    break;
#define PAIRS_TILES(V)                                                                             \
  static void pairs_tiles_##V(const Tile *t, int rows) {                                           \
    switch (rows) {                                                                                \
      SMALL_CASE(1, V)                                                                             \
      SMALL_CASE(2, V)                                                                             \
      SMALL_CASE(3, V)                                                                             \
      SMALL_MORE(V)                                                                                \
    default:                                                                                       \
      pairs_tile(t, SMALL_M, V);                                                                   \
    }                                                                                              \
  }
PAIRS_TILES(1)
PAIRS_TILES(2)

/* C = alpha A B + beta C of pairs. */
static void small_pairs(const struct MothGemm *g) {
  real panel[PAIRS_K * PAIRS_WIDTH] __attribute__((aligned(64)));
  const bool turn = g->b_col != 1;
  const int64_t blocks = (g->m + SMALL_M - 1) / SMALL_M, width = 2 * g->n;
  for (int64_t j = 0; j < width && !moth_stopped(); j += PAIRS_WIDTH) {
    const int64_t cols = small_least(width - j, PAIRS_WIDTH);
    const bool two = cols > SMALL_LANES;
    Tile t = {.a_row = 2 * g->a_row,
              .a_col = 2 * g->a_col,
              .b_row = turn ? PAIRS_WIDTH : 2 * g->b_row,
              .c_row = 2 * g->c_row,
              .alpha = (real)g->alpha,
              .last = (int)(two ? cols - SMALL_LANES : cols)};
    for (int64_t p = 0; p < g->k; p += PAIRS_K) {
      const real *a = (const real *)g->a + 2 * p * g->a_col;
      const real *b = (const real *)g->b + 2 * p * g->b_row + j * g->b_col;
      t.k = small_least(g->k - p, PAIRS_K);
      t.b = b;
      t.beta = p ? 1 : (real)g->beta;
      if (turn) {
        for (int64_t q = 0; q < cols; q += 2, b += 2 * g->b_col)
          for (int64_t k = 0; k < t.k; k++)
            memcpy(panel + k * PAIRS_WIDTH + q, b + 2 * k * g->b_row, 2 * sizeof(real));
        t.b = panel;
      }
      for (int64_t block = 0, i = 0; block < blocks; block++) {
        const int64_t rows = g->m / blocks + (block < g->m % blocks);
        t.a = a + i * t.a_row;
        t.c = (real *)g->c + i * t.c_row + j;
        (two ? pairs_tiles_2 : pairs_tiles_1)(&t, (int)rows);
        i += rows;
      }
    }
  }
}

MOTH_TYPED_REAL void gemm_small(const struct MothGemm *g) {
  if (g->dtype == MOTH_COMPLEX64 || g->dtype == MOTH_COMPLEX128) {
    small_pairs(g);
    return;
  }
  real panel[SMALL_K * SMALL_WIDTH] __attribute__((aligned(64)));
  const bool turn = g->b_col != 1;
  int64_t vectors = (g->n + SMALL_LANES - 1) / SMALL_LANES,
          parts = (vectors + SMALL_V - 1) / SMALL_V;
  int64_t blocks = (g->m + SMALL_M - 1) / SMALL_M;
  for (int64_t part = 0, j = 0; part < parts && !moth_stopped(); part++) {
    int64_t columns = vectors / parts + (part < vectors % parts);
    int64_t cols = small_least(columns * SMALL_LANES, g->n - j);
    Tile t = {.a_row = g->a_row,
              .a_col = g->a_col,
              .b_row = turn ? SMALL_WIDTH : g->b_row,
              .c_row = g->c_row,
              .alpha = (real)g->alpha,
              .last = (int)(cols - (columns - 1) * SMALL_LANES)};
    for (int64_t p = 0; p < g->k; p += SMALL_K) {
      const real *a = (const real *)g->a + p * g->a_col;
      t.k = small_least(g->k - p, SMALL_K);
      t.b = (const real *)g->b + p * g->b_row + j * g->b_col;
      t.beta = p ? 1 : (real)g->beta;
      if (turn) {
        for (int64_t q = 0; q < cols; q += SMALL_LANES)
          for (int64_t k = 0; k < t.k; k += SMALL_LANES)
            small_turn(t.b + k + q * g->b_col, g->b_col, (int)small_least(cols - q, SMALL_LANES),
                       (int)small_least(t.k - k, SMALL_LANES), panel + k * SMALL_WIDTH + q);
        t.b = panel;
      }
      for (int64_t block = 0, i = 0; block < blocks; block++) {
        int64_t rows = g->m / blocks + (block < g->m % blocks);
        t.a = a + i * g->a_row;
        t.c = (real *)g->c + i * g->c_row + j;
        small_tiles[columns - 1](&t, (int)rows);
        i += rows;
      }
    }
    j += cols;
  }
}
