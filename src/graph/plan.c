/* Plans are made here, of the calls that plan_note.c has noted, and steps are added to them. See plan.h. */
#include "graph/plan.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "device/cuda.h"
#include "graph/blocks.h"
#include "graph/plan_steps.h"

/* inputs: tensors whose sizes the plan is for, numbers: those of the graph; NULL: as recorded. */
static MothStatus make(MothGraph *g, bool any_sizes, MothTensor *const *inputs,
                       const MothValue *numbers, MothPlan **out) {
  MOTH_TRY(moth_graph_check(g));
  MothPlan *p = calloc(1, sizeof *p);
  if (!p)
    return moth_no_memory(sizeof *p);
  p->refs = 1;
  pthread_mutex_init(&p->lock, NULL);
  atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
  p->graph = g;
  p->any_sizes = any_sizes;
  if (!any_sizes)
    moth_graph_pin(g, 0, true);
  p->next_id = g->next_id;
  uint32_t nslots = 0;
  p->slots_of = calloc((size_t)g->next_id + 1, sizeof *p->slots_of);
  for (const MothGraphNode *n = g->first; n && p->slots_of; n = n->next) {
    p->slots_of[n->id] = nslots;
    nslots += n->nresults;
  }
  p->refs_of = calloc((size_t)nslots + 1, sizeof *p->refs_of);
  p->inputs = calloc((size_t)g->nnodes + 1, sizeof *p->inputs);
  p->outputs = calloc((size_t)g->last->nrefs + 1, sizeof *p->outputs);
  p->nodes = calloc((size_t)g->nnodes + 1, sizeof *p->nodes);
  p->node_ids = calloc((size_t)g->nnodes + 1, sizeof *p->node_ids);
  p->done = calloc((size_t)g->nnodes + 1, sizeof *p->done);
  bool ok =
      p->slots_of && p->refs_of && p->inputs && p->outputs && p->nodes && p->node_ids && p->done;
  MothStatus s = ok ? moth_plan_replay(p, inputs, numbers) : moth_no_memory(0);
  if (s != MOTH_OK) {
    moth_plan_release(p);
    return s;
  }
  *out = p;
  return MOTH_OK;
}

MothStatus moth_plan_new(MothGraph *g, MothPlan **out) {
  return make(g, false, NULL, NULL, out);
}

static MothStatus make_any(MothGraph *g, MothTensor *const *inputs, const MothValue *numbers,
                           MothPlan **out) {
  MothPlan *p;
  MOTH_TRY(make(g, true, inputs, numbers, &p));
  MothStatus s = moth_plan_add_blocks(p);
  if (s == MOTH_OK)
    s = moth_plan_finish(p);
  if (s == MOTH_OK)
    *out = p;
  else
    moth_plan_release(p);
  return s;
}

MothStatus moth_plan_new_any(MothGraph *g, MothPlan **out) {
  return make_any(g, NULL, NULL, out);
}

MothStatus moth_plan_again(const MothPlan *p, MothTensor *const *inputs, const MothValue *numbers,
                           MothPlan **out) {
  return make_any(p->graph, inputs, numbers, out);
}

void moth_plan_retain(MothPlan *p) {
  atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
}

void moth_plan_release(MothPlan *p) {
  if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1)
    return;
  moth_plan_free_frames(p);
  moth_plan_free_frozen(p);
  while (p->others) {
    MothPlan *other = p->others;
    p->others = other->others;
    other->others = NULL;
    moth_plan_release(other);
  }
  for (uint32_t i = 0; i < p->nbound; i++)
    if (p->bound[i].value.tag == MOTH_V_INTS)
      free((void *)(uintptr_t)p->bound[i].value.u.ints);
  free(p->bound);
  for (uint32_t i = 0; i < p->nsteps; i++) {
    MothPlanStep *s = &p->steps[i];
    free(s->values);
    free(s->drops);
    free(s->ends);
    moth_blocks_free(s->blocks);
    for (uint32_t k = 0; k < s->nlaunches; k++) {
      free(s->launches[k].at);
      free(s->launches[k].numbers);
      if (s->launches[k].program)
        moth_cuda_api()->program_free(s->launches[k].program);
    }
    free(s->launches);
    free(s->text);
    if (s->library)
      dlclose(s->library);
  }
  for (uint32_t i = 0; i < p->ncalls; i++)
    moth_plan_free_call(&p->calls[i]);
  for (uint32_t i = 0; i < p->nvalues; i++) {
    moth_tensor_release(p->values[i].fake);
    moth_tensor_release(p->values[i].held);
  }
  for (uint32_t i = 0; i < p->napart; i++)
    free(p->apart[i].values);
  free(p->apart);
  free(p->steps);
  free(p->calls);
  free(p->values);
  free(p->slots);
  free(p->slots_of);
  free(p->refs_of);
  free(p->inputs);
  free(p->outputs);
  free(p->nodes);
  free(p->node_ids);
  free(p->done);
  pthread_mutex_destroy(&p->lock);
  moth_graph_release(p->graph);
  free(p);
}

/* --- steps --------------------------------------------------------------------------------------------------------- */

MothPlanStep *moth_plan_add_step(MothPlan *p, MothPlanStepKind kind) {
  if (!moth_grow(&p->steps, &p->steps_cap, (size_t)p->nsteps + 1, sizeof *p->steps))
    return NULL;
  MothPlanStep *s = &p->steps[p->nsteps++];
  memset(s, 0, sizeof *s);
  s->kind = (uint8_t)kind;
  s->head = UINT32_MAX;
  s->ncalls = 1;
  return s;
}

MothStatus moth_plan_add_call(MothPlan *p, uint32_t call) {
  const MothPlanCall *c = &p->calls[call];
  MothPlanStep *s = moth_plan_add_step(p, c->direct ? MOTH_STEP_DIRECT
                                          : c->view ? MOTH_STEP_VIEW
                                                    : MOTH_STEP_DISPATCHED);
  if (!s)
    return MOTH_ERR_MEMORY;
  s->call = call;
  s->in_place = c->direct && c->op->kind == MOTH_KIND_POINTWISE;
  s->values = malloc(sizeof *s->values * ((size_t)c->nrefs + c->op->nresults + 1));
  if (!s->values)
    return moth_no_memory(sizeof *s->values * ((size_t)c->nrefs + c->op->nresults + 1));
  for (int i = 0; i < c->op->nresults; i++)
    s->values[s->nresults++] = c->result[i];
  for (uint32_t i = 0; i < c->nrefs; i++)
    s->values[s->nresults + s->nreads++] = c->refs[i];
  return MOTH_OK;
}

MothStatus moth_plan_add_group(MothPlan *p, const uint32_t *calls, uint32_t ncalls,
                               const bool *kept, uint32_t head) {
  MothPlanStep *s = moth_plan_add_step(p, MOTH_STEP_BLOCKS);
  if (!s)
    return MOTH_ERR_MEMORY;
  MOTH_TRY(moth_blocks_new(p, calls, ncalls, kept, s));
  s->nown = s->nreads;
  if (head == UINT32_MAX)
    return MOTH_OK;
  const MothPlanCall *c = &p->calls[head];
  size_t n = (size_t)s->nresults + s->nreads + c->nrefs + 1;
  uint32_t *values = malloc(sizeof *values * n), *to = values;
  if (!values)
    return moth_no_memory(sizeof *values * n);
  for (uint32_t i = 0; i < s->nresults; i++)
    *to++ = s->values[i];
  *to++ = c->result[0];
  for (uint32_t i = 0; i < s->nreads; i++)
    *to++ = s->values[s->nresults + i];
  for (uint32_t i = 0; i < c->nrefs; i++)
    *to++ = c->refs[i];
  free(s->values);
  s->values = values;
  s->nresults++;
  s->nreads += c->nrefs;
  s->ncalls++;
  s->head = s->call = head;
  return MOTH_OK;
}

static MothStatus take_node(MothPlan *p, const MothGraphNode *n, uint32_t *k) {
  *k = 0;
  while (*k < p->nnodes && p->node_ids[*k] != n->id)
    ++*k;
  if (*k == p->nnodes)
    return moth_fail(MOTH_ERR_VALUE, "plan: %s is no call of the graph", n->name);
  if (p->done[*k])
    return moth_fail(MOTH_ERR_VALUE, "plan: %s is in two steps", n->name);
  p->done[*k] = true;
  return MOTH_OK;
}

MothStatus moth_plan_add_node(MothPlan *p, const MothGraphNode *n) {
  uint32_t k;
  MOTH_TRY(take_node(p, n, &k));
  for (uint32_t c = p->nodes[k]; c < p->nodes[k + 1]; c++)
    MOTH_TRY(moth_plan_add_call(p, c));
  return MOTH_OK;
}

/* The code must stay while the plan does: a reference of its own to the library. */
static void *library_of(MothRange fn) {
  Dl_info info;
  void *address;
  if (!fn)
    return NULL;
  memcpy(&address, &fn, sizeof address);
  if (!dladdr(address, &info) || !info.dli_fname)
    return NULL;
  return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
}

static MothStatus add_launch(MothPlan *p, MothPlanStep *s, const MothPlanLaunch *from,
                             uint32_t nat) {
  MothPlanLaunched *to = &s->launches[s->nlaunches++];
  *to = (MothPlanLaunched){.fn = from->fn,
                           .n = from->n,
                           .grain = from->grain,
                           .slots_at = p->nslots,
                           .nslots = from->nslots,
                           .nnumbers = from->nnumbers,
                           .no_memory = from->no_memory,
                           .reach = from->reach,
                           .outside = from->outside,
                           .threads = from->threads,
                           .shared = from->shared};
  if (from->program) {
    const MothCudaApi *api = moth_cuda_api();
    if (from->n > INT32_MAX)
      return moth_fail(MOTH_ERR_VALUE, "plan: a grid of %lld programs", (long long)from->n);
    if (!api)
      return MOTH_ERR_STATE;
    MOTH_TRY(api->program_kernel(from->program, from->kernel, &to->kernel));
    api->program_retain(to->program = from->program);
  }
  to->at = malloc(sizeof *to->at * ((size_t)nat + 1));
  to->numbers = malloc(sizeof *to->numbers * ((size_t)from->nnumbers + 1));
  uint64_t *slots = realloc(p->slots, sizeof *slots * ((size_t)p->nslots + from->nslots + 1));
  if (slots)
    p->slots = slots;
  if (!slots || !to->at || !to->numbers)
    return moth_no_memory(0);
  if (from->nslots)
    memcpy(slots + p->nslots, from->slots, sizeof *slots * from->nslots);
  p->nslots += from->nslots;
  for (uint32_t i = 0; i < from->nnumbers; i++) {
    to->numbers[i] = from->numbers[i];
    if (from->numbers[i].slot >= from->nslots || !from->numbers[i].number ||
        from->numbers[i].number > p->graph->nnumbers)
      return moth_fail(MOTH_ERR_VALUE, "plan: number %u of the graph in slot %u of %u",
                       from->numbers[i].number, from->numbers[i].slot, from->nslots);
  }
  for (uint32_t i = 0; i < nat; i++) {
    to->at[i] = from->at[i];
    int64_t last = from->at[i] < 0 ? from->at[i] : from->at[i] + (int64_t)from->reach;
    if (last >= (int64_t)from->nslots)
      return moth_fail(MOTH_ERR_VALUE, "plan: slot %lld of %u", (long long)last, from->nslots);
  }
  if ((from->no_memory && from->no_memory >= from->nslots) ||
      (from->reach && from->outside + (from->program ? 1 : 4) > from->nslots) ||
      (from->program && (!from->nslots || from->nslots > MOTH_PLAN_PARAMETERS)))
    return moth_fail(MOTH_ERR_VALUE, "plan: slots %u and %u of %u", from->no_memory, from->outside,
                     from->nslots);
  return MOTH_OK;
}

MothStatus moth_plan_add_kernel(MothPlan *p, const MothPlanKernel *k) {
  uint32_t number, nvalues = k->nresults + k->noperands, n = nvalues + k->ntemporaries;
  MothPlanStep *s = moth_plan_add_step(p, MOTH_STEP_LAUNCHES);
  if (!s)
    return MOTH_ERR_MEMORY;
  s->call = UINT32_MAX;
  s->in_place = k->in_place;
  s->ncalls = k->nnodes;
  if (k->text && !(s->text = strdup(k->text)))
    return moth_no_memory(strlen(k->text) + 1);
  for (uint32_t i = 0; i < k->nnodes; i++) {
    MOTH_TRY(take_node(p, k->nodes[i], &number));
    if (p->nodes[number] < s->call)
      s->call = p->nodes[number];
  }
  s->values = malloc(sizeof *s->values * ((size_t)n + 1));
  s->launches = calloc((size_t)k->nlaunches + 1, sizeof *s->launches);
  if (!s->values || !s->launches)
    return moth_no_memory(0);
  for (uint32_t i = 0; i < nvalues; i++) {
    const MothGraphRef *r = &k->values[i];
    s->values[i] = p->refs_of[p->slots_of[r->node->id] + r->result];
  }
  for (uint32_t i = 0; i < k->ntemporaries; i++) {
    MothTensor *fake = NULL; /* on a GPU a tensor is made for each */
    int64_t length = k->temporaries[i] / 8;
    if (k->nlaunches && k->launches[0].program && nvalues)
      MOTH_TRY(moth_tensor_new_fake(1, &length, MOTH_INT64, p->values[s->values[0]].fake->device,
                                    &fake));
    MOTH_TRY(moth_plan_add_value(p, fake, &s->values[nvalues + i]));
    MothPlanValue *v = &p->values[s->values[nvalues + i]];
    v->bytes = k->temporaries[i];
    v->temporary = true;
  }
  s->nresults = k->nresults;
  s->nreads = k->noperands + k->ntemporaries;
  for (uint32_t i = 0; i < k->nlaunches; i++)
    MOTH_TRY(add_launch(p, s, &k->launches[i], n));
  if (k->nlaunches)
    s->library = library_of(k->launches[0].fn);
  return MOTH_OK;
}

MothStatus moth_plan_finish(MothPlan *p) {
  for (uint32_t i = 0; i < p->nnodes; i++)
    if (!p->done[i])
      return moth_fail(MOTH_ERR_VALUE, "plan: a call of the graph is in no step: %s",
                       p->nodes[i] < p->ncalls ? p->calls[p->nodes[i]].op->name : "?");
  MOTH_TRY(moth_plan_lay_out(p));
  p->finished = true;
  return MOTH_OK;
}
