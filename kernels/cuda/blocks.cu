/* unpack_blocks and linear_blocks: a thread unpacks a block; the product is that of the record's decomposition. */
#include "kernels/cuda/formulas.h"
#include "kernels/cuda/util.h"
#include "unpack/quantization.h"

#include "kernels/math_bits.h"

#include "kernels/blocks.h"

namespace {

enum { THREADS = 128 };

struct Blocks {
  const uint8_t *weight;
  int64_t count; /* of blocks */
};

template <int TYPE, class R>
__global__ void __launch_bounds__(THREADS) unpack_kernel(const Blocks p, R *out) {
  int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (i >= p.count)
    return;
  uint8_t q[MOTH_BLOCK_LARGE];
  float scale[MOTH_BLOCK_LARGE / MOTH_BLOCK_GROUP], least[MOTH_BLOCK_LARGE / MOTH_BLOCK_GROUP];
#define CASE(NAME, name, number, elements, bytes, zero, leasts)                                    \
  if (TYPE == number) {                                                                            \
    m_unpack_##name(p.weight + i * bytes, q, scale, least);                                        \
    for (int k = 0; k < elements; k++)                                                             \
      out[i * elements + k] = leasts ? (R)scale[k / 16] * (R)q[k] + (R)least[k / 16]               \
                                     : (R)scale[k / 16] * (R)((int)q[k] - zero);                   \
  }
  MOTH_BLOCK_TYPES(CASE)
#undef CASE
}

template <class R>
MothStatus unpack(const MothCall *c, int type, const MothTensor *w, R *out, cudaStream_t stream) {
  const char *op = c->op->name;
  int at = 0;
#define CASE(NAME, name, number, elements, bytes, zero, leasts)                                    \
  if (type == at++) {                                                                              \
    Blocks p = {reinterpret_cast<const uint8_t *>(w->data), w->numel / bytes};                     \
    return moth_launch(op, unpack_kernel<number, R>,                                               \
                       dim3((unsigned)moth_ceil_div(p.count, (int64_t)THREADS)), dim3(THREADS), 0, \
                       stream, p, out);                                                            \
  }
  MOTH_BLOCK_TYPES(CASE)
#undef CASE
  return MOTH_OK;
}

} // namespace

MothStatus moth_cuda_unpack_blocks(MothCall *c) {
  MOTH_UNPACK_UNPACK_BLOCKS(c)
  MothTensor *out = c->results[0].u.t;
  if (out->numel == 0)
    return MOTH_OK;
  MothDType real = out->dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
  MothCudaRun run;
  MothOwned own, as;
  MOTH_TRY(moth_cuda_run(c, &run));
  MOTH_TRY(moth_cuda_contiguous(weight, &own.t));
  if (out->dtype != real)
    MOTH_TRY(moth_tensor_new(out->ndim, out->shape, real, c->device, &as.t));
  void *to = as.t ? as->data : out->data;
  MOTH_TRY(real == MOTH_FLOAT64 ? unpack(c, type, own, reinterpret_cast<double *>(to), run.stream)
                                : unpack(c, type, own, reinterpret_cast<float *>(to), run.stream));
  if (as.t)
    MOTH_TRY(moth_cuda_copy(out, as));
  return moth_cuda_leave(c);
}

MothStatus moth_cuda_linear_blocks(MothCall *c) {
  return c->op->decomposed(c);
}
