/* The engine: one backward pass.
 *
 * 1. Every node reachable from the roots is visited once and the edges into each are counted (a table
 *    maps a node to its index in the task). With `inputs`, only nodes that lead to one of them run.
 * 2. A heap yields the ready node that was recorded last. Its gradients are complete: all nodes that use its results
 * have run. Hooks get them, captures copy them, missing ones become zeros, and the node's backward function runs. 3.
 * Its results are converted to the shape and dtype of each input and added to the sum so far of the input's node; a
 * leaf's accumulator adds to .grad.
 *
 * A node runs on the stream of its op, leaves accumulate on the caller's. A gradient belongs to the stream on
 * which it was computed: use on another stream waits for that one (sync_stream), and the caller's streams wait for all
 * at the end.
 *
 * All computations are dispatched ops: with create_graph they are recorded. No recursion, one thread. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "autograd/formulas.h"
#include "autograd/node.h"
#include "core/alloc.h"
#include "core/dtype.h"
#include "core/log.h"
#include "device/stream.h"
#include "dispatch/batch.h"
#include "ops/create.h"
#include "ops/pointwise.h"

typedef struct Entry {
  MothNode *node;
  int64_t waiting; /* edges that have not delivered */
  int32_t grads;   /* first slot in the task's gradients */
  int32_t slots;
  bool needed;
  bool visited;
  bool reached; /* by edges that lead here in an uncompiled graph, too */
} Entry;

typedef struct Capture {
  int32_t entry;
  uint16_t nr;
} Capture;

typedef struct Task {
  Entry *entries;
  int32_t n, capacity;
  int32_t *table; /* open addressing: entry + 1 */
  int32_t table_size;
  MothTensor **grads;
  void **streams; /* of each gradient: the stream that computed it; NULL: its device has none */
  void **seen_streams; /* streams that nodes ran on */
  int32_t ngrads, nseen, seen_capacity;
  int32_t *heap;
  int32_t heap_n;
  bool retain, create;
  bool
      counts; /* the reference count tells whether a gradient is shared: not under moth_is_traced */
  bool all;   /* every node runs, not only those that lead to inputs */
  int log;    /* the level of MOTH_LOGS=autograd */
  int32_t ran;
  int64_t id;         /* of the pass */
  struct Task *outer; /* the pass that this one runs in */
} Task;

static _Thread_local Task *running; /* innermost */

bool moth_pass_frees(const MothNode *n) {
  return running && !running->retain && !n->is_inner;
}

static void task_free(Task *t) {
  for (int32_t i = 0; t->grads && i < t->ngrads; i++)
    moth_tensor_release(t->grads[i]);
  for (int32_t i = 0; i < t->n; i++)
    moth_node_release(t->entries[i].node);
  moth_free(t->entries, sizeof(Entry) * (size_t)t->capacity);
  moth_free(t->table, sizeof(int32_t) * (size_t)t->table_size);
  moth_free(t->grads, 2 * sizeof(MothTensor *) * (size_t)(t->ngrads ? t->ngrads : 1));
  moth_free(t->seen_streams, sizeof(void *) * (size_t)t->seen_capacity);
  moth_free(t->heap, sizeof(int32_t) * (size_t)t->capacity);
}

static uint32_t hash(const void *p) {
  return (uint32_t)(((uintptr_t)p >> 6) * 0x9E3779B97F4A7C15ull >> 32);
}

static int32_t find(const Task *t, const MothNode *n) {
  for (uint32_t i = hash(n) & (uint32_t)(t->table_size - 1);;
       i = (i + 1) & (uint32_t)(t->table_size - 1)) {
    if (!t->table[i])
      return -1;
    if (t->entries[t->table[i] - 1].node == n)
      return t->table[i] - 1;
  }
}

static MothStatus grow(Task *t) {
  int32_t capacity = t->capacity ? t->capacity * 2 : 64, size = capacity * 2;
  Entry *entries = moth_alloc(sizeof(Entry) * (size_t)capacity);
  int32_t *table = moth_alloc(sizeof(int32_t) * (size_t)size);
  int32_t *heap = moth_alloc(sizeof(int32_t) * (size_t)capacity);
  if (!entries || !table || !heap) {
    moth_free(entries, sizeof(Entry) * (size_t)capacity);
    moth_free(table, sizeof(int32_t) * (size_t)size);
    moth_free(heap, sizeof(int32_t) * (size_t)capacity);
    return moth_no_memory(0);
  }
  if (t->n)
    memcpy(entries, t->entries, sizeof(Entry) * (size_t)t->n);
  moth_free(t->entries, sizeof(Entry) * (size_t)t->capacity);
  moth_free(t->table, sizeof(int32_t) * (size_t)t->table_size);
  moth_free(t->heap, sizeof(int32_t) * (size_t)t->capacity);
  memset(table, 0, sizeof(int32_t) * (size_t)size);
  t->entries = entries;
  t->table = table;
  t->heap = heap;
  t->capacity = capacity;
  t->table_size = size;
  for (int32_t k = 0; k < t->n; k++) {
    uint32_t i = hash(entries[k].node) & (uint32_t)(size - 1);
    while (table[i])
      i = (i + 1) & (uint32_t)(size - 1);
    table[i] = k + 1;
  }
  return MOTH_OK;
}

static MothStatus add(Task *t, MothNode *n, int32_t *at) {
  if (t->capacity) {
    *at = find(t, n);
    if (*at >= 0)
      return MOTH_OK;
  }
  if (t->n == t->capacity)
    MOTH_TRY(grow(t));
  Entry *e = &t->entries[t->n];
  memset(e, 0, sizeof *e);
  moth_node_retain(n);
  e->node = n;
  e->slots = n->nresults > 1 ? n->nresults : 1;
  e->grads = t->ngrads;
  t->ngrads += e->slots;
  uint32_t i = hash(n) & (uint32_t)(t->table_size - 1);
  while (t->table[i])
    i = (i + 1) & (uint32_t)(t->table_size - 1);
  t->table[i] = ++t->n;
  *at = t->n - 1;
  return MOTH_OK;
}

/* Visits all nodes reachable from the entries. New entries are appended, so the list is its own queue. */
static MothStatus discover(Task *t) {
  for (int32_t i = 0; i < t->n; i++)
    for (int k = 0; k < t->entries[i].node->ninputs; k++) {
      MothNode *to = t->entries[i].node->inputs[k].node;
      int32_t at;
      if (!to)
        continue;
      MOTH_TRY(add(t, to, &at));
      t->entries[at].waiting++;
    }
  return MOTH_OK;
}

/* Marks nodes that lead to a capture. A node is recorded after the nodes of its inputs (and accumulators come
 * first), so in order of seq inputs are decided before their users. */
static MothStatus mark_needed(Task *t) {
  int32_t *order = t->heap; /* the heap is not in use yet */
  for (int32_t i = 0; i < t->n; i++)
    order[i] = i;
    /* heap sort by (is accumulator first, then seq) */
#define KEY(i)                                                                                     \
  (t->entries[order[i]].node->seq == MOTH_SEQ_LEAF ? 0 : t->entries[order[i]].node->seq)
  for (int32_t end = t->n, start = t->n / 2; end > 1;) {
    if (start > 0) {
      start--;
    } else {
      end--;
      int32_t x = order[end];
      order[end] = order[0];
      order[0] = x;
    }
    for (int32_t root = start, child; (child = 2 * root + 1) < end; root = child) {
      if (child + 1 < end && KEY(child) < KEY(child + 1))
        child++;
      if (KEY(root) >= KEY(child))
        break;
      int32_t x = order[root];
      order[root] = order[child];
      order[child] = x;
    }
  }
#undef KEY
  for (int32_t i = 0; i < t->n; i++) {
    Entry *e = &t->entries[order[i]];
    for (int k = 0; k < e->node->ninputs && !e->needed; k++)
      if (e->node->inputs[k].node)
        e->needed = t->entries[find(t, e->node->inputs[k].node)].needed;
  }
  return MOTH_OK;
}

/* --- the heap of ready nodes: largest seq first ------------------------------------------------ */

static bool before(const Task *t, int32_t a, int32_t b) {
  return t->entries[a].node->seq > t->entries[b].node->seq;
}

static void push(Task *t, int32_t e) {
  int32_t i = t->heap_n++;
  while (i > 0 && before(t, e, t->heap[(i - 1) / 2])) {
    t->heap[i] = t->heap[(i - 1) / 2];
    i = (i - 1) / 2;
  }
  t->heap[i] = e;
}

static int32_t pop(Task *t) {
  int32_t top = t->heap[0], last = t->heap[--t->heap_n], i = 0;
  for (;;) {
    int32_t c = 2 * i + 1;
    if (c >= t->heap_n)
      break;
    if (c + 1 < t->heap_n && before(t, t->heap[c + 1], t->heap[c]))
      c++;
    if (!before(t, t->heap[c], last))
      break;
    t->heap[i] = t->heap[c];
    i = c;
  }
  t->heap[i] = last;
  return top;
}

/* --- gradients -------------------------------------------------------------------------------- */

/* Whether nothing else refers to the tensor, so that it may be written to. */
static bool sole(const Task *task, const MothTensor *t) {
  return task->counts && !t->carried && t->refs == 1 && t->storage->refs == 1 && !t->base &&
         t->contiguous && !t->storage->foreign;
}

/* --- streams ---------------------------------------------------------------------------------- */

static const MothDeviceOps *ops_of(const MothTensor *t) {
  return moth_device_ops((MothDeviceType)t->device.type);
}
/* The current stream of t's device; NULL: it has no streams. */
static void *current_stream(const MothTensor *t) {
  const MothDeviceOps *ops = t->device.type == MOTH_CPU ? NULL : ops_of(t);
  return ops && ops->streams ? ops->streams->current(t->device.index) : NULL;
}
/* Orders the use of t on another stream behind its computation. */
static MothStatus sync_stream(MothTensor *t, void *made, void *use) {
  if (made == use || !made || !use)
    return MOTH_OK;
  MOTH_TRY(ops_of(t)->streams->order(made, use));
  return ops_of(t)->streams->record_stream(t, use);
}
/* The stream on which node n uses gradient g. */
static void *stream_for(const MothNode *n, const MothTensor *g) {
  return n->stream && n->stream_type == g->device.type ? n->stream : current_stream(g);
}
/* Notes a stream for which the caller's must wait at the end. */
static MothStatus note_stream(Task *t, void *stream) {
  for (int32_t i = t->nseen - 1; i >= 0; i--)
    if (t->seen_streams[i] == stream)
      return MOTH_OK;
  if (t->nseen == t->seen_capacity) {
    int32_t capacity = t->seen_capacity ? 2 * t->seen_capacity : 8;
    void **seen_streams = moth_alloc(sizeof(void *) * (size_t)capacity);
    if (!seen_streams)
      return moth_no_memory(0);
    if (t->nseen)
      memcpy(seen_streams, t->seen_streams, sizeof(void *) * (size_t)t->nseen);
    moth_free(t->seen_streams, sizeof(void *) * (size_t)t->seen_capacity);
    t->seen_streams = seen_streams;
    t->seen_capacity = capacity;
  }
  t->seen_streams[t->nseen++] = stream;
  return MOTH_OK;
}

/* *slot += grad; takes over the reference to grad. */
static MothStatus accumulate(const Task *t, MothTensor **slot, MothTensor *grad) {
  if (!*slot) {
    *slot = grad;
    return MOTH_OK;
  }
  MothStatus s;
  MothTensor *sum = NULL;
  if (!t->create && sole(t, *slot)) {
    s = moth_add_(moth_v_tensor(*slot), moth_v_tensor(grad), moth_v_int(1));
  } else if (!t->create && sole(t, grad)) {
    s = moth_add_(moth_v_tensor(grad), moth_v_tensor(*slot), moth_v_int(1));
    if (s == MOTH_OK) {
      sum = grad;
      grad = *slot;
      *slot = sum;
    }
  } else {
    s = moth_add(moth_v_tensor(*slot), moth_v_tensor(grad), moth_v_int(1), &sum);
    if (s == MOTH_OK) {
      moth_tensor_release(*slot);
      *slot = sum;
    }
  }
  moth_tensor_release(grad);
  return s;
}

/* Brings *grad to the shape and dtype of an input. */
static MothStatus fit(const MothNode *n, int k, MothTensor **grad) {
  const MothInput *in = &n->inputs[k];
  MothTensor *g = *grad;
  if (__builtin_expect(g->keys & MOTH_KEY_BATCH, 0)) {
    MOTH_TRY(moth_batch_sum_out(in->node->level, grad));
    g = *grad;
  }
  if (g->ndim != in->ndim || memcmp(g->shape, in->shape, sizeof(int64_t) * in->ndim) != 0) {
    MothValue v = moth_v_none();
    MothStatus s =
        moth_grad_sum_to((MothValue[]){moth_v_tensor(g), moth_v_ints(in->shape, in->ndim)}, &v);
    if (s != MOTH_OK) {
      char a[200], b[200];
      return moth_fail(MOTH_ERR_VALUE,
                       "%s returned a gradient of shape %s for input " MOTH_AT "%d of shape %s",
                       n->name, moth_shape_format(g->ndim, g->shape, a, sizeof a), k,
                       moth_shape_format(in->ndim, in->shape, b, sizeof b));
    }
    moth_tensor_release(g);
    *grad = g = v.u.t;
  }
  if (g->dtype != in->dtype || g->device.type != in->device.type ||
      g->device.index != in->device.index) {
    MothTensor *to;
    MOTH_TRY(moth_to(g, moth_v_dtype((MothDType)in->dtype), moth_v_device(in->device), false, false,
                     &to));
    moth_tensor_release(g);
    *grad = to;
  }
  return MOTH_OK;
}

/* For a fake gradient of a real tensor: *drop under fake mode, which must not change real tensors; else an error. */
static MothStatus refuse_fake(const MothTensor *grad, bool fake, bool *drop) {
  *drop = (grad->keys & MOTH_KEY_FAKE) && !fake;
  if (!*drop || moth_thread.include & MOTH_KEY_FAKE)
    return MOTH_OK;
  return moth_fail(MOTH_ERR_STATE, "backward: a real tensor cannot keep a fake gradient, which has "
                                   "no values; call backward in fake_mode, too");
}

/* .grad of a leaf += grad (taken); *kept: it did. */
static MothStatus accumulate_leaf(const Task *t, MothTensor *leaf, MothTensor *grad, bool *kept) {
  MothAutogradMeta *m = leaf->grad;
  MothTensor *g = NULL;
  bool drop;
  if (moth_batch_level(grad) > m->level) {
    moth_tensor_release(grad);
    return moth_fail(
        MOTH_ERR_STATE,
        "backward() inside vmap would give a tensor outside of it a gradient for each of "
        "the batch; use moth.func.grad, or call backward() outside");
  }
  MothStatus s = refuse_fake(grad, leaf->keys & MOTH_KEY_FAKE, &drop);
  *kept = !drop;
  if (drop) {
    moth_tensor_release(grad);
    return s;
  }
  if (!m->grad) {
    if (t->create || sole(t, grad)) {
      m->grad = grad;
      return MOTH_OK;
    }
    s = moth_clone(grad, &g); /* it is shared, or not dense */
    m->grad = g;
  } else if (t->create) {
    s = moth_add(moth_v_tensor(m->grad), moth_v_tensor(grad), moth_v_int(1), &g);
    if (s == MOTH_OK) {
      moth_tensor_release(m->grad);
      m->grad = g;
    }
  } else {
    s = moth_add_(moth_v_tensor(m->grad), moth_v_tensor(grad), moth_v_int(1));
  }
  moth_tensor_release(grad);
  return s;
}

static MothAutogradMeta *nth_retained(const MothNode *n, int i, const MothAutogradMeta *which) {
  MothAutogradMeta *m = n->retained;
  while (m && (which ? m != which : i-- > 0))
    m = m->next_retained;
  return m;
}

/* .grad of the non-leafs with retain_grad += their gradients; copies, since the gradients are used further. The ops
 * may run Lua, where a tensor may be collected and leave the list. */
static MothStatus keep_grads(const MothNode *n, MothTensor *const *grads) {
  MothAutogradMeta *m;
  for (int i = 0; (m = nth_retained(n, i, NULL)); i++) {
    MothTensor *grad = grads[m->nr], *old = m->grad, *g;
    bool drop;
    if (!grad)
      continue;
    MOTH_TRY(refuse_fake(grad, m->fake, &drop));
    if (drop)
      continue;
    moth_tensor_retain(old);
    MothStatus s = old ? moth_add(moth_v_tensor(old), moth_v_tensor(grad), moth_v_int(1), &g)
                       : moth_clone(grad, &g);
    moth_tensor_release(old);
    MOTH_TRY(s);
    if (nth_retained(n, 0, m)) {
      old = m->grad;
      m->grad = g;
      g = old;
    }
    moth_tensor_release(g);
  }
  return MOTH_OK;
}

static MothStatus zeros_for(const MothResultMeta *r, MothTensor **out) {
  return moth_zeros(r->shape, r->ndim, moth_v_dtype((MothDType)r->dtype), moth_v_device(r->device),
                    out);
}

/* The gradient so far of the view's base, if narrow, select or slice may add to it in place (moth_view_sum). */
static MothTensor *sum_of_parts(const Task *t, const MothNode *n) {
  if (t->create || n->hooks ||
      (n->op != MOTH_OP(narrow) && n->op != MOTH_OP(select) && n->op != MOTH_OP(slice)) ||
      !n->inputs[0].node)
    return NULL;
  const MothNode *to = n->inputs[0].node;
  int32_t slot = t->entries[find(t, to)].grads + n->inputs[0].nr;
  MothTensor *so_far = t->grads[slot];
  if (!so_far || !sole(t, so_far))
    return NULL;
  void *now = current_stream(so_far); /* on the stream of the sum: see deliver */
  return !now || (t->streams[slot] == now && stream_for(to, so_far) == now) ? so_far : NULL;
}

/* --- one node --------------------------------------------------------------------------------- */

/* Adds a new gradient to a slot of node `to`; takes over the reference. */
static MothStatus deliver(Task *t, int32_t slot, const MothNode *to, MothTensor *grad) {
  void *made = current_stream(grad);
  MothTensor **have = &t->grads[slot];
  if (!*have || !made || (t->streams[slot] == made && stream_for(to, grad) == made)) {
    t->streams[slot] = made;
    return accumulate(t, have, grad);
  }
  /* The sum of gradients of several streams is computed on the stream of the node. */
  void *use = stream_for(to, grad);
  MothStatus s = sync_stream(*have, t->streams[slot], use);
  if (s == MOTH_OK)
    s = sync_stream(grad, made, use);
  if (s != MOTH_OK) {
    moth_tensor_release(grad);
    return s;
  }
  void *before = moth_stream_swap(use);
  s = accumulate(t, have, grad);
  moth_stream_swap(before);
  t->streams[slot] = use;
  return s;
}

static MothStatus capture(const MothNode *n, int32_t at, const Capture *captures, int ncaptures,
                          MothTensor **grads, MothTensor **captured) {
  for (int i = 0; i < ncaptures; i++) {
    if (captures[i].entry != at)
      continue;
    if (__builtin_expect(n->lacks != NULL, 0) && n->lacks(n, captures[i].nr, grads))
      return moth_node_freed(n);
    if (grads[captures[i].nr]) {
      captured[i] = grads[captures[i].nr];
      moth_tensor_retain(captured[i]);
    }
  }
  return MOTH_OK;
}

static MothStatus run_leaf(Task *t, int32_t at, const Capture *captures, int ncaptures,
                           MothTensor **captured, bool accumulate_leaves) {
  MothNode *n = t->entries[at].node;
  MothTensor *leaf = n->ctx, **slot = &t->grads[t->entries[at].grads];
  if (leaf->grad->hooks && *slot)
    MOTH_TRY(moth_run_hooks(leaf->grad->hooks, 0, slot));
  MOTH_TRY(capture(n, at, captures, ncaptures, slot, captured));
  MothTensor *g = *slot, *shown = NULL, *none = NULL;
  MothStatus status = MOTH_OK;
  if (!g)
    return MOTH_OK;
  if (!accumulate_leaves) {
    *slot = NULL;
    moth_tensor_release(g);
    return MOTH_OK;
  }
  bool watched = moth_thread.watchers != NULL, kept = false;
  if (__builtin_expect(watched, 0))
    MOTH_GO(moth_watch_begin(n, slot, 1));
  if (n->hooks)
    MOTH_GO(moth_run_node_hooks(n->hooks, MOTH_HOOK_PRE, n, NULL, 0, slot, 1));
  if (n->hooks) /* they may read the gradient afterwards */
    moth_tensor_retain(shown = *slot);
  g = *slot;
  *slot = NULL;
  const MothObserver *o = moth_observed();
  int64_t began = o ? o->begin_node(n) : -1;
  if (g)
    status = accumulate_leaf(t, leaf, g, &kept);
  if (o)
    o->end(began);
  MOTH_GO(status);
  if (kept && leaf->grad->hooks)
    MOTH_GO(moth_run_after_hooks(leaf->grad->hooks, leaf));
  if (n->hooks)
    MOTH_GO(moth_run_node_hooks(n->hooks, MOTH_HOOK_POST, n, &none, 0, &shown, 1));
done:
  moth_tensor_release(shown);
  return watched ? moth_watch_end(n, NULL, 0, status) : status;
}

static MothStatus run_node_here(Task *t, int32_t at, const Capture *captures, int ncaptures,
                                MothTensor **captured, bool accumulate_leaves) {
  Entry *e = &t->entries[at];
  MothNode *n = e->node;
  MothTensor **grads = t->grads + e->grads;
  MothStatus status = MOTH_OK;
  bool some = false;
  if (n->seq == MOTH_SEQ_LEAF)
    return run_leaf(t, at, captures, ncaptures, captured, accumulate_leaves);
  for (int i = 0; i < e->slots; i++) {
    if (n->hooks && grads[i])
      MOTH_TRY(moth_run_hooks(n->hooks, i, &grads[i]));
    some = some || grads[i];
  }
  if (accumulate_leaves && n->retained)
    MOTH_TRY(keep_grads(n, grads));
  MOTH_TRY(capture(n, at, captures, ncaptures, grads, captured));
  uint32_t need = 0;
  int nargs = n->op ? n->op->nargs : n->ninputs;
  MothTensor *few[32] = {NULL}, **out = few, *sum = NULL;
  size_t out_size = 0;
  if (n->ninputs > 32) {
    out_size = sizeof(MothTensor *) * n->ninputs;
    out = moth_alloc(out_size);
    if (!out)
      return moth_no_memory(0);
    memset(out, 0, out_size);
  }
  bool watched = false, ran = false, runs = accumulate_leaves;
  for (int k = 0; k < n->ninputs && !runs; k++) /* else it is only asked for its own gradient */
    runs = n->inputs[k].node && t->entries[find(t, n->inputs[k].node)].needed;
  e->reached |= some;
  if (some) {
    for (int i = 0; i < nargs && i < 32; i++) {
      int first = n->op ? n->edge_of[i] : i;
      int end = n->op ? (i + 1 < nargs ? n->edge_of[i + 1] : n->ninputs) : i + 1;
      for (int k = first; k < end; k++)
        if (n->inputs[k].node &&
            (accumulate_leaves || t->entries[find(t, n->inputs[k].node)].needed))
          need |= 1u << i;
    }
    for (int k = 32; k < n->ninputs && !n->op;
         k++) /* a function of the host may need only some of them */
      if (n->inputs[k].node)
        need |= 1u << 31;
    ran = need != 0;
    if (ran && (watched = moth_thread.watchers != NULL))
      MOTH_GO(moth_watch_begin(n, grads, e->slots));
    if (ran && n->hooks)
      MOTH_GO(moth_run_node_hooks(n->hooks, MOTH_HOOK_PRE, n, NULL, 0, grads, e->slots));
    bool fills = n->nresults > 1 && !n->keeps_none && !(n->op && n->op->absent);
    for (int i = 0; i < e->slots && fills; i++)
      if (!grads[i] && moth_dtype_is_inexact((MothDType)n->results[i].dtype))
        MOTH_GO(zeros_for(&n->results[i], &grads[i]));
    if (need) {
      sum = moth_view_sum = sum_of_parts(t, n);
      const MothObserver *o = moth_observed();
      int64_t began = o ? o->begin_node(n) : -1;
      uint64_t level = moth_thread.level;
      moth_thread.level = n->level > level ? n->level : level;
      status = n->backward(n, grads, need, out);
      moth_thread.level = level;
      if (o)
        o->end(began);
      moth_view_sum = NULL;
      if (status != MOTH_OK && status != MOTH_ERR_HOST && moth_last_error()[0] != '[')
        moth_error_prefix("[%s] ", n->name);
      MOTH_GO(status);
    }
  }
  for (int k = 0; ran && (n->hooks || watched) && k < n->ninputs; k++)
    if (n->inputs[k].node && out[k] && out[k] != sum)
      MOTH_GO(fit(n, k, &out[k]));
  if (ran && n->hooks)
    MOTH_GO(moth_run_node_hooks(n->hooks, MOTH_HOOK_POST, n, out, n->ninputs, grads, e->slots));
  if (watched) {
    watched = false;
    MOTH_GO(moth_watch_end(n, out, n->ninputs, MOTH_OK));
  }
  bool frees = !t->retain && !n->is_inner && (n->done ? ran : runs && e->reached);
  if (frees && moth_node_release_saved(n) && n->hooks)
    moth_hooks_cut(&n->hooks);
  for (int i = 0; i < e->slots; i++) {
    moth_tensor_release(grads[i]);
    grads[i] = NULL;
  }
  for (int k = 0; k < n->ninputs; k++) {
    MothNode *to = n->inputs[k].node;
    if (!to)
      continue;
    int32_t j = find(t, to);
    t->entries[j].reached |= e->reached && (out[k] || !n->keeps_none);
    if (sum && out[k] == sum) { /* the part was added to the sum in place */
      moth_tensor_release(out[k]);
      out[k] = NULL;
    } else if (out[k]) {
      MOTH_GO(fit(n, k, &out[k]));
      MothTensor *g = out[k];
      out[k] = NULL;
      MOTH_GO(deliver(t, t->entries[j].grads + n->inputs[k].nr, to, g));
    }
    if (--t->entries[j].waiting == 0 && (accumulate_leaves || t->entries[j].needed))
      push(t, j);
  }
done:
  if (watched)
    status = moth_watch_end(n, NULL, 0, status);
  for (int k = 0; k < n->ninputs; k++)
    moth_tensor_release(out[k]);
  if (out != few)
    moth_free(out, out_size);
  return status;
}

static void log_node(const Task *t, const Entry *e) {
  char text[512] = "", one[160];
  for (int i = 0; i < e->slots; i++) {
    const MothTensor *g = t->grads[e->grads + i];
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "%s%s", i ? ", " : "",
             g ? moth_tensor_format(g, one, sizeof one) : "none");
  }
  moth_log_write("autograd", "  %s: %s", e->node->name, text);
}

/* Runs a node on its stream, which waits for the gradients; the caller's stream waits for results that the caller
 * sees. */
static MothStatus run_node(Task *t, int32_t at, const Capture *captures, int ncaptures,
                           MothTensor **captured, bool accumulate_leaves) {
  Entry *e = &t->entries[at];
  MothNode *n = e->node;
  t->ran++;
  if (t->log > 1)
    log_node(t, e);
  for (int i = 0; i < e->slots; i++) {
    MothTensor *g = t->grads[e->grads + i];
    if (g && t->streams[e->grads + i])
      MOTH_TRY(sync_stream(g, t->streams[e->grads + i], stream_for(n, g)));
  }
  void *before = n->stream ? moth_stream_swap(n->stream) : NULL;
  if (before == n->stream) /* as nearly always */
    return run_node_here(t, at, captures, ncaptures, captured, accumulate_leaves);
  MothStatus s = note_stream(t, n->stream);
  if (s == MOTH_OK)
    s = run_node_here(t, at, captures, ncaptures, captured, accumulate_leaves);
  moth_stream_swap(before);
  for (int i = 0; i < ncaptures && s == MOTH_OK; i++)
    if (captures[i].entry == at && captured[i])
      s = sync_stream(captured[i], n->stream, current_stream(captured[i]));
  for (MothAutogradMeta *m = accumulate_leaves ? n->retained : NULL; m && s == MOTH_OK;
       m = m->next_retained)
    if (m->grad)
      s = sync_stream(m->grad, n->stream, current_stream(m->grad));
  return s;
}

/* --- the pass --------------------------------------------------------------------------------- */

static MothStatus seed(Task *t, MothTensor *root, MothTensor *grad, int32_t at, int nr) {
  char a[256], b[256];
  MothTensor *g;
  if (grad) {
    if (grad->ndim != root->ndim ||
        memcmp(grad->shape, root->shape, sizeof(int64_t) * root->ndim) != 0)
      return moth_fail(
          MOTH_ERR_VALUE, "backward: the gradient must have the shape of the tensor: %s and %s",
          moth_tensor_format(grad, a, sizeof a), moth_tensor_format(root, b, sizeof b));
    moth_tensor_retain(grad);
    g = grad;
  } else {
    if (root->numel != 1)
      return moth_fail(MOTH_ERR_VALUE,
                       "grad can be implicitly created only for scalar outputs, got %s; give "
                       "y:backward(gradient)",
                       moth_tensor_format(root, a, sizeof a));
    if (moth_dtype_is_complex((MothDType)root->dtype))
      return moth_fail(MOTH_ERR_VALUE,
                       "grad can be implicitly created only for real scalar outputs, got %s; give "
                       "y:backward(gradient)",
                       moth_tensor_format(root, a, sizeof a));
    uint32_t keep = moth_enter_as(root);
    MothStatus s = moth_ones(root->shape, root->ndim, moth_v_dtype((MothDType)root->dtype),
                             moth_v_device(root->device), &g);
    MOTH_TRY(moth_leave_as(keep, root, s, &g));
  }
  return deliver(t, t->entries[at].grads + nr, t->entries[at].node, g);
}

static MothStatus pass(MothTensor **roots, MothTensor **grads, int n, MothTensor **inputs,
                       int ninputs, bool retain, bool create, bool allow_unused, MothTensor **out) {
  static _Atomic int64_t passes;
  Task t = {.retain = retain || create,
            .create = create,
            .all = !inputs,
            .counts = !moth_is_traced(),
            .log = moth_log_level("autograd"),
            .id = atomic_fetch_add_explicit(&passes, 1, memory_order_relaxed) + 1,
            .outer = running};
  Capture few[16], *captures = few;
  size_t captures_size = 0;
  MothStatus status = MOTH_OK;
  uint32_t exclude = moth_thread.exclude;
  bool no_grad = moth_thread.no_grad;
  moth_thread.no_grad = !create;
  moth_thread.exclude =
      create ? exclude & ~(uint32_t)MOTH_KEY_AUTOGRAD : exclude | MOTH_KEY_AUTOGRAD;
  struct Root {
    int32_t at;
    uint16_t nr;
  } *at = moth_alloc(sizeof(struct Root) * (size_t)(n ? n : 1));
  if (!at) {
    status = moth_no_memory(0);
    goto done;
  }
  for (int i = 0; i < ninputs; i++)
    MOTH_GO(moth_node_expand(inputs[i]));
  for (int i = 0; i < n; i++) {
    MothNode *node = NULL;
    MOTH_GO(moth_gradient_edge(roots[i], &node, &at[i].nr));
    if (!node) {
      status =
          moth_fail(MOTH_ERR_STATE,
                    "element %d of tensors does not require grad and does not have a grad_fn", i);
      goto done;
    }
    status = add(&t, node, &at[i].at);
    moth_node_release(node);
    MOTH_GO(status);
  }
  if (ninputs > 16) {
    captures_size = sizeof(Capture) * (size_t)ninputs;
    captures = moth_alloc(captures_size);
    if (!captures) {
      captures = few;
      status = moth_no_memory(0);
      goto done;
    }
  }
  MOTH_GO(discover(&t));
  for (int i = 0; i < ninputs; i++) {
    MothNode *node = NULL;
    out[i] = NULL;
    MOTH_GO(moth_gradient_edge(inputs[i], &node, &captures[i].nr));
    captures[i].entry = node ? find(&t, node) : -1;
    bool requires = node != NULL;
    moth_node_release(node);
    if (!requires) {
      status = moth_fail(
          MOTH_ERR_STATE,
          "one of the differentiated tensors (input " MOTH_AT "%d) does not require grad", i);
      goto done;
    }
    if (captures[i].entry >= 0)
      t.entries[captures[i].entry].needed = true;
  }
  if (inputs)
    MOTH_GO(mark_needed(&t));
  t.grads = moth_alloc(2 * sizeof(MothTensor *) * (size_t)(t.ngrads ? t.ngrads : 1));
  if (!t.grads) {
    status = moth_no_memory(0);
    goto done;
  }
  memset(t.grads, 0, 2 * sizeof(MothTensor *) * (size_t)t.ngrads);
  t.streams = (void **)(t.grads + t.ngrads);
  for (int i = 0; i < n; i++)
    MOTH_GO(seed(&t, roots[i], grads ? grads[i] : NULL, at[i].at, at[i].nr));
  for (int32_t i = 0; i < n; i++) {
    Entry *e = &t.entries[at[i].at];
    if (e->waiting == 0 && !e->visited && (!inputs || e->needed)) {
      e->visited = true;
      push(&t, at[i].at);
    }
  }
  running = &t;
  while (t.heap_n)
    MOTH_GO(run_node(&t, pop(&t), captures, ninputs, out, !inputs));
  for (int i = 0; i < ninputs; i++)
    if (!out[i] && !allow_unused) {
      status = moth_fail(MOTH_ERR_STATE,
                         "one of the differentiated tensors (input " MOTH_AT
                         "%d) appears to not have been used in "
                         "the graph. Set allow_unused = true if this is the desired behavior",
                         i);
      goto done;
    }
done:
  running = t.outer;
  if (t.log)
    moth_log_write("autograd", "backward %" PRId64 " from %s: %d of %d nodes ran%s", t.id,
                   t.n ? t.entries[0].node->name : "nothing", t.ran, t.n,
                   status == MOTH_OK ? "" : ", then it failed");
  if (status != MOTH_OK)
    for (int i = 0; out && i < ninputs; i++) {
      moth_tensor_release(out[i]);
      out[i] = NULL;
    }
  for (int32_t i = 0; i < t.nseen; i++) {
    MothStatus s = moth_stream_join(t.seen_streams[i]);
    status = status == MOTH_OK ? s : status;
  }
  task_free(&t);
  if (captures != few)
    moth_free(captures, captures_size);
  moth_free(at, sizeof(struct Root) * (size_t)(n ? n : 1));
  moth_thread.exclude = exclude;
  moth_thread.no_grad = no_grad;
  return status;
}

/* Nested backwards, of hooks and functions: endless nesting would overflow the C stack. */
static _Thread_local int depth;
enum { MAX_DEPTH = 100 };

static MothStatus check_list(const char *what, MothTensor **list, int n) {
  if (n <= 0)
    return moth_fail(MOTH_ERR_VALUE, "there is no %s to differentiate%s", what,
                     what[0] == 'i' ? " by" : "");
  for (int i = 0; i < n; i++)
    if (!list || !list[i])
      return moth_fail(MOTH_ERR_TYPE, "%s " MOTH_AT "%d to differentiate%s is NULL", what, i,
                       what[0] == 'i' ? " by" : "");
  return MOTH_OK;
}

static MothStatus engine(MothTensor **roots, MothTensor **grads, int n, MothTensor **inputs,
                         int ninputs, bool retain, bool create, bool allow_unused,
                         MothTensor **out) {
  MOTH_TRY(check_list("output", roots, n));
  if (depth == MAX_DEPTH)
    return moth_fail(MOTH_ERR_STATE,
                     "backward is called from within backward %d times over: a hook or a function "
                     "with its own backward calls itself without end",
                     MAX_DEPTH);
  MothApart outer = moth_apart;
  moth_apart = (MothApart){false, outer.next};
  depth++;
  MothStatus s = pass(roots, grads, n, inputs, ninputs, retain, create, allow_unused, out);
  moth_apart = (MothApart){false, outer.now};
  if (depth == 1) { /* callbacks may call backward: that is not the outermost one */
    MothStatus after = moth_run_callbacks(s);
    for (int i = 0; s == MOTH_OK && after != MOTH_OK && out && i < ninputs; i++) {
      moth_tensor_release(out[i]);
      out[i] = NULL;
    }
    s = after;
  }
  depth--;
  return s;
}

void moth_swap_passes(MothPasses *box) {
  MothPasses mine = {running, box->callbacks, depth, moth_apart};
  moth_swap_callbacks(&mine.callbacks);
  running = box->running;
  depth = box->depth;
  moth_apart = box->apart;
  *box = mine;
}

int64_t moth_current_pass(void) {
  return running ? running->id : depth > 0 ? -1 : 0;
}

MothStatus moth_pass_runs(MothTensor *t, bool *yes) {
  MothNode *n;
  uint16_t nr;
  *yes = false;
  if (!running)
    return moth_fail(MOTH_ERR_STATE, "no backward runs on this thread");
  MOTH_TRY(moth_gradient_edge(t, &n, &nr));
  int32_t at = n ? find(running, n) : -1;
  *yes = at >= 0 && (running->all || running->entries[at].needed);
  moth_node_release(n);
  return MOTH_OK;
}

MothStatus moth_backward(MothTensor **roots, MothTensor **grads, int n, bool retain_graph,
                         bool create_graph) {
  return engine(roots, grads, n, NULL, 0, retain_graph, create_graph, true, NULL);
}

MothStatus moth_grad(MothTensor **roots, MothTensor **grads, int n, MothTensor **inputs,
                     int ninputs, bool retain_graph, bool create_graph, bool allow_unused,
                     MothTensor **out) {
  MOTH_TRY(check_list("input", inputs, ninputs));
  MOTH_TRY(moth_given("grad", out));
  memset(out, 0, sizeof(MothTensor *) * (size_t)ninputs);
  return engine(roots, grads, n, inputs, ninputs, retain_graph, create_graph, allow_unused, out);
}
