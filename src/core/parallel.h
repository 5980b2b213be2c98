/* Threads: OpenMP with moth's own number of threads, so that the host's omp_set_num_threads stays unchanged.
 * And Ctrl-C in the middle of an op.
 *
 * Where the host has a flag that says "stop" (defaults.h), the dispatcher installs it as moth_stop around
 * kernels that fill fresh results. moth_parallel_for then cuts long ranges into parts of about 10 ms and
 * checks the flag between them; kernels whose units take longer check it themselves, by moth_stopped. Once the
 * flag is set, this and all later loops of the kernel compute nothing more, and the dispatcher releases its
 * unfinished results. So a kernel must check the flag itself, and return, only where it uses values of one loop
 * as positions or sizes outside of loops. Kernels that write in place, to `out` or to parameters never see the
 * flag: nothing is left half updated. */
#ifndef MOTH_CORE_PARALLEL_H
#define MOTH_CORE_PARALLEL_H
#include <signal.h>

#include "moth.h"

typedef void (*MothRange)(void *ctx, int64_t begin, int64_t end);

/* Calls fn on ranges that cover [0, n), each a multiple of `grain` long but the last. Results must not
 * depend on where ranges end: sums use fixed chunks instead (kernels/cpu). */
MOTH_API void moth_parallel_for(int64_t n, int64_t grain, MothRange fn, void *ctx);

/* The same for functions that the program has written, which write where it says: while the host's flag is not set, one
 * grain after the other, and more where these are short. False: it was set, and ranges were left out. */
MOTH_API bool moth_parallel_for_launch(int64_t n, int64_t grain, MothRange fn, void *ctx);

/* The number in MOTH_NUM_THREADS, else in OMP_NUM_THREADS, else the machine's. */
int moth_num_threads_at_start(void);

/* The flag that stops this thread's kernel, or NULL. In parallel loops it is the flag of the thread that
 * started the loop. */
#ifndef __cplusplus
extern _Thread_local const volatile sig_atomic_t *moth_stop
    __attribute__((tls_model("initial-exec")));
static inline bool moth_stopped(void) {
  const volatile sig_atomic_t *flag = moth_stop;
  return __builtin_expect(flag && *flag, 0);
}
#endif
/* The host's flag, which code that waits on this thread must check; NULL: there is none. */
MOTH_API const volatile sig_atomic_t *moth_interrupt_flag(void);
/* Sets the message of an interrupt and returns its status. */
MOTH_API MothStatus moth_interrupted(void);
#endif
