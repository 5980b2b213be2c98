/* The binding's data of a Lua state. A process may run several states, in several threads or one after another in the
 * same; core/defaults.h says what belongs to a state, a thread, the process.
 *
 * Values retained by C (a hook of a node, the backward of a Function, a mode) are in a table of their state's
 * registry. Any thread may release one: it joins the queue of its state, which removes the values when it next
 * makes a handle. A thread caches the state that it runs (moth_lua_here), by the lua_State that entered last: a
 * call only compares pointers. A coroutine's address may later belong to another state, so the cache is a hint;
 * code that must be sure asks the registry. */
#ifndef MOTH_LUA_STATE_H
#define MOTH_LUA_STATE_H
#include <lua.h>
#include <pthread.h>
#include <signal.h>

#include "core/defaults.h"

/* Initial-exec: variables that every call reads must not cost a function call. Small, since the static TLS of a
 * library that is opened at run time is scarce. */
#define MOTH_LUA_TLS __attribute__((tls_model("initial-exec")))

typedef struct MothLuaRef MothLuaRef;

typedef struct MothLuaState {
  struct MothLuaState *next; /* in the list of closed states */
  const void *registry;      /* its address; NULL: closed */
  MothDefaults *defaults;
  pthread_mutex_t lock; /* of the fields below */
  MothLuaRef *queue;    /* released, not yet removed */
  MothLuaRef *used;     /* parked, to be retained again */
  int64_t refs;         /* number of values, with those in the queue */
  _Atomic bool pending; /* one of the two lists is not empty */
  struct MothLuaLeft *
      left; /* the modes that it had set when another state took over its thread (coroutine.c); NULL: none */
} MothLuaState;

typedef struct MothLuaHere {
  lua_State *L;
  MothLuaState *state;
} MothLuaHere;
extern _Thread_local MothLuaHere moth_lua_last MOTH_LUA_TLS;
/* The interrupt flag of the running state; never NULL. */
extern _Thread_local const volatile sig_atomic_t *moth_lua_interrupt MOTH_LUA_TLS;

/* Asks the registry, and installs the state's defaults and flag in this thread. */
MothLuaState *moth_lua_find(lua_State *L);
static inline MothLuaState *moth_lua_here(lua_State *L) {
  return __builtin_expect(L == moth_lua_last.L, 1) ? moth_lua_last.state : moth_lua_find(L);
}

/* Pops a value and returns a reference to it. After moth_lua_ref_release, from any thread, its state removes the
 * value when it next makes a handle. NULL: no memory. */
MothLuaRef *moth_lua_ref_new(lua_State *L);
void moth_lua_ref_release(MothLuaRef *ref); /* NULL is allowed */
void moth_lua_ref_retain(MothLuaRef *ref);  /* requires one more moth_lua_ref_release */
/* Pushes the value; false, with a message, if it belongs to another state. */
bool moth_lua_ref_push(lua_State *L, const MothLuaRef *ref);
bool moth_lua_ref_is_own(lua_State *L, const MothLuaRef *ref); /* this state's */
/* The function of a hook of tensor t, whose handle lists it (leaf.c). Parked, only the handle refers to it. When t
 * becomes a part of a graph, in any thread, moth_lua_ref_use is called, and the state refers to it again when it next
 * makes a handle. */
void moth_lua_ref_set_tensor(MothLuaRef *ref, const MothTensor *t);
bool moth_lua_ref_park(lua_State *L, MothLuaRef *ref); /* pushes the value; false: it is parked */
void moth_lua_ref_use(MothLuaRef *ref);
void moth_lua_remove_queued(lua_State *L);
static inline void moth_lua_drain(lua_State *L) {
  if (__builtin_expect(moth_lua_here(L)->pending, 0))
    moth_lua_remove_queued(L);
}

/* Saves the modes of a state that the thread leaves, and restores those of the state that it enters (coroutine.c). */
void moth_lua_leave_state(MothLuaState *s);
void moth_lua_enter_state(MothLuaState *s);
void moth_lua_free_left(MothLuaState *s);

/* Opened before all other parts; the binding's table is on top. */
void moth_lua_open_state(lua_State *L);
#endif
