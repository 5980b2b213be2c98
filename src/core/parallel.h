/* Threads: OpenMP, with moth's own count, so that nobody's omp_set_num_threads is touched. */
#ifndef MOTH_CORE_PARALLEL_H
#define MOTH_CORE_PARALLEL_H
#include "moth.h"

typedef void (*MothRange)(void *ctx, int64_t begin, int64_t end);

/* Calls fn on ranges that cover [0, n), each a multiple of `grain` long but the last. What a range
 * computes must not depend on where ranges end; sums go over fixed chunks instead (kernels/cpu). */
MOTH_API void moth_parallel_for(int64_t n, int64_t grain, MothRange fn, void *ctx);
#endif
