/* linear_int8, linear_int8_dynamic, conv2d_int8 and pack_int8: activations are made bytes in a workspace, products are
 * cut into tiles for threads, sums become results. Note [Packed int8 weights] in int8.h. */
#include "kernels/cpu/int8.h"

#include <string.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "dispatch/eval.h"
#include "kernels/cpu/util.h"
#include "unpack/quantization.h"

enum {
  ROWS = MOTH_INT8_ROWS,
  COLUMNS = MOTH_INT8_COLUMNS,
  CHUNK = 16 * ROWS,
  STRIP = 8 * ROWS,
  PART = 256
};
static const int64_t IMAGES_BYTES = 4 << 20;

/* --- packing ------------------------------------------------------------------------------------ */

/* A weight as (groups, columns, kh, kw, channels); a segment is a row of the window, or, `apart`, one position. */
typedef struct Shape {
  int64_t groups, n, channels, kernel[2], segments, length;
} Shape;

static Shape shape_of(const MothTensor *weight, int64_t groups, bool apart) {
  bool conv = weight->ndim == 4;
  Shape s = {.groups = groups,
             .n = weight->shape[0] / groups,
             .channels = weight->shape[1],
             .kernel = {conv ? weight->shape[2] : 1, conv ? weight->shape[3] : 1}};
  s.segments = s.kernel[0] * (apart ? s.kernel[1] : 1);
  s.length = moth_int8_length(s.channels * (apart ? 1 : s.kernel[1]));
  return s;
}
static int64_t group_bytes(const Shape *s) {
  return moth_int8_columns(s->n) * s->segments * s->length;
}
static int64_t packed_bytes(const Shape *s) {
  return s->groups * (moth_int8_columns(s->n) * 4 + group_bytes(s));
}

typedef struct Pack {
  Shape s;
  const int8_t *from;
  int32_t *sums;
  int8_t *to;
} Pack;

/* Columns [begin, end) of all groups. */
static void pack_range(void *ctx, int64_t begin, int64_t end) {
  const Pack *p = ctx;
  const Shape *s = &p->s;
  int64_t columns = moth_int8_columns(s->n), window = s->kernel[0] * s->kernel[1];
  for (int64_t i = begin; i < end; i++) {
    int64_t g = i / columns, j = i % columns, panel = j / COLUMNS;
    int64_t left = columns - panel * COLUMNS, width = left < COLUMNS ? left : COLUMNS;
    int8_t *to =
        p->to + g * group_bytes(s) + panel * COLUMNS * s->segments * s->length + 4 * (j % COLUMNS);
    const int8_t *from = p->from + (g * s->n + j) * s->channels * window;
    int64_t in_segment = window / s->segments * s->channels;
    int32_t sum = 0;
    for (int64_t part = 0; part < s->segments; part++)
      for (int64_t k = 0; k < s->length; k++) {
        int64_t at = part * (window / s->segments) + k / s->channels;
        int8_t x = j < s->n && k < in_segment ? from[k % s->channels * window + at] : 0;
        int64_t all = part * s->length + k;
        to[all / 4 * 4 * width + all % 4] = x;
        sum += x;
      }
    p->sums[i] = sum;
  }
}

static void pack(const Shape *s, const MothTensor *weight, void *to) {
  Pack p = {.s = *s, .from = (const int8_t *)weight->data, .sums = to};
  p.to = (int8_t *)to + s->groups * moth_int8_columns(s->n) * 4;
  moth_parallel_for(s->groups * moth_int8_columns(s->n), moth_cpu_grain(s->segments * s->length),
                    pack_range, &p);
}

MothStatus moth_cpu_pack_int8(MothCall *c) {
  MOTH_UNPACK_PACK_INT8(c)
  MothTensor *own;
  if (c->device.type != MOTH_CPU)
    return moth_call_on_cpu(c);
  Shape s = shape_of(weight, groups, apart);
  MOTH_TRY(moth_cpu_contiguous(weight, &own));
  if (c->results[0].u.t->numel)
    pack(&s, own, c->results[0].u.t->data);
  moth_tensor_release(own);
  return MOTH_OK;
}

/* --- what linear and conv2d share --------------------------------------------------------------- */

enum { INPUT, WEIGHT, SCALE, BIAS, PACKED, OUT, TENSORS };
typedef struct Job {
  MothTensor *t[TENSORS]; /* owned: row-major, of the right dtype; some NULL */
  const MothKernels *k;
  Shape s;
  int64_t *at;
  void *work;
  size_t bytes;
  bool is_byte; /* the input is uint8 */
  double inverse;
  int64_t real;
  MothInt8Quantize q;
  MothInt8Finish finish;
  double row_scale; /* of all rows; as real */
  int32_t row_zero;
  /* linear */
  const uint8_t *rows;
  int64_t m, row_bytes, chunks;
  /* conv2d */
  int64_t c, h, w, oh, ow, padded[2], image_bytes, first, strips;
  int64_t stride[2], padding[2];
  uint8_t *images;
} Job;

static void close_job(Job *j) {
  for (int i = 0; i < TENSORS; i++)
    if (j->t[i])
      moth_tensor_release(j->t[i]);
  if (j->work)
    moth_free(j->work, j->bytes);
}

/* Tensors row-major in the dtype that is computed in; weights packed. */
static MothStatus open_job(Job *j, MothCall *c, const MothTensor *packed) {
  MothTensor *out = c->results[0].u.t;
  MothDType dtype = moth_working_dtype(out);
  j->real = moth_dtype_size(dtype);
  j->k = moth_cpu_kernels((int)dtype);
  j->is_byte = c->args[0].u.t->dtype == MOTH_UINT8;
  MOTH_TRY(j->is_byte ? moth_cpu_contiguous(c->args[0].u.t, &j->t[INPUT])
                      : moth_cpu_contiguous_as(c->args[0].u.t, dtype, &j->t[INPUT]));
  MOTH_TRY(moth_cpu_contiguous_as(c->args[2].u.t, dtype, &j->t[SCALE]));
  if (c->args[3].tag == MOTH_V_TENSOR)
    MOTH_TRY(moth_cpu_contiguous_as(c->args[3].u.t, dtype, &j->t[BIAS]));
  int64_t bytes = packed_bytes(&j->s);
  if (packed) {
    if (packed->numel != bytes)
      return moth_fail(MOTH_ERR_VALUE, "packed has %lld bytes, pack_int8 of this weight gives %lld",
                       (long long)packed->numel, (long long)bytes);
    MOTH_TRY(moth_cpu_contiguous(packed, &j->t[PACKED]));
  } else {
    MOTH_TRY(moth_cpu_contiguous(c->args[1].u.t, &j->t[WEIGHT]));
    MOTH_TRY(moth_tensor_new(1, &bytes, MOTH_UINT8, c->device, &j->t[PACKED]));
    if (bytes)
      pack(&j->s, j->t[WEIGHT], j->t[PACKED]->data);
  }
  if ((int)out->dtype == (int)dtype) {
    moth_tensor_retain(out);
    j->t[OUT] = out;
    return MOTH_OK;
  }
  return moth_tensor_new(out->ndim, out->shape, dtype, c->device, &j->t[OUT]);
}

static MothStatus take_work(Job *j, int64_t bytes) {
  j->bytes = (size_t)bytes;
  j->work = moth_alloc(j->bytes);
  return j->work ? MOTH_OK
                 : moth_fail(MOTH_ERR_MEMORY, "out of memory: %lld bytes of workspace",
                             (long long)bytes);
}

static MothStatus end_job(Job *j, MothCall *c, MothStatus s) {
  if (s == MOTH_OK && j->t[OUT] != c->results[0].u.t)
    moth_cpu_copy(c->results[0].u.t, j->t[OUT]);
  close_job(j);
  return s;
}

static void static_scale(Job *j, double scale, int64_t zero, bool relu) {
  j->inverse = 1 / scale;
  if (j->real == 8)
    j->row_scale = scale;
  else
    memcpy(&j->row_scale, &(float){(float)scale}, sizeof(float));
  j->row_zero = (int32_t)zero;
  j->finish = (MothInt8Finish){.row_scale = &j->row_scale, .row_zero = &j->row_zero, .relu = relu};
}

static MothInt8Weight weight_of(const Job *j, int64_t group) {
  int64_t columns = moth_int8_columns(j->s.n);
  const char *packed = j->t[PACKED]->data;
  return (MothInt8Weight){.n = j->s.n,
                          .segments = j->s.segments,
                          .length = j->s.length,
                          .at = j->at,
                          .sums = (const int32_t *)(const void *)packed + group * columns,
                          .panels = (const int8_t *)packed + j->s.groups * columns * 4 +
                                    group * group_bytes(&j->s)};
}

/* f for columns from `first` on of channels that begin at `base`. */
static void set_columns(const Job *j, const MothInt8Weight *w, int64_t base, int64_t first,
                        MothInt8Finish *f) {
  int64_t left = w->n - first;
  f->columns = left < COLUMNS ? left : COLUMNS;
  f->of_columns = w->sums + first;
  f->scale = (const char *)j->t[SCALE]->data + (base + first) * j->real;
  f->bias = j->t[BIAS] ? (const char *)j->t[BIAS]->data + (base + first) * j->real : NULL;
}

/* --- linear -------------------------------------------------------------------------------------- */

static void quantize_range(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  MothInt8Quantize q = j->q;
  q.rows = end - begin;
  q.in = (const char *)q.in + begin * q.in_row * j->real;
  q.out += begin * q.out_row;
  if (q.dynamic) {
    q.scales = (char *)q.scales + begin * j->real;
    q.zeros += begin;
  }
  j->k->int8_quantize(&q);
}

static void linear_range(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  MothInt8Weight w = weight_of(j, 0);
  for (int64_t i = begin; i < end; i++) {
    int64_t panel = i / j->chunks, first = i % j->chunks * CHUNK;
    int64_t last = moth_min64(first + CHUNK, j->m);
    MothInt8Finish f = j->finish;
    set_columns(j, &w, 0, panel * COLUMNS, &f);
    for (int64_t r = first; r < last; r += ROWS) {
      int32_t sums[ROWS * COLUMNS];
      const uint8_t *rows[ROWS];
      f.rows = moth_min64(ROWS, last - r);
      for (int64_t k = 0; k < f.rows; k++)
        rows[k] = j->rows + (r + k) * j->row_bytes;
      moth_int8_tile(&w, panel, rows, (int)f.rows, sums);
      f.sums = sums;
      f.row_scale = (const char *)j->finish.row_scale + r * f.row_step * j->real;
      f.row_zero = j->finish.row_zero + r * f.row_step;
      f.out = (char *)j->t[OUT]->data + (r * w.n + panel * COLUMNS) * j->real;
      j->k->int8_finish(&f);
    }
  }
}

static MothStatus linear_run(Job *j, bool dynamic) {
  const MothTensor *x = j->t[INPUT];
  int64_t k = j->s.channels, m = j->t[OUT]->numel / j->s.n, at = 0;
  j->m = m;
  j->at = &at;
  j->row_bytes = j->s.length;
  if (j->is_byte && k == j->row_bytes) {
    j->rows = (const uint8_t *)x->data;
  } else {
    MOTH_TRY(take_work(j, m * (j->row_bytes + (dynamic ? j->real + 4 : 0)) + 64));
    /* Scales first: they are aligned. */
    char *zeros = (char *)j->work + (dynamic ? m * j->real : 0);
    uint8_t *bytes = (uint8_t *)zeros + (dynamic ? m * 4 : 0);
    j->rows = bytes;
    j->q = (MothInt8Quantize){.in = x->data,
                              .n = k,
                              .in_row = k,
                              .out = bytes,
                              .out_row = j->row_bytes,
                              .dynamic = dynamic,
                              .inverse = j->inverse,
                              .zero = j->row_zero,
                              .scales = j->work,
                              .zeros = (int32_t *)(void *)zeros};
    if (dynamic)
      j->finish = (MothInt8Finish){
          .row_scale = j->q.scales, .row_zero = j->q.zeros, .row_step = 1, .relu = j->finish.relu};
    if (j->is_byte) {
      for (int64_t r = 0; r < m; r++) {
        memcpy(bytes + r * j->row_bytes, (const uint8_t *)x->data + r * k, (size_t)k);
        memset(bytes + r * j->row_bytes + k, 0, (size_t)(j->row_bytes - k));
      }
    } else {
      moth_parallel_for(m, moth_cpu_grain(2 * k), quantize_range, j);
    }
  }
  j->chunks = (m + CHUNK - 1) / CHUNK;
  j->finish.out_row = j->s.n;
  j->finish.out_column = 1;
  double flops = 0.5 * (double)moth_min64(m, CHUNK) * COLUMNS * (double)j->row_bytes;
  moth_parallel_for((j->s.n + COLUMNS - 1) / COLUMNS * j->chunks, moth_cpu_flops_grain(flops),
                    linear_range, j);
  return MOTH_OK;
}

MothStatus moth_cpu_linear_int8(MothCall *c) {
  MOTH_UNPACK_LINEAR_INT8(c)
  if (c->results[0].u.t->numel == 0)
    return MOTH_OK;
  Job j = {.s = shape_of(weight, 1, false)};
  MothStatus s = open_job(&j, c, packed);
  static_scale(&j, input_scale, input_zero_point, relu);
  return end_job(&j, c, s == MOTH_OK ? linear_run(&j, false) : s);
}

MothStatus moth_cpu_linear_int8_dynamic(MothCall *c) {
  MOTH_UNPACK_LINEAR_INT8_DYNAMIC(c)
  if (c->results[0].u.t->numel == 0)
    return MOTH_OK;
  Job j = {.s = shape_of(weight, 1, false), .finish = {.relu = relu}};
  MothStatus s = open_job(&j, c, packed);
  return end_job(&j, c, s == MOTH_OK ? linear_run(&j, true) : s);
}

/* --- conv2d -------------------------------------------------------------------------------------- */

static uint8_t *image_at(const Job *j, int64_t image, int64_t group, int64_t y) {
  return j->images + (image * j->s.groups + group) * j->image_bytes +
         y * j->padded[1] * j->s.channels;
}

/* Rows of the padded images of a group as bytes, channels last. */
static void pixels_range(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  int64_t n = j->s.channels, wide = j->padded[1];
  for (int64_t i = begin; i < end; i++) {
    int64_t unit = i / j->padded[0], y = i % j->padded[0], from = y - j->padding[0];
    int64_t image = unit / j->s.groups, group = unit % j->s.groups;
    uint8_t *out = image_at(j, image, group, y);
    uint8_t lines[4 * PART];
    memset(out, j->row_zero, (size_t)(wide * n));
    if (y == j->padded[0] - 1)
      memset(out + wide * n, 0, 8); /* read by the last segment, times 0 */
    if (from < 0 || from >= j->h)
      continue;
    out += j->padding[1] * n;
    int64_t at = (((j->first + image) * j->c + group * n) * j->h + from) * j->w;
    if (j->is_byte) {
      const uint8_t *in = (const uint8_t *)j->t[INPUT]->data + at;
      for (int64_t c = 0; c < n; c++)
        for (int64_t x = 0; x < j->w; x++)
          out[x * n + c] = in[c * j->h * j->w + x];
      continue;
    }
    for (int64_t x = 0; x < j->w; x += PART) {
      MothInt8Pixels p = {.in = (const char *)j->t[INPUT]->data + (at + x) * j->real,
                          .channels = n,
                          .width = moth_min64(PART, j->w - x),
                          .channel_stride = j->h * j->w,
                          .out = out + x * n,
                          .line = lines,
                          .inverse = j->inverse,
                          .zero = j->row_zero};
      j->k->int8_pixels(&p);
    }
  }
}

/* Strips of STRIP pixels of the results, all channels of a group. */
static void strips_range(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  int64_t pixels = j->oh * j->ow, n = j->s.channels;
  for (int64_t i = begin; i < end; i++) {
    int64_t unit = i / j->strips, first = i % j->strips * STRIP;
    int64_t image = unit / j->s.groups, group = unit % j->s.groups;
    MothInt8Weight w = weight_of(j, group);
    const uint8_t *rows[STRIP];
    MothInt8Finish f = j->finish;
    f.rows = moth_min64(STRIP, pixels - first);
    for (int64_t r = 0; r < f.rows; r++) {
      int64_t y = (first + r) / j->ow * j->stride[0], x = (first + r) % j->ow * j->stride[1];
      rows[r] = image_at(j, image, group, y) + x * n;
    }
    for (int64_t from = 0; from < w.n; from += COLUMNS) {
      int32_t sums[STRIP * COLUMNS];
      for (int64_t r = 0; r < f.rows; r += ROWS)
        moth_int8_tile(&w, from / COLUMNS, rows + r, (int)moth_min64(ROWS, f.rows - r),
                       sums + r * COLUMNS);
      set_columns(j, &w, group * w.n, from, &f);
      f.sums = sums;
      int64_t channel = ((j->first + image) * j->s.groups + group) * w.n + from;
      f.out = (char *)j->t[OUT]->data + (channel * pixels + first) * j->real;
      j->k->int8_finish(&f);
    }
  }
}

static bool is_depthwise(const Job *j) {
  const Shape *s = &j->s;
  return s->n == 1 && s->channels == 1 && s->kernel[0] * s->kernel[1] <= MOTH_INT8_TAPS &&
         j->stride[1] <= 2;
}

/* Rows of the results of depthwise convolutions: packed weights would be fifteen sixteenths padding. */
static void depthwise_range(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  const Shape *s = &j->s;
  int64_t width = s->kernel[1] / (s->segments / s->kernel[0]); /* taps of a segment */
  for (int64_t i = begin; i < end; i++) {
    int64_t unit = i / j->oh, y = i % j->oh, group = unit % s->groups;
    int64_t image = unit / s->groups, at[MOTH_INT8_TAPS];
    int32_t weight[MOTH_INT8_TAPS];
    MothInt8Weight w = weight_of(j, group);
    MothInt8Depthwise d = {.in = image_at(j, image, group, y * j->stride[0]),
                           .n = j->ow,
                           .stride = j->stride[1],
                           .taps = s->kernel[0] * s->kernel[1],
                           .weight = weight,
                           .at = at,
                           .less = j->row_zero * w.sums[0],
                           .scale = (const char *)j->t[SCALE]->data + group * j->real,
                           .row_scale = &j->row_scale,
                           .relu = j->finish.relu};
    if (j->t[BIAS])
      d.bias = (const char *)j->t[BIAS]->data + group * j->real;
    for (int64_t t = 0; t < d.taps; t++) {
      int64_t segment = t / width, k = t % width;
      at[t] = w.at[segment] + k;
      weight[t] = w.panels[(segment * w.length + k / 4 * 4) * 16 + k % 4];
    }
    int64_t row = ((j->first + image) * s->groups + group) * j->oh + y;
    d.out = (char *)j->t[OUT]->data + row * j->ow * j->real;
    j->k->int8_depthwise(&d);
  }
}

static MothStatus conv_run(Job *j, const int64_t *dilation, bool apart) {
  const MothTensor *x = j->t[INPUT], *out = j->t[OUT];
  int last = x->ndim - 1;
  int64_t images = x->ndim == 4 ? x->shape[0] : 1, at[256], *far = NULL;
  j->c = x->shape[last - 2];
  j->h = x->shape[last - 1];
  j->w = x->shape[last];
  j->oh = out->shape[last - 1];
  j->ow = out->shape[last];
  j->padded[0] = j->h + 2 * j->padding[0];
  j->padded[1] = j->w + 2 * j->padding[1];
  j->image_bytes = j->padded[0] * j->padded[1] * j->s.channels + 8;
  size_t size = (size_t)j->s.segments * sizeof *at;
  if (j->s.segments > 256 && !(far = moth_alloc(size)))
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: %zu bytes", size);
  j->at = far ? far : at;
  for (int64_t s = 0; s < j->s.segments; s++) {
    int64_t y = apart ? s / j->s.kernel[1] : s, dx = apart ? s % j->s.kernel[1] : 0;
    j->at[s] = (y * dilation[0] * j->padded[1] + dx * dilation[1]) * j->s.channels;
  }
  int64_t each = j->image_bytes * j->s.groups;
  int64_t some = moth_min64(images, moth_max64(1, IMAGES_BYTES / each));
  bool depthwise = is_depthwise(j);
  MothStatus s = take_work(j, some * each + MOTH_INT8_PIXELS * j->stride[1]);
  j->images = j->work;
  j->strips = (j->oh * j->ow + STRIP - 1) / STRIP;
  j->finish.out_row = 1;
  j->finish.out_column = j->oh * j->ow;
  double flops = 0.5 * STRIP * (double)j->s.n * (double)(j->s.segments * j->s.length);
  for (; s == MOTH_OK && j->first < images; j->first += some) {
    int64_t n = moth_min64(some, images - j->first) * j->s.groups;
    moth_parallel_for(n * j->padded[0], moth_cpu_grain(2 * j->padded[1] * j->s.channels),
                      pixels_range, j);
    if (depthwise)
      moth_parallel_for(n * j->oh, moth_cpu_grain(j->ow * j->s.segments), depthwise_range, j);
    else
      moth_parallel_for(n * j->strips, moth_cpu_flops_grain(flops), strips_range, j);
  }
  if (far)
    moth_free(far, size);
  return s;
}

MothStatus moth_cpu_conv2d_int8(MothCall *c) {
  MOTH_UNPACK_CONV2D_INT8(c)
  if (c->results[0].u.t->numel == 0)
    return MOTH_OK;
  const int64_t *spread = dilation.u.ints;
  bool apart = spread[1] > 1 && weight->shape[3] > 1;
  Job j = {.s = shape_of(weight, groups, apart)};
  for (int i = 0; i < 2; i++) {
    j.stride[i] = stride.u.ints[i];
    j.padding[i] = padding.u.ints[i];
  }
  MothStatus s = open_job(&j, c, packed);
  static_scale(&j, input_scale, input_zero_point, relu);
  return end_job(&j, c, s == MOTH_OK ? conv_run(&j, spread, apart) : s);
}
