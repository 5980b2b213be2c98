/* Optimizer steps of n elements, each in one pass over memory: PyTorch's formulas, computed in `real` with
 * factors precomputed in double. */
#include "kernels/common/optimizer.h"
#include "kernels/cpu/typed/prelude.h"

MOTH_TYPED_FLOAT void sgd_step(const struct MothStep *q) {
  const MothSgd *h = q->sgd;
  stored *x = q->p[0], *b = q->p[2];
  const stored *g = q->p[1];
  const int64_t n = q->n;
  real lr = (real)h->lr, decay = (real)h->weight_decay, momentum = (real)h->momentum;
  real keep = h->first ? 0 : momentum, take = h->first ? 1 : (real)(1 - h->dampening);
  real sign = (real)(h->maximize ? -h->grad_scale : h->grad_scale);
  if (!b) {
    MOTH_VECTOR for (int64_t i = 0; i < n; i++) {
      real p = LOAD(x[i]), d = sign * LOAD(g[i]) + decay * p;
      x[i] = STORE(p - lr * d);
    }
    return;
  }
  /* The direction is d itself, the buffer, or (nesterov) both. */
  real of_d = h->nesterov ? 1 : 0, of_b = h->nesterov ? momentum : 1;
  if (h->first)
    MOTH_VECTOR for (int64_t i = 0; i < n; i++) b[i] = STORE((real)0);
  MOTH_VECTOR for (int64_t i = 0; i < n; i++) {
    real p = LOAD(x[i]), d = sign * LOAD(g[i]) + decay * p;
    real m = keep * LOAD(b[i]) + take * d;
    b[i] = STORE(m);
    x[i] = STORE(p - lr * (of_d * d + of_b * m));
  }
}

MOTH_TYPED_FLOAT void adam_step(const struct MothStep *q) {
  const MothAdam *h = q->adam;
  stored *x = q->p[0], *m = q->p[2], *v = q->p[3], *top = q->p[4];
  const stored *g = q->p[1];
  const int64_t n = q->n;
  real b1 = (real)(1 - h->beta1), b2 = (real)h->beta2, a2 = (real)(1 - h->beta2);
  real eps = (real)h->eps, size = (real)h->step_size, root = (real)(1 / h->root_correction);
  real decay = h->decoupled ? 0 : (real)h->weight_decay;
  real shrink = h->decoupled ? (real)(1 - h->lr * h->weight_decay) : 1;
  real sign = (real)(h->maximize ? -h->grad_scale : h->grad_scale);
#define ADAM_STEP(CHOOSE)                                                                          \
  MOTH_VECTOR for (int64_t i = 0; i < n; i++) {                                                    \
    real p = LOAD(x[i]), d = sign * LOAD(g[i]) + decay * p;                                        \
    p = p * shrink;                                                                                \
    real mean = LOAD(m[i]), square = LOAD(v[i]) * b2 + a2 * d * d;                                 \
    mean = mean + b1 * (d - mean);                                                                 \
    m[i] = STORE(mean);                                                                            \
    v[i] = STORE(square);                                                                          \
    CHOOSE                                                                                         \
    x[i] = STORE(p - size * mean / (m_sqrt(square) * root + eps));                                 \
  }
  if (top) {
    ADAM_STEP(real old = LOAD(top[i]); square = m_join_max(square, old); top[i] = STORE(square);)
  } else {
    ADAM_STEP()
  }
}
