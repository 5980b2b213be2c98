/* The ops that there are: those of the op table, which the library adds when it is loaded, and those defined
 * later (moth_op_define). An op stays where it is for the life of the process: graphs, closures and recorded calls
 * hold pointers to it. A removed op is not found any more, and calls of it are errors. */
#ifndef MOTH_DISPATCH_REGISTRY_H
#define MOTH_DISPATCH_REGISTRY_H
#include "dispatch/dispatch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Takes op, which must live for ever, gives it its id, and lets it be found by its name. Errors: there is one of this
 * name, or no memory. */
MOTH_API MothStatus moth_registry_add(MothOp *op);
/* Lets it be found no more. Errors: it is not there. */
MOTH_API MothStatus moth_registry_remove(MothOp *op);
/* Sets MothOp.loops of a device, before its kernel is registered. loops live for ever. Error: there is no such op. */
MOTH_API MothStatus moth_op_set_loops(const char *name, MothDeviceType backend, const void *loops);
/* Ids count up from 0: how many were given so far, and the op of one (NULL: not given). Ids are good for counters and
 * for naming an op to a device; they differ between runs. */
MOTH_API int moth_registry_count(void);
MOTH_API MothOp *moth_registry_at(int id);

#ifdef __cplusplus
}
#endif
#endif
