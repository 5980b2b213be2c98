/* Collectives of CUDA tensors by NCCL, in an engine that is otherwise that of tcp.h: who takes part, faults, timeouts,
 * barriers. */
#ifndef MOTH_COMM_NCCL_H
#define MOTH_COMM_NCCL_H
#include "comm/tcp_steps.h"

/* Whether the library (libnccl.so.2, or MOTH_NCCL_LIBRARY) and a CUDA device are there. */
MOTH_API bool moth_nccl_available(void);
/* Connects all ranks, each on its thread's current CUDA device. */
MothStatus moth_nccl_connect(MothTcp *e, MothStore *store, const char *key, double deadline);
/* On the group's thread: queues the call on the group's stream, and waits until it is done. */
bool moth_nccl_run(MothRun *r);
/* Whether NCCL can do it. */
MothStatus moth_nccl_check(const MothCommRequest *r);
void moth_nccl_close(MothTcp *e); /* does nothing without a connection */
#endif
