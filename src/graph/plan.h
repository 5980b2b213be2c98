/* The plan: how a graph without gradients runs again and again, in C.
 *
 * It is made by running the graph's calls once on fakes: what arrives below Autograd and Autocast are calls of kernels and
 * views, whose arguments are bound then. Sizes, dtypes and the compute dtypes are known, so that a step is little more
 * than a call of a function. The steps:
 *
 *   kernel call   the op's kernel, its results in memory that was planned; no dispatcher
 *   dispatched    a call of which the plan cannot say that: it writes to tensors, shares memory, is an op of the program
 *   view          a header over the memory of another value
 *   blocks        pointwise calls, in blocks that stay in the cache (blocks.c)
 *   launches      generated code, on addresses and numbers
 *
 * Intermediate values lie in one arena of a run, at offsets that are used again as values die; a result of a pointwise step
 * takes the memory of an operand that dies there. Outputs, and tensors that may share memory with them, have memory of
 * their own. A run has a frame of headers, so that runs on several threads, or within each other, are apart. */
#ifndef MOTH_GRAPH_PLAN_H
#define MOTH_GRAPH_PLAN_H
#include "core/parallel.h"
#include "graph/graph.h"

struct MothPlan;
typedef struct MothPlan MothPlan;

/* fn(slots, begin, end) on ranges of [0, n), by moth_parallel_for. */
typedef struct MothPlanLaunch {
  MothRange fn;
  int64_t n, grain;
  const uint64_t *slots; /* copied */
  uint32_t nslots;
  const int32_t *
      at; /* for each result, operand and temporary of the kernel the slot of its address; -1: none */
  const struct MothPlanNumber *numbers; /* slots that have numbers of the graph */
  uint32_t nnumbers;
  /* The slot that code sets where it found no memory. Of code that checks its accesses, which follow: how far behind the
   * slot of an address the one is that gets the number of elements there, and the first of the four slots of
   * src/codegen/tile_c.lua that it sets. Each 0: there is none. */
  uint32_t no_memory, reach, outside;
  /* On a GPU, in the place of fn: a kernel of a program, from 0, whose parameters are the slots behind the first one; n is
   * its grid. The slot `outside` gets the address of four int64s, which are 0. */
  struct MothCudaProgram *program;
  int kernel;
  uint32_t threads, shared;
} MothPlanLaunch;

typedef struct MothPlanNumber {
  uint32_t slot, number; /* number: from 1, as MothTraceArg.number */
  bool is_float;         /* the slot is a double, else an int64_t */
} MothPlanNumber;

/* Generated code that computes the calls of some nodes. Launches run one after the other. */
typedef struct MothPlanKernel {
  MothGraphNode *const *nodes;
  uint32_t nnodes;
  const MothGraphRef *values; /* results, then operands: addresses of first elements */
  uint32_t nresults, noperands;
  const int64_t *temporaries; /* bytes of memory for the time of the step, 64-byte aligned */
  uint32_t ntemporaries;
  const MothPlanLaunch *launches;
  uint32_t nlaunches;
  /* Element i of an operand is read for the last time before element i of a result is written, by the same iteration: a
   * row-major result may lie where a row-major operand of its size and itemsize is. */
  bool in_place;
  const char *text; /* what it is called in errors; copied; NULL: none */
} MothPlanKernel;

/* The plan of g, which it retains, without steps; for the sizes of g, which are pinned, as are numbers that it cannot follow
 * to a kernel. Errors: those of the calls on fakes. */
MOTH_API MothStatus moth_plan_new(MothGraph *g, MothPlan **out);
/* The same, in blocks and finished, for any sizes: where inputs of other sizes come, another plan is made and kept; sizes are
 * not pinned. Sizes that come for the first time run call by call. */
MOTH_API MothStatus moth_plan_new_any(MothGraph *g, MothPlan **out);
MOTH_API void moth_plan_retain(MothPlan *p);
MOTH_API void moth_plan_release(MothPlan *p);
/* Steps, in the order in which they run: each call node of the graph once. An error leaves p to be released. */
MOTH_API MothStatus moth_plan_add_node(MothPlan *p, const MothGraphNode *n);
MOTH_API MothStatus moth_plan_add_kernel(MothPlan *p, const MothPlanKernel *k);
/* All calls, with those that are pointwise in blocks. */
MOTH_API MothStatus moth_plan_add_blocks(MothPlan *p);
/* Lays out the memory; p can run then. Errors: a value that no step has made is used. */
MOTH_API MothStatus moth_plan_finish(MothPlan *p);

/* Runs p; any thread. Inputs are tensors for the graph's placeholders, in their order; numbers those of the graph (NULL: as
 * recorded; sizes among them are those of the graph: they are pinned); outputs[i] is owned by the caller.
 * `checked`: the inputs have the dtypes, sizes and strides of the graph. Else they are compared; for other strides, and
 * where calls are to be seen by others (modes, queued work), the graph runs call by call. Errors name the place of a
 * call; outputs are not set then. */
MOTH_API MothStatus moth_plan_run(MothPlan *p, MothTensor *const *inputs, uint32_t ninputs,
                                  const MothValue *numbers, MothTensor **outputs, bool checked);

/* The same with checked inputs whose references are the plan's: each is released, and NULL, behind the step that uses it
 * last. */
MOTH_API MothStatus moth_plan_consume(MothPlan *p, MothTensor **inputs, uint32_t ninputs,
                                      const MothValue *numbers, MothTensor **outputs);

/* A finished plan whose held tensors were made of `sources`, or are them, and whose owner runs it only while it is fresh: none
 * of them was written to or given other memory since. So it keeps what kernels make of them, such as packed weights. */
MOTH_API MothStatus moth_plan_freeze(MothPlan *p, MothTensor *const *sources, uint32_t n);
MOTH_API bool moth_plan_is_fresh(const MothPlan *p);
/* Whether here and now a frozen plan gives what the calls give: no mode sees calls or changes them, and no gradient is
 * recorded with these tensors, or with its sources. p NULL: one that is to be made. */
MOTH_API bool moth_plan_may_freeze(const MothPlan *p, MothTensor *const *tensors, uint32_t n);

typedef struct MothPlanFacts {
  uint32_t ninputs, noutputs, nsteps;
  uint32_t ndirect, ndispatched, nviews, nblocks, nlaunched; /* steps of each kind */
  uint32_t nfused;                                           /* calls in blocks and launches */
  bool pure;       /* nothing is written to, no random numbers are drawn */
  bool needs_grad; /* a value of the graph requires a gradient, which plans do not record */
  int64_t arena_bytes;
  int64_t peak_bytes; /* most that intermediate values and outputs take at one time */
} MothPlanFacts;
MOTH_API uint32_t moth_plan_noutputs(const MothPlan *p);
MOTH_API MothGraph *moth_plan_graph(const MothPlan *p);
MOTH_API MothPlanFacts moth_plan_facts(const MothPlan *p);
/* Steps as text, a line each; free it with free(). NULL: no memory. */
MOTH_API char *moth_plan_text(const MothPlan *p);
#endif
