/* Positions in sorted tables. The values of a block are searched in step, by the same halves of the table and without
 * branches: while one waits for memory the others go on. */
#include "core/parallel.h"
#include "kernels/cpu/util.h"
#include "unpack/statistics.h"

enum { BLOCK = 16 };

typedef struct Search {
  const void *table, *wanted;
  int64_t *out;
  int64_t n, each, base; /* sizes of a table and of the values that are searched in it */
  bool right;
  /* values from to to - 1, in the table that begins at element `first` */
  void (*block)(const struct Search *s, int64_t first, int64_t from, int64_t to);
} Search;

/* How many elements of the table come before each value: `at` of them do so, and of the `left` ones behind these it is not
 * known yet. NaN is larger than all numbers: in the table it is before none, as a value it comes behind all. */
#define SEARCH(T)                                                                                  \
  static inline __attribute__((always_inline)) void steps_##T(                                     \
      const T *table, const T *x, int64_t n, int64_t count, bool right, int64_t *at) {             \
    for (int64_t left = n, half; left > 0; left -= half) {                                         \
      half = (left + 1) / 2;                                                                       \
      for (int64_t k = 0; k < count; k++) {                                                        \
        const T middle = table[at[k] + half - 1];                                                  \
        at[k] += (right ? middle <= x[k] : middle < x[k]) ? half : 0;                              \
      }                                                                                            \
    }                                                                                              \
  }                                                                                                \
  static void block_##T(const Search *s, int64_t first, int64_t from, int64_t to) {                \
    const T *table = (const T *)s->table + first, *x = (const T *)s->wanted + from;                \
    int64_t at[BLOCK] = {0};                                                                       \
    if (to - from < BLOCK)                                                                         \
      steps_##T(table, x, s->n, to - from, s->right, at);                                          \
    else if (s->right)                                                                             \
      steps_##T(table, x, s->n, BLOCK, true, at);                                                  \
    else                                                                                           \
      steps_##T(table, x, s->n, BLOCK, false, at);                                                 \
    for (int64_t k = 0; k < to - from; k++)                                                        \
      s->out[from + k] = s->base + (x[k] == x[k] ? at[k] : s->n);                                  \
  }
SEARCH(float)
SEARCH(double)
SEARCH(int8_t)
SEARCH(uint8_t)
SEARCH(int16_t)
SEARCH(int32_t)
SEARCH(int64_t)

static void search_range(void *ctx, int64_t begin, int64_t end) {
  const Search *s = ctx;
  while (begin < end) {
    int64_t table = begin / s->each;
    int64_t to = moth_min64(moth_min64(begin + BLOCK, end), (table + 1) * s->each);
    s->block(s, table * s->n, begin, to);
    begin = to;
  }
}

MothStatus moth_cpu_native_searchsorted(MothCall *c) {
  MOTH_UNPACK_NATIVE_SEARCHSORTED(c)
  MothTensor *out = c->results[0].u.t, *in = NULL, *x = NULL;
  MothDType dtype = (MothDType)table->dtype;
  MothStatus status;
  if (out->numel == 0)
    return MOTH_OK;
  if (dtype == MOTH_FLOAT16 || dtype == MOTH_BFLOAT16)
    dtype = MOTH_FLOAT32;
  Search s = {.out = (int64_t *)out->data,
              .n = table->shape[table->ndim - 1],
              .each = table->ndim == 1 ? out->numel : wanted->shape[wanted->ndim - 1],
              .base = index_base,
              .right = right};
  switch (dtype) {
  case MOTH_FLOAT32:
    s.block = block_float;
    break;
  case MOTH_FLOAT64:
    s.block = block_double;
    break;
  case MOTH_INT8:
    s.block = block_int8_t;
    break;
  case MOTH_INT16:
    s.block = block_int16_t;
    break;
  case MOTH_INT32:
    s.block = block_int32_t;
    break;
  case MOTH_INT64:
    s.block = block_int64_t;
    break;
  default: /* uint8, bool */
    s.block = block_uint8_t;
  }
  int64_t cost = 2;
  for (int64_t n = s.n; n > 0; n /= 2)
    cost += 2;
  MOTH_GO(moth_cpu_contiguous_as(table, dtype, &in));
  MOTH_GO(moth_cpu_contiguous_as(wanted, dtype, &x));
  s.table = in->data;
  s.wanted = x->data;
  moth_parallel_for(out->numel, moth_cpu_grain(cost), search_range, &s);
done:
  moth_tensor_release(in);
  moth_tensor_release(x);
  return status;
}
