/* As much of cuSOLVER's and cuBLAS's interfaces as kernels/cuda/solver.cu uses, for the emulation: by the LAPACK of the
 * host (cusolver.cc). */
#ifndef MOTH_EMU_CUSOLVER_H
#define MOTH_EMU_CUSOLVER_H
#include "emu/cublaslt.h"

typedef enum {
  CUSOLVER_STATUS_SUCCESS = 0,
  CUSOLVER_STATUS_NOT_INITIALIZED = 1,
  CUSOLVER_STATUS_ALLOC_FAILED = 2,
  CUSOLVER_STATUS_INVALID_VALUE = 3,
  CUSOLVER_STATUS_EXECUTION_FAILED = 6
} cusolverStatus_t;
typedef enum { CUSOLVER_EIG_MODE_NOVECTOR = 0, CUSOLVER_EIG_MODE_VECTOR = 1 } cusolverEigMode_t;
typedef enum { CUBLAS_FILL_MODE_LOWER = 0, CUBLAS_FILL_MODE_UPPER = 1 } cublasFillMode_t;
typedef enum { CUBLAS_SIDE_LEFT = 0, CUBLAS_SIDE_RIGHT = 1 } cublasSideMode_t;
typedef enum { CUBLAS_DIAG_NON_UNIT = 0, CUBLAS_DIAG_UNIT = 1 } cublasDiagType_t;
typedef int cublasOperation_t;
typedef cudaDataType_t cudaDataType;
typedef struct cusolverDnContext *cusolverDnHandle_t;
typedef struct cusolverDnParams *cusolverDnParams_t;
typedef struct cublasContext *cublasHandle_t;

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t *handle);
cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream);
cusolverStatus_t cusolverDnCreateParams(cusolverDnParams_t *params);
cusolverStatus_t cusolverDnXpotrf_bufferSize(cusolverDnHandle_t, cusolverDnParams_t,
                                             cublasFillMode_t uplo, int64_t n, cudaDataType type,
                                             const void *a, int64_t lda, cudaDataType computed,
                                             size_t *device, size_t *host);
cusolverStatus_t cusolverDnXpotrf(cusolverDnHandle_t, cusolverDnParams_t, cublasFillMode_t uplo,
                                  int64_t n, cudaDataType type, void *a, int64_t lda,
                                  cudaDataType computed, void *on_device, size_t device,
                                  void *on_host, size_t host, int *info);
cusolverStatus_t cusolverDnXgetrf_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, int64_t m,
                                             int64_t n, cudaDataType type, const void *a,
                                             int64_t lda, cudaDataType computed, size_t *device,
                                             size_t *host);
cusolverStatus_t cusolverDnXgetrf(cusolverDnHandle_t, cusolverDnParams_t, int64_t m, int64_t n,
                                  cudaDataType type, void *a, int64_t lda, int64_t *pivots,
                                  cudaDataType computed, void *on_device, size_t device,
                                  void *on_host, size_t host, int *info);
cusolverStatus_t cusolverDnXgetrs(cusolverDnHandle_t, cusolverDnParams_t, cublasOperation_t trans,
                                  int64_t n, int64_t k, cudaDataType type, const void *a,
                                  int64_t lda, const int64_t *pivots, cudaDataType type_b, void *b,
                                  int64_t ldb, int *info);
cusolverStatus_t cusolverDnXgeqrf_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, int64_t m,
                                             int64_t n, cudaDataType type, const void *a,
                                             int64_t lda, cudaDataType type_tau, const void *tau,
                                             cudaDataType computed, size_t *device, size_t *host);
cusolverStatus_t cusolverDnXgeqrf(cusolverDnHandle_t, cusolverDnParams_t, int64_t m, int64_t n,
                                  cudaDataType type, void *a, int64_t lda, cudaDataType type_tau,
                                  void *tau, cudaDataType computed, void *on_device, size_t device,
                                  void *on_host, size_t host, int *info);
cusolverStatus_t cusolverDnXsyevd_bufferSize(cusolverDnHandle_t, cusolverDnParams_t,
                                             cusolverEigMode_t job, cublasFillMode_t uplo,
                                             int64_t n, cudaDataType type, const void *a,
                                             int64_t lda, cudaDataType type_w, const void *w,
                                             cudaDataType computed, size_t *device, size_t *host);
cusolverStatus_t cusolverDnXsyevd(cusolverDnHandle_t, cusolverDnParams_t, cusolverEigMode_t job,
                                  cublasFillMode_t uplo, int64_t n, cudaDataType type, void *a,
                                  int64_t lda, cudaDataType type_w, void *w, cudaDataType computed,
                                  void *on_device, size_t device, void *on_host, size_t host,
                                  int *info);
cusolverStatus_t cusolverDnXsyevBatched_bufferSize(cusolverDnHandle_t, cusolverDnParams_t,
                                                   cusolverEigMode_t job, cublasFillMode_t uplo,
                                                   int64_t n, cudaDataType type, const void *a,
                                                   int64_t lda, cudaDataType type_w, const void *w,
                                                   cudaDataType computed, size_t *device,
                                                   size_t *host, int64_t count);
cusolverStatus_t cusolverDnXsyevBatched(cusolverDnHandle_t, cusolverDnParams_t,
                                        cusolverEigMode_t job, cublasFillMode_t uplo, int64_t n,
                                        cudaDataType type, void *a, int64_t lda,
                                        cudaDataType type_w, void *w, cudaDataType computed,
                                        void *on_device, size_t device, void *on_host, size_t host,
                                        int *info, int64_t count);
cusolverStatus_t cusolverDnXgeev_bufferSize(cusolverDnHandle_t, cusolverDnParams_t,
                                            cusolverEigMode_t left, cusolverEigMode_t right,
                                            int64_t n, cudaDataType type, const void *a,
                                            int64_t lda, cudaDataType type_w, const void *w,
                                            cudaDataType type_vl, const void *vl, int64_t ldvl,
                                            cudaDataType type_vr, const void *vr, int64_t ldvr,
                                            cudaDataType computed, size_t *device, size_t *host);
cusolverStatus_t cusolverDnXgeev(cusolverDnHandle_t, cusolverDnParams_t, cusolverEigMode_t left,
                                 cusolverEigMode_t right, int64_t n, cudaDataType type, void *a,
                                 int64_t lda, cudaDataType type_w, void *w, cudaDataType type_vl,
                                 void *vl, int64_t ldvl, cudaDataType type_vr, void *vr,
                                 int64_t ldvr, cudaDataType computed, void *on_device,
                                 size_t device, void *on_host, size_t host, int *info);
cusolverStatus_t cusolverDnXgesvd_bufferSize(cusolverDnHandle_t, cusolverDnParams_t,
                                             signed char job_u, signed char job_vt, int64_t m,
                                             int64_t n, cudaDataType type, const void *a,
                                             int64_t lda, cudaDataType type_s, const void *s,
                                             cudaDataType type_u, const void *u, int64_t ldu,
                                             cudaDataType type_vt, const void *vt, int64_t ldvt,
                                             cudaDataType computed, size_t *device, size_t *host);
cusolverStatus_t cusolverDnXgesvd(cusolverDnHandle_t, cusolverDnParams_t, signed char job_u,
                                  signed char job_vt, int64_t m, int64_t n, cudaDataType type,
                                  void *a, int64_t lda, cudaDataType type_s, void *s,
                                  cudaDataType type_u, void *u, int64_t ldu, cudaDataType type_vt,
                                  void *vt, int64_t ldvt, cudaDataType computed, void *on_device,
                                  size_t device, void *on_host, size_t host, int *info);
cusolverStatus_t cusolverDnXsytrs_bufferSize(cusolverDnHandle_t, cublasFillMode_t uplo, int64_t n,
                                             int64_t k, cudaDataType type, const void *a,
                                             int64_t lda, const int64_t *pivots,
                                             cudaDataType type_b, void *b, int64_t ldb,
                                             size_t *device, size_t *host);
cusolverStatus_t cusolverDnXsytrs(cusolverDnHandle_t, cublasFillMode_t uplo, int64_t n, int64_t k,
                                  cudaDataType type, const void *a, int64_t lda,
                                  const int64_t *pivots, cudaDataType type_b, void *b, int64_t ldb,
                                  void *on_device, size_t device, void *on_host, size_t host,
                                  int *info);

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle);
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream);

/* Functions that are there for each of four dtypes. The libraries' own say float, double, cuComplex, cuDoubleComplex. */
#define EMU_ORGQR_SIZE(name)                                                                       \
  cusolverStatus_t name(cusolverDnHandle_t handle, int m, int n, int k, const void *a, int lda,    \
                        const void *tau, int *size)
#define EMU_ORGQR(name)                                                                            \
  cusolverStatus_t name(cusolverDnHandle_t handle, int m, int n, int k, void *a, int lda,          \
                        const void *tau, void *work, int lwork, int *info)
#define EMU_ORMQR_SIZE(name)                                                                       \
  cusolverStatus_t name(cusolverDnHandle_t handle, cublasSideMode_t side, cublasOperation_t trans, \
                        int m, int n, int k, const void *a, int lda, const void *tau,              \
                        const void *c, int ldc, int *size)
#define EMU_ORMQR(name)                                                                            \
  cusolverStatus_t name(cusolverDnHandle_t handle, cublasSideMode_t side, cublasOperation_t trans, \
                        int m, int n, int k, const void *a, int lda, const void *tau, void *c,     \
                        int ldc, void *work, int lwork, int *info)
#define EMU_SYTRF_SIZE(name)                                                                       \
  cusolverStatus_t name(cusolverDnHandle_t handle, int n, void *a, int lda, int *size)
#define EMU_SYTRF(name)                                                                            \
  cusolverStatus_t name(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, void *a, int lda, \
                        int *pivots, void *work, int lwork, int *info)
#define EMU_POTRF_BATCHED(name)                                                                    \
  cusolverStatus_t name(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, void **a,         \
                        int lda, int *info, int count)
#define EMU_GETRF_BATCHED(name)                                                                    \
  cublasStatus_t name(cublasHandle_t handle, int n, void *const *a, int lda, int *pivots,          \
                      int *info, int count)
#define EMU_GETRS_BATCHED(name)                                                                    \
  cublasStatus_t name(cublasHandle_t handle, cublasOperation_t trans, int n, int k,                \
                      const void *const *a, int lda, const int *pivots, void *const *b, int ldb,   \
                      int *info, int count)
#define EMU_TRSM(name)                                                                             \
  cublasStatus_t name(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo,         \
                      cublasOperation_t trans, cublasDiagType_t diag, int m, int n,                \
                      const void *alpha, const void *a, int lda, void *b, int ldb)
#define EMU_TRSM_BATCHED(name)                                                                     \
  cublasStatus_t name(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo,         \
                      cublasOperation_t trans, cublasDiagType_t diag, int m, int n,                \
                      const void *alpha, const void *const *a, int lda, void *const *b, int ldb,   \
                      int count)
/* X(its interface, what it does in cusolver.cc, names for s, d, c, z) */
#define EMU_TYPED_FUNCTIONS(X)                                                                     \
  X(EMU_ORGQR_SIZE, orgqr_size(m, n, k, size), cusolverDnSorgqr_bufferSize,                        \
    cusolverDnDorgqr_bufferSize, cusolverDnCungqr_bufferSize, cusolverDnZungqr_bufferSize)         \
  X(EMU_ORGQR, orgqr(type, handle, m, n, k, a, lda, tau, work, lwork, info), cusolverDnSorgqr,     \
    cusolverDnDorgqr, cusolverDnCungqr, cusolverDnZungqr)                                          \
  X(EMU_ORMQR_SIZE, ormqr_size(type, trans, size), cusolverDnSormqr_bufferSize,                    \
    cusolverDnDormqr_bufferSize, cusolverDnCunmqr_bufferSize, cusolverDnZunmqr_bufferSize)         \
  X(EMU_ORMQR, ormqr(type, handle, side, trans, m, n, k, a, lda, tau, c, ldc, work, lwork, info),  \
    cusolverDnSormqr, cusolverDnDormqr, cusolverDnCunmqr, cusolverDnZunmqr)                        \
  X(EMU_SYTRF_SIZE, sytrf_size(n, lda, size), cusolverDnSsytrf_bufferSize,                         \
    cusolverDnDsytrf_bufferSize, cusolverDnCsytrf_bufferSize, cusolverDnZsytrf_bufferSize)         \
  X(EMU_SYTRF, sytrf(type, handle, uplo, n, a, lda, pivots, work, lwork, info), cusolverDnSsytrf,  \
    cusolverDnDsytrf, cusolverDnCsytrf, cusolverDnZsytrf)                                          \
  X(EMU_POTRF_BATCHED, potrf_batched(type, handle, uplo, n, a, lda, info, count),                  \
    cusolverDnSpotrfBatched, cusolverDnDpotrfBatched, cusolverDnCpotrfBatched,                     \
    cusolverDnZpotrfBatched)                                                                       \
  X(EMU_GETRF_BATCHED, getrf_batched(type, handle, n, a, lda, pivots, info, count),                \
    cublasSgetrfBatched, cublasDgetrfBatched, cublasCgetrfBatched, cublasZgetrfBatched)            \
  X(EMU_GETRS_BATCHED,                                                                             \
    getrs_batched(type, handle, trans, n, k, a, lda, pivots, b, ldb, info, count),                 \
    cublasSgetrsBatched, cublasDgetrsBatched, cublasCgetrsBatched, cublasZgetrsBatched)            \
  X(EMU_TRSM, trsm(type, handle, side, uplo, trans, diag, m, n, alpha, a, lda, b, ldb),            \
    cublasStrsm_v2, cublasDtrsm_v2, cublasCtrsm_v2, cublasZtrsm_v2)                                \
  X(EMU_TRSM_BATCHED,                                                                              \
    trsm_batched(type, handle, side, uplo, trans, diag, m, n, alpha, a, lda, b, ldb, count),       \
    cublasStrsmBatched, cublasDtrsmBatched, cublasCtrsmBatched, cublasZtrsmBatched)
#define EMU_DECLARE(interface, call, s, d, c, z)                                                   \
  interface(s);                                                                                    \
  interface(d);                                                                                    \
  interface(c);                                                                                    \
  interface(z);
EMU_TYPED_FUNCTIONS(EMU_DECLARE)
#endif
