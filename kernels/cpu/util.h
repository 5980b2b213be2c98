/* What the CPU kernels share: row-major and converted copies, and index tensors as int64 positions. */
#ifndef MOTH_CPU_UTIL_H
#define MOTH_CPU_UTIL_H
#include "core/dtype.h"
#include "core/tensor.h"
#include "dispatch/dispatch.h"
#include "kernels/common/util.h"
#include "kernels/cpu/table.h"

/* dst = src, broadcast to dst's shape and converted to its dtype. They must not partly overlap. */
MOTH_API void moth_cpu_copy(MothTensor *dst, const MothTensor *src);
/* One part of a complex tensor (0 real, 1 imaginary), or both as a last dimension (2): a header without references. */
MOTH_API void moth_cpu_see_part(const MothTensor *t, int which, MothTensor *out);
/* dst = src, which lie on different devices, one of them the CPU. */
MothStatus moth_cpu_copy_across(MothTensor *dst, MothTensor *src, bool non_blocking);
/* t itself (retained) if it is row-major, else a row-major copy. The caller releases *out. */
MothStatus moth_cpu_contiguous(const MothTensor *t, MothTensor **out);
/* The same in another dtype. */
MothStatus moth_cpu_contiguous_as(const MothTensor *t, MothDType dtype, MothTensor **out);
/* The same, broadcast to a shape. */
MothStatus moth_cpu_broadcast_as(const MothTensor *t, MothDType dtype, int ndim,
                                 const int64_t *shape, MothTensor **out);

/* A tensor for sums into `out`: with `add` for float16 and bfloat16, which would round each addition, a new
 * float32 tensor of its shape; else out itself (retained). The caller releases *sums. */
MothStatus moth_cpu_sums_as(MothTensor *out, bool add, MothTensor **sums);

/* The values of an integer tensor as positions from 0, row-major (t->numel of them). Error: a value
 * outside of base .. size - 1 + base, reported as written; `what` is "index" or "class". `dim` (from 0; -1: not
 * reported) is the dimension that they point into. Free with moth_cpu_index_free. */
MothStatus moth_cpu_index(const MothTensor *t, int64_t base, int64_t size, int dim,
                          const char *what, int64_t **out);
/* The same without a copy where t is row-major int64: positions from base. The caller releases *out. */
MothStatus moth_cpu_index_checked(const MothTensor *t, int64_t base, int64_t size, int dim,
                                  const char *what, MothTensor **out);
/* The error of a value out of range. */
MothStatus moth_cpu_index_fail(const char *what, int64_t value, int64_t base, int64_t size,
                               int dim);
void moth_cpu_index_free(const MothTensor *t, int64_t *index);

/* The grain for n random numbers, at half a nanosecond each: threads are worth it above 16384; smaller chunks then
 * balance them. A multiple of 4, as random.h requires. */
static inline int64_t moth_cpu_random_grain(int64_t n) {
  return n <= 16384 ? 16384 : 1024;
}

/* The grain for units of `cost` elements: the least number of units that is worth a thread. */
static inline int64_t moth_cpu_grain(int64_t cost) {
  int64_t grain = 32768 / (cost > 0 ? cost : 1);
  return grain > 0 ? grain : 1;
}

/* The grain for tasks of `flops` each: some 10 us of matrix products. */
static inline int64_t moth_cpu_flops_grain(double flops) {
  return 1 + (int64_t)(5e5 / (flops + 1));
}

#endif
