/* Tensors of a recorded call that the program still holds after their segment has run without making them. */
#ifndef MOTH_DISPATCH_LAZY_H
#define MOTH_DISPATCH_LAZY_H
#include "dispatch/dispatch.h"

/* Set by src/graph: makes t, which is lazy, if what it is computed from is still there; else it stays as it is. Errors:
 * an input was written to since, or those of the calls. */
MOTH_API extern MothStatus (*moth_lazy_revive)(MothTensor *t);
/* Set by src/graph: while calls are noted, takes one that follows a known way, before any program of the host can run.
 * false: it is not that. */
MOTH_API extern bool (*moth_follow)(MothCall *c, MothStatus *status);
/* Takes off the interceptors above that were pushed after the one with this function and ctx, until moth_intercept_show:
 * they have seen the calls that run now when those were noted. */
typedef struct MothHidden {
  uint8_t from, n;
  MothInterceptor list[MOTH_MAX_INTERCEPTORS];
} MothHidden;
void moth_intercept_hide(MothStatus (*fn)(MothCall *c, void *ctx), const void *ctx, MothHidden *h);
void moth_intercept_show(const MothHidden *h);
/* How many segments have left such tensors that are still held, in the process. */
MOTH_API extern _Atomic int moth_ndeferred;
#endif
