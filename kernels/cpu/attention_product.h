/* Products of the small matrices of an attention tile: too small for a BLAS call, and with a causal mask the
 * excluded part is skipped. Included by kernels/cpu/attention_rows.h.
 *
 * A micro-kernel keeps PART_M rows x PART_V vectors of the result in registers and sums in the order of k,
 * one multiplication and addition at a time: an element's bits do not depend on its position. */
#if defined __AVX512F__
enum { PART_BYTES = 64, PART_M = 8 };
#define PART_M_TIMES(X) X(8) X(4) X(2) X(1)
#elif defined __AVX2__
enum { PART_BYTES = 32, PART_M = 6 };
#define PART_M_TIMES(X) X(6) X(4) X(2) X(1)
#else
enum { PART_BYTES = 16, PART_M = 4 };
#define PART_M_TIMES(X) X(4) X(2) X(1)
#endif
enum { PART_LANES = PART_BYTES / sizeof(real), PART_V = 2, PART_WIDTH = PART_V * PART_LANES };
typedef real part_vec __attribute__((vector_size(PART_BYTES), aligned(sizeof(real)), may_alias));
#define PART_UNROLL _Pragma("GCC unroll 16")

/* The part of a product on the visible side of the diagonal (query i attends to the first visible + i keys). */
typedef enum Cut {
  CUT_COLS,  /* the result's columns are keys */
  CUT_DEPTH, /* k runs over keys */
  CUT_START  /* rows are keys, k runs over queries: earlier queries do not attend to them */
} Cut;

/* c (m x n) = alpha a b, or += with `add`. a(i, k) is at i * a_row + k * a_col; columns j.. of row k of b at
 * j / PART_WIDTH * b_part + k * b_row, readable up to a whole vector. */
typedef struct Product {
  int64_t m, n, k;
  const real *a, *b;
  int64_t a_row, a_col, b_row, b_part;
  real *c;
  int64_t c_row;
  real alpha;
  bool add, padded; /* padded: whole vectors may be written to the rows of c */
  Cut cut;
  int64_t visible;
} Product;

#define PART_TILE(M, V)                                                                            \
  static void part_##M##_##V(const Product *p, const real *restrict a, const real *restrict b,     \
                             int64_t k, real *restrict c, int64_t c_row, bool add) {               \
    const int64_t a_row = p->a_row, a_col = p->a_col, b_row = p->b_row;                            \
    part_vec acc[M][V];                                                                            \
    PART_UNROLL for (int m = 0; m < M; m++) PART_UNROLL for (int v = 0; v < V; v++) acc[m][v] =    \
        (part_vec){0};                                                                             \
    for (; k > 0; k--, a += a_col, b += b_row) {                                                   \
      part_vec x[V];                                                                               \
      PART_UNROLL for (int v = 0; v < V; v++) x[v] = *(const part_vec *)(b + v * PART_LANES);      \
      PART_UNROLL for (int m = 0; m < M; m++) PART_UNROLL for (int v = 0; v < V; v++) acc[m][v] += \
          a[m * a_row] * x[v];                                                                     \
    }                                                                                              \
    PART_UNROLL for (int m = 0; m < M; m++) PART_UNROLL for (int v = 0; v < V; v++) {              \
      part_vec *to = (part_vec *)(c + m * c_row + v * PART_LANES);                                 \
      *to = add ? *to + acc[m][v] * p->alpha : acc[m][v] * p->alpha;                               \
    }                                                                                              \
  }
#define PART_TILES(M) PART_TILE(M, 1) PART_TILE(M, 2)
PART_M_TIMES(PART_TILES)

/* Rows [i, i + m) of the columns from j on. */
#define PART_CASE(M)                                                                               \
  case M:                                                                                          \
    if (v == 1)                                                                                    \
      part_##M##_1(p, a, b, k, c, c_row, add);                                                     \
    else                                                                                           \
      part_##M##_2(p, a, b, k, c, c_row, add);                                                     \
    break;
static inline void part(const Product *p, int m, int v, const real *a, const real *b, int64_t k,
                        real *c, int64_t c_row, bool add) {
  switch (m) { PART_M_TIMES(PART_CASE) }
}

static void product(const Product *p) {
  for (int64_t j = 0; j < p->n; j += PART_WIDTH) {
    const real *b = p->b + j / PART_WIDTH * p->b_part;
    int64_t n = p->n - j < PART_WIDTH ? p->n - j : PART_WIDTH;
    for (int64_t i = 0, m; i < p->m; i += m) {
      m = p->m - i >= PART_M ? PART_M : p->m - i >= 4 ? 4 : p->m - i >= 2 ? 2 : 1;
      int64_t from = 0, to = p->k, seen = p->visible + i + m - 1; /* by the last row */
      if (p->cut == CUT_COLS && j >= seen)
        continue;
      if (p->cut == CUT_DEPTH && to > seen)
        to = seen;
      if (p->cut == CUT_START && i - p->visible + 1 > 0)
        from = i - p->visible + 1;
      int v = n > PART_LANES && !(p->cut == CUT_COLS && seen - j <= PART_LANES) ? 2 : 1;
      const real *a = p->a + i * p->a_row + from * p->a_col;
      real *c = p->c + i * p->c_row + j;
      if (p->padded || n == v * PART_LANES) {
        part(p, (int)m, v, a, b + from * p->b_row, to - from, c, p->c_row, p->add);
        continue;
      }
      real tile[PART_M * PART_WIDTH];
      part(p, (int)m, v, a, b + from * p->b_row, to - from, tile, PART_WIDTH, false);
      for (int64_t r = 0; r < m; r++)
        for (int64_t l = 0; l < n; l++)
          c[r * p->c_row + l] =
              p->add ? c[r * p->c_row + l] + tile[r * PART_WIDTH + l] : tile[r * PART_WIDTH + l];
    }
  }
}

/* Transposes n rows of `depth` elements into out[part][depth][PART_WIDTH]; the last part is padded with 0. */
static void pack(real *out, const real *in, int64_t row, int64_t n, int64_t depth) {
  typedef real four
      __attribute__((vector_size(4 * sizeof(real)), aligned(sizeof(real)), may_alias));
  for (int64_t j = 0; j < n; j += PART_WIDTH, out += depth * PART_WIDTH)
    for (int64_t l = 0; l < PART_WIDTH; l += 4) {
      const real *a = in + (j + l) * row;
      real *o = out + l;
      int64_t d = 0, have = n - j - l;
      for (; have >= 4 && d + 4 <= depth; d += 4) {
        four x[4], y[4];
        for (int i = 0; i < 4; i++)
          x[i] = *(const four *)(a + i * row + d);
        y[0] = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
        y[1] = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
        y[2] = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
        y[3] = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
        *(four *)(o + d * PART_WIDTH) = __builtin_shufflevector(y[0], y[2], 0, 1, 4, 5);
        *(four *)(o + (d + 1) * PART_WIDTH) = __builtin_shufflevector(y[0], y[2], 2, 3, 6, 7);
        *(four *)(o + (d + 2) * PART_WIDTH) = __builtin_shufflevector(y[1], y[3], 0, 1, 4, 5);
        *(four *)(o + (d + 3) * PART_WIDTH) = __builtin_shufflevector(y[1], y[3], 2, 3, 6, 7);
      }
      for (; d < depth; d++)
        for (int i = 0; i < 4; i++)
          o[d * PART_WIDTH + i] = i < have ? a[i * row + d] : (real)0;
    }
}

/* Rows of n elements as the right side of a product: `a` itself if n is whole vectors, else a copy in
 * `workspace` with rows padded by 0; *row becomes its stride. */
static const real *padded_rows(const real *a, int64_t *row, int64_t rows, int64_t n,
                               real *workspace) {
  int64_t wide = (n + PART_LANES - 1) / PART_LANES * PART_LANES;
  if (wide == n)
    return a;
  for (int64_t i = 0; i < rows; i++) {
    memcpy(workspace + i * wide, a + i * *row, (size_t)n * sizeof(real));
    for (int64_t k = n; k < wide; k++)
      workspace[i * wide + k] = 0;
  }
  *row = wide;
  return workspace;
}
