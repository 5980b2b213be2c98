/* All ops: those of the op table, which the library adds when it is loaded, and those defined later (moth_op_define).
 * An op stays where it is for the life of the process: graphs, closures and recorded calls hold pointers to it. A
 * removed op is not found any more, and calls of it are errors. */
#ifndef MOTH_DISPATCH_REGISTRY_H
#define MOTH_DISPATCH_REGISTRY_H
#include "dispatch/dispatch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Adds op, which must live for ever, and sets its id. Errors: there is an op of this name, or no memory. */
MOTH_API MothStatus moth_registry_add(MothOp *op);
/* Removes op: it is not found any more. Error: it is not in the registry. */
MOTH_API MothStatus moth_registry_remove(MothOp *op);
/* Sets MothOp.loops of a device, before its kernel is registered. loops live for ever. Error: there is no such op. */
MOTH_API MothStatus moth_op_set_loops(const char *name, MothDeviceType backend, const void *loops);
/* Ids count up from 0: the number of ids so far, and the op of an id (NULL: none yet). Ids are for counters and for
 * tables of devices; they differ between runs. */
MOTH_API int moth_registry_count(void);
MOTH_API MothOp *moth_registry_at(int id);

#ifdef __cplusplus
}
#endif
#endif
