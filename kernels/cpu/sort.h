/* Arguments of the typed kernels of sorting (kernels/cpu/typed/sort.h), set by kernels/cpu/sort.c. CUDA makes keys by the
 * size of elements, inside the kernels that use them. */
#ifndef MOTH_CPU_SORT_H
#define MOTH_CPU_SORT_H
#include <stdbool.h>
#include <stdint.h>

/* Keys of n elements, `stride` elements apart. */
typedef struct MothSortKeys {
  uint64_t *keys;
  const void *in;
  int64_t stride, n;
  bool descending;
} MothSortKeys;

/* The first k of a row of n elements, in order; all are `stride` elements apart. */
enum { MOTH_SORT_SHORT = 96 }; /* the most elements, a multiple of 16 */
typedef struct MothShortRow {
  const void *in;
  void *values;
  int64_t *pos; /* from `base` on */
  int64_t n, k, stride, base;
  bool descending;
} MothShortRow;
#endif
