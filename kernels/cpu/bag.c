/* The largest elements of bags of rows, and the rows where they are. Bags are shared by the threads. */
#include <string.h>

#include "core/parallel.h"
#include "kernels/cpu/util.h"
#include "unpack/near.h"

typedef struct Bags {
  const void *weight;
  const int64_t *index, *starts; /* from 0 */
  void *out;
  int64_t *rows;
  int64_t bags, size, all, base; /* all: how many rows are in the bags */
  bool is_double;
} Bags;

#define BAG_MAX(T)                                                                                 \
  static void bag_max_##T(const Bags *q, int64_t b) {                                              \
    const T *weight = q->weight;                                                                   \
    T *out = (T *)q->out + b * q->size;                                                            \
    int64_t *rows = q->rows + b * q->size;                                                         \
    int64_t to = b + 1 < q->bags ? q->starts[b + 1] : q->all;                                      \
    for (int64_t i = q->starts[b]; i < to; i++) {                                                  \
      const T *row = weight + q->index[i] * q->size;                                               \
      int64_t at = q->index[i] + q->base;                                                          \
      bool first = i == q->starts[b];                                                              \
      for (int64_t d = 0; d < q->size; d++) { /* NaN wins */                                       \
        bool more = first | (row[d] > out[d]) | ((row[d] != row[d]) & (out[d] == out[d]));         \
        out[d] = more ? row[d] : out[d];                                                           \
        rows[d] = more ? at : rows[d];                                                             \
      }                                                                                            \
    }                                                                                              \
    for (int64_t d = 0; d < q->size && to == q->starts[b]; d++) {                                  \
      out[d] = 0;                                                                                  \
      rows[d] = q->base;                                                                           \
    }                                                                                              \
  }
BAG_MAX(float)
BAG_MAX(double)

static void bag_range(void *ctx, int64_t begin, int64_t end) {
  const Bags *q = ctx;
  for (int64_t b = begin; b < end && !moth_stopped(); b++)
    (q->is_double ? bag_max_double : bag_max_float)(q, b);
}

MothStatus moth_cpu_native_bag_max(MothCall *c) {
  MOTH_UNPACK_NATIVE_BAG_MAX(c)
  MothTensor *out = c->results[0].u.t, *w = NULL, *wide = NULL;
  MothDType dtype = out->dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
  int64_t *at = NULL, *from = NULL;
  MothStatus status;
  MOTH_GO(moth_cpu_index(index, index_base, weight->shape[0], -1, "index", &at));
  MOTH_GO(moth_cpu_index(starts, index_base, index->numel + 1, -1, "start", &from));
  for (int64_t b = 0; b < starts->numel && status == MOTH_OK; b++)
    if (b ? from[b] < from[b - 1] : from[b] != 0)
      status = moth_fail(MOTH_ERR_VALUE, "starts must rise from %lld", (long long)index_base);
  MOTH_GO(status);
  if (out->numel == 0)
    goto done;
  MOTH_GO(moth_cpu_contiguous_as(weight, dtype, &w));
  MOTH_GO(moth_tensor_new(2, out->shape, dtype, out->device, &wide));
  Bags q = {.weight = w->data,
            .index = at,
            .starts = from,
            .out = wide->data,
            .rows = (int64_t *)c->results[1].u.t->data,
            .bags = starts->numel,
            .size = out->shape[1],
            .all = index->numel,
            .base = index_base,
            .is_double = dtype == MOTH_FLOAT64};
  moth_parallel_for(q.bags, moth_cpu_grain(q.size * (q.all / q.bags + 1)), bag_range, &q);
  moth_cpu_copy(out, wide);
done:
  moth_cpu_index_free(index, at);
  moth_cpu_index_free(starts, from);
  moth_tensor_release(w);
  moth_tensor_release(wide);
  return status;
}
