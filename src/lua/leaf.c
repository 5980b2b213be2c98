/* Leaves have one handle each. And where the functions of hooks are stored.
 *
 * A tensor on which the user set requires_grad is a parameter, and programs use it as a key of tables. So a table
 * with weak values maps the tensor to its handle: code that gets a parameter from C gets the same userdata again.
 * Other tensors do not pay for this.
 *
 * A hook's function must live as long as backward may run it, and mostly mentions tensors, often its own. If the
 * registry always referred to it, there would be a cycle that no collector finds: function, handle, tensor, node,
 * function. So the handle lists the functions of its tensor's hooks in its environment, and at each collection these
 * handles are checked: where nothing else refers to the tensor, and to its node if it has one, the hooks can only run
 * if the program uses the handle, and the functions move from the registry into its environment (they are parked).
 * Then the collector finds the cycle. When the tensor becomes a part of a graph again they move back
 * (moth_lua_ref_use). A userdata without references, whose finalizer makes another one, tells when a collection runs. */
#include "lua/moth_lua.h"

static char key_leaves, key_hooked, key_clock, key_mark;

static void push_registered(lua_State *L, void *key) {
  lua_pushlightuserdata(L, key);
  lua_rawget(L, LUA_REGISTRYINDEX);
}

/* Pushes table[t] or leaves the stack alone. */
static bool push_entry(lua_State *L, void *table_key, const MothTensor *t) {
  push_registered(L, table_key);
  lua_pushlightuserdata(L, (void *)(uintptr_t)t);
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
  for (const MothHook *h = t->grad->hooks; h; h = h->next) { /* of an earlier handle */
    MothLuaRef *ref = moth_lua_hook_of(L, h);
    if (ref)
      moth_lua_add_hook(L, handle, ref);
  }
}

/* --- hooks ------------------------------------------------------------------------------------- */

/* Pushes the environment of the handle at idx if it is its own, else nil. */
static bool push_environment(lua_State *L, int idx) {
  lua_getfenv(L, idx);
  lua_pushlightuserdata(L, &key_mark);
  lua_rawget(L, -2);
  bool its_own = lua_toboolean(L, -1);
  lua_pop(L, 1);
  if (its_own)
    return true;
  lua_pop(L, 1);
  lua_pushnil(L);
  return false;
}

static bool is_ticking(lua_State *L) {
  push_registered(L, &key_clock);
  lua_getfield(L, -1, "ticking");
  bool on = lua_toboolean(L, -1);
  lua_pop(L, 2);
  return on;
}

static void set_ticking(lua_State *L, bool on) {
  push_registered(L, &key_clock);
  lua_pushboolean(L, on);
  lua_setfield(L, -2, "ticking");
  if (on) {
    lua_newuserdata(L, 1);
    lua_insert(L, -2);
    lua_setmetatable(L, -2);
  }
  lua_pop(L, 1);
}

void moth_lua_add_hook(lua_State *L, int idx, MothLuaRef *ref) {
  MothTensor *t = moth_lua_handle(L, idx, MOTH_MAGIC_TENSOR)->u.t;
  if (!push_environment(L, idx)) {
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushlightuserdata(L, &key_mark);
    lua_pushboolean(L, 1);
    lua_rawset(L, -3);
    lua_pushvalue(L, -1);
    lua_setfenv(L, idx);
  }
  lua_pushlightuserdata(L, ref);
  lua_pushboolean(L, 1);
  lua_rawset(L, -3);
  lua_pop(L, 1);
  moth_lua_ref_set_tensor(ref, t);
  set_entry(L, &key_hooked, t, idx);
  if (!is_ticking(L))
    set_ticking(L, true);
}

bool moth_lua_push_hooks(lua_State *L, const MothTensor *t) {
  if (!push_entry(L, &key_hooked, t))
    return false;
  bool any = push_environment(L, lua_gettop(L));
  lua_remove(L, -2);
  if (!any)
    lua_pop(L, 1);
  return any;
}

/* Whether the hooks of t can only run if its handle is used. */
static bool may_park(const MothTensor *t) {
  const MothAutogradMeta *m = t->grad;
  return t->refs == 1 && m && (!m->node || m->node->refs == 1);
}

/* Moves the functions of a handle from the registry to its environment, which is on top. */
static void park(lua_State *L) {
  int environment = lua_gettop(L);
  lua_pushnil(L);
  while (lua_next(L, environment)) {
    bool strong = lua_type(L, -1) == LUA_TBOOLEAN && lua_touserdata(L, -2) != &key_mark;
    lua_pop(L, 1);
    if (strong && moth_lua_ref_park(L, lua_touserdata(L, -1))) {
      lua_pushvalue(L, -2);
      lua_insert(L, -2);
      lua_rawset(L, environment); /* an existing entry, as lua_next requires */
    }
  }
}

static int clock_gc(lua_State *L) {
  bool any = false;
  push_registered(L, &key_hooked);
  if (!lua_istable(L, -1) || !lua_checkstack(L, 16))
    return 0;
  lua_pushnil(L);
  while (lua_next(L, -2)) {
    MothHandle *h = moth_lua_handle(L, -1, MOTH_MAGIC_TENSOR);
    any = true;
    if (h && h->u.t && may_park(h->u.t)) {
      if (push_environment(L, lua_gettop(L)))
        park(L);
      lua_pop(L, 1);
    }
    lua_pop(L, 1);
  }
  set_ticking(L, any);
  return 0;
}

void moth_lua_open_leaves(lua_State *L) {
  char *const weak[] = {&key_leaves, &key_hooked};
  push_registered(L, &key_leaves);
  bool again = !lua_isnil(L, -1);
  lua_pop(L, 1);
  if (again)
    return;
  for (int i = 0; i < 2; i++) {
    lua_pushlightuserdata(L, weak[i]);
    lua_newtable(L);
    lua_newtable(L);
    lua_pushliteral(L, "v");
    lua_setfield(L, -2, "__mode");
    lua_setmetatable(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
  }
  lua_pushlightuserdata(L, &key_clock);
  lua_newtable(L);
  lua_pushcfunction(L, clock_gc);
  lua_setfield(L, -2, "__gc");
  lua_rawset(L, LUA_REGISTRYINDEX);
}
