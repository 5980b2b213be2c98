/* Arguments of the typed optimizer kernels (kernels/cuda/typed/optimizer.cuh). */
#ifndef MOTH_CUDA_OPTIMIZER_H
#define MOTH_CUDA_OPTIMIZER_H
#include "cuda/cuda.h"
extern "C" {
#include "kernels/cpu/optimizer.h"
}

/* One launch updates up to SLOTS tensors of one dtype, cut into chunks of a block each. The table is a kernel
 * parameter, so that nothing has to be copied (or outlive the call in a graph). */
enum { MOTH_STEP_SLOTS = 64, MOTH_STEP_CHUNK = 8192, MOTH_STEP_ROLES = 5 };
typedef struct MothStepTable {
  int n;
  const void *scale;                   /* on the device: the factor of the gradients; NULL: none */
  bool scale_f64;                      /* float64, else float32 */
  unsigned first[MOTH_STEP_SLOTS + 1]; /* number of each tensor's first chunk */
  int64_t numel[MOTH_STEP_SLOTS];      /* negative: not all addresses are multiples of 16 */
  void *p[MOTH_STEP_ROLES][MOTH_STEP_SLOTS]; /* param, grad, states */
} MothStepTable;
#endif
