/* cross_entropy of rows of n logits. A row i with target t and class weights w
 * (NULL: all 1) has the loss (1 - s) w[t] (lse - x[t]) + s / n sum_c w[c] (lse
 * - x[c]),   lse = log(sum(exp(x))) with the label smoothing s; total = sum_c
 * w[c]. */
#include "kernels/cpu/typed/softmax.h"

MOTH_TYPED_FLOAT void cross_entropy(const struct MothLoss *q) {
  const double *weight = q->weight;
  double total = q->total, smoothing = q->smoothing, *loss = q->loss;
  int64_t n = q->n;
  for (int64_t r = 0; r < q->rows; r++) {
    const stored *a = (const stored *)q->in + r * n;
    int64_t t = q->target[r] - q->base;
    if (q->target[r] == q->ignore) {
      loss[r] = 0;
      continue;
    }
    real max = row_max(a, n);
    double lse = __builtin_log(row_sumexp(a, NULL, n, max)) + (double)max;
    double w = weight ? weight[t] : 1;
    double l = (1 - smoothing) * w * (lse - (double)LOAD(a[t]));
    if (smoothing > 0) {
      MothParam sum = {.d = 0};
      if (weight)
        for (int64_t i = 0; i < n; i++)
          sum.d += weight[i] * (double)LOAD(a[i]);
      else
        for (int64_t i = 0; i < n; i += BLOCK)
          block_sum(a + i, n - i < BLOCK ? n - i : BLOCK, 0, &sum);
      l += smoothing / (double)n * (total * lse - sum.d);
    }
    loss[r] = l;
  }
}

/* out = the derivative of grad[r * grad_stride] * loss[r] by the logits. */
MOTH_TYPED_FLOAT void cross_entropy_backward(const struct MothLoss *q) {
  const double *weight = q->weight;
  double total = q->total, smoothing = q->smoothing;
  int64_t n = q->n;
  for (int64_t r = 0; r < q->rows; r++) {
    const stored *a = (const stored *)q->in + r * n;
    stored *o = (stored *)q->out + r * n;
    int64_t t = q->target[r] - q->base;
    if (q->target[r] == q->ignore) {
      memset(o, 0, (size_t)n * sizeof(stored));
      continue;
    }
    double g = q->grad[r * q->grad_stride], w = weight ? weight[t] : 1,
           even = g * smoothing / (double)n;
    real max = row_max(a, n);
    double sum = row_sumexp(a, o, n, max);
    double at_target = g * (1 - smoothing) * w;
    real scale = (real)((at_target + even * total) / sum);
    real p = m_exp_down(LOAD(a[t]) - max) * scale - (real)at_target;
    p -= (real)(even * w);
    if (weight && smoothing > 0) {
      for (int64_t i = 0; i < n; i++)
        o[i] = STORE(m_exp_down(LOAD(a[i]) - max) * scale - (real)(even * weight[i]));
    } else {
      real less = (real)even;
#if MOTH_STORED == 0
      MOTH_VECTOR for (int64_t i = 0; i < n; i++) o[i] = o[i] * scale - less;
#else
      MOTH_VECTOR for (int64_t i = 0; i < n; i++) o[i] =
          STORE(m_exp_down(LOAD(a[i]) - max) * scale - less);
#endif
    }
    o[t] = STORE(p);
  }
}
