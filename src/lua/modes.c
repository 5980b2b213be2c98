/* Interceptors for Lua: dispatch modes, counting, logging; fake mode and autocast; kernels in Lua. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "dispatch/autocast.h"
#include "dispatch/registry.h"
#include "dispatch/subclass.h"
#include "lua/moth_lua.h"

/* --- a Lua function that sees calls ------------------------------------------------------------ */

/* Pushes the function object of an op: { name, schema } with __call to the op; cached in a table of the registry. */
static char key_functions, key_function_meta;

static int function_call(lua_State *L) { /* (object, ...) */
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_pushliteral(L, "fn");
  lua_rawget(L, 1);
  lua_replace(L, 1);
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  return lua_gettop(L);
}

static int function_tostring(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_getfield(L, 1, "name");
  lua_pushfstring(L, "<op %s>", lua_isstring(L, -1) ? lua_tostring(L, -1) : "?");
  return 1;
}

/* What Lua's numbers do not say of a call, for its function object: the base of positions, and which integral numbers
 * are floats. */
static MothLuaEntry entry_of(const MothCall *c) {
  MothLuaEntry e = {c->op, c->variant == MOTH_OUT ? MOTH_FUNCTIONAL : (MothVariant)c->variant, 1,
                    0};
  for (int i = 0; i < c->op->nargs; i++) {
    if (c->op->args[i].type == MOTH_T_INDEX_BASE)
      e.index_base = (uint8_t)c->args[i].u.i;
    else if (c->args[i].tag == MOTH_V_FLOAT && c->op->args[i].type != MOTH_T_FLOAT &&
             c->args[i].u.d == floor(c->args[i].u.d))
      e.floats |= 1u << i;
  }
  return e;
}

static void push_function(lua_State *L, const MothCall *c) {
  MothLuaEntry e = entry_of(c);
  char key[64], name[96];
  snprintf(name, sizeof name, "%s%s", c->op->name,
           c->variant == MOTH_INPLACE && !c->op->returns_self ? "_" : "");
  snprintf(key, sizeof key, "%d %d %d %x", c->op->id, e.variant, e.index_base, e.floats);
  lua_pushlightuserdata(L, &key_functions);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_getfield(L, -1, key);
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    lua_createtable(L, 0, 4);
    lua_pushstring(L, name);
    lua_setfield(L, -2, "name");
    lua_pushstring(L, c->op->schema);
    lua_setfield(L, -2, "schema");
    lua_pushinteger(L, e.index_base);
    lua_setfield(L, -2, "index_base");
    moth_lua_push_op(L, e);
    lua_setfield(L, -2, "fn");
    lua_pushlightuserdata(L, &key_function_meta);
    lua_rawget(L, LUA_REGISTRYINDEX);
    lua_setmetatable(L, -2);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, key);
  }
  lua_remove(L, -2);
}

/* Pushes the arguments of a call as a list, without the trailing ones that have their default. */
static int push_args(lua_State *L, const MothCall *c) {
  int n = c->op->nargs;
  while (n > 0 &&
         (c->op->args[n - 1].type == MOTH_T_INDEX_BASE ||
          (c->op->args[n - 1].has_default && c->args[n - 1].tag == c->op->args[n - 1].def.tag &&
           c->args[n - 1].u.i == c->op->args[n - 1].def.u.i)))
    n--;
  lua_createtable(L, n, 1);
  for (int i = 0; i < n; i++) {
    moth_lua_push_value(L, &c->op->args[i], c->args[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_pushinteger(L, n);
  lua_setfield(L, -2, "n");
  return n;
}

/* The tensors that Lua returned become the call's results. */
static MothStatus take_results(lua_State *L, MothCall *c, int first) {
  MothStatus s = MOTH_OK;
  for (int i = 0; i < c->op->nresults && s == MOTH_OK; i++) {
    MothHandle *h = moth_lua_handle(L, first + i, MOTH_MAGIC_TENSOR);
    if (!h || !h->u.t) {
      s = moth_fail(MOTH_ERR_TYPE,
                    "the function that intercepted '%s' must return a tensor, got %s", c->op->name,
                    luaL_typename(L, first + i));
      break;
    }
    moth_tensor_retain(h->u.t);
    c->results[i] = moth_v_tensor(h->u.t);
  }
  if (s != MOTH_OK)
    for (int i = 0; i < c->op->nresults; i++) {
      if (c->results[i].tag == MOTH_V_TENSOR)
        moth_tensor_release(c->results[i].u.t);
      c->results[i] = moth_v_none();
    }
  return s;
}

/* Pushes the function that handles the call and its first arguments; false with an error if it cannot. */
typedef bool (*PushFunction)(lua_State *L, MothCall *c, const MothLuaRef *ref);

/* Calls fn(func, args, kwargs), or of subclasses fn(types, func, args, kwargs), for its results. */
static MothStatus call_with(MothCall *c, PushFunction push_fn, const MothLuaRef *ref) {
  lua_State *L = moth_lua_current;
  if (!L)
    return moth_fail(MOTH_ERR_STATE, "a Lua function intercepts '%s', but no Lua state is running",
                     c->op->name);
  if (ref && !moth_lua_ref_is_own(L, ref)) /* a state that this one's handler has called */
    return moth_redispatch(c);
  if (!lua_checkstack(L, 24))
    return moth_fail(MOTH_ERR_STATE, "the Lua stack is full");
  int top = lua_gettop(L);
  if (!push_fn(L, c, ref)) {
    lua_settop(L, top);
    return MOTH_ERR_STATE;
  }
  push_function(L, c);
  push_args(L, c);
  lua_newtable(L);
  if (c->variant == MOTH_OUT) {
    moth_tensor_retain(c->target[0]);
    moth_lua_push_tensor(L, c->target[0]);
    lua_setfield(L, -2, "out");
  }
  MothStatus s = moth_lua_call(L, lua_gettop(L) - top - 1, c->op->nresults);
  if (s == MOTH_OK)
    s = take_results(L, c, top + 1);
  lua_settop(L, top);
  return s == MOTH_OK ? moth_put_in_targets(c) : s;
}

static bool push_mode(lua_State *L, MothCall *c, const MothLuaRef *ref) {
  (void)c;
  return moth_lua_ref_push(L, ref);
}

static MothStatus mode_run(MothCall *c, void *ctx) {
  return call_with(c, push_mode, ctx);
}

static MothStatus trace_run(MothCall *c, void *ctx);
static void count_refs(void *ctx, int by) {
  if (by > 0)
    moth_lua_ref_retain(ctx);
  else
    moth_lua_ref_release(ctx);
}
static char key_mode; /* registry: the metatable of the userdata that closes a mode */

/* What was collected while the function of an interceptor ran: calls under way know interceptors by their places, which
 * must stay until they are done. */
static char key_collected; /* registry: a list of userdata */

static bool closes_later(lua_State *L) {
  if (!moth_intercept_running())
    return false;
  lua_pushlightuserdata(L, &key_collected);
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (!lua_istable(L, -1)) {
    lua_newtable(L);
    lua_pushlightuserdata(L, &key_collected);
    lua_pushvalue(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
  }
  lua_pushvalue(L, 1);
  lua_rawseti(L, -2, (int)lua_objlen(L, -2) + 1);
  return true;
}

/* Called where one is opened or closed. */
static void close_collected(lua_State *L) {
  if (moth_intercept_running())
    return;
  lua_pushlightuserdata(L, &key_collected);
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (lua_istable(L, -1)) {
    lua_pushlightuserdata(L, &key_collected);
    lua_pushnil(L);
    lua_rawset(L, LUA_REGISTRYINDEX);
    for (int i = 1, n = (int)lua_objlen(L, -1); i <= n; i++) {
      lua_rawgeti(L, -1, i);
      if (luaL_callmeta(L, -1, "__gc"))
        lua_pop(L, 1);
      lua_pop(L, 1);
    }
  }
  lua_pop(L, 1);
}

/* Closes a mode whose userdata was collected: with its coroutine, with the state, or because nothing refers to it. */
static int mode_gc(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MOTH_MAGIC_MODE);
  if (!h || closes_later(L))
    return 0;
  h->magic = 0;
  if (!moth_intercept_pop(false, (MothInterceptor){mode_run, h->u.ref, false, NULL, false}))
    moth_intercept_pop(true, (MothInterceptor){trace_run, h->u.ref, true, NULL, false});
  moth_lua_ref_release(h->u.ref);
  return 0;
}

/* Opens a mode that runs `fn` with the Lua value at idx, and pushes the userdata that closes it. */
static int open_mode(lua_State *L, int idx, bool above, MothInterceptor i) {
  moth_lua_sync(L);
  close_collected(L);
  MothHandle *h = lua_newuserdata(L, sizeof *h);
  h->magic = 0;
  lua_pushvalue(L, idx);
  MothLuaRef *ref = moth_lua_ref_new(L);
  if (!ref)
    return moth_lua_raise(L, moth_no_memory(0));
  i.ctx = ref;
  MothStatus s = moth_intercept_push(above, i);
  if (s) {
    moth_lua_ref_release(ref);
    return moth_lua_raise(L, s);
  }
  h->magic = MOTH_MAGIC_MODE;
  h->u.ref = ref;
  lua_pushlightuserdata(L, &key_mode);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_setmetatable(L, -2);
  return 1;
}
static int close_mode(lua_State *L, bool above, MothInterceptor i) {
  MothHandle *h = moth_lua_handle(L, 1, MOTH_MAGIC_MODE);
  moth_lua_sync(L);
  if (!h)
    return moth_lua_error(L, "expected what opened a mode, got %s", luaL_typename(L, 1));
  i.ctx = h->u.ref;
  if (!moth_intercept_pop(above, i))
    return moth_lua_error(L, "the mode is not open here");
  moth_lua_ref_release(h->u.ref);
  h->magic = 0;
  return 0;
}

/* push_mode(fn) -> mode; pop_mode(mode): fn(func, args, kwargs) sees every op below autograd. */
static int b_push_mode(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  return open_mode(L, 1, false, (MothInterceptor){mode_run, NULL, false, count_refs, false});
}
static int b_pop_mode(lua_State *L) {
  return close_mode(L, false, (MothInterceptor){mode_run, NULL, false, count_refs, false});
}

/* --- subclasses --------------------------------------------------------------------------------- */

/* The class that a tensor carries: a table of one Lua state. */
typedef struct Class {
  MothCarried carried;
  MothLuaRef *table;
} Class;

static char key_subclass; /* registry: the function that handles the calls */

static void release_class(MothCarried *carried) {
  Class *c = (Class *)carried;
  moth_lua_ref_release(c->table);
  moth_free(c, sizeof *c);
}

/* Pushes the class of t, or nil. */
static void push_class(lua_State *L, const MothTensor *t) {
  const Class *c = t->keys & MOTH_KEY_SUBCLASS ? (const Class *)t->carried : NULL;
  if (!c || !c->table || !moth_lua_ref_push(L, c->table)) /* or one of another state */
    lua_pushnil(L);
}

/* Pushes the function and the classes among the arguments, in their order. */
static bool push_subclass(lua_State *L, MothCall *c, const MothLuaRef *ref) {
  (void)ref;
  lua_pushlightuserdata(L, &key_subclass);
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (lua_isnil(L, -1)) {
    moth_fail(MOTH_ERR_STATE, "this Lua state has no subclasses: moth.subclass was not loaded");
    return false;
  }
  lua_newtable(L);
  for (int i = 0, n = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    for (uint32_t k = 0; k < (v.tag == MOTH_V_TENSORS ? v.n : v.tag == MOTH_V_TENSOR); k++) {
      push_class(L, v.tag == MOTH_V_TENSORS ? v.u.tensors[k] : v.u.t);
      if (lua_isnil(L, -1))
        lua_pop(L, 1);
      else
        lua_rawseti(L, -2, ++n);
    }
  }
  return true;
}

static MothStatus subclass_run(MothCall *c) {
  return call_with(c, push_subclass, NULL);
}

/* on_subclass(fn): fn(types, func, args, kwargs) handles the calls of subclassed tensors. */
static int b_on_subclass(lua_State *L) {
  moth_lua_type(L, 1, LUA_TFUNCTION);
  lua_pushlightuserdata(L, &key_subclass);
  lua_pushvalue(L, 1);
  lua_rawset(L, LUA_REGISTRYINDEX);
  return 0;
}
__attribute__((constructor)) static void handle_subclasses(void) {
  moth_subclass_step = subclass_run;
}

/* make_subclass(t, class) -> a tensor of that class over the elements of t */
static int b_make_subclass(lua_State *L) {
  MothTensor *t = moth_lua_check_tensor(L, 1, "make_subclass"), *out;
  moth_lua_type(L, 2, LUA_TTABLE);
  if (t->keys & MOTH_KEY_BATCH)
    return moth_lua_error(L, "a tensor inside vmap cannot be made one of a subclass");
  Class *c = moth_alloc(sizeof *c);
  MothStatus s = c ? moth_tensor_alias(t, false, &out) : moth_no_memory(sizeof *c);
  if (s) {
    moth_free(c, sizeof *c);
    return moth_lua_raise(L, s);
  }
  lua_pushvalue(L, 2);
  *c = (Class){{1, MOTH_KEY_SUBCLASS, release_class}, moth_lua_ref_new(L)};
  moth_tensor_carry(out, &c->carried);
  moth_lua_push_tensor(L, out);
  return 1;
}
static int b_class_of(lua_State *L) {
  push_class(L, moth_lua_check_tensor(L, 1, "class_of"));
  return 1;
}

/* --- counting and logging ---------------------------------------------------------------------- */

typedef struct Counts {
  MothRefs refs; /* of its handle, and of suspended coroutines in which it is open */
  int n;
  int64_t of[]; /* by op id, of the ops that existed when the counting began */
} Counts;

static char key_count; /* registry: the metatable of a handle of counts */

static void count_counts(void *ctx, int by) {
  Counts *c = ctx;
  if (atomic_fetch_add(&c->refs, by) + by == 0)
    moth_free(c, sizeof *c + sizeof *c->of * (size_t)c->n);
}

static MothStatus count_run(MothCall *c, void *ctx) {
  Counts *counts = ctx;
  if (c->op->id < counts->n)
    counts->of[c->op->id]++;
  return moth_redispatch(c);
}

static MothInterceptor counter(Counts *c) {
  return (MothInterceptor){count_run, c, true, count_counts, false};
}

/* push_count() -> counts */
static int b_push_count(lua_State *L) {
  moth_lua_sync(L);
  close_collected(L);
  int n = moth_registry_count();
  MothHandle *h = lua_newuserdata(L, sizeof *h);
  h->magic = 0;
  size_t size = sizeof(Counts) + sizeof(int64_t) * (size_t)n;
  Counts *c = moth_alloc(size);
  if (!c)
    return moth_lua_raise(L, moth_no_memory(size));
  memset(c, 0, size);
  c->refs = 1;
  c->n = n;
  MothStatus s = moth_intercept_push(false, counter(c));
  if (s) {
    count_counts(c, -1);
    return moth_lua_raise(L, s);
  }
  h->magic = MOTH_MAGIC_COUNT;
  h->u.other = c;
  lua_pushlightuserdata(L, &key_count);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_setmetatable(L, -2);
  return 1;
}

static void close_count(MothHandle *h) {
  h->magic = 0;
  moth_intercept_pop(false, counter(h->u.other));
  count_counts(h->u.other, -1);
}

static int count_gc(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MOTH_MAGIC_COUNT);
  if (h && !closes_later(L))
    close_count(h);
  return 0;
}

/* pop_count(counts) -> total, { name = count } */
static int b_pop_count(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MOTH_MAGIC_COUNT);
  moth_lua_sync(L);
  if (!h)
    return moth_lua_error(L, "expected what push_count gave, got %s", luaL_typename(L, 1));
  const Counts *c = h->u.other;
  int64_t total = 0;
  lua_newtable(L);
  for (int i = 0; i < c->n; i++) {
    total += c->of[i];
    if (c->of[i]) {
      lua_pushnumber(L, (lua_Number)c->of[i]);
      lua_setfield(L, -2, moth_registry_at(i)->name);
    }
  }
  close_count(h);
  lua_pushnumber(L, (lua_Number)total);
  lua_insert(L, -2);
  return 2;
}

/* Pushes the line of a call in a trace: moth.dispatch formats it, with the op table's data of its kernel. Where Lua
 * cannot run, pushes the text without these. */
static void push_line(lua_State *L, const MothCall *c) {
  char text[1024];
  moth_call_describe(c, text, sizeof text);
  lua_getglobal(L, "require");
  lua_pushliteral(L, "moth.dispatch");
  if (lua_pcall(L, 1, 1, 0) == 0 && lua_istable(L, -1)) {
    lua_getfield(L, -1, "line");
    lua_pushstring(L, text);
    lua_pushstring(L, c->op->name);
    lua_pushstring(L, moth_memory(c->device.type)->name);
    lua_pushboolean(L, (c->keys & MOTH_KEY_AUTOGRAD) != 0);
    moth_lua_push_where(L);
    if (lua_pcall(L, 5, 1, 0) == 0 && lua_isstring(L, -1)) {
      lua_remove(L, -2);
      return;
    }
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  lua_pushfstring(L, "%s  (%s)", text, c->op->place);
}

static MothStatus log_run(MothCall *c, void *ctx) {
  (void)ctx;
  lua_State *L = moth_lua_current;
  if (!moth_log_on("dispatch"))
    return moth_redispatch(c);
  if (L && lua_checkstack(L, 12)) {
    push_line(L, c);
    moth_log_write("dispatch", "%s", lua_tostring(L, -1));
    lua_pop(L, 1);
  } else {
    char text[1024];
    moth_call_describe(c, text, sizeof text);
    moth_log_write("dispatch", "%s  (%s)", text, c->op->place);
  }
  return moth_redispatch(c);
}

static void log_calls(void) {
  static _Thread_local bool logging; /* interceptors belong to threads */
  if (!moth_log_on("dispatch") || logging)
    return;
  logging = true;
  moth_intercept_push(true, (MothInterceptor){log_run, NULL, true, NULL, true});
}

/* log(topics): as MOTH_LOGS, from now on */
static int b_log(lua_State *L) {
  moth_log_set(luaL_optstring(L, 1, ""));
  log_calls();
  return 0;
}

/* trace: collects the same lines */
static MothStatus trace_run(MothCall *c, void *ctx) {
  lua_State *L = moth_lua_current;
  if (L && lua_checkstack(L, 16) && moth_lua_ref_is_own(L, ctx) && moth_lua_ref_push(L, ctx)) {
    push_line(L, c);
    lua_rawseti(L, -2, (int)lua_objlen(L, -2) + 1);
    lua_pop(L, 1);
  }
  return moth_redispatch(c);
}

static int b_push_trace(lua_State *L) { /* (table) -> mode */
  moth_lua_type(L, 1, LUA_TTABLE);
  return open_mode(L, 1, true, (MothInterceptor){trace_run, NULL, true, count_refs, false});
}
static int b_pop_trace(lua_State *L) {
  return close_mode(L, true, (MothInterceptor){trace_run, NULL, true, count_refs, false});
}

/* --- fake mode, autocast ----------------------------------------------------------------------- */

static int b_set_fake(lua_State *L) { /* (on) -> was */
  moth_lua_sync(L);
  lua_pushboolean(L, moth_thread_state()->include & MOTH_KEY_FAKE);
  if (lua_toboolean(L, 1))
    moth_thread_state()->include |= MOTH_KEY_FAKE;
  else
    moth_thread_state()->include &= ~(uint32_t)MOTH_KEY_FAKE;
  return 1;
}

/* set_autocast({ [type of device] = dtype or false, …, [1] = whether casts of weights are remembered }) -> the former
 * settings of these types, with [2] = true if that call has opened the scope in which they are: setting them again
 * closes it. Nothing changes if one of them is invalid. */
static int b_set_autocast(lua_State *L) {
  MothThread *t = moth_thread_state();
  uint8_t to[MOTH_NDEVICES];
  moth_lua_sync(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  memcpy(to, t->autocast, sizeof to);
  lua_settop(L, 1);
  lua_newtable(L);
  for (int i = 0; i < moth_device_ntypes(); i++) {
    const char *name = moth_memory(i)->name;
    lua_getfield(L, 1, name);
    if (lua_toboolean(L, -1)) {
      MothDType d = moth_lua_check_dtype(L, -1);
      if (d != MOTH_BFLOAT16 && d != MOTH_FLOAT16)
        return moth_lua_error(L, "autocast: expected bfloat16 or float16, got %s",
                              moth_dtype_name(d));
      to[i] = (uint8_t)(d + 1);
    } else if (!lua_isnil(L, -1)) {
      to[i] = 0;
    }
    if (!lua_isnil(L, -1)) {
      if (t->autocast[i])
        moth_lua_push_dtype(L, (MothDType)(t->autocast[i] - 1));
      else
        lua_pushboolean(L, 0);
      lua_setfield(L, 2, name);
    }
    lua_pop(L, 1);
  }
  memcpy(t->autocast, to, sizeof to);
  t->include &= ~(uint32_t)MOTH_KEY_AUTOCAST;
  bool any = false;
  for (int i = 0; i < moth_device_ntypes(); i++)
    any = any || to[i];
  t->include |= any ? MOTH_KEY_AUTOCAST : 0;
  lua_pushboolean(L, !t->no_cast_cache);
  lua_rawseti(L, 2, 1);
  lua_rawgeti(L, 1, 1);
  t->no_cast_cache = lua_isnil(L, -1) ? t->no_cast_cache : !lua_toboolean(L, -1);
  lua_rawgeti(L, 1, 2);
  if (lua_toboolean(L, -1))
    moth_autocast_close();
  else if (any && moth_autocast_open()) {
    lua_pushboolean(L, 1);
    lua_rawseti(L, 2, 2);
  }
  lua_settop(L, 2);
  return 1;
}

/* autocast_state() -> { [type of device] = dtype or false, …, [1] = whether casts of weights are remembered }, which
 * set_autocast takes */
static int b_autocast_state(lua_State *L) {
  MothThread *t = moth_thread_state();
  lua_newtable(L);
  for (int i = 0; i < moth_device_ntypes(); i++) {
    if (t->autocast[i])
      moth_lua_push_dtype(L, (MothDType)(t->autocast[i] - 1));
    else
      lua_pushboolean(L, 0);
    lua_setfield(L, -2, moth_memory(i)->name);
  }
  lua_pushboolean(L, !t->no_cast_cache);
  lua_rawseti(L, -2, 1);
  return 1;
}

/* device_types() -> { name = true }: all types of devices, usable or not */
static int b_device_types(lua_State *L) {
  lua_newtable(L);
  for (int i = 0; i < moth_device_ntypes(); i++) {
    lua_pushboolean(L, 1);
    lua_setfield(L, -2, moth_memory(i)->name);
  }
  return 1;
}

/* --- a backend written in Lua ------------------------------------------------------------------ */

/* The op table belongs to the process, and with it which op has a kernel for the user's device; each Lua state calls
 * functions of its own, in a table of its registry by the op's name. */
static char key_kernels;

static void push_kernels(lua_State *L, int type) {
  lua_pushlightuserdata(L, &key_kernels);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_rawgeti(L, -1, type);
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_rawseti(L, -3, type);
  }
  lua_remove(L, -2);
}

static MothStatus user_kernel(MothCall *c) {
  /* The results are allocated by the shape rule: the Lua function gets (args, results) and fills them in. */
  lua_State *L = moth_lua_current;
  if (!L)
    return moth_fail(MOTH_ERR_STATE, "a Lua kernel of '%s' needs a running Lua state", c->op->name);
  if (!lua_checkstack(L, 16))
    return moth_fail(MOTH_ERR_STATE, "the Lua stack is full");
  int top = lua_gettop(L);
  push_kernels(L, c->device.type);
  lua_getfield(L, -1, c->op->name);
  if (lua_isnil(L, -1)) {
    lua_settop(L, top);
    return moth_fail(MOTH_ERR_STATE, "the kernel of '%s' was registered by another Lua state",
                     c->op->name);
  }
  push_args(L, c);
  lua_createtable(L, c->op->nresults, 0);
  for (int i = 0; i < c->op->nresults; i++) {
    moth_tensor_retain(c->results[i].u.t);
    moth_lua_push_tensor(L, c->results[i].u.t);
    lua_rawseti(L, -2, i + 1);
  }
  MothStatus s = moth_lua_call(L, 2, 0);
  lua_settop(L, top);
  return s;
}

static const char *user_ready(int index) {
  return index ? "a user device has the index 0 only" : NULL;
}

typedef struct Backend { /* lives as long as the process */
  MothDeviceOps ops;
  char name[];
} Backend;

/* register_backend(name): a device of the user's, in host memory */
static int b_register_backend(lua_State *L) {
  const char *name = moth_lua_string(L, 1);
  if (moth_device_find(name) >= MOTH_USER)
    return 0;
  size_t bytes = strlen(name) + 1;
  Backend *b = calloc(1, sizeof *b + bytes);
  if (!b)
    return moth_lua_raise(L, moth_no_memory(sizeof *b + bytes));
  memcpy(b->name, name, bytes);
  b->ops.memory = moth_cpu_memory;
  b->ops.memory.name = b->name;
  b->ops.memory.why_not = user_ready;
  MothDeviceType type;
  MothStatus s = moth_device_add(&b->ops, &type);
  if (s != MOTH_OK) {
    free(b);
    if (moth_device_find(name) >= MOTH_USER) /* another state has added it meanwhile */
      return 0;
    return moth_lua_raise(L, s);
  }
  return 0;
}

/* register_kernel(op, fn(args, results), device) for a device that register_backend has made */
static int b_register_kernel(lua_State *L) {
  const char *name = moth_lua_string(L, 1), *device = moth_lua_string(L, 3);
  moth_lua_type(L, 2, LUA_TFUNCTION);
  const MothOp *op = moth_op_find(name);
  int type = moth_device_find(device);
  if (!op)
    return moth_lua_error(L, "there is no op named '%s'", name);
  if (type < MOTH_USER)
    return moth_lua_error(L, "register_kernel: '%s' is no device of register_backend's", device);
  push_kernels(L, type);
  lua_pushvalue(L, 2);
  lua_setfield(L, -2, op->name);
  moth_op_register(name, (MothDeviceType)type, user_kernel);
  return 0;
}

/* op(name, index_base) -> the function of an op whose positions in index tensors count from index_base; dimensions
 * count from 1 in any case. nil if there is no such op. */
static int b_op(lua_State *L) {
  const MothOp *op = moth_op_find(moth_lua_string(L, 1));
  if (op)
    moth_lua_push_op(
        L, (MothLuaEntry){op, MOTH_FUNCTIONAL, (uint8_t)(luaL_optinteger(L, 2, 1) != 0), 0});
  return op ? 1 : 0;
}

/* kernels(op) -> { key = true } */
static int b_kernels(lua_State *L) {
  const MothOp *op = moth_op_find(moth_lua_string(L, 1));
  if (!op)
    return moth_lua_error(L, "there is no op named '%s'", lua_tostring(L, 1));
  lua_newtable(L);
  for (int i = 0; i < moth_device_ntypes(); i++)
    if (moth_kernel_of(op, i)) {
      lua_pushboolean(L, 1);
      lua_setfield(L, -2, moth_memory(i)->name);
    }
  return 1;
}

void moth_lua_open_modes(lua_State *L) {
  static const luaL_Reg fns[] = {{"push_mode", b_push_mode},
                                 {"pop_mode", b_pop_mode},
                                 {"on_subclass", b_on_subclass},
                                 {"make_subclass", b_make_subclass},
                                 {"class_of", b_class_of},
                                 {"push_count", b_push_count},
                                 {"pop_count", b_pop_count},
                                 {"push_trace", b_push_trace},
                                 {"pop_trace", b_pop_trace},
                                 {"set_fake", b_set_fake},
                                 {"set_autocast", b_set_autocast},
                                 {"log", b_log},
                                 {"autocast_state", b_autocast_state},
                                 {"device_types", b_device_types},
                                 {"register_backend", b_register_backend},
                                 {"register_kernel", b_register_kernel},
                                 {"op", b_op},
                                 {"kernels", b_kernels},
                                 {NULL, NULL}};
  luaL_register(L, NULL, fns);
  lua_pushlightuserdata(L, &key_mode);
  lua_newtable(L);
  lua_pushcfunction(L, mode_gc);
  lua_setfield(L, -2, "__gc");
  lua_rawset(L, LUA_REGISTRYINDEX);
  lua_pushlightuserdata(L, &key_count);
  lua_newtable(L);
  lua_pushcfunction(L, count_gc);
  lua_setfield(L, -2, "__gc");
  lua_rawset(L, LUA_REGISTRYINDEX);
  lua_pushlightuserdata(L, &key_functions);
  lua_newtable(L);
  lua_rawset(L, LUA_REGISTRYINDEX);
  lua_pushlightuserdata(L, &key_kernels);
  lua_newtable(L);
  lua_rawset(L, LUA_REGISTRYINDEX);
  lua_pushlightuserdata(L, &key_function_meta);
  lua_newtable(L);
  lua_pushcfunction(L, function_call);
  lua_setfield(L, -2, "__call");
  lua_pushcfunction(L, function_tostring);
  lua_setfield(L, -2, "__tostring");
  lua_rawset(L, LUA_REGISTRYINDEX);
  log_calls();
}
