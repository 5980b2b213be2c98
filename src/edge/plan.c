/* Sizes and places of a model's values for given dims. Each call's arguments are checked and made canonical, its shape rule
 * says what it gives, as in the dispatcher: a file says no sizes but those of inputs. Values that are never alive at the same
 * time share bytes of the arena, as in a plan (core/arena.c); outputs are computed into the caller's memory. */
#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "edge/model.h"
#include "edge/ops.h"

/* --- sizes ---------------------------------------------------------------------------------------------- */

static MothStatus too_large(void) {
  return moth_fail(MOTH_ERR_VALUE, "[edge] a size is too large to be counted");
}

static MothStatus whole_of(const MothModel *m, const MothEdgeSize *s, int64_t *out) {
  *out = s->value;
  if (!s->steps)
    return MOTH_OK;
  double x = moth_expr_value(s->steps, s->nsteps, m->now);
  if (x != floor(x))
    return moth_fail(MOTH_ERR_VALUE, "[edge] a size is %g, no whole number", x);
  if (!(fabs(x) <= 0x1p53))
    return too_large();
  *out = (int64_t)x;
  return MOTH_OK;
}

static MothStatus number_of(const MothModel *m, const MothEdgeSize *s, MothValue *out) {
  if (s->real) {
    *out = moth_v_float(moth_expr_value(s->steps, s->nsteps, m->now));
    return MOTH_OK;
  }
  int64_t n;
  MOTH_TRY(whole_of(m, s, &n));
  *out = moth_v_int(n);
  return MOTH_OK;
}

/* --- values --------------------------------------------------------------------------------------------- */

static MothStatus check_dtype(MothDType d) {
  if ((unsigned)d < MOTH_NDTYPES && moth_edge_dtypes >> d & 1 && !moth_dtype_is_opt_in(d))
    return MOTH_OK;
  const char *name = (unsigned)d < MOTH_NDTYPES ? moth_dtype_name(d) : "this dtype";
  return moth_fail(MOTH_ERR_TYPE,
                   "[edge] this library does not compute in %s; build it with OPS_OF naming the "
                   "model's file, or with %s in EDGE_DTYPES",
                   name, name);
}

/* A row-major tensor in a storage of its own. */
static MothStatus set_whole(MothModel *m, uint32_t id, MothDType dtype, int ndim,
                            const int64_t *shape) {
  MothEdgeValue *v = &m->values[id];
  MothTensor *t = &v->t;
  MOTH_TRY(check_dtype(dtype));
  MOTH_TRY(moth_shape_numel(ndim, shape, moth_dtype_size(dtype), &t->numel));
  t->dtype = (uint8_t)dtype;
  t->ndim = (uint8_t)ndim;
  for (int i = 0; i < ndim; i++)
    t->shape[i] = shape[i];
  moth_contiguous_strides(ndim, shape, t->stride);
  t->contiguous = true;
  t->offset = 0;
  t->keys = MOTH_KEY_CPU;
  v->storage.nbytes = (size_t)(t->numel * moth_itemsize(t));
  v->root = v->buffer = id;
  v->output = -1;
  return MOTH_OK;
}

/* What an argument, value `of`, is seen as: all of it in its memory is inside. */
static MothStatus set_view(MothModel *m, uint32_t id, uint32_t of, const MothMeta *meta) {
  MothEdgeValue *v = &m->values[id];
  const MothEdgeValue *self = &m->values[of], *root = &m->values[self->root];
  MothTensor *t = &v->t;
  MOTH_TRY(check_dtype((MothDType)meta->dtype));
  int64_t size = moth_dtype_size((MothDType)meta->dtype), low = meta->offset, high = meta->offset;
  MOTH_TRY(moth_shape_numel(meta->ndim, meta->shape, size, &t->numel));
  for (int i = 0; i < meta->ndim && t->numel; i++) {
    int64_t reach;
    if (__builtin_mul_overflow(meta->shape[i] - 1, meta->stride[i], &reach) ||
        __builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high))
      return too_large();
  }
  int64_t end;
  if (t->numel && (low < 0 || __builtin_add_overflow(high, 1, &end) ||
                   __builtin_mul_overflow(end, size, &end) || (size_t)end > root->storage.nbytes))
    return moth_fail(MOTH_ERR_VALUE, "[edge] a view reaches out of its tensor's memory");
  t->dtype = meta->dtype;
  t->ndim = meta->ndim;
  memcpy(t->shape, meta->shape, sizeof *t->shape * meta->ndim);
  memcpy(t->stride, meta->stride, sizeof *t->stride * meta->ndim);
  t->offset = t->numel ? meta->offset : 0;
  t->keys = MOTH_KEY_CPU;
  moth_tensor_update_contiguous(t);
  v->storage.nbytes = root->storage.nbytes;
  v->root = self->root;
  v->output = -1;
  return MOTH_OK;
}

/* The same tensor. */
static void set_same(MothModel *m, uint32_t id, uint32_t of) {
  MothEdgeValue *v = &m->values[id];
  MothStorage *storage = &v->storage;
  v->t = m->values[of].t;
  v->t.storage = storage;
  v->storage.nbytes = m->values[of].storage.nbytes;
  v->root = m->values[of].root;
  v->output = -1;
}

static MothStatus set_inputs(MothModel *m) {
  int64_t shape[MOTH_MAX_DIMS];
  for (uint32_t i = 0; i < m->ninputs; i++) {
    MothEdgeIo *e = &m->inputs[i];
    for (int k = 0; k < e->io.ndim; k++)
      MOTH_TRY(whole_of(m, &e->shape[k], &shape[k]));
    MOTH_TRY(set_whole(m, i, (MothDType)m->values[i].t.dtype, e->io.ndim, shape));
  }
  for (uint32_t i = m->ninputs; i < m->ninputs + m->nstate; i++) {
    const MothTensor *t = &m->values[i].t;
    memcpy(shape, t->shape, sizeof shape);
    MOTH_TRY(set_whole(m, i, (MothDType)t->dtype, t->ndim, shape));
  }
  return MOTH_OK;
}

/* --- calls ---------------------------------------------------------------------------------------------- */

static MothStatus set_arg(MothModel *m, MothEdgeArg *a, MothValue *v) {
  switch ((MothEdgeArgKind)a->kind) {
  case MOTH_ARG_PLAIN:
    *v = a->plain;
    return MOTH_OK;
  case MOTH_ARG_SIZE:
    return number_of(m, a->sizes, v);
  case MOTH_ARG_SIZES:
    for (uint32_t i = 0; i < a->n; i++)
      MOTH_TRY(whole_of(m, &a->sizes[i], &a->ints[i]));
    *v = moth_v_ints(a->ints, a->n);
    return MOTH_OK;
  case MOTH_ARG_VALUE:
    *v = moth_v_tensor(&m->values[a->value].t);
    return MOTH_OK;
  case MOTH_ARG_VALUES:
    for (uint32_t i = 0; i < a->n; i++)
      a->tensors[i] = &m->values[a->values[i]].t;
    *v = moth_v_tensors(a->tensors, a->n);
  }
  return MOTH_OK;
}

static bool is_self(const MothOp *op) {
  return op->returns_self || op->memory == MOTH_MEMORY_SELF;
}

/* An op with an argument `training` writes to statistics in training alone. */
static bool is_inference(const MothEdgeCall *c) {
  for (int i = 0; i < c->op->nargs; i++)
    if (c->op->args[i].type == MOTH_T_BOOL && !strcmp(c->op->args[i].name, "training"))
      return !c->values[i].u.b;
  return false;
}

static bool may_write(const MothModel *m, uint32_t value) {
  const MothEdgeValue *root = &m->values[m->values[value].root];
  return root->kind == MOTH_EDGE_MADE || root->initial;
}

/* What a call writes to lies in memory of the model. */
static MothStatus check_written(const MothModel *m, const MothEdgeCall *c) {
  if (is_inference(c))
    return MOTH_OK;
  for (int i = 0; i < c->op->nargs; i++) {
    const MothEdgeArg *a = &c->args[i];
    if (!(c->op->args[i].mutated || (is_self(c->op) && i == 0)))
      continue;
    if (a->kind == MOTH_ARG_PLAIN && a->plain.tag == MOTH_V_NONE)
      continue;
    bool ok = a->kind == MOTH_ARG_VALUES || (a->kind == MOTH_ARG_VALUE && may_write(m, a->value));
    for (uint32_t k = 0; a->kind == MOTH_ARG_VALUES && k < a->n; k++)
      ok = ok && may_write(m, a->values[k]);
    if (!ok)
      return moth_fail(MOTH_ERR_VALUE, "[edge] it writes to an input or a constant");
    if (moth_tensor_self_overlaps(&m->values[a->value].t))
      return moth_fail(MOTH_ERR_VALUE,
                       "[edge] it writes to a tensor that holds several elements in one place");
  }
  return MOTH_OK;
}

static MothStatus plan_fused(MothModel *m, MothEdgeCall *c) {
  for (uint32_t i = 0; i < c->nresults; i++) {
    const MothFusedValue *v = &c->fused->results[i];
    MOTH_TRY(set_whole(m, c->result + i, (MothDType)v->dtype, v->ndim, v->shape));
  }
  return MOTH_OK;
}

static MothStatus plan_call(MothModel *m, MothEdgeCall *c) {
  const MothOp *op = c->op;
  if (c->control)
    return m->values[c->pred].t.numel == 1 &&
                   !moth_dtype_is_complex((MothDType)m->values[c->pred].t.dtype)
               ? MOTH_OK
               : moth_fail(MOTH_ERR_VALUE, "[edge] the condition is not one element");
  if (c->fused)
    return plan_fused(m, c);
  MothMeta metas[MOTH_MAX_RESULTS];
  memset(metas, 0, sizeof metas);
  for (int i = 0; i < op->nargs; i++)
    MOTH_TRY(set_arg(m, &c->args[i], &c->values[i]));
  MOTH_TRY(moth_op_check(op, op->nargs, c->values));
  c->target = c->values[0].tag == MOTH_V_TENSOR ? c->values[0].u.t : NULL;
  c->call = (MothCall){.op = op,
                       .keys = MOTH_KEY_CPU,
                       .args = c->values,
                       .results = c->results,
                       .variant = op->returns_self ? MOTH_INPLACE : MOTH_FUNCTIONAL,
                       .target = op->returns_self ? &c->target : NULL};
  MOTH_TRY(check_written(m, c));
  MOTH_TRY(moth_canonical(&c->call, c->values + op->nargs, c->workspace));
  if (op->shape)
    MOTH_TRY(op->shape(&c->call, metas));
  c->call.dtype = metas[0].compute;
  MOTH_TRY(check_dtype((MothDType)c->call.dtype));
  for (int i = 0; i < op->nresults; i++) {
    uint32_t id = c->result + (uint32_t)i, of = c->args[0].value;
    bool one = op->nargs && c->args[0].kind == MOTH_ARG_VALUE;
    if (is_self(op) && i == 0 && one)
      set_same(m, id, of);
    else if (op->memory == MOTH_MEMORY_VIEW && one)
      MOTH_TRY(set_view(m, id, of, &metas[i]));
    else
      MOTH_TRY(set_whole(m, id, (MothDType)metas[i].dtype, metas[i].ndim, metas[i].shape));
    c->results[i] = moth_v_tensor(is_self(op) && i == 0 ? c->target : &m->values[id].t);
  }
  return MOTH_OK;
}

/* --- lives ---------------------------------------------------------------------------------------------- */

static void use(MothModel *m, uint32_t id, uint32_t call) {
  MothArenaBuffer *root = &m->values[m->values[id].root].life;
  if (root->last < call)
    root->last = call;
}

static void use_args(MothModel *m, uint32_t call) {
  const MothEdgeCall *c = &m->calls[call];
  for (uint32_t i = 0; i < c->nargs; i++) {
    const MothEdgeArg *a = &c->args[i];
    if (a->kind == MOTH_ARG_VALUE)
      use(m, a->value, call);
    for (uint32_t k = 0; a->kind == MOTH_ARG_VALUES && k < a->n; k++)
      use(m, a->values[k], call);
  }
}

/* What is made before a loop and used in it is used until the loop ends. */
static void extend_lives(MothModel *m) {
  for (uint32_t i = 0; i < m->ncalls; i++) {
    const MothEdgeCall *c = &m->calls[i];
    uint32_t end = i + 1 + c->blocks[0] + c->blocks[1];
    for (uint32_t k = 0; c->control == MOTH_CONTROL_WHILE && k < m->nvalues; k++) {
      MothArenaBuffer *v = &m->values[k].life;
      if (v->first < i && v->last >= i && v->last < end)
        v->last = end;
    }
  }
}

/* Of values that calls make; those of others say nothing. */
static void find_lives(MothModel *m) {
  for (uint32_t i = 0; i < m->ncalls; i++) {
    const MothEdgeCall *c = &m->calls[i];
    for (uint32_t k = 0; k < c->nresults; k++) {
      MothEdgeValue *v = &m->values[c->result + k];
      int64_t bytes = moth_arena_bytes((int64_t)v->storage.nbytes);
      v->life = (MothArenaBuffer){.bytes = bytes, .first = i, .last = i};
    }
    use_args(m, i);
    if (c->control)
      use(m, c->pred, i);
  }
  for (uint32_t i = 0; i < m->noutputs; i++) {
    uint32_t id = m->outputs[i].value;
    MothEdgeValue *v = &m->values[id];
    use(m, id, m->ncalls);
    if (v->kind == MOTH_EDGE_MADE && v->output < 0)
      v->output = (int32_t)i;
  }
  extend_lives(m);
}

/* --- the arena ------------------------------------------------------------------------------------------ */

/* The root whose place a result of a pointwise call takes: that of an operand that is read there for the last time. */
static bool find_place(const MothModel *m, uint32_t call, const MothEdgeValue *result,
                       uint32_t *out) {
  const MothEdgeCall *c = &m->calls[call];
  for (int i = 0; c->op->kind == MOTH_KIND_POINTWISE && i < c->op->nargs; i++) {
    const MothEdgeArg *a = &c->args[i];
    if (a->kind != MOTH_ARG_VALUE || !result->t.numel)
      continue;
    const MothEdgeValue *root = &m->values[m->values[a->value].root];
    bool fits = root->kind == MOTH_EDGE_MADE && root->output < 0 && root->life.last == call;
    for (int k = 0; k < c->op->nargs && fits; k++) {
      const MothEdgeValue *v = &m->values[c->args[k].value];
      if (c->args[k].kind == MOTH_ARG_VALUE && v->root == (uint32_t)(root - m->values))
        fits =
            moth_arena_may_replace(&v->t, v->t.offset, (int64_t)root->storage.nbytes, &result->t);
    }
    if (fits) {
      *out = root->buffer;
      return true;
    }
  }
  return false;
}

/* The buffers, in m->order, each with the life of all values in it. */
static uint32_t find_buffers(MothModel *m) {
  uint32_t n = 0, place;
  for (uint32_t i = 0; i < m->ncalls; i++) {
    const MothEdgeCall *c = &m->calls[i];
    for (uint32_t k = 0; k < c->nresults; k++) {
      MothEdgeValue *v = &m->values[c->result + k];
      if (v->kind != MOTH_EDGE_MADE || v->output >= 0)
        continue;
      if (c->op && c->nresults == 1 && find_place(m, i, v, &place)) {
        v->buffer = place;
        m->values[place].life.last = v->life.last;
      } else {
        m->order[n++] = &v->life;
      }
    }
  }
  return n;
}

/* --- the whole ------------------------------------------------------------------------------------------ */

static void show(MothModel *m, MothEdgeIo *e) {
  const MothTensor *t = &m->values[e->value].t;
  e->io.dtype = moth_dtype_name((MothDType)t->dtype);
  e->io.itemsize = (int)moth_itemsize(t);
  e->io.ndim = t->ndim;
  e->io.shape = t->shape;
  e->io.nbytes = (size_t)(t->numel * moth_itemsize(t));
}

static MothStatus check_dims(const MothModel *m, const int64_t *dims) {
  for (uint32_t i = 0; i < m->ndims; i++) {
    const MothDim *d = &m->dims[i];
    int64_t n = dims[i];
    if (n < d->min || (d->max >= 0 && n > d->max) || n % d->step != 0)
      return moth_fail(MOTH_ERR_VALUE,
                       "[edge] %s is %lld, outside its range of %lld to %s%.0lld%s%.0lld", d->name,
                       (long long)n, (long long)d->min, d->max < 0 ? "any" : "",
                       d->max < 0 ? 0LL : (long long)d->max, d->step > 1 ? ", in steps of " : "",
                       d->step > 1 ? (long long)d->step : 0LL);
  }
  return MOTH_OK;
}

MothStatus moth_edge_plan(MothModel *m, const int64_t *dims) {
  int64_t now[MOTH_EDGE_MOST_DIMS];
  for (uint32_t i = 0; i < m->ndims; i++)
    now[i] = dims ? dims[i] : m->dims[i].example;
  MOTH_TRY(check_dims(m, now));
  for (uint32_t i = 0; i < m->nguards; i++)
    if (moth_expr_value(m->guards[i].is.steps, m->guards[i].is.nsteps, now) == 0)
      return moth_fail(MOTH_ERR_VALUE,
                       "[edge] the program was recorded where %s: it is for other sizes",
                       m->guards[i].text);
  m->planned = m->measured = false;
  memcpy(m->now, now, sizeof *now * m->ndims);
  MOTH_TRY(set_inputs(m));
  for (uint32_t i = 0; i < m->ncalls; i++) {
    MothStatus s = plan_call(m, &m->calls[i]);
    if (s != MOTH_OK) {
      moth_error_prefix("[edge] call %u of %s: ", i + 1, moth_edge_name(&m->calls[i]));
      return s;
    }
  }
  find_lives(m);
  uint32_t n = find_buffers(m);
  int64_t bytes = moth_arena_place(m->order, m->order + n, n);
  if (bytes < 0)
    return too_large();
  m->arena = (size_t)bytes;
  for (uint32_t i = 0; i < m->ninputs; i++)
    show(m, &m->inputs[i]);
  for (uint32_t i = 0; i < m->noutputs; i++)
    show(m, &m->outputs[i]);
  m->planned = true;
  return MOTH_OK;
}
