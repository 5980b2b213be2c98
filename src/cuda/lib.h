/* CUDA's libraries, opened when they are first used. */
#ifndef MOTH_CUDA_LIB_H
#define MOTH_CUDA_LIB_H
#include "cuda/rt.h"

typedef enum MothCudaLib {
  MOTH_CUDA_CUBLASLT,
  MOTH_CUDA_CUDNN,
  MOTH_CUDA_NVRTC,
  MOTH_CUDA_NCCL,
  MOTH_CUDA_CUPTI,
  MOTH_CUDA_CUFFT,
  MOTH_CUDA_CUSOLVER,
  MOTH_CUDA_CUBLAS,
  MOTH_CUDA_NLIBS
} MothCudaLib;

/* Opens a library of the major version that moth was built for: from the folder $MOTH_CUDA_LIB, the system's search
 * path, the toolkit's folder, Python's packages. The handle stays open. Error: the names that were tried, and what
 * the loader said. */
MothStatus moth_cuda_lib_open(MothCudaLib which, void **handle);

/* A warning on stderr: `what` runs on the CPU, on copies, as moth_last_error says. To be called once. */
void moth_cuda_lib_warn(const char *what);

/* Opens library i, from 0: its name, NULL behind the last, and its version in its own form, 0 if unknown. Error: as
 * above; the name is set, too. */
MothStatus moth_cuda_library(int i, const char **name, int64_t *version);
#endif
