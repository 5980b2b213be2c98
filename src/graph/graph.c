/* Graphs: made from a segment, changed, checked. See graph.h. */
#include "graph/graph.h"
#include "core/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- nodes -------------------------------------------------------------------------------------------- */

static void free_node(MothGraphNode *n) {
  for (int i = 0; n->args && i < n->op->nargs; i++)
    moth_trace_value_free(n->args[i].value);
  for (int i = 0; i < MOTH_MAX_RESULTS; i++)
    free(n->metas[i].dims);
  moth_tensor_release(n->tensor);
  free(n->args);
  free(n->refs);
  free(n->place);
  free(n);
}

/* A node in front of `before` (NULL: at the end). */
MothGraphNode *moth_graph_add(MothGraph *g, MothGraphNode *before, MothNodeKind kind,
                              const char *name) {
  MothGraphNode *n = calloc(1, sizeof *n);
  if (!n)
    return NULL;
  n->kind = (uint8_t)kind;
  n->id = ++g->next_id;
  snprintf(n->name, sizeof n->name, "%s", name);
  n->next = before;
  n->prev = before ? before->prev : g->last;
  if (n->prev)
    n->prev->next = n;
  else
    g->first = n;
  if (before)
    before->prev = n;
  else
    g->last = n;
  g->nnodes++;
  return n;
}

void moth_graph_release(MothGraph *g) {
  if (!g || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1)
    return;
  while (g->first) {
    MothGraphNode *n = g->first;
    g->first = n->next;
    free_node(n);
  }
  free(g->pinned);
  free(g->name);
  free(g);
}

uint32_t moth_graph_count(const MothGraph *g, MothNodeKind kind) {
  uint32_t count = 0;
  for (const MothGraphNode *n = g->first; n; n = n->next)
    count += n->kind == kind;
  return count;
}

MothGraphNode *moth_graph_node(const MothGraph *g, uint32_t id) {
  for (MothGraphNode *n = g->first; n; n = n->next)
    if (n->id == id)
      return n;
  return NULL;
}

static bool copy_meta(MothTraceMeta *to, const MothTraceMeta *from) {
  *to = *from;
  size_t size = sizeof(int64_t) * (2 * (size_t)from->ndim + 1);
  to->dims = malloc(size);
  if (to->dims && from->dims)
    memcpy(to->dims, from->dims, sizeof(int64_t) * 2 * from->ndim);
  return to->dims != NULL;
}

static bool copy_arg(MothTraceArg *to, const MothValue *v) {
  *to = (MothTraceArg){.free = false};
  return moth_trace_value_copy(&to->value, v);
}

MothGraph *moth_graph_new(const char *name) {
  MothGraph *g = calloc(1, sizeof *g);
  if (g) {
    g->refs = 1;
    g->name = strdup(name);
  }
  return g;
}

MothStatus moth_graph_add_call(MothGraph *g, const MothOp *op, MothVariant variant,
                               const MothValue *args, const MothGraphRef *refs, uint32_t nrefs,
                               const MothTraceMeta *metas, const MothTraceModes *modes,
                               const char *place, MothGraphNode **out) {
  MothGraphNode *n = moth_graph_add(g, NULL, MOTH_NODE_CALL, op->name);
  if (!n)
    return moth_no_memory(0);
  n->op = op;
  n->variant = (uint8_t)variant;
  n->modes = *modes;
  n->nresults = op->nresults;
  n->nrefs = nrefs;
  n->args = calloc((size_t)op->nargs + 1, sizeof *n->args);
  n->refs = malloc(sizeof *n->refs * ((size_t)nrefs + 1));
  n->place = strdup(place ? place : "");
  bool ok = n->args && n->refs && n->place;
  if (ok && nrefs)
    memcpy(n->refs, refs, sizeof *refs * nrefs);
  for (int i = 0; i < op->nargs && ok; i++)
    ok = copy_arg(&n->args[i], &args[i]);
  for (int i = 0; i < op->nresults && ok; i++)
    ok = copy_meta(&n->metas[i], &metas[i]);
  *out = n;
  return ok ? MOTH_OK : moth_no_memory(0);
}

MothStatus moth_graph_add_value(MothGraph *g, MothGraphNode *before, MothNodeKind kind,
                                const char *name, MothTensor *t, MothGraphNode **out) {
  MothGraphNode *n = *out = moth_graph_add(g, before, kind, name);
  if (!n)
    return moth_no_memory(0);
  n->nresults = 1;
  n->place = strdup("");
  if (kind == MOTH_NODE_GET_ATTR)
    moth_tensor_retain(n->tensor = t);
  return moth_meta_of(t, true, &n->metas[0]) ? MOTH_OK : MOTH_ERR_MEMORY;
}

MothStatus moth_graph_add_output(MothGraph *g, const MothGraphRef *refs, uint32_t count) {
  MothGraphNode *n = moth_graph_add(g, NULL, MOTH_NODE_OUTPUT, "output");
  if (!n || !(n->refs = calloc((size_t)count + 1, sizeof *refs)))
    return moth_no_memory(((size_t)count + 1) * sizeof *refs);
  if (count)
    memcpy(n->refs, refs, sizeof *refs * count);
  n->nrefs = count;
  n->place = strdup("");
  return MOTH_OK;
}

MothStatus moth_graph_add_copy(MothGraph *g, const MothGraphNode *n, const MothGraphRef *refs,
                               MothGraphNode **out) {
  if (n->kind == MOTH_NODE_CALL) {
    MothValue args[MOTH_MAX_ARGS];
    for (int i = 0; i < n->op->nargs; i++)
      args[i] = n->args[i].value;
    MOTH_TRY(moth_graph_add_call(g, n->op, (MothVariant)n->variant, args, refs, n->nrefs, n->metas,
                                 &n->modes, n->place, out));
    (*out)->backward = n->backward;
    for (int i = 0; i < n->op->nargs; i++) {
      (*out)->args[i].number = n->args[i].number;
      (*out)->args[i].free = n->args[i].free;
    }
    return MOTH_OK;
  }
  MothGraphNode *copy = moth_graph_add(g, NULL, (MothNodeKind)n->kind, n->name);
  if (!copy)
    return moth_no_memory(0);
  *out = copy;
  copy->nresults = n->nresults;
  copy->place = strdup("");
  moth_tensor_retain(copy->tensor = n->tensor);
  return n->nresults && !copy_meta(&copy->metas[0], &n->metas[0]) ? moth_no_memory(0) : MOTH_OK;
}

bool moth_graph_set_numbers(MothGraph *g, uint32_t n) {
  g->nnumbers = n;
  g->pinned = calloc((size_t)n + 1, sizeof *g->pinned);
  return g->pinned != NULL;
}

void moth_graph_remove(MothGraph *g, MothGraphNode *n) {
  if (n->prev)
    n->prev->next = n->next;
  else
    g->first = n->next;
  if (n->next)
    n->next->prev = n->prev;
  else
    g->last = n->prev;
  g->nnodes--;
  free_node(n);
}

/* --- from a segment ------------------------------------------------------------------------------------- */

static MothStatus add_outside(MothGraph *g, MothTensor *t, bool held, uint32_t number,
                              MothGraphRef *ref) {
  char name[32];
  snprintf(name, sizeof name, held ? "attr_%u" : "x%u", number);
  ref->result = 0;
  return moth_graph_add_value(g, NULL, held ? MOTH_NODE_GET_ATTR : MOTH_NODE_PLACEHOLDER, name, t,
                              &ref->node);
}

static MothStatus add_record(MothGraph *g, const MothRecord *r, bool numbers, MothGraphRef *values,
                             MothGraphRef *refs) {
  MothValue args[MOTH_MAX_ARGS];
  MothGraphNode *n;
  for (uint32_t i = 0; i < r->nnumbers; i++)
    refs[i] = values[r->numbers[i]];
  for (int i = 0; i < r->op->nargs; i++)
    args[i] = r->args[i].value;
  MOTH_TRY(moth_graph_add_call(g, r->op, (MothVariant)r->variant, args, refs, r->nnumbers, r->metas,
                               &r->modes, r->place, &n));
  for (int i = 0; i < r->op->nargs; i++) {
    if (numbers && moth_arg_varies(r, i, g->dynamic))
      n->args[i].number = ++g->nnumbers;
    n->args[i].free = r->args[i].free;
    n->args[i].varied = r->args[i].varied;
  }
  for (int i = 0; i < r->op->nresults; i++)
    values[r->result[i]] = (MothGraphRef){n, (uint8_t)i};
  return MOTH_OK;
}

/* The value that t is: what the segment knows, or an input (the first nodes), else a get_attr. */
static MothStatus find_value(MothGraph *g, const MothSegment *s, MothGraphRef *values,
                             MothTensor *t, MothTensor *const *inputs, int ninputs,
                             MothGraphRef *ref) {
  if (t->number < s->nvalues && s->values[t->number] == t && values[t->number].node) {
    *ref = values[t->number];
    return MOTH_OK;
  }
  MothGraphNode *n = g->first;
  for (int i = 0; i < ninputs; i++, n = n->next)
    if (inputs[i] == t) {
      *ref = (MothGraphRef){n, 0};
      return MOTH_OK;
    }
  return add_outside(g, t, true, g->next_id + 1, ref);
}

static MothStatus build(MothGraph *g, const MothSegment *s, MothGraphRef *values,
                        MothTensor *const *outputs, uint32_t noutputs, MothTensor *const *inputs,
                        int ninputs) {
  uint32_t nheld = 0, nx = 0, most = noutputs;
  for (int i = 0; i < ninputs; i++) {
    MothGraphRef ref;
    MOTH_TRY(add_outside(g, inputs[i], false, ++nx, &ref));
    uint32_t k = inputs[i]->number;
    if (k < s->nvalues && s->values[k] == inputs[i])
      values[k] = ref;
  }
  for (uint32_t k = 0; k < s->nrecords; k++) {
    const MothRecord *r = s->records[k];
    most = r->nnumbers > most ? r->nnumbers : most;
    for (uint32_t i = r->first; i < r->first + r->nnew; i++)
      if (!values[i].node)
        MOTH_TRY(
            add_outside(g, s->values[i], ninputs >= 0, ninputs >= 0 ? ++nheld : ++nx, &values[i]));
  }
  MothGraphRef *refs = calloc((size_t)most + 1, sizeof *refs);
  MothStatus status = refs ? MOTH_OK : moth_no_memory(0);
  for (uint32_t k = 0; k < s->nrecords && status == MOTH_OK; k++)
    status = add_record(g, s->records[k], s->recorder && s->recorder->trace->host, values, refs);
  if (status == MOTH_OK && !moth_graph_set_numbers(g, g->nnumbers))
    status = moth_no_memory(0);
  for (uint32_t i = 0; i < noutputs && status == MOTH_OK; i++)
    status = find_value(g, s, values, outputs[i], inputs, ninputs, &refs[i]);
  if (status == MOTH_OK)
    status = moth_graph_add_output(g, refs, noutputs);
  free(refs);
  return status;
}

MothStatus moth_graph_of_segment(const MothSegment *s, MothTensor *const *outputs,
                                 uint32_t noutputs, MothTensor *const *inputs, int ninputs,
                                 MothGraph **out) {
  MothGraph *g = moth_graph_new(s->recorder ? s->recorder->trace->name : "");
  MothGraphRef *values = calloc((size_t)s->nvalues + 1, sizeof *values);
  MothStatus status = g && values ? MOTH_OK : moth_no_memory(0);
  if (g)
    g->dynamic = s->recorder && s->recorder->trace->host && s->recorder->trace->dynamic;
  if (status == MOTH_OK)
    status = build(g, s, values, outputs, noutputs, inputs, ninputs);
  free(values);
  if (status == MOTH_OK)
    *out = g;
  else
    moth_graph_release(g);
  return status;
}

void moth_graph_pin(MothGraph *g, uint32_t k, bool sizes) {
  g->sizes_pinned = g->sizes_pinned || sizes;
  for (uint32_t i = 0; i < g->nnumbers; i++)
    g->pinned[i] = g->pinned[i] || (!sizes && (k == 0 || k == i + 1));
}

/* --- changing ----------------------------------------------------------------------------------------------- */

MothStatus moth_graph_insert(MothGraph *g, MothGraphNode *before, const MothCall *c,
                             MothTensor *const *tensors, const MothGraphRef *refs, uint32_t n,
                             MothGraphNode **out) {
  const MothOp *op = c->op;
  uint32_t total = moth_args_ntensors(op, c->args) + (c->target ? op->nresults : 0);
  MothGraphNode *node = moth_graph_add(g, before, MOTH_NODE_CALL, op->name);
  if (!node)
    return moth_no_memory(0);
  node->op = op;
  node->variant = c->variant;
  node->nresults = op->nresults;
  node->args = calloc((size_t)op->nargs + 1, sizeof *node->args);
  node->refs = calloc((size_t)total + 1, sizeof *node->refs);
  node->place = strdup("");
  moth_trace_modes(&node->modes);
  node->modes.include &= ~(uint32_t)MOTH_KEY_FAKE;
  bool ok = node->args && node->refs;
  for (int i = 0; i < op->nargs + (c->target ? op->nresults : 0) && ok; i++) {
    MothValue v = i < op->nargs ? c->args[i] : moth_v_tensor(c->target[i - op->nargs]);
    if (i < op->nargs)
      ok = copy_arg(&node->args[i], &v);
    for (uint32_t k = 0; k < moth_ntensors(v) && ok; k++) {
      uint32_t at = 0;
      while (at < n && tensors[at] != moth_tensor_at(v, k))
        at++;
      if (at < n)
        node->refs[node->nrefs++] = refs[at];
      else
        ok = false;
    }
  }
  for (int i = 0; i < op->nresults && ok; i++)
    ok = moth_meta_of(c->results[i].u.t, false, &node->metas[i]);
  if (!ok) {
    moth_graph_remove(g, node);
    return moth_fail(MOTH_ERR_VALUE,
                     "[%s] a call in a graph takes nodes of the graph, no other tensors", op->name);
  }
  *out = node;
  return MOTH_OK;
}

uint32_t moth_graph_uses(const MothGraph *g, const MothGraphNode *n) {
  uint32_t uses = 0;
  for (const MothGraphNode *m = g->first; m; m = m->next)
    for (uint32_t i = 0; i < m->nrefs; i++)
      uses += m->refs[i].node == n;
  return uses;
}

MothStatus moth_graph_erase(MothGraph *g, MothGraphNode *n) {
  if (n->kind == MOTH_NODE_OUTPUT || n->kind == MOTH_NODE_PLACEHOLDER)
    return moth_fail(MOTH_ERR_STATE, "a graph keeps its %s",
                     n->kind == MOTH_NODE_OUTPUT ? "output"
                                                 : "placeholders, which are its arguments");
  uint32_t uses = moth_graph_uses(g, n);
  if (uses)
    return moth_fail(MOTH_ERR_STATE,
                     "%s cannot be erased: %u nodes use it; replace_all_uses_with() first", n->name,
                     uses);
  moth_graph_remove(g, n);
  return MOTH_OK;
}

static bool comes_before(const MothGraphNode *a, const MothGraphNode *b) {
  for (const MothGraphNode *n = a->next; n; n = n->next)
    if (n == b)
      return true;
  return false;
}

MothStatus moth_graph_replace(MothGraph *g, MothGraphRef from, MothGraphRef to,
                              MothGraphNode *only) {
  const MothTraceMeta *a = &from.node->metas[from.result], *b = &to.node->metas[to.result];
  if (a->dtype != b->dtype || a->ndim != b->ndim || a->device.type != b->device.type ||
      memcmp(a->dims, b->dims, sizeof(int64_t) * a->ndim) != 0) {
    char x[200], y[200];
    return moth_fail(MOTH_ERR_VALUE, "%s, %s %s, cannot take the place of %s, %s %s", to.node->name,
                     moth_dtype_name((MothDType)b->dtype),
                     moth_shape_format(b->ndim, b->dims, y, sizeof y), from.node->name,
                     moth_dtype_name((MothDType)a->dtype),
                     moth_shape_format(a->ndim, a->dims, x, sizeof x));
  }
  for (int pass = 0; pass < 2;
       pass++) /* first a look at all, so that nothing changes where one does not fit */
    for (MothGraphNode *n = g->first; n; n = n->next)
      for (uint32_t i = 0; i < n->nrefs; i++) {
        if (n->refs[i].node != from.node || n->refs[i].result != from.result || n == to.node ||
            (only && n != only))
          continue;
        if (pass == 0 && !comes_before(to.node, n))
          return moth_fail(MOTH_ERR_STATE, "%s uses %s and comes before %s", n->name,
                           from.node->name, to.node->name);
        if (pass == 1)
          n->refs[i] = to;
      }
  return MOTH_OK;
}

uint32_t moth_graph_eliminate(MothGraph *g) {
  uint32_t removed = 0;
  for (MothGraphNode *n = g->last, *prev; n; n = prev) {
    prev = n->prev;
    bool plain = n->kind == MOTH_NODE_GET_ATTR ||
                 (n->kind == MOTH_NODE_CALL && n->variant == MOTH_FUNCTIONAL &&
                  !n->op->returns_self && n->op->drops && !n->op->draws);
    if (!plain || moth_graph_uses(g, n))
      continue;
    moth_graph_remove(g, n);
    removed++;
  }
  return removed;
}

MothStatus moth_graph_check(const MothGraph *g) {
  uint32_t at = 0;
  for (MothGraphNode *n = g->first; n; n = n->next)
    n->mark = UINT32_MAX;
  for (MothGraphNode *n = g->first; n; n = n->next) {
    if (n->kind == MOTH_NODE_OUTPUT && n != g->last)
      return moth_fail(MOTH_ERR_STATE, "%s comes behind the output", n->next->name);
    for (uint32_t i = 0; i < n->nrefs; i++)
      if (n->refs[i].node->mark == UINT32_MAX) /* one that was erased is never used */
        return moth_fail(MOTH_ERR_STATE, "%s uses a value that is not made before it", n->name);
    n->mark = at++;
  }
  return g->last && g->last->kind == MOTH_NODE_OUTPUT
             ? MOTH_OK
             : moth_fail(MOTH_ERR_STATE, "the graph has no output");
}

/* --- running --------------------------------------------------------------------------------------------------- */

static MothStatus check_input(const MothGraphNode *n, const MothTensor *t) {
  const MothTraceMeta *m = &n->metas[0];
  char buf[256];
  if (t->dtype == m->dtype && t->ndim == m->ndim && t->device.type == m->device.type)
    return MOTH_OK;
  return moth_fail(
      MOTH_ERR_VALUE, "argument %s of the graph: expected %s with %d dimensions, got %s", n->name,
      moth_dtype_name((MothDType)m->dtype), m->ndim, moth_tensor_format(t, buf, sizeof buf));
}

void moth_graph_slots(const MothGraph *g, uint32_t *nvalues, uint32_t *nrefs) {
  *nvalues = *nrefs = 0;
  for (MothGraphNode *n = g->first; n; n = n->next) {
    n->slot = *nvalues;
    *nvalues += n->nresults;
    *nrefs = n->nrefs > *nrefs ? n->nrefs : *nrefs;
  }
}

MothStatus moth_graph_call(const MothGraphNode *n, const MothValue *numbers, MothTensor **values,
                           MothTensor **lists, MothValue *results) {
  MothValue args[MOTH_MAX_ARGS];
  MothThread *t = &moth_thread;
  for (uint32_t i = 0; i < n->nrefs; i++)
    lists[i] = values[n->refs[i].node->slot + n->refs[i].result];
  for (int i = 0; i < n->op->nargs; i++) {
    uint32_t number = n->args[i].number;
    args[i] = number && numbers ? numbers[number - 1] : n->args[i].value;
  }
  MothTensor **target = moth_args_fill(n->op, args, lists);
  MothCall c = {.op = n->op,
                .args = args,
                .results = results,
                .variant = n->variant,
                .target = n->variant == MOTH_FUNCTIONAL ? NULL : target};
  MothTraceModes was = {.include = t->include, .exclude = t->exclude, .no_grad = t->no_grad};
  uint32_t own = MOTH_KEY_ABOVE | MOTH_KEY_BELOW | MOTH_KEY_FAKE;
  memcpy(was.autocast, t->autocast, sizeof was.autocast);
  t->include = (n->modes.include & ~own) | (was.include & own);
  t->exclude = n->modes.exclude | (was.exclude & own) | (was.no_grad ? MOTH_KEY_AUTOGRAD : 0);
  t->no_grad = n->modes.no_grad || was.no_grad;
  memcpy(t->autocast, n->modes.autocast, sizeof was.autocast);
  MothStatus status = moth_dispatch(&c);
  t->include = was.include;
  t->exclude = was.exclude;
  t->no_grad = was.no_grad;
  memcpy(t->autocast, was.autocast, sizeof was.autocast);
  return status;
}

MothStatus moth_graph_run(MothGraph *g, MothTensor *const *inputs, uint32_t ninputs,
                          const MothValue *numbers, MothTensor **outputs) {
  MOTH_TRY(moth_graph_check(g));
  uint32_t nvalues, nrefs, at = 0, want = moth_graph_count(g, MOTH_NODE_PLACEHOLDER);
  if (ninputs != want)
    return moth_fail(MOTH_ERR_VALUE, "the graph has %u inputs, got %u", want, ninputs);
  moth_graph_slots(g, &nvalues, &nrefs);
  MothTensor **values = calloc((size_t)nvalues + nrefs + 2, sizeof(MothTensor *));
  MothGraphNode **last = calloc((size_t)nvalues + 1, sizeof *last);
  MothStatus status = values && last ? MOTH_OK : moth_no_memory(0);
  for (MothGraphNode *n = g->first; n && status == MOTH_OK; n = n->next)
    for (uint32_t i = 0; i < n->nrefs; i++)
      last[n->refs[i].node->slot + n->refs[i].result] = n;
  for (MothGraphNode *n = g->first; n && status == MOTH_OK; n = n->next) {
    MothTensor **own = values + n->slot;
    MothValue results[MOTH_MAX_RESULTS];
    switch ((MothNodeKind)n->kind) {
    case MOTH_NODE_PLACEHOLDER:
      status = check_input(n, inputs[at]);
      moth_tensor_retain(*own = inputs[at++]);
      break;
    case MOTH_NODE_GET_ATTR:
      moth_tensor_retain(*own = n->tensor);
      break;
    case MOTH_NODE_CALL:
      status = moth_graph_call(n, numbers, values, values + nvalues, results);
      if (status != MOTH_OK && status != MOTH_ERR_HOST && status != MOTH_ERR_INTERRUPTED &&
          n->place && n->place[0] && moth_trace_host.failed)
        status = moth_trace_host.failed(n->place, status);
      for (int i = 0; i < n->nresults && status == MOTH_OK; i++)
        own[i] = results[i].u.t;
      break;
    case MOTH_NODE_OUTPUT:
      for (uint32_t i = 0; i < n->nrefs; i++)
        moth_tensor_retain(outputs[i] = values[n->refs[i].node->slot + n->refs[i].result]);
      break;
    }
    for (uint32_t i = 0; i < n->nrefs && status == MOTH_OK; i++) { /* what nobody uses later */
      uint32_t k = n->refs[i].node->slot + n->refs[i].result;
      if (last[k] == n) {
        moth_tensor_release(values[k]);
        values[k] = NULL;
      }
    }
    for (int i = 0; i < n->nresults && status == MOTH_OK; i++)
      if (!last[n->slot + (uint32_t)i]) {
        moth_tensor_release(own[i]);
        own[i] = NULL;
      }
  }
  for (uint32_t i = 0; values && i < nvalues; i++)
    moth_tensor_release(values[i]);
  free(values);
  free(last);
  return status;
}
