/* Kernels and streams with a bug planted in each, to see that the emulation finds it:
 *
 *     emu_check NAME [bug]
 *
 * prints "right" or what is wrong; spec/cuda/emu_spec.lua runs it with and without the bug. */
#include <stdio.h>
#include <stdlib.h>

#include <thread>
#include <vector>

#include "emu/cudaemu.h"

static bool bug;
enum { N = 1000 };

#define CHECK(call)                                                                                \
  do {                                                                                             \
    cudaError_t what = (call);                                                                     \
    if (what != cudaSuccess) {                                                                     \
      printf("%s: %s\n", cudaGetErrorName(what), cudaGetErrorString(what));                        \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)
#define EXPECT(condition)                                                                          \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      printf("line %d: not so: %s\n", __LINE__, #condition);                                       \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

template <class... P, class... A>
static cudaError_t launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                          size_t shared, cudaStream_t s, A... args) {
  return moth_emu_launch(
      name, [=]() { kernel(static_cast<P>(args)...); }, grid, block, shared, s,
      reinterpret_cast<const void *>(kernel));
}
template <class T> static T *device(size_t n) {
  T *p;
  CHECK(cudaMalloc(&p, n * sizeof(T)));
  return p;
}
template <class T> static T *to_device(const std::vector<T> &x) {
  T *p = device<T>(x.size());
  CHECK(cudaMemcpy(p, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}
template <class T> static std::vector<T> to_host(const T *p, size_t n) {
  std::vector<T> x(n);
  CHECK(cudaMemcpy(x.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
  return x;
}
static cudaStream_t stream() {
  cudaStream_t s;
  CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  return s;
}
static cudaEvent_t event() {
  cudaEvent_t e;
  CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  return e;
}

/* --- kernels ------------------------------------------------------------------------------------ */

namespace {

enum { TILE = 16 };

/* a (m, k), b (k, n) -> c (m, n) */
template <class T>
__global__ void matmul(const T *a, const T *b, T *c, int m, int n, int k, bool bug) {
  __shared__ T as[TILE][TILE + 1], bs[TILE][TILE + 1];
  int x = threadIdx.x, y = threadIdx.y;
  int row = (int)blockIdx.y * TILE + y, column = (int)blockIdx.x * TILE + x;
  T sum = 0;
  for (int t = 0; t < k; t += TILE) {
    as[y][x] = row < m && t + x < k ? a[row * k + t + x] : 0;
    bs[y][x] = t + y < k && column < n ? b[(t + y) * n + column] : 0;
    __syncthreads();
    for (int i = 0; i < TILE; i++)
      sum += as[y][i] * bs[i][x];
    if (!bug)
      __syncthreads();
  }
  if (row < m && column < n)
    c[row * n + column] = sum;
}

/* The sum of a block's 256 numbers: by shuffles, then over the warps. */
__global__ void block_sum(const float *x, float *out, bool bug) {
  __shared__ float part[8];
  float s = x[blockIdx.x * 256 + threadIdx.x];
  for (int d = 16; d; d >>= 1)
    s += __shfl_xor_sync(~0u, s, d);
  if (threadIdx.x % 32 == 0)
    part[threadIdx.x / 32] = s;
  if (!bug)
    __syncthreads();
  if (threadIdx.x == 0) {
    s = 0;
    for (float p : part)
      s += p;
    out[blockIdx.x] = s;
  }
}

__global__ void store(float *out, int n, bool bug) {
  int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (bug ? i <= n : i < n)
    out[i] = (float)i;
}

__global__ void store_shared(float *out, bool bug) {
  float *s = static_cast<float *>(moth_emu_shared());
  s[threadIdx.x + bug] = (float)threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x ^ 1];
}

__global__ void store_static(float *out, bool bug) {
  __shared__ float s[64];
  s[threadIdx.x + bug] = (float)threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x ^ 1];
}

__global__ void number(int *counter, int *out) {
  out[(threadIdx.z * 8 + threadIdx.y) * 4 + threadIdx.x] = atomicAdd(counter, 1);
}

/* The last warp sets a flag that the others spin for. */
__global__ void spin(int *flag, int *out) {
  if (threadIdx.x / 32 == 3)
    atomicExch(flag, 7);
  else
    while (atomicAdd(flag, 0) != 7)
      __nanosleep(20);
  out[threadIdx.x] = *flag;
}

__global__ void vectors(const float *x, float *out, int offset) {
  const float4 *v = reinterpret_cast<const float4 *>(x + offset);
  float4 y = v[threadIdx.x];
  out[threadIdx.x] = y.x + y.y + y.z + y.w;
}

/* Lanes of the last warp that have no element still take part, or not. */
__global__ void row_sum(const float *x, float *out, int n, bool bug) {
  int i = (int)threadIdx.x;
  float s = 0;
  if (bug && i >= n)
    return;
  if (i < n)
    s = x[i];
  for (int d = 16; d; d >>= 1)
    s += __shfl_down_sync(~0u, s, d);
  if (i % 32 == 0)
    atomicAdd(out, s);
}

/* Both halves of a warp sum at the same time, in branches of their own. */
__global__ void halves(float *out, bool bug) {
  float s = (float)threadIdx.x;
  if (threadIdx.x & 16) {
    for (int d = 8; d; d >>= 1)
      s += __shfl_xor_sync(bug ? 0x0000ffffu : 0xffff0000u, s, d);
    s = -s;
  } else {
    for (int d = 8; d; d >>= 1)
      s += __shfl_xor_sync(0x0000ffffu, s, d);
    __syncwarp(0x0000ffffu);
  }
  out[threadIdx.x] = s;
}

/* A histogram in shared memory that has to be cleared. */
__global__ void histogram(const int *x, int *out, int n, bool bug) {
  __shared__ int count[16];
  if (!bug && threadIdx.x < 16)
    count[threadIdx.x] = 0;
  __syncthreads();
  for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
    atomicAdd(&count[x[i]], 1);
  __syncthreads();
  if (threadIdx.x < 16)
    out[blockIdx.x * 16 + threadIdx.x] = count[threadIdx.x];
}

__global__ void fill(float *x, int n, float v) {
  int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n)
    x[i] = v;
}
__global__ void copy(const float *x, float *y, int n) {
  int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n)
    y[i] = x[i];
}
__global__ void add(const float *x, const float *y, float *z, int n) {
  int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n)
    z[i] = x[i] + y[i];
}

} // namespace

static void tiled_matmul() {
  const int m = 37, n = 29, k = 53;
  std::vector<float> a(m * k), b(k * n);
  for (size_t i = 0; i < a.size(); i++)
    a[i] = (float)(i % 7) - 3;
  for (size_t i = 0; i < b.size(); i++)
    b[i] = (float)(i % 5) - 2;
  float *c = device<float>(m * n);
  CHECK(launch("matmul", matmul<float>, dim3(2, 3), dim3(TILE, TILE), 0, nullptr, to_device(a),
               to_device(b), c, m, n, k, bug));
  std::vector<float> got = to_host(c, m * n);
  for (int i = 0; i < m; i++)
    for (int j = 0; j < n; j++) {
      float want = 0;
      for (int l = 0; l < k; l++)
        want += a[(size_t)(i * k + l)] * b[(size_t)(l * n + j)];
      EXPECT(got[(size_t)(i * n + j)] == want);
    }
}
static void reduction() {
  std::vector<float> x(1024);
  for (size_t i = 0; i < x.size(); i++)
    x[i] = (float)(i % 9);
  float *out = device<float>(4);
  CHECK(launch("block_sum", block_sum, 4, 256, 0, nullptr, to_device(x), out, bug));
  std::vector<float> got = to_host(out, 4);
  for (size_t b = 0; b < 4; b++) {
    float want = 0;
    for (size_t i = 0; i < 256; i++)
      want += x[b * 256 + i];
    EXPECT(got[b] == want);
  }
}
static void out_of_bounds() {
  float *out = device<float>(100);
  CHECK(launch("store", store, 1, 128, 0, nullptr, out, 100, bug));
  EXPECT(to_host(out, 100)[99] == 99);
}
static void out_of_shared() {
  float *out = device<float>(64);
  CHECK(launch("store_shared", store_shared, 1, 64, 64 * sizeof(float), nullptr, out, bug));
  EXPECT(to_host(out, 64)[63] == 62);
}
static void misaligned() {
  float *out = device<float>(32);
  CHECK(launch("vectors", vectors, 1, 32, 0, nullptr, to_device(std::vector<float>(136, 1)), out,
               bug ? 1 : 4));
  EXPECT(to_host(out, 32)[31] == 4);
}
static void missing_lanes() {
  float *out = to_device(std::vector<float>(1, 0));
  CHECK(launch("row_sum", row_sum, 1, 64, 0, nullptr, to_device(std::vector<float>(50, 1)), out, 50,
               bug));
  EXPECT(to_host(out, 1)[0] == 50);
}
static void disjoint_masks() {
  float *out = device<float>(32);
  CHECK(launch("halves", halves, 1, 32, 0, nullptr, out, bug));
  std::vector<float> got = to_host(out, 32);
  EXPECT(got[0] == 120 && got[15] == 120 && got[16] == -376 && got[31] == -376);
}
static void wrong_mask() {
  disjoint_masks();
}
/* A static array, not the dynamic one. */
static void out_of_static() {
  float *out = device<float>(64);
  CHECK(launch("store_static", store_static, 1, 64, 0, nullptr, out, bug));
  EXPECT(to_host(out, 64)[63] == 62);
}
/* Threads of a block and lanes of a warp begin in an order that is not always the same. */
static void order() {
  bool differs = false;
  std::vector<int> first;
  for (int i = 0; i < 20; i++) {
    int *counter = to_device(std::vector<int>(1, 0)), *out = device<int>(256);
    CHECK(launch("number", number, 1, dim3(4, 8, 8), 0, nullptr, counter, out));
    std::vector<int> got = to_host(out, 256);
    differs = differs || (i && got != first);
    first = got;
  }
  EXPECT(differs);
  int *flag = to_device(std::vector<int>(1, 0)), *out = device<int>(128);
  CHECK(launch("spin", spin, 1, 128, 0, nullptr, flag, out));
  EXPECT(to_host(out, 128)[0] == 7);
}
/* Host threads, each with a stream: kernels of all of them run on the same fibers. */
static void threads() {
  std::vector<std::thread> list;
  for (int t = 0; t < 4; t++)
    list.emplace_back([t]() {
      CHECK(cudaSetDevice(t % 2));
      cudaStream_t a = stream();
      float *x = device<float>(1024), *y = device<float>(4);
      for (int i = 0; i < 50; i++) {
        CHECK(launch("fill", fill, 4, 256, 0, a, x, 1024, (float)(i + t)));
        CHECK(launch("block_sum", block_sum, 4, 256, 0, a, x, y, false));
        CHECK(cudaStreamSynchronize(a));
        EXPECT(to_host(y, 4)[3] == 256 * (float)(i + t));
      }
      CHECK(cudaFree(x));
    });
  for (std::thread &t : list)
    t.join();
}
/* Needs MOTH_CUDA_EMU_PROTECT=1. */
static void host_access() {
  float *x = to_device(std::vector<float>(N, 1));
  cudaStream_t a = stream();
  CHECK(launch("fill", fill, 4, 256, 0, a, x, N, 2.0f));
  CHECK(cudaStreamSynchronize(a));
  EXPECT((bug ? x[0] : to_host(x, N)[0]) == 2);
}
static void uninitialised_shared() {
  int *out = device<int>(32);
  CHECK(launch("histogram", histogram, 2, 64, 0, nullptr, to_device(std::vector<int>(100, 3)), out,
               100, bug));
  std::vector<int> got = to_host(out, 32);
  EXPECT(got[3] == 100 && got[19] == 100 && got[0] == 0);
}

/* --- streams ------------------------------------------------------------------------------------ */

/* One stream makes what another reads. */
static void missing_event() {
  cudaStream_t a = stream(), b = stream();
  cudaEvent_t made = event();
  float *x = device<float>(N), *y = device<float>(N);
  for (int i = 0; i < 10; i++) {
    CHECK(launch("fill", fill, 4, 256, 0, a, x, N, (float)i));
    CHECK(cudaEventRecord(made, a));
    if (!bug)
      CHECK(cudaStreamWaitEvent(b, made));
    CHECK(launch("copy", copy, 4, 256, 0, b, x, y, N));
    CHECK(cudaStreamSynchronize(b));
    EXPECT(to_host(y, N)[N - 1] == (float)i);
    CHECK(cudaDeviceSynchronize());
  }
}
/* Memory that one stream still reads is given to another, which writes into it. */
static void missing_record_stream() {
  cudaStream_t a = stream(), b = stream();
  cudaEvent_t read = event();
  float *block = device<float>(N), *y = device<float>(N);
  for (int i = 0; i < 10; i++) {
    CHECK(launch("fill", fill, 4, 256, 0, a, block, N, (float)i));
    CHECK(cudaStreamSynchronize(a));
    CHECK(launch("copy", copy, 4, 256, 0, b, block, y, N));
    CHECK(cudaEventRecord(read, b));
    if (!bug)
      CHECK(cudaStreamWaitEvent(a, read));
    CHECK(launch("fill", fill, 4, 256, 0, a, block, N, -1.0f)); /* another tensor's */
    CHECK(cudaStreamSynchronize(a));
    CHECK(cudaStreamSynchronize(b));
    EXPECT(to_host(y, N)[0] == (float)i);
  }
}
/* Pinned memory is read when the copy runs. */
static void pinned_reused() {
  cudaStream_t a = stream();
  float *staging, *x = device<float>(N);
  CHECK(cudaMallocHost((void **)&staging, N * sizeof(float)));
  for (int i = 0; i < N; i++)
    staging[i] = 1;
  CHECK(cudaMemcpyAsync(x, staging, N * sizeof(float), cudaMemcpyHostToDevice, a));
  if (!bug)
    CHECK(cudaStreamSynchronize(a));
  for (int i = 0; i < N; i++)
    staging[i] = 2;
  CHECK(cudaStreamSynchronize(a));
  EXPECT(to_host(x, N)[5] == 1);
}
/* A copy into pinned memory has not come yet. */
static void pinned_read_early() {
  cudaStream_t a = stream();
  float *staging, *x = device<float>(N);
  CHECK(cudaMallocHost((void **)&staging, N * sizeof(float)));
  staging[7] = 0;
  CHECK(launch("fill", fill, 4, 256, 0, a, x, N, 3.0f));
  CHECK(cudaMemcpyAsync(staging, x, N * sizeof(float), cudaMemcpyDeviceToHost, a));
  if (!bug)
    CHECK(cudaStreamSynchronize(a));
  EXPECT(staging[7] == 3);
}
static void use_after_free() {
  float *x = device<float>(N), *y = device<float>(N);
  if (bug)
    CHECK(cudaFree(x));
  CHECK(launch("copy", copy, 4, 256, 0, nullptr, x, y, N));
  CHECK(cudaDeviceSynchronize());
}
static void stale_block() {
  cudaStream_t a = stream();
  float *x = to_device(std::vector<float>(N, 1)), *y = device<float>(N);
  CHECK(launch("copy", copy, 4, 256, 0, a, x, y, N));
  CHECK(moth_emu_stale(x, N * sizeof(float), a)); /* the first copy still may */
  if (!bug)
    CHECK(moth_emu_fresh(x, N * sizeof(float), a));
  CHECK(launch("copy", copy, 4, 256, 0, a, x, y + 1, N - 1));
  CHECK(cudaStreamSynchronize(a));
  std::vector<float> got = to_host(y, N);
  EXPECT(got[0] == 1 && got[1] != got[1]);
}
/* The default stream waits for ordinary streams and they for it; others do not. */
static void default_stream() {
  cudaStream_t a;
  CHECK(cudaStreamCreateWithFlags(&a, bug ? cudaStreamNonBlocking : cudaStreamDefault));
  float *x = device<float>(N), *y = device<float>(N);
  for (int i = 0; i < 10; i++) {
    CHECK(launch("fill", fill, 4, 256, 0, a, x, N, (float)i));
    CHECK(launch("copy", copy, 4, 256, 0, nullptr, x, y, N));
    CHECK(launch("fill", fill, 4, 256, 0, a, x, N, -1.0f));
    EXPECT(to_host(y, N)[1] == (float)i);
    CHECK(cudaDeviceSynchronize());
  }
}

/* --- graphs ------------------------------------------------------------------------------------- */

/* A fork into a second stream and back: x = 2, y = 3 beside it, z = x + y. */
static cudaError_t fork(cudaStream_t a, cudaStream_t b, float *x, float *y, float *z,
                        cudaGraph_t *g) {
  cudaEvent_t begun = event(), done = event();
  CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
  CHECK(cudaEventRecord(begun, a));
  CHECK(cudaStreamWaitEvent(b, begun));
  CHECK(launch("fill", fill, 4, 256, 0, a, x, N, 2.0f));
  CHECK(launch("fill", fill, 4, 256, 0, b, y, N, 3.0f));
  CHECK(cudaEventRecord(done, b));
  if (!bug)
    CHECK(cudaStreamWaitEvent(a, done));
  CHECK(launch("add", add, 4, 256, 0, a, x, y, z, N));
  return cudaStreamEndCapture(a, g);
}
static void graph() {
  cudaStream_t a = stream(), b = stream();
  float *x = device<float>(N), *y = device<float>(N), *z = device<float>(N);
  cudaGraph_t g;
  CHECK(fork(a, b, x, y, z, &g));
  EXPECT(moth_emu_queued() == 0);
  size_t n = 0;
  CHECK(cudaGraphGetNodes(g, nullptr, &n));
  EXPECT(n == 3);
  cudaGraphExec_t exec;
  CHECK(cudaGraphInstantiate(&exec, g));
  CHECK(cudaGraphDestroy(g));
  for (int i = 0; i < 10; i++) {
    CHECK(cudaMemsetAsync(y, 0, N * sizeof(float), a));
    CHECK(cudaGraphLaunch(exec, a));
    CHECK(launch("fill", fill, 4, 256, 0, a, x, N, 0.0f));
    CHECK(cudaStreamSynchronize(a));
    EXPECT(to_host(z, N)[N - 1] == 5 && to_host(x, N)[0] == 0);
  }
  CHECK(cudaGraphExecDestroy(exec));
}
static void capture_errors() {
  cudaStream_t a = stream();
  cudaGraph_t g;
  void *p;
  cudaStreamCaptureStatus status;
  CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  if (!bug)
    EXPECT(cudaMalloc(&p, 16) == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaStreamIsCapturing(a, &status));
  EXPECT(status == cudaStreamCaptureStatusInvalidated);
  EXPECT(cudaStreamEndCapture(a, &g) == cudaErrorStreamCaptureInvalidated && !g);
  CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  EXPECT(cudaStreamSynchronize(a) == cudaErrorStreamCaptureUnsupported);
  EXPECT(cudaStreamEndCapture(a, &g) == cudaErrorStreamCaptureInvalidated);
  CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
  EXPECT(mode == cudaStreamCaptureModeGlobal);
  CHECK(cudaMalloc(&p, 16));
  CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
  CHECK(cudaStreamEndCapture(a, &g));
  CHECK(cudaGraphDestroy(g));
  CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  float pageable = 1;
  EXPECT(cudaMemcpyAsync(p, &pageable, 4, cudaMemcpyHostToDevice, a) ==
         cudaErrorStreamCaptureUnsupported);
  EXPECT(cudaStreamEndCapture(a, &g) == cudaErrorStreamCaptureInvalidated);
}

/* --- errors ------------------------------------------------------------------------------------- */

static int called;
static void callback(void *data) {
  called += *(int *)data;
  EXPECT(cudaDeviceSynchronize() == cudaErrorNotPermitted);
}
static void errors() {
  void *p, *q;
  EXPECT(cudaMalloc(&p, (size_t)1 << 40) == cudaErrorMemoryAllocation && !p);
  EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
  CHECK(cudaMalloc(&p, (size_t)900 << 20));
  EXPECT(cudaMalloc(&q, (size_t)200 << 20) == cudaErrorMemoryAllocation);
  size_t free, total;
  CHECK(cudaMemGetInfo(&free, &total));
  EXPECT(free == (size_t)124 << 20 && total == (size_t)1 << 30);
  CHECK(cudaFree(p));
  EXPECT(cudaFree(p) == cudaErrorInvalidValue && cudaFree(&p) == cudaErrorInvalidValue);
  EXPECT(cudaSetDevice(2) == cudaErrorInvalidDevice && cudaSetDevice(-1) == cudaErrorInvalidDevice);
  float *x = device<float>(N);
  cudaGetLastError();
  EXPECT(launch("fill", fill, 1, 2048, 0, nullptr, x, N, 1.0f) == cudaErrorInvalidConfiguration);
  EXPECT(launch("fill", fill, dim3(1, 70000), 32, 0, nullptr, x, N, 1.0f) ==
         cudaErrorInvalidConfiguration);
  EXPECT(launch("fill", fill, 1, 32, 64 << 10, nullptr, x, N, 1.0f) == cudaErrorInvalidValue);
  CHECK(cudaFuncSetAttribute(fill, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10));
  cudaGetLastError();
  CHECK(launch("fill", fill, 1, 32, 64 << 10, nullptr, x, N, 1.0f));
  EXPECT(cudaMemcpy(x, to_host(x, N).data(), N * 4 + 4, cudaMemcpyHostToDevice) ==
         cudaErrorInvalidValue);
  EXPECT(cudaMemcpy(x, x, 4, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  cudaGetLastError();
  /* an event that was never recorded is no wait; a query goes on until it is done */
  cudaStream_t a = stream();
  cudaEvent_t e = event();
  CHECK(cudaStreamWaitEvent(a, e));
  CHECK(cudaEventQuery(e));
  static int data = 5;
  CHECK(launch("fill", fill, 1, 32, 0, a, x, N, 1.0f));
  CHECK(cudaLaunchHostFunc(a, callback, &data));
  CHECK(cudaEventRecord(e, a));
  EXPECT(called == 0);
  int polls = 0;
  while (cudaEventQuery(e) == cudaErrorNotReady && polls < 1000)
    polls++;
  EXPECT(called == 5 && polls < 1000);
  cudaGetLastError();
  cudaPointerAttributes attributes;
  CHECK(cudaPointerGetAttributes(&attributes, x + 3));
  EXPECT(attributes.type == cudaMemoryTypeDevice && attributes.device == 0);
  CHECK(cudaPointerGetAttributes(&attributes, &free));
  EXPECT(attributes.type == cudaMemoryTypeUnregistered);
  /* a failed kernel stays, until the device is reset */
  float *one = to_device(std::vector<float>(50, 1));
  CHECK(launch("row_sum", row_sum, 1, 64, 0, a, one, x, 50, true));
  EXPECT(cudaStreamSynchronize(a) == cudaErrorLaunchFailure);
  EXPECT(cudaMalloc(&p, 4) == cudaErrorLaunchFailure && cudaStreamQuery(a));
  CHECK(cudaSetDevice(1));
  CHECK(cudaMalloc(&p, 4));
  CHECK(cudaSetDevice(0));
  CHECK(cudaDeviceReset());
  x = device<float>(N);
  for (int i = 0; i < 25000; i++) /* the queue does not grow for ever */
    CHECK(cudaMemsetAsync(x, 0, 4, a));
  EXPECT(moth_emu_queued() <= 10000);
  EXPECT(!bug);
}

#define TESTS(X)                                                                                   \
  X(tiled_matmul)                                                                                  \
  X(reduction)                                                                                     \
  X(out_of_bounds)                                                                                 \
  X(out_of_shared)                                                                                 \
  X(misaligned)                                                                                    \
  X(missing_lanes)                                                                                 \
  X(disjoint_masks)                                                                                \
  X(wrong_mask)                                                                                    \
  X(out_of_static)                                                                                 \
  X(order)                                                                                         \
  X(threads)                                                                                       \
  X(host_access)                                                                                   \
  X(uninitialised_shared)                                                                          \
  X(missing_event)                                                                                 \
  X(missing_record_stream)                                                                         \
  X(pinned_reused)                                                                                 \
  X(pinned_read_early)                                                                             \
  X(use_after_free)                                                                                \
  X(stale_block)                                                                                   \
  X(default_stream)                                                                                \
  X(graph)                                                                                         \
  X(capture_errors)                                                                                \
  X(errors)

int main(int argc, char **argv) {
  bug = argc > 2 && strcmp(argv[2], "bug") == 0;
#define X(name)                                                                                    \
  if (argc > 1 && strcmp(argv[1], #name) == 0) {                                                   \
    name();                                                                                        \
    printf("right\n");                                                                             \
    return 0;                                                                                      \
  }
  TESTS(X)
#undef X
  printf("there is no check of this name\n");
  return 2;
}
