/* What libmoth_gloo.so (Gloo, the only C++ of communication; no exception leaves it) and libmoth_mpi.so (MPI, which a site
 * compiles for its own) offer: memory that is sent to and received from ranks. */
#ifndef MOTH_COMM_TRANSPORT_SHIM_H
#define MOTH_COMM_TRANSPORT_SHIM_H
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MOTH_TRANSPORT_VERSION = 3 };

/* A store for the ranks to find each other. Both return false on errors. get waits; its value is *n bytes of *block, which
 * is freed by free(). */
typedef struct MothTransportStore {
  void *ctx;
  bool (*set)(void *ctx, const char *key, const void *data, size_t n);
  bool (*get)(void *ctx, const char *key, void **block, const char **data, size_t *n);
} MothTransportStore;

typedef struct MothTransportApi {
  int version;
  const char *name;
  /* Connects with all ranks. host: the address of this machine. NULL on errors, with the reason in `why`. */
  void *(*open)(const char *host, int rank, int size, double timeout,
                const MothTransportStore *store, char *why, size_t n);
  /* Begins to send or receive n > 0 bytes; messages between two ranks with one slot match in order. NULL on errors. */
  void *(*post)(void *t, int peer, bool sends, int slot, void *data, size_t n);
  /* Waits for it: 1: done, 0: woken, -1: the connection broke. */
  int (*wait)(void *t, void *posted, bool sends);
  /* Looks without waiting: 1: done, 0: not yet, -1: the connection broke. Once done it may be asked again. NULL: the
   * library only waits. */
  int (*test)(void *t, void *posted);
  /* Ends what was posted, done or not: its memory is not used any more. */
  void (*drop)(void *t, void *posted);
  /* Wakes the thread that waits. */
  void (*wake)(void *t);
  /* broken: a rank is gone, or a call was given up. */
  void (*close)(void *t, bool broken);
} MothTransportApi;

#ifdef __cplusplus
}
#endif
#endif
