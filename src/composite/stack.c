/* stack: cat of unsqueezed tensors; of many in halves, so that the array of them has a fixed size. */
#include <string.h>

#include "composite/composite.h"
#include "dispatch/shape.h"
#include "ops/index.h"
#include "ops/view.h"
#include "unpack/index.h"

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
