#include "lua/state.h"

#include <lauxlib.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core/error.h"
#include "lua/moth_lua.h"

struct MothLuaRef {
  MothLuaRef *next, *next_used; /* in the lists of its state */
  MothLuaState *state;
  const MothTensor *tensor; /* of a hook's function: the tensor whose handle lists it */
  int ref;
  _Atomic int refs;
  bool parked, used; /* under the lock; used: in that list */
};

static volatile sig_atomic_t never; /* writable: it is reset, as the host's flag is */
static MothLuaState nobody = {.lock =
                                  PTHREAD_MUTEX_INITIALIZER}; /* of a state that is being closed */

_Thread_local MothLuaHere moth_lua_last MOTH_LUA_TLS = {NULL, &nobody};
_Thread_local const volatile sig_atomic_t *moth_lua_interrupt MOTH_LUA_TLS = &never;

static char key_state, key_refs;

/* --- closed ones ------------------------------------------------------------------------------- */

/* Closed states are reused once no reference to them is left. They are never freed: a thread may still read whether
 * one has something pending. */
static pthread_mutex_t closed_lock = PTHREAD_MUTEX_INITIALIZER;
static MothLuaState *closed;

static MothLuaState *new_state(void) {
  pthread_mutex_lock(&closed_lock);
  MothLuaState **at = &closed, *s;
  while ((s = *at)) {
    pthread_mutex_lock(&s->lock);
    bool empty = s->refs == 0;
    pthread_mutex_unlock(&s->lock);
    if (empty)
      break;
    at = &s->next;
  }
  if (s)
    *at = s->next;
  pthread_mutex_unlock(&closed_lock);
  if (!s && (s = calloc(1, sizeof *s)))
    pthread_mutex_init(&s->lock, NULL);
  return s;
}

static int close_state(lua_State *L) {
  MothLuaState **box = lua_touserdata(L, 1), *s = *box;
  *box = &nobody;
  if (!s || s == &nobody)
    return 0;
  if (moth_lua_last.state == s) {
    moth_lua_last = (MothLuaHere){NULL, &nobody};
    moth_lua_interrupt = &never;
    moth_defaults_use(NULL);
  }
  moth_defaults_free(s->defaults);
  moth_lua_free_left(s);
  pthread_mutex_lock(&s->lock);
  s->registry = NULL;
  s->pending = false;
  for (MothLuaRef *h = s->queue, *next; h; h = next) {
    next = h->next;
    free(h);
    s->refs--;
  }
  for (MothLuaRef *h = s->used, *next; h; h = next) {
    next = h->next_used;
    h->used = false;
    if (atomic_fetch_sub(&h->refs, 1) == 1) {
      free(h);
      s->refs--;
    }
  }
  s->queue = s->used = NULL;
  pthread_mutex_unlock(&s->lock);
  pthread_mutex_lock(&closed_lock);
  s->next = closed;
  closed = s;
  pthread_mutex_unlock(&closed_lock);
  return 0;
}

/* --- the one that runs ------------------------------------------------------------------------- */

MothLuaState *moth_lua_find(lua_State *L) {
  if (!lua_checkstack(L, 2))
    return moth_lua_last.state;
  lua_pushlightuserdata(L, &key_state);
  lua_rawget(L, LUA_REGISTRYINDEX);
  MothLuaState **box = lua_touserdata(L, -1), *s = box ? *box : &nobody;
  lua_pop(L, 1);
  if (s == &nobody)
    return s;
  if (s != moth_lua_last.state) {
    if (moth_lua_last.state != &nobody) {
      moth_lua_leave_state(moth_lua_last.state);
      moth_lua_enter_state(s);
    }
    moth_defaults_use(s->defaults);
    moth_lua_interrupt = s->defaults->interrupt ? s->defaults->interrupt : &never;
  }
  moth_lua_last = (MothLuaHere){L, s};
  return s;
}

void moth_lua_open_state(lua_State *L) {
  static _Atomic bool opened;
  lua_pushlightuserdata(L, &key_state);
  lua_rawget(L, LUA_REGISTRYINDEX);
  bool again = !lua_isnil(L, -1); /* moth is loaded again: the state keeps its references */
  lua_pop(L, 1);
  if (again) {
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "first_state");
    return;
  }
  MothLuaState **box = lua_newuserdata(L, sizeof *box);
  *box = new_state();
  if (*box && !((*box)->defaults = moth_defaults_new())) {
    free(*box);
    *box = NULL;
  }
  if (!*box)
    luaL_error(L, "out of memory");
  (*box)->registry = lua_topointer(L, LUA_REGISTRYINDEX);
  lua_getfield(L, LUA_REGISTRYINDEX, MOTH_LUA_INTERRUPT);
  (*box)->defaults->interrupt = lua_islightuserdata(L, -1) ? lua_touserdata(L, -1) : NULL;
  lua_pop(L, 1);
  lua_newtable(L);
  lua_pushcfunction(L, close_state);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  lua_pushlightuserdata(L, &key_state);
  lua_insert(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
  lua_pushlightuserdata(L, &key_refs);
  lua_newtable(L);
  lua_rawset(L, LUA_REGISTRYINDEX);
  moth_lua_find(L);
  lua_pushboolean(L, !atomic_exchange(&opened, true));
  lua_setfield(L, -2, "first_state"); /* of the process */
}

/* --- references to Lua values ------------------------------------------------------------------------ */

static void push_table(lua_State *L) {
  lua_pushlightuserdata(L, &key_refs);
  lua_rawget(L, LUA_REGISTRYINDEX);
}

void moth_lua_ref_retain(MothLuaRef *h) {
  atomic_fetch_add(&h->refs, 1);
}

MothLuaRef *moth_lua_ref_new(lua_State *L) {
  MothLuaRef *h = malloc(sizeof *h);
  if (!h) {
    lua_pop(L, 1);
    return NULL;
  }
  *h = (MothLuaRef){.state = moth_lua_find(L), .refs = 1};
  push_table(L);
  lua_insert(L, -2);
  h->ref = luaL_ref(L, -2);
  lua_pop(L, 1);
  pthread_mutex_lock(&h->state->lock);
  h->state->refs++;
  pthread_mutex_unlock(&h->state->lock);
  return h;
}

void moth_lua_ref_release(MothLuaRef *h) {
  if (!h || atomic_fetch_sub(&h->refs, 1) > 1)
    return;
  MothLuaState *s = h->state;
  pthread_mutex_lock(&s->lock);
  bool open = s->registry != NULL;
  if (open) {
    h->next = s->queue;
    s->queue = h;
    s->pending = true;
  } else {
    s->refs--;
  }
  pthread_mutex_unlock(&s->lock);
  if (!open)
    free(h);
}

/* Pops a value and makes it the entry of a hook in the list of its tensor's handle. */
static void set_entry(lua_State *L, const MothLuaRef *h) {
  if (!moth_lua_push_hooks(L, h->tensor)) {
    lua_pop(L, 1);
    return;
  }
  lua_pushlightuserdata(L, (void *)(uintptr_t)h);
  lua_pushvalue(L, -3);
  lua_rawset(L, -3);
  lua_pop(L, 2);
}

static void push_entry(lua_State *L, const MothLuaRef *h) {
  if (!moth_lua_push_hooks(L, h->tensor)) {
    lua_pushnil(L);
    return;
  }
  lua_pushlightuserdata(L, (void *)(uintptr_t)h);
  lua_rawget(L, -2);
  lua_remove(L, -2);
}

void moth_lua_ref_set_tensor(MothLuaRef *h, const MothTensor *t) {
  h->tensor = t;
}

bool moth_lua_ref_park(lua_State *L, MothLuaRef *h) {
  pthread_mutex_lock(&h->state->lock);
  bool was = h->parked;
  h->parked = true;
  pthread_mutex_unlock(&h->state->lock);
  if (was)
    return false;
  push_table(L);
  lua_rawgeti(L, -1, h->ref);
  lua_pushboolean(L, 0); /* the slot stays in use */
  lua_rawseti(L, -3, h->ref);
  lua_remove(L, -2);
  return true;
}

void moth_lua_ref_use(MothLuaRef *h) {
  MothLuaState *s = h->state;
  pthread_mutex_lock(&s->lock);
  if (h->parked && !h->used && s->registry) {
    h->used = true;
    atomic_fetch_add(&h->refs, 1);
    h->next_used = s->used;
    s->used = h;
    s->pending = true;
  }
  pthread_mutex_unlock(&s->lock);
}

void moth_lua_remove_queued(lua_State *L) {
  MothLuaState *s = moth_lua_find(L);
  if (!lua_checkstack(L, 8))
    return;
  pthread_mutex_lock(&s->lock);
  MothLuaRef *queue = s->queue, *used = s->used;
  s->queue = s->used = NULL;
  s->pending = false;
  for (MothLuaRef *h = queue; h; h = h->next)
    s->refs--;
  for (MothLuaRef *h = used; h; h = h->next_used)
    h->parked = h->used = false;
  pthread_mutex_unlock(&s->lock);
  for (MothLuaRef *h = used, *next; h; h = next) {
    next = h->next_used;
    push_table(L);
    push_entry(L, h);
    lua_rawseti(L, -2, h->ref);
    lua_pop(L, 1);
    lua_pushboolean(L, 1);
    set_entry(L, h);
    moth_lua_ref_release(h);
  }
  for (MothLuaRef *h = queue, *next; h; h = next) {
    next = h->next;
    if (h->tensor) {
      lua_pushnil(L);
      set_entry(L, h);
    }
    push_table(L);
    luaL_unref(L, -1, h->ref);
    lua_pop(L, 1);
    free(h);
  }
}

bool moth_lua_ref_is_own(lua_State *L, const MothLuaRef *h) {
  return lua_topointer(L, LUA_REGISTRYINDEX) == h->state->registry;
}

bool moth_lua_ref_push(lua_State *L, const MothLuaRef *h) {
  if (!moth_lua_ref_is_own(L, h)) {
    moth_fail(MOTH_ERR_STATE, "a Lua function that is needed here belongs to another Lua state");
    return false;
  }
  if (__builtin_expect(h->parked, 0)) {
    push_entry(L, h);
    return true;
  }
  push_table(L);
  lua_rawgeti(L, -1, h->ref);
  lua_remove(L, -2);
  return true;
}
