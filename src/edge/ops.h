/* What differs between the library libmoth_edge.a (host/) and the same runtime as a part of libmoth (whole.c): the table of
 * ops, and where the kernels' memory comes from. */
#ifndef MOTH_EDGE_OPS_H
#define MOTH_EDGE_OPS_H
#include "dispatch/dispatch.h"

typedef struct MothEdgeOp {
  const MothOp *op;
  uint32_t hash; /* of its schema: FNV-1a */
} MothEdgeOp;

extern const MothEdgeOp moth_edge_ops[]; /* generated, by name */
extern const int moth_edge_op_count;

extern const uint32_t moth_edge_dtypes; /* bits of the dtypes that values may have */

/* NULL: the library does not have it. */
const MothOp *moth_edge_find_op(const char *name, uint32_t *hash);

/* Whether this processor runs the kernels. */
MothStatus moth_edge_check_cpu(void);

/* Until moth_scratch_end, moth_alloc takes memory of this thread from n bytes at base; base NULL: from the heap, and notes how
 * much there would have to be. moth_scratch_end returns that. A call of a kernel leaves nothing behind: between two of them
 * moth_scratch_reset. In libmoth kernels allocate as ever. */
void moth_scratch_begin(void *base, size_t n);
void moth_scratch_reset(void);
size_t moth_scratch_end(void);
#endif
