/* The functions of MothAttentionRows, for one type and instruction set: included by a generated file
 * after kernels/cpu/typed/prelude.h. Sums of a row go over lanes of a vector register or two, added up
 * in one order: the same bits wherever a tile is computed. */
#include "kernels/cpu/attention.h"

enum { LANES = 32 };

static inline int64_t visible(const MothAttentionTile *t, int64_t row) {
  int64_t n = t->visible + row;
  return n < 0 ? 0 : n < t->cols ? n : t->cols;
}

/* What the mask says to the n scores of a row. */
static inline void apply_mask(const MothAttentionTile *t, real *s, int64_t row, int64_t n) {
  const real none = -m_inf();
  if (t->mask_bool) {
    const uint8_t *m = (const uint8_t *)t->mask + row * t->mask_row;
    if (t->mask_wide)
      MOTH_VECTOR for (int64_t j = 0; j < n; j++) s[j] = m[j] ? s[j] : none;
    else if (!*m)
      for (int64_t j = 0; j < n; j++)
        s[j] = none;
  } else {
    const real *m = (const real *)t->mask + row * t->mask_row;
    if (t->mask_wide)
      MOTH_VECTOR for (int64_t j = 0; j < n; j++) s[j] += m[j];
    else
      for (int64_t j = 0; j < n; j++)
        s[j] += *m;
  }
}

static inline real row_max(const real *s, int64_t n) {
  real lane[LANES], max = -m_inf();
  int64_t j = 0;
  for (int k = 0; k < LANES; k++)
    lane[k] = max;
  for (; j + LANES <= n; j += LANES)
    for (int k = 0; k < LANES; k++)
      lane[k] = s[j + k] > lane[k] ? s[j + k] : lane[k];
  for (int64_t k = 0; j + k < n; k++)
    lane[k] = s[j + k] > lane[k] ? s[j + k] : lane[k];
  for (int k = 0; k < LANES; k++)
    max = lane[k] > max ? lane[k] : max;
  return max;
}

static inline double lanes_sum(real *lane) {
  for (int half = LANES / 2; half; half /= 2)
    for (int k = 0; k < half; k++)
      lane[k] += lane[k + half];
  return (double)lane[0];
}

static inline double exps(real *s, int64_t n, real shift) {
  real lane[LANES];
  int64_t j = 0;
  for (int k = 0; k < LANES; k++)
    lane[k] = 0;
  for (; j + LANES <= n; j += LANES)
    MOTH_VECTOR for (int k = 0; k < LANES; k++) {
      real y = m_exp_down(s[j + k] - shift);
      s[j + k] = y;
      lane[k] += y;
    }
  MOTH_VECTOR for (int64_t k = 0; k < n - j; k++) {
    real y = m_exp_down(s[j + k] - shift);
    s[j + k] = y;
    lane[k] += y;
  }
  return lanes_sum(lane);
}

static void weights(const MothAttentionTile *t) {
  real *max = t->max;
  for (int64_t i = 0; i < t->rows; i++) {
    real *s = (real *)t->score + i * t->step;
    int64_t n = visible(t, i);
    if (t->mask)
      apply_mask(t, s, i, n);
    real old = max[i], top = row_max(s, n);
    top = top > old ? top : old;
    /* nothing seen: any shift will do */
    real shift = top == -m_inf() ? (real)0 : top;
    real factor = old == -m_inf() ? (real)0 : m_exp_down(old - shift);
    t->sum[i] = t->sum[i] * (double)factor + exps(s, n, shift);
    max[i] = top;
    memset(s + n, 0, (size_t)(t->cols - n) * sizeof *s);
    if (t->keep) {
      const real *keep = (const real *)t->keep + i * t->step;
      MOTH_VECTOR for (int64_t j = 0; j < n; j++) s[j] = keep[j] != 0 ? s[j] : (real)0;
    }
    if (t->out && factor != 1) {
      real *o = (real *)t->out + i * t->out_row;
      MOTH_VECTOR for (int64_t j = 0; j < t->width; j++) o[j] *= factor;
    }
  }
}

static void finish(const MothAttentionTile *t) {
  const real *max = t->max;
  real *lse = t->lse;
  for (int64_t i = 0; i < t->rows; i++) {
    real *o = (real *)t->out + i * t->out_row;
    bool seen = max[i] != -m_inf();
    real by = (real)(seen ? t->keep_scale / t->sum[i] : 0);
    MOTH_VECTOR for (int64_t j = 0; j < t->width; j++) o[j] *= by;
    lse[i] = seen ? (real)((double)max[i] + __builtin_log(t->sum[i])) : m_inf();
  }
}

static void backward(const MothAttentionTile *t) {
  const real *lse = t->lse, *delta = t->delta;
  const real scale = (real)t->scale, by = (real)t->keep_scale;
  for (int64_t i = 0; i < t->rows; i++) {
    real *s = (real *)t->score + i * t->step, *g = (real *)t->grad + i * t->step;
    int64_t n = visible(t, i);
    real l = lse[i], d = delta[i];
    if (t->mask)
      apply_mask(t, s, i, n);
    if (l == m_inf()) {
      n = 0;
    } else if (t->keep) {
      const real *keep = (const real *)t->keep + i * t->step;
      MOTH_VECTOR for (int64_t j = 0; j < n; j++) {
        real p = m_exp_down(s[j] - l), k = keep[j] * by;
        s[j] = p * k;
        g[j] = p * (k * g[j] - d) * scale;
      }
    } else {
      MOTH_VECTOR for (int64_t j = 0; j < n; j++) {
        real p = m_exp_down(s[j] - l);
        s[j] = p;
        g[j] = p * (g[j] - d) * scale;
      }
    }
    memset(s + n, 0, (size_t)(t->cols - n) * sizeof *s);
    memset(g + n, 0, (size_t)(t->cols - n) * sizeof *g);
  }
}

static void dot(void *delta, const void *a, const void *b, int64_t n, const void *minus) {
  const real *x = a, *y = b;
  real lane[LANES] = {0};
  int64_t j = 0;
  for (; j + LANES <= n; j += LANES)
    for (int k = 0; k < LANES; k++)
      lane[k] += x[j + k] * y[j + k];
  for (int64_t k = 0; j + k < n; k++)
    lane[k] += x[j + k] * y[j + k];
  *(real *)delta = (real)lanes_sum(lane) - (minus ? *(const real *)minus : (real)0);
}

static void add(void *to, const void *from, int64_t n) {
  real *o = to;
  const real *a = from;
  MOTH_VECTOR for (int64_t j = 0; j < n; j++) o[j] += a[j];
}
