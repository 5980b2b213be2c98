/* Convolution on CUDA: the interface to cuDNN. */
#ifndef MOTH_CUDA_CONV_H
#define MOTH_CUDA_CONV_H
#include "kernels/cuda/table.h"
extern "C" {
#include "kernels/common/window.h"
}

/* A product, but not its bias. *done is false, and nothing was queued, if cuDNN is
 * missing or has no engine for it. */
MothStatus moth_cudnn_conv(const MothCudaRun *run, MothDType dtype, const MothConvProduct *p,
                           bool *done);
#endif
