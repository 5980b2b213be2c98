/* gather, scatter and scatter_add. Of several writes to one element the last in the index's order wins, and sums
 * are taken in that order: as on the CPU, for any order of threads (but see moth_cuda_scatter_pairs in
 * scatter.h). */
#include "kernels/cuda/index_map.h"
#include "unpack/index.h"

namespace {

enum { THREADS = 256, UNROLL = 4 };

dim3 grid_of(int64_t n) {
  return dim3((unsigned)moth_ceil_div(n, (int64_t)THREADS * UNROLL));
}
__device__ __forceinline__ int64_t first_of() {
  return (int64_t)blockIdx.x * (THREADS * UNROLL) + threadIdx.x;
}

/* N elements a thread, whose loads overlap. */
template <class T, int N>
__global__ void __launch_bounds__(THREADS)
    gather_kernel(T *out, const T *in, const __grid_constant__ MothIndexMap p) {
  int64_t first = (int64_t)blockIdx.x * (THREADS * N) + threadIdx.x;
  T x[N];
  bool fine[N];
#pragma unroll
  for (int u = 0; u < N; u++) {
    int64_t i = first + u * THREADS;
    fine[u] = false;
    if (i < p.n) {
      MothMapped r = moth_index_map_at(p, i);
      fine[u] = moth_index_map_read(p, &r);
      if (fine[u])
        x[u] = in[r.self];
    }
  }
#pragma unroll
  for (int u = 0; u < N; u++)
    if (fine[u])
      out[first + u * THREADS] = x[u];
}

/* writer[offset] = the largest i whose index points there; -1: none. */
template <class W>
__global__ void __launch_bounds__(THREADS)
    writer_kernel(W *writer, const __grid_constant__ MothIndexMap p) {
  int64_t first = first_of();
#pragma unroll
  for (int u = 0; u < UNROLL; u++) {
    int64_t i = first + u * THREADS;
    if (i >= p.n)
      return;
    MothMapped r = moth_index_map_at(p, i);
    if (moth_index_map_read(p, &r))
      atomicMax(&writer[r.self], (W)i);
  }
}

/* Scatters; with duplicates the element recorded in `writer` wins. writer NULL: all are `number`. */
template <class T, class W>
__global__ void __launch_bounds__(THREADS)
    scatter_kernel(T *out, const T *src, T number, const W *writer,
                   const __grid_constant__ MothIndexMap p) {
  int64_t first = first_of();
#pragma unroll
  for (int u = 0; u < UNROLL; u++) {
    int64_t i = first + u * THREADS;
    if (i >= p.n)
      return;
    MothMapped r = moth_index_map_at(p, i);
    if (!moth_index_map_read(p, &r))
      continue;
    if (!writer)
      out[r.self] = number;
    else if (writer[r.self] == (W)i)
      out[r.self] = src[r.value];
  }
}

/* Pairs (offset in self, offset of the value) for the sums; an index out of range gets key `none`. */
template <class U>
__global__ void __launch_bounds__(THREADS)
    pairs_kernel(U *key, U *pos, U none, const __grid_constant__ MothIndexMap p) {
  int64_t first = first_of();
#pragma unroll
  for (int u = 0; u < UNROLL; u++) {
    int64_t i = first + u * THREADS;
    if (i >= p.n)
      return;
    MothMapped r = moth_index_map_at(p, i);
    bool fine = moth_index_map_read(p, &r);
    key[i] = fine ? (U)r.self : none;
    pos[i] = (U)r.value;
  }
}

template <class T, class W>
MothStatus scatter_run(const MothCall *c, cudaStream_t stream, MothTensor *out, int64_t reach,
                       const MothTensor *src, const T &number, const MothIndexMap &p) {
  MothScratch workspace;
  W *writer = nullptr;
  if (src) {
    size_t bytes = (size_t)reach * sizeof(W);
    MOTH_TRY(workspace.take(c->device.index, bytes));
    writer = workspace.as<W>();
    MOTH_CUDA_TRY(cudaMemsetAsync(writer, 0xff, bytes, stream)); /* -1: none */
    MOTH_TRY(moth_launch("scatter", writer_kernel<W>, grid_of(p.n), dim3(THREADS), 0, stream,
                         writer, p));
  }
  return moth_launch("scatter", scatter_kernel<T, W>, grid_of(p.n), dim3(THREADS), 0, stream,
                     (T *)out->data, src ? (const T *)src->data : nullptr, number,
                     (const W *)writer, p);
}

} // namespace

MothStatus moth_cuda_scatter_pairs(const MothCudaRun *run, MothDType dtype, const MothScatter *s,
                                   const MothPairs *spare) {
  MothScatter in_order = *s;
  MothPairs sorted;
  bool done = false;
  MOTH_TRY(moth_cuda_kernels[dtype]->scatter_atomic(run, s, &done));
  if (done)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_sort_pairs(run->device, run->stream, s->pairs, spare, moth_key_bits(s->keys),
                                &sorted));
  in_order.pairs = &sorted;
  return moth_cuda_kernels[dtype]->scatter_sorted(run, &in_order);
}

MothStatus moth_cuda_gather_mapped(const char *name, cudaStream_t stream, void *out, const void *in,
                                   int64_t unit, const MothIndexMap *p) {
  return moth_by_size(unit, [&](auto t) {
    typedef decltype(t) T;
    constexpr int N = sizeof(T) == 16 ? 2 : UNROLL; /* more does not fit into registers */
    return moth_launch(name, gather_kernel<T, N>,
                       dim3((unsigned)moth_ceil_div(p->n, (int64_t)THREADS * N)), dim3(THREADS), 0,
                       stream, (T *)out, (const T *)in, *p);
  });
}

MothStatus moth_cuda_scatter_mapped(const MothCall *c, cudaStream_t stream, MothTensor *out,
                                    int64_t reach, const MothTensor *src, const void *number,
                                    const MothIndexMap *p) {
  return moth_by_size(moth_itemsize(out), [&](auto t) {
    typedef decltype(t) T;
    T x = {};
    if (number)
      memcpy(&x, number, sizeof x);
    if (p->n <= 0x7fffffff)
      return scatter_run<T, int>(c, stream, out, reach, src, x, *p);
    return scatter_run<T, long long>(c, stream, out, reach, src, x, *p);
  });
}

MothStatus moth_cuda_add_mapped(const MothCall *c, cudaStream_t stream, MothTensor *out,
                                int64_t reach, const MothTensor *src, int64_t src_reach,
                                const MothIndexMap *p) {
  MothScratch workspace;
  MothPairs pairs, spare;
  int device = c->device.index;
  bool wide = reach >= 0xffffffff || src_reach >= 0xffffffff || p->n >= 0xffffffff;
  MOTH_TRY(moth_pairs_take(&workspace, device, p->n, wide, &pairs, &spare));
  if (wide)
    MOTH_TRY(moth_launch(c->op->name, pairs_kernel<uint64_t>, grid_of(p->n), dim3(THREADS), 0,
                         stream, (uint64_t *)pairs.key, (uint64_t *)pairs.pos, (uint64_t)reach,
                         *p));
  else
    MOTH_TRY(moth_launch(c->op->name, pairs_kernel<uint32_t>, grid_of(p->n), dim3(THREADS), 0,
                         stream, (uint32_t *)pairs.key, (uint32_t *)pairs.pos, (uint32_t)reach,
                         *p));
  MothCudaRun run = {device, stream, c->op->id};
  MothScatter s = {out->data, src->data, 1, reach, 0, 1, &pairs};
  return moth_cuda_scatter_pairs(&run, (MothDType)out->dtype, &s, &spare);
}

MothStatus moth_cuda_gather(MothCall *c) {
  MOTH_UNPACK_GATHER(c)
  MothTensor *out = c->results[0].u.t;
  cudaStream_t stream;
  MothOwned at;
  MothIndexMap p;
  int d;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  d = moth_dim_of(dim, self->ndim);
  MOTH_TRY(moth_cuda_contiguous_as(index, MOTH_INT64, &at.t));
  moth_index_map_of(&p, c, self, at, out, d, index_base);
  MOTH_TRY(
      moth_cuda_gather_mapped("gather", stream, out->data, self->data, moth_itemsize(self), &p));
  return moth_cuda_leave(c);
}

MothStatus moth_cuda_scatter(MothCall *c) {
  MOTH_UNPACK_SCATTER(c)
  MothTensor *out = c->results[0].u.t, *values = src.tag == MOTH_V_TENSOR ? src.u.t : nullptr;
  cudaStream_t stream;
  MothOwned at;
  MothIndexMap p;
  unsigned char number[16] = {0};
  int d;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  d = moth_dim_of(dim, self->ndim);
  if (values && values->device.type != MOTH_CUDA) { /* a 0-dim tensor on the host */
    MothValue v;
    MOTH_TRY(moth_tensor_item(values, &v));
    moth_dtype_store((MothDType)out->dtype, number, v);
    values = nullptr;
  } else if (!values) {
    moth_dtype_store((MothDType)out->dtype, number, src);
  }
  MOTH_TRY(moth_cuda_contiguous_as(index, MOTH_INT64, &at.t));
  MOTH_TRY(moth_cuda_copy(out, self));
  if (at->numel == 0)
    return MOTH_OK;
  moth_index_map_of(&p, c, out, at, values, d, index_base);
  MOTH_TRY(moth_cuda_scatter_mapped(c, stream, out, out->numel, values, number, &p));
  return moth_cuda_leave(c);
}

MothStatus moth_cuda_scatter_add(MothCall *c) {
  MOTH_UNPACK_SCATTER_ADD(c)
  MothTensor *out = c->results[0].u.t;
  cudaStream_t stream;
  MothOwned at;
  MothIndexMap p;
  int d;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  d = moth_dim_of(dim, self->ndim);
  MOTH_TRY(moth_cuda_contiguous_as(index, MOTH_INT64, &at.t));
  MOTH_TRY(moth_cuda_copy(out, self));
  if (at->numel == 0)
    return MOTH_OK;
  moth_index_map_of(&p, c, out, at, src, d, index_base);
  int64_t src_reach = src->numel ? moth_reach(src) : 0;
  MOTH_TRY(moth_cuda_add_mapped(c, stream, out, out->numel, src, src_reach, &p));
  return moth_cuda_leave(c);
}
