/* Distances between rows. Rows of y lie in panels of DISTANCE_W, element after element, so that a vector has as many
 * distances, and four rows of x share what is read of them. */
#include "kernels/common/distance.h"
#include "kernels/cpu/typed/prelude.h"

#if MOTH_REAL_KIND <= 2 && MOTH_STORED == 0
#if MOTH_REAL_KIND == 1
typedef int32_t distance_bits;
#define DISTANCE_ABS 0x7fffffff
#else
typedef int64_t distance_bits;
#define DISTANCE_ABS 0x7fffffffffffffff
#endif
enum { DISTANCE_V = MOTH_VECTOR_BYTES / sizeof(real), DISTANCE_W = 2 * DISTANCE_V, DISTANCE_M = 4 };
typedef real distance_vec
    __attribute__((vector_size(MOTH_VECTOR_BYTES), aligned(sizeof(real)), may_alias));
typedef distance_bits distance_mask __attribute__((vector_size(MOTH_VECTOR_BYTES)));
#define DISTANCE_UNROLL _Pragma("GCC unroll 8")

MOTH_FN distance_vec distance_chosen(distance_mask mask, distance_vec a, distance_vec b) {
  return (distance_vec)(((distance_mask)a & mask) | ((distance_mask)b & ~mask));
}
MOTH_FN distance_vec distance_abs(distance_vec d) {
  return (distance_vec)((distance_mask)d & DISTANCE_ABS);
}
MOTH_FN distance_vec distance_power(distance_vec d, int n) {
  distance_vec y = d;
  for (int i = 1; i < n; i++)
    y *= d;
  return y;
}
/* sum and what d adds to it. */
MOTH_FN distance_vec distance_add(distance_vec sum, distance_vec d, int norm, int power) {
  if (norm == MOTH_NORM_2)
    return sum + d * d;
  if (norm == MOTH_NORM_0)
    return sum + (distance_vec)((distance_mask)(sum * 0 + 1) & (distance_mask)(d != 0));
  d = distance_abs(d);
  if (norm == MOTH_NORM_INF) /* NaN wins */
    return distance_chosen((distance_mask)(sum > d) | (distance_mask)(sum != sum), sum, d);
  return sum + (norm == MOTH_NORM_WHOLE ? distance_power(d, power) : d);
}
MOTH_FN real distance_finish(real sum, int norm, real inverse) {
  return norm == MOTH_NORM_2                              ? m_sqrt(sum)
         : norm == MOTH_NORM_P || norm == MOTH_NORM_WHOLE ? m_pow(sum, inverse)
                                                          : sum;
}

/* work = y in panels, zeros behind the last row; NULL: only how many elements. */
MOTH_TYPED_REAL int64_t distance_pack(const struct MothDistance *q) {
  const real *y = (const real *)q->y;
  int64_t n = q->size, panels = (q->others + DISTANCE_W - 1) / DISTANCE_W;
  real *o = (real *)q->work;
  for (int64_t b = 0; b < panels && o; b++, o += n * DISTANCE_W)
    for (int64_t j = 0; j < DISTANCE_W; j++) {
      int64_t row = b * DISTANCE_W + j;
      for (int64_t k = 0; k < n; k++)
        o[k * DISTANCE_W + j] = row < q->others ? y[row * n + k] : 0;
    }
  return panels * n * DISTANCE_W;
}

/* Where the distances of row i begin, by the number of the other row, and the first of those. */
MOTH_FN int64_t distance_place(const struct MothDistance *q, int64_t i, int64_t *first) {
  *first = q->pairs ? i + 1 : 0;
  return q->pairs ? i * (2 * q->rows - i - 1) / 2 - i - 1 : i * q->others;
}

enum { DISTANCE_BLOCK = 1024 / DISTANCE_W };

/* The sums of a row and a panel, of powers that are taken many at a time: of a vector of exponents, for gcc makes no
 * vectors of what depends on one alone. */
static void distance_powers(const real *x, const real *y, int64_t n, real p, distance_vec *sum) {
  real power[DISTANCE_BLOCK * DISTANCE_W], exponent[DISTANCE_BLOCK * DISTANCE_W];
  for (int k = 0; k < DISTANCE_BLOCK * DISTANCE_W; k++)
    exponent[k] = p;
  for (int64_t from = 0; from < n; from += DISTANCE_BLOCK) {
    int64_t m = n - from < DISTANCE_BLOCK ? n - from : DISTANCE_BLOCK;
    for (int64_t k = 0; k < m; k++)
      for (int l = 0; l < DISTANCE_W; l++)
        power[k * DISTANCE_W + l] = m_abs(x[from + k] - y[(from + k) * DISTANCE_W + l]);
    MOTH_VECTOR for (int64_t k = 0; k < m * DISTANCE_W; k++) power[k] =
        m_pow(power[k], exponent[k]);
    for (int64_t k = 0; k < m; k++) {
      sum[0] += *(const distance_vec *)(power + k * DISTANCE_W);
      sum[1] += *(const distance_vec *)(power + k * DISTANCE_W + DISTANCE_V);
    }
  }
}

MOTH_FN void distance_by(const struct MothDistance *q, int norm) {
  const real *x = (const real *)q->x;
  real *out = (real *)q->out, inverse = (real)(1 / q->p);
  const int p = norm == MOTH_NORM_WHOLE ? (int)q->p : 0;
  int64_t n = q->size;
  for (int64_t i = q->from; i < q->to; i += DISTANCE_M) {
    const real *row[DISTANCE_M];
    for (int r = 0; r < DISTANCE_M; r++) /* the last row again where there is no more */
      row[r] = x + (i + r < q->to ? i + r : q->to - 1) * n;
    int64_t start = q->pairs ? (i + 1) / DISTANCE_W : 0;
    const real *y = (const real *)q->y + start * n * DISTANCE_W;
    for (int64_t j = start * DISTANCE_W; j < q->others; j += DISTANCE_W) {
      distance_vec sum[DISTANCE_M][2] = {0};
      if (norm == MOTH_NORM_P) {
        for (int r = 0; r < DISTANCE_M && i + r < q->to; r++)
          distance_powers(row[r], y, n, (real)q->p, sum[r]);
        y += n * DISTANCE_W;
      }
      for (int64_t k = 0; k < n && norm != MOTH_NORM_P; k++, y += DISTANCE_W) {
        distance_vec a = *(const distance_vec *)y, b = *(const distance_vec *)(y + DISTANCE_V);
        DISTANCE_UNROLL for (int r = 0; r < DISTANCE_M; r++) {
          sum[r][0] = distance_add(sum[r][0], row[r][k] - a, norm, p);
          sum[r][1] = distance_add(sum[r][1], row[r][k] - b, norm, p);
        }
      }
      for (int r = 0; r < DISTANCE_M && i + r < q->to; r++) {
        real value[DISTANCE_W];
        int64_t first, at = distance_place(q, i + r, &first);
        int64_t end = q->others - j < DISTANCE_W ? q->others - j : DISTANCE_W;
        memcpy(value, sum[r], sizeof value);
        for (int64_t l = 0; l < DISTANCE_W; l++)
          value[l] = distance_finish(value[l], norm, inverse);
        for (int64_t l = first > j ? first - j : 0; l < end; l++)
          out[at + j + l] = value[l];
      }
    }
  }
}

MOTH_TYPED_REAL void distance_rows(const struct MothDistance *q) {
  switch (q->norm) {
  case MOTH_NORM_0:
    distance_by(q, MOTH_NORM_0);
    break;
  case MOTH_NORM_1:
    distance_by(q, MOTH_NORM_1);
    break;
  case MOTH_NORM_2:
    distance_by(q, MOTH_NORM_2);
    break;
  case MOTH_NORM_INF:
    distance_by(q, MOTH_NORM_INF);
    break;
  case MOTH_NORM_WHOLE:
    distance_by(q, MOTH_NORM_WHOLE);
    break;
  default:
    distance_by(q, MOTH_NORM_P);
  }
}

/* The sum of (a - b)^2, or of a^2. */
MOTH_FN real distance_square(const real *a, const real *b, int64_t n) {
  real lane[DISTANCE_V] = {0}, sum = 0;
  int64_t k = 0;
  for (; k + DISTANCE_V <= n; k += DISTANCE_V)
    MOTH_VECTOR for (int l = 0; l < DISTANCE_V; l++) {
      real d = a[k + l] - (b ? b[k + l] : 0);
      lane[l] += d * d;
    }
  for (; k < n; k++)
    sum += (a[k] - (b ? b[k] : 0)) * (a[k] - (b ? b[k] : 0));
  for (int l = 0; l < DISTANCE_V; l++)
    sum += lane[l];
  return sum;
}

/* out = the sums of squares of the rows of x. */
MOTH_TYPED_REAL void distance_sums(const struct MothDistance *q) {
  for (int64_t i = q->from; i < q->to; i++)
    ((real *)q->out)[i] = distance_square((const real *)q->x + i * q->size, NULL, q->size);
}

/* out holds -2 x y^T; the distances of norm 2 from it: d^2 = x^2 + y^2 - 2 x y. Those that are small beside the rows, where
 * little of the sum is left, are taken from the differences. y lies in rows. */
MOTH_TYPED_REAL void distance_of_product(const struct MothDistance *q) {
  const real *x = (const real *)q->x, *y = (const real *)q->y, *ys = (const real *)q->y_sum;
  int64_t n = q->size;
  for (int64_t i = q->from; i < q->to; i++) {
    real *o = (real *)q->out + i * q->others, xs = ((const real *)q->x_sum)[i];
    for (int64_t j = 0; j < q->others; j += 64) {
      int64_t end = q->others - j < 64 ? q->others - j : 64;
      int near = 0;
      MOTH_VECTOR for (int64_t l = 0; l < end; l++) {
        real all = xs + ys[j + l], square = all + o[j + l];
        near |= !(square >= all * (real)0.03125);
        o[j + l] = m_sqrt(square < 0 ? 0 : square);
      }
      for (int64_t l = 0; near && l < end; l++)
        if (!(o[j + l] * o[j + l] >= (xs + ys[j + l]) * (real)0.04))
          o[j + l] = m_sqrt(distance_square(x + i * n, y + (j + l) * n, n));
    }
  }
}

/* work = for each other row the gradient over the distance to the power p - 1; its end, up to a whole panel, is 0. */
MOTH_FN void distance_weights(const struct MothDistance *q, int64_t i, real *to) {
  const real *g = (const real *)q->grad, *d = (const real *)q->dist;
  int64_t first, at = distance_place(q, i, &first), n = q->rows;
  for (int64_t j = 0; j < first; j++) { /* of pairs: those before i, and itself */
    int64_t pair = j * (2 * n - j - 1) / 2 - j - 1 + i;
    to[j] = j < i ? g[pair] : 0;
    to[q->others + DISTANCE_W + j] = j < i ? d[pair] : 0;
  }
  for (int64_t j = first; j < q->others; j++) {
    to[j] = g[at + j];
    to[q->others + DISTANCE_W + j] = d[at + j];
  }
  const real *dist = to + q->others + DISTANCE_W;
  real power = (real)(q->p - 1);
  if (q->norm == MOTH_NORM_2)
    for (int64_t j = 0; j < q->others; j++)
      to[j] = dist[j] == 0 ? 0 : to[j] / dist[j];
  else if (q->norm == MOTH_NORM_P || q->norm == MOTH_NORM_WHOLE)
    for (int64_t j = 0; j < q->others; j++)
      to[j] = dist[j] == 0 ? 0 : to[j] / m_pow(dist[j], power);
  for (int64_t j = q->others; j < q->others + DISTANCE_W; j++)
    to[j] = 0;
}

/* What d, of a distance `dist`, is weighted by. */
MOTH_FN distance_vec distance_slope(distance_vec d, distance_vec dist, int norm, int power) {
  if (norm == MOTH_NORM_2)
    return d;
  distance_vec one = d * 0 + 1; /* NaN stays */
  distance_vec sign = distance_chosen((distance_mask)(d < 0), -one, one);
  distance_mask there = d != 0;
  if (norm == MOTH_NORM_INF)
    there &= (distance_mask)(distance_abs(d) == dist);
  if (norm == MOTH_NORM_WHOLE)
    sign *= distance_power(distance_abs(d), power);
  return (distance_vec)((distance_mask)sign & there);
}

/* An element of the gradient of any norm p, from powers of all other rows. */
static real distance_power_slope(const struct MothDistance *q, real x, int64_t k,
                                 const real *weight) {
  real power[DISTANCE_W], exponent[DISTANCE_W], sum = 0;
  for (int l = 0; l < DISTANCE_W; l++)
    exponent[l] = (real)(q->p - 1);
  for (int64_t j = 0; j < q->others; j += DISTANCE_W) { /* weights behind the last row are 0 */
    const real *y = (const real *)q->y + j * q->size + k * DISTANCE_W;
    MOTH_VECTOR for (int l = 0; l < DISTANCE_W; l++) power[l] = m_pow(m_abs(x - y[l]), exponent[l]);
    for (int l = 0; l < DISTANCE_W; l++)
      sum += x == y[l] ? 0 : x < y[l] ? -(weight[j + l] * power[l]) : weight[j + l] * power[l];
  }
  return sum;
}

MOTH_FN void distance_backward_by(const struct MothDistance *q, int norm) {
  const real *x = (const real *)q->x, *y = (const real *)q->y;
  int64_t n = q->size, line = 2 * (q->others + DISTANCE_W);
  real *out = (real *)q->out, *work = (real *)q->work;
  const int power = norm == MOTH_NORM_WHOLE ? (int)q->p - 1 : 0;
  for (int64_t i = q->from; i < q->to; i += DISTANCE_M) {
    for (int r = 0; r < DISTANCE_M; r++)
      distance_weights(q, i + r < q->to ? i + r : q->to - 1, work + r * line);
    for (int r = 0; norm == MOTH_NORM_P && r < DISTANCE_M && i + r < q->to; r++)
      for (int64_t k = 0; k < n; k++)
        out[(i + r) * n + k] = distance_power_slope(q, x[(i + r) * n + k], k, work + r * line);
    for (int64_t k = 0; k < n && norm != MOTH_NORM_P; k++) {
      distance_vec sum[DISTANCE_M][2] = {0};
      real value[DISTANCE_M];
      for (int r = 0; r < DISTANCE_M; r++)
        value[r] = x[(i + r < q->to ? i + r : q->to - 1) * n + k];
      for (int64_t j = 0; j < q->others; j += DISTANCE_W) {
        const real *panel = y + (j * n + k * DISTANCE_W), *w = work + j;
        distance_vec a = *(const distance_vec *)panel,
                     b = *(const distance_vec *)(panel + DISTANCE_V);
        DISTANCE_UNROLL for (int r = 0; r < DISTANCE_M; r++) {
          const real *weight = w + r * line, *dist = weight + line / 2;
          sum[r][0] += *(const distance_vec *)weight *
                       distance_slope(value[r] - a, *(const distance_vec *)dist, norm, power);
          sum[r][1] +=
              *(const distance_vec *)(weight + DISTANCE_V) *
              distance_slope(value[r] - b, *(const distance_vec *)(dist + DISTANCE_V), norm, power);
        }
      }
      for (int r = 0; r < DISTANCE_M && i + r < q->to; r++) {
        distance_vec both = sum[r][0] + sum[r][1];
        real total = 0;
        for (int l = 0; l < DISTANCE_V; l++)
          total += both[l];
        out[(i + r) * n + k] = total;
      }
    }
  }
}

/* distance_far of grad and dist that are transposed: up to DISTANCE_FAR rows at once, whose numbers lie side by side there.
 * The weights of a row are a column of work. */
static void distance_far_transposed(const struct MothDistance *q) {
  const real *x = (const real *)q->x + q->from * q->size, *y = (const real *)q->y;
  const real *xs = (const real *)q->x_sum + q->from, *ys = (const real *)q->y_sum;
  const int64_t n = q->size, rows = q->to - q->from;
  real *o = (real *)q->out + q->from * n, *w = (real *)q->work;
  real total[DISTANCE_FAR] = {0}, part[DISTANCE_FAR] = {0};
  memset(o, 0, (size_t)(rows * n) * sizeof(real));
  for (int64_t j = 0; j < q->others; j++, w += DISTANCE_FAR) {
    const real *g = (const real *)q->grad + j * q->rows + q->from;
    const real *d = (const real *)q->dist + j * q->rows + q->from;
    int near = 0;
    MOTH_VECTOR for (int64_t l = 0; l < rows; l++) {
      real all = xs[l] + ys[j], weight = g[l] / d[l];
      int far = d[l] * d[l] >= all * (real)0.04 && weight - weight == 0;
      near |= !far;
      w[l] = far ? weight : 0;
      part[l] += w[l];
    }
    for (int64_t l = 0; near && l < rows; l++) {
      const real all = xs[l] + ys[j], weight = g[l] / d[l];
      if (d[l] == 0 || (d[l] * d[l] >= all * (real)0.04 && weight - weight == 0))
        continue;
      const real *a = x + l * n, *b = y + j * n;
      real *to = o + l * n;
      MOTH_VECTOR for (int64_t k = 0; k < n; k++) to[k] += weight * (a[k] - b[k]);
    }
    if (j % 64 == 63 || j == q->others - 1)
      MOTH_VECTOR for (int l = 0; l < DISTANCE_FAR; l++) {
        total[l] += part[l];
        part[l] = 0;
      }
  }
  for (int64_t l = 0; l < rows; l++)
    MOTH_VECTOR for (int64_t k = 0; k < n; k++) o[l * n + k] += total[l] * x[l * n + k];
}

/* Rows [from, to) of the derivative of norm 2: out = the weights' sum times x, and work = the weights, so that out - work y is
 * the derivative. Where rows are near, little of that difference would be left: what they give is added here. y lies in rows. */
MOTH_TYPED_REAL void distance_far(const struct MothDistance *q) {
  if (q->transposed) {
    distance_far_transposed(q);
    return;
  }
  const real *y = (const real *)q->y, *ys = (const real *)q->y_sum;
  const int64_t n = q->size, others = q->others;
  for (int64_t i = q->from; i < q->to; i++) {
    const real *x = (const real *)q->x + i * n, *g = (const real *)q->grad + i * others;
    const real *d = (const real *)q->dist + i * others;
    real *o = (real *)q->out + i * n, *w = (real *)q->work + (i - q->from) * others;
    real xs = ((const real *)q->x_sum)[i], total = 0;
    memset(o, 0, (size_t)n * sizeof(real));
    for (int64_t j = 0; j < others; j += 64) {
      int64_t end = others - j < 64 ? others - j : 64;
      real lane[DISTANCE_V] = {0};
      int near = 0;
      MOTH_VECTOR for (int64_t l = 0; l < end; l++) {
        real all = xs + ys[j + l], weight = g[j + l] / d[j + l];
        int far = d[j + l] * d[j + l] >= all * (real)0.04 && weight - weight == 0;
        near |= !far;
        w[j + l] = far ? weight : 0;
      }
      for (int64_t l = 0; l + DISTANCE_V <= end; l += DISTANCE_V)
        MOTH_VECTOR for (int k = 0; k < DISTANCE_V; k++) lane[k] += w[j + l + k];
      for (int64_t l = end / DISTANCE_V * DISTANCE_V; l < end; l++)
        total += w[j + l];
      for (int k = 0; k < DISTANCE_V; k++)
        total += lane[k];
      for (int64_t l = 0; near && l < end; l++) {
        const real all = xs + ys[j + l], dist = d[j + l], weight = g[j + l] / dist;
        if (dist == 0 || (dist * dist >= all * (real)0.04 && weight - weight == 0))
          continue;
        const real *b = y + (j + l) * n;
        MOTH_VECTOR for (int64_t k = 0; k < n; k++) o[k] += weight * (x[k] - b[k]);
      }
    }
    MOTH_VECTOR for (int64_t k = 0; k < n; k++) o[k] += total * x[k];
  }
}

/* How many elements `work` has. */
MOTH_TYPED_REAL int64_t distance_work(const struct MothDistance *q) {
  return 2 * DISTANCE_M * (q->others + DISTANCE_W);
}

/* out = the derivative by x, for dist of the forward call. */
MOTH_TYPED_REAL void distance_backward(const struct MothDistance *q) {
  switch (q->norm) {
  case MOTH_NORM_0:
    memset((real *)q->out + q->from * q->size, 0,
           (size_t)((q->to - q->from) * q->size) * sizeof(real));
    break;
  case MOTH_NORM_1:
    distance_backward_by(q, MOTH_NORM_1);
    break;
  case MOTH_NORM_2:
    distance_backward_by(q, MOTH_NORM_2);
    break;
  case MOTH_NORM_INF:
    distance_backward_by(q, MOTH_NORM_INF);
    break;
  case MOTH_NORM_WHOLE:
    distance_backward_by(q, MOTH_NORM_WHOLE);
    break;
  default:
    distance_backward_by(q, MOTH_NORM_P);
  }
}
#endif
