#include "no_cuda/settings.h"

MothCudaSettings moth_cuda_settings;
