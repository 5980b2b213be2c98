/* Running results along rows and columns: Scan_<name> of combine.cuh. Short rows: a warp each; long ones: a block each,
 * tile after tile; if long rows are few: a block for each chunk of one, after a pass for the results of all chunks. */

/* What lanes 0 to this one have, joined. */
template <class Op> __device__ __forceinline__ typename Op::total scan_warp(typename Op::total x) {
  typedef typename Op::total Total;
  int lane = threadIdx.x & 31;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    Total y = __shfl_up_sync(0xffffffffu, x, d);
    x = Op::join(x, lane >= d ? y : Op::template none<Total>());
  }
  return x;
}

template <class Op>
__global__ void __launch_bounds__(ROW_THREADS)
    scan_short(typename Op::element *out, const stored *in, int64_t rows, int64_t n) {
  typedef typename Op::total Total;
  int lane = threadIdx.x & 31;
  int64_t row = ((int64_t)blockIdx.x * ROW_THREADS + threadIdx.x) >> 5;
  for (; row < rows; row += (int64_t)gridDim.x * (ROW_THREADS / 32)) {
    const stored *a = in + row * n;
    typename Op::element *o = out + row * n;
    Total before = Op::template none<Total>();
    for (int64_t i = lane; i - lane < n; i += 32) {
      Total x =
          Op::join(scan_warp<Op>(i < n ? Op::of(LOAD(a[i])) : Op::template none<Total>()), before);
      if (i < n)
        o[i] = Op::put(x);
      before = __shfl_sync(0xffffffffu, x, 31);
    }
  }
}

template <class Op>
__global__ void __launch_bounds__(ROW_THREADS)
    scan_parts(const stored *in, typename Op::total *parts, int64_t rows, int64_t n, int64_t each) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    int64_t from = (int64_t)blockIdx.y * each, to = n - from < each ? n : from + each;
    auto acc = Op::template none<typename Op::total>();
#pragma unroll 8
    for (int64_t i = from + threadIdx.x; i < to; i += ROW_THREADS)
      acc = Op::join(acc, Op::of(LOAD(in[row * n + i])));
    acc = join_block<Op>(acc);
    if (threadIdx.x == 0)
      parts[row * gridDim.y + blockIdx.y] = acc;
  }
}

/* A thread has V neighbours of a tile. Tiles start at an aligned address at or before the row (the chunk): elements
 * outside are skipped. WIDE: results are aligned as the elements are. */
template <class Op, int V, bool WIDE>
__global__ void __launch_bounds__(ROW_THREADS)
    scan_long(typename Op::element *out, const stored *in, const typename Op::total *parts,
              int64_t rows, int64_t n, int64_t each) {
  typedef typename Op::total Total;
  typedef typename Op::element Element;
  constexpr int W = 16 / (int)sizeof(Element) < V ? 16 / (int)sizeof(Element) : V;
  const Total none = Op::template none<Total>();
  __shared__ Total warps[ROW_THREADS / 32];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    int64_t from = (int64_t)blockIdx.y * each, to = n - from < each ? n : from + each;
    const stored *a = in + row * n;
    Element *o = out + row * n;
    Total before = none;
    if (parts) {
      for (unsigned p = threadIdx.x; p < blockIdx.y; p += ROW_THREADS)
        before = Op::join(before, parts[row * gridDim.y + p]);
      before = join_block<Op>(before);
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
      Total s[V];
#pragma unroll
      for (int v = 0; v < V; v++) {
        s[v] = whole || (i + v >= from && i + v < to) ? Op::of(x[v]) : none;
        if (v)
          s[v] = Op::join(s[v - 1], s[v]);
      }
      Total upto = scan_warp<Op>(s[V - 1]), left = __shfl_up_sync(0xffffffffu, upto, 1);
      __syncthreads(); /* the last tile has been read */
      if (lane == 31)
        warps[warp] = upto;
      __syncthreads();
      Total base = before;
#pragma unroll
      for (int w = 0; w < ROW_THREADS / 32; w++) {
        base = Op::join(base, w < warp ? warps[w] : none);
        before = Op::join(before, warps[w]);
      }
      if (lane)
        base = Op::join(base, left);
      if (whole && WIDE) {
#pragma unroll
        for (int v = 0; v < V; v += W) {
          Pack<Element, W> q;
#pragma unroll
          for (int k = 0; k < W; k++)
            q.v[k] = Op::put(Op::join(base, s[v + k]));
          put_pack(o + i + v, q);
        }
      } else {
#pragma unroll
        for (int v = 0; v < V; v++)
          if (i + v >= from && i + v < to)
            o[i + v] = Op::put(Op::join(base, s[v]));
      }
    }
  }
}

/* A thread for each column: n elements `inner` apart. */
template <class Op>
__global__ void __launch_bounds__(ROW_THREADS)
    scan_cols(typename Op::element *out, const stored *in, int64_t cols, int64_t n, int64_t inner,
              WideDiv width) {
  constexpr int U = 8;
  int64_t step = (int64_t)gridDim.x * ROW_THREADS;
  for (int64_t c = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x; c < cols; c += step) {
    int64_t o = div_wide(c, width), at = o * n * inner + (c - o * inner), i = 0;
    auto acc = Op::template none<typename Op::total>();
    for (; i + U <= n; i += U) {
      real x[U];
#pragma unroll
      for (int u = 0; u < U; u++)
        x[u] = LOAD(in[at + (i + u) * inner]);
#pragma unroll
      for (int u = 0; u < U; u++) {
        acc = Op::join(acc, Op::of(x[u]));
        out[at + (i + u) * inner] = Op::put(acc);
      }
    }
#pragma unroll 1
    for (; i < n; i++) {
      acc = Op::join(acc, Op::of(LOAD(in[at + i * inner])));
      out[at + i * inner] = Op::put(acc);
    }
  }
}

template <class Op>
static MothStatus scan_of(const char *name, const MothCudaRun *run, const MothScan *s) {
  typedef typename Op::element Element;
  typedef typename Op::total Total;
  Element *out = static_cast<Element *>(s->out);
  const stored *in = static_cast<const stored *>(s->in);
  const dim3 block(ROW_THREADS);
  if (s->inner > 1) {
    int64_t cols = s->outer * s->inner;
    return moth_launch(name, scan_cols<Op>, dim3(grid_of(moth_ceil_div(cols, ROW_THREADS))), block,
                       0, run->stream, out, in, cols, s->n, s->inner, wide_div(s->inner));
  }
  if (s->n <= SHORT_ROW)
    return moth_launch(name, scan_short<Op>,
                       dim3(grid_of(moth_ceil_div(s->outer, ROW_THREADS / 32))), block, 0,
                       run->stream, out, in, s->outer, s->n);
  int64_t target = (int64_t)moth_cuda_props(run->device)->multiprocessors * 8, pieces = 1;
  if (s->outer < target / 4)
    pieces = moth_min64(moth_ceil_div(target, s->outer), moth_ceil_div(s->n, PIECE));
  int64_t each = moth_ceil_div(moth_ceil_div(s->n, pieces), 4096) * 4096;
  pieces = moth_ceil_div(s->n, each);
  MothScratch parts;
  dim3 grid(grid_of(s->outer), (unsigned)pieces);
  if (pieces > 1) {
    MOTH_TRY(parts.take(run->device, (size_t)(s->outer * pieces) * sizeof(Total)));
    MOTH_TRY(moth_launch(name, scan_parts<Op>, grid, block, 0, run->stream, in, parts.as<Total>(),
                         s->outer, s->n, each));
  }
  /* Where in is aligned, out must be. */
  uintptr_t skew = ((uintptr_t)in & 15) / sizeof(stored) * sizeof(Element);
  bool wide = (((uintptr_t)out - skew) & 15) == 0;
  return moth_launch(name, wide ? scan_long<Op, PACK, true> : scan_long<Op, PACK, false>, grid,
                     block, 0, run->stream, out, in, parts.as<Total>(), s->outer, s->n, each);
}

MOTH_TYPED MothStatus scan(const MothCudaRun *run, const MothScan *s) {
  switch (s->op) {
#include "cuda/scan_cases.h"
  default:
    return moth_fail(MOTH_ERR_STATE, "scan %d has no kernel", s->op);
  }
}
