/* Storage and tensor: (storage, shape, stride, offset, dtype, device, requires_grad). */
#ifndef MOTH_CORE_TENSOR_H
#define MOTH_CORE_TENSOR_H
#include "core/error.h"
#include "moth.h"

#ifdef __cplusplus /* the .cu files, which do not use reference counts */
typedef int64_t MothRefs;
#else
#include <stdatomic.h>
typedef _Atomic int64_t MothRefs;
#endif

/* Dispatch keys: one bit for each step that may handle a call. A tensor has the keys of the steps that it needs; a
 * thread adds and removes some (src/dispatch). */
enum {
  MOTH_KEY_CPU = 1u << MOTH_CPU,
  MOTH_KEY_CUDA = 1u << MOTH_CUDA,
  MOTH_KEY_META = 1u << MOTH_META, /* and always MOTH_KEY_FAKE */
  MOTH_KEY_USER = 1u << MOTH_USER,
  MOTH_KEY_FAKE = 1u << 8,
  MOTH_KEY_BELOW = 1u << 9, /* interceptors below autograd */
  MOTH_KEY_AUTOGRAD = 1u << 10,
  MOTH_KEY_AUTOCAST = 1u << 11,
  MOTH_KEY_ABOVE = 1u << 12,  /* interceptors above everything */
  MOTH_KEY_OPT_IN = 1u << 14, /* of a dtype that ops have only if their records say so */
  /* Of a tensor: queued work may be writing its elements (device/stream.h). Of a thread: its kernels are queued. */
  MOTH_KEY_PENDING = 1u << 15,
  /* Of a tensor: a recorded call is to make it, which has not run yet; fake until then (src/graph/trace.h). */
  MOTH_KEY_LAZY = 1u << 16,
  MOTH_KEY_BATCH = 1u << 17,   /* of a tensor: it stands for one of a batch (dispatch/batch.h) */
  MOTH_KEY_TANGENT = 1u << 18, /* of a tensor: it has a tangent (autograd/tangent.h) */
  MOTH_KEYS_DEVICE = 0xff,
  MOTH_KEYS_DATA = MOTH_KEYS_DEVICE | MOTH_KEY_FAKE | MOTH_KEY_OPT_IN |
                   MOTH_KEY_PENDING /* keys that follow from storage and dtype */
};

struct MothStorage {
  MothRefs refs;
  void *data; /* NULL for fake ones */
  size_t nbytes;
  MothDevice device;
  bool embedded;   /* data is in the same block, behind this header */
  bool foreign;    /* the host owns data: `release`, if set, is called instead of freeing it */
  bool released;   /* its memory was released: moth_storage_resize */
  bool moved;      /* and may have another address since: the dispatcher sets it in tensors */
  bool computed;   /* the host makes it anew each time a field is read: writing to it is an error */
  int64_t version; /* bumped by every write through any view */
  void (*release)(void *ctx); /* foreign memory: called instead of freeing */
  void *ctx;
  void *pending; /* ticket of the queued work that writes to it last; for src/device/queue.c */
};

/* A separate version counter, for `.data`, which shares bytes but not versions. */
typedef struct MothVersion {
  MothRefs refs;
  int64_t value;
} MothVersion;

/* Data attached to a tensor: the class of the host's subclass, or a batch. Constant, so that a tensor
 * shares it with its aliases (detach, saved values). Views and results of ops have none, unless a step of the
 * dispatcher sets it. */
typedef struct MothCarried {
  MothRefs refs;
  uint32_t keys; /* the steps of the dispatcher that it needs */
  void (*release)(struct MothCarried *c);
} MothCarried;

typedef struct MothAutogradMeta MothAutogradMeta; /* src/autograd */

struct MothTensor {
  MothRefs refs;
  uint32_t keys;
  uint8_t dtype;
  MothDevice device;
  uint8_t ndim;
  bool contiguous; /* row-major without gaps: follows from shape and stride */
  bool is_number;  /* a complex number of the host language, 0-dim: one in promotion, too */
  uint32_t
      number; /* among the values of the calls being recorded: a hint, to be checked (graph/trace.h) */
  int64_t numel;
  int64_t offset;
  MothStorage *storage;
  char *data;           /* first element, or NULL */
  MothVersion *version; /* NULL: that of the storage */
  MothTensor *base; /* of a view: the tensor that it is a view of (never a view itself), or NULL */
  MothAutogradMeta *grad; /* NULL until autograd needs it */
  MothCarried *carried;   /* NULL: nothing */
  int64_t shape[MOTH_MAX_DIMS];
  int64_t stride[MOTH_MAX_DIMS];
};

/* Set by src/device: waits for the work that writes to t; releases a ticket; waits for all queued work, without
 * raising its errors. */
MOTH_API extern MothStatus (*moth_tensor_await)(MothTensor *t);
extern void (*moth_pending_drop)(void *ticket);
extern void (*moth_pending_drain)(void);
MOTH_API MothStatus moth_batch_unreadable(const MothTensor *t); /* the error */
/* To be called before elements of t are read or written on the host. Errors: those of the work; t is batched. */
static inline MothStatus moth_tensor_ready(const MothTensor *t) {
  if (__builtin_expect(t->keys & (MOTH_KEY_PENDING | MOTH_KEY_BATCH), 0))
    return t->keys & MOTH_KEY_BATCH ? moth_batch_unreadable(t) : moth_tensor_await((MothTensor *)t);
  return MOTH_OK;
}

/* Recorded calls of this thread that have not run yet, in a word: MOTH_UNRUN_ANY, MOTH_UNRUN_WRITES (one of them
 * writes to a tensor that was there before). moth_run_unrun, set by src/graph, runs them; `what` is who needs it. */
enum { MOTH_UNRUN_ANY = 1, MOTH_UNRUN_WRITES = 2 };
extern MothStatus (*moth_run_unrun)(const char *what);
#ifndef __cplusplus
MOTH_API extern _Thread_local uint32_t moth_unrun __attribute__((tls_model("initial-exec")));
/* To be called by functions of the C API that look at what a recorded call may still change. Errors: of the calls. */
static inline MothStatus moth_settle(const char *what) {
  return __builtin_expect(moth_unrun != 0, 0) ? moth_run_unrun(what) : MOTH_OK;
}
#endif

/* Set by src/autograd: frees a tensor's MothAutogradMeta. */
extern void (*moth_tensor_drop_grad)(MothTensor *t);

static inline int64_t moth_itemsize(const MothTensor *t) {
  return moth_dtype_size((MothDType)t->dtype);
}

static inline int64_t *moth_version_of(MothTensor *t) {
  return t->version ? &t->version->value : &t->storage->version;
}

/* The number of elements, or an error on negative sizes and overflow (bytes included). */
MothStatus moth_shape_numel(int ndim, const int64_t *shape, int64_t itemsize, int64_t *numel);

/* A view of t's storage with a geometry of its own. `checked` geometry must lie inside the storage:
 * this is verified. The view's base is t or t's base. */
MOTH_API MothStatus moth_tensor_view(MothTensor *t, int ndim, const int64_t *shape,
                                     const int64_t *stride, int64_t offset, MothTensor **out);
/* The same in another dtype: stride and offset count its elements. The caller sees to alignment. */
MOTH_API MothStatus moth_tensor_view_as(MothTensor *t, MothDType dtype, int ndim,
                                        const int64_t *shape, const int64_t *stride, int64_t offset,
                                        MothTensor **out);
/* The same bytes without history: detach (shared version) or, with fresh_version, `.data`. The alias carries what t
 * carries. */
MOTH_API MothStatus moth_tensor_alias(MothTensor *t, bool fresh_version, MothTensor **out);
/* Sets t->carried (takes over the reference; NULL: nothing). */
MOTH_API void moth_tensor_carry(MothTensor *t, MothCarried *carried);
/* Shares src->carried. */
void moth_tensor_carry_as(MothTensor *t, const MothTensor *src);
/* Gives t the elements of src: storage, geometry, dtype and device change; t's identity, its place in the graph and
 * its version stay, so that backward of nodes that saved t runs on the new elements. For leaves that are no views
 * (modules move parameters with it). */
MOTH_API MothStatus moth_tensor_set_data(MothTensor *t, MothTensor *src);
/* The number of storages in the process whose memory was released or has moved: while there are any, the dispatcher
 * checks each tensor. */
#ifndef __cplusplus
MOTH_API extern _Atomic int64_t moth_released_storages;
#endif
/* Updates the address of t's elements; an error if its storage has no memory. */
MOTH_API MothStatus moth_tensor_check_memory(MothTensor *t);
/* What a recorded call will make: a fake with the key LAZY and no storage of its own, to which the caller gives its shape
 * and strides. moth_tensor_become makes t, lazy, what made is, with its elements, version, base and carried data, and
 * releases made; its history only where nobody else refers to made: else the caller gives t one. */
MothStatus moth_tensor_new_lazy(MothDType dtype, MothDevice device, MothTensor **out);
void moth_tensor_become(MothTensor *t, MothTensor *made);
/* A shape-only tensor. */
MOTH_API MothStatus moth_tensor_new_fake(int ndim, const int64_t *shape, MothDType dtype,
                                         MothDevice device, MothTensor **out);
/* A fake of t: its strides and offset in a storage of as many bytes. */
MOTH_API MothStatus moth_tensor_fake_of(const MothTensor *t, MothTensor **out);
/* Sets t->contiguous from shape and stride, after a change of these. */
void moth_tensor_update_contiguous(MothTensor *t);

/* Whether two elements of t share memory (stride 0 or crossing): writing to t would race. */
bool moth_tensor_self_overlaps(const MothTensor *t);
/* Whether a and b share bytes: 0 no, 1 exactly the same elements in the same order, 2 partly. */
MOTH_API int moth_tensor_overlap(const MothTensor *a, const MothTensor *b);

/* Writes "[2, 3]" into buf and returns it. */
MOTH_API const char *moth_shape_format(int ndim, const int64_t *shape, char *buf, size_t n);
/* Writes "float32 [2, 3] cpu". */
MOTH_API const char *moth_tensor_format(const MothTensor *t, char *buf, size_t n);

static inline void moth_contiguous_strides(int ndim, const int64_t *shape, int64_t *stride) {
  int64_t s = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    stride[i] = s;
    s *= shape[i] > 1 ? shape[i] : 1;
  }
}
#endif
