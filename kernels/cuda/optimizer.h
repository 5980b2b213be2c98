/* The table of an optimizer kernel's parameters (kernels/cuda/typed/optimizer.cuh). */
#ifndef MOTH_CUDA_OPTIMIZER_H
#define MOTH_CUDA_OPTIMIZER_H
#include "kernels/common/optimizer.h"

/* One launch updates up to SLOTS tensors of one dtype, cut into chunks of a block each. The table is a kernel
 * parameter, so that nothing has to be copied (or outlive the call in a graph). */
enum { MOTH_STEP_SLOTS = 64, MOTH_STEP_CHUNK = 8192 };
typedef struct MothStepTable {
  int n;
  /* Numbers on the device, float64, else float32; NULL: none. The factor of the gradients; the learning rate and
   * the number of the step, which replace those of the call. */
  const void *scale, *lr, *step;
  bool scale_f64, lr_f64, step_f64;
  unsigned first[MOTH_STEP_SLOTS + 1];       /* number of each tensor's first chunk */
  int64_t numel[MOTH_STEP_SLOTS];            /* negative: not all addresses are multiples of 16 */
  void *p[MOTH_STEP_ROLES][MOTH_STEP_SLOTS]; /* param, grad, states */
} MothStepTable;
#endif
