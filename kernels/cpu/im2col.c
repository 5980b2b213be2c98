/* im2col (the windows of images as columns) and col2im (its adjoint, which sums). Convolution uses neither. */
#include <string.h>

#include "core/parallel.h"
#include "kernels/common/window.h"
#include "kernels/cpu/conv.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/util.h"
#include "unpack/conv.h"

typedef struct Columns {
  MothConvProduct p;
  const MothKernels *k; /* of floats that are as long as an element, or NULL */
  int64_t itemsize;
} Columns;

/* Row (n, c, ky, kx) of the columns. */
static void copy_row(const Columns *s, int64_t tap, const char *in, char *out) {
  const MothConv *g = &s->p.g;
  int64_t size = s->itemsize, step = g->stride[1] * size;
  int64_t first = tap % g->kernel[1] * g->dilation[1] - g->padding[1], from = 0;
  while (from < g->ow && first + from * g->stride[1] < 0)
    from++;
  int64_t to = from; /* results [from, to) of a row read a pixel */
  while (to < g->ow && first + to * g->stride[1] < g->w)
    to++;
  for (int64_t i = 0; i < g->oh; i++, out += g->ow * size) {
    int64_t y = i * g->stride[0] + tap / g->kernel[1] * g->dilation[0] - g->padding[0];
    if (y < 0 || y >= g->h) {
      memset(out, 0, (size_t)(g->ow * size));
      continue;
    }
    const char *at = in + (y * g->w + first) * size;
    memset(out, 0, (size_t)(from * size));
    if (g->stride[1] == 1)
      memcpy(out + from * size, at + from * size, (size_t)((to - from) * size));
    else if (size == 1)
      for (int64_t j = from; j < to; j++)
        out[j] = at[j * step];
    else
      for (int64_t j = from; j < to; j++)
        memcpy(out + j * size, at + j * step, (size_t)size);
    memset(out + to * size, 0, (size_t)((g->ow - to) * size));
  }
}

static void im2col_range(void *ctx, int64_t begin, int64_t end) {
  const Columns *s = ctx;
  const MothConv *g = &s->p.g;
  int64_t area = g->kernel[0] * g->kernel[1], size = s->itemsize;
  for (int64_t r = begin; r < end; r++) {
    char *in = (char *)s->p.b + r / area * g->h * g->w * size;
    char *out = (char *)s->p.out + r * g->oh * g->ow * size;
    const int32_t tap = (int32_t)(r % area);
    MothConvColumns c = {.g = g,
                         .taps = &tap,
                         .ntaps = 1,
                         .channels = 1,
                         .outer = 1,
                         .inner = 1,
                         .image = in,
                         .columns = out};
    if (s->k && area <= INT32_MAX)
      s->k->conv_columns(&c);
    else
      copy_row(s, tap, in, out);
  }
}

MothStatus moth_cpu_im2col(MothCall *c) {
  MOTH_UNPACK_IM2COL(c)
  MothTensor *in, *out = c->results[0].u.t;
  Columns s = {.p.out = out->data, .itemsize = moth_itemsize(out)};
  if (s.itemsize >= 4)
    s.k = moth_cpu_kernels(s.itemsize == 4 ? MOTH_FLOAT32 : MOTH_FLOAT64);
  moth_columns_geometry(self, kernel_size, stride, padding, dilation, &s.p.g);
  if (!out->numel)
    return MOTH_OK;
  MOTH_TRY(moth_cpu_contiguous(self, &in));
  s.p.b = in->data;
  int64_t each = s.p.g.oh * s.p.g.ow;
  moth_parallel_for(out->numel / each, moth_cpu_grain(2 * each), im2col_range, &s);
  moth_tensor_release(in);
  return MOTH_OK;
}

/* Integers, which wrap. */
static void add_integers(const Columns *s, int64_t plane) {
  const MothConv *g = &s->p.g;
  int64_t area = g->kernel[0] * g->kernel[1], each = g->oh * g->ow;
  const uint64_t *in = (const uint64_t *)s->p.b + plane * area * each;
  uint64_t *out = (uint64_t *)s->p.out + plane * g->h * g->w;
  memset(out, 0, (size_t)(g->h * g->w) * sizeof *out);
  for (int64_t k = 0; k < area; k++)
    for (int64_t i = 0; i < g->oh; i++, in += g->ow) {
      int64_t y = i * g->stride[0] + k / g->kernel[1] * g->dilation[0] - g->padding[0];
      if (y < 0 || y >= g->h)
        continue;
      for (int64_t j = 0; j < g->ow; j++) {
        int64_t x = j * g->stride[1] + k % g->kernel[1] * g->dilation[1] - g->padding[1];
        if (x >= 0 && x < g->w)
          out[y * g->w + x] += in[j];
      }
    }
}

static void col2im_range(void *ctx, int64_t begin, int64_t end) {
  const Columns *s = ctx;
  const MothConv *g = &s->p.g;
  int64_t area = g->kernel[0] * g->kernel[1], each = g->oh * g->ow, size = s->itemsize;
  MothConvColumns c = {.g = g,
                       .ntaps = area,
                       .channels = end - begin,
                       .outer = 1,
                       .inner = 1,
                       .channel_stride = g->h * g->w,
                       .image = (char *)s->p.out + begin * g->h * g->w * size,
                       .columns = (char *)s->p.b + begin * area * each * size,
                       .row = each};
  if (s->k)
    s->k->conv_images(&c);
  else
    for (int64_t p = begin; p < end; p++)
      add_integers(s, p);
}

/* Sums of narrow floats in float32, of integers in int64. */
MothStatus moth_cpu_col2im(MothCall *c) {
  MOTH_UNPACK_COL2IM(c)
  MothTensor *out = c->results[0].u.t, *in = NULL, *sums = NULL;
  MothStatus status = MOTH_OK;
  bool is_float = moth_dtype_is_float((MothDType)out->dtype);
  MothDType dtype = !is_float                    ? MOTH_INT64
                    : out->dtype == MOTH_FLOAT64 ? MOTH_FLOAT64
                                                 : MOTH_FLOAT32;
  Columns s = {.k = is_float ? moth_cpu_kernels((int)dtype) : NULL,
               .itemsize = moth_dtype_size(dtype)};
  moth_columns_geometry(out, kernel_size, stride, padding, dilation, &s.p.g);
  if (!out->numel)
    return MOTH_OK;
  MOTH_GO(moth_cpu_contiguous_as(self, dtype, &in));
  if (out->dtype == dtype) {
    moth_tensor_retain(out);
    sums = out;
  } else {
    MOTH_GO(moth_tensor_new(out->ndim, out->shape, dtype, out->device, &sums));
  }
  s.p.b = in->data;
  s.p.out = sums->data;
  int64_t planes = s.p.g.n * s.p.g.c;
  moth_parallel_for(planes, moth_cpu_grain(in->numel / planes + 1), col2im_range, &s);
  if (sums != out)
    moth_cpu_copy(out, sums);
done:
  moth_tensor_release(in);
  moth_tensor_release(sums);
  return status;
}
