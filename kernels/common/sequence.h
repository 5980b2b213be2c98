/* Arguments of the typed kernels that fill memory from numbers, on every device. */
#ifndef MOTH_COMMON_SEQUENCE_H
#define MOTH_COMMON_SEQUENCE_H
#include "kernels/common/param.h"

typedef struct MothSequence {
  void *out;
  int64_t n;
  MothParam value;         /* fill */
  double start, step, end; /* arange: start + i * step; linspace: from start to end */
} MothSequence;
#endif
