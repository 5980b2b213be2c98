/* Properties of dtypes, all derived from MOTH_DTYPE_LIST. */
#ifndef MOTH_CORE_DTYPE_H
#define MOTH_CORE_DTYPE_H
#include "moth.h"

enum { MOTH_CLASS_BOOL, MOTH_CLASS_INT, MOTH_CLASS_FLOAT, MOTH_CLASS_COMPLEX };

int moth_dtype_class(MothDType d);
/* The code of a name, or -1. */
MOTH_API int moth_dtype_find(const char *name);

/* Ops have it only if their records say so: uint16, uint32, uint64 and the complex ones. */
static inline bool moth_dtype_is_opt_in(MothDType d) {
  return d >= MOTH_UINT16 && d < MOTH_NDTYPES;
}
/* For storage and exchange: uint16, uint32, uint64. They promote with floats and complex dtypes only. */
static inline bool moth_dtype_is_stored(MothDType d) {
  return d >= MOTH_UINT16 && d <= MOTH_UINT64;
}
static inline bool moth_dtype_is_complex(MothDType d) {
  return d == MOTH_COMPLEX64 || d == MOTH_COMPLEX128;
}
/* Float or complex: what can have a gradient. */
static inline bool moth_dtype_is_inexact(MothDType d) {
  return moth_dtype_is_float(d) || moth_dtype_is_complex(d);
}
/* The dtype of the parts of a complex one; others as they are. */
static inline MothDType moth_dtype_real(MothDType d) {
  return d == MOTH_COMPLEX64 ? MOTH_FLOAT32 : d == MOTH_COMPLEX128 ? MOTH_FLOAT64 : d;
}
/* The complex dtype whose parts hold a dtype: complex128 for float64 and complex128, else complex64. */
static inline MothDType moth_dtype_complex(MothDType d) {
  return d == MOTH_FLOAT64 || d == MOTH_COMPLEX128 ? MOTH_COMPLEX128 : MOTH_COMPLEX64;
}
/* The least and the largest number of an integer dtype or of bool. */
typedef struct MothLimits {
  int64_t low;
  uint64_t high;
} MothLimits;
MOTH_API MothLimits moth_dtype_limits(MothDType d);
/* Whether a number is in the range of a dtype: for integers after truncation; for floats unless it is finite and
 * rounds to infinity; bool takes all. The error names `what`, number, dtype and range. */
MOTH_API bool moth_dtype_fits(MothDType d, MothValue v);
MOTH_API MothStatus moth_dtype_check_number(MothDType d, MothValue v, const char *what);
/* Whether there is a common dtype of a and b: *out. */
MOTH_API MothStatus moth_dtype_common(MothDType a, MothDType b, MothDType *out);

/* Converts a value to one element of dtype d, and back; of a complex element its real part. */
MOTH_API void moth_dtype_store(MothDType d, void *element, MothValue v);
MOTH_API MothValue moth_dtype_load(MothDType d, const void *element);

/* The distance from 1 to the next larger number; 0 for integers. */
MOTH_API double moth_dtype_epsilon(MothDType d);

/* A float as an integer: towards zero, out of range the nearest limit, NaN 0. */
static inline int64_t moth_whole(double d) {
  return d >= 0x1p63 ? INT64_MAX : d > -0x1p63 ? (int64_t)d : d == d ? INT64_MIN : 0;
}
static inline double moth_as_double(MothValue v) {
  return v.tag == MOTH_V_FLOAT ? v.u.d : v.n ? (double)(uint64_t)v.u.i : (double)v.u.i;
}
static inline int64_t moth_as_whole(MothValue v) {
  return v.tag == MOTH_V_FLOAT ? moth_whole(v.u.d) : v.u.i;
}
#endif
