/* Copies between tensors of one dtype, whatever their strides: what contiguous, permute, cat, flip, roll, pad, expand and
 * all that makes a tensor row-major stand on. */
#ifndef MOTH_CPU_REARRANGE_H
#define MOTH_CPU_REARRANGE_H
#include <string.h>

#include "kernels/common/iter.h"

/* Elements by their size: complex numbers are aligned to a half of them, and what lies in a mapped file may be anywhere. */
typedef uint16_t MothTwo __attribute__((aligned(1), may_alias));
typedef uint32_t MothFour __attribute__((aligned(1), may_alias));
typedef uint64_t MothEight __attribute__((aligned(1), may_alias));

/* Operand 0 from operand 1 of an iterator that is prepared; elements of `item` bytes. They do not overlap. */
void moth_rearrange(const MothIter *it, int64_t item);

/* A row of n bytes: a call of memcpy for each row of some hundred bytes takes longer than the copy. */
static inline void moth_copy_row(char *restrict d, const char *restrict s, int64_t n) {
  if (n > 512) {
    memcpy(d, s, (size_t)n);
  } else if (n >= 16) {
    int64_t i = 0;
    for (; i + 64 <= n; i += 64)
      memcpy(d + i, s + i, 64);
    for (; i + 16 <= n; i += 16)
      memcpy(d + i, s + i, 16);
    memcpy(d + n - 16, s + n - 16, 16); /* the end, some of it again */
  } else if (n >= 8) {
    memcpy(d, s, 8);
    memcpy(d + n - 8, s + n - 8, 8);
  } else if (n >= 4) {
    memcpy(d, s, 4);
    memcpy(d + n - 4, s + n - 4, 4);
  } else {
    for (int64_t i = 0; i < n; i++)
      d[i] = s[i];
  }
}
#endif
