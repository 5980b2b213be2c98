/* Conversions into this dtype from each of the others. Float to integer: towards zero, out of range the nearest
 * limit, NaN 0 (math_int.h). Integers wrap. Anything but 0 is true. */
#include "kernels/cpu/typed/prelude.h"

#if MOTH_IS_FLOAT
#define FROM_FLOAT(x) STORE((real)(x))
#define FROM_F64(x)   STORE_F64(x)
#define FROM_INT(x)   STORE((real)(x))
#define FROM_I32(x)   STORE_F64((double)(x))
#define FROM_I64(x)   STORE_I64(x)
#define FROM_U64(x)   STORE_U64(x)
#elif MOTH_REAL_KIND == 5
#define FROM_FLOAT(x) ((x) != 0)
#define FROM_F64(x)   ((x) != 0)
#define FROM_INT(x)   ((x) != 0)
#else
#define FROM_FLOAT(x) m_from_f32(x)
#define FROM_F64(x)   m_from_f64(x)
#define FROM_INT(x)   ((real)(x))
#endif

#define COPY_LOOP(name, from_t, convert)                                                           \
  static void name(char **p, const int64_t *s, int64_t n, const MothParam *k) {                    \
    (void)k;                                                                                       \
    if (s[0] == sizeof(stored) && s[1] == sizeof(from_t)) {                                        \
      stored *o = (stored *)p[0];                                                                  \
      const from_t *a = (const from_t *)p[1];                                                      \
      STRETCHES(o, n, from, end, STRETCH, n) {                                                     \
        if (far) {                                                                                 \
          ASK_AHEAD_OUT(o, from, STRETCH);                                                         \
          ASK_AHEAD(a, from, STRETCH);                                                             \
        }                                                                                          \
        MOTH_VECTOR for (int64_t i = from; i < end; i++) o[i] = convert(a[i]);                     \
      }                                                                                            \
    } else {                                                                                       \
      for (int64_t i = 0; i < n; i++)                                                              \
        *(stored *)(p[0] + i * s[0]) = convert(*(const from_t *)(p[1] + i * s[1]));                \
    }                                                                                              \
  }
#ifndef FROM_I32
#define FROM_I32(x) FROM_INT(x)
#define FROM_I64(x) FROM_INT(x)
#define FROM_U64(x) FROM_INT(x)
#endif
#define FROM_F16(x)  FROM_FLOAT(m_f16_to_f32(x))
#define FROM_BF16(x) FROM_FLOAT(m_bf16_to_f32(x))
COPY_LOOP(copy_from_float32, float, FROM_FLOAT)
COPY_LOOP(copy_from_float64, double, FROM_F64)
COPY_LOOP(copy_from_float16, uint16_t, FROM_F16)
COPY_LOOP(copy_from_bfloat16, uint16_t, FROM_BF16)
COPY_LOOP(copy_from_int8, int8_t, FROM_INT)
COPY_LOOP(copy_from_uint8, uint8_t, FROM_INT)
COPY_LOOP(copy_from_int16, int16_t, FROM_INT)
COPY_LOOP(copy_from_int32, int32_t, FROM_I32)
COPY_LOOP(copy_from_int64, int64_t, FROM_I64)
COPY_LOOP(copy_from_bool, uint8_t, FROM_INT)
COPY_LOOP(copy_from_uint16, uint16_t, FROM_INT)
COPY_LOOP(copy_from_uint32, uint32_t, FROM_I32)
COPY_LOOP(copy_from_uint64, uint64_t, FROM_U64)

/* The same dtype: copies bytes. */
static void copy_same(char **p, const int64_t *s, int64_t n, const MothParam *k) {
  (void)k;
  if (s[0] == sizeof(stored) && s[1] == sizeof(stored)) {
    memmove(p[0], p[1], (size_t)n * sizeof(stored));
    return;
  }
  for (int64_t i = 0; i < n; i++)
    *(stored *)(p[0] + i * s[0]) = *(const stored *)(p[1] + i * s[1]);
}

MOTH_TYPED void fill(void *out, int64_t n, MothParam value) {
  stored *o = out;
#if MOTH_IS_FLOAT
  stored v = STORE_F64(value.d);
#else
  stored v = STORE(PARAM(value));
#endif
  for (int64_t i = 0; i < n; i++)
    o[i] = v;
}

MOTH_TYPED void arange(void *out, int64_t n, double start, double step) {
  stored *o = out;
#if MOTH_IS_FLOAT
  for (int64_t i = 0; i < n; i++)
    o[i] = STORE_F64(start + (double)i * step);
#else
  for (int64_t i = 0; i < n; i++)
    o[i] = STORE((real)((int64_t)start + i * (int64_t)step));
#endif
}
