/* Products of few rows: C (m, n) = alpha A (m, k) @ B (k, n) + beta C for m of some sixteen, where each column of B, a row
 * of a weight, lies in one piece. BLAS packs B, which takes longer than the product; here it is read once, at the speed
 * of the memory, some of its columns side by side. An element's sum does not depend on m, n or the threads. */
#include <stdbool.h>

#include "kernels/common/gemm.h"
#include "kernels/cpu/typed/prelude.h"

#if defined(__AVX512F__)
enum { ROW_BYTES = 64, COLUMNS = 4, ROWS = 4 }; /* 16 sums of 32 registers */
#elif defined(__AVX2__)
enum { ROW_BYTES = 32, COLUMNS = 2, ROWS = 4 };
#else
enum { ROW_BYTES = 16, COLUMNS = 2, ROWS = 4 };
#endif
enum { ROW_LANES = ROW_BYTES / (int)sizeof(real), ROW_AHEAD = 1024 };
typedef real rows_vector __attribute__((vector_size(ROW_BYTES), aligned(sizeof(real)), may_alias));

/* c[r][j] for `rows` rows of A from a on and `cols` columns of B from b on; first: B is not in cache yet. */
MOTH_FN void rows_tile(const MothGemm *g, const real *a, const real *b, real *c, int rows, int cols,
                       bool first) {
  rows_vector sum[ROWS][COLUMNS] = {{{0}}};
  int64_t k = 0;
  for (; k + ROW_LANES <= g->k; k += ROW_LANES) {
    rows_vector y[COLUMNS];
    for (int j = 0; j < cols; j++) {
      const real *at = b + j * g->b_col + k;
      y[j] = *(const rows_vector *)at;
      if (first)
        __builtin_prefetch((const char *)at + ROW_AHEAD);
    }
    for (int r = 0; r < rows; r++) {
      rows_vector x = *(const rows_vector *)(a + r * g->a_row + k);
      for (int j = 0; j < cols; j++)
        sum[r][j] += x * y[j];
    }
  }
  for (int r = 0; r < rows; r++)
    for (int j = 0; j < cols; j++) {
      real tail = 0;
      for (int64_t i = k; i < g->k; i++)
        tail += a[r * g->a_row + i] * b[j * g->b_col + i];
      for (int half = ROW_LANES / 2; half > 0; half /= 2) /* in pairs: a tree */
        for (int i = 0; i < half; i++)
          sum[r][j][i] += sum[r][j][i + half];
      real total = sum[r][j][0] + tail;
      real *out = c + r * g->c_row + j;
      *out = g->beta == 0 ? (real)g->alpha * total : (real)g->alpha * total + (real)g->beta * *out;
    }
}

MOTH_TYPED_REAL void gemm_rows(const struct MothGemm *g) {
  const real *a = g->a;
  for (int64_t j = 0; j < g->n; j += COLUMNS) {
    int cols = g->n - j < COLUMNS ? (int)(g->n - j) : COLUMNS;
    const real *b = (const real *)g->b + j * g->b_col;
    real *c = (real *)g->c + j;
    for (int64_t r = 0; r < g->m; r += ROWS) {
      int rows = g->m - r < ROWS ? (int)(g->m - r) : ROWS;
      const real *x = a + r * g->a_row;
      real *out = c + r * g->c_row;
      if (cols < COLUMNS) {
        for (int i = 0; i < rows; i++)
          for (int q = 0; q < cols; q++)
            rows_tile(g, x + i * g->a_row, b + q * g->b_col, out + i * g->c_row + q, 1, 1, false);
      } else if (rows == 1) {
        rows_tile(g, x, b, out, 1, COLUMNS, r == 0);
      } else if (rows == 2) {
        rows_tile(g, x, b, out, 2, COLUMNS, r == 0);
      } else if (rows == 3) {
        rows_tile(g, x, b, out, 3, COLUMNS, r == 0);
      } else {
        rows_tile(g, x, b, out, 4, COLUMNS, r == 0);
      }
    }
  }
}
