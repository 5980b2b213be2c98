#include "device/cuda_settings.h"

MothCudaSettings moth_cuda_settings;
