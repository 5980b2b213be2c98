/* Products of few rows: C (m, n) = alpha A (m, k) @ B (k, n) + beta C for m of some sixteen. BLAS packs B, which takes longer
 * than the product; here B is read once, at the speed of the memory. Where a column of B, a row of a weight, lies in one
 * piece, dot products are summed, some rows and columns side by side; where a row of B does, multiples of it are added to C.
 * An element's sum does not depend on m, n or the threads. */
#if MOTH_STORED && defined(__AVX2__)
#include <immintrin.h>
#elif MOTH_STORED && defined(__aarch64__)
#include <arm_neon.h>
#endif
#include "kernels/cpu/blas.h"
#include "kernels/cpu/typed/prelude.h"

#if defined(__AVX512F__)
enum { ROW_BYTES = 64, COLUMNS = 4, ROWS = 6 }; /* 24 sums of 32 registers */
#elif defined(__AVX2__)
enum { ROW_BYTES = 32, COLUMNS = 2, ROWS = 4 };
#else
enum { ROW_BYTES = 16, COLUMNS = 2, ROWS = 4 };
#endif
/* Vectors of four lanes: sums of many terms are made in parts, so that they keep their digits. */
#if defined(__aarch64__)
#define ROWS_IN_PARTS 1
#else
#define ROWS_IN_PARTS 0
#endif
enum {
  ROW_LANES = ROW_BYTES / (int)sizeof(real),
  ROW_AHEAD = 1024,
  ROWS_STRIP = 256,
  ROWS_PART = 256
};
typedef real rows_vector __attribute__((vector_size(ROW_BYTES), aligned(sizeof(real)), may_alias));
#define ROWS_UNROLL _Pragma("GCC unroll 16")

/* Elements of B as numbers of C's dtype. */
MOTH_FN rows_vector rows_load(const stored *p) {
#if !MOTH_STORED
  return *(const rows_vector *)p;
#elif MOTH_STORED == 1 && defined(__AVX512F__)
  return (rows_vector)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif MOTH_STORED == 1 && defined(__AVX2__)
  return (rows_vector)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif defined(__AVX512F__)
  return (rows_vector)_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
#elif defined(__AVX2__)
  return (rows_vector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)),
                                        16);
#elif MOTH_STORED == 1 && defined(__aarch64__)
  return (rows_vector)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)p)));
#elif defined(__aarch64__)
  return (rows_vector)vshll_n_u16(vld1_u16((const uint16_t *)p), 16);
#else
  rows_vector v = {0};
  for (int i = 0; i < ROW_LANES; i++)
    v[i] = LOAD(p[i]);
  return v;
#endif
}

/* The sum of all lanes, halves first. */
MOTH_FN real rows_sum(rows_vector v) {
  typedef real quarter __attribute__((vector_size(16)));
  enum { N = ROW_BYTES / 16 };
  quarter q[N];
  memcpy(q, &v, sizeof v);
  ROWS_UNROLL for (int n = N / 2; n > 0; n /= 2) ROWS_UNROLL for (int i = 0; i < n; i++) q[i] +=
      q[i + n];
#if MOTH_REAL_KIND == 2
  return q[0][0] + q[0][1];
#else
  return (q[0][0] + q[0][2]) + (q[0][1] + q[0][3]);
#endif
}

MOTH_FN void rows_store(const MothGemm *g, real *c, real total) {
  *c = g->beta == 0 ? (real)g->alpha * total : (real)g->alpha * total + (real)g->beta * *c;
}

/* c[r][j] for `rows` rows of A from a on and `cols` columns of B from b on; first: B is not in cache yet. */
MOTH_FN void rows_tile(const MothGemm *g, const real *a, const stored *b, real *c, int rows,
                       int cols, bool first) {
  rows_vector sum[ROWS][COLUMNS] = {{{0}}}, all[ROWS][COLUMNS] = {{{0}}};
  int64_t k = 0;
  for (; k + ROW_LANES <= g->k; k += ROW_LANES) {
    if (ROWS_IN_PARTS && k % ROWS_PART == 0)
      ROWS_UNROLL for (int r = 0; r < rows; r++) ROWS_UNROLL for (int j = 0; j < cols; j++) {
        all[r][j] += sum[r][j];
        sum[r][j] = (rows_vector){0};
      }
    rows_vector y[COLUMNS];
    ROWS_UNROLL for (int j = 0; j < cols; j++) {
      const stored *at = b + j * g->b_col + k;
      y[j] = rows_load(at);
      if (first)
        __builtin_prefetch((const char *)at + ROW_AHEAD);
    }
    ROWS_UNROLL for (int r = 0; r < rows; r++) {
      rows_vector x = *(const rows_vector *)(a + r * g->a_row + k);
      ROWS_UNROLL for (int j = 0; j < cols; j++) sum[r][j] += x * y[j];
    }
  }
  ROWS_UNROLL for (int r = 0; r < rows; r++) ROWS_UNROLL for (int j = 0; j < cols; j++) {
    real tail = 0;
    for (int64_t i = k; i < g->k; i++)
      tail += a[r * g->a_row + i] * LOAD(b[j * g->b_col + i]);
    if (ROWS_IN_PARTS)
      sum[r][j] += all[r][j];
    rows_store(g, c + r * g->c_row + j, rows_sum(sum[r][j]) + tail);
  }
}

#define ROWS_CASE(N, COLS)                                                                         \
  case N:                                                                                          \
    rows_tile(g, x, b, out, N, COLS, r == 0);                                                      \
    break;
/* A row's dot products with columns of B that lie in one piece each. */
static void rows_dots(const MothGemm *g) {
  for (int64_t j = 0; j < g->n; j += COLUMNS) {
    int cols = g->n - j < COLUMNS ? (int)(g->n - j) : COLUMNS;
    const stored *b = (const stored *)g->b + j * g->b_col;
    for (int64_t r = 0, rows; r < g->m; r += rows) {
      const real *x = (const real *)g->a + r * g->a_row;
      real *out = (real *)g->c + r * g->c_row + j;
      rows = g->m - r < ROWS ? g->m - r : ROWS;
      if (cols < COLUMNS) {
        for (int i = 0; i < rows; i++)
          for (int q = 0; q < cols; q++)
            rows_tile(g, x + i * g->a_row, b + q * g->b_col, out + i * g->c_row + q, 1, 1, false);
        continue;
      }
      if (rows == 1 && r == 0) { /* one stream of memory, which the processor sees coming */
        for (int q = 0; q < COLUMNS; q++)
          rows_tile(g, x, b + q * g->b_col, out + q, 1, 1, true);
        continue;
      }
      switch (rows) {
        ROWS_CASE(1, COLUMNS)
        ROWS_CASE(2, COLUMNS)
        ROWS_CASE(3, COLUMNS)
#if defined(__AVX512F__)
        ROWS_CASE(4, COLUMNS)
        ROWS_CASE(5, COLUMNS)
#endif
      default:
        rows_tile(g, x, b, out, ROWS, COLUMNS, r == 0);
      }
    }
  }
}

/* c[r][0, n) += the sum over `ks` of a[r][k] times row k of b; rows of c are ROWS_STRIP apart */
MOTH_FN void rows_multiples(const MothGemm *g, const real *a, const stored *b, real *c, int64_t n,
                            int rows, int ks, bool first) {
  int64_t j = 0;
  rows_vector x[4][4];
  ROWS_UNROLL for (int r = 0; r < rows; r++) ROWS_UNROLL for (int k = 0; k < ks; k++) x[r][k] =
      (rows_vector){0} + a[r * g->a_row + k];
  for (; j + ROW_LANES <= n; j += ROW_LANES) {
    rows_vector y[4];
    ROWS_UNROLL for (int k = 0; k < ks; k++) {
      y[k] = rows_load(b + k * g->b_row + j);
      if (first) /* the same columns of the rows that come next */
        __builtin_prefetch((const char *)(b + (k + 4) * g->b_row + j));
    }
    ROWS_UNROLL for (int r = 0; r < rows; r++) {
      rows_vector *to = (rows_vector *)(c + r * ROWS_STRIP + j), sum = *to;
      ROWS_UNROLL for (int k = 0; k < ks; k++) sum += x[r][k] * y[k];
      *to = sum;
    }
  }
  for (; j < n; j++)
    for (int r = 0; r < rows; r++)
      for (int k = 0; k < ks; k++)
        c[r * ROWS_STRIP + j] += a[r * g->a_row + k] * LOAD(b[k * g->b_row + j]);
}

#define ROWS_ADD(N)                                                                                \
  case N:                                                                                          \
    rows_multiples(g, x, b, c, n, N, 4, r == 0);                                                   \
    break;
/* Multiples of the rows of B, four at a time, a strip of its columns after another; the sums stay in cache. Those of ROWS_PART
 * rows are summed by themselves: a sum of thousands in order would lose digits. */
static void rows_sums(const MothGemm *g) {
  real sums[16 * ROWS_STRIP], parts[16 * ROWS_STRIP];
  for (int64_t j = 0; j < g->n; j += ROWS_STRIP) {
    int64_t n = g->n - j < ROWS_STRIP ? g->n - j : ROWS_STRIP;
    memset(sums, 0, sizeof(real) * (size_t)(g->m * ROWS_STRIP));
    memset(parts, 0, sizeof(real) * (size_t)(g->m * ROWS_STRIP));
    for (int64_t k = 0; k < g->k; k += 4) {
      const stored *b = (const stored *)g->b + k * g->b_row + j;
      int64_t ks = g->k - k < 4 ? g->k - k : 4;
      for (int64_t r = 0, rows; r < g->m; r += rows) {
        rows = g->m - r < 4 ? g->m - r : 4;
        const real *x = (const real *)g->a + r * g->a_row + k;
        real *c = parts + r * ROWS_STRIP;
        if (ks < 4) {
          for (int i = 0; i < rows; i++)
            for (int q = 0; q < ks; q++)
              rows_multiples(g, x + i * g->a_row + q, b + q * g->b_row, c + i * ROWS_STRIP, n, 1, 1,
                             false);
          continue;
        }
        switch (rows) {
          ROWS_ADD(1)
          ROWS_ADD(2)
          ROWS_ADD(3)
        default:
          rows_multiples(g, x, b, c, n, 4, 4, r == 0);
        }
      }
      if ((k + 4) % ROWS_PART && k + 4 < g->k)
        continue;
      for (int64_t i = 0; i < g->m * ROWS_STRIP; i++) {
        sums[i] += parts[i];
        parts[i] = 0;
      }
    }
    for (int64_t r = 0; r < g->m; r++)
      for (int64_t i = 0; i < n; i++)
        rows_store(g, (real *)g->c + r * g->c_row + j + i, sums[r * ROWS_STRIP + i]);
  }
}

#if MOTH_STORED == 2 && defined(__AVX512F__) && defined(__x86_64__)
/* Processors that multiply bfloat16: A is as it is stored, too. */
#define ROWS_NATIVE __attribute__((target("avx512bf16,avx512bw")))
static inline ROWS_NATIVE __attribute__((always_inline)) void
rows_native_tile(const MothGemm *g, const stored *a, const stored *b, real *c, int rows, int cols,
                 bool first) {
  __m512 sum[ROWS][COLUMNS];
  ROWS_UNROLL for (int r = 0; r < rows; r++) ROWS_UNROLL for (int j = 0; j < cols; j++) sum[r][j] =
      _mm512_setzero_ps();
  for (int64_t k = 0; k < g->k; k += 32) {
    __mmask32 in = g->k - k >= 32 ? ~(__mmask32)0 : ((__mmask32)1 << (g->k - k)) - 1;
    __m512i y[COLUMNS];
    ROWS_UNROLL for (int j = 0; j < cols; j++) {
      const stored *at = b + j * g->b_col + k;
      y[j] = _mm512_maskz_loadu_epi16(in, at);
      if (first)
        __builtin_prefetch((const char *)at + ROW_AHEAD);
    }
    ROWS_UNROLL for (int r = 0; r < rows; r++) {
      __m512i x = _mm512_maskz_loadu_epi16(in, a + r * g->a_row + k);
      ROWS_UNROLL for (int j = 0; j < cols; j++) sum[r][j] =
          _mm512_dpbf16_ps(sum[r][j], (__m512bh)x, (__m512bh)y[j]);
    }
  }
  ROWS_UNROLL for (int r = 0; r < rows; r++) ROWS_UNROLL for (int j = 0; j < cols; j++)
      rows_store(g, c + r * g->c_row + j, rows_sum((rows_vector)sum[r][j]));
}
#define ROWS_NATIVE_CASE(N)                                                                        \
  case N:                                                                                          \
    rows_native_tile(g, x, b, out, N, COLUMNS, r == 0);                                            \
    break;
static ROWS_NATIVE void rows_native(const MothGemm *g) {
  for (int64_t j = 0; j < g->n; j += COLUMNS) {
    int cols = g->n - j < COLUMNS ? (int)(g->n - j) : COLUMNS;
    const stored *b = (const stored *)g->b + j * g->b_col;
    for (int64_t r = 0, rows; r < g->m; r += rows) {
      const stored *x = (const stored *)g->a + r * g->a_row;
      real *out = (real *)g->c + r * g->c_row + j;
      rows = g->m - r < ROWS ? g->m - r : ROWS;
      if (cols < COLUMNS) {
        for (int i = 0; i < rows; i++)
          for (int q = 0; q < cols; q++)
            rows_native_tile(g, x + i * g->a_row, b + q * g->b_col, out + i * g->c_row + q, 1, 1,
                             false);
        continue;
      }
      switch (rows) {
        ROWS_NATIVE_CASE(1)
        ROWS_NATIVE_CASE(2)
        ROWS_NATIVE_CASE(3)
        ROWS_NATIVE_CASE(4)
        ROWS_NATIVE_CASE(5)
      default:
        rows_native_tile(g, x, b, out, ROWS, COLUMNS, r == 0);
      }
    }
  }
}
#endif

MOTH_TYPED_FLOAT void gemm_rows(const struct MothRows *p) {
  const MothGemm *g = &p->gemm;
#if MOTH_STORED == 2 && defined(__AVX512F__) && defined(__x86_64__)
  if (p->native && g->b_row == 1) {
    rows_native(g);
    return;
  }
#endif
  if (g->b_row == 1)
    rows_dots(g);
  else
    rows_sums(g);
}
