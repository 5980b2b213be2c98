/* Convolutions of small images as products with a matrix of columns: called by kernels/cpu/conv.c. */
#ifndef MOTH_CPU_CONV_COLUMNS_H
#define MOTH_CPU_CONV_COLUMNS_H
#include "core/tensor.h"
#include "kernels/common/window.h"

/* Whether this is the fastest way: by the shape alone. */
bool moth_conv_suits_columns(const MothConvProduct *p);

/* Any of the three products, of float32 or float64. Error: no memory. */
MothStatus moth_conv_by_columns(const MothConvProduct *p, MothDType dtype);
#endif
