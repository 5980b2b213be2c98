/* Whole slices along a dimension (index.c). */
#ifndef MOTH_CPU_SLICES_H
#define MOTH_CPU_SLICES_H
#include "core/tensor.h"

/* out, which is row-major, takes the slices of self along dimension `dim` that the vector `index` names, from index_base. */
MothStatus moth_cpu_select_slices(const MothTensor *self, int dim, const MothTensor *index,
                                  int64_t index_base, MothTensor *out);
#endif
