/* Convolutions of small images as products with a matrix of columns, which has for each result the pixels that it reads, by
 * BLAS. The shifts of conv.h compute a few columns for nothing at the end of each row, and all kernel positions in the
 * padding: where rows are short, that is most of their time. Here one product has some images, as many as give it some
 * hundred columns; and kernel positions that read padding only are left out of it, weight and all.
 *
 * Where rows are very short, the images of a chunk are laid out pixel by pixel, an image beside the other (`inner`), so that
 * what is copied to columns comes in runs of so many images. Chunks depend on shapes alone, and the weight's derivative adds
 * its partial sums in their order: the same bits for any number of threads. */
#include "kernels/cpu/conv_columns.h"

#include <stdatomic.h>
#include <string.h>

#include "core/alloc.h"
#include "core/behind.h"
#include "core/dtype.h"
#include "core/parallel.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/conv.h"
#include "kernels/cpu/conv_product.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/util.h"

enum { COLUMNS = 384, SHORT_ROW = 9, PARTS = 8, MOST_TAPS = 256 };
static const int64_t COLUMNS_BYTES = 16 << 20, PARTIAL_BYTES = 32 << 20;

typedef struct Columns {
  const MothConvProduct *p;
  const MothConv *g;
  const MothKernels *kernels;
  MothDType dtype;
  int64_t size, c, k; /* of an element; channels of a group */
  int64_t pixels, area, kk;
  int64_t chunks, most; /* most: images of a chunk */
  int64_t parts;        /* of the weight's derivative, each with a sum of its own; else chunks */
  bool inner, share;    /* share: threads share each chunk */
  int32_t taps[MOST_TAPS];
  int64_t ntaps;
  const char *weight; /* of the taps */
  char *sums;         /* [parts][K][kk] */
  _Atomic bool failed;
} Columns;

static int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/* Kernel positions that read a pixel for some result. */
static int64_t find_taps(const MothConv *g, int32_t *taps) {
  int64_t n = 0;
  for (int64_t t = 0; t < g->kernel[0] * g->kernel[1]; t++) {
    bool read = true;
    for (int i = 0; i < 2; i++) {
      int64_t at = i ? t % g->kernel[1] : t / g->kernel[1], size = i ? g->w : g->h;
      int64_t first = at * g->dilation[i] - g->padding[i], count = i ? g->ow : g->oh;
      bool some = false;
      for (int64_t o = 0; o < count && !some; o++)
        some = first + o * g->stride[i] >= 0 && first + o * g->stride[i] < size;
      read = read && some;
    }
    if (read)
      taps[n++] = (int32_t)t;
  }
  return n;
}

/* --- copies, by all threads or this one ------------------------------------------------------------ */

static void run(const Columns *s, int64_t n, int64_t cost, MothRange range, void *ctx) {
  if (s->share)
    moth_parallel_for(n, moth_cpu_grain(cost), range, ctx);
  else
    range(ctx, 0, n);
}

typedef struct Copy {
  const Columns *s;
  MothConvColumns columns;
  bool back;
} Copy;

static void copy_range(void *ctx, int64_t begin, int64_t end) {
  const Copy *c = ctx;
  MothConvColumns p = c->columns;
  p.channels = end - begin;
  p.image = (char *)p.image + begin * p.channel_stride * c->s->size;
  p.columns = (char *)p.columns + begin * p.ntaps * p.row * c->s->size;
  if (c->back)
    c->s->kernels->conv_images(&p);
  else
    c->s->kernels->conv_columns(&p);
}

/* Images of a group <-> columns. */
static void copy(const Columns *s, char *image, char *columns, int64_t images, bool back) {
  const MothConv *g = s->g;
  int64_t plane = g->h * g->w, inner = s->inner ? images : 1;
  Copy c = {.s = s,
            .back = back,
            .columns = {.g = g,
                        .taps = s->taps,
                        .ntaps = s->ntaps,
                        .outer = s->inner ? 1 : images,
                        .inner = inner,
                        .image_stride = g->c * plane,
                        .channel_stride = plane * inner,
                        .image = image,
                        .columns = columns,
                        .row = s->pixels * images}};
  run(s, s->c, s->ntaps * c.columns.row, copy_range, &c);
}

typedef struct Gather {
  const Columns *s;
  char *plain, *chunk;
  int64_t images, channels, plane;
  bool back;
} Gather;

static void gather_range(void *ctx, int64_t begin, int64_t end) {
  const Gather *a = ctx;
  const Columns *s = a->s;
  int64_t all = a->channels * a->plane, run = a->plane * s->size;
  if (s->inner) {
    char *plain = a->plain + begin * run, *chunk = a->chunk + begin * run * a->images;
    int64_t n = (end - begin) * a->plane;
    MothConvTranspose in = {plain, chunk, a->images, n, all, a->images};
    MothConvTranspose out = {chunk, plain, n, a->images, a->images, all};
    s->kernels->conv_transpose(a->back ? &out : &in);
    return;
  }
  for (int64_t i = begin; i < end; i++)
    for (int64_t u = 0; u < a->images; u++) {
      char *plain = a->plain + (u * all + i * a->plane) * s->size;
      char *chunk = a->chunk + (i * a->images + u) * run;
      memcpy(a->back ? plain : chunk, a->back ? chunk : plain, (size_t)run);
    }
}

/* Images <-> their chunk: [channel][image][pixel] or [channel][pixel][image]. */
static void gather(const Columns *s, char *plain, char *chunk, int64_t images, int64_t channels,
                   int64_t plane, bool back) {
  Gather a = {s, plain, chunk, images, channels, plane, back};
  run(s, channels, images * plane, gather_range, &a);
}

static void fill_bias(const Columns *s, char *to, int64_t columns) {
  for (int64_t i = 0; i < s->g->k; i++)
    for (int64_t j = 0; j < columns; j++)
      if (s->dtype == MOTH_FLOAT64)
        ((double *)to)[i * columns + j] = ((const double *)s->p->bias)[i];
      else
        ((float *)to)[i * columns + j] = ((const float *)s->p->bias)[i];
}

/* --- chunks -------------------------------------------------------------------------------------- */

/* Elements of a chunk's workspace: columns, images and results in its order. */
static void workspace(const Columns *s, int64_t *columns, int64_t *image, int64_t *results) {
  *columns = s->kk * s->pixels * s->most;
  *image = s->inner ? s->g->c * s->g->h * s->g->w * s->most : 0;
  *results = s->most > 1 ? s->g->k * s->pixels * s->most : 0;
}

/* sum: of the weight's derivative; beta: 0 for its first chunk. */
static void chunk(const Columns *s, int64_t index, char *work, char *sum, double beta) {
  const MothConv *g = s->g;
  MothConvMode mode = s->p->mode;
  int64_t begin = g->n * index / s->chunks, images = g->n * (index + 1) / s->chunks - begin;
  int64_t columns_size, image_size, results_size, plane = g->h * g->w, n = s->pixels * images;
  workspace(s, &columns_size, &image_size, &results_size);
  char *columns = work, *image = work + columns_size * s->size;
  char *results = image + image_size * s->size;
  char *x = (char *)(mode == MOTH_CONV_INPUT ? s->p->out : s->p->b);
  char *y = (char *)(mode == MOTH_CONV_FORWARD ? s->p->out
                     : mode == MOTH_CONV_INPUT ? s->p->b
                                               : s->p->a);
  x += begin * g->c * plane * s->size;
  y += begin * g->k * s->pixels * s->size;
  bool direct = images == 1; /* a chunk of one image is that image */
  bool transposed = s->inner && !direct;
  char *xs = transposed ? image : x, *ys = direct ? y : results;
  if (mode != MOTH_CONV_INPUT && transposed)
    gather(s, x, image, images, g->c, plane, false);
  if (mode != MOTH_CONV_FORWARD && !direct)
    gather(s, y, results, images, g->k, s->pixels, false);
  if (mode == MOTH_CONV_FORWARD && s->p->bias)
    fill_bias(s, ys, n);
  for (int64_t i = 0; i < g->groups; i++) {
    char *x_group = xs + i * s->c * plane * (transposed ? images : 1) * s->size;
    char *y_group = ys + i * s->k * n * s->size;
    const char *w = s->weight + i * s->k * s->kk * s->size;
    MothGemm m = {.dtype = (int)s->dtype, .alpha = 1};
    if (mode != MOTH_CONV_INPUT)
      copy(s, x_group, columns, images, false);
    if (mode == MOTH_CONV_FORWARD)
      m = (MothGemm){.dtype = (int)s->dtype,
                     .m = s->k,
                     .n = n,
                     .k = s->kk,
                     .a = w,
                     .a_row = s->kk,
                     .a_col = 1,
                     .b = columns,
                     .b_row = n,
                     .b_col = 1,
                     .c = y_group,
                     .c_row = n,
                     .alpha = 1,
                     .beta = s->p->bias ? 1 : 0};
    else if (mode == MOTH_CONV_INPUT)
      m = (MothGemm){.dtype = (int)s->dtype,
                     .m = s->kk,
                     .n = n,
                     .k = s->k,
                     .a = w,
                     .a_row = 1,
                     .a_col = s->kk,
                     .b = y_group,
                     .b_row = n,
                     .b_col = 1,
                     .c = columns,
                     .c_row = n,
                     .alpha = 1};
    else
      m = (MothGemm){.dtype = (int)s->dtype,
                     .m = s->k,
                     .n = s->kk,
                     .k = n,
                     .a = y_group,
                     .a_row = n,
                     .a_col = 1,
                     .b = columns,
                     .b_row = 1,
                     .b_col = n,
                     .c = sum + i * s->k * s->kk * s->size,
                     .c_row = s->kk,
                     .alpha = 1,
                     .beta = beta};
    moth_gemm(&m, s->share);
    if (mode == MOTH_CONV_INPUT)
      copy(s, x_group, columns, images, true);
  }
  if (mode == MOTH_CONV_FORWARD && !direct)
    gather(s, y, results, images, g->k, s->pixels, true);
  if (s->p->behind) { /* of a forward product */
    int64_t first = begin * g->k * s->pixels;
    s->p->behind->run(s->p->behind->ctx, first, first + g->k * n);
  }
  if (mode == MOTH_CONV_INPUT && transposed)
    gather(s, x, image, images, g->c, plane, true);
}

static void parts_range(void *ctx, int64_t begin, int64_t end) {
  Columns *s = ctx;
  int64_t columns, image, results;
  workspace(s, &columns, &image, &results);
  size_t bytes = (size_t)((columns + image + results) * s->size);
  char *work = moth_alloc(bytes);
  if (!work) {
    s->failed = true;
    return;
  }
  for (int64_t i = begin; i < end; i++) {
    int64_t from = s->chunks * i / s->parts, to = s->chunks * (i + 1) / s->parts;
    char *sum = s->sums ? s->sums + i * s->g->k * s->kk * s->size : NULL;
    for (int64_t j = from; j < to && !moth_stopped(); j++)
      chunk(s, j, work, sum, j > from ? 1 : 0);
  }
  moth_free(work, bytes);
}

/* --- the weight ----------------------------------------------------------------------------------- */

/* Rows of all kernel positions <-> rows of those that are used. */
static void pick_taps(const Columns *s, char *all, char *some, bool back) {
  int64_t rows = s->g->k * s->c;
  if (back)
    memset(all, 0, (size_t)(rows * s->area * s->size));
  for (int64_t i = 0; i < rows; i++)
    for (int64_t t = 0; t < s->ntaps; t++) {
      int64_t a = i * s->area + s->taps[t], b = i * s->ntaps + t;
      if (s->dtype == MOTH_FLOAT64 && back)
        ((double *)all)[a] = ((double *)some)[b];
      else if (s->dtype == MOTH_FLOAT64)
        ((double *)some)[b] = ((double *)all)[a];
      else if (back)
        ((float *)all)[a] = ((float *)some)[b];
      else
        ((float *)some)[b] = ((float *)all)[a];
    }
}

/* Found in trials beside the shifts of conv.c, ow 4 to 28 and 16 to 512 channels, on AVX-512. What is copied to columns takes
 * the time of some 20 to 30 results of each pixel. */
bool moth_conv_suits_columns(const MothConvProduct *p) {
  const MothConv *g = &p->g;
  int64_t c = g->c / g->groups, k = g->k / g->groups, stride = g->stride[1];
  int64_t area = g->kernel[0] * g->kernel[1];
  /* By shifts each pixel takes part for each kernel position; without much padding few results are there to give any. What
   * is added to the images costs as much as a product with some 24 kernels. */
  if (p->mode == MOTH_CONV_INPUT && area <= MOST_TAPS && c * area >= 512 && k >= 8 && stride == 1 &&
      g->stride[0] == 1 && g->h * (g->w + g->padding[1]) * k >= g->oh * g->ow * (k + 24))
    return true;
  int64_t least = g->ow <= 4 ? 16 : g->ow <= 6 || g->ow == 8 ? 32 : g->ow == 7 ? 48 : 64;
  if (area > 64 || c < 16 || k < least)
    return false;
  switch (p->mode) {
  case MOTH_CONV_FORWARD:
    return g->ow < 8 || (g->ow <= 14 && k >= (g->ow <= 10 ? 32 : 96) &&
                         (c >= 128 || (c >= 64 && (g->ow == 8 || stride == 1))));
  case MOTH_CONV_INPUT:
    return g->ow < 8 || (g->ow == 8 && stride == 1) ||
           (g->ow >= 9 && g->ow <= 28 && stride > 1 && c >= 64 && k >= 128);
  default:
    return g->ow <= 14 && c >= 32 && (area <= 9 || g->ow <= 12 || k >= 96);
  }
}

MothStatus moth_conv_by_columns(const MothConvProduct *p, MothDType dtype) {
  const MothConv *g = &p->g;
  bool backward = p->mode == MOTH_CONV_WEIGHT;
  Columns s = {.p = p,
               .g = g,
               .kernels = moth_cpu_kernels((int)dtype),
               .dtype = dtype,
               .size = moth_dtype_size(dtype),
               .c = g->c / g->groups,
               .k = g->k / g->groups,
               .pixels = g->oh * g->ow,
               .area = g->kernel[0] * g->kernel[1],
               .weight = backward ? NULL : p->a};
  s.ntaps = find_taps(g, s.taps);
  s.kk = s.c * s.ntaps;
  int64_t most = COLUMNS_BYTES / moth_max64(1, s.kk * s.pixels * s.size);
  most = moth_max64(1, moth_min64(most, ceil_div(COLUMNS, s.pixels)));
  s.chunks = ceil_div(g->n, most);
  s.most = ceil_div(g->n, s.chunks);
  s.inner = s.most > 1 && g->ow < SHORT_ROW - (p->mode == MOTH_CONV_INPUT && g->stride[1] > 1);
  int64_t sum = g->k * s.kk * s.size;
  s.parts = s.chunks;
  if (backward)
    s.parts = moth_max64(1, moth_min64(PARTIAL_BYTES / moth_max64(1, sum), s.chunks));
  s.parts = moth_min64(s.parts, backward ? PARTS : s.parts);
  s.share = s.parts < PARTS;
  if (backward && s.share)
    s.parts = 1;
  bool some = s.ntaps < s.area;
  size_t bytes = backward && (some || s.parts > 1) ? (size_t)(s.parts * sum)
                 : some                            ? (size_t)sum
                                                   : 0;
  char *work = bytes ? moth_alloc(bytes) : NULL;
  if (bytes && !work)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: %zu bytes of weights", bytes);
  if (backward)
    s.sums = work ? work : p->out;
  if (!backward && some) {
    pick_taps(&s, (char *)p->a, work, false);
    s.weight = work;
  }
  if (s.share)
    parts_range(&s, 0, s.parts);
  else
    moth_parallel_for(s.parts, 1, parts_range, &s);
  if (backward && work) {
    if (s.parts > 1)
      moth_conv_join(work, s.parts, some ? work : p->out, g->k * s.kk, dtype);
    if (some)
      pick_taps(&s, p->out, work, true);
  }
  if (work)
    moth_free(work, bytes);
  if (s.failed)
    return moth_no_memory(0);
  return MOTH_OK;
}
