/* The largest elements of bags of rows, and the rows where they are: strips of columns, whose elements a vector compares. */
#include "kernels/cpu/bag.h"
#include "kernels/cpu/typed/prelude.h"

#if MOTH_IS_FLOAT
/* Places in a stretch of a bag are as wide as elements, so that one mask chooses both. */
typedef __typeof__(__builtin_choose_expr(sizeof(real) == 8, (int64_t)0, (int32_t)0)) bag_place;
enum { BAG_STRIP = 64, BAG_STRETCH = 1 << 30, BAG_AHEAD = 8 };

/* Columns d to d + n of the rows [from, to) of the bag that begins at `begin`. */
MOTH_FN void bag_strip(const struct MothBags *q, int64_t begin, int64_t from, int64_t to, int64_t d,
                       int64_t n, stored *out, int64_t *rows) {
  const stored *weight = (const stored *)q->weight + d;
  const stored *first = from == begin ? weight + q->index[from] * q->size : out;
  real best[BAG_STRIP];
  bag_place at[BAG_STRIP];
  for (int64_t k = 0; k < n; k++) {
    best[k] = LOAD(first[k]);
    at[k] = from == begin ? 0 : -1;
  }
  for (int64_t j = from; j < to; j++) {
    const stored *row = weight + q->index[j] * q->size;
    const bag_place here = (bag_place)(j - from);
    if (j + BAG_AHEAD < q->all) {
      const char *next = (const char *)(weight + q->index[j + BAG_AHEAD] * q->size);
      for (int64_t i = 0; i < n * (int64_t)sizeof(stored); i += 64)
        __builtin_prefetch(next + i);
    }
    MOTH_VECTOR for (int64_t k = 0; k < n; k++) { /* NaN wins */
      real x = LOAD(row[k]), y = best[k];
      bool more = (x > y) | ((x != x) & (y == y));
      best[k] = more ? x : y;
      at[k] = more ? here : at[k];
    }
  }
  for (int64_t k = 0; k < n; k++) {
    out[k] = STORE(best[k]);
    rows[k] = at[k] < 0 ? rows[k] : q->index[from + at[k]] + q->base;
  }
}
#endif

MOTH_TYPED_FLOAT void bag_max(const struct MothBags *q) {
#if MOTH_IS_FLOAT
  for (int64_t b = q->from; b < q->to; b++) {
    int64_t begin = q->starts[b], end = b + 1 < q->bags ? q->starts[b + 1] : q->all;
    stored *out = (stored *)q->out + b * q->size;
    int64_t *rows = q->rows + b * q->size;
    for (int64_t d = 0; d < q->size && begin == end; d++) {
      out[d] = STORE((real)0);
      rows[d] = q->base;
    }
    for (int64_t from = begin, to; from < end; from = to) {
      int64_t d = 0;
      to = end - from < BAG_STRETCH ? end : from + BAG_STRETCH;
      for (; d + BAG_STRIP <= q->size; d += BAG_STRIP)
        bag_strip(q, begin, from, to, d, BAG_STRIP, out + d, rows + d);
      if (d < q->size)
        bag_strip(q, begin, from, to, d, q->size - d, out + d, rows + d);
    }
  }
#endif
}
