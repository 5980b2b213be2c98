/* Kernels for floats that serve complex tensors (parts.c). */
#ifndef MOTH_DISPATCH_PARTS_H
#define MOTH_DISPATCH_PARTS_H
#include "dispatch/dispatch.h"

/* Runs a kernel on the parts of the call's complex tensors. */
MothStatus moth_run_parts(MothCall *c, MothKernel kernel);
#endif
