/* Which calls of a plan run in blocks: groups of pointwise calls over one shape.
 *
 * A group runs where its first user stands that is not in it, so all that it reads has been made. It is open until then: a
 * call joins the open groups whose values it uses, if its shape is theirs, and those become one. Before a call that writes to
 * a tensor all open groups run.
 *
 * A call whose kernel finishes its result range by range (core/behind.h), and whose result only one group reads, becomes the
 * head of that group, and runs in its place: the last one, where there are some. */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "graph/blocks.h"
#include "graph/plan_steps.h"

enum { NONE = UINT32_MAX, MANY = UINT32_MAX - 1 };

typedef struct Group {
  uint32_t into; /* the group that it is a part of; its own number */
  uint32_t ncalls, nvalues;
  bool closed;
} Group;

typedef struct Grouping {
  MothPlan *p;
  Group *groups;
  uint32_t ngroups;
  uint32_t *group_of; /* by call; NONE */
  uint32_t *order;    /* of steps: a call, or a group + ncalls */
  uint32_t norder;
  bool *kept; /* by value */
  uint32_t *head,
      *reader; /* by group: a call; by value: the group that alone reads it; NONE, MANY */
  bool *moved; /* by call: a head */
} Grouping;

static uint32_t leader(const Grouping *g, uint32_t k) {
  while (k != NONE && g->groups[k].into != k)
    k = g->groups[k].into;
  return k;
}

static void close_group(Grouping *g, uint32_t k) {
  if (g->groups[k].closed)
    return;
  g->groups[k].closed = true;
  g->order[g->norder++] = g->p->ncalls + k;
}

static const MothTensor *result_of(const MothPlan *p, uint32_t call) {
  return p->values[p->calls[call].result[0]].fake;
}

static bool same_shape(const MothTensor *a, const MothTensor *b) {
  return a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof(int64_t) * a->ndim);
}

static bool is_write(const MothPlanCall *c) {
  return !c->direct && !c->view &&
         (c->op->memory != MOTH_MEMORY_NEW || c->ntargets || c->op->defined);
}

/* The group of the call that makes a value; NONE. */
static uint32_t group_of_value(const Grouping *g, uint32_t id) {
  uint32_t call = g->p->values[id].call;
  return call == NONE ? NONE : leader(g, g->group_of[call]);
}

/* The first call of group k. */
static uint32_t first_call(const Grouping *g, uint32_t k) {
  uint32_t c = 0;
  while (leader(g, g->group_of[c]) != k)
    c++;
  return c;
}

static void place_call(Grouping *g, uint32_t i) {
  const MothPlan *p = g->p;
  const MothPlanCall *c = &p->calls[i];
  bool joins = moth_blocks_takes(p, c);
  uint32_t own = NONE;
  if (is_write(c))
    for (uint32_t k = 0; k < g->ngroups; k++)
      if (g->groups[k].into == k)
        close_group(g, k);
  for (uint32_t r = 0; r < c->nrefs; r++) {
    uint32_t k = group_of_value(g, c->refs[r]);
    if (k == NONE || g->groups[k].closed || k == own)
      continue;
    Group *other = &g->groups[k];
    uint32_t ncalls = other->ncalls + 1 + (own == NONE ? 0 : g->groups[own].ncalls);
    uint32_t nvalues = other->nvalues + c->nrefs + 1 + (own == NONE ? 0 : g->groups[own].nvalues);
    bool fits = joins && ncalls <= MOTH_BLOCKS_CALLS && nvalues <= MOTH_BLOCKS_VALUES &&
                same_shape(result_of(p, first_call(g, k)), result_of(p, i));
    if (!fits) {
      close_group(g, k);
    } else if (own == NONE) {
      own = k;
    } else {
      other->into = own;
      g->groups[own].ncalls += other->ncalls;
      g->groups[own].nvalues += other->nvalues;
    }
  }
  if (!joins) {
    g->order[g->norder++] = i;
    return;
  }
  if (own == NONE) {
    own = g->ngroups++;
    g->groups[own] = (Group){.into = own};
  }
  g->groups[own].ncalls++;
  g->groups[own].nvalues += c->nrefs + 1;
  g->group_of[i] = own;
}

static void mark_kept(Grouping *g) {
  const MothPlan *p = g->p;
  for (uint32_t i = 0; i < p->noutputs; i++)
    g->kept[p->outputs[i]] = true;
  for (uint32_t i = 0; i < p->ncalls; i++) {
    uint32_t own = leader(g, g->group_of[i]);
    for (uint32_t r = 0; r < p->calls[i].nrefs; r++) {
      uint32_t id = p->calls[i].refs[r];
      if (own == NONE || group_of_value(g, id) != own)
        g->kept[id] = true;
    }
  }
}

/* Whether the op's kernel takes what comes behind it. */
static bool finishes_ranges(const MothPlanCall *c) {
  return c->direct && (c->op == MOTH_OP(conv2d) || c->op == MOTH_OP(linear)) && c->nrefs >= 2;
}

static void find_readers(Grouping *g) {
  const MothPlan *p = g->p;
  memset(g->reader, 0xff, p->nvalues * sizeof *g->reader);
  for (uint32_t i = 0; i < p->ncalls; i++)
    for (uint32_t r = 0; r < p->calls[i].nrefs; r++) {
      uint32_t *reader = &g->reader[p->calls[i].refs[r]], own = leader(g, g->group_of[i]);
      *reader = own == NONE || (*reader != NONE && *reader != own) ? MANY : own;
    }
  for (uint32_t i = 0; i < p->noutputs; i++)
    g->reader[p->outputs[i]] = MANY;
}

/* Calls that become heads of groups. Whoever writes between a head and its group would come before it. */
static void find_heads(Grouping *g) {
  const MothPlan *p = g->p;
  uint32_t written = NONE;
  for (uint32_t k = 0; k < g->ngroups; k++)
    g->head[k] = NONE;
  for (uint32_t i = 0; i < p->ncalls; i++) {
    const MothPlanCall *c = &p->calls[i];
    if (is_write(c))
      written = i;
    uint32_t own = leader(g, g->group_of[i]);
    for (uint32_t r = 0; own != NONE && r < c->nrefs; r++) {
      const MothPlanValue *v = &p->values[c->refs[r]];
      uint32_t head = v->call;
      if (head == NONE || !finishes_ranges(&p->calls[head]) || g->reader[c->refs[r]] != own ||
          (written != NONE && written > head) || !v->fake->contiguous ||
          !same_shape(v->fake, result_of(p, i)))
        continue;
      if (g->head[own] == NONE || g->head[own] < head)
        g->head[own] = head;
    }
  }
  for (uint32_t k = 0; k < g->ngroups; k++)
    if (g->head[k] != NONE)
      g->moved[g->head[k]] = true;
}

static MothStatus add_group(Grouping *g, uint32_t k) {
  MothPlan *p = g->p;
  uint32_t calls[MOTH_BLOCKS_CALLS], n = 0;
  bool used = false;
  for (uint32_t i = 0; i < p->ncalls; i++)
    if (leader(g, g->group_of[i]) == k) {
      calls[n++] = i;
      used = used || g->kept[p->calls[i].result[0]];
    }
  if (!used) /* nobody reads it */
    return MOTH_OK;
  if (n == 1 && g->head[k] == NONE)
    return moth_plan_add_call(p, calls[0]);
  return moth_plan_add_group(p, calls, n, g->kept, g->head[k]);
}

static MothStatus add_steps(Grouping *g) {
  for (uint32_t i = 0; i < g->norder; i++) {
    uint32_t k = g->order[i];
    if (k < g->p->ncalls && g->moved[k])
      continue;
    MOTH_TRY(k < g->p->ncalls ? moth_plan_add_call(g->p, k) : add_group(g, k - g->p->ncalls));
  }
  return MOTH_OK;
}

MothStatus moth_plan_add_blocks(MothPlan *p) {
  size_t n = (size_t)p->ncalls + 1;
  Grouping g = {.p = p};
  g.groups = calloc(n, sizeof *g.groups);
  g.group_of = malloc(n * sizeof *g.group_of);
  g.order = malloc(2 * n * sizeof *g.order);
  g.kept = calloc((size_t)p->nvalues + 1, sizeof *g.kept);
  g.head = calloc(n, sizeof *g.head);
  g.reader = calloc((size_t)p->nvalues + 1, sizeof *g.reader);
  g.moved = calloc(n, sizeof *g.moved);
  MothStatus status = MOTH_OK;
  if (!g.groups || !g.group_of || !g.order || !g.kept || !g.head || !g.reader || !g.moved) {
    status = moth_no_memory(0);
  } else {
    memset(g.group_of, 0xff, n * sizeof *g.group_of);
    for (uint32_t i = 0; i < p->ncalls; i++)
      place_call(&g, i);
    for (uint32_t k = 0; k < g.ngroups; k++)
      if (g.groups[k].into == k)
        close_group(&g, k);
    mark_kept(&g);
    find_readers(&g);
    find_heads(&g);
    status = add_steps(&g);
    memset(p->done, true, p->nnodes);
  }
  free(g.groups);
  free(g.group_of);
  free(g.order);
  free(g.kept);
  free(g.head);
  free(g.reader);
  free(g.moved);
  return status;
}
