/* Copies of tensors of devices in host memory, and calls that a device leaves to the CPU (moth_call_on_cpu, moth.h). */
#ifndef MOTH_DISPATCH_ON_CPU_H
#define MOTH_DISPATCH_ON_CPU_H
#include "moth.h"

typedef struct MothHostCopy {
  MothTensor *of, *whole, *view; /* borrowed; all its bytes as a vector; with its strides */
  int64_t first;                 /* the element of `whole` that is the first one of `of` */
} MothHostCopy;

/* A copy of t, which may be on any device. Without `elements`: they will all be written. *c, zero before, is to be dropped
 * after an error, too. */
MothStatus moth_host_fetch(MothHostCopy *c, MothTensor *t, bool elements);
/* Writes the copy back. */
MothStatus moth_host_send(const MothHostCopy *c);
void moth_host_drop(MothHostCopy *c);
#endif
