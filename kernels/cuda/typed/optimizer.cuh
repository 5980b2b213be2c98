/* sgd_step and adam_step: the formulas of kernels/cpu/typed/optimizer.h. */
#if MOTH_IS_FLOAT
struct SgdPlain {
  enum { ROLES = 2, FRESH = -1 };
  real lr, decay, sign;
  bool first;
  __device__ void take_numbers(const MothStepTable &t) { lr = (real)step_number(t.lr, t.lr_f64); }
  __device__ __forceinline__ void operator()(real scale, stored *y) const {
    real p = LOAD(y[0]), d = scale * LOAD(y[1]) + decay * p;
    y[0] = STORE(p - lr * d);
  }
};
/* The direction is of_d times the gradient and of_b times the buffer. */
struct SgdMomentum {
  enum { ROLES = 3, FRESH = 2 }; /* the first step does not read the buffer */
  real lr, decay, sign, keep, take, of_d, of_b;
  bool first;
  __device__ void take_numbers(const MothStepTable &t) { lr = (real)step_number(t.lr, t.lr_f64); }
  __device__ __forceinline__ void operator()(real scale, stored *y) const {
    real p = LOAD(y[0]), d = scale * LOAD(y[1]) + decay * p;
    real m = keep * LOAD(y[2]) + take * d;
    y[2] = STORE(m);
    y[0] = STORE(p - lr * (of_d * d + of_b * m));
  }
};
template <bool AMSGRAD> struct Adam {
  enum { ROLES = AMSGRAD ? 5 : 4, FRESH = -1 };
  real b1, b2, a2, eps, size, root, decay, shrink, sign;
  bool first;
  MothAdam h;
  __device__ void take_numbers(const MothStepTable &t) {
    double lr = t.lr ? step_number(t.lr, t.lr_f64) : h.lr;
    double step = t.step ? step_number(t.step, t.step_f64) : h.step;
    size = (real)(lr / (1 - pow(h.beta1, step)));
    root = (real)(1 / sqrt(1 - pow(h.beta2, step)));
    shrink = h.decoupled ? (real)(1 - lr * h.weight_decay) : (real)1;
  }
  __device__ __forceinline__ void operator()(real scale, stored *y) const {
    real p = LOAD(y[0]), d = scale * LOAD(y[1]) + decay * p;
    p = p * shrink;
    real mean = LOAD(y[2]), square = LOAD(y[3]) * b2 + a2 * d * d;
    mean = mean + b1 * (d - mean);
    y[2] = STORE(mean);
    y[3] = STORE(square);
    if (AMSGRAD) {
      real old = LOAD(y[ROLES - 1]);
      square = square != square || square > old ? square : old;
      y[ROLES - 1] = STORE(square);
    }
    y[0] = STORE(p - size * mean / (m_sqrt(square) * root + eps));
  }
};
#endif

MOTH_TYPED MothStatus sgd_step(const MothCudaRun *run, const MothStep *s) {
#if MOTH_IS_FLOAT
  const MothStepTable *t = s->table;
  const MothSgd *h = s->sgd;
  real lr = (real)h->lr, decay = (real)h->weight_decay, momentum = (real)h->momentum;
  real sign = h->maximize ? -1 : 1;
  if (!t->p[2][0])
    return step_run("sgd_step", run, SgdPlain{lr, decay, sign, false}, t);
  return step_run("sgd_step", run,
                  SgdMomentum{lr, decay, sign, h->first ? 0 : momentum,
                              h->first ? 1 : (real)(1 - h->dampening), (real)(h->nesterov ? 1 : 0),
                              h->nesterov ? momentum : 1, h->first},
                  t);
#else
  (void)run, (void)s;
  return moth_fail(MOTH_ERR_TYPE, "expected float dtypes");
#endif
}

#if MOTH_IS_FLOAT
template <bool AMSGRAD> static MothStatus adam_run(const MothCudaRun *run, const MothStep *s) {
  const MothAdam *h = s->adam;
  Adam<AMSGRAD> f = {(real)(1 - h->beta1),
                     (real)h->beta2,
                     (real)(1 - h->beta2),
                     (real)h->eps,
                     (real)h->step_size,
                     (real)(1 / h->root_correction),
                     h->decoupled ? 0 : (real)h->weight_decay,
                     h->decoupled ? (real)(1 - h->lr * h->weight_decay) : 1,
                     (real)(h->maximize ? -1 : 1),
                     false,
                     *h};
  return step_run("adam_step", run, f, s->table);
}
#endif
MOTH_TYPED MothStatus adam_step(const MothCudaRun *run, const MothStep *s) {
#if MOTH_IS_FLOAT
  return s->adam->amsgrad ? adam_run<true>(run, s) : adam_run<false>(run, s);
#else
  (void)run, (void)s;
  return moth_fail(MOTH_ERR_TYPE, "expected float dtypes");
#endif
}
