/* The caching allocator of host memory. Blocks are 64-byte aligned; sizes are given back at free, so
 * that a block carries no header. Safe from any thread; a block may be freed by another thread. */
#ifndef MOTH_CORE_ALLOC_H
#define MOTH_CORE_ALLOC_H
#include "moth.h"

/* NULL when there is no memory. n = 0 gives a block of the smallest size. */
MOTH_API void *moth_alloc(size_t n);
MOTH_API void moth_free(void *p, size_t n);

/* True under MOTH_GUARD=1: every block ends at a protected page, and nothing is cached. */
bool moth_alloc_guarded(void);
/* Live bytes now: cheap enough to ask at every op (exact to 64 KB per thread). */
MOTH_API int64_t moth_alloc_live(void);
#endif
