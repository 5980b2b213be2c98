/* What the host's language asks of calls: tensor subclasses, which handle the calls in which they are arguments, and
 * whether an interceptor runs. */
#ifndef MOTH_DISPATCH_SUBCLASS_H
#define MOTH_DISPATCH_SUBCLASS_H
#include "dispatch/dispatch.h"

/* The key of such tensors, beside those of core/tensor.h: the last step before the backend. */
enum { MOTH_KEY_SUBCLASS = 1u << 13 };

/* Set by the host: handles a call with such a tensor among its arguments, its results owned, or calls
 * moth_redispatch. The key is off until it returns. */
extern MOTH_API MothStatus (*moth_subclass_step)(MothCall *c);

/* Whether the function of an interceptor runs on this thread; calls under way then know interceptors by their places. */
MOTH_API bool moth_intercept_running(void);

#endif
