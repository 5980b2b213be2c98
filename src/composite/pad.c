/* pad: each dimension has checks of its own, and each mode other ops. */
#include <string.h>

#include "composite/composite.h"
#include "core/dtype.h"
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

/* Positions 0 .. n + before + after - 1, less `before`, brought back into 0 .. n - 1. */
static MothStatus sources(int mode, int64_t n, int64_t before, int64_t after, MothDevice device,
                          MothTensor **out) {
  MothTensor *i;
  const bool mirrored = mode == MOTH_MODE_REFLECT, around = mode == MOTH_MODE_CIRCULAR;
  const int64_t step = mirrored ? -1 : around, all = n + before + after;
  const int64_t head = before < 0 ? 0 : before < all ? before : all;
  const int64_t tail = after < 0 ? 0 : after < all ? after : all;
  MOTH_TRY(moth_arange(moth_v_int(-before), moth_v_int(n + after), moth_v_int(1),
                       moth_v_dtype(MOTH_INT64), moth_v_device(device), &i));
  MothStatus s = count_into(i, 0, head, mirrored ? before : around ? n - before : 0, step);
  if (s == MOTH_OK)
    s = count_into(i, all - tail, tail, mirrored ? n - 2 : around ? 0 : n - 1, step);
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
  for (int i = 0; i < n_pad; i++) {
    int d = self->ndim - 1 - i / 2;
    int64_t n = self->shape[d], before = pad[i & ~1], after = pad[i | 1];
    if (n + before + after < 0 || n + (before < 0 ? before : 0) + (after < 0 ? after : 0) < 0)
      return moth_fail(MOTH_ERR_VALUE,
                       "pad %lld and %lld of a dimension of %lld elements make a negative size",
                       (long long)before, (long long)after, (long long)n);
    if (mode == MOTH_MODE_REFLECT && pad[i] >= n && pad[i] > 0)
      return moth_fail(MOTH_ERR_VALUE,
                       "reflected padding must be smaller than the dimension, got %lld for %lld "
                       "elements",
                       (long long)pad[i], (long long)n);
    if (mode == MOTH_MODE_CIRCULAR && pad[i] > n)
      return moth_fail(MOTH_ERR_VALUE,
                       "circular padding must not be larger than the dimension, got %lld for %lld "
                       "elements",
                       (long long)pad[i], (long long)n);
    if (mode == MOTH_MODE_REPLICATE && n == 0 && pad[i] > 0)
      return moth_fail(MOTH_ERR_VALUE, "an empty dimension has no edge to replicate");
    /* The edge may be cut off on one side and be repeated on the other. */
    grow[i] = pad[i] > 0 || (mode == MOTH_MODE_REPLICATE && n) ? pad[i] : 0;
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
