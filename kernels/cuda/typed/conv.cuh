/* Convolution without cuDNN: a tiled product of two matrices that exist only in tiles (implicit GEMM). A block
 * computes CONV_M x CONV_N results, CONV_K products at a time: 128 threads with 4 x 4 results each, CONV_M / 4 and
 * CONV_N / 4 apart. Sums have a fixed order, in `accum`.
 *
 *   forward  rows: channels of the result   columns: (image, y, x) of it      inner: (channel, ky, kx)
 *   input    rows: channels of the input    columns: (image, y, x) of it      inner: (channel, ky, kx)
 *   weight   rows: channels of the result   columns: (channel, ky, kx)        inner: (image, y, x)     */
#if MOTH_IS_FLOAT
enum { CONV_M = 32, CONV_N = 64, CONV_K = 16, CONV_THREADS = 128 };

struct ConvSpot { /* a column of B, or for `weight` a position of its inner dimension */
  int64_t n;
  int y, x;
};

__device__ __forceinline__ ConvSpot conv_spot(int64_t i, int64_t h, int64_t w) {
  int64_t row = i / w;
  return {row / h, (int)(row % h), (int)(i % w)};
}

/* The pixel of channel c of image n of the input that kernel position (ky, kx) reads for result (oy, ox). */
__device__ __forceinline__ accum conv_pixel(const MothConv &g, const stored *x, int64_t n,
                                            int64_t c, int oy, int ox, int ky, int kx) {
  int64_t iy = oy * g.stride[0] + ky * g.dilation[0] - g.padding[0];
  int64_t ix = ox * g.stride[1] + kx * g.dilation[1] - g.padding[1];
  if (iy < 0 || iy >= g.h || ix < 0 || ix >= g.w)
    return 0;
  return (accum)LOAD(x[((n * g.c + c) * g.h + iy) * g.w + ix]);
}
/* The gradient of the result that used input pixel (iy, ix) at kernel position (ky, kx). */
__device__ __forceinline__ accum conv_user(const MothConv &g, const stored *gy, int64_t n,
                                           int64_t o, int iy, int ix, int ky, int kx) {
  int64_t y = iy + g.padding[0] - ky * g.dilation[0], x = ix + g.padding[1] - kx * g.dilation[1];
  if (y < 0 || x < 0 || y % g.stride[0] || x % g.stride[1])
    return 0;
  y /= g.stride[0], x /= g.stride[1];
  return y < g.oh && x < g.ow ? (accum)LOAD(gy[((n * g.k + o) * g.oh + y) * g.ow + x]) : (accum)0;
}

template <int MODE>
__global__ void __launch_bounds__(CONV_THREADS)
    conv_kernel(const __grid_constant__ MothConv g, const stored *a, const stored *b,
                const stored *bias, stored *out) {
  __shared__ accum left[CONV_K][CONV_M + 1], right[CONV_K][CONV_N + 1];
  const int area = (int)(g.kernel[0] * g.kernel[1]), kw = (int)g.kernel[1];
  const int64_t kg = g.k / g.groups, cg = g.c / g.groups, group = blockIdx.z;
  const int64_t m = MODE == 1 ? cg : kg, depth = MODE == 0   ? cg * area
                                                 : MODE == 1 ? kg * area
                                                             : g.n * g.oh * g.ow;
  const int64_t n = MODE == 0 ? g.n * g.oh * g.ow : MODE == 1 ? g.n * g.h * g.w : cg * area;
  const int64_t row = (int64_t)blockIdx.y * CONV_M, col = (int64_t)blockIdx.x * CONV_N;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  /* Each thread reads one column of `right`. */
  const int64_t mine = col + threadIdx.x % CONV_N;
  ConvSpot spot = {0, 0, 0};
  int64_t channel = 0;
  int mky = 0, mkx = 0;
  if (MODE == 2) {
    channel = mine / area;
    mky = (int)(mine % area) / kw, mkx = (int)(mine % area) % kw;
  } else {
    spot = MODE == 0 ? conv_spot(mine, g.oh, g.ow) : conv_spot(mine, g.h, g.w);
  }
  accum sum[4][4] = {};
  for (int64_t k0 = 0; k0 < depth; k0 += CONV_K) {
#pragma unroll
    for (int i = threadIdx.x; i < CONV_M * CONV_K; i += CONV_THREADS) {
      int kk = i % CONV_K, r = i / CONV_K;
      int64_t k = k0 + kk, at = row + r;
      accum v = 0;
      if (at < m && k < depth) {
        if (MODE == 0)
          v = (accum)LOAD(a[(group * kg + at) * depth + k]);
        else if (MODE == 1)
          v = (accum)LOAD(a[((group * kg + k / area) * cg + at) * area + k % area]);
        else {
          int64_t plane = g.oh * g.ow;
          v = (accum)LOAD(a[(k / plane * g.k + group * kg + at) * plane + k % plane]);
        }
      }
      left[kk][r] = v;
    }
#pragma unroll
    for (int kk = threadIdx.x / CONV_N; kk < CONV_K; kk += CONV_THREADS / CONV_N) {
      int64_t k = k0 + kk;
      accum v = 0;
      if (mine < n && k < depth) {
        if (MODE == 2) {
          ConvSpot s = conv_spot(k, g.oh, g.ow);
          v = conv_pixel(g, b, s.n, group * cg + channel, s.y, s.x, mky, mkx);
        } else {
          int t = (int)(k % area);
          int64_t c = k / area;
          v = MODE == 0 ? conv_pixel(g, b, spot.n, group * cg + c, spot.y, spot.x, t / kw, t % kw)
                        : conv_user(g, b, spot.n, group * kg + c, spot.y, spot.x, t / kw, t % kw);
        }
      }
      right[kk][threadIdx.x % CONV_N] = v;
    }
    __syncthreads();
#pragma unroll
    for (int kk = 0; kk < CONV_K; kk++) {
      accum x[4], y[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        y[i] = left[kk][ty + 8 * i];
        x[i] = right[kk][tx + 16 * i];
      }
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
          sum[i][j] += y[i] * x[j];
    }
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < 4; j++) {
    int64_t q = col + tx + 16 * j;
    if (q >= n)
      continue;
    int64_t plane = MODE == 0 ? g.oh * g.ow : g.h * g.w, channels = MODE == 0 ? g.k : g.c;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int64_t r = row + ty + 8 * i, o = group * m + r;
      if (r >= m)
        continue;
      accum v = sum[i][j];
      if (MODE == 0 && bias)
        v += (accum)LOAD(bias[o]);
      int64_t to = MODE == 2 ? o * n + q : (q / plane * channels + o) * plane + q % plane;
      out[to] = STORE((real)v);
    }
  }
}

template <int MODE> static MothStatus conv_start(const MothCudaRun *run, const MothConvProduct *p) {
  const MothConv *g = &p->g;
  int64_t area = g->kernel[0] * g->kernel[1], cg = g->c / g->groups, kg = g->k / g->groups;
  int64_t m = MODE == 1 ? cg : kg;
  int64_t n = MODE == 0 ? g->n * g->oh * g->ow : MODE == 1 ? g->n * g->h * g->w : cg * area;
  int64_t rows = moth_ceil_div(m, CONV_M), cols = moth_ceil_div(n, CONV_N);
  if (rows > 65535 || g->groups > 65535 || cols > INT32_MAX)
    return moth_fail(MOTH_ERR_VALUE, "the convolution is too large: %lld channels, %lld groups",
                     (long long)m, (long long)g->groups);
  return moth_launch("conv", conv_kernel<MODE>,
                     dim3((unsigned)cols, (unsigned)rows, (unsigned)g->groups), dim3(CONV_THREADS),
                     0, run->stream, *g, (const stored *)p->a, (const stored *)p->b,
                     (const stored *)p->bias, (stored *)p->out);
}

/* out += bias along the channels, of (images, channels, plane) */
__global__ void __launch_bounds__(256)
    bias_kernel(stored *out, const stored *bias, int64_t channels, int64_t plane, int64_t n) {
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = STORE((real)(LOAD(out[i]) + LOAD(bias[i / plane % channels])));
}
MOTH_TYPED MothStatus conv_bias(const MothCudaRun *run, const MothConvProduct *p) {
  int64_t plane = p->g.oh * p->g.ow, n = p->g.n * p->g.k * plane;
  return moth_launch("conv_bias", bias_kernel, dim3((unsigned)moth_ceil_div(n, 256)), dim3(256), 0,
                     run->stream, (stored *)p->out, (const stored *)p->bias, p->g.k, plane, n);
}

MOTH_TYPED MothStatus conv_simt(const MothCudaRun *run, const MothConvProduct *p) {
  switch (p->mode) {
  case MOTH_CONV_FORWARD:
    return conv_start<0>(run, p);
  case MOTH_CONV_INPUT:
    return conv_start<1>(run, p);
  default:
    return conv_start<2>(run, p);
  }
}
#else
static MothStatus conv_simt(const MothCudaRun *, const MothConvProduct *) {
  return moth_fail(MOTH_ERR_TYPE, "not implemented for integers");
}
static MothStatus conv_bias(const MothCudaRun *, const MothConvProduct *) {
  return moth_fail(MOTH_ERR_TYPE, "not implemented for integers");
}
#endif

/* --- columns -------------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(256)
    im2col_kernel(const __grid_constant__ MothConv g, stored *out, const stored *in, int64_t n) {
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  int64_t ox = i % g.ow, oy = i / g.ow % g.oh, r = i / (g.ow * g.oh);
  int64_t kx = r % g.kernel[1], ky = r / g.kernel[1] % g.kernel[0];
  int64_t y = oy * g.stride[0] + ky * g.dilation[0] - g.padding[0];
  int64_t x = ox * g.stride[1] + kx * g.dilation[1] - g.padding[1];
  int64_t plane = r / (g.kernel[0] * g.kernel[1]);
  bool inside = y >= 0 && y < g.h && x >= 0 && x < g.w;
  out[i] = inside ? in[(plane * g.h + y) * g.w + x] : (stored)0;
}
MOTH_TYPED MothStatus im2col(const MothCudaRun *run, const MothConvProduct *p) {
  const MothConv *g = &p->g;
  int64_t n = g->n * g->c * g->kernel[0] * g->kernel[1] * g->oh * g->ow;
  return moth_launch("im2col", im2col_kernel, dim3((unsigned)moth_ceil_div(n, 256)), dim3(256), 0,
                     run->stream, *g, (stored *)p->out, (const stored *)p->b, n);
}

__global__ void __launch_bounds__(256)
    col2im_kernel(const __grid_constant__ MothConv g, stored *out, const stored *in, int64_t n) {
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  int64_t ix = i % g.w, iy = i / g.w % g.h, plane = i / (g.w * g.h);
  int64_t area = g.kernel[0] * g.kernel[1];
  accum sum = 0;
  for (int64_t t = 0; t < area; t++) {
    int64_t y = iy + g.padding[0] - t / g.kernel[1] * g.dilation[0];
    int64_t x = ix + g.padding[1] - t % g.kernel[1] * g.dilation[1];
    if (y < 0 || x < 0 || y % g.stride[0] || x % g.stride[1])
      continue;
    y /= g.stride[0], x /= g.stride[1];
    if (y < g.oh && x < g.ow)
      sum += (accum)LOAD(in[((plane * area + t) * g.oh + y) * g.ow + x]);
  }
  out[i] = STORE((real)sum);
}
MOTH_TYPED MothStatus col2im(const MothCudaRun *run, const MothConvProduct *p) {
  const MothConv *g = &p->g;
  int64_t n = g->n * g->c * g->h * g->w;
  return moth_launch("col2im", col2im_kernel, dim3((unsigned)moth_ceil_div(n, 256)), dim3(256), 0,
                     run->stream, *g, (stored *)p->out, (const stored *)p->b, n);
}
