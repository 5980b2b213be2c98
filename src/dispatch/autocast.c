/* Autocast: converts float tensors to the dtype of the op's `amp` policy, and remembers the casts of weights.
 *
 * A weight is a leaf that requires a gradient. While the outermost autocast scope is open, its cast to the lower dtype
 * is made once for each of its versions: several uses, as of a recurrent layer's weights, share one conversion, and
 * their gradients are added in the lower dtype and converted back once. Fake, lazy and traced tensors are not
 * remembered: a graph would depend on what ran before it. */
#include "dispatch/autocast.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "dispatch/steps.h"

bool (*moth_autocast_is_weight)(const MothTensor *t);

typedef struct Cast {
  MothTensor *weight, *low; /* retained; weight NULL: a free slot */
  int64_t version;
  uint8_t dtype;
  bool no_grad; /* made without a history */
} Cast;

typedef struct Casts {
  MothFrame frame;
  Cast *slots; /* a hash table by the weight's address, its size a power of two */
  size_t size, n;
} Casts;

static void drop_casts(MothFrame *f) {
  Casts *c = (Casts *)f;
  for (size_t i = 0; i < c->size; i++)
    if (c->slots[i].weight) {
      moth_tensor_release(c->slots[i].weight);
      moth_tensor_release(c->slots[i].low);
    }
  free(c->slots);
  free(c);
}

bool moth_autocast_open(void) {
  Casts *c = moth_thread.casts ? NULL : calloc(1, sizeof *c);
  if (!c)
    return false;
  c->frame.refs = 1;
  c->frame.drop = drop_casts;
  moth_frame_push(&moth_thread.casts, &c->frame);
  return true;
}

void moth_autocast_close(void) {
  if (moth_thread.casts)
    moth_frame_close(&moth_thread.casts, moth_thread.casts);
}

static Cast *slot_of(const Casts *c, const MothTensor *weight, MothDType dtype) {
  size_t i = ((uintptr_t)weight >> 6) * 0x9E3779B97F4A7C15u >> 20;
  for (;; i++) {
    Cast *s = &c->slots[i & (c->size - 1)];
    if (!s->weight ||
        (s->weight == weight && s->dtype == dtype && s->no_grad == moth_thread.no_grad))
      return s;
  }
}

/* NULL: no memory. */
static Cast *find(Casts *c, const MothTensor *weight, MothDType dtype) {
  if (c->n * 2 >= c->size) {
    Casts old = *c;
    size_t size = old.size ? old.size * 2 : 64;
    Cast *slots = calloc(size, sizeof *slots);
    if (!slots)
      return NULL;
    c->slots = slots;
    c->size = size;
    for (size_t i = 0; i < old.size; i++)
      if (old.slots[i].weight) {
        bool no_grad = moth_thread.no_grad;
        moth_thread.no_grad = old.slots[i].no_grad;
        *slot_of(c, old.slots[i].weight, (MothDType)old.slots[i].dtype) = old.slots[i];
        moth_thread.no_grad = no_grad;
      }
    free(old.slots);
  }
  return slot_of(c, weight, dtype);
}

static bool is_weight(const MothTensor *t) {
  return t->dtype == MOTH_FLOAT32 && moth_autocast_is_weight && moth_autocast_is_weight(t) &&
         !t->carried && !(t->keys & (MOTH_KEY_FAKE | MOTH_KEY_LAZY)) && !moth_is_traced() &&
         !(moth_thread.include & (MOTH_KEY_FAKE | MOTH_KEY_LAZY));
}

/* t in another dtype: *out is owned by the caller. */
static MothStatus cast(MothTensor *t, MothDType to, MothTensor **out) {
  MothValue args[2] = {moth_v_tensor(t), moth_v_dtype(to)};
  bool keep = moth_thread.casts && !moth_thread.no_cast_cache && to != MOTH_FLOAT32 && is_weight(t);
  Cast *s = keep ? find((Casts *)moth_thread.casts, t, to) : NULL;
  if (s && s->weight && s->version == *moth_version_of(t)) {
    moth_tensor_retain(*out = s->low);
    return MOTH_OK;
  }
  MOTH_TRY(moth_call1(MOTH_OP(to), 2, args, out));
  /* The call may have run hooks of the host, which may have cast others: the slot is searched again. */
  s = keep ? find((Casts *)moth_thread.casts, t, to) : NULL;
  if (!s)
    return MOTH_OK;
  if (s->weight) {
    moth_tensor_release(s->low);
  } else {
    moth_tensor_retain(t);
    ((Casts *)moth_thread.casts)->n++;
  }
  moth_tensor_retain(*out);
  *s = (Cast){t, *out, *moth_version_of(t), (uint8_t)to, moth_thread.no_grad};
  return MOTH_OK;
}

/* float64 stays: who computes in it has a reason. */
static bool is_cast(const MothTensor *t, MothDType to) {
  return moth_dtype_is_float((MothDType)t->dtype) && t->dtype != MOTH_FLOAT64 && t->dtype != to;
}

static bool any_float32(const MothCall *c) {
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    if (v.tag == MOTH_V_TENSOR && v.u.t->dtype == MOTH_FLOAT32)
      return true;
    for (uint32_t k = 0; v.tag == MOTH_V_TENSORS && k < v.n; k++)
      if (v.u.tensors[k]->dtype == MOTH_FLOAT32)
        return true;
  }
  return false;
}

/* The tensors that casts have made, released after the call; and the lists that refer to them. */
typedef struct Made {
  MothTensor **tensors;
  MothTensor **lists;
  uint32_t n, nlists;
} Made;

static MothStatus cast_into(MothCall *c, MothTensor **at, MothDType to, Made *made) {
  if (!is_cast(*at, to))
    return MOTH_OK;
  MOTH_TRY(cast(*at, to, &made->tensors[made->n]));
  *at = made->tensors[made->n++];
  c->keys |= (*at)->keys & ~moth_thread.exclude & MOTH_KEY_AUTOGRAD;
  return MOTH_OK;
}

static MothStatus cast_args(MothCall *c, MothValue *args, MothDType to, Made *made) {
  /* An in-place op keeps the dtype of what it writes to, and takes the others as that one. */
  int first = c->variant == MOTH_INPLACE ? 1 : 0;
  for (int i = first; i < c->op->nargs; i++) {
    if (c->op->args[i].mutated)
      continue;
    if (args[i].tag == MOTH_V_TENSOR) {
      MOTH_TRY(cast_into(c, &args[i].u.t, to, made));
    } else if (args[i].tag == MOTH_V_TENSORS) {
      MothTensor **list = made->lists + made->nlists;
      made->nlists += args[i].n;
      for (uint32_t k = 0; k < args[i].n; k++) {
        list[k] = args[i].u.tensors[k];
        MOTH_TRY(cast_into(c, &list[k], to, made));
      }
      args[i].u.tensors = list;
    }
  }
  return MOTH_OK;
}

MothStatus moth_autocast(MothCall *c) {
  c->keys &= ~(uint32_t)MOTH_KEY_AUTOCAST;
  int on = moth_thread.autocast[c->device.type];
  int policy = c->op->amp;
  if (!on || policy == MOTH_AMP_KEEP)
    return moth_redispatch(c);
  MothDType low = (MothDType)(on - 1), to = policy == MOTH_AMP_LOW ? low : MOTH_FLOAT32;
  if (c->variant == MOTH_INPLACE) {
    MothDType own = (MothDType)c->args[0].u.t->dtype;
    if (policy != MOTH_AMP_LOW || !moth_dtype_is_float(own) || own == MOTH_FLOAT64)
      return moth_redispatch(c);
    to = own;
  } else if (policy == MOTH_AMP_WIDEST && !any_float32(c)) {
    to = low;
  }
  MothValue args[MOTH_MAX_ARGS];
  MothTensor *few[2 * MOTH_MAX_ARGS];
  uint32_t total = 0;
  for (int i = 0; i < c->op->nargs; i++) {
    args[i] = c->args[i];
    total += args[i].tag == MOTH_V_TENSORS ? args[i].n : args[i].tag == MOTH_V_TENSOR;
  }
  size_t bytes = 2 * sizeof(MothTensor *) * total;
  Made made = {.tensors = total <= MOTH_MAX_ARGS ? few : moth_alloc(bytes)};
  if (!made.tensors)
    return moth_no_memory(0);
  made.lists = made.tensors + total;
  uint32_t include = moth_thread.include;
  moth_thread.include &= ~(uint32_t)MOTH_KEY_AUTOCAST;
  MothStatus s = cast_args(c, args, to, &made);
  if (s == MOTH_OK) {
    MothValue *keep = c->args;
    c->args = args;
    s = moth_redispatch(c);
    c->args = keep;
  }
  moth_thread.include = include;
  for (uint32_t i = 0; i < made.n; i++)
    moth_tensor_release(made.tensors[i]);
  if (made.tensors != few)
    moth_free(made.tensors, bytes);
  return s;
}
