/* Facts about dtypes, all drawn from MOTH_DTYPE_LIST. */
#ifndef MOTH_CORE_DTYPE_H
#define MOTH_CORE_DTYPE_H
#include "moth.h"

enum { MOTH_CLASS_BOOL, MOTH_CLASS_INT, MOTH_CLASS_FLOAT };

int moth_dtype_class(MothDType d);
/* The code of a name, or -1. */
MOTH_API int moth_dtype_find(const char *name);

/* A number as the element type reads it: conversions between a value and one element. */
MOTH_API void moth_dtype_store(MothDType d, void *element, MothValue v);
MOTH_API MothValue moth_dtype_load(MothDType d, const void *element);

/* The distance from 1 to the next larger number; 0 for integers. */
MOTH_API double moth_dtype_epsilon(MothDType d);

static inline double moth_as_double(MothValue v) {
  return v.tag == MOTH_V_FLOAT ? v.u.d : (double)v.u.i;
}
#endif
