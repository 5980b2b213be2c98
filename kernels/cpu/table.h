/* The typed kernels of the CPU: one table per dtype and ISA level, filled by the generated files
 * build/gen/kernels/<dtype>_<isa>.c, which include kernels/cpu/typed/ (all of it, once per dtype). */
#ifndef MOTH_CPU_TABLE_H
#define MOTH_CPU_TABLE_H
#include <stdbool.h>
#include <stdint.h>

#include "moth_dtypes.h"

/* A number for a typed kernel: `d` for float dtypes, `i` for the others. */
typedef union MothParam {
  double d;
  int64_t i;
} MothParam;

/* p[0] is written, p[1..] are read; strides in bytes. */
typedef void (*MothLoop)(char **p, const int64_t *stride, int64_t n, const MothParam *params);

/* How a reduction reads: `rows` runs of `n` elements, element step and row step in bytes. */
typedef enum MothReduceOp {
  MOTH_REDUCE_SUM,
  MOTH_REDUCE_PROD,
  MOTH_REDUCE_MAX,
  MOTH_REDUCE_MIN,
  MOTH_REDUCE_ANY,
  MOTH_REDUCE_ALL,
  MOTH_NREDUCE
} MothReduceOp;

enum { MOTH_ISA_GENERIC, MOTH_ISA_AVX2, MOTH_ISA_AVX512, MOTH_NISAS };

#include "kernels/cpu/typed/members.h"

typedef struct MothKernels {
  const MothLoop *pointwise;        /* by MothOp.pointwise; NULL where the op has not this dtype */
  MothLoop copy_from[MOTH_NDTYPES]; /* p[0] of this dtype, p[1] of that one */
  MOTH_TYPED_MEMBERS                /* one function pointer for each structured kernel */
} MothKernels;

extern const MothKernels *const moth_kernels[MOTH_NISAS][MOTH_NDTYPES]; /* generated */
extern int moth_isa; /* the level in use: kernels/cpu/level.c */

static inline const MothKernels *moth_cpu_kernels(int dtype) {
  return moth_kernels[moth_isa][dtype];
}
#endif
