/* Frozen plans: those of a program whose tensors do not change. What kernels make of them, packed weights, is kept from run to
 * run; and whoever holds the plan asks before a run whether they are still as they were. One run at a time keeps; those
 * on other threads go on without. */
#include <stdatomic.h>
#include <stdlib.h>

#include "core/alloc.h"
#include "core/kept.h"
#include "dispatch/dispatch.h"
#include "dispatch/subclass.h"
#include "graph/plan_steps.h"

typedef struct Source {
  MothTensor *tensor; /* retained */
  const char *data;
  int64_t version;
} Source;

typedef struct MothPlanFrozen {
  Source *sources;
  uint32_t nsources;
  MothKept **kept;  /* by step */
  atomic_bool used; /* by a run */
} MothPlanFrozen;

void moth_plan_free_frozen(MothPlan *p) {
  MothPlanFrozen *f = p->frozen;
  if (!f)
    return;
  for (uint32_t i = 0; i < f->nsources; i++)
    moth_tensor_release(f->sources[i].tensor);
  for (uint32_t i = 0; f->kept && i < p->nsteps; i++)
    moth_kept_free(&f->kept[i]);
  free(f->sources);
  free(f->kept);
  free(f);
  p->frozen = NULL;
}

MothStatus moth_plan_freeze(MothPlan *p, MothTensor *const *sources, uint32_t n) {
  moth_plan_free_frozen(p);
  MothPlanFrozen *f = p->frozen = calloc(1, sizeof *f);
  if (!f)
    return moth_no_memory(sizeof *f);
  f->sources = calloc((size_t)n + 1, sizeof *f->sources);
  f->kept = calloc((size_t)p->nsteps + 1, sizeof(MothKept *));
  if (!f->sources || !f->kept) {
    moth_plan_free_frozen(p);
    return moth_no_memory(0);
  }
  for (uint32_t i = 0; i < n; i++) {
    moth_tensor_retain(sources[i]);
    f->sources[i] = (Source){sources[i], sources[i]->data, moth_tensor_version(sources[i])};
  }
  f->nsources = n;
  return MOTH_OK;
}

static bool is_plain(const MothTensor *t, bool records) {
  return t->device.type == MOTH_CPU && t->contiguous &&
         !(t->keys & (MOTH_KEY_FAKE | MOTH_KEY_SUBCLASS | MOTH_KEY_PENDING | MOTH_KEY_LAZY |
                      MOTH_KEY_BATCH | MOTH_KEY_TANGENT)) &&
         !(records && moth_tensor_requires_grad(t));
}

bool moth_plan_may_freeze(const MothPlan *p, MothTensor *const *tensors, uint32_t n) {
  const MothThread *t = &moth_thread;
  uint32_t others =
      MOTH_KEY_FAKE | MOTH_KEY_PENDING | MOTH_KEY_LAZY | MOTH_KEY_BATCH | MOTH_KEY_AUTOCAST;
  bool may = !(t->include & others) && !moth_is_traced() && !t->nabove && !t->nbelow;
  for (uint32_t i = 0; i < n && may; i++)
    may = is_plain(tensors[i], !t->no_grad);
  const MothPlanFrozen *f = p ? p->frozen : NULL;
  for (uint32_t i = 0; f && !t->no_grad && i < f->nsources && may; i++)
    may = !moth_tensor_requires_grad(f->sources[i].tensor);
  return may;
}

bool moth_plan_is_fresh(const MothPlan *p) {
  const MothPlanFrozen *f = p->frozen;
  for (uint32_t i = 0; f && i < f->nsources; i++)
    if (f->sources[i].version != moth_tensor_version(f->sources[i].tensor) ||
        f->sources[i].data != f->sources[i].tensor->data)
      return false;
  return f != NULL;
}

/* --- what is kept ------------------------------------------------------------------------------------------------ */

static bool is_held(const void *owner, const void *address) {
  const MothPlan *p = owner;
  const char *at = address;
  for (uint32_t i = 0; i < p->nvalues; i++) {
    const MothTensor *t = p->values[i].held;
    if (t && t->data && at >= t->data && at < t->data + t->numel * moth_itemsize(t))
      return true;
  }
  return false;
}

MothKeeping *moth_plan_keep_begin(const MothPlan *p, MothKeeping *k) {
  if (!p->frozen || moth_keeper || atomic_exchange(&p->frozen->used, true))
    return NULL;
  moth_keeping_begin(k, is_held, p, true);
  return k;
}

void moth_plan_keep_end(const MothPlan *p, MothKeeping *k) {
  if (!k)
    return;
  moth_keeping_end(k);
  atomic_store(&p->frozen->used, false);
}

MothKept **moth_plan_kept(const MothPlan *p, uint32_t step) {
  return &p->frozen->kept[step];
}
