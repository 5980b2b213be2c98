/* Deferred values: what a compiled segment did not make, because nobody had wanted it when it was compiled.
 *
 * LuaJIT collects late: at the end of a segment the program seems to hold every value in it. So code that computes only
 * the learned outputs leaves the others lazy, with a note of the segment's calls, its inputs and their versions. The
 * lazy tensors share a storage, whose end frees the note. One that is looked at after all is computed from the inputs by
 * the recorded calls, and is an output from then on; if an input was written to meanwhile that is an error, as it is where
 * the calls write to tensors themselves, so that they cannot run twice. Random numbers are those that the segment drew. */
#include <stdlib.h>
#include <string.h>

#include "core/tensor.h"
#include "dispatch/lazy.h"
#include "graph/trace.h"

_Atomic int moth_ndeferred;

typedef struct Deferred {
  MothTraceEnd *end;
  MothTrace *trace; /* retained: it owns end and records */
  MothRecord **records;
  MothTensor **inputs; /* by number; retained; NULL: results */
  int64_t *versions;
  MothValue *varying; /* arguments of the records that other calls change, by records */
  uint32_t nrecords, nvalues, nscratch, nvarying;
  const char *why; /* it cannot be computed again; NULL: it can */
  bool draws;
  uint64_t generator[2]; /* the default generator's state before the calls */
} Deferred;

static void deferred_free(void *ctx) {
  Deferred *d = ctx;
  for (uint32_t i = 0; d->inputs && i < d->nvalues; i++)
    moth_tensor_release(d->inputs[i]);
  for (uint32_t i = 0; i < d->nvarying; i++)
    moth_trace_value_free(d->varying[i]);
  free(d->varying);
  free(d->records);
  free(d->inputs);
  free(d->versions);
  moth_trace_release(d->trace);
  free(d);
  atomic_fetch_sub(&moth_ndeferred, 1);
}

/* Copies the arguments that other calls change. */
static bool keep_varying(Deferred *d, const MothSegment *s) {
  uint32_t n = moth_segment_numbers(s, true, NULL);
  d->varying = malloc(sizeof *d->varying * ((size_t)n + 1));
  if (!d->varying)
    return false;
  moth_segment_numbers(s, true, d->varying);
  for (; d->nvarying < n; d->nvarying++) {
    MothValue v = d->varying[d->nvarying];
    if (!moth_trace_value_copy(&d->varying[d->nvarying], &v))
      return false;
  }
  return true;
}

/* Why the call cannot run twice; NULL: it can. */
static const char *not_twice(const MothRecord *r) {
  if (moth_is_pass(r->op))
    return "runs backward";
  for (int i = 0; i < r->op->nargs; i++)
    if (r->args[i].value.tag == MOTH_V_GENERATOR)
      return "draws from a generator of its own";
  return r->writes ? "writes to tensors" : NULL;
}

static bool is_left(const MothTensor *t) {
  return t && t->keys & MOTH_KEY_LAZY && atomic_load_explicit(&t->refs, memory_order_acquire) > 1;
}

MothStatus moth_segment_defer(MothSegment *s, MothTraceEnd *end) {
  bool any = false;
  for (uint32_t i = 0; i < s->nvalues && !any; i++)
    any = is_left(s->values[i]);
  if (!any)
    return MOTH_OK;
  MothTensor *origin;
  MOTH_TRY(moth_tensor_new_fake(0, NULL, MOTH_FLOAT32, (MothDevice){MOTH_CPU, 0}, &origin));
  Deferred *d = calloc(1, sizeof *d);
  if (d) {
    d->records = malloc(sizeof *d->records * s->nrecords);
    d->inputs = calloc(s->nvalues, sizeof *d->inputs);
    d->versions = calloc(s->nvalues, sizeof *d->versions);
  }
  if (!d || !d->records || !d->inputs || !d->versions || !keep_varying(d, s)) {
    if (d) {
      for (uint32_t i = 0; i < d->nvarying; i++)
        moth_trace_value_free(d->varying[i]);
      free(d->varying);
      free(d->records);
      free(d->inputs);
      free(d->versions);
      free(d);
    }
    moth_tensor_release(origin);
    return moth_fail(MOTH_ERR_MEMORY, "out of memory");
  }
  d->end = end;
  d->trace = s->recorder->trace;
  atomic_fetch_add_explicit(&d->trace->refs, 1, memory_order_relaxed);
  memcpy(d->generator, s->generator, sizeof d->generator);
  d->nrecords = s->nrecords;
  d->nvalues = s->nvalues;
  memcpy(d->records, s->records, sizeof *d->records * s->nrecords);
  for (uint32_t k = 0; k < s->nrecords; k++) {
    const MothRecord *r = s->records[k];
    d->nscratch = r->nnumbers > d->nscratch ? r->nnumbers : d->nscratch;
    d->draws = d->draws || r->op->draws;
    d->why = d->why ? d->why : not_twice(r);
    for (uint32_t i = r->first; i < r->first + r->nnew; i++) {
      moth_tensor_retain(s->values[i]);
      d->inputs[i] = s->values[i];
      d->versions[i] = *moth_version_of(s->values[i]);
    }
  }
  atomic_fetch_add(&moth_ndeferred, 1);
  MothStorage *storage = origin->storage;
  storage->foreign = true;
  storage->release = deferred_free;
  storage->ctx = d;
  for (uint32_t i = 0; i < s->nvalues; i++)
    if (is_left(s->values[i])) { /* keeps its number */
      MothTensor *t = s->values[i];
      t->storage = storage;
      atomic_fetch_add_explicit(&storage->refs, 1, memory_order_relaxed);
      s->values[i] = NULL;
      moth_tensor_release(t);
    }
  moth_tensor_release(origin);
  return MOTH_OK;
}

/* Marks the records that value `number` needs. */
static void mark(const Deferred *d, uint32_t number, bool *wanted, bool *needed) {
  wanted[number] = true;
  for (uint32_t k = d->nrecords; k-- > 0;) {
    const MothRecord *r = d->records[k];
    for (int i = 0; i < r->op->nresults; i++)
      needed[k] = needed[k] || wanted[r->result[i]];
    for (uint32_t i = 0; needed[k] && i < r->nnumbers; i++)
      wanted[r->numbers[i]] = true;
  }
}

static MothStatus compute(const Deferred *d, uint32_t number, MothTensor **out) {
  MothTensor **values = calloc(d->nvalues, sizeof *values);
  MothTensor **scratch = malloc(sizeof(MothTensor *) * ((size_t)d->nscratch + 1));
  bool *marks = calloc((size_t)d->nvalues + d->nrecords, sizeof *marks),
       *needed = marks + d->nvalues;
  MothSegment tools = {.scratch = scratch};
  MothStatus status = MOTH_OK;
  if (!values || !scratch || !marks) {
    status = moth_fail(MOTH_ERR_MEMORY, "out of memory");
    goto done;
  }
  for (uint32_t i = 0; i < d->nvalues; i++) {
    values[i] = d->inputs[i];
    moth_tensor_retain(values[i]);
  }
  mark(d, number, marks, needed);
  uint64_t now[2] = {0, 0};
  if (d->draws) { /* all calls, so that each draws what it drew */
    memset(needed, true, d->nrecords * sizeof *needed);
    moth_generator_get_state(moth_default_generator(), &now[0], &now[1]);
    moth_generator_set_state(moth_default_generator(), d->generator[0], d->generator[1]);
  }
  const MothValue *varying = d->varying;
  for (uint32_t k = 0; k < d->nrecords && status == MOTH_OK; k++) {
    const MothRecord *r = d->records[k];
    const MothValue *own = varying;
    MothValue results[MOTH_MAX_RESULTS];
    for (int i = 0; i < r->op->nargs; i++)
      varying += moth_arg_varies(r, i, true);
    if (!needed[k])
      continue;
    status = moth_record_call(r, &tools, values, own, results);
    for (int i = 0; i < r->op->nresults && status == MOTH_OK; i++) {
      MothTensor **place = &values[r->result[i]];
      moth_tensor_release(*place);
      *place = results[i].u.t;
    }
  }
  if (status == MOTH_OK) {
    *out = values[number];
    values[number] = NULL;
  }
  if (d->draws)
    moth_generator_set_state(moth_default_generator(), now[0], now[1]);
done:
  for (uint32_t i = 0; values && i < d->nvalues; i++)
    moth_tensor_release(values[i]);
  free(values);
  free(scratch);
  free(marks);
  return status;
}

/* The value is an output of the segment from now on. */
static void learn(MothTraceEnd *end, uint32_t number) {
  for (uint32_t i = 0; i < end->noutputs; i++)
    if (end->outputs[i] == number)
      return;
  uint32_t *more = realloc(end->outputs, sizeof *more * ((size_t)end->noutputs + 1));
  if (!more)
    return;
  more[end->noutputs++] = number;
  end->outputs = more;
  moth_end_forget(end); /* compiled again when it runs next */
}

static MothStatus revive(MothTensor *t) {
  MothStorage *storage = t->storage;
  if (!(t->keys & MOTH_KEY_LAZY) || storage->release != deferred_free)
    return MOTH_OK;
  const Deferred *d = storage->ctx;
  if (t->number >= d->nvalues)
    return MOTH_OK;
  if (d->why) {
    const char *why = d->why;
    learn(d->end, t->number);
    return moth_fail(MOTH_ERR_STATE,
                     "a value of a compiled function is looked at that it did not return, and it "
                     "cannot be computed again, since the function %s: return it from the "
                     "function",
                     why);
  }
  for (uint32_t i = 0; i < d->nvalues; i++)
    if (d->inputs[i] && *moth_version_of(d->inputs[i]) != d->versions[i])
      return moth_fail(
          MOTH_ERR_STATE,
          "a value of a compiled function is looked at that it did not return, and what it "
          "is computed from was written to since: return it from the function");
  MothSegment *here = moth_segment_here();
  bool running = here && here->running;
  MothTensor *made = NULL;
  if (here)
    here->running = true; /* these calls are not noted */
  MothStatus status = compute(d, t->number, &made);
  if (here)
    here->running = running;
  if (status != MOTH_OK)
    return status;
  learn(d->end, t->number);
  return moth_lazy_become(t, made); /* may free d */
}

__attribute__((constructor)) static void offer(void) {
  moth_lazy_revive = revive;
}
