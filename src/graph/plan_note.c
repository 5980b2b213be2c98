/* What a plan knows of a graph: its calls run once on fakes, what arrives below Autograd is noted, with bound arguments. */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "graph/plan_steps.h"
#include "graph/trace.h"

/* --- values and calls ------------------------------------------------------------------------------------ */

MothStatus moth_plan_add_value(MothPlan *p, MothTensor *fake, uint32_t *id) {
  if (!moth_grow(&p->values, &p->values_cap, p->nvalues + 1, sizeof *p->values)) {
    moth_tensor_release(fake);
    return MOTH_ERR_MEMORY;
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

void moth_plan_free_call(MothPlanCall *c) {
  for (int i = 0; c->args && i < c->op->nargs; i++)
    moth_trace_value_free(c->args[i]);
  free(c->args);
  free(c->refs);
  free(c->numbers);
}

static bool writes(const MothCall *c) {
  return c->target || c->op->memory == MOTH_MEMORY_SELF || moth_op_writes(c->op);
}

/* Whether the kernel can be called with results that the plan has made. One for floats that makes complex numbers sees
 * their parts, which the dispatcher shows it. */
static bool is_direct(const MothCall *c, MothKernel kernel) {
  uint32_t devices = c->keys & MOTH_KEYS_DEVICE;
  for (int i = 0; i < c->op->nresults && !c->op->own_complex; i++)
    if (c->results[i].tag == MOTH_V_TENSOR && c->results[i].u.t->keys & MOTH_KEY_OPT_IN)
      return false;
  return kernel && c->op->memory == MOTH_MEMORY_NEW && c->op->shape && !c->op->defined &&
         !writes(c) && c->device.type == MOTH_CPU && !(devices & ~(uint32_t)MOTH_KEY_CPU) &&
         !(c->keys & MOTH_KEY_OPT_IN);
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
  n += moth_args_ntensors(c->op, c->args);
  to->refs = malloc(sizeof *to->refs * ((size_t)n + 1));
  if (!to->refs)
    return moth_no_memory(sizeof *to->refs * ((size_t)n + 1));
  for (int i = 0; i < c->op->nargs + (int)to->ntargets; i++) {
    MothValue v = i < c->op->nargs ? c->args[i] : moth_v_tensor(c->target[i - c->op->nargs]);
    for (uint32_t k = 0; k < moth_ntensors(v); k++) {
      if (!find_value(p, moth_tensor_at(v, k), &id))
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
  if (!moth_grow(&p->calls, &p->calls_cap, at + 1, sizeof *p->calls))
    return MOTH_ERR_MEMORY;
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
    return moth_no_memory(((size_t)c->op->nargs + 1) * sizeof *to->args);
  for (int i = 0; i < c->op->nargs; i++)
    if (!moth_trace_value_copy(&to->args[i], &c->args[i]))
      return moth_no_memory(0);
  MOTH_TRY(add_refs(p, to, c));
  to->args_at = p->nargs;
  p->nargs += (uint32_t)c->op->nargs;
  p->nlists = to->nrefs > p->nlists ? to->nrefs : p->nlists;
  for (int i = 0; i < c->op->nresults; i++) {
    MothTensor *t = c->results[i].u.t;
    if (find_value(p, t, &to->result[i]))
      continue;
    moth_tensor_retain(t);
    MOTH_TRY(moth_plan_add_value(p, t, &to->result[i]));
    MothPlanValue *v = &p->values[to->result[i]];
    v->call = at;
    if (c->op->memory == MOTH_MEMORY_VIEW && to->nrefs) {
      const MothTensor *self = p->values[to->refs[0]].fake;
      v->of = to->refs[0];
      v->offset = t->offset * moth_itemsize(t) - self->offset * moth_itemsize(self);
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

static MothStatus add_outside(MothPlan *p, const MothGraphNode *n, MothTensor *const *inputs) {
  MothTensor *fake, *like = n->tensor ? n->tensor : inputs ? inputs[p->ninputs] : NULL;
  uint32_t id;
  MOTH_TRY(like ? moth_tensor_fake_of(like, &fake) : moth_meta_fake(&n->metas[0], &fake));
  MOTH_TRY(moth_plan_add_value(p, fake, &id));
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
  MothTensor **lists = malloc(sizeof(MothTensor *) * ((size_t)n->nrefs + 1));
  if (!lists)
    return moth_no_memory(0);
  for (uint32_t i = 0; i < n->nrefs; i++)
    lists[i] = fake_of(p, &n->refs[i]);
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
    return moth_no_memory(sizeof *more * ((size_t)p->nbound + 1));
  p->bound = more;
  more[p->nbound].number = a->number - 1;
  const MothValue *v = numbers ? &numbers[a->number - 1] : &a->value;
  if (!moth_trace_value_copy(&more[p->nbound].value, v))
    return moth_no_memory(0);
  p->nbound++;
  return MOTH_OK;
}

/* The numbers among the node's arguments are those of its only call, where that is a call of the same op; else they are
 * constants from now on. So are sizes, which decide about the geometry of the plan's values. */
static MothStatus follow_numbers(MothPlan *p, const MothGraphNode *n, uint32_t first,
                                 const MothValue *numbers) {
  MothPlanCall *c = p->ncalls == first + 1 && p->calls[first].op == n->op ? &p->calls[first] : NULL;
  for (int i = 0; i < n->op->nargs; i++) {
    const MothTraceArg *a = &n->args[i];
    bool plain = a->value.tag == MOTH_V_INT || a->value.tag == MOTH_V_FLOAT;
    if (!a->number)
      continue;
    if (!c || !plain || n->op->canonical >> i & 1 || (p->any_sizes && !a->free)) {
      MOTH_TRY(bind_number(p, a, numbers));
      continue;
    }
    if (!c->numbers)
      c->numbers = calloc((size_t)n->op->nargs, sizeof *c->numbers);
    if (!c->numbers)
      return moth_no_memory((size_t)n->op->nargs * sizeof *c->numbers);
    c->numbers[i] = a->number;
  }
  return MOTH_OK;
}

MothStatus moth_plan_replay(MothPlan *p, MothTensor *const *inputs, const MothValue *numbers) {
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
