/* A model in memory: values, calls of kernels in their order, and the expressions of sizes in their arguments. file.c reads it,
 * plan.c sets sizes and places for given dims, run.c runs it. */
#ifndef MOTH_EDGE_MODEL_H
#define MOTH_EDGE_MODEL_H
#include "core/arena.h"
#include "core/expression.h"
#include "core/kept.h"
#include "core/tensor.h"
#include "dispatch/dispatch.h"
#include "edge/fused.h"
#include "edge/moth_edge.h"
#include "io/safetensors.h"

enum {
  MOTH_EDGE_MOST_CALLS = 16384,
  MOTH_EDGE_MOST_DIMS = 64,
  MOTH_EDGE_MOST_DEPTH = 32, /* of blocks in blocks */
  MOTH_EDGE_ALIGN = MOTH_ARENA_ALIGN
};

/* A number, or an expression of the dims. */
typedef struct MothEdgeSize {
  int64_t value;
  const MothExprStep *steps; /* NULL: value */
  uint32_t nsteps;
  bool real; /* an argument that is no whole number at some sizes */
} MothEdgeSize;

/* What held where the program was recorded; its text is for errors. */
typedef struct MothEdgeGuard {
  MothEdgeSize is;
  const char *text;
} MothEdgeGuard;

typedef enum MothEdgeKind {
  MOTH_EDGE_INPUT,
  MOTH_EDGE_STATE,
  MOTH_EDGE_MADE,
  MOTH_EDGE_ALIAS
} MothEdgeKind;

typedef struct MothEdgeValue {
  MothTensor t;
  MothStorage storage;
  uint8_t kind;
  const uint8_t *initial; /* of a tensor that calls write to: its elements in the file; else NULL */
  uint32_t root;          /* whose memory it lies in: itself, or of an alias another value */
  uint32_t
      buffer; /* of a root that was made: the root whose place in the arena it has; itself, or one that died */
  int32_t output; /* of a root: the output whose memory it lies in; -1: none */
  MothArenaBuffer
      life; /* of a root: the calls that make it and use it last, and its place in the arena */
} MothEdgeValue;

typedef enum MothEdgeArgKind {
  MOTH_ARG_PLAIN,
  MOTH_ARG_SIZE,
  MOTH_ARG_SIZES,
  MOTH_ARG_VALUE,
  MOTH_ARG_VALUES
} MothEdgeArgKind;

typedef struct MothEdgeArg {
  uint8_t kind;
  uint32_t n;
  MothValue plain;
  uint32_t value;      /* of a VALUE */
  uint32_t *values;    /* of VALUES */
  MothEdgeSize *sizes; /* of SIZE one, of SIZES n */
  int64_t *ints;       /* room for n */
  MothTensor **tensors;
} MothEdgeArg;

typedef enum MothEdgeControl {
  MOTH_CONTROL_NONE,
  MOTH_CONTROL_IF,
  MOTH_CONTROL_WHILE
} MothEdgeControl;

typedef struct MothEdgeCall {
  const MothOp *op; /* NULL: of fused, or control */
  uint8_t control;
  uint32_t pred,
      blocks
          [2]; /* of control: a value of one element, and how many calls are in each of the blocks that follow */
  MothEdgeArg *args;
  uint32_t result; /* the first of nresults values */
  uint32_t nargs, nresults;
  const MothFusedKernel *fused; /* NULL: a call of op */
  uint64_t *slots;              /* of fused */
  MothValue *values;            /* op->nargs arguments, then as many for canonical ones */
  int64_t *workspace;
  MothCall call;
  MothTensor *target;
  MothValue results[MOTH_MAX_RESULTS];
  MothKept *kept; /* packed weights */
} MothEdgeCall;

typedef struct MothEdgeIo {
  MothIo io;
  uint32_t value;
  MothEdgeSize *shape; /* of an input */
  int *dim;
} MothEdgeIo;

struct MothModel {
  void *blocks;       /* all memory of the model, chained */
  uint8_t *own_bytes; /* the file, where it was read; NULL: the caller's */
  const uint8_t *bytes;
  size_t nbytes;
  MothSafetensors *file;
  const MothFused *fused; /* NULL: it has none */
  MothDim *dims;
  MothEdgeGuard *guards;
  MothEdgeIo *inputs, *outputs;
  MothEdgeValue *values;
  MothEdgeCall *calls;
  uint32_t ndims, nguards, ninputs, noutputs, nstate, nvalues, ncalls;
  int64_t now[MOTH_EDGE_MOST_DIMS];
  bool planned, measured;  /* for `now` */
  size_t arena, scratch;   /* bytes: of buffers; of what kernels allocate */
  MothArenaBuffer **order; /* of buffers, while they are placed: two lists */
  MothKeeping keeper;
};

static inline const char *moth_edge_name(const MothEdgeCall *c) {
  return c->op                              ? c->op->name
         : c->control == MOTH_CONTROL_IF    ? "cond"
         : c->control == MOTH_CONTROL_WHILE ? "while_loop"
                                            : "generated code";
}
/* Zeroed memory that lives as long as m; NULL: no memory (the message is set). */
void *moth_edge_take(MothModel *m, size_t count, size_t size);
/* Reads the program of m->file. */
MothStatus moth_edge_read(MothModel *m, const char *program);
/* Shapes, places and arguments for these dims. Errors of shape rules name the call. Allocates nothing. */
MothStatus moth_edge_plan(MothModel *m, const int64_t *dims);
/* The calls of a planned model, whose values have addresses. `all`: errors of calls are ignored. */
MothStatus moth_edge_steps(MothModel *m, bool all);
/* Runs generated code on the addresses of its values. */
MothStatus moth_edge_run_fused(const MothModel *m, const MothEdgeCall *c);
/* Gives values their addresses. */
void moth_edge_place(MothModel *m, const void *const *in, void *const *out, char *arena);
#endif
