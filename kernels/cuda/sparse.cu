/* Products of sparse matrices in rows, as kernels/cpu/sparse.c: a thread for each element of the result, which is one sum
 * in the order of the elements. */
#include "kernels/common/sparse.h"

#include "kernels/cuda/index_map.h"
#include "unpack/sparse.h"

namespace {

enum { THREADS = 256 };

/* A complex number in memory, and products of both kinds of numbers. */
template <class T> struct Pair { T re, im; };
template <class T> __device__ __forceinline__ void add_product(T *sum, T a, T b) {
  *sum += a * b;
}
template <class T> __device__ __forceinline__ void add_product(Pair<T> *sum, Pair<T> a, Pair<T> b) {
  sum->re += a.re * b.re - a.im * b.im;
  sum->im += a.re * b.im + a.im * b.re;
}

struct Call {
  MothSparse p; /* k counts elements, which may be pairs */
  int64_t columns;
  int op;
  MothFault *fault;
};

/* Where a row begins, at most behind the last element; -1: out of range, which is a fault. */
__device__ __forceinline__ int64_t begin_of(const Call &q, int64_t r) {
  return moth_index(q.fault, q.op, MOTH_FAULT_INDEX, 0, q.p.crow[r], q.p.base, q.p.nnz + 1);
}
__device__ __forceinline__ int64_t column_of(const Call &q, int64_t j) {
  return moth_index(q.fault, q.op, MOTH_FAULT_INDEX, 0, q.p.cols[j], q.p.base, q.columns);
}

/* Each row begins where the one before does, or behind it, the first at the first element, and behind the last row are no
 * elements: else a fault. */
__global__ void __launch_bounds__(THREADS) check_kernel(const Call q) {
  int64_t r = (int64_t)blockIdx.x * THREADS + threadIdx.x, all = q.p.base + q.p.nnz;
  if (r > q.p.rows)
    return;
  int64_t low = r == q.p.rows ? all : r == 0 ? q.p.base : q.p.crow[r - 1];
  moth_index(q.fault, q.op, MOTH_FAULT_INDEX, 0, q.p.crow[r], low, r == 0 ? 1 : all - low + 1);
}

template <class T> __global__ void __launch_bounds__(THREADS) mm_kernel(const Call q) {
  int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (i >= q.p.rows * q.p.k)
    return;
  int64_t r = i / q.p.k, c = i - r * q.p.k, begin = begin_of(q, r), end = begin_of(q, r + 1);
  T sum = {};
  for (int64_t j = begin; begin >= 0 && j < end; j++) {
    int64_t column = column_of(q, j);
    if (column >= 0)
      add_product(&sum, ((const T *)q.p.values)[j], ((const T *)q.p.b)[column * q.p.k + c]);
  }
  ((T *)q.p.out)[i] = sum;
}

/* The row of an element: the last one that does not begin behind it. */
template <class T> __global__ void __launch_bounds__(THREADS) dot_kernel(const Call q) {
  int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (j >= q.p.nnz)
    return;
  int64_t low = 0, high = q.p.rows - 1, column = column_of(q, j);
  while (low < high) {
    int64_t middle = (low + high + 1) / 2;
    if (q.p.crow[middle] - q.p.base <= j)
      low = middle;
    else
      high = middle - 1;
  }
  T sum = {};
  for (int64_t i = 0; column >= 0 && i < q.p.k; i++)
    add_product(&sum, ((const T *)q.p.a)[low * q.p.k + i], ((const T *)q.p.b)[column * q.p.k + i]);
  ((T *)q.p.out)[j] = sum;
}

template <class T>
MothStatus launch(const MothCall *c, cudaStream_t stream, const Call &q, int64_t n) {
  dim3 grid((unsigned)moth_ceil_div(n, (int64_t)THREADS));
  return moth_launch(c->op->name, q.p.values ? mm_kernel<T> : dot_kernel<T>, grid, dim3(THREADS), 0,
                     stream, q);
}

/* Complex tensors come as pairs of floats, in a last dimension (dispatch/parts.c). float16 and bfloat16 are computed in
 * float32, integers in int64. */
MothStatus run(MothCall *c, const MothTensor *crow, const MothTensor *cols,
               const MothTensor *values, const MothTensor *a, const MothTensor *b, int64_t base) {
  MothTensor *out = c->results[0].u.t;
  MothDType dtype = !moth_dtype_is_float((MothDType)out->dtype) ? MOTH_INT64
                    : out->dtype == MOTH_FLOAT64                ? MOTH_FLOAT64
                                                                : MOTH_FLOAT32;
  bool pairs = b->ndim == 3;
  cudaStream_t stream;
  MothOwned row, col, v, x, y, z;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_contiguous_as(crow, MOTH_INT64, &row.t));
  MOTH_TRY(moth_cuda_contiguous_as(cols, MOTH_INT64, &col.t));
  if (values)
    MOTH_TRY(moth_cuda_contiguous_as(values, dtype, &v.t));
  if (a)
    MOTH_TRY(moth_cuda_contiguous_as(a, dtype, &x.t));
  MOTH_TRY(moth_cuda_contiguous_as(b, dtype, &y.t));
  MOTH_TRY(moth_tensor_new(out->ndim, out->shape, dtype, out->device, &z.t));
  Call q = {};
  q.p.crow = (const int64_t *)row->data;
  q.p.cols = (const int64_t *)col->data;
  q.p.base = base;
  q.p.rows = crow->numel - 1;
  q.p.nnz = cols->numel;
  q.p.k = b->shape[1];
  q.p.values = values ? v->data : nullptr;
  q.p.a = a ? x->data : nullptr;
  q.p.b = y->data;
  q.p.out = z->data;
  q.columns = b->shape[0];
  q.op = c->op->id;
  q.fault = moth_cuda_fault(c->device.index);
  int64_t n = values ? q.p.rows * q.p.k : q.p.nnz;
  MOTH_TRY(moth_launch(c->op->name, check_kernel,
                       dim3((unsigned)moth_ceil_div(q.p.rows + 1, (int64_t)THREADS)), dim3(THREADS),
                       0, stream, q));
  if (dtype == MOTH_INT64)
    MOTH_TRY(launch<int64_t>(c, stream, q, n));
  else if (dtype == MOTH_FLOAT64)
    MOTH_TRY(pairs ? launch<Pair<double>>(c, stream, q, n) : launch<double>(c, stream, q, n));
  else
    MOTH_TRY(pairs ? launch<Pair<float>>(c, stream, q, n) : launch<float>(c, stream, q, n));
  MOTH_TRY(moth_cuda_copy(out, z));
  return moth_cuda_leave(c);
}

} // namespace

MothStatus moth_cuda_native_sparse_mm(MothCall *c) {
  MOTH_UNPACK_NATIVE_SPARSE_MM(c)
  return run(c, crow, cols, values, nullptr, dense, index_base);
}
MothStatus moth_cuda_native_sparse_dot(MothCall *c) {
  MOTH_UNPACK_NATIVE_SPARSE_DOT(c)
  return run(c, crow, cols, nullptr, mat1, mat2, index_base);
}
