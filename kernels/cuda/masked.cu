/* masked_select, masked_scatter and nonzero. The mask, row-major, is cut into tiles of a block each: their true
 * elements are counted, and the running sums of the counts are the offsets of the tiles' elements. A warp of a
 * tile has 1024 elements: a lane packs 32 bytes of the mask into the bits of a word. */
#include "kernels/cuda/index_map.h"
#include "unpack/index.h"

namespace {

enum { THREADS = 256, WARPS = THREADS / 32, WARP_TILE = 1024, TILE = WARPS * WARP_TILE };
enum { SELECT, SCATTER, POSITIONS };

/* A word whose bit k is element i + k of the mask. */
__device__ __forceinline__ unsigned mask_bits(const uint8_t *mask, int64_t i, int64_t n) {
  unsigned bits = 0;
  if (i + 32 <= n && (uintptr_t)(mask + i) % 16 == 0) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint4 q = reinterpret_cast<const uint4 *>(mask + i)[h];
      unsigned word[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
      for (int w = 0; w < 4; w++)
#pragma unroll
        for (int b = 0; b < 4; b++)
          bits |= (word[w] >> (8 * b) & 0xff ? 1u : 0u) << (h * 16 + w * 4 + b);
    }
    return bits;
  }
  for (int k = 0; k < 32; k++)
    if (i + k < n && mask[i + k])
      bits |= 1u << k;
  return bits;
}
__device__ __forceinline__ int64_t lane_begin() {
  return (int64_t)blockIdx.x * TILE + (int64_t)threadIdx.x * 32;
}

__global__ void __launch_bounds__(THREADS)
    count_kernel(long long *count, const uint8_t *mask, int64_t n) {
  __shared__ int warp_count[WARPS];
  int mine = __popc(mask_bits(mask, lane_begin(), n));
#pragma unroll
  for (int d = 16; d > 0; d /= 2)
    mine += __shfl_xor_sync(0xffffffffu, mine, d);
  if (threadIdx.x % 32 == 0)
    warp_count[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    int sum = 0;
    for (int w = 0; w < WARPS; w++)
      sum += warp_count[w];
    count[blockIdx.x] = sum;
  }
}

/* Exclusive running sums of the tiles' counts, in place, followed by the total. One block. A total above `limit` is
 * a fault; limit < 0: none. */
enum { SCAN_THREADS = 1024 };
__global__ void __launch_bounds__(SCAN_THREADS)
    scan_kernel(long long *count, int64_t tiles, int64_t limit, int op, MothFault *f) {
  __shared__ long long warp_sum[32];
  __shared__ long long before;
  int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
  if (threadIdx.x == 0)
    before = 0;
  for (int64_t from = 0; from < tiles; from += SCAN_THREADS) {
    int64_t i = from + threadIdx.x;
    long long mine = i < tiles ? count[i] : 0, sum = mine;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      long long x = __shfl_up_sync(0xffffffffu, sum, d);
      if (lane >= d)
        sum += x;
    }
    if (lane == 31)
      warp_sum[warp] = sum;
    __syncthreads();
    if (warp == 0) {
      long long s = warp_sum[lane];
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        long long x = __shfl_up_sync(0xffffffffu, s, d);
        if (lane >= d)
          s += x;
      }
      warp_sum[lane] = s;
    }
    __syncthreads();
    if (i < tiles)
      count[i] = before + (warp ? warp_sum[warp - 1] : 0) + sum - mine;
    __syncthreads();
    if (threadIdx.x == 0)
      before += warp_sum[31];
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    count[tiles] = before;
    if (limit >= 0 && before > limit)
      moth_fault(f, op, MOTH_FAULT_SOURCE, -1, before, 0, limit);
  }
}

struct Shape {
  int ndim;
  WideDiv size[MOTH_MAX_DIMS];
  int64_t base;
};

/* SELECT: out[rank] = in[i]. SCATTER: out[i] = selected ? src[rank] : in[i]. POSITIONS: the
 * coordinates of i to row `rank` of out. */
template <class T, int WHAT>
__global__ void __launch_bounds__(THREADS)
    move_kernel(T *out, const T *in, const T *src, int64_t limit, const uint8_t *mask, int64_t n,
                const long long *before, const __grid_constant__ Shape shape) {
  __shared__ int warp_count[WARPS];
  int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
  unsigned bits = mask_bits(mask, lane_begin(), n);
  int mine = __popc(bits), sum = mine;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    int x = __shfl_up_sync(0xffffffffu, sum, d);
    if (lane >= d)
      sum += x;
  }
  if (lane == 31)
    warp_count[warp] = sum;
  __syncthreads();
  int64_t rank = before[blockIdx.x];
  for (int w = 0; w < warp; w++)
    rank += warp_count[w];
  int start = sum - mine;
  int64_t at = (int64_t)blockIdx.x * TILE + (int64_t)warp * WARP_TILE + lane;
#pragma unroll 4
  for (int g = 0; g < 32; g++, at += 32) { /* 32 neighbours at a time */
    unsigned word = __shfl_sync(0xffffffffu, bits, g);
    int64_t to = rank + __shfl_sync(0xffffffffu, start, g) + __popc(word & ((1u << lane) - 1));
    bool hit = word >> lane & 1;
    if (WHAT == SELECT && hit)
      out[to] = in[at];
    if (WHAT == SCATTER && at < n) {
      if (!hit)
        out[at] = in[at];
      else if (to < limit)
        out[at] = src[to];
    }
    if (WHAT == POSITIONS && hit) {
      int64_t rest = at, *row = reinterpret_cast<int64_t *>(out) + to * shape.ndim;
      for (int d = shape.ndim - 1; d >= 0; d--) {
        int64_t q = div_wide(rest, shape.size[d]);
        row[d] = rest - q * shape.size[d].d + shape.base;
        rest = q;
      }
    }
  }
}

/* A mask with the number of true elements before each tile, on the device. */
struct Masked {
  const uint8_t *mask;
  int64_t n, tiles;
  MothScratch before;
  cudaStream_t stream;

  MothStatus open(const MothCall *c, const MothTensor *t, int64_t limit) {
    mask = (const uint8_t *)t->data;
    n = t->numel;
    tiles = moth_ceil_div(n, TILE);
    MOTH_TRY(before.take(c->device.index, (size_t)(tiles + 1) * sizeof(long long)));
    MOTH_TRY(moth_launch("masked", count_kernel, dim3((unsigned)tiles), dim3(THREADS), 0, stream,
                         before.as<long long>(), mask, n));
    return moth_launch("masked", scan_kernel, dim3(1), dim3(SCAN_THREADS), 0, stream,
                       before.as<long long>(), tiles, limit, (int)c->op->id,
                       moth_cuda_fault(c->device.index));
  }
  /* *out: the number of true elements. Waits for the device. */
  MothStatus count(int device, int64_t *out) const {
    return moth_cuda_memcpy(device, out, before.as<long long>() + tiles, sizeof *out,
                            cudaMemcpyDeviceToHost);
  }
  template <class T, int WHAT>
  MothStatus move(void *out, const void *in, const void *src, int64_t limit, const Shape &s) const {
    return moth_launch("masked", move_kernel<T, WHAT>, dim3((unsigned)tiles), dim3(THREADS), 0,
                       stream, (T *)out, (const T *)in, (const T *)src, limit, mask, n,
                       (const long long *)before.as<long long>(), s);
  }
};

/* Allocates a result whose size only the kernel knows. */
MothStatus result(MothCall *c, MothDType dtype, int ndim, const int64_t *shape) {
  MothTensor *t;
  MOTH_TRY(moth_tensor_new(ndim, shape, dtype, c->device, &t));
  c->results[0] = moth_v_tensor(t);
  return MOTH_OK;
}

} // namespace

MothStatus moth_cuda_masked_select(MothCall *c) {
  MOTH_UNPACK_MASKED_SELECT(c)
  if (mask->dtype != MOTH_BOOL)
    return moth_fail(MOTH_ERR_TYPE, "mask must be bool, got %s",
                     moth_dtype_name((MothDType)mask->dtype));
  int ndim;
  int64_t shape[MOTH_MAX_DIMS], count;
  MOTH_TRY(moth_broadcast(self->ndim, self->shape, mask->ndim, mask->shape, &ndim, shape));
  MothOwned in, where;
  Masked m;
  MOTH_TRY(moth_cuda_enter(c, &m.stream));
  MOTH_TRY(moth_cuda_broadcast_as(self, (MothDType)self->dtype, ndim, shape, &in.t));
  MOTH_TRY(moth_cuda_broadcast_as(mask, MOTH_BOOL, ndim, shape, &where.t));
  MOTH_TRY(m.open(c, where, -1));
  MOTH_TRY(m.count(c->device.index, &count));
  MOTH_TRY(result(c, (MothDType)self->dtype, 1, &count));
  if (count == 0)
    return MOTH_OK;
  return moth_by_size(moth_itemsize(in), [&](auto t) {
    return m.move<decltype(t), SELECT>(c->results[0].u.t->data, in->data, nullptr, 0, Shape{});
  });
}

MothStatus moth_cuda_masked_scatter(MothCall *c) {
  MOTH_UNPACK_MASKED_SCATTER(c)
  MothTensor *out = c->results[0].u.t;
  MothOwned in, where, from;
  Masked m;
  MOTH_TRY(moth_cuda_enter(c, &m.stream));
  MOTH_TRY(moth_cuda_broadcast_as(self, (MothDType)out->dtype, out->ndim, out->shape, &in.t));
  MOTH_TRY(moth_cuda_broadcast_as(mask, MOTH_BOOL, out->ndim, out->shape, &where.t));
  MOTH_TRY(moth_cuda_contiguous(source, &from.t));
  MOTH_TRY(m.open(c, where, from->numel));
  MOTH_TRY(moth_by_size(moth_itemsize(out), [&](auto t) {
    return m.move<decltype(t), SCATTER>(out->data, in->data, from->data, from->numel, Shape{});
  }));
  return moth_cuda_leave(c);
}

MothStatus moth_cuda_nonzero(MothCall *c) {
  MOTH_UNPACK_NONZERO(c)
  MothOwned where;
  Masked m;
  int64_t count;
  MOTH_TRY(moth_cuda_enter(c, &m.stream));
  MOTH_TRY(moth_cuda_contiguous_as(self, MOTH_BOOL, &where.t));
  MOTH_TRY(m.open(c, where, -1));
  MOTH_TRY(m.count(c->device.index, &count));
  int64_t shape[2] = {count, self->ndim};
  MOTH_TRY(result(c, MOTH_INT64, 2, shape));
  if (count == 0 || self->ndim == 0)
    return MOTH_OK;
  Shape s = {};
  s.ndim = self->ndim;
  s.base = index_base;
  for (int i = 0; i < self->ndim; i++)
    s.size[i] = wide_div(self->shape[i]);
  return m.move<uint64_t, POSITIONS>(c->results[0].u.t->data, nullptr, nullptr, 0, s);
}
