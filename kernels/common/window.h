/* The numbers of convolution and pooling, and the arguments of convolution's kernels, on every device. They are read in one
 * place from arguments that the shape rules have checked. */
#ifndef MOTH_COMMON_WINDOW_H
#define MOTH_COMMON_WINDOW_H
#include "moth.h"

/* Images (n, c, h, w), weight (k, c / groups, kh, kw), results (n, k, oh, ow). Pairs are (y, x). */
typedef struct MothConv {
  int64_t n, c, h, w, k, oh, ow, groups;
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  bool batched; /* else tensors have no dimension n */
} MothConv;

/* The three products of a convolution; their operands a, b are weight, input; weight, gradient; gradient, input. */
typedef enum MothConvMode { MOTH_CONV_FORWARD, MOTH_CONV_INPUT, MOTH_CONV_WEIGHT } MothConvMode;

/* One of them, of row-major tensors. im2col and col2im have `b` alone. */
typedef struct MothConvProduct {
  MothConvMode mode;
  MothConv g;
  const void *a, *b;
  const void *bias; /* (k), of the forward product; or NULL */
  void *out;
  const struct MothBehind *behind; /* the forward product (core/behind.h); NULL: nothing */
} MothConvProduct;

/* conv2d of an input of this shape, (n,) c, h, w, with a weight of shape k, c / groups, kh, kw. */
MOTH_API void moth_conv_geometry(int ndim, const int64_t *input, const int64_t *weight,
                                 MothValue stride, MothValue padding, MothValue dilation,
                                 int64_t groups, MothConv *g);
/* The windows of an image: as those of a convolution with one result. */
MOTH_API void moth_columns_geometry(const MothTensor *image, MothValue kernel, MothValue stride,
                                    MothValue padding, MothValue dilation, MothConv *g);

/* Windows over (planes, h, w), giving (planes, oh, ow). */
typedef struct MothPool {
  int64_t planes, h, w, oh, ow;
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  bool adaptive, include_pad;
  int64_t divisor; /* 0: the window's size */
} MothPool;

/* What a pooling op of src/ops/conv.lua says; `ndim` and `input` are of its input (the size that is
 * asked for, of a backward op). */
MOTH_API void moth_pool_geometry(const MothCall *c, int ndim, const int64_t *input, MothPool *p);
#endif
