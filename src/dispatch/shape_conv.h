/* The numbers of convolution and pooling, read from arguments in one place for the kernels of all devices. */
#ifndef MOTH_DISPATCH_SHAPE_CONV_H
#define MOTH_DISPATCH_SHAPE_CONV_H
#include "moth.h"

/* Images (n, c, h, w), weight (k, c / groups, kh, kw), results (n, k, oh, ow). Pairs are (y, x). */
typedef struct MothConv {
  int64_t n, c, h, w, k, oh, ow, groups;
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  bool batched; /* else tensors have no dimension n */
} MothConv;

/* conv2d of an input and a weight of these shapes. */
MOTH_API MothStatus moth_conv_geometry(int ndim, const int64_t *input, int nweight,
                                       const int64_t *weight, MothValue stride, MothValue padding,
                                       MothValue dilation, int64_t groups, MothConv *g);

/* Windows over (planes, h, w), giving (planes, oh, ow). */
typedef struct MothPool {
  int64_t planes, h, w, oh, ow;
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  bool adaptive, include_pad;
  int64_t divisor; /* 0: the window's size */
} MothPool;

/* What a pooling op of src/ops/conv.lua says; `ndim` and `input` are of its input (the size that is
 * asked for, of a backward op). */
MOTH_API MothStatus moth_pool_geometry(const MothCall *c, int ndim, const int64_t *input,
                                       MothPool *p);
#endif
