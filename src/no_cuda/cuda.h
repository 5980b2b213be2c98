/* The CUDA backend as the core sees it. src/no_cuda is its absence, with the same interface. */
#ifndef MOTH_NO_CUDA_CUDA_H
#define MOTH_NO_CUDA_CUDA_H
#include "core/device.h"

extern const MothDeviceOps moth_cuda_device;
/* Why CUDA cannot be used here, or NULL. */
MOTH_API const char *moth_cuda_why(void);
#endif
