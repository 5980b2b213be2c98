/* conv2d whose kernel is as large as its stride, as of a vision transformer's first layer: a patch of the image is read by one
 * result alone, so that its pixels become a row of a matrix by copies of whole lines, and go back so. A band, some rows of
 * patches of an image and group, is one product. Bands depend on shapes alone, and the weight's derivative adds its partial sums in
 * their order: the same bits for any number of threads. */
#include "kernels/cpu/conv_patches.h"

#include <stdatomic.h>
#include <string.h>

#include "core/alloc.h"
#include "core/behind.h"
#include "core/dtype.h"
#include "core/parallel.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/conv_product.h"
#include "kernels/cpu/util.h"

enum { PARTS = 8, LEAST_AREA = 16 };
static const int64_t BAND_BYTES = 1 << 20, PARTIAL_BYTES = 32 << 20;

typedef struct Patches {
  const MothConvProduct *p;
  const MothConv *g;
  MothDType dtype;
  int64_t size, c, k, kk; /* of an element; channels of a group; elements of a patch */
  int64_t rows, bands;    /* of patches in a band; bands of an image */
  int64_t tasks, parts;
  bool share; /* threads share each product */
  char *sums; /* [parts][K][kk], of the weight's derivative */
  _Atomic bool failed;
} Patches;

bool moth_conv_suits_patches(const MothConv *g) {
  for (int i = 0; i < 2; i++)
    if (g->kernel[i] != g->stride[i] || g->padding[i] != 0 ||
        (g->dilation[i] != 1 && g->kernel[i] > 1))
      return false;
  int64_t area = g->kernel[0] * g->kernel[1];
  return area >= LEAST_AREA && g->c / g->groups * area >= 32 && g->k / g->groups >= 16;
}

/* Lines of n bytes, those of one side `step` bytes apart. */
static void copy_lines(char *image, char *row, int64_t count, int64_t n, int64_t step, bool back) {
#define LINES(n)                                                                                   \
  for (int64_t i = 0; i < count; i++)                                                              \
  memcpy(back ? image + i *(n) : row + i * step, back ? row + i * step : image + i * (n),          \
         (size_t)(n))
  if (n == 16)
    LINES(16);
  else if (n == 32)
    LINES(32);
  else if (n == 64)
    LINES(64);
  else
    LINES(n);
#undef LINES
}

/* Rows [from, to) of patches of an image <-> a matrix; what no patch reads gets 0. */
static void copy(const Patches *s, char *image, char *matrix, int64_t from, int64_t to, bool back) {
  const MothConv *g = s->g;
  int64_t kh = g->kernel[0], kw = g->kernel[1], step = s->kk * s->size, line = g->w * s->size;
  int64_t n = g->ow * kw * s->size;
  for (int64_t y = from; y < to; y++)
    for (int64_t c = 0; c < s->c; c++)
      for (int64_t i = 0; i < kh; i++) {
        char *at = image + (c * g->h + y * kh + i) * line;
        copy_lines(at, matrix + (y - from) * g->ow * step + (c * kh + i) * kw * s->size, g->ow,
                   kw * s->size, step, back);
        if (back)
          memset(at + n, 0, (size_t)(line - n));
      }
  for (int64_t c = 0; back && to == g->oh && c < s->c; c++)
    memset(image + (c * g->h + to * kh) * line, 0, (size_t)((g->h - to * kh) * line));
}

static void fill_bias(const Patches *s, char *out, int64_t group, int64_t n) {
  int64_t plane = s->g->oh * s->g->ow;
  for (int64_t i = 0; i < s->k; i++)
    for (int64_t j = 0; j < n; j++)
      if (s->dtype == MOTH_FLOAT64)
        ((double *)out)[i * plane + j] = ((const double *)s->p->bias)[group * s->k + i];
      else
        ((float *)out)[i * plane + j] = ((const float *)s->p->bias)[group * s->k + i];
}

static void band(const Patches *s, int64_t task, char *matrix, char *sum, bool more) {
  const MothConv *g = s->g;
  const MothConvProduct *p = s->p;
  int64_t plane = g->oh * g->ow, image = task / s->bands / g->groups,
          group = task / s->bands % g->groups;
  int64_t from = task % s->bands * s->rows, to = moth_min64(from + s->rows, g->oh);
  int64_t n = (to - from) * g->ow;
  int64_t first = (image * g->k + group * s->k) * plane + from * g->ow; /* result */
  char *x = (char *)(p->mode == MOTH_CONV_INPUT ? p->out : p->b);
  char *y = (char *)(p->mode == MOTH_CONV_FORWARD ? p->out
                     : p->mode == MOTH_CONV_INPUT ? p->b
                                                  : p->a);
  x += (image * g->c + group * s->c) * g->h * g->w * s->size;
  y += first * s->size;
  MothGemm m = {.dtype = (int)s->dtype, .alpha = 1};
  const char *w =
      p->mode == MOTH_CONV_WEIGHT ? NULL : (const char *)p->a + group * s->k * s->kk * s->size;
  if (p->mode != MOTH_CONV_INPUT)
    copy(s, x, matrix, from, to, false);
  if (p->mode == MOTH_CONV_FORWARD) {
    if (p->bias)
      fill_bias(s, y, group, n);
    m.m = s->k, m.n = n, m.k = s->kk;
    m.a = w, m.a_row = s->kk, m.a_col = 1;
    m.b = matrix, m.b_row = 1, m.b_col = s->kk;
    m.c = y, m.c_row = plane, m.beta = p->bias ? 1 : 0;
  } else if (p->mode == MOTH_CONV_INPUT) {
    m.m = n, m.n = s->kk, m.k = s->k;
    m.a = y, m.a_row = 1, m.a_col = plane;
    m.b = w, m.b_row = s->kk, m.b_col = 1;
    m.c = matrix, m.c_row = s->kk;
  } else {
    m.m = s->k, m.n = s->kk, m.k = n;
    m.a = y, m.a_row = plane, m.a_col = 1;
    m.b = matrix, m.b_row = s->kk, m.b_col = 1;
    m.c = sum + group * s->k * s->kk * s->size, m.c_row = s->kk, m.beta = more ? 1 : 0;
  }
  moth_gemm(&m, s->share);
  if (p->mode == MOTH_CONV_INPUT)
    copy(s, x, matrix, from, to, true);
  for (int64_t i = 0; p->behind && i < s->k; i++) /* of a forward product */
    p->behind->run(p->behind->ctx, first + i * plane, first + i * plane + n);
}

/* A part has whole groups of bands of some images, or is a band. */
static void parts_range(void *ctx, int64_t begin, int64_t end) {
  Patches *s = ctx;
  size_t bytes = (size_t)(s->rows * s->g->ow * s->kk * s->size);
  char *matrix = moth_alloc(bytes);
  if (!matrix) {
    s->failed = true;
    return;
  }
  int64_t each = s->bands * s->g->groups; /* bands of an image */
  for (int64_t i = begin; i < end; i++) {
    if (!s->sums) {
      if (!moth_stopped())
        band(s, i, matrix, NULL, false);
      continue;
    }
    int64_t from = s->g->n * i / s->parts, to = s->g->n * (i + 1) / s->parts;
    char *sum = s->sums + i * s->g->k * s->kk * s->size;
    for (int64_t t = from * each; t < to * each && !moth_stopped(); t++)
      band(s, t, matrix, sum, t >= (from + 1) * each || t % s->bands > 0);
  }
  moth_free(matrix, bytes);
}

MothStatus moth_conv_by_patches(const MothConvProduct *p, MothDType dtype) {
  const MothConv *g = &p->g;
  bool backward = p->mode == MOTH_CONV_WEIGHT;
  Patches s = {.p = p,
               .g = g,
               .dtype = dtype,
               .size = moth_dtype_size(dtype),
               .c = g->c / g->groups,
               .k = g->k / g->groups};
  s.kk = s.c * g->kernel[0] * g->kernel[1];
  s.rows = moth_max64(1, moth_min64(g->oh, BAND_BYTES / (g->ow * s.kk * s.size)));
  s.bands = (g->oh + s.rows - 1) / s.rows;
  s.rows = (g->oh + s.bands - 1) / s.bands; /* of about the same size */
  s.bands = (g->oh + s.rows - 1) / s.rows;
  s.tasks = g->n * g->groups * s.bands;
  int64_t sum = g->k * s.kk * s.size;
  s.parts =
      backward ? moth_max64(1, moth_min64(moth_min64(PARTS, g->n), PARTIAL_BYTES / sum)) : s.tasks;
  s.share = s.parts < PARTS;
  if (backward && s.share)
    s.parts = 1;
  size_t bytes = s.parts > 1 && backward ? (size_t)(s.parts * sum) : 0;
  char *work = bytes ? moth_alloc(bytes) : NULL;
  if (bytes && !work)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: %zu bytes of partial sums", bytes);
  s.sums = backward ? work ? work : p->out : NULL;
  if (s.share)
    parts_range(&s, 0, s.parts);
  else
    moth_parallel_for(s.parts, 1, parts_range, &s);
  if (work) {
    moth_conv_join(work, s.parts, p->out, g->k * s.kk, dtype);
    moth_free(work, bytes);
  }
  if (s.failed)
    return moth_no_memory(0);
  return MOTH_OK;
}
