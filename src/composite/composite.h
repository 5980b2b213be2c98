/* Composites: ops written in terms of other ops. Each takes a call and puts owned results into it. */
#ifndef MOTH_COMPOSITE_COMPOSITE_H
#define MOTH_COMPOSITE_COMPOSITE_H
#include "core/dtype.h"
#include "core/tensor.h"
#include "dispatch/dispatch.h"
#include "ops/create.h"

static inline MothStatus moth_give(MothCall *c, MothTensor *t) {
  c->results[0] = moth_v_tensor(t);
  return MOTH_OK;
}

/* For chains of temporaries: releases an op's input `used` after the op, whose status is s. */
static inline MothStatus then(MothStatus s, MothTensor *used) {
  moth_tensor_release(used);
  return s;
}

/* t itself if it is of that dtype. */
static inline MothStatus as_dtype(MothTensor *t, MothDType dtype, MothTensor **out) {
  if (t->dtype != dtype)
    return moth_to(t, moth_v_dtype(dtype), moth_v_none(), false, false, out);
  moth_tensor_retain(t);
  *out = t;
  return MOTH_OK;
}

/* The dtype for several ops on t with one rounding: float32 for halves, else t's own. */
static inline MothDType working_dtype(const MothTensor *t) {
  bool half = moth_dtype_is_float((MothDType)t->dtype) && moth_itemsize(t) < 4;
  return half ? MOTH_FLOAT32 : (MothDType)t->dtype;
}
#endif
