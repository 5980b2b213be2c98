/* The edge runtime as a part of libmoth: all ops, and the allocator of the library. See ops.h. */
#include <string.h>

#include "dispatch/registry.h"
#include "edge/ops.h"

const uint32_t moth_edge_dtypes = UINT32_MAX;

const MothOp *moth_edge_find_op(const char *name, uint32_t *hash) {
  const MothOp *op = moth_op_find(name);
  *hash = 0x811c9dc5u;
  for (const char *c = op ? op->schema : ""; *c; c++)
    *hash = (*hash ^ (uint8_t)*c) * 16777619u;
  return op && !op->defined ? op : NULL;
}

MothStatus moth_edge_check_cpu(void) {
  return MOTH_OK;
}

void moth_scratch_begin(void *base, size_t n) {
  (void)base;
  (void)n;
}

void moth_scratch_reset(void) {}

size_t moth_scratch_end(void) {
  return 0;
}
