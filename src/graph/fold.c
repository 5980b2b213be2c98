/* Folding: what a graph computes from constants alone is computed once, and held by it (get_attr).
 *
 * Numbers of the program that have not differed between calls count as constants; they are pinned then. Calls that only
 * fill memory stay, as do large values, and those whose memory the program would get. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "dispatch/dispatch.h"
#include "graph/joint.h"

enum { HELD_BYTES = 1 << 20, COMPUTED_BYTES = 1 << 24 };

/* In `mark`, while this runs. */
enum { CONSTANT = 1, NEEDED = 2, OWN = 4, HELD = 8, EXPOSED = 16 };

static void make_own(MothGraphRef ref) {
  ref.node->mark |= OWN;
}

static int64_t bytes_of(const MothTraceMeta *m) {
  return m->numel * (int64_t)moth_dtype_size((MothDType)m->dtype);
}

/* Whether the arguments that are no tensors are the same in each call. */
static bool has_constants(const MothGraphNode *n, const bool *varied, const bool *pinned) {
  for (int i = 0; i < n->op->nargs; i++) {
    uint32_t k = n->args[i].number;
    if (k && (n->args[i].value.tag == MOTH_V_INTS || (varied[k - 1] && !pinned[k - 1])))
      return false;
  }
  return true;
}

static bool is_constant(const MothGraphNode *n, const bool *varied, const bool *pinned) {
  if (n->kind != MOTH_NODE_CALL || n->mark & OWN || n->nresults != 1 || !n->op->repeats ||
      !n->op->drops || n->op->defined || moth_op_draws(n->op) || moth_node_writes(n) ||
      moth_is_pass(n->op) || n->op->id == UINT16_MAX)
    return false;
  for (uint32_t i = 0; i < n->nrefs; i++)
    if (!(n->refs[i].node->mark & CONSTANT))
      return false;
  return bytes_of(&n->metas[0]) <= COMPUTED_BYTES && has_constants(n, varied, pinned);
}

/* Which constants are to be held: those that other calls take. Returns how many. */
static uint32_t choose(MothGraph *g) {
  uint32_t nheld = 0;
  for (MothGraphNode *n = g->last; n; n = n->prev) {
    bool shows = n->kind == MOTH_NODE_CALL && n->op->memory != MOTH_MEMORY_NEW;
    bool holds = n->mark & CONSTANT && n->mark & NEEDED && !(n->mark & EXPOSED) && n->nrefs > 0 &&
                 !shows && bytes_of(&n->metas[0]) <= HELD_BYTES;
    if (holds) {
      n->mark |= HELD;
      nheld++;
      continue;
    }
    if (n->mark & CONSTANT && !(n->mark & NEEDED))
      continue; /* a part of others */
    n->mark &= ~(uint32_t)CONSTANT;
    bool exposes = n->kind == MOTH_NODE_OUTPUT || (shows && n->mark & EXPOSED);
    for (uint32_t i = 0; i < n->nrefs; i++)
      n->refs[i].node->mark |= NEEDED | (exposes ? EXPOSED : 0);
  }
  return nheld;
}

/* Marks what the held values are computed from, and pins its numbers. */
static void pin(MothGraph *g, bool *pinned) {
  for (MothGraphNode *n = g->last; n; n = n->prev) {
    if (!(n->mark & HELD))
      continue;
    for (uint32_t i = 0; i < n->nrefs; i++)
      n->refs[i].node->mark |= HELD;
    for (int i = 0; i < n->op->nargs; i++)
      if (n->args[i].number)
        pinned[n->args[i].number - 1] = true;
  }
}

/* Computes the marked calls; values: by slots. */
static MothStatus compute(MothGraph *g, MothTensor **values, MothTensor **lists) {
  MothClean *clean = moth_clean_begin();
  MothStatus status = MOTH_OK;
  if (!clean)
    return moth_no_memory(0);
  moth_set_grad_enabled(false);
  for (MothGraphNode *n = g->first; n && status == MOTH_OK; n = n->next) {
    MothValue results[MOTH_MAX_RESULTS];
    if (!(n->mark & HELD))
      continue;
    status = moth_graph_call(n, NULL, values, lists, results);
    if (status == MOTH_OK)
      values[n->slot] = results[0].u.t;
  }
  moth_clean_end(clean);
  return status;
}

/* A get_attr of t behind n, whose users get it. */
static MothStatus hold(MothGraph *g, MothGraphNode *n, MothTensor *t) {
  char name[32];
  MothGraphNode *attr;
  snprintf(name, sizeof name, "constant_%u", n->id);
  MOTH_TRY(moth_graph_add_value(g, n->next, MOTH_NODE_GET_ATTR, name, t, &attr));
  attr->backward = n->backward;
  for (MothGraphNode *user = attr->next; user; user = user->next)
    for (uint32_t i = 0; i < user->nrefs; i++)
      if (user->refs[i].node == n)
        user->refs[i] = (MothGraphRef){attr, 0};
  return MOTH_OK;
}

static bool *varied_of(const MothGraph *program) {
  bool *varied = calloc((size_t)program->nnumbers + 1, sizeof *varied);
  for (const MothGraphNode *n = program->first; n && varied; n = n->next)
    for (int i = 0; n->op && i < n->op->nargs; i++)
      if (n->args[i].number && n->args[i].varied)
        varied[n->args[i].number - 1] = true;
  return varied;
}

static MothStatus fold(MothGraph *g, const bool *varied, bool *pinned, uint32_t *nheld) {
  uint32_t nvalues, nlists, nids = 0;
  moth_graph_slots(g, &nvalues, &nlists);
  for (MothGraphNode *n = g->first; n; n = n->next)
    n->mark = 0;
  for (MothGraphNode *n = g->first; n; n = n->next)
    if (moth_node_writes(n))
      moth_node_each_written(n, make_own);
  for (MothGraphNode *n = g->first; n; n = n->next)
    if (is_constant(n, varied, pinned))
      n->mark |= CONSTANT;
  *nheld = choose(g);
  if (!*nheld)
    return MOTH_OK;
  MothTensor **values = calloc((size_t)nvalues + nlists + 1, sizeof *values);
  MothGraphNode **held = calloc(*nheld, sizeof(MothGraphNode *));
  MothStatus status = values && held ? MOTH_OK : moth_no_memory(0);
  for (MothGraphNode *n = g->first; n && status == MOTH_OK; n = n->next)
    if (n->mark & HELD)
      held[nids++] = n;
  if (status == MOTH_OK) {
    pin(g, pinned);
    status = compute(g, values, values + nvalues);
  }
  for (uint32_t i = 0; i < nids && status == MOTH_OK; i++)
    status = hold(g, held[i], values[held[i]->slot]);
  for (uint32_t i = 0; values && i < nvalues; i++)
    moth_tensor_release(values[i]);
  free(values);
  free(held);
  return status;
}

MothStatus moth_graph_fold(MothGraph *g, const MothGraph *program, bool *pinned, uint32_t *nheld) {
  bool *varied = varied_of(program);
  MothStatus status = varied ? fold(g, varied, pinned, nheld) : moth_no_memory(0);
  free(varied);
  return status;
}
