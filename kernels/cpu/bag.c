/* The largest elements of bags of rows, and the rows where they are. Bags are shared by the threads. */
#include "kernels/cpu/bag.h"

#include "core/parallel.h"
#include "kernels/cpu/util.h"
#include "unpack/near.h"

typedef struct Bags {
  MothBags bags;
  const MothKernels *kernels;
} Bags;

static void bag_range(void *ctx, int64_t begin, int64_t end) {
  const Bags *w = ctx;
  MothBags q = w->bags;
  for (int64_t b = begin; b < end && !moth_stopped(); b++) {
    q.from = b;
    q.to = b + 1;
    w->kernels->bag_max(&q);
  }
}

MothStatus moth_cpu_native_bag_max(MothCall *c) {
  MOTH_UNPACK_NATIVE_BAG_MAX(c)
  MothTensor *out = c->results[0].u.t, *w = NULL;
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
  MOTH_GO(moth_cpu_contiguous(weight, &w));
  Bags q = {.bags = {.weight = w->data,
                     .index = at,
                     .starts = from,
                     .out = out->data,
                     .rows = (int64_t *)c->results[1].u.t->data,
                     .bags = starts->numel,
                     .size = out->shape[1],
                     .all = index->numel,
                     .base = index_base},
            .kernels = moth_cpu_kernels(out->dtype)};
  moth_parallel_for(q.bags.bags, moth_cpu_grain(q.bags.size * (q.bags.all / q.bags.bags + 1)),
                    bag_range, &q);
done:
  moth_cpu_index_free(index, at);
  moth_cpu_index_free(starts, from);
  moth_tensor_release(w);
  return status;
}
