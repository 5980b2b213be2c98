/* LAPACK on the CPU: the Fortran functions of the BLAS library (blas.c), for float32, float64, complex64 and
 * complex128; matrices between tensors and LAPACK's column-major memory; loops over a batch. */
#ifndef MOTH_CPU_LAPACK_H
#define MOTH_CPU_LAPACK_H
#include "dispatch/dispatch.h"
#include "kernels/common/matrices.h"

/* X(field, name for real numbers, for complex ones, arguments): all are given by address; the lengths of texts follow
 * behind, as gfortran has it. */
#define MOTH_LAPACK_LIST(X)                                                                        \
  X(potrf, potrf, potrf,                                                                           \
    (const char *uplo, const int *n, void *a, const int *lda, int *info, size_t))                  \
  X(getrf, getrf, getrf,                                                                           \
    (const int *m, const int *n, void *a, const int *lda, int *pivots, int *info))                 \
  X(getrs, getrs, getrs,                                                                           \
    (const char *trans, const int *n, const int *k, const void *a, const int *lda,                 \
     const int *pivots, void *b, const int *ldb, int *info, size_t))                               \
  X(trsm, trsm, trsm,                                                                              \
    (const char *side, const char *uplo, const char *trans, const char *diag, const int *m,        \
     const int *n, const void *alpha, const void *a, const int *lda, void *b, const int *ldb,      \
     size_t, size_t, size_t, size_t))                                                              \
  X(geqrf, geqrf, geqrf,                                                                           \
    (const int *m, const int *n, void *a, const int *lda, void *tau, void *work, const int *lwork, \
     int *info))                                                                                   \
  X(orgqr, orgqr, ungqr,                                                                           \
    (const int *m, const int *n, const int *k, void *a, const int *lda, const void *tau,           \
     void *work, const int *lwork, int *info))                                                     \
  X(ormqr, ormqr, unmqr,                                                                           \
    (const char *side, const char *trans, const int *m, const int *n, const int *k, const void *a, \
     const int *lda, const void *tau, void *c, const int *ldc, void *work, const int *lwork,       \
     int *info, size_t, size_t))                                                                   \
  X(gels, gels, gels,                                                                              \
    (const char *trans, const int *m, const int *n, const int *k, void *a, const int *lda,         \
     void *b, const int *ldb, void *work, const int *lwork, int *info, size_t))                    \
  X(sytrf, sytrf, sytrf,                                                                           \
    (const char *uplo, const int *n, void *a, const int *lda, int *pivots, void *work,             \
     const int *lwork, int *info, size_t))                                                         \
  X(hetrf, sytrf, hetrf,                                                                           \
    (const char *uplo, const int *n, void *a, const int *lda, int *pivots, void *work,             \
     const int *lwork, int *info, size_t))                                                         \
  X(sytrs, sytrs, sytrs,                                                                           \
    (const char *uplo, const int *n, const int *k, const void *a, const int *lda,                  \
     const int *pivots, void *b, const int *ldb, int *info, size_t))                               \
  X(hetrs, sytrs, hetrs,                                                                           \
    (const char *uplo, const int *n, const int *k, const void *a, const int *lda,                  \
     const int *pivots, void *b, const int *ldb, int *info, size_t))

/* Those whose arguments differ: X(field, name, arguments). Complex ones have real workspace, rwork. */
#define MOTH_LAPACK_REAL_LIST(X)                                                                   \
  X(syevd, syevd,                                                                                  \
    (const char *job, const char *uplo, const int *n, void *a, const int *lda, void *w,            \
     void *work, const int *lwork, int *iwork, const int *liwork, int *info, size_t, size_t))      \
  X(gesdd, gesdd,                                                                                  \
    (const char *job, const int *m, const int *n, void *a, const int *lda, void *s, void *u,       \
     const int *ldu, void *vt, const int *ldvt, void *work, const int *lwork, int *iwork,          \
     int *info, size_t))                                                                           \
  X(gesvd, gesvd,                                                                                  \
    (const char *jobu, const char *jobvt, const int *m, const int *n, void *a, const int *lda,     \
     void *s, void *u, const int *ldu, void *vt, const int *ldvt, void *work, const int *lwork,    \
     int *info, size_t, size_t))                                                                   \
  X(gelsy, gelsy,                                                                                  \
    (const int *m, const int *n, const int *k, void *a, const int *lda, void *b, const int *ldb,   \
     int *jpvt, const void *rcond, int *rank, void *work, const int *lwork, int *info))            \
  X(gelsd, gelsd,                                                                                  \
    (const int *m, const int *n, const int *k, void *a, const int *lda, void *b, const int *ldb,   \
     void *s, const void *rcond, int *rank, void *work, const int *lwork, int *iwork, int *info))  \
  X(gelss, gelss,                                                                                  \
    (const int *m, const int *n, const int *k, void *a, const int *lda, void *b, const int *ldb,   \
     void *s, const void *rcond, int *rank, void *work, const int *lwork, int *info))              \
  X(geev, geev,                                                                                    \
    (const char *left, const char *right, const int *n, void *a, const int *lda, void *re,         \
     void *im, void *vl, const int *ldvl, void *vr, const int *ldvr, void *work, const int *lwork, \
     int *info, size_t, size_t))
#define MOTH_LAPACK_COMPLEX_LIST(X)                                                                \
  X(heevd, heevd,                                                                                  \
    (const char *job, const char *uplo, const int *n, void *a, const int *lda, void *w,            \
     void *work, const int *lwork, void *rwork, const int *lrwork, int *iwork, const int *liwork,  \
     int *info, size_t, size_t))                                                                   \
  X(complex_gesdd, gesdd,                                                                          \
    (const char *job, const int *m, const int *n, void *a, const int *lda, void *s, void *u,       \
     const int *ldu, void *vt, const int *ldvt, void *work, const int *lwork, void *rwork,         \
     int *iwork, int *info, size_t))                                                               \
  X(complex_gesvd, gesvd,                                                                          \
    (const char *jobu, const char *jobvt, const int *m, const int *n, void *a, const int *lda,     \
     void *s, void *u, const int *ldu, void *vt, const int *ldvt, void *work, const int *lwork,    \
     void *rwork, int *info, size_t, size_t))                                                      \
  X(complex_gelsy, gelsy,                                                                          \
    (const int *m, const int *n, const int *k, void *a, const int *lda, void *b, const int *ldb,   \
     int *jpvt, const void *rcond, int *rank, void *work, const int *lwork, void *rwork,           \
     int *info))                                                                                   \
  X(complex_gelsd, gelsd,                                                                          \
    (const int *m, const int *n, const int *k, void *a, const int *lda, void *b, const int *ldb,   \
     void *s, const void *rcond, int *rank, void *work, const int *lwork, void *rwork, int *iwork, \
     int *info))                                                                                   \
  X(complex_gelss, gelss,                                                                          \
    (const int *m, const int *n, const int *k, void *a, const int *lda, void *b, const int *ldb,   \
     void *s, const void *rcond, int *rank, void *work, const int *lwork, void *rwork, int *info)) \
  X(complex_geev, geev,                                                                            \
    (const char *left, const char *right, const int *n, void *a, const int *lda, void *w,          \
     void *vl, const int *ldvl, void *vr, const int *ldvr, void *work, const int *lwork,           \
     void *rwork, int *info, size_t, size_t))

typedef struct MothLapack {
#define MOTH_LAPACK_SHARED(field, real, complex, arguments) void(*field) arguments;
#define MOTH_LAPACK_FIELD(field, name, arguments)           void(*field) arguments;
  MOTH_LAPACK_LIST(MOTH_LAPACK_SHARED)
  MOTH_LAPACK_REAL_LIST(MOTH_LAPACK_FIELD)    /* NULL for complex numbers */
  MOTH_LAPACK_COMPLEX_LIST(MOTH_LAPACK_FIELD) /* NULL for real numbers */
#undef MOTH_LAPACK_SHARED
#undef MOTH_LAPACK_FIELD
} MothLapack;

/* Those for a dtype (float32, float64, complex64, complex128). Error: there is no such library, or it lacks a function. */
MothStatus moth_lapack(MothDType dtype, const MothLapack **out);

/* Copies matrix i to `to`, row-major: row j begins at element j * ld. */
void moth_load_rows(const MothMatrices *x, int64_t i, void *to, int64_t ld);
/* The same column-major: column j begins at j * ld. */
void moth_load_columns(const MothMatrices *x, int64_t i, void *to, int64_t ld);
/* Writes an m x n matrix, column-major, into row-major memory `to`. */
void moth_store_columns(const void *from, int64_t ld, int64_t m, int64_t n, void *to, size_t item);

/* Calls one(ctx, i, work) for each i below count, in parallel, each on one thread of LAPACK, with `bytes` bytes of
 * workspace of its own at work. flops: what one costs. Error: no memory. */
MothStatus moth_lapack_each(int64_t count, double flops, size_t bytes,
                            void (*one)(void *ctx, int64_t i, char *work), void *ctx);

/* A size as LAPACK wants it: leading dimensions are at least 1. */
static inline int moth_leading(int64_t n) {
  return n > 0 ? (int)n : 1;
}
/* n bytes, up to a multiple of 64: parts of a workspace. */
static inline size_t moth_part(int64_t n, size_t item) {
  return ((size_t)(n > 0 ? n : 1) * item + 63) & ~(size_t)63;
}
/* Reads and writes a real element of a work array as a double; of complex arrays the parts, i from 0 by turns. */
double moth_get_real(const void *p, int64_t i, size_t item);
void moth_set_real(void *p, int64_t i, size_t item, double v);
#endif
