/* Hyperparameters of the optimizer kernels, on every device. */
#ifndef MOTH_COMMON_OPTIMIZER_H
#define MOTH_COMMON_OPTIMIZER_H
#include <stdbool.h>

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
#endif
