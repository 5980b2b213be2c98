/* The layout of a reduction, for every device: which dimensions are kept and which are reduced, each without sizes of 1,
 * merged where their strides allow it, outermost first by input stride. If the smallest stride belongs to a reduced one, a
 * kernel runs along it ("rows": one accumulator at a time), else across the innermost kept dimension ("columns": many
 * accumulators at a time), so that the inner loop walks memory in order. */
#ifndef MOTH_COMMON_REDUCE_H
#define MOTH_COMMON_REDUCE_H
#include "core/tensor.h"
#include "kernels/common/param.h"
#include "reductions.h"

typedef struct MothReduceDim {
  int64_t size, in, out; /* strides: in the input (bytes), in the output (elements) */
} MothReduceDim;

typedef struct MothReduceLayout {
  bool rows;
  int nkept, nred;
  MothReduceDim kept[MOTH_MAX_DIMS], red[MOTH_MAX_DIMS];
  int64_t outs, count; /* number of results; elements of each */
} MothReduceLayout;

/* Where results go: elements of `dtype` (sums of integers: of any integer dtype), or NULL; positions of the searches
 * argmax and argmin, or NULL. */
typedef struct MothReduceOut {
  void *values;
  int64_t *pos;
  int dtype, finish; /* CUDA; finish: MothReduction.nfinish */
  double divisor;    /* CUDA; of var count - correction, else the count */
  int64_t base;      /* CUDA: the first position */
} MothReduceOut;

/* Arguments of the typed kernels. */
typedef struct MothReduce {
  int op; /* MOTH_REDUCE_... of reductions.h */
  const char *in;
  MothReduceOut out;
  const MothReduceLayout *layout; /* CUDA: all of the reduction, in one call */
  /* The CPU: a part, whose elements are `rows` rows of n. Strides in bytes. */
  int64_t rows, row_stride, n, stride;
  const MothParam *shift; /* of each result, or NULL: all 0 */
  MothParam *acc;         /* partial results, one for each row or column */
} MothReduce;

/* mask: the reduced dimensions. */
MOTH_API void moth_reduce_layout(MothReduceLayout *l, const MothTensor *t, uint32_t mask);
/* The mask of a list of dimensions, as the dispatcher made it canonical; an empty one: all of them. */
MOTH_API uint32_t moth_reduce_mask(MothValue dims, int ndim);
/* How partial results are joined (kernels/math_join.h). */
enum { MOTH_JOIN_SUM, MOTH_JOIN_PROD, MOTH_JOIN_MAX, MOTH_JOIN_MIN, MOTH_JOIN_ANY, MOTH_JOIN_ALL };
/* A reduction or scan of one simple join, from its record: MothOp.reduction. Generated, as is the next. */
typedef struct MothReduction {
  uint8_t loop, join; /* MOTH_REDUCE_... or MOTH_SCAN_..., MOTH_JOIN_... */
  uint8_t nfinish;    /* the number of its finish, for CUDA; 0: none */
  double (*finish)(double s0, double count);
} MothReduction;
extern const uint8_t moth_reduce_joins[MOTH_NREDUCE]; /* of the loops */
/* Partial results of one join, on the CPU. none: writes n of no elements. join: acc[i] = acc[i] joined with part[i]. */
typedef struct MothReducePartials {
  void (*none)(MothParam *acc, int64_t n);
  void (*join)(MothParam *acc, const MothParam *part, int64_t n);
} MothReducePartials;
/* By join; [0] for float dtypes, whose partial results are `d` (but of any and all, which are `i`), [1] for the others. */
extern const MothReducePartials moth_reduce_partials[][2];

/* Whether elements must be converted before a sum or product of them: partial results are double or 64 bits wide until
 * the end, so that only a change of class or a wider float has to come first. */
MOTH_API bool moth_reduce_converts(MothDType from, MothDType to);
#endif
