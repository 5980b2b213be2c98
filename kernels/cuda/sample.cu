/* Samples of gamma, Poisson and binomial distributions from the streams of kernels/cpu/sample.c; they differ from its
 * samples by the rounding of logarithms alone. */
#include "kernels/cuda/formulas.h"
#include "kernels/cuda/util.h"
#include "unpack/random.h"

#define real           double
#define MOTH_REAL_KIND 2
#include "kernels/math.h"
/* behind math.h, whose functions it calls */
#include "kernels/common/sample.h"

namespace {

enum { THREADS = 128 };

__global__ void __launch_bounds__(THREADS)
    sample_kernel(int what, double *out, const double *a, const double *b, int64_t n, double tiny,
                  MothCudaPhilox p) {
  int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (i >= n)
    return;
  MothStream s = {moth_philox_seed(p), moth_philox_offset(p), (uint64_t)i};
  out[i] = m_sample(what, &s, a[i], b[i], tiny);
}

double least_normal(const MothTensor *t) {
  return t->dtype == MOTH_FLOAT64 ? 0x1p-1022 : t->dtype == MOTH_FLOAT16 ? 0x1p-14 : 0x1p-126;
}

MothStatus run(MothCall *c, int what, const MothTensor *a, const MothTensor *b, MothGenerator *g) {
  MothTensor *out = c->results[0].u.t;
  MothCudaRun on;
  MothOwned x, y, z;
  MOTH_TRY(moth_cuda_run(c, &on));
  MothCudaPhilox p = moth_cuda_philox(on.device, g, MOTH_SAMPLE_WORDS);
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_broadcast_as(a, MOTH_FLOAT64, out->ndim, out->shape, &x.t));
  if (b)
    MOTH_TRY(moth_cuda_broadcast_as(b, MOTH_FLOAT64, out->ndim, out->shape, &y.t));
  MOTH_TRY(moth_tensor_new(out->ndim, out->shape, MOTH_FLOAT64, out->device, &z.t));
  MOTH_TRY(moth_launch(c->op->name, sample_kernel,
                       dim3((unsigned)moth_ceil_div(out->numel, (int64_t)THREADS)), dim3(THREADS),
                       0, on.stream, what, (double *)z->data, (const double *)x->data,
                       (const double *)(b ? y.t : x.t)->data, out->numel, least_normal(out), p));
  return moth_cuda_copy(out, z);
}

} // namespace

MothStatus moth_cuda_standard_gamma(MothCall *c) {
  MOTH_UNPACK_STANDARD_GAMMA(c)
  return run(c, MOTH_SAMPLE_GAMMA, self, nullptr, generator);
}
MothStatus moth_cuda_poisson(MothCall *c) {
  MOTH_UNPACK_POISSON(c)
  return run(c, MOTH_SAMPLE_POISSON, self, nullptr, generator);
}
MothStatus moth_cuda_binomial(MothCall *c) {
  MOTH_UNPACK_BINOMIAL(c)
  return run(c, MOTH_SAMPLE_BINOMIAL, count, prob, generator);
}
