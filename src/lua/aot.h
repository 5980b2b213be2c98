/* Segments compiled ahead of time into a forward and backward graphs: what runs them. */
#ifndef MOTH_LUA_AOT_H
#define MOTH_LUA_AOT_H
#include "graph/joint.h"
#include "graph/plan.h"
#include "lua/moth_lua.h"

/* A backward graph that was compiled: for these outputs' gradients, with these strides. */
typedef struct MothAotBackward {
  struct MothAotBackward *next;
  char *key;
  int number; /* its callable in the environment; 0: it cannot be compiled, and the segment is run again */
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
  bool draws;
  MothGenerator *generator; /* of the calls that draw; NULL: the default one */
  MothAotBackward *backward;
  int nbackward;
  bool separate; /* joint.h */
  bool passes;   /* the segment runs backward itself */
  bool freed;    /* which has freed what its outputs' histories had saved */
} MothAot;

#define MOTH_MAGIC_AOT 0x6d6f746841686561ull

static inline MothGenerator *moth_aot_generator(const MothAot *a) {
  return a->generator ? a->generator : moth_default_generator();
}

/* Records the node of a call of a, which has made `outputs` and `made` (roots, then saved values). The handle of a is on
 * top of the stack. */
MothStatus moth_aot_record(lua_State *L, MothAot *a, MothTensor *const *inputs,
                           MothTensor *const *outputs, MothTensor *const *made,
                           const uint64_t *generator);
/* Has `compile` of the environment at index env compile g: its callable is on top. `kind`: "forward" or "backward". */
MothStatus moth_aot_compile(lua_State *L, MothAot *a, int env, const char *kind, MothGraph *g,
                            MothTensor *const *inputs, uint32_t n, const MothJoint *joint);
/* Calls what is on top of the stack, which is popped, with n tensors; `want` tensors are taken from what it gives. */
MothStatus moth_aot_run(lua_State *L, MothTensor *const *inputs, uint32_t n, MothTensor **out,
                        uint32_t want);
/* Calls what is below n arguments on the stack; takes `want` tensors from the list, or values, that it returns. */
MothStatus moth_aot_call(lua_State *L, int n, MothTensor **out, uint32_t want);
#endif
