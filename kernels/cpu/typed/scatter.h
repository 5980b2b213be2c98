/* Sums by index. Values of one index are added in the order in which they occur. Strides are in
 * elements. */
#include "kernels/common/scatter.h"
#include "kernels/cpu/typed/prelude.h"

#if MOTH_REAL_KIND == 5
#define ADD_TO(o, x) (o) = (stored)(((o) | (x)) != 0)
#else
#define ADD_TO(o, x) (o) = STORE((real)(LOAD(o) + LOAD(x)))
#endif

/* Whether any index is outside: for indices of this dtype, int64. */
MOTH_TYPED bool index_outside(const struct MothIndexCheck *q) {
  const stored *a = (const stored *)(const void *)q->in;
  const int64_t n = q->n;
  const uint64_t base = (uint64_t)q->base, size = (uint64_t)q->size;
  int64_t *from_0 = q->from_0;
  uint64_t bad = 0;
  if (from_0)
    MOTH_VECTOR for (int64_t i = 0; i < n; i++) {
      uint64_t v = (uint64_t)(int64_t)a[i] - base;
      from_0[i] = (int64_t)v;
      bad |= v >= size;
    }
  else
    for (int64_t i = 0; i < n; i++)
      bad |= (uint64_t)(int64_t)a[i] - base >= size;
  return bad != 0;
}

MOTH_TYPED void scatter_add_lines(const struct MothScatter *q) {
  stored *o = q->out;
  const stored *a = q->src;
  const int64_t *index = q->index, *offsets = q->offsets;
  const int64_t n = q->positions, lines = q->lines;
  const int64_t out_step = q->out_stride, index_step = q->index_stride, src_step = q->src_stride;
  if (index_step == 1) {
    for (int64_t l = 0; l < lines; l++, offsets += 3)
      for (int64_t j = 0; j < n; j++)
        ADD_TO(o[offsets[0] + index[offsets[1] + j] * out_step], a[offsets[2] + j * src_step]);
    return;
  }
  for (int64_t j = 0; j < n; j++)
    for (int64_t l = 0; l < lines; l++) {
      const int64_t *at = offsets + 3 * l;
      ADD_TO(o[at[0] + index[at[1] + j * index_step] * out_step], a[at[2] + j * src_step]);
    }
}

MOTH_TYPED void scatter_add_rows(const struct MothScatter *q) {
  const int64_t width = q->cols;
  for (int64_t j = 0; j < q->positions; j++) {
    stored *o = (stored *)q->out + q->index[j] * q->inner;
    const stored *a = (const stored *)q->src + j * q->inner;
    MOTH_VECTOR for (int64_t i = 0; i < width; i++) ADD_TO(o[i], a[i]);
  }
}
