/* native_fft_c2c, native_fft_r2c and native_fft_c2r by cuFFT, which is opened at the first one; without it by the CPU's
 * kernels, on copies.
 *
 * Up to three dimensions are one call: they are put behind the others, row-major, in a copy. Complex tensors are seen as
 * floats with a dimension of 2 more. Plans are kept, the least recently used goes; their workspace comes from the caching
 * allocator at each call. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "cuda/lib.h"
#include "kernels/cuda/util.h"
extern "C" {
#include "unpack/fft.h"
}
#ifdef __CUDACC__
#include <cufftXt.h>
#include <dlfcn.h>
#else
#include "emu/cufft.h"
#endif

#define FFT_FUNCTIONS(X)                                                                           \
  X(cufftGetVersion)                                                                               \
  X(cufftCreate)                                                                                   \
  X(cufftDestroy)                                                                                  \
  X(cufftSetAutoAllocation)                                                                        \
  X(cufftXtMakePlanMany)                                                                           \
  X(cufftSetWorkArea)                                                                              \
  X(cufftSetStream)                                                                                \
  X(cufftXtExec)

static struct {
#define FFT_MEMBER(f) decltype(&::f) f;
  FFT_FUNCTIONS(FFT_MEMBER)
} fft;
static bool missing;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct Locked {
  Locked() { pthread_mutex_lock(&lock); }
  ~Locked() { pthread_mutex_unlock(&lock); }
};

static void open_library(void) {
#ifdef __CUDACC__
  void *library;
  missing = moth_cuda_lib_open(MOTH_CUDA_CUFFT, &library) != MOTH_OK;
  if (missing)
    return moth_cuda_lib_warn("fft");
#define FFT_FIND(f)                                                                                \
  fft.f = reinterpret_cast<decltype(fft.f)>(dlsym(library, #f));                                   \
  if (!fft.f)                                                                                      \
    missing = moth_fail(MOTH_ERR_STATE, "cuFFT lacks %s", #f) != MOTH_OK;
  FFT_FUNCTIONS(FFT_FIND)
  if (missing)
    moth_cuda_lib_warn("fft");
#else
#define FFT_FIND(f) fft.f = f;
  FFT_FUNCTIONS(FFT_FIND)
#endif
}

static MothStatus fft_check(cufftResult r, const char *what) {
  return r == CUFFT_SUCCESS ? MOTH_OK
                            : moth_fail(r == CUFFT_ALLOC_FAILED ? MOTH_ERR_MEMORY : MOTH_ERR_STATE,
                                        "%s: cuFFT's error %d", what, (int)r);
}
#define FFT_TRY(f, ...) MOTH_TRY(fft_check(fft.f(__VA_ARGS__), #f))

/* --- plans ---------------------------------------------------------------------------------------- */

enum Kind { C2C, R2C, C2R };
enum { PLANS = 32, MOST_DIMS = 3 };

struct Key { /* of 8 bytes each: bytes are compared */
  int64_t device, kind, wide, rank, n[MOST_DIMS], batch;
};
struct Plan {
  Key key;
  cufftHandle handle;
  size_t workspace;
  uint64_t used; /* when; 0: never */
};
static Plan plans[PLANS];
static uint64_t uses;

static MothStatus make_plan(const Key *key, Plan *p) {
  if (p->used)
    fft.cufftDestroy(p->handle);
  memset(p, 0, sizeof *p);
  FFT_TRY(cufftCreate, &p->handle);
  cudaDataType_t real = key->wide ? CUDA_R_64F : CUDA_R_32F;
  cudaDataType_t whole = key->wide ? CUDA_C_64F : CUDA_C_32F;
  long long n[MOST_DIMS];
  for (int i = 0; i < key->rank; i++)
    n[i] = key->n[i];
  cufftResult r = fft.cufftSetAutoAllocation(p->handle, 0);
  if (r == CUFFT_SUCCESS)
    r = fft.cufftXtMakePlanMany(p->handle, (int)key->rank, n, nullptr, 1, 0,
                                key->kind == R2C ? real : whole, nullptr, 1, 0,
                                key->kind == C2R ? real : whole, key->batch, &p->workspace, whole);
  if (r != CUFFT_SUCCESS) {
    fft.cufftDestroy(p->handle);
    return fft_check(r, "cufftXtMakePlanMany");
  }
  p->key = *key;
  return MOTH_OK;
}

static MothStatus execute(const MothCudaRun *run, const Key *key, void *in, void *out, int sign) {
  Locked locked; /* a plan has one stream and one workspace */
  Plan *p = nullptr, *oldest = plans;
  for (Plan &other : plans) {
    if (other.used && !memcmp(&other.key, key, sizeof *key))
      p = &other;
    if (other.used < oldest->used)
      oldest = &other;
  }
  if (!p) {
    p = oldest;
    MOTH_TRY(make_plan(key, p));
  }
  p->used = ++uses;
  MothScratch workspace;
  if (p->workspace) {
    MOTH_TRY(workspace.take(run->device, p->workspace));
    FFT_TRY(cufftSetWorkArea, p->handle, workspace.p);
  }
  FFT_TRY(cufftSetStream, p->handle, run->stream);
  FFT_TRY(cufftXtExec, p->handle, in, out, sign);
  return MOTH_OK;
}

/* --- layouts -------------------------------------------------------------------------------------- */

static MothDType float_of(const MothTensor *t) {
  return t->dtype == MOTH_COMPLEX128 || t->dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
}

/* A complex tensor as floats with a dimension more; another one as it is. */
static MothStatus as_floats(MothTensor *t, MothTensor **out) {
  if (t->dtype != MOTH_COMPLEX64 && t->dtype != MOTH_COMPLEX128) {
    moth_tensor_retain(t);
    *out = t;
    return MOTH_OK;
  }
  int64_t shape[MOTH_MAX_DIMS + 1], stride[MOTH_MAX_DIMS + 1];
  if (t->ndim == MOTH_MAX_DIMS)
    return moth_fail(MOTH_ERR_VALUE, "a transform of %d dimensions", t->ndim);
  for (int i = 0; i < t->ndim; i++) {
    shape[i] = t->shape[i];
    stride[i] = 2 * t->stride[i];
  }
  shape[t->ndim] = 2;
  stride[t->ndim] = 1;
  return moth_tensor_view_as(t, float_of(t), t->ndim + 1, shape, stride, 2 * t->offset, out);
}

/* t, of `ndim` dimensions (and one of 2 behind them if it is complex), with the dimensions dims at the end, in order:
 * order[i] is the dimension of t at place i. */
static MothStatus permuted(MothTensor *t, int ndim, const int *order, MothTensor **out) {
  int64_t shape[MOTH_MAX_DIMS + 1], stride[MOTH_MAX_DIMS + 1];
  for (int i = 0; i < t->ndim; i++) {
    int d = i < ndim ? order[i] : i;
    shape[i] = t->shape[d];
    stride[i] = t->stride[d];
  }
  return moth_tensor_view(t, t->ndim, shape, stride, t->offset, out);
}

template <class T> __global__ void scale_kernel(T *x, int64_t n, T by) {
  int64_t step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
    x[i] *= by;
}

static MothStatus multiply(const MothCudaRun *run, MothTensor *t, double by) {
  const int64_t blocks = (t->numel + 255) / 256;
  dim3 grid((unsigned)(blocks < 4096 ? blocks : 4096)), block(256);
  if (t->dtype == MOTH_FLOAT64)
    return moth_launch("fft_scale", scale_kernel<double>, grid, block, 0, run->stream,
                       reinterpret_cast<double *>(t->data), t->numel, by);
  return moth_launch("fft_scale", scale_kernel<float>, grid, block, 0, run->stream,
                     reinterpret_cast<float *>(t->data), t->numel, (float)by);
}

/* One call: *out, with the dimensions of `t` (floats, of `ndim` dimensions), is its transform over n dimensions. `last`:
 * the size of the last of them as real numbers. The result is multiplied by scale. */
static MothStatus transform(const MothCudaRun *run, MothTensor *t, int ndim, const int64_t *dims,
                            int n, Kind kind, int64_t last, int sign, double scale,
                            MothTensor **out) {
  MothOwned moved, in, made;
  int order[MOTH_MAX_DIMS], back[MOTH_MAX_DIMS], at = 0;
  int64_t shape[MOTH_MAX_DIMS + 1], numel = 1;
  MothDType dtype = float_of(t);
  for (int d = 0; d < ndim; d++) {
    bool over = false;
    for (int i = 0; i < n; i++)
      over = over || dims[i] == d;
    if (!over)
      order[at++] = d;
  }
  for (int i = 0; i < n; i++)
    order[at++] = (int)dims[i];
  for (int i = 0; i < ndim; i++)
    back[order[i]] = i;
  MOTH_TRY(permuted(t, ndim, order, &moved.t));
  /* A transform to reals may overwrite its input. */
  MOTH_TRY(moth_tensor_new(moved->ndim, moved->shape, dtype, t->device, &in.t));
  MOTH_TRY(moth_cuda_copy(in, moved));
  Key key;
  memset(&key, 0, sizeof key);
  key = {run->device, kind, dtype == MOTH_FLOAT64, n, {0, 0, 0}, 1};
  for (int i = 0; i < ndim; i++) {
    shape[i] = in->shape[i];
    if (i < ndim - n)
      key.batch *= shape[i];
    else
      key.n[i - ndim + n] = shape[i];
  }
  if (kind != C2C)
    key.n[n - 1] = last;
  if (kind == R2C)
    shape[ndim - 1] = last / 2 + 1;
  if (kind == C2R)
    shape[ndim - 1] = last;
  if (kind != C2R)
    shape[ndim] = 2;
  int made_ndim = kind == C2R ? ndim : ndim + 1;
  for (int i = 0; i < made_ndim; i++)
    numel *= shape[i];
  MOTH_TRY(moth_tensor_new(made_ndim, shape, dtype, t->device, &made.t));
  if (numel)
    MOTH_TRY(execute(run, &key, in->data, made->data, sign));
  if (scale != 1)
    MOTH_TRY(multiply(run, made, scale));
  return permuted(made, ndim, back, out);
}

/* out = scale * the transform of self; the dimensions are taken from the last on, three at a time. */
static MothStatus run_fft(MothCall *c, MothTensor *self, MothValue dim, Kind kind, int64_t last,
                          double scale, int sign) {
  MothTensor *result = c->results[0].u.t;
  MothCudaRun run;
  MothOwned now, to, wide;
  pthread_once(&once, open_library);
  int ndim = self->ndim, left = (int)dim.n;
  bool half = self->dtype == MOTH_FLOAT16 || self->dtype == MOTH_BFLOAT16;
  if (missing || half || !left ||
      (kind == C2R && self->shape[dim.u.ints[left - 1]] != last / 2 + 1))
    return moth_call_on_cpu(c);
  if (!result->numel)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_run(c, &run));
  MOTH_TRY(as_floats(self, &now.t));
  if (now->dtype != float_of(now)) { /* integers */
    MOTH_TRY(moth_cuda_contiguous_as(now, float_of(result), &wide.t));
    moth_tensor_release(now.t);
    now.t = wide.t;
    wide.t = nullptr;
  }
  for (bool first = true; left > 0; first = false) {
    /* To reals the last dimension is the last step, from reals the first one. */
    int n = left < MOST_DIMS ? left : MOST_DIMS;
    int from = kind == C2R ? (int)dim.n - left : left - n;
    bool real = kind == R2C ? first : kind == C2R && left == n;
    MothTensor *next;
    MOTH_TRY(transform(&run, now, ndim, dim.u.ints + from, n, real ? kind : C2C, last, sign,
                       left == n ? scale : 1, &next));
    moth_tensor_release(now.t);
    now.t = next;
    left -= n;
  }
  MOTH_TRY(as_floats(result, &to.t));
  return moth_cuda_copy(to, now);
}

MothStatus moth_cuda_native_fft_c2c(MothCall *c) {
  MOTH_UNPACK_NATIVE_FFT_C2C(c)
  return run_fft(c, self, dim, C2C, 0, scale, sign > 0 ? CUFFT_INVERSE : CUFFT_FORWARD);
}
MothStatus moth_cuda_native_fft_r2c(MothCall *c) {
  MOTH_UNPACK_NATIVE_FFT_R2C(c)
  if (!onesided) {
    MothOwned wide;
    MOTH_TRY(moth_cuda_contiguous_as(self, moth_dtype_complex((MothDType)self->dtype), &wide.t));
    return run_fft(c, wide, dim, C2C, 0, scale, CUFFT_FORWARD);
  }
  int64_t last = dim.n ? self->shape[dim.u.ints[dim.n - 1]] : 0;
  return run_fft(c, self, dim, R2C, last, scale, CUFFT_FORWARD);
}
MothStatus moth_cuda_native_fft_c2r(MothCall *c) {
  MOTH_UNPACK_NATIVE_FFT_C2R(c)
  return run_fft(c, self, dim, C2R, last, scale, CUFFT_INVERSE);
}
