/* The arithmetic of reductions between ranks. Floats of 16 bits are reduced in float32 and rounded at each rank. */
#include <string.h>

#include "comm/comm.h"
#include "core/dtype.h"
#include "core/error.h"

#define MOTH_FN static inline __attribute__((unused))
#include "kernels/math_bits.h"

#pragma GCC optimize("O3") /* -O2 leaves such loops as they are */

static const char *const words[MOTH_COMM_NREDUCES] = {"sum", "avg",  "prod", "min",
                                                      "max", "band", "bor",  "bxor"};

int moth_comm_reduce_of(const char *word) {
  for (int i = 0; i < MOTH_COMM_NREDUCES; i++)
    if (strcmp(word, words[i]) == 0)
      return i;
  return -1;
}

const char *moth_comm_reduce_name(int reduce) {
  return reduce >= 0 && reduce < MOTH_COMM_NREDUCES ? words[reduce] : "?";
}

MothStatus moth_comm_check_reduce(int reduce, MothDType dtype) {
  const char *name = moth_comm_reduce_name(reduce), *type = moth_dtype_name(dtype);
  bool is_float = moth_dtype_is_float(dtype);
  bool is_complex = dtype == MOTH_COMPLEX64 || dtype == MOTH_COMPLEX128;
  if (reduce == MOTH_COMM_AVG && !is_float && !is_complex)
    return moth_fail(MOTH_ERR_TYPE, "op avg is for floats, not %s: use sum and divide", type);
  if (reduce >= MOTH_COMM_BAND && (is_float || is_complex))
    return moth_fail(MOTH_ERR_TYPE, "op %s is for integers and bool, not %s", name, type);
  if ((reduce == MOTH_COMM_MIN || reduce == MOTH_COMM_MAX) && is_complex)
    return moth_fail(MOTH_ERR_TYPE, "op %s: complex numbers have no order", name);
  return MOTH_OK;
}

#define EACH(T, expression)                                                                        \
  {                                                                                                \
    const T *p = a, *q = b;                                                                        \
    T *r = c;                                                                                      \
    _Pragma("GCC ivdep") /* c may be a or b, not a part of them */                                 \
        for (int64_t i = 0; i < n; i++) {                                                          \
      T x = p[i], y = q[i];                                                                        \
      r[i] = (T)(expression);                                                                      \
    }                                                                                              \
  }                                                                                                \
  break

/* NaN wins. Integers wrap. */
#define REDUCE_FLOAT(T)                                                                            \
  switch (reduce) {                                                                                \
  case MOTH_COMM_PROD:                                                                             \
    EACH(T, x *y);                                                                                 \
  case MOTH_COMM_MIN:                                                                              \
    EACH(T, x < y || x != x ? x : y);                                                              \
  case MOTH_COMM_MAX:                                                                              \
    EACH(T, x > y || x != x ? x : y);                                                              \
  default:                                                                                         \
    EACH(T, x + y);                                                                                \
  }                                                                                                \
  break
#define REDUCE_INT(T, U)                                                                           \
  switch (reduce) {                                                                                \
  case MOTH_COMM_PROD:                                                                             \
    EACH(T, (U)x *(U)y);                                                                           \
  case MOTH_COMM_MIN:                                                                              \
    EACH(T, x < y ? x : y);                                                                        \
  case MOTH_COMM_MAX:                                                                              \
    EACH(T, x > y ? x : y);                                                                        \
  case MOTH_COMM_BAND:                                                                             \
    EACH(T, x &y);                                                                                 \
  case MOTH_COMM_BOR:                                                                              \
    EACH(T, x | y);                                                                                \
  case MOTH_COMM_BXOR:                                                                             \
    EACH(T, x ^ y);                                                                                \
  default:                                                                                         \
    EACH(T, (U)x + (U)y);                                                                          \
  }                                                                                                \
  break
/* A number is true: sum and max are "or", prod and min are "and". */
#define REDUCE_BOOL(T)                                                                             \
  switch (reduce) {                                                                                \
  case MOTH_COMM_PROD:                                                                             \
  case MOTH_COMM_MIN:                                                                              \
  case MOTH_COMM_BAND:                                                                             \
    EACH(T, x &&y);                                                                                \
  case MOTH_COMM_BXOR:                                                                             \
    EACH(T, !x != !y);                                                                             \
  default:                                                                                         \
    EACH(T, x || y);                                                                               \
  }                                                                                                \
  break
#define COMPLEX_PRODUCT(T, R)                                                                      \
  {                                                                                                \
    const T *p = a, *q = b;                                                                        \
    T *r = c;                                                                                      \
    for (int64_t i = 0; i < n; i++) {                                                              \
      T x = p[i], y = q[i];                                                                        \
      r[i].re = (R)(x.re * y.re - x.im * y.im);                                                    \
      r[i].im = (R)(x.re * y.im + x.im * y.re);                                                    \
    }                                                                                              \
  }

enum { BLOCK = 512 };

static void reduce_halves(int reduce, bool bf16, const uint16_t *a, const uint16_t *b, uint16_t *c,
                          int64_t n) {
  float x[BLOCK], y[BLOCK];
  for (int64_t at = 0; at < n; at += BLOCK) {
    int64_t m = n - at < BLOCK ? n - at : BLOCK;
    for (int64_t i = 0; i < m; i++) {
      x[i] = bf16 ? m_bf16_to_f32(a[at + i]) : m_f16_to_f32(a[at + i]);
      y[i] = bf16 ? m_bf16_to_f32(b[at + i]) : m_f16_to_f32(b[at + i]);
    }
    moth_reduce_elements(reduce, MOTH_FLOAT32, x, y, x, m);
    for (int64_t i = 0; i < m; i++)
      c[at + i] = bf16 ? m_f32_to_bf16(x[i]) : m_f32_to_f16(x[i]);
  }
}

void moth_reduce_elements(int reduce, MothDType dtype, const void *a, const void *b, void *c,
                          int64_t n) {
  switch (dtype) {
  case MOTH_FLOAT32:
    REDUCE_FLOAT(float);
  case MOTH_FLOAT64:
    REDUCE_FLOAT(double);
  case MOTH_FLOAT16:
  case MOTH_BFLOAT16:
    reduce_halves(reduce, dtype == MOTH_BFLOAT16, a, b, c, n);
    break;
  case MOTH_INT8:
    REDUCE_INT(int8_t, uint32_t);
  case MOTH_UINT8:
    REDUCE_INT(uint8_t, uint32_t);
  case MOTH_INT16:
    REDUCE_INT(int16_t, uint32_t);
  case MOTH_UINT16:
    REDUCE_INT(uint16_t, uint32_t);
  case MOTH_INT32:
    REDUCE_INT(int32_t, uint32_t);
  case MOTH_UINT32:
    REDUCE_INT(uint32_t, uint32_t);
  case MOTH_INT64:
    REDUCE_INT(int64_t, uint64_t);
  case MOTH_UINT64:
    REDUCE_INT(uint64_t, uint64_t);
  case MOTH_BOOL:
    REDUCE_BOOL(uint8_t);
  case MOTH_COMPLEX64:
    if (reduce == MOTH_COMM_PROD)
      COMPLEX_PRODUCT(MothComplex64, float)
    else
      moth_reduce_elements(reduce, MOTH_FLOAT32, a, b, c, 2 * n);
    break;
  case MOTH_COMPLEX128:
    if (reduce == MOTH_COMM_PROD)
      COMPLEX_PRODUCT(MothComplex128, double)
    else
      moth_reduce_elements(reduce, MOTH_FLOAT64, a, b, c, 2 * n);
    break;
  case MOTH_NDTYPES:
    break;
  }
}

void moth_divide_elements(MothDType dtype, void *c, int64_t n, int by) {
  if (dtype == MOTH_COMPLEX64 || dtype == MOTH_COMPLEX128) {
    moth_divide_elements(dtype == MOTH_COMPLEX64 ? MOTH_FLOAT32 : MOTH_FLOAT64, c, 2 * n, by);
  } else if (dtype == MOTH_FLOAT32) {
    float *x = c, d = (float)by;
    for (int64_t i = 0; i < n; i++)
      x[i] /= d;
  } else if (dtype == MOTH_FLOAT64) {
    double *x = c;
    for (int64_t i = 0; i < n; i++)
      x[i] /= by;
  } else {
    uint16_t *x = c;
    float d = (float)by;
    for (int64_t i = 0; i < n; i++)
      x[i] = dtype == MOTH_BFLOAT16 ? m_f32_to_bf16(m_bf16_to_f32(x[i]) / d)
                                    : m_f32_to_f16(m_f16_to_f32(x[i]) / d);
  }
}
