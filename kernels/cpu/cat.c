/* cat: dense inputs of the result's dtype row by row, all inputs at once; others are copied, converted where they must be,
 * each into its slice of the result. */
#include "core/parallel.h"
#include "kernels/cpu/rearrange.h"
#include "kernels/cpu/util.h"
#include "unpack/index.h"

typedef struct Rows {
  MothTensor *const *in;
  uint32_t n;
  int64_t each; /* bytes of a row of each input, where all are equal; else 0 */
  int64_t inner, row;
  int dim;
  char *out;
} Rows;

#define SMALL(type)                                                                                \
  for (int64_t r = begin; r < end; r++)                                                            \
    for (uint32_t i = 0; i < j->n; i++)                                                            \
      *(type *)(void *)(j->out + r * j->row + i * sizeof(type)) =                                  \
          ((const type *)(const void *)j->in[i]->data)[r];

static void rows_range(void *ctx, int64_t begin, int64_t end) {
  const Rows *j = ctx;
  if (j->each == 4) {
    SMALL(MothFour)
    return;
  }
  if (j->each == 8) {
    SMALL(MothEight)
    return;
  }
  for (int64_t r = begin; r < end; r++) {
    char *to = j->out + r * j->row;
    for (uint32_t i = 0; i < j->n; i++) {
      const int64_t n = j->in[i]->shape[j->dim] * j->inner;
      moth_copy_row(to, j->in[i]->data + r * n, n);
      to += n;
    }
  }
}

/* false: they are not all dense and of one dtype. */
static bool cat_rows(MothTensor *out, const MothValue *tensors, int d) {
  Rows j = {.in = tensors->u.tensors, .n = tensors->n, .dim = d, .out = out->data};
  int64_t item = moth_itemsize(out), outer = 1;
  if (!out->contiguous)
    return false;
  j.inner = item;
  for (int i = 0; i < out->ndim; i++)
    if (i != d)
      *(i < d ? &outer : &j.inner) *= out->shape[i];
  j.row = out->shape[d] * j.inner;
  for (uint32_t i = 0; i < j.n; i++) {
    const MothTensor *t = j.in[i];
    if (!t->contiguous || t->dtype != out->dtype || t->ndim != out->ndim)
      return false;
    int64_t n = t->shape[d] * j.inner;
    j.each = i == 0 || j.each == n ? n : 0;
  }
  if (outer == 1)
    return false;
  moth_parallel_for(outer, 1 + 4 * MOTH_GRAIN / (j.row + 1), rows_range, &j);
  return true;
}

MothStatus moth_cpu_cat(MothCall *c) {
  MOTH_UNPACK_CAT(c)
  MothTensor *out = c->results[0].u.t;
  int d = (int)dim;
  if (out->numel == 0 || cat_rows(out, &tensors, d))
    return MOTH_OK;
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
    if (t->dtype == out->dtype)
      moth_rearrange(&it, item);
    else
      moth_iter_run(&it, moth_cpu_kernels(out->dtype)->copy_from[t->dtype], NULL, MOTH_GRAIN);
    at += t->shape[d] * stride[d];
  }
  return MOTH_OK;
}
