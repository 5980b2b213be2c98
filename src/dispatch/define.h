/* Ops defined at run time, for the reader of their schemas: see moth_op_define in moth.h. */
#ifndef MOTH_DISPATCH_DEFINE_H
#define MOTH_DISPATCH_DEFINE_H
#include "dispatch/dispatch.h"

/* Reads def's schema, kind and texts into a new op in one block of malloc's: everything but functions. `differentiable`
 * has the arguments that can have a derivative. Set by the binding, which has the parser; NULL: schemas cannot be
 * read. */
extern MOTH_API MothStatus (*moth_schema_reader)(const MothOpDef *def, MothOp **out);

/* The second half of moth_op_define: sets def's functions in op, which the reader made, and adds it to the registry.
 * It is freed on an error. */
MOTH_API MothStatus moth_op_complete(const MothOpDef *def, MothOp *op);
/* Whether a defined op's kernel, fake function or composite has given the results that the schema names. */
MothStatus moth_check_defined(const MothCall *c);
#endif
