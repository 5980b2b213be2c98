/* Places of buffers in one arena, for the plans of graphs (plan_memory.c) and of the edge library (edge/plan.c). Nothing is
 * allocated. */
#ifndef MOTH_CORE_ARENA_H
#define MOTH_CORE_ARENA_H
#include "core/tensor.h"

enum { MOTH_ARENA_ALIGN = 64 };

/* The steps from first to last use its bytes, which are a multiple of MOTH_ARENA_ALIGN. */
typedef struct MothArenaBuffer {
  int64_t bytes, offset;
  uint32_t first, last;
  bool apart; /* of a plan: it is not in the arena */
} MothArenaBuffer;

static inline int64_t moth_arena_bytes(int64_t bytes) {
  return (int64_t)(((uint64_t)bytes + MOTH_ARENA_ALIGN - 1) / MOTH_ARENA_ALIGN * MOTH_ARENA_ALIGN);
}
/* Sets the offsets of n buffers, which are elements of one array: those that are alive at the same time share no bytes. It
 * sorts `list`, and writes n pointers to `placed`. Returns the arena's bytes; -1: they are too many to be counted. */
int64_t moth_arena_place(MothArenaBuffer **list, MothArenaBuffer **placed, uint32_t n);
/* Whether t, an operand `offset` elements into a buffer of so many bytes, is all of it, row-major, as `result` will be: each
 * element is read where the result's is written. */
bool moth_arena_may_replace(const MothTensor *t, int64_t offset, int64_t bytes,
                            const MothTensor *result);
#endif
