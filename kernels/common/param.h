/* A number for a kernel of a dtype, on every device: `d` for float dtypes, `i` for the others. */
#ifndef MOTH_COMMON_PARAM_H
#define MOTH_COMMON_PARAM_H
#include <stdint.h>

typedef union MothParam {
  double d;
  int64_t i;
} MothParam;
#endif
