/* Cholesky, LU and LDL factorizations, and what is solved with them and with triangular matrices. */
#include <string.h>

#include "core/dtype.h"
#include "core/error.h"
#include "kernels/cpu/lapack.h"
#include "kernels/cpu/util.h"
#include "unpack/decompositions.h"

/* What a factorization of each matrix of a batch reads and writes. */
typedef struct Factor {
  const MothLapack *lapack;
  MothMatrices a, b;
  char *out;
  int32_t *pivots, *info;
  const int32_t *given; /* pivots that were given */
  int64_t k;            /* the number of pivots, or of right-hand sides */
  size_t part, lwork;
  bool upper, unit, adjoint, hermitian, pivot;
} Factor;

static void cholesky_one(void *ctx, int64_t i, char *work) {
  const Factor *f = ctx;
  int n = (int)f->a.n, lda = moth_leading(n), info = 0;
  size_t item = f->a.item;
  char *out = f->out + i * n * n * (int64_t)item;
  (void)work;
  moth_load_rows(&f->a, i, out, n);
  /* Row-major memory is that of the transpose: its upper triangle is our lower one. */
  f->lapack->potrf(f->upper ? "L" : "U", &n, out, &lda, &info, 1);
  for (int r = 0; r < n; r++) {
    int from = f->upper ? 0 : r + 1, to = f->upper ? r : n;
    memset(out + ((size_t)r * (size_t)n + (size_t)from) * item, 0, (size_t)(to - from) * item);
  }
  f->info[i] = info;
}

MothStatus moth_cpu_linalg_cholesky_ex(MothCall *c) {
  MOTH_UNPACK_LINALG_CHOLESKY_EX(c)
  Factor f = {
      .out = c->results[0].u.t->data, .info = (int32_t *)c->results[1].u.t->data, .upper = upper};
  MOTH_TRY(moth_lapack((MothDType)A->dtype, &f.lapack));
  MOTH_TRY(moth_matrices(A, &f.a));
  memset(f.info, 0, (size_t)f.a.count * 4);
  if (!f.a.n)
    return MOTH_OK;
  double n = (double)f.a.n;
  MOTH_TRY(moth_lapack_each(f.a.count, n * n * n / 3, 1, cholesky_one, &f));
  return check_errors ? moth_matrices_check(A, f.info, f.a.count, MOTH_NOT_POSITIVE) : MOTH_OK;
}

/* Step k of an elimination without exchanges; the result is info. */
#define ELIMINATE(name, T)                                                                         \
  static int name(T *a, int64_t m, int64_t n, int64_t k, int info) {                               \
    T pivot = a[k * m + k];                                                                        \
    if (pivot == 0)                                                                                \
      return info ? info : (int)k + 1;                                                             \
    for (int64_t i = k + 1; i < m; i++)                                                            \
      a[k * m + i] /= pivot;                                                                       \
    for (int64_t j = k + 1; j < n; j++)                                                            \
      for (int64_t i = k + 1; i < m; i++)                                                          \
        a[j * m + i] -= a[k * m + i] * a[j * m + k];                                               \
    return info;                                                                                   \
  }
ELIMINATE(eliminate_f32, float)
ELIMINATE(eliminate_f64, double)

#define ELIMINATE_PAIRS(name, T)                                                                   \
  static int name(T *a, int64_t m, int64_t n, int64_t k, int info) {                               \
    T *p = a + 2 * (k * m + k), re = p[0], im = p[1], size = re * re + im * im;                    \
    if (size == 0)                                                                                 \
      return info ? info : (int)k + 1;                                                             \
    for (int64_t i = k + 1; i < m; i++) {                                                          \
      T *x = a + 2 * (k * m + i), u = x[0], v = x[1];                                              \
      x[0] = (u * re + v * im) / size;                                                             \
      x[1] = (v * re - u * im) / size;                                                             \
    }                                                                                              \
    for (int64_t j = k + 1; j < n; j++)                                                            \
      for (int64_t i = k + 1; i < m; i++) {                                                        \
        const T *x = a + 2 * (k * m + i), *y = a + 2 * (j * m + k);                                \
        T *z = a + 2 * (j * m + i);                                                                \
        z[0] -= x[0] * y[0] - x[1] * y[1];                                                         \
        z[1] -= x[0] * y[1] + x[1] * y[0];                                                         \
      }                                                                                            \
    return info;                                                                                   \
  }
ELIMINATE_PAIRS(eliminate_c64, float)
ELIMINATE_PAIRS(eliminate_c128, double)

/* Elimination of a column-major m x n matrix, column after column. */
static int lu_without_pivots(const Factor *f, char *a, int32_t *pivots) {
  int64_t m = f->a.m, n = f->a.n;
  int info = 0;
  for (int64_t k = 0; k < f->k; k++) {
    pivots[k] = (int32_t)k + 1;
    if (f->a.is_complex && f->a.real == 8)
      info = eliminate_c128((double *)a, m, n, k, info);
    else if (f->a.is_complex)
      info = eliminate_c64((float *)a, m, n, k, info);
    else if (f->a.real == 8)
      info = eliminate_f64((double *)a, m, n, k, info);
    else
      info = eliminate_f32((float *)a, m, n, k, info);
  }
  return info;
}

static void lu_one(void *ctx, int64_t i, char *work) {
  const Factor *f = ctx;
  int m = (int)f->a.m, n = (int)f->a.n, lda = moth_leading(m), info = 0;
  moth_load_columns(&f->a, i, work, m);
  if (f->pivot)
    f->lapack->getrf(&m, &n, work, &lda, f->pivots + i * f->k, &info);
  else
    info = lu_without_pivots(f, work, f->pivots + i * f->k);
  moth_store_columns(work, m, m, n, f->out + i * m * n * (int64_t)f->a.item, f->a.item);
  f->info[i] = info;
}

MothStatus moth_cpu_linalg_lu_factor_ex(MothCall *c) {
  MOTH_UNPACK_LINALG_LU_FACTOR_EX(c)
  Factor f = {.out = c->results[0].u.t->data,
              .pivots = (int32_t *)c->results[1].u.t->data,
              .info = (int32_t *)c->results[2].u.t->data};
  f.pivot = pivot;
  MOTH_TRY(moth_lapack((MothDType)A->dtype, &f.lapack));
  MOTH_TRY(moth_matrices(A, &f.a));
  f.k = moth_min64(f.a.m, f.a.n);
  memset(f.info, 0, (size_t)f.a.count * 4);
  if (!f.k)
    return MOTH_OK;
  double k = (double)f.k;
  MOTH_TRY(moth_lapack_each(f.a.count, k * (double)f.a.m * (double)f.a.n,
                            moth_part(f.a.m * f.a.n, f.a.item), lu_one, &f));
  return check_errors ? moth_matrices_check(A, f.info, f.a.count, MOTH_SINGULAR_U) : MOTH_OK;
}

/* Pivots, row-major, if each is between 1 (LDL: -n) and n: LAPACK uses them as positions unchecked. */
static MothStatus checked_pivots(const MothTensor *pivots, int64_t n, bool signs,
                                 MothTensor **out) {
  MOTH_TRY(moth_cpu_contiguous_as(pivots, MOTH_INT32, out));
  const int32_t *p = (const int32_t *)(*out)->data;
  for (int64_t i = 0; i < (*out)->numel; i++) {
    int64_t v = signs && p[i] < 0 ? -(int64_t)p[i] : p[i];
    if (v < 1 || v > n) {
      MothStatus s = moth_fail(MOTH_ERR_INDEX, "pivots must be between 1 and %lld, got %d",
                               (long long)n, p[i]);
      moth_tensor_release(*out);
      *out = NULL;
      return s;
    }
  }
  return MOTH_OK;
}

static void lu_solve_one(void *ctx, int64_t i, char *work) {
  const Factor *f = ctx;
  int n = (int)f->a.n, k = (int)f->b.n, ld = moth_leading(n), info = 0;
  char *x = work + f->part;
  moth_load_columns(&f->a, i, work, n);
  moth_load_columns(&f->b, i, x, n);
  f->lapack->getrs(!f->adjoint       ? "N"
                   : f->a.is_complex ? "C"
                                     : "T",
                   &n, &k, work, &ld, f->given + i * n, x, &ld, &info, 1);
  moth_store_columns(x, n, n, k, f->out + i * n * k * (int64_t)f->a.item, f->a.item);
}

/* Runs one of the solvers with given pivots. */
static MothStatus solve(MothCall *c, const MothTensor *a, const MothTensor *pivots,
                        const MothTensor *b, bool adjoint, bool signs, bool hermitian,
                        void (*one)(void *ctx, int64_t i, char *work)) {
  Factor f = {.out = c->results[0].u.t->data, .adjoint = adjoint, .hermitian = hermitian};
  MothTensor *p = NULL;
  MothStatus status;
  MOTH_TRY(moth_lapack((MothDType)a->dtype, &f.lapack));
  MOTH_TRY(moth_matrices(a, &f.a));
  MOTH_TRY(moth_matrices(b, &f.b));
  if (!c->results[0].u.t->numel)
    return MOTH_OK;
  MOTH_TRY(checked_pivots(pivots, f.a.n, signs, &p));
  f.given = (const int32_t *)p->data;
  f.part = moth_part(f.a.n * f.a.n, f.a.item);
  double n = (double)f.a.n;
  status = moth_lapack_each(f.a.count, 2 * n * n * (double)f.b.n,
                            f.part + moth_part(f.a.n * f.b.n, f.a.item), one, &f);
  moth_tensor_release(p);
  return status;
}

MothStatus moth_cpu_native_lu_solve(MothCall *c) {
  MOTH_UNPACK_NATIVE_LU_SOLVE(c)
  return solve(c, LU, pivots, B, turned, false, false, lu_solve_one);
}

MothStatus moth_cpu_native_lu_rows(MothCall *c) {
  MOTH_UNPACK_NATIVE_LU_ROWS(c)
  MothTensor *p;
  int64_t *rows = (int64_t *)c->results[0].u.t->data;
  int64_t k = pivots->shape[pivots->ndim - 1], count = n ? c->results[0].u.t->numel / n : 0;
  MOTH_TRY(checked_pivots(pivots, n, false, &p));
  const int32_t *swap = (const int32_t *)p->data;
  for (int64_t i = 0; i < count; i++, rows += n, swap += k) {
    for (int64_t r = 0; r < n; r++)
      rows[r] = r;
    for (int64_t r = 0; r < k; r++) {
      int64_t other = rows[swap[r] - 1];
      rows[swap[r] - 1] = rows[r];
      rows[r] = other;
    }
  }
  moth_tensor_release(p);
  return MOTH_OK;
}

static void triangular_one(void *ctx, int64_t i, char *work) {
  const Factor *f = ctx;
  int n = (int)f->a.n, k = (int)f->b.n, lda = moth_leading(n), ldb = moth_leading(k);
  char *x = f->out + i * n * k * (int64_t)f->a.item;
  double one[2] = {1, 0};
  float one_f[2] = {1, 0};
  const void *alpha = f->a.real == 4 ? (const void *)one_f : (const void *)one;
  moth_load_rows(&f->a, i, work, n);
  moth_load_rows(&f->b, i, x, k);
  /* A X = B in row-major memory is X' A' = B' in LAPACK's. */
  f->lapack->trsm("R", f->upper ? "L" : "U", "N", f->unit ? "U" : "N", &k, &n, alpha, work, &lda, x,
                  &ldb, 1, 1, 1, 1);
}

MothStatus moth_cpu_native_solve_triangular(MothCall *c) {
  MOTH_UNPACK_NATIVE_SOLVE_TRIANGULAR(c)
  Factor f = {.out = c->results[0].u.t->data, .upper = upper, .unit = unitriangular};
  MOTH_TRY(moth_lapack((MothDType)A->dtype, &f.lapack));
  MOTH_TRY(moth_matrices(A, &f.a));
  MOTH_TRY(moth_matrices(B, &f.b));
  if (!c->results[0].u.t->numel)
    return MOTH_OK;
  double n = (double)f.a.n;
  return moth_lapack_each(f.a.count, n * n * (double)f.b.n, moth_part(f.a.n * f.a.n, f.a.item),
                          triangular_one, &f);
}

static void ldl_one(void *ctx, int64_t i, char *work) {
  const Factor *f = ctx;
  int n = (int)f->a.n, lda = moth_leading(n), info = 0, lwork = (int)f->lwork;
  size_t item = f->a.item;
  moth_load_columns(&f->a, i, work, n);
  (f->hermitian ? f->lapack->hetrf : f->lapack->sytrf)("L", &n, work, &lda, f->pivots + i * n,
                                                       work + f->part, &lwork, &info, 1);
  for (int col = 1; col < n; col++)
    memset(work + (size_t)col * (size_t)n * item, 0, (size_t)col * item);
  moth_store_columns(work, n, n, n, f->out + i * n * n * (int64_t)item, item);
  f->info[i] = info;
}

MothStatus moth_cpu_linalg_ldl_factor_ex(MothCall *c) {
  MOTH_UNPACK_LINALG_LDL_FACTOR_EX(c)
  Factor f = {.out = c->results[0].u.t->data,
              .pivots = (int32_t *)c->results[1].u.t->data,
              .info = (int32_t *)c->results[2].u.t->data};
  MOTH_TRY(moth_lapack((MothDType)A->dtype, &f.lapack));
  MOTH_TRY(moth_matrices(A, &f.a));
  memset(f.info, 0, (size_t)f.a.count * 4);
  if (!f.a.n)
    return MOTH_OK;
  int size = (int)f.a.n, ask = -1, info = 0;
  double best[2] = {0};
  (hermitian ? f.lapack->hetrf : f.lapack->sytrf)("L", &size, best, &size, &info, best, &ask, &info,
                                                  1);
  f.lwork = (size_t)moth_get_real(best, 0, f.a.real);
  f.hermitian = hermitian;
  f.part = moth_part(f.a.n * f.a.n, f.a.item);
  double n = (double)f.a.n;
  MOTH_TRY(moth_lapack_each(f.a.count, n * n * n / 3,
                            f.part + moth_part((int64_t)f.lwork, f.a.item), ldl_one, &f));
  return check_errors ? moth_matrices_check(A, f.info, f.a.count, MOTH_SINGULAR_D) : MOTH_OK;
}

static void ldl_solve_one(void *ctx, int64_t i, char *work) {
  const Factor *f = ctx;
  int n = (int)f->a.n, k = (int)f->b.n, ld = moth_leading(n), info = 0;
  char *x = work + f->part;
  moth_load_columns(&f->a, i, work, n);
  moth_load_columns(&f->b, i, x, n);
  (f->hermitian ? f->lapack->hetrs : f->lapack->sytrs)("L", &n, &k, work, &ld, f->given + i * n, x,
                                                       &ld, &info, 1);
  moth_store_columns(x, n, n, k, f->out + i * n * k * (int64_t)f->a.item, f->a.item);
}

MothStatus moth_cpu_native_ldl_solve(MothCall *c) {
  MOTH_UNPACK_NATIVE_LDL_SOLVE(c)
  return solve(c, LD, pivots, B, false, true, hermitian, ldl_solve_one);
}
