/* Plans for any sizes: one for each set of sizes, the last used are kept. A plan says where memory lies: that follows from
 * the sizes by no formula that would be quicker than to look one up. */
#include <string.h>

#include "graph/plan_steps.h"

static bool same_geometry(const MothTensor *want, const MothTensor *t) {
  return !memcmp(t->shape, want->shape, sizeof *t->shape * t->ndim) &&
         moth_same_strides(t->ndim, t->numel, t->shape, t->stride, want->stride);
}

bool moth_plan_is_for(const MothPlan *p, MothTensor *const *inputs, const MothValue *numbers) {
  for (uint32_t i = 0; i < p->ninputs; i++)
    if (!same_geometry(p->values[p->inputs[i]].fake, inputs[i]))
      return false;
  for (uint32_t i = 0; i < p->nbound && numbers; i++)
    if (!moth_trace_value_same(&p->bound[i].value, &numbers[p->bound[i].number]))
      return false;
  return true;
}

static uint64_t hash(const MothPlan *p, MothTensor *const *inputs, const MothValue *numbers) {
  uint64_t h = 1;
  for (uint32_t i = 0; i < p->ninputs; i++) {
    moth_mix(&h, inputs[i]->shape, inputs[i]->ndim);
    moth_mix(&h, inputs[i]->stride, inputs[i]->ndim);
  }
  for (uint32_t i = 0; i < p->nbound && numbers; i++) {
    const MothValue *v = &numbers[p->bound[i].number];
    bool list = v->tag == MOTH_V_INTS;
    moth_mix(&h, list ? v->u.ints : &v->u.i, list ? v->n : 1);
  }
  return h;
}

/* Whether these sizes have come before; they have from now on. */
static bool was_seen(MothPlan *p, uint64_t h) {
  for (uint32_t i = 0; i < p->nseen && i < MOTH_PLAN_SIZES; i++)
    if (p->seen[i] == h)
      return true;
  p->seen[p->nseen++ % MOTH_PLAN_SIZES] = h;
  return false;
}

/* The plan, first in the list now; NULL: there is none. The caller has the lock. */
static MothPlan *find(MothPlan *p, MothTensor *const *inputs, const MothValue *numbers) {
  for (MothPlan **at = &p->others; *at; at = &(*at)->others) {
    MothPlan *q = *at;
    if (!moth_plan_is_for(q, inputs, numbers))
      continue;
    *at = q->others;
    q->others = p->others;
    p->others = q;
    moth_plan_retain(q);
    return q;
  }
  return NULL;
}

/* Puts q first; the ones used longest ago go. */
static void keep(MothPlan *p, MothPlan *q) {
  MothPlan *gone = NULL;
  pthread_mutex_lock(&p->lock);
  q->others = p->others;
  p->others = q;
  moth_plan_retain(q);
  MothPlan *last = q;
  for (int n = 1; n < MOTH_PLAN_SIZES && last->others; n++)
    last = last->others;
  gone = last->others;
  last->others = NULL;
  pthread_mutex_unlock(&p->lock);
  while (gone) { /* another thread may be running it */
    MothPlan *next = gone->others;
    gone->others = NULL;
    moth_plan_release(gone);
    gone = next;
  }
}

MothPlan *moth_plan_for(MothPlan *p, MothTensor *const *inputs, const MothValue *numbers) {
  pthread_mutex_lock(&p->lock);
  MothPlan *q = find(p, inputs, numbers);
  bool seen = q || was_seen(p, hash(p, inputs, numbers));
  pthread_mutex_unlock(&p->lock);
  if (q || !seen || moth_plan_again(p, inputs, numbers, &q) != MOTH_OK)
    return q;
  keep(p, q);
  return q;
}
