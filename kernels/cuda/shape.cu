/* tril, triu, eye, linspace, flip and as_strided_backward. */
#include "kernels/common/sequence.h"
#include "kernels/cuda/index_map.h"
#include "unpack/create.h"
#include "unpack/view.h"

namespace {

enum { THREADS = 256, UNROLL = 4 };

template <class T, int V> struct alignas(sizeof(T) * V) Lanes { T v[V]; };

/* Copies elements (row, col) between the two diagonals and sets the others to 0; in NULL: copies `one`. V elements a
 * thread. */
template <class T, int V>
__global__ void __launch_bounds__(THREADS)
    triangle_kernel(T *out, const T *in, T one, int64_t n, WideDiv cols, WideDiv rows,
                    int64_t lowest, int64_t highest) {
  int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
  if (i >= n)
    return;
  int64_t line = div_wide(i, cols), col = i - line * cols.d;
  int64_t row = line - div_wide(line, rows) * rows.d;
  bool keep[V], any = false;
#pragma unroll
  for (int k = 0; k < V; k++) {
    keep[k] = col - row >= lowest && col - row <= highest;
    any = any || keep[k];
    if (++col == cols.d) {
      col = 0;
      row = row + 1 == rows.d ? 0 : row + 1;
    }
  }
  Lanes<T, V> x = {};
  if (i + V <= n) {
    if (any && in)
      x = *reinterpret_cast<const Lanes<T, V> *>(in + i);
#pragma unroll
    for (int k = 0; k < V; k++)
      x.v[k] = !keep[k] ? (T)0 : in ? x.v[k] : one;
    *reinterpret_cast<Lanes<T, V> *>(out + i) = x;
    return;
  }
#pragma unroll
  for (int k = 0; k < V; k++)
    if (i + k < n)
      out[i + k] = !keep[k] ? (T)0 : in ? in[i + k] : one;
}

/* An element of complex128. */
struct Wide {
  uint64_t re = 0, im = 0;
  Wide() = default;
  __host__ __device__ explicit Wide(int) {}
};

/* Keeps lowest <= col - row <= highest. */
MothStatus triangle(MothTensor *out, const void *in, const uint64_t one[2], int64_t lowest,
                    int64_t highest, cudaStream_t stream) {
  int64_t cols = out->shape[out->ndim - 1], rows = out->shape[out->ndim - 2], n = out->numel;
  auto run = [&](auto t, auto lanes) {
    typedef decltype(t) T;
    constexpr int V = decltype(lanes)::value;
    T x;
    memcpy(static_cast<void *>(&x), one, sizeof x);
    return moth_launch("triangle", triangle_kernel<T, V>,
                       dim3((unsigned)moth_ceil_div(n, (int64_t)THREADS * V)), dim3(THREADS), 0,
                       stream, (T *)out->data, (const T *)in, x, n, wide_div(cols), wide_div(rows),
                       lowest, highest);
  };
  bool aligned = ((uintptr_t)out->data | (uintptr_t)in) % 16 == 0;
  switch (moth_itemsize(out)) {
  case 1:
    return aligned ? run(uint8_t(), std::integral_constant<int, 16>())
                   : run(uint8_t(), std::integral_constant<int, 1>());
  case 2:
    return aligned ? run(uint16_t(), std::integral_constant<int, 8>())
                   : run(uint16_t(), std::integral_constant<int, 1>());
  case 4:
    return aligned ? run(uint32_t(), std::integral_constant<int, 4>())
                   : run(uint32_t(), std::integral_constant<int, 1>());
  case 8:
    return aligned ? run(uint64_t(), std::integral_constant<int, 2>())
                   : run(uint64_t(), std::integral_constant<int, 1>());
  default:
    return run(Wide(), std::integral_constant<int, 1>());
  }
}

MothStatus side(MothCall *c, bool upper) {
  MOTH_UNPACK_TRIL(c)
  MothTensor *out = c->results[0].u.t;
  cudaStream_t stream;
  MothOwned in;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_contiguous(self, &in.t));
  const uint64_t none[2] = {0, 0};
  return triangle(out, in->data, none, upper ? diagonal : INT64_MIN, upper ? INT64_MAX : diagonal,
                  stream);
}

} // namespace

MothStatus moth_cuda_keep_triangle(MothTensor *t, bool upper, cudaStream_t stream) {
  const uint64_t none[2] = {0, 0};
  return triangle(t, t->data, none, upper ? 0 : INT64_MIN, upper ? INT64_MAX : 0, stream);
}

MothStatus moth_cuda_tril(MothCall *c) {
  return side(c, false);
}
MothStatus moth_cuda_triu(MothCall *c) {
  return side(c, true);
}

MothStatus moth_cuda_eye(MothCall *c) {
  MothTensor *out = c->results[0].u.t;
  cudaStream_t stream;
  uint64_t one[2] = {0, 0};
  MOTH_TRY(moth_cuda_enter(c, &stream));
  if (out->numel == 0)
    return MOTH_OK;
  moth_dtype_store((MothDType)out->dtype, one, moth_v_int(1));
  return triangle(out, nullptr, one, 0, 0, stream);
}

MothStatus moth_cuda_linspace(MothCall *c) {
  MothTensor *t = c->results[0].u.t;
  MothSequence s = {};
  MothCudaRun run;
  MOTH_TRY(moth_cuda_run(c, &run));
  s.out = t->data;
  s.n = t->numel;
  s.start = moth_as_double(c->args[0]);
  s.end = moth_as_double(c->args[1]);
  return moth_cuda_kernels[t->dtype]->linspace(&run, &s);
}

/* A strided copy with negative strides. */
MothStatus moth_cuda_flip(MothCall *c) {
  MOTH_UNPACK_FLIP(c)
  MothTensor *out = c->results[0].u.t;
  MothPointwise p = {};
  MOTH_TRY(moth_cuda_enter(c, &p.stream));
  if (out->numel == 0)
    return MOTH_OK;
  int64_t stride[MOTH_MAX_DIMS], item = moth_itemsize(self);
  for (int i = 0; i < self->ndim; i++)
    stride[i] = self->stride[i] * item;
  char *data = self->data;
  for (uint32_t i = 0; i < dims.n && self->ndim; i++) {
    int d = moth_dim_of(dims.u.ints[i], self->ndim);
    data += (self->shape[d] - 1) * stride[d];
    stride[d] = -stride[d];
  }
  MothIter it;
  moth_iter_init(&it, out->ndim, out->shape);
  moth_iter_add(&it, out);
  moth_iter_add_raw(&it, data, stride);
  moth_iter_prepare(&it);
  p.it = &it;
  return moth_cuda_casts[out->dtype][out->dtype](&p);
}

namespace {

template <class U>
__global__ void __launch_bounds__(THREADS)
    strided_pairs_kernel(U *key, U *pos, int64_t first, const __grid_constant__ MothIndexMap p) {
  int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (i >= p.n)
    return;
  key[i] = (U)(first + moth_index_map_at(p, i).self);
  pos[i] = (U)i;
}

/* Whether no two elements of this geometry share memory; sufficient: nested strides. */
bool apart(int ndim, const int64_t *size, const int64_t *stride) {
  int order[MOTH_MAX_DIMS], n = 0;
  for (int i = 0; i < ndim; i++) {
    if (size[i] < 2)
      continue;
    int k = n++;
    for (; k > 0 && stride[order[k - 1]] > stride[i]; k--)
      order[k] = order[k - 1];
    order[k] = i;
  }
  int64_t reach = 0;
  for (int k = 0; k < n; k++) {
    if (stride[order[k]] <= reach)
      return false;
    reach += (size[order[k]] - 1) * stride[order[k]];
  }
  return true;
}

} // namespace

/* out (base geometry): each element of grad is added to the element that as_strided read, in a flat buffer like the
 * storage. */
MothStatus moth_cuda_as_strided_backward(MothCall *c) {
  MOTH_UNPACK_AS_STRIDED_BACKWARD(c)
  MothTensor *out = c->results[0].u.t;
  cudaStream_t stream;
  MothOwned flat, grad, view;
  int device = c->device.index;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  int64_t reach = 0, base_reach = 0;
  for (uint32_t i = 0; i < size.n; i++)
    reach += size.u.ints[i] > 0 ? (size.u.ints[i] - 1) * stride.u.ints[i] : 0;
  for (uint32_t i = 0; i < base_size.n; i++)
    base_reach += base_size.u.ints[i] > 0 ? (base_size.u.ints[i] - 1) * base_stride.u.ints[i] : 0;
  int64_t n = moth_max64(storage_offset + reach, base_offset + base_reach) + 1;
  MOTH_TRY(moth_tensor_new(1, &n, (MothDType)out->dtype, out->device, &flat.t));
  MOTH_TRY(moth_cuda_fill(flat, moth_v_int(0)));
  if (grad_output->numel && apart((int)size.n, size.u.ints, stride.u.ints)) {
    MothOwned to;
    MOTH_TRY(
        moth_tensor_view(flat, (int)size.n, size.u.ints, stride.u.ints, storage_offset, &to.t));
    MOTH_TRY(moth_cuda_copy(to, grad_output));
  } else if (grad_output->numel) {
    MothIndexMap p = {};
    MothPairs pairs, spare;
    MothScratch workspace;
    MOTH_TRY(moth_cuda_contiguous_as(grad_output, (MothDType)out->dtype, &grad.t));
    p.n = grad->numel;
    for (int i = 0; i < grad->ndim; i++)
      moth_index_map_add(&p, size.u.ints[i], 0, stride.u.ints[i], 0);
    bool wide = n >= 0xffffffff || p.n >= 0xffffffff;
    dim3 grid((unsigned)moth_ceil_div(p.n, THREADS));
    MOTH_TRY(moth_pairs_take(&workspace, device, p.n, wide, &pairs, &spare));
    if (wide)
      MOTH_TRY(moth_launch("as_strided_backward", strided_pairs_kernel<uint64_t>, grid,
                           dim3(THREADS), 0, stream, (uint64_t *)pairs.key, (uint64_t *)pairs.pos,
                           storage_offset, p));
    else
      MOTH_TRY(moth_launch("as_strided_backward", strided_pairs_kernel<uint32_t>, grid,
                           dim3(THREADS), 0, stream, (uint32_t *)pairs.key, (uint32_t *)pairs.pos,
                           storage_offset, p));
    MothCudaRun run = {device, stream, c->op->id};
    MothScatter s = {flat->data, grad->data, 1, n, 0, 1, &pairs};
    MOTH_TRY(moth_cuda_scatter_pairs(&run, (MothDType)out->dtype, &s, &spare));
  }
  MOTH_TRY(moth_tensor_view(flat, (int)base_size.n, base_size.u.ints, base_stride.u.ints,
                            base_offset, &view.t));
  return moth_cuda_copy(out, view);
}
