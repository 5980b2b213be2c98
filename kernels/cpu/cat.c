/* cat: each input is copied, converted where it must be, into its slice of the result. */
#include "kernels/common/iter.h"
#include "kernels/cpu/util.h"
#include "unpack/index.h"

MothStatus moth_cpu_cat(MothCall *c) {
  MOTH_UNPACK_CAT(c)
  MothTensor *out = c->results[0].u.t;
  int d = (int)dim;
  int64_t item = moth_itemsize(out), stride[MOTH_MAX_DIMS];
  for (int i = 0; i < out->ndim; i++)
    stride[i] = out->stride[i] * item;
  char *at = out->data;
  for (uint32_t i = 0; i < tensors.n; i++) {
    const MothTensor *t = tensors.u.tensors[i];
    if (t->numel == 0)
      continue;
    MothIter it;
    moth_iter_init(&it, t->ndim, t->shape);
    moth_iter_add_raw(&it, at, stride);
    moth_iter_add(&it, t);
    moth_iter_prepare(&it);
    moth_iter_run(&it, moth_cpu_kernels(out->dtype)->copy_from[t->dtype], NULL, MOTH_GRAIN);
    at += t->shape[d] * stride[d];
  }
  return MOTH_OK;
}
