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

/* What is known of a step whose kernels are written from its record (src/ops/steps.lua). */
enum { MOTH_UPDATE_NUMBERS = 24, MOTH_UPDATE_ARGS = 16 };
typedef struct MothUpdate {
  const char *name;
  int nlists; /* params, grads, states: their arguments, and which may be empty */
  int lists[MOTH_STEP_ROLES];
  bool optional[MOTH_STEP_ROLES];
  int nargs; /* the other arguments, numbers or tensors of one element */
  int args[MOTH_UPDATE_ARGS];
  int grad_scale, found_inf; /* among these; -1: none */
  int first; /* loop of the first variant; variants count the optional lists in binary */
  void (*numbers)(const double *args, double *out);
} MothUpdate;

/* n elements: p[0] the parameter, p[1] its gradient, then the states that there are. */
typedef void (*MothUpdateLoop)(void *const *p, const double *numbers, int64_t n);

typedef struct MothStep {
  const MothSgd *sgd; /* one of the three */
  const MothAdam *adam;
  const double *numbers; /* of a generated step */
  int loop;              /* its number */
  /* The CPU: n elements of one parameter, with its gradient and states; NULL: not used. */
  void *p[MOTH_STEP_ROLES];
  int64_t n;
  const struct MothStepTable *table; /* CUDA: many parameters */
} MothStep;
#endif
