/* Data by a library, Gloo or MPI, in an engine that is otherwise that of tcp.h. */
#ifndef MOTH_COMM_TRANSPORT_H
#define MOTH_COMM_TRANSPORT_H
#include "comm/tcp.h"

/* Whether "gloo" (libmoth_gloo.so) or "mpi" (libmoth_mpi.so) is there. */
MOTH_API bool moth_transport_available(const char *name);
/* MOTH_ERR_IO where "mpi" is not there, with the reason. */
MothStatus moth_transport_need_mpi(void);
/* Connects the data of all ranks by it; all call it. */
MothStatus moth_transport_connect(MothTcp *e, const char *name, MothStore *store, const char *key,
                                  double deadline);
/* Wakes the group's thread in a step: it looks at what has changed. Both do nothing without a connection. */
void moth_transport_wake(MothTcp *e);
void moth_transport_close(MothTcp *e);
#endif
