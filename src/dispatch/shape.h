/* Shape arithmetic that rules and composites share. */
#ifndef MOTH_DISPATCH_SHAPE_H
#define MOTH_DISPATCH_SHAPE_H
#include "core/tensor.h"

/* `size` with its -1 replaced, checked against t's number of elements. */
MothStatus moth_infer_size(const MothTensor *t, int n, const int64_t *size, int64_t *out);
/* Strides by which `shape` is a view of t; false if there are none. */
bool moth_view_strides(const MothTensor *t, int n, const int64_t *shape, int64_t *stride);
#endif
