/* Connectionist temporal classification, as kernels/cpu/ctc.c: a block has a sequence and goes through its steps, a thread
 * has some of its states. Sums are of logarithms in float64; float16 and bfloat16 are read as float32. Lengths and
 * targets are read on the host first, to check them: a call waits for the device, and cannot be captured into a graph. */
#include <math.h>

#include <vector>

#include "kernels/common/ctc.h"
#include "kernels/cuda/util.h"
#include "unpack/nn.h"

namespace {

enum { THREADS = 128 };

template <class R> struct Ctc {
  int64_t T, N, C, S, L, blank, base; /* L = 2 S + 1 */
  bool zero_infinity;
  const R *log_probs; /* (T, N, C) */
  const int64_t *targets, *input_lengths, *target_lengths;
  double *alpha, *beta, *losses; /* (N, T, L), (N, 2, L), (N) */
  const R *grad;                 /* (N) */
  R *out;                        /* (T, N, C) */

  __device__ __forceinline__ int64_t class_of(int64_t n, int64_t s) const {
    return s % 2 ? targets[n * S + s / 2] - base : blank;
  }
  /* Whether state s can follow state s - 2. */
  __device__ __forceinline__ bool may_skip(int64_t n, int64_t s) const {
    return s % 2 && s > 1 && class_of(n, s) != class_of(n, s - 2);
  }
  __device__ __forceinline__ const R *probs(int64_t t, int64_t n) const {
    return log_probs + (t * N + n) * C;
  }
};

__device__ __forceinline__ double log_sum(double a, double b, double c) {
  double top = fmax(a, fmax(b, c));
  return top == -INFINITY ? top : top + log(exp(a - top) + exp(b - top) + exp(c - top));
}

/* The negative logarithm of all alignments of a sequence of states, from its last row of alpha. */
__device__ __forceinline__ double loss_of(const double *last, int64_t states) {
  return -log_sum(last[states - 1], states > 1 ? last[states - 2] : -INFINITY, -INFINITY);
}

template <class R> __global__ void __launch_bounds__(THREADS) ctc_forward(Ctc<R> q) {
  int64_t n = blockIdx.x, T = q.input_lengths[n], states = 2 * q.target_lengths[n] + 1;
  double *alpha = q.alpha + n * q.T * q.L;
  for (int64_t t = 0; t < q.T; t++, alpha += q.L) {
    const R *p = q.probs(t, n);
    for (int64_t s = threadIdx.x; s < q.L; s += THREADS) {
      if (t >= T || s >= states) {
        alpha[s] = -INFINITY;
        continue;
      }
      const double *before = alpha - q.L;
      double own = t ? before[s] : s < 2 ? 0 : -INFINITY;
      double one = t && s > 0 ? before[s - 1] : -INFINITY;
      double two = t && q.may_skip(n, s) ? before[s - 2] : -INFINITY;
      alpha[s] = log_sum(own, one, two) + (double)p[q.class_of(n, s)];
    }
    __syncthreads();
  }
  if (threadIdx.x)
    return;
  double loss = states == 1 ? 0 : INFINITY;
  if (T > 0)
    loss = loss_of(q.alpha + (n * q.T + T - 1) * q.L, states);
  q.losses[n] = q.zero_infinity && loss == INFINITY ? 0 : loss;
}

/* alpha becomes alpha + beta - log_probs + loss: the logarithm of a state's probability at a step, given the target. */
template <class R> __global__ void __launch_bounds__(THREADS) ctc_states(Ctc<R> q) {
  int64_t n = blockIdx.x, T = q.input_lengths[n], states = 2 * q.target_lengths[n] + 1;
  double *alphas = q.alpha + n * q.T * q.L;
  double *beta = q.beta + 2 * n * q.L, *behind = beta + q.L;
  double loss = T > 0 ? loss_of(alphas + (T - 1) * q.L, states) : INFINITY;
  if (threadIdx.x == 0)
    q.losses[n] = loss;
  __syncthreads();
  for (int64_t t = T - 1; t >= 0; t--) {
    const R *p = q.probs(t, n);
    double *alpha = alphas + t * q.L, *swap = beta;
    beta = behind;
    behind = swap;
    for (int64_t s = threadIdx.x; s < states; s += THREADS) {
      double own = t < T - 1 ? behind[s] : s >= states - 2 ? 0 : -INFINITY;
      double one = t < T - 1 && s + 1 < states ? behind[s + 1] : -INFINITY;
      double two = -INFINITY, log_prob = (double)p[q.class_of(n, s)];
      if (t < T - 1 && s + 2 < states && q.may_skip(n, s + 2))
        two = behind[s + 2];
      double b = log_sum(own, one, two) + log_prob;
      beta[s] = b;
      alpha[s] = alpha[s] > -INFINITY && b > -INFINITY ? alpha[s] + b - log_prob + loss : -INFINITY;
    }
    __syncthreads();
  }
}

/* A thread has one step of one sequence; its row of `out` is 0. */
template <class R> __global__ void __launch_bounds__(THREADS) ctc_backward(Ctc<R> q) {
  int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, t = i / q.N, n = i % q.N;
  if (i >= q.T * q.N || t >= q.input_lengths[n])
    return;
  double loss = q.losses[n], grad = (double)q.grad[n];
  if (loss == INFINITY && q.zero_infinity)
    return;
  int64_t states = 2 * q.target_lengths[n] + 1;
  const double *log_state = q.alpha + (n * q.T + t) * q.L;
  R *out = q.out + i * q.C;
  for (int64_t s = 0; s < states; s++)
    if (loss == INFINITY)
      out[q.class_of(n, s)] = (R)NAN;
    else if (log_state[s] > -INFINITY)
      out[q.class_of(n, s)] -= (R)(exp(log_state[s]) * grad);
}

/* A call: the arguments as the kernels read them, and what owns them. */
template <class R> struct Call {
  MothCudaRun run;
  Ctc<R> q = {};
  MothOwned log_probs, targets, input_lengths, target_lengths, losses, alpha, grad, out;

  static constexpr MothDType DTYPE = sizeof(R) == 8 ? MOTH_FLOAT64 : MOTH_FLOAT32;

  MothStatus read(const MothTensor *t, MothOwned *own, std::vector<int64_t> *host) {
    MOTH_TRY(moth_cuda_contiguous_as(t, MOTH_INT64, &own->t));
    host->resize((size_t)t->numel);
    if (t->numel == 0)
      return MOTH_OK;
    return moth_cuda_memcpy(run.device, host->data(), own->t->data,
                            (size_t)t->numel * sizeof(int64_t), cudaMemcpyDeviceToHost);
  }

  MothStatus open(const MothCall *c, const MothTensor *probs, const MothTensor *target,
                  const MothTensor *ins, const MothTensor *outs, int64_t blank, bool zero_infinity,
                  int64_t base) {
    std::vector<int64_t> in_host, out_host, target_host;
    MOTH_TRY(moth_cuda_run(c, &run));
    if (moth_cuda_is_capturing(run.stream))
      return moth_fail(MOTH_ERR_STATE, "lengths are read on the host: this cannot be captured into "
                                       "a CUDA graph");
    q.T = probs->shape[0], q.N = probs->shape[1], q.C = probs->shape[2];
    q.S = target->shape[1], q.L = 2 * q.S + 1;
    q.blank = blank, q.base = base, q.zero_infinity = zero_infinity;
    MOTH_TRY(read(ins, &input_lengths, &in_host));
    MOTH_TRY(read(outs, &target_lengths, &out_host));
    MOTH_TRY(read(target, &targets, &target_host));
    MOTH_TRY(moth_ctc_check(in_host.data(), out_host.data(), target_host.data(), q.N, q.T, q.S, q.C,
                            blank, base));
    MOTH_TRY(moth_cuda_contiguous_as(probs, DTYPE, &log_probs.t));
    MOTH_TRY(moth_tensor_new(1, &q.N, MOTH_FLOAT64, probs->device, &losses.t));
    q.log_probs = reinterpret_cast<const R *>(log_probs->data);
    q.targets = reinterpret_cast<const int64_t *>(targets->data);
    q.input_lengths = reinterpret_cast<const int64_t *>(input_lengths->data);
    q.target_lengths = reinterpret_cast<const int64_t *>(target_lengths->data);
    q.losses = reinterpret_cast<double *>(losses->data);
    return MOTH_OK;
  }
};

template <class R> MothStatus forward(MothCall *c) {
  MOTH_UNPACK_CTC_LOSS_FORWARD(c)
  Call<R> l;
  MothTensor *result = c->results[0].u.t, *log_alpha = c->results[1].u.t;
  MOTH_TRY(l.open(c, log_probs, target, input_lengths, target_lengths, blank, zero_infinity,
                  index_base));
  MOTH_TRY(moth_tensor_new(3, log_alpha->shape, MOTH_FLOAT64, log_alpha->device, &l.alpha.t));
  l.q.alpha = reinterpret_cast<double *>(l.alpha->data);
  MOTH_TRY(moth_launch(c->op->name, ctc_forward<R>, dim3((unsigned)l.q.N), dim3(THREADS), 0,
                       l.run.stream, l.q));
  MOTH_TRY(moth_cuda_copy(result, l.losses));
  return moth_cuda_copy(log_alpha, l.alpha);
}

template <class R> MothStatus backward(MothCall *c) {
  MOTH_UNPACK_CTC_LOSS_BACKWARD(c)
  Call<R> l;
  MothScratch beta;
  MothTensor *result = c->results[0].u.t;
  MOTH_TRY(l.open(c, log_probs, target, input_lengths, target_lengths, blank, zero_infinity,
                  index_base));
  MOTH_TRY(moth_tensor_new(3, log_alpha->shape, MOTH_FLOAT64, log_alpha->device, &l.alpha.t));
  MOTH_TRY(moth_cuda_copy(l.alpha, log_alpha)); /* written to */
  MOTH_TRY(moth_cuda_contiguous_as(grad_output, l.DTYPE, &l.grad.t));
  MOTH_TRY(moth_tensor_new(3, result->shape, l.DTYPE, result->device, &l.out.t));
  MOTH_TRY(moth_cuda_fill(l.out, moth_v_float(0)));
  MOTH_TRY(beta.take(l.run.device, (size_t)(2 * l.q.N * l.q.L) * sizeof(double)));
  l.q.alpha = reinterpret_cast<double *>(l.alpha->data);
  l.q.beta = beta.as<double>();
  l.q.grad = reinterpret_cast<const R *>(l.grad->data);
  l.q.out = reinterpret_cast<R *>(l.out->data);
  MOTH_TRY(moth_launch(c->op->name, ctc_states<R>, dim3((unsigned)l.q.N), dim3(THREADS), 0,
                       l.run.stream, l.q));
  MOTH_TRY(moth_launch(c->op->name, ctc_backward<R>,
                       dim3((unsigned)moth_ceil_div(l.q.T * l.q.N, (int64_t)THREADS)),
                       dim3(THREADS), 0, l.run.stream, l.q));
  return moth_cuda_copy(result, l.out);
}

} // namespace

MothStatus moth_cuda_ctc_loss_forward(MothCall *c) {
  MOTH_UNPACK_CTC_LOSS_FORWARD(c)
  return log_probs->dtype == MOTH_FLOAT64 ? forward<double>(c) : forward<float>(c);
}
MothStatus moth_cuda_ctc_loss_backward(MothCall *c) {
  MOTH_UNPACK_CTC_LOSS_BACKWARD(c)
  return log_probs->dtype == MOTH_FLOAT64 ? backward<double>(c) : backward<float>(c);
}
