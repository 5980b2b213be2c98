/* The one node of a compiled segment: its backward graphs, and the segment run again where they do not do.
 *
 * A backward graph is compiled when it is first needed, for the outputs that have gradients and for the strides of
 * these. To differentiate a gradient again, the segment runs as recorded from its inputs, with the random numbers that
 * it had drawn, and the engine differentiates that. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/node.h"
#include "core/alloc.h"
#include "core/log.h"
#include "graph/aot.h"
#include "graph/trace.h"

MothAotHost moth_aot_host;

typedef struct Context {
  void *handle; /* of the host: it keeps the segment */
  MothAot *aot;
  uint64_t first; /* of the sequence numbers that the node has reserved */
  uint64_t generator[2];
  bool replayable, freed;
  bool ran; /* backward has freed some of it */
  uint32_t nsaved;
  MothValue *numbers; /* of the program, behind this */
  bool *used;         /* saved values that calls use that have not run */
  bool *gone;         /* by user: the call has run, and would have freed what it had saved */
  uint64_t last;      /* the results that the backward that runs, or has run, begins at */
  uint64_t edges;     /* the edges whose gradients it asks for */
} Context;

/* Whether the backward that runs, or has run last, computes what this user does. */
static bool runs(const Context *c, const MothJointUser *u) {
  return u->results & c->last && u->edges & c->edges;
}

/* Saved values are freed as those of the calls would be: a value goes once all calls that use it have run. What only running
 * the segment again needs goes with the last. */
static bool mark_used(Context *c) {
  const MothJointParts *p = &c->aot->parts;
  bool any = false;
  memset(c->used, 0, sizeof *c->used * c->nsaved);
  for (uint32_t k = 0; k < p->nusers; k++)
    if (!c->gone[k] && !runs(c, &p->users[k]))
      any = c->used[p->users[k].saved] = true;
  return any;
}

static void done(MothNode *n) {
  Context *c = n->ctx;
  bool left = mark_used(c) || (n->expand && !c->aot->parts.nusers); /* its calls free nothing */
  for (uint32_t k = 0; k < c->aot->parts.nusers; k++)
    c->gone[k] = c->gone[k] || runs(c, &c->aot->parts.users[k]);
  c->ran = true;
  for (uint32_t i = 0; i < n->nsaved; i++)
    if (i < c->nsaved ? !c->used[i] : !left)
      moth_function_free(n, (int)i);
  c->freed = !left;
}

/* Whether a call would run again that has freed what it had saved. */
static bool is_freed(const Context *c) {
  const MothJointParts *p = &c->aot->parts;
  for (uint32_t k = 0; k < p->nusers; k++)
    if (c->gone[k] && runs(c, &p->users[k]))
      return true;
  return false;
}

static void drop(MothNode *n) {
  Context *c = n->ctx;
  moth_aot_host.release(c->handle);
  free(c);
}

/* --- running the segment again ------------------------------------------------------------------------------------ */

/* t, which has no history, as input k of node n: its gradient is apart from those that other ways lead there. */
static MothStatus stand_in(MothNode *n, uint32_t k, MothTensor *t, bool create, MothTensor **out) {
  MothNode *node;
  MothTensor *source;
  MOTH_TRY(moth_tensor_alias(t, false, out));
  if (!create)
    return moth_tensor_set_requires_grad(*out, true);
  MothNode *edge = n->inputs[k].node;
  if (edge->seq == MOTH_SEQ_LEAF) {
    moth_tensor_retain(source = edge->ctx);
  } else {
    MOTH_TRY(moth_tensor_alias(t, false, &source));
    MothStatus status = moth_set_history(source, edge, n->inputs[k].nr);
    if (status != MOTH_OK) {
      moth_tensor_release(source);
      return status;
    }
  }
  MothStatus status =
      moth_function_record("CompiledInput", moth_pass_on, NULL, NULL, &source, 1, out, 1, 0, &node);
  moth_tensor_release(source);
  if (status == MOTH_OK)
    moth_node_release(node);
  return status;
}

static MothStatus check_replayable(const MothAot *a, const Context *c) {
  for (uint32_t i = 0; i < a->ninputs; i++)
    if (a->joint->written[i] && !a->copies)
      return moth_fail(MOTH_ERR_STATE,
                       "compile: gradients of gradients need the graph's inputs as they were, but "
                       "it writes to one of them, which is large; compile without "
                       "backend there");
  return c->replayable ? MOTH_OK
                       : moth_fail(MOTH_ERR_STATE,
                                   "compile: under saved-tensor hooks a compiled graph keeps too "
                                   "little for gradients of gradients");
}

/* The segment, run again from the inputs that n has saved. */
typedef struct Again {
  MothTensor **inputs, **outputs, **ways; /* ways: for the node's inputs edges[i] */
  uint32_t *edges, nways, cap, nused;
  char missing[512]; /* why an input is not there */
  MothNode *node;
  bool create;
} Again;

static void free_again(const MothAot *a, Again *r) {
  for (uint32_t i = 0; r->inputs && i < a->ninputs + a->joint->noutputs; i++)
    moth_tensor_release(r->inputs[i]);
  for (uint32_t i = 0; i < r->nways; i++)
    moth_tensor_release(r->ways[i]);
  free(r->inputs);
  free(r->ways);
  free(r->edges);
}

/* A way for input k of the node. */
static MothStatus add_way(Again *r, MothTensor *x, uint32_t k, MothTensor **out) {
  if (r->nways == r->cap)
    return moth_fail(MOTH_ERR_STATE, "a compiled graph uses its inputs in another way than traced");
  MOTH_TRY(stand_in(r->node, k, x, r->create, out));
  r->edges[r->nways] = k;
  r->ways[r->nways++] = *out;
  return MOTH_OK;
}

static MothStatus add_use(void *ctx, MothTensor *x, uint32_t input, MothTensor **out) {
  Again *r = ctx;
  const MothAot *a = ((const Context *)r->node->ctx)->aot;
  uint32_t k = 0;
  if (a->separate) /* the uses in reverse */
    return add_way(r, x, r->cap - 1 - r->nused++, out);
  while (k < r->nways && a->joint->edges[r->edges[k]] != input)
    k++;
  if (k < r->nways) {
    *out = r->ways[k];
    return MOTH_OK;
  }
  for (k = 0; k < r->cap && a->joint->edges[k] != input;)
    k++;
  return add_way(r, x, k, out);
}

static MothStatus run_again(MothNode *n, bool create, Again *r) {
  const Context *c = n->ctx;
  const MothAot *a = c->aot;
  const MothJoint *j = a->joint;
  uint64_t now[2];
  *r = (Again){.inputs = calloc((size_t)a->ninputs + j->noutputs + 1, sizeof *r->inputs),
               .ways = calloc((size_t)j->nedges + 1, sizeof *r->ways),
               .edges = calloc((size_t)j->nedges + 1, sizeof *r->edges),
               .cap = j->nedges,
               .node = n,
               .create = create};
  if (!r->inputs || !r->ways || !r->edges)
    return moth_no_memory(0);
  r->outputs = r->inputs + a->ninputs;
  for (uint32_t i = 0; i < a->ninputs; i++) { /* one that was written to since may not be needed */
    MothStatus status = moth_function_saved(n, a->saved_at[i], &r->inputs[i]);
    if (status == MOTH_OK && !r->inputs[i])
      status = moth_node_freed(n);
    if (status != MOTH_OK && status != MOTH_ERR_STATE)
      return status;
    if (status != MOTH_OK)
      snprintf(r->missing, sizeof r->missing, "%s", moth_last_error());
  }
  if (a->draws) {
    moth_generator_get_state(moth_aot_generator(a), &now[0], &now[1]);
    moth_generator_set_state(moth_aot_generator(a), c->generator[0], c->generator[1]);
  }
  const MothValue *numbers = a->program->nnumbers ? c->numbers : NULL;
  MothStatus status =
      moth_joint_run(a->program, a->inputs, a->ninputs, r->inputs, numbers, add_use, r, r->outputs);
  if (a->draws)
    moth_generator_set_state(moth_aot_generator(a), now[0], now[1]);
  return status != MOTH_OK && r->missing[0] ? moth_fail(MOTH_ERR_STATE, "%s", r->missing) : status;
}

/* The errors of what the calls have saved: written to since, or freed. */
static MothStatus check_saved(MothNode *n) {
  const Context *c = n->ctx;
  const MothJointParts *p = &c->aot->parts;
  for (uint32_t k = 0; k < p->nusers; k++) {
    MothTensor *t = NULL;
    if (!runs(c, &p->users[k]))
      continue;
    MOTH_TRY(moth_function_saved(n, (int)p->users[k].saved, &t));
    if (!t)
      return moth_node_freed(n);
    moth_tensor_release(t);
  }
  return MOTH_OK;
}

static MothStatus replay(MothNode *n, MothAot *a, MothTensor *const *grads, bool create,
                         uint32_t need, MothTensor **out) {
  const MothJoint *j = a->joint;
  Again r = {0};
  MothTensor **list = NULL;
  bool was = moth_set_grad_enabled(true);
  int nroots = 0;
  MothStatus status = MOTH_OK;
  MOTH_GO(check_replayable(a, n->ctx));
  bool all = true;
  for (uint32_t k = 0; k < j->nedges; k++)
    all = all && need >> (k < 31 ? k : 31) & 1;
  if (all)
    MOTH_GO(check_saved(n));
  uint64_t seq = moth_seq_at(((Context *)n->ctx)->first); /* where its calls were */
  status = run_again(n, create, &r);
  moth_seq_at(seq);
  MOTH_GO(status);
  list = calloc(2 * (size_t)j->noutputs + j->nedges + 1, sizeof *list);
  MOTH_GO(list ? MOTH_OK
               : moth_no_memory((2 * (size_t)j->noutputs + j->nedges + 1) * sizeof *list));
  MothTensor **given = list + j->noutputs, **results = given + j->noutputs;
  for (uint32_t i = 0; i < j->noutputs; i++)
    if (j->outputs[i].nr >= 0 && grads[j->outputs[i].nr]) {
      if (!r.outputs[i])
        MOTH_GO(moth_fail(MOTH_ERR_STATE, "%s", r.missing));
      list[nroots] = r.outputs[i];
      given[nroots++] = grads[j->outputs[i].nr];
    }
  if (nroots && r.nways)
    MOTH_GO(moth_grad(list, given, nroots, r.ways, (int)r.nways, create, create, true, results));
  for (uint32_t i = 0; i < r.nways; i++)
    out[r.edges[i]] = results[i];
done:
  moth_set_grad_enabled(was);
  free_again(a, &r);
  free(list);
  return status;
}

/* --- a node for each call ---------------------------------------------------------------------------------------------- */

static MothStatus pass_all_on(MothNode *n, MothTensor *const *grads, uint32_t need,
                              MothTensor **out) {
  (void)need;
  for (int i = 0; i < n->ninputs; i++)
    if (n->inputs[i].node)
      moth_tensor_retain(out[i] = grads[i]);
  return MOTH_OK;
}

/* The histories of the outputs become those of the segment run again; n passes gradients on to these. */
static MothStatus lead_to(MothNode *n, const MothAot *a, const Again *r) {
  for (uint32_t i = 0; i < a->joint->noutputs; i++)
    if (a->joint->outputs[i].nr >= 0 && !r->outputs[i])
      return moth_fail(MOTH_ERR_STATE, "%s", r->missing);
  for (int i = 0; i < n->ninputs; i++) {
    moth_node_release(n->inputs[i].node);
    n->inputs[i].node = NULL;
  }
  n->backward = pass_all_on;
  n->ninputs = n->nresults;
  for (uint32_t i = 0; i < a->joint->noutputs; i++)
    if (a->joint->outputs[i].nr >= 0)
      MOTH_TRY(moth_node_set_input(n, a->joint->outputs[i].nr, r->outputs[i], true));
  for (int i = 0; i < n->nsaved; i++)
    moth_function_free(n, i);
  return MOTH_OK;
}

/* The results that are computed from result nr. */
static uint64_t leads(const MothAot *a, uint16_t nr) {
  uint64_t results = 0;
  for (uint32_t i = 0; i < a->joint->noutputs; i++)
    if (a->joint->outputs[i].nr == nr)
      results |= a->joint->outputs[i].leads;
  return results;
}

static bool lacks(const MothNode *n, uint16_t nr, MothTensor *const *grads) {
  const Context *c = n->ctx;
  uint64_t results = c->freed && n->backward != pass_all_on ? leads(c->aot, nr) : 0;
  for (uint16_t i = 0; results && i < n->nresults; i++)
    if (grads[i] && i != nr && results >> (i < 63 ? i : 63) & 1)
      return true;
  return false;
}

static MothStatus expand(MothNode *n, MothTensor *t) {
  const Context *c = n->ctx;
  const MothAot *a = c->aot;
  bool inner = leads(a, t->grad->nr) != 0;
  const MothInput *to = &n->inputs[t->grad->nr];
  if (n->backward == pass_all_on)
    return moth_set_history(t, to->node, to->nr);
  if (!inner || c->freed)
    return MOTH_OK;
  MOTH_TRY(check_replayable(a, c));
  MothClean *clean = moth_clean_begin();
  Again r = {0};
  if (!clean)
    return moth_no_memory(0);
  uint64_t seq = moth_seq_at(c->first);
  MothStatus status = run_again(n, true, &r);
  moth_seq_at(seq);
  if (status == MOTH_OK)
    status = lead_to(n, a, &r);
  if (status == MOTH_OK)
    status = moth_set_history(t, to->node, to->nr);
  moth_clean_end(clean);
  free_again(a, &r);
  return status;
}

/* --- backward graphs -------------------------------------------------------------------------------------------------- */

/* What decides about a backward graph: which gradients there are, their strides, autocast. NULL: no memory. */
static char *key_of(const bool *wanted, uint32_t nedges, MothTensor *const *grads, uint32_t n) {
  size_t cap = 64 + nedges + (size_t)n * (MOTH_MAX_DIMS * 21 + 4), at = 0;
  char *key = malloc(cap);
  if (!key)
    return NULL;
  key[0] = 0;
  for (int i = 0; moth_thread_state()->include & MOTH_KEY_AUTOCAST && i < MOTH_NDEVICES; i++)
    at += (size_t)snprintf(key + at, cap - at, "%d,", moth_thread_state()->autocast[i]);
  for (uint32_t i = 0; i < n; i++) {
    const MothTensor *g = grads[i];
    at += (size_t)snprintf(key + at, cap - at, "%s", !g ? "-" : g->contiguous ? "c" : "s");
    for (int k = 0; g && !g->contiguous && k < g->ndim; k++)
      at += (size_t)snprintf(key + at, cap - at, "%lld,", (long long)g->stride[k]);
  }
  for (uint32_t k = 0; wanted && k < nedges; k++)
    at += (size_t)snprintf(key + at, cap - at, "%d", wanted[k]);
  return key;
}

/* Which of n's inputs are asked for their gradients (MothBackward's `need`); NULL: all. The caller frees it. */
static bool *wanted_of(const MothNode *n, const MothAot *a, uint32_t need) {
  uint32_t nedges = a->joint->nedges;
  bool all = true, *wanted = calloc((size_t)nedges + 1, sizeof *wanted);
  for (uint32_t k = 0; wanted && k < nedges; k++) {
    wanted[k] = n->inputs[k].node && need >> (k < 31 ? k : 31) & 1;
    all = all && wanted[k];
  }
  if (!all)
    return wanted;
  free(wanted);
  return NULL;
}

static bool same_numbers(const MothAot *a, const MothAotBackward *b, const MothValue *numbers) {
  for (uint32_t k = 0; k < a->program->nnumbers; k++)
    if (b->pinned[k] && !a->pinned[k] && memcmp(&b->numbers[k].u, &numbers[k].u, sizeof numbers->u))
      return false;
  return moth_joint_takes(numbers, a->program->nnumbers, b->pinned, b->kinds);
}

static MothAotBackward *find(MothAot *a, const char *key, const MothValue *numbers) {
  for (MothAotBackward *b = a->backward; b; b = b->next)
    if (!strcmp(b->key, key) && same_numbers(a, b, numbers))
      return b;
  return NULL;
}

/* What backward graph b is called with: the saved values, then gradients. */
static MothStatus arguments(MothNode *n, const MothAotBackward *b, MothTensor *const *grads,
                            MothTensor **list) {
  for (uint32_t i = 0; i < b->ntakes; i++) {
    MOTH_TRY(moth_function_saved(n, (int)b->takes[i], &list[i]));
    if (!list[i])
      return moth_node_freed(n);
  }
  for (uint32_t i = 0; i < b->ngiven; i++)
    moth_tensor_retain(list[b->ntakes + i] = grads[b->given[i]]);
  return MOTH_OK;
}

static MothStatus trace(MothAot *a, MothAotBackward *b, MothTensor *const *grads, MothJoint **joint,
                        MothJointParts *parts) {
  uint32_t n = a->program->nnumbers;
  MothJointTrace how = {.inputs = a->inputs,
                        .ninputs = a->ninputs,
                        .grads = grads,
                        .numbers = n ? b->numbers : NULL,
                        .wanted = b->wanted,
                        .derive = true,
                        .separate = a->separate};
  MOTH_TRY(moth_joint_trace(a->program, &how, joint));
  if (n)
    MOTH_TRY(moth_joint_find_numbers(*joint, a->program, &how, b->pinned, &b->kinds));
  MOTH_TRY(moth_joint_simplify(*joint, a->program, b->pinned));
  return moth_joint_divide(*joint, &a->parts, false, parts);
}

/* A backward graph for these gradients, compiled; number 0: the segment is to be run again. */
static MothStatus compile(const MothAotPlace *at, MothNode *n, MothAot *a, char *key,
                          const bool *wanted, MothTensor *const *grads, MothAotBackward **out) {
  MothJoint *joint = NULL;
  MothJointParts parts = {0};
  MothTensor **list = NULL;
  uint32_t nlist = 0;
  MothAotBackward *b = calloc(1, sizeof *b);
  MothStatus status = b ? MOTH_OK : moth_no_memory(sizeof *b);
  MOTH_GO(status);
  uint32_t nnumbers = a->program->nnumbers;
  b->key = strdup(key);
  b->pinned = calloc((size_t)nnumbers + 1, sizeof *b->pinned);
  b->numbers = calloc((size_t)nnumbers + 1, sizeof *b->numbers);
  if (wanted && (b->wanted = calloc((size_t)a->joint->nedges + 1, sizeof *wanted)))
    memcpy(b->wanted, wanted, sizeof *wanted * a->joint->nedges);
  MOTH_GO(b->key && b->pinned && b->numbers && (b->wanted || !wanted)
              ? MOTH_OK
              : moth_no_memory(((size_t)a->joint->nedges + 1) * sizeof *wanted));
  memcpy(b->pinned, a->pinned, sizeof *b->pinned * nnumbers);
  memcpy(b->numbers, ((Context *)n->ctx)->numbers, sizeof *b->numbers * nnumbers);
  status = trace(a, b, grads, &joint, &parts);
  if (status == MOTH_ERR_MEMORY || status == MOTH_ERR_INTERRUPTED)
    goto done;
  if (status != MOTH_OK || !parts.backward) {
    b->nothing = status == MOTH_OK;
    if (status != MOTH_OK && moth_log_on("aot"))
      moth_log_write("aot", "backward runs as recorded: %s", moth_error_text(1));
    status = MOTH_OK;
    goto done;
  }
  b->given = joint->given;
  b->gradient = joint->gradient;
  b->ngiven = joint->ngiven;
  joint->given = joint->gradient = NULL;
  b->takes = parts.takes;
  b->ntakes = parts.ntakes;
  parts.takes = NULL;
  nlist = b->ntakes + b->ngiven;
  list = calloc((size_t)nlist + 1, sizeof *list);
  MOTH_GO(list ? MOTH_OK : moth_no_memory(((size_t)nlist + 1) * sizeof *list));
  MOTH_GO(arguments(n, b, grads, list));
  MOTH_GO(moth_aot_host.compile(at, a, a->nbackward + 1, parts.backward, list, nlist));
  for (uint32_t k = 0; k < nnumbers; k++)
    b->pinned[k] = b->pinned[k] || parts.backward->pinned[k];
  b->graph = parts.backward;
  atomic_fetch_add_explicit(&b->graph->refs, 1, memory_order_relaxed);
  b->number = ++a->nbackward;
done:
  for (uint32_t i = 0; list && i < nlist; i++)
    moth_tensor_release(list[i]);
  free(list);
  moth_joint_parts_free(&parts);
  moth_joint_free(joint);
  if (status == MOTH_OK) {
    b->next = a->backward;
    *out = a->backward = b;
  } else if (b) {
    moth_aot_free_backward(b);
  }
  return status;
}

static MothStatus run_graph(const MothAotPlace *at, MothNode *n, MothAot *a,
                            const MothAotBackward *b, MothTensor *const *grads, MothTensor **out) {
  uint32_t nlist = b->ntakes + b->ngiven, nout = 0;
  for (uint32_t k = 0; k < a->joint->nedges; k++)
    nout += b->gradient[k] >= 0;
  MothTensor **list = calloc((size_t)nlist + nout + 1, sizeof *list), **made = list + nlist;
  MothStatus status = list ? arguments(n, b, grads, list)
                           : moth_no_memory(((size_t)nlist + nout + 1) * sizeof *list);
  const MothValue *numbers = ((Context *)n->ctx)->numbers;
  if (status == MOTH_OK && moth_grad_enabled()) { /* linear: its gradient is that of its calls */
    status = moth_graph_run(b->graph, list, nlist, b->graph->nnumbers ? numbers : NULL, made);
  } else if (status == MOTH_OK) {
    MothPlan *plan = moth_aot_host.plan(at, b->number);
    if (plan && moth_pass_frees(n)) { /* saved values go as they are used */
      Context *c = n->ctx;
      mark_used(c);
      for (uint32_t i = 0; i < b->ntakes; i++)
        if (!c->used[b->takes[i]])
          moth_function_free(n, (int)b->takes[i]);
      status = moth_plan_consume(plan, list, nlist, b->graph->nnumbers ? numbers : NULL, made);
    } else {
      status = moth_aot_host.call(at, b->number, b->graph, list, nlist, numbers, made, nout);
    }
  }
  for (uint32_t i = 0; list && i < nlist; i++)
    moth_tensor_release(list[i]);
  for (uint32_t k = 0; k < a->joint->nedges && status == MOTH_OK; k++)
    if (b->gradient[k] >= 0 && n->inputs[k].node)
      moth_tensor_retain(out[k] = made[b->gradient[k]]);
  for (uint32_t i = 0; list && i < nout; i++)
    moth_tensor_release(made[i]);
  free(list);
  return status;
}

/* Gradients of the outputs' dtypes, as those of calls are. */
static bool is_usual(const MothNode *n, MothTensor *const *grads) {
  for (int i = 0; i < n->nresults; i++)
    if (grads[i] &&
        (grads[i]->dtype != n->results[i].dtype ||
         grads[i]->device.type != n->results[i].device.type || grads[i]->keys & MOTH_KEY_FAKE))
      return false;
  return true;
}

enum { MOST_GRAPHS = 16 };

static MothStatus backward_of(const MothAotPlace *at, MothNode *n, MothAot *a,
                              MothTensor *const *grads, uint32_t need, MothTensor **out) {
  MothAotBackward *b = NULL;
  Context *c = n->ctx;
  c->last = 0;
  for (int i = 0; i < n->nresults; i++)
    if (grads[i])
      c->last |= n->nresults > 64 ? UINT64_MAX : 1ull << i;
  c->edges = 0;
  for (uint32_t k = 0; k < a->joint->nedges; k++)
    if (n->inputs[k].node && need >> (k < 31 ? k : 31) & 1)
      c->edges |= a->joint->nedges > 64 ? UINT64_MAX : 1ull << k;
  if (a->freed || is_freed(c))
    return moth_node_freed(n);
  bool create = moth_grad_enabled();
  if ((create && !c->ran) || !is_usual(n, grads))
    return replay(n, a, grads, create, need, out);
  bool *wanted = wanted_of(n, a, need);
  char *key = key_of(wanted, a->joint->nedges, grads, n->nresults);
  if (!key) {
    free(wanted);
    return moth_no_memory(0);
  }
  MothStatus status = MOTH_OK;
  b = find(a, key, ((Context *)n->ctx)->numbers);
  moth_set_grad_enabled(false);
  if (!b && a->nbackward < MOST_GRAPHS)
    status = compile(at, n, a, key, wanted, grads, &b);
  moth_set_grad_enabled(create);
  free(key);
  free(wanted);
  uint32_t include = moth_thread_state()->include;
  if (status == MOTH_OK && b && b->number && (!create || !b->ntakes)) {
    moth_thread_state()->include &= ~(uint32_t)MOTH_KEY_AUTOCAST; /* its casts are calls */
    status = run_graph(at, n, a, b, grads, out);
    moth_thread_state()->include = include;
  } else if (status == MOTH_OK && !(b && b->nothing)) {
    status = replay(n, a, grads, create, need, out);
  }
  return status;
}

static MothStatus backward(MothNode *n, MothTensor *const *grads, uint32_t need, MothTensor **out) {
  const Context *c = n->ctx;
  MothAotPlace at;
  MOTH_TRY(moth_aot_host.enter(c->handle, &at));
  MothSegment *segment = moth_segment_here();
  bool running = segment && segment->running;
  if (segment)
    segment->running = true; /* its calls are not noted */
  MothStatus status = backward_of(&at, n, c->aot, grads, need, out);
  if (segment)
    segment->running = running;
  moth_aot_host.leave(&at);
  for (int i = 0; i < n->ninputs && status != MOTH_OK; i++) {
    moth_tensor_release(out[i]);
    out[i] = NULL;
  }
  return status;
}

/* --- recording ------------------------------------------------------------------------------------------------------------ */

/* Saves t's elements; a leaf itself, which saved-tensor hooks know. */
static MothStatus save(MothNode *n, MothTensor *t, bool input) {
  MothTensor *alias;
  if (input && moth_tensor_is_leaf(t))
    return moth_function_save(n, t, -1, false);
  MOTH_TRY(moth_tensor_alias(t, false, &alias));
  MothStatus status = moth_function_save(n, alias, -1, false);
  moth_tensor_release(alias);
  return status;
}

MothStatus moth_aot_record(const MothAotRun *r, void *handle) {
  MothAot *a = r->aot;
  uint32_t nedges = a->joint->nedges, nresults = a->joint->nresults;
  uint32_t ninputs = nedges > nresults ? nedges : nresults; /* it may pass gradients on: lead_to */
  MothTensor **list = calloc((size_t)ninputs + nresults + 1, sizeof *list);
  MothTensor **results = list + ninputs;
  bool inner = false;
  uint32_t nnumbers = a->program->nnumbers;
  Context *c = calloc(1, sizeof *c + sizeof(MothValue) * (nnumbers + 1) +
                             sizeof(bool) * ((size_t)a->parts.nsaved + a->parts.nusers));
  MothNode *n = NULL;
  MothStatus status = list && c ? MOTH_OK : moth_no_memory(0);
  MOTH_GO(status);
  for (uint32_t k = 0; k < a->joint->nedges; k++)
    list[k] = r->inputs[a->joint->edges[k]];
  for (uint32_t i = 0; i < a->joint->noutputs; i++) {
    inner = inner || a->joint->outputs[i].leads;
    if (a->joint->outputs[i].nr >= 0)
      results[a->joint->outputs[i].nr] = r->outputs[i];
  }
  c->nsaved = a->parts.nsaved;
  c->replayable = !moth_thread_state()->saved_hooks;
  memcpy(c->generator, r->generator, sizeof c->generator);
  c->numbers = (MothValue *)(c + 1);
  c->used = (bool *)(c->numbers + nnumbers + 1);
  c->gone = c->used + a->parts.nsaved;
  memcpy(c->numbers, r->numbers, sizeof *c->numbers * nnumbers);
  c->aot = a;
  c->handle = handle;
  uint32_t nsaved = c->replayable ? a->nkept : a->parts.nsaved;
  MOTH_GO(moth_function_record("CompiledFunctionBackward", backward, drop, c, list, (int)ninputs,
                               results, (int)nresults, (int)nsaved, &n));
  if (!a->freed) {
    uint64_t count = 64 * (uint64_t)a->program->nnodes + nedges;
    moth_node_reserve(n, count);
    c->first = n->seq - count;
    if (inner) {
      n->expand = expand;
      n->lacks = lacks;
    }
  }
  c = NULL;
  n->keeps_none = true;
  n->done = done;
  for (uint32_t i = 0; i < a->parts.nsaved; i++) {
    const MothJointSaved *s = &a->parts.saved[i];
    MOTH_GO(save(n, s->input >= 0 ? r->inputs[s->input] : r->made[s->output], s->input >= 0));
  }
  for (uint32_t i = 0; i < a->ninputs; i++)
    if ((uint32_t)a->saved_at[i] >= a->parts.nsaved && nsaved == a->nkept)
      MOTH_GO(save(n, r->before[i] ? r->before[i] : r->inputs[i], true));
done:
  if (!n)
    moth_aot_host.release(handle);
  moth_node_release(n);
  free(c);
  free(list);
  return status;
}
