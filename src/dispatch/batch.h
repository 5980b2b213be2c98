/* Batches: tensors that stand for each of a batch (moth.func.vmap).
 *
 * A batched tensor is a tensor of the shape that one element has: a view of element 0 that carries the physical tensor,
 * whose first dimension is that of the batch. Shape rules, autograd and formulas see this shape. The step of the dispatcher
 * below Autograd replaces a call with batched tensors by one with physical tensors (batch_rules.c), so that what is not
 * batched is computed once.
 *
 * Each vmap has a level, a number that grows. A physical tensor may be batched itself, by lower levels: the levels of a
 * tensor are sorted, the highest outermost. A call is replaced level by level, the highest among its tensors first. */
#ifndef MOTH_DISPATCH_BATCH_H
#define MOTH_DISPATCH_BATCH_H
#include "dispatch/dispatch.h"

typedef enum MothRandomness {
  MOTH_RANDOM_ERROR,
  MOTH_RANDOM_SAME,
  MOTH_RANDOM_DIFFERENT
} MothRandomness;

/* An open vmap of a thread. */
typedef struct MothVmap {
  MothFrame frame;
  uint64_t level, outer_level;
  int64_t size;
  uint8_t randomness; /* MothRandomness */
} MothVmap;

/* What a batched tensor carries. */
typedef struct MothBatch {
  MothCarried carried;
  MothTensor *physical; /* without history */
  uint64_t level;
} MothBatch;

static inline const MothBatch *moth_batch_of(const MothTensor *t) {
  return t->keys & MOTH_KEY_BATCH ? (const MothBatch *)t->carried : NULL;
}
/* The highest level of t; 0: it is not batched. */
static inline uint64_t moth_batch_level(const MothTensor *t) {
  const MothBatch *b = moth_batch_of(t);
  return b ? b->level : 0;
}
/* The values of all elements of all batches of t, for a question about them together; borrowed. */
static inline MothTensor *moth_batch_values(MothTensor *t) {
  for (const MothBatch *b; (b = moth_batch_of(t)) != NULL;)
    t = b->physical;
  return t;
}
/* Whether t is batched at this level; *size: how many elements. */
bool moth_batch_has(const MothTensor *t, uint64_t level, int64_t *size);

MOTH_API MothStatus moth_vmap_open(int64_t size, MothRandomness randomness, uint64_t *level);
MOTH_API void moth_vmap_close(uint64_t level); /* the innermost */
/* The open vmap of a level; NULL: it is closed. */
MOTH_API const MothVmap *moth_vmap_find(uint64_t level);

/* physical with its dimension `dim` as the batch of a level, without history. */
MothStatus moth_batch_wrap(MothTensor *physical, int dim, uint64_t level, MothTensor **out);
/* The inverse: the tensor with the batch of this level as dimension 0, without history; *out is NULL if t is not batched at
 * this level. */
MothStatus moth_batch_unwrap(MothTensor *t, uint64_t level, MothTensor **out);

/* Whether the call takes random numbers: attention may, and takes none without dropout. */
bool moth_call_is_random(const MothCall *c);
/* The step of the dispatcher. */
MothStatus moth_batch_step(MothCall *c);

/* --- batch_rules.c ------------------------------------------------------------------------------ */

/* A call at one level. */
typedef struct MothBatchCall {
  MothCall *c;
  uint64_t level;
  int64_t size;
  MothTensor *physical[MOTH_MAX_ARGS]; /* of batched tensors, borrowed; else NULL */
  bool known;                          /* whether metas describes the results for one element */
  MothMeta metas[MOTH_MAX_RESULTS];
  MothTensor
      *results[MOTH_MAX_RESULTS]; /* owned: physical ones, or those for all elements (shared) */
  bool shared[MOTH_MAX_RESULTS];
  bool done; /* a rule has made the results, or has written to the target */
} MothBatchCall;

/* Each sets b->done, unless it does not fit. */
MothStatus moth_batch_rule(MothBatchCall *b);
MothStatus moth_batch_loop(MothBatchCall *b, MothGenerator *same);
#endif
