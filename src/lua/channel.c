/* Channels: queues of messages between Lua states, which any of their threads fill and empty. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "core/alloc.h"
#include "lua/message.h"

static char key_channel, key_box;

struct timespec moth_deadline(double seconds) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  int64_t ns = t.tv_nsec + (int64_t)(seconds * 1e9);
  t.tv_sec += ns / 1000000000;
  t.tv_nsec = ns % 1000000000;
  return t;
}

void moth_make_lock(pthread_mutex_t *lock, pthread_cond_t *changed) {
  pthread_condattr_t a;
  pthread_condattr_init(&a);
  pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
  pthread_mutex_init(lock, NULL);
  pthread_cond_init(changed, &a);
  pthread_condattr_destroy(&a);
}

struct MothChannel {
  _Atomic int refs;
  pthread_mutex_t lock; /* of the fields below */
  pthread_cond_t changed;
  MothMessage *first, **last;
  int n;
  bool closed; /* takes no more messages and gives none */
};

void moth_channel_retain(MothChannel *c) {
  atomic_fetch_add(&c->refs, 1);
}

static void free_messages(MothMessage *m) {
  while (m) {
    MothMessage *next = m->next;
    moth_message_free(m);
    m = next;
  }
}

void moth_channel_release(MothChannel *c) {
  if (!c || atomic_fetch_sub(&c->refs, 1) > 1)
    return;
  free_messages(c->first);
  pthread_mutex_destroy(&c->lock);
  pthread_cond_destroy(&c->changed);
  free(c);
}

/* Takes over m; false: the channel is closed. */
bool moth_channel_push(MothChannel *c, MothMessage *m) {
  pthread_mutex_lock(&c->lock);
  bool open = !c->closed;
  if (open) {
    m->next = NULL;
    *c->last = m;
    c->last = &m->next;
    c->n++;
    pthread_cond_signal(&c->changed);
  }
  pthread_mutex_unlock(&c->lock);
  if (!open)
    moth_message_free(m);
  return open;
}

/* Waits at most `seconds`. NULL: none came, or the channel is closed. */
static MothMessage *channel_pop(MothChannel *c, double seconds, bool *closed) {
  struct timespec until = moth_deadline(seconds);
  pthread_mutex_lock(&c->lock);
  while (!c->first && !c->closed && seconds > 0) {
    if (pthread_cond_timedwait(&c->changed, &c->lock, &until) == ETIMEDOUT)
      break;
  }
  MothMessage *m = c->first;
  if (m) {
    if (!(c->first = m->next))
      c->last = &c->first;
    c->n--;
  }
  *closed = c->closed;
  pthread_mutex_unlock(&c->lock);
  return m;
}

void moth_channel_close(MothChannel *c) {
  pthread_mutex_lock(&c->lock);
  MothMessage *left = c->first;
  c->first = NULL;
  c->last = &c->first;
  c->n = 0;
  c->closed = true;
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
  free_messages(left);
}

/* --- the binding ---------------------------------------------------------------------------------
 */

MothChannel *moth_lua_channel_at(lua_State *L, int idx) {
  return ((MothHandle *)moth_lua_check_handle(L, idx, MOTH_MAGIC_CHANNEL, "channel"))->u.other;
}
void moth_lua_push_channel(lua_State *L, MothChannel *c) {
  MothHandle *h = moth_lua_new_handle(L, MOTH_MAGIC_CHANNEL, &key_channel);
  h->u.other = c;
}

static int b_channel(lua_State *L) {
  MothHandle *h = moth_lua_new_handle(L, MOTH_MAGIC_CHANNEL, &key_channel);
  MothChannel *c = calloc(1, sizeof *c);
  if (!c)
    return moth_lua_raise(L, moth_no_memory(sizeof *c));
  c->refs = 1;
  c->last = &c->first;
  moth_make_lock(&c->lock, &c->changed);
  h->u.other = c;
  return 1;
}

/* The values from `first` on as a message; raises what is wrong with them. */
MothMessage *moth_lua_message_of(lua_State *L, int first, const char **what, char *path) {
  moth_lua_enter(L);
  if (moth_unrun)
    moth_lua_leave_notes(L);
  MothMessage *m = moth_message_pack(L, first, lua_gettop(L) - first + 1, what, path);
  if (!m && !*what)
    moth_lua_raise(L, moth_no_memory(0));
  return m;
}

/* push(channel, …) -> true; false: it is closed; nil, what, path: a value cannot travel */
static int b_push(lua_State *L) {
  const char *what = NULL;
  char path[MOTH_MESSAGE_PATH];
  MothChannel *c = moth_lua_channel_at(L, 1);
  MothMessage *m = moth_lua_message_of(L, 2, &what, path);
  if (!m) {
    lua_pushnil(L);
    lua_pushstring(L, what);
    lua_pushstring(L, path);
    return 3;
  }
  lua_pushboolean(L, moth_channel_push(c, m));
  return 1;
}

static int box_gc(lua_State *L) {
  MothMessage **box = lua_touserdata(L, 1);
  moth_message_free(*box);
  *box = NULL;
  return 0;
}

/* pop(channel, seconds) -> true, …; false: none came so far; nil: it is closed. Waits a twentieth of a second at most, so that
 * the caller sees interrupts. */
static int b_pop(lua_State *L) {
  MothChannel *c = moth_lua_channel_at(L, 1);
  double seconds = luaL_checknumber(L, 2);
  moth_lua_enter(L);
  MothMessage **box = lua_newuserdata(L, sizeof *box); /* frees the message on an error */
  *box = NULL;
  lua_pushlightuserdata(L, &key_box);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_setmetatable(L, -2);
  bool closed;
  *box = channel_pop(c, seconds < 0.05 ? seconds : 0.05, &closed);
  moth_lua_enter(L);
  if (!*box) {
    if (closed)
      lua_pushnil(L);
    else
      lua_pushboolean(L, 0);
    return 1;
  }
  lua_pushboolean(L, 1);
  int n = moth_message_unpack(L, *box);
  moth_message_free(*box);
  *box = NULL;
  return n + 1;
}

static int b_close(lua_State *L) { /* (channel): what is in it is dropped */
  moth_channel_close(moth_lua_channel_at(L, 1));
  return 0;
}
static int b_count(lua_State *L) { /* (channel) -> the number of messages in it */
  MothChannel *c = moth_lua_channel_at(L, 1);
  pthread_mutex_lock(&c->lock);
  lua_pushinteger(L, c->n);
  pthread_mutex_unlock(&c->lock);
  return 1;
}
static int channel_gc(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MOTH_MAGIC_CHANNEL);
  if (h) {
    moth_channel_release(h->u.other);
    h->magic = 0;
  }
  return 0;
}

void moth_lua_new_class(lua_State *L, void *key, const char *name, lua_CFunction gc) {
  lua_pushlightuserdata(L, key);
  lua_newtable(L);
  lua_pushcfunction(L, gc);
  lua_setfield(L, -2, "__gc");
  lua_pushstring(L, name);
  lua_setfield(L, -2, "__name");
  lua_rawset(L, LUA_REGISTRYINDEX);
}

void moth_lua_open_channels(lua_State *L) {
  static const luaL_Reg fns[] = {{"channel", b_channel}, {"push", b_push},   {"pop", b_pop},
                                 {"close", b_close},     {"count", b_count}, {NULL, NULL}};
  luaL_register(L, NULL, fns);
  moth_lua_new_class(L, &key_channel, "moth.Channel", channel_gc);
  moth_lua_new_class(L, &key_box, "moth.Message", box_gc);
}
