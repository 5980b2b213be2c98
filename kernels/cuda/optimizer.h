/* The table of an optimizer kernel's parameters (kernels/cuda/typed/optimizer.cuh). */
#ifndef MOTH_CUDA_OPTIMIZER_H
#define MOTH_CUDA_OPTIMIZER_H
#include "kernels/common/optimizer.h"
#include "kernels/cuda/table.h"

/* One launch updates up to SLOTS tensors of one dtype, cut into chunks of a block each. The table is a kernel
 * parameter, so that nothing has to be copied (or outlive the call in a graph). */
enum { MOTH_STEP_SLOTS = 64, MOTH_STEP_CHUNK = 8192, MOTH_STEP_TENSORS = 5 };
typedef struct MothStepTable {
  int n;
  /* Numbers on the device, float64, else float32; NULL: none. The factor of the gradients; the learning rate and
   * the number of the step, which replace those of the call. */
  const void *scale, *lr, *step;
  bool scale_f64, lr_f64, step_f64;
  /* A number that is not 0 if a gradient overflowed: then nothing is written. */
  const void *found;
  bool found_f64;
  /* A generated step: its arguments that lie on the device. */
  int nargs;
  const void *args[MOTH_STEP_TENSORS];
  unsigned char arg_at[MOTH_STEP_TENSORS];
  bool arg_f64[MOTH_STEP_TENSORS];
  unsigned first[MOTH_STEP_SLOTS + 1];       /* number of each tensor's first chunk */
  int64_t numel[MOTH_STEP_SLOTS];            /* negative: not all addresses are multiples of 16 */
  void *p[MOTH_STEP_ROLES][MOTH_STEP_SLOTS]; /* param, grad, states */
} MothStepTable;

/* The numbers of a generated step, as arguments and as its formula takes them. */
typedef struct MothStepValues {
  double args[MOTH_UPDATE_ARGS], numbers[MOTH_UPDATE_NUMBERS];
} MothStepValues;
typedef MothStatus (*MothCudaUpdate)(const MothCudaRun *run, const MothStepValues *values,
                                     const MothStepTable *t);
extern const MothCudaUpdate *const moth_cuda_steps[4]; /* by float dtype; generated */
MothStatus moth_cuda_update(MothCall *c, const MothUpdate *u);
#endif
