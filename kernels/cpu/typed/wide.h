/* Products of float16 and bfloat16 by those of float32: C = alpha X Y^T + beta C, summed in float32. X, the operand of fewer
 * lines, is packed once, in panels of vectors across its lines, k first; pieces of lines of Y are widened as they are
 * needed and stay in the second-level cache, where a tile takes one number of each of WIDE_LINES lines at a time. So a
 * weight is read once, and is neither packed nor turned. An element's sum depends on k alone. */
#include "kernels/cpu/blas.h"
#include "kernels/cpu/f16.h"
#include "kernels/cpu/typed/prelude.h"

#if defined __AVX512F__
enum { WIDE_BYTES = 64, WIDE_LINES = 8, WIDE_V = 3, WIDE_K = 192 };
#elif defined __AVX2__
enum { WIDE_BYTES = 32, WIDE_LINES = 4, WIDE_V = 3, WIDE_K = 256 };
#elif defined __aarch64__
enum { WIDE_BYTES = 16, WIDE_LINES = 8, WIDE_V = 2, WIDE_K = 256 };
#else
enum { WIDE_BYTES = 16, WIDE_LINES = 4, WIDE_V = 2, WIDE_K = 256 };
#endif
enum {
  WIDE_LANES = WIDE_BYTES / 4,
  WIDE_PANEL = WIDE_V * WIDE_LANES,
  WIDE_BLOCK = 64 /* lines of Y */
};
typedef float wide_vec __attribute__((vector_size(WIDE_BYTES), aligned(4), may_alias));
#define WIDE_UNROLL _Pragma("GCC unroll 16")

static int64_t wide_up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}
static int64_t wide_least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static void wide_run(float *o, const stored *a, int64_t n) {
  int64_t i = 0;
#if MOTH_STORED == 1
  i = f16_widen(o, a, n);
#endif
  MOTH_VECTOR for (; i < n; i++) o[i] = LOAD(a[i]);
}

/* Sums of a line of Y; no multiple of what a way of the cache has, or they would push each other out. */
static int64_t wide_sums_row(const MothWide *p) {
  return wide_up(p->m, WIDE_LANES) + WIDE_LANES;
}

typedef float wide_four __attribute__((vector_size(16), aligned(4), may_alias));
/* to[c][r] = from[r][c], of rows x cols, rows a multiple of 4; by blocks of four by four. */
static void wide_turn(const float *from, int64_t from_row, int64_t rows, int64_t cols, float *to,
                      int64_t to_row) {
  for (int64_t r = 0; r < rows; r += 4, from += 4 * from_row) {
    int64_t c = 0;
    for (; c + 4 <= cols; c += 4) {
      wide_four x[4], y[4];
      WIDE_UNROLL for (int i = 0; i < 4; i++) x[i] = *(const wide_four *)(from + i * from_row + c);
      y[0] = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
      y[1] = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
      y[2] = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
      y[3] = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
      float *o = to + c * to_row + r;
      *(wide_four *)o = __builtin_shufflevector(y[0], y[1], 0, 1, 4, 5);
      *(wide_four *)(o + to_row) = __builtin_shufflevector(y[0], y[1], 2, 3, 6, 7);
      *(wide_four *)(o + 2 * to_row) = __builtin_shufflevector(y[2], y[3], 0, 1, 4, 5);
      *(wide_four *)(o + 3 * to_row) = __builtin_shufflevector(y[2], y[3], 2, 3, 6, 7);
    }
    for (; c < cols; c++)
      for (int i = 0; i < 4; i++)
        to[c * to_row + r + i] = from[i * from_row + c];
  }
}

/* Lines of X that are packed at a time, whole panels: 4 MB. */
MOTH_TYPED_HALF int64_t wide_lines(const struct MothWide *p) {
  int64_t n = (1 << 20) / p->k / WIDE_PANEL * WIDE_PANEL;
  return n ? n : WIDE_PANEL;
}
/* Floats of X's panels; of the memory that gemm_wide needs; panels of X, and blocks of Y. */
MOTH_TYPED_HALF int64_t wide_packed(const struct MothWide *p) {
  return wide_up(p->m, WIDE_LANES) * p->k;
}
MOTH_TYPED_HALF int64_t wide_work(const struct MothWide *p) {
  return WIDE_BLOCK * (WIDE_K + wide_sums_row(p));
}
MOTH_TYPED_HALF int64_t wide_panels(const struct MothWide *p) {
  return (p->m + WIDE_PANEL - 1) / WIDE_PANEL;
}
MOTH_TYPED_HALF int64_t wide_blocks(const struct MothWide *p) {
  return (p->n + WIDE_BLOCK - 1) / WIDE_BLOCK;
}

/* Panels [from, to) of X. The last one is as wide as whole vectors that hold what is left; zeros fill it. */
MOTH_TYPED_HALF void wide_pack(const struct MothWide *p) {
  float lines[WIDE_LANES * WIDE_K];
  for (int64_t panel = p->from; panel < p->to; panel++) {
    int64_t first = panel * WIDE_PANEL, have = wide_least(p->m - first, WIDE_PANEL);
    int64_t width = wide_up(have, WIDE_LANES);
    float *to = p->packed + first * p->k;
    const stored *x = (const stored *)p->x + first * p->x_row;
    if (p->x_row == 1) {
      for (int64_t k = 0; k < p->k; k++, x += p->x_col, to += width) {
        wide_run(to, x, have);
        for (int64_t r = have; r < width; r++)
          to[r] = 0;
      }
      continue;
    }
    for (int64_t k = 0; k < p->k; k += WIDE_K) {
      int64_t n = wide_least(p->k - k, WIDE_K);
      for (int64_t r = 0; r < width; r += WIDE_LANES) {
        int64_t rows = wide_least(have - r, WIDE_LANES);
        for (int64_t i = 0; i < rows; i++)
          wide_run(lines + i * WIDE_K, x + (r + i) * p->x_row + k, n);
        memset(lines + rows * WIDE_K, 0, sizeof(float) * (size_t)((WIDE_LANES - rows) * WIDE_K));
        wide_turn(lines, WIDE_K, WIDE_LANES, n, to + k * width + r, width);
      }
    }
  }
}

/* Adds to c[WIDE_LINES][V vectors] the products of WIDE_LINES lines with a panel: element (i, k) of the lines is
 * y[i * LINE + k * ALONG]. */
#define WIDE_TILE(name, V, LINE, ALONG)                                                            \
  static void name(float *restrict c, int64_t ldc, const float *restrict y,                        \
                   const float *restrict x, int64_t k, bool first) {                               \
    wide_vec acc[WIDE_LINES][V];                                                                   \
    WIDE_UNROLL for (int i = 0; i < WIDE_LINES; i++) WIDE_UNROLL for (int v = 0; v < V; v++)       \
        acc[i][v] = first ? (wide_vec){0} : *(const wide_vec *)(c + i * ldc + v * WIDE_LANES);     \
    for (; k > 0; k--, y += (ALONG), x += (V)*WIDE_LANES) {                                        \
      wide_vec u[V];                                                                               \
      WIDE_UNROLL for (int v = 0; v < V; v++) u[v] = *(const wide_vec *)(x + v * WIDE_LANES);      \
      WIDE_UNROLL for (int i = 0; i < WIDE_LINES; i++) WIDE_UNROLL for (int v = 0; v < V; v++)     \
          acc[i][v] += y[i * (LINE)] * u[v];                                                       \
    }                                                                                              \
    WIDE_UNROLL for (int i = 0; i < WIDE_LINES; i++) WIDE_UNROLL for (int v = 0; v < V; v++) *     \
        (wide_vec *)(c + i * ldc + v * WIDE_LANES) = acc[i][v];                                    \
  }
#define WIDE_TILES(V)                                                                              \
  WIDE_TILE(wide_rows_##V, V, WIDE_K, 1) WIDE_TILE(wide_columns_##V, V, 1, WIDE_BLOCK)
WIDE_TILES(1)
WIDE_TILES(2)
#if defined __AVX2__
WIDE_TILES(3)
#else
#define wide_rows_3    wide_rows_2
#define wide_columns_3 wide_columns_2
#endif
typedef void (*WideTile)(float *restrict, int64_t, const float *restrict, const float *restrict,
                         int64_t, bool);
static const WideTile wide_tiles[2][3] = {{wide_rows_1, wide_rows_2, wide_rows_3},
                                          {wide_columns_1, wide_columns_2, wide_columns_3}};

/* Widens `lines` lines of Y from `j` on, n elements of each from k on; lines of zeros fill a tile. */
static void wide_piece(const MothWide *p, int64_t j, int64_t lines, int64_t k, int64_t n,
                       float *to) {
  const stored *y = (const stored *)p->y + j * p->y_row + k * p->y_col;
  int64_t all = wide_up(lines, WIDE_LINES);
  if (p->y_col == 1) {
    for (int64_t i = 0; i < lines; i++)
      wide_run(to + i * WIDE_K, y + i * p->y_row, n);
    if (lines < all)
      memset(to + lines * WIDE_K, 0, sizeof(float) * (size_t)((all - lines) * WIDE_K));
    return;
  }
  for (int64_t i = 0; i < n; i++, to += WIDE_BLOCK) {
    wide_run(to, y + i * p->y_col, lines);
    for (int64_t l = lines; l < all; l++)
      to[l] = 0;
  }
}

/* Asks for the piece of Y that comes next, some of its lines: they lie far from each other in memory. */
MOTH_FN void wide_ahead(const MothWide *p, int64_t j, int64_t from, int64_t to, int64_t k) {
  enum { LINE = 64 / sizeof(stored) };
  const stored *y = (const stored *)p->y + j * p->y_row + k;
  int64_t n = wide_least(p->k - k, WIDE_K);
  for (int64_t i = from; i < to; i++)
    for (int64_t l = 0; l < n; l += LINE)
      __builtin_prefetch(y + i * p->y_row + l, 0, 2);
}

/* A piece's products. */
static void wide_products(const MothWide *p, int64_t j, int64_t lines, int64_t k, float *sums) {
  const bool rows = p->y_col == 1, first = k == 0;
  int64_t n = wide_least(p->k - k, WIDE_K), ldc = wide_sums_row(p), done = 0, tiles = 0;
  int64_t all = wide_up(lines, WIDE_LINES) / WIDE_LINES * ((p->m + WIDE_PANEL - 1) / WIDE_PANEL);
  for (int64_t r = 0; r < p->m; r += WIDE_PANEL) {
    int64_t width = wide_least(wide_up(p->m, WIDE_LANES) - r, WIDE_PANEL);
    WideTile run = wide_tiles[!rows][width / WIDE_LANES - 1];
    const float *x = p->packed + r * p->k + k * width;
    for (int64_t i = 0; i < lines; i += WIDE_LINES) {
      int64_t next = lines * ++tiles / all;
      if (rows && k + n < p->k)
        wide_ahead(p, j, done, next, k + n);
      else if (rows && j + lines < p->n)
        wide_ahead(p, j + lines, done, wide_least(next, p->n - j - lines), 0);
      done = next;
      run(sums + i * ldc + r, ldc, p->work + i * (rows ? WIDE_K : 1), x, n, first);
    }
  }
}

MOTH_FN void wide_row(float *restrict c, const float *restrict sums, int64_t n, float alpha,
                      float beta) {
  if (beta == 0)
    for (int64_t i = 0; i < n; i++)
      c[i] = alpha * sums[i];
  else
    for (int64_t i = 0; i < n; i++)
      c[i] = alpha * sums[i] + beta * c[i];
}

/* Lines of sums to C; as many of X as fill a line of the cache at a time where they are turned. */
static void wide_put(const MothWide *p, int64_t j, int64_t lines, const float *sums) {
  enum { AT_A_TIME = 16 };
  const float alpha = (float)p->alpha, beta = (float)p->beta;
  float turned[AT_A_TIME * WIDE_BLOCK], *c = p->c + j * p->c_col;
  int64_t ldc = wide_sums_row(p);
  if (p->c_row == 1) {
    for (int64_t i = 0; i < lines; i++, c += p->c_col)
      wide_row(c, sums + i * ldc, p->m, alpha, beta);
    return;
  }
  for (int64_t r = 0; r < p->m; r += AT_A_TIME) {
    int64_t rows = wide_least(p->m - r, AT_A_TIME);
    wide_turn(sums + r, ldc, wide_up(lines, 4), rows, turned, WIDE_BLOCK);
    for (int64_t l = 0; l < rows; l++)
      wide_row(c + (r + l) * p->c_row, turned + l * WIDE_BLOCK, lines, alpha, beta);
  }
}

/* Blocks [from, to) of lines of Y. */
MOTH_TYPED_HALF void gemm_wide(const struct MothWide *p) {
  float *sums = p->work + WIDE_BLOCK * WIDE_K;
  for (int64_t block = p->from; block < p->to; block++) {
    int64_t j = block * WIDE_BLOCK, lines = wide_least(p->n - j, WIDE_BLOCK);
    for (int64_t k = 0; k < p->k; k += WIDE_K) {
      wide_piece(p, j, lines, k, wide_least(p->k - k, WIDE_K), p->work);
      wide_products(p, j, lines, k, sums);
    }
    wide_put(p, j, lines, sums);
  }
}
