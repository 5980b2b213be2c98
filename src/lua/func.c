/* Batches and tangents for Lua: moth.func and moth.autograd.forward_ad. Levels are numbers. */
#include "autograd/tangent.h"
#include "core/dtype.h"
#include "dispatch/batch.h"
#include "lua/moth_lua.h"

static int push_or_raise(lua_State *L, MothStatus s, MothTensor *t) {
  if (s)
    return moth_lua_raise(L, s);
  moth_lua_push_tensor(L, t);
  return 1;
}

/* vmap_open(size, randomness) -> level: of the words error, same, different. */
static int b_vmap_open(lua_State *L) {
  static const char *const words[] = {"error", "same", "different", NULL};
  uint64_t level;
  double size = luaL_checknumber(L, 1);
  int randomness = luaL_checkoption(L, 2, NULL, words);
  moth_lua_enter(L);
  MothStatus s = moth_vmap_open(moth_whole(size), (MothRandomness)randomness, &level);
  if (s)
    return moth_lua_raise(L, s);
  lua_pushnumber(L, (lua_Number)level);
  return 1;
}
/* vmap_randomness(level) -> the word of an open one */
static int b_vmap_randomness(lua_State *L) {
  static const char *const words[] = {"error", "same", "different"};
  const MothVmap *v = moth_vmap_find((uint64_t)moth_whole(luaL_checknumber(L, 1)));
  lua_pushstring(L, words[v ? v->randomness : MOTH_RANDOM_DIFFERENT]);
  return 1;
}
static int b_vmap_close(lua_State *L) {
  moth_vmap_close((uint64_t)moth_whole(luaL_checknumber(L, 1)));
  return 0;
}

/* batch_enter(t, dim, level) -> t as one of the batch along dim (from 1, not negative) */
static int b_batch_enter(lua_State *L) {
  MothTensor *t = moth_lua_check_tensor(L, 1, "vmap"), *out;
  double dim = luaL_checknumber(L, 2);
  uint64_t level = (uint64_t)moth_whole(luaL_checknumber(L, 3));
  if (!(dim >= 1 && dim <= t->ndim))
    return moth_lua_error(L, "vmap: there is no such dimension");
  lua_State *outer = moth_lua_current;
  moth_lua_enter(L);
  moth_lua_current = L;
  MothStatus s = moth_batch_enter(t, (int)dim - 1, level, &out);
  moth_lua_current = outer;
  return push_or_raise(L, s, out);
}

/* batch_leave(t, dim, level, size) -> the tensor with the batch as dimension dim (from 1) */
static int b_batch_leave(lua_State *L) {
  MothTensor *t = moth_lua_check_tensor(L, 1, "vmap"), *out;
  double dim = luaL_checknumber(L, 2);
  uint64_t level = (uint64_t)moth_whole(luaL_checknumber(L, 3));
  double size = luaL_checknumber(L, 4);
  if (!(dim >= 1 && dim <= t->ndim + 1))
    return moth_lua_error(L, "vmap: there is no such dimension");
  lua_State *outer = moth_lua_current;
  moth_lua_enter(L);
  moth_lua_current = L;
  MothStatus s = moth_batch_leave(t, (int)dim - 1, level, (int64_t)size, &out);
  moth_lua_current = outer;
  return push_or_raise(L, s, out);
}

/* batch_level(t) -> the highest level of t, 0: none */
static int b_batch_level(lua_State *L) {
  lua_pushnumber(L, (lua_Number)moth_batch_level(moth_lua_check_tensor(L, 1, "vmap")));
  return 1;
}
/* batch_physical(t) -> the tensor that t is an element of, for looking at it; nil */
static int b_batch_physical(lua_State *L) {
  const MothBatch *b = moth_batch_of(moth_lua_check_tensor(L, 1, "vmap"));
  if (!b)
    return 0;
  moth_tensor_retain(b->physical);
  moth_lua_push_tensor(L, b->physical);
  return 1;
}

/* batch_values(t) -> the values of all elements of all batches of t, for a question about them together */
static int b_batch_values(lua_State *L) {
  MothTensor *t = moth_batch_values(moth_lua_check_tensor(L, 1, "vmap"));
  moth_tensor_retain(t);
  moth_lua_push_tensor(L, t);
  return 1;
}

/* --- tangents: a level is light userdata, which Lua closes once --------------------------------------- */

static MothDual *check_dual(lua_State *L, int idx) {
  moth_lua_type(L, idx, LUA_TLIGHTUSERDATA);
  if (!moth_dual_is_open(lua_touserdata(L, idx)))
    moth_lua_error(L, "the level of tangents is not open any more");
  return lua_touserdata(L, idx);
}
static int b_dual_open(lua_State *L) {
  MothDual *d;
  MothStatus s = moth_dual_open(&d);
  if (s)
    return moth_lua_raise(L, s);
  lua_pushlightuserdata(L, d);
  return 1;
}
static int b_dual_close(lua_State *L) {
  moth_dual_close(check_dual(L, 1));
  return 0;
}
/* dual_make(t, tangent, level) -> a view of t with a tangent */
static int b_dual_make(lua_State *L) {
  MothTensor *t = moth_lua_check_tensor(L, 1, "make_dual"), *out;
  MothTensor *tangent = moth_lua_check_tensor(L, 2, "make_dual");
  MothDual *d = check_dual(L, 3);
  lua_State *outer = moth_lua_current;
  moth_lua_enter(L);
  moth_lua_current = L;
  MothStatus s = moth_dual_make(t, tangent, d, &out);
  moth_lua_current = outer;
  return push_or_raise(L, s, out);
}
/* dual_tangent(t, level) -> its tangent, or nil */
static int b_dual_tangent(lua_State *L) {
  MothTensor *t = moth_dual_tangent(moth_lua_check_tensor(L, 1, "unpack_dual"), check_dual(L, 2));
  if (!t)
    return 0;
  moth_tensor_retain(t);
  moth_lua_push_tensor(L, t);
  return 1;
}
/* dual_set(t, tangent or nil, level) */
static int b_dual_set(lua_State *L) {
  MothTensor *t = moth_lua_check_tensor(L, 1, "set_tangent");
  MothTensor *tangent = lua_isnoneornil(L, 2) ? NULL : moth_lua_check_tensor(L, 2, "set_tangent");
  MothStatus s = moth_dual_set(t, tangent, check_dual(L, 3));
  return s ? moth_lua_raise(L, s) : 0;
}
/* dual_share(to, from) -> to, with the tangents of from */
static int b_dual_share(lua_State *L) {
  MothStatus s = moth_tangents_share(moth_lua_check_tensor(L, 1, "tangents"),
                                     moth_lua_check_tensor(L, 2, "tangents"));
  lua_settop(L, 1);
  return s ? moth_lua_raise(L, s) : 1;
}
/* dual_levels(t) -> the open levels at which t has tangents, the highest first, and its number; nil: none */
static int b_dual_levels(lua_State *L) {
  const MothTensor *t = moth_lua_check_tensor(L, 1, "tangent");
  uint64_t limit = moth_thread_state()->tangents;
  int n = 0;
  for (const MothTangent *m = t->keys & MOTH_KEY_TANGENT ? t->grad->tangents : NULL; m;
       m = m->next) {
    if (m->dual->closed || (limit && m->dual->level >= limit))
      continue;
    if (n == 0) {
      lua_newtable(L);
      lua_pushnumber(L, (lua_Number)m->dual->level);
    }
    lua_pushlightuserdata(L, m->dual);
    lua_rawseti(L, -3, ++n);
  }
  return n ? 2 : 0;
}
/* dual_limit(level or nil) -> what it was: tangents from this level on are not looked at */
static int b_dual_limit(lua_State *L) {
  MothThread *t = moth_thread_state();
  lua_pushnumber(L, (lua_Number)t->tangents);
  if (lua_islightuserdata(L, 1))
    t->tangents = check_dual(L, 1)->level;
  else
    t->tangents = (uint64_t)luaL_optnumber(L, 1, 0);
  return 1;
}

void moth_lua_open_func(lua_State *L) {
  static const luaL_Reg fns[] = {{"vmap_open", b_vmap_open},
                                 {"vmap_close", b_vmap_close},
                                 {"vmap_randomness", b_vmap_randomness},
                                 {"batch_enter", b_batch_enter},
                                 {"batch_leave", b_batch_leave},
                                 {"batch_level", b_batch_level},
                                 {"batch_physical", b_batch_physical},
                                 {"batch_values", b_batch_values},
                                 {"dual_open", b_dual_open},
                                 {"dual_close", b_dual_close},
                                 {"dual_make", b_dual_make},
                                 {"dual_tangent", b_dual_tangent},
                                 {"dual_set", b_dual_set},
                                 {"dual_share", b_dual_share},
                                 {"dual_levels", b_dual_levels},
                                 {"dual_limit", b_dual_limit},
                                 {NULL, NULL}};
  luaL_register(L, NULL, fns);
}
