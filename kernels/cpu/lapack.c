/* LAPACK's functions by their Fortran names, matrices in its layout, and batches.
 *
 * A batch is computed in parallel, each matrix on one thread of LAPACK: its bits then depend neither on the number of
 * threads nor on the matrices beside it. */
#include "kernels/cpu/lapack.h"

#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "core/parallel.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/util.h"

static MothLapack tables[4]; /* by s, d, c, z */
static const char *missing;  /* the first function that the library lacks */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find(void *field, char letter, const char *name) {
  char symbol[32];
  snprintf(symbol, sizeof symbol, "%c%s_", letter, name);
  void *found = moth_blas_symbol(symbol);
  if (!found && !missing)
    missing = name;
  memcpy(field, &found, sizeof found);
}

static void open_lapack(void) {
#define SHARED(field, real, complex, arguments)                                                    \
  find(&tables[0].field, 's', #real);                                                              \
  find(&tables[1].field, 'd', #real);                                                              \
  find(&tables[2].field, 'c', #complex);                                                           \
  find(&tables[3].field, 'z', #complex);
#define REAL(field, name, arguments)                                                               \
  find(&tables[0].field, 's', #name);                                                              \
  find(&tables[1].field, 'd', #name);
#define COMPLEX(field, name, arguments)                                                            \
  find(&tables[2].field, 'c', #name);                                                              \
  find(&tables[3].field, 'z', #name);
  MOTH_LAPACK_LIST(SHARED)
  MOTH_LAPACK_REAL_LIST(REAL)
  MOTH_LAPACK_COMPLEX_LIST(COMPLEX)
#undef SHARED
#undef REAL
#undef COMPLEX
}

MothStatus moth_lapack(MothDType dtype, const MothLapack **out) {
  pthread_once(&once, open_lapack);
  *out = &tables[(moth_dtype_is_complex(dtype) ? 2 : 0) +
                 (moth_dtype_real(dtype) == MOTH_FLOAT32 ? 0 : 1)];
  if (missing)
    return moth_fail(MOTH_ERR_STATE,
                     "needs LAPACK, whose %s was not found in the BLAS library (%s%s%s); install "
                     "libopenblas0-openmp, or name a library with LAPACK in MOTH_BLAS",
                     missing, moth_blas_name(), *moth_blas_note() ? ": " : "", moth_blas_note());
  return MOTH_OK;
}

static const char *matrix_at(const MothTensor *t, int64_t i) {
  int64_t at = 0;
  for (int d = t->ndim - 3; d >= 0; d--) {
    at += i % t->shape[d] * t->stride[d];
    i /= t->shape[d];
  }
  return (const char *)t->data + at * moth_itemsize(t);
}

/* rows lines of n elements, `step` and `line` elements apart at `from`, to lines ld apart. */
static void load(const char *from, int64_t line, int64_t step, int64_t rows, int64_t n, char *to,
                 int64_t ld, size_t item) {
  for (int64_t i = 0; i < rows; i++) {
    const char *a = from + i * line * (int64_t)item;
    char *b = to + i * ld * (int64_t)item;
    if (step == 1)
      memcpy(b, a, (size_t)n * item);
    else if (item == 4)
      for (int64_t j = 0; j < n; j++)
        memcpy(b + j * 4, a + j * step * 4, 4);
    else if (item == 8)
      for (int64_t j = 0; j < n; j++)
        memcpy(b + j * 8, a + j * step * 8, 8);
    else
      for (int64_t j = 0; j < n; j++)
        memcpy(b + j * 16, a + j * step * 16, 16);
  }
}

void moth_load_rows(const MothMatrices *x, int64_t i, void *to, int64_t ld) {
  int d = x->t->ndim;
  load(matrix_at(x->t, i), x->t->stride[d - 2], x->t->stride[d - 1], x->m, x->n, to, ld, x->item);
}

void moth_load_columns(const MothMatrices *x, int64_t i, void *to, int64_t ld) {
  int d = x->t->ndim;
  load(matrix_at(x->t, i), x->t->stride[d - 1], x->t->stride[d - 2], x->n, x->m, to, ld, x->item);
}

void moth_store_columns(const void *from, int64_t ld, int64_t m, int64_t n, void *to, size_t item) {
  load(from, 1, ld, m, n, to, n, item);
}

typedef struct Each {
  void (*one)(void *ctx, int64_t i, char *work);
  void *ctx;
  size_t bytes;
  atomic_bool failed;
} Each;

static void each_range(void *ctx, int64_t begin, int64_t end) {
  Each *e = ctx;
  char *work = moth_alloc(e->bytes);
  if (!work) {
    e->failed = true;
    return;
  }
  bool alone = !omp_in_parallel();
  int threads = alone ? omp_get_max_threads() : 1;
  if (threads != 1)
    omp_set_num_threads(1); /* of this thread: OpenBLAS starts no others */
  for (int64_t i = begin; i < end && !moth_stopped(); i++)
    e->one(e->ctx, i, work);
  if (threads != 1)
    omp_set_num_threads(threads);
  moth_free(work, e->bytes);
}

MothStatus moth_lapack_each(int64_t count, double flops, size_t bytes,
                            void (*one)(void *ctx, int64_t i, char *work), void *ctx) {
  Each e = {one, ctx, bytes, false};
  moth_parallel_for(count, moth_cpu_flops_grain(flops), each_range, &e);
  return e.failed ? moth_no_memory(0) : MOTH_OK;
}

double moth_get_real(const void *p, int64_t i, size_t item) {
  return item == 4 ? (double)((const float *)p)[i] : ((const double *)p)[i];
}

void moth_set_real(void *p, int64_t i, size_t item, double v) {
  if (item == 4)
    ((float *)p)[i] = (float)v;
  else
    ((double *)p)[i] = v;
}
