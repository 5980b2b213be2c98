/* What libmoth_gloo.so, the only C++ of communication, offers: memory that is sent to and received from ranks by the
 * library Gloo. No exception leaves it. */
#ifndef MOTH_COMM_GLOO_SHIM_H
#define MOTH_COMM_GLOO_SHIM_H
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MOTH_GLOO_VERSION = 1 };

/* A store for the ranks to find each other. Both return false on errors. get waits; its value is *n bytes of *block, which
 * is freed by free(). */
typedef struct MothGlooStore {
  void *ctx;
  bool (*set)(void *ctx, const char *key, const void *data, size_t n);
  bool (*get)(void *ctx, const char *key, void **block, const char **data, size_t *n);
} MothGlooStore;

typedef struct MothGlooApi {
  int version;
  /* Connects with all ranks. host: the address of this machine. NULL on errors, with the reason in `why`. */
  void *(*open)(const char *host, int rank, int size, double timeout, const MothGlooStore *store,
                char *why, size_t n);
  /* Begins to send or receive n > 0 bytes; messages between two ranks with one slot match in order. NULL on errors. */
  void *(*post)(void *gloo, int peer, bool sends, int slot, void *data, size_t n);
  /* Waits for it: 1: done, 0: woken, -1: the connection broke. */
  int (*wait)(void *gloo, void *posted, bool sends);
  /* Ends what was posted, done or not: its memory is not used any more. */
  void (*drop)(void *gloo, void *posted);
  /* Wakes the thread that waits. */
  void (*wake)(void *gloo);
  void (*close)(void *gloo);
} MothGlooApi;

#ifdef __cplusplus
}
#endif
#endif
