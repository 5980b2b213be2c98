/* Optimizer steps whose loops are written from their records (src/ops/steps.lua), on the CPU. */
#ifndef MOTH_CPU_OPTIMIZER_H
#define MOTH_CPU_OPTIMIZER_H
#include "dispatch/dispatch.h"
#include "kernels/common/optimizer.h"
#include "kernels/cpu/loop.h"

extern const MothUpdateLoop *const moth_steps[MOTH_NISAS][4]; /* by float dtype; generated */

MothStatus moth_cpu_update(MothCall *c, const MothUpdate *u);
#endif
