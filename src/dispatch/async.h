/* Kernels on streams of the CPU: async.c. */
#ifndef MOTH_DISPATCH_ASYNC_H
#define MOTH_DISPATCH_ASYNC_H
#include "dispatch/dispatch.h"

/* For calls with MOTH_KEY_PENDING, whose shape rule has run: queues the kernel on the thread's current CPU stream; or
 * waits for the tensors that it reads, and the caller runs it. */
MothStatus moth_queue_kernel(MothCall *c, MothKernel kernel, bool *queued);
/* Puts op and arguments into the message of a call that failed. */
void moth_call_failed(const MothCall *c);
#endif
