/* Sums of a few weighted rows: resizing along one dimension, and its derivative. */
#include "kernels/cpu/resample.h"
#include "kernels/cpu/typed/prelude.h"

#if MOTH_IS_FLOAT
/* One row of n elements, n a constant where the caller's is. */
static inline __attribute__((always_inline)) void resample_row(const struct MothResample *q,
                                                               int64_t i, const real *in,
                                                               int64_t row, real *restrict to,
                                                               int64_t n) {
  int64_t e = q->start[i], end = q->start[i + 1];
  const int64_t *at = q->at;
  const real *w = q->weight;
  if (e == end)
    memset(to, 0, (size_t)n * sizeof(real));
  for (bool more = false; e < end; more = true) {
    const real *a = in + at[e] * row;
    const real p = w[e];
    if (!more && end - e >= 4) {
      const real *b = in + at[e + 1] * row, *c = in + at[e + 2] * row, *d = in + at[e + 3] * row;
      const real s = w[e + 1], t = w[e + 2], u = w[e + 3];
      MOTH_VECTOR for (int64_t j = 0; j < n; j++) to[j] = p * a[j] + s * b[j] + t * c[j] + u * d[j];
      e += 4;
    } else if (!more && end - e >= 2) {
      const real *b = in + at[e + 1] * row;
      const real s = w[e + 1];
      MOTH_VECTOR for (int64_t j = 0; j < n; j++) to[j] = p * a[j] + s * b[j];
      e += 2;
    } else if (more) {
      MOTH_VECTOR for (int64_t j = 0; j < n; j++) to[j] += p * a[j];
      e++;
    } else {
      MOTH_VECTOR for (int64_t j = 0; j < n; j++) to[j] = p * a[j];
      e++;
    }
  }
}

MOTH_TYPED_REAL void resample_rows(const struct MothResample *q) {
  for (int64_t i = 0; i < q->to; i++)
    resample_row(q, i, q->in, q->row, (real *)q->out + i * q->row, q->width);
}

/* Where rows have one element: some lines side by side become rows, by blocks of MOTH_LINES elements. A line of the source, and
 * of the result, is read and written as a whole: lines may share the sets of a cache. */
MOTH_TYPED_REAL void resample_lines(const struct MothResample *q) {
  enum { N = MOTH_LINES };
  real *in = q->work, out[N * N];
  const int64_t n = q->width;
  if (n < N)
    memset(in, 0, (size_t)(q->from * N) * sizeof(real));
  for (int64_t l = 0; l < n; l++) {
    const real *line = (const real *)q->in + l * q->from;
    for (int64_t k = 0; k < q->from; k++)
      in[k * N + l] = line[k];
  }
  for (int64_t i = 0; i < q->to; i += N) {
    int64_t some = q->to - i < N ? q->to - i : N;
    for (int64_t j = 0; j < some; j++)
      resample_row(q, i + j, in, N, out + j * N, N);
    for (int64_t l = 0; l < n; l++) {
      real *line = (real *)q->out + l * q->to + i;
      if (some == N)
        for (int j = 0; j < N; j++)
          line[j] = out[j * N + l];
      else
        for (int64_t j = 0; j < some; j++)
          line[j] = out[j * N + l];
    }
  }
}
#endif
