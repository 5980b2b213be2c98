/* tril, triu and flip: they move elements of any dtype of a size. */
#include <string.h>

#include "core/parallel.h"
#include "kernels/cpu/rearrange.h"
#include "kernels/cpu/util.h"
#include "unpack/create.h"

typedef struct Triangle {
  const char *in;
  char *out;
  int64_t rows, cols, itemsize, diagonal;
  bool upper;
} Triangle;

static int64_t clamp(int64_t x, int64_t lo, int64_t hi) {
  return x < lo ? lo : x > hi ? hi : x;
}

static void triangle_range(void *ctx, int64_t begin, int64_t end) {
  const Triangle *t = ctx;
  for (int64_t r = begin; r < end; r++) {
    int64_t row = r % t->rows;
    /* columns up to the diagonal (lower, with it) or below it (upper) come first */
    int64_t shift = clamp(t->diagonal, -t->rows, t->cols);
    int64_t first = clamp(row + shift + (t->upper ? 0 : 1), 0, t->cols);
    size_t head = (size_t)(first * t->itemsize), all = (size_t)(t->cols * t->itemsize);
    const char *in = t->in + (size_t)r * all;
    char *out = t->out + (size_t)r * all;
    if (t->upper) {
      memset(out, 0, head);
      memcpy(out + head, in + head, all - head);
    } else {
      memcpy(out, in, head);
      memset(out + head, 0, all - head);
    }
  }
}

static MothStatus triangle(MothCall *c, bool upper) {
  MOTH_UNPACK_TRIL(c)
  MothTensor *in, *out = c->results[0].u.t;
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cpu_contiguous(self, &in));
  Triangle t = {.in = in->data,
                .out = out->data,
                .rows = out->shape[out->ndim - 2],
                .cols = out->shape[out->ndim - 1],
                .itemsize = moth_itemsize(out),
                .diagonal = diagonal,
                .upper = upper};
  moth_parallel_for(out->numel / t.cols, moth_cpu_grain(t.cols), triangle_range, &t);
  moth_tensor_release(in);
  return MOTH_OK;
}

MothStatus moth_cpu_tril(MothCall *c) {
  return triangle(c, false);
}
MothStatus moth_cpu_triu(MothCall *c) {
  return triangle(c, true);
}

MothStatus moth_cpu_flip(MothCall *c) {
  MOTH_UNPACK_FLIP(c)
  MothTensor *out = c->results[0].u.t;
  if (out->numel == 0)
    return MOTH_OK;
  int64_t stride[MOTH_MAX_DIMS], item = moth_itemsize(self);
  for (int i = 0; i < self->ndim; i++)
    stride[i] = self->stride[i] * item;
  char *data = self->data;
  for (uint32_t i = 0; i < dims.n && self->ndim; i++) {
    int64_t d = dims.u.ints[i];
    data += (self->shape[d] - 1) * stride[d];
    stride[d] = -stride[d];
  }
  MothIter it;
  moth_iter_init(&it, out->ndim, out->shape);
  moth_iter_add(&it, out);
  moth_iter_add_raw(&it, data, stride);
  moth_iter_prepare(&it);
  moth_rearrange(&it, moth_itemsize(out));
  return MOTH_OK;
}
