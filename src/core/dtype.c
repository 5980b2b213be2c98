#include "core/dtype.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
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

static bool is_dtype(MothDType d) {
  return (unsigned)d < MOTH_NDTYPES;
}
const char *moth_dtype_name(MothDType d) {
  return is_dtype(d) ? dtypes[d].name : "?";
}
int64_t moth_dtype_size(MothDType d) {
  return is_dtype(d) ? dtypes[d].size : 0;
}
bool moth_dtype_is_float(MothDType d) {
  return is_dtype(d) && dtypes[d].class == MOTH_CLASS_FLOAT;
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
  if (!is_dtype(a) || !is_dtype(b))
    return MOTH_NDTYPES;
  if (a == b)
    return a;
  int ca = dtypes[a].class, cb = dtypes[b].class;
  if (ca == MOTH_CLASS_COMPLEX || cb == MOTH_CLASS_COMPLEX) /* the wider parts */
    return ca == cb || moth_dtype_complex(a) == MOTH_COMPLEX128 ? MOTH_COMPLEX128
                                                                : moth_dtype_complex(b);
  if (ca != cb)
    return ca > cb ? a : b;
  if (ca == MOTH_CLASS_FLOAT) {
    if (a == MOTH_FLOAT64 || b == MOTH_FLOAT64)
      return MOTH_FLOAT64;
    return MOTH_FLOAT32; /* float32 with a half, or the two halves together */
  }
  if (dtypes[a].size == dtypes[b].size && !moth_dtype_is_stored(a) &&
      !moth_dtype_is_stored(b)) /* int8 with uint8 */
    return MOTH_INT16;
  return dtypes[a].size > dtypes[b].size ? a : b;
}

MothStatus moth_dtype_common(MothDType a, MothDType b, MothDType *out) {
  *out = moth_dtype_promote(a, b);
  if (a == b || !(moth_dtype_is_stored(a) || moth_dtype_is_stored(b)) ||
      moth_dtype_is_inexact(*out))
    return MOTH_OK;
  return moth_fail(MOTH_ERR_TYPE,
                   "%s and %s have no common dtype: uint16, uint32 and uint64 promote with floats "
                   "alone; convert one with x:to(moth.int64)",
                   dtypes[a].name, dtypes[b].name);
}

MothLimits moth_dtype_limits(MothDType d) {
  int bits = (int)dtypes[d].size * 8;
  uint64_t all = UINT64_MAX >> (64 - bits);
  if (d == MOTH_BOOL)
    return (MothLimits){0, 1};
  if (dtypes[d].name[0] != 'u')
    return (MothLimits){(int64_t) ~(all >> 1), all >> 1};
  return (MothLimits){0, all};
}

/* The least absolute value that rounds to infinity. */
static double infinite_from(MothDType d) {
  return d == MOTH_FLOAT16    ? 65520
         : d == MOTH_BFLOAT16 ? 0x1.ffp127
         : d == MOTH_FLOAT32  ? 0x1.ffffffp127
                              : INFINITY;
}

bool moth_dtype_fits(MothDType d, MothValue v) {
  if (d == MOTH_BOOL || v.tag == MOTH_V_BOOL)
    return true;
  d = moth_dtype_real(d);
  double x = moth_as_double(v);
  if (moth_dtype_is_float(d))
    return !(fabs(x) >= infinite_from(d)) || isinf(x);
  MothLimits l = moth_dtype_limits(d);
  if (v.tag == MOTH_V_FLOAT)
    return trunc(x) >= (double)l.low && trunc(x) < (double)(l.high / 2 + 1) * 2;
  if (v.n)
    return (uint64_t)v.u.i <= l.high;
  return v.u.i >= l.low && (v.u.i < 0 || (uint64_t)v.u.i <= l.high);
}

MothStatus moth_dtype_check_number(MothDType d, MothValue v, const char *what) {
  char number[40], range[80];
  double x = moth_as_double(v);
  if (moth_dtype_fits(d, v))
    return MOTH_OK;
  d = moth_dtype_real(d);
  if (moth_dtype_is_float(d)) {
    double top = d == MOTH_FLOAT16 ? 65504 : d == MOTH_BFLOAT16 ? 0x1.fep127 : 0x1.fffffep127;
    snprintf(range, sizeof range, "%.8g to %.8g", -top, top);
  } else {
    MothLimits l = moth_dtype_limits(d);
    snprintf(range, sizeof range, "%" PRId64 " to %" PRIu64, l.low, l.high);
  }
  if (v.tag == MOTH_V_FLOAT)
    snprintf(number, sizeof number, "%.14g", x);
  else if (v.n)
    snprintf(number, sizeof number, "%" PRIu64, (uint64_t)v.u.i);
  else
    snprintf(number, sizeof number, "%" PRId64, v.u.i);
  return moth_fail(MOTH_ERR_VALUE, "%s is %s, which is out of the range of %s: %s", what, number,
                   dtypes[d].name, range);
}

MothDType moth_default_dtype(void) {
  return moth_defaults()->dtype;
}

MothStatus moth_set_default_dtype(MothDType d) {
  if (!moth_dtype_is_float(d))
    return moth_fail(MOTH_ERR_TYPE, "set_default_dtype: expected a floating-point dtype, got %s",
                     moth_dtype_name(d));
  moth_defaults()->dtype = d;
  return MOTH_OK;
}

/* The bits of a value as an integer of dtype d. Floats as m_from_f64 of the kernels: towards zero, out of range the
 * nearest limit, NaN 0; integers wrap. */
static uint64_t to_bits(MothDType d, MothValue v) {
  if (v.tag != MOTH_V_FLOAT)
    return v.tag == MOTH_V_BOOL ? (uint64_t)v.u.b : (uint64_t)v.u.i;
  MothLimits l = moth_dtype_limits(d);
  double x = v.u.d;
  if (!(x == x))
    return 0;
  if (x <= (double)l.low)
    return (uint64_t)l.low;
  if (x >= (double)l.high)
    return l.high;
  return x < 0 ? (uint64_t)(int64_t)x : (uint64_t)x;
}

/* For rounding to 16 bits: see math.h. */
static double to_odd(MothValue v) {
  if (v.tag != MOTH_V_INT)
    return moth_as_double(v);
  return v.n ? m_u64_to_odd((uint64_t)v.u.i) : m_i64_to_odd(v.u.i);
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
  case MOTH_UINT8:
    *(uint8_t *)element = (uint8_t)to_bits(d, v);
    break;
  case MOTH_INT16:
  case MOTH_UINT16:
    *(uint16_t *)element = (uint16_t)to_bits(d, v);
    break;
  case MOTH_INT32:
  case MOTH_UINT32:
    *(uint32_t *)element = (uint32_t)to_bits(d, v);
    break;
  case MOTH_INT64:
  case MOTH_UINT64:
    *(uint64_t *)element = to_bits(d, v);
    break;
  case MOTH_BOOL:
    *(uint8_t *)element = v.tag == MOTH_V_FLOAT ? v.u.d != 0 : v.u.i != 0;
    break;
  case MOTH_COMPLEX64:
    *(MothComplex64 *)element = (MothComplex64){(float)moth_as_double(v), 0};
    break;
  case MOTH_COMPLEX128:
    *(MothComplex128 *)element = (MothComplex128){moth_as_double(v), 0};
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
  case MOTH_UINT16:
    return moth_v_int(*(const uint16_t *)element);
  case MOTH_UINT32:
    return moth_v_int(*(const uint32_t *)element);
  case MOTH_UINT64:
    return moth_v_uint(*(const uint64_t *)element);
  case MOTH_BOOL:
    return moth_v_bool(*(const uint8_t *)element != 0);
  case MOTH_COMPLEX64:
    return moth_v_float((double)((const MothComplex64 *)element)->re);
  case MOTH_COMPLEX128:
    return moth_v_float(((const MothComplex128 *)element)->re);
  case MOTH_NDTYPES:
    break;
  }
  return moth_v_none();
}

double moth_dtype_epsilon(MothDType d) {
  switch (d) {
  case MOTH_FLOAT64:
  case MOTH_COMPLEX128:
    return 0x1p-52;
  case MOTH_FLOAT32:
  case MOTH_COMPLEX64:
    return 0x1p-23;
  case MOTH_FLOAT16:
    return 0x1p-10;
  case MOTH_BFLOAT16:
    return 0x1p-7;
  default:
    return 0;
  }
}
