/* The layout of a reduction, for every device: which dimensions are kept and which are reduced, each without sizes of 1,
 * merged where they step evenly, outermost first by input stride. If the smallest step belongs to a reduced dimension, a
 * kernel runs along it ("rows": one accumulator at a time), else across the innermost kept dimension ("columns": many
 * accumulators at a time), so that the inner loop walks memory in order. */
#ifndef MOTH_COMMON_REDUCE_H
#define MOTH_COMMON_REDUCE_H
#include "core/tensor.h"

typedef struct MothReduceDim {
  int64_t size, in, out; /* strides: in the input (bytes), in the output (elements) */
} MothReduceDim;

typedef struct MothReduceLayout {
  bool rows;
  int nkept, nred;
  MothReduceDim kept[MOTH_MAX_DIMS], red[MOTH_MAX_DIMS];
  int64_t outs, count; /* number of results; elements of each */
} MothReduceLayout;

/* mask: the reduced dimensions. */
MOTH_API void moth_reduce_layout(MothReduceLayout *l, const MothTensor *t, uint32_t mask);
/* The mask of a list of dimensions, as the dispatcher made it canonical; an empty one: all of them. */
MOTH_API uint32_t moth_reduce_mask(MothValue dims, int ndim);
/* Whether elements must be converted before a sum or product of them: partial results are double or 64 bits wide until
 * the end, so that only a change of class or a wider float has to come first. */
MOTH_API bool moth_reduce_converts(MothDType from, MothDType to);
#endif
