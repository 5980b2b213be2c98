/* The CUDA backend as the core sees it: libmoth_cuda.so, opened when a CUDA device is first asked for.
 * Where it or a device is missing, everything here says why. */
#ifndef MOTH_NO_CUDA_CUDA_H
#define MOTH_NO_CUDA_CUDA_H
#include "core/device.h"

/* Stands in the device table until the backend has been opened. */
extern const MothDeviceOps moth_cuda_device;
/* Why CUDA cannot be used here, or NULL. Opens the backend. */
MOTH_API const char *moth_cuda_why(void);
#endif
