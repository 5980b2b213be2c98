/* Convolutions with 1x1 kernels, without padding and stride, are matrix products without any copying: of the
 * weight (k x c) with an image (c x pixels), in each group. BLAS takes half the time of the micro-kernels of
 * kernels/cpu/typed/conv.h, which are made for shifts.
 *
 * An image is one product, or some of so many columns that the bias, and what comes behind (core/behind.h), find the result
 * in the cache; its blocks depend on its shape. The weight's derivative sums chunks of images,
 * joined in order: the same bits for any number of threads. */
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

enum { CHUNKS = 8 };
static const int64_t PARTIAL_BYTES = 32 << 20, PIECE_BYTES = 768 << 10;

bool moth_conv_is_product(const MothConv *g) {
  for (int i = 0; i < 2; i++)
    if (g->kernel[i] != 1 || g->stride[i] != 1 || g->padding[i] != 0)
      return false;
  double c = (double)(g->c / g->groups), k = (double)(g->k / g->groups);
  /* Small products are not worth a call. */
  return c >= 16 && k >= 16 && c * k * (double)(g->h * g->w) >= 5e5;
}

typedef struct Images {
  MothGemm gemm; /* of the first image and group */
  int64_t groups, count, size;
  int64_t a_image, b_image, c_image, a_group, b_group, c_group; /* elements */
  const char *bias;
  const MothBehind *behind;
  int64_t cols, pieces; /* of a product: columns, and how many pieces there are */
  int64_t chunks;       /* of images, for the weight's derivative; else 0 */
  char *partial;
} Images;

static MothGemm product_of(const Images *s, int64_t image, int64_t group) {
  MothGemm g = s->gemm;
  g.a = (const char *)g.a + (image * s->a_image + group * s->a_group) * s->size;
  g.b = (const char *)g.b + (image * s->b_image + group * s->b_group) * s->size;
  g.c = (char *)g.c + (image * s->c_image + group * s->c_group) * s->size;
  return g;
}

/* Rows of about AT_ONCE elements get their bias, and what comes behind them, while they are in the first cache. */
enum { AT_ONCE = 2048 };

/* Columns [col, col + n) of a product are there. */
static void finish_piece(const Images *s, int64_t image, int64_t group, int64_t col, int64_t n) {
  int64_t m = s->gemm.m, pixels = s->gemm.c_row;
  int64_t first = image * s->c_image + group * s->c_group + col;
  int64_t step = n < pixels || n >= AT_ONCE ? 1 : AT_ONCE / n;
  for (int64_t i = 0; i < m && (s->bias || s->behind); i += step, first += step * pixels) {
    int64_t rows = m - i < step ? m - i : step;
    MothConvBias b = {(char *)s->gemm.c + first * s->size,
                      s->bias ? s->bias + (group * m + i) * s->size : NULL, rows, pixels, n};
    if (s->bias)
      moth_cpu_kernels(s->gemm.dtype)->conv_bias_rows(&b);
    if (s->behind)
      s->behind->run(s->behind->ctx, first, first + (rows - 1) * pixels + n);
  }
}

static void run_piece(const Images *s, int64_t piece, bool parallel) {
  int64_t product = piece / s->pieces, col = piece % s->pieces * s->cols;
  MothGemm g = product_of(s, product / s->groups, product % s->groups);
  g.n = moth_min64(s->cols, g.n - col);
  g.b = (const char *)g.b + col * s->size;
  g.c = (char *)g.c + col * s->size;
  moth_gemm(&g, parallel);
  if (!moth_stopped())
    finish_piece(s, product / s->groups, product % s->groups, col, g.n);
}

static void pieces_range(void *ctx, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i++)
    run_piece(ctx, i, false);
}

/* Pieces are as wide as lets operand and result stay in the second cache: by shape alone. */
static void images_run(Images *s) {
  const MothGemm *g = &s->gemm;
  int64_t wide = moth_max64(PIECE_BYTES / (moth_max64(g->m, g->k) * s->size), 192);
  s->pieces = moth_max64(1, (g->n + wide / 2) / wide); /* of about the same width */
  s->cols = ((g->n + s->pieces - 1) / s->pieces + 15) / 16 * 16;
  s->pieces = (g->n + s->cols - 1) / s->cols;
  int64_t n = s->count * s->groups * s->pieces;
  if (n >= CHUNKS) {
    double part = (double)s->cols / (double)g->n;
    moth_parallel_for(n, moth_cpu_flops_grain(moth_gemm_flops(g) * part), pieces_range, s);
    return;
  }
  for (int64_t i = 0; i < n; i++) /* few products: threads share each */
    run_piece(s, i, true);
}

void moth_conv_product(const MothConvProduct *p, MothDType dtype) {
  const MothConv *g = &p->g;
  bool backward = p->mode == MOTH_CONV_INPUT;
  int64_t c = g->c / g->groups, k = g->k / g->groups, pixels = g->h * g->w;
  int64_t from = backward ? k : c, to = backward ? c : k;
  Images s = {.gemm = {.dtype = (int)dtype,
                       .m = to,
                       .n = pixels,
                       .k = from,
                       .a = p->a,
                       .b = p->b,
                       .c = p->out,
                       .a_row = backward ? 1 : c,
                       .a_col = backward ? c : 1,
                       .b_row = pixels,
                       .b_col = 1,
                       .c_row = pixels,
                       .alpha = 1},
              .groups = g->groups,
              .count = g->n,
              .size = moth_dtype_size(dtype),
              .b_image = g->groups * from * pixels,
              .c_image = g->groups * to * pixels,
              .a_group = k * c,
              .b_group = from * pixels,
              .c_group = to * pixels,
              .bias = p->bias,
              .behind = p->behind};
  images_run(&s);
}

typedef struct Join {
  const char *parts;
  char *out;
  int64_t n, count;
  MothDType dtype;
} Join;

static void join_range(void *ctx, int64_t begin, int64_t end) {
  const Join *j = ctx;
  for (int64_t c = 0; c < j->count; c++) {
    if (j->dtype == MOTH_FLOAT64) {
      const double *p = (const double *)j->parts + c * j->n;
      double *o = (double *)j->out;
      for (int64_t i = begin; i < end; i++)
        o[i] = c ? o[i] + p[i] : p[i];
    } else {
      const float *p = (const float *)j->parts + c * j->n;
      float *o = (float *)j->out;
      for (int64_t i = begin; i < end; i++)
        o[i] = c ? o[i] + p[i] : p[i];
    }
  }
}

void moth_conv_join(const void *parts, int64_t count, void *out, int64_t n, MothDType dtype) {
  Join j = {parts, out, n, count, dtype};
  moth_parallel_for(n, moth_cpu_grain(count), join_range, &j);
}

static void chunks_range(void *ctx, int64_t begin, int64_t end) {
  const Images *s = ctx;
  for (int64_t i = begin; i < end; i++) {
    int64_t chunk = i / s->groups, group = i % s->groups;
    int64_t from = s->count * chunk / s->chunks, to = s->count * (chunk + 1) / s->chunks;
    for (int64_t image = from; image < to; image++) {
      MothGemm g = product_of(s, image, group);
      g.c = s->partial + (chunk * s->groups + group) * s->c_group * s->size;
      g.beta = image > from ? 1 : 0;
      moth_gemm(&g, false);
    }
  }
}

MothStatus moth_conv_product_weight(const MothConvProduct *p, MothDType dtype) {
  const MothConv *g = &p->g;
  int64_t c = g->c / g->groups, k = g->k / g->groups, pixels = g->h * g->w;
  int64_t size = moth_dtype_size(dtype), all = g->k * c;
  Images s = {.gemm = {.dtype = (int)dtype,
                       .m = k,
                       .n = c,
                       .k = pixels,
                       .a = p->a,
                       .b = p->b,
                       .a_row = pixels,
                       .a_col = 1,
                       .b_row = 1,
                       .b_col = pixels,
                       .c_row = c,
                       .alpha = 1},
              .groups = g->groups,
              .count = g->n,
              .size = size,
              .a_image = g->k * pixels,
              .b_image = g->c * pixels,
              .a_group = k * pixels,
              .b_group = c * pixels,
              .c_group = k * c};
  s.chunks = moth_min64(CHUNKS, PARTIAL_BYTES / (all * size));
  s.chunks = moth_max64(1, moth_min64(s.chunks, g->n));
  size_t bytes = (size_t)((s.chunks - 1) * all * size);
  char *more = bytes ? moth_alloc(bytes + (size_t)(all * size)) : NULL;
  if (bytes && !more)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: %zu bytes of partial sums", bytes);
  s.partial = more ? more : p->out;
  moth_parallel_for(
      s.chunks * g->groups,
      moth_cpu_flops_grain(moth_gemm_flops(&s.gemm) * (double)g->n / (double)s.chunks),
      chunks_range, &s);
  if (more) {
    moth_conv_join(more, s.chunks, p->out, all, dtype);
    moth_free(more, bytes + (size_t)(all * size));
  }
  return MOTH_OK;
}
