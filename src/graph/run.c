/* Running what was noted: each lazy tensor becomes the result of its call. */
#include <stdlib.h>
#include <string.h>

#include "autograd/node.h"
#include "core/alloc.h"
#include "dispatch/lazy.h"
#include "graph/trace.h"

MothStatus moth_lazy_become(MothTensor *t, MothTensor *made) {
  MothNode *node = NULL;
  uint16_t nr = 0;
  MothStatus status = MOTH_OK;
  bool shared = atomic_load_explicit(&made->refs, memory_order_acquire) != 1;
  if (shared && moth_tensor_requires_grad(made)) {
    if (moth_tensor_is_leaf(made))
      status =
          moth_fail(MOTH_ERR_STATE, "a compiled graph returned a leaf that requires grad: return a "
                                    "new tensor");
    else
      status = moth_gradient_edge(made, &node, &nr); /* of a view, after writes to its base, anew */
  }
  if (status != MOTH_OK) {
    moth_tensor_release(made);
    return status;
  }
  moth_tensor_become(t, made);
  if (node)
    status = moth_set_history(t, node, nr);
  moth_node_release(node);
  return status;
}

/* The result i of r is there. */
static MothStatus take_result(MothSegment *s, const MothRecord *r, int i, MothTensor *made) {
  MothTensor *t = s->values[r->result[i]];
  if (t == made) {
    moth_tensor_release(made);
    return MOTH_OK;
  }
  if (t && t->keys & MOTH_KEY_LAZY)
    return moth_lazy_become(t, made);
  moth_tensor_release(made);
  return moth_fail(MOTH_ERR_STATE, "[%s] gave a new tensor where it had given its argument",
                   r->op->name);
}

static MothStatus fail_at(const MothRecord *r, MothStatus status) {
  if (status == MOTH_ERR_HOST || status == MOTH_ERR_INTERRUPTED || !moth_trace_host.failed)
    return status;
  return moth_trace_host.failed(r->place, status);
}

static MothStatus run_record(MothSegment *s, const MothRecord *r) {
  MothValue results[MOTH_MAX_RESULTS];
  MothStatus status = moth_record_call(r, s, s->values, NULL, results);
  if (status == MOTH_ERR_MEMORY && moth_alloc_collect && moth_alloc_collect())
    status = moth_record_call(r, s, s->values, NULL, results);
  if (status != MOTH_OK)
    return fail_at(r, status);
  for (int i = 0; i < r->op->nresults; i++) {
    MothStatus one = take_result(s, r, i, results[i].u.t);
    status = status == MOTH_OK ? one : status;
  }
  return status == MOTH_OK ? status : fail_at(r, status);
}

static void drop_value(MothSegment *s, uint32_t number) {
  moth_tensor_release(s->values[number]);
  s->values[number] = NULL;
}

MothStatus moth_segment_run_each(MothSegment *s) {
  MothStatus status = MOTH_OK;
  for (uint32_t k = 0; k < s->nrecords; k++) {
    const MothRecord *r = s->records[k];
    for (uint32_t i = 0; i < r->nnumbers; i++)
      s->last_use[r->numbers[i]] = k;
    for (int i = 0; i < r->op->nresults; i++)
      s->last_use[r->result[i]] = k;
  }
  for (uint32_t k = 0; k < s->nrecords && status == MOTH_OK; k++) {
    const MothRecord *r = s->records[k];
    status = run_record(s, r);
    if (status != MOTH_OK)
      break;
    if (s->keeps)
      continue;
    for (uint32_t i = 0; i < r->nnumbers; i++)
      if (s->last_use[r->numbers[i]] == k && s->values[r->numbers[i]])
        drop_value(s, r->numbers[i]);
    for (int i = 0; i < r->op->nresults; i++)
      if (s->last_use[r->result[i]] == k && s->values[r->result[i]])
        drop_value(s, r->result[i]);
  }
  return status;
}

static MothTraceEnd *end_of(MothSegment *s) {
  MothTrace *t = s->recorder->trace;
  MothRecord *r = s->last;
  if (r->end)
    return r->end;
  MothTraceEnd *end = calloc(1, sizeof *end);
  if (!end)
    return NULL;
  end->last = r;
  end->trace = t;
  end->older = t->ends;
  end->number = ++t->nends;
  t->ends = end;
  r->end = end;
  moth_trace_counters()->graphs++;
  if (r->child)
    moth_trace_new_way(t);
  return end;
}

/* Empties s. Lazy tensors that were not made stay without values. */
static void clear(MothSegment *s) {
  moth_shadow_drop(s);
  for (uint32_t i = 0; i < s->nvalues; i++) {
    MothTensor *t = s->values[i];
    if (t && t->keys & MOTH_KEY_LAZY)
      t->number = UINT32_MAX;
    moth_tensor_release(t);
  }
  s->nvalues = s->nrecords = 0;
  s->last = NULL;
}

MothStatus moth_segment_finish(MothSegment *s, MothTraceEnd **out) {
  MothTrace *t = s->recorder->trace;
  MothTraceEnd *end = end_of(s);
  MothStatus status = MOTH_OK;
  if (out)
    *out = end;
  MothHidden inner;
  moth_recorder_hide_inner(s->recorder, &inner);
  moth_unrun = 0;
  s->running = true;
  if (end && end->draws)
    moth_generator_get_state(moth_default_generator(), &s->drawn[0], &s->drawn[1]);
  if (!t->capture) {
    bool done = false;
    if (end && moth_segment_checks)
      status = moth_segment_check(s, end);
    const MothObserver *o = end && t->host ? moth_observed() : NULL;
    int64_t at = o ? o->begin_compiled("compiled segment") : -1;
    if (status == MOTH_OK && end && t->host && moth_trace_host.run)
      status = moth_trace_host.run(s, end, &done);
    if (o)
      o->end(at);
    if (status == MOTH_OK && !done)
      status = moth_segment_run_each(s);
    else if (status == MOTH_OK && end->code && end->code->defers)
      status = moth_segment_defer(s, end);
  }
  if (status != MOTH_OK)
    moth_gradients_drop(s);
  if (end) {
    end->runs++;
    s->recorder->after = end;
  }
  clear(s);
  s->running = false;
  moth_intercept_show(&inner);
  return status;
}

MothStatus moth_segment_run(void) {
  MothSegment *s = moth_segment_here();
  return moth_unrun && s && !s->running ? moth_segment_finish(s, NULL) : MOTH_OK;
}

static MothStatus settle(const char *what) {
  return moth_segment_break(what);
}

__attribute__((constructor)) static void offer(void) {
  moth_run_unrun = settle;
}
