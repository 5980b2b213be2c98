/* Shape rules of src/ops/conv.lua. */
#include "dispatch/shape_conv.h"

#include <string.h>

#include "core/dtype.h"
#include "dispatch/dispatch.h"
#include "unpack/conv.h"

/* --- arguments -------------------------------------------------------------------------------- */

static void pair(MothValue v, int64_t out[2]) {
  out[0] = v.u.ints[0];
  out[1] = v.u.ints[1];
}

static MothStatus need_float(const MothTensor *t) {
  if (moth_dtype_is_float((MothDType)t->dtype))
    return MOTH_OK;
  return moth_fail(MOTH_ERR_TYPE, "expected a float dtype, got %s",
                   moth_dtype_name((MothDType)t->dtype));
}

static MothStatus need_same_dtype(const MothTensor *a, const MothTensor *b) {
  if (a->dtype == b->dtype)
    return MOTH_OK;
  return moth_fail(MOTH_ERR_TYPE, "expected the same dtype, got %s and %s",
                   moth_dtype_name((MothDType)a->dtype), moth_dtype_name((MothDType)b->dtype));
}

/* Images: (N, C, H, W) or (C, H, W), all sizes known to be positive but N. */
static MothStatus need_images(const char *name, int ndim, const int64_t *shape) {
  char s[200];
  if (ndim != 3 && ndim != 4)
    return moth_fail(MOTH_ERR_VALUE, "%s must have 3 or 4 dimensions ((N,) C, H, W), got %s", name,
                     moth_shape_format(ndim, shape, s, sizeof s));
  for (int i = 0; i < ndim; i++)
    if (shape[i] < 0 || shape[i] > INT32_MAX || (shape[i] == 0 && i >= ndim - 2))
      return moth_fail(MOTH_ERR_VALUE, "%s must not be empty but in its batch dimension, got %s",
                       name, moth_shape_format(ndim, shape, s, sizeof s));
  return MOTH_OK;
}

static MothStatus need_shape(const char *name, const MothTensor *t, int ndim,
                             const int64_t *shape) {
  char want[200], got[200];
  if (t->ndim == ndim && !memcmp(t->shape, shape, sizeof(int64_t) * (size_t)ndim))
    return MOTH_OK;
  return moth_fail(MOTH_ERR_VALUE, "%s must have the shape %s, got %s", name,
                   moth_shape_format(ndim, shape, want, sizeof want),
                   moth_shape_format(t->ndim, t->shape, got, sizeof got));
}

/* --- convolution ------------------------------------------------------------------------------ */

MothStatus moth_conv_geometry(int ndim, const int64_t *input, int nweight, const int64_t *weight,
                              MothValue stride, MothValue padding, MothValue dilation,
                              int64_t groups, MothConv *g) {
  char a[200], b[200];
  MOTH_TRY(need_images("input", ndim, input));
  if (nweight != 4)
    return moth_fail(MOTH_ERR_VALUE,
                     "weight must have 4 dimensions (K, C / groups, kh, kw), got %s",
                     moth_shape_format(nweight, weight, a, sizeof a));
  for (int i = 0; i < 4; i++)
    if (weight[i] < 1 || weight[i] > INT32_MAX)
      return moth_fail(MOTH_ERR_VALUE, "weight must not be empty, got %s",
                       moth_shape_format(nweight, weight, a, sizeof a));
  pair(stride, g->stride);
  pair(padding, g->padding);
  pair(dilation, g->dilation);
  g->batched = ndim == 4;
  g->n = g->batched ? input[0] : 1;
  g->c = input[ndim - 3];
  g->h = input[ndim - 2];
  g->w = input[ndim - 1];
  g->k = weight[0];
  g->kernel[0] = weight[2];
  g->kernel[1] = weight[3];
  g->groups = groups;
  if (groups < 1 || g->k % groups || g->c % groups)
    return moth_fail(MOTH_ERR_VALUE,
                     "groups must divide the channels of input (%lld) and of weight (%lld), got "
                     "%lld",
                     (long long)g->c, (long long)g->k, (long long)groups);
  if (g->c != weight[1] * groups)
    return moth_fail(MOTH_ERR_VALUE,
                     "input %s must have %lld channels to go with weight %s and groups %lld, got "
                     "%lld",
                     moth_shape_format(ndim, input, a, sizeof a), (long long)(weight[1] * groups),
                     moth_shape_format(4, weight, b, sizeof b), (long long)groups, (long long)g->c);
  for (int i = 0; i < 2; i++) {
    int64_t size = (i ? g->w : g->h) + 2 * g->padding[i];
    int64_t span = g->dilation[i] * (g->kernel[i] - 1) + 1;
    if (span > size)
      return moth_fail(MOTH_ERR_VALUE,
                       "the kernel's extent %lld (dilation %lld) is larger than the padded input "
                       "%lld in dimension " MOTH_AT "%d; input %s, weight %s",
                       (long long)span, (long long)g->dilation[i], (long long)size, ndim - 2 + i,
                       moth_shape_format(ndim, input, a, sizeof a),
                       moth_shape_format(4, weight, b, sizeof b));
    *(i ? &g->ow : &g->oh) = (size - span) / g->stride[i] + 1;
  }
  return MOTH_OK;
}

/* The shape of a convolution's result, and its number of dimensions. */
static int result_shape(const MothConv *g, int64_t shape[4]) {
  int n = 0;
  if (g->batched)
    shape[n++] = g->n;
  shape[n++] = g->k;
  shape[n++] = g->oh;
  shape[n++] = g->ow;
  return n;
}

MothStatus moth_shape_conv2d(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_CONV2D(c)
  MothConv g;
  int64_t shape[4];
  MOTH_TRY(moth_conv_geometry(input->ndim, input->shape, weight->ndim, weight->shape, stride,
                              padding, dilation, groups, &g));
  MOTH_TRY(need_float(input));
  MOTH_TRY(need_same_dtype(input, weight));
  if (bias) {
    if (bias->ndim != 1 || bias->shape[0] != g.k)
      return moth_fail(MOTH_ERR_VALUE, "bias must have shape [%lld]", (long long)g.k);
    MOTH_TRY(need_same_dtype(input, bias));
  }
  int n = result_shape(&g, shape);
  return moth_meta_set(out, (MothDType)input->dtype, n, shape);
}

MothStatus moth_shape_conv2d_backward_input(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_CONV2D_BACKWARD_INPUT(c)
  MothConv g;
  int64_t shape[4];
  MOTH_TRY(moth_conv_geometry((int)input_size.n, input_size.u.ints, weight->ndim, weight->shape,
                              stride, padding, dilation, groups, &g));
  MOTH_TRY(need_float(grad_output));
  MOTH_TRY(need_same_dtype(grad_output, weight));
  int n = result_shape(&g, shape);
  MOTH_TRY(need_shape("grad_output", grad_output, n, shape));
  return moth_meta_set(out, (MothDType)weight->dtype, n, input_size.u.ints);
}

MothStatus moth_shape_conv2d_backward_weight(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_CONV2D_BACKWARD_WEIGHT(c)
  MothConv g;
  int64_t shape[4];
  MOTH_TRY(moth_conv_geometry(input->ndim, input->shape, (int)weight_size.n, weight_size.u.ints,
                              stride, padding, dilation, groups, &g));
  MOTH_TRY(need_float(input));
  MOTH_TRY(need_same_dtype(grad_output, input));
  int n = result_shape(&g, shape);
  MOTH_TRY(need_shape("grad_output", grad_output, n, shape));
  return moth_meta_set(out, (MothDType)input->dtype, 4, weight_size.u.ints);
}

/* --- columns ---------------------------------------------------------------------------------- */

/* Windows as those of a convolution of one channel with one result. */
static MothStatus columns_geometry(int ndim, const int64_t *image, MothValue kernel,
                                   MothValue stride, MothValue padding, MothValue dilation,
                                   MothConv *g) {
  MOTH_TRY(need_images("the image", ndim, image));
  int64_t weight[4] = {1, image[ndim - 3], kernel.u.ints[0], kernel.u.ints[1]};
  return moth_conv_geometry(ndim, image, 4, weight, stride, padding, dilation, 1, g);
}

MothStatus moth_shape_im2col(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_IM2COL(c)
  MothConv g;
  MOTH_TRY(columns_geometry(self->ndim, self->shape, kernel_size, stride, padding, dilation, &g));
  int64_t shape[3] = {g.n, g.c * g.kernel[0] * g.kernel[1], g.oh * g.ow};
  return moth_meta_set(out, (MothDType)self->dtype, g.batched ? 3 : 2, shape + !g.batched);
}

MothStatus moth_shape_col2im(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_COL2IM(c)
  MothConv g;
  const int64_t *size = output_size.u.ints, *kernel = kernel_size.u.ints;
  if (self->ndim != 2 && self->ndim != 3)
    return moth_fail(MOTH_ERR_VALUE, "self must have 2 or 3 dimensions ((N,) C kh kw, L), got %d",
                     self->ndim);
  int64_t rows = self->shape[self->ndim - 2], area = kernel[0] * kernel[1];
  if (rows == 0 || rows % area)
    return moth_fail(MOTH_ERR_VALUE,
                     "the size of dimension " MOTH_AT
                     "%d, %lld, must be a multiple of the kernel's %lld",
                     self->ndim - 2, (long long)rows, (long long)area);
  bool batched = self->ndim == 3;
  int64_t shape[4] = {batched ? self->shape[0] : 1, rows / area, size[0], size[1]};
  int ndim = batched ? 4 : 3;
  MOTH_TRY(columns_geometry(ndim, shape + !batched, kernel_size, stride, padding, dilation, &g));
  if (self->shape[self->ndim - 1] != g.oh * g.ow)
    return moth_fail(MOTH_ERR_VALUE, "self must have %lld columns (%lld x %lld), got %lld",
                     (long long)(g.oh * g.ow), (long long)g.oh, (long long)g.ow,
                     (long long)self->shape[self->ndim - 1]);
  return moth_meta_set(out, (MothDType)self->dtype, ndim, shape + !batched);
}

/* --- pooling ---------------------------------------------------------------------------------- */

static void set_planes(int ndim, const int64_t *input, MothPool *p) {
  memset(p, 0, sizeof *p);
  p->planes = input[ndim - 3] * (ndim == 4 ? input[0] : 1);
  p->h = input[ndim - 2];
  p->w = input[ndim - 1];
  p->include_pad = true;
}

/* A window of elements `dilation` apart may step over all of a small image: it has no largest element. */
static MothStatus check_windows(const MothPool *p, int i, int64_t size, int64_t count) {
  int64_t step = p->dilation[i];
  for (int64_t o = 0; o < count && step > 1; o++) {
    int64_t start = o * p->stride[i] - p->padding[i];
    int64_t before =
        start < 0 ? (-start + step - 1) / step : 0; /* elements in front of the image */
    if (before >= p->kernel[i] || start + before * step >= size)
      return moth_fail(MOTH_ERR_VALUE,
                       "window " MOTH_AT
                       "%lld steps over all %lld elements: its dilation of %lld is too "
                       "large for its padding of %lld",
                       (long long)o, (long long)size, (long long)step, (long long)p->padding[i]);
  }
  return MOTH_OK;
}

MothStatus moth_pool_windows(int ndim, const int64_t *input, MothValue kernel, MothValue stride,
                             MothValue padding, MothValue dilation, bool ceil_mode, MothPool *p) {
  char s[200];
  MOTH_TRY(need_images("self", ndim, input));
  set_planes(ndim, input, p);
  pair(kernel, p->kernel);
  pair(stride, p->stride);
  pair(padding, p->padding);
  pair(dilation, p->dilation);
  for (int i = 0; i < 2; i++) {
    if (2 * p->padding[i] > p->kernel[i])
      return moth_fail(MOTH_ERR_VALUE,
                       "padding must be at most half of kernel_size, %lld, got %lld",
                       (long long)p->kernel[i], (long long)p->padding[i]);
    int64_t size = i ? p->w : p->h, span = p->dilation[i] * (p->kernel[i] - 1) + 1;
    /* ceil_mode adds one window for a rest of less than a stride. */
    int64_t left = size + 2 * p->padding[i] - span + (ceil_mode ? p->stride[i] - 1 : 0), out;
    if (left < 0)
      return moth_fail(MOTH_ERR_VALUE,
                       "the window's extent %lld is larger than the padded input %lld in "
                       "dimension " MOTH_AT "%d of %s",
                       (long long)span, (long long)(size + 2 * p->padding[i]), ndim - 2 + i,
                       moth_shape_format(ndim, input, s, sizeof s));
    out = left / p->stride[i] + 1;
    /* The last window must begin inside of the image or its left padding. */
    if (ceil_mode && (out - 1) * p->stride[i] >= size + p->padding[i])
      out--;
    MOTH_TRY(check_windows(p, i, size, out));
    *(i ? &p->ow : &p->oh) = out;
  }
  return MOTH_OK;
}

MothStatus moth_pool_adaptive(int ndim, const int64_t *input, MothValue output, MothPool *p) {
  int64_t size[2];
  MOTH_TRY(need_images("self", ndim, input));
  set_planes(ndim, input, p);
  p->adaptive = true;
  pair(output, size);
  p->oh = size[0] < 0 ? p->h : size[0];
  p->ow = size[1] < 0 ? p->w : size[1];
  return MOTH_OK;
}

MothStatus moth_pool_geometry(const MothCall *c, int ndim, const int64_t *input, MothPool *p) {
  const MothOp *op = c->op;
  if (op == MOTH_OP(max_pool2d_with_indices)) {
    MOTH_UNPACK_MAX_POOL2D_WITH_INDICES(c)
    return moth_pool_windows(ndim, input, kernel_size, stride, padding, dilation, ceil_mode, p);
  }
  if (op == MOTH_OP(max_pool2d_backward)) {
    MOTH_UNPACK_MAX_POOL2D_BACKWARD(c)
    const int64_t *out = grad_output->shape + grad_output->ndim - 2;
    if (kernel_size.tag == MOTH_V_NONE)
      return moth_pool_adaptive(ndim, input, moth_v_ints(out, 2), p);
    MOTH_TRY(moth_pool_windows(ndim, input, kernel_size, stride, padding, dilation, true, p));
    p->oh = out[0]; /* of whatever ceil_mode: true allows all that either does */
    p->ow = out[1];
    return MOTH_OK;
  }
  if (op == MOTH_OP(avg_pool2d) || op == MOTH_OP(avg_pool2d_backward)) {
    static const int64_t one[2] = {1, 1};
    int at = op == MOTH_OP(avg_pool2d) ? 1 : 2; /* kernel_size */
    const MothValue *a = c->args + at, dilation = moth_v_ints(one, 2);
    MOTH_TRY(moth_pool_windows(ndim, input, a[0], a[1], a[2], dilation, a[3].u.b, p));
    p->include_pad = a[4].u.b;
    if (a[5].tag == MOTH_V_INT) {
      if (a[5].u.i == 0)
        return moth_fail(MOTH_ERR_VALUE, "divisor_override must not be 0");
      p->divisor = a[5].u.i;
    }
    return MOTH_OK;
  }
  if (op == MOTH_OP(adaptive_avg_pool2d_backward)) {
    const MothTensor *g = c->args[0].u.t;
    return moth_pool_adaptive(ndim, input, moth_v_ints(g->shape + g->ndim - 2, 2), p);
  }
  return moth_pool_adaptive(ndim, input, c->args[1], p); /* adaptive: (self, output_size) */
}

static int pooled_shape(int ndim, const int64_t *input, const MothPool *p, int64_t shape[4]) {
  memcpy(shape, input, sizeof(int64_t) * (size_t)ndim);
  shape[ndim - 2] = p->oh;
  shape[ndim - 1] = p->ow;
  return ndim;
}

static MothStatus pool_forward(const MothCall *c, MothMeta *out, bool positions) {
  const MothTensor *self = c->args[0].u.t;
  MothPool p;
  int64_t shape[4];
  MOTH_TRY(moth_pool_geometry(c, self->ndim, self->shape, &p));
  MOTH_TRY(need_float(self));
  int n = pooled_shape(self->ndim, self->shape, &p, shape);
  MOTH_TRY(moth_meta_set(out, (MothDType)self->dtype, n, shape));
  return positions ? moth_meta_set(out + 1, MOTH_INT64, n, shape) : MOTH_OK;
}

MothStatus moth_shape_max_pool2d(const MothCall *c, MothMeta *out) {
  return pool_forward(c, out, true);
}
MothStatus moth_shape_adaptive_max_pool2d(const MothCall *c, MothMeta *out) {
  return pool_forward(c, out, true);
}
MothStatus moth_shape_avg_pool2d(const MothCall *c, MothMeta *out) {
  return pool_forward(c, out, false);
}
MothStatus moth_shape_adaptive_avg_pool2d(const MothCall *c, MothMeta *out) {
  return pool_forward(c, out, false);
}

/* (grad_output, …, input_size, …) -> a tensor of input_size */
static MothStatus pool_backward(const MothCall *c, MothMeta *out, MothValue size) {
  const MothTensor *g = c->args[0].u.t;
  MothPool p;
  int64_t shape[4];
  if (g->ndim < 2)
    return moth_fail(MOTH_ERR_VALUE, "grad_output must have 3 or 4 dimensions, got %d", g->ndim);
  MOTH_TRY(need_float(g));
  MOTH_TRY(moth_pool_geometry(c, (int)size.n, size.u.ints, &p));
  int n = pooled_shape((int)size.n, size.u.ints, &p, shape);
  MOTH_TRY(need_shape("grad_output", g, n, shape));
  return moth_meta_set(out, (MothDType)g->dtype, n, size.u.ints);
}

MothStatus moth_shape_max_pool2d_backward(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_MAX_POOL2D_BACKWARD(c)
  MOTH_TRY(need_shape("indices", indices, grad_output->ndim, grad_output->shape));
  return pool_backward(c, out, input_size);
}
MothStatus moth_shape_avg_pool2d_backward(const MothCall *c, MothMeta *out) {
  return pool_backward(c, out, c->args[1]);
}
MothStatus moth_shape_adaptive_avg_pool2d_backward(const MothCall *c, MothMeta *out) {
  return pool_backward(c, out, c->args[1]);
}
