/* Running sums along rows and columns, in double or 64 bits. Short rows: a warp each; long ones: a block each, tile
 * after tile; if long rows are few: a block for each chunk of one, after a pass for the sums of all chunks. */

#if MOTH_IS_FLOAT
typedef stored scan_out;
#define STORE_SUM(x) STORE((real)(x))
#else
typedef unsigned long long scan_out;
#define STORE_SUM(x) (x)
#endif

struct ScanAdd {
  template <class T> static __device__ __forceinline__ T none() { return 0; }
  template <class T> static __device__ __forceinline__ T join(T a, T b) { return a + b; }
};

/* The sum over lanes 0 to this one. */
__device__ __forceinline__ sum_total scan_warp(sum_total x) {
  int lane = threadIdx.x & 31;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    sum_total y = __shfl_up_sync(0xffffffffu, x, d);
    x += lane >= d ? y : 0;
  }
  return x;
}

__global__ void __launch_bounds__(ROW_THREADS)
    scan_short(scan_out *out, const stored *in, int64_t rows, int64_t n) {
  int lane = threadIdx.x & 31;
  int64_t row = ((int64_t)blockIdx.x * ROW_THREADS + threadIdx.x) >> 5;
  for (; row < rows; row += (int64_t)gridDim.x * (ROW_THREADS / 32)) {
    const stored *a = in + row * n;
    scan_out *o = out + row * n;
    sum_total before = 0;
    for (int64_t i = lane; i - lane < n; i += 32) {
      sum_total x = scan_warp(i < n ? (sum_total)LOAD(a[i]) : 0) + before;
      if (i < n)
        o[i] = STORE_SUM(x);
      before = __shfl_sync(0xffffffffu, x, 31);
    }
  }
}

__global__ void __launch_bounds__(ROW_THREADS)
    scan_parts(const stored *in, sum_total *parts, int64_t rows, int64_t n, int64_t each) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    int64_t from = (int64_t)blockIdx.y * each, to = n - from < each ? n : from + each;
    sum_total sum = 0;
#pragma unroll 8
    for (int64_t i = from + threadIdx.x; i < to; i += ROW_THREADS)
      sum += (sum_total)LOAD(in[row * n + i]);
    sum = join_block<ScanAdd>(sum);
    if (threadIdx.x == 0)
      parts[row * gridDim.y + blockIdx.y] = sum;
  }
}

/* A thread has V neighbours of a tile. Tiles start at an aligned address at or before the row (the chunk): elements
 * outside are skipped. WIDE: results are aligned as the elements are. */
template <int V, bool WIDE>
__global__ void __launch_bounds__(ROW_THREADS)
    scan_long(scan_out *out, const stored *in, const sum_total *parts, int64_t rows, int64_t n,
              int64_t each) {
  constexpr int W = 16 / (int)sizeof(scan_out) < V ? 16 / (int)sizeof(scan_out) : V;
  __shared__ sum_total warps[ROW_THREADS / 32];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    int64_t from = (int64_t)blockIdx.y * each, to = n - from < each ? n : from + each;
    const stored *a = in + row * n;
    scan_out *o = out + row * n;
    sum_total before = 0;
    if (parts) {
      for (unsigned p = threadIdx.x; p < blockIdx.y; p += ROW_THREADS)
        before += parts[row * gridDim.y + p];
      before = join_block<ScanAdd>(before);
    }
    int64_t skew = V == 1 ? 0 : (int64_t)((uintptr_t)(a + from) & 15) / (int)sizeof(stored);
    for (int64_t tile = from - skew; tile < to; tile += ROW_THREADS * V) {
      int64_t i = tile + threadIdx.x * V;
      bool whole = i >= from && i + V <= to;
      real x[V];
      if (whole) {
        load_pack<V>(a + i, x);
      } else {
#pragma unroll
        for (int v = 0; v < V; v++)
          x[v] = i + v >= from && i + v < to ? LOAD(a[i + v]) : (real)0;
      }
      sum_total s[V];
      s[0] = (sum_total)x[0];
#pragma unroll
      for (int v = 1; v < V; v++)
        s[v] = s[v - 1] + (sum_total)x[v];
      sum_total upto = scan_warp(s[V - 1]), left = __shfl_up_sync(0xffffffffu, upto, 1);
      __syncthreads(); /* the last tile has been read */
      if (lane == 31)
        warps[warp] = upto;
      __syncthreads();
      sum_total base = before;
#pragma unroll
      for (int w = 0; w < ROW_THREADS / 32; w++) {
        base += w < warp ? warps[w] : 0;
        before += warps[w];
      }
      if (lane)
        base += left;
      if (whole && WIDE) {
#pragma unroll
        for (int v = 0; v < V; v += W) {
          Pack<scan_out, W> q;
#pragma unroll
          for (int k = 0; k < W; k++)
            q.v[k] = STORE_SUM(base + s[v + k]);
          put_pack(o + i + v, q);
        }
      } else {
#pragma unroll
        for (int v = 0; v < V; v++)
          if (i + v >= from && i + v < to)
            o[i + v] = STORE_SUM(base + s[v]);
      }
    }
  }
}

/* A thread for each column: n elements `inner` apart. */
__global__ void __launch_bounds__(ROW_THREADS)
    scan_cols(scan_out *out, const stored *in, int64_t cols, int64_t n, int64_t inner,
              WideDiv width) {
  constexpr int U = 8;
  int64_t step = (int64_t)gridDim.x * ROW_THREADS;
  for (int64_t c = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x; c < cols; c += step) {
    int64_t o = div_wide(c, width), at = o * n * inner + (c - o * inner), i = 0;
    sum_total sum = 0;
    for (; i + U <= n; i += U) {
      real x[U];
#pragma unroll
      for (int u = 0; u < U; u++)
        x[u] = LOAD(in[at + (i + u) * inner]);
#pragma unroll
      for (int u = 0; u < U; u++) {
        sum += (sum_total)x[u];
        out[at + (i + u) * inner] = STORE_SUM(sum);
      }
    }
#pragma unroll 1
    for (; i < n; i++) {
      sum += (sum_total)LOAD(in[at + i * inner]);
      out[at + i * inner] = STORE_SUM(sum);
    }
  }
}

MOTH_TYPED MothStatus cumsum(int device, cudaStream_t stream, void *to, const void *from,
                             int64_t outer, int64_t n, int64_t inner) {
  scan_out *out = static_cast<scan_out *>(to);
  const stored *in = static_cast<const stored *>(from);
  const dim3 block(ROW_THREADS);
  if (inner > 1) {
    int64_t cols = outer * inner;
    return moth_launch("cumsum", scan_cols, dim3(grid_of(moth_ceil_div(cols, ROW_THREADS))), block,
                       0, stream, out, in, cols, n, inner, wide_div(inner));
  }
  if (n <= SHORT_ROW)
    return moth_launch("cumsum", scan_short, dim3(grid_of(moth_ceil_div(outer, ROW_THREADS / 32))),
                       block, 0, stream, out, in, outer, n);
  int64_t target = (int64_t)moth_cuda_props(device)->multiprocessors * 8, pieces = 1;
  if (outer < target / 4)
    pieces = moth_min64(moth_ceil_div(target, outer), moth_ceil_div(n, PIECE));
  int64_t each = moth_ceil_div(moth_ceil_div(n, pieces), 4096) * 4096;
  pieces = moth_ceil_div(n, each);
  MothScratch parts;
  dim3 grid(grid_of(outer), (unsigned)pieces);
  if (pieces > 1) {
    MOTH_TRY(parts.take(device, (size_t)(outer * pieces) * sizeof(sum_total)));
    MOTH_TRY(moth_launch("cumsum", scan_parts, grid, block, 0, stream, in, parts.as<sum_total>(),
                         outer, n, each));
  }
  /* Where in is aligned, out must be. */
  uintptr_t skew = ((uintptr_t)in & 15) / sizeof(stored) * sizeof(scan_out);
  bool wide = (((uintptr_t)out - skew) & 15) == 0;
  return moth_launch("cumsum", wide ? scan_long<PACK, true> : scan_long<PACK, false>, grid, block,
                     0, stream, out, in, parts.as<sum_total>(), outer, n, each);
}
