/* The gradient reducer of DistributedDataParallel: while a backward runs, it averages gradients over the ranks of a group,
 * bucket by bucket, as soon as all gradients of a bucket and of those before it are there. See reducer.c. */
#ifndef MOTH_COMM_REDUCER_H
#define MOTH_COMM_REDUCER_H
#include "comm/comm.h"

typedef struct MothReducer MothReducer;

/* Reduces the buffer of a bucket instead of an all_reduce: start, then finish, which is called in the same order at the end
 * of backward. */
typedef struct MothReducerHook {
  MothStatus (*start)(void *ctx, int bucket);
  MothStatus (*finish)(void *ctx, int bucket);
  void *ctx;
} MothReducerHook;

typedef struct MothReducerOptions {
  bool find_unused; /* parameters may take no part in a backward */
  bool as_view;     /* gradients are views of the buckets */
  bool is_static;   /* each backward has the same parameters as the first */
} MothReducerOptions;

/* bucket_of[i]: the bucket of parameter i, 0 … nbuckets - 1, in the order in which they are sent. Parameters of a bucket
 * have one dtype and device. names are copied. Errors: memory. */
MOTH_API MothStatus moth_reducer_new(MothGroup *g, int nparams, MothTensor **params,
                                     const char *const *names, const int *bucket_of, int nbuckets,
                                     MothReducerOptions options, MothReducer **out);
/* Removes its hooks. */
MOTH_API void moth_reducer_free(MothReducer *r);
/* With false, backward only adds to gradients. Returns what it was. */
MOTH_API bool moth_reducer_set_sync(MothReducer *r, bool on);
/* The calls of one backward, with zeros: for a rank that has nothing to compute while others do. */
MOTH_API MothStatus moth_reducer_shadow(MothReducer *r);
MOTH_API void moth_reducer_set_hook(MothReducer *r, MothReducerHook hook);
MOTH_API MothTensor *moth_reducer_buffer(MothReducer *r, int bucket); /* borrowed */
/* The parameters in the order in which their gradients came first; the number of backwards that were reduced. */
MOTH_API int64_t moth_reducer_order(const MothReducer *r, const int **order, int *n);

/* A hook for each gradient of a leaf, also of one that is frozen now and may be trained later. */
MothStatus moth_hook_gradient(MothTensor *leaf, MothLeafHook run, void *ctx, int64_t *id);
#endif
