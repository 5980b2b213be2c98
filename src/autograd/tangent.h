/* Tangents: forward-mode derivatives (moth.autograd.forward_ad, moth.func.jvp).
 *
 * A tensor may have a tangent at each of several levels, of its shape and dtype. A step of the dispatcher above Autograd
 * computes, of a call with such tensors, the tangents of the results, by calls that are recorded as all others: gradients
 * of tangents and tangents of gradients are right. It handles the highest level; the call itself, and what computes the
 * tangents, sees the lower ones only. */
#ifndef MOTH_AUTOGRAD_TANGENT_H
#define MOTH_AUTOGRAD_TANGENT_H
#include "autograd/node.h"

/* A level. Closing it releases its tangents: the history of one may refer to the node that has saved the tensor that it
 * belongs to. */
typedef struct MothDual {
  MothRefs refs;
  uint64_t level; /* a later one is higher */
  _Atomic bool closed;
  atomic_flag lock; /* of `all` */
  struct MothTangent *all;
  struct MothDual *next; /* of the open ones */
} MothDual;

typedef struct MothTangent {
  MothDual *dual;                     /* retained */
  MothTensor *tangent;                /* NULL: the level is closed */
  struct MothTangent *next;           /* of a lower level */
  struct MothTangent *before, *after; /* in dual->all */
} MothTangent;

MOTH_API MothStatus moth_dual_open(MothDual **out); /* owned */
MOTH_API void moth_dual_close(MothDual *d);         /* and releases it */
/* Whether an address is that of an open level. */
MOTH_API bool moth_dual_is_open(const void *address);
/* An alias of t, recorded as a view, with a tangent. Errors: shapes, dtypes and devices differ; t is no float. */
MOTH_API MothStatus moth_dual_make(MothTensor *t, MothTensor *tangent, MothDual *d,
                                   MothTensor **out);
/* t's tangent at this level, borrowed; NULL: it has none. */
MOTH_API MothTensor *moth_dual_tangent(const MothTensor *t, const MothDual *d);
/* Sets (or replaces) a tangent; NULL: removes it. Borrowed. */
MOTH_API MothStatus moth_dual_set(MothTensor *t, MothTensor *tangent, MothDual *d);
/* Gives `to` the tangents of `from`, as they are. */
MOTH_API MothStatus moth_tangents_share(MothTensor *to, const MothTensor *from);
/* The same, each by way of fn. */
MothStatus moth_tangents_map(MothTensor *to, const MothTensor *from,
                             MothStatus (*fn)(void *ctx, MothTensor *tangent, MothTensor **out),
                             void *ctx);
void moth_tangents_free(MothTangent *list);
#endif
