/* The emulation's cuSOLVER and the solvers of its cuBLAS: LAPACK of the host's OpenBLAS, run in the order of the stream.
 * Workspaces must be there and are overwritten. MOTH_EMU_CUSOLVER=fail lets calls fail, so that specs can test it;
 * without a LAPACK all do. */
#include "emu/cusolver.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <complex>
#include <vector>

#include "emu/emu.h"

struct cusolverDnContext {
  cudaStream_t stream;
};
struct cusolverDnParams {
  int unused;
};
struct cublasContext {
  cudaStream_t stream;
};

enum { WORKSPACE = 256, HOST_WORKSPACE = 64 };

/* --- LAPACK --------------------------------------------------------------------------------------- */

static bool is_complex(cudaDataType t) {
  return t == CUDA_C_32F || t == CUDA_C_64F;
}
static cudaDataType real_of(cudaDataType t) {
  return t == CUDA_C_32F ? CUDA_R_32F : t == CUDA_C_64F ? CUDA_R_64F : t;
}
static bool is_known(cudaDataType t) {
  return real_of(t) == CUDA_R_32F || real_of(t) == CUDA_R_64F;
}
static size_t size_of(cudaDataType t) {
  return (real_of(t) == CUDA_R_64F ? 8 : 4) * (is_complex(t) ? 2 : 1);
}

static void *library(void) {
  static void *opened = []() {
    void *found = nullptr;
    for (const char *path :
         {(const char *)getenv("MOTH_BLAS"),
          "/usr/lib/x86_64-linux-gnu/openblas-openmp/libopenblas.so.0", "libopenblas.so.0"})
      if (!found && path)
        found = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return found && dlsym(found, "zgesvd_") ? found : nullptr;
  }();
  return opened;
}

/* While it lives, LAPACK uses this thread alone: its others would wait for processors that are busy. */
struct OneThread {
  void (*set)(int) = reinterpret_cast<void (*)(int)>(dlsym(library(), "omp_set_num_threads"));
  int (*get)(void) = reinterpret_cast<int (*)(void)>(dlsym(library(), "omp_get_max_threads"));
  int before = set && get ? get() : 0;
  OneThread() {
    if (before)
      set(1);
  }
  ~OneThread() {
    if (before)
      set(before);
  }
};

/* Calls the Fortran function of a dtype, "potrf" of spotrf_, dpotrf_ …; `whole` is its name for complex numbers if that is
 * another. All arguments are addresses; the lengths of texts behind them are 1. */
template <class... A> static void call(cudaDataType t, const char *name, A... a) {
  char symbol[32];
  const char *whole = !is_complex(t)           ? name
                      : !strcmp(name, "orgqr") ? "ungqr"
                      : !strcmp(name, "ormqr") ? "unmqr"
                      : !strcmp(name, "syevd") ? "heevd"
                                               : name;
  snprintf(symbol, sizeof symbol, "%c%s_",
           "sdcz"[(is_complex(t) ? 2 : 0) + (real_of(t) == CUDA_R_64F)], whole);
  if (void *f = dlsym(library(), symbol))
    reinterpret_cast<void (*)(A..., size_t, size_t, size_t, size_t)>(f)(a..., 1, 1, 1, 1);
}

/* An array of n elements. */
struct Memory {
  std::vector<char> bytes;
  Memory(cudaDataType t, size_t n) : bytes((n ? n : 1) * size_of(t)) {}
  void *p() { return bytes.data(); }
};
static int asked(cudaDataType t, const void *best) {
  double n = real_of(t) == CUDA_R_64F ? *static_cast<const double *>(best)
                                      : (double)*static_cast<const float *>(best);
  return (int)(n * 1.0001) + 1;
}
/* Calls run(workspace, its size) twice: to ask for the size, and to compute. */
template <class F> static void with_workspace(cudaDataType t, F run) {
  double best[2] = {0, 0};
  int ask = -1;
  run(static_cast<void *>(best), &ask);
  int n = asked(t, best);
  Memory work(t, (size_t)n);
  run(work.p(), &n);
}

/* --- streams -------------------------------------------------------------------------------------- */

/* Puts f on the stream; it overwrites its workspace of the device. */
template <class S, class F> static S put(cudaStream_t stream, void *work, size_t size, F f) {
  const char *told = getenv("MOTH_EMU_CUSOLVER");
  if ((told && !strcmp(told, "fail")) || !library())
    return (S)CUSOLVER_STATUS_EXECUTION_FAILED;
  std::lock_guard<std::mutex> locked(moth_emu_mutex);
  if (moth_emu_barred() != cudaSuccess || moth_emu_stream(stream, &stream) != cudaSuccess)
    return (S)CUSOLVER_STATUS_EXECUTION_FAILED;
  cudaError_t e = moth_emu_put(stream, [=]() {
    OneThread alone;
    if (size)
      memset(work, 0x5a, size);
    f();
    return cudaSuccess;
  });
  return (S)(e == cudaSuccess ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_EXECUTION_FAILED);
}
template <class F>
static cusolverStatus_t solve(cusolverDnHandle_t handle, void *work, size_t size, F f) {
  return put<cusolverStatus_t>(handle->stream, work, size, f);
}
template <class F> static cublasStatus_t blas(cublasHandle_t handle, F f) {
  cublasStatus_t s = put<cublasStatus_t>(handle->stream, nullptr, 0, f);
  return s == CUBLAS_STATUS_SUCCESS ? s : CUBLAS_STATUS_EXECUTION_FAILED;
}
static cusolverStatus_t sizes(bool right, size_t *device, size_t *host) {
  *device = WORKSPACE;
  *host = HOST_WORKSPACE;
  return right ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_INVALID_VALUE;
}
static bool has(void *on_device, size_t device, void *on_host, size_t host) {
  return on_device && on_host && device >= WORKSPACE && host >= HOST_WORKSPACE;
}
static const char *uplo_of(cublasFillMode_t uplo) {
  return uplo == CUBLAS_FILL_MODE_LOWER ? "L" : "U";
}
static const char *trans_of(cublasOperation_t trans) {
  return trans == CUBLAS_OP_N ? "N" : trans == CUBLAS_OP_T ? "T" : "C";
}
static const char *side_of(cublasSideMode_t side) {
  return side == CUBLAS_SIDE_LEFT ? "L" : "R";
}

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t *handle) {
  if (!library())
    return CUSOLVER_STATUS_NOT_INITIALIZED;
  *handle = new cusolverDnContext();
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnCreateParams(cusolverDnParams_t *params) {
  static cusolverDnParams one;
  *params = &one;
  return CUSOLVER_STATUS_SUCCESS;
}
cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
  *handle = new cublasContext();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

/* --- Cholesky and LU ------------------------------------------------------------------------------ */

cusolverStatus_t cusolverDnXpotrf_bufferSize(cusolverDnHandle_t, cusolverDnParams_t,
                                             cublasFillMode_t, int64_t n, cudaDataType type,
                                             const void *, int64_t lda, cudaDataType computed,
                                             size_t *device, size_t *host) {
  return sizes(is_known(type) && type == computed && n > 0 && lda >= n, device, host);
}
cusolverStatus_t cusolverDnXpotrf(cusolverDnHandle_t handle, cusolverDnParams_t,
                                  cublasFillMode_t uplo, int64_t n, cudaDataType type, void *a,
                                  int64_t lda, cudaDataType computed, void *on_device,
                                  size_t device, void *on_host, size_t host, int *info) {
  if (!is_known(type) || type != computed || !has(on_device, device, on_host, host) || lda < n)
    return CUSOLVER_STATUS_INVALID_VALUE;
  return solve(handle, on_device, device, [=]() {
    int size = (int)n, ld = (int)lda;
    call(type, "potrf", uplo_of(uplo), &size, a, &ld, info);
  });
}
static cusolverStatus_t potrf_batched(cudaDataType type, cusolverDnHandle_t handle,
                                      cublasFillMode_t uplo, int n, void **a, int lda, int *info,
                                      int count) {
  if (n < 1 || lda < n || count < 1)
    return CUSOLVER_STATUS_INVALID_VALUE;
  return solve(handle, nullptr, 0, [=]() {
    for (int i = 0; i < count; i++)
      call(type, "potrf", uplo_of(uplo), &n, a[i], &lda, info + i);
  });
}

template <class T> static void eliminate(T *a, int m, int n, int lda, int *info) {
  *info = 0;
  for (int k = 0; k < m && k < n; k++) {
    T pivot = a[k * lda + k];
    if (pivot == T(0)) {
      *info = *info ? *info : k + 1;
      continue;
    }
    for (int i = k + 1; i < m; i++)
      a[k * lda + i] /= pivot;
    for (int j = k + 1; j < n; j++)
      for (int i = k + 1; i < m; i++)
        a[j * lda + i] -= a[k * lda + i] * a[j * lda + k];
  }
}
/* Without pivots no rows are exchanged. */
static void getrf(cudaDataType type, int m, int n, void *a, int lda, int *pivots, int *info) {
  if (pivots)
    call(type, "getrf", &m, &n, a, &lda, pivots, info);
  else if (type == CUDA_R_32F)
    eliminate(static_cast<float *>(a), m, n, lda, info);
  else if (type == CUDA_R_64F)
    eliminate(static_cast<double *>(a), m, n, lda, info);
  else if (type == CUDA_C_32F)
    eliminate(static_cast<std::complex<float> *>(a), m, n, lda, info);
  else
    eliminate(static_cast<std::complex<double> *>(a), m, n, lda, info);
}
cusolverStatus_t cusolverDnXgetrf_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, int64_t m,
                                             int64_t n, cudaDataType type, const void *,
                                             int64_t lda, cudaDataType computed, size_t *device,
                                             size_t *host) {
  return sizes(is_known(type) && type == computed && m > 0 && n > 0 && lda >= m, device, host);
}
cusolverStatus_t cusolverDnXgetrf(cusolverDnHandle_t handle, cusolverDnParams_t, int64_t m,
                                  int64_t n, cudaDataType type, void *a, int64_t lda,
                                  int64_t *pivots, cudaDataType computed, void *on_device,
                                  size_t device, void *on_host, size_t host, int *info) {
  if (!is_known(type) || type != computed || !has(on_device, device, on_host, host) || lda < m)
    return CUSOLVER_STATUS_INVALID_VALUE;
  return solve(handle, on_device, device, [=]() {
    std::vector<int> p((size_t)(m < n ? m : n));
    getrf(type, (int)m, (int)n, a, (int)lda, pivots ? p.data() : nullptr, info);
    for (size_t i = 0; pivots && i < p.size(); i++)
      pivots[i] = p[i];
  });
}
static cublasStatus_t getrf_batched(cudaDataType type, cublasHandle_t handle, int n, void *const *a,
                                    int lda, int *pivots, int *info, int count) {
  if (n < 1 || lda < n || count < 1)
    return CUBLAS_STATUS_INVALID_VALUE;
  return blas(handle, [=]() {
    for (int i = 0; i < count; i++)
      getrf(type, n, n, a[i], lda, pivots ? pivots + i * n : nullptr, info + i);
  });
}
static void getrs(cudaDataType type, cublasOperation_t trans, int n, int k, const void *a, int lda,
                  const int *pivots, void *b, int ldb, int *info) {
  call(type, "getrs", trans_of(trans), &n, &k, a, &lda, pivots, b, &ldb, info);
}
cusolverStatus_t cusolverDnXgetrs(cusolverDnHandle_t handle, cusolverDnParams_t,
                                  cublasOperation_t trans, int64_t n, int64_t k, cudaDataType type,
                                  const void *a, int64_t lda, const int64_t *pivots,
                                  cudaDataType type_b, void *b, int64_t ldb, int *info) {
  if (!is_known(type) || type != type_b || lda < n || ldb < n)
    return CUSOLVER_STATUS_INVALID_VALUE;
  return solve(handle, nullptr, 0, [=]() {
    std::vector<int> p(pivots, pivots + n);
    getrs(type, trans, (int)n, (int)k, a, (int)lda, p.data(), b, (int)ldb, info);
  });
}
static cublasStatus_t getrs_batched(cudaDataType type, cublasHandle_t handle,
                                    cublasOperation_t trans, int n, int k, const void *const *a,
                                    int lda, const int *pivots, void *const *b, int ldb, int *info,
                                    int count) {
  *info = n < 1 ? -2 : k < 1 ? -3 : lda < n ? -5 : ldb < n ? -8 : count < 1 ? -10 : 0;
  if (*info)
    return CUBLAS_STATUS_INVALID_VALUE;
  return blas(handle, [=]() {
    int ignored;
    for (int i = 0; i < count; i++)
      getrs(type, trans, n, k, a[i], lda, pivots + i * n, b[i], ldb, &ignored);
  });
}

/* --- LDL ------------------------------------------------------------------------------------------ */

static cusolverStatus_t sytrf_size(int n, int lda, int *size) {
  *size = WORKSPACE;
  return n > 0 && lda >= n ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_INVALID_VALUE;
}
static cusolverStatus_t sytrf(cudaDataType type, cusolverDnHandle_t handle, cublasFillMode_t uplo,
                              int n, void *a, int lda, int *pivots, void *work, int lwork,
                              int *info) {
  if (n < 1 || lda < n || !pivots || !work || lwork < WORKSPACE)
    return CUSOLVER_STATUS_INVALID_VALUE;
  return solve(handle, work, WORKSPACE * size_of(type), [=]() {
    with_workspace(type, [&](void *own, int *size) {
      call(type, "sytrf", uplo_of(uplo), &n, a, &lda, pivots, own, size, info);
    });
  });
}
cusolverStatus_t cusolverDnXsytrs_bufferSize(cusolverDnHandle_t, cublasFillMode_t, int64_t n,
                                             int64_t, cudaDataType type, const void *, int64_t lda,
                                             const int64_t *, cudaDataType type_b, void *,
                                             int64_t ldb, size_t *device, size_t *host) {
  return sizes(is_known(type) && type == type_b && n > 0 && lda >= n && ldb >= n, device, host);
}
cusolverStatus_t cusolverDnXsytrs(cusolverDnHandle_t handle, cublasFillMode_t uplo, int64_t n,
                                  int64_t k, cudaDataType type, const void *a, int64_t lda,
                                  const int64_t *pivots, cudaDataType type_b, void *b, int64_t ldb,
                                  void *on_device, size_t device, void *on_host, size_t host,
                                  int *info) {
  if (!is_known(type) || type != type_b || !has(on_device, device, on_host, host))
    return CUSOLVER_STATUS_INVALID_VALUE;
  return solve(handle, on_device, device, [=]() {
    int size = (int)n, columns = (int)k, ld = (int)lda, ld_b = (int)ldb;
    std::vector<int> p(pivots, pivots + n);
    call(type, "sytrs", uplo_of(uplo), &size, &columns, a, &ld, p.data(), b, &ld_b, info);
  });
}

/* --- QR ------------------------------------------------------------------------------------------- */

cusolverStatus_t cusolverDnXgeqrf_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, int64_t m,
                                             int64_t n, cudaDataType type, const void *,
                                             int64_t lda, cudaDataType type_tau, const void *,
                                             cudaDataType computed, size_t *device, size_t *host) {
  return sizes(is_known(type) && type == computed && type == type_tau && m > 0 && n > 0 && lda >= m,
               device, host);
}
cusolverStatus_t cusolverDnXgeqrf(cusolverDnHandle_t handle, cusolverDnParams_t, int64_t m,
                                  int64_t n, cudaDataType type, void *a, int64_t lda,
                                  cudaDataType type_tau, void *tau, cudaDataType computed,
                                  void *on_device, size_t device, void *on_host, size_t host,
                                  int *info) {
  if (!is_known(type) || type != computed || type != type_tau ||
      !has(on_device, device, on_host, host))
    return CUSOLVER_STATUS_INVALID_VALUE;
  return solve(handle, on_device, device, [=]() {
    int rows = (int)m, columns = (int)n, ld = (int)lda;
    with_workspace(type, [&](void *work, int *size) {
      call(type, "geqrf", &rows, &columns, a, &ld, tau, work, size, info);
    });
  });
}
static cusolverStatus_t orgqr_size(int m, int n, int k, int *size) {
  *size = WORKSPACE;
  return m >= n && n >= k && k > 0 ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_INVALID_VALUE;
}
static cusolverStatus_t orgqr(cudaDataType type, cusolverDnHandle_t handle, int m, int n, int k,
                              void *a, int lda, const void *tau, void *work, int lwork, int *info) {
  if (m < n || n < k || lda < m || !work || lwork < WORKSPACE)
    return CUSOLVER_STATUS_INVALID_VALUE;
  return solve(handle, work, WORKSPACE * size_of(type), [=]() {
    with_workspace(type, [&](void *own, int *size) {
      call(type, "orgqr", &m, &n, &k, a, &lda, tau, own, size, info);
    });
  });
}
static bool ormqr_takes(cudaDataType type, cublasOperation_t trans) {
  return trans == CUBLAS_OP_N || trans == (is_complex(type) ? CUBLAS_OP_C : CUBLAS_OP_T);
}
static cusolverStatus_t ormqr_size(cudaDataType type, cublasOperation_t trans, int *size) {
  *size = WORKSPACE;
  return ormqr_takes(type, trans) ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_INVALID_VALUE;
}
static cusolverStatus_t ormqr(cudaDataType type, cusolverDnHandle_t handle, cublasSideMode_t side,
                              cublasOperation_t trans, int m, int n, int k, const void *a, int lda,
                              const void *tau, void *c, int ldc, void *work, int lwork, int *info) {
  if (!ormqr_takes(type, trans) || lda < (side == CUBLAS_SIDE_LEFT ? m : n) || ldc < m || !work ||
      lwork < WORKSPACE || k < 1)
    return CUSOLVER_STATUS_INVALID_VALUE;
  return solve(handle, work, WORKSPACE * size_of(type), [=]() {
    with_workspace(type, [&](void *own, int *size) {
      call(type, "ormqr", side_of(side), trans_of(trans), &m, &n, &k, a, &lda, tau, c, &ldc, own,
           size, info);
    });
  });
}

/* --- eigenvalues and singular values -------------------------------------------------------------- */

static void syevd(cudaDataType t, const char *job, const char *uplo, int n, void *a, int lda,
                  void *w, int *info) {
  double best[2] = {0, 0}, real = 0;
  int ask = -1, integers = 0;
  if (is_complex(t))
    call(t, "syevd", job, uplo, &n, a, &lda, w, best, &ask, &real, &ask, &integers, &ask, info);
  else
    call(t, "syevd", job, uplo, &n, a, &lda, w, best, &ask, &integers, &ask, info);
  int size = asked(t, best), reals = is_complex(t) ? asked(t, &real) : 0;
  Memory work(t, (size_t)size), more(real_of(t), (size_t)reals);
  std::vector<int> whole((size_t)integers);
  if (is_complex(t))
    call(t, "syevd", job, uplo, &n, a, &lda, w, work.p(), &size, more.p(), &reals, whole.data(),
         &integers, info);
  else
    call(t, "syevd", job, uplo, &n, a, &lda, w, work.p(), &size, whole.data(), &integers, info);
}
cusolverStatus_t cusolverDnXsyevBatched_bufferSize(cusolverDnHandle_t, cusolverDnParams_t,
                                                   cusolverEigMode_t, cublasFillMode_t, int64_t n,
                                                   cudaDataType type, const void *, int64_t lda,
                                                   cudaDataType type_w, const void *,
                                                   cudaDataType computed, size_t *device,
                                                   size_t *host, int64_t count) {
  return sizes(is_known(type) && type == computed && type_w == real_of(type) && n > 0 && lda >= n &&
                   count > 0,
               device, host);
}
cusolverStatus_t cusolverDnXsyevBatched(cusolverDnHandle_t handle, cusolverDnParams_t,
                                        cusolverEigMode_t job, cublasFillMode_t uplo, int64_t n,
                                        cudaDataType type, void *a, int64_t lda,
                                        cudaDataType type_w, void *w, cudaDataType computed,
                                        void *on_device, size_t device, void *on_host, size_t host,
                                        int *info, int64_t count) {
  if (!is_known(type) || type != computed || type_w != real_of(type) ||
      !has(on_device, device, on_host, host))
    return CUSOLVER_STATUS_INVALID_VALUE;
  return solve(handle, on_device, device, [=]() {
    for (int64_t i = 0; i < count; i++)
      syevd(type, job == CUSOLVER_EIG_MODE_VECTOR ? "V" : "N", uplo_of(uplo), (int)n,
            static_cast<char *>(a) + (size_t)(i * n * lda) * size_of(type), (int)lda,
            static_cast<char *>(w) + (size_t)(i * n) * size_of(type_w), info + i);
  });
}
cusolverStatus_t cusolverDnXsyevd_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t params,
                                             cusolverEigMode_t job, cublasFillMode_t uplo,
                                             int64_t n, cudaDataType type, const void *a,
                                             int64_t lda, cudaDataType type_w, const void *w,
                                             cudaDataType computed, size_t *device, size_t *host) {
  return cusolverDnXsyevBatched_bufferSize(handle, params, job, uplo, n, type, a, lda, type_w, w,
                                           computed, device, host, 1);
}
cusolverStatus_t cusolverDnXsyevd(cusolverDnHandle_t handle, cusolverDnParams_t params,
                                  cusolverEigMode_t job, cublasFillMode_t uplo, int64_t n,
                                  cudaDataType type, void *a, int64_t lda, cudaDataType type_w,
                                  void *w, cudaDataType computed, void *on_device, size_t device,
                                  void *on_host, size_t host, int *info) {
  return cusolverDnXsyevBatched(handle, params, job, uplo, n, type, a, lda, type_w, w, computed,
                                on_device, device, on_host, host, info, 1);
}

cusolverStatus_t cusolverDnXgeev_bufferSize(cusolverDnHandle_t, cusolverDnParams_t,
                                            cusolverEigMode_t left, cusolverEigMode_t, int64_t n,
                                            cudaDataType type, const void *, int64_t lda,
                                            cudaDataType type_w, const void *, cudaDataType type_vl,
                                            const void *, int64_t, cudaDataType type_vr,
                                            const void *, int64_t ldvr, cudaDataType computed,
                                            size_t *device, size_t *host) {
  return sizes(is_known(type) && type == type_w && type == type_vl && type == type_vr &&
                   type == computed && left == CUSOLVER_EIG_MODE_NOVECTOR && lda >= n && ldvr >= n,
               device, host);
}
cusolverStatus_t cusolverDnXgeev(cusolverDnHandle_t handle, cusolverDnParams_t,
                                 cusolverEigMode_t left, cusolverEigMode_t right, int64_t n,
                                 cudaDataType type, void *a, int64_t lda, cudaDataType type_w,
                                 void *w, cudaDataType, void *, int64_t, cudaDataType, void *vr,
                                 int64_t ldvr, cudaDataType, void *on_device, size_t device,
                                 void *on_host, size_t host, int *info) {
  bool vectors = right == CUSOLVER_EIG_MODE_VECTOR;
  if (!is_known(type) || type != type_w || left != CUSOLVER_EIG_MODE_NOVECTOR || (vectors && !vr) ||
      !has(on_device, device, on_host, host))
    return CUSOLVER_STATUS_INVALID_VALUE;
  return solve(handle, on_device, device, [=]() {
    int size = (int)n, ld = (int)lda, ldv = (int)ldvr;
    const char *job = vectors ? "V" : "N";
    Memory more(real_of(type), 2 * (size_t)n);
    char *im = static_cast<char *>(w) + (size_t)n * size_of(type);
    with_workspace(type, [&](void *work, int *lwork) {
      if (is_complex(type))
        call(type, "geev", "N", job, &size, a, &ld, w, a, &ld, vr, &ldv, work, lwork, more.p(),
             info);
      else
        call(type, "geev", "N", job, &size, a, &ld, w, static_cast<void *>(im), a, &ld, vr, &ldv,
             work, lwork, info);
    });
  });
}

cusolverStatus_t cusolverDnXgesvd_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, signed char,
                                             signed char, int64_t m, int64_t n, cudaDataType type,
                                             const void *, int64_t lda, cudaDataType type_s,
                                             const void *, cudaDataType type_u, const void *,
                                             int64_t ldu, cudaDataType type_vt, const void *,
                                             int64_t ldvt, cudaDataType computed, size_t *device,
                                             size_t *host) {
  return sizes(is_known(type) && type == computed && type_s == real_of(type) && type == type_u &&
                   type == type_vt && m >= n && n > 0 && lda >= m && ldu >= m && ldvt >= n,
               device, host);
}
cusolverStatus_t cusolverDnXgesvd(cusolverDnHandle_t handle, cusolverDnParams_t, signed char job_u,
                                  signed char job_vt, int64_t m, int64_t n, cudaDataType type,
                                  void *a, int64_t lda, cudaDataType type_s, void *s, cudaDataType,
                                  void *u, int64_t ldu, cudaDataType, void *vt, int64_t ldvt,
                                  cudaDataType computed, void *on_device, size_t device,
                                  void *on_host, size_t host, int *info) {
  if (!is_known(type) || type != computed || type_s != real_of(type) || m < n ||
      !has(on_device, device, on_host, host))
    return CUSOLVER_STATUS_INVALID_VALUE; /* the real one wants m >= n, too */
  return solve(handle, on_device, device, [=]() {
    char left = (char)job_u, right = (char)job_vt;
    int rows = (int)m, columns = (int)n, ld = (int)lda, ld_u = (int)ldu, ld_vt = (int)ldvt;
    Memory more(real_of(type), 5 * (size_t)n);
    with_workspace(type, [&](void *work, int *size) {
      if (is_complex(type))
        call(type, "gesvd", &left, &right, &rows, &columns, a, &ld, s, u, &ld_u, vt, &ld_vt, work,
             size, more.p(), info);
      else
        call(type, "gesvd", &left, &right, &rows, &columns, a, &ld, s, u, &ld_u, vt, &ld_vt, work,
             size, info);
    });
  });
}

/* --- triangular systems --------------------------------------------------------------------------- */

struct Number {
  double bytes[2];
};
static Number number_at(cudaDataType type, const void *p) {
  Number x = {};
  memcpy(&x, p, size_of(type));
  return x;
}
static void trsm_one(cudaDataType type, cublasSideMode_t side, cublasFillMode_t uplo,
                     cublasOperation_t trans, cublasDiagType_t diag, int m, int n,
                     const Number *alpha, const void *a, int lda, void *b, int ldb) {
  call(type, "trsm", side_of(side), uplo_of(uplo), trans_of(trans),
       diag == CUBLAS_DIAG_UNIT ? "U" : "N", &m, &n, alpha, a, &lda, b, &ldb);
}
static cublasStatus_t trsm(cudaDataType type, cublasHandle_t handle, cublasSideMode_t side,
                           cublasFillMode_t uplo, cublasOperation_t trans, cublasDiagType_t diag,
                           int m, int n, const void *alpha, const void *a, int lda, void *b,
                           int ldb) {
  if (lda < (side == CUBLAS_SIDE_LEFT ? m : n) || ldb < m)
    return CUBLAS_STATUS_INVALID_VALUE;
  Number by = number_at(type, alpha);
  return blas(handle,
              [=]() { trsm_one(type, side, uplo, trans, diag, m, n, &by, a, lda, b, ldb); });
}
static cublasStatus_t trsm_batched(cudaDataType type, cublasHandle_t handle, cublasSideMode_t side,
                                   cublasFillMode_t uplo, cublasOperation_t trans,
                                   cublasDiagType_t diag, int m, int n, const void *alpha,
                                   const void *const *a, int lda, void *const *b, int ldb,
                                   int count) {
  if (lda < (side == CUBLAS_SIDE_LEFT ? m : n) || ldb < m || count < 0)
    return CUBLAS_STATUS_INVALID_VALUE;
  Number by = number_at(type, alpha);
  return blas(handle, [=]() {
    for (int i = 0; i < count; i++)
      trsm_one(type, side, uplo, trans, diag, m, n, &by, a[i], lda, b[i], ldb);
  });
}

#define EMU_DEFINE_ONE(interface, call, name, code)                                                \
  interface(name) {                                                                                \
    const cudaDataType type = code;                                                                \
    (void)type;                                                                                    \
    return call;                                                                                   \
  }
#define EMU_DEFINE(interface, call, s, d, c, z)                                                    \
  EMU_DEFINE_ONE(interface, call, s, CUDA_R_32F)                                                   \
  EMU_DEFINE_ONE(interface, call, d, CUDA_R_64F)                                                   \
  EMU_DEFINE_ONE(interface, call, c, CUDA_C_32F)                                                   \
  EMU_DEFINE_ONE(interface, call, z, CUDA_C_64F)
EMU_TYPED_FUNCTIONS(EMU_DEFINE)
