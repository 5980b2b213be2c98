/* Passes over a joint graph. See joint.h. */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "graph/joint.h"

bool moth_node_writes(const MothGraphNode *n) {
  if (n->kind != MOTH_NODE_CALL)
    return false;
  return n->variant != MOTH_FUNCTIONAL || moth_op_writes(n->op);
}

void moth_node_each_written(const MothGraphNode *n, void (*fn)(MothGraphRef ref)) {
  const MothGraphRef *ref = n->refs;
  for (int i = 0; i < n->op->nargs; i++) {
    for (uint32_t k = 0; k < moth_ntensors(n->args[i].value); k++, ref++)
      if (n->op->args[i].mutated || (i == 0 && n->op->returns_self))
        fn(*ref);
  }
  for (int i = 0; n->variant != MOTH_FUNCTIONAL && i < n->op->nresults; i++)
    fn(*ref++);
}

/* --- equal calls ------------------------------------------------------------------------------------------------ */

/* In `mark`, while this runs: how often the node's value was written to; UINT32_MAX: it is a value of its own. */
enum { OWN = -1 };

static void count_write(MothGraphRef ref) {
  if (ref.node->mark != (uint32_t)OWN)
    ref.node->mark++;
}
static void make_own(MothGraphRef ref) {
  ref.node->mark = (uint32_t)OWN;
}

static bool may_be_one(const MothGraphNode *n) {
  return n->kind == MOTH_NODE_CALL && n->mark != (uint32_t)OWN && n->op->repeats && !n->op->draws &&
         !moth_node_writes(n) && !n->op->defined;
}

typedef struct Seen {
  MothGraphNode *node;
  uint64_t key;
  struct Seen *next;
} Seen;

static uint64_t mix(uint64_t h, uint64_t x) {
  h ^= x;
  h *= 0x9E3779B97F4A7C15ull;
  return h ^ h >> 29;
}

/* Writes to an argument before the call are a part of the key. */
static uint64_t key_of(const MothGraphNode *n) {
  uint64_t h = mix((uintptr_t)n->op, n->backward && n->op->memory != MOTH_MEMORY_VIEW);
  for (uint32_t i = 0; i < n->nrefs; i++) {
    h = mix(h, (uintptr_t)n->refs[i].node + n->refs[i].result);
    h = mix(h, n->refs[i].node->mark);
  }
  for (int i = 0; i < n->op->nargs; i++) {
    MothValue v = n->args[i].value;
    h = mix(h, v.tag + 256 * (uint64_t)n->args[i].number);
    if (v.tag == MOTH_V_INTS)
      for (uint32_t k = 0; k < v.n; k++)
        h = mix(h, (uint64_t)v.u.ints[k]);
    else if (v.tag != MOTH_V_TENSOR && v.tag != MOTH_V_TENSORS && v.tag != MOTH_V_STRING)
      h = mix(h, v.tag == MOTH_V_BOOL ? v.u.b : (uint64_t)v.u.i);
  }
  return h;
}

static bool same_call(const MothGraphNode *a, const MothGraphNode *b) {
  if (a->op != b->op || a->nrefs != b->nrefs || a->modes.dtype != b->modes.dtype)
    return false;
  for (uint32_t i = 0; i < a->nrefs; i++)
    if (a->refs[i].node != b->refs[i].node || a->refs[i].result != b->refs[i].result)
      return false;
  for (int i = 0; i < a->op->nargs; i++)
    if (a->args[i].number != b->args[i].number ||
        !moth_trace_value_same(&a->args[i].value, &b->args[i].value))
      return false;
  return true;
}

static bool same_meta(const MothTraceMeta *a, const MothTraceMeta *b) {
  return a->dtype == b->dtype && a->ndim == b->ndim && a->device.type == b->device.type &&
         a->device.index == b->device.index &&
         !memcmp(a->dims, b->dims, sizeof *a->dims * a->ndim) &&
         moth_same_strides(a->ndim, a->numel, a->dims, a->dims + a->ndim, b->dims + b->ndim);
}

/* A view that shows its argument as it is. */
static bool is_identity(const MothGraphNode *n) {
  if (n->kind != MOTH_NODE_CALL || n->op->memory != MOTH_MEMORY_VIEW ||
      n->variant != MOTH_FUNCTIONAL)
    return false;
  if (n->op == MOTH_OP(as_strided) && n->args[3].value.tag != MOTH_V_NONE)
    return false;
  return same_meta(&n->metas[0], &n->refs[0].node->metas[n->refs[0].result]);
}

static MothStatus merge(MothJoint *j, MothGraphNode **instead) {
  MothGraph *g = j->graph;
  uint32_t size = 64, used = 0;
  while (size < 2 * g->nnodes)
    size *= 2;
  Seen **table = calloc(size, sizeof *table);
  Seen *fresh = malloc(sizeof *fresh * ((size_t)g->nnodes + 1)), *next = fresh;
  if (!table || !fresh) {
    free(table);
    free(fresh);
    return moth_no_memory((size_t)size * sizeof *table + sizeof *fresh * ((size_t)g->nnodes + 1));
  }
  for (MothGraphNode *n = g->first; n; n = n->next)
    n->mark = 0;
  for (MothGraphNode *n = g->first; n; n = n->next)
    if (moth_node_writes(n) && n->op != MOTH_OP(copy_))
      moth_node_each_written(n, make_own);
  for (MothGraphNode *n = g->first; n; n = n->next)
    if (n->kind == MOTH_NODE_PLACEHOLDER)
      n->mark = 0;
  for (uint32_t i = 0; i < j->nroots; i++)
    make_own(j->roots[i].value);
  for (MothGraphNode *n = g->first; n; n = n->next) {
    for (uint32_t i = 0; i < n->nrefs; i++)
      while (
          n->refs[i]
              .node
              ->slot) { /* the one in its place; an identity's argument may have another result number */
        MothGraphNode *to = instead[n->refs[i].node->slot];
        if (is_identity(n->refs[i].node))
          n->refs[i] = n->refs[i].node->refs[0];
        else
          n->refs[i].node = to;
      }
    n->slot = 0;
    if (n->kind != MOTH_NODE_CALL)
      continue;
    if (moth_node_writes(n)) {
      moth_node_each_written(n, count_write);
      continue;
    }
    if (is_identity(n)) {
      n->slot = ++used;
      instead[used] = n->refs[0].node;
      continue;
    }
    if (!may_be_one(n))
      continue;
    uint64_t key = key_of(n);
    Seen **at = &table[key & (size - 1)], *s = *at;
    while (s && (s->key != key || !same_call(s->node, n)))
      s = s->next;
    if (s) {
      n->slot = ++used;
      instead[used] = s->node;
    } else {
      *next = (Seen){n, key, *at};
      *at = next++;
    }
  }
  free(table);
  free(fresh);
  return MOTH_OK;
}

/* --- what is not used ------------------------------------------------------------------------------------------- */

static bool may_go(const MothGraphNode *n) {
  return n->kind == MOTH_NODE_CALL && !moth_node_writes(n) && !n->op->draws &&
         (n->op->drops || n->op == MOTH_OP(as_strided_scatter));
}

/* In `mark`: how often a node's values are used. */
static void count_uses(MothJoint *j) {
  MothGraph *g = j->graph;
  for (MothGraphNode *n = g->first; n; n = n->next)
    n->mark = 0;
  for (uint32_t i = 0; i < j->nroots; i++)
    j->roots[i].value.node->mark++;
  for (MothGraphNode *n = g->first; n; n = n->next)
    for (uint32_t i = 0; i < n->nrefs; i++)
      n->refs[i].node->mark++;
}

static void remove_unused(MothJoint *j) {
  MothGraph *g = j->graph;
  count_uses(j);
  for (MothGraphNode *n = g->last, *prev; n; n = prev) {
    prev = n->prev;
    if (n->mark || !may_go(n))
      continue;
    for (uint32_t i = 0; i < n->nrefs; i++)
      n->refs[i].node->mark--;
    if (j->after == n)
      j->after = n->next;
    moth_graph_remove(g, n);
  }
}

/* A copy, which is not written to, of new memory that nobody else uses: of gradients that the engine would have taken over,
 * had the notes not held them. */
static bool is_idle_copy(const MothGraphNode *n) {
  if (n->kind != MOTH_NODE_CALL || n->op != MOTH_OP(clone) || n->slot)
    return false;
  const MothGraphNode *of = n->refs[0].node;
  return of->kind == MOTH_NODE_CALL && of->variant == MOTH_FUNCTIONAL && of->nresults == 1 &&
         of->op->memory == MOTH_MEMORY_NEW && !of->op->defined && !moth_node_writes(of) &&
         of->mark == 1 && of->backward == n->backward && of->metas[0].contiguous &&
         same_meta(&n->metas[0], &of->metas[0]);
}

static void note_write(MothGraphRef ref) {
  ref.node->slot = 1;
}

static void remove_copies(MothJoint *j) {
  MothGraph *g = j->graph;
  count_uses(j);
  for (MothGraphNode *n = g->first; n; n = n->next)
    n->slot = 0;
  for (MothGraphNode *n = g->first; n; n = n->next)
    if (moth_node_writes(n))
      moth_node_each_written(n, note_write);
  for (MothGraphNode *n = g->first, *next; n; n = next) {
    next = n->next;
    if (!is_idle_copy(n))
      continue;
    MothGraphNode *of = n->refs[0].node;
    of->mark = n->mark;
    for (MothGraphNode *user = next; user; user = user->next)
      for (uint32_t i = 0; i < user->nrefs; i++)
        if (user->refs[i].node == n)
          user->refs[i].node = of;
    for (uint32_t i = 0; i < j->nroots; i++)
      if (j->roots[i].value.node == n)
        j->roots[i].value.node = of;
    if (j->after == n)
      j->after = next;
    moth_graph_remove(g, n);
  }
}

MothStatus moth_joint_simplify(MothJoint *j, const MothGraph *program, bool *pinned) {
  uint32_t nheld;
  MothGraphNode **instead = calloc((size_t)j->graph->nnodes + 2, sizeof(MothGraphNode *));
  if (!instead)
    return moth_no_memory(((size_t)j->graph->nnodes + 2) * sizeof(MothGraphNode *));
  for (MothGraphNode *n = j->graph->first; n; n = n->next)
    n->slot = 0;
  MothStatus status = merge(j, instead);
  free(instead);
  MOTH_TRY(status);
  remove_unused(j);
  remove_copies(j);
  MOTH_TRY(moth_graph_verify(j->graph));
  MOTH_TRY(moth_graph_fold(j->graph, program, pinned, &nheld));
  if (!nheld)
    return MOTH_OK;
  remove_unused(j);
  return moth_graph_verify(j->graph);
}

/* --- outputs that others are computed from ------------------------------------------------------------------------ */

/* The results that are computed from `of`. */
static uint64_t leads_to(MothJoint *j, const MothJointOutput *of) {
  uint64_t results = 0;
  if (of->root < 0 || j->nresults > 64)
    return UINT64_MAX;
  for (MothGraphNode *n = j->graph->first; n; n = n->next) {
    n->mark = n == j->roots[of->root].value.node;
    for (uint32_t i = 0; i < n->nrefs; i++)
      n->mark |= n->refs[i].node->mark;
  }
  for (uint32_t i = 0; i < j->noutputs; i++) {
    const MothJointOutput *o = &j->outputs[i];
    if (o != of && o->nr >= 0 && (o->root < 0 || j->roots[o->root].value.node->mark))
      results |= 1ull << o->nr;
  }
  return results;
}

void moth_joint_find_inner(MothJoint *j) {
  for (uint32_t i = 0; i < j->noutputs; i++) {
    MothJointOutput *o = &j->outputs[i];
    if (o->nr >= 0 && j->nresults > 1)
      o->leads = leads_to(j, o);
  }
}

/* --- checking ----------------------------------------------------------------------------------------------------- */

static MothStatus verify_call(const MothGraphNode *n, MothTensor **values, MothTensor **lists) {
  MothValue results[MOTH_MAX_RESULTS];
  MOTH_TRY(moth_graph_call(n, NULL, values, lists, results));
  MothStatus status = MOTH_OK;
  for (int i = 0; i < n->nresults; i++) {
    MothTraceMeta m;
    char a[256], b[200];
    values[n->slot + (uint32_t)i] = results[i].u.t;
    if (status != MOTH_OK)
      continue;
    if (!moth_meta_of(results[i].u.t, false, &m)) {
      status = MOTH_ERR_MEMORY;
      continue;
    }
    if (!same_meta(&m, &n->metas[i]))
      status = moth_fail(MOTH_ERR_STATE, "a pass is wrong: result %d of %s is %s, noted as %s %s",
                         i + 1, n->name, moth_tensor_format(results[i].u.t, a, sizeof a),
                         moth_dtype_name((MothDType)n->metas[i].dtype),
                         moth_shape_format(n->metas[i].ndim, n->metas[i].dims, b, sizeof b));
    free(m.dims);
  }
  return status;
}

MothStatus moth_graph_verify(MothGraph *g) {
  uint32_t nvalues, nlists;
  MOTH_TRY(moth_graph_check(g));
  moth_graph_slots(g, &nvalues, &nlists);
  MothTensor **values = calloc((size_t)nvalues + nlists + 1, sizeof(MothTensor *));
  MothClean *clean = values ? moth_clean_begin() : NULL;
  MothStatus status = clean ? MOTH_OK : moth_no_memory(0);
  if (clean) {
    moth_thread.include |= MOTH_KEY_FAKE;
    moth_set_grad_enabled(false);
    for (MothGraphNode *n = g->first; n && status == MOTH_OK; n = n->next)
      if (n->kind == MOTH_NODE_PLACEHOLDER || n->kind == MOTH_NODE_GET_ATTR)
        status = moth_meta_fake(&n->metas[0], &values[n->slot]);
      else if (n->kind == MOTH_NODE_CALL && n->op != MOTH_OP(as_strided))
        status = verify_call(n, values, values + nvalues);
      else if (n->kind == MOTH_NODE_CALL)
        status =
            moth_meta_fake(&n->metas[0], &values[n->slot]); /* it asks for the storage's size */
    moth_clean_end(clean);
  }
  for (uint32_t i = 0; values && i < nvalues; i++)
    moth_tensor_release(values[i]);
  free(values);
  return status;
}
