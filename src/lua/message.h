/* Messages, Lua values on their way from one Lua state to another, and channels, queues of them: for threads.c. */
#ifndef MOTH_LUA_MESSAGE_H
#define MOTH_LUA_MESSAGE_H
#include <pthread.h>
#include <time.h>

#include "lua/moth_lua.h"

#define MOTH_MAGIC_CHANNEL 0x6d6f74684368616eull

typedef struct MothMessage MothMessage;
typedef struct MothChannel MothChannel;

typedef struct MothHeld {
  void *object;    /* with a reference */
  bool is_channel; /* else a tensor */
} MothHeld;

struct MothMessage {
  MothMessage *next; /* in its channel */
  char *bytes;
  size_t size, capacity;
  MothHeld *held;
  int nheld, held_capacity;
};

enum { MOTH_MESSAGE_PATH = 200 };

/* The n values from `first` on, as a message: nil, booleans, numbers, strings, tensors (the same elements, not a copy),
 * dtypes, devices, channels, and tables of these without a metatable. NULL where a value is something else: *what names
 * it, and path (of MOTH_MESSAGE_PATH bytes) tells where it is, as in `[2].fn`; the first value is [1]. *what is NULL
 * where there was no memory. Raises no Lua error. */
MothMessage *moth_message_pack(lua_State *L, int first, int n, const char **what, char *path);
/* Pushes the values; returns how many. The message stays as it is. May raise an error: out of memory. */
int moth_message_unpack(lua_State *L, const MothMessage *m);
void moth_message_free(MothMessage *m); /* NULL is allowed */

/* Channels (channel.c). push takes over m; false: the channel is closed. A closed one drops what is in it. */
void moth_channel_retain(MothChannel *c);
void moth_channel_release(MothChannel *c); /* NULL is allowed */
bool moth_channel_push(MothChannel *c, MothMessage *m);
void moth_channel_close(MothChannel *c);

void moth_lua_push_channel(lua_State *L, MothChannel *c); /* takes over a reference */
MothChannel *moth_lua_channel_at(lua_State *L, int idx);
/* The values from `first` on as a message; NULL, as from pack, where one cannot travel. Raises other errors. */
MothMessage *moth_lua_message_of(lua_State *L, int first, const char **what, char *path);
/* Into the table on top. */
void moth_lua_open_channels(lua_State *L);
/* So many seconds from now, and a lock whose condition is waited for by that clock. */
struct timespec moth_deadline(double seconds);
void moth_make_lock(pthread_mutex_t *lock, pthread_cond_t *changed);
#endif
