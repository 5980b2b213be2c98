/* Views and in-place ops.
 *
 * A view knows its base. When a view is written to in place by a recorded op, the base gets a new
 * history: a CopySlices node that passes on the base's gradient with the written part replaced by the
 * result of the op's backward. The view itself, and every other view of that base, then has a stale
 * node; it is replaced by an as_strided of the base when it is next needed (versions tell whether a node is stale). */
#include <sched.h>
#include <string.h>

#include "autograd/formulas.h"
#include "autograd/node.h"
#include "core/alloc.h"
#include "core/dtype.h"
#include "ops/create.h"
#include "ops/view.h"

typedef struct Slice {
  MothNode *fn;    /* the node of the op that wrote */
  int input;       /* of fn: the view */
  MothDType dtype; /* of the view; the base's may be a complex one */
  int ndim, base_ndim;
  int64_t shape[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS], offset;
  int64_t base_stride[MOTH_MAX_DIMS],
      extent; /* of the base, extent 0 if it is contiguous; else its elements' span */
} Slice;

static void drop_slice(MothNode *n) {
  Slice *s = n->ctx;
  moth_node_release(s->fn);
  moth_free(s, sizeof *s);
}

MothStatus moth_seen_as(MothTensor *t, MothDType dtype, MothTensor **out) {
  if ((MothDType)t->dtype == dtype) {
    moth_tensor_retain(t);
    *out = t;
    return MOTH_OK;
  }
  if (!moth_dtype_is_complex(dtype))
    return moth_view_as_real(t, out);
  if (t->contiguous && t->ndim && t->shape[t->ndim - 1] == 2 && t->offset % 2 == 0)
    return moth_view_as_complex(t, out);
  MothTensor *pairs;
  int64_t shape[2] = {(int64_t)t->storage->nbytes / moth_itemsize(t) / 2, 2}, stride[2] = {2, 1};
  MOTH_TRY(moth_as_strided(t, shape, 2, stride, 2, moth_v_int(0), &pairs));
  MothStatus status = moth_view_as_complex(pairs, out);
  moth_tensor_release(pairs);
  return status;
}

static MothStatus slice_of(const Slice *s, MothTensor *t, MothTensor **out) {
  MothTensor *seen;
  MOTH_TRY(moth_seen_as(t, s->dtype, &seen));
  MothStatus status = moth_as_strided(seen, s->shape, s->ndim, s->stride, s->ndim,
                                      moth_v_int(seen->offset + s->offset), out);
  moth_tensor_release(seen);
  return status;
}

/* A copy of the base's gradient with the base's strides, so that the slice has the same geometry in it. The caller
 * releases *out, if not NULL, also after an error. */
static MothStatus copy_of_gradient(const Slice *s, MothTensor *grad, MothTensor **out) {
  MothTensor *flat;
  if (s->extent == 0)
    return moth_clone(grad, out);
  MOTH_TRY(moth_zeros_as(grad, &s->extent, 1, &flat));
  MothStatus status = moth_as_strided(flat, grad->shape, grad->ndim, s->base_stride, s->base_ndim,
                                      moth_v_int(flat->offset), out);
  moth_tensor_release(flat);
  return status == MOTH_OK ? moth_copy_(*out, grad, false) : status;
}

static MothStatus copy_slices(MothNode *n, MothTensor *const *grads, uint32_t need,
                              MothTensor **out) {
  Slice *s = n->ctx;
  MothTensor *whole = NULL, *part = NULL, *dense = NULL;
  MothTensor *inner[MOTH_MAX_ARGS + 1] = {NULL};
  MothStatus status = MOTH_OK;
  if (s->fn->released)
    return moth_fail(MOTH_ERR_STATE,
                     "Trying to backward through the graph a second time: %s has freed "
                     "what it saved. Call the first backward with {retain_graph = true}",
                     s->fn->name);
  if (!(need >> s->input & 1) && s->extent == 0 && grads[0]->contiguous) {
    /* nothing was recorded of the base before: of its gradient only the written part is asked for */
    MOTH_GO(slice_of(s, grads[0], &part));
    MOTH_GO(moth_clone(part, &dense));
    status = s->fn->backward(s->fn, &dense, need, out);
    goto done;
  }
  MOTH_GO(copy_of_gradient(s, grads[0], &whole));
  MOTH_GO(slice_of(s, whole, &part));
  MOTH_GO(moth_clone(part, &dense));
  uint32_t all = 0;
  for (int i = 0; i < n->ninputs; i++)
    all |= 1u << i;
  MOTH_GO(s->fn->backward(s->fn, &dense, (need | 1u << s->input) & all, inner));
  if (inner[s->input]) {
    MOTH_GO(moth_copy_(part, inner[s->input], false));
  } else {
    MOTH_GO(moth_zero_(part));
  }
  for (int i = 0; i < n->ninputs; i++) {
    MothTensor **from = i == s->input ? &whole : &inner[i];
    out[i] = *from;
    *from = NULL;
  }
done:
  moth_tensor_release(whole);
  moth_tensor_release(part);
  moth_tensor_release(dense);
  for (int i = 0; i < n->ninputs && i <= MOTH_MAX_ARGS; i++)
    moth_tensor_release(inner[i]);
  return status;
}

MothStatus moth_rebase_history(MothTensor *view, MothNode *fn, int input) {
  MothTensor *base = view->base;
  if (fn->nresults > 1)
    return moth_fail(
        MOTH_ERR_STATE,
        "%s has written to a view in place and has %d results: expected the view alone. "
        "Write to view:clone(), or give the others by a function of their own",
        fn->name, fn->nresults);
  if (fn->ninputs > MOTH_MAX_ARGS)
    return moth_fail(MOTH_ERR_STATE, "too many inputs for an in-place op on a view");
  Slice *s = moth_alloc(sizeof *s);
  MothNode *n = s ? moth_node_new("CopySlices", fn->ninputs, 0, 0) : NULL;
  if (!n) {
    moth_free(s, sizeof *s);
    return moth_no_memory(0);
  }
  s->fn = fn;
  s->input = input;
  moth_node_retain(fn);
  s->ndim = view->ndim;
  memcpy(s->shape, view->shape, sizeof(int64_t) * view->ndim);
  memcpy(s->stride, view->stride, sizeof(int64_t) * view->ndim);
  s->dtype = (MothDType)view->dtype;
  s->offset = view->offset - base->offset * moth_itemsize(base) / moth_itemsize(view);
  s->base_ndim = base->ndim;
  memcpy(s->base_stride, base->stride, sizeof(int64_t) * base->ndim);
  s->extent = base->contiguous ? 0 : 1;
  for (int i = 0; i < base->ndim && s->extent > 0; i++)
    s->extent += (base->shape[i] - 1) * base->stride[i];
  n->ctx = s;
  n->inner = fn;
  fn->is_inner = true;
  n->drop = drop_slice;
  n->backward = copy_slices;
  for (int i = 0; i <= MOTH_MAX_ARGS; i++)
    n->edge_of[i] = (uint16_t)i;
  MothStatus status = MOTH_OK;
  MOTH_GO(moth_node_set_input(n, input, base, moth_requires_grad(base)));
  for (int i = 0; i < fn->ninputs; i++) {
    if (i == input)
      continue;
    n->inputs[i] = fn->inputs[i];
    n->inputs[i].geometry = NULL;
    if (n->inputs[i].node)
      moth_node_retain(n->inputs[i].node);
  }
  MOTH_GO(moth_set_history(base, n, 0));
  MothNode *again; /* the view's new node, from its base */
  uint16_t nr;
  MothAutogradMeta *m = moth_meta(view);
  if (!m) {
    status = MOTH_ERR_MEMORY;
    goto done;
  }
  m->view_version = -1;
  view->keys |= MOTH_KEY_AUTOGRAD;
  MOTH_GO(moth_gradient_edge(view, &again, &nr));
  moth_node_release(again);
done:
  moth_node_release(n);
  return status;
}

/* Replaces the history of a view, after a write to the base, by an as_strided of the base. */
static MothStatus view_again(MothTensor *view) {
  MothTensor *base = view->base, *fresh;
  uint32_t exclude = moth_thread.exclude;
  bool no_grad = moth_thread.no_grad;
  moth_thread.exclude &= ~(uint32_t)MOTH_KEY_AUTOGRAD;
  moth_thread.no_grad = false;
  MothTensor *seen = NULL;
  MothStatus s = moth_seen_as(base, (MothDType)view->dtype, &seen);
  if (s == MOTH_OK)
    s = moth_as_strided(seen, view->shape, view->ndim, view->stride, view->ndim,
                        moth_v_int(view->offset), &fresh);
  moth_tensor_release(seen);
  moth_thread.exclude = exclude;
  moth_thread.no_grad = no_grad;
  MOTH_TRY(s);
  s = fresh->grad && fresh->grad->node ? moth_set_history(view, fresh->grad->node, 0) : MOTH_OK;
  moth_tensor_release(fresh);
  return s;
}

/* A leaf finds its accumulator by a pointer without a reference, while another thread may be releasing the
 * last one: the lock makes reading and clearing exclusive, and a node whose count has reached zero is not used again
 * but replaced. */
static void lock(MothAutogradMeta *m) {
  while (atomic_flag_test_and_set_explicit(&m->lock, memory_order_acquire))
    sched_yield();
}
static void unlock(MothAutogradMeta *m) {
  atomic_flag_clear_explicit(&m->lock, memory_order_release);
}

static bool retain_living(MothNode *n) {
  int64_t refs = atomic_load_explicit(&n->refs, memory_order_relaxed);
  while (refs > 0)
    if (atomic_compare_exchange_weak_explicit(&n->refs, &refs, refs + 1, memory_order_relaxed,
                                              memory_order_relaxed))
      return true;
  return false;
}

static void drop_accumulator(MothNode *n) {
  MothTensor *t = n->ctx;
  lock(t->grad);
  if (t->grad->accumulator == n)
    t->grad->accumulator = NULL;
  unlock(t->grad);
  moth_tensor_release(t);
}

bool moth_leaf_has_hooks(MothTensor *t) {
  MothAutogradMeta *m = t->grad;
  if (!m)
    return false;
  lock(m);
  bool has = m->hooks || (m->accumulator && m->accumulator->hooks);
  unlock(m);
  return has;
}

static MothStatus accumulator_of(MothTensor *t, MothNode **out) {
  MothAutogradMeta *m = t->grad;
  MothStatus s = MOTH_OK;
  lock(m);
  if (m->accumulator && retain_living(m->accumulator)) {
    *out = m->accumulator;
  } else if ((*out = moth_node_new("AccumulateGrad", 0, 0, 0))) {
    (*out)->seq = MOTH_SEQ_LEAF;
    (*out)->level = m->level;
    (*out)->ctx = t;
    (*out)->drop = drop_accumulator;
    moth_tensor_retain(t);
    moth_use_hooks(m->hooks);
    m->accumulator = *out;
  } else {
    s = MOTH_ERR_MEMORY;
  }
  unlock(m);
  return s;
}

/* Whether a recorded op has written to the base since the view's node was made (or decided not to be needed). */
bool moth_view_is_stale(const MothTensor *t) {
  return t->base && t->base->grad && t->base->grad->node &&
         (!t->grad || t->grad->view_version != *moth_version_of((MothTensor *)t));
}

MothStatus moth_gradient_edge(MothTensor *t, MothNode **node, uint16_t *nr) {
  *node = NULL;
  *nr = 0;
  MothAutogradMeta *m = t->grad;
  if (moth_view_is_stale(t)) {
    MOTH_TRY(view_again(t));
    m = t->grad;
  }
  if (!m || !moth_requires_grad(t))
    return MOTH_OK;
  if (m->node) {
    moth_node_retain(m->node);
    if (__builtin_expect(m->node->hooks != NULL, 0))
      moth_use_hooks(m->node->hooks);
    *node = m->node;
    *nr = m->nr;
    return MOTH_OK;
  }
  return accumulator_of(t, node);
}
