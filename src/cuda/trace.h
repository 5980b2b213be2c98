/* What devices do while a profile is recorded (src/profile): kernels, copies and fills with their times and the call
 * that launched each, by NVIDIA's CUPTI; where that is missing, a pair of events around each call. */
#ifndef MOTH_CUDA_TRACE_H
#define MOTH_CUDA_TRACE_H
#include "cuda/runtime.h"

MothStatus moth_cuda_trace_start(const char **by_events);
void moth_cuda_trace_begin(uint64_t id, int device);
void moth_cuda_trace_end(uint64_t id, bool leaf);
MothStatus moth_cuda_trace_stop(MothCudaSeen seen, void *ctx);
#endif
