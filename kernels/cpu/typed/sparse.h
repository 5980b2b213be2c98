/* Products of sparse matrices in rows. An element of a result is one sum, in the order of the elements of its row (of the
 * columns, for dot): it does not depend on the threads. */
#include "kernels/common/sparse.h"
#include "kernels/cpu/typed/prelude.h"

enum { SPARSE_STRIP = 64, SPARSE_AHEAD = 8, SPARSE_SUMS = 16 };

/* out[i] = the sum of values[j] b[cols[j]][i] over the elements [begin, end) of a row, for `n` columns of at most
 * SPARSE_STRIP */
MOTH_FN void sparse_strip(const MothSparse *p, const stored *b, stored *out, int64_t begin,
                          int64_t end, int64_t n) {
  real sum[SPARSE_STRIP] = {0};
  const stored *values = (const stored *)p->values;
  if (p->pairs)
    for (int64_t j = begin; j < end; j++) {
      const stored *x = b + (p->cols[j] - p->base) * p->k;
      real re = LOAD(values[2 * j]), im = LOAD(values[2 * j + 1]);
      for (int64_t i = 0; i < n; i += 2) {
        sum[i] += re * LOAD(x[i]) - im * LOAD(x[i + 1]);
        sum[i + 1] += re * LOAD(x[i + 1]) + im * LOAD(x[i]);
      }
    }
  else
    for (int64_t j = begin; j < end; j++) {
      const stored *x = b + (p->cols[j] - p->base) * p->k;
      real v = LOAD(values[j]);
      for (int64_t i = 0; i < n; i++)
        sum[i] += v * LOAD(x[i]);
    }
  for (int64_t i = 0; i < n; i++)
    out[i] = STORE(sum[i]);
}

#if MOTH_IS_FLOAT && !MOTH_STORED
enum { SPARSE_LANES = MOTH_VECTOR_BYTES / (int)sizeof(real) };
typedef real sparse_vector
    __attribute__((vector_size(MOTH_VECTOR_BYTES), aligned(sizeof(real)), may_alias));

/* The same for `vectors` whole vectors, whose sums stay in registers. */
MOTH_FN void sparse_vectors(const MothSparse *p, const stored *b, stored *out, int64_t begin,
                            int64_t end, int vectors) {
  sparse_vector sum[4] = {{0}};
  const real *values = (const real *)p->values;
  for (int64_t j = begin; j < end; j++) {
    const real *x = b + (p->cols[j] - p->base) * p->k;
    if (j + SPARSE_AHEAD < p->nnz) {
      const char *next = (const char *)(b + (p->cols[j + SPARSE_AHEAD] - p->base) * p->k);
      for (int i = 0; i < vectors * MOTH_VECTOR_BYTES; i += 64)
        __builtin_prefetch(next + i);
    }
    sparse_vector v = (sparse_vector){0} + values[j];
    _Pragma("GCC unroll 4") for (int i = 0; i < vectors; i++) sum[i] +=
        v * *(const sparse_vector *)(x + i * SPARSE_LANES);
  }
  _Pragma("GCC unroll 4") for (int i = 0; i < vectors; i++) *
      (sparse_vector *)(out + i * SPARSE_LANES) = sum[i];
}
#endif

MOTH_TYPED void sparse_mm(const struct MothSparse *p) {
  for (int64_t r = p->from; r < p->to; r++) {
    int64_t begin = p->crow[r] - p->base, end = p->crow[r + 1] - p->base, i = 0;
    const stored *b = (const stored *)p->b;
    stored *out = (stored *)p->out + r * p->k;
    if (p->k == 1) {
      const stored *v = (const stored *)p->values;
      const int64_t *at = p->cols, base = p->base;
      real sum[4] = {0};
      int64_t j = begin;
      for (; j + 4 <= end; j += 4)
        for (int l = 0; l < 4; l++)
          sum[l] += LOAD(v[j + l]) * LOAD(b[at[j + l] - base]);
      for (; j < end; j++)
        sum[0] += LOAD(v[j]) * LOAD(b[at[j] - base]);
      out[0] = STORE((real)((sum[0] + sum[1]) + (sum[2] + sum[3])));
      continue;
    }
#if MOTH_IS_FLOAT && !MOTH_STORED
    if (!p->pairs) {
      for (; i + 4 * SPARSE_LANES <= p->k; i += 4 * SPARSE_LANES)
        sparse_vectors(p, b + i, out + i, begin, end, 4);
      if (i + 2 * SPARSE_LANES <= p->k) {
        sparse_vectors(p, b + i, out + i, begin, end, 2);
        i += 2 * SPARSE_LANES;
      }
      if (i + SPARSE_LANES <= p->k) {
        sparse_vectors(p, b + i, out + i, begin, end, 1);
        i += SPARSE_LANES;
      }
    }
#endif
    for (; i < p->k; i += SPARSE_STRIP)
      sparse_strip(p, b + i, out + i, begin, end,
                   p->k - i < SPARSE_STRIP ? p->k - i : SPARSE_STRIP);
  }
}

/* The sum of a[i] b[i]: SPARSE_SUMS of them side by side. */
MOTH_FN real sparse_sum(const stored *a, const stored *b, int64_t k) {
  real part[SPARSE_SUMS] = {0}, sum = 0;
  int64_t i = 0;
#if MOTH_IS_FLOAT && !MOTH_STORED
  sparse_vector v[2] = {{0}};
  for (; i + 2 * SPARSE_LANES <= k; i += 2 * SPARSE_LANES) {
    v[0] += *(const sparse_vector *)(a + i) * *(const sparse_vector *)(b + i);
    v[1] += *(const sparse_vector *)(a + i + SPARSE_LANES) *
            *(const sparse_vector *)(b + i + SPARSE_LANES);
  }
  v[0] += v[1];
  for (int l = 0; l < SPARSE_LANES; l++)
    part[l] = v[0][l];
#else
  for (; i + SPARSE_SUMS <= k; i += SPARSE_SUMS)
    for (int l = 0; l < SPARSE_SUMS; l++)
      part[l] += LOAD(a[i + l]) * LOAD(b[i + l]);
#endif
  for (int l = 0; l < SPARSE_SUMS; l++)
    sum += part[l];
  for (; i < k; i++)
    sum += LOAD(a[i]) * LOAD(b[i]);
  return sum;
}

MOTH_TYPED void sparse_dot(const struct MothSparse *p) {
  for (int64_t r = p->from; r < p->to; r++) {
    const stored *a = (const stored *)p->a + r * p->k;
    for (int64_t j = p->crow[r] - p->base; j < p->crow[r + 1] - p->base; j++) {
      const stored *b = (const stored *)p->b + (p->cols[j] - p->base) * p->k;
      stored *out = (stored *)p->out;
      if (p->pairs) {
        real re = 0, im = 0;
        for (int64_t i = 0; i < p->k; i += 2) {
          re += LOAD(a[i]) * LOAD(b[i]) - LOAD(a[i + 1]) * LOAD(b[i + 1]);
          im += LOAD(a[i]) * LOAD(b[i + 1]) + LOAD(a[i + 1]) * LOAD(b[i]);
        }
        out[2 * j] = STORE(re);
        out[2 * j + 1] = STORE(im);
      } else {
        out[j] = STORE(sparse_sum(a, b, p->k));
      }
    }
  }
}
