/* im2col (the windows of images as columns) and col2im (its adjoint, which sums). Convolution uses neither. */
#include <string.h>

#include "core/parallel.h"
#include "kernels/common/window.h"
#include "kernels/cpu/util.h"
#include "unpack/conv.h"

typedef struct Columns {
  MothConvProduct p;
  int64_t itemsize;
  MothDType dtype;
} Columns;

/* Row (n, c, ky, kx) of the columns. */
static void im2col_range(void *ctx, int64_t begin, int64_t end) {
  const Columns *s = ctx;
  const MothConv *g = &s->p.g;
  int64_t size = s->itemsize;
  for (int64_t r = begin; r < end; r++) {
    int64_t kx = r % g->kernel[1], ky = r / g->kernel[1] % g->kernel[0];
    const char *in = (const char *)s->p.b + r / (g->kernel[0] * g->kernel[1]) * g->h * g->w * size;
    char *out = (char *)s->p.out + r * g->oh * g->ow * size;
    for (int64_t i = 0; i < g->oh; i++) {
      int64_t y = i * g->stride[0] + ky * g->dilation[0] - g->padding[0];
      for (int64_t j = 0; j < g->ow; j++, out += size) {
        int64_t x = j * g->stride[1] + kx * g->dilation[1] - g->padding[1];
        if (y < 0 || y >= g->h || x < 0 || x >= g->w)
          memset(out, 0, (size_t)size);
        else
          memcpy(out, in + (y * g->w + x) * size, (size_t)size);
      }
    }
  }
}

MothStatus moth_cpu_im2col(MothCall *c) {
  MOTH_UNPACK_IM2COL(c)
  MothTensor *in, *out = c->results[0].u.t;
  Columns s = {.p.out = out->data, .itemsize = moth_itemsize(out)};
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

#define ADD_RANGE(name, type)                                                                      \
  static void name(const Columns *s, int64_t plane) {                                              \
    const MothConv *g = &s->p.g;                                                                   \
    int64_t area = g->kernel[0] * g->kernel[1], each = g->oh * g->ow;                              \
    const type *in = (const type *)s->p.b + plane * area * each;                                   \
    type *out = (type *)s->p.out + plane * g->h * g->w;                                            \
    for (int64_t k = 0; k < area; k++)                                                             \
      for (int64_t i = 0; i < g->oh; i++, in += g->ow) {                                           \
        int64_t y = i * g->stride[0] + k / g->kernel[1] * g->dilation[0] - g->padding[0];          \
        if (y < 0 || y >= g->h)                                                                    \
          continue;                                                                                \
        for (int64_t j = 0; j < g->ow; j++) {                                                      \
          int64_t x = j * g->stride[1] + k % g->kernel[1] * g->dilation[1] - g->padding[1];        \
          if (x >= 0 && x < g->w)                                                                  \
            out[y * g->w + x] = (type)(out[y * g->w + x] + in[j]);                                 \
        }                                                                                          \
      }                                                                                            \
  }
ADD_RANGE(add_float, float)
ADD_RANGE(add_double, double)
ADD_RANGE(add_int64, uint64_t) /* wraps */

static void col2im_range(void *ctx, int64_t begin, int64_t end) {
  const Columns *s = ctx;
  for (int64_t p = begin; p < end; p++) {
    if (s->dtype == MOTH_FLOAT32)
      add_float(s, p);
    else if (s->dtype == MOTH_FLOAT64)
      add_double(s, p);
    else
      add_int64(s, p);
  }
}

/* Sums of narrow floats in float32, of integers in int64. */
MothStatus moth_cpu_col2im(MothCall *c) {
  MOTH_UNPACK_COL2IM(c)
  MothTensor *out = c->results[0].u.t, *in = NULL, *sums = NULL;
  MothStatus status = MOTH_OK;
  Columns s = {.dtype = !moth_dtype_is_float((MothDType)out->dtype) ? MOTH_INT64
                        : out->dtype == MOTH_FLOAT64                ? MOTH_FLOAT64
                                                                    : MOTH_FLOAT32};
  moth_columns_geometry(out, kernel_size, stride, padding, dilation, &s.p.g);
  if (!out->numel)
    return MOTH_OK;
  MOTH_GO(moth_cpu_contiguous_as(self, s.dtype, &in));
  MOTH_GO(moth_tensor_new(out->ndim, out->shape, s.dtype, out->device, &sums));
  memset(sums->data, 0, (size_t)(sums->numel * moth_itemsize(sums)));
  s.p.b = in->data;
  s.p.out = sums->data;
  int64_t planes = s.p.g.n * s.p.g.c;
  moth_parallel_for(planes, moth_cpu_grain(in->numel / planes + 1), col2im_range, &s);
  moth_cpu_copy(out, sums);
done:
  moth_tensor_release(in);
  moth_tensor_release(sums);
  return status;
}
