/* GEMM through OpenBLAS (blas_open.c; without it: typed/product.h), and, for float32 products
 * that are large enough, on AVX-512 through oneDNN's where it is installed (0.67 to 0.84 of the time;
 * the first such product spends 0.1 s on generating its code). MOTH_ONEDNN=0 turns it off. Small and thin products, and those
 * with few rows, go to own kernels: typed/small.h, typed/rows.h.
 *
 * Products of bfloat16 go to oneDNN's, where the processor multiplies bfloat16 faster (AMX): half the time of float32's.
 * Elsewhere, and for float16, they are widened to float32 as they are needed: typed/wide.h.
 *
 * Every product is cut into a grid of blocks that depends on its shape alone; each block is one BLAS
 * call that runs on one thread, so that the bits do not depend on how many threads there are. BLAS is
 * kept on one thread without changing its own setting (which would also set the host's OpenMP): inside a
 * parallel region it spawns no threads, and outside the call is wrapped in omp_set_num_threads(1), which
 * affects this thread only. */
#include "kernels/cpu/blas.h"

#include <dlfcn.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "core/alloc.h"
#include "core/dtype.h"
#include "core/environment.h"
#include "core/kept.h"
#include "core/parallel.h"
#include "kernels/cpu/blas_open.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/util.h"

/* dnnl_sgemm: row-major, 0 is success. */
typedef int (*Onednn)(char, char, int64_t, int64_t, int64_t, float, const float *, int64_t,
                      const float *, int64_t, float, float *, int64_t);

/* dnnl_gemm_bf16bf16f32: the same with operands of bfloat16. */
typedef int (*OnednnHalf)(char, char, int64_t, int64_t, int64_t, float, const uint16_t *, int64_t,
                          const uint16_t *, int64_t, float, float *, int64_t);

static Onednn onednn;
static OnednnHalf onednn_half;

/* Whether products of bfloat16 take less time than those of float32: with AMX, whose registers the kernel grants a process
 * that asks, or on AMD's processors. Intel's without AMX sum pairs of bfloat16 at half the rate of float32's. */
static bool has_fast_bfloat16(void) {
#if defined(__x86_64__)
  enum { AMX_BFLOAT16 = 1 << 22, AMX_TILE = 1 << 24, ASK_FOR = 0x1023, TILE_DATA = 18 };
  unsigned a, b, c, d;
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512bf16"))
    return false;
  if (__builtin_cpu_is("amd"))
    return true;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & AMX_BFLOAT16) || !(d & AMX_TILE))
    return false;
#if defined(__linux__)
  return syscall(SYS_arch_prctl, ASK_FOR, TILE_DATA) == 0;
#endif
#endif
  return false;
}

static void open_onednn(void) {
  void *lib = moth_env_flag("MOTH_ONEDNN", true)
                  ? dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)
                  : NULL;
  if (!lib)
    return;
  *(void **)&onednn = dlsym(lib, "dnnl_sgemm");
  if (has_fast_bfloat16())
    *(void **)&onednn_half = dlsym(lib, "dnnl_gemm_bf16bf16f32");
}

static pthread_once_t onednn_once = PTHREAD_ONCE_INIT;

static bool is_half(const MothGemm *g) {
  return g->dtype == MOTH_BFLOAT16 || g->dtype == MOTH_FLOAT16;
}
static bool is_integer(const MothGemm *g) {
  return !moth_dtype_is_inexact((MothDType)g->dtype);
}
/* That of C: float32 for products of float16 and bfloat16. */
static MothDType sum_dtype(const MothGemm *g) {
  return is_half(g) ? MOTH_FLOAT32 : (MothDType)g->dtype;
}

/* Whether oneDNN's kernels gain more than their call and packing cost: by shape alone, as the blocks are.
 * Only on AVX-512: its AVX2 kernels read beyond the end of their packed operands. */
static bool suits_onednn(const MothGemm *g) {
  if (moth_isa != MOTH_ISA_AVX512 || g->dtype != MOTH_FLOAT32 || g->m < 48 || g->n < 48 ||
      moth_gemm_flops(g) < 1e6)
    return false;
  pthread_once(&onednn_once, open_onednn);
  return onednn != NULL;
}

/* Where BLAS can't be asked: one element of C at a time, summed in k's order. */
static void plain(const MothGemm *g) {
  int64_t size = moth_dtype_size((MothDType)g->dtype);
  int64_t c_size = moth_dtype_size(sum_dtype(g));
  const char *a = g->a, *b = g->b;
  char *c = g->c;
  for (int64_t i = 0; i < g->m; i++)
    for (int64_t j = 0; j < g->n; j++) {
      if (moth_stopped())
        return;
      char *at = c + (i * g->c_row + j) * c_size;
      double sum = 0, old = g->beta != 0 ? moth_dtype_load(sum_dtype(g), at).u.d : 0;
      for (int64_t k = 0; k < g->k; k++)
        sum += moth_dtype_load((MothDType)g->dtype, a + (i * g->a_row + k * g->a_col) * size).u.d *
               moth_dtype_load((MothDType)g->dtype, b + (k * g->b_row + j * g->b_col) * size).u.d;
      moth_dtype_store(sum_dtype(g), at, moth_v_float(g->alpha * sum + g->beta * old));
    }
}

static MothComplex128 complex_at(const MothGemm *g, const char *p, int64_t i) {
  if (g->dtype == MOTH_COMPLEX128)
    return ((const MothComplex128 *)(const void *)p)[i];
  MothComplex64 z = ((const MothComplex64 *)(const void *)p)[i];
  return (MothComplex128){(double)z.re, (double)z.im};
}

static void plain_complex(const MothGemm *g) {
  for (int64_t i = 0; i < g->m; i++)
    for (int64_t j = 0; j < g->n && !moth_stopped(); j++) {
      MothComplex128 sum = {0, 0}, old = {0, 0};
      for (int64_t k = 0; k < g->k; k++) {
        MothComplex128 x = complex_at(g, g->a, i * g->a_row + k * g->a_col);
        MothComplex128 y = complex_at(g, g->b, k * g->b_row + j * g->b_col);
        sum.re += x.re * y.re - x.im * y.im;
        sum.im += x.re * y.im + x.im * y.re;
      }
      if (g->beta != 0)
        old = complex_at(g, g->c, i * g->c_row + j);
      sum.re = g->alpha * sum.re + g->beta * old.re;
      sum.im = g->alpha * sum.im + g->beta * old.im;
      if (g->dtype == MOTH_COMPLEX128)
        ((MothComplex128 *)g->c)[i * g->c_row + j] = sum;
      else
        ((MothComplex64 *)g->c)[i * g->c_row + j] = (MothComplex64){(float)sum.re, (float)sum.im};
    }
}

/* ta, tb: whether the operand is transposed. */
static void complex_block(const MothGemm *g, bool ta, bool tb, int lda, int ldb, int ldc) {
  MothComplex64 alpha = {(float)g->alpha, 0}, beta = {(float)g->beta, 0};
  MothComplex128 wide_alpha = {g->alpha, 0}, wide_beta = {g->beta, 0};
  if (g->dtype == MOTH_COMPLEX64 ? !moth_blas()->cgemm : !moth_blas()->zgemm)
    plain_complex(g);
  else if (g->dtype == MOTH_COMPLEX64)
    moth_blas()->cgemm(MOTH_ROW_MAJOR, ta ? MOTH_TRANS : MOTH_NO_TRANS,
                       tb ? MOTH_TRANS : MOTH_NO_TRANS, (int)g->m, (int)g->n, (int)g->k, &alpha,
                       g->a, lda, g->b, ldb, &beta, g->c, ldc);
  else
    moth_blas()->zgemm(MOTH_ROW_MAJOR, ta ? MOTH_TRANS : MOTH_NO_TRANS,
                       tb ? MOTH_TRANS : MOTH_NO_TRANS, (int)g->m, (int)g->n, (int)g->k,
                       &wide_alpha, g->a, lda, g->b, ldb, &wide_beta, g->c, ldc);
}

/* --- without BLAS ------------------------------------------------------------------------------- */

/* Whether BLAS has this product, of float32 or float64. */
static bool has_blas(const MothGemm *g) {
  return g->dtype == MOTH_FLOAT32 ? moth_blas()->sgemm != NULL : moth_blas()->dgemm != NULL;
}

/* An operand in a constant, packed; NULL: it is none. */
static const void *packed(MothProduct p, bool is_a) {
  const MothGemm *g = &p.gemm;
  const MothKernels *k = moth_cpu_kernels(g->dtype);
  bool made;
  p.is_a = is_a;
  size_t bytes = (size_t)(k->product_packed(&p) * moth_dtype_size((MothDType)g->dtype));
  int64_t layout = (is_a ? g->a_col : g->b_row) == 1;
  p.to = moth_keep(is_a ? g->a : g->b, layout, bytes, &made);
  if (p.to && !made)
    k->product_pack_whole(&p);
  return p.to;
}

/* kernels/cpu/typed/product.h, with operands that are packed; NULL: not. */
static void own(const MothGemm *g, const void *a, const void *b) {
  const MothKernels *k = moth_cpu_kernels(g->dtype);
  MothProduct p = {.gemm = *g, .a = a, .b = b};
  size_t bytes = (size_t)(k->product_work(&p) * moth_dtype_size((MothDType)g->dtype));
  p.work = moth_alloc(bytes);
  if (p.work)
    k->gemm_product(&p);
  else
    plain(g);
  moth_free(p.work, bytes);
}

/* --- float16 and bfloat16 ------------------------------------------------------------------------ */

/* to = a block of rows x cols elements of a matrix, as float32; its runs are contiguous along the unit stride, which
 * stays the same one. */
static void widen(float *to, const char *from, int dtype, int64_t rows, int64_t cols, int64_t row,
                  int64_t col) {
  MothLoop loop = moth_cpu_kernels(MOTH_FLOAT32)->copy_from[dtype];
  const int64_t strides[2] = {4, 2};
  bool by_row = col == 1;
  int64_t n = by_row ? rows : cols, run = by_row ? cols : rows, step = by_row ? row : col;
  if (step == run) {
    run *= n;
    n = 1;
  }
  for (int64_t i = 0; i < n; i++) {
    char *p[2] = {(char *)(to + i * run), (char *)from + i * step * 2};
    loop(p, strides, run, NULL);
  }
}

/* Whether oneDNN multiplies them. */
static bool has_onednn_half(const MothGemm *g) {
  if (g->dtype != MOTH_BFLOAT16 || moth_isa != MOTH_ISA_AVX512)
    return false;
  pthread_once(&onednn_once, open_onednn);
  return onednn_half != NULL;
}

enum { WIDE_TASKS = 4 }; /* of a thread */

typedef struct Wide {
  MothWide p;
  const MothKernels *k;
  int64_t work, blocks, tasks; /* each task has its own memory */
} Wide;

static void wide_pack_range(void *ctx, int64_t begin, int64_t end) {
  const Wide *w = ctx;
  MothWide p = w->p;
  p.from = begin;
  p.to = end;
  w->k->wide_pack(&p);
}

static void wide_range(void *ctx, int64_t begin, int64_t end) {
  const Wide *w = ctx;
  for (int64_t t = begin; t < end; t++) {
    MothWide p = w->p;
    p.work += t * w->work;
    for (int64_t i = w->blocks * t / w->tasks; i < w->blocks * (t + 1) / w->tasks; i++) {
      if (moth_stopped())
        return;
      p.from = i;
      p.to = i + 1;
      w->k->gemm_wide(&p);
    }
  }
}

/* kernels/cpu/typed/wide.h: the operand of fewer lines is packed, some of them at a time. */
static void wide(const MothGemm *g, bool parallel) {
  Wide w = {.k = moth_cpu_kernels(g->dtype)};
  MothWide *p = &w.p;
  if (g->m <= g->n)
    *p = (MothWide){.m = g->m,
                    .n = g->n,
                    .c_row = g->c_row,
                    .c_col = 1,
                    .x = g->a,
                    .x_row = g->a_row,
                    .x_col = g->a_col,
                    .y = g->b,
                    .y_row = g->b_col,
                    .y_col = g->b_row};
  else
    *p = (MothWide){.m = g->n,
                    .n = g->m,
                    .c_row = 1,
                    .c_col = g->c_row,
                    .x = g->b,
                    .x_row = g->b_col,
                    .x_col = g->b_row,
                    .y = g->a,
                    .y_row = g->a_row,
                    .y_col = g->a_col};
  p->k = g->k;
  p->alpha = g->alpha;
  p->beta = g->beta;
  p->c = g->c;
  int64_t all = p->m, most = w.k->wide_lines(p);
  p->m = moth_min64(all, most);
  w.blocks = w.k->wide_blocks(p);
  w.work = w.k->wide_work(p);
  w.tasks = !parallel || moth_gemm_flops(g) < 1e6
                ? 1
                : moth_min64(w.blocks, WIDE_TASKS * moth_num_threads());
  size_t bytes = sizeof(float) * (size_t)(w.k->wide_packed(p) + w.tasks * w.work);
  float *memory = moth_alloc(bytes);
  if (!memory) {
    plain(g);
    return;
  }
  p->packed = memory;
  p->work = memory + w.k->wide_packed(p);
  for (int64_t i = 0; i < all && !moth_stopped(); i += most) {
    p->m = moth_min64(all - i, most);
    int64_t panels = w.k->wide_panels(p);
    if (w.tasks > 1)
      moth_parallel_for(panels, moth_cpu_grain(p->m * p->k / panels), wide_pack_range, &w);
    else
      wide_pack_range(&w, 0, panels);
    if (w.tasks > 1)
      moth_parallel_for(w.tasks, 1, wide_range, &w);
    else
      wide_range(&w, 0, 1);
    p->x = (const char *)p->x + most * p->x_row * 2;
    p->c += most * p->c_row;
  }
  moth_free(memory, bytes);
}

static void half_block(const MothGemm *g) {
  bool ta = g->a_col != 1, tb = g->b_col != 1;
  int64_t lda = ta ? g->a_col : g->a_row, ldb = tb ? g->b_col : g->b_row, ldc = g->c_row;
  int64_t wa = ta ? g->m : g->k, wb = tb ? g->k : g->n;
  if (onednn_half(ta ? 'T' : 'N', tb ? 'T' : 'N', g->m, g->n, g->k, (float)g->alpha, g->a,
                  lda < wa ? wa : lda, g->b, ldb < wb ? wb : ldb, (float)g->beta, g->c,
                  ldc < g->n ? g->n : ldc) != 0)
    wide(g, false);
}

/* Small and thin ones: kernels/cpu/typed/small.h. BLAS packs both operands, and a call of it takes longer than a small
 * product. By shape alone; the limits were measured beside OpenBLAS's kernels for AVX-512. */
static bool suits_small(const MothGemm *g) {
  const bool is_complex = moth_dtype_is_complex((MothDType)g->dtype);
  if ((g->dtype != MOTH_FLOAT32 && g->dtype != MOTH_FLOAT64 && !is_complex) || !g->k)
    return false;
  int64_t lanes = 64 / moth_dtype_size((MothDType)g->dtype); /* of the widest vectors */
  double flops = moth_gemm_flops(g);
  if (g->b_col != 1 && g->m < 16 && g->m * 2 < g->n) /* B is transposed for few rows */
    return false;
  if (flops <= 4096)
    return true;
  if (g->n < lanes / 2 || g->m < 4)
    return false;
  if (g->m <= 64 && g->n <= 64)
    return true;
  if (g->m <= 64 && g->n <= 512)
    return flops <= 4e6 || g->m <= 48;
  return g->m <= 48 || (g->n >= lanes && g->n <= 2 * lanes && (g->a_col == 1 || g->k <= 64));
}

/* Complex numbers are pairs of what the kernel computes in. */
static void small_part(const MothGemm *g) {
  const int dtype = g->dtype == MOTH_COMPLEX64    ? MOTH_FLOAT32
                    : g->dtype == MOTH_COMPLEX128 ? MOTH_FLOAT64
                                                  : g->dtype;
  moth_cpu_kernels(dtype)->gemm_small(g);
}

/* The blocks of rows, or of columns, that a thread has at least. */
enum { SMALL_BLOCK = 48 };

static void small_range(void *ctx, int64_t begin, int64_t end) {
  MothGemm g = *(const MothGemm *)ctx;
  int64_t size = moth_dtype_size((MothDType)g.dtype);
  bool by_row = g.m >= g.n;
  int64_t from = begin * SMALL_BLOCK, n = moth_min64(end * SMALL_BLOCK, by_row ? g.m : g.n) - from;
  g.c = (char *)g.c + from * size * (by_row ? g.c_row : 1);
  if (by_row) {
    g.a = (const char *)g.a + from * g.a_row * size;
    g.m = n;
  } else {
    g.b = (const char *)g.b + from * g.b_col * size;
    g.n = n;
  }
  small_part(&g);
}

static void small(const MothGemm *g, bool parallel) {
  int64_t blocks = (moth_max64(g->m, g->n) + SMALL_BLOCK - 1) / SMALL_BLOCK;
  double flops = moth_gemm_flops(g);
  if (parallel && flops > 1e6 && blocks > 1)
    moth_parallel_for(blocks, moth_cpu_flops_grain(flops / (double)blocks), small_range, (void *)g);
  else
    small_part(g);
}

enum { FEW_HALVES = 40960 };

/* A small product of halves that one thread computes: both operands are widened first, which takes less time than wide()
 * needs to pack one of them. */
static bool small_halves(const MothGemm *g) {
  const bool ta = g->a_col != 1, tb = g->b_col != 1;
  const int64_t numbers = (g->m + g->n) * g->k;
  const size_t bytes = sizeof(float) * (size_t)numbers;
  MothGemm p = *g;
  p.dtype = MOTH_FLOAT32;
  p.a_row = ta ? 1 : g->k;
  p.a_col = ta ? g->m : 1;
  p.b_row = tb ? 1 : g->n;
  p.b_col = tb ? g->k : 1;
  if (numbers > FEW_HALVES || moth_gemm_flops(g) >= 1e6 || !suits_small(&p))
    return false;
  float *a = moth_alloc(bytes);
  if (!a)
    return false;
  p.a = a;
  p.b = a + g->m * g->k;
  widen(a, g->a, g->dtype, g->m, g->k, g->a_row, g->a_col);
  widen(a + g->m * g->k, g->b, g->dtype, g->k, g->n, g->b_row, g->b_col);
  small_part(&p);
  moth_free(a, bytes);
  return true;
}

static void block(const MothGemm *g) {
  if (is_half(g)) {
    half_block(g);
    return;
  }
  if (suits_small(g)) {
    small_part(g);
    return;
  }
  bool is_complex = moth_dtype_is_complex((MothDType)g->dtype);
  if (is_integer(g)) {
    moth_cpu_kernels(g->dtype)->gemm_integers(g);
    return;
  }
  if (!is_complex && !has_blas(g)) {
    own(g, packed((MothProduct){.gemm = *g}, true), packed((MothProduct){.gemm = *g}, false));
    return;
  }
  bool ta = g->a_col != 1, tb = g->b_col != 1;
  /* BLAS wants a leading dimension of at least the row length, also where there is one row only. */
  int64_t lda = ta ? g->a_col : g->a_row, ldb = tb ? g->b_col : g->b_row, ldc = g->c_row;
  int64_t wa = ta ? g->m : g->k, wb = tb ? g->k : g->n;
  lda = lda < wa ? wa : lda;
  ldb = ldb < wb ? wb : ldb;
  ldc = ldc < g->n ? g->n : ldc;
  if (is_complex) {
    complex_block(g, ta, tb, (int)lda, (int)ldb, (int)ldc);
    return;
  }
  if (suits_onednn(g) && onednn(ta ? 'T' : 'N', tb ? 'T' : 'N', g->m, g->n, g->k, (float)g->alpha,
                                g->a, lda, g->b, ldb, (float)g->beta, g->c, ldc) == 0)
    return;
  if (g->dtype == MOTH_FLOAT32)
    moth_blas()->sgemm(MOTH_ROW_MAJOR, ta ? MOTH_TRANS : MOTH_NO_TRANS,
                       tb ? MOTH_TRANS : MOTH_NO_TRANS, (int)g->m, (int)g->n, (int)g->k,
                       (float)g->alpha, g->a, (int)lda, g->b, (int)ldb, (float)g->beta, g->c,
                       (int)ldc);
  else
    moth_blas()->dgemm(MOTH_ROW_MAJOR, ta ? MOTH_TRANS : MOTH_NO_TRANS,
                       tb ? MOTH_TRANS : MOTH_NO_TRANS, (int)g->m, (int)g->n, (int)g->k, g->alpha,
                       g->a, (int)lda, g->b, (int)ldb, g->beta, g->c, (int)ldc);
}

enum { MOST_KEPT = 8, KEPT_COLUMNS = 64 };

typedef struct Grid {
  const MothGemm *g;
  int64_t rows, cols; /* of blocks */
  int64_t bm, bn;
  const void *a[MOST_KEPT]; /* packed, by row of blocks; NULL: it is not */
} Grid;

static MothGemm part_of(const Grid *grid, int64_t row, int64_t col) {
  const MothGemm *g = grid->g;
  int64_t size = moth_dtype_size((MothDType)g->dtype), r = row * grid->bm, c = col * grid->bn;
  MothGemm part = *g;
  part.m = g->m - r < grid->bm ? g->m - r : grid->bm;
  part.n = g->n - c < grid->bn ? g->n - c : grid->bn;
  part.a = (const char *)g->a + r * g->a_row * size;
  part.b = (const char *)g->b + c * g->b_col * size;
  part.c = (char *)g->c + (r * g->c_row + c) * moth_dtype_size(sum_dtype(g));
  return part;
}

/* A that is a constant (core/kept.h), beside a B of few columns: to pack it takes BLAS as long as many of the products. */
static void keep_operand(Grid *grid) {
  const MothGemm *g = grid->g;
  bool is_real = g->dtype == MOTH_FLOAT32 || g->dtype == MOTH_FLOAT64;
  if (!moth_keeper || !is_real || !has_blas(g) || grid->rows > MOST_KEPT ||
      moth_isa == MOTH_ISA_GENERIC)
    return;
  for (int64_t i = 0; i < grid->rows && g->n <= KEPT_COLUMNS; i++)
    grid->a[i] = packed((MothProduct){.gemm = part_of(grid, i, 0)}, true);
}

static void grid_range(void *ctx, int64_t begin, int64_t end) {
  const Grid *grid = ctx;
  bool alone = !omp_in_parallel();
  int keep = alone ? omp_get_max_threads() : 0;
  if (alone && keep != 1)
    omp_set_num_threads(1);
  for (int64_t i = begin; i < end && !moth_stopped(); i++) {
    int64_t row = i / grid->cols, col = i % grid->cols;
    MothGemm part = part_of(grid, row, col);
    const void *a = grid->rows <= MOST_KEPT ? grid->a[row] : NULL;
    if (a)
      own(&part, a, NULL);
    else
      block(&part);
  }
  if (alone && keep != 1)
    omp_set_num_threads(keep);
}

/* The number of blocks, by work alone. Each halving packs the other operand once more. */
static int64_t blocks_for(double flops) {
  if (flops < 8e6)
    return 1;
  if (flops < 4e9)
    return 2;
  if (flops < 32e9)
    return 4;
  /* 2e9 to 4e9 flops each, some 20 ms: Ctrl-C is checked between blocks. Large products are faster this way;
   * below 2e9 packing dominates. */
  int64_t n = 8;
  while (flops / (double)n > 4e9)
    n *= 2;
  return n;
}

/* Whether the processor multiplies what the product is of: bfloat16. */
static bool multiplies_half(const MothGemm *g) {
#if defined(__x86_64__)
  return g->dtype == MOTH_BFLOAT16 && moth_isa == MOTH_ISA_AVX512 &&
         __builtin_cpu_supports("avx512bf16");
#else
  (void)g;
  return false;
#endif
}

/* Few rows: kernels/cpu/typed/rows.h reads B at the speed of the memory, where BLAS packs it. By shape alone. */
static bool suits_rows(const MothGemm *g) {
  if (!moth_blas()->sgemm && g->m <= 16 && g->a_col == 1 && g->k &&
      moth_dtype_is_float((MothDType)g->dtype))
    return true;
  int64_t most = g->b_row != 1 || g->k < 1024 ? 16 : is_half(g) ? 20 : 32;
  if (g->m > most || g->a_col != 1 || g->n < 16 || g->k < 16 ||
      !moth_dtype_is_float((MothDType)g->dtype))
    return false;
  /* Each row of B gives m dot products, and the ends of short ones cost more than packing B: 2 to 8 times. */
  if (g->b_row == 1 && !is_half(g) && (g->m * 8 > g->k || (g->m >= 16 && g->k < 512)))
    return false;
  return (double)g->n * (double)g->k >= 65536 &&
         (g->b_row == 1 || g->m <= 4 || !multiplies_half(g));
}

/* Columns between two looks at Ctrl-C, and of a thread at least. Rows of B are read in pieces that long. */
enum { ROWS_BLOCK = 64, ROWS_STRIP = 512 };

typedef struct Rows {
  MothRows p;
  int64_t block;
} Rows;

static void rows_range(void *ctx, int64_t begin, int64_t end) {
  const Rows *r = ctx;
  const MothGemm *g = &r->p.gemm;
  int64_t size = moth_dtype_size((MothDType)g->dtype);
  for (int64_t i = begin; i < end && !moth_stopped(); i++) {
    int64_t from = i * r->block;
    MothRows part = r->p;
    part.gemm.n = g->n - from < r->block ? g->n - from : r->block;
    part.gemm.b = (const char *)g->b + from * g->b_col * size;
    part.gemm.c = (char *)g->c + from * moth_dtype_size(sum_dtype(g));
    moth_cpu_kernels(g->dtype)->gemm_rows(&part);
  }
}

/* false: out of memory. */
static bool rows(const MothGemm *g, bool parallel) {
  Rows r = {.p = {.gemm = *g, .native = g->b_row == 1 && multiplies_half(g)},
            .block = g->b_row == 1 ? ROWS_BLOCK : ROWS_STRIP};
  float *wide = NULL;
  size_t bytes = sizeof(float) * (size_t)(g->m * g->k);
  if (is_half(g) && !r.p.native) {
    wide = moth_alloc(bytes);
    if (!wide)
      return false;
    widen(wide, g->a, g->dtype, g->m, g->k, g->a_row, 1);
    r.p.gemm.a = wide;
    r.p.gemm.a_row = g->k;
  }
  int64_t blocks = (g->n + r.block - 1) / r.block;
  if (parallel)
    moth_parallel_for(blocks, moth_cpu_grain(r.block * g->k), rows_range, &r);
  else
    rows_range(&r, 0, blocks);
  if (wide)
    moth_free(wide, bytes);
  return true;
}

/* A product of two vectors: parts whose number depends on k alone are summed by themselves, then in double. */
enum { DOT_PARTS = 256, DOT_LEAST = 4096 };

typedef struct Dot {
  const MothGemm *g;
  int64_t part;
  double sums[DOT_PARTS];
} Dot;

static bool suits_dot(const MothGemm *g) {
  return g->m == 1 && g->n == 1 && g->k && g->a_col == 1 && g->b_row == 1 &&
         (g->dtype == MOTH_FLOAT32 || g->dtype == MOTH_FLOAT64);
}

static void dot_range(void *ctx, int64_t begin, int64_t end) {
  Dot *d = ctx;
  const MothGemm *g = d->g;
  int64_t size = moth_dtype_size((MothDType)g->dtype);
  for (int64_t i = begin; i < end; i++) {
    union {
      float f;
      double d;
    } sum;
    int64_t from = i * d->part;
    MothRows p = {.gemm = *g};
    p.gemm.k = moth_min64(g->k - from, d->part);
    p.gemm.a = (const char *)g->a + from * size;
    p.gemm.b = (const char *)g->b + from * size;
    p.gemm.c = &sum;
    p.gemm.alpha = 1;
    p.gemm.beta = 0;
    moth_cpu_kernels(g->dtype)->gemm_rows(&p);
    d->sums[i] = g->dtype == MOTH_FLOAT32 ? (double)sum.f : sum.d;
  }
}

static void dot(const MothGemm *g, bool parallel) {
  int64_t part = moth_max64(DOT_LEAST, (g->k / DOT_PARTS + 64) & ~(int64_t)63);
  int64_t parts = (g->k + part - 1) / part;
  if (parts == 1) {
    MothRows p = {.gemm = *g};
    moth_cpu_kernels(g->dtype)->gemm_rows(&p);
    return;
  }
  Dot d; /* sums are not cleared: that takes longer than a short product */
  d.g = g;
  d.part = part;
  if (parallel && parts > 8)
    moth_parallel_for(parts, moth_cpu_flops_grain(2.0 * (double)part), dot_range, &d);
  else
    dot_range(&d, 0, parts);
  double sum = 0;
  for (int64_t i = 0; i < parts; i++)
    sum += d.sums[i];
  sum *= g->alpha;
  if (g->dtype == MOTH_FLOAT32) {
    float *c = g->c;
    *c = (float)(g->beta != 0 ? sum + g->beta * (double)*c : sum);
  } else {
    double *c = g->c;
    *c = g->beta != 0 ? sum + g->beta * *c : sum;
  }
}

/* A product with one column, transposed: it has one row. */
static bool as_row(const MothGemm *g, MothGemm *row) {
  if (g->n != 1 || g->m == 1 || g->c_row != 1)
    return false;
  *row = *g;
  row->m = 1;
  row->n = g->m;
  row->a = g->b;
  row->a_row = g->k;
  row->a_col = g->b_row;
  row->b = g->a;
  row->b_row = g->a_col;
  row->b_col = g->a_row;
  row->c_row = g->m;
  return true;
}

void moth_gemm(const MothGemm *g, bool parallel) {
  MothGemm row;
  if (!g->m || !g->n)
    return;
  if (suits_dot(g)) {
    dot(g, parallel);
    return;
  }
  if (suits_small(g) && !suits_rows(g) && !(moth_keeper && moth_gemm_flops(g) > 65536)) {
    small(g, parallel); /* what a keeper holds is packed once */
    return;
  }
  if (suits_rows(g) && rows(g, parallel))
    return;
  if (as_row(g, &row) && suits_rows(&row) && rows(&row, parallel))
    return;
  if (!is_integer(g) && (g->m > INT32_MAX || g->n > INT32_MAX || g->k > INT32_MAX || !g->k)) {
    if (moth_dtype_is_complex((MothDType)g->dtype))
      plain_complex(g);
    else
      plain(g);
    return;
  }
  if (is_half(g) && !has_onednn_half(g)) {
    if (!small_halves(g))
      wide(g, parallel);
    return;
  }
  Grid grid = {.g = g, .rows = 1, .cols = 1, .bm = g->m, .bn = g->n};
  /* Without BLAS the bits of an element do not depend on blocks. */
  bool whole = !moth_blas()->sgemm && moth_num_threads() == 1;
  for (int64_t n = whole ? 1 : blocks_for(moth_gemm_flops(g)); n > 1; n /= 2) {
    if (grid.bm >= grid.bn && grid.bm >= 32)
      grid.bm = ((grid.bm + 1) / 2 + 15) & ~(int64_t)15;
    else if (grid.bn >= 32)
      grid.bn = ((grid.bn + 1) / 2 + 15) & ~(int64_t)15;
  }
  grid.rows = (g->m + grid.bm - 1) / grid.bm;
  grid.cols = (g->n + grid.bn - 1) / grid.bn;
  if (parallel) /* else others may run beside this one, without the keeper */
    keep_operand(&grid);
  if (parallel)
    moth_parallel_for(grid.rows * grid.cols, 1, grid_range, &grid);
  else
    grid_range(&grid, 0, grid.rows * grid.cols);
}
