/* Shape rules of src/ops/view.lua; views have no kernels. */
#include <string.h>

#include "core/dtype.h"
#include "dispatch/dispatch.h"
#include "dispatch/shape.h"
#include "unpack/view.h"

MothStatus moth_infer_size(const MothTensor *t, int n, const int64_t *size, int64_t *out) {
  int64_t known = 1;
  int unknown = -1;
  char buf[256];
  if (n > MOTH_MAX_DIMS)
    return moth_fail(MOTH_ERR_VALUE, "a tensor has at most %d dimensions, got %d", MOTH_MAX_DIMS,
                     n);
  bool overflow = false;
  for (int i = 0; i < n; i++) {
    out[i] = size[i];
    if (size[i] == -1) {
      if (unknown >= 0)
        return moth_fail(MOTH_ERR_VALUE, "only one dimension can be inferred (-1), got %s",
                         moth_shape_format(n, size, buf, sizeof buf));
      unknown = i;
    } else if (size[i] < 0) {
      return moth_fail(MOTH_ERR_VALUE, "invalid size %lld in %s", (long long)size[i],
                       moth_shape_format(n, size, buf, sizeof buf));
    } else {
      overflow |= __builtin_mul_overflow(known, size[i], &known);
    }
  }
  if (!overflow && unknown >= 0 && known > 0 && t->numel % known == 0) {
    out[unknown] = t->numel / known;
    return MOTH_OK;
  }
  if (!overflow && unknown < 0 && known == t->numel) {
    int64_t numel; /* checks that the other sizes of an empty tensor do not overflow */
    return moth_shape_numel(n, out, moth_itemsize(t), &numel);
  }
  if (unknown >= 0 && known == 0 && t->numel == 0)
    return moth_fail(MOTH_ERR_VALUE,
                     "cannot infer a size of shape %s for an empty tensor: any would do",
                     moth_shape_format(n, size, buf, sizeof buf));
  return moth_fail(MOTH_ERR_VALUE, "shape %s is invalid for input of size %lld",
                   moth_shape_format(n, size, buf, sizeof buf), (long long)t->numel);
}

/* Gives the strides of a view; there are some if every run of new dimensions lies within a group of old dimensions
 * that can be merged. */
bool moth_view_strides(const MothTensor *t, int n, const int64_t *shape, int64_t *stride) {
  if (t->contiguous || t->numel == 0) {
    moth_contiguous_strides(n, shape, stride);
    return true;
  }
  int d = n - 1;
  int64_t chunk = 1, view = 1;
  int64_t base = t->ndim ? t->stride[t->ndim - 1] : 1;
  for (int i = t->ndim - 1; i >= 0; i--) {
    chunk *= t->shape[i];
    if (i == 0 || (t->shape[i - 1] != 1 && t->stride[i - 1] != chunk * base)) {
      while (d >= 0 && (view < chunk || shape[d] == 1)) {
        stride[d] = view * base;
        view *= shape[d];
        d--;
      }
      if (view != chunk)
        return false;
      if (i > 0) {
        base = t->stride[i - 1];
        chunk = view = 1;
      }
    }
  }
  return d < 0;
}

MothStatus moth_shape_view(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_VIEW(c)
  int64_t shape[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS];
  MOTH_TRY(moth_infer_size(self, (int)size.n, size.u.ints, shape));
  if (!moth_view_strides(self, (int)size.n, shape, stride))
    return moth_fail(
        MOTH_ERR_VALUE,
        "view size is not compatible with input tensor's size and stride (at least one "
        "dimension spans across two separate ones); use reshape(...) instead");
  return moth_meta_set_view(out, self, (int)size.n, shape, stride, self->offset);
}

MothStatus moth_shape_permute(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_PERMUTE(c)
  int64_t shape[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS];
  if (dims.n != self->ndim)
    return moth_fail(MOTH_ERR_VALUE, "%u dimensions are given for a tensor of %d dimensions",
                     dims.n, self->ndim);
  for (uint32_t i = 0; i < dims.n; i++) {
    int64_t d = dims.u.ints[i];
    shape[i] = self->shape[d];
    stride[i] = self->stride[d];
  }
  return moth_meta_set_view(out, self, self->ndim, shape, stride, self->offset);
}

MothStatus moth_shape_transpose(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_TRANSPOSE(c)
  int64_t shape[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS];
  int64_t a = dim0, b = dim1;
  memcpy(shape, self->shape, sizeof(int64_t) * self->ndim);
  memcpy(stride, self->stride, sizeof(int64_t) * self->ndim);
  if (self->ndim) {
    shape[a] = self->shape[b];
    shape[b] = self->shape[a];
    stride[a] = self->stride[b];
    stride[b] = self->stride[a];
  }
  return moth_meta_set_view(out, self, self->ndim, shape, stride, self->offset);
}

MothStatus moth_shape_detach(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_DETACH(c)
  return moth_meta_set_view(out, self, self->ndim, self->shape, self->stride, self->offset);
}

MothStatus moth_shape_squeeze(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_SQUEEZE(c)
  int64_t shape[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS];
  int n = 0;
  int64_t only = dim.tag == MOTH_V_INT ? dim.u.i : -1;
  for (int i = 0; i < self->ndim; i++) {
    if (self->shape[i] == 1 && (only < 0 || only == i))
      continue;
    shape[n] = self->shape[i];
    stride[n++] = self->stride[i];
  }
  return moth_meta_set_view(out, self, n, shape, stride, self->offset);
}

MothStatus moth_shape_unsqueeze(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_UNSQUEEZE(c)
  int64_t shape[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS];
  int n = 0;
  if (self->ndim == MOTH_MAX_DIMS)
    return moth_fail(MOTH_ERR_VALUE, "a tensor has at most %d dimensions", MOTH_MAX_DIMS);
  for (int i = 0; i <= self->ndim; i++) {
    if (i == dim) {
      shape[n] = 1;
      stride[n++] = i < self->ndim ? self->shape[i] * self->stride[i] : 1;
    }
    if (i < self->ndim) {
      shape[n] = self->shape[i];
      stride[n++] = self->stride[i];
    }
  }
  return moth_meta_set_view(out, self, n, shape, stride, self->offset);
}

MothStatus moth_shape_expand(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_EXPAND(c)
  int64_t shape[MOTH_MAX_DIMS] = {0}, stride[MOTH_MAX_DIMS]; /* initialised: gcc warns at -O1 */
  int n = (int)size.n, shift = n - self->ndim;
  char buf[256];
  if (shift < 0)
    return moth_fail(MOTH_ERR_VALUE, "size %s has fewer dimensions than the tensor",
                     moth_shape_format(n, size.u.ints, buf, sizeof buf));
  if (n > MOTH_MAX_DIMS)
    return moth_fail(MOTH_ERR_VALUE, "a tensor has at most %d dimensions", MOTH_MAX_DIMS);
  for (int i = 0; i < n; i++) {
    int64_t have = i < shift ? 1 : self->shape[i - shift], want = size.u.ints[i];
    if (want == -1 && i >= shift)
      want = have;
    if (want < 0 || (have != want && have != 1))
      return moth_fail(
          MOTH_ERR_VALUE, "cannot expand size %lld to %lld at dimension " MOTH_AT "%d of %s",
          (long long)have, (long long)want, i, moth_shape_format(n, size.u.ints, buf, sizeof buf));
    shape[i] = want;
    stride[i] = i < shift || (have == 1 && want != 1) ? 0 : self->stride[i - shift];
  }
  return moth_meta_set_view(out, self, n, shape, stride, self->offset);
}

/* A view of self with `length` positions of dimension d from `start`, `step` apart. */
static MothStatus cut(MothMeta *out, const MothTensor *self, int64_t d, int64_t start,
                      int64_t length, int64_t step) {
  MOTH_TRY(moth_meta_set_view(out, self, self->ndim, self->shape, self->stride,
                              self->offset + start * self->stride[d]));
  out->shape[d] = length;
  if (__builtin_mul_overflow(out->stride[d], step,
                             &out->stride[d])) /* overflows only where length is 1 */
    out->stride[d] = self->stride[d];
  return MOTH_OK;
}

static MothStatus need_dim(const MothTensor *t) {
  return t->ndim ? MOTH_OK
                 : moth_fail(MOTH_ERR_INDEX, "a 0-dim tensor has no dimension to take a part of");
}

MothStatus moth_shape_narrow(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_NARROW(c)
  MOTH_TRY(need_dim(self));
  int64_t n = self->shape[dim];
  if (start < 0 || length < 0 || start > n || length > n - start)
    return moth_fail(MOTH_ERR_INDEX,
                     "start " MOTH_AT "%lld with length %lld is out of range for dimension " MOTH_AT
                     "%d of size %lld",
                     (long long)start, (long long)length, (int)dim, (long long)n);
  return cut(out, self, dim, start, length, 1);
}

MothStatus moth_shape_select(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_SELECT(c)
  MOTH_TRY(need_dim(self));
  int64_t n = self->shape[dim];
  if (index < 0 || index >= n)
    return moth_fail(MOTH_ERR_INDEX,
                     "index " MOTH_AT "%lld is out of range for dimension " MOTH_AT
                     "%d of size %lld",
                     (long long)index, (int)dim, (long long)n);
  int64_t shape[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS];
  int k = 0;
  for (int i = 0; i < self->ndim; i++)
    if (i != dim) {
      shape[k] = self->shape[i];
      stride[k++] = self->stride[i];
    }
  return moth_meta_set_view(out, self, k, shape, stride, self->offset + index * self->stride[dim]);
}

MothStatus moth_shape_slice(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_SLICE(c)
  MOTH_TRY(need_dim(self));
  int64_t n = self->shape[dim];
  if (start < 0 || start > n || stop > n || stop < start)
    return moth_fail(MOTH_ERR_INDEX,
                     "positions " MOTH_AT "%lld to " MOTH_AT
                     "%lld are out of range for dimension " MOTH_AT "%d of size %lld",
                     (long long)start, (long long)stop - 1, (int)dim, (long long)n);
  return cut(out, self, dim, start, stop > start ? (stop - start - 1) / step + 1 : 0, step);
}

MothStatus moth_shape_as_strided(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_AS_STRIDED(c)
  if (size.n != stride.n)
    return moth_fail(MOTH_ERR_VALUE, "size and stride must have the same length, got %u and %u",
                     size.n, stride.n);
  return moth_meta_set_view(out, self, (int)size.n, size.u.ints, stride.u.ints,
                            storage_offset.tag == MOTH_V_INT ? storage_offset.u.i : self->offset);
}

MothStatus moth_shape_diagonal(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_DIAGONAL(c)
  int64_t shape[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS], a = dim1, b = dim2;
  int k = 0;
  if (a == b)
    return moth_fail(MOTH_ERR_VALUE, "dim1 and dim2 must differ, both are " MOTH_AT "%d", (int)a);
  for (int i = 0; i < self->ndim; i++)
    if (i != a && i != b) {
      shape[k] = self->shape[i];
      stride[k++] = self->stride[i];
    }
  int64_t rows = self->shape[a] - (offset < 0 ? -offset : 0),
          cols = self->shape[b] - (offset > 0 ? offset : 0);
  int64_t n = rows < cols ? rows : cols;
  shape[k] = n > 0 ? n : 0;
  stride[k++] = self->stride[a] + self->stride[b];
  int64_t at = self->offset;
  if (n > 0)
    at += offset < 0 ? -offset * self->stride[a] : offset * self->stride[b];
  return moth_meta_set_view(out, self, k, shape, stride, at);
}

MothStatus moth_shape_view_as_real(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_VIEW_AS_REAL(c)
  int64_t shape[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS];
  int n = self->ndim;
  if (!moth_dtype_is_complex((MothDType)self->dtype))
    return moth_fail(MOTH_ERR_TYPE, "expected a complex tensor, got %s",
                     moth_dtype_name((MothDType)self->dtype));
  if (n == MOTH_MAX_DIMS)
    return moth_fail(MOTH_ERR_VALUE, "a tensor has at most %d dimensions", MOTH_MAX_DIMS);
  for (int i = 0; i < n; i++) {
    shape[i] = self->shape[i];
    stride[i] = self->stride[i] * 2;
  }
  shape[n] = 2;
  stride[n] = 1;
  MOTH_TRY(moth_meta_set_view(out, self, n + 1, shape, stride, self->offset * 2));
  out->dtype = (uint8_t)moth_dtype_real((MothDType)self->dtype);
  return MOTH_OK;
}

MothStatus moth_shape_view_as_complex(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_VIEW_AS_COMPLEX(c)
  int64_t stride[MOTH_MAX_DIMS];
  int n = self->ndim - 1;
  if (self->dtype != MOTH_FLOAT32 && self->dtype != MOTH_FLOAT64)
    return moth_fail(MOTH_ERR_TYPE, "expected float32 or float64, got %s",
                     moth_dtype_name((MothDType)self->dtype));
  if (n < 0 || self->shape[n] != 2)
    return moth_fail(MOTH_ERR_VALUE,
                     "the last dimension must have size 2: real and imaginary part");
  if (self->stride[n] != 1)
    return moth_fail(MOTH_ERR_VALUE,
                     "the last dimension must have stride 1, got %lld; use contiguous()",
                     (long long)self->stride[n]);
  bool even = self->offset % 2 == 0;
  for (int i = 0; i < n; i++) {
    even = even && (self->stride[i] % 2 == 0 || self->shape[i] <= 1);
    stride[i] = self->stride[i] / 2;
  }
  if (!even)
    return moth_fail(MOTH_ERR_VALUE,
                     "strides and offset, but the last stride, must be even; use clone()");
  MOTH_TRY(moth_meta_set_view(out, self, n, self->shape, stride, self->offset / 2));
  out->dtype = (uint8_t)moth_dtype_complex((MothDType)self->dtype);
  return MOTH_OK;
}
