/* Internal to the dispatcher, and what its sides call of each other. */
#ifndef MOTH_DISPATCH_STEPS_H
#define MOTH_DISPATCH_STEPS_H
#include "dispatch/dispatch.h"

/* The innermost interceptor above or below Autograd that is still to come. */
MothStatus moth_intercept(MothCall *c, bool above);
/* The arguments of a call from outside, checked and with the defaults of those that were not given. `results` must
 * not be NULL. */
MothStatus moth_call_arguments(const MothOp *op, int nargs, const MothValue *args,
                               const void *results, MothValue *full);
/* Autograd's, for gradients that come by another way than backward: the leaf's hooks run, *grad, which hooks
 * may have replaced, is added to its gradient, and the hooks for after that run. */
MothStatus moth_leaf_receive(MothTensor *leaf, MothTensor **grad);
#endif
