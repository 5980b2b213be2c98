/* Data by the library Gloo, in an engine that is otherwise that of tcp.h. */
#ifndef MOTH_COMM_GLOO_H
#define MOTH_COMM_GLOO_H
#include "comm/tcp.h"

/* Whether libmoth_gloo.so is there, and Gloo. */
MOTH_API bool moth_gloo_available(void);
/* Connects the data of all ranks; all call it. */
MothStatus moth_gloo_connect(MothTcp *e, MothStore *store, const char *key, double deadline);
/* Wakes the group's thread in a step: it looks at what has changed. Both do nothing without a connection. */
void moth_gloo_wake(MothTcp *e);
void moth_gloo_close(MothTcp *e);
#endif
