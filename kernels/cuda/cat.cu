/* cat: inputs that are row-major and of the result's dtype are copied several per launch, in the largest
 * units (1 to 16 bytes) that their rows allow; others by the strided copy with conversion. */
#include "kernels/cuda/index_map.h"
#include "unpack/index.h"

namespace {

enum { THREADS = 256, UNROLL = 4, SLOTS = 64 };

/* Inputs: rows of `row` units, which begin at unit `at` of the rows of the result. */
struct Table {
  int n;
  int64_t out_row;
  unsigned first[SLOTS + 1]; /* number of its first block */
  WideDiv row[SLOTS];
  int64_t at[SLOTS], units[SLOTS];
  const void *in[SLOTS];
};

template <class T>
__global__ void __launch_bounds__(THREADS) cat_kernel(T *out, const __grid_constant__ Table t) {
  int lo = 0, hi = t.n;
  while (hi - lo > 1) {
    int mid = (lo + hi) / 2;
    if (t.first[mid] <= blockIdx.x)
      lo = mid;
    else
      hi = mid;
  }
  const T *in = static_cast<const T *>(t.in[lo]);
  WideDiv row = t.row[lo];
  int64_t first = (int64_t)(blockIdx.x - t.first[lo]) * (THREADS * UNROLL) + threadIdx.x;
  int64_t n = t.units[lo], at = t.at[lo];
  T x[UNROLL];
#pragma unroll
  for (int u = 0; u < UNROLL; u++)
    if (first + u * THREADS < n)
      x[u] = in[first + u * THREADS];
#pragma unroll
  for (int u = 0; u < UNROLL; u++) {
    int64_t i = first + u * THREADS, r = div_wide(i, row);
    if (i < n)
      out[r * t.out_row + at + (i - r * row.d)] = x[u];
  }
}

MothStatus flush(Table *t, void *out, int64_t unit, cudaStream_t stream) {
  if (t->n == 0)
    return MOTH_OK;
  MothStatus s = moth_by_size(unit, [&](auto sample) {
    typedef decltype(sample) T;
    return moth_launch("cat", cat_kernel<T>, dim3(t->first[t->n]), dim3(THREADS), 0, stream,
                       (T *)out, *t);
  });
  t->n = 0;
  return s;
}

MothStatus copy_strided(const MothTensor *out, const MothTensor *t, int64_t offset,
                        cudaStream_t stream) {
  MothIter it;
  MothPointwise p = {};
  int64_t stride[MOTH_MAX_DIMS];
  for (int i = 0; i < out->ndim; i++)
    stride[i] = out->stride[i] * moth_itemsize(out);
  moth_iter_init(&it, t->ndim, t->shape);
  moth_iter_add_raw(&it, out->data + offset, stride);
  moth_iter_add(&it, t);
  moth_iter_prepare(&it);
  p.it = &it;
  p.stream = stream;
  return moth_cuda_casts[out->dtype][t->dtype](&p);
}

} // namespace

MothStatus moth_cuda_cat(MothCall *c) {
  MOTH_UNPACK_CAT(c)
  MothTensor *out = c->results[0].u.t;
  cudaStream_t stream;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  if (out->numel == 0)
    return MOTH_OK;
  int d = moth_dim_of(dim, out->ndim);
  MothSplit s = moth_split(out, d);
  int64_t inner = s.inner * moth_itemsize(out), out_row = s.n * inner; /* bytes */
  Table t = {};
  for (int64_t unit = 16; unit > 0; unit /= 2) {
    int64_t at = 0; /* bytes into the result's rows */
    for (uint32_t i = 0; i < tensors.n; i++) {
      const MothTensor *x = tensors.u.tensors[i];
      if (x->numel == 0)
        continue;
      int64_t row = x->shape[d] * inner, begin = at;
      at += row;
      bool whole = x->contiguous && x->dtype == out->dtype;
      /* With one row only, the length of the result's rows does not limit the unit. */
      int64_t fits = moth_unit_of({(uint64_t)row, (uint64_t)begin, (uint64_t)x->data,
                                   (uint64_t)out->data, (uint64_t)(s.outer > 1 ? out_row : 0)});
      if (!whole && unit == 16)
        MOTH_TRY(copy_strided(out, x, begin, stream));
      if (!whole || fits != unit)
        continue;
      int64_t units = s.outer * row / unit, blocks = moth_ceil_div(units, THREADS * UNROLL);
      if (t.n == SLOTS || (t.n && t.first[t.n] + blocks > 0x7fffffff))
        MOTH_TRY(flush(&t, out->data, unit, stream));
      t.out_row = out_row / unit;
      t.row[t.n] = wide_div(row / unit);
      t.at[t.n] = begin / unit;
      t.units[t.n] = units;
      t.in[t.n] = x->data;
      t.first[t.n + 1] = t.first[t.n] + (unsigned)blocks;
      t.n++;
    }
    MOTH_TRY(flush(&t, out->data, unit, stream));
  }
  return MOTH_OK;
}
