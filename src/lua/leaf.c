/* Leaves: one handle for each, which holds its hooks.
 *
 * A tensor that requires grad by the user's word is a parameter: it is a key of tables, and hooks hang on
 * it. So a table with weak values leads from the tensor to its handle, and who gets a parameter from C
 * gets the same userdata again. Only such tensors pay for it.
 *
 * Hooks lie in the environment of the handle: a hook that mentions its own tensor then makes a circle
 * that the collector sees and frees; in the registry it would live for ever. Where the handle dies before
 * the tensor (the graph still needs it, and will run the hooks), the finalizer moves it to the table
 * `kept` instead. Nobody tells when the graph goes, so every collection looks through `kept`: a userdata
 * that nothing refers to, made anew by its own finalizer, is the clock. */
#include "lua/moth_lua.h"

static char key_leaves, key_kept, key_clock, key_mark;

static void push_registered(lua_State *L, void *key) {
  lua_pushlightuserdata(L, key);
  lua_rawget(L, LUA_REGISTRYINDEX);
}

/* Pushes table[t] or leaves the stack alone. */
static bool push_entry(lua_State *L, void *table_key, MothTensor *t) {
  push_registered(L, table_key);
  lua_pushlightuserdata(L, t);
  lua_rawget(L, -2);
  lua_remove(L, -2);
  MothHandle *h = moth_lua_handle(L, -1, MOTH_MAGIC_TENSOR);
  if (h && h->u.t == t)
    return true;
  lua_pop(L, 1);
  return false;
}

static void set_entry(lua_State *L, void *table_key, MothTensor *t, int idx) {
  push_registered(L, table_key);
  lua_pushlightuserdata(L, t);
  lua_pushvalue(L, idx);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

bool moth_lua_push_leaf(lua_State *L, MothTensor *t) {
  if (!push_entry(L, &key_leaves, t))
    return false;
  moth_tensor_release(t); /* the handle has one */
  return true;
}

void moth_lua_add_leaf(lua_State *L, MothTensor *t, int idx) {
  int handle = idx > 0 ? idx : lua_gettop(L) + 1 + idx;
  if (push_entry(L, &key_leaves, t)) {
    lua_pop(L, 1);
    return;
  }
  set_entry(L, &key_leaves, t, handle);
  if (!push_entry(L, &key_kept, t))
    return;
  lua_getfenv(L, -1); /* a kept one: its hooks are the new handle's, too */
  lua_setfenv(L, handle);
  lua_pop(L, 1);
}

/* --- hooks ------------------------------------------------------------------------------------- */

/* Pushes the environment of the handle at idx if it is its own, else nil. */
static bool push_environment(lua_State *L, int idx) {
  lua_getfenv(L, idx);
  lua_pushlightuserdata(L, &key_mark);
  lua_rawget(L, -2);
  bool its_own = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return its_own;
}

void moth_lua_set_hook(lua_State *L, int idx, const void *key) {
  if (!push_environment(L, idx)) {
    lua_newtable(L);
    lua_pushlightuserdata(L, &key_mark);
    lua_pushboolean(L, 1);
    lua_rawset(L, -3);
    lua_pushvalue(L, -1);
    lua_setfenv(L, idx);
    lua_replace(L, -2);
  }
  lua_pushlightuserdata(L, (void *)key);
  lua_pushvalue(L, -3);
  lua_rawset(L, -3);
  lua_pop(L, 2);
}

bool moth_lua_push_hook(lua_State *L, MothTensor *t, const void *key) {
  if (!push_entry(L, &key_leaves, t) && !push_entry(L, &key_kept, t))
    return false;
  if (push_environment(L, -1)) {
    lua_pushlightuserdata(L, (void *)key);
    lua_rawget(L, -2);
    lua_replace(L, -3);
    lua_pop(L, 1);
    if (lua_isfunction(L, -1))
      return true;
    lua_pop(L, 1);
  } else {
    lua_pop(L, 2);
  }
  return false;
}

void moth_lua_drop_hook(lua_State *L, MothTensor *t, const void *key) {
  if (!push_entry(L, &key_leaves, t) && !push_entry(L, &key_kept, t))
    return;
  if (push_environment(L, -1)) {
    lua_pushlightuserdata(L, (void *)key);
    lua_pushnil(L);
    lua_rawset(L, -3);
  }
  lua_pop(L, 2);
}

static void start_clock(lua_State *L) {
  lua_newuserdata(L, 1);
  push_registered(L, &key_clock);
  lua_setmetatable(L, -2);
  lua_pop(L, 1);
}

static int clock_gc(lua_State *L) {
  bool any = false;
  push_registered(L, &key_kept);
  lua_pushnil(L);
  while (lua_next(L, -2)) {
    MothHandle *h = moth_lua_handle(L, -1, MOTH_MAGIC_TENSOR);
    lua_pop(L, 1);
    MothTensor *t = h->u.t;
    if (t && t->refs > 1) {
      any = true;
      continue;
    }
    h->u.t = NULL;
    moth_tensor_release(t);
    lua_pushvalue(L, -1);
    lua_pushnil(L);
    lua_rawset(L, -4);
  }
  if (any)
    start_clock(L);
  return 0;
}

bool moth_lua_keep_leaf(lua_State *L, MothTensor *t, int idx) {
  if (!t->grad->hooks || t->refs == 1 || push_entry(L, &key_kept, t))
    return false;
  bool hooks = push_environment(L, idx);
  lua_pop(L, 1);
  if (!hooks)
    return false;
  push_registered(L, &key_kept);
  lua_pushnil(L);
  bool ticking = lua_next(L, -2);
  lua_settop(L, idx);
  if (!ticking)
    start_clock(L);
  set_entry(L, &key_kept, t, idx);
  return true;
}

void moth_lua_open_leaves(lua_State *L) {
  lua_pushlightuserdata(L, &key_leaves);
  lua_newtable(L);
  lua_newtable(L);
  lua_pushliteral(L, "v");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
  lua_pushlightuserdata(L, &key_kept);
  lua_newtable(L);
  lua_rawset(L, LUA_REGISTRYINDEX);
  lua_pushlightuserdata(L, &key_clock);
  lua_newtable(L);
  lua_pushcfunction(L, clock_gc);
  lua_setfield(L, -2, "__gc");
  lua_rawset(L, LUA_REGISTRYINDEX);
}
