/* Shape rules of tril, triu and flip. */
#include "dispatch/dispatch.h"

/* tril, triu: (self, diagonal) */
MothStatus moth_shape_matrix(const MothCall *c, MothMeta *out) {
  MothTensor *t = c->args[0].u.t;
  if (t->ndim < 2)
    return moth_fail(MOTH_ERR_VALUE, "expected a tensor with at least 2 dimensions, got %d",
                     t->ndim);
  return moth_meta_set(out, (MothDType)t->dtype, t->ndim, t->shape);
}

/* flip: (self, dims) */
MothStatus moth_shape_flip(const MothCall *c, MothMeta *out) {
  MothTensor *t = c->args[0].u.t;
  return moth_meta_set(out, (MothDType)t->dtype, t->ndim, t->shape);
}
