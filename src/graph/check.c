/* MOTH_COMPILE_CHECK: a segment runs twice on copies of its tensors before it runs, once as it is compiled and once call
 * by call, and what comes of both is compared: results, writes, histories, shared memory, random numbers, gradients. So
 * effects on the program's own tensors happen once, and not at all where there is a difference. Of a segment that is
 * not compiled, the facts of its results are compared with those that the recorder gave the program. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "graph/trace.h"
#include "ops/create.h"
#include "ops/random.h"
#include "ops/view.h"

_Atomic bool moth_segment_checks;

enum { GENERATORS = 16 };

typedef struct Generators {
  MothGenerator *list[GENERATORS];
  uint64_t seed[GENERATORS], offset[GENERATORS];
  int n;
} Generators;

typedef struct Text {
  char s[1024];
  size_t n;
} Text;

__attribute__((format(printf, 2, 3))) static void put(Text *t, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(t->s + t->n, sizeof t->s - t->n, fmt, ap);
  va_end(ap);
  t->n += n < 0 ? 0 : (size_t)n < sizeof t->s - t->n ? (size_t)n : sizeof t->s - t->n - 1;
}

/* --- copies of a segment --------------------------------------------------------------------------------- */

static void dry_drop(MothSegment *dry) {
  for (uint32_t i = 0; dry->values && i < dry->nvalues; i++)
    moth_tensor_release(dry->values[i]);
  moth_shadow_drop_pairs(dry);
  free(dry->pairs);
  free(dry->values);
}

/* *dry is s with copies of the tensors from outside, its results lazy. It borrows the shadows of s. */
static MothStatus dry_make(const MothSegment *s, MothSegment *dry) {
  MothStatus status = MOTH_OK;
  MothQuiet q;
  *dry = *s;
  dry->pairs = NULL;
  dry->npairs = dry->pairs_cap = 0;
  dry->keeps = dry->copies = true;
  dry->values = calloc((size_t)s->nvalues + 1, sizeof *dry->values);
  if (!dry->values)
    return moth_no_memory(((size_t)s->nvalues + 1) * sizeof *dry->values);
  moth_quiet_begin(dry, &q);
  for (uint32_t k = 0; k < s->nrecords && status == MOTH_OK; k++) {
    const MothRecord *r = s->records[k];
    for (uint32_t i = r->first; i < r->first + r->nnew && status == MOTH_OK; i++) {
      status = moth_shadow_outside(dry, s->values[i], &dry->values[i]);
      if (status == MOTH_OK)
        moth_tensor_retain(dry->values[i]);
      else
        dry->values[i] = NULL;
    }
    for (int i = 0; i < r->op->nresults && status == MOTH_OK; i++) {
      MothTensor **at = &dry->values[r->result[i]];
      if (!*at)
        status = moth_lazy_make(&r->metas[i], at);
      else if ((*at)->keys & MOTH_KEY_LAZY)
        (*at)->keys |= r->metas[i].keys & MOTH_KEY_AUTOGRAD;
    }
  }
  moth_quiet_end(dry, &q);
  for (uint32_t i = 0; i < s->nvalues && dry->values[i]; i++)
    dry->values[i]->number = i;
  return status;
}

/* Retains the copies of the values that the program still holds, in `held`: a backend computes only what is held. */
static void hold_alike(const MothSegment *s, const MothSegment *dry, MothTensor **held) {
  for (uint32_t i = 0; i < s->nvalues; i++)
    if (s->values[i]->keys & MOTH_KEY_LAZY &&
        atomic_load_explicit(&s->values[i]->refs, memory_order_acquire) > 1)
      moth_tensor_retain(held[i] = dry->values[i]);
}

MothStatus moth_tensor_copies(MothTensor *const *in, uint32_t n, MothTensor **out) {
  MothSegment s = {.copies = true};
  MothStatus status = MOTH_OK;
  MothQuiet q;
  moth_quiet_begin(&s, &q);
  for (uint32_t i = 0; i < n; i++) {
    out[i] = NULL;
    if (status == MOTH_OK)
      status = moth_shadow_outside(&s, in[i], &out[i]);
    if (status == MOTH_OK)
      moth_tensor_retain(out[i]);
  }
  moth_quiet_end(&s, &q);
  moth_shadow_drop_pairs(&s);
  free(s.pairs);
  for (uint32_t i = 0; status != MOTH_OK && i < n; i++)
    moth_tensor_release(out[i]);
  return status;
}

/* --- random numbers ---------------------------------------------------------------------------------------- */

static void generators_of(const MothSegment *s, Generators *g) {
  g->n = 0;
  for (uint32_t k = 0; k < s->nrecords; k++) {
    const MothRecord *r = s->records[k];
    MothGenerator *own = r->op->draws ? moth_default_generator() : NULL;
    for (int i = 0; i < r->op->nargs; i++)
      if (r->args[i].value.tag == MOTH_V_GENERATOR)
        own = r->args[i].value.u.g;
    int at = 0;
    while (at < g->n && g->list[at] != own)
      at++;
    if (own && at == g->n && at < GENERATORS)
      g->list[g->n++] = own;
  }
}

static void note_states(Generators *g) {
  for (int i = 0; i < g->n; i++)
    moth_generator_get_state(g->list[i], &g->seed[i], &g->offset[i]);
}

static void restore_states(const Generators *g) {
  for (int i = 0; i < g->n; i++)
    moth_generator_set_state(g->list[i], g->seed[i], g->offset[i]);
}

/* --- comparing ----------------------------------------------------------------------------------------------- */

/* How far an element may be off, in parts of itself and of the largest of its tensor. */
static double bound(MothDType d) {
  switch (d) {
  case MOTH_FLOAT64:
  case MOTH_COMPLEX128:
    return 1e-12;
  case MOTH_FLOAT16:
    return 8e-3;
  case MOTH_BFLOAT16:
    return 4e-2;
  default:
    return 2e-5;
  }
}

static MothStatus on_host(MothTensor *t, MothDType dtype, MothTensor **out) {
  MothTensor *moved, *plain;
  MothDevice cpu = {MOTH_CPU, 0};
  MOTH_TRY(moth_tensor_alias(t, false, &plain));
  MothStatus status = moth_to(plain, moth_v_dtype(dtype), moth_v_device(cpu), false, false, &moved);
  moth_tensor_release(plain);
  MOTH_TRY(status);
  status = moth_contiguous(moved, out);
  moth_tensor_release(moved);
  return status;
}

static bool has_floats(const MothTensor *t) {
  return moth_dtype_is_float((MothDType)t->dtype) || moth_dtype_is_complex((MothDType)t->dtype);
}

/* Floats as float64, complex numbers as their parts; others as they are. */
static MothStatus elements_of(MothTensor *t, MothTensor **out) {
  MothTensor *whole;
  if (!moth_dtype_is_complex((MothDType)t->dtype))
    return on_host(t, has_floats(t) ? MOTH_FLOAT64 : (MothDType)t->dtype, out);
  MOTH_TRY(on_host(t, MOTH_COMPLEX128, &whole));
  MothStatus status = moth_view_as_real(whole, out);
  moth_tensor_release(whole);
  return status;
}

/* Two numbers that count as one: also NaN and NaN. */
static bool is_same(double a, double b, bool exact, double scale, double part) {
  if (isnan(a) || isnan(b))
    return isnan(a) && isnan(b);
  if (a == b)
    return !exact || signbit(a) == signbit(b);
  return !exact && isfinite(a) && isfinite(b) && fabs(a - b) <= part * (fabs(b) + scale);
}

/* The largest element of t but infinities, without its sign; 0: it has none, or is not of floats. */
static MothStatus largest(MothTensor *t, double *out) {
  MothTensor *x;
  if (!has_floats(t))
    return MOTH_OK;
  MOTH_TRY(elements_of(t, &x));
  const double *p = (const double *)(void *)x->data;
  for (int64_t i = 0; i < x->numel; i++)
    if (isfinite(p[i]) && fabs(p[i]) > *out)
      *out = fabs(p[i]);
  moth_tensor_release(x);
  return MOTH_OK;
}

/* Elements of a that differ from b's, in words; *same where there are none. scale: of the values that count as a's
 * kind; of its own elements where they are larger. */
static MothStatus compare_elements(MothTensor *a, MothTensor *b, bool exact, double scale,
                                   bool *same, Text *t) {
  MothTensor *x = NULL, *y = NULL;
  MothDType d = (MothDType)b->dtype;
  MothStatus status = MOTH_OK;
  *same = true;
  MOTH_GO(elements_of(a, &x));
  MOTH_GO(elements_of(b, &y));
  if (!has_floats(b)) {
    *same = memcmp(x->data, y->data, (size_t)(x->numel * moth_itemsize(x))) == 0;
    if (!*same)
      put(t, "other elements");
    goto done;
  }
  const double *p = (const double *)(void *)x->data, *q = (const double *)(void *)y->data;
  double worst = -1;
  int64_t count = 0, at = 0;
  for (int64_t i = 0; i < y->numel; i++)
    if (isfinite(q[i]) && fabs(q[i]) > scale)
      scale = fabs(q[i]);
  for (int64_t i = 0; i < y->numel; i++) {
    if (is_same(p[i], q[i], exact, scale, bound(d)))
      continue;
    double off = isfinite(p[i]) && isfinite(q[i]) ? fabs(p[i] - q[i]) : INFINITY;
    count++;
    if (off > worst) {
      worst = off;
      at = i;
    }
  }
  *same = count == 0;
  if (count)
    put(t,
        "%lld of %lld elements; the largest error is %.3g, of element %lld, which is %.9g and not "
        "%.9g",
        (long long)count, (long long)y->numel, worst, (long long)at + 1, p[at], q[at]);
done:
  moth_tensor_release(x);
  moth_tensor_release(y);
  return status;
}

static void put_geometry(Text *t, const MothTensor *a) {
  char shape[200], stride[200];
  put(t, "%s %s, strides %s", moth_dtype_name((MothDType)a->dtype),
      moth_shape_format(a->ndim, a->shape, shape, sizeof shape),
      moth_shape_format(a->ndim, a->stride, stride, sizeof stride));
}

/* What of a differs from b but elements; strides where `exact`. */
static bool same_facts(const MothTensor *a, const MothTensor *b, bool exact, Text *t) {
  bool same = a->dtype == b->dtype && a->ndim == b->ndim && a->device.type == b->device.type &&
              a->device.index == b->device.index &&
              memcmp(a->shape, b->shape, sizeof *a->shape * a->ndim) == 0 &&
              (!exact || memcmp(a->stride, b->stride, sizeof *a->stride * a->ndim) == 0);
  if (!same) {
    put(t, "it is ");
    put_geometry(t, a);
    put(t, " and not ");
    put_geometry(t, b);
  } else if (moth_tensor_requires_grad(a) != moth_tensor_requires_grad(b)) {
    put(t, "requires_grad is %s",
        moth_tensor_requires_grad(a) ? "true and not false" : "false and not true");
    same = false;
  }
  return same;
}

static bool is_made(const MothTensor *t) {
  return t && !(t->keys & (MOTH_KEY_LAZY | MOTH_KEY_FAKE));
}

/* The record that made or changed value n last; NULL: none. */
static const MothRecord *record_of(const MothSegment *s, uint32_t n) {
  for (uint32_t k = s->nrecords; k-- > 0;)
    for (int i = 0; i < s->records[k]->op->nresults; i++)
      if (s->records[k]->result[i] == n)
        return s->records[k];
  return NULL;
}

static void put_input(Text *t, const MothSegment *s, uint32_t n) {
  uint32_t number = 0;
  for (uint32_t k = 0; k < s->nrecords; k++)
    for (uint32_t i = s->records[k]->first; i < s->records[k]->first + s->records[k]->nnew; i++) {
      number++;
      if (i == n)
        put(t, "input %u", number);
    }
}

/* "gelu, at model.lua:14", "input 2". */
static void put_name(Text *t, const MothSegment *s, uint32_t n) {
  const MothRecord *r = record_of(s, n);
  if (r)
    put(t, "%s%s%s", r->op->name, r->place && r->place[0] ? ", at " : "", r->place ? r->place : "");
  else
    put_input(t, s, n);
}

/* Gradients that are 0 but for rounding are nothing beside the others: they share a scale. */
static bool record_is_gradient(const MothRecord *r) {
  return r && !strcmp(r->op->name, "gradient_of");
}

static bool is_outside(const MothSegment *s, uint32_t n) {
  for (uint32_t k = 0; k < s->nrecords; k++)
    if (n >= s->records[k]->first && n < s->records[k]->first + s->records[k]->nnew)
      return true;
  return false;
}

/* Of results only where `exact`: a backend may make them in one go, as the engine's sums. */
static bool same_versions(const MothSegment *a, const MothSegment *b, bool exact, Text *t) {
  for (uint32_t n = 0; n < a->nvalues; n++) {
    if (!is_made(a->values[n]) || !is_made(b->values[n]) || (!exact && !is_outside(a, n)) ||
        record_is_gradient(record_of(a, n)))
      continue;
    long long va = *moth_version_of(a->values[n]), vb = *moth_version_of(b->values[n]);
    if (va == vb)
      continue;
    put_name(t, a, n);
    put(t, ": written to %lld times and not %lld", va, vb);
    return false;
  }
  return true;
}

/* Tensors share memory in both, or in none. */
static bool same_sharing(const MothSegment *a, const MothSegment *b, Text *t) {
  for (uint32_t n = 0; n < a->nvalues; n++)
    for (uint32_t m = 0; m < n && is_made(a->values[n]); m++) {
      if (!is_made(a->values[m]) || !a->values[m]->numel || !a->values[n]->numel)
        continue;
      bool shared = a->values[n]->storage == a->values[m]->storage;
      if (shared == (b->values[n]->storage == b->values[m]->storage))
        continue;
      put_name(t, a, n);
      put(t, shared ? ": shares memory with " : ": does not share memory with ");
      put_name(t, a, m);
      return false;
    }
  return true;
}

/* What an optimizer makes of such a gradient is of any size. */
static bool is_stepped(const MothSegment *s, uint32_t n) {
  const MothRecord *r = record_of(s, n);
  if (r && r->op->kind == MOTH_KIND_EFFECT)
    return true;
  for (uint32_t k = 0; k < s->nrecords; k++)
    for (uint32_t i = 0; i < s->records[k]->nnumbers; i++)
      if (s->records[k]->op->kind == MOTH_KIND_EFFECT && s->records[k]->numbers[i] == n)
        return true;
  return false;
}

static MothStatus same_values(const MothSegment *a, const MothSegment *b, bool exact, bool *same,
                              Text *t) {
  double scale = 0;
  for (uint32_t k = 0; k < b->nrecords; k++)
    if (record_is_gradient(b->records[k]) && is_made(b->values[b->records[k]->result[0]]))
      MOTH_TRY(largest(b->values[b->records[k]->result[0]], &scale));
  for (uint32_t k = 0; k <= a->nrecords; k++) { /* results in program order, then inputs */
    const MothRecord *r = k < a->nrecords ? a->records[k] : NULL;
    for (uint32_t i = 0; i < (r ? r->op->nresults : a->nvalues); i++) {
      uint32_t n = r ? r->result[i] : i;
      if (!is_made(a->values[n]) || !is_made(b->values[n]) || (r && record_of(a, n) != r))
        continue;
      size_t begin = t->n;
      put_name(t, a, n);
      put(t, ": ");
      *same = same_facts(a->values[n], b->values[n], exact, t);
      if (*same && (exact || !is_stepped(a, n)))
        MOTH_TRY(compare_elements(a->values[n], b->values[n], exact,
                                  record_is_gradient(r) ? scale : 0, same, t));
      if (!*same)
        return MOTH_OK;
      t->n = begin;
      t->s[begin] = 0;
    }
  }
  return MOTH_OK;
}

/* What the recorder has promised of the results is so. A later write through a view may give them a history. */
static bool as_recorded(const MothSegment *s, Text *t) {
  bool written = false;
  for (uint32_t k = s->nrecords; k-- > 0; written = written || s->records[k]->writes) {
    const MothRecord *r = s->records[k];
    for (int i = 0; i < r->op->nresults; i++) {
      const MothTensor *made = s->values[r->result[i]];
      const MothTraceMeta *m = &r->metas[i];
      if (!is_made(made) || record_of(s, r->result[i]) != r || !m->dims)
        continue;
      bool grad = m->keys & MOTH_KEY_AUTOGRAD;
      if (made->dtype == m->dtype && made->ndim == m->ndim &&
          (written || moth_tensor_requires_grad(made) == grad) &&
          memcmp(made->shape, m->dims, sizeof *m->dims * m->ndim) == 0 &&
          memcmp(made->stride, m->dims + m->ndim, sizeof *m->dims * m->ndim) == 0)
        continue;
      char shape[200], stride[200];
      put_name(t, s, r->result[i]);
      put(t, ": it is ");
      put_geometry(t, made);
      put(t, "%s; recorded were %s %s, strides %s%s",
          moth_tensor_requires_grad(made) ? ", requires_grad" : "",
          moth_dtype_name((MothDType)m->dtype),
          moth_shape_format(m->ndim, m->dims, shape, sizeof shape),
          moth_shape_format(m->ndim, m->dims + m->ndim, stride, sizeof stride),
          grad ? ", requires_grad" : "");
      return false;
    }
  }
  return true;
}

/* --- gradients ----------------------------------------------------------------------------------------------- */

typedef struct Backward {
  MothTensor **roots, **leaves, **grads;
  const MothTensor **of; /* whose gradient it is */
  int nroots, nleaves;
} Backward;

static void backward_drop(Backward *w) {
  for (int i = 0; w->grads && i < w->nleaves; i++)
    moth_tensor_release(w->grads[i]);
  free(w->roots);
  free(w->leaves);
  free(w->of);
  free(w->grads);
}

/* The results of s with a history, of those that `like` has made, and where their gradients end. */
static MothStatus backward_of(const MothSegment *s, const MothSegment *like, Backward *w) {
  *w = (Backward){.roots = calloc((size_t)s->nvalues + 1, sizeof(MothTensor *)),
                  .leaves = calloc((size_t)s->npairs + 1, sizeof(MothTensor *)),
                  .grads = calloc((size_t)s->npairs + 1, sizeof(MothTensor *)),
                  .of = calloc((size_t)s->npairs + 1, sizeof(MothTensor *))};
  if (!w->roots || !w->leaves || !w->grads || !w->of)
    return moth_no_memory(0);
  for (uint32_t n = 0; n < s->nvalues; n++)
    if (is_made(like->values[n]) && is_made(s->values[n]) && record_of(s, n) &&
        moth_tensor_requires_grad(s->values[n]) && !moth_tensor_is_leaf(s->values[n]))
      w->roots[w->nroots++] = s->values[n];
  for (uint32_t i = 0; i < s->npairs; i++)
    if (s->pairs[i].leaf) {
      w->of[w->nleaves] = s->pairs[i].shadow;
      w->leaves[w->nleaves++] = s->pairs[i].leaf;
    }
  return MOTH_OK;
}

static MothStatus run_backward(Backward *w, MothTensor **seeds) {
  return moth_grad(w->roots, seeds, w->nroots, w->leaves, w->nleaves, false, false, true, w->grads);
}

static MothStatus same_gradients(const MothSegment *a, const MothSegment *b, bool exact, bool *same,
                                 Text *t) {
  Backward x, y = {0};
  MothTensor **seeds = NULL;
  MothGenerator *own = moth_generator_new(7);
  MothStatus status = own ? MOTH_OK : moth_no_memory(0);
  *same = true;
  MOTH_GO(status);
  status = backward_of(a, a, &x);
  if (status == MOTH_OK)
    status = backward_of(b, a, &y);
  seeds = calloc((size_t)x.nroots + 1, sizeof *seeds);
  if (status == MOTH_OK && !seeds)
    status = moth_no_memory(((size_t)x.nroots + 1) * sizeof *seeds);
  for (int i = 0; i < x.nroots && status == MOTH_OK; i++)
    status = moth_randn_like(x.roots[i], moth_v_none(), moth_v_none(), own, &seeds[i]);
  if (status == MOTH_OK && x.nroots && x.nleaves && x.nroots == y.nroots &&
      x.nleaves == y.nleaves) {
    status = run_backward(&y, seeds);
    if (status != MOTH_OK) { /* eager's own error, which the program will see */
      status = status == MOTH_ERR_INTERRUPTED ? status : MOTH_OK;
    } else {
      double scale = 0;
      status = run_backward(&x, seeds);
      for (int i = 0; i < y.nleaves && status == MOTH_OK; i++)
        status = y.grads[i] ? largest(y.grads[i], &scale) : MOTH_OK;
      for (int i = 0; i < x.nleaves && status == MOTH_OK && *same; i++) {
        uint32_t n = 0;
        while (n < a->nvalues && a->values[n] != x.of[i])
          n++;
        size_t begin = t->n;
        put(t, "the gradient of ");
        if (n < a->nvalues)
          put_input(t, a, n);
        else
          put(t, "what an input is a view of");
        put(t, ": ");
        if (!x.grads[i] != !y.grads[i]) {
          put(t, x.grads[i] ? "there is one, and should be none" : "there is none");
          *same = false;
        } else if (x.grads[i]) {
          *same = same_facts(x.grads[i], y.grads[i], false, t);
          if (*same) /* those of several results are added up in any order */
            status =
                compare_elements(x.grads[i], y.grads[i], exact && x.nroots == 1, scale, same, t);
        }
        if (*same) {
          t->n = begin;
          t->s[begin] = 0;
        }
      }
    }
  }
  for (int i = 0; seeds && i < x.nroots; i++)
    moth_tensor_release(seeds[i]);
  free(seeds);
  backward_drop(&x);
  backward_drop(&y);
done:
  moth_generator_release(own);
  return status;
}

/* --- all of it ------------------------------------------------------------------------------------------------ */

static MothStatus compare(MothSegment *a, MothSegment *b, bool exact, bool *same, Text *t) {
  MOTH_TRY(same_values(a, b, exact, same, t));
  *same = *same && same_versions(a, b, exact, t) && same_sharing(a, b, t);
  return *same ? same_gradients(a, b, exact, same, t) : MOTH_OK;
}

static MothStatus differ(MothSegment *s, MothTraceEnd *end, const Text *t) {
  if (moth_trace_host.differs)
    return moth_trace_host.differs(s, end, t->s);
  return moth_fail(MOTH_ERR_VALUE, "[compile] check: %s, graph %d: %s", end->trace->name,
                   end->number, t->s);
}

static MothStatus run_each(MothSegment *dry) {
  MothQuiet q;
  moth_quiet_begin(dry, &q);
  MothStatus status = moth_segment_run_each(dry);
  moth_quiet_end(dry, &q);
  return status;
}

MothStatus moth_segment_check(MothSegment *s, MothTraceEnd *end) {
  MothSegment a = {0}, b = {0};
  Generators before, after, now;
  Text text = {"", 0};
  bool same = true, compiled = false;
  MothTensor **held = NULL;
  MothStatus status = MOTH_OK, each;
  if (end->trace->host)
    moth_end_select(s, end);
  if (end->trace->host && !end->code && moth_alloc_collect)
    moth_alloc_collect(); /* so that garbage is no output */
  generators_of(s, &before);
  note_states(&before);
  after = now = before;
  MOTH_GO(dry_make(s, &b));
  each = run_each(&b);
  note_states(&after);
  restore_states(&before);
  if (each == MOTH_ERR_INTERRUPTED || each == MOTH_ERR_MEMORY) {
    status = each;
    goto done;
  }
  if (each == MOTH_OK && !as_recorded(&b, &text)) {
    status = differ(s, end, &text);
    goto done;
  }
  if (!end->trace->host || !moth_trace_host.run || (end->code && end->code->plain))
    goto done;
  if (moth_shadow_prepare(s) != MOTH_OK) /* they are asked where a is compiled, and are no copies */
    goto done;
  MOTH_GO(dry_make(s, &a));
  held = calloc((size_t)s->nvalues + 1, sizeof *held);
  MOTH_GO(held ? MOTH_OK : moth_no_memory(((size_t)s->nvalues + 1) * sizeof *held));
  hold_alike(s, &a, held);
  status = moth_trace_host.run(&a, end, &compiled);
  note_states(&now);
  restore_states(&before);
  if (status != MOTH_OK || !compiled) {
    if (each != MOTH_OK && status != MOTH_ERR_INTERRUPTED)
      status = MOTH_OK; /* the program's own error: the run that counts raises it */
    goto done;
  }
  if (each != MOTH_OK) {
    put(&text, "it has no error, where the calls one by one have one");
    same = false;
  } else {
    MOTH_GO(compare(&a, &b, end->trace->exact, &same, &text));
    for (int i = 0; i < now.n && same; i++)
      if (now.seed[i] != after.seed[i] || now.offset[i] != after.offset[i]) {
        put(&text, "%lld random numbers were drawn and not %lld",
            (long long)(now.offset[i] - before.offset[i]),
            (long long)(after.offset[i] - before.offset[i]));
        same = false;
      }
  }
  if (!same)
    status = differ(s, end, &text);
done:
  for (uint32_t i = 0; held && i < s->nvalues; i++)
    moth_tensor_release(held[i]);
  free(held);
  dry_drop(&a);
  dry_drop(&b);
  return status;
}
