/* Reductions of rows (runs of n elements each) and of columns (a row at a time into an accumulator for
 * each column). What is added stays exact enough by two levels: blocks of at most BLOCK elements go
 * into LANES accumulators (a vector's worth and more, so that additions do not wait for each other),
 * which a fixed tree joins; blocks are joined in double or int64. The order depends on n only: never
 * on threads, and not on the ISA level. */
#ifndef MOTH_CPU_TYPED_REDUCE_H
#define MOTH_CPU_TYPED_REDUCE_H
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/typed/prelude.h"

enum { LANES = 64, FEW = 8, BLOCK = 4096, TMP = 1024, COLS = 1024, FLUSH = 64 };

#if MOTH_IS_FLOAT
typedef real sum_lane;
typedef double wide;
#define WIDE(p)  (p).d
#define REAL_MIN ((real)-__builtin_inf())
#define REAL_MAX ((real)__builtin_inf())
#else
typedef int64_t sum_lane;
typedef int64_t wide;
#define WIDE(p) (p).i
#if MOTH_REAL_KIND == 3
#define REAL_MIN ((real)((uint64_t)1 << (8 * sizeof(real) - 1)))
#else
#define REAL_MIN ((real)0)
#endif
#define REAL_MAX ((real)~REAL_MIN)
#endif

#define JOIN_SUM(a, b)  ((a) + (b))
#define JOIN_PROD(a, b) ((a) * (b))
#if MOTH_IS_FLOAT
#define IS_NAN(x) ((x) != (x))
#else
#define IS_NAN(x) 0
#endif
/* Two selects: gcc makes vectors of them, which it does not of one select by an `or`. */
MOTH_FN real join_max(real a, real b) {
  real m = a > b ? a : b;
  return IS_NAN(a) ? a : m;
}
MOTH_FN real join_min(real a, real b) {
  real m = a < b ? a : b;
  return IS_NAN(a) ? a : m;
}
#define JOIN_MAX(a, b) join_max(a, b)
#define JOIN_MIN(a, b) join_min(a, b)
/* The same of any two types, for partial results. */
#define WIDE_MAX(a, b) ((((a) > (b)) | IS_NAN(a)) ? (a) : (b))
#define WIDE_MIN(a, b) ((((a) < (b)) | IS_NAN(a)) ? (a) : (b))
#define JOIN_ANY(a, b) ((a) | (b))
#define JOIN_ALL(a, b) ((a) & (b))
#define MAP_RAW(x)     (x)
#define MAP_SAME(x)    LOAD(x)
#define MAP_BOOL(x)    (LOAD(x) != 0)
#define MAP_SQDEV(x)   ((LOAD(x) - shift) * (LOAD(x) - shift))
#define MAP_SUMEXP(x)  m_exp(LOAD(x) - shift)

/* lane[0] = the n elements of `a` joined. */
#define LANE_LOOP(width, T, ID, MAP, JOIN)                                                         \
  T lane[width];                                                                                   \
  for (int k = 0; k < width; k++)                                                                  \
    lane[k] = ID;                                                                                  \
  int64_t i = 0;                                                                                   \
  for (; i + width <= n; i += width)                                                               \
    for (int k = 0; k < width; k++) {                                                              \
      T x = (T)MAP(a[i + k]);                                                                      \
      lane[k] = JOIN(x, lane[k]);                                                                  \
    }                                                                                              \
  for (int k = 0; i + k < n; k++) {                                                                \
    T x = (T)MAP(a[i + k]);                                                                        \
    lane[k] = JOIN(x, lane[k]);                                                                    \
  }                                                                                                \
  for (int half = width / 2; half; half /= 2)                                                      \
    for (int k = 0; k < half; k++)                                                                 \
      lane[k] = JOIN(lane[k], lane[k + half]);

#define BLOCK_FN(name, T, ID, MAP, JOIN, WIDE_JOIN, ACC)                                           \
  static void name(const stored *a, int64_t n, real shift, MothParam *acc) {                       \
    (void)shift;                                                                                   \
    T r = ID;                                                                                      \
    if (n < 2 * FEW) {                                                                             \
      for (int64_t i = 0; i < n; i++) {                                                            \
        T x = (T)MAP(a[i]);                                                                        \
        r = JOIN(x, r);                                                                            \
      }                                                                                            \
    } else if (n < LANES) {                                                                        \
      LANE_LOOP(FEW, T, ID, MAP, JOIN)                                                             \
      r = lane[0];                                                                                 \
    } else {                                                                                       \
      LANE_LOOP(LANES, T, ID, MAP, JOIN)                                                           \
      r = lane[0];                                                                                 \
    }                                                                                              \
    ACC = WIDE_JOIN(r, ACC);                                                                       \
  }

/* acc[c] = acc[c] joined with `rows` elements of column c. */
#define COLS_FN(name, T, ID, MAP, JOIN, WIDE_JOIN, ACC)                                            \
  static void name(const char *in, int64_t row_stride, int64_t rows, int64_t n,                    \
                   const MothParam *shifts, MothParam *acc) {                                      \
    T part[COLS];                                                                                  \
    real shift_of[COLS];                                                                           \
    for (int64_t c = 0; c < n; c++)                                                                \
      shift_of[c] = shifts ? PARAM(shifts[c]) : 0;                                                 \
    for (int64_t r = 0; r < rows;) {                                                               \
      int64_t end = r + FLUSH < rows ? r + FLUSH : rows;                                           \
      for (int64_t c = 0; c < n; c++)                                                              \
        part[c] = ID;                                                                              \
      for (; r + 4 <= end; r += 4) {                                                               \
        const stored *a = (const stored *)(in + r * row_stride);                                   \
        const stored *b = (const stored *)((const char *)a + row_stride);                          \
        const stored *d = (const stored *)((const char *)b + row_stride);                          \
        const stored *e = (const stored *)((const char *)d + row_stride);                          \
        MOTH_VECTOR for (int64_t c = 0; c < n; c++) {                                              \
          real shift = shift_of[c];                                                                \
          (void)shift;                                                                             \
          T w = (T)MAP(a[c]), x = (T)MAP(b[c]);                                                    \
          T y = (T)MAP(d[c]), z = (T)MAP(e[c]);                                                    \
          T wx = JOIN(w, x), yz = JOIN(y, z);                                                      \
          T all = JOIN(wx, yz);                                                                    \
          part[c] = JOIN(all, part[c]);                                                            \
        }                                                                                          \
      }                                                                                            \
      for (; r < end; r++) {                                                                       \
        const stored *a = (const stored *)(in + r * row_stride);                                   \
        MOTH_VECTOR for (int64_t c = 0; c < n; c++) {                                              \
          real shift = shift_of[c];                                                                \
          (void)shift;                                                                             \
          T x = (T)MAP(a[c]);                                                                      \
          part[c] = JOIN(x, part[c]);                                                              \
        }                                                                                          \
      }                                                                                            \
      MothParam *restrict acc_of = acc;                                                            \
      for (int64_t k = 0; k < n; k++) {                                                            \
        MothParam *p = &acc_of[k];                                                                 \
        ACC = WIDE_JOIN(part[k], ACC);                                                             \
      }                                                                                            \
    }                                                                                              \
  }

#define P_WIDE   WIDE(*p)
#define ACC_WIDE WIDE(*acc)
BLOCK_FN(block_sum, sum_lane, 0, MAP_SAME, JOIN_SUM, JOIN_SUM, ACC_WIDE)
BLOCK_FN(block_prod, wide, 1, MAP_SAME, JOIN_PROD, JOIN_PROD, ACC_WIDE)
BLOCK_FN(block_max, real, REAL_MIN, MAP_SAME, JOIN_MAX, WIDE_MAX, ACC_WIDE)
BLOCK_FN(block_min, real, REAL_MAX, MAP_SAME, JOIN_MIN, WIDE_MIN, ACC_WIDE)
BLOCK_FN(block_any, uint8_t, 0, MAP_BOOL, JOIN_ANY, JOIN_ANY, acc->i)
BLOCK_FN(block_all, uint8_t, 1, MAP_BOOL, JOIN_ALL, JOIN_ALL, acc->i)
COLS_FN(cols_sum, sum_lane, 0, MAP_SAME, JOIN_SUM, JOIN_SUM, P_WIDE)
COLS_FN(cols_prod, wide, 1, MAP_SAME, JOIN_PROD, JOIN_PROD, P_WIDE)
COLS_FN(cols_max, real, REAL_MIN, MAP_SAME, JOIN_MAX, WIDE_MAX, P_WIDE)
COLS_FN(cols_min, real, REAL_MAX, MAP_SAME, JOIN_MIN, WIDE_MIN, P_WIDE)
COLS_FN(cols_any, uint8_t, 0, MAP_BOOL, JOIN_ANY, JOIN_ANY, p->i)
COLS_FN(cols_all, uint8_t, 1, MAP_BOOL, JOIN_ALL, JOIN_ALL, p->i)
#if MOTH_IS_FLOAT
BLOCK_FN(block_sqdev, sum_lane, 0, MAP_SQDEV, JOIN_SUM, JOIN_SUM, ACC_WIDE)
COLS_FN(cols_sqdev, sum_lane, 0, MAP_SQDEV, JOIN_SUM, JOIN_SUM, P_WIDE)
COLS_FN(cols_sumexp, sum_lane, 0, MAP_SUMEXP, JOIN_SUM, JOIN_SUM, P_WIDE)

/* The sum of n numbers. */
static real lane_sum(const real *a, int64_t n) {
  if (n < 2 * FEW) {
    real sum = 0;
    for (int64_t i = 0; i < n; i++)
      sum += a[i];
    return sum;
  }
  LANE_LOOP(LANES, real, 0, MAP_RAW, JOIN_SUM)
  return lane[0];
}

/* exp first, into a buffer: one vector body instead of one per lane. */
static void block_sumexp(const stored *a, int64_t n, real shift, MothParam *acc) {
  real e[TMP];
  for (int64_t at = 0; at < n; at += TMP) {
    int64_t m = n - at < TMP ? n - at : TMP;
    for (int64_t i = 0; i < m; i++)
      e[i] = m_exp(LOAD(a[at + i]) - shift);
    acc->d += (double)lane_sum(e, m);
  }
}
#else
#define block_sqdev  block_sum
#define block_sumexp block_sum
#define cols_sqdev   cols_sum
#define cols_sumexp  cols_sum
#endif

/* acc[r] = acc[r] joined with the n elements of row r. shift: one per row, or NULL. */
MOTH_TYPED void reduce_rows(int op, const char *in, int64_t row_stride, int64_t rows, int64_t step,
                            int64_t n, const MothParam *shift, MothParam *acc) {
  static void (*const blocks[])(const stored *, int64_t, real, MothParam *) = {
      block_sum, block_prod, block_max, block_min, block_any, block_all, block_sqdev, block_sumexp};
  for (int64_t r = 0; r < rows; r++, in += row_stride) {
    real s = shift ? PARAM(shift[r]) : 0;
    if (step == sizeof(stored)) {
      for (int64_t i = 0; i < n; i += BLOCK)
        blocks[op]((const stored *)in + i, n - i < BLOCK ? n - i : BLOCK, s, &acc[r]);
      continue;
    }
    stored tmp[TMP];
    for (int64_t i = 0; i < n; i += TMP) {
      int64_t m = n - i < TMP ? n - i : TMP;
      for (int64_t k = 0; k < m; k++)
        tmp[k] = *(const stored *)(in + (i + k) * step);
      blocks[op](tmp, m, s, &acc[r]);
    }
  }
}

/* acc[c] = acc[c] joined with the `rows` elements of column c. */
MOTH_TYPED void reduce_cols(int op, const char *in, int64_t row_stride, int64_t rows, int64_t step,
                            int64_t cols, const MothParam *shift, MothParam *acc) {
  static void (*const kernels[])(const char *, int64_t, int64_t, int64_t, const MothParam *,
                                 MothParam *) = {cols_sum, cols_prod, cols_max,   cols_min,
                                                 cols_any, cols_all,  cols_sqdev, cols_sumexp};
  for (int64_t c = 0; c < cols; c += COLS) {
    int64_t n = cols - c < COLS ? cols - c : COLS;
    const MothParam *s = shift ? shift + c : NULL;
    if (step == sizeof(stored)) {
      kernels[op](in + c * step, row_stride, rows, n, s, acc + c);
      continue;
    }
    stored tmp[4 * COLS];
    for (int64_t r = 0; r < rows; r += 4) {
      int64_t m = rows - r < 4 ? rows - r : 4;
      for (int64_t k = 0; k < m; k++)
        for (int64_t i = 0; i < n; i++)
          tmp[k * n + i] = *(const stored *)(in + (r + k) * row_stride + (c + i) * step);
      kernels[op]((const char *)tmp, n * (int64_t)sizeof(stored), m, n, s, acc + c);
    }
  }
}

/* Partial results to elements of this dtype. divisor: for float dtypes. */
MOTH_TYPED void reduce_store(char *out, int64_t step, const MothParam *acc, int64_t n,
                             double divisor) {
  (void)divisor;
  for (int64_t i = 0; i < n; i++) {
#if MOTH_IS_FLOAT
    *(stored *)(out + i * step) = STORE((real)(acc[i].d / divisor));
#elif MOTH_REAL_KIND == 5
    *(stored *)(out + i * step) = acc[i].i != 0;
#else
    *(stored *)(out + i * step) = STORE((real)acc[i].i);
#endif
  }
}
#endif
