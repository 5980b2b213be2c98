/* Composites: ops written in terms of other ops. Each takes a call and puts owned results into it. */
#ifndef MOTH_COMPOSITE_COMPOSITE_H
#define MOTH_COMPOSITE_COMPOSITE_H
#include "core/dtype.h"
#include "core/tensor.h"
#include "dispatch/dispatch.h"

static inline MothStatus moth_give(MothCall *c, MothTensor *t) {
  c->results[0] = moth_v_tensor(t);
  return MOTH_OK;
}

/* For chains of temporaries: releases an op's input `used` after the op, whose status is s. */
static inline MothStatus then(MothStatus s, MothTensor *used) {
  moth_tensor_release(used);
  return s;
}
#endif
