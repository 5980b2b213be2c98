/* The step of the dispatcher that converts arguments for mixed precision, and the scope in which it remembers the
 * casts of weights: src/dispatch/autocast.c. */
#ifndef MOTH_DISPATCH_AUTOCAST_H
#define MOTH_DISPATCH_AUTOCAST_H
#include "dispatch/dispatch.h"

MothStatus moth_autocast(MothCall *c);
/* Set by src/autograd: whether t is a leaf that requires a gradient. */
MOTH_API extern bool (*moth_autocast_is_weight)(const MothTensor *t);
/* Opens the scope on this thread; false: one is open already (or there is no memory: then nothing is remembered). Who
 * got true closes it. */
MOTH_API bool moth_autocast_open(void);
MOTH_API void moth_autocast_close(void);
#endif
