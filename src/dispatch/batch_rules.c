/* How a call with batched tensors becomes one with physical tensors: by the rule of its op (src/ops/batch.lua), by what a
 * fused op is made of, or by a call for each element. The dimension of the batch is always the first one. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "dispatch/batch.h"
#include "ops/conv.h"
#include "ops/create.h"
#include "ops/index.h"
#include "ops/linalg.h"
#include "ops/pointwise.h"
#include "ops/view.h"

/* The tensors made on the way to a call, released together. */
typedef struct Temps {
  MothTensor *list[4 * MOTH_MAX_ARGS];
  int n;
} Temps;

static MothTensor *own(Temps *m, MothTensor *t) {
  m->list[m->n++] = t;
  return t;
}
static void drop(Temps *m) {
  for (int i = 0; i < m->n; i++)
    moth_tensor_release(m->list[i]);
}

typedef struct Sizes {
  int64_t v[MOTH_MAX_DIMS + 2];
  int n;
} Sizes;

/* n, then the given sizes */
static Sizes behind(int64_t n, const int64_t *sizes, int count) {
  Sizes s = {{n}, count + 1};
  memcpy(s.v + 1, sizes, sizeof(int64_t) * (size_t)count);
  return s;
}

/* The batch, and behind it `rank` dimensions: the last ones are those of an element, the others are 1. */
static Sizes lined_up(int64_t batch, int rank, const int64_t *shape, int ndim) {
  Sizes s = {{batch}, rank + 1};
  for (int d = 1; d <= rank; d++)
    s.v[d] = d <= rank - ndim ? 1 : shape[d - 1 - (rank - ndim)];
  return s;
}

/* Calls op with all its arguments. */
static MothStatus call(MothBatchCall *b, const MothOp *op, const MothValue *args) {
  MothValue full[MOTH_MAX_ARGS], results[MOTH_MAX_RESULTS];
  memcpy(full, args, sizeof(MothValue) * op->nargs);
  MothCall c = {.op = op, .args = full, .results = results};
  MOTH_TRY(moth_dispatch(&c));
  for (int i = 0; i < op->nresults; i++)
    b->results[i] = results[i].u.t;
  return MOTH_OK;
}

/* Tensor t, of argument i or of a list, with the batch in front: its physical tensor, or t itself expanded. */
static MothStatus front(const MothBatchCall *b, MothTensor *t, Temps *m, MothTensor **out) {
  if (moth_batch_level(t) == b->level) {
    *out = moth_batch_of(t)->physical;
    return MOTH_OK;
  }
  Sizes s = behind(b->size, t->shape, t->ndim);
  MOTH_TRY(moth_expand(t, s.v, s.n, out));
  own(m, *out);
  return MOTH_OK;
}

static MothStatus reshape(MothTensor *t, Sizes s, Temps *m, MothTensor **out) {
  MOTH_TRY(moth_reshape(t, s.v, s.n, out));
  own(m, *out);
  return MOTH_OK;
}

/* Replaces result i by a view of another shape. */
static MothStatus reshape_result(MothBatchCall *b, int i, Sizes s) {
  MothTensor *t = b->results[i];
  MOTH_TRY(moth_reshape(t, s.v, s.n, &b->results[i]));
  moth_tensor_release(t);
  return MOTH_OK;
}

/* --- pointwise ----------------------------------------------------------------------------------- */

static MothStatus pointwise(MothBatchCall *b) {
  MothCall *c = b->c;
  const MothOp *op = c->op;
  MothValue args[MOTH_MAX_ARGS];
  Temps m = {.n = 0};
  int ndim = 0;
  MothStatus status = MOTH_OK;
  memcpy(args, c->args, sizeof *args * op->nargs);
  for (int i = 0; i < op->nargs; i++)
    if (args[i].tag == MOTH_V_TENSOR && args[i].u.t->ndim > ndim)
      ndim = args[i].u.t->ndim;
  for (int i = 0; i < op->nargs; i++) {
    MothTensor *p = b->physical[i];
    if (!p)
      continue;
    /* A tensor without dimensions counts less in the promotion of dtypes; its physical one has a dimension. */
    if (p->ndim == 1 && ndim > 0 && i != op->cond && b->known && p->dtype != b->metas[0].compute &&
        op->promote != MOTH_PROMOTE_NONE) {
      MOTH_GO(moth_to(p, moth_v_dtype((MothDType)b->metas[0].compute), moth_v_none(), false, false,
                      &p));
      own(&m, p);
    }
    if (p->ndim - 1 < ndim && !(i == 0 && c->variant == MOTH_INPLACE)) {
      Sizes s = {{b->size}, ndim + 1};
      for (int d = 1; d <= ndim; d++)
        s.v[d] = d <= ndim - (p->ndim - 1) ? 1 : p->shape[d - (ndim - (p->ndim - 1))];
      MOTH_GO(reshape(p, s, &m, &p));
    }
    args[i] = moth_v_tensor(p);
  }
  if (c->variant == MOTH_INPLACE) {
    MothTensor *target = args[0].u.t;
    MothValue result;
    MothCall inner = {
        .op = op, .args = args, .results = &result, .variant = MOTH_INPLACE, .target = &target};
    MOTH_GO(moth_dispatch(&inner));
    moth_tensor_release(result.u.t);
  } else {
    MOTH_GO(call(b, op, args));
  }
  b->done = true;
done:
  drop(&m);
  return status;
}

/* --- the batch in front --------------------------------------------------------------------------- */

static bool may_have(const MothBatchCall *b, int i) {
  return b->c->op->batched >> i & 1;
}

/* Whether only arguments that may be are batched. */
static bool fits(const MothBatchCall *b) {
  const MothCall *c = b->c;
  for (int i = 0; i < c->op->nargs; i++) {
    bool batched = b->physical[i] != NULL;
    for (uint32_t k = 0; c->args[i].tag == MOTH_V_TENSORS && k < c->args[i].n; k++)
      batched = batched || moth_batch_level(c->args[i].u.tensors[k]) == b->level;
    if (batched && !may_have(b, i))
      return false;
  }
  return true;
}

/* The lists of cat, with the batch in front. Empty vectors, which it leaves out, are left out. */
static MothStatus front_list(const MothBatchCall *b, MothValue v, MothTensor **list, uint32_t *n) {
  int ndim = 0;
  for (uint32_t k = 0; k < v.n; k++)
    if (v.u.tensors[k]->ndim > ndim)
      ndim = v.u.tensors[k]->ndim;
  *n = 0;
  for (uint32_t k = 0; k < v.n; k++) {
    MothTensor *t = v.u.tensors[k], *p;
    Temps one = {.n = 0};
    if (t->ndim == 1 && t->shape[0] == 0 && ndim > 1)
      continue;
    MOTH_TRY(front(b, t, &one, &p));
    if (!one.n)
      moth_tensor_retain(p);
    list[(*n)++] = p;
  }
  return MOTH_OK;
}

/* Whether an argument is a dimension of the first tensor, which one without dimensions takes, too (transpose). */
static bool names_dims(const MothOp *op) {
  for (int i = 0; i < op->nargs; i++)
    if (op->args[i].type == MOTH_T_DIM && !op->args[i].of_result)
      return true;
  return false;
}

static MothStatus in_front(MothBatchCall *b) {
  MothCall *c = b->c;
  const MothOp *op = c->op;
  MothValue args[MOTH_MAX_ARGS];
  Temps m = {.n = 0};
  int64_t dims[MOTH_MAX_ARGS][MOTH_MAX_DIMS + 2];
  MothTensor **list = NULL;
  uint32_t nlist = 0;
  bool scalar = false; /* a tensor without dimensions gets one */
  MothStatus status = MOTH_OK;
  const MothMeta *meta = b->metas;
  if (!fits(b))
    return MOTH_OK;
  memcpy(args, c->args, sizeof *args * op->nargs);
  for (int i = 0; i < op->nargs; i++) {
    MothValue v = c->args[i];
    if (!may_have(b, i) || (v.tag != MOTH_V_TENSOR && v.tag != MOTH_V_TENSORS))
      continue;
    if (v.tag == MOTH_V_TENSORS) {
      list = moth_alloc(sizeof *list * (v.n ? v.n : 1));
      if (!list) {
        status = moth_no_memory(sizeof *list * (v.n ? v.n : 1));
        goto done;
      }
      MOTH_GO(front_list(b, v, list, &nlist));
      args[i] = moth_v_tensors(list, nlist);
      continue;
    }
    MothTensor *t = v.u.t, *p;
    MOTH_GO(front(b, t, &m, &p));
    if (t->ndim == 0 && (op->kind != MOTH_KIND_VIEW || names_dims(op)) && op != MOTH_OP(clone) &&
        op != MOTH_OP(to_copy)) {
      scalar = true;
      MOTH_GO(reshape(p, (Sizes){{b->size, 1}, 2}, &m, &p));
    }
    args[i] = moth_v_tensor(p);
  }
  for (int i = 0; i < op->nargs; i++) {
    const MothArg *a = &op->args[i];
    MothValue v = args[i];
    if (a->type == MOTH_T_DIM && v.tag == MOTH_V_INT) {
      args[i] = moth_v_int(v.u.i + 1);
    } else if (a->type == MOTH_T_DIM) { /* all, as one */
      if (op->kind != MOTH_KIND_REDUCE)
        goto done;
      MOTH_GO(reshape(args[0].u.t, (Sizes){{b->size, c->args[0].u.t->numel}, 2}, &m, &args[0].u.t));
      args[i] = moth_v_int(1);
    } else if (a->type == MOTH_T_DIMS && v.tag == MOTH_V_INTS && (v.n || !a->all)) {
      int lead = op->kind == MOTH_KIND_VIEW; /* permute: the batch stays in front */
      dims[i][0] = 0;
      for (uint32_t k = 0; k < v.n; k++)
        dims[i][k + (uint32_t)lead] = v.u.ints[k] + 1;
      args[i] = moth_v_ints(dims[i], v.n + (uint32_t)lead);
    } else if (a->type == MOTH_T_DIMS) {
      int n = args[0].u.t->ndim - 1;
      for (int k = 0; k < n; k++)
        dims[i][k] = k + 1;
      args[i] = moth_v_ints(dims[i], (uint32_t)n);
    } else if (a->type == MOTH_T_INTS && may_have(b, i)) { /* sizes of a view */
      Sizes s = behind(b->size, meta->shape, meta->ndim);
      memcpy(dims[i], s.v, sizeof(int64_t) * (size_t)s.n);
      args[i] = moth_v_ints(dims[i], (uint32_t)s.n);
    }
  }
  MOTH_GO(call(b, op, args));
  b->done = true;
  for (int i = 0; i < op->nresults && b->known; i++)
    if ((scalar || op->kind == MOTH_KIND_REDUCE) && b->results[i]->ndim != b->metas[i].ndim + 1)
      MOTH_GO(reshape_result(b, i, behind(b->size, b->metas[i].shape, b->metas[i].ndim)));
done:
  for (uint32_t k = 0; k < nlist; k++)
    moth_tensor_release(list[k]);
  if (list)
    for (int i = 0; i < op->nargs; i++)
      if (c->args[i].tag == MOTH_V_TENSORS)
        moth_free(list, sizeof *list * (c->args[i].n ? c->args[i].n : 1));
  drop(&m);
  return status;
}

/* --- the batch folded into the first dimension ------------------------------------------------------ */

static MothStatus folded(MothBatchCall *b) {
  MothCall *c = b->c;
  const MothOp *op = c->op;
  MothValue args[MOTH_MAX_ARGS];
  int64_t sizes[MOTH_MAX_ARGS][MOTH_MAX_DIMS + 2];
  Temps m = {.n = 0};
  MothStatus status = MOTH_OK;
  if (!fits(b) || !b->known)
    return MOTH_OK;
  if (op == MOTH_OP(attention_forward) || op == MOTH_OP(attention_backward))
    for (int i = 0; i < op->nargs; i++) /* a mask of its own for each of the first dimension */
      if (!strcmp(op->args[i].name, "attn_mask") && c->args[i].tag == MOTH_V_TENSOR &&
          c->args[i].u.t->ndim == 4 && c->args[i].u.t->shape[0] != 1)
        return MOTH_OK;
  /* Without a dimension for it (N?), the batch takes its place; else both become one. */
  int rank = -1;
  for (int i = 0; i < op->nargs && rank < 0; i++)
    if (may_have(b, i) && c->args[i].tag == MOTH_V_TENSOR)
      rank = c->args[i].u.t->ndim;
  bool fold = !op->batched_ndim || rank == op->batched_ndim;
  memcpy(args, c->args, sizeof *args * op->nargs);
  for (int i = 0; i < op->nargs; i++) {
    MothValue v = c->args[i];
    if (!may_have(b, i))
      continue;
    if (v.tag == MOTH_V_TENSOR) {
      MothTensor *p;
      MOTH_GO(front(b, v.u.t, &m, &p));
      if (fold) {
        Sizes s = {{b->size * v.u.t->shape[0]}, v.u.t->ndim};
        memcpy(s.v + 1, v.u.t->shape + 1, sizeof(int64_t) * (size_t)(v.u.t->ndim - 1));
        MOTH_GO(reshape(p, s, &m, &p));
      }
      args[i] = moth_v_tensor(p);
    } else if (v.tag == MOTH_V_INTS) {
      Sizes s = behind(b->size, v.u.ints, (int)v.n);
      if (fold) {
        s.v[1] *= b->size;
        s.n--;
      }
      memcpy(sizes[i], fold ? s.v + 1 : s.v, sizeof(int64_t) * (size_t)s.n);
      args[i] = moth_v_ints(sizes[i], (uint32_t)s.n);
    }
  }
  MOTH_GO(call(b, op, args));
  b->done = true;
  for (int i = 0; i < op->nresults && fold; i++) {
    const MothMeta *meta = &b->metas[i];
    if (b->results[i]->shape[0] != meta->shape[0] * b->size) {
      b->shared[i] = true; /* as the state of the random numbers */
      continue;
    }
    MOTH_GO(reshape_result(b, i, behind(b->size, meta->shape, meta->ndim)));
  }
done:
  drop(&m);
  return status;
}

/* --- convolutions with a batch of weights: groups --------------------------------------------------- */

/* (B, N, C, …) as (N, B C, …) */
static MothStatus channels(const MothBatchCall *b, MothTensor *t, bool images, Temps *m,
                           MothTensor **out) {
  MOTH_TRY(front(b, t, m, out));
  if (images) {
    MOTH_TRY(moth_transpose(*out, 0, 1, out));
    own(m, *out);
  }
  const MothTensor *p = *out;
  int at = images ? 1 : 0;
  Sizes s = {{0}, p->ndim - 1};
  for (int d = 0; d < s.n; d++)
    s.v[d] = d < at ? p->shape[d] : d == at ? p->shape[d] * p->shape[d + 1] : p->shape[d + 1];
  return reshape(*out, s, m, out);
}

static MothStatus grouped(MothBatchCall *b) {
  MothCall *c = b->c;
  const MothOp *op = c->op;
  bool by_weight = op == MOTH_OP(conv2d_backward_weight),
       by_input = op == MOTH_OP(conv2d_backward_input);
  if ((op != MOTH_OP(conv2d) && !by_weight && !by_input) || !b->size) /* no groups for none */
    return MOTH_OK;
  MothValue args[MOTH_MAX_ARGS];
  int64_t sizes[8];
  Temps m = {.n = 0};
  MothStatus status = MOTH_OK;
  memcpy(args, c->args, sizeof *args * op->nargs);
  const MothTensor *first = args[0].u.t;
  bool images = first->ndim == 4; /* else one image, without N */
  for (int i = 0; i < 3; i++) {
    if (args[i].tag != MOTH_V_TENSOR)
      continue;
    bool image = i == 0 || (i == 1 && by_weight);
    MothTensor *p;
    MOTH_GO(channels(b, args[i].u.t, image && images, &m, &p));
    args[i] = moth_v_tensor(p);
  }
  if (by_weight || by_input) {
    memcpy(sizes, args[2].u.ints, sizeof(int64_t) * args[2].n);
    sizes[by_input && images ? 1 : 0] *= b->size;
    args[2] = moth_v_ints(sizes, args[2].n);
  }
  int groups = op->nargs - 1;
  args[groups] = moth_v_int(args[groups].u.i * b->size);
  MOTH_GO(call(b, op, args));
  b->done = true;
  const MothMeta *meta = b->metas;
  if (by_weight || !images) {
    MOTH_GO(reshape_result(b, 0, behind(b->size, meta->shape, meta->ndim)));
  } else {
    MothTensor *t = b->results[0], *split;
    Sizes s = {{meta->shape[0], b->size, meta->shape[1], meta->shape[2], meta->shape[3]}, 5};
    MOTH_GO(reshape(t, s, &m, &split));
    b->results[0] = NULL;
    own(&m, t);
    MOTH_GO(moth_transpose(split, 0, 1, &b->results[0]));
  }
done:
  drop(&m);
  return status;
}

/* --- products ---------------------------------------------------------------------------------------- */

/* a (B, …, i, k) @ b (B, …, k, j), both with the batch in front and folded into one dimension. */
static MothStatus product(MothBatchCall *b, MothTensor *left, MothTensor *right, Sizes result,
                          Temps *m) {
  Sizes l = {{1, left->shape[left->ndim - 2], left->shape[left->ndim - 1]}, 3};
  Sizes r = {{1, right->shape[right->ndim - 2], right->shape[right->ndim - 1]}, 3};
  for (int d = 0; d < left->ndim - 2; d++) {
    l.v[0] *= left->shape[d];
    r.v[0] *= right->shape[d];
  }
  MOTH_TRY(reshape(left, l, m, &left));
  MOTH_TRY(reshape(right, r, m, &right));
  MothTensor *t;
  MOTH_TRY(moth_bmm(left, right, &t));
  own(m, t);
  b->done = true;
  return moth_reshape(t, result.v, result.n, &b->results[0]);
}

/* beta * self + alpha * product, by parts */
static MothStatus scaled_sum(MothBatchCall *b, const MothOp *op) {
  MothCall *c = b->c;
  MothTensor *t = NULL, *s = NULL, *r = NULL;
  MothStatus status = moth_call1(op, 2, c->args + 1, &t);
  if (status == MOTH_OK)
    status = moth_mul(moth_v_tensor(t), c->args[4], &s);
  moth_tensor_release(t);
  t = NULL;
  if (status == MOTH_OK && moth_as_double(c->args[3]) == 0) {
    b->results[0] = s;
  } else if (status == MOTH_OK) {
    status = moth_mul(c->args[0], c->args[3], &t);
    if (status == MOTH_OK)
      status = moth_add(moth_v_tensor(s), moth_v_tensor(t), moth_v_int(1), &r);
    moth_tensor_release(s);
    b->results[0] = r;
  }
  moth_tensor_release(t);
  b->shared[0] = b->done = status == MOTH_OK;
  return status;
}

static MothStatus matmul(MothBatchCall *b) {
  MothCall *c = b->c;
  const MothOp *op = c->op;
  Temps m = {.n = 0};
  MothStatus status = MOTH_OK;
  const MothMeta *meta = b->metas;
  if (op == MOTH_OP(addmm) || op == MOTH_OP(baddbmm))
    return scaled_sum(b, op == MOTH_OP(addmm) ? MOTH_OP(mm) : MOTH_OP(bmm));
  Sizes want = behind(b->size, meta->shape, meta->ndim);
  MothTensor *left = c->args[0].u.t, *right = c->args[1].u.t, *bias, *t;
  if (op == MOTH_OP(mm) && !b->physical[1]) { /* one product, of more rows */
    left = b->physical[0];
    MOTH_GO(
        reshape(left, (Sizes){{left->shape[0] * left->shape[1], left->shape[2]}, 2}, &m, &left));
    MOTH_GO(moth_mm(left, right, &t));
    own(&m, t);
    b->done = true;
    MOTH_GO(moth_reshape(t, want.v, want.n, &b->results[0]));
  } else if (op == MOTH_OP(mm) || op == MOTH_OP(bmm)) {
    MOTH_GO(front(b, left, &m, &left));
    MOTH_GO(front(b, right, &m, &right));
    MOTH_GO(product(b, left, right, want, &m));
  } else if (op == MOTH_OP(linear)) {
    if (!b->physical[1] && !b->physical[2]) {
      MOTH_GO(call(b, op, (MothValue[]){moth_v_tensor(b->physical[0]), c->args[1], c->args[2]}));
      b->done = true;
      goto done;
    }
    MOTH_GO(front(b, left, &m, &left));
    int64_t k = c->args[0].u.t->shape[c->args[0].u.t->ndim - 1];
    int64_t rows = 1;
    for (int d = 0; d < c->args[0].u.t->ndim - 1; d++)
      rows *= c->args[0].u.t->shape[d];
    MOTH_GO(reshape(left, (Sizes){{b->size, rows, k}, 3}, &m, &left));
    MOTH_GO(moth_transpose(right, 0, 1, &right)); /* of one element: below, a call of its own */
    own(&m, right);
    MOTH_GO(front(b, right, &m, &right));
    MOTH_GO(product(b, left, right, want, &m));
    if (c->args[2].tag != MOTH_V_TENSOR)
      goto done;
    MOTH_GO(front(b, c->args[2].u.t, &m, &bias));
    Sizes s = {{b->size}, want.n};
    for (int d = 1; d < s.n; d++)
      s.v[d] = d == s.n - 1 ? bias->shape[1] : 1;
    MOTH_GO(reshape(bias, s, &m, &bias));
    t = b->results[0];
    own(&m, t);
    b->results[0] = NULL;
    MOTH_GO(moth_add(moth_v_tensor(t), moth_v_tensor(bias), moth_v_int(1), &b->results[0]));
  }
done:
  drop(&m);
  return status;
}

/* --- random numbers: a draw for each element ---------------------------------------------------------- */

static MothStatus draws(MothBatchCall *b) {
  MothCall *c = b->c;
  const MothOp *op = c->op;
  MothValue args[MOTH_MAX_ARGS];
  Temps m = {.n = 0};
  int64_t sizes[MOTH_MAX_DIMS + 2];
  MothStatus status = MOTH_OK;
  memcpy(args, c->args, sizeof *args * op->nargs);
  if (op->returns_self) { /* fills the whole batch */
    MothTensor *target = b->physical[0];
    args[0] = moth_v_tensor(target);
    MothValue result;
    MothCall inner = {
        .op = op, .args = args, .results = &result, .variant = MOTH_INPLACE, .target = &target};
    MOTH_GO(moth_dispatch(&inner));
    moth_tensor_release(result.u.t);
    b->done = true;
    goto done;
  }
  for (int i = 0; i < op->nargs; i++) {
    if (args[i].tag == MOTH_V_TENSOR) {
      MothTensor *p;
      MOTH_GO(front(b, args[i].u.t, &m, &p));
      args[i] = moth_v_tensor(p);
    } else if (op->args[i].type == MOTH_T_INTS) {
      Sizes s = behind(b->size, args[i].u.ints, (int)args[i].n);
      memcpy(sizes, s.v, sizeof(int64_t) * (size_t)s.n);
      args[i] = moth_v_ints(sizes, (uint32_t)s.n);
    }
  }
  MOTH_GO(call(b, op, args));
  b->done = true;
done:
  drop(&m);
  return status;
}

/* --- where the kind does not tell ---------------------------------------------------------------------- */

/* A vector of positions of one dimension as positions of a tensor of this shape, for gather and scatter. */
static MothStatus spread(const MothBatchCall *b, MothTensor *index, int64_t dim,
                         const int64_t *shape, int ndim, Temps *m, MothTensor **out) {
  MothTensor *p;
  Sizes s = {{b->size}, ndim + 1}, wide = behind(b->size, shape, ndim);
  MOTH_TRY(front(b, index, m, &p));
  int64_t count = 1;
  for (int d = 1; d < p->ndim; d++)
    count *= p->shape[d];
  for (int d = 0; d < ndim; d++)
    s.v[d + 1] = d == dim ? count : 1;
  wide.v[dim + 1] = count;
  MOTH_TRY(reshape(p, s, m, &p));
  MOTH_TRY(moth_expand(p, wide.v, wide.n, out));
  own(m, *out);
  return MOTH_OK;
}

static MothStatus indexed(MothBatchCall *b) {
  MothCall *c = b->c;
  const MothOp *op = c->op;
  bool reads = op == MOTH_OP(index_select);
  if (!reads && op != MOTH_OP(index_add) && op != MOTH_OP(index_copy))
    return MOTH_OK;
  Temps m = {.n = 0};
  MothStatus status = MOTH_OK;
  MothTensor *self = c->args[0].u.t, *index = c->args[2].u.t,
             *source = reads ? NULL : c->args[3].u.t, *p, *at;
  int64_t dim = c->args[1].u.i;
  if (self->ndim == 0)
    return MOTH_OK;
  if (reads && !b->physical[0] &&
      dim == 0) { /* a table, as of embedding: its rows at all positions */
    MothTensor *all;
    MOTH_GO(reshape(b->physical[2], (Sizes){{b->physical[2]->numel}, 1}, &m, &all));
    MothValue args[] = {c->args[0], c->args[1], moth_v_tensor(all), c->args[3]};
    MOTH_GO(call(b, op, args));
    MOTH_GO(reshape_result(b, 0, behind(b->size, b->metas[0].shape, b->metas[0].ndim)));
    b->done = true;
    goto done;
  }
  MOTH_GO(front(b, self, &m, &p));
  if (b->physical[2]) {
    const int64_t *shape = reads ? self->shape : source->shape;
    if (!reads && source->ndim != self->ndim)
      goto done;
    MOTH_GO(spread(b, index, dim, shape, self->ndim, &m, &at));
    if (!reads)
      MOTH_GO(front(b, source, &m, &source));
    const MothOp *by = reads                      ? MOTH_OP(gather)
                       : op == MOTH_OP(index_add) ? MOTH_OP(scatter_add)
                                                  : MOTH_OP(scatter);
    MothValue args[5] = {moth_v_tensor(p), moth_v_int(dim + 1), moth_v_tensor(at)};
    if (!reads)
      args[3] = moth_v_tensor(source);
    args[by->nargs - 1] = c->args[op->nargs - 1];
    MOTH_GO(call(b, by, args));
  } else {
    MothValue args[5] = {moth_v_tensor(p), moth_v_int(dim + 1), c->args[2]};
    if (!reads) {
      MOTH_GO(front(b, source, &m, &source));
      args[3] = moth_v_tensor(source);
    }
    args[op->nargs - 1] = c->args[op->nargs - 1];
    MOTH_GO(call(b, op, args));
  }
  b->done = true;
done:
  drop(&m);
  return status;
}

/* gather_nd and scatter_nd_: positions of the batch's dimension in front of the others. */
static MothStatus indexed_nd(MothBatchCall *b) {
  MothCall *c = b->c;
  const MothOp *op = c->op;
  bool reads = op == MOTH_OP(gather_nd);
  if (!reads && op != MOTH_OP(scatter_nd_))
    return MOTH_OK;
  Temps m = {.n = 0};
  MothStatus status = MOTH_OK;
  uint32_t n = c->args[1].n;
  const int64_t *dims = c->args[1].u.ints;
  for (uint32_t k = 0; k < n;
       k++) /* with the batch in front they follow one another only like this */
    if (dims[k] != (int64_t)k)
      return MOTH_OK;
  MothTensor *self = c->args[0].u.t, *p, *index, *count, *at[2];
  int64_t own_dims[MOTH_MAX_DIMS + 1] = {0}, base = c->args[op->nargs - 1].u.i;
  for (uint32_t k = 0; k < n; k++)
    own_dims[k + 1] = dims[k] + 1;
  MOTH_GO(front(b, self, &m, &p));
  MOTH_GO(front(b, c->args[2].u.t, &m, &index));
  if (n == 1)
    MOTH_GO(moth_unsqueeze(index, -1, &index));
  else
    moth_tensor_retain(index);
  own(&m, index);
  Sizes s = {{b->size}, index->ndim};
  for (int d = 1; d < s.n; d++)
    s.v[d] = 1;
  MOTH_GO(moth_arange(moth_v_int(base), moth_v_int(base + b->size), moth_v_int(1),
                      moth_v_dtype((MothDType)index->dtype), moth_v_device(index->device), &count));
  own(&m, count);
  MOTH_GO(reshape(count, s, &m, &count));
  Sizes wide = {{0}, index->ndim};
  memcpy(wide.v, index->shape, sizeof(int64_t) * index->ndim);
  wide.v[wide.n - 1] = 1;
  MOTH_GO(moth_expand(count, wide.v, wide.n, &at[0]));
  own(&m, at[0]);
  at[1] = index;
  MOTH_GO(moth_cat(at, 2, index->ndim - 1, &index));
  own(&m, index);
  MothValue args[MOTH_MAX_ARGS] = {moth_v_tensor(p), moth_v_ints(own_dims, n + 1),
                                   moth_v_tensor(index)};
  args[op->nargs - 1] = c->args[op->nargs - 1];
  if (reads) {
    MOTH_GO(call(b, op, args));
  } else {
    MothTensor *src = c->args[3].u.t, *q, *result;
    int rank =
        (int)(index->ndim - 2) + self->ndim - (int)n; /* of what is written, for one element */
    MOTH_GO(front(b, src, &m, &q));
    if (src->ndim > rank)
      goto done;
    MOTH_GO(reshape(q, lined_up(b->size, rank, src->shape, src->ndim), &m, &q));
    args[3] = moth_v_tensor(q);
    args[4] = c->args[4];
    MOTH_GO(moth_call1(op, op->nargs, args, &result));
    moth_tensor_release(result);
  }
  b->done = true;
done:
  drop(&m);
  return status;
}

/* Ops that write values to a batched tensor, broadcast. */
static MothStatus filled(MothBatchCall *b) {
  MothCall *c = b->c;
  const MothOp *op = c->op;
  MothTensor *self = b->physical[0], *value = NULL, *result;
  bool zero = op == MOTH_OP(zero_), fill = op == MOTH_OP(fill_);
  if (!zero && !fill && op != MOTH_OP(copy_))
    return MOTH_OK;
  Temps m = {.n = 0};
  MothStatus status = MOTH_OK;
  MothValue v = zero ? moth_v_none() : c->args[1];
  if (b->physical[1]) {
    value = b->physical[1];
    int ndim = self->ndim - 1, own_dims = value->ndim - 1;
    if (own_dims > ndim)
      return moth_fail(MOTH_ERR_VALUE, "a tensor of %d dimensions cannot be written to one of %d",
                       own_dims, ndim);
    MOTH_GO(reshape(value, lined_up(b->size, ndim, value->shape + 1, own_dims), &m, &value));
    v = moth_v_tensor(value);
  }
  MothValue args[] = {moth_v_tensor(self), v, moth_v_bool(false)};
  MOTH_GO(moth_call1(fill && value ? MOTH_OP(copy_) : op, zero ? 1 : 2, args, &result));
  moth_tensor_release(result);
  b->done = true;
done:
  drop(&m);
  return status;
}

/* masked_select by the same mask for all: as many elements each. */
static MothStatus selected(MothBatchCall *b) {
  MothCall *c = b->c;
  MothTensor *p = b->physical[0], *mask = c->args[1].u.t, *both;
  Temps m = {.n = 0};
  int64_t wide[MOTH_MAX_DIMS];
  int ndim, own_dims = p->ndim - 1;
  MothStatus status = MOTH_OK;
  MOTH_TRY(moth_broadcast(own_dims, p->shape + 1, mask->ndim, mask->shape, &ndim, wide));
  Sizes all = behind(b->size, wide, ndim);
  MOTH_GO(reshape(p, lined_up(b->size, ndim, p->shape + 1, own_dims), &m, &p));
  MOTH_GO(moth_expand(p, all.v, all.n, &p));
  own(&m, p);
  MOTH_GO(moth_expand(mask, all.v, all.n, &both));
  own(&m, both);
  MOTH_GO(call(b, c->op, (MothValue[]){moth_v_tensor(p), moth_v_tensor(both)}));
  int64_t n = b->results[0]->numel / (b->size ? b->size : 1);
  MOTH_GO(reshape_result(b, 0, (Sizes){{b->size, n}, 2}));
  b->done = true;
done:
  drop(&m);
  return status;
}

/* Views whose arguments are no dimensions. */
static MothStatus viewed(MothBatchCall *b) {
  MothCall *c = b->c;
  MothTensor *p = b->physical[0], *t = p;
  const MothMeta *meta = b->metas;
  Sizes s = behind(b->size, meta->shape, meta->ndim);
  if (c->op == MOTH_OP(as_strided)) { /* of the storage, as that of element 0 */
    Sizes stride = behind(p->stride[0], c->args[2].u.ints, (int)c->args[2].n);
    MothValue offset = c->args[3].tag == MOTH_V_INT ? c->args[3] : moth_v_int(p->offset);
    MOTH_TRY(moth_as_strided(p, s.v, s.n, stride.v, stride.n, offset, &b->results[0]));
    b->done = true;
  } else if (c->op == MOTH_OP(squeeze)) {
    MOTH_TRY(moth_view(p, s.v, s.n, &b->results[0]));
    b->done = true;
  } else if (c->op == MOTH_OP(expand)) {
    int more = meta->ndim - (p->ndim - 1);
    Sizes ones = lined_up(b->size, meta->ndim, p->shape + 1, p->ndim - 1);
    if (more)
      MOTH_TRY(moth_view(p, ones.v, ones.n, &t));
    MothStatus status = moth_expand(t, s.v, s.n, &b->results[0]);
    if (more)
      moth_tensor_release(t);
    MOTH_TRY(status);
    b->done = true;
  }
  return MOTH_OK;
}

/* --- all of them ---------------------------------------------------------------------------------------- */

static MothStatus by_parts(MothBatchCall *b) {
  MothCall *c = b->c;
  for (int i = 0; i < c->op->nargs; i++)
    if (c->op->args[i].mutated && c->args[i].tag == MOTH_V_TENSOR)
      return MOTH_OK; /* the parts do not write */
  MothValue results[MOTH_MAX_RESULTS];
  for (int i = 0; i < c->op->nresults; i++)
    results[i] = moth_v_none();
  MothCall parts = *c;
  parts.results = results;
  parts.variant = MOTH_FUNCTIONAL;
  parts.target = NULL;
  MothKernel made_of = c->op->composite ? c->op->composite : c->op->decomposed;
  MothStatus s = made_of(&parts);
  for (int i = 0; i < c->op->nresults; i++) {
    b->results[i] = results[i].u.t;
    b->shared[i] = true; /* complete */
  }
  for (int i = 0; i < c->op->nresults && s == MOTH_OK && b->known; i++) {
    MothTensor *t = b->results[i];
    if (t->dtype == b->metas[i].dtype)
      continue;
    s = moth_to(t, moth_v_dtype((MothDType)b->metas[i].dtype), moth_v_none(), false, false,
                &b->results[i]);
    moth_tensor_release(t);
    if (s != MOTH_OK)
      b->results[i] = NULL;
  }
  b->done = s == MOTH_OK;
  return s;
}

MothStatus moth_batch_rule(MothBatchCall *b) {
  const MothOp *op = b->c->op;
  static MothStatus (*const rules[])(MothBatchCall *) = {
      [MOTH_BATCH_POINTWISE] = pointwise, [MOTH_BATCH_FRONT] = in_front, [MOTH_BATCH_FOLD] = folded,
      [MOTH_BATCH_MATMUL] = matmul,       [MOTH_BATCH_RANDOM] = draws,
  };
  static MothStatus (*const special[])(MothBatchCall *) = {grouped, indexed, indexed_nd, filled};
  if (op == MOTH_OP(masked_select) && !b->physical[1])
    return selected(b);
  if (op->batch == MOTH_BATCH_ERROR)
    return moth_fail(
        MOTH_ERR_STATE,
        "vmap: the size of the result depends on the elements, so it would differ within "
        "the batch; use where() and sums instead of a selection");
  if (op == MOTH_OP(as_strided) || op == MOTH_OP(expand) ||
      (op == MOTH_OP(squeeze) && b->c->args[1].tag == MOTH_V_NONE))
    return viewed(b);
  bool own_rule = op == MOTH_OP(index_add) || op == MOTH_OP(index_copy);
  if (rules[op->batch] && !own_rule && (b->known || op->returns_self))
    MOTH_TRY(rules[op->batch](b));
  for (size_t i = 0; i < sizeof special / sizeof *special && !b->done; i++)
    MOTH_TRY(special[i](b));
  if (!b->done && (op->decomposed || op->composite))
    MOTH_TRY(by_parts(b));
  return MOTH_OK;
}

/* A call of element k. */
static MothStatus call_one(MothBatchCall *b, int64_t k, MothTensor **results) {
  MothCall *c = b->c;
  const MothOp *op = c->op;
  MothValue args[MOTH_MAX_ARGS], made[MOTH_MAX_RESULTS];
  MothTensor *lists[64];
  Temps m = {.n = 0};
  int used = 0, from = 0;
  MothStatus status = MOTH_OK;
  memcpy(args, c->args, sizeof *args * op->nargs);
  for (int i = 0; i < op->nargs; i++) {
    MothTensor *t;
    if (b->physical[i]) {
      MOTH_GO(moth_select(b->physical[i], 0, k, &t));
      args[i] = moth_v_tensor(own(&m, t));
    } else if (args[i].tag == MOTH_V_TENSORS) {
      if (used + (int)args[i].n > 64) {
        status = moth_fail(MOTH_ERR_VALUE, "vmap: a list of %u tensors is too long", args[i].n);
        goto done;
      }
      from = used;
      for (uint32_t j = 0; j < args[i].n; j++, used++) {
        t = args[i].u.tensors[j];
        if (moth_batch_level(t) == b->level)
          MOTH_GO(moth_select(moth_batch_of(t)->physical, 0, k, &t));
        else
          moth_tensor_retain(t);
        lists[used] = t;
      }
      args[i].u.tensors = lists + from;
    }
  }
  MothTensor *self = op->returns_self ? args[0].u.t : NULL;
  MothCall one = {.op = op,
                  .args = args,
                  .results = made,
                  .variant = self ? MOTH_INPLACE : MOTH_FUNCTIONAL,
                  .target = self ? &self : NULL};
  MOTH_GO(moth_dispatch(&one));
  for (int i = 0; i < op->nresults; i++)
    results[i] = made[i].u.t;
done:
  for (int i = 0; i < used; i++)
    moth_tensor_release(lists[i]);
  drop(&m);
  return status;
}

static MothStatus stack(MothBatchCall *b, MothTensor **list, int i) {
  if (b->size > 0)
    return moth_stack(list, (int)b->size, 0, &b->results[i]);
  if (!b->known)
    return moth_fail(MOTH_ERR_STATE,
                     "vmap: a batch of no elements, of which the op does not tell the shape");
  Sizes s = behind(0, b->metas[i].shape, b->metas[i].ndim);
  return moth_tensor_new(s.n, s.v, (MothDType)b->metas[i].dtype, b->metas[i].device,
                         &b->results[i]);
}

MothStatus moth_batch_loop(MothBatchCall *b, MothGenerator *same) {
  const MothOp *op = b->c->op;
  static _Atomic uint8_t warned[1024];
  if (!same && b->size && !op->returns_self && op->id < sizeof warned &&
      !atomic_exchange(&warned[op->id], 1))
    fprintf(
        stderr,
        "[moth] warning: vmap: there is no rule for %s with these arguments; it is called for each "
        "element of the batch\n",
        op->name);
  size_t count = (size_t)(b->size ? b->size : 1);
  MothTensor **made = moth_alloc(sizeof *made * count * MOTH_MAX_RESULTS);
  if (!made)
    return moth_no_memory(sizeof *made * count * MOTH_MAX_RESULTS);
  memset(made, 0, sizeof *made * count * MOTH_MAX_RESULTS);
  MothStatus status = MOTH_OK;
  uint64_t seed = 0, offset = 0;
  if (same)
    moth_generator_get_state(same, &seed, &offset);
  for (int64_t k = 0; k < b->size && status == MOTH_OK; k++) {
    MothTensor *results[MOTH_MAX_RESULTS] = {NULL};
    if (same)
      moth_generator_set_state(same, seed, offset);
    status = call_one(b, k, results);
    for (int i = 0; i < op->nresults; i++)
      made[(size_t)i * count + (size_t)k] = results[i];
  }
  for (int i = 0; i < op->nresults && status == MOTH_OK && !op->returns_self; i++)
    status = stack(b, made + (size_t)i * count, i);
  for (size_t k = 0; k < count * MOTH_MAX_RESULTS; k++)
    moth_tensor_release(made[k]);
  moth_free(made, sizeof *made * count * MOTH_MAX_RESULTS);
  b->done = status == MOTH_OK;
  return status;
}
