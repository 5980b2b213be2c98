/* Shape rules of src/ops/fft.lua. */
#include <string.h>

#include "core/dtype.h"
#include "dispatch/dispatch.h"
#include "dispatch/shape.h"
#include "unpack/fft.h"

static MothStatus check_dims(const MothTensor *t, MothValue dim, bool is_complex) {
  if (is_complex != moth_dtype_is_complex((MothDType)t->dtype) ||
      (!is_complex && t->dtype != MOTH_FLOAT32 && t->dtype != MOTH_FLOAT64))
    return moth_fail(MOTH_ERR_TYPE, "expected %s, got %s",
                     is_complex ? "complex64 or complex128" : "float32 or float64",
                     moth_dtype_name((MothDType)t->dtype));
  for (uint32_t i = 0; i < dim.n; i++)
    if (!t->ndim || t->shape[dim.u.ints[i]] < 1)
      return moth_fail(MOTH_ERR_VALUE, "a transform needs at least 1 element in each dimension");
  return MOTH_OK;
}

MothStatus moth_shape_native_fft_c2c(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_NATIVE_FFT_C2C(c)
  MOTH_TRY(check_dims(self, dim, true));
  if (sign != 1 && sign != -1)
    return moth_fail(MOTH_ERR_VALUE, "sign must be 1 or -1, got %lld", (long long)sign);
  return moth_meta_set(out, (MothDType)self->dtype, self->ndim, self->shape);
}

MothStatus moth_shape_native_fft_r2c(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_NATIVE_FFT_R2C(c)
  int64_t shape[MOTH_MAX_DIMS];
  MOTH_TRY(check_dims(self, dim, false));
  if (!dim.n)
    return moth_fail(MOTH_ERR_VALUE, "a real transform needs a dimension");
  memcpy(shape, self->shape, sizeof(int64_t) * self->ndim);
  if (onesided)
    shape[dim.u.ints[dim.n - 1]] = shape[dim.u.ints[dim.n - 1]] / 2 + 1;
  return moth_meta_set(out, moth_dtype_complex((MothDType)self->dtype), self->ndim, shape);
}

MothStatus moth_shape_native_fft_c2r(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_NATIVE_FFT_C2R(c)
  int64_t shape[MOTH_MAX_DIMS];
  MOTH_TRY(check_dims(self, dim, true));
  if (!dim.n)
    return moth_fail(MOTH_ERR_VALUE, "a real transform needs a dimension");
  memcpy(shape, self->shape, sizeof(int64_t) * self->ndim);
  int64_t *n = &shape[dim.u.ints[dim.n - 1]];
  if (*n != last / 2 + 1)
    return moth_fail(MOTH_ERR_VALUE, "%lld real elements are made of %lld complex ones, got %lld",
                     (long long)last, (long long)(last / 2 + 1), (long long)*n);
  *n = last;
  return moth_meta_set(out, moth_dtype_real((MothDType)self->dtype), self->ndim, shape);
}
