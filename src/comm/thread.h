/* Threads of the communication code: they block all signals and run no Lua. */
#ifndef MOTH_COMM_THREAD_H
#define MOTH_COMM_THREAD_H
#include <pthread.h>
#include <stdatomic.h>

/* 0, or an errno. The name has at most 15 bytes. */
int moth_comm_thread(pthread_t *id, const char *name, void *(*run)(void *), void *ctx);
/* A mutex and a condition that waits by the monotonic clock. */
void moth_comm_lock(pthread_mutex_t *lock, pthread_cond_t *changed);
/* Waits for `changed` until the deadline (moth_wire_now), at most `most` seconds. */
void moth_comm_wait(pthread_mutex_t *lock, pthread_cond_t *changed, double deadline, double most);
#endif
