/* Arguments of the typed kernels of sums by index, on every device. */
#ifndef MOTH_COMMON_SCATTER_H
#define MOTH_COMMON_SCATTER_H
#include <stdint.h>

/* out (outer, keys, inner) += src (outer, positions, inner): row j of the source goes to the row of out that its key
 * names. Row-major. */
typedef struct MothScatter {
  void *out;
  const void *src;
  int64_t outer, keys, positions, inner;
  const struct MothPairs
      *pairs;           /* CUDA: keys and positions; those with a key from `keys` on are skipped */
  const int64_t *index; /* the CPU: the keys, checked */
  int64_t cols; /* the CPU, by rows: of the inner ones those from out and src on, of one outer */
  /* The CPU, by lines: independent lines of `positions` additions, out[index[j * index_stride] * out_stride] +=
   * src[j * src_stride]. A line begins at offsets[0] (out), [1] (index), [2] (src), three for each line. */
  int64_t lines, out_stride, index_stride, src_stride;
  const int64_t *offsets;
} MothScatter;

/* The CPU: a check whether any of n indices is outside of [base, base + size). */
typedef struct MothIndexCheck {
  const int64_t *in;
  int64_t n, base, size;
  int64_t *from_0; /* NULL, or where the indices less base go */
} MothIndexCheck;
#endif
