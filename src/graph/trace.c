/* Noting calls: the recorder and its tree. See trace.h. */
#include "graph/trace.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "dispatch/lazy.h"
#include "dispatch/subclass.h"

enum { LIMIT = 64, LONGEST = 16384 };

MothTraceHost moth_trace_host;
static _Thread_local MothTraceCounters counters __attribute__((tls_model("initial-exec")));
static _Thread_local MothSegment *mine __attribute__((tls_model("initial-exec")));

int64_t moth_trace_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

MothTraceCounters *moth_trace_counters(void) {
  return &counters;
}

MothSegment *moth_segment_here(void) {
  return mine;
}

static MothSegment *segment(void);
/* Calls run as they come though none are noted: hooks of a backward that is not compiled. */
static _Thread_local bool passes __attribute__((tls_model("initial-exec")));

bool moth_segment_pass(bool on) {
  if (on && !mine)
    segment();
  bool was = mine && mine->running;
  if (mine)
    mine->running = on;
  passes = on && (passes || !was);
  return was;
}

/* --- traces ------------------------------------------------------------------------------------------- */

MothTrace *moth_trace_new(const char *name) {
  MothTrace *t = calloc(1, sizeof *t + strlen(name) + 1);
  if (!t) {
    moth_no_memory(sizeof *t + strlen(name) + 1);
    return NULL;
  }
  t->refs = 1;
  t->limit = LIMIT;
  char *text = (char *)(t + 1);
  strcpy(text, name);
  t->name = text;
  return t;
}

/* A tree is as deep as a program is long: no recursion. */
static void free_records(MothRecord *r) {
  while (r) {
    MothRecord *below = r->child;
    if (r->end && r->end->next) { /* what came after the end, in front */
      MothRecord *next = r->end->next;
      r->end->next = NULL;
      MothRecord *last = next;
      while (last->sibling)
        last = last->sibling;
      last->sibling = below;
      below = next;
    }
    if (below) {
      MothRecord *last = below;
      while (last->sibling)
        last = last->sibling;
      last->sibling = r->sibling;
    } else {
      below = r->sibling;
    }
    moth_record_free(r);
    r = below;
  }
}

void moth_trace_release(MothTrace *t) {
  if (!t || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1)
    return;
  free_records(t->first);
  while (t->ends) {
    MothTraceEnd *end = t->ends;
    t->ends = end->older;
    free(end->reason);
    free(end->where);
    moth_end_forget(end);
    free(end->outputs);
    free(end->classes);
    free(end);
  }
  while (t->notes) {
    MothTraceNote *note = t->notes;
    t->notes = note->next;
    free(note);
  }
  free(t);
}

bool moth_trace_note(MothTrace *t, bool is_break, const char *text) {
  for (MothTraceNote *note = t->notes; note; note = note->next)
    if (note->is_break == is_break && !strcmp(note->text, text)) {
      note->count++;
      return false;
    }
  MothTraceNote *note = malloc(sizeof *note + strlen(text) + 1);
  if (!note)
    return false;
  note->is_break = is_break;
  note->count = 1;
  strcpy(note->text, text);
  note->next = t->notes;
  t->notes = note;
  return true;
}

void moth_trace_new_way(MothTrace *t) {
  const char *why = "";
  if (++t->nways < t->limit || t->off)
    return;
  for (const MothTraceNote *note = t->notes; note && !why[0]; note = note->next)
    why = note->is_break ? "" : note->text;
  t->off = true;
  fprintf(stderr,
          "[moth] warning: compile: %s has taken %d different ways and runs uncompiled "
          "from now on%s%s; "
          "moth.compile.config.recompile_limit sets the limit\n",
          t->name, t->limit, why[0] ? "; the last difference: " : "", why);
}

/* --- the segment of a thread ------------------------------------------------------------------------------ */

/* Memory for `more` values and one more record. */
static bool make_space(MothSegment *s, uint32_t tensors, uint32_t more) {
  uint32_t cap = s->values_cap, same = cap, uses = cap;
  if (!moth_grow(&s->records, &s->records_cap, s->nrecords + 1, sizeof *s->records) ||
      !moth_grow(&s->values, &cap, s->nvalues + more, sizeof *s->values) ||
      !moth_grow(&s->shadows, &same, s->nvalues + more, sizeof *s->shadows) ||
      !moth_grow(&s->last_use, &uses, s->nvalues + more, sizeof *s->last_use))
    return false;
  s->values_cap = cap;
  uint32_t numbers = s->numbers_cap;
  if (!moth_grow(&s->numbers, &numbers, tensors + 1, sizeof *s->numbers) ||
      !moth_grow(&s->scratch, &s->numbers_cap, tensors + 1, sizeof *s->scratch))
    return false;
  return true;
}

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The thread ends: a segment of its own that has not run is lost with it, as are its tensors. */
static void free_segment(void *p) {
  MothSegment *s = p;
  free(s->records);
  free(s->values);
  free(s->shadows);
  free(s->last_use);
  free(s->numbers);
  free(s->scratch);
  free(s->pairs);
  free(s);
}

static void make_key(void) {
  pthread_key_create(&key, free_segment);
}

static MothSegment *segment(void) {
  if (mine)
    return mine;
  pthread_once(&once, make_key);
  mine = calloc(1, sizeof *mine);
  if (!mine)
    moth_no_memory(sizeof *mine);
  else
    pthread_setspecific(key, mine);
  return mine;
}

/* --- comparing -------------------------------------------------------------------------------------------- */

static uint8_t place_of(const MothTensor *t) {
  uint8_t place = moth_tensor_is_leaf(t) ? MOTH_TRACE_LEAF : 0;
  if (t->base)
    place |= MOTH_TRACE_VIEW | (t->base->keys & MOTH_KEY_AUTOGRAD ? MOTH_TRACE_OF_GRAPH : 0);
  return place;
}

bool moth_meta_of(const MothTensor *t, bool outside, MothTraceMeta *m) {
  m->keys = t->keys & (MOTH_KEYS_DEVICE | MOTH_KEY_OPT_IN | MOTH_KEY_AUTOGRAD);
  m->dtype = t->dtype;
  m->ndim = t->ndim;
  m->device = t->device;
  m->contiguous = t->contiguous;
  m->numel = t->numel;
  m->offset = 0;
  m->place = outside ? place_of(t) : 0;
  m->dims = malloc(sizeof(int64_t) * (2 * (size_t)t->ndim + 1));
  if (!m->dims) {
    moth_no_memory(sizeof(int64_t) * (2 * (size_t)t->ndim + 1));
    return false;
  }
  memcpy(m->dims, t->shape, sizeof(int64_t) * t->ndim);
  memcpy(m->dims + t->ndim, t->stride, sizeof(int64_t) * t->ndim);
  return true;
}

MothStatus moth_meta_fake(const MothTraceMeta *m, MothTensor **out) {
  MOTH_TRY(moth_tensor_new_fake(m->ndim, m->dims, (MothDType)m->dtype, m->device, out));
  MothTensor *t = *out;
  int64_t reach = t->numel != 0;
  for (int i = 0; i < m->ndim; i++) {
    t->stride[i] = m->dims[m->ndim + i];
    reach += t->numel ? (t->shape[i] - 1) * t->stride[i] : 0;
  }
  t->contiguous = m->contiguous;
  t->storage->nbytes = (size_t)(reach * moth_itemsize(t));
  return MOTH_OK;
}

typedef enum Match { DIFFERENT, SIZES, SAME } Match;

static Match match_input(const MothTraceMeta *m, const MothTensor *t) {
  if (m->keys != (t->keys & (MOTH_KEYS_DEVICE | MOTH_KEY_OPT_IN | MOTH_KEY_AUTOGRAD)) ||
      m->dtype != t->dtype || m->ndim != t->ndim || m->device.type != t->device.type ||
      m->device.index != t->device.index || m->place != place_of(t))
    return DIFFERENT;
  for (int i = 0; i < t->ndim; i++)
    if (m->dims[i] != t->shape[i] || m->dims[t->ndim + i] != t->stride[i])
      return SIZES;
  return SAME;
}

static Match match_value(const MothRecord *r, int i, const MothValue *v) {
  const MothTraceArg *a = &r->args[i];
  const MothValue *w = &a->value;
  if (w->tag != v->tag) {
    bool numbers = (w->tag == MOTH_V_INT || w->tag == MOTH_V_FLOAT) &&
                   (v->tag == MOTH_V_INT || v->tag == MOTH_V_FLOAT);
    if (!numbers || !a->free || !r->any_number)
      return DIFFERENT;
    return moth_record_takes(r, i, v) ? SAME : SIZES;
  }
  uint8_t type = r->op->args[i].type;
  Match otherwise =
      type == MOTH_T_DIM || type == MOTH_T_DIMS || type == MOTH_T_ENUM || type == MOTH_T_INDEX_BASE
          ? DIFFERENT
          : SIZES;
  switch ((MothTag)v->tag) {
  case MOTH_V_NONE:
    return SAME;
  case MOTH_V_BOOL:
    return a->free || w->u.b == v->u.b ? SAME : DIFFERENT;
  case MOTH_V_INT:
    if (w->n != v->n && !r->any_number)
      return otherwise;
    return w->u.i == v->u.i || (a->free && moth_record_takes(r, i, v)) ? SAME : otherwise;
  case MOTH_V_FLOAT:
    return memcmp(&w->u.d, &v->u.d, sizeof(double)) == 0 || (a->free && moth_record_takes(r, i, v))
               ? SAME
               : otherwise;
  case MOTH_V_INTS:
    if (w->n != v->n)
      return DIFFERENT;
    return memcmp(w->u.ints, v->u.ints, sizeof(int64_t) * v->n) == 0 ? SAME : otherwise;
  case MOTH_V_TENSOR:
    return SAME;
  case MOTH_V_TENSORS:
    return w->n == v->n ? SAME : DIFFERENT;
  case MOTH_V_STRING:
    return !strcmp(w->u.s, v->u.s) ? SAME : DIFFERENT;
  case MOTH_V_DTYPE:
  case MOTH_V_DEVICE:
    return w->u.i == v->u.i ? SAME : DIFFERENT;
  case MOTH_V_GENERATOR:
    return a->free || w->u.g == v->u.g ? SAME : DIFFERENT;
  }
  return DIFFERENT;
}

static Match match(const MothSegment *s, const MothRecord *r, const MothCall *c,
                   const MothTraceModes *modes, uint32_t nnumbers, uint32_t nnew) {
  if (r->op != c->op || r->variant != c->variant || r->nnumbers != nnumbers || r->nnew != nnew ||
      memcmp(r->numbers, s->numbers, sizeof *r->numbers * nnumbers) != 0 ||
      memcmp(&r->modes, modes, sizeof *modes) != 0)
    return DIFFERENT;
  Match all = SAME;
  for (int i = 0; i < c->op->nargs && all != DIFFERENT; i++) {
    Match m = match_value(r, i, &c->args[i]);
    all = m < all ? m : all;
  }
  for (uint32_t i = 0; i < nnew && all != DIFFERENT; i++) {
    Match m = match_input(&r->inputs[i], s->values[s->nvalues + i]);
    all = m < all ? m : all;
  }
  if (all == SAME && r->parent && r->parent_sizes != r->parent->sizes)
    return SIZES; /* what it knows follows from other sizes of the calls before */
  return all;
}

/* The numbers that the record keeps become those of this call. */
static void take_values(MothRecord *r, const MothCall *c) {
  for (int i = 0; i < c->op->nargs; i++) {
    MothTraceArg *a = &r->args[i];
    if (!a->free)
      continue;
    if (a->value.tag == MOTH_V_GENERATOR) {
      moth_generator_retain(c->args[i].u.g);
      moth_generator_release(a->value.u.g);
    }
    a->varied = a->varied || a->value.u.i != c->args[i].u.i || a->value.tag != c->args[i].tag;
    a->value = c->args[i];
  }
}

/* --- the numbers of a call's tensors ---------------------------------------------------------------------- */

/* Gives t its number, a new one if it comes from outside; false: it cannot be recorded. New ones lie behind s's values
 * until the call is accepted. */
static inline bool number_tensor(MothSegment *s, MothTensor *t, bool revives, uint32_t *n,
                                 uint32_t *nnew) {
  uint32_t k = __atomic_load_n(&t->number, __ATOMIC_RELAXED);
  if (k < s->nvalues + *nnew && s->values[k] == t) {
    s->numbers[(*n)++] = k;
    return true;
  }
  if (t->keys & MOTH_KEY_LAZY && (!revives || moth_lazy_revive(t) != MOTH_OK))
    return false;
  uint32_t refused =
      MOTH_KEY_FAKE | MOTH_KEY_SUBCLASS | MOTH_KEY_PENDING | MOTH_KEY_BATCH | MOTH_KEY_TANGENT;
  if (s->recorder && s->recorder->trace->capture &&
      !(t->keys & MOTH_KEY_LAZY)) /* nothing computes */
    refused &= ~(uint32_t)MOTH_KEY_FAKE;
  if (t->keys & refused)
    return false;
  k = s->nvalues + (*nnew)++;
  s->values[k] = t;
  __atomic_store_n(&t->number, k, __ATOMIC_RELAXED);
  s->numbers[(*n)++] = k;
  return true;
}

static uint32_t count_tensors(const MothCall *c) {
  return moth_args_ntensors(c->op, c->args) + (c->target ? c->op->nresults : 0);
}

/* revives: values that a segment has left are made. */
static inline bool number_tensors(MothSegment *s, const MothCall *c, bool revives, uint32_t *n,
                                  uint32_t *nnew) {
  *n = *nnew = 0;
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    for (uint32_t k = 0; k < moth_ntensors(v); k++)
      if (!number_tensor(s, moth_tensor_at(v, k), revives, n, nnew))
        return false;
  }
  for (int i = 0; c->target && i < c->op->nresults; i++)
    if (!number_tensor(s, c->target[i], revives, n, nnew))
      return false;
  return true;
}

/* --- results ---------------------------------------------------------------------------------------------- */

MothStatus moth_lazy_make(const MothTraceMeta *m, MothTensor **out) {
  MothTensor *t;
  MOTH_TRY(moth_tensor_new_lazy((MothDType)m->dtype, m->device, &t));
  t->keys |= m->keys & MOTH_KEY_AUTOGRAD;
  t->ndim = m->ndim;
  t->contiguous = m->contiguous;
  t->numel = m->numel;
  for (int i = 0; i < m->ndim; i++) {
    t->shape[i] = m->dims[i];
    t->stride[i] = m->dims[m->ndim + i];
  }
  *out = t;
  return MOTH_OK;
}

/* Whether the tensors that r writes to may require grad afterwards. */
static bool gives_history(const MothRecord *r) {
  bool any = r->op->defined;
  for (int i = 0; i < r->op->nresults; i++)
    any = any || r->metas[i].keys & MOTH_KEY_AUTOGRAD;
  return any;
}

/* r is what the call does: its tensors from outside and its results become values. */
static MothStatus accept(MothSegment *s, MothRecord *r, MothCall *c) {
  MothTensor *made[MOTH_MAX_RESULTS] = {NULL};
  for (int i = 0; i < r->op->nresults; i++)
    if (r->result[i] >= r->first + r->nnew && !made[i]) {
      MothStatus status = moth_lazy_make(&r->metas[i], &made[i]);
      if (status != MOTH_OK) {
        while (i-- > 0)
          moth_tensor_release(made[i]);
        return status;
      }
    }
  bool shadowed = s->inferred;
  for (uint32_t i = 0; i < r->nnew; i++) {
    if (!shadowed)
      s->shadows[s->nvalues] = NULL;
    moth_tensor_retain(s->values[s->nvalues++]);
  }
  for (int i = 0; i < r->op->nresults; i++) {
    MothTensor *t = made[i];
    if (t && r->result[i] == s->nvalues) {
      t->number = s->nvalues;
      if (!shadowed)
        s->shadows[s->nvalues] = NULL;
      s->values[s->nvalues++] = t;
      atomic_store_explicit(&t->refs, 2, memory_order_relaxed); /* new: nobody else has it */
    } else { /* one that is there: an argument, or the result before */
      moth_tensor_release(t);
      t = s->values[r->result[i]];
      if (t->keys & MOTH_KEY_LAZY)
        t->keys |= r->metas[i].keys & MOTH_KEY_AUTOGRAD;
      moth_tensor_retain(t);
    }
    c->results[i] = moth_v_tensor(t);
  }
  s->records[s->nrecords++] = r;
  s->last = r;
  if (shadowed) {
    s->nshadowed = s->nrecords;
    s->ntentative = 0;
    s->inferred = false;
  }
  moth_unrun |= r->writes ? MOTH_UNRUN_ANY | MOTH_UNRUN_WRITES : MOTH_UNRUN_ANY;
  if (r->writes && gives_history(r))
    moth_unrun |= MOTH_UNRUN_HISTORY;
  return MOTH_OK;
}

/* --- differences, for people --------------------------------------------------------------------------------- */

/* How the call differs from r, in words. */
static void describe_difference(const MothSegment *s, const MothRecord *r, const MothCall *c,
                                uint32_t nnew, char *text, size_t n) {
  char a[256];
  MothTraceModes modes;
  moth_trace_modes(&modes);
  if (r->op != c->op || r->variant != c->variant) {
    snprintf(text, n, "%s was called where %s had been", c->op->name, r->op->name);
    return;
  }
  if (memcmp(&r->modes, &modes, sizeof modes) != 0) {
    snprintf(text, n, "%s: grad mode, autocast or the default dtype is another", c->op->name);
    return;
  }
  for (int i = 0; i < c->op->nargs; i++)
    if (match_value(r, i, &c->args[i]) != SAME) {
      MothGrownText t = {0};
      moth_text_put(&t, "%s: %s is ", c->op->name, c->op->args[i].name);
      moth_text_value(&t, &c->op->args[i], &c->args[i]);
      moth_text_put(&t, ", was ");
      moth_text_value(&t, &c->op->args[i], &r->args[i].value);
      char *said = moth_text_end(&t);
      snprintf(text, n, "%s", said ? said : c->op->name);
      free(said);
      return;
    }
  for (uint32_t i = 0; i < nnew && i < r->nnew; i++) {
    const MothTensor *t = s->values[s->nvalues + i];
    const MothTraceMeta *m = &r->inputs[i];
    if (match_input(m, t) == SAME)
      continue;
    char shape[200];
    bool grad = (t->keys ^ m->keys) & MOTH_KEY_AUTOGRAD;
    snprintf(text, n, "%s: an input is %s%s%s, was %s %s%s", c->op->name,
             moth_tensor_format(t, a, sizeof a), grad ? ", requires_grad " : "",
             grad ? (t->keys & MOTH_KEY_AUTOGRAD ? "true" : "false") : "",
             moth_dtype_name((MothDType)m->dtype),
             moth_shape_format(m->ndim, m->dims, shape, sizeof shape),
             match_input(m, t) == SIZES || grad ? "" : " or had another history or place");
    return;
  }
  snprintf(text, n, "%s was called with other tensors, or tensors that are the same one now",
           c->op->name);
}

static void note_difference(MothSegment *s, const MothRecord *r, const MothCall *c, uint32_t nnew) {
  MothTrace *t = s->recorder->trace;
  char text[1024], where[160] = "";
  describe_difference(s, r, c, nnew, text, sizeof text);
  if (moth_trace_host.place)
    moth_trace_host.place(where, sizeof where);
  size_t n = strlen(text);
  if (where[0])
    snprintf(text + n, sizeof text - n, ", at %s", where);
  counters.recompiles++;
  if (moth_trace_note(t, false, text) && moth_trace_host.broke)
    moth_trace_host.broke(t, NULL, text);
}

/* --- recording --------------------------------------------------------------------------------------------- */

static MothRecord **list_of(MothSegment *s) {
  if (s->last)
    return &s->last->child;
  MothRecorder *r = s->recorder;
  return r->after ? &r->after->next : &r->trace->first;
}

MothRecord *moth_segment_next(MothSegment *s) {
  return *list_of(s);
}

static _Atomic uint64_t stamps; /* each is of one set of sizes: records keep what they knew by it */

static uint64_t new_stamp(void) {
  return atomic_fetch_add_explicit(&stamps, 1, memory_order_relaxed) + 1;
}

/* Of the sizes that belong to the call, and those before it. */
static uint64_t key_of(const MothSegment *s, const MothRecord *r, const MothCall *c) {
  uint64_t h = s->last ? s->last->sizes : 0;
  for (uint32_t i = 0; i < r->nnew; i++) {
    const MothTensor *t = s->values[s->nvalues + i];
    moth_mix(&h, t->shape, t->ndim);
    moth_mix(&h, t->stride, t->ndim);
  }
  for (int i = 0; i < c->op->nargs; i++) {
    const MothValue *v = &c->args[i];
    if (v->tag == MOTH_V_INTS)
      moth_mix(&h, v->u.ints, v->n);
    else if (!r->args[i].free && (v->tag == MOTH_V_INT || v->tag == MOTH_V_FLOAT))
      moth_mix(&h, &v->u.i, 1);
  }
  return h;
}

/* Makes the sizes that r knows those of this call, if they have come before. */
static bool knows(const MothSegment *s, MothRecord *r, const MothCall *c,
                  const MothTraceModes *modes, uint32_t nnumbers, uint32_t nnew) {
  uint64_t now = r->nknown ? key_of(s, r, c) : 0;
  for (uint32_t i = 0; i < r->nknown; i++) {
    if (r->known[i].key != now)
      continue;
    moth_record_swap(r, &r->known[i]);
    if (match(s, r, c, modes, nnumbers, nnew) == SAME)
      return true;
    moth_record_swap(r, &r->known[i]);
  }
  return false;
}

/* The same; false: it is another structure then, or an error. */
static bool refit(MothSegment *s, MothRecord *r, const MothCall *c, uint32_t nnumbers,
                  uint32_t nnew) {
  MothRecord *now;
  uint32_t result[MOTH_MAX_RESULTS];
  if (moth_record_new(s, c, nnumbers, nnew, s->values + s->nvalues, &now) != MOTH_OK)
    return false;
  bool same = moth_shadow_prepare(s) == MOTH_OK &&
              moth_shadow_infer(s, now, s->values + s->nvalues) == MOTH_OK;
  memcpy(result, r->result, sizeof result);
  same = same && memcmp(result, now->result, sizeof *result * r->op->nresults) == 0;
  for (int i = 0; i < r->op->nresults && same; i++)
    same = r->metas[i].ndim == now->metas[i].ndim && r->metas[i].dtype == now->metas[i].dtype;
  if (!same || !moth_record_refit(r, now)) {
    moth_record_free(now);
    return false;
  }
  r->key = key_of(s, r, c);
  r->sizes = new_stamp();
  r->parent_sizes = r->parent ? r->parent->sizes : 0;
  return true;
}

/* A record for the call, at the end of the list. */
static MothStatus add_record(MothSegment *s, MothRecord **list, const MothCall *c,
                             uint32_t nnumbers, uint32_t nnew, MothRecord **out) {
  MothRecord *r;
  MOTH_TRY(moth_record_new(s, c, nnumbers, nnew, s->values + s->nvalues, &r));
  MothStatus status = moth_shadow_prepare(s);
  if (status == MOTH_OK)
    status = moth_shadow_infer(s, r, s->values + s->nvalues);
  if (status != MOTH_OK) {
    moth_record_free(r);
    return status;
  }
  char where[160] = "";
  if (moth_trace_host.place)
    moth_trace_host.place(where, sizeof where);
  r->place = strdup(where);
  r->parent = s->last;
  r->key = key_of(s, r, c);
  r->sizes = new_stamp();
  r->parent_sizes = s->last ? s->last->sizes : 0;
  if (*list)
    note_difference(s, *list, c, nnew);
  if (*list || (s->last && s->last->end))
    moth_trace_new_way(s->recorder->trace);
  while (*list)
    list = &(*list)->sibling;
  *list = r;
  *out = r;
  return MOTH_OK;
}

/* The record of the call, made if there is none; *out is NULL at an error: its fakes could not tell the results. */
static MothStatus find_record(MothSegment *s, const MothCall *c, uint32_t nnumbers, uint32_t nnew,
                              MothRecord **out) {
  MothTrace *t = s->recorder->trace;
  MothRecord **list = list_of(s), *close = NULL;
  MothTraceModes modes;
  int nclose = 0;
  moth_trace_modes(&modes);
  *out = NULL;
  for (MothRecord *r = *list; r; r = r->sibling) {
    Match m = match(s, r, c, &modes, nnumbers, nnew);
    if (m == SAME || (m == SIZES && knows(s, r, c, &modes, nnumbers, nnew))) {
      take_values(r, c);
      counters.followed++;
      *out = r;
      return MOTH_OK;
    }
    if (m == SIZES) {
      close = r;
      nclose++;
    }
  }
  MothStatus status = MOTH_OK;
  int64_t begin = moth_trace_now();
  bool stale = close && close->parent && close->parent_sizes != close->parent->sizes;
  if (close && !t->dynamic && !stale && t->policy == MOTH_DYNAMIC_AUTO && nclose > 1)
    t->dynamic = true; /* the third */
  if (close && (t->dynamic || stale) && refit(s, close, c, nnumbers, nnew)) {
    take_values(close, c);
    *out = close;
  } else {
    status = add_record(s, list, c, nnumbers, nnew, out);
    counters.recorded += status == MOTH_OK;
  }
  counters.compile_ns += moth_trace_now() - begin;
  return status;
}

/* Whether somebody else handles calls. */
static bool is_handled(void) {
  const MothThread *t = &moth_thread;
  return (t->nabove != 1 || t->nbelow != 0) && moth_is_traced();
}

/* Why the call cannot be recorded; NULL: it can. */
static const char *not_recordable(const MothCall *c) {
  const MothOp *op = c->op;
  if (!op->shape && !op->composite && !op->returns_self && !op->fake)
    return op->defined ? "the op has no fake function, which gives shape and dtype of the results: "
                         "define it "
                         "with `fake` or `shape`"
                       : "sizes of its result depend on elements";
  if (c->keys & MOTH_KEY_SUBCLASS)
    return "a tensor of a subclass";
  if (c->keys & (MOTH_KEY_BATCH | MOTH_KEY_TANGENT))
    return c->keys & MOTH_KEY_BATCH ? "vmap" : "a tensor with a tangent";
  if (moth_thread.include & MOTH_KEY_FAKE)
    return "fake mode";
  if ((c->keys | moth_thread.include) & MOTH_KEY_PENDING)
    return "queued work";
  if (is_handled())
    return "a dispatch mode is open";
  return NULL;
}

/* Runs the call as it is; nothing that it does is noted, such as calls of a mode's handler. */
static MothStatus run_apart(MothCall *c) {
  mine->running = true;
  MothStatus status = moth_redispatch_anew(c);
  mine->running = false;
  return status;
}

/* Runs what is noted, then the call as it is. */
static MothStatus pass(MothCall *c, const char *why) {
  char reason[256];
  counters.skipped++;
  if (why) {
    snprintf(reason, sizeof reason, "%s: %s", c->op->name, why);
    MOTH_TRY(moth_segment_break(reason));
  } else if (moth_unrun) {
    MOTH_TRY(moth_segment_run());
  }
  return run_apart(c);
}

/* Fakes could not tell the results: an error, which the call raises itself, or it needs the elements of its tensors. */
static MothStatus find_out(MothCall *c) {
  char reason[256];
  counters.skipped++;
  MOTH_TRY(moth_segment_run());
  moth_shadow_drop(mine); /* those of the call itself */
  MOTH_TRY(run_apart(c));
  snprintf(reason, sizeof reason, "%s: it needs the elements of its tensors", c->op->name);
  MothStatus status = moth_segment_break(reason);
  for (int i = 0; i < c->op->nresults && status != MOTH_OK; i++) {
    moth_tensor_release(c->results[i].u.t);
    c->results[i] = moth_v_none();
  }
  return status;
}

static MothStatus recorder_run(MothCall *c, void *ctx) {
  MothRecorder *rec = ctx;
  MothSegment *s = segment();
  if (!s)
    return MOTH_ERR_MEMORY;
  if (s->running || rec->closed)
    return moth_redispatch(c);
  if (!c->direct)
    return moth_unrun ? pass(c, "called by a function of C") : moth_redispatch(c);
  if (rec->trace->off)
    return pass(c, NULL);
  if (c->op->defined && c->op->composite && !c->op->keep) { /* its parts are recorded */
    c->keys &= ~(uint32_t)(MOTH_KEY_LAZY | MOTH_KEY_FAKE);
    return moth_redispatch(c);
  }
  const char *why = not_recordable(c);
  if (why)
    return pass(c, why);
  if (moth_unrun && (s->recorder != rec || s->nrecords >= LONGEST))
    MOTH_TRY(moth_segment_run());
  if (!moth_unrun) {
    atomic_fetch_add_explicit(&rec->refs, 1, memory_order_relaxed);
    moth_recorder_release(s->recorder);
    s->recorder = rec;
    s->last = NULL;
  }
  uint32_t n, nnew, tensors = count_tensors(c);
  if (!make_space(s, tensors, tensors + MOTH_MAX_RESULTS))
    return MOTH_ERR_MEMORY;
  if (!number_tensors(s, c, true, &n, &nnew))
    return pass(c, "a tensor without values, of a subclass, or with queued work");
  MothRecord *r;
  MothStatus status = find_record(s, c, n, nnew, &r);
  if (r)
    return accept(s, r, c);
  /* A capture has no values to run the call on: it reports what the shape rule said. */
  return rec->trace->capture && status != MOTH_ERR_STATE ? status : find_out(c);
}

/* recorder_run for a call that follows, with nothing in between: no program of the host can run, so that the arguments
 * need not be retained. */
static bool follow(MothCall *c, MothStatus *status) {
  MothSegment *s = mine;
  MothRecorder *rec = s->recorder;
  if (moth_thread.nabove != 1 || moth_thread.nbelow || s->running || !rec || rec->closed ||
      !c->direct || rec->trace->off || s->nrecords >= LONGEST || c->op->defined ||
      moth_intercept_find(true, recorder_run) != rec || not_recordable(c))
    return false;
  uint32_t n, nnew, tensors = count_tensors(c);
  if (!make_space(s, tensors, tensors + MOTH_MAX_RESULTS) ||
      !number_tensors(s, c, false, &n, &nnew))
    return false;
  MothTraceModes modes;
  moth_trace_modes(&modes);
  MothRecord *r = *list_of(s);
  for (; r; r = r->sibling) {
    Match m = match(s, r, c, &modes, n, nnew);
    if (m == SAME || (m == SIZES && knows(s, r, c, &modes, n, nnew)))
      break;
  }
  if (!r)
    return false;
  take_values(r, c);
  counters.followed++;
  *status = accept(s, r, c);
  return true;
}

__attribute__((constructor)) static void offer(void) {
  moth_follow = follow;
}

/* --- calls of a callable -------------------------------------------------------------------------------------- */

static void count_recorder(void *ctx, int by) {
  MothRecorder *r = ctx;
  if (by > 0)
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
  else
    moth_recorder_release(r);
}

static MothInterceptor interceptor(MothRecorder *r) {
  return (MothInterceptor){recorder_run, r, true, count_recorder, false};
}

void moth_recorder_release(MothRecorder *r) {
  if (!r || atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1)
    return;
  moth_trace_release(r->trace);
  free(r);
}

MothStatus moth_recorder_begin(MothTrace *t, MothRecorder **out) {
  MOTH_TRY(moth_segment_run());
  if (!segment())
    return MOTH_ERR_MEMORY;
  MothRecorder *r = calloc(1, sizeof *r);
  if (!r)
    return moth_no_memory(sizeof *r);
  r->refs = 1;
  r->trace = t;
  atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
  MothStatus status = moth_intercept_push(true, interceptor(r));
  if (status != MOTH_OK) {
    moth_recorder_release(r);
    return status;
  }
  counters.calls++;
  r->began = moth_trace_now();
  r->compile_ns = counters.compile_ns;
  *out = r;
  return MOTH_OK;
}

MothStatus moth_recorder_end(MothRecorder *r) {
  MothSegment *s = mine;
  MothStatus status = MOTH_OK;
  if (r->closed)
    return MOTH_OK;
  if (s && s->recorder == r && !s->running) {
    status = moth_segment_run();
    moth_recorder_release(s->recorder);
    s->recorder = NULL;
  }
  r->closed = true;
  int64_t took = moth_trace_now() - r->began;
  counters.call_ns += took;
  if (counters.compile_ns == r->compile_ns) {
    counters.hits++;
    counters.hit_ns += took;
  }
  moth_intercept_pop(true, interceptor(r));
  if (status == MOTH_OK && r->late_status)
    status =
        r->late_status == MOTH_ERR_HOST ? MOTH_ERR_HOST : moth_fail(r->late_status, "%s", r->late);
  return status;
}

MothRecorder *moth_recorder_open(void) {
  MothRecorder *r = moth_thread.nabove ? moth_intercept_find(true, recorder_run) : NULL;
  return r && !r->closed ? r : NULL;
}

void moth_recorder_hide_inner(const MothRecorder *r, MothHidden *h) {
  moth_intercept_hide(recorder_run, r, h);
}

/* Notes a break; an error with fullgraph. */
static MothStatus note_break(MothRecorder *rec, MothTraceEnd *end, const char *reason) {
  MothTrace *t = rec->trace;
  char where[160] = "", text[512];
  if (t->off)
    return MOTH_OK;
  if (end && end->reason && !t->fullgraph) /* it is known */
    return MOTH_OK;
  if (moth_trace_host.place)
    moth_trace_host.place(where, sizeof where);
  if (t->fullgraph)
    return moth_fail(MOTH_ERR_STATE, "[compile] fullgraph = true, but the graph breaks: %s%s%s",
                     reason, where[0] ? ", at " : "", where);
  snprintf(text, sizeof text, "%s%s%s", reason, where[0] ? ", at " : "", where);
  if (end) {
    end->reason = strdup(reason);
    end->where = strdup(where);
  }
  if (moth_trace_note(t, true, text)) {
    counters.breaks++;
    if (moth_trace_host.broke)
      moth_trace_host.broke(t, reason, where);
  }
  return MOTH_OK;
}

MothStatus moth_segment_break(const char *reason) {
  MothSegment *s = mine;
  MothRecorder *rec = moth_unrun && s ? s->recorder : moth_recorder_open();
  if (!rec || (s && s->running))
    return MOTH_OK;
  if (rec->trace->fullgraph)
    return note_break(rec, NULL, reason);
  MothTraceEnd *end = NULL;
  if (moth_unrun)
    MOTH_TRY(moth_segment_finish(s, &end));
  return note_break(rec, end, reason);
}

void moth_segment_late(MothStatus s) {
  if (mine && mine->recorder) {
    snprintf(mine->recorder->late, sizeof mine->recorder->late, "%s", moth_error_text(1));
    mine->recorder->late_status = s;
  }
}

bool moth_recording(void) {
  const MothRecorder *r = moth_intercept_find(true, recorder_run);
  return (mine && mine->running && !passes) || (r && !r->closed);
}
