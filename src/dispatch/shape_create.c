/* Rules of src/ops/create.lua and random.lua. */
#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "device/device.h"
#include "dispatch/dispatch.h"
#include "unpack/create.h"
#include "unpack/random.h"
#include "unpack/view.h"

/* The dtype and device options of a factory. */
static MothStatus options(const MothCall *c, MothMeta *out, MothDType natural, MothDType *dtype) {
  *dtype = natural;
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    if (c->op->args[i].type == MOTH_T_DTYPE && v.tag == MOTH_V_DTYPE)
      *dtype = (MothDType)v.u.i;
    if (c->op->args[i].type == MOTH_T_DEVICE && v.tag == MOTH_V_DEVICE)
      out->device = (MothDevice){(uint8_t)(v.u.i >> 8), (uint8_t)v.u.i};
  }
  return moth_device_check(out->device);
}

MothStatus moth_shape_factory(const MothCall *c, MothMeta *out) {
  MothDType dtype;
  MothValue size = moth_v_none();
  for (int i = 0; i < c->op->nargs; i++)
    if (c->op->args[i].type == MOTH_T_INTS)
      size = c->args[i];
  MOTH_TRY(options(c, out, c->op == MOTH_OP(randint) ? MOTH_INT64 : moth_default_dtype(), &dtype));
  for (int i = 0; i < c->op->nargs; i++)
    if (c->op->args[i].type == MOTH_T_SCALAR)
      MOTH_TRY(moth_dtype_check_number(dtype, c->args[i], "the value"));
  return moth_meta_set(out, dtype, (int)size.n, size.u.ints);
}

MothStatus moth_shape_arange(const MothCall *c, MothMeta *out) {
  bool integral = true;
  for (int i = 0; i < 3; i++) {
    integral = integral && c->args[i].tag != MOTH_V_FLOAT;
    if (!isfinite(moth_as_double(c->args[i])))
      return moth_fail(MOTH_ERR_VALUE, "start, stop and step must be finite");
  }
  MothDType dtype;
  MOTH_TRY(options(c, out, integral ? MOTH_INT64 : moth_default_dtype(), &dtype));
  double start = moth_as_double(c->args[0]), stop = moth_as_double(c->args[1]),
         step = moth_as_double(c->args[2]);
  if (step == 0)
    return moth_fail(MOTH_ERR_VALUE, "step must not be 0");
  if ((step > 0 && stop < start) || (step < 0 && stop > start))
    return moth_fail(MOTH_ERR_VALUE, "the sign of step (%g) does not lead from %g to %g", step,
                     start, stop);
  double n = ceil((stop - start) / step);
  if (n > 9e18)
    return moth_fail(MOTH_ERR_VALUE, "more than 9e18 elements");
  int64_t size = (int64_t)n;
  if (!moth_dtype_is_float(dtype)) { /* counted in steps that are integers themselves */
    MothValue last = moth_v_float(trunc(start) + trunc(step) * (size > 0 ? n - 1 : 0));
    MOTH_TRY(moth_dtype_check_number(dtype, c->args[0], "start"));
    MOTH_TRY(moth_dtype_check_number(MOTH_INT64, c->args[2], "step"));
    MOTH_TRY(moth_dtype_check_number(dtype, last, "the last number"));
  }
  return moth_meta_set(out, dtype, 1, &size);
}

MothStatus moth_shape_linspace(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_LINSPACE(c)
  MothDType to;
  MOTH_TRY(options(c, out, moth_default_dtype(), &to));
  MOTH_TRY(moth_dtype_check_number(to, start, "start"));
  MOTH_TRY(moth_dtype_check_number(to, stop, "stop"));
  return moth_meta_set(out, to, 1, &steps);
}

MothStatus moth_shape_eye(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_EYE(c)
  MothDType to;
  int64_t shape[2] = {n, m.tag == MOTH_V_INT ? m.u.i : n};
  MOTH_TRY(options(c, out, moth_default_dtype(), &to));
  return moth_meta_set(out, to, 2, shape);
}

MothStatus moth_shape_randperm(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_RANDPERM(c)
  MothDType to;
  MOTH_TRY(options(c, out, MOTH_INT64, &to));
  return moth_meta_set(out, to, 1, &n);
}

MothStatus moth_shape_bernoulli(const MothCall *c, MothMeta *out) {
  MothTensor *self = c->args[0].u.t;
  if (!moth_dtype_is_float((MothDType)self->dtype))
    return moth_fail(MOTH_ERR_TYPE, "expected a float dtype, got %s",
                     moth_dtype_name((MothDType)self->dtype));
  return moth_meta_set(out, (MothDType)self->dtype, self->ndim, self->shape);
}

MothStatus moth_shape_multinomial(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_MULTINOMIAL(c)
  int64_t shape[2] = {self->shape[0], num_samples};
  if (self->ndim < 1 || self->ndim > 2 || !moth_dtype_is_float((MothDType)self->dtype))
    return moth_fail(MOTH_ERR_VALUE, "expected a float vector or matrix of weights");
  int64_t classes = self->shape[self->ndim - 1];
  if (!replacement && num_samples > classes)
    return moth_fail(MOTH_ERR_VALUE,
                     "cannot draw %lld samples without replacement: more than the %lld classes",
                     (long long)num_samples, (long long)classes);
  return moth_meta_set(out, MOTH_INT64, self->ndim, self->ndim == 1 ? shape + 1 : shape);
}

/* In-place ops: the result is the first argument. */
MothStatus moth_shape_self(const MothCall *c, MothMeta *out) {
  MothTensor *self = c->args[0].u.t;
  if (moth_tensor_self_overlaps(self))
    return moth_fail(
        MOTH_ERR_VALUE,
        "the tensor written to holds several elements in one place (an expanded view?); "
        "clone() it first");
  return moth_meta_set(out, (MothDType)self->dtype, self->ndim, self->shape);
}

/* fill_: (self, value) */
MothStatus moth_shape_fill(const MothCall *c, MothMeta *out) {
  const MothTensor *self = c->args[0].u.t;
  if (c->args[1].tag != MOTH_V_TENSOR)
    MOTH_TRY(moth_dtype_check_number((MothDType)self->dtype, c->args[1], "the value"));
  return moth_shape_self(c, out);
}

MothStatus moth_shape_copy(const MothCall *c, MothMeta *out) {
  MothTensor *self = c->args[0].u.t, *src = c->args[1].u.t;
  int ndim;
  int64_t shape[MOTH_MAX_DIMS];
  MOTH_TRY(moth_broadcast(self->ndim, self->shape, src->ndim, src->shape, &ndim, shape));
  if (ndim != self->ndim || memcmp(shape, self->shape, sizeof(int64_t) * (size_t)ndim) != 0) {
    char a[200], b[200];
    return moth_fail(MOTH_ERR_VALUE, "a source of shape %s cannot be broadcast to %s",
                     moth_shape_format(src->ndim, src->shape, a, sizeof a),
                     moth_shape_format(self->ndim, self->shape, b, sizeof b));
  }
  return moth_shape_self(c, out);
}

MothStatus moth_shape_clone(const MothCall *c, MothMeta *out) {
  MothTensor *self = c->args[0].u.t;
  out->device = self->device;
  return moth_meta_set(out, (MothDType)self->dtype, self->ndim, self->shape);
}

MothStatus moth_shape_to_copy(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_TO_COPY(c)
  out->device = self->device;
  if (device.tag == MOTH_V_DEVICE)
    out->device = (MothDevice){(uint8_t)(device.u.i >> 8), (uint8_t)device.u.i};
  MOTH_TRY(moth_device_check(out->device));
  return moth_meta_set(out,
                       dtype.tag == MOTH_V_DTYPE ? (MothDType)dtype.u.i : (MothDType)self->dtype,
                       self->ndim, self->shape);
}

MothStatus moth_shape_as_strided_backward(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_AS_STRIDED_BACKWARD(c)
  if (base_size.n != base_stride.n || size.n != stride.n)
    return moth_fail(MOTH_ERR_VALUE, "sizes and strides must have the same length");
  bool same = size.n == grad_output->ndim;
  for (uint32_t i = 0; i < size.n && same; i++)
    same = grad_output->shape[i] == size.u.ints[i];
  if (!same)
    return moth_fail(MOTH_ERR_VALUE, "grad_output does not have the size of the view");
  for (uint32_t i = 0; i < size.n + base_size.n; i++) {
    int64_t s = i < size.n ? stride.u.ints[i] : base_stride.u.ints[i - size.n];
    if (s < 0)
      return moth_fail(MOTH_ERR_VALUE, "strides must not be negative");
  }
  if (storage_offset < 0 || base_offset < 0)
    return moth_fail(MOTH_ERR_VALUE, "offsets must not be negative");
  return moth_meta_set(out, (MothDType)grad_output->dtype, (int)base_size.n, base_size.u.ints);
}
