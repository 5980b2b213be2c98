#include "kernels/common/reduce.h"

#include "core/dtype.h"
#include "dispatch/dispatch.h"

static void add_dim(MothReduceDim *dims, int *n, MothReduceDim d) {
  int i = (*n)++;
  int64_t stride = d.in ? d.in : INT64_MAX; /* expanded dimensions are outermost */
  for (; i > 0 && (dims[i - 1].in ? dims[i - 1].in : INT64_MAX) < stride; i--)
    dims[i] = dims[i - 1];
  dims[i] = d;
}

static int merge_dims(MothReduceDim *dims, int n) {
  int m = 0;
  for (int i = 1; i < n; i++) {
    MothReduceDim *a = &dims[m], b = dims[i];
    if (a->in == b.in * b.size && a->out == b.out * b.size)
      *a = (MothReduceDim){a->size * b.size, b.in, b.out};
    else
      dims[++m] = b;
  }
  return n ? m + 1 : 0;
}

void moth_reduce_layout(MothReduceLayout *l, const MothTensor *t, uint32_t mask) {
  l->nkept = l->nred = 0;
  l->outs = l->count = 1;
  for (int i = t->ndim - 1; i >= 0; i--) {
    int64_t size = t->shape[i], in = t->stride[i] * moth_itemsize(t);
    bool reduced = mask & 1u << i;
    if (size != 1)
      add_dim(reduced ? l->red : l->kept, reduced ? &l->nred : &l->nkept,
              (MothReduceDim){size, in, reduced ? 0 : l->outs});
    *(reduced ? &l->count : &l->outs) *= size;
  }
  l->nred = merge_dims(l->red, l->nred);
  l->nkept = merge_dims(l->kept, l->nkept);
  int64_t run = l->nred ? l->red[l->nred - 1].in : 0;
  int64_t width = l->nkept ? l->kept[l->nkept - 1].in : 0;
  l->rows = l->nred && (!l->nkept || (run && (run < width || !width)));
}

uint32_t moth_reduce_mask(MothValue dims, int ndim) {
  uint32_t mask = 0;
  for (uint32_t i = 0; i < dims.n; i++)
    mask |= 1u << dims.u.ints[i];
  return mask ? mask : (1u << ndim) - 1;
}

bool moth_reduce_converts(MothDType from, MothDType to) {
  return from != to && (moth_dtype_is_float(from) != moth_dtype_is_float(to) ||
                        to == MOTH_FLOAT64 || to == MOTH_BOOL);
}
