/* Plans for people: facts, and steps as text. */
#include <stdlib.h>
#include <string.h>

#include "graph/plan_steps.h"

uint32_t moth_plan_noutputs(const MothPlan *p) {
  return p->noutputs;
}

MothGraph *moth_plan_graph(const MothPlan *p) {
  return p->graph;
}

static bool is_pure(const MothPlan *p) {
  bool pure = true;
  for (uint32_t i = 0; i < p->ncalls && pure; i++) {
    const MothPlanCall *c = &p->calls[i];
    pure = !c->op->draws && !c->ntargets && !moth_op_writes(c->op) &&
           (c->op->memory == MOTH_MEMORY_NEW || c->op->memory == MOTH_MEMORY_VIEW);
  }
  return pure;
}

static bool needs_grad(const MothGraph *g) {
  for (const MothGraphNode *n = g->first; n; n = n->next)
    for (int i = 0; i < n->nresults; i++)
      if (n->kind == MOTH_NODE_CALL && n->metas[i].keys & MOTH_KEY_AUTOGRAD)
        return true;
  return false;
}

MothPlanFacts moth_plan_facts(const MothPlan *p) {
  MothPlanFacts f = {.ninputs = p->ninputs,
                     .noutputs = p->noutputs,
                     .nsteps = p->nsteps,
                     .pure = is_pure(p),
                     .needs_grad = needs_grad(p->graph),
                     .arena_bytes = p->arena_bytes,
                     .peak_bytes = p->peak_bytes};
  uint32_t *counts[] = {&f.ndirect, &f.ndispatched, &f.nviews, &f.nblocks, &f.nlaunched};
  for (uint32_t i = 0; i < p->nsteps; i++) {
    ++*counts[p->steps[i].kind];
    if (p->steps[i].kind >= MOTH_STEP_BLOCKS)
      f.nfused += p->steps[i].ncalls;
  }
  return f;
}

static void put_value(MothGrownText *t, const MothPlan *p, uint32_t id) {
  static const char *const places[] = {"input", "held", "none", "arena", "view", "fresh", "given"};
  const MothPlanValue *v = &p->values[id];
  if (v->place == MOTH_PLACE_ARENA)
    moth_text_put(t, v->apart ? " %%%u@block %lld" : " %%%u@%lld", id,
                  v->apart ? (long long)v->buffer : (long long)v->offset);
  else
    moth_text_put(t, " %%%u:%s", id, places[v->place]);
}

char *moth_plan_text(const MothPlan *p) {
  static const char *const kinds[] = {"kernel", "dispatched", "view", "blocks", "launches"};
  MothGrownText t = {0};
  moth_text_put(&t, "%s", "");
  for (uint32_t i = 0; i < p->nsteps; i++) {
    const MothPlanStep *s = &p->steps[i];
    moth_text_put(&t, "%-10s %s(%u)", kinds[s->kind],
                  s->call < p->ncalls ? p->calls[s->call].op->name : "?", s->ncalls);
    for (uint32_t k = 0; k < s->nresults + s->nreads; k++) {
      if (k == s->nresults)
        moth_text_put(&t, " <-");
      put_value(&t, p, s->values[k]);
    }
    moth_text_put(&t, "\n");
  }
  return moth_text_end(&t);
}
