#include "core/dtype.h"

#include <string.h>

#include "core/defaults.h"
#include "core/error.h"

#define MOTH_FN        static inline __attribute__((unused))
#define real           float
#define MOTH_REAL_KIND 1
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "kernels/math.h"
#pragma GCC diagnostic pop

static const struct {
  const char *name;
  int64_t size;
  int class;
} dtypes[MOTH_NDTYPES] = {
#define MOTH_X(E, name, ctype, compute, cls) [MOTH_##E] = {#name, sizeof(ctype), MOTH_CLASS_##cls},
    MOTH_DTYPE_LIST(MOTH_X)
#undef MOTH_X
};

const char *moth_dtype_name(MothDType d) {
  return dtypes[d].name;
}
int64_t moth_dtype_size(MothDType d) {
  return dtypes[d].size;
}
bool moth_dtype_is_float(MothDType d) {
  return dtypes[d].class == MOTH_CLASS_FLOAT;
}
int moth_dtype_class(MothDType d) {
  return dtypes[d].class;
}

int moth_dtype_find(const char *name) {
  for (int i = 0; i < MOTH_NDTYPES; i++)
    if (!strcmp(dtypes[i].name, name))
      return i;
  return -1;
}

MothDType moth_dtype_promote(MothDType a, MothDType b) {
  if (a == b)
    return a;
  int ca = dtypes[a].class, cb = dtypes[b].class;
  if (ca != cb)
    return ca > cb ? a : b;
  if (ca == MOTH_CLASS_FLOAT) {
    if (a == MOTH_FLOAT64 || b == MOTH_FLOAT64)
      return MOTH_FLOAT64;
    return MOTH_FLOAT32; /* float32 with a half, or the two halves together */
  }
  if (dtypes[a].size == dtypes[b].size) /* int8 with uint8 */
    return MOTH_INT16;
  return dtypes[a].size > dtypes[b].size ? a : b;
}

MothDType moth_default_dtype(void) {
  return moth_defaults()->dtype;
}

MothStatus moth_set_default_dtype(MothDType d) {
  if ((unsigned)d >= MOTH_NDTYPES || !moth_dtype_is_float(d))
    return moth_fail(MOTH_ERR_TYPE, "set_default_dtype: expected a floating-point dtype, got %s",
                     (unsigned)d < MOTH_NDTYPES ? dtypes[d].name : "an unknown one");
  moth_defaults()->dtype = d;
  return MOTH_OK;
}

/* Float to integer as every kernel of moth does it: towards zero, NaN is 0, out of range saturates. */
static int64_t to_int64(MothValue v) {
  if (v.tag != MOTH_V_FLOAT)
    return v.u.i;
  if (!(v.u.d == v.u.d))
    return 0;
  if (v.u.d >= 9223372036854775808.0)
    return INT64_MAX;
  if (v.u.d <= -9223372036854775808.0)
    return INT64_MIN;
  return (int64_t)v.u.d;
}

/* For rounding to 16 bits: see math.h. */
static double to_odd(MothValue v) {
  return v.tag == MOTH_V_INT ? m_i64_to_odd(v.u.i) : moth_as_double(v);
}

void moth_dtype_store(MothDType d, void *element, MothValue v) {
  switch (d) {
  case MOTH_FLOAT32:
    *(float *)element = (float)moth_as_double(v);
    break;
  case MOTH_FLOAT64:
    *(double *)element = moth_as_double(v);
    break;
  case MOTH_FLOAT16:
    *(uint16_t *)element = m_f64_to_f16(to_odd(v));
    break;
  case MOTH_BFLOAT16:
    *(uint16_t *)element = m_f64_to_bf16(to_odd(v));
    break;
  case MOTH_INT8:
    *(int8_t *)element = (int8_t)to_int64(v);
    break;
  case MOTH_UINT8:
    *(uint8_t *)element = (uint8_t)to_int64(v);
    break;
  case MOTH_INT16:
    *(int16_t *)element = (int16_t)to_int64(v);
    break;
  case MOTH_INT32:
    *(int32_t *)element = (int32_t)to_int64(v);
    break;
  case MOTH_INT64:
    *(int64_t *)element = to_int64(v);
    break;
  case MOTH_BOOL:
    *(uint8_t *)element = v.tag == MOTH_V_FLOAT ? v.u.d != 0 : v.u.i != 0;
    break;
  case MOTH_NDTYPES:
    break;
  }
}

MothValue moth_dtype_load(MothDType d, const void *element) {
  switch (d) {
  case MOTH_FLOAT32:
    return moth_v_float((double)*(const float *)element);
  case MOTH_FLOAT64:
    return moth_v_float(*(const double *)element);
  case MOTH_FLOAT16:
    return moth_v_float((double)m_f16_to_f32(*(const uint16_t *)element));
  case MOTH_BFLOAT16:
    return moth_v_float((double)m_bf16_to_f32(*(const uint16_t *)element));
  case MOTH_INT8:
    return moth_v_int(*(const int8_t *)element);
  case MOTH_UINT8:
    return moth_v_int(*(const uint8_t *)element);
  case MOTH_INT16:
    return moth_v_int(*(const int16_t *)element);
  case MOTH_INT32:
    return moth_v_int(*(const int32_t *)element);
  case MOTH_INT64:
    return moth_v_int(*(const int64_t *)element);
  case MOTH_BOOL:
    return moth_v_bool(*(const uint8_t *)element != 0);
  case MOTH_NDTYPES:
    break;
  }
  return moth_v_none();
}

double moth_dtype_epsilon(MothDType d) {
  switch (d) {
  case MOTH_FLOAT64:
    return 0x1p-52;
  case MOTH_FLOAT32:
    return 0x1p-23;
  case MOTH_FLOAT16:
    return 0x1p-10;
  case MOTH_BFLOAT16:
    return 0x1p-7;
  default:
    return 0;
  }
}
