/* Nodes: making, saving, releasing. See node.h.
 *
 * A node is one block: its header, then inputs, saved values and (for more than one result) the
 * results' shapes. Long graphs are freed by a loop, not by recursion: a released node goes on a list of this thread,
 * which the outermost release frees. */
#include "autograd/node.h"

#include <string.h>

#include "autograd/tangent.h"
#include "core/alloc.h"
#include "core/dtype.h"
#include "device/stream.h"
#include "dispatch/autocast.h"
#include "ops/pointwise.h"

static _Atomic uint64_t next_seq = 1;
static _Thread_local uint64_t
    reserved; /* the next one, of those that a node has reserved; 0: none */

static uint64_t take_seq(void) {
  return reserved ? reserved++ : atomic_fetch_add_explicit(&next_seq, 1, memory_order_relaxed);
}

void moth_node_reserve(MothNode *n, uint64_t count) {
  n->seq = atomic_fetch_add_explicit(&next_seq, count + 1, memory_order_relaxed) + count;
}

uint64_t moth_seq_at(uint64_t next) {
  uint64_t was = reserved;
  reserved = next;
  return was;
}

MothAutogradMeta *moth_meta(MothTensor *t) {
  if (t->grad)
    return t->grad;
  t->grad = moth_alloc(sizeof *t->grad);
  if (!t->grad) {
    moth_no_memory(0);
    return NULL;
  }
  memset(t->grad, 0, sizeof *t->grad);
  t->grad->level = moth_thread.level;
  return t->grad;
}

MothNode *moth_node_new(const char *name, int ninputs, int nsaved, int nresults) {
  size_t size = sizeof(MothNode) + sizeof(MothInput) * (size_t)ninputs +
                sizeof(MothSaved) * (size_t)nsaved + sizeof(MothResultMeta) * (size_t)nresults;
  MothNode *n = moth_alloc(size);
  if (!n) {
    moth_no_memory(0);
    return NULL;
  }
  memset(n, 0, sizeof *n);
  atomic_init(&n->refs, 1);
  n->name = name;
  n->seq = take_seq();
  n->level = moth_thread.level;
  n->size = size;
  n->inputs = (MothInput *)(n + 1);
  n->saved = (MothSaved *)(n->inputs + ninputs);
  n->results = (MothResultMeta *)(n->saved + nsaved);
  n->ninputs = (uint16_t)ninputs;
  n->nresults = (uint16_t)nresults;
  for (int i = 0; i < ninputs; i++) {
    n->inputs[i].node = NULL;
    n->inputs[i].nr = 0;
    n->inputs[i].geometry = NULL;
  }
  return n;
}

void moth_node_stamp(MothNode *n) {
  n->seq = take_seq();
}

void moth_node_retain(MothNode *n) {
  atomic_fetch_add_explicit(&n->refs, 1, memory_order_relaxed);
}

static void free_value(MothValue *v) {
  if (v->tag == MOTH_V_TENSOR)
    moth_tensor_release(v->u.t);
  else if (v->tag == MOTH_V_PACKED)
    moth_drop_packed((MothPacked *)(uintptr_t)v->u.s);
  else if (v->tag == MOTH_V_INTS && v->u.ints)
    moth_free((void *)v->u.ints, sizeof(int64_t) * (v->n ? v->n : 1));
  else if (v->tag == MOTH_V_STRING)
    moth_free((void *)v->u.s, strlen(v->u.s) + 1);
  *v = moth_v_none();
}

bool moth_node_release_saved(MothNode *n) {
  int left = 0;
  bool any = false;
  if (n->done) {
    n->done(n);
    return true;
  }
  n->released |= !n->op; /* a function of the host checks its own saved values */
  for (int i = 0; i < n->nsaved; i++) {
    bool tensor = moth_saved_is_tensor(&n->saved[i]) && !n->saved[i].kept;
    if (tensor)
      free_value(&n->saved[i].value);
    any |= tensor;
    if (!tensor || !n->op) /* a function's are found by position */
      n->saved[left++] = n->saved[i];
  }
  n->nsaved = (uint16_t)left;
  n->released |= any;
  if (n->inner && atomic_load_explicit(&n->inner->refs, memory_order_relaxed) == 1)
    any |= moth_node_release_saved(n->inner);
  return any;
}

static _Thread_local MothNode *dead;
static _Thread_local bool freeing;

static void free_node(MothNode *n) {
  for (int i = 0; i < n->nsaved; i++)
    free_value(&n->saved[i].value);
  if (n->drop)
    n->drop(n);
  moth_hooks_free(&n->hooks);
  for (int i = 0; i < n->ninputs; i++) {
    if (n->inputs[i].geometry)
      moth_free(n->inputs[i].geometry, sizeof(int64_t) * (MOTH_MAX_DIMS + 1));
    moth_node_release(n->inputs[i].node);
  }
  moth_free(n, n->size);
}

void moth_node_release(MothNode *n) {
  if (!n)
    return;
  /* The last reference needs no atomic write, unless a leaf may retain the node in another thread at this moment. */
  if ((atomic_load_explicit(&n->refs, memory_order_acquire) != 1 || n->seq == MOTH_SEQ_LEAF) &&
      atomic_fetch_sub_explicit(&n->refs, 1, memory_order_acq_rel) != 1)
    return;
  n->pending = dead;
  dead = n;
  if (freeing)
    return;
  freeing = true;
  while (dead) {
    MothNode *next = dead;
    dead = next->pending;
    free_node(next);
  }
  freeing = false;
}

/* Takes m from its node's list of those whose gradient is kept. */
static void unlink_retained(MothAutogradMeta *m) {
  MothAutogradMeta **at = &m->node->retained;
  while (*at != m)
    at = &(*at)->next_retained;
  *at = m->next_retained;
}

static void link_retained(MothAutogradMeta *m) {
  m->next_retained = m->node->retained;
  m->node->retained = m;
}

static void drop_grad(MothTensor *t) {
  MothAutogradMeta *m = t->grad;
  t->grad = NULL;
  if (m->retain_grad)
    unlink_retained(m);
  moth_tensor_release(m->grad);
  moth_node_release(m->node);
  moth_hooks_free(&m->hooks);
  if (m->tangents)
    moth_tangents_free(m->tangents);
  moth_free(m, sizeof *m);
}

static bool is_weight(const MothTensor *t) {
  return moth_tensor_requires_grad(t) && moth_tensor_is_leaf(t);
}

__attribute__((constructor)) static void autograd_init(void) {
  moth_tensor_drop_grad = drop_grad;
  moth_autograd_step = moth_autograd_record;
  moth_autocast_is_weight = is_weight;
}

/* --- edges ------------------------------------------------------------------------------------ */

MothStatus moth_node_set_input(MothNode *n, int i, MothTensor *t, bool needs) {
  MothInput *in = &n->inputs[i];
  in->node = NULL;
  in->nr = 0;
  in->dtype = t->dtype;
  in->ndim = t->ndim;
  in->device = t->device;
  in->geometry = NULL;
  memcpy(in->shape, t->shape, sizeof(int64_t) * t->ndim);
  if (needs)
    return moth_gradient_edge(t, &in->node, &in->nr);
  return MOTH_OK;
}

void moth_node_set_result(MothNode *n, int i, const MothTensor *t) {
  MothResultMeta *r = &n->results[i];
  r->dtype = t->dtype;
  r->ndim = t->ndim;
  r->device = t->device;
  memcpy(r->shape, t->shape, sizeof(int64_t) * t->ndim);
}

MothStatus moth_set_history(MothTensor *t, MothNode *n, int nr) {
  MothAutogradMeta *m = moth_meta(t);
  if (!m)
    return MOTH_ERR_MEMORY;
  if (m->retain_grad)
    unlink_retained(m);
  moth_node_retain(n);
  moth_node_release(m->node);
  m->node = n;
  m->nr = (uint16_t)nr;
  if (m->retain_grad)
    link_retained(m);
  m->view_version = *moth_version_of(t);
  t->keys |= MOTH_KEY_AUTOGRAD;
  if (t->device.type != MOTH_CPU && !n->stream) {
    const MothDeviceOps *ops = moth_device_ops((MothDeviceType)t->device.type);
    n->stream = ops->streams ? ops->streams->current(t->device.index) : NULL;
    n->stream_type = (uint8_t)t->device.type;
  }
  return MOTH_OK;
}

/* --- saved values ----------------------------------------------------------------------------- */

static MothSaved *find_saved(MothNode *n, int slot) {
  for (int i = 0; i < n->nsaved; i++)
    if (n->saved[i].slot == slot)
      return &n->saved[i];
  return NULL;
}

void moth_function_free(MothNode *n, int i) {
  free_value(&n->saved[i].value);
}

MothStatus moth_node_freed(const MothNode *n) {
  return moth_fail(MOTH_ERR_STATE,
                   "Trying to backward through the graph a second time: %s has freed what it "
                   "saved. Call the first backward with {retain_graph = true}",
                   n->name);
}

static MothStatus unpack_slot(MothNode *n, int slot, MothValue *out) {
  MothSaved *s = find_saved(n, slot);
  if (s)
    return moth_unpack_saved(n, s, out);
  *out = moth_v_none(); /* an optional argument that was not given */
  return n->released ? moth_node_freed(n) : MOTH_OK;
}

MothStatus moth_function_save(MothNode *n, MothTensor *t, int result, bool kept) {
  MothSaved *s = &n->saved[n->nsaved];
  if (result > UINT8_MAX - 16)
    return moth_fail(MOTH_ERR_VALUE, "%s saves result " MOTH_AT "%d: at most %d can be", n->name,
                     result, UINT8_MAX - 15);
  *s = (MothSaved){moth_v_tensor(t), 0, (uint8_t)(result < 0 ? 0 : 16 + result), result >= 0, kept};
  if (t && !kept) {
    MOTH_TRY(moth_save_tensor(s, t, result >= 0, false));
  } else {
    moth_tensor_retain(t);
  }
  n->nsaved++;
  return MOTH_OK;
}

MothStatus moth_function_saved(MothNode *n, int i, MothTensor **out) {
  MothValue v = moth_v_none();
  *out = NULL;
  if (n->op || i < 0 || i >= n->nsaved)
    return moth_fail(MOTH_ERR_INDEX, "%s has not saved %d tensors", n->name, i + 1);
  if (n->released && !n->saved[i].kept)
    return moth_node_freed(n);
  MOTH_TRY(moth_unpack_saved(n, &n->saved[i], &v));
  *out = v.tag == MOTH_V_TENSOR ? v.u.t : NULL;
  return MOTH_OK;
}

_Thread_local MothApart moth_apart;
void moth_grad_of_gradients(bool on) {
  moth_apart.next = on;
}

int moth_node_edge(const MothNode *n, int arg) {
  return n && arg >= 0 && arg < MOTH_MAX_ARGS ? n->edge_of[arg] : -1;
}

MothStatus moth_node_arg(MothNode *n, int arg, MothValue *out) {
  MOTH_TRY(moth_given("moth_node_arg", n && out));
  return unpack_slot(n, arg, out);
}
MothStatus moth_node_result(MothNode *n, int result, MothValue *out) {
  MOTH_TRY(moth_given("moth_node_result", n && out));
  return unpack_slot(n, 16 + result, out);
}

static MothStatus conjugated(MothValue *v) {
  MothTensor *t = v->tag == MOTH_V_TENSOR ? v->u.t : NULL;
  if (!t || __builtin_expect(!moth_dtype_is_complex((MothDType)t->dtype), 1))
    return MOTH_OK;
  MothStatus s = moth_conj_physical(t, &v->u.t);
  if (s != MOTH_OK)
    *v = moth_v_none();
  moth_tensor_release(t);
  return s;
}
MothStatus moth_node_arg_conj(MothNode *n, int arg, MothValue *out) {
  MOTH_TRY(unpack_slot(n, arg, out));
  return conjugated(out);
}
MothStatus moth_node_result_conj(MothNode *n, int result, MothValue *out) {
  MOTH_TRY(unpack_slot(n, 16 + result, out));
  return conjugated(out);
}

MothValue moth_node_shape(const MothNode *n, int arg) {
  const MothInput *in = &n->inputs[n->edge_of[arg]];
  return moth_v_ints(in->shape, in->ndim);
}
MothValue moth_node_stride(const MothNode *n, int arg) {
  const MothInput *in = &n->inputs[n->edge_of[arg]];
  return moth_v_ints(in->geometry, in->ndim);
}
MothValue moth_node_offset(const MothNode *n, int arg) {
  return moth_v_int(n->inputs[n->edge_of[arg]].geometry[MOTH_MAX_DIMS]);
}

/* --- public facts ----------------------------------------------------------------------------- */

bool moth_tensor_requires_grad(const MothTensor *t) {
  if (!t)
    return false;
  return moth_requires_grad(t) || (t->base && moth_requires_grad(t->base) && t->base->grad->node);
}

MothStatus moth_tensor_set_requires_grad(MothTensor *t, bool on) {
  char buf[256];
  MOTH_TRY(moth_given("requires_grad", t));
  if (t->grad && t->grad->node) {
    if (on)
      return MOTH_OK;
    return moth_fail(
        MOTH_ERR_STATE,
        "requires_grad: you can only change requires_grad flags of leaf variables; use "
        "detach() to get one that needs no gradient");
  }
  if (on && !moth_dtype_is_inexact((MothDType)t->dtype))
    return moth_fail(MOTH_ERR_TYPE,
                     "requires_grad: only float and complex tensors can require gradients, got %s",
                     moth_tensor_format(t, buf, sizeof buf));
  if (!t->grad && !on)
    return MOTH_OK;
  MothAutogradMeta *m = moth_meta(t);
  if (!m)
    return MOTH_ERR_MEMORY;
  m->requires_grad = on;
  t->keys = on ? t->keys | MOTH_KEY_AUTOGRAD : t->keys & ~(uint32_t)MOTH_KEY_AUTOGRAD;
  return MOTH_OK;
}

bool moth_tensor_is_leaf(const MothTensor *t) {
  return t && (!t->grad || !t->grad->node) && !moth_view_is_stale(t);
}
MothTensor *moth_tensor_grad(const MothTensor *t) {
  return t && t->grad ? t->grad->grad : NULL;
}

MothStatus moth_tensor_set_grad(MothTensor *t, MothTensor *grad) {
  MOTH_TRY(moth_given("grad", t));
  if (grad) {
    char a[256], b[256];
    if (grad->keys & ~t->keys & MOTH_KEY_FAKE && !(grad->keys & MOTH_KEY_LAZY))
      return moth_fail(MOTH_ERR_VALUE, "grad: the tensor is real, its gradient cannot be fake");
    bool same = grad->ndim == t->ndim && grad->dtype == t->dtype &&
                grad->device.type == t->device.type &&
                !memcmp(grad->shape, t->shape, sizeof(int64_t) * t->ndim);
    if (!same)
      return moth_fail(MOTH_ERR_VALUE,
                       "grad: a gradient has the shape, dtype and device of its tensor: "
                       "expected %s, got %s",
                       moth_tensor_format(t, a, sizeof a), moth_tensor_format(grad, b, sizeof b));
    if (grad == t)
      return moth_fail(MOTH_ERR_VALUE, "grad: a tensor cannot be its own gradient");
  } else if (!t->grad) {
    return MOTH_OK;
  }
  MothAutogradMeta *m = moth_meta(t);
  if (!m)
    return MOTH_ERR_MEMORY;
  if (grad)
    moth_tensor_retain(grad);
  moth_tensor_release(m->grad);
  m->grad = grad;
  return MOTH_OK;
}

MothStatus moth_tensor_retain_grad(MothTensor *t) {
  MOTH_TRY(moth_given("retain_grad", t));
  if (!moth_requires_grad(t))
    return moth_fail(MOTH_ERR_STATE, "retain_grad: the tensor does not require grad");
  MOTH_TRY(moth_node_expand(t));
  if (t->grad && t->grad->node && !t->grad->retain_grad) {
    t->grad->retain_grad = true;
    t->grad->fake = t->keys & MOTH_KEY_FAKE;
    link_retained(t->grad);
  }
  return MOTH_OK;
}

MothNode *moth_tensor_node(MothTensor *t) {
  return t->grad ? t->grad->node : NULL;
}

bool moth_grad_enabled(void) {
  return !moth_thread.no_grad;
}

bool moth_set_grad_enabled(bool on) {
  bool was = !moth_thread.no_grad;
  moth_thread.no_grad = !on;
  moth_thread.exclude = on ? moth_thread.exclude & ~(uint32_t)MOTH_KEY_AUTOGRAD
                           : moth_thread.exclude | MOTH_KEY_AUTOGRAD;
  return was;
}
