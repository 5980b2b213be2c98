/* CUDA C that is compiled while the program runs, by NVRTC: users' kernels and generated ones. */
#ifndef MOTH_CUDA_RTC_H
#define MOTH_CUDA_RTC_H
#include "cuda/runtime.h"

MothStatus moth_cuda_program_new(int device, const MothCudaSource *source, MothCudaProgram **out);
void moth_cuda_program_retain(MothCudaProgram *p);
void moth_cuda_program_free(MothCudaProgram *p);
MothStatus moth_cuda_program_kernel(MothCudaProgram *p, int i, MothCudaFunction **out);
MothStatus moth_cuda_function_launch(MothCudaFunction *f, int device, const unsigned *grid,
                                     const unsigned *block, size_t shared, void **args);
MothStatus moth_cuda_function_occupancy(MothCudaFunction *f, int device, int threads, size_t shared,
                                        int *blocks);
#endif
