/* conv2d and its derivatives: Note [Convolution by shifts] in conv.h. This file cuts them into strips of rows
 * that fit a core's cache, lays out planes and weights for the micro-kernels and gives strips to threads;
 * 1x1 kernels go to conv_product.c, patches that do not overlap to conv_patches.c. float16 and bfloat16 are
 * computed in float32. */
#include "kernels/cpu/conv.h"

#include <stdatomic.h>
#include <string.h>

#include "core/alloc.h"
#include "core/behind.h"
#include "core/kept.h"
#include "core/parallel.h"
#include "kernels/cpu/conv_columns.h"
#include "kernels/cpu/conv_patches.h"
#include "kernels/cpu/conv_product.h"
#include "kernels/cpu/conv_winograd.h"
#include "kernels/cpu/util.h"
#include "unpack/conv.h"

enum {
  FIRST_BYTES = 28 << 10,
  STRIP_BYTES = 384 << 10,
  DOTS_BYTES = 256 << 10,
  UNIT_LENGTH = 2048
};
static const int64_t PARTIAL_BYTES = 32 << 20;

static int64_t up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}
static int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/* --- axes ------------------------------------------------------------------------------------- */

typedef struct Axes {
  MothConvAxis y, x;
  int64_t *lists;
  size_t bytes;
} Axes;

/* The four arrays of an axis, n elements each: offset, tap, phase, shift. */
static void axis_lists(MothConvAxis *a, int64_t *lists, int64_t n) {
  a->offset = lists;
  a->tap = lists + n;
  a->phase = lists + 2 * n;
  a->shift = lists + 3 * n;
}

static MothStatus axes_open(const MothConv *g, Axes *a) {
  size_t n = (size_t)(g->kernel[0] + g->kernel[1]);
  memset(a, 0, sizeof *a);
  a->bytes = 4 * n * sizeof(int64_t);
  a->lists = moth_alloc(a->bytes);
  if (!a->lists)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: %zu bytes", a->bytes);
  axis_lists(&a->y, a->lists, g->kernel[0]);
  axis_lists(&a->x, a->lists + 4 * g->kernel[0], g->kernel[1]);
  return MOTH_OK;
}
static void axes_close(Axes *a) {
  if (a->lists)
    moth_free(a->lists, a->bytes);
}

/* Forward: result o reads kernel position t at pixel o * stride + t * dilation - padding. Positions whole
 * strides apart share a phase and are shifts of its plane; with `apart` each has a phase of its own, as wide
 * as the result. */
static void axis_forward(const MothConv *g, int i, bool apart, MothConvAxis *a) {
  a->count = i ? g->ow : g->oh;
  a->size = i ? g->w : g->h;
  a->stride = g->stride[i];
  a->to = 0;
  a->to_stride = 1;
  a->span = 1;
  a->nphases = 0;
  a->ntaps = (int)g->kernel[i];
  for (int64_t t = 0; t < g->kernel[i]; t++) {
    int64_t at = t * g->dilation[i], shift = apart ? 0 : at / a->stride;
    int64_t offset = at - shift * a->stride - g->padding[i];
    int p = 0;
    while (p < a->nphases && a->offset[p] != offset)
      p++;
    if (p == a->nphases)
      a->offset[a->nphases++] = offset;
    a->tap[t] = t;
    a->phase[t] = p;
    a->shift[t] = shift;
    a->span = moth_max64(a->span, a->shift[t] + 1);
  }
}

/* Derivative by the input, for its pixels phase + i * stride: kernel positions t for which phase + padding -
 * t * dilation is a multiple s of the stride read gradient i + s. */
static void axis_backward(const MothConv *g, int i, int64_t phase, MothConvAxis *a) {
  int64_t s = g->stride[i], size = i ? g->w : g->h, least = 0;
  a->count = ceil_div(size - phase, s);
  a->size = i ? g->ow : g->oh;
  a->stride = 1;
  a->to = phase;
  a->to_stride = s;
  a->span = 1;
  a->nphases = 1;
  a->ntaps = 0;
  for (int64_t t = 0; t < g->kernel[i]; t++) {
    int64_t at = phase + g->padding[i] - t * g->dilation[i];
    if (at % s != 0)
      continue;
    least = a->ntaps ? moth_min64(least, at / s) : at / s;
    a->tap[a->ntaps] = t;
    a->phase[a->ntaps] = 0;
    a->shift[a->ntaps++] = at / s;
  }
  a->offset[0] = least;
  for (int t = 0; t < a->ntaps; t++) {
    a->shift[t] -= least;
    a->span = moth_max64(a->span, a->shift[t] + 1);
  }
}

/* Memory layout of the planes of a strip of `rows` rows, in elements. */
typedef struct Layout {
  int64_t rows, pitch, length, plane, per_channel; /* planes of a channel */
} Layout;

/* The padding at the end of a row is that at the start of the next one, as far as that goes. */
static int64_t pitch_of(const MothConvAxis *x) {
  int64_t pitch = x->count;
  for (int p = 0; p < x->nphases; p++) {
    int64_t read = x->count, offset = x->offset[p];
    for (int t = 0; t < x->ntaps; t++)
      if (x->phase[t] == p)
        read = moth_max64(read, x->count + x->shift[t]);
    int64_t zeros = offset < 0 ? ceil_div(-offset, x->stride) : 0;
    int64_t end = offset < x->size ? ceil_div(x->size - offset, x->stride) : 0;
    pitch = moth_max64(pitch, moth_max64(moth_min64(read, end), read - zeros));
  }
  return pitch;
}

static Layout layout(const Axes *a, int64_t rows, int64_t lanes) {
  Layout l;
  l.rows = rows;
  l.pitch = pitch_of(&a->x);
  l.length = up((rows - 1) * l.pitch + a->x.count, lanes);
  int64_t read = (rows - 1) * l.pitch + up(a->x.count, lanes); /* row by row */
  int64_t last = moth_max64(l.length, read) + (a->y.span - 1) * l.pitch + a->x.span - 1;
  l.plane = up(moth_max64(last, (rows + a->y.span - 1) * l.pitch), 16);
  if (l.plane / 16 % 2 == 0) /* channels must not map to the same cache sets */
    l.plane += 16;
  l.per_channel = a->y.nphases * a->x.nphases;
  return l;
}

/* Rows per strip, at least one: as many as fit in `bytes`, in strips of about equal size. */
static int64_t rows_that_fit(const Axes *a, int64_t channels, int64_t itemsize, int64_t lanes,
                             int64_t bytes, int64_t least_strips) {
  int64_t n = moth_max64(1, moth_min64(least_strips, a->y.count));
  for (; n < a->y.count; n++) {
    Layout l = layout(a, ceil_div(a->y.count, n), lanes);
    if (l.plane * l.per_channel * channels * itemsize <= bytes)
      break;
    if (ceil_div(a->y.count, n) <= a->y.span) /* halos would cost more than the cache gains */
      break;
  }
  return ceil_div(a->y.count, n);
}

static int64_t taps(const Axes *a) {
  return (int64_t)a->y.ntaps * a->x.ntaps;
}

/* The offset of the shifted plane of channel c and kernel position (i, j). */
static int32_t place(const Axes *a, const Layout *l, int64_t c, int i, int j) {
  return (int32_t)((c * l->per_channel + a->y.phase[i] * a->x.nphases + a->x.phase[j]) * l->plane +
                   a->y.shift[i] * l->pitch + a->x.shift[j]);
}

/* at[c * taps + t]: of channel c and kernel position t */
static void fill_at(const Axes *a, const Layout *l, int64_t channels, int32_t *at) {
  for (int64_t c = 0; c < channels; c++)
    for (int i = 0; i < a->y.ntaps; i++)
      for (int j = 0; j < a->x.ntaps; j++)
        *at++ = place(a, l, c, i, j);
}

/* The same, row by row of the kernel. */
static void fill_at_rows(const Axes *a, const Layout *l, int64_t channels, int32_t *at) {
  for (int i = 0; i < a->y.ntaps; i++)
    for (int64_t c = 0; c < channels; c++)
      for (int j = 0; j < a->x.ntaps; j++)
        *at++ = place(a, l, c, i, j);
}

/* --- products of the weight with shifted planes ------------------------------------------------ */

/* A convolution (forward, or derivative by the input): in each group `from` channels of the source become `to`
 * channels of the result. */
typedef struct Gather {
  const MothKernels *k;
  const Axes *axes;
  Layout layout;
  const int32_t *at;
  const char *weight, *src, *bias; /* weight: packed, group by group */
  char *out;
  int64_t weight_group; /* bytes */
  int64_t itemsize, groups, from, to, strips;
  int64_t src_plane, out_plane, out_width; /* elements */
  const MothBehind *behind;
  _Atomic bool failed;
} Gather;

/* Whether some of the rows of results read beyond the source. */
static bool reads_padding(const MothConvAxis *y, int64_t row, int64_t rows) {
  for (int t = 0; t < y->ntaps; t++) {
    int64_t offset = y->offset[y->phase[t]] + y->shift[t] * y->stride;
    if (row * y->stride + offset < 0 || (row + rows - 1) * y->stride + offset >= y->size)
      return true;
  }
  return false;
}

static void gather_range(void *ctx, int64_t begin, int64_t end) {
  Gather *s = ctx;
  const Axes *a = s->axes;
  const Layout *l = &s->layout;
  size_t bytes = (size_t)(l->plane * l->per_channel * s->from * s->itemsize);
  char *planes = moth_alloc(bytes);
  if (!planes) {
    s->failed = true;
    return;
  }
  /* A piece of a plane takes up to four lines of the cache in each row. */
  int64_t deep = moth_max64(1, FIRST_BYTES / 256 / a->x.nphases) * a->x.ntaps;
  for (int64_t i = begin; i < end; i++) {
    int64_t strip = i % s->strips, image = i / s->strips, group = image % s->groups;
    int64_t row = strip * l->rows, rows = moth_min64(l->rows, a->y.count - row);
    MothConvPlanes p = {.y = &a->y,
                        .x = &a->x,
                        .src = s->src + image * s->from * s->src_plane * s->itemsize,
                        .channels = s->from,
                        .src_plane = s->src_plane,
                        .row = row,
                        .rows = rows,
                        .pitch = l->pitch,
                        .plane = l->plane,
                        .out = planes};
    s->k->conv_planes(&p);
    int64_t first = (a->y.to + row * a->y.to_stride) * s->out_width + a->x.to;
    MothConvStrip t = {.weight = s->weight + group * s->weight_group,
                       .bias = s->bias ? s->bias + group * s->to * s->itemsize : NULL,
                       .planes = planes,
                       .at = s->at,
                       .m = s->to,
                       .kk = s->from * taps(a),
                       .deep = deep,
                       .rows = rows,
                       .cols = a->x.count,
                       .pitch = l->pitch,
                       .y = reads_padding(&a->y, row, rows) ? &a->y : NULL,
                       .row = row,
                       .out = s->out + (image * s->to * s->out_plane + first) * s->itemsize,
                       .out_m = s->out_plane,
                       .out_row = a->y.to_stride * s->out_width,
                       .out_col = a->x.to_stride,
                       .behind = s->behind,
                       .first = image * s->to * s->out_plane + first};
    s->k->conv_strip(&t);
  }
  moth_free(planes, bytes);
}

/* Packs the weight of every group; strides in elements: m_stride of rows (result channels), c_stride of source
 * channels; the elements of a kernel are contiguous. where: workspace of from * taps. */
static void pack(const Gather *s, const Axes *a, const MothConv *g, const char *weight,
                 int64_t m_stride, int64_t c_stride, int64_t group_stride, int32_t *where,
                 char *out) {
  int32_t *w = where;
  for (int i = 0; i < a->y.ntaps; i++)
    for (int64_t c = 0; c < s->from; c++)
      for (int j = 0; j < a->x.ntaps; j++)
        *w++ = (int32_t)(c * c_stride + a->y.tap[i] * g->kernel[1] + a->x.tap[j]);
  for (int64_t i = 0; i < s->groups; i++) {
    MothConvPack p = {.weight = weight + i * group_stride * s->itemsize,
                      .row = m_stride,
                      .at = where,
                      .m = s->to,
                      .kk = s->from * taps(a),
                      .out = out + i * s->weight_group};
    s->k->conv_pack(&p);
  }
}

/* Computes the elements of a forward or input product that the axes cover. */
static MothStatus gather(const MothConvProduct *p, const Axes *a, MothDType dtype) {
  const MothConv *g = &p->g;
  bool backward = p->mode == MOTH_CONV_INPUT;
  int64_t in_channels = g->c / g->groups, out_channels = g->k / g->groups;
  int64_t area = g->kernel[0] * g->kernel[1];
  Gather s = {.k = moth_cpu_kernels((int)dtype),
              .axes = a,
              .src = p->b,
              .bias = p->bias,
              .behind = p->behind,
              .out = p->out,
              .itemsize = moth_dtype_size(dtype),
              .groups = g->groups,
              .from = backward ? out_channels : in_channels,
              .to = backward ? in_channels : out_channels,
              .src_plane = backward ? g->oh * g->ow : g->h * g->w,
              .out_plane = backward ? g->h * g->w : g->oh * g->ow,
              .out_width = backward ? g->w : g->ow};
  int64_t lanes = s.k->conv_lanes(), kk = s.from * taps(a), images = g->n * g->groups;
  int64_t rows = rows_that_fit(a, s.from, s.itemsize, lanes, STRIP_BYTES, ceil_div(8, images));
  s.layout = layout(a, rows, lanes);
  s.strips = ceil_div(a->y.count, rows);
  s.weight_group = up((s.to + 16) * kk * s.itemsize, 64);
  if (s.layout.plane * s.layout.per_channel * s.from > INT32_MAX ||
      g->k * in_channels * area > INT32_MAX)
    return moth_fail(MOTH_ERR_VALUE, "a row of the image and its channels are too large");
  size_t ints = (size_t)up(2 * kk * (int64_t)sizeof(int32_t), 64);
  size_t weights = (size_t)(s.weight_group * s.groups);
  bool packed;
  char *kept = moth_keep(p->a, backward, weights, &packed);
  size_t bytes = kept ? ints : ints + weights;
  char *work = moth_alloc(bytes);
  if (!work)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: %zu bytes of packed weight", bytes);
  int32_t *at = (int32_t *)work;
  fill_at_rows(a, &s.layout, s.from, at);
  s.at = at;
  char *to = kept ? kept : work + ints;
  s.weight = to;
  if (!packed)
    pack(&s, a, g, p->a, backward ? area : in_channels * area, backward ? in_channels * area : area,
         out_channels * in_channels * area, at + kk, to);
  double flops = 2.0 * (double)(rows * s.layout.pitch) * (double)(s.to * kk);
  moth_parallel_for(images * s.strips, moth_cpu_flops_grain(flops), gather_range, &s);
  moth_free(work, bytes);
  if (s.failed)
    return moth_no_memory(0);
  return MOTH_OK;
}

/* --- a kernel for each channel --------------------------------------------------------------------- */

typedef struct Depthwise {
  const MothKernels *k;
  const MothConvProduct *p;
  int64_t itemsize;
} Depthwise;

/* Channels that have as many elements as are worth a call of what comes behind. */
enum { AT_ONCE = 2048 };

static void depthwise_range(void *ctx, int64_t begin, int64_t end) {
  const Depthwise *d = ctx;
  const MothConv *g = &d->p->g;
  const MothBehind *behind = d->p->behind;
  int64_t plane = g->oh * g->ow, area = g->kernel[0] * g->kernel[1], each = g->k / g->groups;
  for (int64_t i = begin, done = begin; i < end; i++) {
    int64_t image = i / g->k, o = i % g->k;
    MothConvDepthwise c = {.g = g,
                           .src = (const char *)d->p->b +
                                  (image * g->c + o / each) * g->h * g->w * d->itemsize,
                           .weight = (const char *)d->p->a + o * area * d->itemsize,
                           .bias = d->p->bias ? (const char *)d->p->bias + o * d->itemsize : NULL,
                           .out = (char *)d->p->out + i * plane * d->itemsize};
    d->k->conv_depthwise(&c);
    if (behind && (i + 1 == end || (i + 1 - done) * plane >= AT_ONCE)) {
      behind->run(behind->ctx, done * plane, (i + 1) * plane);
      done = i + 1;
    }
  }
}

/* Whether each kernel has a channel of its own, or a channel not more than two kernels, and of a size that is there. */
static bool depthwise(const MothConvProduct *p, MothDType dtype) {
  const MothConv *g = &p->g;
  Depthwise d = {moth_cpu_kernels((int)dtype), p, moth_dtype_size(dtype)};
  MothConvDepthwise c = {.g = g};
  if (g->groups < 2 || g->c != g->groups || g->k > 2 * g->groups || !d.k->conv_suits_depthwise(&c))
    return false;
  double flops = 2.0 * (double)(g->oh * g->ow * g->kernel[0] * g->kernel[1]);
  moth_parallel_for(g->n * g->k, moth_cpu_flops_grain(flops), depthwise_range, &d);
  return true;
}

/* --- 1x1 kernels with a stride --------------------------------------------------------------------- */

typedef struct Thinned {
  const MothKernels *k;
  const MothConvProduct *p;
  char *to;
  int64_t itemsize;
} Thinned;

static void thinned_range(void *ctx, int64_t begin, int64_t end) {
  const Thinned *t = ctx;
  const MothConv *g = &t->p->g;
  const int32_t tap = 0;
  MothConvColumns c = {.g = g,
                       .taps = &tap,
                       .ntaps = 1,
                       .channels = end - begin,
                       .outer = 1,
                       .inner = 1,
                       .channel_stride = g->h * g->w,
                       .image = (char *)t->p->b + begin * g->h * g->w * t->itemsize,
                       .columns = t->to + begin * g->oh * g->ow * t->itemsize,
                       .row = g->oh * g->ow};
  t->k->conv_columns(&c);
}

/* The pixels that are read are copied side by side; with them it is a product, if that is worth it: *done. */
static MothStatus strided_product(const MothConvProduct *p, MothDType dtype, bool *done) {
  const MothConv *g = &p->g;
  MothConvProduct q = *p;
  q.g.h = g->oh;
  q.g.w = g->ow;
  q.g.stride[0] = q.g.stride[1] = 1;
  if ((g->stride[0] == 1 && g->stride[1] == 1) || !moth_conv_is_product(&q.g))
    return MOTH_OK;
  Thinned t = {moth_cpu_kernels((int)dtype), p, NULL, moth_dtype_size(dtype)};
  size_t bytes = (size_t)(g->n * g->c * g->oh * g->ow * t.itemsize);
  t.to = moth_alloc(bytes);
  if (!t.to)
    return moth_no_memory(bytes);
  moth_parallel_for(g->n * g->c, moth_cpu_grain(g->oh * g->ow), thinned_range, &t);
  q.b = t.to;
  moth_conv_product(&q, dtype);
  moth_free(t.to, bytes);
  *done = true;
  return MOTH_OK;
}

/* The compute dtype. */
static MothDType work_dtype(const MothTensor *t) {
  return t->dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
}

/* A tensor for results in the compute dtype: `out` itself (retained) or a new one, which finish copies to it. */
static MothStatus work_result(MothTensor *out, MothDType dtype, MothTensor **work) {
  if (out->dtype == dtype) {
    moth_tensor_retain(out);
    *work = out;
    return MOTH_OK;
  }
  return moth_tensor_new(out->ndim, out->shape, dtype, out->device, work);
}

static void finish(MothTensor *out, MothTensor *work) {
  if (work && work != out)
    moth_cpu_copy(out, work);
}

MothStatus moth_cpu_conv2d(MothCall *c) {
  MOTH_UNPACK_CONV2D(c)
  MothTensor *out = c->results[0].u.t, *x = NULL, *w = NULL, *b = NULL, *y = NULL;
  MothStatus status = MOTH_OK;
  MothDType dtype = work_dtype(out);
  MothConvProduct p = {.mode = MOTH_CONV_FORWARD};
  Axes axes = {0};
  moth_conv_geometry(input->ndim, input->shape, weight->shape, stride, padding, dilation, groups,
                     &p.g);
  if (!out->numel)
    return MOTH_OK;
  MOTH_GO(moth_cpu_contiguous_as(input, dtype, &x));
  MOTH_GO(moth_cpu_contiguous_as(weight, dtype, &w));
  if (bias)
    MOTH_GO(moth_cpu_contiguous_as(bias, dtype, &b));
  MOTH_GO(work_result(out, dtype, &y));
  p.a = w->data;
  p.b = x->data;
  p.bias = b ? b->data : NULL;
  p.out = y->data;
  p.behind = y == out ? moth_behind_take() : NULL;
  bool there = depthwise(&p, dtype);
  if (!there)
    MOTH_GO(moth_conv_by_winograd(&p, dtype, &there));
  if (!there)
    MOTH_GO(strided_product(&p, dtype, &there));
  if (there) {
    finish(out, y);
    goto done;
  }
  if (moth_conv_is_product(&p.g)) {
    moth_conv_product(&p, dtype);
  } else if (moth_conv_suits_patches(&p.g)) {
    MOTH_GO(moth_conv_by_patches(&p, dtype));
  } else if (moth_conv_suits_columns(&p)) {
    MOTH_GO(moth_conv_by_columns(&p, dtype));
  } else {
    MOTH_GO(axes_open(&p.g, &axes));
    axis_forward(&p.g, 0, false, &axes.y);
    axis_forward(&p.g, 1, false, &axes.x);
    MOTH_GO(gather(&p, &axes, dtype));
  }
  finish(out, y);
done:
  axes_close(&axes);
  moth_tensor_release(x);
  moth_tensor_release(w);
  moth_tensor_release(b);
  moth_tensor_release(y);
  return status;
}

/* Whether every phase of pixels along dimension i is read by a kernel position; if not, its gradient is 0. */
static bool all_phases(const MothConv *g, int i) {
  int64_t s = g->stride[i], size = i ? g->w : g->h;
  for (int64_t p = 0; p < moth_min64(s, size); p++) {
    bool read = false;
    for (int64_t t = 0; t < g->kernel[i] && !read; t++)
      read = (p + g->padding[i] - t * g->dilation[i]) % s == 0;
    if (!read)
      return false;
  }
  return true;
}

MothStatus moth_cpu_conv2d_backward_input(MothCall *c) {
  MOTH_UNPACK_CONV2D_BACKWARD_INPUT(c)
  MothTensor *out = c->results[0].u.t, *gy = NULL, *w = NULL, *gx = NULL;
  MothStatus status = MOTH_OK;
  MothDType dtype = work_dtype(out);
  MothConvProduct p = {.mode = MOTH_CONV_INPUT};
  const MothConv *g = &p.g;
  Axes axes = {0};
  moth_conv_geometry((int)input_size.n, input_size.u.ints, weight->shape, stride, padding, dilation,
                     groups, &p.g);
  if (!out->numel)
    return MOTH_OK;
  MOTH_GO(moth_cpu_contiguous_as(grad_output, dtype, &gy));
  MOTH_GO(moth_cpu_contiguous_as(weight, dtype, &w));
  MOTH_GO(work_result(out, dtype, &gx));
  p.a = w->data;
  p.b = gy->data;
  p.out = gx->data;
  if (moth_conv_is_product(g)) {
    moth_conv_product(&p, dtype);
    finish(out, gx);
    goto done;
  }
  if (moth_conv_suits_patches(g) || moth_conv_suits_columns(&p)) {
    MOTH_GO(moth_conv_suits_patches(g) ? moth_conv_by_patches(&p, dtype)
                                       : moth_conv_by_columns(&p, dtype));
    finish(out, gx);
    goto done;
  }
  MOTH_GO(axes_open(g, &axes));
  if (!all_phases(g, 0) || !all_phases(g, 1))
    memset(gx->data, 0, (size_t)(gx->numel * moth_itemsize(gx)));
  for (int64_t py = 0; py < moth_min64(g->stride[0], g->h); py++) {
    axis_backward(g, 0, py, &axes.y);
    for (int64_t px = 0; px < moth_min64(g->stride[1], g->w) && axes.y.ntaps; px++) {
      axis_backward(g, 1, px, &axes.x);
      if (axes.x.ntaps)
        MOTH_GO(gather(&p, &axes, dtype));
    }
  }
  finish(out, gx);
done:
  axes_close(&axes);
  moth_tensor_release(gy);
  moth_tensor_release(w);
  moth_tensor_release(gx);
  return status;
}

/* --- the derivative by the weight --------------------------------------------------------------- */

/* A unit is a strip of one image. The gradient is laid out once, unit by unit. A task is (chunk of units, group,
 * block of channels); each chunk has a partial result, and these are added in order. */
typedef struct Dots {
  const MothKernels *k;
  const Axes *axes;
  Axes grad; /* for laying out the gradient: one phase, no shift */
  Layout layout;
  const int32_t *at;
  const char *x, *gy;
  char *laid_out;                  /* `rows`, unless the gradient has their layout itself */
  const char *rows;                /* the gradient: [units][k][row] */
  char *partial;                   /* [chunks][k][kk] */
  int64_t itemsize, groups, all_m; /* all_m: k */
  int64_t m, channels, kk;         /* of a group */
  int64_t strips, units, chunks;
  int64_t few, block, blocks, m_block; /* at a time: units, channels (in `blocks` blocks), rows */
  int64_t x_plane, y_plane, row;
  _Atomic bool failed;
} Dots;

static int64_t unit_rows(const Dots *d, int64_t unit, int64_t *row) {
  *row = unit % d->strips * d->layout.rows;
  return moth_min64(d->layout.rows, d->axes->y.count - *row);
}

static void rows_range(void *ctx, int64_t begin, int64_t end) {
  const Dots *d = ctx;
  for (int64_t u = begin; u < end; u++) {
    int64_t row, rows = unit_rows(d, u, &row);
    MothConvPlanes p = {.y = &d->grad.y,
                        .x = &d->grad.x,
                        .src = d->gy + u / d->strips * d->all_m * d->y_plane * d->itemsize,
                        .channels = d->all_m,
                        .src_plane = d->y_plane,
                        .row = row,
                        .rows = rows,
                        .pitch = d->layout.pitch,
                        .plane = d->row,
                        .out = d->laid_out + u * d->all_m * d->row * d->itemsize};
    d->k->conv_planes(&p);
  }
}

static void dots_task(const Dots *d, int64_t chunk, int64_t group, int64_t block, char *planes) {
  const Axes *a = d->axes;
  const Layout *l = &d->layout;
  int64_t c0 = block * d->block, channels = moth_min64(d->block, d->channels - c0);
  int64_t begin = d->units * chunk / d->chunks, end = d->units * (chunk + 1) / d->chunks;
  int64_t plane_unit = l->plane * l->per_channel * channels;
  char *out = d->partial + chunk * d->all_m * d->kk * d->itemsize;
  out += (group * d->m * d->kk + c0 * taps(a)) * d->itemsize;
  for (int64_t u0 = begin; u0 < end; u0 += d->few) {
    int64_t n = moth_min64(d->few, end - u0);
    for (int64_t u = 0; u < n; u++) {
      int64_t row, rows = unit_rows(d, u0 + u, &row);
      int64_t from = ((u0 + u) / d->strips * d->groups + group) * d->channels + c0;
      MothConvPlanes p = {.y = &a->y,
                          .x = &a->x,
                          .src = d->x + from * d->x_plane * d->itemsize,
                          .channels = channels,
                          .src_plane = d->x_plane,
                          .row = row,
                          .rows = rows,
                          .pitch = l->pitch,
                          .plane = l->plane,
                          .out = planes + u * plane_unit * d->itemsize};
      d->k->conv_planes(&p);
    }
    for (int64_t m = 0; m < d->m; m += d->m_block) {
      int64_t first = u0 * d->all_m + group * d->m + m;
      MothConvDots dots = {.a = d->rows + first * d->row * d->itemsize,
                           .b = planes,
                           .a_unit = d->all_m * d->row,
                           .a_row = d->row,
                           .b_unit = plane_unit,
                           .at = d->at,
                           .units = n,
                           .m = moth_min64(d->m_block, d->m - m),
                           .kk = channels * taps(a),
                           .length = l->length,
                           .out = out + m * d->kk * d->itemsize,
                           .out_row = d->kk};
      d->k->conv_dots(&dots);
    }
  }
}

static void dots_range(void *ctx, int64_t begin, int64_t end) {
  Dots *d = ctx;
  const Layout *l = &d->layout;
  size_t bytes = (size_t)(d->few * l->plane * l->per_channel * d->block * d->itemsize);
  char *planes = moth_alloc(bytes);
  if (!planes) {
    d->failed = true;
    return;
  }
  for (int64_t i = begin; i < end; i++)
    dots_task(d, i / d->blocks / d->groups, i / d->blocks % d->groups, i % d->blocks, planes);
  moth_free(planes, bytes);
}

static MothStatus dots(const MothConvProduct *p, const Axes *a, MothDType dtype) {
  const MothConv *g = &p->g;
  int64_t identity[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  Dots d = {.k = moth_cpu_kernels((int)dtype),
            .axes = a,
            .x = p->b,
            .gy = p->a,
            .itemsize = moth_dtype_size(dtype),
            .groups = g->groups,
            .all_m = g->k,
            .m = g->k / g->groups,
            .channels = g->c / g->groups,
            .x_plane = g->h * g->w,
            .y_plane = g->oh * g->ow};
  enum { LANES = 16 }; /* the most lanes of any instruction set, so that all cut alike */
  d.kk = d.channels * taps(a);
  for (int i = 0; i < 2; i++) {
    MothConvAxis *t = i ? &d.grad.x : &d.grad.y;
    int64_t n = i ? g->ow : g->oh;
    *t =
        (MothConvAxis){.count = n, .size = n, .stride = 1, .span = 1, .to_stride = 1, .nphases = 1};
    axis_lists(t, identity + 4 * i, 1);
  }
  /* Units of some 1000 to 2000 elements, so that joining the lanes at their end costs little. */
  int64_t pitch = layout(a, 1, LANES).pitch;
  int64_t rows = ceil_div(a->y.count, ceil_div(a->y.count * pitch, UNIT_LENGTH));
  d.layout = layout(a, rows, LANES);
  d.row = up(moth_max64(d.layout.length, rows * pitch), LANES);
  d.strips = ceil_div(a->y.count, rows);
  d.units = g->n * d.strips;
  d.few = moth_min64(d.units, ceil_div(UNIT_LENGTH / 2, d.layout.length));
  int64_t plane = d.layout.plane * d.layout.per_channel * d.itemsize * d.few;
  d.block = moth_max64(1, moth_min64(d.channels, DOTS_BYTES / plane));
  d.blocks = ceil_div(d.channels, d.block);
  d.m_block = moth_max64(16, DOTS_BYTES / (d.few * d.row * d.itemsize) / 16 * 16);
  int64_t size = g->k * d.kk * d.itemsize, tasks = d.blocks * d.groups;
  d.chunks = moth_min64(ceil_div(16, tasks), PARTIAL_BYTES / moth_max64(size, 1));
  d.chunks = moth_max64(1, moth_min64(d.chunks, ceil_div(d.units, d.few)));
  if (plane / d.itemsize > INT32_MAX)
    return moth_fail(MOTH_ERR_VALUE, "an image is too large");
  /* Use the gradient itself if it already has the layout. */
  bool direct = d.strips == 1 && pitch == g->ow && d.row == d.y_plane;
  size_t ints = (size_t)up(d.block * taps(a) * (int64_t)sizeof(int32_t), 64);
  size_t laid_out = direct ? 0 : (size_t)up(d.units * d.all_m * d.row * d.itemsize, 64);
  size_t bytes = ints + laid_out + (d.chunks > 1 ? (size_t)(d.chunks * size) : 0);
  char *work = moth_alloc(bytes);
  if (!work)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: %zu bytes of partial sums", bytes);
  fill_at(a, &d.layout, d.block, (int32_t *)work);
  d.at = (const int32_t *)work;
  d.rows = direct ? d.gy : work + ints;
  d.partial = d.chunks > 1 ? work + ints + laid_out : p->out;
  d.laid_out = work + ints;
  if (!direct)
    moth_parallel_for(d.units, moth_cpu_grain(d.all_m * d.row), rows_range, &d);
  memset(d.partial, 0, (size_t)(d.chunks * size));
  double flops = 2.0 * (double)(g->n * d.y_plane) * (double)(g->k * d.kk);
  moth_parallel_for(tasks * d.chunks, moth_cpu_flops_grain(flops / (double)(tasks * d.chunks)),
                    dots_range, &d);
  if (d.chunks > 1)
    moth_conv_join(d.partial, d.chunks, p->out, g->k * d.kk, dtype);
  moth_free(work, bytes);
  if (d.failed)
    return moth_no_memory(0);
  return MOTH_OK;
}

MothStatus moth_cpu_conv2d_backward_weight(MothCall *c) {
  MOTH_UNPACK_CONV2D_BACKWARD_WEIGHT(c)
  MothTensor *out = c->results[0].u.t, *gy = NULL, *x = NULL, *gw = NULL;
  MothStatus status = MOTH_OK;
  MothDType dtype = work_dtype(out);
  MothConvProduct p = {.mode = MOTH_CONV_WEIGHT};
  const MothConv *g = &p.g;
  Axes axes = {0};
  moth_conv_geometry(input->ndim, input->shape, weight_size.u.ints, stride, padding, dilation,
                     groups, &p.g);
  if (!grad_output->numel) {
    memset(out->data, 0, (size_t)(out->numel * moth_itemsize(out)));
    return MOTH_OK;
  }
  MOTH_GO(moth_cpu_contiguous_as(grad_output, dtype, &gy));
  MOTH_GO(moth_cpu_contiguous_as(input, dtype, &x));
  MOTH_GO(work_result(out, dtype, &gw));
  p.a = gy->data;
  p.b = x->data;
  p.out = gw->data;
  if (moth_conv_is_product(g)) {
    MOTH_GO(moth_conv_product_weight(&p, dtype));
  } else if (moth_conv_suits_patches(g)) {
    MOTH_GO(moth_conv_by_patches(&p, dtype));
  } else if (moth_conv_suits_columns(&p)) {
    MOTH_GO(moth_conv_by_columns(&p, dtype));
  } else {
    MOTH_GO(axes_open(g, &axes));
    /* If planes stay few with one for each kernel position: the gradient then needs no layout. */
    bool apart = g->c * g->kernel[0] * g->kernel[1] <= g->k;
    axis_forward(g, 0, apart, &axes.y);
    axis_forward(g, 1, apart, &axes.x);
    MOTH_GO(dots(&p, &axes, dtype));
  }
  finish(out, gw);
done:
  axes_close(&axes);
  moth_tensor_release(gy);
  moth_tensor_release(x);
  moth_tensor_release(gw);
  return status;
}
