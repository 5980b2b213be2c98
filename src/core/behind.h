/* What comes behind a kernel: work on its result, range by range, while that is in the cache. Who calls a kernel, and then
 * computes something of each element of its result (graph/blocks.h), says so here; a kernel that makes its result in
 * pieces takes it, and runs it for each range that it has finished, on any thread. A kernel that knows nothing of this
 * leaves it to the caller. */
#ifndef MOTH_CORE_BEHIND_H
#define MOTH_CORE_BEHIND_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct MothBehind {
  void (*run)(void *ctx, int64_t begin, int64_t end); /* elements, row-major; each once */
  void *ctx;
  bool taken;
} MothBehind;

extern _Thread_local MothBehind *moth_behind;

/* For the kernel of an op, at its beginning. NULL: nothing comes behind it. */
static inline const MothBehind *moth_behind_take(void) {
  MothBehind *b = moth_behind;
  moth_behind = NULL;
  if (b)
    b->taken = true;
  return b;
}
#endif
