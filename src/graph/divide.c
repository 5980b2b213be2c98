/* Dividing a joint graph into forward and backward. See joint.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "graph/joint.h"

void moth_joint_parts_free(MothJointParts *p) {
  moth_graph_release(p->forward);
  moth_graph_release(p->backward);
  free(p->saved);
  free(p->takes);
  free(p->users);
  *p = (MothJointParts){0};
}

/* For each value of the joint graph, at its node's slot + result: what it is in the graph that is built. */
typedef struct Divide {
  const MothJoint *joint;
  MothGraphRef *map;
  MothGraphRef *refs; /* of one node */
  bool *wanted;       /* by backward, of forward's values */
  bool *kept;         /* saved; of the others that are wanted the calls run again */
  uint32_t nvalues, nrefs, users_cap;
} Divide;

static uint32_t slot_of(MothGraphRef r) {
  return r.node->slot + r.result;
}

static bool is_view(const MothGraphNode *n) {
  return n->kind == MOTH_NODE_CALL && n->variant == MOTH_FUNCTIONAL &&
         n->op->memory == MOTH_MEMORY_VIEW;
}

static bool is_gradient(const MothGraphNode *n) {
  return n->kind == MOTH_NODE_PLACEHOLDER && n->backward;
}

static MothStatus copy_node(Divide *d, MothGraph *g, const MothGraphNode *n) {
  MothGraphNode *copy;
  for (uint32_t i = 0; i < n->nrefs; i++) {
    d->refs[i] = d->map[slot_of(n->refs[i])];
    if (!d->refs[i].node)
      return moth_fail(MOTH_ERR_STATE, "backward uses a value of %s that is not saved",
                       n->refs[i].node->name);
  }
  MOTH_TRY(moth_graph_add_copy(g, n, d->refs, &copy));
  for (uint8_t i = 0; i < n->nresults; i++)
    d->map[n->slot + i] = (MothGraphRef){copy, i};
  return MOTH_OK;
}

/* Marks what backward wants of forward: with `again` also what calls that run again want. */
static void mark_wanted(Divide *d, bool again) {
  for (const MothGraphNode *n = d->joint->graph->last; n; n = n->prev) {
    bool used = n->backward && n->kind == MOTH_NODE_CALL;
    for (uint8_t i = 0; i < n->nresults && again && !n->backward && n->kind == MOTH_NODE_CALL; i++)
      used = used || (d->wanted[n->slot + i] && !d->kept[n->slot + i]);
    if (n->kind == MOTH_NODE_OUTPUT) { /* a gradient may be a value of forward */
      for (uint32_t i = d->joint->nroots; i < n->nrefs; i++)
        if (!n->refs[i].node->backward)
          d->wanted[slot_of(n->refs[i])] = true;
      continue;
    }
    for (uint32_t i = 0; used && i < n->nrefs; i++)
      if (!n->refs[i].node->backward)
        d->wanted[slot_of(n->refs[i])] = true;
  }
}

static MothStatus list_saved(Divide *d, MothJointParts *p) {
  const MothJoint *j = d->joint;
  uint32_t input = 0;
  p->saved = calloc((size_t)d->nvalues + 1, sizeof *p->saved);
  if (!p->saved)
    return moth_no_memory(((size_t)d->nvalues + 1) * sizeof *p->saved);
  for (const MothGraphNode *n = j->graph->first; n; n = n->next) {
    bool from_outside = n->kind == MOTH_NODE_PLACEHOLDER && !n->backward;
    for (uint8_t i = 0; i < n->nresults; i++) {
      if (n->backward || n->kind == MOTH_NODE_GET_ATTR || !d->wanted[n->slot + i] ||
          !d->kept[n->slot + i])
        continue;
      MothJointSaved *s = &p->saved[p->nsaved++];
      *s = (MothJointSaved){n->id, i, from_outside ? (int32_t)input : -1, -1, -1};
      for (uint32_t k = 0; k < j->nroots; k++)
        if (j->roots[k].value.node == n && j->roots[k].value.result == i)
          s->root = (int32_t)k;
      if (!from_outside)
        s->output = s->root >= 0 ? s->root : (int32_t)(j->nroots + p->nextra++);
    }
    input += from_outside;
  }
  return MOTH_OK;
}

static bool is_sum(const MothGraphNode *n) {
  return n->kind == MOTH_NODE_CALL && !strcmp(n->op->name, "add");
}

/* By node, in `results`: the results whose gradients it is computed from, or, of what is computed of saved values alone,
 * of its users. Derivatives are linear in the gradients, so what is computed of saved values alone and added to what is not
 * can only be zero (copy_ gives zeros to what it overwrites): it belongs to no result. */
static void find_results(const MothJoint *j, uint64_t *results, bool *grows) {
  uint32_t at = 0, given = 0;
  for (MothGraphNode *n = j->graph->first; n; n = n->next) {
    uint64_t all = 0;
    n->mark = at;
    if (is_gradient(n))
      all = j->nresults > 64 ? UINT64_MAX : 1ull << j->given[given];
    given += is_gradient(n);
    for (uint32_t i = 0; i < n->nrefs; i++)
      all |= results[n->refs[i].node->mark];
    results[at++] = n->backward ? all : 0;
    grows[n->mark] = results[n->mark] != 0;
  }
  for (MothGraphNode *n = j->graph->last; n; n = n->prev)
    for (uint32_t i = 0; i < n->nrefs && n->backward; i++) {
      const MothGraphNode *m = n->refs[i].node;
      bool alone = m->backward && m->kind == MOTH_NODE_CALL && !(grows[n->mark] && is_sum(n));
      for (uint32_t k = 0; k < m->nrefs && alone; k++)
        alone = !results[m->refs[k].node->mark];
      if (alone)
        results[m->mark] |= results[n->mark];
    }
}

/* By node, whose marks find_results has set: the edges whose gradients are computed from it. */
static void find_edges(const MothJoint *j, uint64_t *edges) {
  const MothGraphNode *end = j->graph->last;
  for (uint32_t k = 0; k < j->nedges; k++)
    if (j->gradient[k] >= 0)
      edges[end->refs[j->nroots + (uint32_t)j->gradient[k]].node->mark] |=
          j->nedges > 64 ? UINT64_MAX : 1ull << k;
  for (const MothGraphNode *n = end->prev; n; n = n->prev)
    for (uint32_t i = 0; i < n->nrefs; i++)
      edges[n->refs[i].node->mark] |= edges[n->mark];
}

/* The saved values that v is, or is computed again from. */
static MothStatus add_users(Divide *d, MothJointParts *p, MothGraphRef v, uint64_t results,
                            uint64_t edges) {
  if (v.node->backward || v.node->kind == MOTH_NODE_GET_ATTR)
    return MOTH_OK;
  if (!d->kept[slot_of(v)]) {
    for (uint32_t i = 0; i < v.node->nrefs; i++)
      MOTH_TRY(add_users(d, p, v.node->refs[i], results, edges));
    return MOTH_OK;
  }
  uint32_t saved = 0;
  while (saved < p->nsaved &&
         (p->saved[saved].id != v.node->id || p->saved[saved].result != v.result))
    saved++;
  for (uint32_t i = 0; i < p->nusers; i++)
    if (p->users[i].saved == saved && p->users[i].results == results && p->users[i].edges == edges)
      return MOTH_OK;
  if (!moth_grow(&p->users, &d->users_cap, (size_t)p->nusers + 1, sizeof *p->users))
    return MOTH_ERR_MEMORY;
  p->users[p->nusers++] = (MothJointUser){saved, results, edges};
  return MOTH_OK;
}

static MothStatus list_users(Divide *d, MothJointParts *p) {
  const MothJoint *j = d->joint;
  size_t nnodes = (size_t)j->graph->nnodes + 1;
  uint64_t *results = calloc(2 * nnodes, sizeof *results + sizeof(bool)), *edges = results + nnodes;
  if (!results)
    return moth_no_memory((size_t)(2 * nnodes) * (sizeof *results + sizeof(bool)));
  bool *grows = (bool *)(results + 2 * nnodes); /* is computed from a gradient */
  find_results(j, results, grows);
  find_edges(j, edges);
  MothStatus status = MOTH_OK;
  for (const MothGraphNode *n = j->graph->first; n && status == MOTH_OK; n = n->next)
    for (uint32_t i = 0; i < n->nrefs && n->backward && n->kind == MOTH_NODE_CALL; i++)
      if (status == MOTH_OK)
        status = add_users(d, p, n->refs[i], results[n->mark],
                           edges[n->mark] ? edges[n->mark] : UINT64_MAX);
  free(results);
  return status;
}

static MothStatus build_forward(Divide *d, MothJointParts *p) {
  const MothJoint *j = d->joint;
  MothGraph *g = p->forward = moth_graph_new(j->graph->name);
  MothGraphRef *out = calloc((size_t)j->nroots + p->nextra + 1, sizeof *out);
  MothStatus status =
      g && out && moth_graph_set_numbers(g, j->graph->nnumbers) ? MOTH_OK : moth_no_memory(0);
  memset(d->map, 0, sizeof *d->map * d->nvalues);
  for (const MothGraphNode *n = j->graph->first; n && status == MOTH_OK; n = n->next)
    if (!n->backward && n->kind != MOTH_NODE_OUTPUT)
      status = copy_node(d, g, n);
  for (uint32_t i = 0; i < j->nroots && status == MOTH_OK; i++)
    out[i] = d->map[slot_of(j->roots[i].value)];
  for (const MothGraphNode *n = j->graph->first; n && status == MOTH_OK; n = n->next)
    for (uint32_t i = 0; i < p->nsaved; i++)
      if (p->saved[i].id == n->id && p->saved[i].output >= (int32_t)j->nroots)
        out[p->saved[i].output] = d->map[n->slot + p->saved[i].result];
  if (status == MOTH_OK)
    status = moth_graph_add_output(g, out, j->nroots + p->nextra);
  free(out);
  return status;
}

static MothStatus add_saved(Divide *d, MothGraph *g, const MothGraphNode *n, uint8_t result,
                            uint32_t number) {
  MothGraphNode *copy;
  char name[32];
  MothGraphNode one = *n;
  one.kind = MOTH_NODE_PLACEHOLDER;
  one.nresults = 1;
  one.nrefs = 0;
  one.tensor = NULL;
  one.metas[0] = n->metas[result];
  snprintf(name, sizeof name, "saved%u", number);
  snprintf(one.name, sizeof one.name, "%s", name);
  MOTH_TRY(moth_graph_add_copy(g, &one, NULL, &copy));
  d->map[n->slot + result] = (MothGraphRef){copy, 0};
  return MOTH_OK;
}

static MothStatus build_backward(Divide *d, const MothJointParts *saved, MothJointParts *out) {
  const MothJoint *j = d->joint;
  MothGraph *g = out->backward = moth_graph_new(j->graph->name);
  MothGraphRef *refs = calloc((size_t)j->ngrads + 1, sizeof *refs);
  out->takes = calloc((size_t)saved->nsaved + 1, sizeof *out->takes);
  MothStatus status = g && refs && out->takes && moth_graph_set_numbers(g, j->graph->nnumbers)
                          ? MOTH_OK
                          : moth_no_memory(0);
  memset(d->map, 0, sizeof *d->map * d->nvalues);
  for (uint32_t i = 0; i < saved->nsaved && status == MOTH_OK; i++) {
    const MothGraphNode *n = moth_graph_node(j->graph, saved->saved[i].id);
    if (!n || !d->wanted[n->slot + saved->saved[i].result])
      continue;
    status = add_saved(d, g, n, saved->saved[i].result, i + 1);
    out->takes[out->ntakes++] = i;
  }
  for (const MothGraphNode *n = j->graph->first; n && status == MOTH_OK; n = n->next) {
    bool again = false;
    for (uint8_t i = 0; i < n->nresults && !n->backward && n->kind == MOTH_NODE_CALL; i++)
      again = again || (d->wanted[n->slot + i] && !d->kept[n->slot + i]);
    bool held = n->kind == MOTH_NODE_GET_ATTR && (n->backward || d->wanted[n->slot]);
    if (is_gradient(n) || (n->backward && n->kind == MOTH_NODE_CALL) || held || again)
      status = copy_node(d, g, n);
  }
  const MothGraphNode *end = j->graph->last;
  for (uint32_t i = 0; i < j->ngrads && status == MOTH_OK; i++) {
    refs[i] = d->map[slot_of(end->refs[j->nroots + i])];
    if (!refs[i].node)
      status = moth_fail(MOTH_ERR_STATE, "a gradient is a value that is not saved");
  }
  if (status == MOTH_OK)
    status = moth_graph_add_output(g, refs, j->ngrads);
  free(refs);
  return status;
}

/* What is saved: what an earlier division has; the cut; or all that is wanted, of views the base. */
static MothStatus choose_kept(Divide *d, const MothJointParts *earlier, bool recompute) {
  for (const MothGraphNode *n = d->joint->graph->first; n; n = n->next)
    for (uint8_t i = 0; i < n->nresults; i++)
      d->kept[n->slot + i] = !earlier && !n->backward && !is_view(n);
  for (uint32_t i = 0; earlier && i < earlier->nsaved; i++) {
    const MothGraphNode *n = moth_graph_node(d->joint->graph, earlier->saved[i].id);
    if (n)
      d->kept[n->slot + earlier->saved[i].result] = true;
  }
  if (earlier || !recompute)
    return MOTH_OK;
  mark_wanted(d, true); /* the values that the derivatives save */
  MOTH_TRY(moth_joint_cut(d->joint, d->wanted, d->kept));
  memset(d->wanted, 0, sizeof *d->wanted * d->nvalues);
  return MOTH_OK;
}

MothStatus moth_joint_divide(const MothJoint *j, const MothJointParts *kept, bool recompute,
                             MothJointParts *out) {
  Divide d = {.joint = j};
  MothStatus status = MOTH_OK;
  *out = (MothJointParts){0};
  moth_graph_slots(j->graph, &d.nvalues, &d.nrefs);
  d.map = calloc((size_t)d.nvalues + 1, sizeof *d.map);
  d.refs = calloc((size_t)d.nrefs + 1, sizeof *d.refs);
  d.wanted = calloc((size_t)d.nvalues + 1, sizeof *d.wanted);
  d.kept = calloc((size_t)d.nvalues + 1, sizeof *d.kept);
  status = d.map && d.refs && d.wanted && d.kept ? MOTH_OK : moth_no_memory(0);
  if (status == MOTH_OK)
    status = choose_kept(&d, kept, recompute);
  if (status == MOTH_OK)
    mark_wanted(&d, true);
  if (status == MOTH_OK && !kept) {
    status = list_saved(&d, out);
    if (status == MOTH_OK)
      status = list_users(&d, out);
    if (status == MOTH_OK)
      status = build_forward(&d, out);
  }
  if (status == MOTH_OK && j->ngrads)
    status = build_backward(&d, kept ? kept : out, out);
  free(d.map);
  free(d.refs);
  free(d.wanted);
  free(d.kept);
  if (status != MOTH_OK)
    moth_joint_parts_free(out);
  return status;
}
