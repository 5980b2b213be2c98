/* Composites of src/ops/conv.lua that are no expressions: transposed convolutions, as derivatives of plain ones. */
#include <string.h>

#include "composite/composite.h"
#include "core/dtype.h"
#include "dispatch/shape_conv.h"
#include "ops/conv.h"
#include "ops/pointwise.h"
#include "ops/sort.h"
#include "ops/view.h"

/* t + bias (K) along dimension -3. Releases t. */
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
    int64_t s = stride.u.ints[i], p = padding.u.ints[i], o = output_padding.u.ints[i],
            d = dilation.u.ints[i];
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
                       "the result would have size %lld in dimension " MOTH_AT
                       "%d: padding is too large",
                       (long long)size[n - 2 + i], n - 2 + i);
  }
  if (bias && bias->dtype != input->dtype)
    return moth_fail(MOTH_ERR_TYPE, "expected the same dtype, got input %s and bias %s",
                     moth_dtype_name((MothDType)input->dtype),
                     moth_dtype_name((MothDType)bias->dtype));
  /* With a bias, halves are summed in float32 and rounded once. Not on CUDA, whose products of halves are faster. */
  bool once = bias && input->dtype == weight->dtype && input->device.type == MOTH_CPU;
  MothDType dtype = (MothDType)input->dtype, work = once ? working_dtype(input) : dtype;
  MothTensor *x = NULL, *w = NULL;
  MothStatus status = MOTH_OK;
  MOTH_GO(as_dtype(input, work, &x));
  MOTH_GO(as_dtype(weight, once ? work : (MothDType)weight->dtype, &w));
  if (beyond) { /* no convolution has this input as its result: crop the transposed one without padding */
    MothTensor *full;
    memcpy(whole, size, sizeof(int64_t) * (size_t)(n - 2));
    MOTH_GO(
        moth_conv2d_backward_input(x, w, whole, n, stride, moth_v_none(), dilation, groups, &full));
    MOTH_GO(then(moth_pad(full, cut, 4, "constant", moth_v_int(0), &y), full));
  } else {
    MOTH_GO(moth_conv2d_backward_input(x, w, size, n, stride, padding, dilation, groups, &y));
  }
  MOTH_GO(add_bias(y, bias, &out));
  MOTH_GO(then(as_dtype(out, dtype, &y), out));
done:
  moth_tensor_release(x);
  moth_tensor_release(w);
  return status ? status : moth_give(c, y);
}
