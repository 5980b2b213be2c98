/* Reductions of rows (runs of n elements each) and of columns (a row at a time into an accumulator for each column). The
 * loops, one for each join and map, are printed by src/codegen/reduce.lua into reduce_loops.h. */
#ifndef MOTH_CPU_TYPED_REDUCE_H
#define MOTH_CPU_TYPED_REDUCE_H
#include "kernels/cpu/typed/arg.h"
#include "kernels/cpu/typed/scan.h"
#include "reductions.h"

enum { COLS = 1024 };
typedef void (*ReduceBlock)(const stored *a, int64_t n, real shift, MothParam *acc);
typedef void (*ReduceColumns)(const char *in, int64_t row_stride, int64_t rows, int64_t n,
                              const MothParam *shifts, MothParam *acc);
#if MOTH_IS_FLOAT
#define FLOAT_ONLY(function) function
#else
#define FLOAT_ONLY(function) NULL
#endif
#include "reduce_loops.h"

/* acc[r] = acc[r] joined with the n elements of row r. shift: one per row, or NULL. */
MOTH_TYPED void reduce_rows(int op, const char *in, int64_t row_stride, int64_t rows, int64_t step,
                            int64_t n, const MothParam *shift, MothParam *acc) {
  for (int64_t r = 0; r < rows; r++, in += row_stride) {
    real s = shift ? PARAM(shift[r]) : 0;
    if (step == sizeof(stored)) {
      for (int64_t i = 0; i < n; i += BLOCK)
        blocks[op]((const stored *)in + i, n - i < BLOCK ? n - i : BLOCK, s, &acc[r]);
      continue;
    }
    stored tmp[TMP];
    for (int64_t i = 0; i < n; i += TMP) {
      int64_t m = n - i < TMP ? n - i : TMP;
      for (int64_t k = 0; k < m; k++)
        tmp[k] = *(const stored *)(in + (i + k) * step);
      blocks[op](tmp, m, s, &acc[r]);
    }
  }
}

/* acc[c] = acc[c] joined with the `rows` elements of column c. */
MOTH_TYPED void reduce_cols(int op, const char *in, int64_t row_stride, int64_t rows, int64_t step,
                            int64_t cols, const MothParam *shift, MothParam *acc) {
  for (int64_t c = 0; c < cols; c += COLS) {
    int64_t n = cols - c < COLS ? cols - c : COLS;
    const MothParam *s = shift ? shift + c : NULL;
    if (step == sizeof(stored)) {
      columns[op](in + c * step, row_stride, rows, n, s, acc + c);
      continue;
    }
    stored tmp[4 * COLS];
    for (int64_t r = 0; r < rows; r += 4) {
      int64_t m = rows - r < 4 ? rows - r : 4;
      for (int64_t k = 0; k < m; k++)
        for (int64_t i = 0; i < n; i++)
          tmp[k * n + i] = *(const stored *)(in + (r + k) * row_stride + (c + i) * step);
      columns[op]((const char *)tmp, n * (int64_t)sizeof(stored), m, n, s, acc + c);
    }
  }
}

/* Partial results to elements of this dtype. */
MOTH_TYPED void reduce_store(char *out, int64_t step, const MothParam *acc, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
#if MOTH_IS_FLOAT
    *(stored *)(out + i * step) = STORE((real)acc[i].d);
#elif MOTH_REAL_KIND == 5
    *(stored *)(out + i * step) = acc[i].i != 0;
#else
    *(stored *)(out + i * step) = STORE((real)acc[i].i);
#endif
  }
}
#endif
