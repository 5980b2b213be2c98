/* The graph: what a segment does, as a list of nodes in program order, to be looked at, changed and run.
 *
 * Nodes are placeholders (inputs), get_attrs (tensors that the graph holds), calls of ops, and one output. A value is a
 * node and the number of its result. A call that writes to a tensor gives that tensor's value (its first argument's, or
 * its target's) as a result, and keeps its place.
 *
 * Arguments that differ from call to call are numbers of the graph (MothTraceArg.number): those of a call of the compiled
 * function come beside the tensors, in the order of moth_segment_numbers. A `value` there is that of the call that the
 * graph was made in. In a dynamic graph sizes and lists of them are numbers, too, and the sizes in metas are those of that
 * call; whoever relies on a number or on sizes pins them (moth_graph_pin). The graph of moth.compile.capture has no numbers. */
#ifndef MOTH_GRAPH_GRAPH_H
#define MOTH_GRAPH_GRAPH_H
#include "graph/trace.h"

typedef enum MothNodeKind {
  MOTH_NODE_PLACEHOLDER,
  MOTH_NODE_GET_ATTR,
  MOTH_NODE_CALL,
  MOTH_NODE_OUTPUT
} MothNodeKind;

typedef struct MothGraphNode MothGraphNode;
typedef struct MothGraphRef {
  MothGraphNode *node;
  uint8_t result;
} MothGraphRef;

struct MothGraphNode {
  MothGraphNode *prev, *next; /* in program order */
  uint8_t kind, variant, nresults;
  uint32_t id;   /* from 1, never used again */
  uint32_t slot; /* of its first value, while the graph is run or printed */
  uint32_t mark; /* a pass's own */
  bool backward; /* of a joint graph: it computes gradients (joint.h) */
  const MothOp *op;
  MothTraceModes modes;
  MothTraceArg *args; /* of a call: op->nargs */
  MothGraphRef
      *refs; /* the tensors among arguments, then targets; of the output: what is returned */
  uint32_t nrefs;
  MothTraceMeta metas[MOTH_MAX_RESULTS];
  MothTensor *tensor; /* of a get_attr, retained */
  char name[32];
  char *place; /* "file:line", or "" */
};

typedef struct MothGraph {
  MothRefs refs;
  MothGraphNode *first, *last;
  uint32_t nnodes, next_id;
  char *name;
  uint32_t nnumbers;
  bool dynamic;      /* it holds for other sizes of the inputs */
  bool sizes_pinned; /* what is made of it holds for these sizes only */
  bool *pinned;      /* by number: what is made of the graph holds for this value only */
} MothGraph;

/* An empty graph, with one reference; NULL: no memory. */
MOTH_API MothGraph *moth_graph_new(const char *name);
/* A node in front of `before` (NULL: at the end), without results or arguments. NULL: no memory. */
MOTH_API MothGraphNode *moth_graph_add(MothGraph *g, MothGraphNode *before, MothNodeKind kind,
                                       const char *name);
/* A call at the end, of arguments whose tensors are refs[0 … nrefs), targets last; args, metas[nresults] and place are
 * copied. */
MOTH_API MothStatus moth_graph_add_call(MothGraph *g, const MothOp *op, MothVariant variant,
                                        const MothValue *args, const MothGraphRef *refs,
                                        uint32_t nrefs, const MothTraceMeta *metas,
                                        const MothTraceModes *modes, const char *place,
                                        MothGraphNode **out);
/* An input, or a tensor that the graph holds, like t, in front of `before` (NULL: at the end). */
MOTH_API MothStatus moth_graph_add_value(MothGraph *g, MothGraphNode *before, MothNodeKind kind,
                                         const char *name, MothTensor *t, MothGraphNode **out);
/* The output node. */
MOTH_API MothStatus moth_graph_add_output(MothGraph *g, const MothGraphRef *refs, uint32_t n);
/* A copy of a node of another graph at the end of g; refs are those of n in g. */
MOTH_API MothStatus moth_graph_add_copy(MothGraph *g, const MothGraphNode *n,
                                        const MothGraphRef *refs, MothGraphNode **out);
/* g, a new graph, has n numbers, to which arguments may refer. False: no memory. */
MOTH_API bool moth_graph_set_numbers(MothGraph *g, uint32_t n);
/* Frees a node that nobody uses, of any kind. */
MOTH_API void moth_graph_remove(MothGraph *g, MothGraphNode *n);
/* Sets the nodes' slots. nvalues: how many values there are; nrefs: the most references of one node. */
void moth_graph_slots(const MothGraph *g, uint32_t *nvalues, uint32_t *nrefs);
/* Runs one call: values[slot of a node + result] are its tensors, `lists` holds as many as it has references;
 * numbers as in moth_graph_run. */
MOTH_API MothStatus moth_graph_call(const MothGraphNode *n, const MothValue *numbers,
                                    MothTensor **values, MothTensor **lists, MothValue *results);

/* What s has noted. outputs: the tensors that it returns; inputs: those from outside that become placeholders in this
 * order, the others are get_attrs; ninputs < 0: all are placeholders, in the order of their first use. */
MOTH_API MothStatus moth_graph_of_segment(const MothSegment *s, MothTensor *const *outputs,
                                          uint32_t noutputs, MothTensor *const *inputs, int ninputs,
                                          MothGraph **out);
MOTH_API void moth_graph_release(MothGraph *g);
MOTH_API uint32_t moth_graph_count(const MothGraph *g, MothNodeKind kind);
MOTH_API MothGraphNode *moth_graph_node(const MothGraph *g, uint32_t id); /* NULL: none */

/* A call in front of `before`, as c, whose tensors are `tensors[i]` for the value refs[i]; `results` are what it gave, on
 * fakes. */
MOTH_API MothStatus moth_graph_insert(MothGraph *g, MothGraphNode *before, const MothCall *c,
                                      MothTensor *const *tensors, const MothGraphRef *refs,
                                      uint32_t n, MothGraphNode **out);
/* Error: a value of it is used. */
MOTH_API MothStatus moth_graph_erase(MothGraph *g, MothGraphNode *n);
/* Users of `from`, in the whole graph or in `only` (NULL: all), get `to`. Error: dtype or sizes differ, or a user comes
 * before `to`. */
MOTH_API MothStatus moth_graph_replace(MothGraph *g, MothGraphRef from, MothGraphRef to,
                                       MothGraphNode *only);
MOTH_API uint32_t moth_graph_uses(const MothGraph *g, const MothGraphNode *n);
/* Removes calls whose values nobody uses and that write to nothing and draw nothing; how many. */
MOTH_API uint32_t moth_graph_eliminate(MothGraph *g);
/* Each value is made before it is used, by a node of the graph. */
MOTH_API MothStatus moth_graph_check(const MothGraph *g);

/* What a backend makes of the graph is valid for the present value of number k only (from 1; 0: of all numbers) or, with
 * `sizes`, for the present sizes only. For others the graph is compiled again. */
MOTH_API void moth_graph_pin(MothGraph *g, uint32_t k, bool sizes);

/* Whether argument i of the call n is a size, or a number that may follow from sizes. */
MOTH_API bool moth_arg_is_open(const MothGraphNode *n, int i);
typedef struct MothGraphForm {
  char *text; /* not ended by 0 */
  size_t length, nsizes;
  double *
      sizes; /* by nodes: open arguments as Lua counts them, then sizes and strides of the results */
} MothGraphForm;
/* The form of g (form.c), or of the results of one node; moth_graph_form_free frees it. */
MOTH_API MothStatus moth_graph_form(const MothGraph *g, const MothGraphNode *only,
                                    MothGraphForm *out);
MOTH_API void moth_graph_form_free(MothGraphForm *f);

/* Runs the nodes one by one, as recorded; numbers: nnumbers values, NULL: the recorded ones. outputs[i] is owned by the caller. ninputs must be the number of placeholders;
 * dtypes, and numbers of dimensions, are checked. */
MOTH_API MothStatus moth_graph_run(MothGraph *g, MothTensor *const *inputs, uint32_t ninputs,
                                   const MothValue *numbers, MothTensor **outputs);
/* The graph as text; free it with free(). NULL: no memory. */
MOTH_API char *moth_graph_text(MothGraph *g);
#endif
