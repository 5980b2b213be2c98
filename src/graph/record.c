/* A record: a call without its tensors, made from a call and made into one. */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "graph/trace.h"
#include "ops/create.h"

enum { EXACT_BITS = 53 }; /* of integers that a number of Lua can be */

/* Whether a program in Lua can give the number as it is. */
static bool is_exact(const MothValue *v) {
  int64_t most = (int64_t)1 << EXACT_BITS;
  return v->tag != MOTH_V_INT || (!v->n && v->u.i <= most && v->u.i >= -most);
}

/* An argument whose value is the call's own: it decides about no size and no dtype (beyond what any_number says), nor which
 * tensors the results are. */
static bool is_free(const MothTrace *t, const MothOp *op, const MothArg *a, const MothValue *v) {
  bool effect = op->kind == MOTH_KIND_EFFECT;
  if (v->tag == MOTH_V_GENERATOR)
    return !t->host;
  if ((v->tag != MOTH_V_INT && v->tag != MOTH_V_FLOAT) || !is_exact(v))
    return false;
  switch ((MothType)a->type) {
  case MOTH_T_OPERAND:
  case MOTH_T_SCALAR:
    if (a->has_default && !effect && v->tag == a->def.tag && v->u.i == a->def.u.i)
      return false; /* seldom given: a constant is more to a compiler */
    return effect || op->returns_self || op->kind == MOTH_KIND_POINTWISE ||
           op->kind == MOTH_KIND_MATMUL || op == MOTH_OP(full);
  case MOTH_T_FLOAT:
    return effect || op->returns_self || op->shape;
  case MOTH_T_INT:
    return effect;
  default:
    return false;
  }
}

bool moth_grow(void *list, uint32_t *cap, size_t n, size_t size) {
  size_t to = *cap ? *cap : 32;
  if (n <= *cap)
    return true;
  while (to < n || to == *cap)
    to *= 2;
  void *more = to <= UINT32_MAX ? realloc(*(void **)list, size * to) : NULL;
  if (!more) {
    moth_no_memory(size * to);
    return false;
  }
  *(void **)list = more;
  *cap = (uint32_t)to;
  return true;
}

bool moth_same_strides(int ndim, int64_t numel, const int64_t *shape, const int64_t *a,
                       const int64_t *b) {
  for (int i = 0; i < ndim && numel; i++)
    if (shape[i] != 1 && a[i] != b[i])
      return false;
  return true;
}

bool moth_op_writes(const MothOp *op) {
  bool any = op->returns_self;
  for (int i = 0; i < op->nargs; i++)
    any = any || op->args[i].mutated;
  return any;
}

uint32_t moth_args_ntensors(const MothOp *op, const MothValue *args) {
  uint32_t n = 0;
  for (int i = 0; i < op->nargs; i++)
    n += moth_ntensors(args[i]);
  return n;
}

MothTensor **moth_args_fill(const MothOp *op, MothValue *args, MothTensor **tensors) {
  for (int i = 0; i < op->nargs; i++) {
    uint32_t n = moth_ntensors(args[i]);
    if (args[i].tag == MOTH_V_TENSORS)
      args[i].u.tensors = tensors;
    else if (n)
      args[i].u.t = *tensors;
    tensors += n;
  }
  return tensors;
}

void moth_trace_modes(MothTraceModes *m) {
  const MothThread *t = &moth_thread;
  memset(m, 0, sizeof *m); /* they are compared as bytes */
  m->include = t->include & ~(uint32_t)(MOTH_KEY_ABOVE | MOTH_KEY_BELOW);
  m->exclude = t->exclude;
  memcpy(m->autocast, t->autocast, sizeof m->autocast);
  m->no_grad = t->no_grad;
  m->dtype = (uint8_t)moth_default_dtype();
}

bool moth_trace_value_copy(MothValue *to, const MothValue *v) {
  *to = *v;
  if (v->tag == MOTH_V_INTS) {
    int64_t *ints = malloc(sizeof(int64_t) * (v->n + 1));
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

void moth_trace_value_free(MothValue v) {
  if (v.tag == MOTH_V_INTS)
    free((void *)(uintptr_t)v.u.ints);
  else if (v.tag == MOTH_V_STRING)
    free((void *)(uintptr_t)v.u.s);
  else if (v.tag == MOTH_V_GENERATOR)
    moth_generator_release(v.u.g);
}

static void free_parts(const MothRecord *r, MothTraceArg *args, MothTraceMeta *inputs,
                       const MothTraceMeta *metas) {
  for (int i = 0; args && i < r->op->nargs; i++)
    moth_trace_value_free(args[i].value);
  for (uint32_t i = 0; inputs && i < r->nnew; i++)
    free(inputs[i].dims);
  for (int i = 0; i < r->op->nresults; i++)
    free(metas[i].dims);
  free(inputs);
  free(args);
}

void moth_record_swap(MothRecord *r, MothRecordKnown *k) {
  MothRecordFit *f = k->fit;
  MothRecordFit was = {
      r->sizes, r->parent_sizes, {r->varying[0], r->varying[1]}, r->args, r->inputs};
  uint64_t key = r->key;
  for (int i = 0; i < r->op->nargs; i++)
    r->args[i].varied = f->args[i].varied =
        r->args[i].varied || f->args[i].varied ||
        !moth_trace_value_same(&r->args[i].value, &f->args[i].value);
  for (int i = 0; i < r->op->nresults; i++) {
    MothTraceMeta meta = r->metas[i];
    r->metas[i] = f->metas[i];
    f->metas[i] = meta;
  }
  r->sizes = f->sizes;
  r->parent_sizes = f->parent_sizes;
  memcpy(r->varying, f->varying, sizeof r->varying);
  r->args = f->args;
  r->inputs = f->inputs;
  f->sizes = was.sizes;
  f->parent_sizes = was.parent_sizes;
  memcpy(f->varying, was.varying, sizeof was.varying);
  f->args = was.args;
  f->inputs = was.inputs;
  r->key = k->key;
  k->key = key;
}

static void free_fit(const MothRecord *r, MothRecordFit *f) {
  free_parts(r, f->args, f->inputs, f->metas);
  free(f);
}

enum { MOST_KNOWN = 64 };

bool moth_record_refit(MothRecord *r, MothRecord *now) {
  size_t nresults = (size_t)r->op->nresults;
  if (!r->known && !(r->known = calloc(MOST_KNOWN, sizeof *r->known)))
    return false;
  MothRecordFit *f = calloc(1, sizeof *f + sizeof *f->metas * nresults);
  if (!f)
    return false;
  uint32_t at = r->nknown < MOST_KNOWN ? r->nknown++ : r->next_known++ % MOST_KNOWN;
  if (r->known[at].fit)
    free_fit(r, r->known[at].fit);
  memcpy(f->varying, now->varying, sizeof f->varying);
  f->args = now->args;
  f->inputs = now->inputs;
  memcpy(f->metas, now->metas, sizeof *f->metas * nresults);
  now->args = NULL;
  now->inputs = NULL;
  memset(now->metas, 0, sizeof now->metas);
  moth_record_free(now);
  r->known[at].fit = f;
  moth_record_swap(r, &r->known[at]);
  return true;
}

void moth_record_free(MothRecord *r) {
  free_parts(r, r->args, r->inputs, r->metas);
  for (uint32_t i = 0; i < r->nknown; i++)
    free_fit(r, r->known[i].fit);
  free(r->known);
  free(r->numbers);
  free(r->place);
  free(r);
}

static uint32_t dtypes_of(const MothCall *c) {
  uint32_t all = 0;
  for (int i = 0; i < c->op->nargs; i++)
    if (c->args[i].tag == MOTH_V_TENSOR)
      all |= 1u << c->args[i].u.t->dtype;
  return all;
}

static bool has_float(uint32_t dtypes) {
  for (int d = 0; d < MOTH_NDTYPES; d++)
    if (dtypes & 1u << d && moth_dtype_is_float((MothDType)d))
      return true;
  return false;
}

bool moth_record_takes(const MothRecord *r, int i, const MothValue *v) {
  const MothArg *a = &r->op->args[i];
  double d = moth_as_double(*v);
  if (!is_exact(v) || (a->bounded && !(d <= a->high && (a->open ? d > a->low : d >= a->low))))
    return false;
  if (a->type != MOTH_T_OPERAND && a->type != MOTH_T_SCALAR)
    return true;
  uint32_t dtypes = r->op->factory ? 1u << r->metas[0].dtype : r->dtypes;
  for (uint32_t left = dtypes; left; left &= left - 1)
    if (!moth_dtype_fits((MothDType)__builtin_ctz(left), *v))
      return false;
  return r->any_number || d >= 0 || moth_as_double(r->args[i].value) < 0;
}

MothStatus moth_record_new(MothSegment *s, const MothCall *c, uint32_t nnumbers, uint32_t nnew,
                           MothTensor *const *fresh, MothRecord **out) {
  const MothOp *op = c->op;
  MothRecord *r = calloc(1, sizeof *r);
  if (!r)
    return moth_no_memory(sizeof *r);
  r->op = op;
  r->variant = c->variant;
  r->nnumbers = nnumbers;
  r->nnew = nnew;
  r->first = s->nvalues;
  r->dtypes = dtypes_of(c);
  r->any_number = op->kind == MOTH_KIND_EFFECT || op == MOTH_OP(full) || has_float(r->dtypes);
  r->writes = c->target || moth_op_writes(op);
  r->args = calloc((size_t)op->nargs + 1, sizeof *r->args);
  r->inputs = calloc((size_t)nnew + 1, sizeof *r->inputs);
  r->numbers = malloc(sizeof *r->numbers * ((size_t)nnumbers + 1));
  bool ok = r->args && r->inputs && r->numbers;
  if (ok)
    memcpy(r->numbers, s->numbers, sizeof *r->numbers * nnumbers);
  for (int i = 0; i < op->nargs && ok; i++) {
    r->args[i].free = is_free(s->recorder->trace, op, &op->args[i], &c->args[i]);
    ok = moth_trace_value_copy(&r->args[i].value, &c->args[i]);
  }
  for (uint32_t i = 0; i < nnew && ok; i++)
    ok = moth_meta_of(fresh[i], true, &r->inputs[i]);
  if (!ok) {
    moth_record_free(r);
    return moth_no_memory(0);
  }
  moth_record_vary(r);
  moth_trace_modes(&r->modes);
  *out = r;
  return MOTH_OK;
}

MothStatus moth_record_call(const MothRecord *r, MothSegment *s, MothTensor **values,
                            const MothValue *varying, MothValue *results) {
  const MothOp *op = r->op;
  MothThread *t = &moth_thread;
  MothValue args[MOTH_MAX_ARGS];
  for (uint32_t k = 0; k < r->nnumbers; k++)
    s->scratch[k] = values[r->numbers[k]];
  for (int i = 0; i < op->nargs; i++)
    args[i] = varying && moth_arg_varies(r, i, true) ? *varying++ : r->args[i].value;
  MothTensor **target = moth_args_fill(op, args, s->scratch);
  MothCall c = {.op = op,
                .args = args,
                .results = results,
                .variant = r->variant,
                .target = r->variant == MOTH_FUNCTIONAL ? NULL : target};
  uint32_t include = t->include, exclude = t->exclude;
  uint8_t autocast[MOTH_NDEVICES];
  bool no_grad = t->no_grad;
  memcpy(autocast, t->autocast, sizeof autocast);
  t->include = r->modes.include | (include & (MOTH_KEY_ABOVE | MOTH_KEY_BELOW | MOTH_KEY_FAKE));
  t->exclude = r->modes.exclude | (exclude & (MOTH_KEY_ABOVE | MOTH_KEY_BELOW));
  t->no_grad = r->modes.no_grad;
  memcpy(t->autocast, r->modes.autocast, sizeof autocast);
  MothStatus status = moth_dispatch(&c);
  t->include = include;
  t->exclude = exclude;
  t->no_grad = no_grad;
  memcpy(t->autocast, autocast, sizeof autocast);
  return status;
}
