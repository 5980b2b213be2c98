/* Rotary positions (src/ops/paged.lua): what rope.c and its typed kernel (typed/rope.h) share. */
#ifndef MOTH_CPU_ROPE_H
#define MOTH_CPU_ROPE_H
#include "dispatch/dispatch.h"

typedef struct MothRope {
  const void *in, *cos,
      *sin; /* real; rows of 2 half elements, and of half, each one after the other */
  void *out;
  int64_t half, from, to; /* rows that are computed */
  bool interleaved;
  int ndim; /* of the rows; where the angles of a row begin follows from its coordinates */
  int64_t shape[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS]; /* in elements; 0: broadcast */
} MothRope;
#endif
