/* Connectionist temporal classification (Graves et al. 2006): the probability that a sequence of distributions gives a
 * target, over all ways to put blanks between its labels and to repeat them. A target of S labels has 2 S + 1 states:
 * its labels with a blank before each and one behind. All sums are of logarithms, in float64. Sequences are independent:
 * the same bits for any number of threads. */
#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/common/ctc.h"
#include "kernels/cpu/util.h"
#include "unpack/nn.h"

typedef struct Ctc {
  int64_t T, N, C, S, L, blank, base; /* L = 2 S + 1 */
  bool zero_infinity;
  MothTensor *log_probs, *targets, *input_lengths, *target_lengths; /* row-major; float64, int64 */
  MothTensor *losses, *alpha, *grad, *out; /* float64: (N), (N, T, L), (N), (T, N, C) */
  double *beta;
} Ctc;

static void ctc_close(Ctc *q) {
  moth_tensor_release(q->log_probs);
  moth_tensor_release(q->targets);
  moth_tensor_release(q->input_lengths);
  moth_tensor_release(q->target_lengths);
  moth_tensor_release(q->losses);
  moth_tensor_release(q->alpha);
  moth_tensor_release(q->grad);
  moth_tensor_release(q->out);
  if (q->beta)
    moth_free(q->beta, (size_t)(2 * q->N * q->L) * sizeof(double));
}

static int64_t length_of(const MothTensor *t, int64_t n) {
  return ((const int64_t *)t->data)[n];
}

static MothStatus ctc_open(Ctc *q, MothTensor *log_probs, MothTensor *targets,
                           MothTensor *input_lengths, MothTensor *target_lengths, int64_t blank,
                           bool zero_infinity, int64_t base) {
  memset(q, 0, sizeof *q);
  q->T = log_probs->shape[0];
  q->N = log_probs->shape[1];
  q->C = log_probs->shape[2];
  q->S = targets->shape[1];
  q->L = 2 * q->S + 1;
  q->blank = blank;
  q->base = base;
  q->zero_infinity = zero_infinity;
  MOTH_TRY(moth_cpu_contiguous_as(log_probs, MOTH_FLOAT64, &q->log_probs));
  MOTH_TRY(moth_cpu_contiguous_as(targets, MOTH_INT64, &q->targets));
  MOTH_TRY(moth_cpu_contiguous_as(input_lengths, MOTH_INT64, &q->input_lengths));
  MOTH_TRY(moth_cpu_contiguous_as(target_lengths, MOTH_INT64, &q->target_lengths));
  return moth_ctc_check((const int64_t *)q->input_lengths->data,
                        (const int64_t *)q->target_lengths->data, (const int64_t *)q->targets->data,
                        q->N, q->T, q->S, q->C, blank, base);
}

/* The class of a state. */
static int64_t class_of(const Ctc *q, int64_t n, int64_t s) {
  return s % 2 ? ((const int64_t *)q->targets->data)[n * q->S + s / 2] - q->base : q->blank;
}

/* May state s follow state s - 2? */
static bool may_skip(const Ctc *q, int64_t n, int64_t s) {
  return s % 2 && s > 1 && class_of(q, n, s) != class_of(q, n, s - 2);
}

static double log_sum(double a, double b, double c) {
  double top = fmax(a, fmax(b, c));
  return top == -INFINITY ? top : top + log(exp(a - top) + exp(b - top) + exp(c - top));
}

static const double *probs_of(const Ctc *q, int64_t t, int64_t n) {
  return (const double *)q->log_probs->data + (t * q->N + n) * q->C;
}

static void forward_range(void *ctx, int64_t begin, int64_t end) {
  const Ctc *q = ctx;
  for (int64_t n = begin; n < end && !moth_stopped(); n++) {
    int64_t T = length_of(q->input_lengths, n), L = 2 * length_of(q->target_lengths, n) + 1;
    double *alpha = (double *)q->alpha->data + n * q->T * q->L,
           *loss = (double *)q->losses->data + n;
    for (int64_t i = 0; i < q->T * q->L; i++)
      alpha[i] = -INFINITY;
    *loss = L == 1 ? 0 : INFINITY;
    for (int64_t t = 0; t < T; t++, alpha += q->L) {
      const double *p = probs_of(q, t, n), *before = alpha - q->L;
      for (int64_t s = 0; s < L; s++) {
        double own = t ? before[s] : s < 2 ? 0 : -INFINITY;
        double one = t && s > 0 ? before[s - 1] : -INFINITY;
        double two = t && may_skip(q, n, s) ? before[s - 2] : -INFINITY;
        alpha[s] = log_sum(own, one, two) + p[class_of(q, n, s)];
      }
    }
    if (T > 0) {
      const double *last = alpha - q->L;
      *loss = -log_sum(last[L - 1], L > 1 ? last[L - 2] : -INFINITY, -INFINITY);
    }
    if (q->zero_infinity && *loss == INFINITY)
      *loss = 0;
  }
}

MothStatus moth_cpu_ctc_loss_forward(MothCall *c) {
  MOTH_UNPACK_CTC_LOSS_FORWARD(c)
  Ctc q;
  MothStatus status;
  MothTensor *losses = c->results[0].u.t, *alpha = c->results[1].u.t;
  MothDevice cpu = {MOTH_CPU, 0};
  MOTH_GO(ctc_open(&q, log_probs, target, input_lengths, target_lengths, blank, zero_infinity,
                   index_base));
  MOTH_GO(moth_tensor_new(1, &q.N, MOTH_FLOAT64, cpu, &q.losses));
  MOTH_GO(moth_tensor_new(3, alpha->shape, MOTH_FLOAT64, cpu, &q.alpha));
  moth_parallel_for(q.N, moth_cpu_grain(40 * q.T * q.L), forward_range, &q);
  moth_cpu_copy(losses, q.losses);
  moth_cpu_copy(alpha, q.alpha);
done:
  ctc_close(&q);
  return status;
}

/* The probability of class k at step t, given the target, is the sum over its states of exp(alpha + beta - p + loss);
 * beta is alpha from the other end. */
static void backward_range(void *ctx, int64_t begin, int64_t end) {
  const Ctc *q = ctx;
  for (int64_t n = begin; n < end && !moth_stopped(); n++) {
    int64_t T = length_of(q->input_lengths, n), L = 2 * length_of(q->target_lengths, n) + 1;
    const double *alphas = (const double *)q->alpha->data + n * q->T * q->L;
    double loss = INFINITY, grad = ((const double *)q->grad->data)[n];
    double *beta = q->beta + 2 * n * q->L, *behind = beta + q->L;
    if (T > 0) {
      const double *last = alphas + (T - 1) * q->L;
      loss = -log_sum(last[L - 1], L > 1 ? last[L - 2] : -INFINITY, -INFINITY);
    }
    for (int64_t t = q->T - 1; t >= 0; t--) {
      double *out = (double *)q->out->data + (t * q->N + n) * q->C;
      memset(out, 0, (size_t)q->C * sizeof *out);
      if (t >= T || (loss == INFINITY && q->zero_infinity))
        continue;
      const double *p = probs_of(q, t, n), *alpha = alphas + t * q->L;
      double *swap = beta;
      beta = behind;
      behind = swap;
      for (int64_t s = 0; s < L; s++) {
        double own = t < T - 1 ? behind[s] : s >= L - 2 ? 0 : -INFINITY;
        double one = t < T - 1 && s + 1 < L ? behind[s + 1] : -INFINITY;
        double two = t < T - 1 && s + 2 < L && may_skip(q, n, s + 2) ? behind[s + 2] : -INFINITY;
        int64_t k = class_of(q, n, s);
        beta[s] = log_sum(own, one, two) + p[k];
        if (loss == INFINITY)
          out[k] = NAN;
        else if (alpha[s] > -INFINITY && beta[s] > -INFINITY)
          out[k] -= exp(alpha[s] + beta[s] - p[k] + loss) * grad;
      }
    }
  }
}

MothStatus moth_cpu_ctc_loss_backward(MothCall *c) {
  MOTH_UNPACK_CTC_LOSS_BACKWARD(c)
  Ctc q;
  MothStatus status;
  MothTensor *out = c->results[0].u.t;
  MOTH_GO(ctc_open(&q, log_probs, target, input_lengths, target_lengths, blank, zero_infinity,
                   index_base));
  MOTH_GO(moth_cpu_contiguous_as(grad_output, MOTH_FLOAT64, &q.grad));
  MOTH_GO(moth_cpu_contiguous_as(log_alpha, MOTH_FLOAT64, &q.alpha));
  MOTH_GO(moth_tensor_new(3, out->shape, MOTH_FLOAT64, (MothDevice){MOTH_CPU, 0}, &q.out));
  q.beta = moth_alloc((size_t)(2 * q.N * q.L) * sizeof(double));
  if (!q.beta)
    MOTH_GO(moth_no_memory(0));
  moth_parallel_for(q.N, moth_cpu_grain(60 * q.T * q.L), backward_range, &q);
  moth_cpu_copy(out, q.out);
done:
  ctc_close(&q);
  return status;
}
