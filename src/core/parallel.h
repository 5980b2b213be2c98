/* Threads: OpenMP, with moth's own count, so that nobody's omp_set_num_threads is touched. And Ctrl-C in
 * the middle of an op.
 *
 * Where the host has a flag that says "stop" (defaults.h), the dispatcher installs it as moth_stop around
 * kernels that fill fresh results. moth_parallel_for then cuts long ranges into parts of about 10 ms and
 * looks at the flag between them; kernels whose units take longer look themselves, by moth_stopped. Once the
 * flag is set, what is left is not computed, in this and all later loops of the kernel: its results are
 * released by the dispatcher, whatever they hold. So a kernel has to look itself, and return, only where it
 * uses values of one loop as positions or sizes outside of loops. Kernels that write in place, to `out` or
 * to parameters never see the flag: nothing is left half updated. */
#ifndef MOTH_CORE_PARALLEL_H
#define MOTH_CORE_PARALLEL_H
#include <signal.h>

#include "moth.h"

typedef void (*MothRange)(void *ctx, int64_t begin, int64_t end);

/* Calls fn on ranges that cover [0, n), each a multiple of `grain` long but the last. What a range
 * computes must not depend on where ranges end; sums go over fixed chunks instead (kernels/cpu). */
MOTH_API void moth_parallel_for(int64_t n, int64_t grain, MothRange fn, void *ctx);

/* What MOTH_NUM_THREADS, else OMP_NUM_THREADS, else the machine says. */
int moth_num_threads_at_start(void);

/* The flag that stops the kernel that runs on this thread; NULL: none does. In parallel loops it is that of
 * the thread that started the loop. */
MOTH_API const volatile sig_atomic_t **moth_stop_place(void);
#ifndef __cplusplus
extern _Thread_local const volatile sig_atomic_t *moth_stop
    __attribute__((tls_model("initial-exec")));
static inline bool moth_stopped(void) {
  const volatile sig_atomic_t *flag = moth_stop;
  return __builtin_expect(flag && *flag, 0);
}
#endif
/* The status, with its message. */
MOTH_API MothStatus moth_interrupted(void);
#endif
