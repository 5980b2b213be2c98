/* What nodes save: packing by the current hooks, checks of versions, restoring of histories. See node.h. */
#include <string.h>

#include "autograd/node.h"
#include "autograd/tangent.h"
#include "core/alloc.h"
#include "core/dtype.h"
#include "device/device.h"
#include "ops/view.h"

/* The packed value of a tensor, and what is needed to restore the tensor. */
struct MothPacked {
  MothSavedHooks *hooks; /* retained */
  void *packed;
  MothNode *
      node; /* that made it, as result nr; NULL: it has no history, or is a result of the node that saved it */
  uint16_t nr;
  bool given; /* pack was called */
  MothResultMeta meta;
};

/* --- the current hooks ----------------------------------------------------------------------- */

static MothSavedHooks *innermost(void) {
  return (MothSavedHooks *)moth_thread.saved_hooks;
}

MothStatus moth_open_saved_hooks(MothSavedHooks *h) {
  MothSavedHooks *top = innermost();
  const char *message = h->disabled ? h->disabled : top ? top->disabled : NULL;
  if (top && (h->disabled != NULL) != (top->disabled != NULL))
    return moth_fail(MOTH_ERR_STATE, "%s",
                     message[0] ? message : "saved_tensors_hooks: they are disabled here");
  moth_frame_push(&moth_thread.saved_hooks, &h->frame);
  return MOTH_OK;
}

void moth_close_saved_hooks(MothSavedHooks *h) {
  moth_frame_close(&moth_thread.saved_hooks, &h->frame);
}

static void drop_hooks(MothFrame *f) {
  MothSavedHooks *h = (MothSavedHooks *)f;
  if (h->hooks.release)
    h->hooks.release(h->hooks.ctx);
  if (h->disabled)
    moth_free((void *)h->disabled, strlen(h->disabled) + 1);
  moth_free(h, sizeof *h);
}

static MothStatus push(const MothSavedTensorsHooks *hooks, const char *message) {
  MothSavedHooks *h = moth_alloc(sizeof *h);
  char *copy = message ? moth_alloc(strlen(message) + 1) : NULL;
  if (!h || (message && !copy)) {
    moth_free(h, sizeof *h);
    return moth_no_memory(0);
  }
  if (message)
    strcpy(copy, message);
  *h = (MothSavedHooks){.frame = {.refs = 1, .drop = drop_hooks}, .disabled = copy};
  MothStatus s = moth_open_saved_hooks(h);
  if (s != MOTH_OK)
    moth_frame_release(&h->frame);
  else if (hooks)
    h->hooks = *hooks;
  return s;
}

MothStatus moth_push_saved_tensors_hooks(const MothSavedTensorsHooks *hooks) {
  MOTH_TRY(moth_given("saved_tensors_hooks", hooks && hooks->pack && hooks->unpack));
  return push(hooks, NULL);
}

MothStatus moth_push_disabled_saved_tensors_hooks(const char *message) {
  MOTH_TRY(moth_given("disable_saved_tensors_hooks", message != NULL));
  return push(NULL, message);
}

void moth_pop_saved_tensors_hooks(void) {
  if (innermost())
    moth_close_saved_hooks(innermost());
}

/* --- packing ---------------------------------------------------------------------------------- */

void moth_drop_packed(MothPacked *p) {
  if (p->given && p->hooks->hooks.drop)
    p->hooks->hooks.drop(p->hooks->hooks.ctx, p->packed);
  moth_frame_release(&p->hooks->frame);
  moth_node_release(p->node);
  moth_free(p, sizeof *p);
}

/* Hooks run without recording, and their own ops save nothing by hooks. */
typedef struct Quiet {
  MothFrame *hooks;
  uint32_t exclude;
  bool no_grad;
} Quiet;

static Quiet be_quiet(void) {
  Quiet q = {moth_thread.saved_hooks, moth_thread.exclude, moth_thread.no_grad};
  moth_thread.saved_hooks = NULL;
  moth_thread.exclude |= MOTH_KEY_AUTOGRAD;
  moth_thread.no_grad = true;
  return q;
}

static void be_as(Quiet q) {
  moth_thread.saved_hooks = q.hooks;
  moth_thread.exclude = q.exclude;
  moth_thread.no_grad = q.no_grad;
}

/* Pack gets a leaf itself, as hooks recognize parameters by identity; any other tensor without its history: the
 * packed value may refer to it, and would keep the graph alive that it is a part of. */
static MothStatus pack(MothSavedHooks *h, MothTensor *t, bool result, bool apart, MothSaved *s) {
  MothPacked *p = moth_alloc(sizeof *p);
  MothTensor *shown = NULL;
  MothStatus status = MOTH_OK;
  int64_t version = *moth_version_of(t);
  if (!p)
    return moth_no_memory(sizeof *p);
  memset(p, 0, sizeof *p);
  p->hooks = h;
  moth_frame_retain(&h->frame);
  p->meta.dtype = t->dtype;
  p->meta.ndim = t->ndim;
  p->meta.device = t->device;
  memcpy(p->meta.shape, t->shape, sizeof(int64_t) * t->ndim);
  if (!result && !apart && moth_tensor_requires_grad(t))
    MOTH_GO(moth_gradient_edge(t, &p->node, &p->nr));
  if (!result && !apart && moth_tensor_is_leaf(t)) {
    moth_tensor_retain(t);
    shown = t;
  } else {
    MOTH_GO(moth_alias_for_graph(t, &shown));
  }
  Quiet q = be_quiet();
  status = h->hooks.pack(h->hooks.ctx, shown, &p->packed);
  be_as(q);
  p->given = status == MOTH_OK;
  if (status == MOTH_OK && *moth_version_of(t) != version)
    status =
        moth_fail(MOTH_ERR_STATE,
                  "saved_tensors_hooks: pack has changed the tensor that it was given in place; "
                  "clone() it first");
done:
  moth_tensor_release(shown);
  if (status != MOTH_OK) {
    moth_drop_packed(p);
    return status;
  }
  s->value = (MothValue){{.s = (const char *)p}, MOTH_V_PACKED, 0};
  return MOTH_OK;
}

MothStatus moth_save_tensor(MothSaved *s, MothTensor *t, bool result, bool apart) {
  MothSavedHooks *h = innermost();
  s->version = *moth_version_of(t);
  s->requires_grad = result && moth_dtype_is_inexact((MothDType)t->dtype);
  if (h && !h->disabled)
    return pack(h, t, result, apart, s);
  if (result || apart) {
    MothTensor *alias;
    MOTH_TRY(moth_alias_for_graph(t, &alias));
    s->value = moth_v_tensor(alias);
  } else {
    moth_tensor_retain(t);
    s->value = moth_v_tensor(t);
  }
  return MOTH_OK;
}

/* --- unpacking --------------------------------------------------------------------------------- */

MothStatus moth_alias_for_graph(MothTensor *t, MothTensor **out) {
  if (__builtin_expect(t->keys & MOTH_KEY_TANGENT, 0)) {
    MOTH_TRY(moth_tensor_alias(t, false, out));
    MothStatus shared = moth_tangents_share(*out, t);
    if (shared != MOTH_OK)
      moth_tensor_release(*out);
    return shared;
  }
  if (__builtin_expect(!moth_is_traced(), 1))
    return moth_tensor_alias(t, false, out);
  uint32_t exclude = moth_thread.exclude;
  moth_thread.exclude |= MOTH_KEY_AUTOGRAD;
  MothStatus s = moth_detach(t, out);
  moth_thread.exclude = exclude;
  return s;
}

/* The elements of t as result nr of node. */
static MothStatus attach(MothTensor *t, MothNode *node, int nr, MothTensor **out) {
  MothTensor *alias;
  MOTH_TRY(moth_alias_for_graph(t, &alias));
  MothStatus s = moth_set_history(alias, node, nr);
  if (s != MOTH_OK) {
    moth_tensor_release(alias);
    return s;
  }
  *out = alias;
  return MOTH_OK;
}

static bool is_like(const MothTensor *t, const MothResultMeta *m) {
  return t->dtype == m->dtype && t->ndim == m->ndim && t->device.type == m->device.type &&
         t->device.index == m->device.index &&
         !memcmp(t->shape, m->shape, sizeof(int64_t) * t->ndim);
}

static MothStatus unpack_packed(MothNode *n, const MothSaved *s, MothTensor **out) {
  MothPacked *p = (MothPacked *)(uintptr_t)s->value.u.s;
  MothTensor *t = NULL;
  MothNode *own = NULL;
  uint16_t nr = 0;
  char a[256], shape[200], device[32];
  Quiet q = be_quiet();
  MothStatus status = p->hooks->hooks.unpack(p->hooks->hooks.ctx, p->packed, &t);
  be_as(q);
  MOTH_TRY(status);
  if (!is_like(t, &p->meta)) {
    status = moth_fail(
        MOTH_ERR_VALUE, "saved_tensors_hooks: unpack gave %s for what was packed as %s %s %s",
        moth_tensor_format(t, a, sizeof a), moth_dtype_name((MothDType)p->meta.dtype),
        moth_shape_format(p->meta.ndim, p->meta.shape, shape, sizeof shape),
        moth_device_format(p->meta.device, device, sizeof device));
    goto done;
  }
  if (moth_requires_grad(t))
    MOTH_GO(moth_gradient_edge(t, &own, &nr));
  MothNode *due = moth_apart.now ? NULL : s->requires_grad ? n : p->node;
  uint16_t due_nr = s->requires_grad ? (uint16_t)(s->slot - 16) : p->nr;
  if (own == due && (!due || nr == due_nr)) { /* a leaf that was packed as itself */
    *out = t;
    t = NULL;
  } else if (due) {
    status = attach(t, due, due_nr, out);
  } else {
    status = moth_alias_for_graph(t, out);
  }
done:
  moth_node_release(own);
  moth_tensor_release(t);
  return status;
}

MothStatus moth_unpack_saved(MothNode *n, const MothSaved *s, MothValue *out) {
  MothTensor *t = NULL, *again = NULL;
  *out = s->value;
  if (!moth_saved_is_tensor(s))
    return MOTH_OK;
  *out = moth_v_none();
  if (s->value.tag == MOTH_V_PACKED) {
    MOTH_TRY(unpack_packed(n, s, &again));
    *out = moth_v_tensor(again);
    return MOTH_OK;
  }
  t = s->value.u.t;
  int64_t now = *moth_version_of(t);
  if (now != s->version && !s->kept) {
    char buf[256];
    return moth_fail(MOTH_ERR_STATE,
                     "one of the variables needed for gradient computation has been modified by an "
                     "inplace operation: [%s], %s of %s, is at version %lld; expected version %lld "
                     "instead. clone() it before changing it",
                     moth_tensor_format(t, buf, sizeof buf), s->slot < 16 ? "an input" : "a result",
                     n->name, (long long)now, (long long)s->version);
  }
  if (moth_apart.now) {
    MOTH_TRY(moth_alias_for_graph(t, &again));
  } else if (s->slot >= 16 && s->requires_grad) {
    MOTH_TRY(attach(t, n, s->slot - 16, &again));
  } else {
    moth_tensor_retain(t);
    again = t;
  }
  *out = moth_v_tensor(again);
  return MOTH_OK;
}
