/* Shape rules of cat and of positions in several dimensions. */
#include <string.h>

#include "core/dtype.h"
#include "dispatch/pattern.h"
#include "unpack/index.h"

/* As in PyTorch: a vector of no elements may be joined with tensors of any shape. */
static bool skipped(const MothTensor *t) {
  return t->ndim == 1 && t->shape[0] == 0;
}

/* cat: (tensors, dim) */
MothStatus moth_shape_cat(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_CAT(c)
  char a[200], b[200];
  if (tensors.n == 0)
    return moth_fail(MOTH_ERR_VALUE, "expected at least one tensor");
  const MothTensor *first = tensors.u.tensors[0];
  MothDType dtype = (MothDType)first->dtype;
  for (uint32_t i = 0; i < tensors.n; i++) {
    const MothTensor *t = tensors.u.tensors[i];
    if (t->ndim == 0)
      return moth_fail(MOTH_ERR_VALUE,
                       "tensor " MOTH_AT "%u has no dimensions and cannot be joined", i);
    MOTH_TRY(moth_dtype_common(dtype, (MothDType)t->dtype, &dtype));
    if (skipped(first))
      first = t;
  }
  int d = (int)dim;
  int64_t shape[MOTH_MAX_DIMS];
  memcpy(shape, first->shape, sizeof shape);
  shape[d] = 0;
  for (uint32_t i = 0; i < tensors.n; i++) {
    const MothTensor *t = tensors.u.tensors[i];
    if (skipped(t))
      continue;
    bool fits = t->ndim == first->ndim;
    for (int k = 0; k < first->ndim && fits; k++)
      fits = k == d || t->shape[k] == first->shape[k];
    if (!fits)
      return moth_fail(MOTH_ERR_VALUE,
                       "sizes must match except in dimension " MOTH_AT "%d: tensor " MOTH_AT
                       "%u has shape %s, the first one %s",
                       d, i, moth_shape_format(t->ndim, t->shape, a, sizeof a),
                       moth_shape_format(first->ndim, first->shape, b, sizeof b));
    if (__builtin_add_overflow(shape[d], t->shape[d], &shape[d]))
      return moth_fail(MOTH_ERR_VALUE, "the sizes add up to more than a tensor can have");
  }
  return moth_meta_set(out, dtype, first->ndim, shape);
}

MothStatus moth_nd(const MothTensor *self, MothValue dims, const MothTensor *index, MothNd *nd) {
  char a[200];
  bool taken[MOTH_MAX_DIMS] = {false};
  if (self->ndim == 0)
    return moth_fail(MOTH_ERR_VALUE, "self has no dimensions, and dims must name one at least");
  if (dims.n == 0 || dims.n > (uint32_t)self->ndim)
    return moth_fail(MOTH_ERR_VALUE, "dims must name 1 to %d dimensions, got %u", self->ndim,
                     dims.n);
  *nd = (MothNd){.k = (int)dims.n, .count = 1, .together = true};
  for (int j = 0; j < nd->k; j++) {
    nd->dims[j] = (int)dims.u.ints[j];
    taken[nd->dims[j]] = true;
    nd->together = nd->together && nd->dims[j] == nd->dims[0] + j;
  }
  int n = index->ndim;
  if (nd->k > 1 && (n == 0 || index->shape[--n] != nd->k))
    return moth_fail(MOTH_ERR_VALUE,
                     "the last dimension of index must hold a position for each of %d dims: got "
                     "shape %s",
                     nd->k, moth_shape_format(index->ndim, index->shape, a, sizeof a));
  nd->before = nd->together ? nd->dims[0] : 0;
  nd->ndim = self->ndim - nd->k + n;
  if (nd->ndim > MOTH_MAX_DIMS)
    return moth_fail(MOTH_ERR_VALUE, "the result would have %d dimensions, the most are %d",
                     nd->ndim, MOTH_MAX_DIMS);
  for (int i = 0; i < self->ndim; i++)
    if (!taken[i]) {
      nd->shape[nd->nrest + (nd->nrest < nd->before ? 0 : n)] = self->shape[i];
      nd->rest[nd->nrest++] = i;
    }
  for (int i = 0; i < n; i++)
    nd->count *= nd->shape[nd->before + i] = index->shape[i];
  return MOTH_OK;
}

/* gather_nd: (self, dims, index, index_base) */
MothStatus moth_shape_gather_nd(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_GATHER_ND(c)
  MothNd nd;
  MOTH_TRY(moth_nd(self, dims, index, &nd));
  return moth_meta_set(out, (MothDType)self->dtype, nd.ndim, nd.shape);
}

/* scatter_nd_: (self, dims, index, src, accumulate, index_base) */
MothStatus moth_shape_scatter_nd(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_SCATTER_ND_(c)
  MothNd nd;
  char a[200], b[200];
  MOTH_TRY(moth_nd(self, dims, index, &nd));
  if (src->dtype != self->dtype)
    return moth_dtypes_differ("self", self, "src", src);
  if (accumulate && moth_dtype_is_stored((MothDType)self->dtype))
    return moth_fail(MOTH_ERR_TYPE,
                     "accumulate is not implemented for %s; convert with x:to(moth.int64)",
                     moth_dtype_name((MothDType)self->dtype));
  bool fits = src->ndim <= nd.ndim;
  for (int i = 1; i <= src->ndim && fits; i++)
    fits = src->shape[src->ndim - i] == 1 || src->shape[src->ndim - i] == nd.shape[nd.ndim - i];
  if (!fits)
    return moth_fail(MOTH_ERR_VALUE,
                     "src of shape %s cannot be broadcast to the places, of shape %s",
                     moth_shape_format(src->ndim, src->shape, a, sizeof a),
                     moth_shape_format(nd.ndim, nd.shape, b, sizeof b));
  return moth_shape_self(c, out);
}
