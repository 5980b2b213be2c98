/* Settings of the CUDA backend. They are part of libmoth, so that they can be set before the backend is opened and
 * where it is missing. */
#ifndef MOTH_NO_CUDA_SETTINGS_H
#define MOTH_NO_CUDA_SETTINGS_H
#include "moth.h"

typedef struct MothCudaSettings {
  bool allow_tf32;   /* float32 products may round their operands to 10 bits of mantissa */
  bool own_gemm;     /* products by our own kernel, not by cuBLASLt */
  char library[128]; /* the library that products have used last: written by the backend */
} MothCudaSettings;

MOTH_API extern MothCudaSettings moth_cuda_settings;
#endif
