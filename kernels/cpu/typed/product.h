/* Matrix products without a BLAS, float32 and float64: C = alpha A B + beta C by tiles that lie in registers, as conv.h's.
 *
 * Both operands are copied into panels that a tile reads in one run, k first: PRODUCT_M rows of A, PRODUCT_WIDTH columns of
 * B. A piece of B, PRODUCT_K x PRODUCT_N, stays in the second-level cache while pieces of A, PRODUCT_ROWS x PRODUCT_K, are
 * multiplied by it; one panel of B stays in the first-level cache. What lies in a constant may come packed whole
 * (core/kept.h), piece after piece in the order of the loops. An element's sum depends on k alone. */
#include "core/parallel.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/typed/prelude.h"

#if defined __AVX512F__
enum { PRODUCT_BYTES = 64, PRODUCT_M = 8, PRODUCT_V = 3, PRODUCT_K = 192 };
#elif defined __AVX2__
enum { PRODUCT_BYTES = 32, PRODUCT_M = 4, PRODUCT_V = 3, PRODUCT_K = 256 };
#elif defined __aarch64__
enum {
  PRODUCT_BYTES = 16,
  PRODUCT_M = 8,
  PRODUCT_V = 2,
  PRODUCT_K = 256
}; /* 24 sums are spilled */
#else
enum { PRODUCT_BYTES = 16, PRODUCT_M = 4, PRODUCT_V = 2, PRODUCT_K = 256 };
#endif
enum {
  PRODUCT_LANES = PRODUCT_BYTES / sizeof(real),
  PRODUCT_WIDTH = PRODUCT_V * PRODUCT_LANES,
  PRODUCT_ROWS = 128,
  PRODUCT_N = PRODUCT_WIDTH * (384 / PRODUCT_WIDTH)
};
typedef real product_vec
    __attribute__((vector_size(PRODUCT_BYTES), aligned(sizeof(real)), may_alias));
#define PRODUCT_UNROLL _Pragma("GCC unroll 16")

static int64_t product_up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}
static int64_t product_least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* How many elements a packed operand has. */
MOTH_TYPED_REAL int64_t product_packed(const struct MothProduct *p) {
  const MothGemm *g = &p->gemm;
  return (p->is_a ? product_up(g->m, PRODUCT_M) : product_up(g->n, PRODUCT_LANES)) * g->k;
}

/* Panels of `step` lines of an operand, `count` lines by k elements: line i, element k at from[i * line + k * along]. The last
 * panel is as wide as a multiple of `least` that holds what is left; zeros fill it. */
static void product_pack(const real *from, int64_t line, int64_t along, int64_t count, int64_t k,
                         int64_t step, int64_t least, real *restrict to) {
  for (int64_t i = 0; i < count; i += step) {
    int64_t have = product_least(count - i, step);
    int64_t width = have == step ? step : product_up(have, least);
    const real *p = from + i * line;
    if (line == 1) {
      for (int64_t j = 0; j < k; j++, p += along, to += width) {
        for (int64_t r = 0; r < have; r++)
          to[r] = p[r];
        for (int64_t r = have; r < width; r++)
          to[r] = 0;
      }
      continue;
    }
    for (int64_t r = 0; r < have; r++)
      for (int64_t j = 0; j < k; j++)
        to[j * width + r] = p[r * line + j * along];
    for (int64_t r = have; r < width; r++)
      for (int64_t j = 0; j < k; j++)
        to[j * width + r] = 0;
    to += width * k;
  }
}

static void product_pack_a(const MothGemm *g, int64_t i, int64_t rows, int64_t p, int64_t k,
                           real *to) {
  product_pack((const real *)g->a + i * g->a_row + p * g->a_col, g->a_row, g->a_col, rows, k,
               PRODUCT_M, PRODUCT_M, to);
}
static void product_pack_b(const MothGemm *g, int64_t j, int64_t cols, int64_t p, int64_t k,
                           real *to) {
  product_pack((const real *)g->b + j * g->b_col + p * g->b_row, g->b_col, g->b_row, cols, k,
               PRODUCT_WIDTH, PRODUCT_LANES, to);
}

/* All pieces of an operand, in the order of gemm_product's loops. */
MOTH_TYPED_REAL void product_pack_whole(const struct MothProduct *all) {
  const MothGemm *g = &all->gemm;
  const bool is_a = all->is_a;
  real *o = all->to;
  int64_t n = is_a ? g->m : g->n, step = is_a ? PRODUCT_ROWS : PRODUCT_N;
  for (int64_t p = 0; is_a && p < g->k; p += PRODUCT_K)
    for (int64_t i = 0, k = product_least(g->k - p, PRODUCT_K); i < n; i += step) {
      int64_t rows = product_least(n - i, step);
      product_pack_a(g, i, rows, p, k, o);
      o += product_up(rows, PRODUCT_M) * k;
    }
  for (int64_t j = 0; !is_a && j < n; j += step)
    for (int64_t p = 0; p < g->k; p += PRODUCT_K) {
      int64_t k = product_least(g->k - p, PRODUCT_K), cols = product_least(n - j, step);
      product_pack_b(g, j, cols, p, k, o);
      o += product_up(cols, PRODUCT_LANES) * k;
    }
}

/* Weights of a model are read once a run, from far: the processor prefetches them to the end of a page only. */
enum { PRODUCT_FAR = 2048 / sizeof(real) };
#define PRODUCT_AHEAD(p) __builtin_prefetch((p) + PRODUCT_FAR)

/* c[PRODUCT_M][V vectors] = alpha * (a times b) + beta * c */
#define PRODUCT_TILE(V)                                                                            \
  static void product_tile_##V(real *restrict c, int64_t ldc, const real *restrict a,              \
                               const real *restrict b, int64_t k, real alpha, real beta) {         \
    product_vec acc[PRODUCT_M][V];                                                                 \
    PRODUCT_UNROLL for (int m = 0; m < PRODUCT_M; m++) PRODUCT_UNROLL for (int v = 0; v < V; v++)  \
        acc[m][v] = (product_vec){0};                                                              \
    for (; k > 0; k--, a += PRODUCT_M, b += V * PRODUCT_LANES) {                                   \
      PRODUCT_AHEAD(a);                                                                            \
      product_vec x[V];                                                                            \
      PRODUCT_UNROLL for (int v = 0; v < V; v++) x[v] =                                            \
          *(const product_vec *)(b + v * PRODUCT_LANES);                                           \
      PRODUCT_UNROLL for (int m = 0; m < PRODUCT_M; m++)                                           \
          PRODUCT_UNROLL for (int v = 0; v < V; v++) acc[m][v] += a[m] * x[v];                     \
    }                                                                                              \
    PRODUCT_UNROLL for (int m = 0; m < PRODUCT_M; m++)                                             \
        PRODUCT_UNROLL for (int v = 0; v < V; v++) {                                               \
      product_vec *to = (product_vec *)(c + m * ldc + v * PRODUCT_LANES);                          \
      *to = beta == 0 ? alpha * acc[m][v] : alpha * acc[m][v] + beta * *to;                        \
    }                                                                                              \
  }
PRODUCT_TILE(1)
PRODUCT_TILE(2)
#if defined __AVX2__
PRODUCT_TILE(3)
#else
#define product_tile_3 product_tile_2
#endif
typedef void (*ProductTile)(real *restrict, int64_t, const real *restrict, const real *restrict,
                            int64_t, real, real);
static const ProductTile product_tiles[3] = {product_tile_1, product_tile_2, product_tile_3};

/* A piece of C: rows x cols, from packed pieces. */
static void product_piece(const real *a, const real *b, int64_t k, int64_t rows, int64_t cols,
                          real *c, int64_t ldc, real alpha, real beta) {
  real tile[PRODUCT_M * PRODUCT_WIDTH];
  for (int64_t j = 0; j < cols; j += PRODUCT_WIDTH) {
    int64_t width = product_least(cols - j, PRODUCT_WIDTH);
    int64_t wide = width == PRODUCT_WIDTH ? width : product_up(width, PRODUCT_LANES);
    ProductTile run = product_tiles[wide / PRODUCT_LANES - 1];
    const real *from = a;
    for (int64_t i = 0; i < rows; i += PRODUCT_M, from += PRODUCT_M * k) {
      int64_t high = product_least(rows - i, PRODUCT_M);
      real *to = c + i * ldc + j;
      if (high == PRODUCT_M && width == wide) {
        run(to, ldc, from, b, k, alpha, beta);
        continue;
      }
      for (int64_t r = 0; beta != 0 && r < high; r++)
        memcpy(tile + r * PRODUCT_WIDTH, to + r * ldc, (size_t)width * sizeof(real));
      run(tile, PRODUCT_WIDTH, from, b, k, alpha, beta);
      for (int64_t r = 0; r < high; r++)
        memcpy(to + r * ldc, tile + r * PRODUCT_WIDTH, (size_t)width * sizeof(real));
    }
    b += wide * k;
  }
}

/* Elements of a piece of A; of B. */
static int64_t product_a_piece(const MothGemm *g) {
  return product_up(product_least(g->m, PRODUCT_ROWS), PRODUCT_M) * product_least(g->k, PRODUCT_K);
}
static int64_t product_b_piece(const MothGemm *g) {
  return product_up(product_least(g->n, PRODUCT_N), PRODUCT_LANES) * product_least(g->k, PRODUCT_K);
}

/* How many elements gemm_product's work has. */
MOTH_TYPED_REAL int64_t product_work(const struct MothProduct *p) {
  return product_a_piece(&p->gemm) + product_b_piece(&p->gemm);
}

MOTH_TYPED_REAL void gemm_product(const struct MothProduct *all) {
  const MothGemm *g = &all->gemm;
  const real *packed_a = all->a, *packed_b = all->b;
  real *a_piece = all->work, *b_piece = a_piece + product_a_piece(g);
  const real *b = packed_b;
  for (int64_t j = 0; j < g->n; j += PRODUCT_N) {
    int64_t cols = product_least(g->n - j, PRODUCT_N);
    const real *a = packed_a;
    for (int64_t p = 0; p < g->k; p += PRODUCT_K) {
      int64_t k = product_least(g->k - p, PRODUCT_K);
      if (moth_stopped())
        return;
      if (!packed_b) {
        product_pack_b(g, j, cols, p, k, b_piece);
        b = b_piece;
      }
      for (int64_t i = 0; i < g->m; i += PRODUCT_ROWS) {
        int64_t rows = product_least(g->m - i, PRODUCT_ROWS);
        if (!packed_a) {
          product_pack_a(g, i, rows, p, k, a_piece);
          a = a_piece;
        }
        product_piece(a, b, k, rows, cols, (real *)g->c + i * g->c_row + j, g->c_row,
                      (real)g->alpha, p ? 1 : (real)g->beta);
        if (packed_a)
          a += product_up(rows, PRODUCT_M) * k;
      }
      if (packed_b)
        b += product_up(cols, PRODUCT_LANES) * k;
    }
  }
}
