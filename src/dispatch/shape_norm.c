/* Shape rules of normalisation, sorting and top-k. */
#include <string.h>

#include "core/dtype.h"
#include "dispatch/dispatch.h"
#include "unpack/norm.h"
#include "unpack/sort.h"

static MothStatus need_float(const MothTensor *t) {
  if (moth_dtype_is_float((MothDType)t->dtype))
    return MOTH_OK;
  return moth_fail(MOTH_ERR_TYPE, "expected a float dtype, got %s",
                   moth_dtype_name((MothDType)t->dtype));
}

/* Statistics are kept in float32 at least. */
static MothDType stat_dtype(const MothTensor *self) {
  return self->dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
}

static MothStatus need_shape(const char *name, const MothTensor *t, int n, const int64_t *shape) {
  char want[200], got[200];
  if (!t)
    return MOTH_OK;
  MOTH_TRY(need_float(t));
  if (t->ndim == n && !memcmp(t->shape, shape, sizeof(int64_t) * (size_t)n))
    return MOTH_OK;
  return moth_fail(MOTH_ERR_VALUE, "%s must have the shape %s, got %s", name,
                   moth_shape_format(n, shape, want, sizeof want),
                   moth_shape_format(t->ndim, t->shape, got, sizeof got));
}

/* The gradients that `need` asks for; the others are empty. n parameters of shape `param`. */
static MothStatus gradients(MothMeta *out, const MothTensor *self, const MothTensor *weight,
                            int64_t need, int nparams, int n, const int64_t *param) {
  static const int64_t none[1] = {0};
  MothDType of = (MothDType)(weight ? weight->dtype : self->dtype);
  if (need < 0 || need >> (nparams + 1))
    return moth_fail(MOTH_ERR_VALUE,
                     "need must be between 0 and %d, a bit for each gradient, got %lld",
                     (2 << nparams) - 1, (long long)need);
  bool whole = need & 1;
  MOTH_TRY(moth_meta_set(out, (MothDType)self->dtype, whole ? self->ndim : 1,
                         whole ? self->shape : none));
  for (int i = 1; i <= nparams; i++) {
    whole = need >> i & 1;
    MOTH_TRY(moth_meta_set(out + i, of, whole ? n : 1, whole ? param : none));
  }
  return MOTH_OK;
}

/* --- rows --------------------------------------------------------------------------------------- */

/* stat: the shape of the statistics, self's with 1 for the dimensions that are normalised. */
static MothStatus check_rows(const MothTensor *self, const MothTensor *weight,
                             const MothTensor *bias, int64_t dims, int64_t *stat) {
  MOTH_TRY(need_float(self));
  if (dims < 1 || dims > self->ndim)
    return moth_fail(MOTH_ERR_VALUE, "dims must be between 1 and self's %d dimensions, got %lld",
                     self->ndim, (long long)dims);
  int lead = self->ndim - (int)dims;
  for (int i = 0; i < self->ndim; i++)
    stat[i] = i < lead ? self->shape[i] : 1;
  MOTH_TRY(need_shape("weight", weight, (int)dims, self->shape + lead));
  return need_shape("bias", bias, (int)dims, self->shape + lead);
}

/* Statistics may come in any shape of that many elements. */
static MothStatus check_stat(const char *name, const MothTensor *t, int64_t n) {
  MOTH_TRY(need_float(t));
  if (t->numel == n)
    return MOTH_OK;
  return moth_fail(MOTH_ERR_VALUE, "%s must have %lld elements, got %lld", name, (long long)n,
                   (long long)t->numel);
}

static int64_t product(int n, const int64_t *shape) {
  int64_t p = 1;
  for (int i = 0; i < n; i++)
    p *= shape[i];
  return p;
}

MothStatus moth_shape_layer_norm(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_NATIVE_LAYER_NORM(c)
  int64_t stat[MOTH_MAX_DIMS];
  MOTH_TRY(check_rows(self, weight, bias, dims, stat));
  MOTH_TRY(moth_meta_set(out, (MothDType)self->dtype, self->ndim, self->shape));
  MOTH_TRY(moth_meta_set(out + 1, stat_dtype(self), self->ndim, stat));
  return moth_meta_set(out + 2, stat_dtype(self), self->ndim, stat);
}

MothStatus moth_shape_rms_norm(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_NATIVE_RMS_NORM(c)
  int64_t stat[MOTH_MAX_DIMS];
  MOTH_TRY(check_rows(self, weight, NULL, dims, stat));
  MOTH_TRY(moth_meta_set(out, (MothDType)self->dtype, self->ndim, self->shape));
  return moth_meta_set(out + 1, stat_dtype(self), self->ndim, stat);
}

MothStatus moth_shape_layer_norm_backward(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_LAYER_NORM_BACKWARD(c)
  int64_t stat[MOTH_MAX_DIMS];
  MOTH_TRY(check_rows(self, weight, NULL, dims, stat));
  MOTH_TRY(need_shape("grad_output", grad_output, self->ndim, self->shape));
  MOTH_TRY(check_stat("mean", mean, product(self->ndim, stat)));
  MOTH_TRY(check_stat("rstd", rstd, product(self->ndim, stat)));
  return gradients(out, self, weight, need, 2, (int)dims, self->shape + self->ndim - dims);
}

MothStatus moth_shape_rms_norm_backward(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_RMS_NORM_BACKWARD(c)
  int64_t stat[MOTH_MAX_DIMS];
  MOTH_TRY(check_rows(self, weight, NULL, dims, stat));
  MOTH_TRY(need_shape("grad_output", grad_output, self->ndim, self->shape));
  MOTH_TRY(check_stat("rstd", rstd, product(self->ndim, stat)));
  return gradients(out, self, weight, need, 1, (int)dims, self->shape + self->ndim - dims);
}

/* --- channels ----------------------------------------------------------------------------------- */

static MothStatus check_channels(const MothTensor *self, const MothTensor *weight,
                                 const MothTensor *bias) {
  MOTH_TRY(need_float(self));
  if (self->ndim < 2)
    return moth_fail(MOTH_ERR_VALUE, "self must be (N, C, ...) with channels, got %d dimensions",
                     self->ndim);
  MOTH_TRY(need_shape("weight", weight, 1, self->shape + 1));
  return need_shape("bias", bias, 1, self->shape + 1);
}

static MothStatus check_groups(const MothTensor *self, const MothTensor *weight,
                               const MothTensor *bias, int64_t groups) {
  MOTH_TRY(check_channels(self, weight, bias));
  if (self->shape[1] % groups)
    return moth_fail(MOTH_ERR_VALUE, "%lld channels are not divisible into %lld groups",
                     (long long)self->shape[1], (long long)groups);
  return MOTH_OK;
}

MothStatus moth_shape_group_norm(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_NATIVE_GROUP_NORM(c)
  MOTH_TRY(check_groups(self, weight, bias, groups));
  int64_t stat[2] = {self->shape[0], groups};
  MOTH_TRY(moth_meta_set(out, (MothDType)self->dtype, self->ndim, self->shape));
  MOTH_TRY(moth_meta_set(out + 1, stat_dtype(self), 2, stat));
  return moth_meta_set(out + 2, stat_dtype(self), 2, stat);
}

MothStatus moth_shape_group_norm_backward(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_GROUP_NORM_BACKWARD(c)
  MOTH_TRY(check_groups(self, weight, NULL, groups));
  MOTH_TRY(need_shape("grad_output", grad_output, self->ndim, self->shape));
  MOTH_TRY(check_stat("mean", mean, self->shape[0] * groups));
  MOTH_TRY(check_stat("rstd", rstd, self->shape[0] * groups));
  return gradients(out, self, weight, need, 2, 1, self->shape + 1);
}

MothStatus moth_shape_batch_norm(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_NATIVE_BATCH_NORM(c)
  MOTH_TRY(check_channels(self, weight, bias));
  MOTH_TRY(need_shape("running_mean", running_mean, 1, self->shape + 1));
  MOTH_TRY(need_shape("running_var", running_var, 1, self->shape + 1));
  if (!training && (!running_mean || !running_var))
    return moth_fail(MOTH_ERR_VALUE, "running_mean and running_var are needed outside of training");
  if (!running_mean != !running_var)
    return moth_fail(MOTH_ERR_VALUE, "running_mean and running_var must be given together");
  if (training && self->numel > 0 && self->numel == self->shape[1])
    return moth_fail(MOTH_ERR_VALUE,
                     "expected more than 1 value per channel when training, got the shape [%lld, "
                     "%lld, ...] with one",
                     (long long)self->shape[0], (long long)self->shape[1]);
  MOTH_TRY(moth_meta_set(out, (MothDType)self->dtype, self->ndim, self->shape));
  MOTH_TRY(moth_meta_set(out + 1, stat_dtype(self), 1, self->shape + 1));
  return moth_meta_set(out + 2, stat_dtype(self), 1, self->shape + 1);
}

MothStatus moth_shape_batch_norm_backward(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_BATCH_NORM_BACKWARD(c)
  MOTH_TRY(check_channels(self, weight, NULL));
  MOTH_TRY(need_shape("grad_output", grad_output, self->ndim, self->shape));
  MOTH_TRY(check_stat("mean", mean, self->shape[1]));
  MOTH_TRY(check_stat("rstd", rstd, self->shape[1]));
  return gradients(out, self, weight, need, 2, 1, self->shape + 1);
}

/* --- order -------------------------------------------------------------------------------------- */

MothStatus moth_shape_sort(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_SORT(c)
  MOTH_TRY(moth_meta_set(out, (MothDType)self->dtype, self->ndim, self->shape));
  return moth_meta_set(out + 1, MOTH_INT64, self->ndim, self->shape);
}

MothStatus moth_shape_topk(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_TOPK(c)
  int64_t shape[MOTH_MAX_DIMS], n = self->ndim ? self->shape[dim] : 1;
  if (k < 0 || k > n)
    return moth_fail(MOTH_ERR_VALUE,
                     "k must be between 0 and the %lld elements along dim, got %lld", (long long)n,
                     (long long)k);
  memcpy(shape, self->shape, sizeof(int64_t) * (size_t)self->ndim);
  if (self->ndim)
    shape[dim] = k;
  else if (k == 0)
    return moth_fail(MOTH_ERR_VALUE, "k must be 1 for a 0-dim tensor, got 0");
  MOTH_TRY(moth_meta_set(out, (MothDType)self->dtype, self->ndim, shape));
  return moth_meta_set(out + 1, MOTH_INT64, self->ndim, shape);
}
