/* Numbers of a segment in its joint graph: which arguments of calls below autograd they have become.
 *
 * The segment is traced again with other numbers. Where an argument has become the other number, it is that number; where
 * it has become something else, or the calls are others, what is made of the graph holds for the number's value alone.
 * Traces with 0, 1 and numbers of the other sign tell for which of these the graph holds, too: derivatives may have
 * cases. Symbols of sizes (lua/moth/compile/symbols.lua) do not come here: derivatives compute with doubles, in C. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "graph/joint.h"

static bool is_number(const MothValue *v) {
  return v->tag == MOTH_V_INT || v->tag == MOTH_V_FLOAT;
}

static double as_double(const MothValue *v) {
  return v->tag == MOTH_V_INT ? (double)v->u.i : v->u.d;
}

enum { ZERO = 1, ONE = 2, MINUS_ONE = 4, POSITIVE = 8, NEGATIVE = 16, NOT_FINITE = 32 };

static uint32_t kind_of(const MothValue *v) {
  double d = as_double(v);
  if (!isfinite(d))
    return NOT_FINITE;
  if (d == 0 || d == 1 || d == -1)
    return d == 0 ? ZERO : d == 1 ? ONE : MINUS_ONE;
  return d > 0 ? POSITIVE : NEGATIVE;
}

static MothValue number(const MothValue *like, double d) {
  return like->tag == MOTH_V_INT
             ? (MothValue){.u.i = moth_whole(d), .tag = MOTH_V_INT, .n = like->n}
             : (MothValue){.u.d = d, .tag = MOTH_V_FLOAT, .n = like->n};
}

/* One comparison: a was traced with `from`, b with `to`. With `mark`, arguments of a become numbers. */
typedef struct Compare {
  const MothValue *from, *to;
  const bool *pinned;
  uint32_t n;
  bool mark;
} Compare;

static bool explain(const Compare *c, MothTraceArg *a, const MothValue *b) {
  if (moth_trace_value_same(&a->value, b))
    return true;
  for (uint32_t k = 0; k < c->n; k++)
    if (!c->pinned[k] && moth_trace_value_same(&a->value, &c->from[k]) &&
        moth_trace_value_same(b, &c->to[k])) {
      if (c->mark) {
        a->number = k + 1;
        a->free = true;
      }
      return true;
    }
  return false;
}

static bool compare(const Compare *c, MothJoint *a, const MothJoint *b) {
  MothGraphNode *n = a->graph->first;
  const MothGraphNode *m = b->graph->first;
  for (; n && m; n = n->next, m = m->next) {
    if (n->kind != m->kind || n->op != m->op || n->variant != m->variant || n->nrefs != m->nrefs ||
        n->id != m->id)
      return false;
    for (uint32_t i = 0; i < n->nrefs; i++)
      if (n->refs[i].node->id != m->refs[i].node->id || n->refs[i].result != m->refs[i].result)
        return false;
    for (int i = 0; n->op && i < n->op->nargs; i++)
      if (!explain(c, &n->args[i], &m->args[i].value))
        return false;
  }
  return !n && !m && a->ngrads == b->ngrads;
}

/* Whether the graph with other numbers is j. */
static bool holds_for(MothJoint *j, MothGraph *program, const MothJointTrace *how, Compare *c) {
  MothJointTrace other = *how;
  MothJoint *again;
  other.numbers = c->to;
  if (moth_joint_trace(program, &other, &again) != MOTH_OK)
    return false;
  bool yes = compare(c, j, again);
  moth_joint_free(again);
  return yes;
}

/* Other numbers in the place of those that are not pinned: of all, or of one. */
static void others(const Compare *c, MothValue *to, uint32_t only) {
  memcpy(to, c->from, sizeof *to * c->n);
  for (uint32_t k = 0; k < c->n; k++) {
    if (c->pinned[k] || (only < c->n && only != k))
      continue;
    double d = as_double(&to[k]), part = 0x1p-12 * (k + 1);
    to[k] = number(&to[k], to[k].tag == MOTH_V_INT ? d + 2 + k : d == 0 ? part : d * (1 - part));
  }
}

static uint32_t left(const bool *pinned, uint32_t n) {
  uint32_t count = 0;
  for (uint32_t k = 0; k < n; k++)
    count += !pinned[k];
  return count;
}

static bool any_left(const bool *pinned, uint32_t n) {
  return left(pinned, n) > 0;
}

static bool has_varied(const MothGraph *g, uint32_t number) {
  for (const MothGraphNode *n = g->first; n; n = n->next)
    for (int i = 0; n->op && i < n->op->nargs; i++)
      if (n->args[i].number == number && n->args[i].varied)
        return true;
  return false;
}

/* Sizes among the numbers: the joint graph is for these anyway. */
static void pin_sizes(const MothGraph *program, bool *pinned) {
  for (const MothGraphNode *n = program->first; n; n = n->next)
    for (int i = 0; n->op && i < n->op->nargs; i++)
      if (n->args[i].number && !n->args[i].free)
        pinned[n->args[i].number - 1] = true;
}

enum { FEW = 8 }; /* tried one by one: each costs a trace */

MothStatus moth_joint_find_numbers(MothJoint *j, MothGraph *program, const MothJointTrace *how,
                                   bool *pinned, uint32_t *kinds) {
  uint32_t n = program->nnumbers;
  MothValue *from = calloc(2 * (size_t)n + 1, sizeof *from), *to = from + n;
  Compare c = {from, to, pinned, n, false};
  *kinds = 0;
  if (!from)
    return moth_no_memory((2 * (size_t)n + 1) * sizeof *from);
  moth_graph_numbers(program, how->numbers, from);
  pin_sizes(program, pinned);
  for (uint32_t k = 0; k < n; k++)
    pinned[k] = pinned[k] || !is_number(&from[k]) || !isfinite(as_double(&from[k]));
  others(&c, to, n);
  if (any_left(pinned, n) && !holds_for(j, program, how, &c)) {
    /* One that has not differed between calls so far, and does later, has the segment compiled again. */
    for (uint32_t k = 0; k < n && n > FEW; k++)
      pinned[k] = pinned[k] || !has_varied(program, k + 1);
    if (left(pinned, n) > FEW)
      memset(pinned, true, sizeof *pinned * n);
    for (uint32_t k = 0; k < n; k++) {
      if (pinned[k])
        continue;
      others(&c, to, k);
      pinned[k] = !holds_for(j, program, how, &c);
    }
    others(&c, to, n);
  }
  c.mark = true;
  if (any_left(pinned, n) && !holds_for(j, program, how, &c))
    memset(pinned, true, sizeof *pinned * n);
  for (uint32_t k = 0; k < n; k++)
    if (!pinned[k])
      *kinds |= kind_of(&from[k]) | kind_of(&to[k]);
  static const double cases[] = {0, 1, -1, 3, -3}; /* by the bits of kinds */
  c.mark = false;
  for (uint32_t i = 0; any_left(pinned, n) && i < 5; i++) {
    for (uint32_t k = 0; k < n; k++)
      if (!pinned[k])
        to[k] = number(&from[k], cases[i] * (i > 2 ? 1 + k : 1));
    if (!(*kinds >> i & 1) && holds_for(j, program, how, &c))
      *kinds |= 1u << i;
  }
  free(from);
  return MOTH_OK;
}

void moth_graph_numbers(const MothGraph *g, const MothValue *given, MothValue *out) {
  for (const MothGraphNode *n = g->first; n; n = n->next)
    for (int i = 0; n->op && i < n->op->nargs; i++) {
      uint32_t k = n->args[i].number;
      if (k)
        out[k - 1] = given && is_number(&given[k - 1]) ? given[k - 1] : n->args[i].value;
    }
}

bool moth_joint_takes(const MothValue *numbers, uint32_t n, const bool *pinned, uint32_t kinds) {
  for (uint32_t k = 0; numbers && k < n; k++)
    if (!pinned[k] && is_number(&numbers[k]) && !(kind_of(&numbers[k]) & kinds))
      return false;
  return true;
}
