/* The largest elements of bags of rows, as kernels/cpu/bag.c: a thread for each of them. */
#include "kernels/cuda/index_map.h"
#include "unpack/near.h"

namespace {

enum { THREADS = 128 };

template <class R>
__global__ void __launch_bounds__(THREADS)
    bag_max(const R *weight, const int64_t *index, const int64_t *starts, R *out, int64_t *rows,
            int64_t bags, int64_t size, int64_t all, int64_t bound, int64_t base, int op,
            MothFault *fault) {
  int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (i >= bags * size)
    return;
  int64_t b = i / size, d = i % size, end = all + base;
  int64_t from = starts[b], to = b + 1 < bags ? starts[b + 1] : end;
  R best = 0;
  int64_t row = base;
  /* they rise from the first element on, to behind the last one */
  moth_index(fault, op, MOTH_FAULT_INDEX, 0, from, base, b ? all + 1 : 1);
  moth_index(fault, op, MOTH_FAULT_INDEX, 0, to, from, end - from + 1);
  for (int64_t k = from; k >= base && k < to && k < end; k++) {
    int64_t at = moth_index(fault, op, MOTH_FAULT_INDEX, 0, index[k - base], base, bound);
    if (at < 0)
      continue;
    R x = weight[at * size + d];
    if (k == from || x > best || (x != x && best == best)) {
      best = x;
      row = at + base;
    }
  }
  out[i] = best;
  rows[i] = row;
}

template <class R> MothStatus run(MothCall *c) {
  MOTH_UNPACK_NATIVE_BAG_MAX(c)
  const MothDType dtype = sizeof(R) == 8 ? MOTH_FLOAT64 : MOTH_FLOAT32;
  MothTensor *out = c->results[0].u.t;
  MothCudaRun on;
  MothOwned w, at, from, wide;
  MOTH_TRY(moth_cuda_run(c, &on));
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_contiguous_as(weight, dtype, &w.t));
  MOTH_TRY(moth_cuda_contiguous_as(index, MOTH_INT64, &at.t));
  MOTH_TRY(moth_cuda_contiguous_as(starts, MOTH_INT64, &from.t));
  MOTH_TRY(moth_tensor_new(out->ndim, out->shape, dtype, out->device, &wide.t));
  MOTH_TRY(moth_launch(
      c->op->name, bag_max<R>, dim3((unsigned)moth_ceil_div(out->numel, (int64_t)THREADS)),
      dim3(THREADS), 0, on.stream, (const R *)w->data, (const int64_t *)at->data,
      (const int64_t *)from->data, (R *)wide->data, (int64_t *)c->results[1].u.t->data,
      starts->numel, out->shape[1], index->numel, weight->shape[0], index_base, c->op->id,
      moth_cuda_fault(out->device.index)));
  return moth_cuda_copy(out, wide);
}

} // namespace

MothStatus moth_cuda_native_bag_max(MothCall *c) {
  return c->results[0].u.t->dtype == MOTH_FLOAT64 ? run<double>(c) : run<float>(c);
}
