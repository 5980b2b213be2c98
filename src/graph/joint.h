/* The joint graph of a segment: what it computes and what its derivatives compute, below autograd.
 *
 * The calls of a segment run on fakes, through the real Autocast and Autograd; those that come out below are noted as
 * values (functional.h). Then the engine runs on fakes of the outputs' gradients, noted, too: the derivatives are the
 * table's own. The joint graph is divided into a forward and a backward graph; what the second needs of the first is
 * saved.
 *
 * The outputs of these graphs are whole storages ("roots"): tensors of the segment that share memory with one another, or
 * with inputs, are made from them by their geometry. */
#ifndef MOTH_GRAPH_JOINT_H
#define MOTH_GRAPH_JOINT_H
#include "graph/functional.h"

/* A tensor that the segment returns. */
typedef struct MothJointOutput {
  MothTensor *fake; /* retained: shape, strides, dtype */
  int32_t root;     /* among the roots; -1: it lies in an input's memory */
  int32_t input;    /* that input; -1 */
  int32_t nr;       /* number of its gradient; -1: it has none */
  int32_t base;     /* the output that it is a view of; -1: none */
  int32_t base_input;
  int64_t offset; /* in bytes, behind the beginning of the root or input */
  bool whole;     /* all of the root, as it is */
  uint64_t leads; /* bits of the results that are computed from it; of more than 64: all bits */
} MothJointOutput;

typedef struct MothJointRoot {
  int64_t version;    /* how often it was written to, and so its version */
  MothGraphRef value; /* in the joint graph */
} MothJointRoot;

typedef struct MothJoint {
  MothGraph *
      graph; /* placeholders: the inputs, then the gradients that are given; the output: the roots, then gradients
                       of inputs */
  uint32_t ninputs, noutputs, nroots, ngiven, ngrads, nedges;
  uint32_t nresults; /* outputs with a gradient */
  MothJointOutput *outputs;
  MothJointRoot *roots;
  int64_t *written; /* how often each input was written to */
  uint32_t *edges; /* inputs that gradients are for; one may occur several times: the engine sums */
  int32_t *gradient;    /* of each edge: its place among the gradients; -1: it has none */
  int32_t *given;       /* which results the given gradients are of */
  MothGraphNode *after; /* the first node of backward; NULL: none */
  bool offsets; /* inputs must begin at the same offsets in their storages as those of the trace */
} MothJoint;

/* What the tensors of a segment are like: fakes of its inputs, with what autograd knows of them. */
typedef struct MothJointInput {
  MothTensor *fake; /* owned */
  bool requires_grad;
} MothJointInput;

/* How a segment is traced. */
typedef struct MothJointTrace {
  const MothJointInput *inputs;
  uint32_t ninputs;
  /* Of the outputs that have one, by their numbers, real ones or fakes, whose strides are taken; NULL: not given. The list
   * NULL: all are, row-major. */
  MothTensor *const *grads;
  const MothValue *numbers; /* of the program; NULL: the recorded ones */
  const bool *wanted;       /* by edge: whether its gradient is asked for; NULL: all are */
  bool derive;              /* else backward is left out. It runs under the thread's autocast. */
  /* Gradients of an input are one for each of its uses, the last use first, so that their sum with gradients from
   * elsewhere is what it is without a graph, to the bit. */
  bool separate;
} MothJointTrace;

/* The joint graph of `program`. Errors, MOTH_ERR_STATE among them: what cannot be done, in words; the segment is to run as
 * recorded then. */
MOTH_API MothStatus moth_joint_trace(MothGraph *program, const MothJointTrace *how,
                                     MothJoint **out);
/* Runs the program on tensors, as recorded, but that each use of an input that requires a gradient is of what `use` gives in
 * its place, a reference of which the callback keeps: calls in program order, their arguments from the last to the first;
 * the edges of a separate joint graph are these uses in reverse. An input may be NULL: outputs that need it are NULL then; an
 * error, where a call that writes or draws needs it. */
typedef MothStatus (*MothJointUse)(void *ctx, MothTensor *x, uint32_t input, MothTensor **out);
MOTH_API MothStatus moth_joint_run(MothGraph *program, const MothJointInput *given,
                                   uint32_t ninputs, MothTensor *const *inputs,
                                   const MothValue *numbers, MothJointUse use, void *ctx,
                                   MothTensor **outputs);
/* Finds out which arguments of j, traced so, are numbers of the program, by tracing it with others. pinned: those that are
 * constants of j, in and out. kinds: for which sorts of the others it holds (moth_joint_takes). */
MOTH_API MothStatus moth_joint_find_numbers(MothJoint *j, MothGraph *program,
                                            const MothJointTrace *how, bool *pinned,
                                            uint32_t *kinds);
/* The numbers of g: those that are given, but lists, and of others the recorded ones. */
MOTH_API void moth_graph_numbers(const MothGraph *g, const MothValue *given, MothValue *out);
MOTH_API bool moth_joint_takes(const MothValue *numbers, uint32_t n, const bool *pinned,
                               uint32_t kinds);
MOTH_API void moth_joint_free(MothJoint *j);
/* A MothBackward that gives its gradient on. */
MothStatus moth_pass_on(MothNode *n, MothTensor *const *grads, uint32_t need, MothTensor **out);

/* A saved value: of an input, or of an output of the forward graph. */
typedef struct MothJointSaved {
  uint32_t id; /* of the node in the joint graph: the same in each trace of a segment */
  uint8_t result;
  int32_t input;  /* -1: a value of the forward graph */
  int32_t root;   /* it is this root; -1 */
  int32_t output; /* its place among the forward graph's outputs; -1 for inputs */
} MothJointSaved;

/* A call of backward that uses a saved value, as a node of the engine would have saved it. */
typedef struct MothJointUser {
  uint32_t saved;
  uint64_t
      results; /* bits of the results whose gradients it is computed from; all, where there are more than 64 */
  uint64_t edges; /* bits of the edges whose gradients are computed from it; as `results` */
} MothJointUser;

typedef struct MothJointParts {
  MothGraph *forward; /* inputs -> roots, then saved values */
  MothGraph
      *backward; /* the saved values that it takes, then given gradients -> gradients; NULL: none */
  uint32_t *takes, ntakes;
  MothJointSaved *saved;
  MothJointUser *users;
  uint32_t nusers;
  uint32_t nsaved, nextra; /* nextra: outputs of forward behind the roots */
} MothJointParts;

/* Divides j; its passes have run. kept: what an earlier division of the same segment has saved, of which backward must
 * be computed (no forward graph is made then); NULL: what the derivatives save, or, with `recompute`, less of it, from
 * which cheap calls make the rest again. */
MOTH_API MothStatus moth_joint_divide(const MothJoint *j, const MothJointParts *kept,
                                      bool recompute, MothJointParts *out);
/* The cut (cut.c). wanted: the values, at their slots, that the derivatives save; kept: of these and of those from which
 * they are computed by cheap calls, the ones with the fewest bytes. */
MothStatus moth_joint_cut(const MothJoint *j, const bool *wanted, bool *kept);
MOTH_API void moth_joint_parts_free(MothJointParts *p);

/* --- passes (passes.c) ------------------------------------------------------------------------------------ */

/* Views that show all of their argument as it is, and equal calls, become one value; what nobody uses is removed; what is
 * computed from constants is held. Roots stay values of their own. pinned: numbers of the program that are constants, in
 * and out. */
MOTH_API MothStatus moth_joint_simplify(MothJoint *j, const MothGraph *program, bool *pinned);
/* What calls of g take that is computed from constants alone is computed, and held by g; the calls that computed it are
 * left. Numbers of the program that have not varied are constants then, and pinned. g must not write to what it has
 * views of. *nheld: how many values are held now. */
MOTH_API MothStatus moth_graph_fold(MothGraph *g, const MothGraph *program, bool *pinned,
                                    uint32_t *nheld);
/* Sets `leads` of the outputs. */
MOTH_API void moth_joint_find_inner(MothJoint *j);
/* Metadata of each call is what its op gives for its arguments: a pass has made no mistake. */
MOTH_API MothStatus moth_graph_verify(MothGraph *g);
/* Whether the call writes to one of its arguments. */
bool moth_node_writes(const MothGraphNode *n);
/* Calls fn for each value that n, which writes, writes to. */
void moth_node_each_written(const MothGraphNode *n, void (*fn)(MothGraphRef ref));
#endif
