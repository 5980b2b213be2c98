/* Composites: ops written in terms of other ops. Each takes a call and puts owned results into it. */
#ifndef MOTH_COMPOSITE_COMPOSITE_H
#define MOTH_COMPOSITE_COMPOSITE_H
#include "dispatch/dispatch.h"
#include "unpack.h"

/* The reductions of losses: "mean", "sum" or "none". */
MothStatus moth_reduce_loss(MothTensor *loss, const char *reduction, MothTensor **out);

static inline MothStatus moth_give(MothCall *c, MothTensor *t) {
  c->results[0] = moth_v_tensor(t);
  return MOTH_OK;
}
static inline MothStatus moth_give_same(MothCall *c, MothTensor *t) {
  moth_tensor_retain(t);
  return moth_give(c, t);
}
#endif
