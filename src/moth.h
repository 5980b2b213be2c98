/* moth.h — the public C API of moth; the entries of the ops are in moth_ops.h.
 *
 * Conventions
 *  - Functions that can fail return MothStatus; the message is in moth_last_error() (per thread).
 *  - Arguments are borrowed, results are owned by the caller: release them with moth_tensor_release.
 *  - Outputs come last. Sizes, strides and offsets count elements, as int64_t. Positions count from 0
 *    (the Lua API counts from 1).
 * - Nothing here aborts, exits, prints or longjmps. A NULL that is not allowed, a negative count, an enum out of
 * range are errors; functions that return a value then return 0, false, NULL, "?" or MOTH_NDTYPES. Release takes
 * NULL. - Every op of the op table (src/ops) has an entry moth_<name> in moth_ops.h, which is installed beside this
 * file. */
#ifndef MOTH_H
#define MOTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moth_dtypes.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MOTH_VERSION     "0.1.0"
#define MOTH_API         __attribute__((visibility("default")))
#define MOTH_MAX_DIMS    16
#define MOTH_MAX_RESULTS 4

typedef enum MothStatus {
  MOTH_OK = 0,
  MOTH_ERR_VALUE,      /* an argument has a wrong value, shape or dtype */
  MOTH_ERR_TYPE,       /* an argument is of a wrong kind */
  MOTH_ERR_INDEX,      /* a position is out of range */
  MOTH_ERR_MEMORY,     /* no memory */
  MOTH_ERR_IO,         /* the system refused: path and errno are in the message */
  MOTH_ERR_STATE,      /* the call is not possible now (a freed graph, a released tensor) */
  MOTH_ERR_HOST,       /* an error of the host language, kept by the binding */
  MOTH_ERR_INTERRUPTED /* the host's flag for Ctrl-C was set in the middle of an op */
} MothStatus;

/* Tensors of MOTH_META have a shape and a dtype, but no memory: they are fake. Types from MOTH_USER on are those of
 * backends that were registered. */
typedef enum MothDeviceType {
  MOTH_CPU = 0,
  MOTH_CUDA,
  MOTH_META,
  MOTH_USER,
  MOTH_NDEVICES = 8 /* the largest number of types */
} MothDeviceType;

typedef struct MothDevice {
  uint8_t type; /* MothDeviceType */
  uint8_t index;
} MothDevice;

typedef struct MothStorage MothStorage;
typedef struct MothTensor MothTensor;
typedef struct MothGenerator MothGenerator;
typedef struct MothNode MothNode;
typedef struct MothOp MothOp;
typedef struct MothCall MothCall;

/* A value: an argument or result of an op. 16 bytes. `n` is the length of a list; of an integer it is 1 if `i` has
 * the bits of a uint64_t from 2^63 on (moth_v_uint). */
typedef enum MothTag {
  MOTH_V_NONE = 0,
  MOTH_V_BOOL,
  MOTH_V_INT,
  MOTH_V_FLOAT,
  MOTH_V_TENSOR,
  MOTH_V_INTS,
  MOTH_V_TENSORS,
  MOTH_V_STRING,
  MOTH_V_DTYPE,
  MOTH_V_DEVICE,
  MOTH_V_GENERATOR
} MothTag;

typedef struct MothValue {
  union {
    bool b;
    int64_t i; /* also dtype codes, and devices as type << 8 | index */
    double d;
    MothTensor *t;
    const int64_t *ints;
    MothTensor **tensors;
    const char *s;
    MothGenerator *g;
  } u;
  uint32_t tag; /* MothTag */
  uint32_t n;
} MothValue;

static inline MothValue moth_v_none(void) {
  MothValue v = {{.i = 0}, MOTH_V_NONE, 0};
  return v;
}
static inline MothValue moth_v_bool(bool b) {
  MothValue v = {{.i = b}, MOTH_V_BOOL, 0};
  return v;
}
static inline MothValue moth_v_int(int64_t i) {
  MothValue v = {{.i = i}, MOTH_V_INT, 0};
  return v;
}
static inline MothValue moth_v_uint(uint64_t i) {
  MothValue v = {{.i = (int64_t)i}, MOTH_V_INT, i > INT64_MAX};
  return v;
}
static inline MothValue moth_v_float(double d) {
  MothValue v = {{.d = d}, MOTH_V_FLOAT, 0};
  return v;
}
/* A NULL tensor is the absent optional argument. */
static inline MothValue moth_v_tensor(MothTensor *t) {
  MothValue v = {{.t = t}, MOTH_V_NONE, 0};
  if (t)
    v.tag = MOTH_V_TENSOR;
  return v;
}
static inline MothValue moth_v_ints(const int64_t *ints, uint32_t n) {
  MothValue v = {{.ints = ints}, MOTH_V_INTS, n};
  return v;
}
static inline MothValue moth_v_tensors(MothTensor **tensors, uint32_t n) {
  MothValue v = {{.tensors = tensors}, MOTH_V_TENSORS, n};
  return v;
}
static inline MothValue moth_v_string(const char *s) {
  MothValue v = {{.s = s}, MOTH_V_STRING, 0};
  return v;
}
static inline MothValue moth_v_dtype(MothDType d) {
  MothValue v = {{.i = (int64_t)d}, MOTH_V_DTYPE, 0};
  return v;
}
static inline MothValue moth_v_device(MothDevice d) {
  MothValue v = {{.i = (int64_t)d.type << 8 | d.index}, MOTH_V_DEVICE, 0};
  return v;
}
static inline MothValue moth_v_generator(MothGenerator *g) {
  MothValue v = {{.g = g}, MOTH_V_NONE, 0};
  if (g)
    v.tag = MOTH_V_GENERATOR;
  return v;
}

/* --- errors and version ----------------------------------------------------------------------- */

/* MOTH_VERSION of the library that runs, which may not be the one of this header. */
MOTH_API const char *moth_version(void);

/* The message of the last failed call on this thread: "[op] what; got ...". Valid until the next one. */
MOTH_API const char *moth_last_error(void);

/* --- dtypes ----------------------------------------------------------------------------------- */

MOTH_API const char *moth_dtype_name(MothDType d);
MOTH_API int64_t moth_dtype_size(MothDType d); /* bytes */
MOTH_API bool moth_dtype_is_float(MothDType d);
/* The dtype of an operation between a and b: float beats int beats bool; within a class the wider one;
 * float16 with bfloat16 gives float32, uint8 with int8 gives int16 (as in PyTorch). */
MOTH_API MothDType moth_dtype_promote(MothDType a, MothDType b);
MOTH_API MothDType moth_default_dtype(void);
MOTH_API MothStatus moth_set_default_dtype(MothDType d);

/* --- tensors ---------------------------------------------------------------------------------- */

/* A new uninitialised row-major tensor. Errors: negative sizes, too many dimensions, overflow, memory. */
MOTH_API MothStatus moth_tensor_new(int ndim, const int64_t *shape, MothDType dtype,
                                    MothDevice device, MothTensor **out);
/* A tensor over foreign memory: `release(ctx)` (may be NULL) is called when the last view is freed. */
MOTH_API MothStatus moth_tensor_from_ptr(void *data, int ndim, const int64_t *shape,
                                         MothDType dtype, void (*release)(void *ctx), void *ctx,
                                         MothTensor **out);
MOTH_API void moth_tensor_retain(MothTensor *t);
MOTH_API void moth_tensor_release(MothTensor *t); /* NULL is allowed */

MOTH_API int moth_tensor_ndim(const MothTensor *t);
MOTH_API const int64_t *moth_tensor_shape(const MothTensor *t);
MOTH_API const int64_t *moth_tensor_stride(const MothTensor *t);
MOTH_API int64_t moth_tensor_offset(const MothTensor *t);
MOTH_API int64_t moth_tensor_numel(const MothTensor *t);
MOTH_API MothDType moth_tensor_dtype(const MothTensor *t);
MOTH_API MothDevice moth_tensor_device(const MothTensor *t);
MOTH_API void *moth_tensor_data(const MothTensor *t); /* first element; NULL if fake or empty */
MOTH_API bool moth_tensor_is_contiguous(const MothTensor *t);
MOTH_API bool moth_tensor_is_fake(const MothTensor *t);
MOTH_API int64_t moth_tensor_version(const MothTensor *t);
/* Bytes of t's storage; 0 while its memory is released. */
MOTH_API int64_t moth_storage_nbytes(const MothTensor *t);
/* Releases the memory of t's storage, which its views share (nbytes = 0), or allocates it again, uninitialised
 * (nbytes = its full size). The tensors and their versions do not change, so that a program can fill saved tensors
 * again before backward. Ops that read them in between fail. Errors: foreign memory, fake tensors, other sizes, no
 * memory. Not while another thread uses it. */
MOTH_API MothStatus moth_storage_resize(MothTensor *t, int64_t nbytes);
/* The single element as a value (int, float or bool). Errors: numel != 1, fake. */
MOTH_API MothStatus moth_tensor_item(const MothTensor *t, MothValue *out);

/* --- autograd --------------------------------------------------------------------------------- */

MOTH_API bool moth_tensor_requires_grad(const MothTensor *t);
MOTH_API MothStatus moth_tensor_set_requires_grad(MothTensor *t, bool on);
MOTH_API bool moth_tensor_is_leaf(const MothTensor *t);
MOTH_API MothTensor *moth_tensor_grad(const MothTensor *t); /* borrowed, may be NULL */
MOTH_API MothStatus moth_tensor_set_grad(MothTensor *t, MothTensor *grad); /* retains grad */
MOTH_API MothStatus moth_tensor_retain_grad(MothTensor *t);
/* Accumulates d(sum of roots * grads)/d(leaf) into the .grad of every leaf. grads[i] may be NULL for a
 * one-element root. Errors: a freed graph, a saved tensor that was modified, shapes. */
MOTH_API MothStatus moth_backward(MothTensor **roots, MothTensor **grads, int n, bool retain_graph,
                                  bool create_graph);
/* d(sum of roots * grads)/d(inputs) into out[0..ninputs) (owned; NULL where unused and allowed). */
MOTH_API MothStatus moth_grad(MothTensor **roots, MothTensor **grads, int n, MothTensor **inputs,
                              int ninputs, bool retain_graph, bool create_graph, bool allow_unused,
                              MothTensor **out);
/* Hooks. `ctx` belongs to the hook: release(ctx), if not NULL, is called once, on any thread, when the hook is
 * removed or its tensor or node is freed; not if the registration fails. Hooks run on the thread that calls backward,
 * in the order of their registration; an error of a hook ends the backward. A hook may register and remove hooks,
 * also itself: new ones run from the next pass on. *id (may be NULL) is for moth_tensor_remove_hook. Hooks of a
 * result end when a backward without retain_graph frees what the op saved. */
typedef MothStatus (*MothGradHook)(void *ctx, MothTensor *grad, MothTensor **out);
typedef MothStatus (*MothLeafHook)(void *ctx, MothTensor *leaf);
typedef MothStatus (*MothCallback)(void *ctx, MothStatus status);
typedef void (*MothRelease)(void *ctx);

/* run(ctx, grad, &out) when the gradient of t is complete, before it is added to .grad: it may set *out, which is
 * NULL, to a replacement of the same shape (then owned by the engine). Errors: t requires no gradient. */
MOTH_API MothStatus moth_tensor_register_hook(MothTensor *t, MothGradHook run, MothRelease release,
                                              void *ctx, int64_t *id);
/* run(ctx, leaf) after a gradient was added to the .grad of a leaf; the leaf is borrowed. Errors: t is no leaf that
 * requires a gradient. */
MOTH_API MothStatus moth_tensor_register_post_accumulate_grad_hook(MothTensor *t, MothLeafHook run,
                                                                   MothRelease release, void *ctx,
                                                                   int64_t *id);
/* Removes a hook of t; does nothing if t has none of this id. */
MOTH_API void moth_tensor_remove_hook(MothTensor *t, int64_t id);
/* run(ctx, status) on this thread at the end of the outermost running backward, with its status: callbacks run after
 * errors, too, in their order, and may queue more. If the backward succeeded, the first error of a callback becomes
 * its error. Errors: no backward runs on this thread. */
MOTH_API MothStatus moth_queue_callback(MothCallback run, MothRelease release, void *ctx);

/* Functions that pack the tensors that the graph saves. pack(ctx, t, &packed) is called for each tensor that is saved
 * for backward, without recording; t is a leaf itself, or an alias without history, and must not be written to.
 * unpack(ctx, packed, &out) is called each time that backward reads it: a tensor of the same shape, dtype and device,
 * owned by the caller. drop(ctx, packed) is called when a packed value is not needed any more, on any thread;
 * release(ctx) after the last of them. drop and release may be NULL. */
typedef struct MothSavedTensorsHooks {
  MothStatus (*pack)(void *ctx, MothTensor *t, void **packed);
  MothStatus (*unpack)(void *ctx, void *packed, MothTensor **out);
  void (*drop)(void *ctx, void *packed);
  MothRelease release;
  void *ctx;
} MothSavedTensorsHooks;
/* Uses these functions on this thread until the pop; of nested ones the innermost. Errors: they are disabled; memory. */
MOTH_API MothStatus moth_push_saved_tensors_hooks(const MothSavedTensorsHooks *hooks);
/* Until the pop, moth_push_saved_tensors_hooks fails with this message. Errors: hooks are in use (with the message). */
MOTH_API MothStatus moth_push_disabled_saved_tensors_hooks(const char *message);
MOTH_API void moth_pop_saved_tensors_hooks(void); /* nothing if there are none */

MOTH_API bool moth_grad_enabled(void);
MOTH_API bool moth_set_grad_enabled(bool on); /* returns what it was; per thread */

/* --- generators ------------------------------------------------------------------------------- */

/* The default generator is that of the running Lua state, else of the thread (src/core/defaults.h). Philox-4x32-10
 * counters: the bits depend on seed and position only, never on threads or device. */
MOTH_API MothGenerator *moth_default_generator(void);
MOTH_API MothGenerator *moth_generator_new(uint64_t seed); /* NULL: no memory */
MOTH_API void moth_generator_retain(MothGenerator *g);
MOTH_API void moth_generator_release(MothGenerator *g);
MOTH_API void moth_generator_seed(MothGenerator *g, uint64_t seed);
MOTH_API void moth_generator_get_state(const MothGenerator *g, uint64_t *seed, uint64_t *offset);
MOTH_API void moth_generator_set_state(MothGenerator *g, uint64_t seed, uint64_t offset);

/* --- memory and threads ----------------------------------------------------------------------- */

typedef struct MothMemStats {
  int64_t live;   /* allocated bytes */
  int64_t peak;   /* the largest value of live (since reset) */
  int64_t cached; /* bytes kept for reuse */
  int64_t allocs; /* calls */
  int64_t system; /* calls that allocated from the system */
} MothMemStats;

MOTH_API void moth_memory_stats(MothMemStats *out);
MOTH_API void moth_memory_reset_peak(void);
MOTH_API void moth_memory_empty_cache(void);
/* For tests: the n-th allocation from now fails (n = 0: never); with `forever`, all later ones too. */
MOTH_API void moth_memory_fail_at(int64_t n, bool forever);
MOTH_API int moth_num_threads(void);
MOTH_API MothStatus moth_set_num_threads(int n);
MOTH_API const char *moth_cpu_level(void); /* generic, avx2, avx512; neon */
MOTH_API MothStatus
moth_set_cpu_level(const char *level); /* an error if the CPU does not have it */

/* --- streams and events ----------------------------------------------------------------------- */

/* A stream is a queue of work on a device: its work runs in order, beside the calling thread and beside other streams.
 * On the CPU a stream is a thread with a queue, and the default stream is the calling thread itself, whose work is done
 * when the call returns. While a stream is current, ops on its device are queued there: calls return at once, tensors
 * that the work uses stay alive until it is done, and an error of the work is that of the call that waits for it next.
 * On the CPU reading a result of queued work waits for it, except through raw pointers: synchronize before you use
 * them. The caller must wait for work in another stream that writes to a tensor. */
typedef struct MothStream MothStream;
typedef struct MothEvent MothEvent;

/* A stream, owned. priority: 0, or -1 for high priority, where the device has it. */
MOTH_API MothStatus moth_stream_new(MothDevice device, int priority, MothStream **out);
MOTH_API MothStatus moth_stream_default(MothDevice device, MothStream **out); /* owned */
MOTH_API MothStatus moth_stream_current(MothDevice device,
                                        MothStream **out); /* of this thread; owned */
MOTH_API void moth_stream_retain(MothStream *s);
MOTH_API void moth_stream_release(MothStream *s); /* queued work still runs; NULL is allowed */
/* Makes s this thread's current stream of its device. */
MOTH_API MothStatus moth_stream_set_current(MothStream *s);
MOTH_API MothDevice moth_stream_device(const MothStream *s);
MOTH_API int moth_stream_priority(const MothStream *s);
MOTH_API void *moth_stream_handle(const MothStream *s); /* CUDA: its cudaStream_t */
/* Waits for all queued work, and returns its first error. Ctrl-C ends the wait. */
MOTH_API MothStatus moth_stream_synchronize(MothStream *s);
MOTH_API MothStatus moth_device_synchronize(MothDevice device); /* all streams of a device */
MOTH_API MothStatus moth_stream_query(MothStream *s, bool *done);
/* Later work on s waits for the present work of `other`. */
MOTH_API MothStatus moth_stream_wait_stream(MothStream *s, MothStream *other);
/* Queues run(ctx) on a stream of the CPU; drop(ctx) (may be NULL) follows it, also if it was skipped because work
 * before it failed. Both run on the stream's thread. After an error neither is called. */
MOTH_API MothStatus moth_stream_submit(MothStream *s, MothStatus (*run)(void *ctx),
                                       void (*drop)(void *ctx), void *ctx);
/* Declares that work on s uses t, which was made on another stream: its memory is not reused before that work is
 * done. */
MOTH_API MothStatus moth_tensor_record_stream(MothTensor *t, MothStream *s);

/* An event marks a position in a stream of its type of device; its index is that of the stream in which it is
 * recorded first. timing: it has a time for moth_event_elapsed. */
MOTH_API MothStatus moth_event_new(MothDeviceType type, bool timing, MothEvent **out);
MOTH_API void moth_event_free(MothEvent *e);                        /* NULL is allowed */
MOTH_API MothStatus moth_event_record(MothEvent *e, MothStream *s); /* NULL: the current one */
MOTH_API MothStatus moth_event_wait(MothEvent *e,
                                    MothStream *s); /* s (NULL: the current one) waits for it */
MOTH_API MothStatus moth_event_query(MothEvent *e, bool *done); /* true if it was never recorded */
MOTH_API MothStatus moth_event_synchronize(MothEvent *e);
/* ms: from `from` to `to`. Errors: without timing, not recorded, not done yet. */
MOTH_API MothStatus moth_event_elapsed(MothEvent *from, MothEvent *to, double *ms);

/* --- ops by name ------------------------------------------------------------------------------ */

typedef MothStatus (*MothKernel)(MothCall *c);

MOTH_API const MothOp *moth_op_find(const char *name); /* NULL: no such op */
/* Calls op with nargs leading arguments (defaults fill the rest); results are owned by the caller. */
MOTH_API MothStatus moth_op_call(const MothOp *op, int nargs, const MothValue *args,
                                 MothValue *results);
/* Shape, strides and dtype of a result. */
typedef struct MothMeta {
  int64_t shape[MOTH_MAX_DIMS];
  int64_t stride[MOTH_MAX_DIMS]; /* in elements */
  int64_t offset; /* of a view: of its first element in the storage of the first argument, else 0 */
  uint8_t ndim, dtype; /* dtype: MothDType */
  uint8_t compute;     /* pointwise ops: the MothDType that is computed in */
  MothDevice device;
} MothMeta;

/* Describes the results of a call without running it: out[i] is that of result i; out has space for MOTH_MAX_RESULTS.
 * Arguments are checked and completed as by moth_op_call; no element is read, nothing is allocated or counted, and
 * tensors may be fake. Errors: those that the call would raise before it computes; ops without a rule: composites,
 * and those whose sizes depend on elements (nonzero, masked_select). */
MOTH_API MothStatus moth_op_infer(const MothOp *op, int nargs, const MothValue *args,
                                  MothMeta *out);
/* Sets op's kernel for a backend. */
MOTH_API MothStatus moth_op_register(const char *name, MothDeviceType backend, MothKernel kernel);

/* --- devices of one's own ---------------------------------------------------------------------- */

/* A type of device. The host need not be able to read its memory: only these functions do. They may be called on any
 * thread. alloc returns NULL after moth_fail has said why; addresses may be added to. to_host and from_host move n
 * bytes, and are done when they return. */
typedef struct MothBackend {
  const char *name;                  /* up to 31 letters, digits and _: "mydev" */
  const char *(*why_not)(int index); /* why a device cannot be used, or NULL. NULL: there is 0 */
  void *(*alloc)(int index, size_t n);
  void (*free)(int index, void *p, size_t n);
  MothStatus (*to_host)(int index, void *host, const void *device, size_t n);
  MothStatus (*from_host)(int index, void *device, const void *host, size_t n);
  MothKernel
      fallback; /* of ops without a kernel for it, such as moth_call_on_cpu; NULL: they are errors */
} MothBackend;

/* Adds a type of device; *b is copied, its name too. Errors: the name is malformed or taken, a function but why_not and
 * fallback is NULL, there are MOTH_NDEVICES types already. */
MOTH_API MothStatus moth_backend_add(const MothBackend *b,
                                     MothDeviceType *out); /* out may be NULL */
/* A kernel for any device: that of the CPU, on copies of the arguments. */
MOTH_API MothStatus moth_call_on_cpu(MothCall *c);

/* --- ops of one's own ------------------------------------------------------------------------- */

/* Sets the message of this thread and returns status: how a kernel fails. */
MOTH_API MothStatus moth_fail(MothStatus status, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* For kernels: the call that they compute. Arguments are borrowed, complete and checked against the schema. */
MOTH_API const char *moth_call_op(const MothCall *c);    /* its name */
MOTH_API void *moth_call_ctx(const MothCall *c);         /* MothOpDef.ctx */
MOTH_API MothDevice moth_call_device(const MothCall *c); /* where it runs */
MOTH_API MothValue moth_call_arg(const MothCall *c,
                                 int i); /* tag MOTH_V_NONE if there is no such argument */
MOTH_API void *
moth_call_stream(const MothCall *c); /* on CUDA the cudaStream_t to launch on, else NULL */
/* Result i, borrowed: of ops whose shape rule has made it, with elements that the kernel is to write; NULL: the kernel sets
 * it. */
MOTH_API MothTensor *moth_call_result(const MothCall *c, int i);
/* Result i, whose reference the call takes over. Errors: there is no such result; then t is released. An op whose
 * schema ends in `-> self` has no result to set. */
MOTH_API MothStatus moth_call_set_result(MothCall *c, int i, MothTensor *t);

/* Computes the gradients of the arguments whose bit is set in `need` into out[moth_node_edge(node, argument)] (owned; may
 * stay NULL for zero). grads[i] is that of result i, never NULL. Saved tensors are returned owned; other values
 * belong to the node. */
typedef MothStatus (*MothBackward)(MothNode *node, MothTensor *const *grads, uint32_t need,
                                   MothTensor **out);
MOTH_API MothStatus moth_node_arg(MothNode *n, int arg, MothValue *out);
MOTH_API MothStatus moth_node_result(MothNode *n, int result, MothValue *out);
MOTH_API int moth_node_edge(const MothNode *n, int arg);

/* An op that is defined while the program runs. Texts are copied; functions stay for ever. */
typedef struct MothOpDef {
  const char *schema; /* "mylib::scale(Tensor self, float by=2) -> Tensor" */
  const char *doc;    /* NULL: none */
  const char *place;  /* "scale.c:12"; NULL: not told */
  /* "extern" (NULL): has kernels. "random": also draws numbers. "effect": writes to arguments. "composite": made of
   * other ops, whose derivatives are its own if `backward` is NULL. */
  const char *kind;
  const char *amp; /* what autocast does: "keep" (NULL), "low", "high", "widest" */
  MothKernel cpu, cuda;
  MothKernel all;       /* for devices without a kernel of their own */
  MothKernel composite; /* of kind composite, in place of kernels */
  MothKernel
      fake; /* makes fake results of the right shapes and dtypes from fake arguments, by ops */
  MothBackward backward; /* NULL, and not composite: asking for a derivative is an error */
  const char *saves;     /* the arguments and results that it reads: "self by result" */
  const char *
      constant; /* arguments that results do not depend on differentiably; "all": there is no derivative */
  bool inplace; /* has a variant name_ that writes to the first argument */
  void *ctx;
} MothOpDef;

/* Adds an op. It is called by name, and from every Lua state: moth.ops.mylib.scale(x). The schema is parsed in Lua: a
 * state must be running moth.library.load. Errors: a malformed schema, a name without namespace or of an existing op. */
MOTH_API MothStatus moth_op_define(const MothOpDef *def, const MothOp **out); /* out may be NULL */
/* Removes a defined op: it is not found any more, and calls of it and of derivatives recorded before are errors. */
MOTH_API MothStatus moth_op_undefine(const MothOp *op);

/* The ops of a library of C: the body of MOTH_LIBRARY runs when the library is loaded.
 *
 *   MOTH_LIBRARY(my_ops, m) {
 *     moth_def(m, "twice(Tensor self) -> Tensor", twice);
 *     moth_def_op(m, &(MothOpDef){.schema = "scale(Tensor self, float by) -> Tensor", .all = scale});
 *   }
 *
 * Names without a namespace get the library's. The first error is kept, and the ops defined before it are removed:
 * moth.library.load raises the error, moth_library_error returns it, once (NULL: none on this thread). */
typedef struct MothLibrary MothLibrary;
MOTH_API void moth_def(MothLibrary *m, const char *schema, MothKernel kernel);
MOTH_API void moth_def_op(MothLibrary *m, const MothOpDef *def);
MOTH_API void moth_def_backend(MothLibrary *m, const MothBackend *b); /* moth_backend_add */
/* The kernel of any op for a type of device: moth_impl(m, "add", "mydev", add). */
MOTH_API void moth_impl(MothLibrary *m, const char *op, const char *device, MothKernel kernel);
MOTH_API void moth_library_run(const char *name, const char *place, const char *version,
                               void (*define)(MothLibrary *));
MOTH_API const char *moth_library_error(void);
#define MOTH_LIBRARY(name, m) MOTH_LIBRARY_NAMED(name, m) /* name may be a macro */
#define MOTH_LIBRARY_NAMED(name, m)                                                                \
  static void moth_library_##name(MothLibrary *m);                                                 \
  __attribute__((constructor)) static void moth_library_load_##name(void) {                        \
    moth_library_run(#name, __FILE__, MOTH_VERSION, moth_library_##name);                          \
  }                                                                                                \
  static void moth_library_##name(MothLibrary *m)

/* An op of the op table by its name, MOTH_OP(mul): a wrong name is an error of the linker. Inside of functions. */
#define MOTH_OP(name)                                                                              \
  (__extension__({                                                                                 \
    MOTH_API extern MothOp moth_op_##name;                                                         \
    (const MothOp *)&moth_op_##name;                                                               \
  }))

#ifdef __cplusplus
}
#endif
#endif
