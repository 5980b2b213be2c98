/* Plans are made here: the graph's calls run once on fakes, what arrives below Autograd is noted. See plan.h. */
#include "graph/plan.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "graph/blocks.h"
#include "graph/plan_steps.h"

static MothStatus no_memory(void) {
  return moth_fail(MOTH_ERR_MEMORY, "out of memory");
}

bool moth_plan_grow(void *list, uint32_t *cap, uint32_t n, size_t size) {
  if (n <= *cap)
    return true;
  uint32_t to = *cap ? *cap * 2 : 32;
  while (to < n)
    to *= 2;
  void *more = realloc(*(void **)list, size * to);
  if (!more)
    return false;
  *(void **)list = more;
  *cap = to;
  return true;
}

/* --- values and calls ------------------------------------------------------------------------------------ */

/* Takes over the reference of fake, which may be NULL. */
static MothStatus add_value(MothPlan *p, MothTensor *fake, uint32_t *id) {
  if (!moth_plan_grow(&p->values, &p->values_cap, p->nvalues + 1, sizeof *p->values)) {
    moth_tensor_release(fake);
    return no_memory();
  }
  MothPlanValue *v = &p->values[p->nvalues];
  memset(v, 0, sizeof *v);
  v->fake = fake;
  v->of = *id = p->nvalues++;
  v->place = MOTH_PLACE_NONE;
  v->header = v->buffer = v->call = v->input = UINT32_MAX;
  if (fake) {
    fake->number = *id;
    v->bytes = fake->numel * moth_itemsize(fake);
  }
  return MOTH_OK;
}

static bool find_value(const MothPlan *p, const MothTensor *t, uint32_t *id) {
  *id = t->number;
  return t->number < p->nvalues && p->values[t->number].fake == t;
}

static bool copy_arg(MothValue *to, const MothValue *v) {
  *to = *v;
  if (v->tag == MOTH_V_INTS) {
    int64_t *ints = malloc(sizeof(int64_t) * ((size_t)v->n + 1));
    if (ints && v->n)
      memcpy(ints, v->u.ints, sizeof(int64_t) * v->n);
    to->u.ints = ints;
    return ints != NULL;
  }
  if (v->tag == MOTH_V_STRING)
    return (to->u.s = strdup(v->u.s)) != NULL;
  if (v->tag == MOTH_V_GENERATOR)
    moth_generator_retain(v->u.g);
  if (v->tag == MOTH_V_TENSOR || v->tag == MOTH_V_TENSORS)
    to->u.t = NULL;
  return true;
}

static void free_call(MothPlanCall *c) {
  for (int i = 0; c->args && i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    if (v.tag == MOTH_V_INTS)
      free((void *)(uintptr_t)v.u.ints);
    else if (v.tag == MOTH_V_STRING)
      free((void *)(uintptr_t)v.u.s);
    else if (v.tag == MOTH_V_GENERATOR)
      moth_generator_release(v.u.g);
  }
  free(c->args);
  free(c->refs);
  free(c->numbers);
}

static bool writes(const MothCall *c) {
  bool any = c->target || c->op->returns_self || c->op->memory == MOTH_MEMORY_SELF;
  for (int i = 0; i < c->op->nargs; i++)
    any = any || c->op->args[i].mutated;
  return any;
}

/* Whether the kernel can be called with results that the plan has made. */
static bool is_direct(const MothCall *c, MothKernel kernel) {
  uint32_t devices = c->keys & MOTH_KEYS_DEVICE;
  return kernel && c->op->memory == MOTH_MEMORY_NEW && c->op->shape && !c->op->defined &&
         !writes(c) && c->device.type == MOTH_CPU && !(devices & ~(uint32_t)MOTH_KEY_CPU) &&
         !(c->keys & MOTH_KEY_STORED);
}

/* Whether the view's offset is that of its tensor plus something. */
static bool is_relative_view(const MothCall *c) {
  bool absolute = c->op == MOTH_OP(as_strided) && c->args[c->op->nargs - 1].tag != MOTH_V_NONE;
  return c->op->memory == MOTH_MEMORY_VIEW && !c->target && !c->op->defined && !absolute;
}

typedef struct Noting {
  MothPlan *p;
  const MothGraphNode *node;
  uint32_t number;
} Noting;

static MothStatus add_refs(MothPlan *p, MothPlanCall *to, const MothCall *c) {
  uint32_t n = c->target ? c->op->nresults : 0, id;
  to->ntargets = (uint8_t)n;
  for (int i = 0; i < c->op->nargs; i++)
    n += c->args[i].tag == MOTH_V_TENSOR ? 1 : c->args[i].tag == MOTH_V_TENSORS ? c->args[i].n : 0;
  to->refs = malloc(sizeof *to->refs * ((size_t)n + 1));
  if (!to->refs)
    return no_memory();
  for (int i = 0; i < c->op->nargs + (int)to->ntargets; i++) {
    MothValue v = i < c->op->nargs ? c->args[i] : moth_v_tensor(c->target[i - c->op->nargs]);
    uint32_t count = v.tag == MOTH_V_TENSOR ? 1 : v.tag == MOTH_V_TENSORS ? v.n : 0;
    for (uint32_t k = 0; k < count; k++) {
      MothTensor *t = v.tag == MOTH_V_TENSOR ? v.u.t : v.u.tensors[k];
      if (!find_value(p, t, &id))
        return moth_fail(MOTH_ERR_STATE, "[%s] it uses a tensor that no call has made",
                         c->op->name);
      to->refs[to->nrefs++] = id;
    }
  }
  return MOTH_OK;
}

static MothStatus add_noted(const Noting *n, const MothCall *c) {
  MothPlan *p = n->p;
  uint32_t at = p->ncalls;
  if (!moth_plan_grow(&p->calls, &p->calls_cap, at + 1, sizeof *p->calls))
    return no_memory();
  MothPlanCall *to = &p->calls[at];
  memset(to, 0, sizeof *to);
  p->ncalls++;
  to->op = c->op;
  to->variant = c->variant;
  to->compute = c->dtype;
  to->place = n->node->place ? n->node->place : "";
  to->node = n->number;
  to->kernel = moth_kernel_of(c->op, c->device.type);
  to->direct = is_direct(c, to->kernel);
  to->view = is_relative_view(c);
  to->args = calloc((size_t)c->op->nargs + 1, sizeof *to->args);
  if (!to->args)
    return no_memory();
  for (int i = 0; i < c->op->nargs; i++)
    if (!copy_arg(&to->args[i], &c->args[i]))
      return no_memory();
  MOTH_TRY(add_refs(p, to, c));
  to->args_at = p->nargs;
  p->nargs += (uint32_t)c->op->nargs;
  p->nlists = to->nrefs > p->nlists ? to->nrefs : p->nlists;
  for (int i = 0; i < c->op->nresults; i++) {
    MothTensor *t = c->results[i].u.t;
    if (find_value(p, t, &to->result[i]))
      continue;
    moth_tensor_retain(t);
    MOTH_TRY(add_value(p, t, &to->result[i]));
    MothPlanValue *v = &p->values[to->result[i]];
    v->call = at;
    if (c->op->memory == MOTH_MEMORY_VIEW && to->nrefs) {
      const MothTensor *self = p->values[to->refs[0]].fake;
      v->of = to->refs[0];
      v->offset = (t->offset - self->offset) * moth_itemsize(t);
    }
  }
  return MOTH_OK;
}

/* An interceptor below Autograd. */
static MothStatus note(MothCall *c, void *ctx) {
  if (c->op->composite && !moth_kernel_of(c->op, c->device.type))
    return moth_redispatch(c); /* its parts come here */
  MOTH_TRY(moth_redispatch(c));
  MothStatus s = add_noted(ctx, c);
  for (int i = 0; i < c->op->nresults && s != MOTH_OK; i++) {
    moth_tensor_release(c->results[i].u.t);
    c->results[i] = moth_v_none();
  }
  return s;
}

/* --- the graph's nodes on fakes ------------------------------------------------------------------------------ */

static MothStatus fake_of_meta(const MothTraceMeta *m, MothTensor **out) {
  MOTH_TRY(moth_tensor_new_fake(m->ndim, m->dims, (MothDType)m->dtype, m->device, out));
  MothTensor *t = *out;
  int64_t reach = t->numel != 0;
  for (int i = 0; i < m->ndim; i++) {
    t->stride[i] = m->dims[m->ndim + i];
    reach += t->numel ? (t->shape[i] - 1) * t->stride[i] : 0;
  }
  t->contiguous = m->contiguous;
  t->storage->nbytes = (size_t)(reach * moth_itemsize(t));
  return MOTH_OK;
}

static MothStatus add_outside(MothPlan *p, const MothGraphNode *n, MothTensor *const *inputs) {
  MothTensor *fake, *like = n->tensor ? n->tensor : inputs ? inputs[p->ninputs] : NULL;
  uint32_t id;
  MOTH_TRY(like ? moth_tensor_fake_of(like, &fake) : fake_of_meta(&n->metas[0], &fake));
  MOTH_TRY(add_value(p, fake, &id));
  MothPlanValue *v = &p->values[id];
  p->refs_of[p->slots_of[n->id]] = id;
  if (n->tensor) {
    v->place = MOTH_PLACE_HELD;
    v->held = n->tensor;
    moth_tensor_retain(n->tensor);
  } else {
    v->place = MOTH_PLACE_INPUT;
    v->input = p->ninputs;
    p->inputs[p->ninputs++] = id;
  }
  return MOTH_OK;
}

static MothTensor *fake_of(const MothPlan *p, const MothGraphRef *r) {
  return p->values[p->refs_of[p->slots_of[r->node->id] + r->result]].fake;
}

static MothStatus replay_call(MothPlan *p, const MothGraphNode *n, const MothValue *numbers) {
  MothValue args[MOTH_MAX_ARGS], results[MOTH_MAX_RESULTS];
  MothTensor *target[MOTH_MAX_RESULTS];
  MothTensor **lists = malloc(sizeof(MothTensor *) * ((size_t)n->nrefs + 1)), **list = lists;
  const MothGraphRef *ref = n->refs;
  if (!lists)
    return no_memory();
  for (int i = 0; i < n->op->nargs; i++) {
    args[i] = n->args[i].value;
    if (n->args[i].number && numbers)
      args[i] = numbers[n->args[i].number - 1];
    if (args[i].tag == MOTH_V_TENSOR) {
      args[i].u.t = fake_of(p, ref++);
    } else if (args[i].tag == MOTH_V_TENSORS) {
      args[i].u.tensors = list;
      for (uint32_t k = 0; k < args[i].n; k++)
        *list++ = fake_of(p, ref++);
    }
  }
  for (int i = 0; n->variant != MOTH_FUNCTIONAL && i < n->op->nresults; i++)
    target[i] = fake_of(p, ref++);
  MothCall c = {.op = n->op,
                .args = args,
                .results = results,
                .variant = n->variant,
                .target = n->variant == MOTH_FUNCTIONAL ? NULL : target};
  MothThread *t = &moth_thread;
  t->include = (n->modes.include & ~(uint32_t)(MOTH_KEY_ABOVE | MOTH_KEY_LAZY)) | MOTH_KEY_FAKE |
               MOTH_KEY_BELOW;
  t->exclude = (n->modes.exclude & ~(uint32_t)MOTH_KEY_BELOW) | MOTH_KEY_ABOVE | MOTH_KEY_AUTOGRAD;
  memcpy(t->autocast, n->modes.autocast, sizeof t->autocast);
  MothStatus s = moth_dispatch(&c);
  free(lists);
  for (int i = 0; i < n->op->nresults && s == MOTH_OK; i++) {
    MothTensor *made = results[i].u.t;
    uint32_t *id = &p->refs_of[p->slots_of[n->id] + (uint32_t)i];
    if (!find_value(p, made, id))
      s = moth_fail(MOTH_ERR_STATE, "[%s] its result is made by no call", n->op->name);
    moth_tensor_release(made);
  }
  return s;
}

/* The plan holds for this value of the number alone. */
static MothStatus bind_number(MothPlan *p, const MothTraceArg *a, const MothValue *numbers) {
  if (!p->any_sizes) {
    moth_graph_pin(p->graph, a->number, false);
    return MOTH_OK;
  }
  MothPlanBound *more = realloc(p->bound, sizeof *more * ((size_t)p->nbound + 1));
  if (!more)
    return no_memory();
  p->bound = more;
  more[p->nbound].number = a->number - 1;
  const MothValue *v = numbers ? &numbers[a->number - 1] : &a->value;
  if (!copy_arg(&more[p->nbound].value, v))
    return no_memory();
  p->nbound++;
  return MOTH_OK;
}

/* The numbers among the node's arguments are those of its only call, where that is a call of the same op; else they are
 * constants from now on. */
static MothStatus follow_numbers(MothPlan *p, const MothGraphNode *n, uint32_t first,
                                 const MothValue *numbers) {
  MothPlanCall *c = p->ncalls == first + 1 && p->calls[first].op == n->op ? &p->calls[first] : NULL;
  for (int i = 0; i < n->op->nargs; i++) {
    const MothTraceArg *a = &n->args[i];
    bool plain = a->value.tag == MOTH_V_INT || a->value.tag == MOTH_V_FLOAT;
    if (!a->number)
      continue;
    if (!c || !plain || n->op->canonical >> i & 1) {
      MOTH_TRY(bind_number(p, a, numbers));
      continue;
    }
    if (!c->numbers)
      c->numbers = calloc((size_t)n->op->nargs, sizeof *c->numbers);
    if (!c->numbers)
      return no_memory();
    c->numbers[i] = a->number;
  }
  return MOTH_OK;
}

static MothStatus replay(MothPlan *p, MothTensor *const *inputs, const MothValue *numbers) {
  MothThread *t = &moth_thread;
  MothThread was = *t;
  MothDType dtype = moth_default_dtype();
  Noting noting = {.p = p};
  MothInterceptor own = {note, &noting, true, NULL, false};
  MOTH_TRY(moth_intercept_push(false, own));
  uint32_t include = was.include | MOTH_KEY_FAKE;
  MothStatus s = MOTH_OK;
  t->no_grad = true;
  t->saved_hooks = t->watchers = NULL;
  for (const MothGraphNode *n = p->graph->first; n && s == MOTH_OK; n = n->next) {
    t->include = include;
    if (n->kind == MOTH_NODE_PLACEHOLDER || n->kind == MOTH_NODE_GET_ATTR) {
      s = add_outside(p, n, inputs);
    } else if (n->kind == MOTH_NODE_CALL) {
      p->node_ids[p->nnodes] = n->id;
      p->nodes[p->nnodes] = p->ncalls;
      noting.node = n;
      noting.number = p->nnodes++;
      if (n->modes.dtype != (uint8_t)moth_default_dtype())
        s = moth_set_default_dtype((MothDType)n->modes.dtype);
      if (s == MOTH_OK)
        s = replay_call(p, n, numbers);
      if (s == MOTH_OK)
        s = follow_numbers(p, n, p->nodes[noting.number], numbers);
    } else {
      for (uint32_t i = 0; i < n->nrefs; i++)
        p->outputs[p->noutputs++] =
            p->refs_of[p->slots_of[n->refs[i].node->id] + n->refs[i].result];
    }
  }
  p->nodes[p->nnodes] = p->ncalls;
  if (dtype != moth_default_dtype())
    moth_set_default_dtype(dtype);
  uint8_t nbelow = t->nbelow;
  *t = was;
  t->nbelow = nbelow;
  moth_intercept_pop(false, own);
  t->include = was.include;
  return s;
}

/* inputs: tensors whose sizes the plan is for, numbers: those of the graph; NULL: as recorded. */
static MothStatus make(MothGraph *g, bool any_sizes, MothTensor *const *inputs,
                       const MothValue *numbers, MothPlan **out) {
  MOTH_TRY(moth_graph_check(g));
  MothPlan *p = calloc(1, sizeof *p);
  if (!p)
    return no_memory();
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
  MothStatus s = ok ? replay(p, inputs, numbers) : no_memory();
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
    }
    free(s->launches);
    if (s->library)
      dlclose(s->library);
  }
  for (uint32_t i = 0; i < p->ncalls; i++)
    free_call(&p->calls[i]);
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
  if (!moth_plan_grow(&p->steps, &p->steps_cap, p->nsteps + 1, sizeof *p->steps)) {
    no_memory();
    return NULL;
  }
  MothPlanStep *s = &p->steps[p->nsteps++];
  memset(s, 0, sizeof *s);
  s->kind = (uint8_t)kind;
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
    return no_memory();
  for (int i = 0; i < c->op->nresults; i++)
    s->values[s->nresults++] = c->result[i];
  for (uint32_t i = 0; i < c->nrefs; i++)
    s->values[s->nresults + s->nreads++] = c->refs[i];
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
                           .nnumbers = from->nnumbers};
  to->at = malloc(sizeof *to->at * ((size_t)nat + 1));
  to->numbers = malloc(sizeof *to->numbers * ((size_t)from->nnumbers + 1));
  uint64_t *slots = realloc(p->slots, sizeof *slots * ((size_t)p->nslots + from->nslots + 1));
  if (slots)
    p->slots = slots;
  if (!slots || !to->at || !to->numbers)
    return no_memory();
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
    if (from->at[i] >= (int32_t)from->nslots)
      return moth_fail(MOTH_ERR_VALUE, "plan: slot %d of %u", from->at[i], from->nslots);
  }
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
  for (uint32_t i = 0; i < k->nnodes; i++) {
    MOTH_TRY(take_node(p, k->nodes[i], &number));
    if (p->nodes[number] < s->call)
      s->call = p->nodes[number];
  }
  s->values = malloc(sizeof *s->values * ((size_t)n + 1));
  s->launches = calloc((size_t)k->nlaunches + 1, sizeof *s->launches);
  if (!s->values || !s->launches)
    return no_memory();
  for (uint32_t i = 0; i < nvalues; i++) {
    const MothGraphRef *r = &k->values[i];
    s->values[i] = p->refs_of[p->slots_of[r->node->id] + r->result];
  }
  for (uint32_t i = 0; i < k->ntemporaries; i++) {
    MOTH_TRY(add_value(p, NULL, &s->values[nvalues + i]));
    p->values[s->values[nvalues + i]].bytes = k->temporaries[i];
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

/* --- facts ------------------------------------------------------------------------------------------------------------ */

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
    pure = !c->op->draws && !c->ntargets && !c->op->returns_self &&
           (c->op->memory == MOTH_MEMORY_NEW || c->op->memory == MOTH_MEMORY_VIEW);
    for (int k = 0; k < c->op->nargs && pure; k++)
      pure = !c->op->args[k].mutated;
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

static void put_value(const MothPlan *p, uint32_t id, char *text, size_t size) {
  static const char *const places[] = {"input", "held", "none", "arena", "view", "fresh", "given"};
  const MothPlanValue *v = &p->values[id];
  size_t n = strlen(text);
  if (v->place == MOTH_PLACE_ARENA)
    snprintf(text + n, size - n, v->apart ? " %%%u@block %lld" : " %%%u@%lld", id,
             v->apart ? (long long)v->buffer : (long long)v->offset);
  else
    snprintf(text + n, size - n, " %%%u:%s", id, places[v->place]);
}

char *moth_plan_text(const MothPlan *p) {
  static const char *const kinds[] = {"kernel", "dispatched", "view", "blocks", "launches"};
  size_t size = 4096, n = 0;
  char *text = malloc(size), line[2048];
  if (!text)
    return NULL;
  text[0] = 0;
  for (uint32_t i = 0; i < p->nsteps; i++) {
    const MothPlanStep *s = &p->steps[i];
    snprintf(line, sizeof line, "%-10s %s(%u)", kinds[s->kind],
             s->call < p->ncalls ? p->calls[s->call].op->name : "?", s->ncalls);
    for (uint32_t k = 0; k < s->nresults + s->nreads; k++) {
      if (k == s->nresults)
        strncat(line, " <-", sizeof line - strlen(line) - 1);
      put_value(p, s->values[k], line, sizeof line);
    }
    size_t more = strlen(line) + 2;
    if (n + more > size) {
      char *bigger = realloc(text, size = 2 * (n + more));
      if (!bigger) {
        free(text);
        return NULL;
      }
      text = bigger;
    }
    n += (size_t)sprintf(text + n, "%s\n", line);
  }
  return text;
}
