/* What a call gives, found on fakes: each value has a shadow, a fake with its geometry, history and relations (views,
 * shared storages), so that Autocast, Autograd and the shape rules say what they would say of the tensors themselves.
 * Shadows are made only where a call is new, or its sizes are. */
#include <stdlib.h>
#include <string.h>

#include "autograd/node.h"
#include "core/alloc.h"
#include "graph/trace.h"
#include "ops/create.h"
#include "ops/view.h"

void moth_quiet_begin(MothSegment *s, MothQuiet *q) {
  MothThread *t = &moth_thread;
  *q = (MothQuiet){t->include, t->exclude, t->saved_hooks, t->watchers, s->running};
  t->include |= s->copies ? 0 : MOTH_KEY_FAKE;
  t->exclude |= MOTH_KEY_ABOVE | MOTH_KEY_BELOW;
  t->saved_hooks = t->watchers = NULL;
  s->running = true;
}

void moth_quiet_end(MothSegment *s, const MothQuiet *q) {
  MothThread *t = &moth_thread;
  t->include = q->include;
  t->exclude = q->exclude;
  t->saved_hooks = q->saved_hooks;
  t->watchers = q->watchers;
  s->running = q->running;
}

MothClean *moth_clean_begin(void) {
  MothClean *a = calloc(1, sizeof *a);
  if (!a)
    return NULL;
  moth_modes_save(&a->was);
  moth_modes_reset();
  a->segment = moth_segment_here();
  a->running = a->segment && a->segment->running;
  if (a->segment)
    a->segment->running = true;
  return a;
}

void moth_clean_end(MothClean *a) {
  if (a->segment)
    a->segment->running = a->running;
  moth_modes_load(&a->was);
  moth_modes_forget(&a->was);
  free(a);
}

/* The grad mode, set for one of our own calls. */
static bool grad_mode(bool on) {
  return moth_set_grad_enabled(on);
}

static MothTensor *shadow_with_storage(const MothSegment *s, const MothStorage *storage) {
  for (uint32_t i = 0; i < s->npairs; i++)
    if (s->pairs[i].real->storage == storage)
      return s->pairs[i].shadow;
  return NULL;
}

static MothTensor *shadow_of_tensor(const MothSegment *s, const MothTensor *t) {
  for (uint32_t i = 0; i < s->npairs; i++)
    if (s->pairs[i].real == t)
      return s->pairs[i].shadow;
  return NULL;
}

static MothStatus add_pair(MothSegment *s, MothTensor *real, MothTensor *shadow, MothTensor *leaf) {
  if (!moth_grow(&s->pairs, &s->pairs_cap, (size_t)s->npairs + 1, sizeof *s->pairs)) {
    moth_tensor_release(shadow);
    moth_tensor_release(leaf);
    return MOTH_ERR_MEMORY;
  }
  moth_tensor_retain(real);
  s->pairs[s->npairs++] = (MothShadowPair){real, shadow, leaf};
  return MOTH_OK;
}

/* A history for t, which has none: that of a copy of *out, a leaf. */
static MothStatus give_history(MothTensor *t, MothTensor **out) {
  MothTensor *leaf = NULL, *copy = NULL;
  MothStatus status = MOTH_OK;
  bool was = grad_mode(true);
  MOTH_GO(moth_tensor_fake_of(t, &leaf));
  MOTH_GO(moth_tensor_set_requires_grad(leaf, true));
  MOTH_GO(moth_clone(leaf, &copy));
  MOTH_GO(moth_set_history(t, copy->grad->node, 0));
done:
  grad_mode(was);
  moth_tensor_release(copy);
  if (status != MOTH_OK)
    moth_tensor_release(leaf);
  else
    *out = leaf;
  return status;
}

MothStatus moth_alias_as(MothTensor *other, const MothTensor *t, int64_t offset, MothTensor **out) {
  MOTH_TRY(moth_tensor_alias(other, false, out));
  MothTensor *a = *out;
  a->dtype = t->dtype;
  a->ndim = t->ndim;
  a->contiguous = t->contiguous;
  a->numel = t->numel;
  a->offset = offset;
  a->keys = (a->keys & ~(uint32_t)MOTH_KEY_OPT_IN) | (t->keys & MOTH_KEY_OPT_IN);
  if (a->storage->data)
    a->data = (char *)a->storage->data + a->offset * moth_itemsize(a);
  memcpy(a->shape, t->shape, sizeof(int64_t) * t->ndim);
  memcpy(a->stride, t->stride, sizeof(int64_t) * t->ndim);
  return MOTH_OK;
}

/* The bytes of t's storage, as numbers. */
static MothStatus bytes_of(MothTensor *t, MothTensor **out) {
  MOTH_TRY(moth_tensor_alias(t, false, out));
  MothTensor *a = *out;
  a->keys &= ~(uint32_t)MOTH_KEY_OPT_IN;
  a->dtype = MOTH_UINT8;
  a->ndim = 1;
  a->contiguous = true;
  a->shape[0] = a->numel = (int64_t)t->storage->nbytes;
  a->stride[0] = 1;
  a->offset = 0;
  a->data = t->storage->data;
  return MOTH_OK;
}

/* A tensor as t, in a copy of its storage. */
static MothStatus copy_of(MothTensor *t, MothTensor **out) {
  MothTensor *bytes, *copy = NULL;
  MOTH_TRY(moth_tensor_ready(t));
  MOTH_TRY(bytes_of(t, &bytes));
  bool was = grad_mode(false);
  MothStatus status = moth_clone(bytes, &copy);
  grad_mode(was);
  if (status == MOTH_OK)
    status = moth_alias_as(copy, t, t->offset, out);
  moth_tensor_release(bytes);
  moth_tensor_release(copy);
  return status;
}

MothStatus moth_shadow_outside(MothSegment *s, MothTensor *t, MothTensor **out) {
  MothTensor *base = NULL, *shadow, *other, *end = NULL;
  if ((*out = shadow_of_tensor(s, t)))
    return MOTH_OK;
  bool grad = t->keys & MOTH_KEY_AUTOGRAD, leaf = moth_tensor_is_leaf(t);
  if (t->base) {
    MOTH_TRY(moth_shadow_outside(s, t->base, &base));
    bool was = grad_mode(!leaf);
    MothTensor *seen;
    MothStatus status = moth_seen_as(base, (MothDType)t->dtype, &seen);
    if (status == MOTH_OK) {
      status = moth_as_strided(seen, t->shape, t->ndim, t->stride, t->ndim, moth_v_int(t->offset),
                               &shadow);
      moth_tensor_release(seen);
    }
    grad_mode(was);
    MOTH_TRY(status);
    if (!shadow->base) { /* made under no_grad of a tensor with a history */
      shadow->base = base;
      moth_tensor_retain(base);
    }
  } else if ((other = shadow_with_storage(s, t->storage))) {
    MOTH_TRY(moth_alias_as(other, t, t->offset, &shadow));
  } else if (s->copies) {
    MOTH_TRY(copy_of(t, &shadow));
  } else {
    MOTH_TRY(moth_tensor_fake_of(t, &shadow));
  }
  MothStatus status = MOTH_OK;
  if (grad && leaf)
    status = moth_tensor_set_requires_grad(shadow, true);
  else if (grad && !(shadow->keys & MOTH_KEY_AUTOGRAD))
    status = give_history(shadow, &end);
  if (grad && leaf && status == MOTH_OK)
    moth_tensor_retain(end = shadow);
  if (status != MOTH_OK) {
    moth_tensor_release(shadow);
    return status;
  }
  *out = shadow;
  return add_pair(s, t, shadow, end);
}

/* The number of the value whose shadow t is, among those of r's tensors and its results before i; or that of a new one. */
static bool find_shadow(const MothSegment *s, const MothRecord *r, const MothTensor *t,
                        uint32_t *number) {
  for (uint32_t i = 0; i < r->nnumbers; i++)
    if (s->shadows[r->numbers[i]] == t) {
      *number = r->numbers[i];
      return true;
    }
  return false;
}

/* Runs a record on the shadows, which are all there. */
static MothStatus run_on_shadows(MothSegment *s, MothRecord *r, MothValue *results) {
  MothQuiet q;
  moth_quiet_begin(s, &q);
  MothStatus status = moth_record_call(r, s, s->shadows, NULL, results);
  moth_quiet_end(s, &q);
  return status;
}

/* Shadows of the values that r brings from outside; `tensors` has them by their order. */
static MothStatus shadow_inputs(MothSegment *s, const MothRecord *r, MothTensor *const *tensors) {
  MothQuiet q;
  MothStatus status = MOTH_OK;
  moth_quiet_begin(s, &q);
  for (uint32_t i = 0; i < r->nnew; i++)
    s->shadows[r->first + i] = NULL;
  for (uint32_t i = 0; i < r->nnew && status == MOTH_OK; i++) {
    MothTensor *shadow;
    status = moth_shadow_outside(s, tensors[i], &shadow);
    if (status == MOTH_OK) {
      moth_tensor_retain(shadow);
      s->shadows[r->first + i] = shadow;
    }
  }
  moth_quiet_end(s, &q);
  return status;
}

MothStatus moth_shadow_prepare(MothSegment *s) {
  MothValue results[MOTH_MAX_RESULTS];
  for (; s->nshadowed < s->nrecords; s->nshadowed++) {
    MothRecord *r = s->records[s->nshadowed];
    MOTH_TRY(shadow_inputs(s, r, s->values + r->first));
    MOTH_TRY(run_on_shadows(s, r, results));
    for (int i = 0; i < r->op->nresults; i++) {
      MothTensor **at = &s->shadows[r->result[i]];
      if (r->result[i] < r->first + r->nnew || *at == results[i].u.t)
        moth_tensor_release(results[i].u.t);
      else
        *at = results[i].u.t;
    }
  }
  return MOTH_OK;
}

MothStatus moth_shadow_infer(MothSegment *s, MothRecord *r, MothTensor *const *fresh) {
  MothValue results[MOTH_MAX_RESULTS];
  uint32_t next = r->first + r->nnew;
  moth_shadow_undo(s);
  s->ntentative = r->nnew;
  MothStatus status = shadow_inputs(s, r, fresh);
  if (status == MOTH_OK)
    status = run_on_shadows(s, r, results);
  for (int i = 0; i < r->op->nresults && status == MOTH_OK; i++) {
    MothTensor *t = results[i].u.t;
    int same = 0;
    while (same < i && results[same].u.t != t)
      same++;
    if (same < i)
      r->result[i] = r->result[same];
    else if (!find_shadow(s, r, t, &r->result[i]))
      r->result[i] = next++;
    free(r->metas[i].dims);
    if (!moth_meta_of(t, false, &r->metas[i]))
      status = MOTH_ERR_MEMORY;
    if (moth_tensor_requires_grad(t))
      r->metas[i].keys |= MOTH_KEY_AUTOGRAD;
  }
  if (status != MOTH_OK)
    return status;
  for (int i = 0; i < r->op->nresults;
       i++) { /* those of new values count once the record is accepted */
    if (r->result[i] == s->nvalues + s->ntentative)
      s->shadows[s->nvalues + s->ntentative++] = results[i].u.t;
    else
      moth_tensor_release(results[i].u.t);
  }
  s->inferred = true;
  return MOTH_OK;
}

/* --- backward ---------------------------------------------------------------------------------------------- */

/* Shadows of roots and gradients for a pass on them; a gradient from outside gets a fake of its own. */
static const char *stand_ins(MothSegment *s, MothTensor *const *tensors, uint32_t n, bool own,
                             MothTensor **out) {
  for (uint32_t i = 0; i < n; i++) {
    uint32_t k = tensors[i]->number;
    MothTensor *shadow = k < s->nvalues && s->values[k] == tensors[i] ? s->shadows[k] : NULL;
    if (shadow)
      moth_tensor_retain(shadow);
    else if (!own || moth_tensor_fake_of(tensors[i], &shadow) != MOTH_OK)
      return "backward";
    out[i] = shadow;
  }
  return NULL;
}

static void release_all(MothTensor **list, uint32_t n) {
  for (uint32_t i = 0; list && i < n; i++)
    moth_tensor_release(list[i]);
  free(list);
}

/* A history from before the segment: its shadow is that of a leaf nobody knows. */
static bool has_outer_history(const MothSegment *s) {
  for (uint32_t i = 0; i < s->npairs; i++)
    if (s->pairs[i].real->keys & MOTH_KEY_AUTOGRAD && !moth_tensor_is_leaf(s->pairs[i].real))
      return true;
  return false;
}

typedef struct Roots {
  MothTensor **list, **gradients;
  uint32_t n;
} Roots;

static const char *roots_begin(MothSegment *s, MothTensor *const *roots, uint32_t n,
                               MothTensor *const *gradients, Roots *r) {
  *r = (Roots){calloc(n + 1, sizeof *r->list), NULL, n};
  if (gradients)
    r->gradients = calloc(n + 1, sizeof *r->gradients);
  if (!r->list || (gradients && !r->gradients))
    return "backward";
  if (has_outer_history(s))
    return "backward into a history from before the graph";
  const char *why = stand_ins(s, roots, n, false, r->list);
  return why || !gradients ? why : stand_ins(s, gradients, n, true, r->gradients);
}

static void roots_end(Roots *r) {
  release_all(r->list, r->n);
  release_all(r->gradients, r->n);
}

const char *moth_shadow_backward(MothSegment *s, MothTensor *const *roots, uint32_t n,
                                 MothTensor *const *gradients, MothTensor **leaves,
                                 uint32_t *nleaves) {
  MothQuiet q;
  Roots r;
  MothTensor **were = calloc((size_t)s->npairs + 1, sizeof *were);
  *nleaves = 0;
  if (!were)
    return "backward";
  moth_quiet_begin(s, &q);
  const char *why = roots_begin(s, roots, n, gradients, &r);
  for (uint32_t i = 0; i < s->npairs && !why; i++)
    if (s->pairs[i].shadow->grad) {
      were[i] = s->pairs[i].shadow->grad->grad;
      s->pairs[i].shadow->grad->grad = NULL;
    }
  if (!why) {
    if (moth_backward(r.list, r.gradients, (int)n, true, false) != MOTH_OK)
      why = "backward";
    for (uint32_t i = 0; i < s->npairs; i++) {
      MothAutogradMeta *m = s->pairs[i].shadow->grad;
      if (!m)
        continue;
      if (m->grad)
        leaves[(*nleaves)++] = s->pairs[i].real;
      moth_tensor_release(m->grad);
      m->grad = were[i];
    }
  }
  roots_end(&r);
  moth_quiet_end(s, &q);
  free(were);
  return why;
}

const char *moth_shadow_gradients(MothSegment *s, MothTensor *const *roots, uint32_t n,
                                  MothTensor *const *gradients, MothTensor *const *inputs,
                                  uint32_t ninputs) {
  MothQuiet q;
  Roots r;
  MothTensor **of = calloc((size_t)ninputs + 1, sizeof *of),
             **out = calloc((size_t)ninputs + 1, sizeof *out);
  const char *why = of && out ? moth_shadow_prepare(s) == MOTH_OK ? NULL : "grad" : "grad";
  if (!why) {
    moth_quiet_begin(s, &q);
    why = roots_begin(s, roots, n, gradients, &r);
    why = why ? why : stand_ins(s, inputs, ninputs, false, of);
    if (!why && moth_grad(r.list, r.gradients, (int)n, of, (int)ninputs, true, false, false, out) !=
                    MOTH_OK)
      why = "grad";
    roots_end(&r);
    moth_quiet_end(s, &q);
  }
  release_all(of, of ? ninputs : 0);
  release_all(out, out ? ninputs : 0);
  return why;
}

void moth_shadow_undo(MothSegment *s) {
  s->inferred = false;
  for (; s->ntentative; s->ntentative--)
    moth_tensor_release(s->shadows[s->nvalues + s->ntentative - 1]);
}

void moth_shadow_drop_pairs(MothSegment *s) {
  for (uint32_t i = 0; i < s->npairs; i++) {
    moth_tensor_release(s->pairs[i].shadow);
    moth_tensor_release(s->pairs[i].real);
    moth_tensor_release(s->pairs[i].leaf);
  }
  s->npairs = 0;
}

void moth_shadow_drop(MothSegment *s) {
  moth_shadow_undo(s);
  for (uint32_t i = 0; i < s->nvalues; i++) {
    moth_tensor_release(s->shadows[i]);
    s->shadows[i] = NULL;
  }
  moth_shadow_drop_pairs(s);
  s->nshadowed = 0;
}
