/* Hooks of tensors and nodes, watchers of nodes, callbacks at the end of backward. See node.h. */
#include <string.h>

#include "autograd/node.h"
#include "core/alloc.h"
#include "dispatch/steps.h"
#include "ops/pointwise.h"

static _Atomic int64_t next_hook = 1;

/* --- the lists -------------------------------------------------------------------------------- */

void moth_hook_release(MothHook *h) {
  if (atomic_fetch_sub_explicit(&h->refs, 1, memory_order_acq_rel) != 1)
    return;
  if (h->release)
    h->release(h->ctx);
  moth_free(h, sizeof *h);
}

void moth_hooks_free(MothHook **list) {
  MothHook *h = *list;
  *list = NULL;
  while (h) {
    MothHook *next = h->next;
    h->removed = true;
    moth_hook_release(h);
    h = next;
  }
}

void moth_hooks_cut(MothHook **list) {
  MothHook *cut = NULL;
  while (*list) {
    MothHook *h = *list;
    if (h->kind == MOTH_HOOK_NOTE) {
      list = &h->next;
      continue;
    }
    *list = h->next;
    h->next = cut;
    cut = h;
  }
  moth_hooks_free(&cut);
}

static MothStatus append(MothHook **at, MothHook hook, int64_t *id) {
  MothHook *h = moth_alloc(sizeof *h);
  if (!h)
    return moth_no_memory(sizeof *h);
  *h = hook;
  h->refs = 1;
  h->removed = false;
  h->next = NULL;
  h->id = atomic_fetch_add(&next_hook, 1);
  if (id)
    *id = h->id;
  while (*at)
    at = &(*at)->next;
  *at = h;
  return MOTH_OK;
}

MothStatus moth_node_add_hook(MothNode *n, MothHook hook, int64_t *id) {
  return append(&n->hooks, hook, id);
}

MothStatus moth_tensor_add_hook(MothTensor *t, MothHook hook, int64_t *id) {
  const char *name =
      hook.kind == MOTH_HOOK_AFTER ? "register_post_accumulate_grad_hook" : "register_hook";
  MOTH_TRY(moth_given(name, t));
  if (!moth_tensor_requires_grad(t))
    return moth_fail(MOTH_ERR_STATE,
                     "%s: cannot register a hook on a tensor that doesn't require gradient", name);
  if (moth_view_is_stale(t)) { /* its base was written to: the hook belongs to the new node */
    MothNode *n;
    uint16_t nr;
    MOTH_TRY(moth_gradient_edge(t, &n, &nr));
    moth_node_release(n);
  }
  MOTH_TRY(moth_node_expand(t));
  MothAutogradMeta *m = t->grad;
  if (!m->node)
    return append(&m->hooks, hook, id);
  if (hook.kind == MOTH_HOOK_AFTER)
    return moth_fail(
        MOTH_ERR_STATE,
        "%s: only a leaf has its gradient accumulated; this tensor was made by %s: use "
        "register_hook",
        name, m->node->name);
  hook.nr = m->nr;
  return append(&m->node->hooks, hook, id);
}

MothStatus moth_tensor_register_hook(MothTensor *t, MothGradHook run, MothRelease release,
                                     void *ctx, int64_t *id) {
  MOTH_TRY(moth_given("register_hook", t && run));
  return moth_tensor_add_hook(
      t, (MothHook){.kind = MOTH_HOOK_GRAD, .run = run, .release = release, .ctx = ctx}, id);
}

/* A public AFTER hook has one argument less. */
typedef struct After {
  MothLeafHook run;
  MothRelease release;
  void *ctx;
} After;

static MothStatus run_after(void *ctx, MothTensor *leaf, MothTensor **out) {
  const After *a = ctx;
  (void)out;
  return a->run(a->ctx, leaf);
}

static void release_after(void *ctx) {
  After *a = ctx;
  if (a->release)
    a->release(a->ctx);
  moth_free(a, sizeof *a);
}

MothStatus moth_tensor_register_post_accumulate_grad_hook(MothTensor *t, MothLeafHook run,
                                                          MothRelease release, void *ctx,
                                                          int64_t *id) {
  MOTH_TRY(moth_given("register_post_accumulate_grad_hook", t && run));
  After *a = moth_alloc(sizeof *a);
  if (!a)
    return moth_no_memory(sizeof *a);
  *a = (After){run, release, ctx};
  MothHook hook = {.kind = MOTH_HOOK_AFTER, .run = run_after, .release = release_after, .ctx = a};
  MothStatus s = moth_tensor_add_hook(t, hook, id);
  if (s != MOTH_OK)
    moth_free(a, sizeof *a);
  return s;
}

static bool remove_from(MothHook **at, int64_t id) {
  for (; *at; at = &(*at)->next)
    if ((*at)->id == id) {
      MothHook *h = *at;
      *at = h->next;
      h->removed = true;
      moth_hook_release(h);
      return true;
    }
  return false;
}

void moth_remove_hook(MothTensor *t, MothNode *node, int64_t id) {
  if (t && t->grad && remove_from(&t->grad->hooks, id))
    return;
  if (node)
    remove_from(&node->hooks, id);
}

void moth_tensor_remove_hook(MothTensor *t, int64_t id) {
  if (t && t->grad)
    moth_remove_hook(t, t->grad->node, id);
}

void *moth_node_note(const MothNode *n, void (*release)(void *ctx)) {
  for (const MothHook *h = n->hooks; h; h = h->next)
    if (h->kind == MOTH_HOOK_NOTE && h->release == release)
      return h->ctx;
  return NULL;
}

void moth_use_hooks(MothHook *list) {
  for (MothHook *h = list; h; h = h->next)
    if (h->use)
      h->use(h->ctx);
}

/* --- running ---------------------------------------------------------------------------------- */

/* The present hooks of a kind, retained: one may add and remove hooks, itself too. */
typedef struct Due {
  MothHook *few[8], **list;
  size_t n;
} Due;

static bool is_due(const MothHook *h, MothHookKind kind, int nr) {
  return h->kind == kind && (kind != MOTH_HOOK_GRAD || h->nr == nr);
}

static MothStatus retain_due(Due *due, MothHook *hooks, MothHookKind kind, int nr) {
  size_t i = 0;
  due->list = due->few;
  due->n = 0;
  for (MothHook *h = hooks; h; h = h->next)
    due->n += is_due(h, kind, nr);
  if (due->n > 8 && !(due->list = moth_alloc(sizeof *due->list * due->n))) {
    due->n = 0;
    return moth_no_memory(0);
  }
  for (MothHook *h = hooks; h; h = h->next)
    if (is_due(h, kind, nr)) {
      atomic_fetch_add_explicit(&h->refs, 1, memory_order_relaxed);
      due->list[i++] = h;
    }
  return MOTH_OK;
}

static void release_due(Due *due) {
  for (size_t i = 0; i < due->n; i++)
    moth_hook_release(due->list[i]);
  if (due->list != due->few)
    moth_free(due->list, sizeof *due->list * due->n);
}

MothStatus moth_run_hooks(MothHook *hooks, int nr, MothTensor **grad) {
  Due due;
  MothStatus status = MOTH_OK;
  MOTH_TRY(retain_due(&due, hooks, MOTH_HOOK_GRAD, nr));
  for (size_t i = 0; i < due.n; i++) {
    MothTensor *out = NULL;
    if (due.list[i]->removed)
      continue;
    MOTH_GO(due.list[i]->run(due.list[i]->ctx, *grad, &out));
    if (out) {
      moth_tensor_release(*grad);
      *grad = out;
    }
  }
done:
  release_due(&due);
  return status;
}

MothStatus moth_run_after_hooks(MothHook *hooks, MothTensor *leaf) {
  Due due;
  MothStatus status = MOTH_OK;
  MOTH_TRY(retain_due(&due, hooks, MOTH_HOOK_AFTER, 0));
  for (size_t i = 0; i < due.n; i++) {
    MothTensor *none = NULL;
    if (!due.list[i]->removed)
      MOTH_GO(due.list[i]->run(due.list[i]->ctx, leaf, &none));
  }
done:
  release_due(&due);
  return status;
}

MothStatus moth_leaf_receive(MothTensor *leaf, MothTensor **grad) {
  if (leaf->grad && leaf->grad->hooks)
    MOTH_TRY(moth_run_hooks(leaf->grad->hooks, 0, grad));
  MothTensor *old = moth_tensor_grad(leaf);
  if (old)
    MOTH_TRY(moth_add_(moth_v_tensor(old), moth_v_tensor(*grad), moth_v_int(1)));
  else
    MOTH_TRY(moth_tensor_set_grad(leaf, *grad));
  return leaf->grad && leaf->grad->hooks ? moth_run_after_hooks(leaf->grad->hooks, leaf) : MOTH_OK;
}

MothStatus moth_run_node_hooks(MothHook *hooks, MothHookKind kind, MothNode *n, MothTensor **inputs,
                               int ninputs, MothTensor **results, int nresults) {
  Due due;
  MothStatus status = MOTH_OK;
  MOTH_TRY(retain_due(&due, hooks, kind, 0));
  for (size_t i = 0; i < due.n; i++)
    if (!due.list[i]->removed)
      MOTH_GO(due.list[i]->run_node(due.list[i]->ctx, n, inputs, ninputs, results, nresults));
done:
  release_due(&due);
  return status;
}

/* --- watchers --------------------------------------------------------------------------------- */

void moth_watch_nodes(MothWatcher *w) {
  moth_frame_push(&moth_thread.watchers, &w->frame);
}

void moth_unwatch_nodes(MothWatcher *w) {
  moth_frame_close(&moth_thread.watchers, &w->frame);
}

/* Runs the statement for each open watcher, outermost last; it may close itself. Nodes made meanwhile are not
 * watched. */
#define FOR_WATCHERS(w, statement)                                                                 \
  do {                                                                                             \
    MothFrame *top = moth_thread.watchers;                                                         \
    moth_thread.watchers = NULL;                                                                   \
    for (MothFrame *f = top; f; f = f->outer) {                                                    \
      MothWatcher *w = (MothWatcher *)f;                                                           \
      if (!f->closed) {                                                                            \
        statement;                                                                                 \
      }                                                                                            \
    }                                                                                              \
    moth_thread.watchers = top;                                                                    \
  } while (0)

MothStatus moth_watch_made(MothNode *n) {
  MothStatus s = MOTH_OK;
  FOR_WATCHERS(w, if (s == MOTH_OK && w->made) s = w->made(w->ctx, n));
  return s;
}

MothStatus moth_watch_begin(MothNode *n, MothTensor *const *grads, int ngrads) {
  MothStatus s = MOTH_OK;
  FOR_WATCHERS(w, if (s == MOTH_OK && w->begin) s = w->begin(w->ctx, n, grads, ngrads));
  return s;
}

MothStatus moth_watch_end(MothNode *n, MothTensor *const *grads, int ngrads, MothStatus s) {
  FOR_WATCHERS(w, if (w->end) s = w->end(w->ctx, n, grads, ngrads, s));
  return s;
}

/* --- the end of backward ---------------------------------------------------------------------- */

typedef struct Callback {
  struct Callback *next;
  MothCallback run;
  MothRelease release;
  void *ctx;
} Callback;

static _Thread_local Callback *callbacks; /* of the outermost backward of this thread, in order */

void moth_swap_callbacks(Callback **list) {
  Callback *mine = callbacks;
  callbacks = *list;
  *list = mine;
}

MothStatus moth_queue_callback(MothCallback run, MothRelease release, void *ctx) {
  MOTH_TRY(moth_given("queue_callback", run != NULL));
  if (!moth_current_pass())
    return moth_fail(
        MOTH_ERR_STATE,
        "queue_callback: callbacks are for the end of a backward, and none runs on this "
        "thread; call it in a hook or in the backward of a Function");
  Callback *c = moth_alloc(sizeof *c), **at = &callbacks;
  if (!c)
    return moth_no_memory(sizeof *c);
  *c = (Callback){NULL, run, release, ctx};
  while (*at)
    at = &(*at)->next;
  *at = c;
  return MOTH_OK;
}

MothStatus moth_run_callbacks(MothStatus status) {
  if (!callbacks)
    return status;
  enum { TEXT = 2048 };
  char *text = moth_alloc(TEXT); /* the message of the first error */
  MothStatus first = status;
  if (text)
    text[0] = 0;
  if (first != MOTH_OK && text)
    strncat(text, moth_last_error(), TEXT - 1);
  while (callbacks) {
    Callback *c = callbacks;
    callbacks = c->next;
    MothStatus s = c->run(c->ctx, status);
    if (c->release)
      c->release(c->ctx);
    moth_free(c, sizeof *c);
    if (s != MOTH_OK && first == MOTH_OK) {
      first = s;
      if (text)
        strncat(text, moth_last_error(), TEXT - 1);
    }
  }
  if (first != MOTH_OK && first != MOTH_ERR_HOST && text)
    moth_fail(first, "%s", text);
  moth_free(text, TEXT);
  return first;
}
