/* conv2d with 1x1 kernels as matrix products: called by kernels/cpu/conv.c. */
#ifndef MOTH_CPU_CONV_PRODUCT_H
#define MOTH_CPU_CONV_PRODUCT_H
#include "core/tensor.h"
#include "kernels/common/window.h"

/* Whether the functions below can be used, and are worth it. */
bool moth_conv_is_product(const MothConv *g);

/* A forward or input product, of float32 or float64. */
void moth_conv_product(const MothConvProduct *p, MothDType dtype);
/* A weight product. Error: no memory. */
MothStatus moth_conv_product_weight(const MothConvProduct *p, MothDType dtype);

/* out[i] = parts[i] + parts[n + i] + ..., in this order; out may be the first part. */
void moth_conv_join(const void *parts, int64_t count, void *out, int64_t n, MothDType dtype);
#endif
