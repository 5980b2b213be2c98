/* See thread.h. */
#include "comm/thread.h"

#include <signal.h>
#include <time.h>

#include "comm/wire.h"

int moth_comm_thread(pthread_t *id, const char *name, void *(*run)(void *), void *ctx) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  int error = pthread_create(id, NULL, run, ctx);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!error)
    pthread_setname_np(*id, name);
  return error;
}

void moth_comm_lock(pthread_mutex_t *lock, pthread_cond_t *changed) {
  pthread_condattr_t a;
  pthread_condattr_init(&a);
  pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
  pthread_mutex_init(lock, NULL);
  pthread_cond_init(changed, &a);
  pthread_condattr_destroy(&a);
}

void moth_comm_wait(pthread_mutex_t *lock, pthread_cond_t *changed, double deadline, double most) {
  double until = moth_wire_now() + most;
  if (deadline < until)
    until = deadline;
  struct timespec t = {(time_t)until, (long)((until - (double)(time_t)until) * 1e9)};
  pthread_cond_timedwait(changed, lock, &t);
}
