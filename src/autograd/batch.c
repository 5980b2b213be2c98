/* Ways into and out of a batch (dispatch/batch.h), with their derivatives. */
#include "dispatch/batch.h"

#include "autograd/node.h"
#include "autograd/tangent.h"
#include "core/alloc.h"
#include "core/dtype.h"
#include "ops/reduce.h"
#include "ops/view.h"

typedef struct Way {
  uint64_t level;
  int64_t size;
  int dim;
} Way;

static void drop_way(MothNode *n) {
  moth_free(n->ctx, sizeof(Way));
}

static MothStatus enter_backward(MothNode *n, MothTensor *const *grads, uint32_t need,
                                 MothTensor **out);

/* Records that `out` was made of t, where autograd records. */
static MothStatus record(const char *name, MothBackward backward, Way way, MothTensor *t,
                         MothTensor **out) {
  if (moth_thread.no_grad || !moth_tensor_requires_grad(t) ||
      !moth_dtype_is_inexact((MothDType)t->dtype))
    return MOTH_OK;
  Way *w = moth_alloc(sizeof *w);
  MothNode *n = NULL;
  MothStatus s = w ? MOTH_OK : moth_no_memory(sizeof *w);
  if (s == MOTH_OK) {
    *w = way;
    s = moth_function_record(name, backward, drop_way, w, &t, 1, out, 1, 0, &n);
  }
  if (s == MOTH_OK) {
    /* In backward of a way out, a tensor of the batch is made outside of it; and the other way round. */
    if (backward == enter_backward && n->level < way.level)
      n->level = way.level;
    else if (backward != enter_backward && n->level == way.level)
      n->level = way.level - 1;
    moth_node_release(n);
    return MOTH_OK;
  }
  moth_free(w, sizeof *w);
  moth_tensor_release(*out);
  return s;
}

static MothStatus enter_backward(MothNode *n, MothTensor *const *grads, uint32_t need,
                                 MothTensor **out) {
  const Way *w = n->ctx;
  (void)need;
  return moth_batch_leave(grads[0], w->dim, w->level, w->size, out);
}
static MothStatus leave_backward(MothNode *n, MothTensor *const *grads, uint32_t need,
                                 MothTensor **out) {
  const Way *w = n->ctx;
  (void)need;
  return moth_batch_enter(grads[0], w->dim, w->level, out);
}
static MothStatus sum_backward(MothNode *n, MothTensor *const *grads, uint32_t need,
                               MothTensor **out) {
  (void)n, (void)need;
  moth_tensor_retain(grads[0]); /* the same for each of the batch */
  *out = grads[0];
  return MOTH_OK;
}

static MothStatus enter_tangent(void *ctx, MothTensor *t, MothTensor **out) {
  const Way *w = ctx;
  return moth_batch_enter(t, w->dim, w->level, out);
}
static MothStatus leave_tangent(void *ctx, MothTensor *t, MothTensor **out) {
  const Way *w = ctx;
  return moth_batch_leave(t, w->dim, w->level, w->size, out);
}
static MothStatus sum_tangent(void *ctx, MothTensor *t, MothTensor **out) {
  const Way *w = ctx;
  int64_t size, dim = 0;
  MothTensor *all;
  if (!moth_batch_has(t, w->level, &size))
    size = w->size;
  MOTH_TRY(moth_batch_leave(t, 0, w->level, size, &all));
  MothStatus s = moth_sum(all, moth_v_ints(&dim, 1), false, moth_v_none(), out);
  moth_tensor_release(all);
  return s;
}

/* Gives *out, made of t by a way, its history and the tangents of t, which go the same way. */
static MothStatus complete(const char *name, MothBackward backward,
                           MothStatus (*tangent)(void *, MothTensor *, MothTensor **), Way way,
                           MothTensor *t, MothTensor **out) {
  MOTH_TRY(record(name, backward, way, t, out));
  MothStatus s = moth_tangents_map(*out, t, tangent, &way);
  if (s != MOTH_OK)
    moth_tensor_release(*out);
  return s;
}

MothStatus moth_batch_enter(MothTensor *t, int dim, uint64_t level, MothTensor **out) {
  MothTensor *plain;
  MOTH_TRY(moth_settle("vmap"));
  MOTH_TRY(moth_tensor_alias(t, false, &plain));
  MothStatus s = moth_batch_wrap(plain, dim, level, out);
  moth_tensor_release(plain);
  MOTH_TRY(s);
  return complete("VmapInput", enter_backward, enter_tangent, (Way){level, t->shape[dim], dim}, t,
                  out);
}

MothStatus moth_batch_leave(MothTensor *t, int dim, uint64_t level, int64_t size,
                            MothTensor **out) {
  MothTensor *front = NULL, *result = NULL;
  int64_t shape[MOTH_MAX_DIMS], order[MOTH_MAX_DIMS], have;
  MOTH_TRY(moth_settle("vmap"));
  if (!moth_batch_has(t, level, &have)) { /* the same for all */
    if (t->ndim + 1 > MOTH_MAX_DIMS)
      return moth_fail(MOTH_ERR_VALUE, "vmap: the result has too many dimensions");
    MOTH_TRY(moth_unsqueeze(t, dim, &front));
    for (int i = 0; i <= t->ndim; i++)
      shape[i] = i == dim ? size : front->shape[i];
    MothStatus s = moth_expand(front, shape, front->ndim, out);
    moth_tensor_release(front);
    return s;
  }
  MOTH_TRY(moth_batch_unwrap(t, level, &front));
  bool records = moth_thread.no_grad;
  for (int i = 0; i < front->ndim; i++)
    order[i] = i < dim ? i + 1 : i == dim ? 0 : i;
  moth_thread.no_grad = true;
  MothStatus s = dim ? moth_permute(front, order, front->ndim, &result)
                     : moth_tensor_alias(front, false, &result);
  moth_thread.no_grad = records;
  moth_tensor_release(front);
  MOTH_TRY(s);
  if (result->base) { /* it is no view of what the function's ops know */
    MothTensor *base = result->base;
    result->base = NULL;
    moth_tensor_release(base);
  }
  *out = result;
  return complete("VmapOutput", leave_backward, leave_tangent, (Way){level, have, dim}, t, out);
}

MothStatus moth_batch_sum_out(uint64_t level, MothTensor **grad) {
  for (;;) {
    MothTensor *g = *grad, *front, *sum = NULL;
    uint64_t of = 0;
    for (const MothBatch *b = moth_batch_of(g); b && !of; b = moth_batch_of(b->physical))
      if (b->level > level && !moth_vmap_find(b->level))
        of = b->level;
    if (!of)
      return MOTH_OK;
    MOTH_TRY(moth_batch_unwrap(g, of, &front));
    bool records = moth_thread.no_grad;
    int64_t dim = 0, size = front->shape[0];
    moth_thread.no_grad = true;
    MothStatus s = moth_sum(front, moth_v_ints(&dim, 1), false, moth_v_none(), &sum);
    moth_thread.no_grad = records;
    moth_tensor_release(front);
    MOTH_TRY(s);
    MOTH_TRY(complete("VmapSum", sum_backward, sum_tangent, (Way){of, size, 0}, g, &sum));
    moth_tensor_release(g);
    *grad = sum;
  }
}
