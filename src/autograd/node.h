/* The graph: nodes, their saved values, and autograd's data of a tensor. */
#ifndef MOTH_AUTOGRAD_NODE_H
#define MOTH_AUTOGRAD_NODE_H
#include "dispatch/dispatch.h"

typedef enum MothHookKind {
  MOTH_HOOK_GRAD,  /* the gradient of one result, or of a leaf: before anything else */
  MOTH_HOOK_PRE,   /* of a node: the gradients of its results, before it runs */
  MOTH_HOOK_POST,  /* of a node: the gradients of its inputs, after it has run */
  MOTH_HOOK_AFTER, /* of a leaf whose .grad has been added to */
  MOTH_HOOK_NOTE   /* never run: data of the host that lives as long as the node */
} MothHookKind;

/* A hook. GRAD: `run` may return a replacement in *out (owned) or leave it NULL. AFTER: `run` gets the leaf as `grad`. PRE
 * and POST: `run_node` may replace tensors in the arrays (it releases the old ones, and the array owns the new ones): PRE
 * those of results' gradients, with ninputs 0, POST of inputs' ones; NULL is no gradient. Hooks run on the thread that
 * called backward. `release` is called when the owner is freed; `use`, if set, when the tensor or node of the hook becomes
 * part of a graph: hosts with garbage collection then retain the function themselves. */
typedef struct MothHook {
  uint8_t kind; /* MothHookKind */
  MothGradHook run;
  MothStatus (*run_node)(void *ctx, MothNode *n, MothTensor **inputs, int ninputs,
                         MothTensor **results, int nresults);
  MothRelease release;
  void (*use)(void *ctx);
  void *ctx;
  int64_t id;
  struct MothHook *next;
  _Atomic int32_t refs; /* of the list, and of each pass that will run it */
  bool removed;
  uint16_t nr; /* GRAD on a node: which result */
} MothHook;

/* One tensor input of a node: the target of its gradient, and that gradient's shape and dtype. */
typedef struct MothInput {
  MothNode *node; /* NULL: needs no gradient */
  uint16_t nr;    /* number of the result of that node */
  uint8_t dtype, ndim;
  MothDevice device;
  int64_t *geometry; /* stride[ndim] and offset, for ops that need them */
  int64_t shape[MOTH_MAX_DIMS];
} MothInput;

/* A value that backward reads. Lists and strings are copies owned by the node; a tensor is the input
 * itself, or an alias of a result without history (a result retains its node: that would be a cycle), or the packed
 * value of saved-tensor hooks (saved.c): then the tag is MOTH_V_PACKED, and u.s a MothPacked. */
enum { MOTH_V_PACKED = 64 }; /* beside the tags of MothValue */
typedef struct MothPacked MothPacked;
typedef struct MothSaved {
  MothValue value;
  int64_t version;
  uint8_t slot;       /* argument 0..15, or 16 + result */
  bool requires_grad; /* a result's history is restored when it is unpacked */
  bool kept; /* of a function of the host: not checked, and retained until the node is freed */
} MothSaved;

typedef struct MothResultMeta {
  uint8_t dtype, ndim;
  MothDevice device;
  int64_t shape[MOTH_MAX_DIMS];
} MothResultMeta;

#define MOTH_SEQ_LEAF UINT64_MAX /* an accumulator: runs at once */

struct MothNode {
  _Atomic int64_t refs;
  const MothOp *op; /* NULL for accumulators, copy-slices and functions of the host */
  const char *name;
  MothBackward backward;
  void (*drop)(MothNode *node); /* frees ctx */
  /* Of a node that stands for several: before the gradient of its result t is asked for in particular (by a hook,
   * retain_grad, autograd.grad), which others of its results may lead to. */
  MothStatus (*expand)(MothNode *node, MothTensor *t);
  /* Of such a node: whether it no longer tells what part of these gradients of its results leads to result nr. */
  bool (*lacks)(const MothNode *node, uint16_t nr, MothTensor *const *grads);
  void (*done)(MothNode *node); /* instead of freeing all saved tensors, once backward has run */
  void *ctx;
  uint64_t seq;      /* later nodes run first */
  uint64_t level;    /* of the innermost vmap in which it was made (dispatch/batch.h); 0: none */
  MothNode *pending; /* the next node in the list of nodes to be freed */
  MothHook *hooks;
  MothAutogradMeta *retained; /* of results whose .grad is kept (retain_grad) */
  void *stream; /* of the device that the op ran on: backward runs there; NULL: the current one */
  uint8_t stream_type;
  MothNode *inner; /* of a CopySlices: the node of the op that wrote, borrowed from ctx */
  MothInput *inputs;
  MothSaved *saved;
  MothResultMeta *results;
  uint16_t ninputs, nsaved, nresults;
  bool released;
  bool
      keeps_none; /* undefined gradients stay so: no zeros are made, nodes that get none free nothing */
  bool
      is_inner; /* inner node of a CopySlices: its saved values are released with that one, not before */
  uint16_t edge_of[MOTH_MAX_ARGS + 1]; /* first input of each argument */
  size_t size;
};

struct MothAutogradMeta {
  MothTensor *grad;
  MothNode *node; /* that made the tensor; NULL for leaves */
  MothNode *
      accumulator; /* of a leaf; not owned, cleared when it is freed; only under the lock (view.c) */
  MothHook *hooks; /* of a leaf */
  uint16_t nr;
  bool requires_grad; /* as set by the user on a leaf */
  bool retain_grad;   /* it is in the list of its node */
  bool fake;          /* with retain_grad: the tensor is */
  MothAutogradMeta *next_retained;
  int64_t view_version;         /* of the view when its node was made */
  uint64_t level;               /* of a leaf, as MothNode.level */
  struct MothTangent *tangents; /* owned; tangent.h */
  atomic_flag lock;             /* of accumulator: several threads may use one leaf */
};

MothAutogradMeta *moth_meta(MothTensor *t); /* made if there is none; NULL: no memory */

static inline bool moth_requires_grad(const MothTensor *t) {
  return t->keys & MOTH_KEY_AUTOGRAD;
}

bool moth_view_is_stale(const MothTensor *t);

/* The node and result number that t's gradient goes to; an accumulator for a leaf; NULL node if t
 * needs none. Makes the node of a stale view anew (see view.c). The caller owns a reference to the node. */
MOTH_API MothStatus moth_gradient_edge(MothTensor *t, MothNode **node, uint16_t *nr);

/* Whether a leaf, or the node that adds to its gradient, has hooks. */
bool moth_leaf_has_hooks(MothTensor *t);

/* A node with memory for its parts. refs = 1. */
MothNode *moth_node_new(const char *name, int ninputs, int nsaved, int nresults);
MOTH_API void moth_node_retain(MothNode *n);
MOTH_API void moth_node_release(MothNode *n);
/* Fills input i from t: edge (if needed), shape, dtype. */
MOTH_API MothStatus moth_node_set_input(MothNode *n, int i, MothTensor *t, bool needs);
/* The node of t, if it can, gives t a node of its own (MothNode.expand). */
static inline MothStatus moth_node_expand(MothTensor *t) {
  MothNode *n = t->grad ? t->grad->node : NULL;
  return __builtin_expect(n && n->expand, 0) ? n->expand(n, t) : MOTH_OK;
}
/* Gives n a seq with room for `count` nodes before it; moth_seq_at has nodes of this thread take theirs from there on, and
 * returns what was in force: 0 is the usual counter. */
MOTH_API void moth_node_reserve(MothNode *n, uint64_t count);
MOTH_API uint64_t moth_seq_at(uint64_t next);
/* To be called after all inputs are set: setting the edge of a stale view makes a node, and a node's seq must be
 * greater than those of the nodes it leads to. */
void moth_node_stamp(MothNode *n);
void moth_node_set_result(MothNode *n, int i, const MothTensor *t);
bool moth_node_release_saved(MothNode *n); /* the tensors among it; false: there were none */
/* Makes t the result nr of n (takes no reference of t). */
MOTH_API MothStatus moth_set_history(MothTensor *t, MothNode *n, int nr);

/* For backward functions, beside moth_node_arg and moth_node_result: shapes and dtypes that are known without saved
 * values. */
MothValue moth_node_shape(const MothNode *n, int arg);
/* moth_node_arg and moth_node_result, complex tensors conjugated. */
MothStatus moth_node_arg_conj(MothNode *n, int arg, MothValue *out);
MothStatus moth_node_result_conj(MothNode *n, int result, MothValue *out);
MothValue moth_node_stride(const MothNode *n, int arg);
MothValue moth_node_offset(const MothNode *n, int arg);

/* In the next pass with create_graph on this thread only the given gradients have a history: saved values are
 * restored without one, so that the old graph is not part of the new one. */
MOTH_API void moth_grad_of_gradients(bool on);
typedef struct MothApart {
  bool next, now;
} MothApart;
/* Whether what n has saved is released once the pass that runs on this thread has run it. */
MOTH_API bool moth_pass_frees(const MothNode *n);
extern _Thread_local MothApart moth_apart __attribute__((tls_model("initial-exec")));

/* In-place on a view, which is input i of n and its only result: the base gets a history that goes through the view
 * (view.c). */
MothStatus moth_rebase_history(MothTensor *view, MothNode *n, int i);
/* t, a base, in the dtype of a view of it: complex numbers as pairs of floats, or the reverse. */
MothStatus moth_seen_as(MothTensor *t, MothDType dtype, MothTensor **out);
/* Records a node for a call: the Autograd step of the dispatcher (step.c). */
MothStatus moth_autograd_record(MothCall *c);
/* A node of a call that was made, with what the gradients of the arguments in `need` read of it, for its formulas alone:
 * it is part of no graph. */
MothStatus moth_node_of_call(const MothCall *c, uint32_t need, MothNode **out);
/* Runs the steps below Autograd, unrecorded. */
MOTH_API MothStatus moth_autograd_below(MothCall *c);

/* --- hooks.c ---------------------------------------------------------------------------------- */

void moth_hook_release(MothHook *h);
void moth_hooks_free(MothHook **list);
/* Frees all hooks but NOTEs of a node that cannot run any more: now, not when the host collects garbage, as a hook
 * may refer to tensors that retain the graph. */
void moth_hooks_cut(MothHook **list);
/* Registers `hook` (its kind, functions and ctx) with t, or with a node. AFTER: leaves only. */
MOTH_API MothStatus moth_tensor_add_hook(MothTensor *t, MothHook hook, int64_t *id);
MOTH_API MothStatus moth_node_add_hook(MothNode *n, MothHook hook, int64_t *id);
/* Removes it from t (may be NULL), or from node, if it was added when t was a result of node. */
MOTH_API void moth_remove_hook(MothTensor *t, MothNode *node, int64_t id);
/* The ctx of a NOTE with this `release`; NULL: there is none. */
MOTH_API void *moth_node_note(const MothNode *n, void (*release)(void *ctx));
/* Runs the present hooks of a kind (for GRAD: of result nr), in order, except those that one of them removes. */
MothStatus moth_run_hooks(MothHook *list, int nr, MothTensor **grad);
MothStatus moth_run_after_hooks(MothHook *list, MothTensor *leaf);
MothStatus moth_run_node_hooks(MothHook *list, MothHookKind kind, MothNode *n, MothTensor **inputs,
                               int ninputs, MothTensor **results, int nresults);
/* Calls `use` of the hooks in the list. */
void moth_use_hooks(MothHook *list);

/* An observer of nodes on this thread (profilers, anomaly detection): `made` is called after an op or a Function was
 * recorded; `begin` before a node runs in backward, with the gradients of its results (NULL: none); `end` afterwards, with
 * those of its inputs and the status, and returns the new status. Each may be NULL. Accumulators are nodes, too. */
typedef struct MothWatcher {
  MothFrame frame; /* its drop frees the watcher */
  MothStatus (*made)(void *ctx, MothNode *n);
  MothStatus (*begin)(void *ctx, MothNode *n, MothTensor *const *grads, int ngrads);
  MothStatus (*end)(void *ctx, MothNode *n, MothTensor *const *grads, int ngrads, MothStatus s);
  void *ctx;
} MothWatcher;
MOTH_API void
moth_watch_nodes(MothWatcher *w); /* opened on this thread; takes over the reference */
MOTH_API void moth_unwatch_nodes(MothWatcher *w);
MothStatus moth_watch_made(MothNode *n);
MothStatus moth_watch_begin(MothNode *n, MothTensor *const *grads, int ngrads);
MothStatus moth_watch_end(MothNode *n, MothTensor *const *grads, int ngrads, MothStatus s);

/* Runs the callbacks of moth_queue_callback for a pass that ended with `status`. */
MothStatus moth_run_callbacks(MothStatus status);

/* --- batch.c ---------------------------------------------------------------------------------- */

/* t's dimension `dim` as the batch of a level (vmap's inputs), and back: dimension `dim` of *out has `size` elements, also
 * if t is not batched at this level. Both are differentiable. */
MOTH_API MothStatus moth_batch_enter(MothTensor *t, int dim, uint64_t level, MothTensor **out);
MOTH_API MothStatus moth_batch_leave(MothTensor *t, int dim, uint64_t level, int64_t size,
                                     MothTensor **out);
/* Sums *grad over the batches of those vmaps that are closed and that a tensor made at `level` was not part of: each of
 * the batch has used the same tensor. */
MothStatus moth_batch_sum_out(uint64_t level, MothTensor **grad);

/* --- engine.c --------------------------------------------------------------------------------- */

/* The number of the innermost running pass of this thread; 0: none, -1: its callbacks are running. */
MOTH_API int64_t moth_current_pass(void);
/* Exchanges the engine's state on this thread with *box: another program of the host must begin without it. All
 * zeros: nothing runs. */
typedef struct MothPasses {
  struct Task *running;
  struct Callback *callbacks;
  int depth;
  MothApart apart;
} MothPasses;
MOTH_API void moth_swap_passes(MothPasses *box);
void moth_swap_callbacks(struct Callback **list);
/* Whether that pass runs, or has run, the node that t's gradient goes to. */
MOTH_API MothStatus moth_pass_runs(MothTensor *t, bool *yes);

/* --- saved.c ---------------------------------------------------------------------------------- */

/* Saved-tensor hooks as a scope of this thread, with `frame.drop` set: either `disabled`, a message, or hooks.
 * Opening takes over a reference, unless it fails. */
typedef struct MothSavedHooks {
  MothFrame frame;
  MothSavedTensorsHooks hooks;
  const char *disabled;
} MothSavedHooks;
MOTH_API MothStatus moth_open_saved_hooks(MothSavedHooks *h);
MOTH_API void moth_close_saved_hooks(MothSavedHooks *h);
/* Fills s with t. `result`: when it is unpacked, its history is restored from n; `apart`: it is unpacked without one. */
MothStatus moth_save_tensor(MothSaved *s, MothTensor *t, bool result, bool apart);
MothStatus moth_unpack_saved(MothNode *n, const MothSaved *s, MothValue *out);
void moth_drop_packed(MothPacked *p);
static inline bool moth_saved_is_tensor(const MothSaved *s) {
  return s->value.tag == MOTH_V_TENSOR || s->value.tag == MOTH_V_PACKED;
}
/* t without history, for autograd's own use: an alias. Where the calls below autograd are recorded, the result of the
 * op detach, as a recorder knows tensors by the calls that made them. */
MOTH_API MothStatus moth_alias_for_graph(MothTensor *t, MothTensor **out);

MOTH_API MothNode *moth_tensor_node(MothTensor *t); /* borrowed; NULL for leaves */
/* A node made by the host: its gradients are for `inputs`, `results` get its history; results that are inputs were
 * written to in place. It saves up to `nsaved` tensors:
 * moth_function_save adds t, which may be NULL, or (`result` from 0; else -1) a tensor with the elements of a result;
 * moth_function_saved returns it. Saved tensors are freed with the graph, however deep it is; references to the
 * host's values only when the host collects garbage. */
MOTH_API MothStatus moth_function_record(const char *name, MothBackward backward,
                                         void (*drop)(MothNode *), void *ctx, MothTensor **inputs,
                                         int ninputs, MothTensor **results, int nresults,
                                         int nsaved, MothNode **out);
MOTH_API MothStatus moth_function_save(MothNode *n, MothTensor *t, int result, bool kept);
MOTH_API MothStatus moth_function_saved(MothNode *n, int i, MothTensor **out);
/* Frees saved tensor i: moth_function_saved gives NULL from then on. For `done` of a node. */
MOTH_API void moth_function_free(MothNode *n, int i);
MOTH_API MothStatus moth_node_freed(const MothNode *n); /* the error of a second backward */
#endif
