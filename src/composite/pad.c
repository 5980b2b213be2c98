/* pad: each dimension has checks of its own, and each mode other ops. */
#include <string.h>

#include "composite/composite.h"
#include "core/dtype.h"
#include "dispatch/eval.h"
#include "ops/create.h"
#include "ops/index.h"
#include "ops/pointwise.h"
#include "ops/sort.h"
#include "ops/view.h"
#include "unpack/sort.h"

/* Writes from, from + step, … to `length` places of the vector x from `at` on. */
static MothStatus count_into(MothTensor *x, int64_t at, int64_t length, int64_t from,
                             int64_t step) {
  MothTensor *part, *numbers = NULL;
  MothStatus s;
  MOTH_TRY(moth_narrow(x, 0, at, length, &part));
  if (step == 0)
    return then(moth_fill_(part, moth_v_int(from)), part);
  s = moth_arange(moth_v_int(from), moth_v_int(from + step * length), moth_v_int(step),
                  moth_v_dtype(MOTH_INT64), moth_v_device(x->device), &numbers);
  if (s == MOTH_OK)
    s = then(moth_copy_(part, numbers, false), numbers);
  return then(s, part);
}

/* Positions 0 .. n + before + after - 1, less `before`, brought back into 0 .. n - 1. One side may cut, past the whole
 * dimension, too: what is left of the other's border is then all there is. */
static MothStatus sources(int mode, int64_t n, int64_t before, int64_t after, MothDevice device,
                          MothTensor **out) {
  MothTensor *i;
  const bool mirrored = mode == MOTH_MODE_REFLECT, around = mode == MOTH_MODE_CIRCULAR;
  const int64_t step = mirrored ? -1 : around, all = n + before + after;
  const int64_t head = before < 0 ? 0 : before < all ? before : all;
  const int64_t tail = after < 0 ? 0 : after < all ? after : all;
  const int64_t beyond = after > tail ? after - tail : 0;
  MOTH_TRY(moth_arange(moth_v_int(-before), moth_v_int(n + after), moth_v_int(1),
                       moth_v_dtype(MOTH_INT64), moth_v_device(device), &i));
  MothStatus s = count_into(i, 0, head, mirrored ? before : around ? n - before : 0, step);
  if (s == MOTH_OK)
    s = count_into(i, all - tail, tail,
                   (mirrored ? n - 2
                    : around ? 0
                             : n - 1) +
                       step * beyond,
                   step);
  if (s != MOTH_OK)
    return then(s, i);
  *out = i;
  return MOTH_OK;
}

static MothStatus constant(MothTensor *x, int n, const int64_t *pad, MothValue value,
                           MothTensor **out) {
  int64_t shape[MOTH_MAX_DIMS];
  MothTensor *full, *part, *next;
  memcpy(shape, x->shape, sizeof(int64_t) * (size_t)x->ndim);
  for (int i = 0; i < n / 2; i++)
    shape[x->ndim - 1 - i] += pad[2 * i] + pad[2 * i + 1];
  uint32_t keep = moth_enter_as(x);
  MOTH_TRY(moth_leave_as(keep, x,
                         moth_full(shape, x->ndim, value, moth_v_dtype((MothDType)x->dtype),
                                   moth_v_device(x->device), &full),
                         &full));
  part = full;
  moth_tensor_retain(part);
  for (int i = 0; i < n / 2; i++) {
    int d = x->ndim - 1 - i;
    MothStatus s = then(moth_narrow(part, d, pad[2 * i], x->shape[d], &next), part);
    if (s != MOTH_OK)
      return then(s, full);
    part = next;
  }
  MothStatus s = then(moth_copy_(part, x, false), part);
  if (s != MOTH_OK)
    return then(s, full);
  *out = full;
  return MOTH_OK;
}

/* part = `length` of x from `at` on in dimension d, `used` of which is released. */
static MothStatus cut(MothTensor *x, int d, int64_t at, int64_t length, MothTensor **part) {
  return then(moth_narrow(x, d, at, length, part), x);
}

/* One edge of `region` along d, `length` wide from `to` on: its places from `from` on, or back from there. */
static MothStatus put_edge(int mode, MothTensor *region, int d, int64_t to, int64_t length,
                           int64_t from) {
  MothTensor *edge, *source, *turned;
  if (length <= 0)
    return MOTH_OK;
  MOTH_TRY(moth_narrow(region, d, to, length, &edge));
  MothStatus s = moth_narrow(region, d, from, mode == MOTH_MODE_REPLICATE ? 1 : length, &source);
  if (s == MOTH_OK && mode == MOTH_MODE_REFLECT) {
    s = then(moth_flip(source, (int64_t[]){d}, 1, &turned), source);
    source = turned;
  }
  if (s == MOTH_OK)
    s = then(moth_copy_(edge, source, false), source);
  return then(s, edge);
}

/* self is copied once, into the middle, and the edges from there: an index_select for each dimension copies as often. Where
 * nothing is recorded, for a derivative goes through many copies more slowly. */
static MothStatus around(MothTensor *x, int n_pad, const int64_t *pad, int mode, MothTensor **out) {
  int64_t shape[MOTH_MAX_DIMS];
  MothTensor *whole, *part;
  MothStatus s = MOTH_OK;
  const int last = x->ndim - 1, n = n_pad / 2;
  memcpy(shape, x->shape, sizeof(int64_t) * (size_t)x->ndim);
  for (int i = 0; i < n; i++)
    shape[last - i] += pad[2 * i] + pad[2 * i + 1];
  MOTH_TRY(moth_empty(shape, x->ndim, moth_v_dtype((MothDType)x->dtype), moth_v_device(x->device),
                      &whole));
  /* k: the dimensions that are done, from the last one on; first the middle itself. */
  for (int k = -1; k < n && s == MOTH_OK; k++) {
    part = whole;
    moth_tensor_retain(part);
    for (int i = k + 1; i < n && s == MOTH_OK; i++)
      s = cut(part, last - i, pad[2 * i], x->shape[last - i], &part);
    if (s != MOTH_OK)
      break;
    const int d = last - k;
    if (k < 0) {
      s = moth_copy_(part, x, false);
    } else {
      const int64_t before = pad[2 * k], after = pad[2 * k + 1], size = x->shape[d];
      const bool mirrored = mode == MOTH_MODE_REFLECT, circular = mode == MOTH_MODE_CIRCULAR;
      const int64_t head = mirrored ? before + 1 : circular ? size : before;
      const int64_t tail = mirrored   ? before + size - 1 - after
                           : circular ? before
                                      : before + size - 1;
      s = put_edge(mode, part, d, 0, before, head);
      if (s == MOTH_OK)
        s = put_edge(mode, part, d, before + size, after, tail);
    }
    moth_tensor_release(part);
  }
  if (s != MOTH_OK)
    return then(s, whole);
  *moth_version_of(whole) = 0; /* nobody saw it before: as a result of one op */
  *out = whole;
  return MOTH_OK;
}

static MothStatus pad_by(MothCall *c, MothTensor *self, int n_pad, const int64_t *pad, int mode,
                         MothValue value) {
  MothTensor *x = self, *out, *index;
  int64_t grow[2 * MOTH_MAX_DIMS];
  bool any = false;
  if (n_pad % 2)
    return moth_fail(MOTH_ERR_VALUE, "pad must hold an even number of sizes, got %d", n_pad);
  if (n_pad / 2 > self->ndim)
    return moth_fail(MOTH_ERR_VALUE, "pad is for %d dimensions, self has %d", n_pad / 2,
                     self->ndim);
  /* Mirrors and edges are those of the whole dimension, also where a side is cut off; what goes around is what is left. */
  const bool whole = mode == MOTH_MODE_REFLECT || mode == MOTH_MODE_REPLICATE;
  for (int i = 0; i < n_pad; i++) {
    int d = self->ndim - 1 - i / 2;
    int64_t n = self->shape[d], before = pad[i & ~1], after = pad[i | 1];
    int64_t left = n + (before < 0 ? before : 0) + (after < 0 ? after : 0);
    if (n + before + after < 0 || (!whole && left < 0))
      return moth_fail(MOTH_ERR_VALUE,
                       "pad %lld and %lld of a dimension of %lld elements make a negative size",
                       (long long)before, (long long)after, (long long)n);
    if (mode == MOTH_MODE_REFLECT && pad[i] >= n && pad[i] > 0)
      return moth_fail(MOTH_ERR_VALUE,
                       "reflected padding must be smaller than the dimension, got %lld for %lld "
                       "elements",
                       (long long)pad[i], (long long)n);
    if (mode == MOTH_MODE_CIRCULAR && pad[i] > left)
      return moth_fail(MOTH_ERR_VALUE,
                       "circular padding must not be larger than what is left of the dimension, "
                       "got %lld for %lld elements",
                       (long long)pad[i], (long long)left);
    if (mode == MOTH_MODE_REPLICATE && n == 0 && pad[i] > 0)
      return moth_fail(MOTH_ERR_VALUE, "an empty dimension has no edge to replicate");
    grow[i] = pad[i] > 0 || (whole && (before > 0 || after > 0)) ? pad[i] : 0;
    any |= grow[i] > 0;
  }
  moth_tensor_retain(x);
  for (int i = 0; i < n_pad; i += 2) { /* cut */
    int d = self->ndim - 1 - i / 2;
    int64_t lo = pad[i] < grow[i] ? -pad[i] : 0, hi = pad[i + 1] < grow[i + 1] ? -pad[i + 1] : 0;
    if (!lo && !hi)
      continue;
    MOTH_TRY(then(moth_narrow(x, d, lo, x->shape[d] - lo - hi, &out), x));
    x = out;
  }
  if (mode == MOTH_MODE_CONSTANT) {
    if (any || x == self) /* also by 0: the same calls for all sizes, in a graph that has several */
      MOTH_TRY(then(constant(x, n_pad, grow, value, &out), x));
    else
      MOTH_TRY(then(moth_clone(x, &out), x));
    return moth_give(c, out);
  }
  bool grows = any && x->ndim > 1;
  for (int i = 0; i < n_pad; i++)
    grows = grows && grow[i] >= 0;
  if (grows && x->keys == MOTH_KEY_CPU && !x->carried && !moth_is_traced() &&
      !moth_value_records(moth_v_tensor(x))) {
    MOTH_TRY(then(around(x, n_pad, grow, mode, &out), x));
    return moth_give(c, out);
  }
  for (int i = 0; i < n_pad; i += 2) {
    int d = self->ndim - 1 - i / 2;
    if (!grow[i] && !grow[i + 1])
      continue;
    MothStatus s = sources(mode, x->shape[d], grow[i], grow[i + 1], x->device, &index);
    if (s == MOTH_OK)
      s = then(moth_index_select(x, d, index, 0, &out), index);
    MOTH_TRY(then(s, x));
    x = out;
    any = true;
  }
  if (!any) {
    MOTH_TRY(then(moth_clone(x, &out), x));
    x = out;
  }
  return moth_give(c, x);
}

MothStatus moth_composite_pad(MothCall *c) {
  MOTH_UNPACK_PAD(c)
  return pad_by(c, self, (int)pad.n, pad.u.ints, mode, value);
}
