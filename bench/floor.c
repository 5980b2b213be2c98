/* The floor of moth's times: the same work in plain C, with the same formulas (kernels/math.h) and the same
 * OpenBLAS, without dispatch, shapes, autograd or Lua. bench/floor.lua compiles it into build/bench and
 * calls it in moth's process, so that both share one OpenMP and one BLAS. */
#include "floor.h"

#include <dlfcn.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MOTH_FN        static inline __attribute__((always_inline, unused))
#define MOTH_REAL_KIND 1
typedef float real;
#include "kernels/math.h"

enum { HUGE_PAGE = 2 << 20 };

/* A result buffer on huge pages, touched once and reused, like a block of a caching allocator. */
void *floor_buffer(int64_t bytes) {
  int64_t whole = (bytes + HUGE_PAGE - 1) & ~(int64_t)(HUGE_PAGE - 1);
  void *p = aligned_alloc(HUGE_PAGE, (size_t)whole);
  if (!p)
    return NULL;
  madvise(p, (size_t)whole, MADV_HUGEPAGE);
  return memset(p, 0, (size_t)whole);
}
void floor_release(void *p) {
  free(p);
}

/* --- pointwise -------------------------------------------------------------------------------- */

typedef void (*Kernel)(float *restrict o, const float *restrict a, const float *restrict b,
                       int64_t n);

#define KERNEL(name, formula)                                                                      \
  static void name(float *restrict o, const float *restrict a, const float *restrict b,            \
                   int64_t n) {                                                                    \
    (void)b;                                                                                       \
    for (int64_t i = 0; i < n; i++)                                                                \
      o[i] = formula;                                                                              \
  }
KERNEL(add_kernel, a[i] + b[i])
KERNEL(exp_kernel, m_exp(a[i]))
KERNEL(tanh_kernel, m_tanh(a[i]))
KERNEL(gelu_kernel, m_gelu(a[i]))

void floor_pointwise(int op, float *o, const float *a, const float *b, int64_t n, int threads,
                     int64_t times) {
  static const Kernel kernels[] = {add_kernel, exp_kernel, tanh_kernel, gelu_kernel};
  Kernel f = kernels[op];
  for (int64_t t = 0; t < times; t++) {
    if (threads == 1) {
      f(o, a, b, n);
      continue;
    }
#pragma omp parallel num_threads(threads)
    {
      int k = omp_get_thread_num(), m = omp_get_num_threads();
      int64_t begin = n / 16 * k / m * 16, end = k + 1 == m ? n : n / 16 * (k + 1) / m * 16;
      f(o + begin, a + begin, b ? b + begin : NULL, end - begin);
    }
  }
}

/* --- sum, softmax ----------------------------------------------------------------------------- */

static double sum_kernel(const float *a, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n; i += 4096) { /* a block in float, blocks in double */
    int64_t end = n - i < 4096 ? n : i + 4096;
    float lane[128] = {0}, sum = 0;
    int64_t at = i;
    for (; at + 128 <= end; at += 128)
      for (int k = 0; k < 128; k++)
        lane[k] += a[at + k];
    for (; at < end; at++)
      sum += a[at];
    for (int k = 0; k < 128; k++)
      sum += lane[k];
    total += sum;
  }
  return total;
}

float floor_sum(const float *a, int64_t n, int threads, int64_t times) {
  double sum = 0;
  for (int64_t t = 0; t < times; t++) {
    sum = 0;
    __asm__ volatile("" ::: "memory");
    if (threads == 1) {
      sum = sum_kernel(a, n);
      continue;
    }
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    {
      int k = omp_get_thread_num(), m = omp_get_num_threads();
      int64_t begin = n * k / m, end = n * (k + 1) / m;
      sum += sum_kernel(a + begin, end - begin);
    }
  }
  return (float)sum;
}

static void softmax_row(float *restrict o, const float *restrict a, int64_t n) {
  float max = -INFINITY, sum = 0;
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < n; i++)
    max = a[i] > max ? a[i] : max;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) {
    float e = m_exp(a[i] - max);
    o[i] = e;
    sum += e;
  }
  float scale = 1 / sum;
  for (int64_t i = 0; i < n; i++)
    o[i] *= scale;
}

void floor_softmax(float *o, const float *a, int64_t rows, int64_t n, int threads, int64_t times) {
  for (int64_t t = 0; t < times; t++) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t r = 0; r < rows; r++)
      softmax_row(o + r * n, a + r * n, n);
  }
}

/* --- tiny tensors ----------------------------------------------------------------------------- */

typedef struct Block {
  struct Block *next;
  char rest[120];
} Block;
static Block *freed;

static __attribute__((noinline)) void *take(void) {
  Block *b = freed;
  if (!b)
    return aligned_alloc(64, sizeof(Block));
  freed = b->next;
  return b;
}
static __attribute__((noinline)) void give(void *p) {
  Block *b = p;
  b->next = freed;
  freed = b;
}
typedef struct Tiny {
  float *data;
  int64_t shape[2];
  void *node;
} Tiny;

static __attribute__((noinline)) void tiny_kernel(float *o, const float *a, const float *b, int mul,
                                                  int64_t n) {
  for (int64_t i = 0; i < n; i++)
    o[i] = mul ? a[i] * b[i] : a[i] + b[i];
}

/* Allocates a tensor and its data, adds six floats, frees both; with grad also a graph node. */
void floor_tiny(float *o, const float *a, const float *b, int grad, int64_t times) {
  for (int64_t t = 0; t < times; t++) {
    Tiny *x = take();
    *x = (Tiny){take(), {2, 3}, grad ? take() : NULL};
    tiny_kernel(x->data, a, b, 0, 6);
    if (t + 1 == times)
      memcpy(o, x->data, 6 * sizeof *o);
    if (grad)
      give(x->node);
    give(x->data);
    give(x);
  }
}

/* y = x * x * ... (n factors more) over nine floats, and d sum(y) / dx from saved values. */
void floor_chain(float *dx, const float *x, int n, int forward, int64_t times) {
  static float *y[1024];
  for (int i = 0; i <= n; i++)
    if (!y[i])
      memcpy(y[i] = take(), x, 9 * sizeof *x);
  for (int64_t t = 0; t < times; t++) {
    memcpy(y[0], x, 9 * sizeof *x);
    for (int i = 1; i <= n && (forward || t == 0); i++) {
      give(y[i]);
      tiny_kernel(y[i] = take(), y[i - 1], x, 1, 9);
    }
    memset(dx, 0, 9 * sizeof *dx);
    float *g = take();
    for (int i = 0; i < 9; i++)
      g[i] = 1;
    for (int i = n; i > 0; i--) {
      float *to_x = take(), *to_y = take();
      tiny_kernel(to_x, g, y[i - 1], 1, 9);
      tiny_kernel(to_y, g, x, 1, 9);
      tiny_kernel(dx, dx, to_x, 0, 9);
      give(to_x);
      give(g);
      g = to_y;
    }
    tiny_kernel(dx, dx, g, 0, 9); /* the first factor is x, too */
    give(g);
  }
}

/* --- gemm ------------------------------------------------------------------------------------- */

FloorSgemm floor_sgemm;
static void (*blas_threads)(int);

int floor_open_blas(const char *path) {
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!lib)
    return 0;
  *(void **)&floor_sgemm = dlsym(lib, "cblas_sgemm");
  *(void **)&blas_threads = dlsym(lib, "openblas_set_num_threads");
  return floor_sgemm && blas_threads;
}

/* The number of BLAS's own threads for later calls on this thread. */
void floor_blas_threads(int threads) {
  blas_threads(threads);
}

void floor_gemm(float *c, const float *a, const float *b, int n, int threads, int64_t times) {
  int keep = omp_get_max_threads();
  blas_threads(threads);
  for (int64_t t = 0; t < times; t++)
    floor_sgemm(101, 111, 111, n, n, n, 1, a, n, b, n, 0, c, n);
  omp_set_num_threads(keep);
}
