/* Marks for profilers (Nsight): ranges and points with a text, through NVIDIA's libnvToolsExt or
 * libnvtx3interop. False: there is none, and nothing was done. */
#ifndef MOTH_CUDA_NVTX_H
#define MOTH_CUDA_NVTX_H
#include "cuda/rt.h"

bool moth_cuda_nvtx_push(const char *text);
bool moth_cuda_nvtx_pop(void);
bool moth_cuda_nvtx_mark(const char *text);
/* An error that says why marks do nothing, or MOTH_OK. */
MothStatus moth_cuda_nvtx_open(void);
#endif
