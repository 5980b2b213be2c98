/* As much of cuFFT's interface as kernels/cuda/fft.cu uses, for the emulation: transforms on the CPU (cufft.cc). */
#ifndef MOTH_EMU_CUFFT_H
#define MOTH_EMU_CUFFT_H
#include "emu/cublaslt.h"

typedef enum {
  CUFFT_SUCCESS = 0,
  CUFFT_INVALID_PLAN = 1,
  CUFFT_ALLOC_FAILED = 2,
  CUFFT_INVALID_VALUE = 4,
  CUFFT_EXEC_FAILED = 6
} cufftResult;
typedef int cufftHandle;
enum { CUFFT_FORWARD = -1, CUFFT_INVERSE = 1 };

cufftResult cufftGetVersion(int *version);
cufftResult cufftCreate(cufftHandle *plan);
cufftResult cufftDestroy(cufftHandle plan);
cufftResult cufftSetAutoAllocation(cufftHandle plan, int on);
cufftResult cufftXtMakePlanMany(cufftHandle plan, int rank, long long *n, long long *inembed,
                                long long istride, long long idist, cudaDataType_t in,
                                long long *onembed, long long ostride, long long odist,
                                cudaDataType_t out, long long batch, size_t *workspace,
                                cudaDataType_t computed);
cufftResult cufftSetWorkArea(cufftHandle plan, void *workspace);
cufftResult cufftSetStream(cufftHandle plan, cudaStream_t stream);
cufftResult cufftXtExec(cufftHandle plan, void *in, void *out, int direction);
#endif
