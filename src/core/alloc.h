/* The caching allocator of host memory. Blocks are 64-byte aligned; the caller passes the size to
 * moth_free, so that a block has no header. Any thread; a block may be freed by another thread. */
#ifndef MOTH_CORE_ALLOC_H
#define MOTH_CORE_ALLOC_H
#include "moth.h"

/* NULL when there is no memory. n = 0 gives a block of the smallest size. */
MOTH_API void *moth_alloc(size_t n);
MOTH_API void moth_free(void *p, size_t n);
/* The error of an allocation of so many bytes that failed; 0: of the last one of moth_alloc that failed on this thread. */
MOTH_API MothStatus moth_no_memory(size_t bytes);
/* Returns the memory of a block to the system, as far as it is whole pages; the block keeps its address, its bytes
 * are lost. moth_alloc_take_up must be called before it is written to or freed. */
void moth_alloc_discard(void *p, size_t n);
void moth_alloc_take_up(void *p, size_t n);

/* Returns to the system a half of the large cached blocks that nobody has taken since the last call, as long as more than
 * `keep` bytes are cached. */
MOTH_API void moth_alloc_trim(int64_t keep);

/* True under MOTH_GUARD=1: every block ends at a protected page, and nothing is cached. */
bool moth_alloc_guarded(void);
/* Live bytes, those of other devices included: cheap enough for every op (exact to 64 KB per thread). */
MOTH_API int64_t moth_alloc_live(void);
/* For device allocators: counts bytes that they allocate (or free); whether this allocation must fail for
 * moth_memory_fail_at. */
MOTH_API void moth_alloc_count_device(int64_t bytes);
MOTH_API bool moth_alloc_must_fail(void);
/* Set while allocations are recorded (history.c): called when a block has been allocated (bytes > 0) and before it is freed
 * (bytes < 0), on any thread, with no lock held. moth_alloc_set_watch changes it. */
MOTH_API extern void (*moth_alloc_watch)(const void *p, int64_t bytes, MothDevice device);
MOTH_API void moth_alloc_set_watch(void (*watch)(const void *p, int64_t bytes, MothDevice device));
/* Whether this thread's last allocation failed since moth_memory_fail_at said so. */
bool moth_alloc_failed_by_order(void);
/* An allocation of host memory that would bring the live bytes above the limit fails; 0: no limit. Exact to 64 KB for
 * each other thread. Returns the former limit. */
MOTH_API int64_t moth_alloc_set_limit(int64_t bytes);
MOTH_API int64_t moth_alloc_limit(void);
/* Set by the binding: runs the garbage collector of this thread's host language; false where there is none. Device
 * allocators call it before they fail, with no lock held. */
MOTH_API extern bool (*moth_alloc_collect)(void);
#endif
