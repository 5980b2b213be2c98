/* Composites of src/ops/view.lua, and stack. */
#include <string.h>

#include "composite/composite.h"
#include "dispatch/shape.h"
#include "ops/create.h"
#include "ops/index.h"
#include "ops/view.h"

MothStatus moth_composite_flatten(MothCall *c) {
  MOTH_UNPACK_FLATTEN(c)
  int64_t shape[MOTH_MAX_DIMS], one = 1, a = start_dim, b = end_dim;
  MothTensor *out;
  if (a > b)
    return moth_fail(MOTH_ERR_VALUE,
                     "start_dim (" MOTH_AT "%d) must not come after end_dim (" MOTH_AT "%d)",
                     (int)a, (int)b);
  if (a == b && self->ndim > 0)
    return moth_give_same(c, self);
  int n = 0;
  for (int i = 0; i < self->ndim; i++) {
    if (i > a && i <= b)
      shape[n - 1] *= self->shape[i];
    else
      shape[n++] = self->shape[i];
  }
  MOTH_TRY(moth_reshape(self, self->ndim ? shape : &one, self->ndim ? n : 1, &out));
  return moth_give(c, out);
}

MothStatus moth_composite_unflatten(MothCall *c) {
  MOTH_UNPACK_UNFLATTEN(c)
  int n = 0, unknown = -1;
  int64_t shape[2 * MOTH_MAX_DIMS], known = 1;
  MothTensor *out;
  if (!self->ndim || self->ndim - 1 + (int)sizes.n > MOTH_MAX_DIMS)
    return moth_fail(MOTH_ERR_VALUE, "unflatten: %u sizes do not fit", sizes.n);
  for (uint32_t i = 0; i < sizes.n; i++) {
    if (sizes.u.ints[i] == -1 && unknown < 0)
      unknown = (int)i;
    else if (sizes.u.ints[i] < 0 || __builtin_mul_overflow(known, sizes.u.ints[i], &known))
      return moth_fail(MOTH_ERR_VALUE, "unflatten: invalid size %lld", (long long)sizes.u.ints[i]);
  }
  int64_t whole = self->shape[dim];
  if (unknown >= 0 ? known == 0 || whole % known != 0 : known != whole)
    return moth_fail(MOTH_ERR_VALUE,
                     "unflatten: the sizes do not multiply to %lld, the size of dimension " MOTH_AT
                     "%d",
                     (long long)whole, (int)dim);
  for (int i = 0; i < self->ndim; i++) {
    if (i != dim) {
      shape[n++] = self->shape[i];
      continue;
    }
    for (uint32_t k = 0; k < sizes.n; k++)
      shape[n++] = (int)k == unknown ? whole / known : sizes.u.ints[k];
  }
  MOTH_TRY(moth_reshape(self, shape, n, &out));
  return moth_give(c, out);
}

MothStatus moth_composite_movedim(MothCall *c) {
  MOTH_UNPACK_MOVEDIM(c)
  int k = 0;
  int64_t dims[MOTH_MAX_DIMS];
  MothTensor *out;
  for (int i = 0; i < self->ndim; i++) {
    if (i == destination) {
      dims[i] = source;
      continue;
    }
    if (k == source)
      k++;
    dims[i] = k++;
  }
  MOTH_TRY(moth_permute(self, dims, self->ndim, &out));
  return moth_give(c, out);
}

MothStatus moth_composite_stack(MothCall *c) {
  MOTH_UNPACK_STACK(c)
  enum { FEW = 64 };
  MothTensor *few[FEW], *out = NULL;
  MothStatus status = MOTH_OK;
  uint32_t n = 0;
  if (!tensors.n)
    return moth_fail(MOTH_ERR_VALUE, "at least one tensor is needed");
  for (uint32_t i = 1; i < tensors.n; i++) {
    const MothTensor *a = tensors.u.tensors[0], *b = tensors.u.tensors[i];
    if (a->ndim != b->ndim || memcmp(a->shape, b->shape, sizeof(int64_t) * a->ndim) != 0) {
      char x[200], y[200];
      return moth_fail(MOTH_ERR_VALUE,
                       "all tensors must be of the same size, got %s and %s (tensor " MOTH_AT "%u)",
                       moth_shape_format(a->ndim, a->shape, x, sizeof x),
                       moth_shape_format(b->ndim, b->shape, y, sizeof y), i);
    }
  }
  /* Many tensors: stacks each half and joins the two. */
  if (tensors.n > FEW) {
    MothTensor *left = NULL, *right = NULL, *both[2];
    uint32_t half = tensors.n / 2;
    MOTH_GO(moth_stack(tensors.u.tensors, (int)half, dim, &left));
    status = moth_stack(tensors.u.tensors + half, (int)(tensors.n - half), dim, &right);
    if (status == MOTH_OK) {
      both[0] = left;
      both[1] = right;
      status = moth_cat(both, 2, dim, &out);
    }
    moth_tensor_release(left);
    moth_tensor_release(right);
    return status ? status : moth_give(c, out);
  }
  for (; n < tensors.n; n++)
    MOTH_GO(moth_unsqueeze(tensors.u.tensors[n], dim, &few[n]));
  MOTH_GO(moth_cat(few, (int)n, dim, &out));
done:
  for (uint32_t i = 0; i < n; i++)
    moth_tensor_release(few[i]);
  return status ? status : moth_give(c, out);
}
