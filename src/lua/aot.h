/* Segments compiled ahead of time into a forward and backward graphs: what runs them. */
#ifndef MOTH_LUA_AOT_H
#define MOTH_LUA_AOT_H
#include "graph/joint.h"
#include "lua/moth_lua.h"

/* A backward graph that was compiled: for these outputs' gradients, with these strides. */
typedef struct MothAotBackward {
  struct MothAotBackward *next;
  char *key;
  MothGraph *graph;
  int number; /* its callable in the environment; 0: it cannot be compiled, and the segment is run again */
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

/* In a handle whose environment has `compile`, `forward` and, by number, the callables of backward graphs. */
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

#define MOTH_MAGIC_AOT 0x6d6f746841686561ull

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

/* Records its node. The handle is on top of the stack. */
MothStatus moth_aot_record(lua_State *L, const MothAotRun *r);
/* Has `compile` of the environment at index env compile g: its callable is on top. `kind`: "forward" or "backward". */
MothStatus moth_aot_compile(lua_State *L, const MothAot *a, int env, const char *kind, MothGraph *g,
                            MothTensor *const *inputs, uint32_t n, const MothJoint *joint);
/* Calls what is on top of the stack, and pops it, with n tensors and the numbers of g: out gets `want` of what it gives. */
MothStatus moth_aot_call(lua_State *L, const MothGraph *g, MothTensor *const *inputs, uint32_t n,
                         const MothValue *numbers, MothTensor **out, uint32_t want);
#endif
