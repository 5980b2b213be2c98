/* Kernels that were generated for one model, in the library that moth.aot_compile makes of it (lua/moth/inductor.lua prints
 * these structs into its source; the version changes with them). */
#ifndef MOTH_EDGE_FUSED_H
#define MOTH_EDGE_FUSED_H
#include "edge/moth_edge.h"

enum { MOTH_FUSED_VERSION = 1 };

/* A result, row-major. dtype: a MothDType. */
typedef struct MothFusedValue {
  int dtype, ndim;
  const int64_t *shape;
} MothFusedValue;

/* run(slots, begin, end) on ranges of [0, n). */
typedef struct MothFusedLaunch {
  int64_t n, grain;
  const uint64_t *slots; /* without addresses */
} MothFusedLaunch;

typedef struct MothFusedKernel {
  unsigned nresults, noperands, ntemporaries, nlaunches, nslots;
  const MothFusedValue *results;
  const int64_t *temporaries; /* bytes of each */
  const int *at; /* by result, operand and temporary: the slot of its address; -1: none */
  const MothFusedLaunch *launches;
} MothFusedKernel;

typedef struct MothFused {
  int version;
  unsigned count;
  const MothFusedKernel *kernels;
  void (*run)(void *slots, int64_t begin, int64_t end);
} MothFused;

/* As moth_edge_load_memory, of a program with calls of these kernels, which is trusted. */
MOTH_EDGE_API int moth_edge_load_fused(const void *bytes, size_t n, const MothFused *fused,
                                       MothModel **m);
#endif
