/* QR, eigenvalues, singular values, least squares.
 *
 * Eigenvectors and singular vectors are defined up to their signs (complex: factors of absolute value 1): the largest
 * component of an eigenvector, and of each column of U, is made positive (real), so that results do not depend on the
 * LAPACK that computes them. */
#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "core/error.h"
#include "kernels/cpu/lapack.h"
#include "kernels/cpu/util.h"
#include "unpack/decompositions.h"

typedef struct Work {
  const MothLapack *lapack;
  MothMatrices a, b, tau;
  char *out[3];
  int64_t k;         /* min(m, n), or the columns that are asked for */
  int lwork, iw, rw; /* elements of the three workspaces: numbers, integers, real numbers */
  size_t at[5];      /* where the parts of the workspace begin; the last: real numbers */
  size_t bytes;
  int32_t *info;
  bool upper, vectors, full, left, transpose;
  int driver;
  double rcond;
  int64_t *rank;
} Work;

/* The size that LAPACK wants: the real part of the first element. */
static int asked(const void *work, size_t real) {
  /* In float32 a large number may have been rounded down. */
  double n = moth_get_real(work, 0, real);
  return (int)(n * (real == 4 ? 1.0001 : 1)) + 1;
}

/* Appends a part of n elements of the workspace. */
static void add_part(Work *w, int i, int64_t n, size_t item) {
  w->at[i] = w->bytes;
  w->bytes += moth_part(n, item);
}

/* ---- QR ---------------------------------------------------------------------------------------- */

static MothStatus begin(MothCall *c, const MothTensor *a, Work *w) {
  memset(w, 0, sizeof *w);
  MOTH_TRY(moth_lapack((MothDType)a->dtype, &w->lapack));
  MOTH_TRY(moth_matrices(a, &w->a));
  for (int i = 0; i < c->op->nresults && i < 3; i++)
    w->out[i] = c->results[i].u.t->data;
  w->k = moth_min64(w->a.m, w->a.n);
  return MOTH_OK;
}

/* The workspace of geqrf of m x n and orgqr of m x columns. */
static void ask_qr(Work *w, int64_t columns, int64_t reflectors) {
  int m = (int)w->a.m, n = (int)w->a.n, ld = moth_leading(m), ask = -1, info = 0,
      cols = (int)columns, k = (int)reflectors, more;
  double best[2] = {0, 0}, none[2] = {0, 0};
  w->lapack->geqrf(&m, &n, none, &ld, none, best, &ask, &info);
  w->lwork = asked(best, w->a.real);
  w->lapack->orgqr(&m, &cols, &k, none, &ld, none, best, &ask, &info);
  more = asked(best, w->a.real);
  w->lwork = w->lwork > more ? w->lwork : more;
}

static void set_eye(char *out, int64_t n, const MothMatrices *of) {
  memset(out, 0, (size_t)(n * n) * of->item);
  for (int64_t i = 0; i < n; i++)
    moth_set_real(out + (size_t)(i * n + i) * of->item, 0, of->real, 1);
}

static void qr_one(void *ctx, int64_t i, char *work) {
  const Work *w = ctx;
  int m = (int)w->a.m, n = (int)w->a.n, ld = moth_leading(m), info = 0, k = (int)w->k;
  int columns = w->full ? m : k;
  int64_t item = (int64_t)w->a.item, rows = w->full ? m : k;
  char *a = work + w->at[0], *tau = work + w->at[1], *lapack = work + w->at[2];
  char *r = w->out[1] + i * rows * n * item;
  moth_load_columns(&w->a, i, a, m);
  w->lapack->geqrf(&m, &n, a, &ld, tau, lapack, &w->lwork, &info);
  moth_store_columns(a, m, rows, n, r, w->a.item);
  for (int64_t row = 1; row < rows; row++)
    memset(r + row * n * item, 0, (size_t)(moth_min64(row, n) * item));
  if (!w->vectors || !columns)
    return;
  w->lapack->orgqr(&m, &columns, &k, a, &ld, tau, lapack, &w->lwork, &info);
  moth_store_columns(a, m, m, columns, w->out[0] + i * m * columns * item, w->a.item);
}

MothStatus moth_cpu_native_qr(MothCall *c) {
  MOTH_UNPACK_NATIVE_QR(c)
  Work w;
  MOTH_TRY(begin(c, A, &w));
  w.full = mode == MOTH_MODE_COMPLETE;
  w.vectors = mode != MOTH_MODE_R;
  int64_t m = w.a.m, n = w.a.n, columns = w.full ? m : w.k;
  if (!w.k) { /* Q of no columns of A is the identity */
    for (int64_t i = 0; w.full && i < w.a.count; i++)
      set_eye(w.out[0] + i * m * m * (int64_t)w.a.item, m, &w.a);
    if (c->results[1].u.t->numel)
      memset(w.out[1], 0, (size_t)c->results[1].u.t->numel * w.a.item);
    return MOTH_OK;
  }
  ask_qr(&w, columns, w.k);
  add_part(&w, 0, m * moth_max64(n, columns), w.a.item);
  add_part(&w, 1, w.k, w.a.item);
  add_part(&w, 2, w.lwork, w.a.item);
  return moth_lapack_each(w.a.count, 4.0 * (double)m * (double)n * (double)w.k, w.bytes, qr_one,
                          &w);
}

static void geqrf_one(void *ctx, int64_t i, char *work) {
  const Work *w = ctx;
  int m = (int)w->a.m, n = (int)w->a.n, ld = moth_leading(m), info = 0;
  int64_t item = (int64_t)w->a.item;
  moth_load_columns(&w->a, i, work, m);
  w->lapack->geqrf(&m, &n, work, &ld, w->out[1] + i * w->k * item, work + w->at[2], &w->lwork,
                   &info);
  moth_store_columns(work, m, m, n, w->out[0] + i * m * n * item, w->a.item);
}

MothStatus moth_cpu_geqrf(MothCall *c) {
  MOTH_UNPACK_GEQRF(c)
  Work w;
  MOTH_TRY(begin(c, self, &w));
  if (!w.k)
    return MOTH_OK;
  ask_qr(&w, w.k, w.k);
  add_part(&w, 0, w.a.m * w.a.n, w.a.item);
  add_part(&w, 2, w.lwork, w.a.item);
  return moth_lapack_each(w.a.count, 2.0 * (double)w.a.m * (double)w.a.n * (double)w.k, w.bytes,
                          geqrf_one, &w);
}

static void householder_one(void *ctx, int64_t i, char *work) {
  const Work *w = ctx;
  int m = (int)w->a.m, n = (int)w->a.n, ld = moth_leading(m), info = 0, k = (int)w->k;
  moth_load_columns(&w->a, i, work, m);
  moth_load_rows(&w->tau, i, work + w->at[1], k);
  w->lapack->orgqr(&m, &n, &k, work, &ld, work + w->at[1], work + w->at[2], &w->lwork, &info);
  moth_store_columns(work, m, m, n, w->out[0] + i * m * n * (int64_t)w->a.item, w->a.item);
}

MothStatus moth_cpu_native_householder_product(MothCall *c) {
  MOTH_UNPACK_NATIVE_HOUSEHOLDER_PRODUCT(c)
  Work w;
  MOTH_TRY(begin(c, A, &w));
  MOTH_TRY(moth_matrices(tau, &w.tau)); /* (…, 1, k) */
  w.k = w.tau.n;
  if (!c->results[0].u.t->numel)
    return MOTH_OK;
  ask_qr(&w, w.a.n, w.k);
  add_part(&w, 0, w.a.m * w.a.n, w.a.item);
  add_part(&w, 1, w.k, w.a.item);
  add_part(&w, 2, w.lwork, w.a.item);
  return moth_lapack_each(w.a.count, 4.0 * (double)w.a.m * (double)w.a.n * (double)(w.k + 1),
                          w.bytes, householder_one, &w);
}

static void ormqr_one(void *ctx, int64_t i, char *work) {
  const Work *w = ctx;
  int m = (int)w->b.m, n = (int)w->b.n, ldc = moth_leading(m), lda = moth_leading(w->a.m), info = 0;
  int k = (int)w->k;
  char *other = work + w->at[3];
  moth_load_columns(&w->a, i, work, w->a.m);
  moth_load_rows(&w->tau, i, work + w->at[1], k);
  moth_load_columns(&w->b, i, other, m);
  w->lapack->ormqr(w->left ? "L" : "R",
                   !w->transpose     ? "N"
                   : w->a.is_complex ? "C"
                                     : "T",
                   &m, &n, &k, work, &lda, work + w->at[1], other, &ldc, work + w->at[2], &w->lwork,
                   &info, 1, 1);
  moth_store_columns(other, m, m, n, w->out[0] + i * m * n * (int64_t)w->a.item, w->a.item);
}

MothStatus moth_cpu_native_ormqr(MothCall *c) {
  MOTH_UNPACK_NATIVE_ORMQR(c)
  Work w;
  MOTH_TRY(begin(c, self, &w));
  MOTH_TRY(moth_matrices(tau, &w.tau));
  MOTH_TRY(moth_matrices(other, &w.b));
  w.k = w.tau.n;
  w.left = left;
  w.transpose = transpose;
  if (!c->results[0].u.t->numel)
    return MOTH_OK;
  int m = (int)w.b.m, n = (int)w.b.n, k = (int)w.k, lda = moth_leading(w.a.m), ask = -1, info = 0;
  double best[2] = {0, 0}, none[2] = {0, 0};
  w.lapack->ormqr(left ? "L" : "R", "N", &m, &n, &k, none, &lda, none, none, &m, best, &ask, &info,
                  1, 1);
  w.lwork = asked(best, w.a.real);
  add_part(&w, 0, w.a.m * w.a.n, w.a.item);
  add_part(&w, 1, w.k, w.a.item);
  add_part(&w, 2, w.lwork, w.a.item);
  add_part(&w, 3, w.b.m * w.b.n, w.a.item);
  return moth_lapack_each(w.a.count, 4.0 * (double)m * (double)n * (double)(k + 1), w.bytes,
                          ormqr_one, &w);
}

/* ---- eigenvalues and singular values ------------------------------------------------------------ */

/* Whether n elements are finite. */
static bool finite_matrix(const void *a, int64_t n, const MothMatrices *of) {
  for (int64_t i = 0; i < (of->is_complex ? 2 * n : n); i++)
    if (!isfinite(moth_get_real(a, i, of->real)))
      return false;
  return true;
}

/* What the vector of n elements, `step` apart, is to be multiplied by: 1 or -1, or a number of absolute value 1. */
static void direction(const char *v, int64_t n, int64_t step, const MothMatrices *of,
                      double out[2]) {
  double best = 0;
  out[0] = 1;
  out[1] = 0;
  for (int64_t i = 0; i < n; i++) {
    const char *at = v + (size_t)(i * step) * of->item;
    double x = moth_get_real(at, 0, of->real),
           y = of->is_complex ? moth_get_real(at, 1, of->real) : 0;
    double size = hypot(x, y);
    /* Components of almost the same size: the first one, whatever their rounding. */
    if (size > best * 1.0001) {
      best = size;
      out[0] = x / size;
      out[1] = -y / size;
    }
  }
}

/* Multiplies a vector by a number of absolute value 1. */
static void turn(char *v, int64_t n, int64_t step, const MothMatrices *of, const double by[2]) {
  if (by[0] == 1 && by[1] == 0)
    return;
  for (int64_t i = 0; i < n; i++) {
    char *at = v + (size_t)(i * step) * of->item;
    double x = moth_get_real(at, 0, of->real);
    if (!of->is_complex) {
      moth_set_real(at, 0, of->real, by[0] * x);
      continue;
    }
    double y = moth_get_real(at, 1, of->real);
    moth_set_real(at, 0, of->real, x * by[0] - y * by[1]);
    moth_set_real(at, 1, of->real, x * by[1] + y * by[0]);
  }
}

static void eigh_one(void *ctx, int64_t i, char *work) {
  const Work *w = ctx;
  int n = (int)w->a.n, info = 0;
  int64_t item = (int64_t)w->a.item;
  char *a = work + w->at[0], *values = w->out[0] + i * n * (int64_t)w->a.real;
  /* A row-major matrix is the transpose in LAPACK's memory: the same if it is symmetric, but not if it is hermitian. */
  bool upper = w->a.is_complex ? !w->upper : w->upper;
  if (w->a.is_complex)
    moth_load_columns(&w->a, i, a, n);
  else
    moth_load_rows(&w->a, i, a, n);
  for (int64_t r = 0; r < n; r++) /* the other triangle is not read */
    if (!finite_matrix(a + (r * n + (upper ? r : 0)) * item, upper ? n - r : r + 1, &w->a)) {
      w->info[i] = MOTH_NOT_FINITE;
      return;
    }
  const char *job = w->vectors ? "V" : "N", *uplo = upper ? "L" : "U";
  int *integers = (int *)(work + w->at[2]);
  if (w->a.is_complex)
    w->lapack->heevd(job, uplo, &n, a, &n, values, work + w->at[1], &w->lwork, work + w->at[4],
                     &w->rw, integers, &w->iw, &info, 1, 1);
  else
    w->lapack->syevd(job, uplo, &n, a, &n, values, work + w->at[1], &w->lwork, integers, &w->iw,
                     &info, 1, 1);
  w->info[i] = info;
  if (!w->vectors)
    return;
  for (int64_t v = 0; v < n; v++) {
    double by[2];
    direction(a + v * n * item, n, 1, &w->a, by);
    turn(a + v * n * item, n, 1, &w->a, by);
  }
  moth_store_columns(a, n, n, n, w->out[1] + i * n * n * item, w->a.item);
}

/* Runs `one` for each matrix, with a place for its error. */
static MothStatus run(Work *w, const MothTensor *a, double flops,
                      void (*one)(void *ctx, int64_t i, char *work)) {
  MothTensor *info;
  int64_t count = w->a.count;
  MOTH_TRY(moth_tensor_new(1, &count, MOTH_INT32, a->device, &info));
  w->info = (int32_t *)info->data;
  memset(w->info, 0, (size_t)count * 4);
  MothStatus status = moth_lapack_each(count, flops, w->bytes, one, w);
  if (status == MOTH_OK)
    status = moth_matrices_check(a, w->info, count, MOTH_NO_CONVERGENCE);
  moth_tensor_release(info);
  return status;
}

MothStatus moth_cpu_native_eigh(MothCall *c) {
  MOTH_UNPACK_NATIVE_EIGH(c)
  Work w;
  MOTH_TRY(begin(c, A, &w));
  w.upper = UPLO == MOTH_UPLO_U;
  w.vectors = vectors;
  if (!c->results[0].u.t->numel)
    return MOTH_OK;
  int n = (int)w.a.n, ask = -1, info = 0, integers = 0;
  double best[2] = {0, 0}, none[2] = {0, 0};
  if (w.a.is_complex) {
    double real = 0;
    w.lapack->heevd(vectors ? "V" : "N", "U", &n, none, &n, none, best, &ask, &real, &ask,
                    &integers, &ask, &info, 1, 1);
    w.rw = asked(&real, w.a.real);
  } else {
    w.lapack->syevd(vectors ? "V" : "N", "U", &n, none, &n, none, best, &ask, &integers, &ask,
                    &info, 1, 1);
  }
  w.lwork = asked(best, w.a.real);
  w.iw = integers;
  add_part(&w, 0, (int64_t)n * n, w.a.item);
  add_part(&w, 1, w.lwork, w.a.item);
  add_part(&w, 2, w.iw, sizeof(int));
  add_part(&w, 4, w.rw, w.a.real);
  double size = n;
  return run(&w, A, size * size * size * (vectors ? 9 : 1.5), eigh_one);
}

/* Makes complex vectors of what geev gives for real matrices: a pair of conjugate eigenvalues has the real parts of the
 * first vector in one column, the imaginary parts in the next. All column-major. */
static void pair_columns(const char *from, const char *im, int64_t n, size_t real, char *to) {
  for (int64_t j = 0; j < n; j++) {
    bool pair = moth_get_real(im, j, real) != 0 && j + 1 < n;
    for (int64_t i = 0; i < n; i++) {
      double x = moth_get_real(from, j * n + i, real);
      double y = pair ? moth_get_real(from, (j + 1) * n + i, real) : 0;
      moth_set_real(to, 2 * (j * n + i), real, x);
      moth_set_real(to, 2 * (j * n + i) + 1, real, y);
      if (!pair)
        continue;
      moth_set_real(to, 2 * ((j + 1) * n + i), real, x);
      moth_set_real(to, 2 * ((j + 1) * n + i) + 1, real, -y);
    }
    j += pair;
  }
}

static void eig_one(void *ctx, int64_t i, char *work) {
  const Work *w = ctx;
  int n = (int)w->a.n, info = 0;
  size_t real = w->a.real;
  int64_t pair = 2 * (int64_t)real;
  char *a = work + w->at[0], *lapack = work + w->at[1], *vectors = work + w->at[2];
  char *parts = work + w->at[3], *values = w->out[0] + i * n * pair;
  const char *job = w->vectors ? "V" : "N";
  MothMatrices numbers = {.item = 2 * real, .real = real, .is_complex = true};
  moth_load_columns(&w->a, i, a, n);
  if (!finite_matrix(a, (int64_t)n * n, &w->a)) {
    w->info[i] = MOTH_NOT_FINITE;
    return;
  }
  if (w->a.is_complex) {
    w->lapack->complex_geev("N", job, &n, a, &n, values, a, &n, vectors, &n, lapack, &w->lwork,
                            parts, &info, 1, 1);
  } else {
    char *im = parts + (size_t)n * real, *columns = parts + 2 * (size_t)n * real;
    w->lapack->geev("N", job, &n, a, &n, parts, im, a, &n, columns, &n, lapack, &w->lwork, &info, 1,
                    1);
    for (int64_t k = 0; k < n; k++) {
      moth_set_real(values, 2 * k, real, moth_get_real(parts, k, real));
      moth_set_real(values, 2 * k + 1, real, moth_get_real(im, k, real));
    }
    if (w->vectors)
      pair_columns(columns, im, n, real, vectors);
  }
  w->info[i] = info;
  if (!w->vectors)
    return;
  for (int64_t v = 0; v < n; v++) {
    double by[2];
    direction(vectors + v * n * pair, n, 1, &numbers, by);
    turn(vectors + v * n * pair, n, 1, &numbers, by);
  }
  moth_store_columns(vectors, n, n, n, w->out[1] + i * n * n * pair, (size_t)pair);
}

MothStatus moth_cpu_native_eig(MothCall *c) {
  MOTH_UNPACK_NATIVE_EIG(c)
  Work w;
  MOTH_TRY(begin(c, A, &w));
  w.vectors = vectors;
  if (!c->results[0].u.t->numel)
    return MOTH_OK;
  int n = (int)w.a.n, ask = -1, info = 0;
  double best[2] = {0, 0}, none[2] = {0, 0};
  const char *job = vectors ? "V" : "N";
  if (w.a.is_complex)
    w.lapack->complex_geev("N", job, &n, none, &n, none, none, &n, none, &n, best, &ask, none,
                           &info, 1, 1);
  else
    w.lapack->geev("N", job, &n, none, &n, none, none, none, &n, none, &n, best, &ask, &info, 1, 1);
  w.lwork = asked(best, w.a.real);
  add_part(&w, 0, (int64_t)n * n, w.a.item);
  add_part(&w, 1, w.lwork, w.a.item);
  add_part(&w, 2, (int64_t)n * n, 2 * w.a.real);
  add_part(&w, 3, 2 * (int64_t)n + (int64_t)n * n, w.a.real);
  double size = n;
  return run(&w, A, size * size * size * (vectors ? 25 : 10), eig_one);
}

static void svd_one(void *ctx, int64_t i, char *work) {
  const Work *w = ctx;
  /* Row-major A is A' in LAPACK's memory: what it calls U and V' are our V and U', each row-major. */
  int m = (int)w->a.n, n = (int)w->a.m, info = 0, lda = moth_leading(m);
  int64_t item = (int64_t)w->a.item, k = w->k;
  int64_t wide = w->full ? w->a.m : k, tall = w->full ? w->a.n : k;
  int ldvt = moth_leading(w->vectors ? wide : 1);
  char *a = work + w->at[0], *s = w->out[1] + i * k * (int64_t)w->a.real;
  char *vh = w->out[2] + i * tall * w->a.n * item, *u = w->out[0] + i * w->a.m * wide * item;
  const char *job = !w->vectors ? "N" : w->full ? "A" : "S";
  char *lapack = work + w->at[1], *reals = work + w->at[4];
  int *integers = (int *)(work + w->at[2]);
  moth_load_rows(&w->a, i, a, m);
  if (!finite_matrix(a, (int64_t)m * n, &w->a)) {
    w->info[i] = MOTH_NOT_FINITE;
    return;
  }
  if (w->a.is_complex)
    w->lapack->complex_gesdd(job, &m, &n, a, &lda, s, vh, &lda, u, &ldvt, lapack, &w->lwork, reals,
                             integers, &info, 1);
  else
    w->lapack->gesdd(job, &m, &n, a, &lda, s, vh, &lda, u, &ldvt, lapack, &w->lwork, integers,
                     &info, 1);
  if (info > 0) { /* it fails more often than the older method */
    moth_load_rows(&w->a, i, a, m);
    if (w->a.is_complex)
      w->lapack->complex_gesvd(job, job, &m, &n, a, &lda, s, vh, &lda, u, &ldvt, lapack, &w->lwork,
                               reals, &info, 1, 1);
    else
      w->lapack->gesvd(job, job, &m, &n, a, &lda, s, vh, &lda, u, &ldvt, lapack, &w->lwork, &info,
                       1, 1);
  }
  w->info[i] = info;
  if (!w->vectors)
    return;
  double by[2];
  for (int64_t j = 0; j < wide; j++) {
    direction(u + j * item, w->a.m, wide, &w->a, by);
    turn(u + j * item, w->a.m, wide, &w->a, by);
    by[1] = -by[1];
    if (j < k)
      turn(vh + j * w->a.n * item, w->a.n, 1, &w->a, by);
  }
  for (int64_t j = k; j < tall; j++) {
    direction(vh + j * w->a.n * item, w->a.n, 1, &w->a, by);
    turn(vh + j * w->a.n * item, w->a.n, 1, &w->a, by);
  }
}

MothStatus moth_cpu_native_svd(MothCall *c) {
  MOTH_UNPACK_NATIVE_SVD(c)
  Work w;
  MOTH_TRY(begin(c, A, &w));
  w.full = full_matrices;
  w.vectors = vectors;
  if (!w.k) {
    for (int64_t i = 0; w.full && vectors && i < w.a.count; i++) {
      set_eye(w.out[0] + i * w.a.m * w.a.m * (int64_t)w.a.item, w.a.m, &w.a);
      set_eye(w.out[2] + i * w.a.n * w.a.n * (int64_t)w.a.item, w.a.n, &w.a);
    }
    return MOTH_OK;
  }
  if (!w.a.count)
    return MOTH_OK;
  int m = (int)w.a.n, n = (int)w.a.m, ask = -1, info = 0, integers = 0;
  double best[2] = {0, 0}, none[2] = {0, 0};
  const char *job = !vectors ? "N" : full_matrices ? "A" : "S";
  if (w.a.is_complex)
    w.lapack->complex_gesdd(job, &m, &n, none, &m, none, none, &m, none, &n, best, &ask, none,
                            &integers, &info, 1);
  else
    w.lapack->gesdd(job, &m, &n, none, &m, none, none, &m, none, &n, best, &ask, &integers, &info,
                    1);
  w.lwork = asked(best, w.a.real);
  if (w.a.is_complex)
    w.lapack->complex_gesvd(job, job, &m, &n, none, &m, none, none, &m, none, &n, best, &ask, none,
                            &info, 1, 1);
  else
    w.lapack->gesvd(job, job, &m, &n, none, &m, none, none, &m, none, &n, best, &ask, &info, 1, 1);
  int more = asked(best, w.a.real);
  w.lwork = w.lwork > more ? w.lwork : more;
  add_part(&w, 0, (int64_t)m * n, w.a.item);
  add_part(&w, 1, w.lwork, w.a.item);
  add_part(&w, 2, 8 * w.k, sizeof(int));
  if (w.a.is_complex) { /* as gesdd's manual has it */
    int64_t k = w.k, more_rows = moth_max64(m, n);
    int64_t with_vectors = moth_max64(5 * k * k + 5 * k, 2 * more_rows * k + 2 * k * k + k);
    add_part(&w, 4, vectors ? with_vectors : 7 * k, w.a.real);
  }
  return run(&w, A, (double)m * (double)n * (double)w.k * (vectors ? 12 : 3), svd_one);
}

/* ---- least squares ------------------------------------------------------------------------------ */

/* One at least, of zeros: LAPACK refuses none, and the rank and the singular values are asked for. */
static int right_sides(const Work *w) {
  return w->b.n ? (int)w->b.n : 1;
}

static void lstsq_one(void *ctx, int64_t i, char *work) {
  const Work *w = ctx;
  int m = (int)w->a.m, n = (int)w->a.n, k = right_sides(w), info = 0, rank = 0;
  int64_t big = moth_max64(m, n), item = (int64_t)w->a.item;
  int lda = moth_leading(m), ldb = moth_leading(big);
  char *a = work + w->at[0], *b = work + w->at[1], *lapack = work + w->at[2];
  int *integers = (int *)(work + w->at[3]);
  double rcond = w->rcond;
  float rcond_f = (float)w->rcond;
  const void *limit = w->a.real == 4 ? (const void *)&rcond_f : (const void *)&rcond;
  char *s = w->out[2] ? w->out[2] + i * w->k * (int64_t)w->a.real : NULL;
  char *reals = work + w->at[4];
  bool pairs = w->a.is_complex;
  moth_load_columns(&w->a, i, a, m);
  if (!finite_matrix(a, (int64_t)m * n, &w->a)) {
    w->info[i] = MOTH_NOT_FINITE;
    return;
  }
  memset(b, 0, (size_t)(big * k * item));
  moth_load_columns(&w->b, i, b, big);
  switch (w->driver) {
  case MOTH_DRIVER_GELS:
    w->lapack->gels("N", &m, &n, &k, a, &lda, b, &ldb, lapack, &w->lwork, &info, 1);
    rank = (int)w->k;
    break;
  case MOTH_DRIVER_GELSY:
    memset(integers, 0, (size_t)n * sizeof(int));
    if (pairs)
      w->lapack->complex_gelsy(&m, &n, &k, a, &lda, b, &ldb, integers, limit, &rank, lapack,
                               &w->lwork, reals, &info);
    else
      w->lapack->gelsy(&m, &n, &k, a, &lda, b, &ldb, integers, limit, &rank, lapack, &w->lwork,
                       &info);
    break;
  case MOTH_DRIVER_GELSD:
    if (pairs)
      w->lapack->complex_gelsd(&m, &n, &k, a, &lda, b, &ldb, s, limit, &rank, lapack, &w->lwork,
                               reals, integers, &info);
    else
      w->lapack->gelsd(&m, &n, &k, a, &lda, b, &ldb, s, limit, &rank, lapack, &w->lwork, integers,
                       &info);
    break;
  default:
    if (pairs)
      w->lapack->complex_gelss(&m, &n, &k, a, &lda, b, &ldb, s, limit, &rank, lapack, &w->lwork,
                               reals, &info);
    else
      w->lapack->gelss(&m, &n, &k, a, &lda, b, &ldb, s, limit, &rank, lapack, &w->lwork, &info);
  }
  w->info[i] = info;
  w->rank[i] = rank;
  moth_store_columns(b, big, n, w->b.n, w->out[0] + i * n * w->b.n * item, w->a.item);
}

MothStatus moth_cpu_native_lstsq(MothCall *c) {
  MOTH_UNPACK_NATIVE_LSTSQ(c)
  Work w;
  MOTH_TRY(begin(c, A, &w));
  MOTH_TRY(moth_matrices(B, &w.b));
  w.driver = driver;
  w.rcond = rcond;
  w.rank = (int64_t *)c->results[1].u.t->data;
  w.out[2] = c->results[2].u.t->numel ? c->results[2].u.t->data : NULL;
  if (!w.k || !w.a.count) {
    memset(w.rank, 0, (size_t)w.a.count * 8);
    memset(w.out[0], 0, (size_t)c->results[0].u.t->numel * w.a.item);
    return MOTH_OK;
  }
  int m = (int)w.a.m, n = (int)w.a.n, k = right_sides(&w), ask = -1, info = 0, rank = 0;
  int integers = 0;
  int big = m > n ? m : n;
  double best[2] = {0, 0}, none[2] = {0, 0}, real = 0;
  if (driver == MOTH_DRIVER_GELS)
    w.lapack->gels("N", &m, &n, &k, none, &m, none, &big, best, &ask, &info, 1);
  else if (driver == MOTH_DRIVER_GELSY && w.a.is_complex)
    w.lapack->complex_gelsy(&m, &n, &k, none, &m, none, &big, &integers, none, &rank, best, &ask,
                            none, &info);
  else if (driver == MOTH_DRIVER_GELSY)
    w.lapack->gelsy(&m, &n, &k, none, &m, none, &big, &integers, none, &rank, best, &ask, &info);
  else if (driver == MOTH_DRIVER_GELSD && w.a.is_complex)
    w.lapack->complex_gelsd(&m, &n, &k, none, &m, none, &big, none, none, &rank, best, &ask, &real,
                            &integers, &info);
  else if (driver == MOTH_DRIVER_GELSD)
    w.lapack->gelsd(&m, &n, &k, none, &m, none, &big, none, none, &rank, best, &ask, &integers,
                    &info);
  else if (w.a.is_complex)
    w.lapack->complex_gelss(&m, &n, &k, none, &m, none, &big, none, none, &rank, best, &ask, none,
                            &info);
  else
    w.lapack->gelss(&m, &n, &k, none, &m, none, &big, none, none, &rank, best, &ask, &info);
  w.lwork = asked(best, w.a.real);
  w.iw = driver == MOTH_DRIVER_GELSD ? integers : n;
  add_part(&w, 0, (int64_t)m * n, w.a.item);
  add_part(&w, 1, (int64_t)big * k, w.a.item);
  add_part(&w, 2, w.lwork, w.a.item);
  add_part(&w, 3, w.iw, sizeof(int));
  if (w.a.is_complex)
    add_part(&w, 4, driver == MOTH_DRIVER_GELSD ? asked(&real, w.a.real) : 5 * (int64_t)big,
             w.a.real);
  MothTensor *infos;
  int64_t count = w.a.count;
  MOTH_TRY(moth_tensor_new(1, &count, MOTH_INT32, A->device, &infos));
  w.info = (int32_t *)infos->data;
  memset(w.info, 0, (size_t)count * 4);
  MothStatus status = moth_lapack_each(count, 4.0 * (double)m * (double)n * (double)(w.k + k),
                                       w.bytes, lstsq_one, &w);
  if (status == MOTH_OK)
    status = moth_matrices_check(
        A, w.info, count, driver == MOTH_DRIVER_GELS ? MOTH_NOT_FULL_RANK : MOTH_NO_CONVERGENCE);
  moth_tensor_release(infos);
  return status;
}
