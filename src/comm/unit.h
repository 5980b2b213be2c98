/* Units of fully_shard: parameters that are gathered, computed with, and released together. See unit.c. */
#ifndef MOTH_COMM_UNIT_H
#define MOTH_COMM_UNIT_H
#include "comm/comm.h"

typedef struct MothUnit MothUnit;

typedef struct MothUnitOptions {
  const char *name; /* of the module, for messages; copied */
  int reduce_dtype; /* in which gradients are reduced; -1: their own */
  MothUnit *
      neighbor; /* a unit of the same group, with which it shares the limit of what is in flight; may be NULL */
} MothUnitOptions;

enum { MOTH_UNIT_SHARDED, MOTH_UNIT_GATHERING, MOTH_UNIT_FULL };

/* full[i]: the whole parameter, a contiguous leaf with a storage of its own, whose memory the unit releases and fills;
 * shards[i]: this rank's rows of it, contiguous, as torch.chunk cuts the first dimension (of a 0-dim one: rank 0 has
 * it). `replicas` (may be NULL): the group of ranks that have the same shards. Errors: memory, shapes. */
MOTH_API MothStatus moth_unit_new(MothGroup *group, MothGroup *replicas, int n, MothTensor **full,
                                  MothTensor **shards, MothUnitOptions options, MothUnit **out);
/* Waits for what is in flight, and removes its hooks. */
MOTH_API void moth_unit_free(MothUnit *u);

MOTH_API void moth_unit_set_name(MothUnit *u, const char *name);
MOTH_API int moth_unit_state(const MothUnit *u);
/* Some ranks of the group, n that follow each other (n divides its size): from the next time on that the parameters are
 * gathered from all ranks, each keeps its part of them among these n, and they are gathered from these until the shards
 * change, or backward releases them. NULL: no part is kept. */
MOTH_API MothStatus moth_unit_set_part(MothUnit *u, MothGroup *part);
/* Starts to gather the parameters, unless they are there and the shards have not changed since. */
MOTH_API MothStatus moth_unit_gather(MothUnit *u);
/* The same as soon as no gradients are in flight; at the latest before the next call of the group. */
MOTH_API MothStatus moth_unit_gather_later(MothUnit *u);
/* Waits for the parameters, which it gathers first if nobody has. */
MOTH_API MothStatus moth_unit_ready(MothUnit *u);
/* Releases the memory of the parameters, also of those that are on their way. */
MOTH_API MothStatus moth_unit_reshard(MothUnit *u);

/* After an error: waits a while for what is in flight, forgets it, and releases the parameters. */
MOTH_API void moth_unit_abandon(MothUnit *u);

/* What happens when all gradients of a backward are there: with reduce they are averaged over the ranks, and each has
 * its part as the gradient of its shards; with reshard the parameters are released first. */
MOTH_API void moth_unit_set_after_backward(MothUnit *u, bool reduce, bool reshard);
/* At the end of backward, for each unit, in the same order on all ranks: reduces what is left. Then the second, for
 * each unit: waits. */
MOTH_API MothStatus moth_unit_flush(MothUnit *u);
MOTH_API MothStatus moth_unit_finish(MothUnit *u);
#endif
