/* The dispatcher: ops, calls, keys, interceptors.
 *
 * The steps of a call: canonical arguments -> Intercept (above) -> Autocast -> Tangents -> Autograd -> Intercept (below) ->
 * Batches -> tensor subclasses -> shape rule -> results (fake tensors end here) -> backend. `keys` has the steps still to come; a step does
 * its work and calls moth_redispatch, which continues below it. One test of one word (the thread's keys OR those of the
 * tensors) decides whether any step but shape rule and backend is needed. */
#ifndef MOTH_DISPATCH_DISPATCH_H
#define MOTH_DISPATCH_DISPATCH_H
#include <signal.h>

#include "core/error.h"
#include "core/tensor.h"
#include "moth.h"

enum { MOTH_MAX_ARGS = 16 };

/* Argument types of a schema. OPERAND is a tensor or a number; DIM and DIMS are positions of
 * dimensions; INDEX_BASE is the first index (0 in C, 1 in Lua). */
typedef enum MothType {
  MOTH_T_TENSOR, /* these two first: both may be tensors */
  MOTH_T_OPERAND,
  MOTH_T_SCALAR,
  MOTH_T_INT,
  MOTH_T_DIM,
  MOTH_T_INDEX,
  MOTH_T_INDEX_BASE,
  MOTH_T_FLOAT,
  MOTH_T_BOOL,
  MOTH_T_INTS,
  MOTH_T_DIMS,
  MOTH_T_TENSORS,
  MOTH_T_STRING,
  MOTH_T_ENUM, /* one of a list of words: moth_canonical replaces it by its number; a number is allowed, too */
  MOTH_T_DTYPE,
  MOTH_T_DEVICE,
  MOTH_T_GENERATOR
} MothType;

typedef enum MothHolds { MOTH_HOLDS_ANY, MOTH_HOLDS_BOOL, MOTH_HOLDS_POSITIONS } MothHolds;

typedef struct MothArg {
  const char *name;
  uint8_t type;  /* MothType */
  bool optional; /* may be none ("?") */
  bool has_default;
  bool mutated;   /* written to ("!") */
  uint8_t holds;  /* of a tensor: MothHolds */
  uint8_t count;  /* INTS: the length of the list, for which one number may be given; 0: any */
  int8_t like;    /* INTS: the argument that is its default, or -1 */
  bool of_result; /* DIM: of a result with one dimension more than the first tensor */
  bool all;       /* DIMS: none and an empty list mean all */
  bool repeats;   /* DIMS: a dimension may occur twice */
  bool bounded;   /* numbers, also in lists, must be between low and high */
  bool open;      /* low itself is excluded */
  double low, high;
  const char *const *values; /* ENUM: the words, NULL-terminated */
  MothValue def;
} MothArg;

/* In the order of src/ops/kinds.lua, which has the facts that follow from each kind. */
typedef enum MothKind {
  MOTH_KIND_POINTWISE,
  MOTH_KIND_VIEW,
  MOTH_KIND_REDUCE,
  MOTH_KIND_SCAN,
  MOTH_KIND_GATHER,
  MOTH_KIND_SCATTER,
  MOTH_KIND_MATMUL,
  MOTH_KIND_WINDOW,
  MOTH_KIND_RANDOM,
  MOTH_KIND_FACTORY,
  MOTH_KIND_FUSED,
  MOTH_KIND_EFFECT,
  MOTH_KIND_EXTERN,
  MOTH_KIND_COMPOSITE
} MothKind;
/* The memory of results: new; the storage of the first argument; the first argument, written to; no results; or
 * decided by the parts of a composite. */
typedef enum MothMemory {
  MOTH_MEMORY_NEW,
  MOTH_MEMORY_VIEW,
  MOTH_MEMORY_SELF,
  MOTH_MEMORY_NONE,
  MOTH_MEMORY_PARTS
} MothMemory;
/* SELF: the dtype of the first tensor. */
typedef enum MothPromote {
  MOTH_PROMOTE_NONE,
  MOTH_PROMOTE_SAME,
  MOTH_PROMOTE_FLOAT,
  MOTH_PROMOTE_SELF
} MothPromote;
/* How a call with batched tensors becomes one with a dimension more (src/ops/batch.lua, dispatch/batch_rules.c). LOOP: a
 * call for each element. */
typedef enum MothBatchRule {
  MOTH_BATCH_LOOP,
  MOTH_BATCH_POINTWISE, /* broadcast */
  MOTH_BATCH_FRONT,     /* a dimension in front */
  MOTH_BATCH_FOLD,      /* a part of the first dimension, which the op doesn't look at */
  MOTH_BATCH_MATMUL,
  MOTH_BATCH_RANDOM,
  MOTH_BATCH_ERROR /* the sizes of its results depend on elements */
} MothBatchRule;
typedef enum MothAmp { MOTH_AMP_KEEP, MOTH_AMP_LOW, MOTH_AMP_HIGH, MOTH_AMP_WIDEST } MothAmp;

/* A shape rule: describes the op->nresults results of a call whose arguments are canonical, or fails with a message.
 * It reads the geometry and dtypes of tensors, never their elements, and allocates nothing. */
typedef MothStatus (*MothShape)(const MothCall *c, MothMeta *out);

/* The result of a pointwise op of complex operands has the dtype of their parts. */
enum { MOTH_OUT_REAL = -2 };
struct MothOp {
  const char *name;
  const char *schema;
  const char *place; /* "src/ops/pointwise.lua:41" */
  const MothArg *args;
  uint16_t id;  /* set when the op is added to the registry (registry.h) */
  bool gone;    /* removed from the registry */
  bool defined; /* at run time (define.c) */
  uint8_t nargs, nresults;
  uint8_t kind, promote, amp;
  uint8_t memory;     /* MothMemory */
  uint8_t stats;      /* results from this one on are statistics without a derivative; 0: none */
  uint32_t canonical; /* bits of the arguments that moth_canonical handles */
  bool inplace;       /* has the variant name_ */
  bool returns_self;  /* -> self: writes to and returns its first argument */
  bool factory;       /* makes tensors from no tensor: dtype, device, requires_grad options */
  bool keep;          /* a composite that is not expanded at Autograd */
  bool fuses;         /* one kernel may compute its elements together with other ops */
  bool drops;         /* may be removed if its results are not used */
  bool draws;         /* takes random numbers: not reordered with other ops of the same generator */
  bool repeats;       /* the same arguments give the same results */
  bool cross_device;  /* its tensors may be on several devices */
  bool absent;        /* in backward, gradients of results that have none are NULL */
  bool internal;      /* a part of other ops: not for users' programs */
  bool own_complex;   /* its kernels read complex elements; else they see the parts: parts.h */
  bool cpu_complex;   /* and no other device's do */
  uint32_t parts_with; /* bits of the arguments that then get a dimension, as tensors do */
  int8_t cond;         /* pointwise: the argument that is a bool mask, or -1 */
  const struct MothReduction
      *reduction; /* of a reduction by a simple join: kernels/common/reduce.h */
  /* The loops of a pointwise op, by device, for its backend's kernel of all pointwise ops. On the CPU a MothLoops
   * (kernels/cpu/loop.h); moth_op_set_loops. */
  const void *loops[MOTH_NDEVICES];
  int16_t out_dtype;       /* fixed result dtype, or MOTH_OUT_REAL, or -1 */
  uint16_t dtypes;         /* mask of compute dtypes */
  uint32_t differentiable; /* arguments that have a derivative */
  const uint32_t
      *saves_for; /* per argument: what its derivative reads, arguments from bit 0, results
                                from bit 16 */
  bool geometry;  /* backward reads strides and offsets of inputs (as_strided) */
  const uint8_t *
      limits; /* per argument: 1 none means the lowest number, 2 the highest; 3 not negative in integers */
  MothShape shape; /* NULL: sizes depend on elements, the kernel makes the results */
  MothKernel
      fake; /* of an op that was defined at run time: instead of `shape`, for fake tensors alone */
  MothKernel
      autograd; /* the same: records the call itself, where one of its arguments requires grad */
  MothKernel composite;
  MothKernel decomposed; /* of a fused op: the same by other ops, as its record says; NULL: none */
  uint8_t batch;         /* MothBatchRule */
  uint32_t batched;      /* with FRONT and FOLD: the arguments that may have the batch dimension */
  uint8_t
      batched_ndim; /* with FOLD: of the first of them, its dimensions; one less: without the first one */
  MothBackward backward;
  const char *backward_name;
  MothKernel kernels[MOTH_NDEVICES];
  const char *doc; /* of a defined one */
  int users;       /* Lua states that have defined it (src/lua/library.c) */
  void *ctx;       /* of the definer */
};

/* Atomic: another thread may register a kernel. */
static inline MothKernel moth_kernel_of(const MothOp *op, int device_type) {
  return __atomic_load_n(&op->kernels[device_type], __ATOMIC_ACQUIRE);
}

typedef enum MothVariant { MOTH_FUNCTIONAL, MOTH_INPLACE, MOTH_OUT } MothVariant;

struct MothCall {
  const MothOp *op;
  uint32_t keys;              /* steps still to come */
  uint8_t variant;            /* MothVariant */
  uint8_t dtype;              /* compute dtype, set by the shape rule of pointwise ops */
  uint8_t above_at, below_at; /* interceptors still to come */
  bool direct;                /* a program's own call, not part of another one */
  MothDevice device;
  MothValue *args;     /* nargs of them, borrowed */
  MothValue *results;  /* nresults of them, owned by the caller after success */
  MothTensor **target; /* in-place and out: the tensors to write to, borrowed; else NULL */
};

/* --- thread state ----------------------------------------------------------------------------- */

typedef struct MothInterceptor {
  MothStatus (*fn)(MothCall *c, void *ctx);
  void *ctx;
  bool observer; /* sees nested calls too; otherwise it is off while its own function runs */
  void (*count)(
      void *ctx,
      int by); /* may be NULL: counts by 1 for each copy of ctx in a MothModes, by -1 when that is released */
  bool thread; /* an observer that belongs to the thread, not to a Lua state: logging */
} MothInterceptor;

enum { MOTH_MAX_INTERCEPTORS = 32 };

/* An open scope of a thread that has data: the first member of its struct. The stack is a chain of reference-counted
 * frames, since coroutines begun within a scope retain its part of the chain. */
typedef struct MothFrame {
  MothRefs refs;
  struct MothFrame *outer;           /* retained */
  bool closed;                       /* closed while an inner one is still open */
  void (*drop)(struct MothFrame *f); /* frees the frame */
} MothFrame;

typedef struct MothThread {
  uint32_t include, exclude; /* keys added to and removed from every call */
  uint8_t nabove, nbelow;
  uint8_t autocast[MOTH_NDEVICES]; /* MothDType + 1 of each type of device; 0: off there */
  bool no_grad;                    /* the user turned recording off */
  MothFrame *saved_hooks;          /* retained, as the next: src/autograd/saved.c */
  MothFrame *watchers;             /* of nodes: src/autograd/hooks.c */
  MothFrame *casts; /* of weights, in the outermost autocast scope: src/dispatch/autocast.c */
  bool no_cast_cache;
  MothFrame *vmaps; /* batch.h */
  uint64_t
      level; /* of the innermost vmap in which tensors are made; backward sets that of its nodes */
  uint64_t
      tangents; /* tangents of this level and above are not looked at; 0: all are (src/autograd/tangent.h) */
} MothThread;

/* The frame, with its one reference, becomes the innermost one of the stack. */
void moth_frame_push(MothFrame **stack, MothFrame *f);
/* Removes a frame from any position in the stack; the caller owns a reference. */
void moth_frame_close(MothFrame **stack, MothFrame *f);
void moth_frame_retain(MothFrame *f); /* NULL: nothing */
MOTH_API void moth_frame_release(MothFrame *f);

/* Small: the static TLS of a library that is opened at run time is scarce. */
#ifndef __cplusplus
extern _Thread_local MothThread moth_thread __attribute__((tls_model("initial-exec")));
#endif
MOTH_API MothThread *moth_thread_state(void);

MOTH_API MothStatus moth_intercept_push(bool above, MothInterceptor i);
/* Removes the innermost one with this function and ctx; false: there is none. */
MOTH_API bool moth_intercept_pop(bool above, MothInterceptor which);
/* The ctx of the innermost one with this function; NULL: there is none. */
MOTH_API void *moth_intercept_find(bool above, MothStatus (*fn)(MothCall *c, void *ctx));
/* Whether an interceptor is open that is not an observer. It records or handles calls and may retain tensors, so that
 * reference counts must decide nothing (elsewhere they allow writing to a gradient in place). */
bool moth_is_traced(void);

/* All settings of scopes on this thread: saved and restored where a thread runs several coroutines. */
typedef struct MothModes {
  MothThread thread;
  MothInterceptor above[MOTH_MAX_INTERCEPTORS], below[MOTH_MAX_INTERCEPTORS];
} MothModes;

/* `to` has saved modes or is all zeros. It owns references until moth_modes_forget. */
MOTH_API void moth_modes_save(MothModes *to);
MOTH_API void moth_modes_load(const MothModes *from); /* saved on this thread */
MOTH_API void moth_modes_forget(MothModes *m);
/* Whether the thread has any mode set, and back to none; observers that live as long as the thread stay. */
MOTH_API bool moth_modes_any(void);
MOTH_API void moth_modes_reset(void);

/* --- calling ---------------------------------------------------------------------------------- */

/* Sees calls, nodes of backward and compiled segments while a profile is recorded (src/profile), on all threads; what a
 * begin returns goes to its end. NULL: nothing is recorded. */
typedef struct MothObserver {
  int64_t (*begin_call)(const MothCall *c);
  void (*end_call)(int64_t at, const MothCall *c, MothStatus s);
  int64_t (*begin_node)(const MothNode *n);
  int64_t (*begin_compiled)(const char *name);
  void (*end)(int64_t at); /* of the last two */
} MothObserver;
extern const MothObserver *moth_observer; /* read and set atomically */
static inline const MothObserver *moth_observed(void) {
  return __atomic_load_n(&moth_observer, __ATOMIC_ACQUIRE);
}

/* Runs a call from the top. args must be complete and of the right tags (see moth_op_check); they are not changed: all
 * steps see a canonical copy (moth_canonical). */
MOTH_API MothStatus moth_dispatch(MothCall *c);
/* Continues below the step that calls it. */
MOTH_API MothStatus moth_redispatch(MothCall *c);
/* The same, where tensors of the call may have changed since it began: sets its keys anew. */
MothStatus moth_redispatch_anew(MothCall *c);
/* Converts a position from 0 to one from 1; for an integer of argument a, if that is a position. */
static inline int64_t moth_from_one(int64_t i) {
  return i >= 0 && i < INT64_MAX ? i + 1 : i;
}
static inline int64_t moth_as_lua_counts(const MothArg *a, int64_t i) {
  bool position = a->type == MOTH_T_DIM || a->type == MOTH_T_INDEX || a->type == MOTH_T_DIMS;
  return position ? moth_from_one(i) : i;
}
/* Writes "add [Autograd, CPU]  self: float32 [2, 3] cpu, other: 2, alpha: 1", cut to n bytes. */
MOTH_API void moth_call_describe(const MothCall *c, char *text, size_t n);
/* Checks tags, fills defaults. args has room for op->nargs. */
MOTH_API MothStatus moth_op_check(const MothOp *op, int given, MothValue *args);
/* As moth_op_call with a variant and targets. */
MOTH_API MothStatus moth_op_call_variant(const MothOp *op, MothVariant variant, int nargs,
                                         const MothValue *args, MothTensor **targets,
                                         MothValue *results);
/* Calls an op with its first nargs arguments and returns its one result, for derivatives and composites. */
MothStatus moth_call1(const MothOp *op, int nargs, const MothValue *args, MothTensor **out);

/* Runs a kernel of a call whose canonical arguments, compute dtype and results are there, as the dispatcher does below its
 * steps: Ctrl-C stops it, an error names op and arguments. */
MothStatus moth_run_bound(MothCall *c, MothKernel kernel);
/* Between these two, Ctrl-C stops loops of kernels that fill fresh results only. `begin` returns what `end` takes; it
 * fails if they were stopped. */
const volatile sig_atomic_t *moth_stoppable_begin(void);
MothStatus moth_stoppable_end(const volatile sig_atomic_t *outer);

/* Copies the call's results to its targets, unless they are the same tensors: for steps that make results themselves. */
MOTH_API MothStatus moth_put_in_targets(MothCall *c);

/* *out, a new tensor, with what t carries: of its class, or batched, with an own copy for each element. On an error
 * *out is released. */
MOTH_API MothStatus moth_made_as(const MothTensor *t, MothTensor **out);
/* For factories called on behalf of t, which is not an argument: the result is fake if t is, and carries what t does.
 *   uint32_t keep = moth_enter_as(t);
 *   return moth_leave_as(keep, t, moth_zeros(…, out), out); */
static inline uint32_t moth_enter_as(const MothTensor *t) {
  uint32_t keep = moth_thread_state()->include;
  if (!(t->keys & MOTH_KEY_META)) /* beside one of the device meta a tensor of the CPU is real */
    moth_thread_state()->include |= t->keys & MOTH_KEY_FAKE;
  return keep;
}
static inline MothStatus moth_leave_as(uint32_t keep, const MothTensor *t, MothStatus s,
                                       MothTensor **out) {
  moth_thread_state()->include = keep;
  return s == MOTH_OK && t->carried ? moth_made_as(t, out) : s;
}

/* Autograd's step, set by src/autograd; NULL passes. */
extern MothStatus (*moth_autograd_step)(MothCall *c);
/* The same: that of tangents. */
extern MothStatus (*moth_tangent_step)(MothCall *c);

/* --- shape rules and results -------------------------------------------------------------------------- */

MothStatus moth_meta_too_long(int ndim, const int64_t *shape);
/* m: a tensor of this dtype and shape. */
static inline MothStatus moth_meta_set(MothMeta *m, MothDType dtype, int ndim,
                                       const int64_t *shape) {
  if (__builtin_expect((unsigned)ndim > MOTH_MAX_DIMS, 0))
    return moth_meta_too_long(ndim, shape);
  m->dtype = (uint8_t)dtype;
  m->ndim = (uint8_t)ndim;
  for (int i = 0; i < ndim; i++)
    m->shape[i] = shape[i];
  return MOTH_OK;
}
/* m: a view of t. */
static inline MothStatus moth_meta_set_view(MothMeta *m, const MothTensor *t, int ndim,
                                            const int64_t *shape, const int64_t *stride,
                                            int64_t offset) {
  MOTH_TRY(moth_meta_set(m, (MothDType)t->dtype, ndim, shape));
  for (int i = 0; i < ndim; i++)
    m->stride[i] = stride[i];
  m->offset = offset;
  return MOTH_OK;
}
/* Makes the results of c as its rule describes them: views, the first argument, a target that can be written to
 * directly, else new memory. */
MothStatus moth_make_results(MothCall *c, const MothMeta *metas);
/* Makes result i: for kernels whose results' sizes depend on elements. */
MothStatus moth_result(MothCall *c, int i, MothDType dtype, int ndim, const int64_t *shape);
/* Makes the arguments canonical as their types say (canonical.c). Changed arguments are written to `own`, which has
 * MOTH_MAX_ARGS values and becomes c->args, and in `workspace`, MOTH_CANONICAL_WORKSPACE numbers for lists; both live
 * as long as the call. */
enum { MOTH_CANONICAL_WORKSPACE = 4 * MOTH_MAX_DIMS };
MothStatus moth_canonical(MothCall *c, MothValue *own, int64_t *workspace);
/* dim in [-ndim, ndim) to [0, ndim); a 0-dim tensor counts as having one dimension. */
MOTH_API MothStatus moth_wrap_dim(int64_t dim, int ndim, int *out);
/* The shape that a and b broadcast to. */
MOTH_API MothStatus moth_broadcast(int na, const int64_t *a, int nb, const int64_t *b, int *nout,
                                   int64_t *out);
/* The common dtype of n values (tensors and numbers) by PyTorch's three categories: tensors with
 * dimensions, 0-dim tensors, numbers. */
MOTH_API MothStatus moth_result_type(int n, const MothValue *values, MothDType *out);
/* Whether an op has kernels for a dtype for storage, as uint16. */
MothStatus moth_check_opt_in(const MothOp *op, MothDType dtype);
#endif
