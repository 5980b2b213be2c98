/* libmoth_mpi.so: see transport_shim.h. It is compiled by the mpicc of the site (`make mpi`), since libraries of MPI do not
 * understand each other's handles. MPI carries bytes from rank to rank; collectives, reductions and faults are moth's.
 *
 * MPI is called by one thread at a time (MPI_THREAD_SERIALIZED): under one lock. Nothing here waits within MPI but opening
 * and closing, which all ranks do. */
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/transport_shim.h"

enum { PIECE = 1 << 30 }; /* counts of MPI are ints */
enum { TURNS = 2000 };    /* looks before a wait lets others run */

typedef struct {
  MPI_Comm comm;
  atomic_int wakes;
} Transport;

typedef struct {
  size_t n; /* requests */
  MPI_Request requests[];
} Posted;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_ours, is_broken; /* MPI was begun here; a group was given up */

/* MPI's launcher takes a process that ends without this for one that failed. In a broken job it would wait for the dead. */
static void at_end(void) {
  int over = 0;
  if (MPI_Finalized(&over) == MPI_SUCCESS && !over && !is_broken)
    MPI_Finalize();
}

static bool begin(char *why, size_t n) {
  int begun = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&begun);
  if (!begun) {
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS) {
      snprintf(why, n, "MPI_Init_thread failed");
      return false;
    }
    is_ours = true;
    atexit(at_end);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  MPI_Query_thread(&level);
  if (level < MPI_THREAD_SERIALIZED) {
    snprintf(why, n, "this MPI does not allow calls of several threads");
    return false;
  }
  return true;
}

/* The ranks of the group among all of MPI's, by the store. */
static bool find(int rank, int size, const MothTransportStore *store, int *world, char *why,
                 size_t n) {
  char key[32], text[32];
  int own, all;
  MPI_Comm_rank(MPI_COMM_WORLD, &own);
  MPI_Comm_size(MPI_COMM_WORLD, &all);
  snprintf(key, sizeof key, "%d", rank);
  snprintf(text, sizeof text, "%d", own);
  if (!store->set(store->ctx, key, text, strlen(text))) {
    snprintf(why, n, "the store did not take a key");
    return false;
  }
  for (int i = 0; i < size; i++) {
    void *block = NULL;
    const char *data = NULL;
    size_t nbytes = 0;
    snprintf(key, sizeof key, "%d", i);
    if (!store->get(store->ctx, key, &block, &data, &nbytes) || nbytes >= sizeof text) {
      free(block);
      snprintf(why, n, "not all ranks came");
      return false;
    }
    memcpy(text, data, nbytes);
    text[nbytes] = '\0';
    free(block);
    world[i] = atoi(text);
    for (int k = 0; k < i; k++)
      if (world[k] == world[i]) {
        snprintf(
            why, n,
            "ranks %d and %d are both rank %d of MPI's %d: start the program by the mpirun of the "
            "MPI that libmoth_mpi.so was compiled for, or by srun --mpi=pmix",
            k, i, world[i], all);
        return false;
      }
  }
  return true;
}

static void *open_mpi(const char *host, int rank, int size, double timeout,
                      const MothTransportStore *store, char *why, size_t n) {
  (void)host;
  (void)timeout;
  pthread_mutex_lock(&lock);
  bool ok = begin(why, n);
  pthread_mutex_unlock(&lock);
  int *world = malloc((size_t)size * sizeof *world);
  Transport *t = calloc(1, sizeof *t);
  if (ok && (!world || !t)) {
    snprintf(why, n, "no memory");
    ok = false;
  }
  ok = ok && find(rank, size, store, world, why, n);
  if (ok) {
    MPI_Group all, some;
    pthread_mutex_lock(&lock);
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, size, world, &some);
    ok = MPI_Comm_create_group(MPI_COMM_WORLD, some, world[0], &t->comm) == MPI_SUCCESS;
    if (ok)
      MPI_Comm_set_errhandler(t->comm, MPI_ERRORS_RETURN);
    else
      snprintf(why, n, "MPI_Comm_create_group failed");
    MPI_Group_free(&some);
    MPI_Group_free(&all);
    pthread_mutex_unlock(&lock);
  }
  free(world);
  if (!ok) {
    free(t);
    return NULL;
  }
  return t;
}

static void *post(void *transport, int peer, bool sends, int slot, void *data, size_t n) {
  Transport *t = transport;
  size_t pieces = (n + PIECE - 1) / PIECE;
  Posted *p = malloc(sizeof *p + pieces * sizeof *p->requests);
  if (!p)
    return NULL;
  pthread_mutex_lock(&lock);
  for (p->n = 0; p->n < pieces; p->n++) {
    char *at = (char *)data + p->n * PIECE;
    size_t left = n - p->n * PIECE;
    int count = left < PIECE ? (int)left : PIECE;
    if ((sends ? MPI_Isend(at, count, MPI_BYTE, peer, slot, t->comm, &p->requests[p->n])
               : MPI_Irecv(at, count, MPI_BYTE, peer, slot, t->comm, &p->requests[p->n])) !=
        MPI_SUCCESS)
      break;
  }
  pthread_mutex_unlock(&lock);
  if (p->n == pieces)
    return p;
  is_broken = true; /* what was begun stays */
  return NULL;
}

static int test(void *transport, void *posted) {
  Posted *p = posted;
  int done = 0;
  (void)transport;
  pthread_mutex_lock(&lock);
  int code = MPI_Testall((int)p->n, p->requests, &done, MPI_STATUSES_IGNORE);
  pthread_mutex_unlock(&lock);
  return code != MPI_SUCCESS ? -1 : done ? 1 : 0;
}

static int wait_for(void *transport, void *posted, bool sends) {
  Transport *t = transport;
  (void)sends;
  int before = atomic_load(&t->wakes);
  for (int turn = 0;; turn++) {
    int done = test(transport, posted);
    if (done)
      return done;
    if (atomic_load(&t->wakes) != before)
      return 0;
    if (turn > 2 * TURNS)
      nanosleep(&(struct timespec){0, 50000}, NULL);
    else if (turn > TURNS)
      sched_yield();
  }
}

/* A receive ends by being cancelled; a send that has begun cannot be, and keeps its request. */
static void drop(void *transport, void *posted) {
  (void)transport;
  Posted *p = posted;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < p->n; i++) {
    int done = 0;
    if (p->requests[i] == MPI_REQUEST_NULL ||
        (MPI_Test(&p->requests[i], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done))
      continue;
    is_broken = true;
    MPI_Cancel(&p->requests[i]);
    MPI_Request_free(&p->requests[i]);
  }
  pthread_mutex_unlock(&lock);
  free(p);
}

static void wake(void *transport) {
  atomic_fetch_add(&((Transport *)transport)->wakes, 1);
}

static void close_mpi(void *transport, bool broken) {
  Transport *t = transport;
  pthread_mutex_lock(&lock);
  is_broken |= broken;
  /* MPI_Comm_free waits for no rank that is gone; a broken group keeps its communicator. */
  if (!is_broken)
    MPI_Comm_free(&t->comm);
  pthread_mutex_unlock(&lock);
  free(t);
}

__attribute__((visibility("default"))) const MothTransportApi moth_transport_api = {
    MOTH_TRANSPORT_VERSION, "mpi", open_mpi, post, wait_for, test, drop, wake, close_mpi};
