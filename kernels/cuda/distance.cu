/* cdist and pdist, as kernels/cpu/distance.c: a thread for each distance, or for each element of a gradient, from the
 * differences. */
#include "kernels/common/distance.h"

#include "kernels/cuda/util.h"
#include "unpack/near.h"

namespace {

enum { THREADS = 128 };

/* batch matrices, one behind the other */
struct Call {
  MothDistance q;
  int64_t batch;
};

/* Where the distance of rows i and j of a batch lies. */
__device__ __forceinline__ int64_t place(const Call &k, int64_t b, int64_t i, int64_t j) {
  if (!k.q.pairs)
    return (b * k.q.rows + i) * k.q.others + j;
  int64_t low = i < j ? i : j, high = i < j ? j : i;
  return low * (2 * k.q.rows - low - 1) / 2 - low - 1 + high;
}

template <class R> __global__ void __launch_bounds__(THREADS) forward(const Call k) {
  int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, n = k.q.size;
  if (at >= k.batch * k.q.rows * k.q.others)
    return;
  int64_t j = at % k.q.others, i = at / k.q.others % k.q.rows, b = at / k.q.others / k.q.rows;
  if (k.q.pairs && j <= i)
    return;
  const R *x = (const R *)k.q.x + (b * k.q.rows + i) * n,
          *y = (const R *)k.q.y + (b * k.q.others + j) * n;
  double sum = 0;
  for (int64_t m = 0; m < n; m++) {
    double d = fabs((double)x[m] - (double)y[m]);
    switch (k.q.norm) {
    case MOTH_NORM_0:
      sum += d != 0 ? 1 : 0;
      break;
    case MOTH_NORM_1:
      sum += d;
      break;
    case MOTH_NORM_2:
      sum += d * d;
      break;
    case MOTH_NORM_INF:
      sum = sum > d || sum != sum ? sum : d;
      break;
    default:
      sum += pow(d, k.q.p);
    }
  }
  if (k.q.norm == MOTH_NORM_2)
    sum = sqrt(sum);
  if (k.q.norm == MOTH_NORM_P || k.q.norm == MOTH_NORM_WHOLE)
    sum = pow(sum, 1 / k.q.p);
  ((R *)k.q.out)[place(k, b, i, j)] = (R)sum;
}

template <class R> __global__ void __launch_bounds__(THREADS) backward(const Call k) {
  int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, n = k.q.size;
  if (at >= k.batch * k.q.rows * n)
    return;
  int64_t m = at % n, i = at / n % k.q.rows, b = at / n / k.q.rows;
  double x = (double)((const R *)k.q.x)[at], sum = 0;
  for (int64_t j = 0; j < k.q.others; j++) {
    if (k.q.pairs && j == i)
      continue;
    int64_t pair = place(k, b, i, j);
    double d = x - (double)((const R *)k.q.y)[(b * k.q.others + j) * n + m], size = fabs(d);
    double g = (double)((const R *)k.q.grad)[pair], dist = (double)((const R *)k.q.dist)[pair];
    double sign = d > 0 ? 1 : d < 0 ? -1 : d;
    switch (k.q.norm) {
    case MOTH_NORM_0:
      break;
    case MOTH_NORM_1:
      sum += g * sign;
      break;
    case MOTH_NORM_2:
      sum += dist == 0 ? 0 : g / dist * d;
      break;
    case MOTH_NORM_INF:
      sum += (R)size == (R)dist ? g * sign : 0;
      break;
    default:
      sum += dist == 0 || d == 0 ? 0 : g * sign * pow(size / dist, k.q.p - 1);
    }
  }
  ((R *)k.q.out)[at] = (R)sum;
}

template <class R>
MothStatus run(MothCall *c, const MothTensor *x1, const MothTensor *x2, const MothTensor *grad,
               const MothTensor *dist, double p, bool pairs) {
  const MothDType dtype = sizeof(R) == 8 ? MOTH_FLOAT64 : MOTH_FLOAT32;
  MothTensor *out = c->results[0].u.t;
  MothCudaRun on;
  MothOwned x, y, g, d, wide;
  MOTH_TRY(moth_cuda_run(c, &on));
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_contiguous_as(x1, dtype, &x.t));
  MOTH_TRY(moth_cuda_contiguous_as(x2, dtype, &y.t));
  MOTH_TRY(moth_tensor_new(out->ndim, out->shape, dtype, out->device, &wide.t));
  int n = x1->ndim;
  Call k = {};
  k.batch = n == 3 ? x1->shape[0] : 1;
  k.q.x = x->data;
  k.q.y = y->data;
  k.q.out = wide->data;
  k.q.rows = x1->shape[n - 2];
  k.q.others = x2->shape[n - 2];
  k.q.size = x1->shape[n - 1];
  k.q.norm = moth_norm_of(p);
  k.q.p = p;
  k.q.pairs = pairs;
  int64_t threads = k.batch * k.q.rows * (grad ? k.q.size : k.q.others);
  dim3 blocks((unsigned)moth_ceil_div(threads, (int64_t)THREADS));
  if (grad) {
    MOTH_TRY(moth_cuda_contiguous_as(grad, dtype, &g.t));
    MOTH_TRY(moth_cuda_contiguous_as(dist, dtype, &d.t));
    k.q.grad = g->data;
    k.q.dist = d->data;
    MOTH_TRY(moth_launch(c->op->name, backward<R>, blocks, dim3(THREADS), 0, on.stream, k));
  } else {
    MOTH_TRY(moth_launch(c->op->name, forward<R>, blocks, dim3(THREADS), 0, on.stream, k));
  }
  return moth_cuda_copy(out, wide);
}

MothStatus run_as(MothCall *c, const MothTensor *x1, const MothTensor *x2, const MothTensor *grad,
                  const MothTensor *dist, double p, bool pairs) {
  return c->results[0].u.t->dtype == MOTH_FLOAT64 ? run<double>(c, x1, x2, grad, dist, p, pairs)
                                                  : run<float>(c, x1, x2, grad, dist, p, pairs);
}

} // namespace

MothStatus moth_cuda_native_cdist(MothCall *c) {
  MOTH_UNPACK_NATIVE_CDIST(c)
  return run_as(c, x1, x2, nullptr, nullptr, p, false);
}
MothStatus moth_cuda_native_cdist_backward(MothCall *c) {
  MOTH_UNPACK_NATIVE_CDIST_BACKWARD(c)
  return run_as(c, x1, x2, grad, cdist, p, false);
}
MothStatus moth_cuda_native_pdist(MothCall *c) {
  MOTH_UNPACK_NATIVE_PDIST(c)
  return run_as(c, self, self, nullptr, nullptr, p, true);
}
MothStatus moth_cuda_native_pdist_backward(MothCall *c) {
  MOTH_UNPACK_NATIVE_PDIST_BACKWARD(c)
  return run_as(c, self, self, grad, pdist, p, true);
}
