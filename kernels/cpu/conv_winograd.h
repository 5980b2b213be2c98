/* Convolutions with 3x3 kernels by Winograd's tiles: called by kernels/cpu/conv.c. */
#ifndef MOTH_CPU_CONV_WINOGRAD_H
#define MOTH_CPU_CONV_WINOGRAD_H
#include "core/tensor.h"
#include "kernels/common/window.h"

/* Computes a forward product, if its weight is a constant whose packed form is kept (core/kept.h), and its sizes are worth
 * it: *done. Error: no memory. */
MothStatus moth_conv_by_winograd(const MothConvProduct *p, MothDType dtype, bool *done);
#endif
