/* Sums by index. Values of one index are added in the order in which they occur. Strides are in
 * elements. */
#include "kernels/cpu/typed/prelude.h"

#if MOTH_REAL_KIND == 5
#define ADD_TO(o, x) (o) = (stored)(((o) | (x)) != 0)
#else
#define ADD_TO(o, x) (o) = STORE((real)(LOAD(o) + LOAD(x)))
#endif

/* Integers: whether any of n indices is outside [base, base + size). from_0 (unless NULL): the indices less base. */
MOTH_TYPED bool index_outside(const void *in, int64_t n, int64_t base, int64_t size,
                              int64_t *from_0) {
  const stored *a = in;
  uint64_t bad = 0;
  if (from_0)
    MOTH_VECTOR for (int64_t i = 0; i < n; i++) {
      uint64_t v = (uint64_t)(int64_t)a[i] - (uint64_t)base;
      from_0[i] = (int64_t)v;
      bad |= v >= (uint64_t)size;
    }
  else
    for (int64_t i = 0; i < n; i++)
      bad |= (uint64_t)(int64_t)a[i] - (uint64_t)base >= (uint64_t)size;
  return bad != 0;
}

/* `lines` independent lines of n additions: out[index[j * stride]] += src[j * src_stride] within a line,
 * which begins at offsets[0] (out), [1] (index), [2] (src), three for each line. */
MOTH_TYPED void scatter_add_lines(void *out, int64_t out_step, const int64_t *index,
                                  int64_t index_step, const void *src, int64_t src_stride,
                                  int64_t n, int64_t lines, const int64_t *offsets) {
  stored *o = out;
  const stored *a = src;
  if (index_step == 1) {
    for (int64_t l = 0; l < lines; l++, offsets += 3)
      for (int64_t j = 0; j < n; j++)
        ADD_TO(o[offsets[0] + index[offsets[1] + j] * out_step], a[offsets[2] + j * src_stride]);
    return;
  }
  for (int64_t j = 0; j < n; j++)
    for (int64_t l = 0; l < lines; l++) {
      const int64_t *at = offsets + 3 * l;
      ADD_TO(o[at[0] + index[at[1] + j * index_step] * out_step], a[at[2] + j * src_stride]);
    }
}

/* out row index[j] += src row j, j in [0, n); rows of `width` elements, `stride` apart. */
MOTH_TYPED void index_add_rows(void *out, const void *src, const int64_t *index, int64_t n,
                               int64_t width, int64_t stride) {
  for (int64_t j = 0; j < n; j++) {
    stored *o = (stored *)out + index[j] * stride;
    const stored *a = (const stored *)src + j * stride;
    MOTH_VECTOR for (int64_t i = 0; i < width; i++) ADD_TO(o[i], a[i]);
  }
}
