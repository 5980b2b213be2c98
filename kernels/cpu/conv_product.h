/* conv2d with 1x1 kernels as matrix products: called by kernels/cpu/conv.c. */
#ifndef MOTH_CPU_CONV_PRODUCT_H
#define MOTH_CPU_CONV_PRODUCT_H
#include "core/tensor.h"
#include "kernels/common/window.h"

/* Whether the functions below can be used, and are worth it. */
bool moth_conv_is_product(const MothConv *g);

/* As conv.c's: float32 or float64, row-major. backward: src is the results' gradient, out the input's.
 * bias: (k), or NULL. */
void moth_conv_product(const MothConv *g, MothDType dtype, bool backward, const MothTensor *weight,
                       const MothTensor *bias, const MothTensor *src, MothTensor *out);
/* The weight's derivative. Error: no memory. */
MothStatus moth_conv_product_weight(const MothConv *g, MothDType dtype, const MothTensor *gy,
                                    const MothTensor *x, MothTensor *out);
#endif
