/* The allocator of the edge library. What kernels allocate in a run lies in the arena, one block behind the other; a block is
 * taken back if it is the last one, all are between two calls. Where the model is measured, blocks come from the heap, with
 * the place in front that they would have. */
#include "core/alloc.h"

#include <stdlib.h>

#include "core/error.h"
#include "core/history.h"
#include "edge/ops.h"

enum { ALIGN = 64 };

typedef enum Mode { HEAP, MEASURE, ARENA } Mode;

static _Thread_local struct {
  Mode mode;
  char *base;
  size_t n, top, most;
} scratch;

bool (*moth_alloc_collect)(void);
void (*moth_alloc_watch)(const void *p, int64_t bytes, MothDevice device);

static size_t round_up(size_t n) {
  return n ? (n + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
}

static void *from_heap(size_t n, size_t place) {
  size_t *block = n < SIZE_MAX - 2 * ALIGN ? aligned_alloc(ALIGN, round_up(n) + ALIGN) : NULL;
  if (!block)
    return NULL;
  *block = place;
  return (char *)block + ALIGN;
}

void *moth_alloc(size_t n) {
  if (scratch.mode == HEAP || n > SIZE_MAX / 2)
    return from_heap(n, 0);
  size_t place = scratch.top, bytes = round_up(n);
  void *p = scratch.mode == MEASURE ? from_heap(n, place) : scratch.base + place;
  if (!p || (scratch.mode == ARENA && bytes > scratch.n - place))
    return NULL;
  scratch.top += bytes;
  scratch.most = scratch.top > scratch.most ? scratch.top : scratch.most;
  return p;
}

void moth_free(void *p, size_t n) {
  if (!p)
    return;
  size_t place = scratch.mode == ARENA ? (size_t)((char *)p - scratch.base)
                                       : ((size_t *)((char *)p - ALIGN))[0];
  if (scratch.mode != HEAP && place + round_up(n) == scratch.top)
    scratch.top = place;
  if (scratch.mode != ARENA)
    free((char *)p - ALIGN);
}

MothStatus moth_no_memory(size_t bytes) {
  return bytes ? moth_fail(MOTH_ERR_MEMORY, "out of memory: could not allocate %zu bytes", bytes)
               : moth_fail(MOTH_ERR_MEMORY, "out of memory");
}

void moth_scratch_begin(void *base, size_t n) {
  scratch.mode = base ? ARENA : MEASURE;
  scratch.base = base;
  scratch.n = n;
  scratch.top = scratch.most = 0;
}

void moth_scratch_reset(void) {
  scratch.top = 0;
}

size_t moth_scratch_end(void) {
  scratch.mode = HEAP;
  return scratch.most;
}

/* The core asks for these: there is no cache, no limit, no record. */
void moth_alloc_discard(void *p, size_t n) {
  (void)p;
  (void)n;
}
void moth_alloc_take_up(void *p, size_t n) {
  (void)p;
  (void)n;
}
bool moth_alloc_guarded(void) {
  return false;
}
bool moth_alloc_failed_by_order(void) {
  return true;
}
int64_t moth_alloc_limit(void) {
  return 0;
}
void moth_memory_empty_cache(void) {}
void moth_memory_stats(MothMemStats *out) {
  *out = (MothMemStats){0};
}
void moth_history_holders(char *text, size_t n) {
  if (n)
    *text = 0;
}
void moth_history_mark(const void *p, int64_t nbytes) {
  (void)p;
  (void)nbytes;
}
