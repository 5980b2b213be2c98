/* Arguments of the kernels of sparse matrices in rows. */
#ifndef MOTH_COMMON_SPARSE_H
#define MOTH_COMMON_SPARSE_H
#include <stdbool.h>
#include <stdint.h>

/* crow [rows + 1] and cols [nnz] are positions from `base` on. mm: out [rows][k] of values [nnz] and b [.][k]; dot: out
 * [nnz] of a [rows][k] and b. pairs: complex numbers, of k / 2 columns. */
typedef struct MothSparse {
  const int64_t *crow, *cols;
  int64_t base, rows, nnz, k;
  bool pairs;
  const void *values, *a, *b;
  void *out;
  int64_t from, to; /* the CPU: the rows to compute */
} MothSparse;
#endif
