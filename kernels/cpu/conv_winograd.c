/* When 3x3 kernels go by Winograd's tiles (kernels/cpu/typed/winograd.h), and their strips for threads.
 *
 * Only with weights that are constants of a program which runs again and again: their form for this takes 16 numbers in place
 * of 9, and time to make. And only there because an infinity or a NaN among the pixels may reach results of its tile that
 * do not read it. Results of finite numbers are as exact as those of sums in order, or more. Strips and blocks depend on
 * shapes alone: the same bits for any number of threads. */
#include "kernels/cpu/conv_winograd.h"

#include <stdatomic.h>

#include "core/alloc.h"
#include "core/behind.h"
#include "core/kept.h"
#include "core/parallel.h"
#include "kernels/cpu/conv.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/util.h"

/* Numbers of a strip's pixels, and of the kernels that are multiplied by it, in the second cache. LAYOUT: for core/kept.h. */
enum { PIXEL_BYTES = 768 << 10, KERNEL_BYTES = 512 << 10, LAYOUT = 2, LEAST = 49 };

static int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

static bool suits(const MothConv *g, MothDType dtype) {
  for (int i = 0; i < 2; i++)
    if (g->kernel[i] != 3 || g->stride[i] != 1 || g->dilation[i] != 1)
      return false;
  return dtype == MOTH_FLOAT32 && g->c / g->groups >= 16 && g->k / g->groups >= 16 &&
         g->oh * g->ow >= LEAST && g->ow >= 6 && moth_cpu_kernels((int)dtype)->winograd_is_there();
}

typedef struct Strips {
  MothWinograd first; /* of the first image and group */
  const MothKernels *k;
  int64_t groups, strips, rows, down; /* rows of tiles: of a strip, of the image */
  int64_t group;                      /* elements of a group's packed kernels */
  size_t bytes;
  _Atomic bool failed;
} Strips;

static void strips_range(void *ctx, int64_t begin, int64_t end) {
  Strips *s = ctx;
  const MothConv *g = s->first.g;
  const int64_t size = sizeof(float), in = s->first.c * g->h * g->w * size,
                out = s->first.k * g->oh * g->ow;
  void *work = moth_alloc(s->bytes);
  if (!work) {
    s->failed = true;
    return;
  }
  for (int64_t i = begin; i < end && !moth_stopped(); i++) {
    int64_t image = i / s->strips, group = image % s->groups;
    MothWinograd p = s->first;
    p.row = i % s->strips * s->rows;
    p.rows = moth_min64(s->rows, s->down - p.row);
    p.src = (const char *)p.src + image * in;
    p.out = (char *)p.out + image * out * size;
    p.first = image * out;
    p.packed = (const char *)p.packed + group * s->group * size;
    p.bias = p.bias ? (const char *)p.bias + group * p.k * size : NULL;
    p.work = work;
    s->k->winograd_strip(&p);
  }
  moth_free(work, s->bytes);
}

MothStatus moth_conv_by_winograd(const MothConvProduct *p, MothDType dtype, bool *done) {
  const MothConv *g = &p->g;
  bool made;
  *done = false;
  if (!suits(g, dtype))
    return MOTH_OK;
  const int64_t size = sizeof(float), c = g->c / g->groups, k = g->k / g->groups;
  const int64_t group = ceil_div(k, MOTH_WINOGRAD_M) * MOTH_WINOGRAD_M * 16 * c;
  char *packed = moth_keep(p->a, LAYOUT, (size_t)(group * g->groups * size), &made);
  if (!packed)
    return MOTH_OK;
  Strips s = {.first = {.g = g,
                        .weight = p->a,
                        .src = p->b,
                        .bias = p->bias,
                        .packed = packed,
                        .out = p->out,
                        .c = c,
                        .k = k,
                        .across = ceil_div(g->ow, 2),
                        .behind = p->behind},
              .k = moth_cpu_kernels((int)dtype),
              .groups = g->groups,
              .down = ceil_div(g->oh, 2),
              .group = group};
  int64_t tiles = moth_max64(MOTH_WINOGRAD_T, PIXEL_BYTES / (16 * c * size));
  s.rows = moth_max64(1, moth_min64(s.down, tiles / s.first.across));
  s.strips = ceil_div(s.down, s.rows);
  s.rows = ceil_div(s.down, s.strips);
  s.strips = ceil_div(s.down, s.rows);
  s.first.channels = KERNEL_BYTES / (16 * c * size) / MOTH_WINOGRAD_M * MOTH_WINOGRAD_M;
  s.first.channels = moth_max64(MOTH_WINOGRAD_M, moth_min64(s.first.channels, 128));
  for (int64_t i = 0; i < g->groups && !made; i++) {
    MothWinograd one = s.first;
    one.weight = (const char *)one.weight + i * k * c * 9 * size;
    one.to = packed + i * group * size;
    s.k->winograd_pack(&one);
  }
  int64_t blocks = ceil_div(s.rows * s.first.across, MOTH_WINOGRAD_T);
  s.bytes = (size_t)((blocks * c + s.first.channels) * 16 * MOTH_WINOGRAD_T * size);
  double flops = 2.0 * 16 * (double)(s.rows * s.first.across) * (double)(c * k);
  moth_parallel_for(g->n * g->groups * s.strips, moth_cpu_flops_grain(flops), strips_range, &s);
  *done = true;
  return s.failed ? moth_no_memory(s.bytes) : MOTH_OK;
}
