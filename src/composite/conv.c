/* Composites of src/ops/conv.lua: one dimension as two of which the first has size 1, transposed
 * convolutions as derivatives of plain ones, pooling without its positions. */
#include <string.h>

#include "composite/composite.h"
#include "core/dtype.h"
#include "dispatch/shape_conv.h"

/* A list for the one dimension there is as one for two, `fill` for the added one. */
static MothStatus widen(const char *name, MothValue v, int64_t fill, int64_t two[2],
                        MothValue *out) {
  *out = v;
  if (v.tag == MOTH_V_NONE)
    return MOTH_OK;
  if (v.n != 1)
    return moth_fail(MOTH_ERR_VALUE, "%s must be one number, got %u", name, v.n);
  two[0] = fill;
  two[1] = v.u.ints[0];
  *out = moth_v_ints(two, 2);
  return MOTH_OK;
}

/* (…, L) as (…, 1, L) */
static MothStatus as_image(MothTensor *t, const char *name, MothTensor **out) {
  if (t->ndim != 2 && t->ndim != 3)
    return moth_fail(MOTH_ERR_VALUE, "%s must have 2 or 3 dimensions ((N,) C, L), got %d", name,
                     t->ndim);
  return moth_unsqueeze(t, -2, out);
}

static MothStatus as_line(MothTensor *t, MothTensor **out) {
  return moth_squeeze(t, moth_v_int(-2), out);
}

/* Result i of a call: *t as a line. t is released. */
static MothStatus give_line(MothCall *c, int i, MothTensor *t) {
  MothTensor *out;
  MothStatus s = as_line(t, &out);
  moth_tensor_release(t);
  if (s == MOTH_OK)
    c->results[i] = moth_v_tensor(out);
  return s;
}

MothStatus moth_composite_conv1d(MothCall *c) {
  MOTH_UNPACK_CONV1D(c)
  MothTensor *x = NULL, *w = NULL, *y = NULL;
  MothStatus status = MOTH_OK;
  int64_t two[3][2];
  MothValue s, p, d;
  MOTH_TRY(widen("stride", stride, 1, two[0], &s));
  MOTH_TRY(widen("padding", padding, 0, two[1], &p));
  MOTH_TRY(widen("dilation", dilation, 1, two[2], &d));
  if (weight->ndim != 3)
    return moth_fail(MOTH_ERR_VALUE, "weight must have 3 dimensions (K, C / groups, k), got %d",
                     weight->ndim);
  MOTH_GO(as_image(input, "input", &x));
  MOTH_GO(as_image(weight, "weight", &w));
  MOTH_GO(moth_conv2d(x, w, bias, s, p, d, groups, &y));
done:
  moth_tensor_release(x);
  moth_tensor_release(w);
  return status ? status : give_line(c, 0, y);
}

/* --- transposed ------------------------------------------------------------------------------- */

static MothStatus number_of(const char *name, MothValue v, int i, int64_t def, int64_t least,
                            int64_t *out) {
  *out = def;
  if (v.tag == MOTH_V_NONE || v.n == 0)
    return MOTH_OK;
  if (v.n > 2)
    return moth_fail(MOTH_ERR_VALUE, "%s must be one number or two, got %u", name, v.n);
  *out = v.u.ints[v.n == 2 ? i : 0];
  if (*out < least || *out > INT32_MAX)
    return moth_fail(MOTH_ERR_VALUE, "%s must be at least %lld, got %lld", name, (long long)least,
                     (long long)*out);
  return MOTH_OK;
}

/* t + bias (K), which lies along dimension -3. t is released. */
static MothStatus add_bias(MothTensor *t, MothTensor *bias, MothTensor **out) {
  int64_t k = t->shape[t->ndim - 3], shape[3] = {k, 1, 1};
  MothTensor *b;
  if (!bias) {
    *out = t;
    return MOTH_OK;
  }
  MothStatus s = MOTH_OK;
  if (bias->ndim != 1 || bias->shape[0] != k)
    s = moth_fail(MOTH_ERR_VALUE, "bias must have shape [%lld]", (long long)k);
  if (s == MOTH_OK)
    s = moth_view(bias, shape, 3, &b);
  if (s == MOTH_OK) {
    s = moth_add(moth_v_tensor(t), moth_v_tensor(b), moth_v_int(1), out);
    moth_tensor_release(b);
  }
  moth_tensor_release(t);
  return s;
}

MothStatus moth_composite_conv_transpose2d(MothCall *c) {
  MOTH_UNPACK_CONV_TRANSPOSE2D(c)
  MothTensor *y, *out;
  int n = input->ndim;
  int64_t size[4], whole[4],
      cut[4]; /* cut: rows and columns to add on each side of the whole, the last ones first */
  bool beyond = false;
  if (n != 3 && n != 4)
    return moth_fail(MOTH_ERR_VALUE, "input must have 3 or 4 dimensions ((N,) C, H, W), got %d", n);
  if (weight->ndim != 4)
    return moth_fail(MOTH_ERR_VALUE,
                     "weight must have 4 dimensions (C, K / groups, kh, kw), got %d", weight->ndim);
  if (input->shape[n - 3] != weight->shape[0])
    return moth_fail(MOTH_ERR_VALUE, "input must have the %lld channels of weight, got %lld",
                     (long long)weight->shape[0], (long long)input->shape[n - 3]);
  if (groups < 1)
    return moth_fail(MOTH_ERR_VALUE, "groups must be at least 1, got %lld", (long long)groups);
  if (n == 4)
    size[0] = input->shape[0];
  if (__builtin_mul_overflow(weight->shape[1], groups, &size[n - 3]))
    return moth_fail(MOTH_ERR_VALUE, "groups is too large: %lld", (long long)groups);
  for (int i = 0; i < 2; i++) {
    int64_t s, p, o, d;
    MOTH_TRY(number_of("stride", stride, i, 1, 1, &s));
    MOTH_TRY(number_of("padding", padding, i, 0, 0, &p));
    MOTH_TRY(number_of("output_padding", output_padding, i, 0, 0, &o));
    MOTH_TRY(number_of("dilation", dilation, i, 1, 1, &d));
    if (o >= s && o >= d)
      return moth_fail(MOTH_ERR_VALUE,
                       "output_padding must be smaller than stride or dilation, got %lld",
                       (long long)o);
    whole[n - 2 + i] = (input->shape[n - 2 + i] - 1) * s + d * (weight->shape[2 + i] - 1) + 1;
    size[n - 2 + i] = whole[n - 2 + i] - 2 * p + o;
    cut[2 * (1 - i)] = -p;
    cut[2 * (1 - i) + 1] = o - p;
    beyond |= o >= s;
    if (size[n - 2 + i] < 1)
      return moth_fail(MOTH_ERR_VALUE,
                       "the result would have size %lld in dimension %d: padding is too large",
                       (long long)size[n - 2 + i], n - 1 + i);
  }
  if (beyond) { /* of no convolution that has this input as its result: cut out of the one without padding */
    MothTensor *full;
    memcpy(whole, size, sizeof(int64_t) * (size_t)(n - 2));
    MOTH_TRY(moth_conv2d_backward_input(input, weight, whole, n, stride, moth_v_none(), dilation,
                                        groups, &full));
    MothStatus s = moth_pad(full, cut, 4, "constant", moth_v_int(0), &y);
    moth_tensor_release(full);
    MOTH_TRY(s);
  } else {
    MOTH_TRY(
        moth_conv2d_backward_input(input, weight, size, n, stride, padding, dilation, groups, &y));
  }
  MOTH_TRY(add_bias(y, bias, &out));
  return moth_give(c, out);
}

MothStatus moth_composite_conv_transpose1d(MothCall *c) {
  MOTH_UNPACK_CONV_TRANSPOSE1D(c)
  MothTensor *x = NULL, *w = NULL, *y = NULL;
  MothStatus status = MOTH_OK;
  int64_t two[4][2];
  MothValue s, p, o, d;
  MOTH_TRY(widen("stride", stride, 1, two[0], &s));
  MOTH_TRY(widen("padding", padding, 0, two[1], &p));
  MOTH_TRY(widen("output_padding", output_padding, 0, two[2], &o));
  MOTH_TRY(widen("dilation", dilation, 1, two[3], &d));
  if (weight->ndim != 3)
    return moth_fail(MOTH_ERR_VALUE, "weight must have 3 dimensions (C, K / groups, k), got %d",
                     weight->ndim);
  MOTH_GO(as_image(input, "input", &x));
  MOTH_GO(as_image(weight, "weight", &w));
  MOTH_GO(moth_conv_transpose2d(x, w, bias, s, p, o, groups, d, &y));
done:
  moth_tensor_release(x);
  moth_tensor_release(w);
  return status ? status : give_line(c, 0, y);
}

/* --- pooling ---------------------------------------------------------------------------------- */

MothStatus moth_composite_max_pool2d(MothCall *c) {
  MOTH_UNPACK_MAX_POOL2D(c)
  MothTensor *out, *positions;
  MOTH_TRY(moth_max_pool2d_with_indices(self, kernel_size.u.ints, (int)kernel_size.n, stride,
                                        padding, dilation, ceil_mode, 0, &out, &positions));
  moth_tensor_release(positions);
  return moth_give(c, out);
}

MothStatus moth_composite_adaptive_max_pool2d(MothCall *c) {
  MOTH_UNPACK_ADAPTIVE_MAX_POOL2D(c)
  MothTensor *out, *positions;
  MOTH_TRY(moth_adaptive_max_pool2d_with_indices(self, output_size.u.ints, (int)output_size.n, 0,
                                                 &out, &positions));
  moth_tensor_release(positions);
  return moth_give(c, out);
}

/* Both results as images. */
static MothStatus max_pool1d(MothTensor *self, MothValue kernel, MothValue stride,
                             MothValue padding, MothValue dilation, bool ceil_mode, int64_t base,
                             MothTensor **out, MothTensor **positions) {
  int64_t two[4][2];
  MothValue k, s, p, d;
  MothTensor *x;
  MOTH_TRY(widen("kernel_size", kernel, 1, two[0], &k));
  MOTH_TRY(widen("stride", stride, 1, two[1], &s));
  MOTH_TRY(widen("padding", padding, 0, two[2], &p));
  MOTH_TRY(widen("dilation", dilation, 1, two[3], &d));
  MOTH_TRY(as_image(self, "self", &x));
  MothStatus status =
      moth_max_pool2d_with_indices(x, k.u.ints, 2, s, p, d, ceil_mode, base, out, positions);
  moth_tensor_release(x);
  return status;
}

MothStatus moth_composite_max_pool1d_with_indices(MothCall *c) {
  MOTH_UNPACK_MAX_POOL1D_WITH_INDICES(c)
  MothTensor *out, *positions, *first, *second;
  MOTH_TRY(max_pool1d(self, kernel_size, stride, padding, dilation, ceil_mode, index_base, &out,
                      &positions));
  MothStatus s = as_line(out, &first);
  moth_tensor_release(out);
  if (s == MOTH_OK) {
    s = as_line(positions, &second);
    if (s != MOTH_OK)
      moth_tensor_release(first);
  }
  moth_tensor_release(positions);
  MOTH_TRY(s);
  c->results[0] = moth_v_tensor(first);
  c->results[1] = moth_v_tensor(second);
  return MOTH_OK;
}

MothStatus moth_composite_max_pool1d(MothCall *c) {
  MOTH_UNPACK_MAX_POOL1D(c)
  MothTensor *out, *positions;
  MOTH_TRY(
      max_pool1d(self, kernel_size, stride, padding, dilation, ceil_mode, 0, &out, &positions));
  moth_tensor_release(positions);
  return give_line(c, 0, out);
}

MothStatus moth_composite_avg_pool1d(MothCall *c) {
  MOTH_UNPACK_AVG_POOL1D(c)
  int64_t two[3][2];
  MothValue k, s, p;
  MothTensor *x, *y;
  MOTH_TRY(widen("kernel_size", kernel_size, 1, two[0], &k));
  MOTH_TRY(widen("stride", stride, 1, two[1], &s));
  MOTH_TRY(widen("padding", padding, 0, two[2], &p));
  MOTH_TRY(as_image(self, "self", &x));
  MothStatus status =
      moth_avg_pool2d(x, k.u.ints, 2, s, p, ceil_mode, count_include_pad, moth_v_none(), &y);
  moth_tensor_release(x);
  MOTH_TRY(status);
  return give_line(c, 0, y);
}

MothStatus moth_composite_adaptive_avg_pool1d(MothCall *c) {
  MOTH_UNPACK_ADAPTIVE_AVG_POOL1D(c)
  int64_t two[2];
  MothValue size;
  MothTensor *x, *y;
  MOTH_TRY(widen("output_size", output_size, 1, two, &size));
  MOTH_TRY(as_image(self, "self", &x));
  MothStatus status = moth_adaptive_avg_pool2d(x, size.u.ints, 2, &y);
  moth_tensor_release(x);
  MOTH_TRY(status);
  return give_line(c, 0, y);
}
