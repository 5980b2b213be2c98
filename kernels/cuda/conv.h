/* Convolution and pooling on CUDA: the interface to cuDNN, and arguments of the typed kernels of typed/conv.cuh
 * and typed/pool.cuh. */
#ifndef MOTH_CUDA_CONV_H
#define MOTH_CUDA_CONV_H
#include "cuda/cuda.h"
extern "C" {
#include "kernels/common/window.h"
}

/* The three products of a convolution; their operands a, b are weight, input; weight, gradient; gradient, input. */
typedef enum MothConvMode { MOTH_CONV_FORWARD, MOTH_CONV_INPUT, MOTH_CONV_WEIGHT } MothConvMode;

/* One of these products, without bias, of row-major tensors. *done is false, and nothing was queued, if cuDNN is
 * missing or has no engine for it. */
MothStatus moth_cudnn_conv(int device, cudaStream_t stream, MothConvMode mode, MothDType dtype,
                           const MothConv *g, const void *a, const void *b, void *out, bool *done);
#endif
