/* Reductions of rows (runs of n elements each) and of columns (a row at a time into an accumulator for each column). The
 * loops, one for each join and map, are printed by src/codegen/reduce.lua into reduce_loops.h. */
#ifndef MOTH_CPU_TYPED_REDUCE_H
#define MOTH_CPU_TYPED_REDUCE_H
#include "kernels/common/reduce.h"
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

/* acc[r] = acc[r] joined with the elements of row r. */
MOTH_TYPED void reduce_rows(const struct MothReduce *q) {
  const char *in = q->in;
  const int64_t n = q->n, stride = q->stride;
  const ReduceBlock block = blocks[q->op];
  for (int64_t r = 0; r < q->rows; r++, in += q->row_stride) {
    real s = q->shift ? PARAM(q->shift[r]) : 0;
    if (stride == sizeof(stored)) {
      for (int64_t i = 0; i < n; i += BLOCK)
        block((const stored *)in + i, n - i < BLOCK ? n - i : BLOCK, s, &q->acc[r]);
      continue;
    }
    stored tmp[TMP];
    for (int64_t i = 0; i < n; i += TMP) {
      int64_t m = n - i < TMP ? n - i : TMP;
      for (int64_t k = 0; k < m; k++)
        tmp[k] = *(const stored *)(in + (i + k) * stride);
      block(tmp, m, s, &q->acc[r]);
    }
  }
}

/* acc[c] = acc[c] joined with the elements of column c. */
MOTH_TYPED void reduce_cols(const struct MothReduce *q) {
  const char *in = q->in;
  const int64_t rows = q->rows, row_stride = q->row_stride, stride = q->stride;
  const ReduceColumns down = columns[q->op];
  for (int64_t c = 0; c < q->n; c += COLS) {
    int64_t n = q->n - c < COLS ? q->n - c : COLS;
    const MothParam *s = q->shift ? q->shift + c : NULL;
    if (stride == sizeof(stored)) {
      down(in + c * stride, row_stride, rows, n, s, q->acc + c);
      continue;
    }
    stored tmp[4 * COLS];
    for (int64_t r = 0; r < rows; r += 4) {
      int64_t m = rows - r < 4 ? rows - r : 4;
      for (int64_t k = 0; k < m; k++)
        for (int64_t i = 0; i < n; i++)
          tmp[k * n + i] = *(const stored *)(in + (r + k) * row_stride + (c + i) * stride);
      down((const char *)tmp, n * (int64_t)sizeof(stored), m, n, s, q->acc + c);
    }
  }
}

/* The n partial results acc to elements of this dtype, `stride` apart from out.values on. */
MOTH_TYPED void reduce_store(const struct MothReduce *q) {
  char *out = q->out.values;
  const MothParam *acc = q->acc;
  const int64_t stride = q->stride;
  for (int64_t i = 0; i < q->n; i++) {
#if MOTH_IS_FLOAT
    *(stored *)(out + i * stride) = STORE((real)acc[i].d);
#elif MOTH_REAL_KIND == 5
    *(stored *)(out + i * stride) = acc[i].i != 0;
#else
    *(stored *)(out + i * stride) = STORE((real)acc[i].i);
#endif
  }
}
#endif
