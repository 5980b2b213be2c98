/* Arguments of the typed pooling kernels (kernels/cpu/typed/pool.h), set by kernels/cpu/pool.c. */
#ifndef MOTH_CPU_POOL_H
#define MOTH_CPU_POOL_H
#include <stdint.h>

/* The windows along one dimension: output o has the positions begin[o], begin[o] + dilation, … below
 * end[o], all inside of the image; a mean over it divides by count[o]. */
typedef struct MothPoolAxis {
  int64_t in, out;
  int64_t kernel, stride, padding, dilation; /* kernel 0: adaptive, use the lists only */
  const int64_t *begin, *end, *count;
} MothPoolAxis;

typedef struct MothPoolPlanes {
  MothPoolAxis y, x;
  int64_t planes;
  const void *in; /* the images; in backward the gradient of the pooled planes */
  void *out;
  int64_t
      *positions; /* in an image, from `base`: written by max_pool, read by its backward kernel */
  int64_t base;
} MothPoolPlanes;
#endif
