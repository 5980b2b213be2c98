/* What the generated shape rules call (src/ops/shapes.lua, build/gen/shapes.c). */
#ifndef MOTH_DISPATCH_PATTERN_H
#define MOTH_DISPATCH_PATTERN_H
#include "device/device.h"
#include "dispatch/eval.h"
#include "dispatch/shape.h"

/* --- errors ----------------------------------------------------------------------------------- */

/* A name of a pattern: a number or a list, and the argument that it was found in ("": none). */
typedef struct MothKnown {
  const char *name, *from;
  MothValue value;
} MothKnown;

/* The error of an argument whose shape is not that of its pattern ("N C *"), which takes `least` to `most` dimensions
 * (-1: any number). */
MothStatus moth_shape_wrong(const char *name, int ndim, const int64_t *shape, int least, int most,
                            const char *pattern, const MothKnown *known, int nknown)
    __attribute__((cold));
/* The same of the second matrix of a product. */
MothStatus moth_product_wrong(const char *first, const MothTensor *t, const char *name, int ndim,
                              const int64_t *shape, int least, int most, const char *pattern,
                              const MothKnown *known, int nknown) __attribute__((cold));
/* A list of tensors that has not as many as the first. */
MothStatus moth_list_wrong(const char *first, uint32_t n, const char *name, uint32_t got)
    __attribute__((cold));
/* t has another dtype than `wanted` ("a float", "the int64"). */
MothStatus moth_dtype_wrong(const char *name, const MothTensor *t, const char *wanted)
    __attribute__((cold));
MothStatus moth_dtypes_differ(const char *first, const MothTensor *a, const char *second,
                              const MothTensor *b) __attribute__((cold));

/* --- geometry --------------------------------------------------------------------------------- */

/* Whether the list.n sizes at `shape` are those of the list. */
static inline bool moth_same_dims(const int64_t *shape, MothValue list) {
  bool same = true;
  for (uint32_t i = 0; same && i < list.n; i++)
    same = shape[i] == list.u.ints[i];
  return same;
}
/* The last dimensions of a result. */
static inline MothStatus moth_meta_add_size(MothMeta *m, int64_t size) {
  if (m->ndim == MOTH_MAX_DIMS)
    return moth_meta_too_long(MOTH_MAX_DIMS + 1, m->shape);
  m->shape[m->ndim++] = size;
  return MOTH_OK;
}
static inline MothStatus moth_meta_add_dims(MothMeta *m, MothValue list) {
  for (uint32_t i = 0; i < list.n; i++)
    MOTH_TRY(moth_meta_add_size(m, list.u.ints[i]));
  return MOTH_OK;
}
/* The result of a reduction of t over `dim`: a list, a number, or none for all. Without an identity there must be
 * something to reduce. */
MothStatus moth_meta_reduced(MothMeta *m, MothDType dtype, const MothTensor *t, MothValue dim,
                             bool keepdim, bool no_identity);
/* The option `device` of an op, if it is given. */
static inline MothStatus moth_meta_device(MothMeta *m, MothValue device) {
  if (device.tag == MOTH_V_DEVICE)
    m->device = (MothDevice){(uint8_t)(device.u.i >> 8), (uint8_t)device.u.i};
  return moth_device_check(m->device);
}

/* --- functions of the language (src/ops/expr.lua) ---------------------------------------------- */

/* 0 of an empty list. */
MothValue moth_list_largest(MothValue list);
/* Whether a tensor of this shape can be broadcast to `shape`. */
bool moth_list_expands(MothValue from, MothValue shape);
/* The sizes of a convolution's result (ceil_mode: none) or a pooling's. An error if a window is larger than the padded
 * image; of a pooling also if it may hold no element of it. */
MothStatus moth_list_window_out(MothValue size, MothValue kernel, MothValue stride,
                                MothValue padding, MothValue dilation, MothValue ceil_mode,
                                int64_t *to, MothValue *out);
/* value, if it is a number, is one of dtype's; `what` begins the message. */
MothStatus moth_need_in_range(MothValue value, MothValue dtype, MothValue what);
/* index goes over places of self: as many dimensions, no larger but in `dim`. */
MothStatus moth_need_picks(MothValue self, MothValue dim, MothValue index);
/* src, if it is a tensor, has an element for each of index. */
MothStatus moth_need_covers(MothValue src, MothValue index);
#endif
