/* Defaults: settings of each Lua state, and of each thread that runs none.
 *
 * | belongs to  | what                                                                                     |
 * |-------------|------------------------------------------------------------------------------------------|
 * | a Lua state | these defaults (generator, dtype, number of threads, interrupt flag), handles, hooks and |
 * |             | other functions that C holds for it, subclasses, Lua kernels of the user device; modes   |
 * |             | (no_grad, autocast, fake tensors, interceptors) and what the engine has running          |
 * | a thread    | the CUDA device and streams, the error message, a cache of small blocks, the logging of  |
 * |             | MOTH_LOGS=dispatch; these defaults and modes where it runs no Lua                        |
 * | the process | the op table with registered backends and kernels, the allocator with its counts,        |
 * |             | topics of MOTH_LOGS, the level of the CPU's kernels, settings of CUDA, MOTH_* variables  |
 *
 * docs/threads.md says the same to users. A Lua state installs its defaults in the thread that runs it,
 * whenever the thread enters moth from it; they stay until another state enters or it closes. A new thread
 * and a new state begin as a new process does: seed 42, float32, MOTH_NUM_THREADS; where the host has set
 * dtype or number of threads before it opened the state, with these. */
#ifndef MOTH_CORE_DEFAULTS_H
#define MOTH_CORE_DEFAULTS_H
#include <signal.h>

#include "core/random.h"

typedef struct MothDefaults {
  struct MothDefaults *next; /* in the list of free ones */
  MothGenerator generator;
  MothDType dtype;
  int num_threads;
  const volatile sig_atomic_t
      *interrupt; /* the host's flag, which interrupts what runs; NULL: there is none */
} MothDefaults;

/* The calling thread's; never NULL. */
MothDefaults *moth_defaults_find(void);
#ifndef __cplusplus
extern _Thread_local MothDefaults *moth_defaults_now __attribute__((tls_model("initial-exec")));
static inline MothDefaults *moth_defaults(void) {
  MothDefaults *d = moth_defaults_now;
  return __builtin_expect(d != NULL, 1) ? d : moth_defaults_find();
}
#endif

/* With the dtype and number of threads that this thread has without Lua. NULL: no memory. */
MOTH_API MothDefaults *moth_defaults_new(void);
/* Installs d in the calling thread; NULL: the thread's own. */
MOTH_API void moth_defaults_use(MothDefaults *d);
/* Another thread may still have d installed: its memory stays readable and is reused. */
MOTH_API void moth_defaults_free(MothDefaults *d);
#endif
