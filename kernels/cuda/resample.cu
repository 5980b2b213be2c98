/* resample and resample_backward, made of ops: a tap after the other, in float32 or float64. */
#include "kernels/cuda/util.h"
#include "moth_ops.h"
#include "unpack/conv.h"

namespace {

/* Column k of a table. */
MothStatus column(MothTensor *table, int64_t k, MothOwned *out) {
  return moth_select(table, 1, k, &out->t);
}

/* The weights of tap k, for tensors (A, S, B). */
MothStatus factors(MothTensor *weights, int64_t k, MothDType dtype, MothOwned *out) {
  MothOwned taken, wide;
  MOTH_TRY(column(weights, k, &taken));
  MOTH_TRY(moth_cuda_contiguous_as(taken, dtype, &wide.t));
  return moth_unsqueeze(wide, 1, &out->t);
}

MothStatus run(MothCall *c, MothTensor *x, MothTensor *places, int64_t base, MothTensor *weights,
               bool backward) {
  MothTensor *out = c->results[0].u.t;
  MothDType dtype = out->dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
  MothOwned in, sum;
  MothCudaRun on;
  MOTH_TRY(moth_cuda_run(c, &on));
  MOTH_TRY(moth_cuda_contiguous_as(x, dtype, &in.t));
  MOTH_TRY(moth_tensor_new(out->ndim, out->shape, dtype, out->device, &sum.t));
  MOTH_TRY(moth_cuda_fill(sum, moth_v_int(0)));
  for (int64_t k = 0; k < weights->shape[1]; k++) {
    MothOwned at, weight, part, product;
    MOTH_TRY(column(places, k, &at));
    MOTH_TRY(factors(weights, k, dtype, &weight));
    if (backward) {
      MOTH_TRY(moth_mul(moth_v_tensor(in), moth_v_tensor(weight), &part.t));
      MOTH_TRY(moth_index_add_(sum, 1, at, part, base));
    } else {
      MOTH_TRY(moth_index_select(in, 1, at, base, &part.t));
      MOTH_TRY(moth_addcmul_(sum, moth_v_tensor(part), moth_v_tensor(weight), moth_v_int(1)));
    }
  }
  return moth_cuda_copy(out, sum);
}

} // namespace

MothStatus moth_cuda_native_resample(MothCall *c) {
  MOTH_UNPACK_NATIVE_RESAMPLE(c)
  return run(c, self, places, index_base, weights, false);
}

MothStatus moth_cuda_native_resample_backward(MothCall *c) {
  MOTH_UNPACK_NATIVE_RESAMPLE_BACKWARD(c)
  return run(c, grad_output, places, index_base, weights, true);
}
