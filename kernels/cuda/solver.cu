/* The calls of cuSOLVER and cuBLAS. See solver.h. */
#include "kernels/cuda/solver.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <type_traits>

#include "cuda/lib.h"
#ifdef __CUDACC__
#include <cublas_v2.h>
#include <cusolverDn.h>
#include <dlfcn.h>
#else
#include "emu/cusolver.h"
#endif

/* Functions that take the dtypes as arguments. */
#define SOLVER_FUNCTIONS(X)                                                                        \
  X(cusolverDnCreate)                                                                              \
  X(cusolverDnSetStream)                                                                           \
  X(cusolverDnCreateParams)                                                                        \
  X(cusolverDnXpotrf_bufferSize)                                                                   \
  X(cusolverDnXpotrf)                                                                              \
  X(cusolverDnXgetrf_bufferSize)                                                                   \
  X(cusolverDnXgetrf)                                                                              \
  X(cusolverDnXgetrs)                                                                              \
  X(cusolverDnXgeqrf_bufferSize)                                                                   \
  X(cusolverDnXgeqrf)                                                                              \
  X(cusolverDnXsyevd_bufferSize)                                                                   \
  X(cusolverDnXsyevd)                                                                              \
  X(cusolverDnXgesvd_bufferSize)                                                                   \
  X(cusolverDnXgesvd)                                                                              \
  X(cusolverDnXsytrs_bufferSize)                                                                   \
  X(cusolverDnXsytrs)
/* Those that a library may lack. */
#define LATE_FUNCTIONS(X)                                                                          \
  X(cusolverDnXsyevBatched_bufferSize)                                                             \
  X(cusolverDnXsyevBatched)                                                                        \
  X(cusolverDnXgeev_bufferSize)                                                                    \
  X(cusolverDnXgeev)
#define BLAS_FUNCTIONS(X) X(cublasCreate_v2) X(cublasSetStream_v2)

/* X(field, its arguments, library, names for float32, float64, complex64, complex128) */
#define TYPED_FUNCTIONS(X)                                                                         \
  X(orgqr_size, (cusolverDnHandle_t, int, int, int, const void *, int, const void *, int *),       \
    solver, cusolverDnSorgqr_bufferSize, cusolverDnDorgqr_bufferSize, cusolverDnCungqr_bufferSize, \
    cusolverDnZungqr_bufferSize)                                                                   \
  X(orgqr, (cusolverDnHandle_t, int, int, int, void *, int, const void *, void *, int, int *),     \
    solver, cusolverDnSorgqr, cusolverDnDorgqr, cusolverDnCungqr, cusolverDnZungqr)                \
  X(ormqr_size,                                                                                    \
    (cusolverDnHandle_t, cublasSideMode_t, cublasOperation_t, int, int, int, const void *, int,    \
     const void *, const void *, int, int *),                                                      \
    solver, cusolverDnSormqr_bufferSize, cusolverDnDormqr_bufferSize, cusolverDnCunmqr_bufferSize, \
    cusolverDnZunmqr_bufferSize)                                                                   \
  X(ormqr,                                                                                         \
    (cusolverDnHandle_t, cublasSideMode_t, cublasOperation_t, int, int, int, const void *, int,    \
     const void *, void *, int, void *, int, int *),                                               \
    solver, cusolverDnSormqr, cusolverDnDormqr, cusolverDnCunmqr, cusolverDnZunmqr)                \
  X(sytrf_size, (cusolverDnHandle_t, int, void *, int, int *), solver,                             \
    cusolverDnSsytrf_bufferSize, cusolverDnDsytrf_bufferSize, cusolverDnCsytrf_bufferSize,         \
    cusolverDnZsytrf_bufferSize)                                                                   \
  X(sytrf, (cusolverDnHandle_t, cublasFillMode_t, int, void *, int, int *, void *, int, int *),    \
    solver, cusolverDnSsytrf, cusolverDnDsytrf, cusolverDnCsytrf, cusolverDnZsytrf)                \
  X(potrf_batched, (cusolverDnHandle_t, cublasFillMode_t, int, void **, int, int *, int), solver,  \
    cusolverDnSpotrfBatched, cusolverDnDpotrfBatched, cusolverDnCpotrfBatched,                     \
    cusolverDnZpotrfBatched)                                                                       \
  X(getrf_batched, (cublasHandle_t, int, void *const *, int, int *, int *, int), blas,             \
    cublasSgetrfBatched, cublasDgetrfBatched, cublasCgetrfBatched, cublasZgetrfBatched)            \
  X(getrs_batched,                                                                                 \
    (cublasHandle_t, cublasOperation_t, int, int, const void *const *, int, const int *,           \
     void *const *, int, int *, int),                                                              \
    blas, cublasSgetrsBatched, cublasDgetrsBatched, cublasCgetrsBatched, cublasZgetrsBatched)      \
  X(trsm,                                                                                          \
    (cublasHandle_t, cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t, int, \
     int, const void *, const void *, int, void *, int),                                           \
    blas, cublasStrsm_v2, cublasDtrsm_v2, cublasCtrsm_v2, cublasZtrsm_v2)                          \
  X(trsm_batched,                                                                                  \
    (cublasHandle_t, cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t, int, \
     int, const void *, const void *const *, int, void *const *, int, int),                        \
    blas, cublasStrsmBatched, cublasDtrsmBatched, cublasCtrsmBatched, cublasZtrsmBatched)

static struct {
#define MEMBER(f) decltype(&::f) f;
  SOLVER_FUNCTIONS(MEMBER)
  LATE_FUNCTIONS(MEMBER)
  BLAS_FUNCTIONS(MEMBER)
#define TYPED_MEMBER(field, arguments, library, s, d, c, z) int(*field[4]) arguments;
  TYPED_FUNCTIONS(TYPED_MEMBER)
} lib;

struct Handles {
  cusolverDnHandle_t solver;
  cublasHandle_t blas;
};
static Handles handles[MOTH_CUDA_MAX_DEVICES];
static cusolverDnParams_t params;
static bool missing;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void give_up(void) {
  missing = true;
  moth_cuda_lib_warn("linear algebra");
}

static void open_libraries(void) {
  const char *absent = nullptr;
#ifdef __CUDACC__
  void *solver, *blas;
  if (moth_cuda_lib_open(MOTH_CUDA_CUSOLVER, &solver) != MOTH_OK ||
      moth_cuda_lib_open(MOTH_CUDA_CUBLAS, &blas) != MOTH_OK)
    return give_up();
#define FIND(library, f) dlsym(library, #f)
#else
#define FIND(library, f) reinterpret_cast<void *>(&::f)
#endif
#define SET(to, library, f)                                                                        \
  to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(FIND(library, f));                  \
  absent = to ? absent : #f;
#define SET_SOLVER(f) SET(lib.f, solver, f)
#define SET_BLAS(f)   SET(lib.f, blas, f)
#define SET_LATE(f)   lib.f = reinterpret_cast<decltype(lib.f)>(FIND(solver, f));
#define SET_TYPED(field, arguments, library, s, d, c, z)                                           \
  SET(lib.field[0], library, s)                                                                    \
  SET(lib.field[1], library, d)                                                                    \
  SET(lib.field[2], library, c)                                                                    \
  SET(lib.field[3], library, z)
  SOLVER_FUNCTIONS(SET_SOLVER)
  BLAS_FUNCTIONS(SET_BLAS)
  LATE_FUNCTIONS(SET_LATE)
  TYPED_FUNCTIONS(SET_TYPED)
  if (absent)
    moth_fail(MOTH_ERR_STATE, "cuSOLVER or cuBLAS lacks %s", absent);
  else if (lib.cusolverDnCreateParams(&params) != CUSOLVER_STATUS_SUCCESS)
    moth_fail(MOTH_ERR_STATE, "cusolverDnCreateParams failed");
  else
    return;
  give_up();
}

bool moth_cuda_has_solver(void) {
  pthread_once(&once, open_libraries);
  return !missing;
}
bool moth_cuda_has_geev(void) {
  return moth_cuda_has_solver() && lib.cusolverDnXgeev_bufferSize && lib.cusolverDnXgeev;
}

static MothStatus check(int code, int no_memory, const char *what) {
  return code == 0 ? MOTH_OK
                   : moth_fail(code == no_memory ? MOTH_ERR_MEMORY : MOTH_ERR_STATE,
                               "%.*s of cuSOLVER or cuBLAS: error %d", (int)strcspn(what, "["),
                               what, code);
}
#define SOLVE(f, ...)                                                                              \
  MOTH_TRY(check((int)lib.f(__VA_ARGS__), (int)CUSOLVER_STATUS_ALLOC_FAILED, #f))
#define BLAS(f, ...) MOTH_TRY(check((int)lib.f(__VA_ARGS__), (int)CUBLAS_STATUS_ALLOC_FAILED, #f))

__global__ void addresses_kernel(void **to, char *first, int64_t step, int64_t n) {
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    to[i] = first + i * step;
}

/* The addresses of the matrices of a batch, on the device. */
struct Addresses {
  MothScratch memory;
  MothStatus take(const MothSolver *s, const void *first, int64_t elements) {
    MOTH_TRY(memory.take(s->run->device, (size_t)s->count * sizeof(void *)));
    return moth_launch("addresses", addresses_kernel, dim3((unsigned)((s->count + 255) / 256)),
                       dim3(256), 0, s->run->stream, memory.as<void *>(),
                       static_cast<char *>(const_cast<void *>(first)),
                       elements * moth_dtype_size(s->dtype), s->count);
  }
  void **at() const { return memory.as<void *>(); }
};

/* Holds the lock, and the handles of the device with the stream set; workspaces. */
struct Session {
  Handles *h = nullptr;
  MothScratch device;
  void *host = nullptr;
  size_t on_device = 0, on_host = 0;
  int lwork = 0; /* of functions that count elements */
  Session() { pthread_mutex_lock(&lock); }
  ~Session() {
    pthread_mutex_unlock(&lock);
    free(host);
  }
  MothStatus open(const MothSolver *s) {
    h = &handles[s->run->device];
    if (!h->solver)
      SOLVE(cusolverDnCreate, &h->solver);
    if (!h->blas)
      BLAS(cublasCreate_v2, &h->blas);
    SOLVE(cusolverDnSetStream, h->solver, s->run->stream);
    BLAS(cublasSetStream_v2, h->blas, s->run->stream);
    return MOTH_OK;
  }
  MothStatus take(const MothSolver *s) {
    if (lwork)
      on_device = (size_t)lwork * (size_t)moth_dtype_size(s->dtype);
    host = malloc(on_host ? on_host : 1);
    if (!host)
      return moth_fail(MOTH_ERR_MEMORY, "out of memory: a workspace of the host");
    return device.take(s->run->device, on_device);
  }
};

static int letter(const MothSolver *s) {
  return s->dtype == MOTH_FLOAT32     ? 0
         : s->dtype == MOTH_FLOAT64   ? 1
         : s->dtype == MOTH_COMPLEX64 ? 2
                                      : 3;
}
static cudaDataType type_of(const MothSolver *s) {
  static const cudaDataType types[4] = {CUDA_R_32F, CUDA_R_64F, CUDA_C_32F, CUDA_C_64F};
  return types[letter(s)];
}
/* Of eigenvalues of symmetric matrices and singular values. */
static cudaDataType real_of(const MothSolver *s) {
  return letter(s) % 2 ? CUDA_R_64F : CUDA_R_32F;
}
static cublasOperation_t adjoint_of(const MothSolver *s, bool adjoint) {
  return !adjoint ? CUBLAS_OP_N : letter(s) < 2 ? CUBLAS_OP_T : CUBLAS_OP_C;
}
/* p + i elements; NULL stays. */
static void *at(const MothSolver *s, const void *p, int64_t i) {
  return p ? const_cast<char *>(static_cast<const char *>(p)) + i * moth_dtype_size(s->dtype)
           : nullptr;
}
/* The same of real numbers. */
static void *real_at(const MothSolver *s, const void *p, int64_t i) {
  return const_cast<char *>(static_cast<const char *>(p)) + i * (letter(s) % 2 ? 8 : 4);
}
/* Whether the matrices are so small that one call for all is faster. */
static bool batched(const MothSolver *s, int64_t n) {
  return s->count > 1 && s->count <= INT32_MAX && n <= 128;
}

MothStatus moth_solver_potrf(const MothSolver *s, bool upper, int64_t n, void *a) {
  Session w;
  cudaDataType t = type_of(s);
  cublasFillMode_t uplo = upper ? CUBLAS_FILL_MODE_UPPER : CUBLAS_FILL_MODE_LOWER;
  MOTH_TRY(w.open(s));
  if (batched(s, n)) {
    Addresses all;
    MOTH_TRY(all.take(s, a, n * n));
    SOLVE(potrf_batched[letter(s)], w.h->solver, uplo, (int)n, all.at(), (int)n, s->info,
          (int)s->count);
    return MOTH_OK;
  }
  SOLVE(cusolverDnXpotrf_bufferSize, w.h->solver, params, uplo, n, t, a, n, t, &w.on_device,
        &w.on_host);
  MOTH_TRY(w.take(s));
  for (int64_t i = 0; i < s->count; i++)
    SOLVE(cusolverDnXpotrf, w.h->solver, params, uplo, n, t, at(s, a, i * n * n), n, t, w.device.p,
          w.on_device, w.host, w.on_host, s->info + i);
  return MOTH_OK;
}

/* Pivots of 64 bits, as cuSOLVER has them, from and to those of 32. */
template <class To, class From>
__global__ void convert_kernel(To *to, const From *from, int64_t n) {
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    to[i] = (To)from[i];
}
template <class To, class From>
static MothStatus convert(const MothSolver *s, To *to, const From *from, int64_t n) {
  return moth_launch("convert_pivots", convert_kernel<To, From>, dim3((unsigned)((n + 255) / 256)),
                     dim3(256), 0, s->run->stream, to, from, n);
}

MothStatus moth_solver_getrf(const MothSolver *s, int64_t m, int64_t n, void *a, int32_t *pivots) {
  Session w;
  cudaDataType t = type_of(s);
  int64_t k = m < n ? m : n;
  MothScratch wide;
  MOTH_TRY(w.open(s));
  if (m == n && batched(s, n)) {
    Addresses all;
    MOTH_TRY(all.take(s, a, n * n));
    BLAS(getrf_batched[letter(s)], w.h->blas, (int)n, all.at(), (int)n, pivots, s->info,
         (int)s->count);
    return MOTH_OK;
  }
  SOLVE(cusolverDnXgetrf_bufferSize, w.h->solver, params, m, n, t, a, m, t, &w.on_device,
        &w.on_host);
  MOTH_TRY(w.take(s));
  MOTH_TRY(wide.take(s->run->device, (size_t)(s->count * k) * sizeof(int64_t)));
  for (int64_t i = 0; i < s->count; i++)
    SOLVE(cusolverDnXgetrf, w.h->solver, params, m, n, t, at(s, a, i * m * n), m,
          pivots ? wide.as<int64_t>() + i * k : nullptr, t, w.device.p, w.on_device, w.host,
          w.on_host, s->info + i);
  return pivots ? convert(s, pivots, wide.as<int64_t>(), s->count * k) : MOTH_OK;
}

MothStatus moth_solver_getrs(const MothSolver *s, bool adjoint, int64_t n, int64_t k, const void *a,
                             const int32_t *pivots, void *b) {
  Session w;
  cudaDataType t = type_of(s);
  cublasOperation_t trans = adjoint_of(s, adjoint);
  MothScratch wide;
  MOTH_TRY(w.open(s));
  if (batched(s, n)) {
    Addresses all, right;
    int wrong = 0; /* an argument of this call */
    MOTH_TRY(all.take(s, a, n * n));
    MOTH_TRY(right.take(s, b, n * k));
    BLAS(getrs_batched[letter(s)], w.h->blas, trans, (int)n, (int)k, all.at(), (int)n, pivots,
         right.at(), (int)n, &wrong, (int)s->count);
    return check(wrong, 0, "getrs_batched");
  }
  MOTH_TRY(wide.take(s->run->device, (size_t)(s->count * n) * sizeof(int64_t)));
  MOTH_TRY(convert(s, wide.as<int64_t>(), pivots, s->count * n));
  for (int64_t i = 0; i < s->count; i++)
    SOLVE(cusolverDnXgetrs, w.h->solver, params, trans, n, k, t, at(s, a, i * n * n), n,
          wide.as<int64_t>() + i * n, t, at(s, b, i * n * k), n, s->info + i);
  return MOTH_OK;
}

MothStatus moth_solver_geqrf(const MothSolver *s, int64_t m, int64_t n, void *a, int64_t step,
                             void *tau) {
  Session w;
  cudaDataType t = type_of(s);
  int64_t k = m < n ? m : n;
  MOTH_TRY(w.open(s));
  SOLVE(cusolverDnXgeqrf_bufferSize, w.h->solver, params, m, n, t, a, m, t, tau, t, &w.on_device,
        &w.on_host);
  MOTH_TRY(w.take(s));
  for (int64_t i = 0; i < s->count; i++)
    SOLVE(cusolverDnXgeqrf, w.h->solver, params, m, n, t, at(s, a, i * step), m, t,
          at(s, tau, i * k), t, w.device.p, w.on_device, w.host, w.on_host, s->info + i);
  return MOTH_OK;
}

MothStatus moth_solver_orgqr(const MothSolver *s, int64_t m, int64_t n, int64_t k, void *a,
                             int64_t step, const void *tau) {
  Session w;
  int rows = (int)m, columns = (int)n, reflectors = (int)k;
  MOTH_TRY(w.open(s));
  SOLVE(orgqr_size[letter(s)], w.h->solver, rows, columns, reflectors, a, rows, tau, &w.lwork);
  MOTH_TRY(w.take(s));
  for (int64_t i = 0; i < s->count; i++)
    SOLVE(orgqr[letter(s)], w.h->solver, rows, columns, reflectors, at(s, a, i * step), rows,
          at(s, tau, i * k), w.device.p, w.lwork, s->info + i);
  return MOTH_OK;
}

MothStatus moth_solver_ormqr(const MothSolver *s, bool left, bool adjoint, int64_t m, int64_t n,
                             int64_t k, const void *a, int64_t rows, int64_t columns,
                             const void *tau, void *c) {
  Session w;
  cublasSideMode_t side = left ? CUBLAS_SIDE_LEFT : CUBLAS_SIDE_RIGHT;
  cublasOperation_t trans = adjoint_of(s, adjoint);
  MOTH_TRY(w.open(s));
  SOLVE(ormqr_size[letter(s)], w.h->solver, side, trans, (int)m, (int)n, (int)k, a, (int)rows, tau,
        c, (int)m, &w.lwork);
  MOTH_TRY(w.take(s));
  for (int64_t i = 0; i < s->count; i++)
    SOLVE(ormqr[letter(s)], w.h->solver, side, trans, (int)m, (int)n, (int)k,
          at(s, a, i * rows * columns), (int)rows, at(s, tau, i * k), at(s, c, i * m * n), (int)m,
          w.device.p, w.lwork, s->info + i);
  return MOTH_OK;
}

MothStatus moth_solver_syevd(const MothSolver *s, bool vectors, bool upper, int64_t n, void *a,
                             void *w) {
  Session work;
  cudaDataType t = type_of(s), real = real_of(s);
  cublasFillMode_t uplo = upper ? CUBLAS_FILL_MODE_UPPER : CUBLAS_FILL_MODE_LOWER;
  cusolverEigMode_t job = vectors ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR;
  MOTH_TRY(work.open(s));
  if (batched(s, n) && lib.cusolverDnXsyevBatched_bufferSize && lib.cusolverDnXsyevBatched) {
    SOLVE(cusolverDnXsyevBatched_bufferSize, work.h->solver, params, job, uplo, n, t, a, n, real, w,
          t, &work.on_device, &work.on_host, s->count);
    MOTH_TRY(work.take(s));
    SOLVE(cusolverDnXsyevBatched, work.h->solver, params, job, uplo, n, t, a, n, real, w, t,
          work.device.p, work.on_device, work.host, work.on_host, s->info, s->count);
    return MOTH_OK;
  }
  SOLVE(cusolverDnXsyevd_bufferSize, work.h->solver, params, job, uplo, n, t, a, n, real, w, t,
        &work.on_device, &work.on_host);
  MOTH_TRY(work.take(s));
  for (int64_t i = 0; i < s->count; i++)
    SOLVE(cusolverDnXsyevd, work.h->solver, params, job, uplo, n, t, at(s, a, i * n * n), n, real,
          real_at(s, w, i * n), t, work.device.p, work.on_device, work.host, work.on_host,
          s->info + i);
  return MOTH_OK;
}

MothStatus moth_solver_geev(const MothSolver *s, int64_t n, void *a, void *w, void *v) {
  Session work;
  cudaDataType t = type_of(s);
  cusolverEigMode_t none = CUSOLVER_EIG_MODE_NOVECTOR,
                    job = v ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR;
  MOTH_TRY(work.open(s));
  SOLVE(cusolverDnXgeev_bufferSize, work.h->solver, params, none, job, n, t, a, n, t, w, t, nullptr,
        n, t, v, n, t, &work.on_device, &work.on_host);
  MOTH_TRY(work.take(s));
  for (int64_t i = 0; i < s->count; i++)
    SOLVE(cusolverDnXgeev, work.h->solver, params, none, job, n, t, at(s, a, i * n * n), n, t,
          real_at(s, w, i * 2 * n), t, nullptr, n, t, at(s, v, i * n * n), n, t, work.device.p,
          work.on_device, work.host, work.on_host, s->info + i);
  return MOTH_OK;
}

MothStatus moth_solver_gesvd(const MothSolver *s, char job, int64_t m, int64_t n, void *a, void *w,
                             void *u, void *vt) {
  Session work;
  cudaDataType t = type_of(s), real = real_of(s);
  signed char j = (signed char)job;
  int64_t columns = job == 'A' ? m : n;
  MOTH_TRY(work.open(s));
  SOLVE(cusolverDnXgesvd_bufferSize, work.h->solver, params, j, j, m, n, t, a, m, real, w, t, u, m,
        t, vt, n, t, &work.on_device, &work.on_host);
  MOTH_TRY(work.take(s));
  for (int64_t i = 0; i < s->count; i++)
    SOLVE(cusolverDnXgesvd, work.h->solver, params, j, j, m, n, t, at(s, a, i * m * n), m, real,
          real_at(s, w, i * n), t, at(s, u, i * m * columns), m, t, at(s, vt, i * n * n), n, t,
          work.device.p, work.on_device, work.host, work.on_host, s->info + i);
  return MOTH_OK;
}

MothStatus moth_solver_trsm(const MothSolver *s, const MothTriangular *t) {
  Session w;
  const double one[2] = {1, 0};
  const float one_f[2] = {1, 0};
  const void *alpha = letter(s) % 2 ? static_cast<const void *>(one) : one_f;
  cublasSideMode_t side = t->left ? CUBLAS_SIDE_LEFT : CUBLAS_SIDE_RIGHT;
  cublasFillMode_t uplo = t->upper ? CUBLAS_FILL_MODE_UPPER : CUBLAS_FILL_MODE_LOWER;
  cublasOperation_t trans = t->transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  cublasDiagType_t diag = t->unit ? CUBLAS_DIAG_UNIT : CUBLAS_DIAG_NON_UNIT;
  int m = (int)t->m, n = (int)t->n, lda = (int)t->lda, ldb = (int)t->ldb;
  MOTH_TRY(w.open(s));
  if (batched(s, t->left ? m : n)) {
    Addresses all, right;
    MOTH_TRY(all.take(s, t->a, t->a_step));
    MOTH_TRY(right.take(s, t->b, t->b_step));
    BLAS(trsm_batched[letter(s)], w.h->blas, side, uplo, trans, diag, m, n, alpha, all.at(), lda,
         right.at(), ldb, (int)s->count);
    return MOTH_OK;
  }
  for (int64_t i = 0; i < s->count; i++)
    BLAS(trsm[letter(s)], w.h->blas, side, uplo, trans, diag, m, n, alpha,
         at(s, t->a, i * t->a_step), lda, at(s, t->b, i * t->b_step), ldb);
  return MOTH_OK;
}

MothStatus moth_solver_sytrf(const MothSolver *s, int64_t n, void *a, int32_t *pivots) {
  Session w;
  MOTH_TRY(w.open(s));
  SOLVE(sytrf_size[letter(s)], w.h->solver, (int)n, a, (int)n, &w.lwork);
  MOTH_TRY(w.take(s));
  for (int64_t i = 0; i < s->count; i++)
    SOLVE(sytrf[letter(s)], w.h->solver, CUBLAS_FILL_MODE_LOWER, (int)n, at(s, a, i * n * n),
          (int)n, pivots + i * n, w.device.p, w.lwork, s->info + i);
  return MOTH_OK;
}

MothStatus moth_solver_sytrs(const MothSolver *s, int64_t n, int64_t k, const void *a,
                             const int32_t *pivots, void *b) {
  Session w;
  cudaDataType t = type_of(s);
  cublasFillMode_t uplo = CUBLAS_FILL_MODE_LOWER;
  MothScratch wide;
  MOTH_TRY(w.open(s));
  MOTH_TRY(wide.take(s->run->device, (size_t)(s->count * n) * sizeof(int64_t)));
  MOTH_TRY(convert(s, wide.as<int64_t>(), pivots, s->count * n));
  SOLVE(cusolverDnXsytrs_bufferSize, w.h->solver, uplo, n, k, t, a, n, wide.as<int64_t>(), t, b, n,
        &w.on_device, &w.on_host);
  MOTH_TRY(w.take(s));
  for (int64_t i = 0; i < s->count; i++)
    SOLVE(cusolverDnXsytrs, w.h->solver, uplo, n, k, t, at(s, a, i * n * n), n,
          wide.as<int64_t>() + i * n, t, at(s, b, i * n * k), n, w.device.p, w.on_device, w.host,
          w.on_host, s->info + i);
  return MOTH_OK;
}
