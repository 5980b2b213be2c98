/* The block machine: a group of pointwise calls runs in blocks of elements, through the loops of the ops, so that what lies
 * between them stays in the cache. Each element is computed as the calls one by one compute it, to the bit. */
#ifndef MOTH_GRAPH_BLOCKS_H
#define MOTH_GRAPH_BLOCKS_H
#include "graph/plan_steps.h"

typedef struct MothBlocks MothBlocks;
/* Limits: calls of a group, what they read and write, instructions that they become. */
enum { MOTH_BLOCKS_CALLS = 64, MOTH_BLOCKS_VALUES = 64, MOTH_BLOCKS_MOST = 512 };

/* Whether the call may be one of a group. */
bool moth_blocks_takes(const MothPlan *p, const MothPlanCall *c);
/* Calls of p, in program order, with results of one shape. The results of the group and what it reads become those of
 * step s. `kept`: by value, whether it is a result. */
MothStatus moth_blocks_new(const MothPlan *p, const uint32_t *calls, uint32_t ncalls,
                           const bool *kept, MothPlanStep *s);
void moth_blocks_free(MothBlocks *b); /* NULL: nothing */
/* Whether result k may have the memory of operand r, which has its size, shape and itemsize. */
bool moth_blocks_may_replace(const MothBlocks *b, uint32_t k, uint32_t r);
/* addresses: first elements of results, then operands; numbers: of the graph, NULL as recorded. */
void moth_blocks_run(const MothBlocks *b, char *const *addresses, const MothValue *numbers);
/* The same behind a call that makes one of the operands, row-major: range by range where its kernel does that (core/behind.h). */
MothStatus moth_blocks_run_behind(const MothBlocks *b, char *const *addresses,
                                  const MothValue *numbers, MothStatus (*call)(void *ctx),
                                  void *ctx);
/* The number of value `id` among the operands; UINT32_MAX: it is none, or not row-major. */
uint32_t moth_blocks_operand(const MothBlocks *b, uint32_t id);
#endif
