/* Units of fully_shard, for lua/moth/distributed/fsdp.lua. */
#include "comm/unit.h"

#include "lua/moth_lua.h"

#define MAGIC_UNIT 0x6d6f7468756e6974ull

static char key_unit;

static MothUnit *unit_at(lua_State *L, int idx) {
  MothHandle *h = moth_lua_check_handle(L, idx, MAGIC_UNIT, "unit");
  if (!h->u.other)
    moth_lua_error(L, "this unit was closed");
  moth_lua_enter(L);
  return h->u.other;
}

/* The tensors of the list at idx, which retains them, in a userdata that is pushed. */
static MothTensor **tensors_at(lua_State *L, int idx, int n) {
  luaL_checktype(L, idx, LUA_TTABLE);
  MothTensor **list = lua_newuserdata(L, (size_t)(n + 1) * sizeof *list);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, idx, i + 1);
    list[i] = moth_lua_check_tensor(L, -1, "fully_shard");
    lua_pop(L, 1);
  }
  return list;
}

/* new(group number, number of the replicas' group or nil, parameters, shards, name, dtype of gradients or nil, a unit of
 * the same group or nil) */
static int b_new(lua_State *L) {
  moth_lua_enter(L);
  lua_settop(L, 7);
  int n = (int)lua_objlen(L, 3);
  MothTensor **full = tensors_at(L, 3, n), **shards = tensors_at(L, 4, n);
  MothUnitOptions options = {.name = luaL_checkstring(L, 5), .reduce_dtype = -1};
  if (!lua_isnil(L, 6))
    options.reduce_dtype = (int)moth_lua_check_dtype(L, 6);
  MothHandle *neighbor = lua_isnil(L, 7) ? NULL : moth_lua_handle(L, 7, MAGIC_UNIT);
  options.neighbor = neighbor ? neighbor->u.other : NULL;
  MothHandle *h = moth_lua_new_handle(L, MAGIC_UNIT, &key_unit);
  MothGroup *g = moth_group_find(luaL_checkinteger(L, 1));
  MothGroup *replicas = lua_isnil(L, 2) ? NULL : moth_group_find(lua_tointeger(L, 2));
  MothStatus s = !g || (!replicas && !lua_isnil(L, 2))
                     ? moth_fail(MOTH_ERR_STATE, "the process group was destroyed")
                     : MOTH_OK;
  MothUnit *u = NULL;
  if (s == MOTH_OK)
    s = moth_unit_new(g, replicas, n, full, shards, options, &u);
  moth_group_release(g);
  moth_group_release(replicas);
  h->u.other = u;
  moth_lua_done(L, s);
  return 1;
}

static int unit_gc(lua_State *L) { /* also its close */
  MothHandle *h = moth_lua_handle(L, 1, MAGIC_UNIT);
  if (h) {
    moth_unit_free(h->u.other);
    h->u.other = NULL;
  }
  return 0;
}

static int b_state(lua_State *L) { /* (unit) -> "sharded", "gathering", "full" */
  static const char *const names[] = {"sharded", "gathering", "full"};
  lua_pushstring(L, names[moth_unit_state(unit_at(L, 1))]);
  return 1;
}
static int b_set_name(lua_State *L) { /* (unit, name) */
  moth_unit_set_name(unit_at(L, 1), luaL_checkstring(L, 2));
  return 0;
}
static int b_set_after_backward(lua_State *L) { /* (unit, reduce, reshard) */
  moth_unit_set_after_backward(unit_at(L, 1), lua_toboolean(L, 2), lua_toboolean(L, 3));
  return 0;
}

static int b_set_part(lua_State *L) { /* (unit, number of a group or nil) */
  moth_lua_enter(L);
  MothUnit *u = unit_at(L, 1);
  bool none = lua_isnoneornil(L, 2);
  MothGroup *g = none ? NULL : moth_group_find(luaL_checkinteger(L, 2));
  MothStatus s = g || none ? moth_unit_set_part(u, g)
                           : moth_fail(MOTH_ERR_STATE, "the process group was destroyed");
  moth_group_release(g);
  moth_lua_done(L, s);
  return 0;
}

static int b_abandon(lua_State *L) { /* (unit) */
  moth_unit_abandon(unit_at(L, 1));
  return 0;
}

static int run(lua_State *L, MothStatus (*fn)(MothUnit *u)) {
  MothUnit *u = unit_at(L, 1);
  if (moth_unrun)
    moth_lua_leave_notes(L);
  lua_State *outer = moth_lua_current; /* hooks of the shards may run Lua */
  moth_lua_current = L;
  MothStatus s = fn(u);
  moth_lua_current = outer;
  return moth_lua_done(L, s);
}
/* All take a unit. */
static int b_gather(lua_State *L) {
  return run(L, moth_unit_gather);
}
static int b_gather_later(lua_State *L) {
  return run(L, moth_unit_gather_later);
}
static int b_ready(lua_State *L) {
  return run(L, moth_unit_ready);
}
static int b_reshard(lua_State *L) {
  return run(L, moth_unit_reshard);
}
static int b_flush(lua_State *L) {
  return run(L, moth_unit_flush);
}
static int b_finish(lua_State *L) {
  return run(L, moth_unit_finish);
}

void moth_lua_open_unit(lua_State *L) { /* the binding's table is on top: into its field unit */
  static const luaL_Reg fns[] = {
      {"new", b_new},           {"close", unit_gc},
      {"set_part", b_set_part}, {"state", b_state},
      {"set_name", b_set_name}, {"set_after_backward", b_set_after_backward},
      {"gather", b_gather},     {"gather_later", b_gather_later},
      {"ready", b_ready},       {"reshard", b_reshard},
      {"flush", b_flush},       {"finish", b_finish},
      {"abandon", b_abandon},   {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, fns);
  moth_lua_new_class(L, &key_unit, "moth.Unit", unit_gc);
  lua_setfield(L, -2, "unit");
}
