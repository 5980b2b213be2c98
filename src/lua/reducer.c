/* The gradient reducer, for lua/moth/distributed/ddp.lua. */
#include "comm/reducer.h"

#include <stdlib.h>

#include "core/alloc.h"
#include "lua/moth_lua.h"

#define MAGIC_REDUCER 0x6d6f746852656475ull

static char key_reducer;

typedef struct Held {
  MothReducer *r;
  MothLuaRef *start, *finish; /* the functions of a communication hook */
} Held;

static Held *held_at(lua_State *L, int idx) {
  Held *h = ((MothHandle *)moth_lua_check_handle(L, idx, MAGIC_REDUCER, "reducer"))->u.other;
  if (!h || !h->r)
    moth_lua_error(L, "this reducer was closed");
  return h;
}

static bool flag_of(lua_State *L, int idx, const char *name) {
  lua_getfield(L, idx, name);
  bool on = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return on;
}

/* new(group number, params, names, buckets (a list of numbers from 1), number of buckets, { find_unused, as_view,
 * is_static }) */
static int b_new(lua_State *L) {
  moth_lua_enter(L);
  lua_settop(L, 6);
  MothHandle *h = moth_lua_new_handle(L, MAGIC_REDUCER, &key_reducer);
  int n = (int)lua_objlen(L, 2), nbuckets = (int)luaL_checkinteger(L, 5);
  MothTensor **params = lua_newuserdata(L, (size_t)(n + 1) * sizeof *params);
  const char **names = lua_newuserdata(L, (size_t)(n + 1) * sizeof *names);
  int *bucket_of = lua_newuserdata(L, (size_t)(n + 1) * sizeof *bucket_of);
  for (int i = 0; i < n; i++) { /* the lists retain them */
    lua_rawgeti(L, 2, i + 1);
    params[i] = moth_lua_check_tensor(L, -1, "DistributedDataParallel");
    lua_rawgeti(L, 3, i + 1);
    names[i] = luaL_checkstring(L, -1);
    lua_rawgeti(L, 4, i + 1);
    bucket_of[i] = (int)luaL_checkinteger(L, -1) - 1;
    lua_pop(L, 3);
  }
  MothReducerOptions options = {.find_unused = flag_of(L, 6, "find_unused"),
                                .as_view = flag_of(L, 6, "as_view"),
                                .is_static = flag_of(L, 6, "is_static")};
  MothGroup *g = moth_group_find(luaL_checkinteger(L, 1));
  if (!g)
    return moth_lua_error(L, "the process group was destroyed");
  Held *held = calloc(1, sizeof *held);
  MothStatus s = held
                     ? moth_reducer_new(g, n, params, names, bucket_of, nbuckets, options, &held->r)
                     : moth_no_memory(sizeof *held);
  moth_group_release(g);
  if (s != MOTH_OK)
    free(held);
  else
    h->u.other = held;
  moth_lua_done(L, s);
  lua_settop(L, 7);
  return 1;
}

static int reducer_gc(lua_State *L) { /* also its close */
  MothHandle *h = moth_lua_handle(L, 1, MAGIC_REDUCER);
  Held *held = h ? h->u.other : NULL;
  if (held) {
    h->u.other = NULL;
    moth_reducer_free(held->r);
    moth_lua_ref_release(held->start);
    moth_lua_ref_release(held->finish);
    free(held);
  }
  return 0;
}

static int b_set_sync(lua_State *L) { /* (reducer, on) -> what it was */
  lua_pushboolean(L, moth_reducer_set_sync(held_at(L, 1)->r, lua_toboolean(L, 2)));
  return 1;
}
static int b_shadow(lua_State *L) { /* (reducer) */
  moth_lua_enter(L);
  return moth_lua_done(L, moth_reducer_shadow(held_at(L, 1)->r));
}
static int b_buffer(lua_State *L) { /* (reducer, bucket) -> its buffer */
  MothTensor *t = moth_reducer_buffer(held_at(L, 1)->r, (int)luaL_checkinteger(L, 2) - 1);
  if (!t)
    return moth_lua_error(L, "there is no such bucket");
  moth_tensor_retain(t);
  moth_lua_push_tensor(L, t);
  return 1;
}
static int b_order(
    lua_State *L) { /* (reducer) -> number of reduced backwards, positions of parameters in order */
  const int *order;
  int n;
  lua_pushnumber(L, (lua_Number)moth_reducer_order(held_at(L, 1)->r, &order, &n));
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_pushinteger(L, order[i] + 1);
    lua_rawseti(L, -2, i + 1);
  }
  return 2;
}

static MothStatus call_with_bucket(const MothLuaRef *ref, int bucket) {
  lua_State *L = moth_lua_current;
  if (!L || !moth_lua_ref_is_own(L, ref))
    return moth_lua_no_state();
  if (!moth_lua_ref_push(L, ref))
    return MOTH_ERR_HOST;
  lua_pushinteger(L, bucket + 1);
  return moth_lua_call(L, 1, 0);
}
static MothStatus start_hook(void *ctx, int bucket) {
  return call_with_bucket(((Held *)ctx)->start, bucket);
}
static MothStatus finish_hook(void *ctx, int bucket) {
  return call_with_bucket(((Held *)ctx)->finish, bucket);
}

static int
b_set_hook(lua_State *L) { /* (reducer, start, finish): functions of a bucket's position */
  Held *h = held_at(L, 1);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  luaL_checktype(L, 3, LUA_TFUNCTION);
  lua_settop(L, 3);
  h->finish = moth_lua_ref_new(L);
  h->start = moth_lua_ref_new(L);
  if (!h->start || !h->finish)
    return moth_lua_raise(L, moth_no_memory(0));
  moth_reducer_set_hook(h->r, (MothReducerHook){start_hook, finish_hook, h});
  return 0;
}

void moth_lua_open_reducer(
    lua_State *L) { /* the binding's table is on top: into its field reducer */
  static const luaL_Reg fns[] = {
      {"new", b_new},     {"close", reducer_gc},    {"set_sync", b_set_sync}, {"buffer", b_buffer},
      {"order", b_order}, {"set_hook", b_set_hook}, {"shadow", b_shadow},     {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, fns);
  moth_lua_new_class(L, &key_reducer, "moth.Reducer", reducer_gc);
  lua_setfield(L, -2, "reducer");
}
