/* The CUDA backend as the core and the binding see it: libmoth_cuda.so, opened when a CUDA device is
 * first asked for. Where it or a device is missing, the functions here report why. */
#ifndef MOTH_DEVICE_CUDA_H
#define MOTH_DEVICE_CUDA_H
#include "device/device.h"

/* Stands in the device table until the backend has been opened. */
extern const MothDeviceOps moth_cuda_device;
/* Why CUDA cannot be used here, or NULL. Opens the backend. */
MOTH_API const char *moth_cuda_why(void);

typedef struct MothCudaGraph MothCudaGraph;
typedef struct MothCudaProgram MothCudaProgram;
typedef struct MothCudaFunction MothCudaFunction; /* a kernel of a program; lives as long as that */

/* CUDA C to be compiled by NVRTC. Headers are found by their names in #include; kernels are expressions as "add",
 * "scale<float>" (names of extern "C" functions, of others, instances of templates). */
typedef struct MothCudaSource {
  const char *name, *text; /* the name stands in error messages */
  int nheaders, nkernels, noptions;
  const char *const *header_names, *const *headers;
  const char *const *kernels;
  const char *const *options; /* as -DN=4 */
  /* Not NULL: what `made` was called with for the same text, kernels, headers and options on a device of this
   * architecture; it is loaded and nothing is compiled. */
  const char *image;
  size_t image_size;
  MothStatus (*made)(void *ctx, const char *image, size_t n); /* may be NULL */
  void *ctx;
} MothCudaSource;

typedef struct MothCudaInfo {
  char name[128];
  int major, minor; /* compute capability */
  int multiprocessors, threads_per_multiprocessor, warp;
  size_t total, shared_per_block, l2; /* bytes */
} MothCudaInfo;

/* Current, peak, and the sums of all allocations and frees. */
typedef struct MothCudaCount {
  int64_t current, peak, allocated, freed;
} MothCudaCount;
typedef struct MothCudaMemory {
  /* bytes: allocated; allocated or waiting for a stream; requested by callers; reserved from CUDA */
  MothCudaCount allocated, active, requested, reserved;
  MothCudaCount blocks, segments; /* numbers: of allocated blocks; of segments from CUDA */
  int64_t retries;                /* allocations by CUDA that failed before the cache was flushed */
  int64_t ooms;                   /* errors that were raised */
} MothCudaMemory;

/* A block or the space between blocks, for a report: state 0 free, 1 in use, 2 waiting for a stream. */
typedef void (*MothCudaVisit)(void *ctx, const void *segment, size_t segment_size, bool small,
                              bool is_private, const MothStream *stream, const void *p, size_t size,
                              int state);

/* What a device did, for a profile. */
typedef enum MothCudaWorkKind { MOTH_CUDA_KERNEL, MOTH_CUDA_COPY, MOTH_CUDA_FILL } MothCudaWorkKind;
typedef struct MothCudaWork {
  int64_t begin, end; /* ns of CLOCK_MONOTONIC */
  int64_t bytes;      /* of copies and fills */
  const char *name;   /* NULL: all that the call launched */
  uint64_t id;        /* of the call that launched it, as trace_begin was told; 0: not known */
  uint64_t stream;
  int device;
  uint8_t kind;
} MothCudaWork;
typedef void (*MothCudaSeen)(void *ctx, const MothCudaWork *work);

enum { MOTH_CUDA_GLOBAL, MOTH_CUDA_THREAD_LOCAL, MOTH_CUDA_RELAXED }; /* capture modes */

/* The functions of the backend for moth.cuda. Devices are indices from 0, checked by the caller (moth_device_check). */
typedef struct MothCudaApi {
  /* devices */
  int (*count)(void);
  int (*current)(void);
  void (*set_current)(int device); /* of this thread */
  void (*info)(int device, MothCudaInfo *out);
  /* memory */
  MothStatus (*mem_get_info)(int device, size_t *available, size_t *total);
  void (*memory)(int device, MothCudaMemory *out);
  void (*visit)(int device, MothCudaVisit visit, void *ctx);
  void (*reset_peak)(int device);
  void (*reset_accumulated)(int device);
  MothStatus (*empty_cache)(int device);
  void (*set_fraction)(int device, double fraction);
  /* pinned memory */
  MothStatus (*pin)(MothTensor *t, MothTensor **out); /* a row-major copy in pinned memory */
  bool (*is_pinned)(const MothTensor *t);
  void (*pinned_memory)(int64_t *live, int64_t *cached); /* bytes */
  MothStatus (*empty_pinned_cache)(void);
  /* graphs; pool 0: one of its own, else as pool_new or graph_pool gave it */
  MothCudaGraph *(*graph_new)(void);
  void (*graph_free)(MothCudaGraph *g);
  MothStatus (*graph_begin)(MothCudaGraph *g, uint64_t pool, int mode); /* on the current stream */
  MothStatus (*graph_end)(MothCudaGraph *g);
  MothStatus (*graph_replay)(MothCudaGraph *g); /* on the current stream */
  MothStatus (*graph_reset)(MothCudaGraph *g);
  uint64_t (*graph_pool)(const MothCudaGraph *g);
  uint64_t (*pool_new)(void);
  bool (*is_capturing)(int device); /* whether this thread's current stream is */
  /* programs that are compiled at run time, for the architecture of a device. launch: on the device's current stream;
   * grid and block are three numbers each, args point at the values of the kernel's parameters. occupancy: blocks of
   * so many threads that a multiprocessor holds at once */
  MothStatus (*program_new)(int device, const MothCudaSource *source, MothCudaProgram **out);
  void (*program_retain)(MothCudaProgram *p);
  void (*program_free)(MothCudaProgram *p); /* the last reference waits for the current device */
  MothStatus (*program_kernel)(MothCudaProgram *p, int i, MothCudaFunction **out);
  MothStatus (*launch)(MothCudaFunction *f, int device, const unsigned *grid, const unsigned *block,
                       size_t shared, void **args);
  MothStatus (*occupancy)(MothCudaFunction *f, int device, int threads, size_t shared, int *blocks);
  /* traces of what devices do, one at a time (src/profile). start: *by_events is NULL if CUPTI sees it, else why it does
   * not: then pairs of events measure each call. begin and end surround a call; id > 0 grows with each call of a thread;
   * device -1: none has a part in it; leaf: it has called nothing else that is traced. stop waits for the devices and
   * calls `seen` for all that they did. */
  MothStatus (*trace_start)(const char **by_events);
  void (*trace_begin)(uint64_t id, int device);
  void (*trace_end)(uint64_t id, bool leaf);
  MothStatus (*trace_stop)(MothCudaSeen seen, void *ctx);
  /* opens CUDA's library i, from 0: its name (NULL behind the last), and its version as it counts itself;
   * the error says where it was looked for */
  MothStatus (*library)(int i, const char **name, int64_t *version);
} MothCudaApi;

/* Opens the backend. NULL: it cannot be used, moth_last_error() says why. */
MOTH_API const MothCudaApi *moth_cuda_api(void);
/* The backend if it has been opened, else NULL. */
const MothCudaApi *moth_cuda_opened(void);

#endif
