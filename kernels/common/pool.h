/* Arguments of the typed pooling kernels, on every device. */
#ifndef MOTH_COMMON_POOL_H
#define MOTH_COMMON_POOL_H
#include <stdint.h>

/* The windows along one dimension: output o has the positions begin[o], begin[o] + dilation, … below
 * end[o], all inside of the image; a mean over it divides by count[o]. */
typedef struct MothPoolAxis {
  int64_t in, out;
  int64_t kernel, stride, padding, dilation; /* kernel 0: adaptive, use the lists only */
  const int64_t *begin, *end, *count;
} MothPoolAxis;

typedef struct MothPoolPlanes {
  const struct MothPool *shape; /* kernels/common/window.h */
  MothPoolAxis y, x; /* the CPU: the windows of `shape` as lists, and the planes of a task */
  int64_t planes;
  const void *in; /* the images; in backward the gradient of the pooled planes */
  void *out;
  int64_t
      *positions; /* in an image, from `base`: written by max_pool, read by its backward kernel */
  int64_t base;
} MothPoolPlanes;
#endif
