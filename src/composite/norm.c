/* Composites of src/ops/norm.lua and activation.lua. */
#include <math.h>
#include <string.h>

#include "composite/composite.h"
#include "core/dtype.h"

/* normalized_shape must be what self's shape ends in. */
static MothStatus check_ends_in(const MothTensor *self, MothValue ends) {
  int n = (int)ends.n;
  const int64_t *shape = ends.u.ints;
  char a[200], b[200];
  int lead = self->ndim - n;
  if (n >= 1 && lead >= 0 && !memcmp(self->shape + lead, shape, sizeof(int64_t) * (size_t)n))
    return MOTH_OK;
  return moth_fail(MOTH_ERR_VALUE,
                   "normalized_shape must be the last dimensions of self, which has the shape %s, "
                   "got %s",
                   moth_shape_format(self->ndim, self->shape, a, sizeof a),
                   moth_shape_format(n, shape, b, sizeof b));
}

/* The first of three results. */
static MothStatus give_first(MothCall *c, MothTensor *out, MothTensor *a, MothTensor *b) {
  moth_tensor_release(a);
  moth_tensor_release(b);
  return moth_give(c, out);
}

MothStatus moth_composite_layer_norm(MothCall *c) {
  MOTH_UNPACK_LAYER_NORM(c)
  MothTensor *out, *mean, *rstd;
  MOTH_TRY(check_ends_in(self, normalized_shape));
  MOTH_TRY(moth_native_layer_norm(self, weight, bias, normalized_shape.n, eps, &out, &mean, &rstd));
  return give_first(c, out, mean, rstd);
}

MothStatus moth_composite_rms_norm(MothCall *c) {
  MOTH_UNPACK_RMS_NORM(c)
  MothTensor *out, *rstd;
  static const double epsilon[] = {[MOTH_FLOAT64] = 0x1p-52,
                                   [MOTH_FLOAT32] = 0x1p-23,
                                   [MOTH_FLOAT16] = 0x1p-10,
                                   [MOTH_BFLOAT16] = 0x1p-7};
  MOTH_TRY(check_ends_in(self, normalized_shape));
  double e = eps.tag != MOTH_V_NONE                        ? moth_as_double(eps)
             : moth_dtype_is_float((MothDType)self->dtype) ? epsilon[self->dtype]
                                                           : 0;
  MOTH_TRY(moth_native_rms_norm(self, weight, normalized_shape.n, e, &out, &rstd));
  return give_first(c, out, rstd, NULL);
}

MothStatus moth_composite_group_norm(MothCall *c) {
  MOTH_UNPACK_GROUP_NORM(c)
  MothTensor *out, *mean, *rstd;
  MOTH_TRY(moth_native_group_norm(self, weight, bias, num_groups, eps, &out, &mean, &rstd));
  return give_first(c, out, mean, rstd);
}

MothStatus moth_composite_instance_norm(MothCall *c) {
  MOTH_UNPACK_INSTANCE_NORM(c)
  MothTensor *out, *mean, *rstd;
  int64_t groups = self->ndim > 1 && self->shape[1] > 0 ? self->shape[1] : 1;
  MOTH_TRY(moth_native_group_norm(self, weight, bias, groups, eps, &out, &mean, &rstd));
  return give_first(c, out, mean, rstd);
}

MothStatus moth_composite_batch_norm(MothCall *c) {
  MOTH_UNPACK_BATCH_NORM(c)
  MothTensor *out, *mean, *rstd;
  MOTH_TRY(moth_native_batch_norm(self, weight, bias, running_mean, running_var, training, momentum,
                                  eps, &out, &mean, &rstd));
  return give_first(c, out, mean, rstd);
}

/* --- activations -------------------------------------------------------------------------------- */

MothStatus moth_composite_logit(MothCall *c) {
  MOTH_UNPACK_LOGIT(c)
  MothTensor *x, *y, *q, *out;
  if (!moth_dtype_is_float((MothDType)self->dtype))
    return moth_fail(MOTH_ERR_TYPE, "expected a float dtype, got %s",
                     moth_dtype_name((MothDType)self->dtype));
  if (working_dtype(self) != (MothDType)self->dtype) { /* rounded once */
    MOTH_TRY(as_dtype(self, working_dtype(self), &x));
    MOTH_TRY(then(moth_logit(x, eps, &y), x));
    MOTH_TRY(then(as_dtype(y, (MothDType)self->dtype, &out), y));
    return moth_give(c, out);
  }
  if (eps.tag == MOTH_V_NONE) {
    x = self;
    moth_tensor_retain(x);
  } else {
    double e = moth_as_double(eps);
    MOTH_TRY(moth_clamp(self, moth_v_float(e), moth_v_float(1 - e), &x));
  }
  /* A difference of logarithms, not the logarithm of a quotient: its derivative at 0 and 1 is infinity, not NaN. */
  MothTensor *log_rest = NULL;
  MothStatus s = moth_sub(moth_v_int(1), moth_v_tensor(x), moth_v_int(1), &y);
  if (s == MOTH_OK)
    s = then(moth_log(y, &log_rest), y);
  if (s == MOTH_OK)
    s = moth_log(x, &q);
  moth_tensor_release(x);
  if (s == MOTH_OK)
    s = then(moth_sub(moth_v_tensor(q), moth_v_tensor(log_rest), moth_v_int(1), &out), q);
  MOTH_TRY(then(s, log_rest));
  return moth_give(c, out);
}

MothStatus moth_composite_prelu(MothCall *c) {
  MOTH_UNPACK_PRELU(c)
  MothTensor *w, *scaled, *positive, *out;
  int64_t shape[MOTH_MAX_DIMS], channels = self->ndim > 1 ? self->shape[1] : 1;
  if (weight->ndim > 1 || (weight->numel != 1 && weight->numel != channels))
    return moth_fail(MOTH_ERR_VALUE,
                     "weight must hold one number or one for each of %lld channels, got %d "
                     "dimensions of %lld elements",
                     (long long)channels, weight->ndim, (long long)weight->numel);
  for (int i = 0; i < self->ndim; i++)
    shape[i] = i == 1 ? weight->numel : 1;
  if (self->ndim == 1)
    shape[0] = 1;
  MOTH_TRY(moth_reshape(weight, shape, self->ndim, &w));
  MOTH_TRY(then(moth_mul(moth_v_tensor(self), moth_v_tensor(w), &scaled), w));
  MothStatus s = moth_gt(moth_v_tensor(self), moth_v_int(0), &positive);
  if (s == MOTH_OK)
    s = then(moth_where(positive, moth_v_tensor(self), moth_v_tensor(scaled), &out), positive);
  MOTH_TRY(then(s, scaled));
  return moth_give(c, out);
}

MothStatus moth_composite_glu(MothCall *c) {
  MOTH_UNPACK_GLU(c)
  MothTensor *a, *b, *gate, *out;
  int d;
  MOTH_TRY(moth_wrap_dim(dim, self->ndim, &d));
  int64_t n = self->ndim ? self->shape[d] : 1;
  if (n % 2)
    return moth_fail(MOTH_ERR_VALUE, "the size along dim must be even, got %lld", (long long)n);
  MOTH_TRY(moth_narrow(self, d, n / 2, n / 2, &b));
  MOTH_TRY(then(moth_sigmoid(b, &gate), b));
  MothStatus s = moth_narrow(self, d, 0, n / 2, &a);
  if (s == MOTH_OK)
    s = then(moth_mul(moth_v_tensor(a), moth_v_tensor(gate), &out), a);
  MOTH_TRY(then(s, gate));
  return moth_give(c, out);
}

/* equal or |self - other| <= atol + rtol |other|, which an infinite other never is */
MothStatus moth_composite_isclose(MothCall *c) {
  MOTH_UNPACK_ISCLOSE(c)
  enum { N = 12 };
  MothTensor *t[N] = {NULL};
  MothStatus status = MOTH_OK;
  if (!moth_dtype_is_float((MothDType)self->dtype) && /* small integers would wrap */
      !moth_dtype_is_float((MothDType)other->dtype)) {
    MOTH_GO(moth_to(self, moth_v_dtype(MOTH_INT64), moth_v_none(), false, false, &t[1]));
    MOTH_GO(moth_to(other, moth_v_dtype(MOTH_INT64), moth_v_none(), false, false, &t[2]));
    self = t[1];
    other = t[2];
    equal_nan = false;
  }
  MothValue a = moth_v_tensor(self), b = moth_v_tensor(other);
  MOTH_GO(moth_eq(a, b, &t[0]));
  if (equal_nan) {
    MOTH_GO(moth_isnan(self, &t[1]));
    MOTH_GO(moth_isnan(other, &t[2]));
    MOTH_GO(moth_logical_and(moth_v_tensor(t[1]), moth_v_tensor(t[2]), &t[3]));
    MOTH_GO(moth_logical_or(moth_v_tensor(t[0]), moth_v_tensor(t[3]), &t[4]));
  }
  MOTH_GO(moth_sub(a, b, moth_v_int(1), &t[5]));
  MOTH_GO(moth_abs(t[5], &t[6]));
  MOTH_GO(moth_abs(other, &t[7]));
  MOTH_GO(moth_mul(moth_v_tensor(t[7]), moth_v_float(rtol), &t[8]));
  MOTH_GO(moth_add(moth_v_tensor(t[8]), moth_v_float(atol), moth_v_int(1), &t[9]));
  MOTH_GO(moth_le(moth_v_tensor(t[6]), moth_v_tensor(t[9]), &t[10]));
  MOTH_GO(moth_isfinite(t[6], &t[11]));
  MothTensor *close, *out;
  MOTH_GO(moth_logical_and(moth_v_tensor(t[10]), moth_v_tensor(t[11]), &close));
  status =
      then(moth_logical_or(moth_v_tensor(t[4] ? t[4] : t[0]), moth_v_tensor(close), &out), close);
  if (status == MOTH_OK)
    status = moth_give(c, out);
done:
  for (int i = 0; i < N; i++)
    moth_tensor_release(t[i]);
  return status;
}
