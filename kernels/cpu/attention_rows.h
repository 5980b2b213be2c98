/* The functions of MothAttentionRows, for one type and instruction set: included by a generated file
 * after kernels/cpu/typed/prelude.h. Sums of a row are kept in LANES lanes, which are added in a fixed
 * order: the same bits wherever a tile is computed. */
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_product.h"
#include "kernels/cpu/typed/fold.h"

enum { LANES = 32, FEW = 16 };

static inline int64_t visible(const MothAttentionTile *t, int64_t row) {
  int64_t n = t->visible + row;
  return n < 0 ? 0 : n < t->cols ? n : t->cols;
}

/* Applies the mask to the n scores of a row. */
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

/* The last n % LANES elements of a row are read as a whole group of LANES (rows are padded); the padding is
 * ignored. */
static inline real row_max(const real *s, int64_t n) {
  real lane[LANES];
  const int rest = (int)(n % LANES);
  for (int k = 0; k < LANES; k++)
    lane[k] = -m_inf();
  int64_t j = 0;
  for (; j + LANES <= n; j += LANES)
    for (int k = 0; k < LANES; k++)
      lane[k] = s[j + k] > lane[k] ? s[j + k] : lane[k];
  if (rest)
    for (int k = 0; k < LANES; k++) {
      real x = k < rest ? s[j + k] : lane[k];
      lane[k] = x > lane[k] ? x : lane[k];
    }
  return lanes_max(lane, LANES);
}

/* s = exp(s - shift) in place, 0 in the padding of the last LANES; lane: partial sums of the results. */
static inline void exps(real *s, int64_t n, real shift, real *restrict lane) {
  const int rest = (int)(n % LANES);
  real sum[LANES];
  for (int k = 0; k < LANES; k++)
    sum[k] = 0;
  int64_t j = 0;
  for (; j + LANES <= n; j += LANES)
    MOTH_VECTOR for (int k = 0; k < LANES; k++) {
      real y = m_exp_down(s[j + k] - shift);
      s[j + k] = y;
      sum[k] += y;
    }
  if (rest)
    MOTH_VECTOR for (int k = 0; k < LANES; k++) {
      real y = m_exp_down(s[j + k] - shift);
      y = k < rest ? y : 0;
      s[j + k] = y;
      sum[k] += y;
    }
  for (int k = 0; k < LANES; k++)
    lane[k] = sum[k];
}

/* Sets LANES elements from s on, which may be the row's padding. */
static inline void fill(real *s, real with) {
  MOTH_VECTOR for (int k = 0; k < LANES; k++) s[k] = with;
}

static inline Product scores_of(const MothAttentionTile *t) {
  if (t->repack)
    pack(t->k_packed, t->k, t->k_row, t->cols, t->depth);
  return (Product){.m = t->rows,
                   .n = t->cols,
                   .k = t->depth,
                   .a = t->q,
                   .a_row = t->q_row,
                   .a_col = 1,
                   .b = t->k_packed,
                   .b_row = PART_WIDTH,
                   .b_part = t->depth * PART_WIDTH,
                   .c = t->score,
                   .c_row = t->score_row,
                   .alpha = (real)t->scale,
                   .padded = true,
                   .cut = CUT_COLS,
                   .visible = t->visible};
}

/* Masks the scores of row i; returns the row's new maximum. */
static inline real max_of_row(const MothAttentionTile *t, int64_t i) {
  real *s = (real *)t->score + i * t->score_row;
  int64_t n = visible(t, i);
  if (t->mask)
    apply_mask(t, s, i, n);
  real old = t->first ? -m_inf() : ((const real *)t->max)[i], top = row_max(s, n);
  return top > old ? top : old;
}

/* Turns the scores of row i into weights; lane: partial sums of the weights before dropout. */
static inline void weights_of_row(const MothAttentionTile *t, int64_t i, real top, real *lane) {
  real *s = (real *)t->score + i * t->score_row;
  int64_t n = visible(t, i);
  exps(s, n, top == -m_inf() ? (real)0 : top, lane); /* all keys excluded: any shift will do */
  fill(s + (n + LANES - 1) / LANES * LANES, 0); /* the product reads as far as later rows see */
  if (t->keep) {
    const real *keep = (const real *)t->keep + i * t->score_row;
    MOTH_VECTOR for (int64_t j = 0; j < n; j++) s[j] = keep[j] != 0 ? s[j] : (real)0;
  }
}

/* Rescales sum and out of row i to the new maximum `top`; adds the lanes to the sum. */
static inline void sum_of_row(const MothAttentionTile *t, int64_t i, real top, const real *lane) {
  real *max = t->max;
  double sum = (double)lanes_sum(lane, LANES);
  if (!t->first) {
    real factor = max[i] == -m_inf() ? (real)0 : m_exp_down(max[i] - top);
    sum += t->sum[i] * (double)factor;
    if (factor != 1) {
      real *o = (real *)t->out + i * t->out_row;
      MOTH_VECTOR for (int64_t j = 0; j < t->width; j++) o[j] *= factor;
    }
  }
  t->sum[i] = sum;
  max[i] = top;
}

static void weights(const MothAttentionTile *t) {
  Product scores = scores_of(t);
  Product values = {.n = t->width,
                    .k = t->cols,
                    .a_row = t->score_row,
                    .a_col = 1,
                    .b_row = t->v_row,
                    .b_part = PART_WIDTH,
                    .c_row = t->out_row,
                    .alpha = 1,
                    .add = !t->first,
                    .cut = CUT_DEPTH};
  values.b = padded_rows(t->v, &values.b_row, t->cols, t->width, t->padded);
  /* FEW rows at a time: their scores stay in the first-level cache. */
  for (int64_t i = 0; i < t->rows; i += FEW) {
    int64_t rows = t->rows - i < FEW ? t->rows - i : FEW;
    scores.m = values.m = rows;
    scores.a = (const real *)t->q + i * t->q_row;
    scores.c = (real *)t->score + i * t->score_row;
    scores.visible = values.visible = t->visible + i;
    values.a = scores.c;
    values.c = (real *)t->out + i * t->out_row;
    product(&scores);
    /* Three loops over the rows: the joins of lanes of different rows overlap. */
    real top[FEW], lane[FEW][LANES];
    for (int64_t r = 0; r < rows; r++)
      top[r] = max_of_row(t, i + r);
    for (int64_t r = 0; r < rows; r++)
      weights_of_row(t, i + r, top[r], lane[r]);
    for (int64_t r = 0; r < rows; r++)
      sum_of_row(t, i + r, top[r], lane[r]);
    product(&values);
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
  }
  MOTH_VECTOR for (int64_t i = 0; i < t->rows; i++) {
    real l = max[i] + m_log((real)t->sum[i]);
    lse[i] = max[i] != -m_inf() ? l : m_inf();
  }
}

static inline void backward_row(const MothAttentionTile *t, int64_t i) {
  const real scale = (real)t->scale, by = (real)t->keep_scale;
  real *s = (real *)t->score + i * t->score_row, *g = (real *)t->grad + i * t->score_row;
  real l = ((const real *)t->lse)[i], d = ((const real *)t->delta)[i];
  int64_t n = visible(t, i);
  if (t->mask)
    apply_mask(t, s, i, n);
  if (t->keep) {
    const real *keep = (const real *)t->keep + i * t->score_row;
    MOTH_VECTOR for (int64_t j = 0; j < n; j++) {
      real p = m_exp_down(s[j] - l), k = keep[j] * by;
      s[j] = p * k;
      g[j] = p * (k * g[j] - d) * scale;
    }
  } else {
    fill(s + n, -m_inf());
    for (int64_t j = 0; j < n; j += LANES)
      MOTH_VECTOR for (int k = 0; k < LANES; k++) {
        real p = m_exp_down(s[j + k] - l);
        s[j + k] = p;
        g[j + k] = p * (g[j + k] - d) * scale;
      }
  }
  for (int64_t from = l == m_inf() ? 0 : n; from < n + LANES;
       from += LANES) { /* the whole row where all keys are excluded, else its padding */
    fill(s + from, 0);
    fill(g + from, 0);
  }
}

static void backward(const MothAttentionTile *t) {
  Product p = scores_of(t);
  product(&p);
  if (t->repack)
    pack(t->v_packed, t->v, t->v_row, t->cols, t->width);
  p.a = t->dout;
  p.a_row = t->dout_row;
  p.k = t->width;
  p.b = t->v_packed;
  p.b_part = t->width * PART_WIDTH;
  p.c = t->grad;
  p.alpha = 1;
  product(&p);
  for (int64_t i = 0; i < t->rows; i++)
    backward_row(t, i);
  Product sums = {.m = t->cols,
                  .n = t->width,
                  .k = t->rows,
                  .a = t->score,
                  .a_row = 1,
                  .a_col = t->score_row,
                  .b_row = t->dout_row,
                  .b_part = PART_WIDTH,
                  .c = t->dv,
                  .c_row = t->width,
                  .alpha = 1,
                  .add = t->accumulate,
                  .cut = CUT_START,
                  .visible = t->visible};
  sums.b = padded_rows(t->dout, &sums.b_row, t->rows, t->width, t->padded);
  product(&sums);
  sums.n = sums.c_row = t->depth;
  sums.a = t->grad;
  sums.b_row = t->q_row;
  sums.b = padded_rows(t->q, &sums.b_row, t->rows, t->depth, t->padded);
  sums.c = t->dk;
  product(&sums);
  sums.m = t->rows;
  sums.k = t->cols;
  sums.a_row = t->score_row;
  sums.a_col = 1;
  sums.b_row = t->k_row;
  sums.b = padded_rows(t->k, &sums.b_row, t->cols, t->depth, t->padded);
  sums.c = t->dq;
  sums.add = true;
  sums.cut = CUT_DEPTH;
  product(&sums);
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
  *(real *)delta = lanes_sum(lane, LANES) - (minus ? *(const real *)minus : (real)0);
}

static void add(void *to, const void *from, int64_t n) {
  real *o = to;
  const real *a = from;
  MOTH_VECTOR for (int64_t j = 0; j < n; j++) o[j] += a[j];
}

/* The row at the same place of the next piece: pieces lie anywhere, so that the processor does not see it coming. */
static inline void few_ahead(const MothAttentionChunk *c, const void *const *pieces, int64_t j,
                             int64_t width) {
  int64_t next = j / c->piece + 1;
  if (next * c->piece >= c->cols)
    return;
  const real *row = (const real *)pieces[next] + j % c->piece * width;
  for (int64_t d = 0; d < width; d += (int64_t)(64 / sizeof(real)))
    __builtin_prefetch(row + d);
}

/* The scores of key `at` of a piece for all rows. */
static inline void few_scores(const MothAttentionChunk *c, const real *key, int64_t at,
                              int64_t stride) {
  const int64_t depth = c->depth;
  for (int64_t r = 0; r < c->rows; r++) {
    const real *q = c->q[r];
    real lane[FEW] = {0}, sum = 0;
    int64_t d = 0;
    for (; d + FEW <= depth; d += FEW)
      MOTH_VECTOR for (int k = 0; k < FEW; k++) lane[k] += q[d + k] * key[d + k];
    for (; d < depth; d++)
      sum += q[d] * key[d];
    ((real *)c->score)[r * stride + at] = (lanes_sum(lane, FEW) + sum) * (real)c->scale;
  }
}

static void few(const MothAttentionChunk *c) {
  const int64_t stride =
      (c->cols + MOTH_ATTENTION_ROUND - 1) / MOTH_ATTENTION_ROUND * MOTH_ATTENTION_ROUND;
  const int64_t width = c->width;
  for (int64_t j = 0; j < c->cols; j++) {
    few_ahead(c, c->k, j, c->depth);
    few_scores(c, (const real *)c->k[j / c->piece] + j % c->piece * c->depth, j, stride);
  }
  for (int64_t r = 0; r < c->rows; r++) {
    real *s = (real *)c->score + r * stride, *max = (real *)c->max + r, *out = c->out[r];
    int64_t n = c->visible[r] < 0 ? 0 : c->visible[r] < c->cols ? c->visible[r] : c->cols;
    real old = c->first ? -m_inf() : *max, top = row_max(s, n), lane[LANES];
    top = top > old ? top : old;
    exps(s, n, top == -m_inf() ? (real)0 : top, lane);
    real factor = c->first || old == -m_inf() ? (real)0 : m_exp_down(old - top);
    c->sum[r] = (c->first ? 0 : c->sum[r] * (double)factor) + (double)lanes_sum(lane, LANES);
    if (c->first)
      MOTH_VECTOR for (int64_t d = 0; d < width; d++) out[d] = 0;
    else if (factor != 1)
      MOTH_VECTOR for (int64_t d = 0; d < width; d++) out[d] *= factor;
    *max = top;
    for (int64_t j = n; j < stride; j++)
      s[j] = 0;
  }
  for (int64_t p = 0; p * c->piece < c->cols; p++) {
    int64_t from = p * c->piece, n = c->cols - from < c->piece ? c->cols - from : c->piece;
    for (int64_t j = from; j < from + n; j++)
      few_ahead(c, c->v, j, width);
    for (int64_t r = 0; r < c->rows; r++) {
      const real *s = (const real *)c->score + r * stride + from, *v = c->v[p];
      real *out = c->out[r];
      int64_t d = 0;
      for (; d + LANES <= width; d += LANES) {
        real lane[LANES];
        MOTH_VECTOR for (int k = 0; k < LANES; k++) lane[k] = out[d + k];
        for (int64_t j = 0; j < n; j++)
          MOTH_VECTOR for (int k = 0; k < LANES; k++) lane[k] += s[j] * v[j * width + d + k];
        MOTH_VECTOR for (int k = 0; k < LANES; k++) out[d + k] = lane[k];
      }
      for (int64_t j = 0; j < n && d < width; j++)
        for (int64_t e = d; e < width; e++)
          out[e] += s[j] * v[j * width + e];
    }
  }
}

static void few_finish(const MothAttentionChunk *c) {
  for (int64_t r = 0; r < c->rows; r++) {
    real *out = c->out[r], by = (real)(c->sum[r] > 0 ? 1 / c->sum[r] : 0);
    MOTH_VECTOR for (int64_t d = 0; d < c->width; d++) out[d] *= by;
    if (c->lse) {
      real top = ((const real *)c->max)[r];
      *(real *)c->lse[r] = top != -m_inf() ? top + m_log((real)c->sum[r]) : m_inf();
    }
  }
}
