/* Products of integer matrices, which wrap around as the dtype does; of bool: any of both. C = alpha A B + beta C.
 *
 * A piece of B, INTEGERS_K x INTEGERS_W, is copied so that it is read in one run, and stays in the first-level cache while
 * four rows of A at a time are multiplied by it. */
#include "core/parallel.h"
#include "kernels/common/gemm.h"
#include "kernels/cpu/typed/prelude.h"

#define MOTH_TYPED_INT static /* of integers and bool */

enum {
  INTEGERS_V = MOTH_VECTOR_BYTES / sizeof(real),
  INTEGERS_W = 2 * INTEGERS_V,
  INTEGERS_M = 4,
  INTEGERS_K = 128
};
typedef real integers_vec __attribute__((vector_size(MOTH_VECTOR_BYTES), may_alias));

#if MOTH_REAL_KIND == 5
#define INTEGERS_ADD(c, a, b) ((c) | ((a) & (b)))
#else
#define INTEGERS_ADD(c, a, b) ((c) + (a) * (b))
#endif

/* sums = those of `rows` rows of A by the piece of B. */
MOTH_FN void integers_block(const real *a, int64_t a_row, int64_t a_col, const real *piece,
                            int64_t k, int rows, real sums[INTEGERS_M][INTEGERS_W]) {
  integers_vec c[INTEGERS_M][2] = {0};
  for (int64_t p = 0; p < k; p++, piece += INTEGERS_W) {
    integers_vec x = ((const integers_vec *)piece)[0], y = ((const integers_vec *)piece)[1];
    _Pragma("GCC unroll 4") for (int r = 0; r < rows; r++) {
      real v = a[r * a_row + p * a_col];
      c[r][0] = INTEGERS_ADD(c[r][0], v, x);
      c[r][1] = INTEGERS_ADD(c[r][1], v, y);
    }
  }
  memcpy(sums, c, (size_t)rows * sizeof c[0]);
}

MOTH_TYPED_INT void gemm_integers(const struct MothGemm *given) {
  MothGemm g = *given;
  int64_t c_col = 1;
  const real alpha = (real)(int64_t)g.alpha, beta = (real)(int64_t)g.beta;
  real piece[INTEGERS_K * INTEGERS_W] __attribute__((aligned(64)));
  real sums[INTEGERS_M][INTEGERS_W] __attribute__((aligned(64)));
  if (g.n < INTEGERS_V && g.m > g.n) { /* the transposed product fills vectors */
    g.m = given->n, g.n = given->m;
    g.a = given->b, g.a_row = given->b_col, g.a_col = given->b_row;
    g.b = given->a, g.b_row = given->a_col, g.b_col = given->a_row;
    g.c_row = 1, c_col = given->c_row;
  }
  for (int64_t j = 0; j < g.n && !moth_stopped(); j += INTEGERS_W) {
    int64_t cols = g.n - j < INTEGERS_W ? g.n - j : INTEGERS_W;
    for (int64_t p = 0; p == 0 || p < g.k; p += INTEGERS_K) {
      int64_t k = g.k - p < INTEGERS_K ? g.k - p : INTEGERS_K;
      const real *b = (const real *)g.b + p * g.b_row + j * g.b_col;
      memset(piece, 0, (size_t)(cols < INTEGERS_W ? k * INTEGERS_W : 0) * sizeof(real));
      if (g.b_col == 1)
        for (int64_t q = 0; q < k; q++)
          memcpy(piece + q * INTEGERS_W, b + q * g.b_row, (size_t)cols * sizeof(real));
      else
        for (int64_t l = 0; l < cols; l++)
          for (int64_t q = 0; q < k; q++)
            piece[q * INTEGERS_W + l] = b[q * g.b_row + l * g.b_col];
      for (int64_t i = 0; i < g.m; i += INTEGERS_M) {
        int64_t rows = g.m - i < INTEGERS_M ? g.m - i : INTEGERS_M;
        const real *a = (const real *)g.a + i * g.a_row + p * g.a_col;
        if (rows == INTEGERS_M)
          integers_block(a, g.a_row, g.a_col, piece, k, INTEGERS_M, sums);
        else
          for (int64_t r = 0; r < rows; r++)
            integers_block(a + r * g.a_row, g.a_row, g.a_col, piece, k, 1, sums + r);
        for (int64_t r = 0; r < rows; r++) {
          real *c = (real *)g.c + (i + r) * g.c_row + j * c_col;
          for (int64_t l = 0; l < cols; l++) {
            real *at = c + l * c_col, old = p || beta ? *at : 0;
#if MOTH_REAL_KIND == 5
            *at = (real)((sums[r][l] & (alpha != 0)) | (old != 0));
#else
            *at = (real)((p ? old : (real)(beta * old)) + (real)(alpha * sums[r][l]));
#endif
          }
        }
      }
    }
  }
}
