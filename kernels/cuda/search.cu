/* Positions in sorted tables, as kernels/cpu/search.c: a thread for each value. */
#include "kernels/cuda/util.h"
#include "unpack/statistics.h"

namespace {

enum { THREADS = 256 };

/* NaN is larger than all numbers: in the table it is before none, as a value it comes behind all. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    search(const T *tables, const T *wanted, int64_t *out, int64_t values, int64_t n, int64_t each,
           int64_t base, bool right) {
  int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (i >= values)
    return;
  const T *table = tables + i / each * n, x = wanted[i];
  int64_t at = 0;
  for (int64_t left = n, half; left > 0;
       left -= half) { /* the CPU's steps: the same of an unsorted table */
    half = (left + 1) / 2;
    T middle = table[at + half - 1];
    at += (right ? middle <= x : middle < x) ? half : 0;
  }
  out[i] = base + (x == x ? at : n);
}

template <class T>
MothStatus run(MothCall *c, MothDType dtype, const MothTensor *table, const MothTensor *wanted,
               int64_t base, bool right) {
  MothTensor *out = c->results[0].u.t;
  MothCudaRun on;
  MothOwned in, x;
  MOTH_TRY(moth_cuda_run(c, &on));
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_contiguous_as(table, dtype, &in.t));
  MOTH_TRY(moth_cuda_contiguous_as(wanted, dtype, &x.t));
  return moth_launch(c->op->name, search<T>,
                     dim3((unsigned)moth_ceil_div(out->numel, (int64_t)THREADS)), dim3(THREADS), 0,
                     on.stream, (const T *)in->data, (const T *)x->data, (int64_t *)out->data,
                     out->numel, table->shape[table->ndim - 1],
                     table->ndim == 1 ? out->numel : wanted->shape[wanted->ndim - 1], base, right);
}

} // namespace

/* float16 and bfloat16 are compared in float32, integers in int64. */
MothStatus moth_cuda_native_searchsorted(MothCall *c) {
  MOTH_UNPACK_NATIVE_SEARCHSORTED(c)
  if (table->dtype == MOTH_FLOAT64)
    return run<double>(c, MOTH_FLOAT64, table, wanted, index_base, right);
  if (moth_dtype_is_float((MothDType)table->dtype))
    return run<float>(c, MOTH_FLOAT32, table, wanted, index_base, right);
  return run<int64_t>(c, MOTH_INT64, table, wanted, index_base, right);
}
