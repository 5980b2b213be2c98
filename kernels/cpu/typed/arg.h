/* Positions of the largest and smallest elements (the first of equals; the first NaN wins) along rows, which follow one
 * another, and down columns, which are neighbours. */
#ifndef MOTH_CPU_TYPED_ARG_H
#define MOTH_CPU_TYPED_ARG_H
#include "kernels/common/reduce.h"
#include "kernels/cpu/typed/join.h"

/* The largest (smallest) value of a block, then the block that had it is searched. */
MOTH_TYPED void arg_rows(const struct MothReduce *q) {
  const int64_t n = q->n;
  const bool min = q->op == MOTH_REDUCE_ARGMIN;
  for (int64_t r = 0; r < q->rows; r++) {
    const stored *a = (const stored *)(const void *)q->in + r * n;
    real best = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < n; i += BLOCK) {
      int64_t m = n - i < BLOCK ? n - i : BLOCK;
      MothParam p;
      WIDE(p) = min ? m_highest() : m_lowest();
      (min ? block_min : block_max)(a + i, m, 0, &p);
      real x = PARAM(p);
      if (i == 0 || (min ? M_BEATS_MIN(x, best) : M_BEATS_MAX(x, best))) {
        best = x;
        at = i;
      }
    }
    int64_t end = n - at < BLOCK ? n : at + BLOCK;
    for (; at + LANES <= end; at += LANES) {
      int found = 0;
      for (int k = 0; k < LANES; k++) {
        real x = LOAD(a[at + k]);
        found |= (x == best) | M_IS_NAN(x);
      }
      if (found)
        break;
    }
    for (; at < end - 1; at++) {
      real x = LOAD(a[at]);
      if ((x == best) | M_IS_NAN(x))
        break;
    }
    q->out.pos[r] = at;
    if (q->out.values)
      ((stored *)q->out.values)[r] = a[at];
  }
}

enum { ARG_COLS = 256, ARG_ROWS = 1 << 30 };

#define ARG_COLS_LOOP(BEATS)                                                                       \
  for (int64_t i = i0; i < i1; i++) {                                                              \
    arg_pos here = (arg_pos)(i - i0);                                                              \
    MOTH_VECTOR for (int64_t c = 0; c < m; c++) {                                                  \
      real x = LOAD(a[i * stride + c]);                                                            \
      int better = BEATS(x, best[c]);                                                              \
      best[c] = better ? x : best[c];                                                              \
      at[c] = better ? here : at[c];                                                               \
    }                                                                                              \
  }

MOTH_TYPED void arg_cols(const struct MothReduce *q) {
  const int64_t n = q->rows, cols = q->n, stride = q->row_stride / (int64_t)sizeof(stored);
  const bool min = q->op == MOTH_REDUCE_ARGMIN;
  int64_t *pos = q->out.pos;
  stored *value = q->out.values;
  for (int64_t from = 0; from < cols; from += ARG_COLS) {
    int64_t m = cols - from < ARG_COLS ? cols - from : ARG_COLS;
    const stored *a = (const stored *)(const void *)q->in + from;
    real best[ARG_COLS];
    arg_pos at[ARG_COLS];
    for (int64_t c = 0; c < m; c++) {
      best[c] = LOAD(a[c]);
      pos[from + c] = 0;
    }
    for (int64_t i0 = 0; i0 < n; i0 += ARG_ROWS) {
      int64_t i1 = n - i0 < ARG_ROWS ? n : i0 + ARG_ROWS;
      for (int64_t c = 0; c < m; c++)
        at[c] = -1;
      if (min) {
        ARG_COLS_LOOP(M_BEATS_MIN)
      } else {
        ARG_COLS_LOOP(M_BEATS_MAX)
      }
      for (int64_t c = 0; c < m; c++)
        if (at[c] >= 0)
          pos[from + c] = i0 + at[c];
    }
    for (int64_t c = 0; value && c < m; c++)
      value[from + c] = a[pos[from + c] * stride + c];
  }
}

#endif
