/* linear_int8, linear_int8_dynamic, conv2d_int8 and linear_int4. Activations are made bytes in a workspace, rows of whole
 * words; weights are read as they are in the file, so that nothing is packed. Sums of products are exact: dp4a, four
 * signed bytes at a time; activations of uint8 are less 128, as their zero points are. Few rows: a warp has a column
 * and all rows, since reading the weight is what takes time; else tiles in shared memory. A convolution's rows are
 * its windows, written down. */
#include <math.h>

#include "kernels/cuda/util.h"
#include "unpack/quantization.h"

namespace {

enum { THREADS = 256, WARPS = THREADS / 32, FEW = 8, TILE = 64, STEP = 16 };
static const int64_t WORKSPACE = 256 << 20; /* bytes of windows at a time */

/* Four products of signed bytes, added to sum. */
__device__ __forceinline__ int dot4(int a, int b, int sum) {
#ifdef __CUDA_ARCH__
  return __dp4a(a, b, sum);
#else
  for (int i = 0; i < 32; i += 8)
    sum += (int)(int8_t)(a >> i) * (int8_t)(b >> i);
  return sum;
#endif
}

__device__ __forceinline__ float round_even(float x) {
  return rintf(x);
}
__device__ __forceinline__ double round_even(double x) {
  return rint(x);
}

/* --- activations as bytes ------------------------------------------------------------------------- */

/* round(x * inverse) + zero, cut to uint8, less 128. NaN: the least. */
template <class R> __device__ __forceinline__ int8_t byte_of(R x, R inverse, R zero) {
  R y = round_even(x * inverse) + zero;
  y = y > 0 ? y : (R)0;
  y = y < 255 ? y : (R)255;
  return (int8_t)((int)y - 128);
}

template <class R> struct Rows {
  const R *in; /* NULL: bytes */
  const uint8_t *bytes;
  int64_t n, words; /* of a row */
  int8_t *out;
  R inverse, zero;
  R *scales; /* of each row; NULL: known before */
  int *zeros;
};

/* The extremes of a block's values, in all threads. */
template <class R> __device__ void extremes(R *low, R *high, R *odd) {
  __shared__ R of_warp[3][WARPS];
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    R l = __shfl_xor_sync(0xffffffffu, *low, d), h = __shfl_xor_sync(0xffffffffu, *high, d);
    *low = l < *low ? l : *low;
    *high = h > *high ? h : *high;
    *odd += __shfl_xor_sync(0xffffffffu, *odd, d);
  }
  if (threadIdx.x % 32 == 0) {
    of_warp[0][threadIdx.x / 32] = *low;
    of_warp[1][threadIdx.x / 32] = *high;
    of_warp[2][threadIdx.x / 32] = *odd;
  }
  __syncthreads();
  for (int w = 0; w < WARPS; w++) {
    *low = of_warp[0][w] < *low ? of_warp[0][w] : *low;
    *high = of_warp[1][w] > *high ? of_warp[1][w] : *high;
    *odd += w == (int)threadIdx.x / 32 ? (R)0 : of_warp[2][w];
  }
}

/* A block has a row. Behind its end stand zeros, with which the weight's are multiplied. */
template <class R> __global__ void __launch_bounds__(THREADS) rows_kernel(Rows<R> a) {
  int64_t row = blockIdx.x;
  const R *in = a.in ? a.in + row * a.n : nullptr;
  int8_t *out = a.out + row * 4 * a.words;
  R inverse = a.inverse, zero = a.zero;
  if (a.scales) {
    R low = 0, high = 0, odd = 0;
    for (int64_t i = threadIdx.x; i < a.n; i += THREADS) {
      R x = in[i];
      low = x < low ? x : low;
      high = x > high ? x : high;
      odd += x * 0; /* not 0 where x is inf or NaN */
    }
    extremes(&low, &high, &odd);
    R scale = (high + odd - (low + odd)) * (R)(1.0 / 255);
    scale = scale < (R)1e-30 ? (R)1 : scale;
    inverse = 1 / scale;
    zero = round_even(-low * inverse);
    zero = zero > 0 ? zero : (R)0;
    zero = zero < 255 ? zero : (R)255;
    if (threadIdx.x == 0) {
      a.scales[row] = scale;
      a.zeros[row] = (int)zero - 128;
    }
  }
  for (int64_t i = threadIdx.x; i < 4 * a.words; i += THREADS)
    out[i] = i >= a.n ? (int8_t)0
             : in     ? byte_of(in[i], inverse, zero)
                      : (int8_t)(a.bytes[row * a.n + i] - 128);
}

/* Windows of images as rows. */
template <class R> struct Windows {
  const R *in; /* NULL: bytes */
  const uint8_t *bytes;
  int64_t groups, channels, h, w, oh, ow, kh, kw, words, first, n; /* n: bytes of all windows */
  int64_t stride[2], padding[2], dilation[2];
  int8_t *out; /* [groups][windows][4 * words] */
  R inverse, zero;
};

template <class R> __global__ void __launch_bounds__(THREADS) windows_kernel(Windows<R> a) {
  int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (i >= a.n)
    return;
  int64_t k = i % (4 * a.words), row = i / (4 * a.words), pixels = a.oh * a.ow;
  int64_t windows = a.n / (4 * a.words) / a.groups, g = row / windows;
  if (k >= a.channels * a.kh * a.kw) {
    a.out[i] = 0;
    return;
  }
  int64_t window = row % windows, image = a.first + window / pixels, at = window % pixels;
  int64_t x = at % a.ow * a.stride[1] - a.padding[1] + k % a.kw * a.dilation[1];
  int64_t y = at / a.ow * a.stride[0] - a.padding[0] + k / a.kw % a.kh * a.dilation[0];
  int64_t c = (image * a.groups + g) * a.channels + k / (a.kw * a.kh);
  if (x < 0 || x >= a.w || y < 0 || y >= a.h)
    a.out[i] = (int8_t)((int)a.zero - 128); /* 0 */
  else if (a.in)
    a.out[i] = byte_of(a.in[(c * a.h + y) * a.w + x], a.inverse, a.zero);
  else
    a.out[i] = (int8_t)(a.bytes[(c * a.h + y) * a.w + x] - 128);
}

/* --- products ---------------------------------------------------------------------------------------- */

/* out[row, column] = (rows x columns, less the zero points) * scales + bias. A result of a group stands at
 * row / pixels * image + (group * columns + column) * channel + row % pixels. */
template <class R> struct Product {
  const int *rows; /* [groups][m][words] */
  int64_t m, n, k, words;
  const int8_t *weight; /* [groups * n][k] */
  const R *scale, *bias;
  const R *scales; /* of each row; NULL: row_scale, row_zero */
  const int *zeros;
  R row_scale;
  int row_zero;
  bool relu;
  R *out;
  int64_t pixels, image, channel;
};

/* Four bytes of a weight's row; behind its end, or that of all rows, zeros. */
__device__ __forceinline__ int weight_word(const int8_t *row, int64_t k, int64_t n) {
  if (k + 4 <= n && (uintptr_t)(row + k) % 4 == 0)
    return *reinterpret_cast<const int *>(row + k);
  unsigned word = 0;
  for (int b = 0; b < 4; b++)
    if (k + b < n)
      word |= (unsigned)(uint8_t)row[k + b] << (8 * b);
  return (int)word;
}

/* of_column: the sum of the column's weight. */
template <class R>
__device__ __forceinline__ void finish(const Product<R> &p, int64_t group, int64_t row,
                                       int64_t column, int sum, int of_column) {
  int64_t j = group * p.n + column;
  int zero = p.scales ? p.zeros[row] : p.row_zero;
  R by = p.scales ? p.scales[row] : p.row_scale;
  R y = (R)(int)((unsigned)sum - (unsigned)zero * (unsigned)of_column) * (p.scale[j] * by);
  if (p.bias)
    y += p.bias[j];
  y = p.relu && y < 0 ? (R)0 : y;
  p.out[row / p.pixels * p.image + j * p.channel + row % p.pixels] = y;
}

/* A warp has a column and up to FEW rows. */
template <class R> __global__ void __launch_bounds__(THREADS) few_kernel(Product<R> p) {
  int64_t column = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, group = blockIdx.z;
  int lane = (int)threadIdx.x % 32, sums[FEW + 1] = {0};
  if (column >= p.n)
    return;
  const int8_t *w = p.weight + (group * p.n + column) * p.k;
  const int *rows = p.rows + group * p.m * p.words;
  for (int64_t i = lane; i < p.words; i += 32) {
    int four = weight_word(w, 4 * i, p.k);
    sums[FEW] = dot4(0x01010101, four, sums[FEW]);
#pragma unroll
    for (int r = 0; r < FEW; r++)
      if (r < p.m)
        sums[r] = dot4(rows[r * p.words + i], four, sums[r]);
  }
#pragma unroll
  for (int r = 0; r <= FEW; r++)
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
      sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], d);
#pragma unroll
  for (int r = 0; r < FEW; r++)
    if (r < p.m && lane == r)
      finish(p, group, r, column, sums[r], sums[FEW]);
}

/* A block has TILE rows by TILE columns, a thread 4 by 4 of them, 16 apart. */
template <class R> __global__ void __launch_bounds__(THREADS) tile_kernel(Product<R> p) {
  __shared__ int a[TILE][STEP + 1], b[TILE][STEP + 1];
  int64_t first = (int64_t)blockIdx.x * TILE, from = (int64_t)blockIdx.y * TILE;
  int64_t group = blockIdx.z;
  const int *rows = p.rows + group * p.m * p.words;
  int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16, sums[4][4] = {{0}}, of_column[4] = {0};
  for (int64_t step = 0; step < p.words; step += STEP) {
    for (int i = (int)threadIdx.x; i < TILE * STEP; i += THREADS) {
      int r = i / STEP, k = i % STEP;
      int64_t row = first + r, column = from + r, word = step + k;
      a[r][k] = row < p.m && word < p.words ? rows[row * p.words + word] : 0;
      b[r][k] =
          column < p.n ? weight_word(p.weight + (group * p.n + column) * p.k, 4 * word, p.k) : 0;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < STEP; k++) {
      int u[4], v[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u[i] = a[y + 16 * i][k];
        v[i] = b[x + 16 * i][k];
        of_column[i] = dot4(0x01010101, v[i], of_column[i]);
      }
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
          sums[i][j] = dot4(u[i], v[j], sums[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (first + y + 16 * i < p.m && from + x + 16 * j < p.n)
        finish(p, group, first + y + 16 * i, from + x + 16 * j, sums[i][j], of_column[j]);
}

template <class R>
MothStatus multiply(const char *name, const Product<R> &p, int64_t groups, cudaStream_t stream) {
  if (p.m <= FEW)
    return moth_launch(name, few_kernel<R>,
                       dim3((unsigned)moth_ceil_div(p.n, (int64_t)WARPS), 1, (unsigned)groups),
                       dim3(THREADS), 0, stream, p);
  return moth_launch(name, tile_kernel<R>,
                     dim3((unsigned)moth_ceil_div(p.m, (int64_t)TILE),
                          (unsigned)moth_ceil_div(p.n, (int64_t)TILE), (unsigned)groups),
                     dim3(THREADS), 0, stream, p);
}

/* --- calls ------------------------------------------------------------------------------------------- */

template <class R> struct Job {
  static constexpr MothDType DTYPE = sizeof(R) == 8 ? MOTH_FLOAT64 : MOTH_FLOAT32;
  MothCudaRun run;
  MothOwned input, weight, scale, bias, out;
  MothScratch bytes, scales, zeros;
  const R *floats = nullptr; /* the input: one of these */
  const uint8_t *given = nullptr;

  MothStatus open(MothCall *c) {
    MothTensor *result = c->results[0].u.t;
    const MothTensor *x = c->args[0].u.t;
    MOTH_TRY(moth_cuda_run(c, &run));
    MOTH_TRY(moth_cuda_contiguous_as(x, x->dtype == MOTH_UINT8 ? MOTH_UINT8 : DTYPE, &input.t));
    MOTH_TRY(moth_cuda_contiguous(c->args[1].u.t, &weight.t));
    MOTH_TRY(moth_cuda_contiguous_as(c->args[2].u.t, DTYPE, &scale.t));
    if (c->args[3].tag == MOTH_V_TENSOR)
      MOTH_TRY(moth_cuda_contiguous_as(c->args[3].u.t, DTYPE, &bias.t));
    if (x->dtype == MOTH_UINT8)
      given = reinterpret_cast<const uint8_t *>(input->data);
    else
      floats = reinterpret_cast<const R *>(input->data);
    if (result->dtype != DTYPE || !result->contiguous)
      return moth_tensor_new(result->ndim, result->shape, DTYPE, result->device, &out.t);
    moth_tensor_retain(result);
    out.t = result;
    return MOTH_OK;
  }
  MothStatus close(MothCall *c) {
    return out.t == c->results[0].u.t ? MOTH_OK : moth_cuda_copy(c->results[0].u.t, out);
  }
  Product<R> product(double row_scale, int64_t zero, bool relu) const {
    Product<R> p = {};
    p.weight = reinterpret_cast<const int8_t *>(weight->data);
    p.scale = reinterpret_cast<const R *>(scale->data);
    p.bias = bias.t ? reinterpret_cast<const R *>(bias->data) : nullptr;
    p.row_scale = (R)row_scale;
    p.row_zero = (int)zero - 128;
    p.relu = relu;
    p.out = reinterpret_cast<R *>(out->data);
    return p;
  }

  MothStatus linear(MothCall *c, bool dynamic, double row_scale, int64_t zero, bool relu) {
    MOTH_TRY(open(c));
    int64_t n = weight->shape[0], k = weight->shape[1], m = out->numel / n, words = (k + 3) / 4;
    Product<R> p = product(row_scale, zero, relu);
    Rows<R> rows = {};
    MOTH_TRY(bytes.take(run.device, (size_t)(4 * m * words)));
    if (dynamic) {
      MOTH_TRY(scales.take(run.device, (size_t)m * sizeof(R)));
      MOTH_TRY(zeros.take(run.device, (size_t)m * sizeof(int)));
    }
    rows.in = floats, rows.bytes = given, rows.n = k, rows.words = words;
    rows.out = bytes.as<int8_t>();
    rows.inverse = (R)(1 / row_scale), rows.zero = (R)zero;
    rows.scales = scales.as<R>(), rows.zeros = zeros.as<int>();
    MOTH_TRY(moth_launch(c->op->name, rows_kernel<R>, dim3((unsigned)m), dim3(THREADS), 0,
                         run.stream, rows));
    p.rows = bytes.as<int>();
    p.m = m, p.n = n, p.k = k, p.words = words;
    p.scales = rows.scales, p.zeros = rows.zeros;
    p.pixels = 1, p.image = n, p.channel = 1;
    MOTH_TRY(multiply(c->op->name, p, 1, run.stream));
    return close(c);
  }

  MothStatus conv(MothCall *c) {
    MOTH_UNPACK_CONV2D_INT8(c)
    MOTH_TRY(open(c));
    const MothTensor *x = this->input, *w = this->weight;
    int last = x->ndim - 1;
    int64_t images = x->ndim == 4 ? x->shape[0] : 1;
    Windows<R> a = {};
    a.in = floats, a.bytes = given, a.groups = groups, a.channels = w->shape[1];
    a.h = x->shape[last - 1], a.w = x->shape[last];
    a.oh = out->shape[last - 1], a.ow = out->shape[last];
    a.kh = w->shape[2], a.kw = w->shape[3];
    a.inverse = (R)(1 / input_scale), a.zero = (R)input_zero_point;
    for (int i = 0; i < 2; i++) {
      a.stride[i] = stride.u.ints[i];
      a.padding[i] = padding.u.ints[i];
      a.dilation[i] = dilation.u.ints[i];
    }
    Product<R> p = product(input_scale, input_zero_point, relu);
    int64_t pixels = a.oh * a.ow;
    p.n = w->shape[0] / groups, p.k = a.channels * a.kh * a.kw, p.words = (p.k + 3) / 4;
    p.pixels = p.channel = pixels, p.image = w->shape[0] * pixels;
    a.words = p.words;
    int64_t each = groups * pixels * 4 * p.words, some = moth_max64(1, WORKSPACE / each);
    some = moth_min64(some, images);
    MOTH_TRY(bytes.take(run.device, (size_t)(some * each)));
    a.out = bytes.as<int8_t>();
    p.rows = bytes.as<int>();
    for (; a.first < images; a.first += some) {
      int64_t now = moth_min64(some, images - a.first);
      a.n = now * each;
      p.m = now * pixels;
      MOTH_TRY(moth_launch(c->op->name, windows_kernel<R>,
                           dim3((unsigned)moth_ceil_div(a.n, (int64_t)THREADS)), dim3(THREADS), 0,
                           run.stream, a));
      MOTH_TRY(multiply(c->op->name, p, groups, run.stream));
      p.out += now * p.image;
    }
    return close(c);
  }

  MothStatus int4(MothCall *c);
};

bool is_double(const MothCall *c) {
  return c->results[0].u.t->dtype == MOTH_FLOAT64;
}

/* --- 4 bits -------------------------------------------------------------------------------------------- */

/* Eight values of a row are two words, those of even positions and those of odd ones, as a word of weights has them
 * in the lower and the upper halves of its bytes. */
template <class R> struct Int4 {
  const R *in;
  int64_t m, n, k, group, groups, words; /* words: of weights of a row */
  int64_t weight_row;
  const uint8_t *weight;
  const R *scale, *bias;
  int2 *values; /* [m][words] */
  R *scales;    /* [m][groups] */
  R *out;
};

/* A warp has a group of a row. */
template <class R> __global__ void __launch_bounds__(THREADS) groups_kernel(Int4<R> p) {
  int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
  if (i >= p.m * p.groups)
    return;
  int lane = (int)threadIdx.x % 32;
  int64_t row = i / p.groups, first = i % p.groups * p.group;
  int64_t end = first + p.group < p.k ? first + p.group : p.k;
  const R *in = p.in + row * p.k;
  R size = 0, odd = 0;
  for (int64_t k = first + lane; k < end; k += 32) {
    R x = in[k] < 0 ? -in[k] : in[k];
    size = x > size ? x : size;
    odd += in[k] * 0;
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    R other = __shfl_xor_sync(0xffffffffu, size, d);
    size = other > size ? other : size;
    odd += __shfl_xor_sync(0xffffffffu, odd, d);
  }
  R scale = (size + odd) * (R)(1.0 / 127);
  scale = scale < (R)1e-30 ? (R)1 : scale;
  R inverse = 1 / scale;
  for (int64_t k = first + 8 * lane; k < first + p.group && k < 8 * p.words; k += 256) {
    unsigned both[2] = {0, 0};
    for (int b = 0; b < 8; b++) {
      R x = k + b < end ? round_even(in[k + b] * inverse) : (R)0;
      x = x > -127 ? x : (R)-127;
      x = x < 127 ? x : (R)127;
      both[b % 2] |= (unsigned)(uint8_t)(int8_t)(int)x << (8 * (b / 2));
    }
    p.values[row * p.words + k / 8] = make_int2((int)both[0], (int)both[1]);
  }
  if (lane == 0)
    p.scales[i] = scale;
}

/* A warp has a column and up to FEW rows. */
template <class R> __global__ void __launch_bounds__(THREADS) int4_kernel(Int4<R> p) {
  int64_t column = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
  int64_t first = (int64_t)blockIdx.y * FEW;
  int lane = (int)threadIdx.x % 32;
  R sums[FEW] = {0};
  if (column >= p.n)
    return;
  const int8_t *w = reinterpret_cast<const int8_t *>(p.weight) + column * p.weight_row;
  for (int64_t i = lane; i < p.words; i += 32) {
    int four = weight_word(w, 4 * i, p.weight_row);
    int low = four & 0x0f0f0f0f, high = (int)((unsigned)four >> 4 & 0x0f0f0f0fu);
    int64_t g = 8 * i / p.group;
    R scale = p.scale[column * p.groups + g];
#pragma unroll
    for (int r = 0; r < FEW; r++)
      if (first + r < p.m) {
        int2 x = p.values[(first + r) * p.words + i];
        int sum = dot4(x.x, 0x08080808, dot4(x.y, 0x08080808, 0));
        sum = dot4(low, x.x, dot4(high, x.y, -sum));
        sums[r] += (R)sum * (scale * p.scales[(first + r) * p.groups + g]);
      }
  }
#pragma unroll
  for (int r = 0; r < FEW; r++) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
      sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], d);
    if (lane == r && first + r < p.m)
      p.out[(first + r) * p.n + column] = p.bias ? sums[r] + p.bias[column] : sums[r];
  }
}

template <class R> MothStatus Job<R>::int4(MothCall *c) {
  MOTH_UNPACK_LINEAR_INT4(c)
  MOTH_TRY(open(c));
  Int4<R> p = {};
  p.in = floats;
  p.n = this->weight->shape[0], p.k = input->shape[input->ndim - 1], p.m = out->numel / p.n;
  p.group = group, p.groups = this->scale->shape[1];
  p.weight_row = this->weight->shape[1], p.words = (p.k + 7) / 8;
  p.weight = reinterpret_cast<const uint8_t *>(this->weight->data);
  p.scale = reinterpret_cast<const R *>(this->scale->data);
  p.bias = this->bias.t ? reinterpret_cast<const R *>(this->bias->data) : nullptr;
  MOTH_TRY(bytes.take(run.device, (size_t)(p.m * p.words) * sizeof(int2)));
  MOTH_TRY(scales.take(run.device, (size_t)(p.m * p.groups) * sizeof(R)));
  p.values = bytes.as<int2>();
  p.scales = scales.as<R>();
  p.out = reinterpret_cast<R *>(out->data);
  MOTH_TRY(moth_launch(c->op->name, groups_kernel<R>,
                       dim3((unsigned)moth_ceil_div(p.m * p.groups, (int64_t)WARPS)), dim3(THREADS),
                       0, run.stream, p));
  MOTH_TRY(moth_launch(c->op->name, int4_kernel<R>,
                       dim3((unsigned)moth_ceil_div(p.n, (int64_t)WARPS),
                            (unsigned)moth_ceil_div(p.m, (int64_t)FEW)),
                       dim3(THREADS), 0, run.stream, p));
  return close(c);
}

} // namespace

MothStatus moth_cuda_linear_int8(MothCall *c) {
  MOTH_UNPACK_LINEAR_INT8(c)
  if (c->results[0].u.t->numel == 0)
    return MOTH_OK;
  return is_double(c) ? Job<double>().linear(c, false, input_scale, input_zero_point, relu)
                      : Job<float>().linear(c, false, input_scale, input_zero_point, relu);
}
MothStatus moth_cuda_linear_int8_dynamic(MothCall *c) {
  MOTH_UNPACK_LINEAR_INT8_DYNAMIC(c)
  if (c->results[0].u.t->numel == 0)
    return MOTH_OK;
  return is_double(c) ? Job<double>().linear(c, true, 1, 0, relu)
                      : Job<float>().linear(c, true, 1, 0, relu);
}
MothStatus moth_cuda_conv2d_int8(MothCall *c) {
  if (c->results[0].u.t->numel == 0)
    return MOTH_OK;
  return is_double(c) ? Job<double>().conv(c) : Job<float>().conv(c);
}
MothStatus moth_cuda_linear_int4(MothCall *c) {
  if (c->results[0].u.t->numel == 0)
    return MOTH_OK;
  return is_double(c) ? Job<double>().int4(c) : Job<float>().int4(c);
}
