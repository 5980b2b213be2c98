/* The step of tangents. See tangent.h.
 *
 * The rule of an op follows from its kind and its derivative formulas:
 *   view       the op on the tangent
 *   pointwise  of real numbers: its Jacobian is diagonal, so the formula of its gradient gives the tangent: the sum over
 *              the arguments of the formula with the tangent in place of the gradient
 *   any other  the gradient formula g(v) is linear in v, and the tangent is the gradient of <g(v), tangents> by v
 *              (a derivative by a function of the host: g is the backward of the call, which is run again)
 *   writing    the tangent of what is written, written to the tangent of the target
 * Ops without a derivative give results without a tangent. */
#include "autograd/tangent.h"

#include <string.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "dispatch/batch.h"
#include "dispatch/eval.h"
#include "ops/create.h"
#include "ops/index.h"
#include "ops/pointwise.h"
#include "ops/view.h"

/* --- levels and tangents --------------------------------------------------------------------------- */

static void release_dual(MothDual *d) {
  if (d && atomic_fetch_sub(&d->refs, 1) == 1)
    moth_free(d, sizeof *d);
}

static MothDual *open_duals;
static atomic_flag open_lock = ATOMIC_FLAG_INIT;

static void lock_open(void) {
  while (atomic_flag_test_and_set_explicit(&open_lock, memory_order_acquire))
    ;
}
static void unlock_open(void) {
  atomic_flag_clear_explicit(&open_lock, memory_order_release);
}

bool moth_dual_is_open(const void *address) {
  lock_open();
  const MothDual *d = open_duals;
  while (d && d != address)
    d = d->next;
  unlock_open();
  return d != NULL;
}

MothStatus moth_dual_open(MothDual **out) {
  static _Atomic uint64_t last;
  MothDual *d = moth_alloc(sizeof *d);
  if (!d)
    return moth_no_memory(sizeof *d);
  memset(d, 0, sizeof *d);
  atomic_init(&d->refs, 1);
  atomic_flag_clear(&d->lock);
  d->level = atomic_fetch_add(&last, 1) + 1;
  lock_open();
  d->next = open_duals;
  open_duals = d;
  unlock_open();
  *out = d;
  return MOTH_OK;
}

static void lock(MothDual *d) {
  while (atomic_flag_test_and_set_explicit(&d->lock, memory_order_acquire))
    ;
}
static void unlock(MothDual *d) {
  atomic_flag_clear_explicit(&d->lock, memory_order_release);
}

/* Takes t off its level's list. */
static void unlink_tangent(MothTangent *t) {
  if (t->before)
    t->before->after = t->after;
  else if (t->dual->all == t)
    t->dual->all = t->after;
  if (t->after)
    t->after->before = t->before;
  t->before = t->after = NULL;
}

void moth_dual_close(MothDual *d) {
  atomic_store(&d->closed, true);
  lock_open();
  MothDual **at = &open_duals;
  while (*at && *at != d)
    at = &(*at)->next;
  if (*at)
    *at = d->next;
  unlock_open();
  for (;;) {
    lock(d);
    MothTangent *t = d->all;
    MothTensor *tangent = NULL;
    if (t) {
      unlink_tangent(t);
      tangent = t->tangent;
      t->tangent = NULL;
    }
    unlock(d);
    if (!t)
      break;
    moth_tensor_release(tangent);
  }
  release_dual(d);
}

static void free_tangent(MothTangent *t) {
  lock(t->dual);
  unlink_tangent(t);
  unlock(t->dual);
  moth_tensor_release(t->tangent);
  release_dual(t->dual);
  moth_free(t, sizeof *t);
}

void moth_tangents_free(MothTangent *list) {
  while (list) {
    MothTangent *next = list->next;
    free_tangent(list);
    list = next;
  }
}

MothTensor *moth_dual_tangent(const MothTensor *t, const MothDual *d) {
  if (!(t->keys & MOTH_KEY_TANGENT))
    return NULL;
  for (const MothTangent *m = t->grad->tangents; m; m = m->next)
    if (m->dual == d)
      return m->tangent;
  return NULL;
}

MothStatus moth_dual_set(MothTensor *t, MothTensor *tangent, MothDual *d) {
  MothAutogradMeta *meta = moth_meta(t);
  if (!meta)
    return MOTH_ERR_MEMORY;
  MothTangent **at = &meta->tangents;
  while (*at && ((*at)->dual->level > d->level || (*at)->dual->closed)) {
    MothTangent *old = *at;
    if (old->dual->closed) {
      *at = old->next;
      free_tangent(old);
    } else {
      at = &old->next;
    }
  }
  MothTangent *mine = *at && (*at)->dual == d ? *at : NULL;
  moth_tensor_retain(tangent);
  if (mine && tangent) {
    moth_tensor_release(mine->tangent);
    mine->tangent = tangent;
  } else if (mine) {
    *at = mine->next;
    free_tangent(mine);
  } else if (tangent) {
    mine = moth_alloc(sizeof *mine);
    if (!mine) {
      moth_tensor_release(tangent);
      return moth_no_memory(sizeof *mine);
    }
    *mine = (MothTangent){d, tangent, *at, NULL, NULL};
    atomic_fetch_add(&d->refs, 1);
    *at = mine;
    lock(d);
    mine->after = d->all;
    if (d->all)
      d->all->before = mine;
    d->all = mine;
    unlock(d);
  }
  t->keys = meta->tangents ? t->keys | MOTH_KEY_TANGENT : t->keys & ~(uint32_t)MOTH_KEY_TANGENT;
  return MOTH_OK;
}

MothStatus moth_tangents_map(MothTensor *to, const MothTensor *from,
                             MothStatus (*fn)(void *ctx, MothTensor *tangent, MothTensor **out),
                             void *ctx) {
  if (!(from->keys & MOTH_KEY_TANGENT))
    return MOTH_OK;
  for (const MothTangent *m = from->grad->tangents; m; m = m->next) {
    MothTensor *t;
    if (m->dual->closed)
      continue;
    MOTH_TRY(fn(ctx, m->tangent, &t));
    MothStatus s = moth_dual_set(to, t, m->dual);
    moth_tensor_release(t);
    MOTH_TRY(s);
  }
  return MOTH_OK;
}

static MothStatus same(void *ctx, MothTensor *tangent, MothTensor **out) {
  (void)ctx;
  moth_tensor_retain(tangent);
  *out = tangent;
  return MOTH_OK;
}
MothStatus moth_tangents_share(MothTensor *to, const MothTensor *from) {
  return moth_tangents_map(to, from, same, NULL);
}

MothStatus moth_dual_make(MothTensor *t, MothTensor *tangent, MothDual *d, MothTensor **out) {
  char a[256], b[256];
  if (!moth_dtype_is_inexact((MothDType)t->dtype))
    return moth_fail(MOTH_ERR_TYPE,
                     "make_dual: a float or complex tensor can have a tangent, got %s",
                     moth_tensor_format(t, a, sizeof a));
  if (t->ndim != tangent->ndim ||
      memcmp(t->shape, tangent->shape, sizeof(int64_t) * t->ndim) != 0 ||
      t->dtype != tangent->dtype || t->device.type != tangent->device.type ||
      t->device.index != tangent->device.index)
    return moth_fail(MOTH_ERR_VALUE, "make_dual: a tangent must be like its tensor, %s, got %s",
                     moth_tensor_format(t, a, sizeof a), moth_tensor_format(tangent, b, sizeof b));
  MOTH_TRY(moth_settle("make_dual"));
  MOTH_TRY(moth_view(t, t->shape, t->ndim, out));
  MothStatus s = moth_dual_set(*out, tangent, d);
  if (s != MOTH_OK)
    moth_tensor_release(*out);
  return s;
}

/* --- a call at one level ------------------------------------------------------------------------------ */

typedef struct Forward {
  MothCall *c; /* functional */
  MothDual *d;
  uint32_t need;                          /* the arguments with tangents */
  MothTensor *tangents[MOTH_MAX_RESULTS]; /* of the results, owned; NULL: none */
} Forward;

static MothTensor *tangent_of(const Forward *f, const MothTensor *t) {
  return moth_dual_tangent(t, f->d);
}

/* The highest open level below the thread's limit. */
static void look(const MothTensor *t, MothDual **best) {
  if (!(t->keys & MOTH_KEY_TANGENT))
    return;
  for (const MothTangent *m = t->grad->tangents; m; m = m->next)
    if (!m->dual->closed && (!moth_thread.tangents || m->dual->level < moth_thread.tangents) &&
        (!*best || m->dual->level > (*best)->level))
      *best = m->dual;
}

static MothDual *highest(const MothCall *c) {
  MothDual *best = NULL;
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    if (v.tag == MOTH_V_TENSOR)
      look(v.u.t, &best);
    for (uint32_t k = 0; v.tag == MOTH_V_TENSORS && k < v.n; k++)
      look(v.u.tensors[k], &best);
  }
  for (int i = 0; c->target && i < c->op->nresults; i++)
    look(c->target[i], &best);
  return best;
}

static uint32_t with_tangents(const Forward *f) {
  const MothCall *c = f->c;
  uint32_t need = 0;
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    for (uint32_t k = 0; k < (v.tag == MOTH_V_TENSORS ? v.n : v.tag == MOTH_V_TENSOR); k++)
      if (tangent_of(f, v.tag == MOTH_V_TENSORS ? v.u.tensors[k] : v.u.t))
        need |= 1u << i;
  }
  return need;
}

/* tangent as one of a result: broadcast, and of its dtype. */
static MothStatus like_result(MothTensor *tangent, const MothTensor *result, MothTensor **out) {
  MothTensor *wide;
  MOTH_TRY(moth_expand(tangent, result->shape, result->ndim, &wide));
  if (wide->dtype == result->dtype && wide->device.type == result->device.type) {
    *out = wide;
    return MOTH_OK;
  }
  MothStatus s = moth_to(wide, moth_v_dtype((MothDType)result->dtype),
                         moth_v_device(result->device), false, false, out);
  moth_tensor_release(wide);
  return s;
}

/* sum += part, taken */
static MothStatus add_to(MothTensor **sum, MothTensor *part) {
  if (!*sum) {
    *sum = part;
    return MOTH_OK;
  }
  MothTensor *both;
  MothStatus s = moth_add(moth_v_tensor(*sum), moth_v_tensor(part), moth_v_int(1), &both);
  moth_tensor_release(part);
  MOTH_TRY(s);
  moth_tensor_release(*sum);
  *sum = both;
  return MOTH_OK;
}

static void release_all(MothTensor **list, int n) {
  for (int i = 0; i < n; i++)
    moth_tensor_release(list[i]);
}

/* The op on the tangent of its first argument. */
static MothStatus of_view(Forward *f) {
  MothCall *c = f->c;
  MothValue args[MOTH_MAX_ARGS];
  MothTensor *self = c->args[0].u.t, *t = tangent_of(f, self), *dense = NULL;
  memcpy(args, c->args, sizeof *args * c->op->nargs);
  if (c->op ==
      MOTH_OP(as_strided)) { /* of the storage: that of the tangent must be laid out alike */
    int64_t offset = args[3].tag == MOTH_V_INT ? args[3].u.i : self->offset;
    if (memcmp(t->stride, self->stride, sizeof(int64_t) * self->ndim) != 0) {
      if (!self->contiguous)
        return moth_fail(MOTH_ERR_STATE,
                         "forward mode: as_strided of a tensor that is not contiguous");
      MOTH_TRY(moth_contiguous(t, &dense));
      t = dense;
    }
    args[3] = moth_v_int(offset - self->offset + t->offset);
  }
  args[0] = moth_v_tensor(t);
  MothStatus s = moth_call1(c->op, c->op->nargs, args, &f->tangents[0]);
  moth_tensor_release(dense);
  return s;
}

static bool shape_is(const MothTensor *a, const MothTensor *b) {
  return a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof(int64_t) * a->ndim);
}

/* Whether no tensor of a pointwise call is complex: the gradient formulas of complex ones hold conjugates. */
static bool is_real(const MothCall *c) {
  bool real = !moth_dtype_is_complex((MothDType)c->results[0].u.t->dtype);
  for (int i = 0; i < c->op->nargs && real; i++)
    real =
        c->args[i].tag != MOTH_V_TENSOR || !moth_dtype_is_complex((MothDType)c->args[i].u.t->dtype);
  return real;
}

/* By the gradient formulas of a diagonal Jacobian; *fits: they do not sum over what was broadcast. */
static MothStatus of_pointwise(Forward *f, MothNode *n, bool *fits) {
  MothCall *c = f->c;
  MothTensor *result = c->results[0].u.t, *out[MOTH_MAX_ARGS] = {NULL}, *t = NULL;
  MothStatus status = MOTH_OK;
  for (int i = 0; i < c->op->nargs && *fits; i++) {
    if (!(f->need & c->op->differentiable & 1u << i))
      continue;
    MOTH_GO(like_result(tangent_of(f, c->args[i].u.t), result, &t));
    int edge = moth_node_edge(n, i);
    MOTH_GO(n->backward(n, &t, 1u << i, out));
    moth_tensor_release(t);
    t = NULL;
    if (!out[edge])
      continue;
    if (!shape_is(out[edge], result)) {
      *fits = false;
      goto done;
    }
    if (out[edge]->dtype != result->dtype) {
      MOTH_GO(like_result(out[edge], result, &t));
      moth_tensor_release(out[edge]);
      out[edge] = t;
      t = NULL;
    }
    MothTensor *part = out[edge];
    out[edge] = NULL;
    MOTH_GO(add_to(&f->tangents[0], part));
  }
done:
  moth_tensor_release(t);
  release_all(out, MOTH_MAX_ARGS);
  if (!*fits || status != MOTH_OK) {
    moth_tensor_release(f->tangents[0]);
    f->tangents[0] = NULL;
  }
  return status;
}

static MothTensor *tangent_at(const Forward *f, const MothNode *n, int edge) {
  const MothCall *c = f->c;
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    int first = moth_node_edge(n, i), count = v.tag == MOTH_V_TENSORS ? (int)v.n : 1;
    if (edge < first || edge >= first + count)
      continue;
    if (v.tag == MOTH_V_TENSORS)
      return tangent_of(f, v.u.tensors[edge - first]);
    return v.tag == MOTH_V_TENSOR ? tangent_of(f, v.u.t) : NULL;
  }
  return NULL;
}

/* Whether result i of an op has a derivative. */
static bool differs(const MothOp *op, const MothTensor *result, int i) {
  return moth_dtype_is_inexact((MothDType)result->dtype) && !(op->stats && i >= op->stats);
}

/* The gradient by v of <g(v), tangents>, where g(v) is the formula of the gradients for v in place of those of the
 * results. */
static MothStatus of_formula(Forward *f, MothNode *n) {
  MothCall *c = f->c;
  const MothOp *op = c->op;
  MothTensor *v[MOTH_MAX_RESULTS] = {NULL}, *by[MOTH_MAX_RESULTS], *made[MOTH_MAX_RESULTS] = {NULL};
  MothTensor **out = moth_alloc(3 * sizeof *out * (size_t)n->ninputs);
  MothTensor **roots = out + n->ninputs, **weights = roots + n->ninputs;
  int of[MOTH_MAX_RESULTS], nby = 0, nroots = 0, nweights = 0;
  bool no_grad = moth_thread.no_grad;
  uint32_t exclude = moth_thread.exclude;
  MothStatus status = MOTH_OK;
  if (!out)
    return moth_no_memory(3 * sizeof *out * (size_t)n->ninputs);
  memset(out, 0, 3 * sizeof *out * (size_t)n->ninputs);
  moth_thread.no_grad = false;
  moth_thread.exclude &= ~(uint32_t)MOTH_KEY_AUTOGRAD;
  for (int i = 0; i < op->nresults; i++) {
    MothTensor *r = c->results[i].u.t;
    moth_thread.no_grad = true;
    status = moth_zeros_as(r, r->shape, r->ndim, &v[i]);
    moth_thread.no_grad = false;
    MOTH_GO(status);
    if (!differs(op, r, i))
      continue;
    MOTH_GO(moth_tensor_set_requires_grad(v[i], true));
    of[nby] = i;
    by[nby++] = v[i];
  }
  MOTH_GO(n->backward(n, v, f->need & op->differentiable, out));
  for (int k = 0; k < n->ninputs; k++) {
    MothTensor *t = out[k] ? tangent_at(f, n, k) : NULL;
    if (!t || !moth_tensor_requires_grad(out[k]))
      continue;
    roots[nroots++] = out[k];
    MOTH_GO(like_result(t, out[k], &weights[nweights]));
    nweights++;
  }
  if (nroots)
    MOTH_GO(moth_grad(roots, weights, nroots, by, nby, false, !no_grad, true, made));
  for (int k = 0; k < nby; k++) {
    f->tangents[of[k]] = made[k];
    made[k] = NULL;
  }
done:
  moth_thread.no_grad = no_grad;
  moth_thread.exclude = exclude;
  release_all(v, MOTH_MAX_RESULTS);
  release_all(made, MOTH_MAX_RESULTS);
  release_all(weights, nweights);
  release_all(out, n->ninputs);
  moth_free(out, 3 * sizeof *out * (size_t)n->ninputs);
  return status;
}

/* Tensors to which the graph of a call is made: those that have a tangent, with a leaf in place of one without history. */
typedef struct Leaves {
  MothTensor **at, **tangents; /* owned, and borrowed */
  int n;
  bool recorded; /* one of them, or of the tangents, has history */
} Leaves;

static MothStatus take_leaf(Forward *f, Leaves *l, MothTensor **t) {
  MothTensor *tangent = tangent_of(f, *t), *leaf = *t;
  if (!tangent)
    return MOTH_OK;
  l->recorded |= moth_tensor_requires_grad(*t) || moth_tensor_requires_grad(tangent);
  if (moth_tensor_requires_grad(*t)) {
    moth_tensor_retain(leaf);
  } else {
    MOTH_TRY(moth_alias_for_graph(*t, &leaf));
    MothStatus s = moth_tensor_set_requires_grad(leaf, true);
    if (s != MOTH_OK) {
      moth_tensor_release(leaf);
      return s;
    }
  }
  l->tangents[l->n] = tangent;
  l->at[l->n++] = *t = leaf;
  return MOTH_OK;
}

/* Of an op whose derivative is a function of the host: as of_formula, but g(v) is the backward of a recorded call. */
static MothStatus of_function(Forward *f) {
  MothCall *c = f->c;
  const MothOp *op = c->op;
  int count = 0, lists = 0, nby = 0, of[MOTH_MAX_RESULTS];
  for (int i = 0; i < op->nargs; i++) {
    count += c->args[i].tag == MOTH_V_TENSORS ? (int)c->args[i].n : 1;
    lists += c->args[i].tag == MOTH_V_TENSORS ? (int)c->args[i].n : 0;
  }
  size_t size = (4 * (size_t)count + (size_t)lists) * sizeof(MothTensor *);
  MothTensor **memory = moth_alloc(size), *v[MOTH_MAX_RESULTS] = {NULL},
             *made[MOTH_MAX_RESULTS] = {NULL}, *roots[MOTH_MAX_RESULTS];
  MothValue args[MOTH_MAX_ARGS], results[MOTH_MAX_RESULTS];
  if (!memory)
    return moth_no_memory(size);
  memset(memory, 0, size);
  Leaves l = {.at = memory, .tangents = memory + count};
  MothTensor **grads = memory + 2 * count, **weights = memory + 3 * count,
             **list = memory + 4 * count;
  bool no_grad = moth_thread.no_grad;
  uint32_t exclude = moth_thread.exclude;
  MothStatus status = MOTH_OK;
  for (int i = 0; i < op->nresults; i++)
    results[i] = moth_v_none();
  for (int i = 0; i < op->nargs; i++) {
    args[i] = c->args[i];
    if (args[i].tag == MOTH_V_TENSOR)
      MOTH_GO(take_leaf(f, &l, &args[i].u.t));
    if (args[i].tag != MOTH_V_TENSORS)
      continue;
    memcpy(list, args[i].u.tensors, args[i].n * sizeof *list);
    args[i].u.tensors = list;
    for (uint32_t k = 0; k < args[i].n; k++)
      MOTH_GO(take_leaf(f, &l, &list[k]));
    list += args[i].n;
  }
  moth_thread.no_grad = false;
  moth_thread.exclude &= ~(uint32_t)MOTH_KEY_AUTOGRAD;
  MOTH_GO(moth_eval_all(op, op->nargs, args, results));
  for (int i = 0; i < op->nresults; i++) {
    MothTensor *r = results[i].u.t;
    if (!moth_tensor_requires_grad(r) || !differs(op, r, i))
      continue;
    moth_thread.no_grad = true;
    status = moth_zeros_as(r, r->shape, r->ndim, &v[nby]);
    moth_thread.no_grad = false;
    MOTH_GO(status);
    MOTH_GO(moth_tensor_set_requires_grad(v[nby], true));
    roots[nby] = r;
    of[nby++] = i;
  }
  if (nby)
    MOTH_GO(moth_grad(roots, v, nby, l.at, l.n, true, true, true, grads));
  int n = 0;
  for (int k = 0; k < l.n; k++) {
    MothTensor *g = grads[k];
    grads[k] = NULL;
    if (!g || !moth_tensor_requires_grad(g)) {
      moth_tensor_release(g);
      continue;
    }
    grads[n++] = g;
    MOTH_GO(like_result(l.tangents[k], g, &weights[n - 1]));
  }
  if (n)
    MOTH_GO(moth_grad(grads, weights, n, v, nby, false, !no_grad && l.recorded, true, made));
  for (int k = 0; k < nby; k++) {
    f->tangents[of[k]] = made[k];
    made[k] = NULL;
  }
done:
  moth_thread.no_grad = no_grad;
  moth_thread.exclude = exclude;
  release_all(made, MOTH_MAX_RESULTS);
  release_all(v, MOTH_MAX_RESULTS);
  release_all(grads, 2 * count);
  moth_drop_values(results, op->nresults);
  release_all(l.at, l.n);
  moth_free(memory, size);
  return status;
}

/* Of a fused op, or of a composite that is recorded as one: the tangents of its parts. */
static MothStatus of_parts(Forward *f) {
  MothCall *c = f->c;
  MothValue results[MOTH_MAX_RESULTS];
  for (int i = 0; i < c->op->nresults; i++)
    results[i] = moth_v_none();
  MothCall parts = *c;
  uint64_t limit = moth_thread.tangents;
  parts.results = results;
  moth_thread.tangents = f->d->level + 1;
  MothKernel made_of = c->op->composite ? c->op->composite : c->op->decomposed;
  MothStatus s = made_of(&parts);
  moth_thread.tangents = limit;
  for (int i = 0; i < c->op->nresults; i++) {
    MothTensor *t = results[i].u.t;
    if (results[i].tag != MOTH_V_TENSOR)
      continue;
    if (s == MOTH_OK && tangent_of(f, t))
      s = like_result(tangent_of(f, t), c->results[i].u.t, &f->tangents[i]);
    moth_tensor_release(t);
  }
  return s;
}

static bool can_take_apart(const MothOp *op) {
  for (int i = 0; i < op->nargs; i++)
    if (op->args[i].mutated)
      return false;
  return op->decomposed || op->composite;
}

/* The tangents of the results of f->c, which are there. */
static MothStatus compute(Forward *f) {
  MothCall *c = f->c;
  const MothOp *op = c->op;
  if (op == MOTH_OP(detach) || !op->nresults)
    return MOTH_OK;
  if (op->memory == MOTH_MEMORY_VIEW)
    return f->need & 1 ? of_view(f) : MOTH_OK;
  if (!op->backward && !op->autograd && can_take_apart(op))
    return of_parts(f);
  if (op->autograd && moth_call_is_random(c))
    return moth_fail(MOTH_ERR_STATE,
                     "forward mode: '%s' draws random numbers, and its derivative is a function; "
                     "define the derivative by formulas",
                     op->name);
  if (op->autograd)
    return of_function(f);
  if (!op->backward || !(f->need & op->differentiable))
    return MOTH_OK;
  MothNode *n = NULL;
  MothFrame *hooks = moth_thread.saved_hooks;
  moth_thread.saved_hooks = NULL;
  MothStatus s = moth_node_of_call(c, f->need & op->differentiable, &n);
  moth_thread.saved_hooks = hooks;
  MOTH_TRY(s);
  bool fits = op->kind == MOTH_KIND_POINTWISE && op->nresults == 1 && is_real(c);
  if (fits)
    s = of_pointwise(f, n, &fits);
  if (!fits && s == MOTH_OK) {
    s = of_formula(f, n);
    if (s != MOTH_OK && s != MOTH_ERR_MEMORY && s != MOTH_ERR_INTERRUPTED && can_take_apart(op) &&
        !moth_call_is_random(c)) {
      release_all(f->tangents, MOTH_MAX_RESULTS);
      memset(f->tangents, 0, sizeof f->tangents);
      s = of_parts(f);
    }
  }
  moth_node_release(n);
  return s;
}

/* --- writing ------------------------------------------------------------------------------------------ */

/* A view of whole, the tangent of t's base, as t is one of its base. */
static MothStatus part_of(MothTensor *whole, const MothTensor *t, MothTensor **out) {
  return moth_as_strided(whole, t->shape, t->ndim, t->stride, t->ndim,
                         moth_v_int(t->offset - t->base->offset), out);
}

/* The tangent of t, to be written to: what t has, since views of t share it, else zeros; where t is a view, a part of that
 * of its base. With a copy for each of the batches of `values`, which will be written. */
static MothStatus own_tangent(Forward *f, MothTensor *t, int n, const MothValue *values) {
  MothTensor *base = t->base && t->base->contiguous ? t->base : NULL;
  MothTensor *owner = base ? base : t, *have = tangent_of(f, owner), *part = NULL;
  MothValue whole = moth_v_tensor(have ? have : tangent_of(f, t));
  MothStatus status = MOTH_OK;
  if (base && !have && tangent_of(f, t)) { /* its own only */
    owner = t;
    base = NULL;
    have = tangent_of(f, t);
  }
  if (have) {
    moth_tensor_retain(have);
  } else {
    MothTensor *zeros;
    MOTH_TRY(moth_zeros_as(owner, owner->shape, owner->ndim, &zeros));
    whole = moth_v_tensor(zeros);
  }
  if (moth_tensor_self_overlaps(whole.u.t)) {
    MothTensor *copy;
    MOTH_GO(moth_clone(whole.u.t, &copy));
    moth_tensor_release(whole.u.t);
    whole = moth_v_tensor(copy);
  }
  MOTH_GO(moth_match_batch(&whole, n, values));
  if (whole.u.t == have)
    goto done;
  MOTH_GO(moth_dual_set(owner, whole.u.t, f->d));
  if (base) {
    MOTH_GO(part_of(whole.u.t, t, &part));
    MOTH_GO(moth_dual_set(t, part, f->d));
  }
done:
  moth_tensor_release(part);
  moth_tensor_release(whole.u.t);
  return status;
}

/* Makes `tangent` (NULL: zeros) the tangent of t, which was written to. */
static MothStatus write_tangent(Forward *f, MothTensor *t, MothTensor *tangent) {
  MothTensor *self;
  MothValue value = moth_v_tensor(tangent);
  if (!moth_dtype_is_inexact((MothDType)t->dtype) || (!tangent_of(f, t) && !tangent))
    return MOTH_OK;
  MOTH_TRY(own_tangent(f, t, 1, &value));
  MothValue args[] = {moth_v_tensor(tangent_of(f, t)), value};
  MOTH_TRY(tangent ? moth_call1(MOTH_OP(copy_), 2, args, &self)
                   : moth_call1(MOTH_OP(zero_), 1, args, &self));
  moth_tensor_release(self);
  return MOTH_OK;
}

/* Continues the call for the levels below. */
static MothStatus primal(MothCall *c, const MothDual *d) {
  uint64_t limit = moth_thread.tangents;
  moth_thread.tangents = d->level;
  c->keys |= MOTH_KEY_TANGENT;
  MothStatus s = moth_redispatch(c);
  moth_thread.tangents = limit;
  return s;
}

static MothStatus scatter_tangent(Forward *f) {
  MothCall *c = f->c;
  MothTensor *self = c->args[0].u.t, *src = c->args[3].u.t, *zeros = NULL, *result;
  MothTensor *from = tangent_of(f, src);
  if (!moth_dtype_is_inexact((MothDType)self->dtype))
    return MOTH_OK;
  if (!from)
    MOTH_TRY(moth_zeros_as(src, src->shape, src->ndim, &zeros));
  MothValue args[MOTH_MAX_ARGS];
  memcpy(args, c->args, sizeof *args * c->op->nargs);
  args[3] = moth_v_tensor(from ? from : zeros);
  MothStatus s = own_tangent(f, self, 2, args + 2);
  args[0] = moth_v_tensor(tangent_of(f, self));
  if (s == MOTH_OK)
    s = moth_call1(c->op, c->op->nargs, args, &result);
  moth_tensor_release(zeros);
  MOTH_TRY(s);
  moth_tensor_release(result);
  return MOTH_OK;
}

/* An op that writes to its first argument only. */
static MothStatus write_to_self(Forward *f) {
  MothCall *c = f->c;
  const MothOp *op = c->op;
  MothTensor *self = c->args[0].u.t;
  uint64_t limit = moth_thread.tangents;
  MothTensor *given = NULL;
  if ((op == MOTH_OP(copy_) || op == MOTH_OP(fill_)) && c->args[1].tag == MOTH_V_TENSOR &&
      tangent_of(f, c->args[1].u.t)) {
    moth_thread.tangents = f->d->level;
    MothStatus s = like_result(tangent_of(f, c->args[1].u.t), self, &given);
    moth_thread.tangents = limit;
    MOTH_TRY(s);
  }
  MothStatus s = primal(c, f->d);
  moth_thread.tangents = f->d->level;
  if (s == MOTH_OK)
    s = op == MOTH_OP(scatter_nd_) ? scatter_tangent(f) : write_tangent(f, self, given);
  moth_thread.tangents = limit;
  moth_tensor_release(given);
  return s;
}

/* An in-place op, as the op that returns a new tensor, which is then copied. */
static MothStatus in_place(MothCall *c) {
  const MothOp *op = c->op;
  MothValue args[MOTH_MAX_ARGS], results[MOTH_MAX_RESULTS];
  MothTensor *before, *self = c->target[0], *result;
  memcpy(args, c->args, sizeof *args * op->nargs);
  MOTH_TRY(moth_clone(self, &before));
  args[0] = moth_v_tensor(before);
  for (int i = 1; i < op->nargs; i++)
    if (args[i].tag == MOTH_V_TENSOR && args[i].u.t == self)
      args[i] = args[0];
  MothCall functional = {.op = op, .args = args, .results = results};
  MothStatus s = moth_dispatch(&functional);
  moth_tensor_release(before);
  MOTH_TRY(s);
  result = results[0].u.t;
  for (int i = 1; i < op->nresults; i++)
    moth_tensor_release(results[i].u.t);
  MothTensor *written;
  if (!shape_is(result, self)) {
    char a[200], b[200];
    s = moth_fail(MOTH_ERR_VALUE,
                  "the result has shape %s but is to be written to a tensor of shape %s",
                  moth_shape_format(result->ndim, result->shape, a, sizeof a),
                  moth_shape_format(self->ndim, self->shape, b, sizeof b));
  } else {
    s = moth_call1(MOTH_OP(copy_), 2, (MothValue[]){moth_v_tensor(self), moth_v_tensor(result)},
                   &written);
  }
  moth_tensor_release(result);
  if (s == MOTH_OK)
    c->results[0] = moth_v_tensor(written);
  return s;
}

/* --- the step ------------------------------------------------------------------------------------------- */

/* A tangent that is one of an argument, or a view of it, is copied: results that are written to must not change it. */
static MothStatus apart(Forward *f, int i) {
  MothCall *c = f->c;
  MothTensor *t = f->tangents[i], *copy;
  if (c->op->memory == MOTH_MEMORY_VIEW)
    return MOTH_OK;
  for (int k = 0; k < c->op->nargs; k++) {
    MothValue v = c->args[k];
    for (uint32_t j = 0; j < (v.tag == MOTH_V_TENSORS ? v.n : v.tag == MOTH_V_TENSOR); j++) {
      const MothTensor *of = tangent_of(f, v.tag == MOTH_V_TENSORS ? v.u.tensors[j] : v.u.t);
      if (!of || of->storage != t->storage)
        continue;
      MOTH_TRY(moth_clone(t, &copy));
      moth_tensor_release(t);
      f->tangents[i] = copy;
      return MOTH_OK;
    }
  }
  return MOTH_OK;
}

/* Gives result i its tangent; and what backward has saved of it. */
static MothStatus give(Forward *f, int i) {
  MothTensor *r = f->c->results[i].u.t;
  MOTH_TRY(apart(f, i));
  MOTH_TRY(moth_dual_set(r, f->tangents[i], f->d));
  MothNode *n = r->grad->node;
  bool own = n && (n->op == f->c->op || f->c->op->autograd); /* or the host's, of this call */
  for (int k = 0; own && k < n->nsaved; k++)
    if (n->saved[k].slot == 16 + i && n->saved[k].value.tag == MOTH_V_TENSOR)
      MOTH_TRY(moth_dual_set(n->saved[k].value.u.t, f->tangents[i], f->d));
  return MOTH_OK;
}

static MothStatus step(MothCall *c) {
  MothDual *d = highest(c);
  if (!d)
    return moth_redispatch(c);
  if (c->op->returns_self || c->variant == MOTH_INPLACE) {
    Forward f = {.c = c, .d = d};
    return c->op->returns_self ? write_to_self(&f) : in_place(c);
  }
  if (c->variant == MOTH_OUT)
    return moth_fail(MOTH_ERR_STATE, "functions with out arguments don't support automatic "
                                     "differentiation, but one of the arguments has a tangent");
  Forward f = {.c = c, .d = d};
  f.need = with_tangents(&f);
  MOTH_TRY(primal(c, d));
  uint64_t limit = moth_thread.tangents;
  moth_thread.tangents = d->level;
  MothStatus s = compute(&f);
  for (int i = 0; i < c->op->nresults && s == MOTH_OK; i++)
    if (f.tangents[i] && moth_dtype_is_inexact((MothDType)c->results[i].u.t->dtype))
      s = give(&f, i);
  moth_thread.tangents = limit;
  release_all(f.tangents, MOTH_MAX_RESULTS);
  for (int i = 0; i < c->op->nresults && s != MOTH_OK; i++) {
    moth_tensor_release(c->results[i].u.t);
    c->results[i] = moth_v_none();
  }
  return s;
}

__attribute__((constructor)) static void tangent_init(void) {
  moth_tangent_step = step;
}
