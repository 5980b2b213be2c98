/* Modes of coroutines: no_grad, autocast, dispatch modes, fake tensors, CUDA's device and streams,
 * moth.scope.
 *
 * The core keeps modes per thread of the system. A coroutine that opens a scope gets a record of its own, which lives
 * while one of its scopes is open: it may yield inside, finds its modes again when it is resumed, and does not change
 * those of the coroutine that resumed it. A coroutine without a record runs under the modes of the nearest coroutine
 * below it, in the chain of resumes, that has one, else under the main program's (the base). Lua does not report when
 * coroutines switch: every entry of the binding checks, at the cost of one load while no record exists, whether the
 * modes in force (`live`) are those of the calling coroutine. Lua does not report either which coroutine resumed
 * which: among those that are neither suspended nor dead, the one whose record was loaded last is taken for the
 * nearest.
 *
 * The records are the values of a table with weak keys, so that the modes of a coroutine that is collected inside a
 * scope end with it.
 *
 * Ctrl-C is polled at the same entries: the host gives the address of its flag. Inside a long op the core polls it
 * (core/parallel.h). */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/thread.h"
#include "device/stream.h"
#include "lua/moth_lua.h"

typedef struct Record {
  MothModes modes;
  MothStreamModes streams;
  MothLuaScope *scope; /* the innermost moth.scope */
  int depth;           /* scopes of all kinds that the coroutine has open */
  uint64_t seen;       /* when it was last loaded */
} Record;

_Thread_local int moth_lua_records MOTH_LUA_TLS;
static _Thread_local Record *base, *live; /* live NULL: the base */
static _Thread_local Record *spare;       /* a base that is out of use */
static _Thread_local lua_State
    *owner; /* calls from it need no check: main, or the coroutine of the live record */
static _Thread_local uint64_t clock_now;

static char key_records, key_owner, key_meta;

static void push_records(lua_State *L) {
  lua_pushlightuserdata(L, &key_records);
  lua_rawget(L, LUA_REGISTRYINDEX);
}

static bool is_main(lua_State *L) {
  bool main = lua_pushthread(L);
  lua_pop(L, 1);
  return main;
}

/* The record of L itself, or NULL. */
static Record *own(lua_State *L) {
  push_records(L);
  lua_pushthread(L);
  lua_rawget(L, -2);
  Record *r = lua_touserdata(L, -1);
  lua_pop(L, 2);
  return r;
}

static bool is_active(lua_State *co) {
  lua_Debug ar;
  return lua_status(co) == 0 && lua_getstack(co, 0, &ar);
}

/* The record under which L runs if it has none of its own; NULL is the base. */
static Record *nearest(lua_State *L) {
  Record *found = NULL;
  push_records(L);
  lua_pushnil(L);
  while (lua_next(L, -2)) {
    Record *r = lua_touserdata(L, -1);
    if (is_active(lua_tothread(L, -2)) && (!found || r->seen > found->seen))
      found = r;
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return found;
}

static void load(Record *to) {
  Record *r = to ? to : base;
  moth_modes_load(&r->modes);
  moth_streams_load(&r->streams);
  moth_lua_load_scope(r->scope);
  r->seen = ++clock_now;
  live = to;
}

static void save(void) {
  Record *r = live ? live : base;
  moth_modes_save(&r->modes);
  moth_streams_save(&r->streams);
  moth_lua_save_scope(&r->scope);
}

/* Makes L the coroutine whose calls need no check. */
static void set_owner(lua_State *L, bool claim) {
  owner = claim ? L : NULL;
  lua_pushlightuserdata(L,
                        &key_owner); /* referenced, so that no other coroutine gets its address */
  if (claim)
    lua_pushthread(L);
  else
    lua_pushnil(L);
  lua_rawset(L, LUA_REGISTRYINDEX);
}

void moth_lua_switch(lua_State *L) {
  if (L == owner || !lua_checkstack(L, 8))
    return;
  bool claim = is_main(L);
  Record *to = claim ? NULL : own(L);
  claim = claim || to;
  if (!claim)
    to = nearest(L);
  if (to != live) {
    if (__builtin_expect(moth_unrun != 0, 0)) {
      lua_State *was = owner;
      owner = L; /* what Lua does for them runs under the modes that are loaded */
      moth_lua_leave_notes(L);
      owner = was;
    }
    save();
    load(to);
  }
  set_owner(L, claim);
}

/* open_modes(): called before a scope changes a mode; close_modes(): after the scope has restored it. */
static int b_open_modes(lua_State *L) {
  if (is_main(L))
    return 0;
  moth_lua_here(L); /* the base belongs to this state */
  if (!base) {
    base = spare ? spare : moth_thread_calloc(sizeof *base);
    spare = NULL;
  }
  if (!base)
    return moth_lua_raise(L, moth_no_memory(0));
  Record *r = own(L);
  if (r) {
    r->depth++;
    return 0;
  }
  moth_lua_sync(L);
  push_records(L);
  lua_pushthread(L);
  r = lua_newuserdata(L, sizeof *r);
  memset(r, 0, sizeof *r);
  lua_pushlightuserdata(L, &key_meta);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_setmetatable(L, -2);
  lua_rawset(L, -3);
  moth_lua_records++;
  r->depth = 1;
  save();                     /* the modes of the record that was live; r begins with the same */
  moth_modes_save(&r->modes); /* those in force */
  moth_streams_save(&r->streams);
  moth_lua_save_scope(&r->scope);
  r->seen = ++clock_now;
  live = r;
  set_owner(L, true);
  return 0;
}

static int b_close_modes(lua_State *L) {
  Record *r = is_main(L) ? NULL : own(L);
  if (!r || --r->depth > 0)
    return 0;
  push_records(L);
  lua_pushthread(L);
  lua_pushnil(L);
  lua_rawset(L, -3);
  if (live == r) {
    load(nearest(L));
    set_owner(L, false);
  }
  moth_lua_forget_scope(&r->scope);
  moth_modes_forget(&r->modes);
  moth_streams_forget(&r->streams);
  moth_lua_records--;
  return 0;
}

static int record_gc(lua_State *L) {
  Record *r = lua_touserdata(L, 1);
  if (live == r) { /* dropped while its modes were in force, or the state closes */
    load(NULL);
    owner = NULL;
  }
  if (r->depth > 0) { /* not closed: dropped inside a scope */
    moth_lua_forget_scope(&r->scope);
    moth_modes_forget(&r->modes);
    moth_streams_forget(&r->streams);
    moth_lua_records--;
  }
  return 0;
}

/* --- other states on the same thread ------------------------------------------------------------ */

/* A host may call one state from a function that another state has called: the modes of that one, and the pass that
 * it runs, are saved until it continues. */
struct MothLuaLeft {
  MothModes modes;
  MothPasses passes;
  MothLuaScope *scope;
  Record *base, *live;
  lua_State *owner;
  uint64_t clock;
  int records;
};

void moth_lua_leave_state(MothLuaState *s) {
  MothLuaScope *scope = NULL;
  if (moth_unrun)
    moth_lua_leave_notes(NULL); /* whose coroutines may be gone */
  moth_lua_save_scope(&scope);
  bool busy = moth_modes_any() || scope || moth_lua_records || moth_current_pass();
  struct MothLuaLeft *left = busy ? calloc(1, sizeof *left) : NULL;
  if (!left) { /* nothing is set; or there is no memory, and both share the modes */
    moth_lua_forget_scope(&scope);
    return;
  }
  moth_modes_save(&left->modes);
  moth_swap_passes(&left->passes);
  left->scope = scope;
  left->base = base;
  left->live = live;
  left->owner = owner;
  left->clock = clock_now;
  left->records = moth_lua_records;
  moth_modes_reset();
  moth_lua_load_scope(NULL);
  base = live = NULL;
  owner = NULL;
  moth_lua_records = 0;
  s->left = left;
}

void moth_lua_enter_state(MothLuaState *s) {
  struct MothLuaLeft *left = s->left;
  if (!left)
    return;
  moth_modes_load(&left->modes);
  moth_swap_passes(&left->passes);
  moth_lua_load_scope(left->scope);
  if (base) {
    moth_modes_forget(&base->modes);
    moth_lua_forget_scope(&base->scope);
    spare = base;
  }
  base = left->base;
  live = left->live;
  owner = left->owner;
  clock_now = left->clock;
  moth_lua_records = left->records;
  moth_lua_free_left(s);
}

void moth_lua_free_left(MothLuaState *s) {
  struct MothLuaLeft *left = s->left;
  s->left = NULL;
  if (!left)
    return;
  moth_lua_forget_scope(&left->scope);
  moth_modes_forget(&left->modes);
  free(left);
}

/* --- Ctrl-C ------------------------------------------------------------------------------------ */

int moth_lua_interrupted(lua_State *L) {
  *(volatile sig_atomic_t *)moth_lua_interrupt = 0;
  lua_sethook(L, NULL, 0, 0); /* the host's, which would raise it once more */
  return moth_lua_error(L, "interrupted");
}

void moth_lua_entered(lua_State *L) {
  if (*moth_lua_interrupt)
    moth_lua_interrupted(L);
  moth_lua_sync(L);
}

void moth_lua_open_coroutines(lua_State *L) {
  static const luaL_Reg fns[] = {
      {"open_modes", b_open_modes}, {"close_modes", b_close_modes}, {NULL, NULL}};
  luaL_register(L, NULL, fns);
  push_records(L);
  bool again = !lua_isnil(L, -1);
  lua_pop(L, 1);
  if (again)
    return;
  lua_pushlightuserdata(L, &key_records);
  lua_newtable(L);
  lua_newtable(L);
  lua_pushliteral(L, "k");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
  lua_pushlightuserdata(L, &key_meta);
  lua_newtable(L);
  lua_pushcfunction(L, record_gc);
  lua_setfield(L, -2, "__gc");
  lua_rawset(L, LUA_REGISTRYINDEX);
}
