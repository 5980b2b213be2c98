/* Backward among recorded calls.
 *
 * backward() of a noted result becomes calls of its own, of ops that only recorders make: `backward_pass` runs the engine,
 * with the leaves that get a gradient and the gradients that they had as arguments, and `gradient_of`, one for each leaf
 * that had none, gives the new one. Which leaves these are is found on shadows, when the call is new. The program gets
 * lazy tensors as `.grad` at once; `.grad` says at any time what it would say had the calls run. So backward_pass, which
 * runs later, sets `.grad` back to what it was when the call was noted, and afterwards to what the program has made of
 * it since. */
#include <stdlib.h>
#include <string.h>

#include "autograd/node.h"
#include "core/alloc.h"
#include "graph/trace.h"

/* --- the ops ---------------------------------------------------------------------------------------------- */

/* Gradients that a pass of this thread has given, for gradient_of. */
typedef struct Given {
  MothTensor *of, *grad; /* borrowed, owned */
} Given;
static _Thread_local struct {
  Given *list;
  uint32_t n, cap;
} given;

void moth_gradients_forget(void) {
  while (given.n)
    moth_tensor_release(given.list[--given.n].grad);
  free(given.list);
  given.list = NULL;
  given.cap = 0;
}

/* Takes over the reference to grad. */
static MothStatus give(MothTensor *of, MothTensor *grad) {
  if (!moth_grow(&given.list, &given.cap, (size_t)given.n + 1, sizeof *given.list)) {
    moth_tensor_release(grad);
    return MOTH_ERR_MEMORY;
  }
  given.list[given.n++] = (Given){of, grad};
  return MOTH_OK;
}

static MothTensor **list_or_null(const MothValue *v) {
  return v->n ? v->u.tensors : NULL;
}

enum { ROOTS, GRADIENTS, FRESH, LEAVES, GRADS, RETAIN };

static MothTensor *swap_grad(MothTensor *leaf, MothTensor *grad) {
  MothTensor *was = leaf->grad->grad;
  leaf->grad->grad = grad;
  return was;
}

static MothStatus run_backward(MothCall *c) {
  const MothValue *a = c->args;
  uint32_t nfresh = a[FRESH].n, n = nfresh + a[LEAVES].n;
  MothTensor **was = calloc((size_t)n + 1, sizeof *was);
  if (!was)
    return moth_no_memory(((size_t)n + 1) * sizeof *was);
  uint32_t ready = 0;
  MothStatus status = MOTH_OK;
  for (; ready < n && status == MOTH_OK; ready++) {
    MothTensor *leaf =
        ready < nfresh ? a[FRESH].u.tensors[ready] : a[LEAVES].u.tensors[ready - nfresh];
    MothTensor *before = ready < nfresh ? NULL : a[GRADS].u.tensors[ready - nfresh];
    if (!moth_meta(leaf)) {
      status = MOTH_ERR_MEMORY;
      break;
    }
    if (before)
      moth_tensor_retain(before);
    was[ready] = swap_grad(leaf, before);
  }
  if (status == MOTH_OK)
    status = moth_backward(a[ROOTS].u.tensors, list_or_null(&a[GRADIENTS]), (int)a[ROOTS].n,
                           a[RETAIN].u.b, false);
  for (uint32_t i = 0; i < ready; i++) {
    MothTensor *leaf = i < nfresh ? a[FRESH].u.tensors[i] : a[LEAVES].u.tensors[i - nfresh];
    MothTensor *made = swap_grad(leaf, was[i]);
    if (status != MOTH_OK || i >= nfresh)
      moth_tensor_release(made);
    else if (made)
      status = give(leaf, made);
    else
      status =
          moth_fail(MOTH_ERR_STATE, "a leaf has no gradient that it had when this was recorded");
  }
  free(was);
  return status;
}

static MothStatus run_gradients(MothCall *c) {
  const MothValue *a = c->args;
  uint32_t n = a[FRESH].n;
  MothTensor **out = calloc((size_t)n + 1, sizeof *out);
  if (!out)
    return moth_no_memory(((size_t)n + 1) * sizeof *out);
  MothStatus status = moth_grad(a[ROOTS].u.tensors, list_or_null(&a[GRADIENTS]), (int)a[ROOTS].n,
                                a[FRESH].u.tensors, (int)n, a[RETAIN].u.b, false, false, out);
  for (uint32_t i = 0; i < n && status == MOTH_OK; i++) {
    status = give(a[FRESH].u.tensors[i], out[i]);
    out[i] = NULL;
  }
  for (uint32_t i = 0; i < n; i++)
    moth_tensor_release(out[i]);
  free(out);
  return status;
}

static MothStatus run_gradient_of(MothCall *c) {
  const MothTensor *t = c->args[0].u.t;
  uint32_t i = 0;
  while (i < given.n && given.list[i].of != t)
    i++;
  if (i == given.n)
    return moth_fail(MOTH_ERR_STATE, "no pass has given a gradient of this tensor");
  c->results[0] = moth_v_tensor(given.list[i].grad);
  given.n--;
  memmove(given.list + i, given.list + i + 1, sizeof *given.list * (given.n - i));
  if (!given.n)
    moth_gradients_forget();
  return MOTH_OK;
}

#define LIST(n)                                                                                    \
  { .name = n, .type = MOTH_T_TENSORS, .like = -1 }
static const MothArg pass_args[] = {
    LIST("roots"),
    LIST("gradients"),
    LIST("leaves"),
    LIST("others"),
    {.name = "grads", .type = MOTH_T_TENSORS, .like = -1, .mutated = true},
    {.name = "retain_graph", .type = MOTH_T_BOOL, .like = -1}};
static const MothArg of_args[] = {{.name = "self", .type = MOTH_T_TENSOR, .like = -1}};
#define OP(op, count, results, function, list, text)                                               \
  {                                                                                                \
    .name = op, .schema = text, .place = "src/graph/backward.c", .args = list, .id = UINT16_MAX,   \
    .nargs = count, .nresults = results, .kind = MOTH_KIND_COMPOSITE, .memory = MOTH_MEMORY_PARTS, \
    .internal = true, .cond = -1, .out_dtype = -1, .composite = function                           \
  }
static const MothOp backward_pass =
    OP("backward_pass", 6, 0, run_backward, pass_args,
       "backward_pass(Tensor[] roots, Tensor[] gradients, Tensor[] leaves, Tensor[] others, "
       "Tensor[]! grads, bool retain_graph) -> ()");
static const MothOp gradient_pass =
    OP("gradient_pass", 6, 0, run_gradients, pass_args,
       "gradient_pass(Tensor[] outputs, Tensor[] gradients, Tensor[] inputs, Tensor[] others, "
       "Tensor[]! grads, bool retain_graph) -> ()");
static const MothOp gradient_of =
    OP("gradient_of", 1, 1, run_gradient_of, of_args, "gradient_of(Tensor self) -> Tensor");

bool moth_is_pass(const MothOp *op) {
  return op == &backward_pass || op == &gradient_pass;
}

/* --- noting them -------------------------------------------------------------------------------------------- */

/* The lists of a pass. */
typedef struct Pass {
  const MothOp *op;
  MothTensor **roots, **gradients, **fresh, **leaves, **grads;
  uint32_t nroots, ngradients, nfresh, nleaves;
  bool retain;
} Pass;

static bool in_segment(const MothSegment *s, const MothTensor *t) {
  return t->number < s->nvalues && s->values[t->number] == t;
}

static MothTensor *grad_of(const MothTensor *t) {
  return t->grad ? t->grad->grad : NULL;
}

/* Whether the pass that r notes is this one; its leaves become p's. */
static bool is_noted(const MothSegment *s, const MothRecord *r, Pass *p) {
  const MothTraceArg *a = r->args;
  if (r->op != p->op || a[ROOTS].value.n != p->nroots || a[GRADIENTS].value.n != p->ngradients ||
      a[RETAIN].value.u.b != p->retain)
    return false;
  const uint32_t *number = r->numbers;
  for (uint32_t i = 0; i < p->nroots; i++)
    if (number[i] != p->roots[i]->number)
      return false;
  number += p->nroots + p->ngradients;
  if (p->op == &gradient_pass) {
    if (a[FRESH].value.n != p->nfresh)
      return false;
    for (uint32_t i = 0; i < p->nfresh; i++)
      if (number[i] != p->fresh[i]->number)
        return false;
    return true;
  }
  p->nfresh = a[FRESH].value.n;
  p->nleaves = a[LEAVES].value.n;
  for (uint32_t i = 0; i < p->nfresh + p->nleaves; i++) {
    MothTensor *leaf = number[i] < s->nvalues ? s->values[number[i]] : NULL;
    if (!leaf || (grad_of(leaf) != NULL) != (i >= p->nfresh) || moth_leaf_has_hooks(leaf))
      return false;
    if (i < p->nfresh) {
      p->fresh[i] = leaf;
    } else {
      p->leaves[i - p->nfresh] = leaf;
      p->grads[i - p->nfresh] = grad_of(leaf);
    }
  }
  return true;
}

/* The leaves that get a gradient, found on shadows. *why: it cannot be told. */
static void find_leaves(MothSegment *s, Pass *p, const char **why) {
  MothTensor **reached = calloc((size_t)s->nvalues + 1, sizeof *reached);
  uint32_t n = 0;
  *why = "backward";
  if (!reached)
    return;
  if (moth_shadow_prepare(s) == MOTH_OK)
    *why = moth_shadow_backward(s, p->roots, p->nroots, p->gradients, reached, &n);
  for (uint32_t i = 0; i < n && !*why; i++) {
    MothTensor *leaf = reached[i], *grad = grad_of(leaf);
    if (!in_segment(s, leaf))
      *why = "backward to a tensor that the graph does not use itself";
    else if (moth_leaf_has_hooks(leaf))
      *why = "backward through hooks";
    else if (grad && (grad->keys & MOTH_KEY_AUTOGRAD))
      *why = "backward that adds to a gradient with a history";
    else if (grad) {
      p->leaves[p->nleaves] = leaf;
      p->grads[p->nleaves++] = grad;
    } else {
      p->fresh[p->nfresh++] = leaf;
    }
  }
  free(reached);
}

static MothStatus note(const Pass *p) {
  MothValue args[] = {
      moth_v_tensors(p->roots, p->nroots),  moth_v_tensors(p->gradients, p->ngradients),
      moth_v_tensors(p->fresh, p->nfresh),  moth_v_tensors(p->leaves, p->nleaves),
      moth_v_tensors(p->grads, p->nleaves), moth_v_bool(p->retain)};
  MothCall c = {.op = p->op, .args = args, .direct = true};
  return moth_dispatch(&c);
}

static MothStatus note_gradient(MothTensor *of, MothTensor **out) {
  MothValue arg = moth_v_tensor(of), result;
  MothCall c = {.op = &gradient_of, .args = &arg, .results = &result, .direct = true};
  MOTH_TRY(moth_dispatch(&c));
  *out = result.u.t;
  return MOTH_OK;
}

/* Why the pass cannot be noted; NULL: it can. */
static const char *not_noted(const MothSegment *s, const Pass *p, MothTensor **grads) {
  const MothRecorder *rec = moth_recorder_open();
  if (!rec || !moth_unrun || !s || s->running || s->recorder != rec || rec->trace->off ||
      rec->trace->capture)
    return "backward";
  if (moth_thread.watchers || moth_thread.saved_hooks)
    return "backward under anomaly mode, a profiler or hooks of saved tensors";
  for (uint32_t i = 0; i < p->nroots; i++) {
    if (!p->roots[i] || !in_segment(s, p->roots[i]) || !(p->roots[i]->keys & MOTH_KEY_LAZY) ||
        !(p->roots[i]->keys & MOTH_KEY_AUTOGRAD))
      return "backward of a tensor that the graph has not made";
    if (grads && (!grads[i] || !grads[0] || grads[i]->keys & (MOTH_KEY_AUTOGRAD | MOTH_KEY_FAKE)))
      return "backward with a gradient that has a history, or with some";
  }
  return NULL;
}

static MothStatus run_pass(Pass *p, MothTensor **grads, MothTensor **out, const char **why) {
  MothSegment *s = moth_segment_here();
  *why = not_noted(s, p, grads);
  for (uint32_t i = 0; i < p->nfresh && !*why; i++)
    if (!p->fresh[i] || !in_segment(s, p->fresh[i]))
      *why = "gradients by a tensor that the graph does not use";
  if (*why)
    return MOTH_OK;
  if (grads) {
    p->gradients = grads;
    p->ngradients = p->nroots;
  }
  MothTensor **lists = NULL;
  const uint32_t inputs = p->nfresh;
  if (!out) {
    lists = malloc(3 * sizeof(MothTensor *) * ((size_t)s->nvalues + 1));
    if (!lists)
      return moth_no_memory(3 * sizeof(MothTensor *) * ((size_t)s->nvalues + 1));
    p->fresh = lists;
    p->leaves = lists + s->nvalues + 1;
    p->grads = lists + 2 * (s->nvalues + 1);
  }
  const MothRecord *r = moth_segment_next(s);
  while (r && !is_noted(s, r, p))
    r = r->sibling;
  if (!r) {
    p->nleaves = 0;
    p->nfresh = out ? inputs : 0;
    if (!out)
      find_leaves(s, p, why);
    else
      *why = moth_shadow_gradients(s, p->roots, p->nroots, p->gradients, p->fresh, p->nfresh);
  }
  MothStatus status = *why ? MOTH_OK : note(p);
  for (uint32_t i = 0; i < p->nfresh && !*why && status == MOTH_OK; i++) {
    MothTensor *grad = NULL;
    status = note_gradient(p->fresh[i], &grad);
    if (out) {
      out[i] = grad;
    } else if (grad) {
      moth_tensor_release(swap_grad(p->fresh[i], grad));
    }
  }
  if (status != MOTH_OK)
    moth_gradients_forget();
  free(lists);
  return status;
}

MothStatus moth_trace_backward(MothTensor **roots, MothTensor **grads, int n, bool retain,
                               bool create, const char **why) {
  Pass p = {.op = &backward_pass, .roots = roots, .nroots = (uint32_t)n, .retain = retain};
  *why = n <= 0 || create ? "backward with create_graph" : NULL;
  return *why ? MOTH_OK : run_pass(&p, grads, NULL, why);
}

MothStatus moth_trace_grad(MothTensor **roots, MothTensor **grads, int n, MothTensor **inputs,
                           int ninputs, bool retain, bool create, MothTensor **out,
                           const char **why) {
  Pass p = {.op = &gradient_pass,
            .roots = roots,
            .nroots = (uint32_t)n,
            .fresh = inputs,
            .nfresh = (uint32_t)ninputs,
            .retain = retain};
  *why = n <= 0 || ninputs <= 0 || create ? "grad with create_graph" : NULL;
  MothStatus status = *why ? MOTH_OK : run_pass(&p, grads, out, why);
  for (int i = 0; status != MOTH_OK && i < ninputs; i++) {
    moth_tensor_release(out[i]);
    out[i] = NULL;
  }
  return status;
}

/* After a failure: leaves have no gradients that will never have values. */
void moth_gradients_drop(const MothSegment *s) {
  for (uint32_t k = 0; k < s->nrecords; k++) {
    const MothRecord *r = s->records[k];
    MothTensor *leaf = r->op == &gradient_of ? s->values[r->numbers[0]] : NULL;
    MothTensor *grad = leaf ? grad_of(leaf) : NULL;
    if (grad && grad->keys & MOTH_KEY_LAZY && in_segment(s, grad))
      moth_tensor_release(swap_grad(leaf, NULL));
  }
  moth_gradients_forget();
}
