/* Arguments of the typed optimizer kernels, on every device. */
#ifndef MOTH_COMMON_OPTIMIZER_H
#define MOTH_COMMON_OPTIMIZER_H
#include <stdbool.h>
#include <stdint.h>

typedef struct MothSgd {
  double lr, momentum, dampening, weight_decay, grad_scale;
  bool nesterov, maximize, first;
} MothSgd;

typedef struct MothAdam {
  double lr, beta1, beta2, eps, weight_decay, grad_scale;
  double step;                       /* t, from 1; CUDA only */
  double step_size, root_correction; /* lr / (1 - beta1^t), sqrt(1 - beta2^t) */
  bool decoupled, amsgrad, maximize;
} MothAdam;

enum { MOTH_STEP_ROLES = 5 }; /* param, grad, up to three states */

typedef struct MothStep {
  const MothSgd *sgd; /* one of the two */
  const MothAdam *adam;
  /* The CPU: n elements of one parameter, with its gradient and states; NULL: not used. */
  void *p[MOTH_STEP_ROLES];
  int64_t n;
  const struct MothStepTable *table; /* CUDA: many parameters */
} MothStep;
#endif
