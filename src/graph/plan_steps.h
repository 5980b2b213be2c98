/* The parts of a plan, for its files: plan.c makes it, plan_memory.c lays it out, plan_run.c runs it. */
#ifndef MOTH_GRAPH_PLAN_STEPS_H
#define MOTH_GRAPH_PLAN_STEPS_H
#include <pthread.h>

#include "graph/plan.h"

/* Where a value is. */
typedef enum MothPlanPlace {
  MOTH_PLACE_INPUT,
  MOTH_PLACE_HELD, /* the graph's tensor */
  MOTH_PLACE_NONE, /* nobody reads it, or only calls of its own step */
  MOTH_PLACE_ARENA,
  MOTH_PLACE_VIEW,  /* of another value, by a header of the frame */
  MOTH_PLACE_FRESH, /* a tensor that the plan makes */
  MOTH_PLACE_GIVEN  /* a tensor that the dispatcher makes */
} MothPlanPlace;

typedef struct MothPlanValue {
  MothTensor *fake; /* retained */
  uint8_t place;
  bool owned;     /* an output, or may share memory with one: never in the arena */
  bool read;      /* by a step */
  bool temporary; /* memory for the time of a step */
  uint32_t of;    /* of a view: the value that it is a view of; else itself */
  uint32_t input; /* of an input: its number */
  uint32_t header;
  uint32_t call;   /* that makes it */
  uint32_t buffer; /* in the arena; or of those apart */
  bool apart;
  uint32_t first, last;  /* steps that make it and use it last, its views included */
  MothTensor *held;      /* retained */
  int64_t bytes, offset; /* offset: in the arena; of a view: from the first element of `of` */
} MothPlanValue;

typedef struct MothPlanCall {
  const MothOp *op;
  MothKernel kernel; /* that the CPU had when the plan was made */
  uint8_t variant, compute, ntargets;
  bool direct, view;
  MothValue *args; /* canonical; lists and strings are its own */
  uint32_t *refs;  /* values of the tensors among arguments, then targets */
  uint32_t nrefs;
  uint32_t result[MOTH_MAX_RESULTS];
  uint32_t *numbers; /* by argument: the number of the graph that it is, from 1; NULL: none is */
  uint32_t args_at;  /* in a frame */
  const char *place;
  uint32_t node; /* its number among the graph's calls */
} MothPlanCall;

typedef enum MothPlanStepKind {
  MOTH_STEP_DIRECT,
  MOTH_STEP_DISPATCHED,
  MOTH_STEP_VIEW,
  MOTH_STEP_BLOCKS,
  MOTH_STEP_LAUNCHES
} MothPlanStepKind;

typedef struct MothPlanLaunched {
  MothRange fn;
  int64_t n, grain;
  uint32_t slots_at, nslots; /* in p->slots and in a frame's */
  int32_t *at;
  MothPlanNumber *numbers;
  uint32_t nnumbers, no_memory, reach, outside;
  struct MothCudaProgram *program; /* retained; NULL: fn runs */
  struct MothCudaFunction *kernel;
  uint32_t threads, shared;
} MothPlanLaunched;

typedef struct MothPlanStep {
  uint8_t kind;
  bool in_place;
  uint32_t call;             /* of the first three; else the first, for its place */
  uint32_t nresults, nreads; /* values; of launches, reads that are temporaries come last */
  uint32_t *values;          /* results, then what is read */
  uint32_t ndrops, *drops;   /* tensors that are released behind it */
  uint32_t nends, *ends;     /* inputs, by their numbers, that it uses last */
  struct MothBlocks *blocks;
  uint32_t
      head; /* of blocks: the call that makes an operand of theirs, whose result is the last of the results; */
  uint32_t nown; /* reads of the blocks themselves; those of the head follow. UINT32_MAX: no call */
  MothPlanLaunched *launches;
  uint32_t nlaunches;
  uint32_t ncalls;
  void *library; /* from dlopen */
  char *text;    /* of launches: MothPlanKernel.text */
} MothPlanStep;

/* A buffer with memory of its own, from the step that writes it first to the last one that reads it. */
typedef struct MothPlanApart {
  int64_t bytes;
  uint32_t first, last;
  uint32_t nvalues, *values; /* that lie in it */
} MothPlanApart;

typedef struct MothPlanFrame {
  struct MothPlanFrame *next;
  MothStorage arena;
  MothTensor **values;
  MothTensor *headers;
  MothTensor **lists;
  MothValue *args;
  uint64_t *slots;
  MothStorage *apart;       /* by buffer; without data while it is not there */
  const MothValue *numbers; /* of the run; NULL: as recorded */
} MothPlanFrame;

/* A number of the graph for whose value alone the plan holds. */
typedef struct MothPlanBound {
  uint32_t number; /* from 0 */
  MothValue value; /* a list is its own */
} MothPlanBound;

enum {
  MOTH_PLAN_SIZES = 64, /* plans for other sizes that are kept, and sizes that were seen once */
  MOTH_PLAN_PARAMETERS = 500 /* slots of a launch on a GPU: a kernel has 4 KB of parameters */
};

struct MothPlan {
  MothRefs refs;
  MothGraph *graph;
  MothPlanBound *bound;
  uint32_t nbound;
  bool any_sizes; /* others: plans for other sizes, the last used first */
  MothPlan *others;
  uint64_t seen[MOTH_PLAN_SIZES]; /* sizes, hashed, that have come once */
  uint32_t nseen;
  MothPlanValue *values;
  MothPlanCall *calls;
  MothPlanStep *steps;
  uint32_t nvalues, ncalls, nsteps, values_cap, calls_cap, steps_cap;
  uint32_t ninputs, noutputs;
  uint32_t *inputs, *outputs; /* values */
  uint32_t nnodes;            /* call nodes; nodes[i]: their first call; nodes[nnodes]: ncalls */
  uint32_t *nodes, *node_ids;
  uint32_t
      *refs_of; /* values of results of all nodes, by slot: node's place in it at slots_of[id] */
  uint32_t *slots_of, next_id;
  bool *done; /* nodes that have steps */
  uint32_t nheaders, nargs, nlists, nslots;
  uint64_t *slots;
  int64_t arena_bytes, peak_bytes;
  MothPlanApart *apart; /* by their first steps */
  uint32_t napart;
  bool finished;
  struct MothPlanFrozen *frozen; /* NULL: it holds for any elements of what it holds */
  pthread_mutex_t lock;
  MothPlanFrame *frames; /* not in use */
};

/* A value; takes over the reference of fake (NULL: a temporary). */
MothStatus moth_plan_add_value(MothPlan *p, MothTensor *fake, uint32_t *id);
void moth_plan_free_call(MothPlanCall *c);
/* Notes the graph's calls. inputs: tensors whose sizes the plan is for; numbers: of the graph; NULL: as recorded. */
MothStatus moth_plan_replay(MothPlan *p, MothTensor *const *inputs, const MothValue *numbers);
MothPlanStep *moth_plan_add_step(MothPlan *p, MothPlanStepKind kind);
MothStatus moth_plan_add_call(MothPlan *p, uint32_t call);
/* A step of calls in blocks, behind the call `head`, which makes one of their operands (UINT32_MAX: none). */
MothStatus moth_plan_add_group(MothPlan *p, const uint32_t *calls, uint32_t ncalls,
                               const bool *kept, uint32_t head);
/* Sets places, offsets, the peak and what each step drops. */
MothStatus moth_plan_lay_out(MothPlan *p);
void moth_plan_free_frames(MothPlan *p);
/* Around the steps of a run: what kernels make of constants is kept. NULL: it is not. */
struct MothKeeping *moth_plan_keep_begin(const MothPlan *p, struct MothKeeping *k);
void moth_plan_keep_end(const MothPlan *p, struct MothKeeping *k);
struct MothKept **moth_plan_kept(const MothPlan *p, uint32_t step);
void moth_plan_free_frozen(MothPlan *p);
/* Of a plan for any sizes, that for these inputs and numbers, retained; NULL: the graph is to run call by call. */
MothPlan *moth_plan_for(MothPlan *p, MothTensor *const *inputs, const MothValue *numbers);
bool moth_plan_is_for(const MothPlan *p, MothTensor *const *inputs, const MothValue *numbers);
/* The plan of p's graph for the sizes of these inputs and numbers, with calls in blocks. */
MothStatus moth_plan_again(const MothPlan *p, MothTensor *const *inputs, const MothValue *numbers,
                           MothPlan **out);
#endif
