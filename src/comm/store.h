/* A key-value store over TCP, by which processes find each other: a server in a thread, and clients. Keys and values
 * are bytes. Who connects must know the token ("": everybody may). NULL for it: the server of a loopback address keeps
 * one of its own in a file that only its user can read, where clients read it (store_token.h); at other addresses "".
 * Frames: a u32 of the length of what follows, a byte of the command or status, then fields of a u32 length and bytes
 * each; in the byte order of the machine. */
#ifndef MOTH_COMM_STORE_H
#define MOTH_COMM_STORE_H
#include "moth.h"

typedef struct MothStoreServer MothStoreServer;
typedef struct MothStore MothStore; /* a client */

typedef struct MothBytes {
  const char *data;
  size_t n;
} MothBytes;

/* Listens on host (NULL: all addresses) and port (0: a free one). Errors: the port is taken, no memory. */
MOTH_API MothStatus moth_store_serve(const char *host, int port, const char *token,
                                     MothStoreServer **out);
MOTH_API int moth_store_server_port(const MothStoreServer *s);
/* Why everybody who reaches it may use it, or NULL: there is a token. */
MOTH_API const char *moth_store_server_open(const MothStoreServer *s);
/* Ends all connections. NULL is allowed. */
MOTH_API void moth_store_server_free(MothStoreServer *s);

/* Connects within timeout seconds. A client may be used by several threads, one at a time. */
MOTH_API MothStatus moth_store_connect(const char *host, int port, const char *token,
                                       double timeout, MothStore **out);
MOTH_API void moth_store_free(MothStore *s);
/* The address of this machine by which it talks to the server. */
MOTH_API const char *moth_store_address(MothStore *s, char *text, size_t n);

MOTH_API MothStatus moth_store_set(MothStore *s, MothBytes key, MothBytes value);
/* Appends to the value. */
MOTH_API MothStatus moth_store_append(MothStore *s, MothBytes key, MothBytes value);
/* Waits until all keys are there. values (NULL: not needed): one block, *block, which the caller frees with free(). */
MOTH_API MothStatus moth_store_get(MothStore *s, int n, const MothBytes *keys, double timeout,
                                   MothBytes *values, void **block);
/* Whether all keys are there. */
MOTH_API MothStatus moth_store_check(MothStore *s, int n, const MothBytes *keys, bool *there);
/* Adds to the number that a key has as text; a new one is 0 first. */
MOTH_API MothStatus moth_store_add(MothStore *s, MothBytes key, int64_t amount, int64_t *now);
/* Sets the key to `desired` if it has the value `expected`, or if there is none and `expected` is empty. *now: its
 * value afterwards, in *block. */
MOTH_API MothStatus moth_store_compare_set(MothStore *s, MothBytes key, MothBytes expected,
                                           MothBytes desired, MothBytes *now, void **block);
MOTH_API MothStatus moth_store_delete(MothStore *s, MothBytes key, bool *was_there);
MOTH_API MothStatus moth_store_count(MothStore *s, int64_t *keys);
/* Ends a call that waits in another thread, and all later ones, with an error. */
MOTH_API void moth_store_abort(MothStore *s);
#endif
