/* Convolution and pooling on CUDA: the interface to cuDNN, and arguments of the typed kernels of typed/conv.cuh
 * and typed/pool.cuh. */
#ifndef MOTH_CUDA_CONV_H
#define MOTH_CUDA_CONV_H
#include "cuda/cuda.h"
extern "C" {
#include "dispatch/shape_conv.h"
}

/* The three products of a convolution; their operands a, b are weight, input; weight, gradient; gradient, input. */
typedef enum MothConvMode { MOTH_CONV_FORWARD, MOTH_CONV_INPUT, MOTH_CONV_WEIGHT } MothConvMode;

#define MOTH_CUDA_CONV_LIST(X)                                                                     \
  X(conv_simt, MothStatus, cudaStream_t stream, int mode, const MothConv *g, const void *a,        \
    const void *b, const void *bias, void *out)                                                    \
  X(conv_bias, MothStatus, cudaStream_t stream, const MothConv *g, void *out, const void *bias)    \
  X(im2col, MothStatus, cudaStream_t stream, const MothConv *g, void *out, const void *in)         \
  X(col2im, MothStatus, cudaStream_t stream, const MothConv *g, void *out, const void *in)         \
  X(max_pool, MothStatus, cudaStream_t stream, const MothPool *p, const void *in, void *out,       \
    int64_t *at, int64_t base)                                                                     \
  X(max_pool_backward, MothStatus, cudaStream_t stream, const MothPool *p, const void *g,          \
    const int64_t *at, int64_t base, void *out, MothFault *fault, int op)                          \
  X(avg_pool, MothStatus, cudaStream_t stream, const MothPool *p, const void *in, void *out)       \
  X(avg_pool_backward, MothStatus, cudaStream_t stream, const MothPool *p, const void *g, void *out)

/* One of these products, without bias, of row-major tensors. *done is false, and nothing was queued, if cuDNN is
 * missing or has no engine for it. */
MothStatus moth_cudnn_conv(int device, cudaStream_t stream, MothConvMode mode, MothDType dtype,
                           const MothConv *g, const void *a, const void *b, void *out, bool *done);
#endif
