/* Normalisation. Rows: statistics and result of a row while it is in cache. Lines: a row-major tensor
 * (N, C, inner) as N * C lines of `inner` elements, whose statistics the caller joins to those of groups or
 * channels; columns: the same for inner = 1, where lines would have one element. Deviations are from the mean,
 * never a difference of large squares. Affine parameters and statistics are `real`. */
#include "kernels/common/norm.h"
#include "kernels/cpu/typed/fold.h"
#include "kernels/cpu/typed/join.h"
/* total += the sum of X over [0, n): lanes stay in registers, blocks are joined in double. X is an expression of
 * element i + k. */
#define NORM_SUM(n, total, X)                                                                      \
  for (int64_t from = 0; from < (n); from += BLOCK) {                                              \
    int64_t end = (n)-from < BLOCK ? (n) : from + BLOCK, i = from;                                 \
    real lane[LANES];                                                                              \
    for (int k = 0; k < LANES; k++)                                                                \
      lane[k] = 0;                                                                                 \
    for (; i + LANES <= end; i += LANES)                                                           \
      MOTH_VECTOR for (int k = 0; k < LANES; k++) lane[k] += X;                                    \
    for (int64_t k = 0; k < end - i; k++)                                                          \
      lane[k] += X;                                                                                \
    total += (double)lanes_sum(lane, LANES);                                                       \
  }

/* Mean of a line and the sum of squared differences from it. */
static void line_moments(const stored *a, int64_t n, double *mean, double *m2) {
  double sum = 0, sq = 0;
  NORM_SUM(n, sum, LOAD(a[i + k]))
  *mean = n ? sum / (double)n : 0;
  real c = (real)*mean;
  NORM_SUM(n, sq, (LOAD(a[i + k]) - c) * (LOAD(a[i + k]) - c))
  double off = *mean - (double)c; /* the rounding error of c */
  sq -= (double)n * off * off;
  *m2 = sq < 0 ? 0 : sq;
}

static double line_square(const stored *a, int64_t n) {
  double sum = 0;
  NORM_SUM(n, sum, LOAD(a[i + k]) * LOAD(a[i + k]))
  return sum;
}

/* out = (in - mean) rstd weight + bias by rows; rms: without mean. weight, bias [n] or NULL. */
MOTH_TYPED_FLOAT void norm_rows(const struct MothNorm *q) {
  const void *in = q->in;
  void *out = q->out, *mean = q->mean, *rstd = q->rstd;
  const real *w = q->weight, *b = q->bias;
  int64_t rows = q->rows, n = q->n;
  double eps = q->eps;
  bool rms = q->rms;
  for (int64_t r = 0; r < rows; r++) {
    const stored *a = (const stored *)in + r * n;
    stored *o = (stored *)out + r * n;
    double mu = 0, m2 = 0;
    if (rms)
      m2 = line_square(a, n);
    else
      line_moments(a, n, &mu, &m2);
    real c = (real)mu, s = (real)(1 / __builtin_sqrt(m2 / (double)n + eps));
    if (mean)
      ((real *)mean)[r] = c;
    ((real *)rstd)[r] = s;
    FOR_CHUNKS(CHUNK, n, from, end) {
      if (r + 1 < rows) {
        FETCH(a + n, from, end);
        FETCH_TO_WRITE(o + n, from, end);
      }
      if (w && b)
        MOTH_VECTOR for (int64_t i = from; i < end; i++) o[i] =
            STORE((LOAD(a[i]) - c) * s * w[i] + b[i]);
      else if (w)
        MOTH_VECTOR for (int64_t i = from; i < end; i++) o[i] = STORE((LOAD(a[i]) - c) * s * w[i]);
      else if (b)
        MOTH_VECTOR for (int64_t i = from; i < end; i++) o[i] = STORE((LOAD(a[i]) - c) * s + b[i]);
      else
        MOTH_VECTOR for (int64_t i = from; i < end; i++) o[i] = STORE((LOAD(a[i]) - c) * s);
    }
  }
}

/* *k1, *k2: the parts of a row's gradient through its mean and its deviation.
 */
MOTH_FN void norm_back_sums(const stored *g, const stored *a, int64_t n, const real *w, int rms,
                            real c, real s, real *k1, real *k2) {
  double s1 = 0, s2 = 0;
  for (int64_t from = 0; from < n; from += BLOCK) {
    int64_t end = n - from < BLOCK ? n : from + BLOCK, i = from;
    real l1[LANES], l2[LANES];
    for (int k = 0; k < LANES; k++)
      l1[k] = l2[k] = 0;
    for (; i + LANES <= end; i += LANES)
      MOTH_VECTOR for (int k = 0; k < LANES; k++) {
        real gw = w ? LOAD(g[i + k]) * w[i + k] : LOAD(g[i + k]);
        l1[k] += gw;
        l2[k] += gw * ((LOAD(a[i + k]) - c) * s);
      }
    for (int64_t k = 0; k < end - i; k++) {
      real gw = w ? LOAD(g[i + k]) * w[i + k] : LOAD(g[i + k]);
      l1[k] += gw;
      l2[k] += gw * ((LOAD(a[i + k]) - c) * s);
    }
    s1 += rms ? 0 : (double)lanes_sum(l1, LANES);
    s2 += (double)lanes_sum(l2, LANES);
  }
  *k1 = (real)(s1 / (double)n);
  *k2 = (real)(s2 / (double)n);
}

/* Computes dx (unless NULL) by rows; adds the rows' parts to dweight and dbias [n] (unless NULL). */
MOTH_TYPED_FLOAT void norm_back_rows(const struct MothNorm *q) {
  const void *grad = q->grad, *in = q->in;
  void *dx = q->out;
  const real *w = q->weight, *mu = q->mean, *rs = q->rstd;
  real *dw = q->dweight, *db = q->dbias;
  int64_t rows = q->rows, n = q->n;
  bool rms = q->rms;
  enum { ROWS = 4 };
  for (int64_t r = 0, m; r < rows; r += m) {
    const stored *g = (const stored *)grad + r * n, *a = (const stored *)in + r * n;
    stored *o = dx ? (stored *)dx + r * n : NULL;
    bool all = dx && w && dw && db && rows - r >= ROWS; /* the usual case */
    real c[ROWS], s[ROWS], k1[ROWS], k2[ROWS];
    m = all ? ROWS : 1;
    for (int64_t k = 0; k < m; k++) {
      c[k] = mu ? mu[r + k] : 0;
      s[k] = rs[r + k];
      if (dx && w)
        norm_back_sums(g + k * n, a + k * n, n, w, rms, c[k], s[k], &k1[k], &k2[k]);
      else if (dx)
        norm_back_sums(g + k * n, a + k * n, n, NULL, rms, c[k], s[k], &k1[k], &k2[k]);
    }
    if (all) { /* some rows in one pass: their sums are read and written once */
      FOR_CHUNKS(CHUNK / ROWS, n, from, end) {
        for (int64_t k = m; k < 2 * m && r + k < rows; k++) {
          FETCH(g + k * n, from, end);
          FETCH(a + k * n, from, end);
          FETCH_TO_WRITE(o + k * n, from, end);
        }
        MOTH_VECTOR for (int64_t i = from; i < end; i++) {
          real sw = dw[i], sb = db[i], wi = w[i];
#define NORM_ROW(k)                                                                                \
  {                                                                                                \
    real gi = LOAD(g[k * n + i]), xh = (LOAD(a[k * n + i]) - c[k]) * s[k];                         \
    o[k * n + i] = STORE(s[k] * (gi * wi - k1[k] - xh * k2[k]));                                   \
    sw += gi * xh;                                                                                 \
    sb += gi;                                                                                      \
  }
          NORM_ROW(0);
          NORM_ROW(1);
          NORM_ROW(2);
          NORM_ROW(3);
#undef NORM_ROW
          dw[i] = sw;
          db[i] = sb;
        }
      }
      continue;
    }
    FOR_CHUNKS(CHUNK, o ? n : 0, from, end) {
      if (r + 1 < rows) {
        FETCH(g + n, from, end);
        FETCH(a + n, from, end);
        FETCH_TO_WRITE(o + n, from, end);
      }
      if (w)
        MOTH_VECTOR for (int64_t i = from; i < end; i++) o[i] =
            STORE(s[0] * (LOAD(g[i]) * w[i] - k1[0] - (LOAD(a[i]) - c[0]) * s[0] * k2[0]));
      else
        MOTH_VECTOR for (int64_t i = from; i < end; i++) o[i] =
            STORE(s[0] * (LOAD(g[i]) - k1[0] - (LOAD(a[i]) - c[0]) * s[0] * k2[0]));
    }
    if (dw)
      MOTH_VECTOR for (int64_t i = 0; i < n; i++) dw[i] +=
          LOAD(g[i]) * ((LOAD(a[i]) - c[0]) * s[0]);
    if (db)
      MOTH_VECTOR for (int64_t i = 0; i < n; i++) db[i] += LOAD(g[i]);
  }
}

MOTH_TYPED_FLOAT void norm_moments(const struct MothNorm *q) {
  for (int64_t i = 0; i < q->rows; i++)
    line_moments((const stored *)q->in + i * q->n, q->n, &q->sum[i], &q->squares[i]);
}

/* For each line: the sums of g and of g (x - center). */
MOTH_TYPED_FLOAT void norm_dots(const struct MothNorm *q) {
  const int64_t n = q->n;
  for (int64_t l = 0; l < q->rows; l++) {
    const stored *g = (const stored *)q->grad + l * n, *a = (const stored *)q->in + l * n;
    real c = (real)q->center[l];
    double s1 = 0, s2 = 0;
    NORM_SUM(n, s1, LOAD(g[i + k]))
    NORM_SUM(n, s2, LOAD(g[i + k]) * (LOAD(a[i + k]) - c))
    q->sum[l] = s1;
    q->squares[l] = s2;
  }
}

/* out by the factors of each line; g may be NULL. */
MOTH_TYPED_FLOAT void norm_lines(const struct MothNorm *q) {
  const int64_t n = q->n;
  const double *k = q->factors;
  for (int64_t l = 0; l < q->rows; l++, k += 4) {
    const stored *g = (const stored *)q->grad + l * n, *a = (const stored *)q->in + l * n;
    stored *o = (stored *)q->out + l * n;
    real kg = (real)k[0], kx = (real)k[1], c = (real)k[2], b = (real)k[3];
    if (q->grad)
      MOTH_VECTOR for (int64_t i = 0; i < n; i++) o[i] =
          STORE(kg * LOAD(g[i]) + kx * (LOAD(a[i]) - c) + b);
    else
      MOTH_VECTOR for (int64_t i = 0; i < n; i++) o[i] = STORE(kx * (LOAD(a[i]) - c) + b);
  }
}

/* Up to NORM_COLS columns. */
enum { NORM_COLS = 256 };

MOTH_TYPED_FLOAT void norm_moments_cols(const struct MothNorm *q) {
  const stored *a = q->in;
  const int64_t n = q->batch, stride = q->channels, cols = q->cols;
  double *mean = q->sum, *m2 = q->squares;
  real acc[NORM_COLS], c[NORM_COLS];
  for (int64_t k = 0; k < cols; k++) {
    acc[k] = 0;
    mean[k] = m2[k] = 0;
  }
  for (int64_t i = 0; i < n; i++) {
    MOTH_VECTOR for (int64_t k = 0; k < cols; k++) acc[k] += LOAD(a[i * stride + k]);
    if (i % FLUSH == FLUSH - 1 || i == n - 1)
      for (int64_t k = 0; k < cols; k++) {
        mean[k] += (double)acc[k];
        acc[k] = 0;
      }
  }
  for (int64_t k = 0; k < cols; k++) {
    mean[k] /= (double)n;
    c[k] = (real)mean[k];
  }
  for (int64_t i = 0; i < n; i++) {
    MOTH_VECTOR for (int64_t k = 0; k < cols; k++) {
      real d = LOAD(a[i * stride + k]) - c[k];
      acc[k] += d * d;
    }
    if (i % FLUSH == FLUSH - 1 || i == n - 1)
      for (int64_t k = 0; k < cols; k++) {
        m2[k] += (double)acc[k];
        acc[k] = 0;
      }
  }
  for (int64_t k = 0; k < cols; k++) {
    double off = mean[k] - (double)c[k];
    m2[k] -= (double)n * off * off;
    m2[k] = m2[k] < 0 ? 0 : m2[k];
  }
}

MOTH_TYPED_FLOAT void norm_dots_cols(const struct MothNorm *q) {
  const stored *g = q->grad, *a = q->in;
  const int64_t n = q->batch, stride = q->channels, cols = q->cols;
  double *sum = q->sum, *dot = q->squares;
  real s1[NORM_COLS], s2[NORM_COLS], c[NORM_COLS];
  for (int64_t k = 0; k < cols; k++) {
    c[k] = (real)q->center[k];
    s1[k] = s2[k] = 0;
    sum[k] = dot[k] = 0;
  }
  for (int64_t i = 0; i < n; i++) {
    MOTH_VECTOR for (int64_t k = 0; k < cols; k++) {
      real x = LOAD(g[i * stride + k]);
      s1[k] += x;
      s2[k] += x * (LOAD(a[i * stride + k]) - c[k]);
    }
    if (i % FLUSH == FLUSH - 1 || i == n - 1)
      for (int64_t k = 0; k < cols; k++) {
        sum[k] += (double)s1[k];
        dot[k] += (double)s2[k];
        s1[k] = s2[k] = 0;
      }
  }
}

/* As norm_lines, with the factors of each column. */
MOTH_TYPED_FLOAT void norm_cols(const struct MothNorm *q) {
  const stored *g = q->grad, *a = q->in;
  stored *o = q->out;
  const int64_t n = q->batch, stride = q->channels, cols = q->cols;
  const double *k = q->factors;
  real kg[NORM_COLS], kx[NORM_COLS], c[NORM_COLS], b[NORM_COLS];
  for (int64_t j = 0; j < cols; j++) {
    kg[j] = (real)k[4 * j];
    kx[j] = (real)k[4 * j + 1];
    c[j] = (real)k[4 * j + 2];
    b[j] = (real)k[4 * j + 3];
  }
  for (int64_t i = 0; i < n; i++) {
    int64_t at = i * stride;
    if (g)
      MOTH_VECTOR for (int64_t j = 0; j < cols; j++) o[at + j] =
          STORE(kg[j] * LOAD(g[at + j]) + kx[j] * (LOAD(a[at + j]) - c[j]) + b[j]);
    else
      MOTH_VECTOR for (int64_t j = 0; j < cols; j++) o[at + j] =
          STORE(kx[j] * (LOAD(a[at + j]) - c[j]) + b[j]);
  }
}
