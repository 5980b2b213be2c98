/* Small and thin matrix products, float32, float64 and complex numbers of both: C = alpha A B + beta C, with sums in
 * registers and nothing packed: a number of A is multiplied by vectors of a row of B. BLAS packs both operands, which takes
 * longer than such a product. Where columns of B lie in one piece, B's panel is transposed first. An element's sum depends
 * on k alone. Complex numbers are pairs of reals: the real part of one of A is multiplied by a row of B, the imaginary part
 * by the row times i. */
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

/* Lanes of two vectors in turn: the first halves', the second halves'. Of one vector: each pair exchanged. */
#if defined __AVX512F__ && MOTH_REAL_KIND == 1
#define SMALL_LOW  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define SMALL_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define SMALL_SWAP 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14
#elif defined __AVX512F__ || (defined __AVX2__ && MOTH_REAL_KIND == 1)
#define SMALL_LOW  0, 8, 1, 9, 2, 10, 3, 11
#define SMALL_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#define SMALL_SWAP 1, 0, 3, 2, 5, 4, 7, 6
#elif defined __AVX2__ || MOTH_REAL_KIND == 1
#define SMALL_LOW  0, 4, 1, 5
#define SMALL_HIGH 2, 6, 3, 7
#define SMALL_SWAP 1, 0, 3, 2
#else
#define SMALL_LOW  0, 2
#define SMALL_HIGH 1, 3
#define SMALL_SWAP 1, 0
#endif

/* Operands of a tile: B's rows are b_row apart; its last vector has `last` lanes. All counts are of reals. */
typedef struct Tile {
  const real *a, *b;
  real *c;
  int64_t a_row, a_col, b_row, c_row, k;
  real alpha, beta;
  int last;
} Tile;

/* c[rows][vectors] = alpha * (a times b) + beta * c */
MOTH_FN void small_tile(const Tile *t, int rows, int vectors, bool pairs) {
  small_vec sum[SMALL_M][SMALL_V], signs;
  const real *a = t->a, *b = t->b;
  const int64_t a_row = t->a_row, a_col = t->a_col, b_row = t->b_row;
  const int last = t->last;
  SMALL_UNROLL for (int l = 0; l < SMALL_LANES; l++) signs[l] = l % 2 ? 1 : -1;
  SMALL_UNROLL for (int m = 0; m < rows; m++) SMALL_UNROLL for (int v = 0; v < vectors; v++)
      sum[m][v] = (small_vec){0};
  for (int64_t k = t->k; k > 0; k--, a += a_col, b += b_row) {
    small_vec x[SMALL_V], turned[SMALL_V]; /* turned: times i */
    SMALL_UNROLL for (int v = 0; v < vectors - 1; v++) x[v] =
        *(const small_vec *)(b + v * SMALL_LANES);
    x[vectors - 1] = small_load(b + (vectors - 1) * SMALL_LANES, last);
    SMALL_UNROLL for (int v = 0; v < vectors && pairs; v++) turned[v] =
        signs * __builtin_shufflevector(x[v], x[v], SMALL_SWAP);
    SMALL_UNROLL for (int m = 0; m < rows; m++) SMALL_UNROLL for (int v = 0; v < vectors; v++) {
      sum[m][v] += a[m * a_row] * x[v];
      if (pairs)
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

#define SMALL_CASE(N, V, PAIRS)                                                                    \
  case N:                                                                                          \
    small_tile(t, N, V, PAIRS);                                                                    \
    break;
#if defined __AVX512F__ || defined __aarch64__
#define SMALL_MORE(V, PAIRS)                                                                       \
  SMALL_CASE(4, V, PAIRS)                                                                          \
  SMALL_CASE(5, V, PAIRS) SMALL_CASE(6, V, PAIRS) SMALL_CASE(7, V, PAIRS)
#else
#define SMALL_MORE(V, PAIRS)
#endif
#define SMALL_TILES(name, V, PAIRS)                                                                \
  static void name(const Tile *t, int rows) {                                                      \
    switch (rows) {                                                                                \
      SMALL_CASE(1, V, PAIRS)                                                                      \
      SMALL_CASE(2, V, PAIRS)                                                                      \
      SMALL_CASE(3, V, PAIRS)                                                                      \
      SMALL_MORE(V, PAIRS)                                                                         \
    default:                                                                                       \
      small_tile(t, SMALL_M, V, PAIRS);                                                            \
    }                                                                                              \
  }
SMALL_TILES(small_tiles_1, 1, false)
SMALL_TILES(small_tiles_2, 2, false)
SMALL_TILES(pairs_tiles_1, 1, true)
SMALL_TILES(pairs_tiles_2, 2, true)
#if defined __AVX2__ || defined __aarch64__
SMALL_TILES(small_tiles_3, 3, false)
#else
#define small_tiles_3 small_tiles_2
#endif
typedef void (*SmallTiles)(const Tile *, int);
static const SmallTiles small_tiles[3] = {small_tiles_1, small_tiles_2, small_tiles_3};
static const SmallTiles pairs_tiles[2] = {pairs_tiles_1, pairs_tiles_2};
enum { PAIRS_V = 2 };

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

/* n rows of a panel of B of `cols` reals from columns that lie in one piece. */
static void small_panel(const struct MothGemm *g, bool pairs, const real *b, int64_t cols,
                        int64_t n, real *panel) {
  for (int64_t q = 0; q < cols && pairs; q += 2, b += 2 * g->b_col)
    for (int64_t k = 0; k < n; k++)
      memcpy(panel + k * SMALL_WIDTH + q, b + 2 * k, 2 * sizeof(real));
  for (int64_t q = 0; q < cols && !pairs; q += SMALL_LANES)
    for (int64_t k = 0; k < n; k += SMALL_LANES)
      small_turn(b + k + q * g->b_col, g->b_col, (int)small_least(cols - q, SMALL_LANES),
                 (int)small_least(n - k, SMALL_LANES), panel + k * SMALL_WIDTH + q);
}

MOTH_TYPED_REAL void gemm_small(const struct MothGemm *g) {
  real panel[SMALL_K * SMALL_WIDTH] __attribute__((aligned(64)));
  const bool pairs = g->dtype == MOTH_COMPLEX64 || g->dtype == MOTH_COMPLEX128;
  const bool turn = g->b_col != 1;
  const int64_t each = pairs ? 2 : 1, width = each * g->n, most = pairs ? PAIRS_V : SMALL_V;
  const int64_t vectors = (width + SMALL_LANES - 1) / SMALL_LANES;
  const int64_t parts = (vectors + most - 1) / most, blocks = (g->m + SMALL_M - 1) / SMALL_M;
  for (int64_t part = 0, j = 0; part < parts && !moth_stopped(); part++) {
    const int64_t columns = vectors / parts + (part < vectors % parts);
    const int64_t cols = small_least(columns * SMALL_LANES, width - j);
    const SmallTiles run = (pairs ? pairs_tiles : small_tiles)[columns - 1];
    Tile t = {.a_row = each * g->a_row,
              .a_col = each * g->a_col,
              .b_row = turn ? SMALL_WIDTH : each * g->b_row,
              .c_row = each * g->c_row,
              .alpha = (real)g->alpha,
              .last = (int)(cols - (columns - 1) * SMALL_LANES)};
    for (int64_t p = 0; p < g->k; p += SMALL_K / each) {
      const real *a = (const real *)g->a + p * t.a_col;
      t.k = small_least(g->k - p, SMALL_K / each);
      t.b = (const real *)g->b + each * p * g->b_row + j * g->b_col;
      t.beta = p ? 1 : (real)g->beta;
      if (turn) {
        small_panel(g, pairs, t.b, cols, t.k, panel);
        t.b = panel;
      }
      for (int64_t block = 0, i = 0; block < blocks; block++) {
        const int64_t rows = g->m / blocks + (block < g->m % blocks);
        t.a = a + i * t.a_row;
        t.c = (real *)g->c + i * t.c_row + j;
        run(&t, (int)rows);
        i += rows;
      }
    }
    j += cols;
  }
}
