/* Convolution by cuDNN. */
#ifndef MOTH_CUDA_CONV_H
#define MOTH_CUDA_CONV_H
#include "kernels/cuda/table.h"

/* A product of convolution, without bias, of row-major tensors: operands as in MothConvMode. *done is
 * false, and nothing was queued, where cuDNN is missing or has no engine for it. */
MothStatus moth_cudnn_conv(int device, cudaStream_t stream, MothConvMode mode, MothDType dtype,
                           const MothConv *g, const void *a, const void *b, void *out, bool *done);
#endif
