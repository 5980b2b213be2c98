/* The open scopes of a thread: interceptors, frames, and the settings of coroutines. See dispatch.h. */
#include <string.h>

#include "core/alloc.h"
#include "core/thread.h"
#include "dispatch/dispatch.h"
#include "dispatch/lazy.h"
#include "dispatch/steps.h"
#include "dispatch/subclass.h"

_Thread_local MothThread moth_thread;
static _Thread_local MothInterceptor *intercept_above, *intercept_below;

MothThread *moth_thread_state(void) {
  return &moth_thread;
}

/* --- interceptors ----------------------------------------------------------------------------- */

static _Thread_local int running; /* functions of interceptors, one in another */

bool moth_intercept_running(void) {
  return running > 0;
}

MothStatus moth_intercept(MothCall *c, bool above) {
  MothThread *t = &moth_thread;
  uint8_t *at = above ? &c->above_at : &c->below_at;
  uint8_t *n = above ? &t->nabove : &t->nbelow;
  uint32_t key = above ? MOTH_KEY_ABOVE : MOTH_KEY_BELOW;
  MothInterceptor *list = above ? intercept_above : intercept_below;
  MothInterceptor i = list[--*at], inner[MOTH_MAX_INTERCEPTORS];
  if (*at == 0)
    c->keys &= ~key;
  MothStatus s;
  if (i.observer) {
    running++;
    s = i.fn(c, i.ctx);
    running--;
    return s;
  }
  uint8_t keep = *n, begin = *at;
  uint32_t include = t->include;
  *n = begin;
  if (begin == 0)
    t->include &= ~key;
  /* Interceptors that the function pushes take the slots of those that are off while it runs. */
  memcpy(inner, list + begin, sizeof *list * (size_t)(keep - begin));
  running++;
  s = i.fn(c, i.ctx);
  running--;
  memcpy(list + begin, inner, sizeof *list * (size_t)(keep - begin));
  *n = keep;
  t->include = include;
  return s;
}

MothStatus moth_intercept_push(bool above, MothInterceptor i) {
  MothThread *t = &moth_thread;
  uint8_t *n = above ? &t->nabove : &t->nbelow;
  if (*n >= MOTH_MAX_INTERCEPTORS)
    return moth_fail(MOTH_ERR_STATE, "more than %d interceptors are nested", MOTH_MAX_INTERCEPTORS);
  if (!intercept_above) {
    MothInterceptor *both = moth_thread_calloc(sizeof *both * 2 * MOTH_MAX_INTERCEPTORS);
    if (!both)
      return moth_no_memory(sizeof *both * 2 * MOTH_MAX_INTERCEPTORS);
    intercept_above = both;
    intercept_below = both + MOTH_MAX_INTERCEPTORS;
  }
  (above ? intercept_above : intercept_below)[(*n)++] = i;
  t->include |= above ? MOTH_KEY_ABOVE : MOTH_KEY_BELOW;
  return MOTH_OK;
}

bool moth_intercept_pop(bool above, MothInterceptor which) {
  MothThread *t = &moth_thread;
  uint8_t *n = above ? &t->nabove : &t->nbelow;
  MothInterceptor *list = above ? intercept_above : intercept_below;
  for (int i = *n - 1; i >= 0; i--) {
    if (list[i].fn != which.fn || list[i].ctx != which.ctx)
      continue;
    memmove(list + i, list + i + 1, sizeof *list * (size_t)(*n - 1 - i));
    if (--*n == 0)
      t->include &= ~(uint32_t)(above ? MOTH_KEY_ABOVE : MOTH_KEY_BELOW);
    return true;
  }
  return false;
}

void *moth_intercept_find(bool above, MothStatus (*fn)(MothCall *c, void *ctx)) {
  const MothInterceptor *list = above ? intercept_above : intercept_below;
  for (int i = (above ? moth_thread.nabove : moth_thread.nbelow) - 1; i >= 0; i--)
    if (list[i].fn == fn)
      return list[i].ctx;
  return NULL;
}

void moth_intercept_hide(MothStatus (*fn)(MothCall *c, void *ctx), const void *ctx, MothHidden *h) {
  MothThread *t = &moth_thread;
  h->n = 0;
  for (int i = t->nabove - 1; i >= 0; i--)
    if (intercept_above[i].fn == fn && intercept_above[i].ctx == ctx) {
      h->from = (uint8_t)(i + 1);
      h->n = (uint8_t)(t->nabove - h->from);
      memcpy(h->list, intercept_above + h->from, sizeof *h->list * h->n);
      t->nabove = h->from;
      return;
    }
}

void moth_intercept_show(const MothHidden *h) {
  if (!h->n)
    return;
  memcpy(intercept_above + h->from, h->list, sizeof *h->list * h->n);
  moth_thread.nabove = (uint8_t)(h->from + h->n);
}

bool moth_is_traced(void) {
  const MothThread *t = &moth_thread;
  for (int i = 0; i < t->nabove; i++)
    if (!intercept_above[i].observer)
      return true;
  for (int i = 0; i < t->nbelow; i++)
    if (!intercept_below[i].observer)
      return true;
  return false;
}

/* --- frames ----------------------------------------------------------------------------------- */

void moth_frame_retain(MothFrame *f) {
  if (f)
    atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
}

void moth_frame_release(MothFrame *f) {
  while (f && atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) == 1) {
    MothFrame *outer = f->outer;
    f->drop(f);
    f = outer;
  }
}

void moth_frame_push(MothFrame **stack, MothFrame *f) {
  f->outer = *stack;
  *stack = f;
}

static void swap_frame(MothFrame **stack, MothFrame *f) {
  MothFrame *old = *stack;
  moth_frame_retain(f);
  *stack = f;
  moth_frame_release(old);
}

void moth_frame_close(MothFrame **stack, MothFrame *f) {
  if (*stack == f) {
    do {
      swap_frame(stack, (*stack)->outer);
    } while (*stack && (*stack)->closed);
    return;
  }
  for (const MothFrame *at = *stack; at; at = at->outer)
    if (at == f)
      f->closed = true;
}

/* --- modes of coroutines ---------------------------------------------------------------------- */

static void count_modes(const MothModes *m, int by) {
  for (int i = 0; i < m->thread.nabove; i++)
    if (m->above[i].count)
      m->above[i].count(m->above[i].ctx, by);
  for (int i = 0; i < m->thread.nbelow; i++)
    if (m->below[i].count)
      m->below[i].count(m->below[i].ctx, by);
  void (*count)(MothFrame * f) = by > 0 ? moth_frame_retain : moth_frame_release;
  count(m->thread.saved_hooks);
  count(m->thread.watchers);
  count(m->thread.casts);
  count(m->thread.vmaps);
}

void moth_modes_forget(MothModes *m) {
  count_modes(m, -1);
  m->thread.nabove = m->thread.nbelow = 0;
  m->thread.saved_hooks = m->thread.watchers = m->thread.casts = m->thread.vmaps = NULL;
}

void moth_modes_save(MothModes *to) {
  MothModes before = *to;
  to->thread = moth_thread;
  for (int i = 0; i < moth_thread.nabove; i++)
    to->above[i] = intercept_above[i];
  for (int i = 0; i < moth_thread.nbelow; i++)
    to->below[i] = intercept_below[i];
  count_modes(to, 1); /* first: most interceptors are in both */
  count_modes(&before, -1);
}

void moth_modes_load(const MothModes *from) {
  swap_frame(&moth_thread.saved_hooks, from->thread.saved_hooks);
  swap_frame(&moth_thread.watchers, from->thread.watchers);
  swap_frame(&moth_thread.casts, from->thread.casts);
  swap_frame(&moth_thread.vmaps, from->thread.vmaps);
  moth_thread = from->thread;
  for (int i = 0; i < moth_thread.nabove; i++)
    intercept_above[i] = from->above[i];
  for (int i = 0; i < moth_thread.nbelow; i++)
    intercept_below[i] = from->below[i];
}

/* Keeps only those of the thread itself; returns their number. */
static uint8_t keep_own(MothInterceptor *list, uint8_t n) {
  uint8_t kept = 0;
  for (int i = 0; i < n; i++)
    if (list[i].thread)
      list[kept++] = list[i];
  return kept;
}

bool moth_modes_any(void) {
  const MothThread *t = &moth_thread;
  bool any = t->nbelow || t->no_grad || t->exclude || t->saved_hooks || t->watchers || t->vmaps ||
             t->include & ~(uint32_t)MOTH_KEY_ABOVE;
  for (int i = 0; i < t->nabove; i++)
    any = any || !intercept_above[i].thread;
  return any;
}

void moth_modes_reset(void) {
  swap_frame(&moth_thread.saved_hooks, NULL);
  swap_frame(&moth_thread.watchers, NULL);
  swap_frame(&moth_thread.casts, NULL);
  swap_frame(&moth_thread.vmaps, NULL);
  MothThread fresh = {.nabove = keep_own(intercept_above, moth_thread.nabove)};
  fresh.include = fresh.nabove ? MOTH_KEY_ABOVE : 0;
  moth_thread = fresh;
}
