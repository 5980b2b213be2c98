/* The kernels of the CPU that are compiled once for each dtype and instruction set: the loops of pointwise ops (MothOp.loops)
 * and the typed kernels, one table for each dtype and set, filled by generated files (src/ops/kernels.lua). */
#ifndef MOTH_CPU_TABLE_H
#define MOTH_CPU_TABLE_H
#include "kernels/cpu/loop.h"
#include "moth_dtypes.h"
#include "typed_kernels.h"

typedef struct MothKernels {
  const MothLoop *copy_from; /* by dtype: p[0] of this dtype, p[1] of that one */
  MOTH_TYPED_MEMBERS         /* a function pointer for each kernel of kernels/cpu/typed */
} MothKernels;

extern const MothKernels
    *const moth_kernels[MOTH_NISAS][MOTH_NDTYPES]; /* generated; NULL for complex dtypes */

static inline const MothKernels *moth_cpu_kernels(int dtype) {
  return moth_kernels[moth_isa][dtype];
}
/* The loop of a pointwise op for a dtype that it has. */
static inline MothLoop moth_cpu_loop(const MothLoops *loops, int dtype) {
  if (dtype < MOTH_INT8)
    return loops->of_float[moth_isa][dtype];
  if (dtype < MOTH_UINT16)
    return loops->of_int[moth_isa][dtype - MOTH_INT8];
  return dtype < MOTH_COMPLEX64 ? loops->of_uint[dtype - MOTH_UINT16]
                                : loops->of_complex[moth_isa][dtype - MOTH_COMPLEX64];
}
#endif
