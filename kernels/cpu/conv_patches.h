/* Convolutions by patches that do not overlap, as products of matrices: called by kernels/cpu/conv.c. */
#ifndef MOTH_CPU_CONV_PATCHES_H
#define MOTH_CPU_CONV_PATCHES_H
#include "core/tensor.h"
#include "kernels/common/window.h"

/* Whether this is the fastest way: by the shape alone. */
bool moth_conv_suits_patches(const MothConv *g);

/* Any of the three products, of float32 or float64. Error: no memory. */
MothStatus moth_conv_by_patches(const MothConvProduct *p, MothDType dtype);
#endif
