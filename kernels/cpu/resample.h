/* Arguments of the typed kernels of kernels/cpu/typed/resample.h, set by kernels/cpu/resample.c. */
#ifndef MOTH_CPU_RESAMPLE_H
#define MOTH_CPU_RESAMPLE_H
#include <stdint.h>

/* Row i of the result is the sum of weight[e] times row at[e], for e from start[i] up to start[i + 1]. */
typedef struct MothResample {
  const int64_t *start, *at;
  const void *weight;
  int64_t from, to,
      row; /* rows of the source and of the result; elements from one row to the next */
  const void *in;
  void *out;
  int64_t
      width; /* elements of a row that are computed; of resample_lines: lines, not more than MOTH_LINES */
  void *work; /* of resample_lines: from * MOTH_LINES */
} MothResample;

enum { MOTH_LINES = 16 };
#endif
