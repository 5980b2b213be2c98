/* Arguments of the typed kernel of sorting (kernels/cpu/typed/sort.h), set by kernels/cpu/sort.c. CUDA makes keys by the
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
#endif
