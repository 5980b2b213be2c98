/* Segments compiled ahead of time into a forward and backward graphs: aot.c prepares them, aot_backward.c is their node. A
 * host (the binding) has their graphs compiled and calls what came of it. */
#ifndef MOTH_GRAPH_AOT_H
#define MOTH_GRAPH_AOT_H
#include "graph/joint.h"
#include "graph/plan.h"

/* A backward graph that was compiled: for these outputs' gradients, with these strides. */
typedef struct MothAotBackward {
  struct MothAotBackward *next;
  char *key;
  MothGraph *graph;
  int number;   /* of its callable; 0: it cannot be compiled, and the segment is run again */
  bool *wanted; /* by the node's inputs: whether their gradients are asked for; NULL: all are */
  bool nothing; /* none of them gets one */
  bool *pinned; /* numbers for which it holds */
  MothValue *numbers;
  uint32_t kinds;
  uint32_t ngiven, ntakes;
  uint32_t *takes;   /* the saved values that it takes */
  int32_t *given;    /* numbers of the results whose gradients it takes */
  int32_t *gradient; /* of each of the node's inputs: its place among what it returns, or -1 */
} MothAotBackward;

typedef struct MothAot {
  MothGraph *program;
  MothJoint *joint;
  MothJointParts parts;
  MothJointInput *inputs;
  uint32_t ninputs;
  int32_t *saved_at; /* of each input: its place among a node's saved tensors; -1 */
  uint32_t nkept;    /* saved tensors of a node in all */
  bool writes;       /* to inputs */
  bool copies;       /* what they held is small, and is kept for running the segment again */
  bool draws;
  MothGenerator *generator; /* of the calls that draw; NULL: the default one */
  MothAotBackward *backward;
  int nbackward;
  bool *
      pinned; /* numbers of the program that are constants; the others are of these kinds (joint.h) */
  uint32_t kinds;
  bool separate, recompute; /* joint.h */
  bool passes;              /* the segment runs backward itself */
  bool freed;               /* which has freed what its outputs' histories had saved */
} MothAot;

static inline MothGenerator *moth_aot_generator(const MothAot *a) {
  return a->generator ? a->generator : moth_default_generator();
}

/* A call of a segment. */
typedef struct MothAotRun {
  MothAot *aot;
  MothTensor **inputs, **made, **outputs; /* made: roots, then saved values */
  MothTensor **before;                    /* copies of inputs that are written to, or NULL */
  MothValue *numbers;
  uint64_t generator[2];
} MothAotRun;

/* Where a host's callables are at hand, between enter and leave. */
typedef struct MothAotPlace {
  void *state;
  int at;
} MothAotPlace;

/* `handle` holds the callables of a segment. */
typedef struct MothAotHost {
  void (*release)(void *handle);
  MothStatus (*enter)(void *handle, MothAotPlace *place);
  void (*leave)(const MothAotPlace *place);
  /* Has a backward graph compiled as callable `number`. */
  MothStatus (*compile)(const MothAotPlace *place, const MothAot *a, int number, MothGraph *g,
                        MothTensor *const *inputs, uint32_t n);
  /* The plan that callable `number` is; NULL: it is none. */
  MothPlan *(*plan)(const MothAotPlace *place, int number);
  /* Calls it with n tensors and the numbers of g: out gets `want` of what it gives. */
  MothStatus (*call)(const MothAotPlace *place, int number, const MothGraph *g,
                     MothTensor *const *inputs, uint32_t n, const MothValue *numbers,
                     MothTensor **out, uint32_t want);
} MothAotHost;
MOTH_API extern MothAotHost moth_aot_host;

/* Of a, whose program, inputs and options are set: traces and divides it. *as_recorded: the error says why the segment runs as
 * recorded. */
MOTH_API MothStatus moth_aot_prepare(MothAot *a, MothTensor *const *inputs, bool *as_recorded);
MOTH_API void moth_aot_free(MothAot *a);
void moth_aot_free_backward(MothAotBackward *b);
/* Whether the segment is what was compiled. */
MOTH_API bool moth_aot_fits(const MothAot *a, MothTensor *const *inputs, const MothValue *numbers);
/* What comes before and behind a call of the forward graph, which gives r->made. versions: of the inputs. */
MOTH_API MothStatus moth_aot_begin(MothAotRun *r, int64_t *versions);
MOTH_API MothStatus moth_aot_end(const MothAotRun *r, const int64_t *versions);
/* Records the call's node, which takes over the reference to the handle. */
MOTH_API MothStatus moth_aot_record(const MothAotRun *r, void *handle);
#endif
