/* Deferred values: what a compiled segment did not make, because nobody had wanted it when it was compiled.
 *
 * LuaJIT collects late: at the end of a segment the program seems to hold every value in it. So code that computes only
 * the learned outputs leaves the others lazy, with a note of the segment's calls, its inputs and their versions. The
 * lazy tensors share a storage, whose end frees the note. One that is looked at after all is computed from the inputs by
 * those of the recorded calls that it depends on, with all that shares its memory, and is an output from then on. Where
 * that would write to an input again, or an input that it needs was written to, it is an error. */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
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
  uint32_t *classes; /* of the end, copied */
  MothTensor *
      *made; /* by number; retained: what was computed with another value; NULL: nothing yet */
  uint64_t drawn[2];
  MothValue *varying; /* arguments of the records that other calls change, by records */
  uint32_t nrecords, nvalues, nscratch, nvarying;
  size_t
      bytes; /* of this, with the lists (but for `made`) behind it: one block, since many calls have such a note */
} Deferred;

static void free_block(Deferred *d) {
  for (uint32_t i = 0; i < d->nvarying; i++)
    moth_trace_value_free(d->varying[i]);
  free(d->made);
  moth_free(d, d->bytes);
}

static void deferred_free(void *ctx) {
  Deferred *d = ctx;
  for (uint32_t i = 0; d->inputs && i < d->nvalues; i++)
    moth_tensor_release(d->inputs[i]);
  for (uint32_t i = 0; d->made && i < d->nvalues; i++)
    moth_tensor_release(d->made[i]);
  moth_trace_release(d->trace);
  free_block(d);
  atomic_fetch_sub(&moth_ndeferred, 1);
}

/* A note of s without tensors; NULL: no memory. */
static Deferred *new_block(const MothSegment *s, const MothTraceEnd *end) {
  size_t nvalues = s->nvalues, nvarying = moth_segment_numbers(s, true, NULL);
  size_t bytes = sizeof(Deferred) + nvarying * sizeof(MothValue) + s->nrecords * sizeof(void *) +
                 nvalues * (sizeof(void *) + sizeof(int64_t) + sizeof(uint32_t));
  Deferred *d = moth_alloc(bytes);
  if (!d)
    return NULL;
  memset(d, 0, sizeof *d);
  d->bytes = bytes;
  d->varying = (MothValue *)(d + 1);
  d->records = (MothRecord **)(d->varying + nvarying);
  d->inputs = (MothTensor **)(d->records + s->nrecords);
  d->versions = (int64_t *)(d->inputs + nvalues);
  d->classes = (uint32_t *)(d->versions + nvalues);
  memset(d->inputs, 0, nvalues * sizeof *d->inputs);
  memcpy(d->records, s->records, s->nrecords * sizeof *d->records);
  memcpy(d->classes, end->classes, nvalues * sizeof *d->classes);
  moth_segment_numbers(s, true, d->varying);
  for (; d->nvarying < nvarying; d->nvarying++) {
    MothValue v = d->varying[d->nvarying];
    if (!moth_trace_value_copy(&d->varying[d->nvarying], &v)) {
      free_block(d);
      return NULL;
    }
  }
  return d;
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
  Deferred *d = new_block(s, end);
  if (!d) {
    moth_tensor_release(origin);
    return moth_no_memory(0);
  }
  d->end = end;
  d->trace = s->recorder->trace;
  atomic_fetch_add_explicit(&d->trace->refs, 1, memory_order_relaxed);
  d->nrecords = s->nrecords;
  d->nvalues = s->nvalues;
  memcpy(d->drawn, s->drawn, sizeof d->drawn);
  for (uint32_t k = 0; k < s->nrecords; k++) {
    const MothRecord *r = s->records[k];
    d->nscratch = r->nnumbers > d->nscratch ? r->nnumbers : d->nscratch;
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
  /* References for all, whose rest goes back: one that is dropped meanwhile, on another thread, has its own. */
  int left = (int)s->nvalues;
  atomic_fetch_add_explicit(&storage->refs, left, memory_order_relaxed);
  for (uint32_t i = 0; i < s->nvalues; i++)
    if (is_left(s->values[i])) { /* keeps its number */
      MothTensor *t = s->values[i];
      t->storage = storage;
      left--;
      s->values[i] = NULL;
      moth_tensor_release(t);
    }
  atomic_fetch_sub_explicit(&storage->refs, left, memory_order_relaxed); /* origin has one */
  moth_tensor_release(origin);
  return MOTH_OK;
}

bool moth_op_draws(const MothOp *op) {
  bool draws = op->draws;
  for (int i = 0; i < op->nargs; i++)
    draws = draws || op->args[i].type == MOTH_T_GENERATOR;
  return draws;
}

bool moth_end_classify(const MothSegment *s, MothTraceEnd *end) {
  uint32_t *classes = malloc(sizeof *classes * ((size_t)s->nvalues + 1));
  if (!classes) {
    moth_no_memory(sizeof *classes * ((size_t)s->nvalues + 1));
    return false;
  }
  for (uint32_t i = 0; i < s->nvalues; i++) {
    const MothTensor *real = s->values[i];
    uint32_t k = 0;
    bool lazy = real->keys & MOTH_KEY_LAZY;
    while (k < i && s->shadows[k]->storage != s->shadows[i]->storage &&
           (lazy || s->values[k]->storage != real->storage))
      k++;
    classes[i] = k < i ? classes[k] : i;
  }
  free(end->classes);
  end->classes = classes;
  end->draws = false;
  for (uint32_t k = 0; k < s->nrecords; k++)
    end->draws = end->draws || moth_op_draws(s->records[k]->op);
  return true;
}

/* Calls fn for each value that r writes to. */
static void each_written(const MothRecord *r, bool *marks, const uint32_t *classes) {
  const uint32_t *number = r->numbers;
  for (int i = 0; i < r->op->nargs; i++) {
    for (uint32_t k = 0; k < moth_ntensors(r->args[i].value); k++, number++)
      if (r->op->args[i].mutated)
        marks[classes[*number]] = true;
  }
  for (int i = 0; r->variant != MOTH_FUNCTIONAL && i < r->op->nresults; i++)
    marks[classes[*number++]] = true;
}

/* What has to be computed for a value: marks by record, and by class. */
typedef struct Needs {
  bool *records, *wanted, *written, *own;
  bool draws;
} Needs;

static bool is_needed(const Deferred *d, const MothRecord *r, Needs *n) {
  bool any = n->draws && moth_op_draws(r->op);
  for (int i = 0; i < r->op->nresults; i++)
    any = any || n->wanted[d->classes[r->result[i]]];
  memset(n->own, 0, sizeof *n->own * d->nvalues);
  each_written(r, n->own, d->classes);
  for (uint32_t i = 0; i < d->nvalues; i++)
    any = any || (n->own[i] && n->wanted[i]);
  return any;
}

/* Marks what value `number` takes; NULL, or why it cannot be computed. */
static const char *find_needs(const Deferred *d, uint32_t number, Needs *n) {
  const char *why = NULL;
  n->wanted[d->classes[number]] = true;
  for (uint32_t k = d->nrecords; k-- > 0;) {
    const MothRecord *r = d->records[k];
    if (r->writes)
      each_written(r, n->written, d->classes);
    if (!is_needed(d, r, n))
      continue;
    n->records[k] = true;
    n->draws = n->draws || moth_op_draws(r->op);
    for (uint32_t i = 0; i < r->nnumbers; i++)
      n->wanted[d->classes[r->numbers[i]]] = true;
    if (r->op->id == UINT16_MAX)
      why = "it comes from a backward pass in the function";
    for (int i = 0; i < r->op->nargs; i++)
      if (r->args[i].value.tag == MOTH_V_GENERATOR)
        why = "it is drawn from a generator";
  }
  for (uint32_t i = 0; i < d->nvalues && !why; i++) {
    if (!d->inputs[i] || !n->wanted[d->classes[i]])
      continue;
    if (n->written[d->classes[i]])
      why = "the function has written to what it is computed from";
    else if (*moth_version_of(d->inputs[i]) != d->versions[i])
      why = "what it is computed from was written to since";
  }
  return why;
}

/* Keeps what shares memory with value `number`, for those that are looked at later. */
static void keep_made(Deferred *d, uint32_t number, MothTensor **values) {
  uint32_t own = d->classes[number];
  bool outside = false;
  for (uint32_t i = 0; i < d->nvalues; i++)
    outside = outside || (d->inputs[i] && d->classes[i] == own);
  if (outside)
    return;
  if (!d->made)
    d->made = calloc(d->nvalues, sizeof *d->made);
  for (uint32_t i = 0; d->made && i < d->nvalues; i++)
    if (i != number && d->classes[i] == own && values[i] && !d->made[i])
      moth_tensor_retain(d->made[i] = values[i]);
}

static MothStatus run_needed(Deferred *d, uint32_t number, const Needs *n, MothTensor **out) {
  MothTensor **values = calloc(d->nvalues, sizeof *values);
  MothTensor **scratch = malloc(sizeof(MothTensor *) * ((size_t)d->nscratch + 1));
  MothSegment tools = {.scratch = scratch};
  MothStatus status = MOTH_OK;
  MothGenerator *generator = moth_default_generator();
  uint64_t now[2];
  if (!values || !scratch) {
    free(values);
    free(scratch);
    return moth_no_memory(0);
  }
  for (uint32_t i = 0; i < d->nvalues; i++) {
    values[i] = d->inputs[i];
    moth_tensor_retain(values[i]);
  }
  if (n->draws) {
    moth_generator_get_state(generator, &now[0], &now[1]);
    moth_generator_set_state(generator, d->drawn[0], d->drawn[1]);
  }
  const MothValue *varying = d->varying;
  for (uint32_t k = 0; k < d->nrecords && status == MOTH_OK; k++) {
    const MothRecord *r = d->records[k];
    const MothValue *own = varying;
    MothValue results[MOTH_MAX_RESULTS];
    for (int i = 0; i < r->op->nargs; i++)
      varying += moth_arg_varies(r, i, true);
    if (!n->records[k])
      continue;
    status = moth_record_call(r, &tools, values, own, results);
    for (int i = 0; i < r->op->nresults && status == MOTH_OK; i++) {
      MothTensor **place = &values[r->result[i]];
      moth_tensor_release(*place);
      *place = results[i].u.t;
    }
  }
  if (n->draws)
    moth_generator_set_state(generator, now[0], now[1]);
  if (status == MOTH_OK) {
    keep_made(d, number, values);
    *out = values[number];
    values[number] = NULL;
  }
  for (uint32_t i = 0; i < d->nvalues; i++)
    moth_tensor_release(values[i]);
  free(values);
  free(scratch);
  return status;
}

/* *why: it cannot be computed. */
static MothStatus compute(Deferred *d, uint32_t number, MothTensor **out, const char **why) {
  bool *marks = calloc(3 * (size_t)d->nvalues + d->nrecords + 1, sizeof *marks);
  Needs n = {marks, marks + d->nrecords, marks + d->nrecords + d->nvalues,
             marks + d->nrecords + 2 * (size_t)d->nvalues, false};
  *why = NULL;
  if (!marks)
    return moth_no_memory((3 * (size_t)d->nvalues + d->nrecords + 1) * sizeof *marks);
  *why = find_needs(d, number, &n);
  MothStatus status = *why ? MOTH_OK : run_needed(d, number, &n, out);
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
  Deferred *d = storage->ctx;
  if (t->number >= d->nvalues)
    return MOTH_OK;
  MothTensor *made = NULL;
  if (d->made && d->made[t->number]) {
    moth_tensor_retain(made = d->made[t->number]);
    return moth_lazy_become(t, made); /* may free d */
  }
  MothSegment *here = moth_segment_here();
  bool running = here && here->running;
  const char *why;
  if (here)
    here->running = true; /* these calls are not noted */
  MothStatus status = compute(d, t->number, &made, &why);
  if (here)
    here->running = running;
  if (status != MOTH_OK)
    return status;
  learn(d->end, t->number);
  if (why)
    return moth_fail(MOTH_ERR_STATE,
                     "a value of a compiled function is looked at that it did not return, and %s: "
                     "return it from the function. (From its next call on it is kept.)",
                     why);
  return moth_lazy_become(t, made); /* may free d */
}

__attribute__((constructor)) static void offer(void) {
  moth_lazy_revive = revive;
}
