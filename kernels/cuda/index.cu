/* index_select, index_add and index_copy: slices along one dimension. */
#include "kernels/cuda/index_map.h"
#include "unpack/index.h"

namespace {

enum { THREADS = 256, UNROLL = 4 };

dim3 grid_of(int64_t n, int unroll) {
  return dim3((unsigned)moth_ceil_div(n, (int64_t)THREADS * unroll));
}

/* Copies slices of source to their indices; of several with one index the last wins. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    copy_kernel(T *out, const T *src, const long long *writer, const int64_t *at, WideDiv inner,
                WideDiv count, int64_t size, int64_t base, int64_t n) {
  int64_t first = (int64_t)blockIdx.x * (THREADS * UNROLL) + threadIdx.x;
#pragma unroll
  for (int u = 0; u < UNROLL; u++) {
    int64_t i = first + u * THREADS;
    if (i >= n)
      return;
    int64_t row = div_wide(i, inner), c = i - row * inner.d, o = div_wide(row, count);
    int64_t j = row - o * count.d, k = at[j] - base;
    if (k >= 0 && k < size && writer[k] == j)
      out[(o * size + k) * inner.d + c] = src[i];
  }
}
__global__ void __launch_bounds__(THREADS)
    last_kernel(long long *writer, const int64_t *at, int64_t n, int64_t base, int64_t size,
                int dim, int op, MothFault *f) {
  int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (j >= n)
    return;
  long long k = moth_index(f, op, MOTH_FAULT_INDEX, dim, at[j], base, size);
  if (k >= 0)
    atomicMax(&writer[k], (long long)j);
}

template <class U>
__global__ void __launch_bounds__(THREADS)
    rows_kernel(U *key, U *pos, const int64_t *at, int64_t n, int64_t base, int64_t size, int dim,
                int op, MothFault *f) {
  int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (j >= n)
    return;
  long long k = moth_index(f, op, MOTH_FAULT_INDEX, dim, at[j], base, size);
  key[j] = (U)(k >= 0 ? k : size);
  pos[j] = (U)j;
}

} // namespace

MothStatus moth_cuda_index_select(MothCall *c) {
  MOTH_UNPACK_INDEX_SELECT(c)
  MothTensor *out = c->results[0].u.t;
  cudaStream_t stream;
  MothOwned at;
  MothIndexMap p = {};
  int d;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  d = moth_dim_of(dim, self->ndim);
  MOTH_TRY(moth_cuda_contiguous_as(index, MOTH_INT64, &at.t));
  int64_t unit = moth_itemsize(self);
  p.at = (const int64_t *)at->data;
  p.base = index_base;
  p.bound = self->ndim ? self->shape[d] : 1;
  p.dim = d;
  p.op = c->op->id;
  p.fault = moth_cuda_fault(c->device.index);
  if (out->numel == 0) { /* still check the index */
    if (at->numel == 0)
      return MOTH_OK;
    MothScratch none;
    MOTH_TRY(none.take(c->device.index, (size_t)at->numel * 16));
    MOTH_TRY(moth_launch("index_select", rows_kernel<uint64_t>, grid_of(at->numel, 1),
                         dim3(THREADS), 0, stream, none.as<uint64_t>(),
                         none.as<uint64_t>() + at->numel, p.at, at->numel, p.base, p.bound, d, p.op,
                         p.fault));
    return moth_cuda_leave(c);
  }
  if (self->contiguous && self->ndim) { /* whole slices, in the largest units */
    MothSplit s = moth_split(self, d);
    int64_t bytes = s.inner * unit;
    unit = moth_unit_of({(uint64_t)bytes, (uint64_t)self->data, (uint64_t)out->data});
    int64_t inner = bytes / unit;
    moth_index_map_add(&p, s.outer, 0, s.n * inner, at->numel * inner);
    moth_index_map_add(&p, at->numel, 1, 0, inner);
    moth_index_map_add(&p, inner, 0, 1, 1);
    p.self_stride = inner;
    p.n = s.outer * at->numel * inner;
  } else {
    for (int i = 0; i < self->ndim; i++)
      moth_index_map_add(&p, out->shape[i], i == d ? 1 : 0, i == d ? 0 : self->stride[i],
                         out->stride[i]);
    p.self_stride = self->ndim ? self->stride[d] : 1;
    p.n = out->numel;
  }
  MOTH_TRY(moth_cuda_gather_mapped("index_select", stream, out->data, self->data, unit, &p));
  return moth_cuda_leave(c);
}

MothStatus moth_cuda_index_copy(MothCall *c) {
  MOTH_UNPACK_INDEX_COPY(c)
  MothTensor *out = c->results[0].u.t;
  cudaStream_t stream;
  MothOwned at, in;
  MothScratch workspace;
  int d;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  d = moth_dim_of(dim, self->ndim);
  MOTH_TRY(moth_cuda_contiguous_as(index, MOTH_INT64, &at.t));
  MOTH_TRY(moth_cuda_contiguous(source, &in.t));
  MOTH_TRY(moth_cuda_copy(out, self));
  if (at->numel == 0)
    return MOTH_OK;
  MothSplit s = moth_split(out, d);
  const int64_t *where = (const int64_t *)at->data;
  MOTH_TRY(workspace.take(c->device.index, (size_t)s.n * 8));
  MOTH_CUDA_TRY(cudaMemsetAsync(workspace.p, 0xff, (size_t)s.n * 8, stream)); /* -1: no writer */
  MOTH_TRY(moth_launch("index_copy", last_kernel, grid_of(at->numel, 1), dim3(THREADS), 0, stream,
                       workspace.as<long long>(), where, at->numel, index_base, s.n, d, c->op->id,
                       moth_cuda_fault(c->device.index)));
  if (in->numel) {
    int64_t bytes = s.inner * moth_itemsize(out);
    int64_t unit = moth_unit_of({(uint64_t)bytes, (uint64_t)in->data, (uint64_t)out->data});
    int64_t inner = bytes / unit, n = s.outer * at->numel * inner;
    MOTH_TRY(moth_by_size(unit, [&](auto t) {
      typedef decltype(t) T;
      return moth_launch("index_copy", copy_kernel<T>, grid_of(n, UNROLL), dim3(THREADS), 0, stream,
                         (T *)out->data, (const T *)in->data, workspace.as<long long>(), where,
                         wide_div(inner), wide_div(at->numel), s.n, index_base, n);
    }));
  }
  return moth_cuda_leave(c);
}

MothStatus moth_cuda_index_add(MothCall *c) {
  MOTH_UNPACK_INDEX_ADD(c)
  MothTensor *out = c->results[0].u.t;
  cudaStream_t stream;
  MothOwned at, in;
  MothScratch workspace;
  MothPairs pairs, spare;
  int d, device = c->device.index;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  d = moth_dim_of(dim, self->ndim);
  MOTH_TRY(moth_cuda_contiguous_as(index, MOTH_INT64, &at.t));
  MOTH_TRY(moth_cuda_contiguous(source, &in.t));
  MOTH_TRY(moth_cuda_copy(out, self));
  int64_t n = at->numel;
  if (n == 0)
    return MOTH_OK;
  MothSplit s = moth_split(out, d);
  bool wide = n >= 0xffffffff || s.n >= 0xffffffff;
  const int64_t *where = (const int64_t *)at->data;
  MOTH_TRY(moth_pairs_take(&workspace, device, n, wide, &pairs, &spare));
  if (wide)
    MOTH_TRY(moth_launch("index_add", rows_kernel<uint64_t>, grid_of(n, 1), dim3(THREADS), 0,
                         stream, (uint64_t *)pairs.key, (uint64_t *)pairs.pos, where, n, index_base,
                         s.n, d, c->op->id, moth_cuda_fault(device)));
  else
    MOTH_TRY(moth_launch("index_add", rows_kernel<uint32_t>, grid_of(n, 1), dim3(THREADS), 0,
                         stream, (uint32_t *)pairs.key, (uint32_t *)pairs.pos, where, n, index_base,
                         s.n, d, c->op->id, moth_cuda_fault(device)));
  MothCudaRun run = {device, stream, c->op->id};
  MothScatter sums = {out->data, in->data, s.outer, s.n, n, s.inner, &pairs};
  MOTH_TRY(moth_cuda_scatter_pairs(&run, (MothDType)out->dtype, &sums, &spare));
  return moth_cuda_leave(c);
}
