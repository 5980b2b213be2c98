#include "core/defaults.h"

#include <pthread.h>
#include <stdlib.h>

#include "core/parallel.h"

_Thread_local MothDefaults *moth_defaults_now __attribute__((tls_model("initial-exec")));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static MothDefaults *unused;
static pthread_key_t key;

/* For threads whose own defaults cannot be allocated. */
static MothDefaults last_resort = {
    NULL, {1, PTHREAD_MUTEX_INITIALIZER, 42, 0}, MOTH_FLOAT32, 1, NULL};

static void thread_exit(void *p) {
  moth_defaults_now = NULL;
  moth_defaults_free(p);
}

__attribute__((constructor)) static void defaults_init(void) {
  pthread_key_create(&key, thread_exit);
}

/* A freed struct whose generator nothing else retains (a CUDA graph may), or NULL. */
static MothDefaults *take_unused(void) {
  pthread_mutex_lock(&lock);
  MothDefaults **at = &unused;
  while (*at && __atomic_load_n(&(*at)->generator.refs, __ATOMIC_ACQUIRE) != 1)
    at = &(*at)->next;
  MothDefaults *d = *at;
  if (d)
    *at = d->next;
  pthread_mutex_unlock(&lock);
  return d;
}

static MothDefaults *make(void) {
  MothDefaults *d = take_unused();
  if (!d) {
    d = calloc(1, sizeof *d);
    if (!d)
      return NULL;
    d->generator.refs = 1; /* never 0: it is part of this struct */
    pthread_mutex_init(&d->generator.lock, NULL);
  }
  moth_generator_seed(&d->generator, 42);
  d->next = NULL;
  d->dtype = MOTH_FLOAT32;
  d->num_threads = moth_num_threads_at_start();
  d->interrupt = NULL;
  return d;
}

/* The thread's own. */
MothDefaults *moth_defaults_find(void) {
  MothDefaults *d = pthread_getspecific(key);
  if (!d) {
    d = make();
    if (!d)
      return &last_resort;
    pthread_setspecific(key, d);
  }
  return moth_defaults_now = d;
}

MothDefaults *moth_defaults_new(void) {
  const MothDefaults *own = pthread_getspecific(key);
  MothDefaults *d = make();
  if (d && own) {
    d->dtype = own->dtype;
    d->num_threads = own->num_threads;
  }
  return d;
}

void moth_defaults_use(MothDefaults *d) {
  moth_defaults_now = d; /* NULL: moth_defaults_find looks them up again */
}

void moth_defaults_free(MothDefaults *d) {
  pthread_mutex_lock(&lock);
  d->next = unused;
  unused = d;
  pthread_mutex_unlock(&lock);
}
