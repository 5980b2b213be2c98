/* Writes as values. See functional.h. */
#include "graph/functional.h"

#include <stdlib.h>
#include <string.h>

#include "autograd/node.h"
#include "core/alloc.h"
#include "core/dtype.h"
#include "ops/view.h"

/* --- storages -------------------------------------------------------------------------------------------- */

static uint32_t hash(const void *p) {
  return (uint32_t)(((uintptr_t)p >> 4) * 0x9E3779B97F4A7C15ull >> 32);
}

MothFunctionalStore *moth_functional_store(const MothFunctional *f, const MothTensor *t) {
  for (uint32_t i = hash(t->storage); f->table_size; i++) {
    uint32_t at = f->table[i & (f->table_size - 1)];
    if (!at)
      break;
    if (f->stores[at - 1].storage == t->storage)
      return &f->stores[at - 1];
  }
  return NULL;
}

static void enter(MothFunctional *f, uint32_t which) {
  uint32_t i = hash(f->stores[which].storage);
  while (f->table[i & (f->table_size - 1)])
    i++;
  f->table[i & (f->table_size - 1)] = which + 1;
}

static MothStatus add_store(MothFunctional *f, MothTensor *t, int32_t input, MothGraphRef ref) {
  if (f->n == f->cap) {
    if (!moth_grow(&f->stores, &f->cap, f->cap ? (size_t)f->cap + 1 : 256, sizeof *f->stores))
      return MOTH_ERR_MEMORY;
    uint32_t *table = calloc(4 * (size_t)f->cap, sizeof *table);
    if (!table)
      return moth_no_memory(0);
    free(f->table);
    f->table = table;
    f->table_size = 4 * f->cap;
    for (uint32_t i = 0; i < f->n; i++)
      enter(f, i);
  }
  moth_tensor_retain(t);
  f->stores[f->n++] =
      (MothFunctionalStore){.storage = t->storage, .root = {t, 0, ref}, .input = input};
  enter(f, f->n - 1);
  return MOTH_OK;
}

MothStatus moth_functional_input(MothFunctional *f, MothTensor *t, int32_t i, MothGraphRef ref) {
  return add_store(f, t, i, ref);
}

void moth_functional_free(MothFunctional *f) {
  for (uint32_t i = 0; i < f->n; i++) {
    for (uint32_t k = 0; k < f->stores[i].n; k++)
      moth_tensor_release(f->stores[i].others[k].t);
    free(f->stores[i].others);
    moth_tensor_release(f->stores[i].root.t);
  }
  free(f->stores);
  free(f->table);
  free(f->refs);
  *f = (MothFunctional){0};
}

/* --- values ------------------------------------------------------------------------------------------------ */

static bool same_geometry(const MothTensor *a, const MothTensor *b) {
  size_t size = sizeof(int64_t) * a->ndim;
  if (a->ndim != b->ndim || a->dtype != b->dtype || a->offset != b->offset ||
      memcmp(a->shape, b->shape, size) != 0)
    return false;
  return moth_same_strides(a->ndim, a->numel, a->shape, a->stride, b->stride);
}

static MothStatus add_value(MothFunctionalStore *s, MothTensor *t, MothGraphRef ref) {
  for (uint32_t k = 0; k < s->n; k++)
    if (same_geometry(s->others[k].t, t)) {
      s->others[k].version = s->version;
      s->others[k].ref = ref;
      return MOTH_OK;
    }
  if (!moth_grow(&s->others, &s->cap, (size_t)s->n + 1, sizeof *s->others))
    return MOTH_ERR_MEMORY;
  moth_tensor_retain(t);
  s->others[s->n++] = (MothFunctionalValue){t, s->version, ref};
  return MOTH_OK;
}

static bool meta_of(const MothTensor *like, bool dense, MothTraceMeta *m) {
  if (!moth_meta_of(like, false, m))
    return false;
  if (dense) {
    moth_contiguous_strides(like->ndim, like->shape, m->dims + like->ndim);
    m->contiguous = true;
  }
  return true;
}

/* A call with the first nargs arguments, whose tensors are refs; its only result has the dtype and geometry of `like`,
 * or, with `dense`, is row-major. */
static MothStatus add_call(MothFunctional *f, const MothOp *op, int nargs, const MothValue *given,
                           const MothGraphRef *refs, uint32_t nrefs, const MothTensor *like,
                           bool dense, MothGraphRef *out) {
  MothValue args[MOTH_MAX_ARGS];
  MothTraceMeta meta;
  MothGraphNode *n;
  for (int i = 0; i < op->nargs; i++)
    args[i] = i < nargs ? given[i] : op->args[i].def;
  if (!meta_of(like, dense, &meta))
    return MOTH_ERR_MEMORY;
  MothStatus status = moth_graph_add_call(f->graph, op, MOTH_FUNCTIONAL, args, refs, nrefs, &meta,
                                          &f->modes, f->place, &n);
  free(meta.dims);
  if (status != MOTH_OK)
    return status;
  n->backward = f->backward;
  *out = (MothGraphRef){n, 0};
  return MOTH_OK;
}

static MothValue a_tensor(void) {
  return (MothValue){.u.t = NULL, .tag = MOTH_V_TENSOR, .n = 0}; /* refs say which */
}

/* t, of complex numbers, as its real and imaginary parts. This call is not noted. */
static MothStatus as_parts(MothTensor *t, MothTensor **out) {
  MothThread *thread = &moth_thread;
  uint32_t exclude = thread->exclude;
  thread->exclude |= MOTH_KEY_AUTOGRAD | MOTH_KEY_BELOW | MOTH_KEY_ABOVE | MOTH_KEY_AUTOCAST;
  MothStatus status = moth_view_as_real(t, out);
  thread->exclude = exclude;
  return status;
}

static MothStatus add_unary(MothFunctional *f, const MothOp *op, MothGraphRef of,
                            const MothTensor *like, bool dense, MothGraphRef *out) {
  MothValue args[1] = {a_tensor()};
  return add_call(f, op, 1, args, &of, 1, like, dense, out);
}

static bool is_outside(const MothFunctionalStore *s) {
  return s->root.ref.node->kind == MOTH_NODE_PLACEHOLDER;
}

/* Whether t lies between the elements of `of`, which is row-major. */
static bool lies_in(const MothTensor *t, const MothTensor *of) {
  int64_t last = t->offset - of->offset;
  if (!of->contiguous || last < 0)
    return false;
  for (int i = 0; i < t->ndim && t->numel; i++)
    last += (t->shape[i] - 1) * t->stride[i];
  return !t->numel || last < of->numel;
}

/* t as a view of the whole, where no call has made it; its dtype is the whole's. */
static MothStatus part_of(MothFunctional *f, MothGraphRef whole, const MothTensor *of,
                          const MothTensor *t, bool outside, MothGraphRef *ref) {
  int64_t offset = t->offset - of->offset;
  if (!outside && !lies_in(t, of))
    return moth_fail(MOTH_ERR_STATE, "a view reaches beyond its tensor, or that is not row-major");
  if (outside && offset != 0) {
    f->offsets = true;
    offset = t->offset;
  }
  MothValue at = outside && offset == 0 ? moth_v_none() : moth_v_int(offset);
  MothValue args[4] = {a_tensor(), moth_v_ints(t->shape, t->ndim), moth_v_ints(t->stride, t->ndim),
                       at};
  return add_call(f, MOTH_OP(as_strided), 4, args, &whole, 1, t, false, ref);
}

static MothStatus derive(MothFunctional *f, MothFunctionalStore *s, MothTensor *t,
                         MothGraphRef *ref) {
  MothTensor *root = s->root.t, *parts;
  MothStatus status;
  if (root->dtype == t->dtype) {
    MOTH_TRY(part_of(f, s->root.ref, root, t, is_outside(s), ref));
  } else if (moth_dtype_is_complex((MothDType)t->dtype)) {
    MOTH_TRY(as_parts(t, &parts));
    status = moth_functional_value(f, parts, ref);
    moth_tensor_release(parts);
    MOTH_TRY(status);
    MOTH_TRY(add_unary(f, MOTH_OP(view_as_complex), *ref, t, false, ref));
  } else {
    MothGraphRef whole;
    MOTH_TRY(as_parts(root, &parts));
    status = add_unary(f, MOTH_OP(view_as_real), s->root.ref, parts, false, &whole);
    if (status == MOTH_OK)
      status = part_of(f, whole, parts, t, is_outside(s), ref);
    moth_tensor_release(parts);
    MOTH_TRY(status);
  }
  return add_value(moth_functional_store(f, t), t, *ref);
}

MothStatus moth_functional_value(MothFunctional *f, MothTensor *t, MothGraphRef *ref) {
  MothFunctionalStore *s = moth_functional_store(f, t);
  char buf[256];
  if (!s)
    return moth_fail(MOTH_ERR_STATE, "a tensor that no call has made: %s",
                     moth_tensor_format(t, buf, sizeof buf));
  if (same_geometry(s->root.t, t)) {
    *ref = s->root.ref;
    return MOTH_OK;
  }
  for (uint32_t k = 0; k < s->n; k++)
    if (s->others[k].version == s->version && same_geometry(s->others[k].t, t)) {
      *ref = s->others[k].ref;
      return MOTH_OK;
    }
  return derive(f, s, t, ref);
}

/* What is written to an input that is not row-major changes a row-major value of all that lies between its first and its
 * last element. */
static MothStatus flatten(MothFunctional *f, MothFunctionalStore *s) {
  MothTensor *root = s->root.t, *flat;
  int64_t extent = root->numel > 0, one = 1;
  if (root->contiguous)
    return MOTH_OK;
  for (int i = 0; i < root->ndim && root->numel; i++)
    extent += (root->shape[i] - 1) * root->stride[i];
  MOTH_TRY(moth_tensor_view(root, 1, &extent, &one, root->offset, &flat));
  MothStatus status = part_of(f, s->root.ref, root, flat, is_outside(s), &s->root.ref);
  if (status != MOTH_OK) {
    moth_tensor_release(flat);
    return status;
  }
  moth_tensor_release(root);
  s->root.t = flat;
  s->gaps = true;
  return MOTH_OK;
}

/* The whole with ref, row-major, in the place of its part t. */
static MothStatus scatter(MothFunctional *f, MothGraphRef whole, const MothTensor *of,
                          const MothTensor *t, MothGraphRef ref, MothGraphRef *out) {
  if (!lies_in(t, of))
    return moth_fail(MOTH_ERR_STATE, "a view is written to that reaches beyond its tensor");
  MothGraphRef both[2] = {whole, ref};
  MothValue args[5] = {a_tensor(), a_tensor(), moth_v_ints(t->shape, t->ndim),
                       moth_v_ints(t->stride, t->ndim), moth_v_int(t->offset - of->offset)};
  return add_call(f, MOTH_OP(as_strided_scatter), 5, args, both, 2, of, true, out);
}

/* t was written to: it is now ref, row-major. */
static MothStatus written(MothFunctional *f, MothTensor *t, MothGraphRef ref) {
  MothFunctionalStore *s = moth_functional_store(f, t);
  MothTensor *parts;
  MothStatus status;
  if (s->derivable && f->recording)
    return moth_fail(MOTH_ERR_STATE, "an input is written to that requires a gradient");
  if (ref.node->kind == MOTH_NODE_PLACEHOLDER) { /* the call has written to the input itself */
    s->version++;
    return MOTH_OK;
  }
  MOTH_TRY(flatten(f, s));
  if (s->gaps && s->reached)
    return moth_fail(MOTH_ERR_STATE, "an input is written to, of which as_strided made a view");
  MothTensor *root = s->root.t;
  if (same_geometry(root, t)) {
    s->version++;
    s->root.ref = ref;
    return MOTH_OK;
  }
  if (root->dtype == t->dtype) {
    MOTH_TRY(scatter(f, s->root.ref, root, t, ref, &s->root.ref));
    s->version++;
    return t->contiguous ? add_value(s, t, ref) : MOTH_OK;
  }
  if (moth_dtype_is_complex((MothDType)t->dtype)) {
    MOTH_TRY(as_parts(t, &parts));
    status = add_unary(f, MOTH_OP(view_as_real), ref, parts, true, &ref);
    if (status == MOTH_OK)
      status = written(f, parts, ref);
    moth_tensor_release(parts);
    return status;
  }
  MOTH_TRY(as_parts(root, &parts));
  status = add_unary(f, MOTH_OP(view_as_real), s->root.ref, parts, true, &s->root.ref);
  if (status == MOTH_OK)
    status = scatter(f, s->root.ref, parts, t, ref, &s->root.ref);
  moth_tensor_release(parts);
  MOTH_TRY(status);
  MOTH_TRY(add_unary(f, MOTH_OP(view_as_complex), s->root.ref, root, true, &s->root.ref));
  s->version++;
  return add_unary(f, MOTH_OP(clone), s->root.ref, root, true, &s->root.ref); /* no view */
}

/* --- calls -------------------------------------------------------------------------------------------------- */

/* The references of a call's tensors, targets last, in f->refs. */
static MothStatus find_refs(MothFunctional *f, const MothCall *c, bool targets, uint32_t *out) {
  uint32_t n = 0, total = 2 * MOTH_MAX_RESULTS + moth_args_ntensors(c->op, c->args);
  if (!moth_grow(&f->refs, &f->refs_cap, total, sizeof *f->refs))
    return MOTH_ERR_MEMORY;
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    for (uint32_t k = 0; k < moth_ntensors(v); k++)
      MOTH_TRY(moth_functional_value(f, moth_tensor_at(v, k), &f->refs[n++]));
  }
  for (int i = 0; targets && i < c->op->nresults; i++)
    MOTH_TRY(moth_functional_value(f, c->target[i], &f->refs[n++]));
  *out = n;
  return MOTH_OK;
}

static void free_metas(MothTraceMeta *metas, int n) {
  for (int i = 0; i < n; i++)
    free(metas[i].dims);
}

/* The node of the call, with results as the tensors `made`; dense: row-major ones. */
static MothStatus add_node(MothFunctional *f, const MothCall *c, MothVariant variant,
                           const MothGraphRef *refs, uint32_t nrefs, const MothValue *made,
                           bool dense, MothGraphNode **out) {
  MothTraceMeta metas[MOTH_MAX_RESULTS] = {{0}};
  MothStatus status = MOTH_OK;
  for (int i = 0; i < c->op->nresults && status == MOTH_OK; i++)
    if (!meta_of(made[i].u.t, dense, &metas[i]))
      status = MOTH_ERR_MEMORY;
  if (status == MOTH_OK)
    status = moth_graph_add_call(f->graph, c->op, variant, c->args, refs, nrefs, metas, &f->modes,
                                 f->place, out);
  free_metas(metas, c->op->nresults);
  if (status == MOTH_OK)
    (*out)->backward = f->backward;
  return status;
}

/* Results of a call that writes to nothing become values. */
static MothStatus take_results(MothFunctional *f, const MothCall *c, MothGraphNode *n) {
  for (int i = 0; i < c->op->nresults; i++) {
    MothTensor *t = c->results[i].u.t;
    MothFunctionalStore *s = moth_functional_store(f, t);
    MothGraphRef ref = {n, (uint8_t)i};
    if (!s)
      MOTH_TRY(add_store(f, t, -1, ref));
    else if (c->op->memory == MOTH_MEMORY_VIEW && !same_geometry(s->root.t, t))
      MOTH_TRY(add_value(s, t, ref));
    else if (c->op->memory != MOTH_MEMORY_VIEW)
      return moth_fail(MOTH_ERR_STATE, "%s gave a tensor that shares memory with another",
                       c->op->name);
  }
  return MOTH_OK;
}

/* The result of the functional variant of an in-place call, which is known before the call runs. */
static MothStatus result_of(const MothCall *c, MothValue *made) {
  MothCall again = {.op = c->op, .args = c->args, .results = made, .variant = MOTH_FUNCTIONAL};
  MothThread *t = &moth_thread;
  uint32_t exclude = t->exclude;
  t->exclude |= MOTH_KEY_AUTOGRAD | MOTH_KEY_BELOW | MOTH_KEY_ABOVE | MOTH_KEY_AUTOCAST;
  MothStatus status = moth_dispatch(&again);
  t->exclude = exclude;
  return status;
}

/* A value with the elements of ref, as `like` in dtype and sizes, in memory of its own. */
static MothStatus converted(MothFunctional *f, MothGraphRef ref, const MothTensor *from,
                            const MothTensor *like, MothGraphRef *out) {
  if (from->dtype == like->dtype && from->device.type == like->device.type &&
      from->device.index == like->device.index) {
    return add_unary(f, MOTH_OP(clone), ref, like, true, out);
  }
  MothValue args[3] = {a_tensor(), moth_v_dtype((MothDType)like->dtype),
                       moth_v_device(like->device)};
  return add_call(f, MOTH_OP(to_copy), 3, args, &ref, 1, like, true, out);
}

/* name_(self, …): the functional call, in self's dtype. */
static MothStatus note_inplace(MothFunctional *f, MothCall *c, uint32_t nrefs) {
  MothValue made[MOTH_MAX_RESULTS];
  MothGraphNode *n;
  MothTensor *self = c->target[0];
  MOTH_TRY(result_of(c, made));
  MothTensor *t = made[0].u.t;
  MothStatus status = add_node(f, c, MOTH_FUNCTIONAL, f->refs, nrefs, made, false, &n);
  MothGraphRef ref = {n, 0};
  if (status == MOTH_OK && (t->dtype != self->dtype || !t->contiguous))
    status = converted(f, ref, t, self, &ref);
  for (int i = 0; i < c->op->nresults; i++)
    moth_tensor_release(made[i].u.t);
  MOTH_TRY(status);
  MOTH_TRY(moth_redispatch(c));
  return written(f, self, ref);
}

/* copy_, zero_ and fill_ of a number. *done: it is one of them. */
static MothStatus note_filling(MothFunctional *f, MothCall *c, bool *done) {
  MothTensor *self = c->target[0];
  MothGraphRef ref = f->refs[1];
  MothValue shape = moth_v_ints(self->shape, self->ndim);
  *done = true;
  if (c->op == MOTH_OP(copy_)) {
    const MothTensor *src = c->args[1].u.t;
    bool whole =
        src->ndim == self->ndim && !memcmp(src->shape, self->shape, sizeof(int64_t) * self->ndim);
    if (!whole) {
      MothTensor *wide;
      uint32_t exclude = moth_thread.exclude;
      MothValue args[2] = {c->args[1], shape};
      moth_thread.exclude |= MOTH_KEY_AUTOGRAD | MOTH_KEY_BELOW;
      MothStatus status = moth_call1(MOTH_OP(expand), 2, args, &wide);
      moth_thread.exclude = exclude;
      MOTH_TRY(status);
      args[0] = a_tensor();
      status = add_call(f, MOTH_OP(expand), 2, args, &ref, 1, wide, false, &ref);
      moth_tensor_release(wide);
      MOTH_TRY(status);
    }
    MOTH_TRY(converted(f, ref, src, self, &ref));
  } else if (c->op == MOTH_OP(zero_) ||
             (c->op == MOTH_OP(fill_) && c->args[1].tag != MOTH_V_TENSOR)) {
    MothValue number = c->op == MOTH_OP(zero_) ? moth_v_int(0) : c->args[1];
    MothValue args[4] = {shape, number, moth_v_dtype((MothDType)self->dtype),
                         moth_v_device(self->device)};
    MOTH_TRY(add_call(f, MOTH_OP(full), 4, args, NULL, 0, self, true, &ref));
  } else {
    *done = false;
    return MOTH_OK;
  }
  MOTH_TRY(moth_redispatch(c));
  return written(f, self, ref);
}

/* The value that a call writes to, when it is not one of the above: an input, written to as it is, or a copy. */
static MothStatus to_be_written(MothFunctional *f, MothTensor *t, MothGraphRef *ref) {
  const MothFunctionalStore *s = moth_functional_store(f, t);
  if (s->input >= 0 && same_geometry(s->root.t, t) && ref->node->kind == MOTH_NODE_PLACEHOLDER)
    return MOTH_OK;
  return add_unary(f, MOTH_OP(clone), *ref, t, true, ref);
}

/* A call that keeps writing: to inputs, and to copies that only it uses before. */
static MothStatus note_writer(MothFunctional *f, MothCall *c, uint32_t nrefs) {
  uint32_t at = 0;
  MothGraphNode *n;
  bool self = c->op->returns_self;
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    uint32_t count = moth_ntensors(v);
    bool writes = c->op->args[i].mutated || (self && i == 0);
    for (uint32_t k = 0; k < count && writes; k++)
      MOTH_TRY(to_be_written(f, moth_tensor_at(v, k), &f->refs[at + k]));
    at += count;
  }
  if (self)
    f->refs[nrefs - 1] = f->refs[0];
  MothGraphRef *refs = malloc(sizeof *refs * ((size_t)nrefs + 1));
  if (!refs)
    return moth_no_memory(sizeof *refs * ((size_t)nrefs + 1));
  memcpy(refs, f->refs, sizeof *refs * nrefs);
  MothStatus status = moth_redispatch(c);
  if (status == MOTH_OK)
    status = add_node(f, c, self ? MOTH_INPLACE : MOTH_FUNCTIONAL, refs, nrefs, c->results,
                      self && refs[0].node->kind != MOTH_NODE_PLACEHOLDER, &n);
  at = 0;
  for (int i = 0; i < c->op->nargs && status == MOTH_OK; i++) {
    MothValue v = c->args[i];
    uint32_t count = moth_ntensors(v);
    for (uint32_t k = 0; k < count && status == MOTH_OK; k++)
      if (c->op->args[i].mutated || (self && i == 0))
        status = written(f, moth_tensor_at(v, k), self ? (MothGraphRef){n, 0} : refs[at + k]);
    at += count;
  }
  free(refs);
  if (status == MOTH_OK && !self)
    status = take_results(f, c, n);
  return status;
}

static MothStatus note(MothFunctional *f, MothCall *c) {
  uint32_t nrefs = 0;
  bool done = false;
  MothGraphNode *n;
  MothFunctionalStore *s =
      c->op == MOTH_OP(as_strided) ? moth_functional_store(f, c->args[0].u.t) : NULL;
  if (s) { /* it counts from the storage's beginning: a view of the whole, when it is read */
    s->reached = true;
    f->offsets = f->offsets || (s->input >= 0 && c->args[3].tag != MOTH_V_NONE);
    return moth_redispatch(c);
  }
  MOTH_TRY(find_refs(f, c, c->target != NULL, &nrefs));
  if (c->variant == MOTH_INPLACE && !c->op->returns_self)
    return note_inplace(f, c, nrefs - c->op->nresults);
  if (c->variant == MOTH_OUT)
    return moth_fail(MOTH_ERR_STATE, "%s with out", c->op->name);
  if (c->op->returns_self)
    MOTH_TRY(note_filling(f, c, &done));
  if (done)
    return MOTH_OK;
  if (moth_op_writes(c->op))
    return note_writer(f, c, nrefs);
  if (!c->op->shape && !c->op->fake && !c->op->composite)
    return moth_fail(MOTH_ERR_STATE, "%s: sizes of its result depend on elements", c->op->name);
  MOTH_TRY(moth_redispatch(c));
  MOTH_TRY(add_node(f, c, MOTH_FUNCTIONAL, f->refs, nrefs, c->results, false, &n));
  return take_results(f, c, n);
}

MothStatus moth_functional_note(MothCall *c, void *ctx) {
  for (int i = 0; i < c->op->nresults; i++)
    c->results[i] = moth_v_none();
  MothStatus status = note(ctx, c);
  for (int i = 0; i < c->op->nresults && status != MOTH_OK; i++) {
    if (c->results[i].tag == MOTH_V_TENSOR)
      moth_tensor_release(c->results[i].u.t);
    c->results[i] = moth_v_none();
  }
  return status;
}
