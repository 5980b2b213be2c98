/* Batched tensors, and their step. See batch.h. */
#include "dispatch/batch.h"

#include <string.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "dispatch/eval.h"
#include "ops/create.h"
#include "ops/pointwise.h"
#include "ops/view.h"

/* --- levels ------------------------------------------------------------------------------------- */

static void drop_vmap(MothFrame *f) {
  moth_free(f, sizeof(MothVmap));
}

MothStatus moth_vmap_open(int64_t size, MothRandomness randomness, uint64_t *level) {
  static _Atomic uint64_t last;
  MothVmap *v = moth_alloc(sizeof *v);
  if (!v)
    return moth_no_memory(sizeof *v);
  memset(v, 0, sizeof *v);
  atomic_init(&v->frame.refs, 1);
  v->frame.drop = drop_vmap;
  v->level = *level = atomic_fetch_add(&last, 1) + 1;
  v->outer_level = moth_thread.level;
  v->size = size;
  v->randomness = (uint8_t)randomness;
  moth_frame_push(&moth_thread.vmaps, &v->frame);
  moth_thread.level = v->level;
  moth_thread.include |= MOTH_KEY_BATCH; /* random numbers have no tensor that tells */
  return MOTH_OK;
}

const MothVmap *moth_vmap_find(uint64_t level) {
  for (const MothFrame *f = moth_thread.vmaps; f; f = f->outer)
    if (!f->closed && ((const MothVmap *)f)->level == level)
      return (const MothVmap *)f;
  return NULL;
}

void moth_vmap_close(uint64_t level) {
  for (MothFrame *f = moth_thread.vmaps; f; f = f->outer) {
    MothVmap *v = (MothVmap *)f;
    if (v->level != level)
      continue;
    if (moth_thread.level == level)
      moth_thread.level = v->outer_level;
    moth_frame_close(&moth_thread.vmaps, f);
    if (!moth_thread.vmaps)
      moth_thread.include &= ~(uint32_t)MOTH_KEY_BATCH;
    return;
  }
}

/* --- tensors ------------------------------------------------------------------------------------ */

static void release_batch(MothCarried *carried) {
  MothBatch *b = (MothBatch *)carried;
  moth_tensor_release(b->physical);
  moth_free(b, sizeof *b);
}

/* Has t carry the batch (physical is retained). */
static MothStatus carry(MothTensor *t, MothTensor *physical, uint64_t level) {
  MothBatch *b = moth_alloc(sizeof *b);
  if (!b)
    return moth_no_memory(sizeof *b);
  *b = (MothBatch){{1, MOTH_KEY_BATCH, release_batch}, physical, level};
  moth_tensor_retain(physical);
  moth_tensor_carry(t, &b->carried);
  return MOTH_OK;
}

/* Calls what the functions below need, below autograd. */
static MothStatus permute(MothTensor *t, int from, int to, MothTensor **out) {
  int64_t order[MOTH_MAX_DIMS];
  int n = 0;
  for (int i = 0; i < t->ndim; i++) {
    if (n == to)
      order[n++] = from;
    if (i != from)
      order[n++] = i;
  }
  if (n == to)
    order[n] = from;
  return moth_permute(t, order, t->ndim, out);
}

/* A header for element 0 of physical; of: the tensor that it is a view of, or NULL. */
static MothStatus element(MothTensor *physical, MothTensor *of, MothTensor **out) {
  int n = physical->ndim - 1;
  if (physical->shape[0] == 0) /* there is none: elements that nobody reads */
    return moth_tensor_new(n, physical->shape + 1, (MothDType)physical->dtype, physical->device,
                           out);
  MOTH_TRY(moth_tensor_view_as(of ? of : physical, (MothDType)physical->dtype, n,
                               physical->shape + 1, physical->stride + 1, physical->offset, out));
  if (!of) {
    MothTensor *base = (*out)->base;
    (*out)->base = NULL;
    moth_tensor_release(base);
  }
  return MOTH_OK;
}

/* physical as a batch of a level higher than its own. */
static MothStatus wrap_front(MothTensor *physical, MothTensor *of, uint64_t level,
                             MothTensor **out) {
  MOTH_TRY(element(physical, of, out));
  MothStatus s = carry(*out, physical, level);
  if (s != MOTH_OK)
    moth_tensor_release(*out);
  return s;
}

static MothStatus wrap(MothTensor *physical, int dim, uint64_t level, MothTensor **out) {
  const MothBatch *b = moth_batch_of(physical);
  MothTensor *t;
  if (b && b->level > level) { /* under the higher level */
    MOTH_TRY(wrap(b->physical, dim + 1, level, &t));
    MothStatus s = wrap_front(t, NULL, b->level, out);
    moth_tensor_release(t);
    return s;
  }
  if (dim == 0)
    return wrap_front(physical, NULL, level, out);
  MOTH_TRY(permute(physical, dim, 0, &t));
  MothStatus s = wrap_front(t, NULL, level, out);
  moth_tensor_release(t);
  return s;
}

static MothStatus unwrap(MothTensor *t, uint64_t level, MothTensor **out) {
  const MothBatch *b = moth_batch_of(t);
  MothTensor *inner, *front;
  *out = NULL;
  if (!b || b->level < level)
    return MOTH_OK;
  if (b->level == level) {
    *out = b->physical;
    moth_tensor_retain(*out);
    return MOTH_OK;
  }
  MOTH_TRY(unwrap(b->physical, level, &inner));
  if (!inner)
    return MOTH_OK;
  MothStatus s = permute(inner, 1, 0, &front); /* this level, the higher one, … */
  moth_tensor_release(inner);
  MOTH_TRY(s);
  s = wrap_front(front, NULL, b->level, out);
  moth_tensor_release(front);
  return s;
}

/* Other steps must not see what is done for a batch. */
enum {
  APART = MOTH_KEY_ABOVE | MOTH_KEY_BELOW | MOTH_KEY_AUTOCAST | MOTH_KEY_AUTOGRAD | MOTH_KEY_TANGENT
};

MothStatus moth_batch_wrap(MothTensor *physical, int dim, uint64_t level, MothTensor **out) {
  uint32_t exclude = moth_thread.exclude;
  moth_thread.exclude |= APART;
  MothStatus s = wrap(physical, dim, level, out);
  moth_thread.exclude = exclude;
  return s;
}

MothStatus moth_batch_unwrap(MothTensor *t, uint64_t level, MothTensor **out) {
  uint32_t exclude = moth_thread.exclude;
  moth_thread.exclude |= APART;
  MothStatus s = unwrap(t, level, out);
  moth_thread.exclude = exclude;
  return s;
}

bool moth_batch_has(const MothTensor *t, uint64_t level, int64_t *size) {
  int outer = 0; /* dimensions of higher levels, which stand in front */
  for (const MothBatch *b = moth_batch_of(t); b && b->level >= level;
       b = moth_batch_of(b->physical), outer++)
    if (b->level == level) {
      *size = b->physical->shape[0];
      return true;
    }
  return false;
}

MothStatus moth_made_as(const MothTensor *t, MothTensor **out) {
  const MothBatch *b = moth_batch_of(t);
  if (!b) {
    moth_tensor_carry_as(*out, t);
    return MOTH_OK;
  }
  MothTensor *made = *out, *wide = NULL, *copy = NULL, *inner;
  int64_t shape[MOTH_MAX_DIMS + 1] = {b->physical->shape[0]};
  memcpy(shape + 1, made->shape, sizeof(int64_t) * made->ndim);
  uint32_t exclude = moth_thread.exclude;
  moth_thread.exclude |= APART;
  MothStatus status = moth_expand(made, shape, made->ndim + 1, &wide);
  if (status == MOTH_OK)
    status = moth_clone(wide, &copy);
  moth_tensor_release(wide);
  moth_tensor_release(made);
  if (status == MOTH_OK && moth_batch_of(b->physical)) {
    inner = copy;
    copy = NULL;
    status = moth_made_as(b->physical, &inner);
    copy = status == MOTH_OK ? inner : NULL;
  }
  if (status == MOTH_OK)
    status = wrap_front(copy, NULL, b->level, out);
  moth_tensor_release(copy);
  moth_thread.exclude = exclude;
  return status;
}

/* x is chosen by a condition that is batched as the values are. */
MothStatus moth_match_batches(MothValue *x, int n, const MothValue *values) {
  for (int i = 0; i < n; i++) {
    bool more = false;
    int64_t size;
    if (values[i].tag != MOTH_V_TENSOR)
      continue;
    for (const MothBatch *b = moth_batch_of(values[i].u.t); b; b = moth_batch_of(b->physical))
      more = more || !moth_batch_has(x->u.t, b->level, &size);
    if (!more)
      continue;
    MothTensor *yes, *chosen;
    MOTH_TRY(moth_ones(NULL, 0, moth_v_dtype(MOTH_BOOL), moth_v_device(x->u.t->device), &yes));
    MOTH_TRY(moth_made_as(values[i].u.t, &yes));
    MothStatus s = moth_where(yes, *x, *x, &chosen);
    moth_tensor_release(yes);
    MOTH_TRY(s);
    moth_tensor_release(x->u.t);
    x->u.t = chosen;
  }
  return MOTH_OK;
}

/* --- the step ------------------------------------------------------------------------------------ */

static uint64_t highest_level(const MothCall *c) {
  uint64_t level = 0;
#define LOOK(t) level = moth_batch_level(t) > level ? moth_batch_level(t) : level
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    if (v.tag == MOTH_V_TENSOR)
      LOOK(v.u.t);
    for (uint32_t k = 0; v.tag == MOTH_V_TENSORS && k < v.n; k++)
      LOOK(v.u.tensors[k]);
  }
  for (int i = 0; c->target && i < c->op->nresults; i++)
    LOOK(c->target[i]);
#undef LOOK
  return level;
}

bool moth_call_is_random(const MothCall *c) {
  if (!c->op->draws)
    return false;
  for (int i = 0; i < c->op->nargs; i++)
    if (!strcmp(c->op->args[i].name, "dropout_p"))
      return c->args[i].u.d > 0;
  return true;
}

static MothStatus refuse_random(void) {
  return moth_fail(MOTH_ERR_STATE,
                   "vmap: a random op needs randomness = 'different' (an own draw for "
                   "each element) or 'same' (one for all); the default is 'error'");
}

static MothGenerator *generator_of(const MothCall *c) {
  for (int i = 0; i < c->op->nargs; i++)
    if (c->args[i].tag == MOTH_V_GENERATOR)
      return c->args[i].u.g;
  return moth_default_generator();
}

/* What of a call writes, but is not batched. */
static MothStatus check_targets(const MothBatchCall *b) {
  const MothCall *c = b->c;
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    bool written = c->op->args[i].mutated || (i == 0 && c->variant == MOTH_INPLACE);
    for (uint32_t k = 0; written && k < (v.tag == MOTH_V_TENSORS ? v.n : v.tag == MOTH_V_TENSOR);
         k++) {
      const MothTensor *t = v.tag == MOTH_V_TENSORS ? v.u.tensors[k] : v.u.t;
      if (moth_batch_level(t) != b->level)
        return moth_fail(
            MOTH_ERR_STATE,
            "vmap: '%s' is the same tensor for each of the batch, so values that differ "
            "cannot be written to it in place; use the op that returns a new tensor, or "
            "make the tensor of a batched one, as x:new_zeros(…) or x:clone()",
            c->op->args[i].name);
    }
  }
  for (int i = 0; c->variant == MOTH_OUT && i < c->op->nresults; i++)
    if (moth_batch_level(c->target[i]) != b->level)
      return moth_fail(MOTH_ERR_STATE, "vmap: `out` is the same tensor for each of the batch, so "
                                       "values that differ cannot be written to it");
  return MOTH_OK;
}

/* Makes the results of c from those of a rule. */
static MothStatus finish(MothBatchCall *b) {
  MothCall *c = b->c;
  char got[200], want[200];
  for (int i = 0; i < c->op->nresults; i++) {
    MothTensor *t = b->results[i];
    if (b->shared[i]) {
      c->results[i] = moth_v_tensor(t);
      b->results[i] = NULL;
      continue;
    }
    const MothMeta *m = &b->metas[i];
    if (b->known && t->numel == 0 && t->ndim == m->ndim &&
        !memcmp(t->shape, m->shape, sizeof(int64_t) * m->ndim)) { /* one that was not asked for */
      c->results[i] = moth_v_tensor(t);
      b->results[i] = NULL;
      continue;
    }
    if (b->known && (t->ndim != m->ndim + 1 || t->shape[0] != b->size ||
                     memcmp(t->shape + 1, m->shape, sizeof(int64_t) * m->ndim) != 0))
      return moth_fail(MOTH_ERR_STATE,
                       "vmap: the result of %lld elements has shape %s, %s for each was expected",
                       (long long)b->size, moth_shape_format(t->ndim, t->shape, got, sizeof got),
                       moth_shape_format(m->ndim, m->shape, want, sizeof want));
    if (b->known && t->dtype != m->dtype) {
      MOTH_TRY(moth_to(t, moth_v_dtype((MothDType)m->dtype), moth_v_none(), false, false,
                       &b->results[i]));
      moth_tensor_release(t);
      t = b->results[i];
    }
    MothTensor *made;
    bool view = c->op->memory == MOTH_MEMORY_VIEW && c->op != MOTH_OP(detach) &&
                t->storage == c->args[0].u.t->storage;
    MOTH_TRY(wrap_front(t, view ? c->args[0].u.t : NULL, b->level, &made));
    c->results[i] = moth_v_tensor(made);
  }
  return MOTH_OK;
}

/* Writes the results for each element to the targets, whose physical tensors are there. */
static MothStatus write_targets(MothBatchCall *b) {
  MothCall *c = b->c;
  for (int i = 0; i < c->op->nresults; i++) {
    MothTensor *target = c->target[i], *to = moth_batch_of(target)->physical,
               *result = b->results[i], *self;
    char got[200], want[200];
    int lead = b->shared[i] ? 0 : 1;
    if (result->ndim - lead != target->ndim ||
        memcmp(result->shape + lead, target->shape, sizeof(int64_t) * target->ndim) != 0)
      return moth_fail(
          MOTH_ERR_VALUE, "the result has shape %s but is to be written to a tensor of shape %s",
          moth_shape_format(result->ndim - lead, result->shape + lead, got, sizeof got),
          moth_shape_format(target->ndim, target->shape, want, sizeof want));
    MOTH_TRY(moth_call1(MOTH_OP(copy_), 2, (MothValue[]){moth_v_tensor(to), moth_v_tensor(result)},
                        &self));
    moth_tensor_release(self);
  }
  return MOTH_OK;
}

static MothStatus run_level(MothBatchCall *b, const MothVmap *v) {
  MothCall *c = b->c;
  if (v && v->randomness == MOTH_RANDOM_ERROR)
    return refuse_random();
  MOTH_TRY(check_targets(b));
  MothGenerator *same = v && v->randomness == MOTH_RANDOM_SAME ? generator_of(c) : NULL;
  if (!same)
    MOTH_TRY(moth_batch_rule(b));
  if (!b->done)
    MOTH_TRY(moth_batch_loop(b, same));
  if (!c->target)
    return finish(b);
  if (!c->op->returns_self && b->results[0])
    MOTH_TRY(write_targets(b));
  for (int i = 0; i < c->op->nresults; i++) {
    moth_tensor_retain(c->target[i]);
    c->results[i] = moth_v_tensor(c->target[i]);
  }
  return MOTH_OK;
}

/* vmap: the open one of this level, if the call takes random numbers: it is off while the call's parts run. */
static MothStatus run_batched(MothCall *c, uint64_t level, const MothVmap *vmap) {
  MothBatchCall b = {.c = c, .level = level};
  int64_t size = -1;
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    for (uint32_t k = 0; k < (v.tag == MOTH_V_TENSORS ? v.n : v.tag == MOTH_V_TENSOR); k++) {
      const MothTensor *t = v.tag == MOTH_V_TENSORS ? v.u.tensors[k] : v.u.t;
      if (moth_batch_level(t) != level)
        continue;
      if (v.tag == MOTH_V_TENSOR)
        b.physical[i] = moth_batch_of(t)->physical;
      size = moth_batch_of(t)->physical->shape[0];
    }
  }
  for (int i = 0; size < 0 && i < c->op->nresults; i++) /* only `out` is batched */
    if (moth_batch_level(c->target[i]) == level)
      size = moth_batch_of(c->target[i])->physical->shape[0];
  b.size = size;
  if (c->op->shape) {
    for (int i = 0; i < c->op->nresults; i++)
      b.metas[i] = (MothMeta){.device = c->device};
    MOTH_TRY(c->op->shape(c, b.metas));
    b.known = true;
  }
  MothFrame *all = moth_thread.vmaps;
  if (vmap)
    moth_thread.vmaps = vmap->frame.outer;
  MothStatus s = run_level(&b, vmap);
  moth_thread.vmaps = all;
  for (int i = 0; i < c->op->nresults; i++) {
    moth_tensor_release(b.results[i]);
    if (s != MOTH_OK && c->results[i].tag == MOTH_V_TENSOR) {
      moth_tensor_release(c->results[i].u.t);
      c->results[i] = moth_v_none();
    }
  }
  return s;
}

/* A random op of tensors that are not batched, inside of a vmap: its innermost one that is open handles it, the others the
 * calls that it makes. */
static MothStatus run_random(MothCall *c, const MothVmap *v) {
  bool writes = c->op->returns_self || c->variant != MOTH_FUNCTIONAL;
  if (v->randomness == MOTH_RANDOM_ERROR)
    return refuse_random();
  if (v->randomness == MOTH_RANDOM_DIFFERENT && writes)
    return moth_fail(MOTH_ERR_STATE, "vmap: with randomness = 'different' random numbers cannot be "
                                     "written to a tensor that is the same for each of the batch");
  MothFrame *all = moth_thread.vmaps;
  uint32_t include = moth_thread.include;
  moth_thread.vmaps = v->frame.outer;
  if (!moth_thread.vmaps)
    moth_thread.include &= ~(uint32_t)MOTH_KEY_BATCH;
  MothStatus s;
  if (v->randomness == MOTH_RANDOM_SAME) {
    c->keys |= moth_thread.include & MOTH_KEY_BATCH; /* for outer ones */
    s = moth_redispatch(c);
  } else {
    MothBatchCall b = {.c = c, .level = v->level, .size = v->size};
    s = c->op->shape ? c->op->shape(c, b.metas) : MOTH_OK;
    b.known = c->op->shape != NULL;
    if (s == MOTH_OK)
      s = moth_batch_rule(&b);
    if (s == MOTH_OK && !b.done)
      s = moth_batch_loop(&b, NULL);
    if (s == MOTH_OK)
      s = finish(&b);
    for (int i = 0; i < c->op->nresults; i++)
      moth_tensor_release(b.results[i]);
  }
  moth_thread.vmaps = all;
  moth_thread.include = include;
  return s;
}

MothStatus moth_batch_step(MothCall *c) {
  uint64_t level = highest_level(c);
  const MothFrame *f = moth_thread.vmaps;
  while (f && f->closed)
    f = f->outer;
  const MothVmap *v = (const MothVmap *)f;
  if (!level && !(v && moth_call_is_random(c)))
    return moth_redispatch(c);
  uint32_t exclude = moth_thread.exclude;
  moth_thread.exclude |= APART;
  /* Random numbers come first to the innermost vmap. */
  v = v && moth_call_is_random(c) ? v : NULL;
  MothStatus s = v && v->level > level ? run_random(c, v)
                                       : run_batched(c, level, v && v->level == level ? v : NULL);
  moth_thread.exclude = exclude;
  return s;
}
