/* Autograd's recorder, a step of the dispatcher: runs the steps below, then records a node for the call. */
#include <string.h>

#include "autograd/node.h"
#include "core/alloc.h"
#include "core/dtype.h"
#include "dispatch/eval.h"
#include "ops/create.h"

static bool needs_grad(const MothTensor *t) {
  return moth_tensor_requires_grad(t);
}

/* Copies a non-tensor value so that the node owns it. */
static MothStatus own(MothValue v, MothValue *out) {
  *out = v;
  if (v.tag == MOTH_V_INTS && v.u.ints) {
    size_t size = sizeof(int64_t) * (v.n ? v.n : 1);
    int64_t *copy = moth_alloc(size);
    if (!copy)
      return moth_no_memory(size);
    memcpy(copy, v.u.ints, sizeof(int64_t) * v.n);
    out->u.ints = copy;
  } else if (v.tag == MOTH_V_STRING) {
    size_t size = strlen(v.u.s) + 1;
    char *copy = moth_alloc(size);
    if (!copy)
      return moth_no_memory(size);
    memcpy(copy, v.u.s, size);
    out->u.s = copy;
  } else if (v.tag == MOTH_V_TENSORS || v.tag == MOTH_V_GENERATOR) {
    *out = moth_v_none();
  }
  return MOTH_OK;
}

/* apart: without its history, which is or will be this node: the node must not retain itself. */
static MothStatus save(MothNode *n, int slot, MothValue v, bool apart) {
  bool is_result = slot >= 16;
  MothSaved *s = &n->saved[n->nsaved];
  if (v.tag == MOTH_V_NONE)
    return MOTH_OK;
  s->slot = (uint8_t)slot;
  s->kept = false;
  s->requires_grad = false;
  if (v.tag == MOTH_V_TENSOR) {
    MOTH_TRY(moth_save_tensor(s, v.u.t, is_result, apart));
  } else {
    MOTH_TRY(own(v, &s->value));
  }
  n->nsaved++;
  return MOTH_OK;
}

static MothStatus check_inplace(MothTensor *self) {
  if (!needs_grad(self) && !(self->base && moth_requires_grad(self->base)))
    return MOTH_OK;
  if (moth_tensor_is_leaf(self) && moth_requires_grad(self))
    return moth_fail(
        MOTH_ERR_STATE,
        "a leaf Variable that requires grad is being used in an in-place operation; wrap "
        "it in moth.no_grad(function() ... end) if no gradient is wanted");
  /* The base may not require a gradient itself: that of a leaf that is a view, as zeros(6):view(2, 3). */
  if (self->base && moth_tensor_is_leaf(self->base) &&
      (moth_requires_grad(self->base) || moth_requires_grad(self)))
    return moth_fail(
        MOTH_ERR_STATE,
        "a view of a leaf Variable that requires grad is being used in an in-place "
        "operation; wrap it in moth.no_grad(function() ... end) if no gradient is wanted");
  return MOTH_OK;
}

static int count_inputs(const MothCall *c) {
  int n = 0;
  for (int i = 0; i < c->op->nargs; i++)
    n += c->op->args[i].type == MOTH_T_TENSORS ? (int)c->args[i].n : 1;
  return n;
}

static MothStatus undefined(MothNode *n, MothTensor *const *grads, uint32_t need,
                            MothTensor **out) {
  (void)grads, (void)need, (void)out;
  return moth_fail(MOTH_ERR_STATE, "'%s' was defined without a derivative", n->op->name);
}

/* Arguments are saved before the op runs: an in-place op overwrites them. The one that it overwrites is saved as a
 * copy. */
static MothStatus make_node(const MothCall *c, uint32_t need, MothNode **out) {
  const MothOp *op = c->op;
  uint32_t saves = 0;
  for (int i = 0; i < op->nargs; i++)
    if (need >> i & 1)
      saves |= op->saves_for[i];
  bool metas = op->nresults > 1;
  if (count_inputs(c) > UINT16_MAX)
    return moth_fail(MOTH_ERR_VALUE, "%d tensors are too many for one recorded call",
                     count_inputs(c));
  MothNode *n = moth_node_new(op->backward_name, count_inputs(c), __builtin_popcount(saves),
                              metas ? op->nresults : 0);
  if (!n)
    return MOTH_ERR_MEMORY;
  n->op = op;
  n->backward = op->backward ? op->backward : undefined;
  int edge = 0;
  MothStatus status = MOTH_OK;
  for (int i = 0; i < op->nargs; i++) {
    MothValue v = c->args[i];
    bool wanted = need >> i & 1;
    n->edge_of[i] = (uint16_t)edge;
    if (v.tag == MOTH_V_TENSOR) {
      MOTH_GO(moth_node_set_input(n, edge, v.u.t, wanted && needs_grad(v.u.t)));
      if (op->geometry && wanted) {
        int64_t *g = moth_alloc(sizeof(int64_t) * (MOTH_MAX_DIMS + 1));
        if (!g) {
          status = moth_no_memory(sizeof(int64_t) * (MOTH_MAX_DIMS + 1));
          goto done;
        }
        memcpy(g, v.u.t->stride, sizeof(int64_t) * v.u.t->ndim);
        g[MOTH_MAX_DIMS] = v.u.t->offset;
        n->inputs[edge].geometry = g;
      }
      edge++;
    } else if (op->args[i].type == MOTH_T_TENSORS) {
      for (uint32_t k = 0; k < v.n; k++, edge++)
        MOTH_GO(moth_node_set_input(n, edge, v.u.tensors[k], wanted && needs_grad(v.u.tensors[k])));
    } else {
      n->inputs[edge].node = NULL;
      n->inputs[edge].ndim = 0;
      edge++;
    }
    if (saves >> i & 1) {
      MothTensor *copy = NULL;
      if (i == 0 && c->variant == MOTH_INPLACE && v.tag == MOTH_V_TENSOR) {
        MOTH_GO(moth_clone(v.u.t, &copy));
        v = moth_v_tensor(copy);
      }
      /* Saved values that share memory with the written tensor are out of date afterwards: backward reports it. */
      bool overwritten = i > 0 && c->variant == MOTH_INPLACE && v.tag == MOTH_V_TENSOR &&
                         moth_version_of(v.u.t) == moth_version_of(c->args[0].u.t);
      status = save(n, i, v, overwritten);
      moth_tensor_release(copy);
      MOTH_GO(status);
    }
  }
done:
  if (status != MOTH_OK) {
    moth_node_release(n);
    return status;
  }
  moth_node_stamp(n);
  *out = n;
  return MOTH_OK;
}

MothStatus moth_node_of_call(const MothCall *c, uint32_t need, MothNode **out) {
  const MothOp *op = c->op;
  uint32_t saves = 0;
  MothNode *n;
  MOTH_TRY(make_node(c, need, &n));
  /* Formulas of lists ask which inputs have a node. */
  MothNode *any = moth_node_new("Tangent", 0, 0, 0);
  if (!any) {
    moth_node_release(n);
    return MOTH_ERR_MEMORY;
  }
  for (int i = 0; i < op->nargs; i++) {
    if (!(need >> i & 1))
      continue;
    saves |= op->saves_for[i];
    int end = i + 1 < op->nargs ? n->edge_of[i + 1] : n->ninputs;
    for (int k = n->edge_of[i]; k < end; k++)
      if (!n->inputs[k].node) {
        moth_node_retain(any);
        n->inputs[k].node = any;
      }
  }
  moth_node_release(any);
  for (int i = 0; i < op->nresults; i++) {
    if (n->nresults)
      moth_node_set_result(n, i, c->results[i].u.t);
    if (!(saves >> (16 + i) & 1))
      continue;
    MothSaved *s = &n->saved[n->nsaved++];
    *s = (MothSaved){.slot = (uint8_t)(16 + i), .version = *moth_version_of(c->results[i].u.t)};
    s->value = moth_value_keep(c->results[i]);
  }
  *out = n;
  return MOTH_OK;
}

MothStatus moth_autograd_below(MothCall *c) {
  uint32_t exclude = moth_thread.exclude;
  moth_thread.exclude |= MOTH_KEY_AUTOGRAD;
  MothStatus s = moth_redispatch(c);
  moth_thread.exclude = exclude;
  return s;
}

static void drop_results(MothCall *c) {
  for (int i = 0; i < c->op->nresults; i++) {
    if (c->results[i].tag == MOTH_V_TENSOR)
      moth_tensor_release(c->results[i].u.t);
    c->results[i] = moth_v_none();
  }
}

static bool is_argument(const MothCall *c, const MothTensor *t) {
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    for (uint32_t k = 0; v.tag == MOTH_V_TENSORS && k < v.n; k++)
      if (v.u.tensors[k] == t)
        return true;
    if (v.tag == MOTH_V_TENSOR && v.u.t == t)
      return true;
  }
  return false;
}

MothStatus moth_autograd_record(MothCall *c) {
  const MothOp *op = c->op;
  uint32_t need = 0;
  for (int i = 0; i < op->nargs; i++) {
    if (!(op->differentiable >> i & 1))
      continue;
    MothValue v = c->args[i];
    if (v.tag == MOTH_V_TENSOR) {
      if (needs_grad(v.u.t))
        need |= 1u << i;
    } else if (v.tag == MOTH_V_TENSORS) {
      for (uint32_t k = 0; k < v.n; k++)
        if (needs_grad(v.u.tensors[k]))
          need |= 1u << i;
    }
  }
  bool inplace = c->variant == MOTH_INPLACE;
  if (c->target)
    for (int i = 0; i < op->nresults; i++)
      MOTH_TRY(check_inplace(c->target[i]));
  for (int i = 0; i < op->nargs; i++) /* lists that are written to (optimizer steps) */
    if (op->args[i].mutated && c->args[i].tag == MOTH_V_TENSORS)
      for (uint32_t k = 0; k < c->args[i].n; k++)
        MOTH_TRY(check_inplace(c->args[i].u.tensors[k]));
    else if (op->defined && op->args[i].mutated && c->args[i].tag == MOTH_V_TENSOR)
      MOTH_TRY(check_inplace(c->args[i].u.t));
  if (c->variant == MOTH_OUT && need)
    return moth_fail(MOTH_ERR_STATE, "functions with out arguments don't support automatic "
                                     "differentiation, but one of the arguments requires grad");
  if (!need)
    return moth_autograd_below(c);
  if (op->autograd)
    return op->autograd(c);
  MothNode *n = NULL;
  MOTH_TRY(make_node(c, need, &n));
  MothStatus status = moth_autograd_below(c);
  if (status != MOTH_OK) {
    moth_node_release(n);
    return status;
  }
  /* Saved results, each by an alias without history. */
  uint32_t saves = 0;
  for (int i = 0; i < op->nargs; i++)
    if (need >> i & 1)
      saves |= op->saves_for[i];
  for (int i = 0; i < op->nresults; i++) {
    if (n->nresults)
      moth_node_set_result(n, i, c->results[i].u.t);
    if (saves >> (16 + i) & 1)
      MOTH_GO(save(n, 16 + i, c->results[i], true));
  }
  for (int i = 0; i < op->nresults; i++) {
    MothTensor *t = c->results[i].u.t;
    if (!moth_dtype_is_inexact((MothDType)t->dtype))
      continue; /* indices and masks */
    if (op->stats && i >= op->stats)
      break;
    if (!inplace && t->refs > 1 && (t->grad || is_argument(c, t))) {
      /* Made by a handler: keeps the history that it has. */
      MothTensor *alias;
      MOTH_GO(moth_alias_for_graph(t, &alias));
      moth_tensor_release(t);
      c->results[i] = moth_v_tensor(alias);
      t = alias;
    }
    if (inplace && t->base)
      MOTH_GO(moth_rebase_history(t, n, 0));
    else
      MOTH_GO(moth_set_history(t, n, i));
  }
  if (__builtin_expect(moth_thread.watchers != NULL, 0))
    status = moth_watch_made(n);
done:
  moth_node_release(n);
  if (status != MOTH_OK)
    drop_results(c);
  return status;
}

/* Where t is in a list; -1: it is not. */
static int place_in(const MothTensor *t, MothTensor *const *list, int n) {
  for (int i = 0; i < n; i++)
    if (list[i] == t)
      return i;
  return -1;
}

MothStatus moth_function_record(const char *name, MothBackward backward, void (*drop)(MothNode *),
                                void *ctx, MothTensor **inputs, int ninputs, MothTensor **results,
                                int nresults, int nsaved, MothNode **out) {
  if (ninputs > UINT16_MAX || nresults > UINT16_MAX || nsaved > UINT16_MAX)
    return moth_fail(MOTH_ERR_VALUE, "%s has too many inputs, results or saved tensors", name);
  MothNode *n = moth_node_new(name, ninputs, nsaved, nresults);
  if (!n)
    return MOTH_ERR_MEMORY;
  MothStatus status = MOTH_OK;
  n->backward = backward;
  for (int i = 0; i < nresults; i++) {
    if (place_in(results[i], inputs, ninputs) >= 0) /* written to in place */
      MOTH_GO(check_inplace(results[i]));
    else if (results[i]->grad && (results[i]->grad->node || results[i]->grad->requires_grad)) {
      status = moth_fail(MOTH_ERR_STATE, "result %d of %s has a history of its own", i + 1, name);
      goto done;
    }
  }
  for (int i = 0; i < ninputs; i++) {
    if (inputs[i])
      MOTH_GO(moth_node_set_input(n, i, inputs[i], needs_grad(inputs[i])));
    else
      n->inputs[i].ndim = 0;
  }
  moth_node_stamp(n);
  for (int i = 0; i < nresults; i++) {
    moth_node_set_result(n, i, results[i]);
    if (!moth_dtype_is_inexact((MothDType)results[i]->dtype))
      continue;
    int place = place_in(results[i], inputs, ninputs);
    if (results[i]->base && place >= 0)
      MOTH_GO(moth_rebase_history(results[i], n, place));
    else
      MOTH_GO(moth_set_history(results[i], n, i));
  }
done:
  if (status != MOTH_OK) {
    moth_node_release(n);
    return status;
  }
  n->drop = drop;
  n->ctx = ctx;
  if (__builtin_expect(moth_thread.watchers != NULL, 0) &&
      (status = moth_watch_made(n)) != MOTH_OK) {
    n->drop = NULL; /* ctx stays the caller's, as after any other error */
    moth_node_release(n);
    return status;
  }
  *out = n;
  return MOTH_OK;
}
