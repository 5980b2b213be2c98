/* softmax, log_softmax and their derivatives along rows (n elements side by side) and along columns
 * (`cols` of them at a time, n elements each, `stride` elements apart). Three passes over a row or a
 * block of columns that stays in cache: the maximum, the sum of exp(x - maximum), the result. Sums use
 * blocks of BLOCK elements, joined in double. Maxima ignore NaN: where there is one, the sum is NaN, and
 * so are the results. */
#ifndef MOTH_CPU_TYPED_SOFTMAX_H
#define MOTH_CPU_TYPED_SOFTMAX_H
#include "kernels/common/softmax.h"
#include "kernels/cpu/typed/fold.h"
#include "kernels/cpu/typed/join.h"

enum { SOFT_COLS = 512, SHORT = 16 };

/* Rows of at most SHORT elements are padded to one vector, with elements whose exp is 0. */
MOTH_FN void row_short(const stored *a, int64_t n, real *x) {
  for (int k = 0; k < SHORT; k++)
    x[k] = m_lowest();
  for (int64_t k = 0; k < n; k++)
    x[k] = LOAD(a[k]);
}

static real row_max(const stored *a, int64_t n) {
  real lane[LANES];
  if (n <= SHORT) {
    row_short(a, n, lane);
    return lanes_max(lane, SHORT);
  }
  int64_t i = 0;
  for (int k = 0; k < LANES; k++)
    lane[k] = m_lowest();
  for (; i + LANES <= n; i += LANES)
    for (int k = 0; k < LANES; k++) {
      real x = LOAD(a[i + k]);
      lane[k] = x > lane[k] ? x : lane[k];
    }
  for (int64_t k = 0; i + k < n; k++) {
    real x = LOAD(a[i + k]);
    lane[k] = x > lane[k] ? x : lane[k];
  }
  return lanes_max(lane, LANES);
}

/* The sum of exp(a - max), n <= BLOCK; exp goes to `e` if `keep`. The lanes stay in registers. */
MOTH_FN real exps_block(const stored *a, stored *e, bool keep, int64_t n, real max) {
  real lane[LANES];
  int64_t i = 0;
  for (int k = 0; k < LANES; k++)
    lane[k] = 0;
  for (; i + LANES <= n; i += LANES)
    MOTH_VECTOR for (int k = 0; k < LANES; k++) {
      real y = m_exp_down(LOAD(a[i + k]) - max);
      if (keep)
        e[i + k] = STORE(y);
      lane[k] += y;
    }
  MOTH_VECTOR for (int64_t k = 0; k < n - i; k++) {
    real y = m_exp_down(LOAD(a[i + k]) - max);
    if (keep)
      e[i + k] = STORE(y);
    lane[k] += y;
  }
  return lanes_sum(lane, LANES);
}

/* The sum of exp(a - max); exp is also written to `o`, unless o is NULL or elements are stored in 16 bits. */
static double row_sumexp(const stored *a, stored *o, int64_t n, real max) {
#if MOTH_STORED != 0
  o = NULL;
#endif
  if (n <= SHORT) {
    real lane[SHORT];
    row_short(a, n, lane);
    for (int k = 0; k < SHORT; k++)
      lane[k] = m_exp_down(lane[k] - max);
    for (int64_t k = 0; o && k < n; k++)
      o[k] = STORE(lane[k]);
    return (double)lanes_sum(lane, SHORT);
  }
  double sum = 0;
  for (int64_t i = 0; i < n; i += BLOCK) {
    int64_t m = n - i < BLOCK ? n - i : BLOCK;
    sum += (double)(o ? exps_block(a + i, o + i, true, m, max)
                      : exps_block(a + i, NULL, false, m, max));
  }
  return sum;
}

static void softmax_rows(int log, void *out, const void *in, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; r++) {
    const stored *a = (const stored *)in + r * n;
    stored *o = (stored *)out + r * n;
    real max = row_max(a, n);
    double sum = row_sumexp(a, log ? NULL : o, n, max);
    if (log) {
      real lse = (real)__builtin_log(sum);
      MOTH_VECTOR for (int64_t i = 0; i < n; i++) o[i] = STORE(LOAD(a[i]) - max - lse);
      continue;
    }
    real scale = (real)(1 / sum);
#if MOTH_STORED == 0
    MOTH_VECTOR for (int64_t i = 0; i < n; i++) o[i] *= scale;
#else
    MOTH_VECTOR for (int64_t i = 0; i < n; i++) o[i] = STORE(m_exp_down(LOAD(a[i]) - max) * scale);
#endif
  }
}

static void softmax_cols(int log, void *out, const void *in, int64_t n, int64_t stride,
                         int64_t cols) {
  for (int64_t from = 0; from < cols; from += SOFT_COLS) {
    int64_t m = cols - from < SOFT_COLS ? cols - from : SOFT_COLS;
    const stored *a = (const stored *)in + from;
    stored *o = (stored *)out + from;
    real max[SOFT_COLS], sum[SOFT_COLS], scale[SOFT_COLS];
    double total[SOFT_COLS];
    for (int64_t c = 0; c < m; c++) {
      max[c] = m_lowest();
      sum[c] = 0;
      total[c] = 0;
    }
    for (int64_t i = 0; i < n; i++)
      MOTH_VECTOR for (int64_t c = 0; c < m; c++) {
        real x = LOAD(a[i * stride + c]);
        max[c] = x > max[c] ? x : max[c];
      }
    for (int64_t i = 0; i < n; i++) {
      MOTH_VECTOR for (int64_t c = 0; c < m; c++) sum[c] +=
          m_exp_down(LOAD(a[i * stride + c]) - max[c]);
      if (i % FLUSH == FLUSH - 1 || i == n - 1)
        for (int64_t c = 0; c < m; c++) {
          total[c] += (double)sum[c];
          sum[c] = 0;
        }
    }
    for (int64_t c = 0; c < m; c++)
      scale[c] = (real)(log ? __builtin_log(total[c]) : 1 / total[c]);
    for (int64_t i = 0; i < n; i++) {
      if (log)
        MOTH_VECTOR for (int64_t c = 0; c < m; c++) o[i * stride + c] =
            STORE(LOAD(a[i * stride + c]) - max[c] - scale[c]);
      else
        MOTH_VECTOR for (int64_t c = 0; c < m; c++) o[i * stride + c] =
            STORE(m_exp_down(LOAD(a[i * stride + c]) - max[c]) * scale[c]);
    }
  }
}

/* softmax: (g - sum(g y)) y; log_softmax: g - exp(y) sum(g). */
static void softmax_backward_rows(int log, void *out, const void *grad, const void *y, int64_t rows,
                                  int64_t n) {
  for (int64_t r = 0; r < rows; r++) {
    const stored *g = (const stored *)grad + r * n, *p = (const stored *)y + r * n;
    stored *o = (stored *)out + r * n;
    double total = 0;
    real tmp[TMP];
    for (int64_t i = 0; i < n; i += TMP) {
      int64_t m = n - i < TMP ? n - i : TMP;
      if (log)
        for (int64_t k = 0; k < m; k++)
          tmp[k] = LOAD(g[i + k]);
      else
        for (int64_t k = 0; k < m; k++)
          tmp[k] = LOAD(g[i + k]) * LOAD(p[i + k]);
      total += (double)lane_sum(tmp, m);
    }
    real sum = (real)total;
    if (log)
      MOTH_VECTOR for (int64_t i = 0; i < n; i++) o[i] =
          STORE(LOAD(g[i]) - m_exp(LOAD(p[i])) * sum);
    else
      MOTH_VECTOR for (int64_t i = 0; i < n; i++) o[i] = STORE((LOAD(g[i]) - sum) * LOAD(p[i]));
  }
}

static void softmax_backward_cols(int log, void *out, const void *grad, const void *y, int64_t n,
                                  int64_t stride, int64_t cols) {
  for (int64_t from = 0; from < cols; from += SOFT_COLS) {
    int64_t m = cols - from < SOFT_COLS ? cols - from : SOFT_COLS;
    const stored *g = (const stored *)grad + from, *p = (const stored *)y + from;
    stored *o = (stored *)out + from;
    real sum[SOFT_COLS];
    double total[SOFT_COLS];
    for (int64_t c = 0; c < m; c++) {
      sum[c] = 0;
      total[c] = 0;
    }
    for (int64_t i = 0; i < n; i++) {
      if (log)
        MOTH_VECTOR for (int64_t c = 0; c < m; c++) sum[c] += LOAD(g[i * stride + c]);
      else
        MOTH_VECTOR for (int64_t c = 0; c < m; c++) sum[c] +=
            LOAD(g[i * stride + c]) * LOAD(p[i * stride + c]);
      if (i % FLUSH == FLUSH - 1 || i == n - 1)
        for (int64_t c = 0; c < m; c++) {
          total[c] += (double)sum[c];
          sum[c] = 0;
        }
    }
    for (int64_t c = 0; c < m; c++)
      sum[c] = (real)total[c];
    for (int64_t i = 0; i < n; i++) {
      if (log)
        MOTH_VECTOR for (int64_t c = 0; c < m; c++) o[i * stride + c] =
            STORE(LOAD(g[i * stride + c]) - m_exp(LOAD(p[i * stride + c])) * sum[c]);
      else
        MOTH_VECTOR for (int64_t c = 0; c < m; c++) o[i * stride + c] =
            STORE((LOAD(g[i * stride + c]) - sum[c]) * LOAD(p[i * stride + c]));
    }
  }
}

MOTH_TYPED_FLOAT void softmax(const struct MothSoftmax *s) {
  if (s->inner == 1)
    softmax_rows(s->log, s->out, s->in, s->outer, s->n);
  else
    softmax_cols(s->log, s->out, s->in, s->n, s->inner, s->cols);
}
MOTH_TYPED_FLOAT void softmax_backward(const struct MothSoftmax *s) {
  if (s->inner == 1)
    softmax_backward_rows(s->log, s->out, s->in, s->back, s->outer, s->n);
  else
    softmax_backward_cols(s->log, s->out, s->in, s->back, s->n, s->inner, s->cols);
}
#endif
