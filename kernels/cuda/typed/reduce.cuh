/* Reductions of any layout in a fixed order. Three shapes:
 *   rows     the smallest stride is a reduced one. Short rows: a group of 1 to 32 lanes each; long ones: a
 *            block each, or, where rows are few, a block for each piece of a row
 *   columns  the smallest stride is a kept one: a tile of columns at a time, threads with the same columns
 *            take every ty-th row; cut into pieces as well
 * The totals of pieces go through memory and are joined by a second kernel. How a reduction is cut
 * depends on shape, strides, alignment and the number of multiprocessors: on one device the same call
 * gives the same bits. */

enum { ROW_THREADS = 256, SHORT_ROW = 1024, SEGMENT = 64, PIECE = 8192 };
constexpr int COL_PACK = PACK < 4 ? PACK : 4, COL_UNROLL = sizeof(stored) <= 2 ? 8 : 4;

/* Strides in bytes, but kept_out in elements. Sizes of dimensions that are read in packs count packs. */
struct Layout {
  const char *in;
  int nkept, nred;
  int64_t outs, count;
  int64_t run_stride; /* from element to element of the innermost reduced dimension */
  WideDiv kept[MOTH_MAX_DIMS], red[MOTH_MAX_DIMS];
  int64_t kept_in[MOTH_MAX_DIMS], kept_out[MOTH_MAX_DIMS], red_in[MOTH_MAX_DIMS];
};

/* Where result o reads and writes. */
struct Spot {
  int64_t in, out;
};
__device__ __forceinline__ Spot find_spot(const Layout &l, int64_t o) {
  Spot s = {0, 0};
  for (int d = l.nkept - 1; d > 0; d--) {
    int64_t q = div_wide(o, l.kept[d]), r = o - q * l.kept[d].d;
    s.in += r * l.kept_in[d];
    s.out += r * l.kept_out[d];
    o = q;
  }
  if (l.nkept) {
    s.in += o * l.kept_in[0];
    s.out += o * l.kept_out[0];
  }
  return s;
}
/* The byte position of pack j of the reduced dimensions. */
__device__ __forceinline__ int64_t find_red(const Layout &l, int64_t j) {
  int64_t at = 0;
  for (int d = l.nred - 1; d > 0; d--) {
    int64_t q = div_wide(j, l.red[d]);
    at += (j - q * l.red[d].d) * l.red_in[d];
    j = q;
  }
  return at + (l.nred ? j * l.red_in[0] : 0);
}

/* Packs j, j + step, ... below end; pack p starts at element origin + p * V. */
template <class Op, int V>
__device__ __forceinline__ typename Op::lane gather(const Layout &l, const char *in, int64_t j,
                                                    int64_t end, int step, int64_t origin) {
  constexpr int U = V >= 16 ? 1 : V == 8 ? 2 : 4;
  auto acc = Op::template none<typename Op::lane>();
  for (; j + (U - 1) * step < end; j += U * step) {
    real x[U * V];
#pragma unroll
    for (int u = 0; u < U; u++)
      load_pack<V>(in + find_red(l, j + u * step), x + u * V);
    acc = Op::join(acc, Op::template chunk<V, U>(x, origin + j * V, (int64_t)step * V));
  }
  if constexpr (U > 1) {
#pragma unroll 1
    for (; j < end; j += step) {
      real x[V];
      load_pack<V>(in + find_red(l, j), x);
      acc = Op::join(acc, Op::template chunk<V, 1>(x, origin + j * V, 0));
    }
  }
  return acc;
}

template <class Op, int V>
__global__ void __launch_bounds__(ROW_THREADS)
    reduce_short(const __grid_constant__ Layout l, MothReduceOut out, int shift) {
  int width = 1 << shift, lane = threadIdx.x & (width - 1);
  int64_t row = ((int64_t)blockIdx.x * ROW_THREADS + threadIdx.x) >> shift;
  int64_t first = ((int64_t)blockIdx.x * ROW_THREADS + (threadIdx.x & ~31u)) >> shift;
  int64_t step = (int64_t)gridDim.x * ROW_THREADS >> shift;
  for (; first < l.outs; first += step, row += step) {
    auto acc = Op::template none<typename Op::lane>();
    Spot s = find_spot(l, row < l.outs ? row : 0);
    if (row < l.outs)
      acc = gather<Op, V>(l, l.in + s.in, lane, l.count / V, width, 0);
    acc = join_group<Op>(acc, width);
    if (row < l.outs && lane == 0)
      Op::finish(out, s.out, Op::widen(acc));
  }
}

/* Piece p = blockIdx.y of a row: elements [p * each, (p + 1) * each). A single run is read in packs from its first
 * aligned element on, whatever comes before and after one by one. */
template <class Op, int V>
__global__ void __launch_bounds__(ROW_THREADS)
    reduce_long(const __grid_constant__ Layout l, MothReduceOut out, typename Op::total *parts,
                int64_t each) {
  for (int64_t row = blockIdx.x; row < l.outs; row += gridDim.x) {
    int64_t piece = blockIdx.y, begin = piece * each;
    int64_t end = begin + each < l.count ? begin + each : l.count;
    Spot s = find_spot(l, row);
    const char *in = l.in + s.in;
    auto acc = Op::template none<typename Op::total>();
    int64_t origin = 0, j = begin / V, head = 0, tail = end;
    if (l.nred == 1) {
      head = begin;
      origin = begin;
      if (V > 1)
        origin += (int64_t)(-(uintptr_t)(in + begin * l.run_stride) & 15) / (int)sizeof(stored);
      origin = origin < end ? origin : end;
      j = 0;
      tail = origin + (end - origin) / V * V;
      if (V > 1) {
        int64_t at = threadIdx.x < origin - head ? head + threadIdx.x
                                                 : tail + (threadIdx.x - (origin - head));
        if (at < end && (at < origin || at >= tail)) {
          real x[1];
          load_pack<1>(in + at * l.run_stride, x);
          acc = Op::widen(Op::template chunk<1, 1>(x, at, 0));
        }
      }
      in += origin * l.run_stride;
    }
    int64_t last = (tail - origin) / V, leap = (int64_t)SEGMENT * blockDim.x;
    for (; j < last; j += leap) {
      int64_t to = j + leap < last ? j + leap : last;
      acc = Op::join(acc, Op::widen(gather<Op, V>(l, in, j + threadIdx.x, to, blockDim.x, origin)));
    }
    acc = join_block<Op>(acc);
    if (threadIdx.x)
      continue;
    if (parts)
      parts[piece * l.outs + row] = acc;
    else
      Op::finish(out, s.out, acc);
  }
}

/* `slots` packs of V columns; a block takes 1 << shift of them, over rows [p * each, ...). */
template <class Op, int V>
__global__ void __launch_bounds__(ROW_THREADS)
    reduce_cols(const __grid_constant__ Layout l, MothReduceOut out, typename Op::total *parts,
                int64_t slots, int64_t each, int shift) {
  typedef typename Op::total Total;
  typedef typename Op::lane Part;
  constexpr int U = COL_UNROLL;
  __shared__ Total buf[ROW_THREADS];
  int tx = 1 << shift, x = threadIdx.x & (tx - 1), y = threadIdx.x >> shift;
  int ty = ROW_THREADS >> shift;
  int64_t piece = blockIdx.y, begin = piece * each;
  for (int64_t tile = blockIdx.x; tile << shift < slots; tile += gridDim.x) {
    int64_t slot = (tile << shift) + x;
    int64_t end = begin + each < l.count ? begin + each : l.count;
    bool live = slot < slots;
    Spot s = find_spot(l, live ? slot * V : 0);
    const char *in = l.in + s.in;
    Total acc[V];
#pragma unroll
    for (int k = 0; k < V; k++)
      acc[k] = Op::template none<Total>();
    for (int64_t r = begin; live && r < end; r += SEGMENT * U * ty) {
      int64_t to = r + SEGMENT * U * ty < end ? r + SEGMENT * U * ty : end, i = r + y;
      Part part[V];
#pragma unroll
      for (int k = 0; k < V; k++)
        part[k] = Op::template none<Part>();
      for (; i + (U - 1) * ty < to; i += U * ty) {
        real a[U][V];
#pragma unroll
        for (int u = 0; u < U; u++)
          load_pack<V>(in + find_red(l, i + u * ty), a[u]);
#pragma unroll
        for (int k = 0; k < V; k++) {
          real c[U];
#pragma unroll
          for (int u = 0; u < U; u++)
            c[u] = a[u][k];
          part[k] = Op::join(part[k], Op::template chunk<1, U>(c, i, ty));
        }
      }
#pragma unroll 1
      for (; i < to; i += ty) {
        real a[V];
        load_pack<V>(in + find_red(l, i), a);
#pragma unroll
        for (int k = 0; k < V; k++)
          part[k] = Op::join(part[k], Op::template chunk<1, 1>(a + k, i, 0));
      }
#pragma unroll
      for (int k = 0; k < V; k++)
        acc[k] = Op::join(acc[k], Op::widen(part[k]));
    }
    int64_t stride = l.nkept ? l.kept_out[l.nkept - 1] : 0;
#pragma unroll
    for (int k = 0; k < V; k++) {
      if (ty > 1)
        acc[k] = join_columns<Op>(acc[k], buf, shift);
      if (!live || y)
        continue;
      if (parts)
        parts[piece * l.outs + slot * V + k] = acc[k];
      else
        Op::finish(out, s.out + k * stride, acc[k]);
    }
  }
}

/* The totals of the pieces, [pieces][outs]. */
template <class Op>
__global__ void __launch_bounds__(ROW_THREADS)
    reduce_parts(const __grid_constant__ Layout l, MothReduceOut out,
                 const typename Op::total *parts, int64_t pieces, int shift) {
  typedef typename Op::total Total;
  __shared__ Total buf[ROW_THREADS];
  int tx = 1 << shift, x = threadIdx.x & (tx - 1), y = threadIdx.x >> shift;
  int ty = ROW_THREADS >> shift;
  for (int64_t first = (int64_t)blockIdx.x * tx; first < l.outs; first += (int64_t)gridDim.x * tx) {
    int64_t o = first + x;
    Total acc = Op::template none<Total>();
    for (int64_t p = y; p < pieces && o < l.outs; p += ty)
      acc = Op::join(acc, parts[p * l.outs + o]);
    acc = join_columns<Op>(acc, buf, shift);
    if (y == 0 && o < l.outs)
      Op::finish(out, find_spot(l, o).out, acc);
  }
}

/* Whether all of the run's or width's neighbours can be read in packs of `bytes`. */
static bool packs_fit(const MothReduce *r, int bytes) {
  const MothReduceLayout *k = r->layout;
  bool fit = (uintptr_t)r->in % (unsigned)bytes == 0;
  for (int d = 0; d < k->nkept - !k->rows; d++)
    fit = fit && k->kept[d].in % bytes == 0;
  for (int d = 0; d < k->nred - k->rows; d++)
    fit = fit && k->red[d].in % bytes == 0;
  const MothReduceDim *inner = k->rows ? &k->red[k->nred - 1] : &k->kept[k->nkept - 1];
  return fit && inner->in == (int64_t)sizeof(stored) &&
         inner->size % (bytes / (int64_t)sizeof(stored)) == 0;
}

static Layout reduce_layout(const MothReduce *r, int64_t pack) {
  const MothReduceLayout *k = r->layout;
  Layout l = {};
  l.in = r->in;
  l.nkept = k->nkept;
  l.nred = k->nred;
  l.outs = k->outs;
  l.count = k->count;
  l.run_stride = k->nred ? k->red[k->nred - 1].in : 0;
  for (int d = 0; d < k->nkept; d++) {
    l.kept[d] = wide_div(k->kept[d].size);
    l.kept_in[d] = k->kept[d].in;
    l.kept_out[d] = k->kept[d].out;
  }
  for (int d = 0; d < k->nred; d++) {
    int64_t p = d == k->nred - 1 ? pack : 1;
    l.red[d] = wide_div(k->red[d].size / p ? k->red[d].size / p : 1);
    l.red_in[d] = k->red[d].in * p;
  }
  return l;
}

template <class Op>
static MothStatus reduce_of(const char *name, const MothCudaRun *run, const MothReduce *r) {
  typedef typename Op::total Total;
  const MothReduceLayout *k = r->layout;
  const dim3 block(ROW_THREADS);
  int64_t target = (int64_t)moth_cuda_props(run->device)->multiprocessors * 8, pieces = 1, each;
  MothScratch parts;
  Layout l;
  if (k->rows && k->count <= SHORT_ROW) {
    bool packs = PACK > 1 && packs_fit(r, 16);
    int64_t n = packs ? k->count / PACK : k->count;
    int shift = log2_floor(n / 4, 5);
    l = reduce_layout(r, packs ? PACK : 1);
    dim3 grid(grid_of(moth_ceil_div(k->outs, ROW_THREADS >> shift)));
    return moth_launch(name, packs ? reduce_short<Op, PACK> : reduce_short<Op, 1>, grid, block, 0,
                       run->stream, l, r->out, shift);
  }
  if (k->rows) {
    bool packs = k->nred == 1 ? k->red[0].in == (int64_t)sizeof(stored) : packs_fit(r, 16);
    if (k->outs < target / 2)
      pieces = moth_min64(moth_ceil_div(target, k->outs), moth_ceil_div(k->count, PIECE));
    each = moth_ceil_div(moth_ceil_div(k->count, pieces), 256) * 256;
    pieces = moth_ceil_div(k->count, each);
    if (pieces > 1)
      MOTH_TRY(parts.take(run->device, (size_t)(pieces * k->outs) * sizeof(Total)));
    l = reduce_layout(r, packs ? PACK : 1);
    dim3 grid(grid_of(k->outs), (unsigned)pieces), threads(each <= 4096 ? 128 : ROW_THREADS);
    MOTH_TRY(moth_launch(name, packs ? reduce_long<Op, PACK> : reduce_long<Op, 1>, grid, threads, 0,
                         run->stream, l, r->out, parts.as<Total>(), each));
  } else {
    bool packs = k->nkept && packs_fit(r, COL_PACK * (int)sizeof(stored));
    int64_t slots = packs ? k->outs / COL_PACK : k->outs;
    int shift = log2_ceil(slots, 8 - log2_floor(k->count / 8, 3));
    int64_t tiles = moth_ceil_div(slots, 1 << shift);
    int64_t least = (ROW_THREADS >> shift) * COL_UNROLL * 2;
    if (tiles < target / 2)
      pieces = moth_min64(moth_ceil_div(target, tiles), moth_ceil_div(k->count, least));
    each = moth_max64(moth_ceil_div(k->count, moth_max64(pieces, 1)), 1);
    pieces = moth_max64(moth_ceil_div(k->count, each), 1);
    if (pieces > 1)
      MOTH_TRY(parts.take(run->device, (size_t)(pieces * k->outs) * sizeof(Total)));
    l = reduce_layout(r, 1);
    dim3 grid(grid_of(tiles), (unsigned)pieces);
    MOTH_TRY(moth_launch(name, packs ? reduce_cols<Op, COL_PACK> : reduce_cols<Op, 1>, grid, block,
                         0, run->stream, l, r->out, parts.as<Total>(), slots, each, shift));
  }
  if (pieces == 1)
    return MOTH_OK;
  /* As many threads for a result as there are pieces, the others for neighbouring results. */
  int shift = log2_ceil(k->outs, 8 - log2_floor(pieces, 8));
  return moth_launch(name, reduce_parts<Op>, dim3(grid_of(moth_ceil_div(k->outs, 1 << shift))),
                     block, 0, run->stream, l, r->out, parts.as<Total>(), pieces, shift);
}

MOTH_TYPED MothStatus reduce(const MothCudaRun *run, const MothReduce *r) {
  switch (r->op) {
#include "cuda/reduce_cases.h"
  case MOTH_REDUCE_ARGMAX:
    return reduce_of<ArgOp<false>>("argmax", run, r);
  case MOTH_REDUCE_ARGMIN:
    return reduce_of<ArgOp<true>>("argmin", run, r);
#if MOTH_IS_FLOAT
  case MOTH_REDUCE_VAR:
    return reduce_of<VarOp>("var", run, r);
  case MOTH_REDUCE_LOGSUMEXP:
    return reduce_of<SumExpOp>("logsumexp", run, r);
#endif
  default:
    return moth_fail(MOTH_ERR_STATE, "reduction %d has no kernel for this dtype", r->op);
  }
}
