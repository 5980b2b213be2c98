/* Tracing the joint graph. See joint.h. */
#include "graph/joint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/node.h"
#include "core/alloc.h"
#include "core/defaults.h"
#include "ops/create.h"

typedef struct Trace {
  MothGraph *program;
  MothJoint *joint;
  MothFunctional f;
  MothTensor **values;       /* of the program's nodes, by slot */
  MothTensor **inputs;       /* fakes, owned by values */
  const MothThread *outside; /* the thread's modes */
  uint32_t nvalues, nlists;
  const MothValue *numbers;
  const bool *wanted;
  const MothJointInput *given;
  uint32_t ninputs;
  MothJointUse use; /* of a derivable input, by a call */
  void *ctx;
  bool separate;
  MothTensor **
      uses; /* leaves whose gradients are asked for: inputs, or aliases of them, one for each use */
  uint32_t *use_of; /* the inputs that they are */
  uint32_t *calls;  /* ids of the calls */
  uint32_t nuses, uses_cap;
  MothGraphNode *places; /* with the slots of a call's tensors */
  MothGraphRef *refs;
} Trace;

void moth_joint_free(MothJoint *j) {
  if (!j)
    return;
  moth_graph_release(j->graph);
  for (uint32_t i = 0; j->outputs && i < j->noutputs; i++)
    moth_tensor_release(j->outputs[i].fake);
  free(j->outputs);
  free(j->roots);
  free(j->written);
  free(j->edges);
  free(j->gradient);
  free(j->given);
  free(j);
}

/* --- forward --------------------------------------------------------------------------------------------------- */

/* Takes over the reference to leaf. */
static MothStatus add_use(Trace *t, MothTensor *leaf, uint32_t input) {
  uint32_t cap = t->uses_cap;
  if (!moth_grow(&t->uses, &cap, (size_t)t->nuses + 1, sizeof(MothTensor *)) ||
      !moth_grow(&t->use_of, &t->uses_cap, (size_t)t->nuses + 1, sizeof *t->use_of)) {
    moth_tensor_release(leaf);
    return MOTH_ERR_MEMORY;
  }
  t->uses[t->nuses] = leaf;
  t->use_of[t->nuses++] = input;
  return MOTH_OK;
}

static MothStatus make_input(Trace *t, const MothJointInput *in, uint32_t i, MothTensor **out) {
  MothGraphNode *n;
  char name[32];
  MOTH_TRY(moth_tensor_fake_of(in->fake, out));
  if (in->requires_grad) {
    MOTH_TRY(moth_tensor_set_requires_grad(*out, true));
    if (!t->separate) {
      moth_tensor_retain(*out);
      MOTH_TRY(add_use(t, *out, i));
    }
  }
  snprintf(name, sizeof name, "x%u", i + 1);
  MOTH_TRY(moth_graph_add_value(t->joint->graph, NULL, MOTH_NODE_PLACEHOLDER, name, *out, &n));
  MOTH_TRY(moth_functional_input(&t->f, *out, (int32_t)i, (MothGraphRef){n, 0}));
  moth_functional_store(&t->f, *out)->derivable = in->requires_grad;
  return MOTH_OK;
}

/* A call with out: the functional one, then copies. */
static MothStatus run_out(const MothGraphNode *n, const MothValue *numbers, MothTensor **values,
                          MothTensor **lists, MothValue *results) {
  MothGraphNode plain = *n;
  plain.variant = MOTH_FUNCTIONAL;
  MOTH_TRY(moth_graph_call(&plain, numbers, values, lists, results));
  MothStatus status = MOTH_OK;
  for (int i = 0; i < n->nresults && status == MOTH_OK; i++) {
    const MothGraphRef *ref = &n->refs[n->nrefs - n->nresults + (uint32_t)i];
    MothTensor *target = values[ref->node->slot + ref->result];
    status = moth_copy_(target, results[i].u.t, false);
    if (status == MOTH_OK) {
      moth_tensor_release(results[i].u.t);
      moth_tensor_retain(target);
      results[i] = moth_v_tensor(target);
    }
  }
  for (int i = 0; i < n->nresults && status != MOTH_OK; i++)
    moth_tensor_release(results[i].u.t);
  return status;
}

static MothStatus run_call(Trace *t, const MothGraphNode *n, MothValue *results) {
  MothTensor **lists = t->values + t->nvalues;
  return n->variant == MOTH_OUT ? run_out(n, t->numbers, t->values, lists, results)
                                : moth_graph_call(n, t->numbers, t->values, lists, results);
}

static bool is_target(const Trace *t, const MothGraphNode *n, const MothTensor *x) {
  for (uint32_t i = n->nrefs - n->nresults; n->variant != MOTH_FUNCTIONAL && i < n->nrefs; i++)
    if (t->values[n->refs[i].node->slot + n->refs[i].result] == x)
      return true;
  return false;
}

MothStatus moth_pass_on(MothNode *n, MothTensor *const *grads, uint32_t need, MothTensor **out) {
  (void)n, (void)need;
  moth_tensor_retain(out[0] = grads[0]);
  return MOTH_OK;
}

/* x with a node of its own, through which this use's gradient goes. */
static MothStatus use_of(void *ctx, MothTensor *x, uint32_t input, MothTensor **out) {
  Trace *t = ctx;
  MothNode *node;
  MothTensor *alias;
  MOTH_TRY(moth_tensor_alias(x, false, &alias));
  MothStatus status =
      moth_function_record("Use", moth_pass_on, NULL, NULL, &x, 1, &alias, 1, 0, &node);
  if (status != MOTH_OK) {
    moth_tensor_release(alias);
    return status;
  }
  moth_node_release(node);
  *out = alias;
  return add_use(t, alias, input);
}

/* Runs a call with an alias in the place of each input that requires a gradient. The first argument's is made last: its
 * node runs first, as its gradient comes first without aliases. */
static MothStatus run_separate(Trace *t, const MothGraphNode *n, MothValue *results) {
  MothGraphNode call = *n;
  call.refs = t->refs;
  for (uint32_t i = n->nrefs; i-- > 0;) {
    MothGraphRef ref = n->refs[i];
    uint32_t slot = ref.node->slot + ref.result, input = 0;
    MothTensor *x = t->values[slot];
    t->places[i].slot = slot;
    t->refs[i] = (MothGraphRef){&t->places[i], 0};
    if (n->modes.no_grad || is_target(t, n, x) ||
        n->op->id == UINT16_MAX) /* a pass, and what it gives, know leaves by identity */
      continue;
    while (input < t->ninputs && t->inputs[input] != x)
      input++;
    if (input == t->ninputs || !t->given[input].requires_grad)
      continue;
    t->places[i].slot = t->nvalues + t->nlists + i;
    MOTH_TRY(t->use(t->ctx, x, input, &t->values[t->places[i].slot]));
  }
  MOTH_TRY(run_call(t, &call, results));
  for (int r = 0; r < n->nresults; r++) /* a composite may give its argument back */
    for (uint32_t i = 0; i < n->nrefs; i++)
      if (results[r].u.t == t->values[t->places[i].slot]) {
        MothTensor *x = t->values[n->refs[i].node->slot + n->refs[i].result];
        moth_tensor_retain(x);
        moth_tensor_release(results[r].u.t);
        results[r] = moth_v_tensor(x);
        break;
      }
  return MOTH_OK;
}

static MothStatus run_forward(Trace *t, const MothJointInput *inputs) {
  MothStatus status = MOTH_OK;
  uint32_t at = 0;
  for (MothGraphNode *n = t->program->first; n && status == MOTH_OK; n = n->next) {
    MothValue results[MOTH_MAX_RESULTS];
    MothTensor **own = t->values + n->slot;
    if (n->kind == MOTH_NODE_PLACEHOLDER) {
      status = make_input(t, &inputs[at], at, own);
      t->inputs[at++] = *own;
    } else if (n->kind == MOTH_NODE_GET_ATTR) {
      return moth_fail(MOTH_ERR_STATE, "the graph holds tensors");
    } else if (n->kind == MOTH_NODE_CALL) {
      t->f.place = n->place;
      t->f.recording = !n->modes.no_grad;
      if (t->separate)
        status = run_separate(t, n, results);
      else
        status = run_call(t, n, results);
      for (int i = 0; i < n->nresults && status == MOTH_OK; i++)
        own[i] = results[i].u.t;
    }
  }
  return status;
}

/* --- what the segment returns ----------------------------------------------------------------------------------- */

static int32_t find_root(const MothJoint *j, const MothFunctionalStore *const *stores,
                         const MothFunctionalStore *s) {
  for (uint32_t i = 0; i < j->nroots; i++)
    if (stores[i] == s)
      return (int32_t)i;
  return -1;
}

static bool same_shape_and_strides(const MothTensor *a, const MothTensor *b) {
  size_t size = sizeof(int64_t) * a->ndim;
  return a->ndim == b->ndim && !memcmp(a->shape, b->shape, size) &&
         !memcmp(a->stride, b->stride, size);
}

static MothStatus describe_outputs(Trace *t) {
  MothJoint *j = t->joint;
  const MothGraphNode *end = t->program->last;
  uint32_t n = j->noutputs = end->nrefs;
  const MothFunctionalStore **stores = calloc((size_t)n + 1, sizeof *stores);
  MothStatus status = MOTH_OK;
  j->outputs = calloc((size_t)n + 1, sizeof *j->outputs);
  j->roots = calloc((size_t)n + 1, sizeof *j->roots);
  j->written = calloc((size_t)j->ninputs + 1, sizeof *j->written);
  if (!stores || !j->outputs || !j->roots || !j->written) {
    status = moth_no_memory(0);
    goto done;
  }
  for (uint32_t i = 0; i < n; i++) {
    MothTensor *o = t->values[end->refs[i].node->slot + end->refs[i].result];
    MothFunctionalStore *s = moth_functional_store(&t->f, o);
    MothJointOutput *out = &j->outputs[i];
    moth_tensor_retain(o);
    *out = (MothJointOutput){
        .fake = o, .root = -1, .input = -1, .nr = -1, .base = -1, .base_input = -1};
    if (!s) {
      status = moth_fail(MOTH_ERR_STATE, "an output that no call has made");
      goto done;
    }
    out->offset = o->offset * moth_itemsize(o) - s->root.t->offset * moth_itemsize(s->root.t);
    out->input = s->input;
    if (s->input < 0) {
      out->root = find_root(j, stores, s);
      out->whole = out->root < 0 && out->offset == 0 && o->dtype == s->root.t->dtype &&
                   same_shape_and_strides(o, s->root.t);
      if (out->root < 0) {
        stores[j->nroots] = s;
        j->roots[j->nroots] = (MothJointRoot){*moth_version_of(s->root.t), s->root.ref};
        out->root = (int32_t)j->nroots++;
      }
      if (!s->root.t->contiguous) {
        status = moth_fail(MOTH_ERR_STATE, "a result that is not row-major in its memory");
        goto done;
      }
    }
    if (moth_tensor_requires_grad(o))
      out->nr = (int32_t)j->nresults++;
  }
  for (uint32_t i = 0; i < n; i++) {
    const MothTensor *base = j->outputs[i].fake->base;
    for (uint32_t k = 0; base && k < n; k++)
      if (j->outputs[k].fake == base)
        j->outputs[i].base = (int32_t)k;
    bool outside = false; /* the input, or an alias of it for one use; not another view of it */
    for (uint32_t k = 0; base && k < t->ninputs && !outside; k++)
      outside = t->inputs[k] == base;
    for (uint32_t k = 0; base && k < t->nuses && !outside; k++)
      outside = t->uses[k] == base;
    if (outside)
      j->outputs[i].base_input = moth_functional_store(&t->f, base)->input;
  }
  for (uint32_t i = 0; i < j->ninputs; i++)
    j->written[i] = *moth_version_of(t->inputs[i]);
done:
  free(stores);
  return status;
}

/* Inputs that were written to get their values at the end, unless the calls have written to them themselves. */
static MothStatus copy_back(Trace *t) {
  for (uint32_t i = 0; i < t->joint->ninputs; i++) {
    const MothFunctionalStore *s = moth_functional_store(&t->f, t->inputs[i]);
    MothGraphNode *n;
    MothValue results[1] = {moth_v_tensor(t->inputs[i])};
    MothTraceMeta meta;
    if (!s->version || s->root.ref.node->kind == MOTH_NODE_PLACEHOLDER)
      continue;
    MothGraphRef now;
    MOTH_TRY(moth_functional_value(&t->f, t->inputs[i], &now));
    MothGraphNode *input = t->joint->graph->first;
    for (uint32_t k = 0; k < i; k++)
      input = input->next;
    MothGraphRef refs[3] = {{input, 0}, now, {input, 0}};
    MothValue args[3] = {results[0], results[0], moth_v_bool(false)};
    if (!moth_meta_of(t->inputs[i], false, &meta))
      return MOTH_ERR_MEMORY;
    MothStatus status = moth_graph_add_call(t->joint->graph, MOTH_OP(copy_), MOTH_INPLACE, args,
                                            refs, 3, &meta, &t->f.modes, "", &n);
    free(meta.dims);
    MOTH_TRY(status);
  }
  return MOTH_OK;
}

/* --- backward ------------------------------------------------------------------------------------------------------ */

static MothStatus make_gradient(const MothTensor *output, MothTensor *grad, MothTensor **out) {
  if (grad)
    return moth_tensor_fake_of(grad, out);
  return moth_tensor_new_fake(output->ndim, output->shape, (MothDType)output->dtype, output->device,
                              out);
}

/* Inputs of the graph come first in it. */
static MothStatus add_gradient(Trace *t, MothTensor *grad, uint32_t nr, MothGraphNode **behind) {
  MothGraph *g = t->joint->graph;
  MothGraphNode *n, *before = *behind ? (*behind)->next : g->first;
  char name[32];
  snprintf(name, sizeof name, "grad%u", nr + 1);
  MOTH_TRY(moth_graph_add_value(g, before, MOTH_NODE_PLACEHOLDER, name, grad, &n));
  n->backward = true;
  *behind = n;
  return moth_functional_input(&t->f, grad, -1, (MothGraphRef){n, 0});
}

typedef struct Pass {
  MothTensor **roots, **grads, **inputs, **out, **asked; /* inputs: borrowed, the last use first */
  uint32_t n, nout;
} Pass;

static MothStatus run_backward(Trace *t, MothTensor *const *grads, Pass *p) {
  MothJoint *j = t->joint;
  MothGraphNode *behind = NULL, *last = j->graph->last;
  MothGraphNode *n = j->graph->first;
  for (uint32_t i = 0; i < j->ninputs; i++, n = n->next)
    behind = n;
  for (uint32_t i = 0; i < j->noutputs; i++) {
    const MothJointOutput *o = &j->outputs[i];
    if (o->nr < 0 || (grads && !grads[o->nr]))
      continue;
    MOTH_TRY(make_gradient(o->fake, grads ? grads[o->nr] : NULL, &p->grads[p->n]));
    p->roots[p->n++] = o->fake;
    j->given[j->ngiven++] = o->nr;
    MOTH_TRY(add_gradient(t, p->grads[p->n - 1], (uint32_t)o->nr, &behind));
  }
  if (!p->n || !t->nuses)
    return MOTH_OK;
  t->f.backward = true;
  t->f.place = "";
  moth_thread.include |= t->outside->include & MOTH_KEY_AUTOCAST;
  memcpy(moth_thread.autocast, t->outside->autocast, sizeof moth_thread.autocast);
  uint32_t n_asked = 0;
  for (uint32_t i = 0; i < t->nuses; i++)
    if (!t->wanted || t->wanted[i])
      p->asked[n_asked++] = p->inputs[i];
  if (n_asked)
    MOTH_TRY(moth_grad(p->roots, p->grads, (int)p->n, p->asked, (int)n_asked, true, false, true,
                       p->out));
  p->nout = t->nuses;
  for (uint32_t i = t->nuses; i-- > 0;) /* to the places of their edges */
    if (!t->wanted || t->wanted[i]) {
      MothTensor *g = p->out[--n_asked];
      p->out[n_asked] = NULL;
      p->out[i] = g;
    }
  j->after = last ? last->next : j->graph->first;
  return MOTH_OK;
}

static MothStatus add_outputs(Trace *t, const Pass *p) {
  MothJoint *j = t->joint;
  MothGraphRef *refs = calloc((size_t)j->nroots + j->nedges + 1, sizeof *refs);
  MothStatus status =
      refs ? MOTH_OK : moth_no_memory(((size_t)j->nroots + j->nedges + 1) * sizeof *refs);
  uint32_t n = 0;
  for (uint32_t i = 0; i < j->nroots && status == MOTH_OK; i++)
    refs[n++] = j->roots[i].value;
  for (uint32_t i = 0; i < j->nedges && status == MOTH_OK; i++) {
    MothTensor *g = i < p->nout ? p->out[i] : NULL;
    j->gradient[i] = -1;
    if (!g)
      continue;
    status = moth_functional_value(&t->f, g, &refs[n++]);
    j->gradient[i] = (int32_t)j->ngrads++;
  }
  if (status == MOTH_OK)
    status = moth_graph_add_output(j->graph, refs, n);
  free(refs);
  return status;
}

/* --- all of it --------------------------------------------------------------------------------------------------- */

static MothStatus check_inputs(const Trace *t, const MothJointInput *inputs) {
  for (uint32_t i = 0; i < t->joint->ninputs; i++)
    if (moth_tensor_requires_grad(t->inputs[i]) != inputs[i].requires_grad)
      return moth_fail(MOTH_ERR_STATE, "an input is written to that gets a history by that");
  return MOTH_OK;
}

static MothStatus trace(Trace *t, const MothJointInput *inputs, MothTensor *const *grads,
                        bool derive, Pass *p) {
  MothJoint *j = t->joint;
  MOTH_TRY(run_forward(t, inputs));
  MOTH_TRY(check_inputs(t, inputs));
  MOTH_TRY(describe_outputs(t));
  MOTH_TRY(copy_back(t));
  uint32_t n = j->nresults;
  j->given = calloc((size_t)n + 1, sizeof *j->given);
  j->gradient = calloc((size_t)t->nuses + 1, sizeof *j->gradient);
  j->edges = calloc((size_t)t->nuses + 1, sizeof *j->edges);
  p->roots = calloc((size_t)n + 1, sizeof *p->roots);
  p->grads = calloc((size_t)n + 1, sizeof *p->grads);
  p->inputs = calloc((size_t)t->nuses + 1, sizeof *p->inputs);
  p->out = calloc((size_t)t->nuses + 1, sizeof *p->out);
  p->asked = calloc((size_t)t->nuses + 1, sizeof *p->asked);
  if (!j->given || !j->gradient || !j->edges || !p->roots || !p->grads || !p->inputs || !p->out ||
      !p->asked)
    return moth_no_memory(0);
  j->nedges = t->nuses;
  for (uint32_t i = 0; i < t->nuses;
       i++) { /* the last call's first, each in the order of its arguments */
    uint32_t use = t->separate ? t->nuses - 1 - i : i;
    j->edges[i] = t->use_of[use];
    p->inputs[i] = t->uses[use];
  }
  if (derive)
    MOTH_TRY(run_backward(t, grads, p));
  j->offsets = t->f.offsets;
  return add_outputs(t, p);
}

/* Nothing that the program or its observers have set is in force while `fn` runs, and all that is made is fake. */
static MothStatus trace_apart(Trace *t, const MothJointInput *inputs, MothTensor *const *grads,
                              bool derive, Pass *p) {
  MothClean *clean = moth_clean_begin();
  MothPasses passes = {0};
  if (!clean)
    return moth_no_memory(0);
  t->outside = &clean->was.thread;
  moth_swap_passes(&passes);
  MothInterceptor mine = {moth_functional_note, &t->f, false, NULL, false};
  MothStatus status = moth_intercept_push(false, mine);
  if (status == MOTH_OK) {
    moth_thread.include |= MOTH_KEY_FAKE;
    status = trace(t, inputs, grads, derive, p);
    moth_thread.include &= ~(uint32_t)MOTH_KEY_FAKE;
    moth_intercept_pop(false, mine);
  }
  moth_swap_passes(&passes);
  moth_clean_end(clean);
  return status;
}

static MothStatus make_lists(Trace *t) {
  MOTH_TRY(moth_graph_check(t->program));
  moth_graph_slots(t->program, &t->nvalues, &t->nlists);
  t->values = calloc((size_t)t->nvalues + 2 * (size_t)t->nlists + 2, sizeof(MothTensor *));
  t->inputs = calloc((size_t)t->ninputs + 1, sizeof(MothTensor *));
  t->places = calloc((size_t)t->nlists + 1, sizeof *t->places);
  t->refs = calloc((size_t)t->nlists + 1, sizeof *t->refs);
  return t->values && t->inputs && t->places && t->refs ? MOTH_OK : moth_no_memory(0);
}

static void free_lists(Trace *t) {
  for (uint32_t i = 0; t->values && i < t->nvalues; i++)
    moth_tensor_release(t->values[i]);
  for (uint32_t i = 0; i < t->nuses; i++)
    moth_tensor_release(t->uses[i]);
  free(t->uses);
  free(t->use_of);
  free(t->places);
  free(t->refs);
  free(t->values);
  free(t->inputs);
}

static bool has_all(const Trace *t, const MothGraphNode *n) {
  for (uint32_t i = 0; i < n->nrefs; i++)
    if (!t->values[n->refs[i].node->slot + n->refs[i].result])
      return false;
  return true;
}

MothStatus moth_joint_run(MothGraph *program, const MothJointInput *given, uint32_t ninputs,
                          MothTensor *const *inputs, const MothValue *numbers, MothJointUse use,
                          void *ctx, MothTensor **outputs) {
  Trace t = {.program = program,
             .numbers = numbers,
             .given = given,
             .ninputs = ninputs,
             .use = use,
             .ctx = ctx};
  uint32_t at = 0;
  MothStatus status = make_lists(&t);
  for (MothGraphNode *n = program->first; n && status == MOTH_OK; n = n->next) {
    MothTensor **own = t.values + n->slot;
    MothValue results[MOTH_MAX_RESULTS];
    if (n->kind == MOTH_NODE_PLACEHOLDER) {
      moth_tensor_retain(*own = t.inputs[at] = inputs[at]);
      at++;
    } else if (n->kind == MOTH_NODE_CALL) {
      bool there = has_all(&t, n);
      if (there)
        status = run_separate(&t, n, results);
      else if (moth_node_writes(n) || moth_op_draws(n->op))
        status = moth_fail(MOTH_ERR_STATE, "%s needs an input that is not there", n->name);
      for (int i = 0; i < n->nresults && status == MOTH_OK; i++)
        own[i] = there ? results[i].u.t : NULL;
    } else if (n->kind == MOTH_NODE_OUTPUT) {
      for (uint32_t i = 0; i < n->nrefs; i++)
        moth_tensor_retain(outputs[i] = t.values[n->refs[i].node->slot + n->refs[i].result]);
    }
  }
  free_lists(&t);
  return status;
}

MothStatus moth_joint_trace(MothGraph *program, const MothJointTrace *how, MothJoint **out) {
  MothJoint *j = calloc(1, sizeof *j);
  Trace t = {.program = program,
             .joint = j,
             .separate = how->separate,
             .numbers = how->numbers,
             .wanted = how->wanted,
             .given = how->inputs,
             .ninputs = how->ninputs,
             .use = use_of};
  t.ctx = &t;
  uint32_t ninputs = how->ninputs;
  Pass p = {0};
  MothStatus status = MOTH_OK;
  MOTH_GO(make_lists(&t));
  if (!j || !(j->graph = moth_graph_new(program->name)) ||
      !moth_graph_set_numbers(j->graph, program->nnumbers)) {
    status = moth_no_memory(0);
    goto done;
  }
  j->ninputs = ninputs;
  t.f.graph = j->graph;
  t.f.modes.dtype = (uint8_t)moth_default_dtype();
  t.f.place = "";
  status = trace_apart(&t, how->inputs, how->grads, how->derive, &p);
done:
  for (uint32_t i = 0; p.grads && i < p.n; i++)
    moth_tensor_release(p.grads[i]);
  for (uint32_t i = 0; p.out && i < p.nout; i++)
    moth_tensor_release(p.out[i]);
  free(p.roots);
  free(p.grads);
  free(p.inputs);
  free(p.out);
  free(p.asked);
  moth_functional_free(&t.f);
  free_lists(&t);
  if (status != MOTH_OK) {
    moth_gradients_forget(); /* of a pass that was not finished */
    moth_joint_free(j);
    return status;
  }
  *out = j;
  return MOTH_OK;
}
