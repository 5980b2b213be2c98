/* Shape rules of tril, triu and flip. */
#include "dispatch/dispatch.h"

/* tril, triu: (self, diagonal) */
MothStatus moth_shape_matrix(MothCall *c) {
  MothTensor *t = c->args[0].u.t;
  if (t->ndim < 2)
    return moth_fail(MOTH_ERR_VALUE, "expected a tensor with at least 2 dimensions, got %d",
                     t->ndim);
  return moth_result(c, 0, (MothDType)t->dtype, t->ndim, t->shape);
}

/* flip: (self, dims) */
MothStatus moth_shape_flip(MothCall *c) {
  MothTensor *t = c->args[0].u.t;
  MothValue dims = c->args[1];
  uint32_t seen = 0;
  for (uint32_t i = 0; i < dims.n; i++) {
    int d;
    MOTH_TRY(moth_wrap_dim(dims.u.ints[i], t->ndim, &d));
    if (seen & 1u << d)
      return moth_fail(MOTH_ERR_VALUE, "dimension %d appears twice in the list of dimensions",
                       d + 1);
    seen |= 1u << d;
  }
  return moth_result(c, 0, (MothDType)t->dtype, t->ndim, t->shape);
}
