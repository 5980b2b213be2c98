/* Handles: userdata for tensors, dtypes, devices, generators; errors. Making one tells the collector (collect.c) how far
 * the live bytes have grown. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "lua/moth_lua.h"

_Thread_local lua_State *moth_lua_current MOTH_LUA_TLS;

static char key_tensor, key_dtypes, key_devices, key_generator, key_parked, key_library, key_names;

static _Thread_local MothLuaScope *innermost MOTH_LUA_TLS; /* the moth.scope that is open */
static bool push_scope(lua_State *L);

static void push_metatable(lua_State *L, void *key) {
  lua_pushlightuserdata(L, key);
  lua_rawget(L, LUA_REGISTRYINDEX);
}

static inline void after_growth(lua_State *L) {
  int64_t live = moth_alloc_live();
  if (live < moth_lua_growth.base)
    moth_lua_growth.base = live;
  if (__builtin_expect(live - moth_lua_growth.base > moth_lua_growth.look, 0))
    moth_lua_grown(L, live - moth_lua_growth.base);
}

void moth_lua_push_tensor_meta(lua_State *L) {
  push_metatable(L, &key_tensor);
}

/* Counts a new handle, which is on top with its metatable set. */
static inline void count_handle(lua_State *L) {
  moth_lua_drain(
      L); /* first: the function of a hook may have to be retained before garbage is collected */
  after_growth(L);
  if (__builtin_expect(innermost || moth_lua_records, 0)) {
    moth_lua_sync(L);
    if (!push_scope(L))
      return;
    lua_pushvalue(L, -2);
    lua_rawseti(L, -2, (int)lua_objlen(L, -2) + 1);
    lua_pop(L, 1);
  }
}

void *moth_lua_check_handle(lua_State *L, int idx, uint64_t magic, const char *what) {
  MothHandle *h = moth_lua_handle(L, idx, magic);
  if (!h)
    moth_lua_error(L, "expected a %s, got %s", what, luaL_typename(L, idx));
  return h;
}

void *moth_lua_new_handle(lua_State *L, uint64_t magic, void *key) {
  MothHandle *h = lua_newuserdata(L, sizeof *h);
  h->magic = magic;
  h->u.other = NULL;
  push_metatable(L, key);
  lua_setmetatable(L, -2);
  return h;
}

static inline void new_handle(lua_State *L, MothTensor *t) {
  MothHandle *h = lua_newuserdata(L, sizeof *h);
  h->magic = MOTH_MAGIC_TENSOR;
  h->u.t = t;
}

void moth_lua_push_tensor(lua_State *L, MothTensor *t) {
  bool leaf = moth_lua_is_leaf(t);
  if (leaf && moth_lua_push_leaf(L, t))
    return;
  new_handle(L, t);
  push_metatable(L, &key_tensor);
  lua_setmetatable(L, -2);
  if (leaf)
    moth_lua_add_leaf(L, t, -1);
  count_handle(L);
}

void moth_lua_push_tensors(lua_State *L, MothTensor **list, uint32_t n) {
  lua_createtable(L, (int)n, 0);
  for (uint32_t i = 0; i < n; i++) {
    moth_lua_push_tensor(L, list[i]);
    lua_rawseti(L, -2, (int)i + 1);
  }
}

void moth_lua_push_tensor_with(lua_State *L, MothTensor *t, int meta) {
  if (__builtin_expect(moth_lua_is_leaf(t), 0)) {
    moth_lua_push_tensor(L, t);
    return;
  }
  new_handle(L, t);
  lua_pushvalue(L, meta);
  lua_setmetatable(L, -2);
  count_handle(L);
}

/* An open moth.scope: the list of the handles made in it, and the enclosing scope. Reference-counted: a suspended
 * coroutine retains the scopes in which it was resumed. */
struct MothLuaScope {
  MothLuaRef *list;
  MothLuaScope *outer;
  int refs;
};

void moth_lua_save_scope(MothLuaScope **to) {
  if (innermost)
    innermost->refs++;
  moth_lua_forget_scope(to);
  *to = innermost;
}
void moth_lua_load_scope(MothLuaScope *from) {
  if (from)
    from->refs++;
  moth_lua_forget_scope(&innermost);
  innermost = from;
}
void moth_lua_forget_scope(MothLuaScope **of) {
  MothLuaScope *s = *of;
  *of = NULL;
  while (s && --s->refs == 0) {
    MothLuaScope *outer = s->outer;
    moth_lua_ref_release(s->list);
    moth_free(s, sizeof *s);
    s = outer;
  }
}

/* Pushes the list of the innermost scope; false if it belongs to another state, which called this one. */
static bool push_scope(lua_State *L) {
  return innermost && moth_lua_ref_push(L, innermost->list);
}

/* scope_begin() -> list that collects the handles made from now on; scope_end(list), of the innermost, goes back to the
 * scope outside, which takes over the list's handles that are still alive. */
static int b_scope_begin(lua_State *L) {
  moth_lua_sync(L);
  MothLuaScope *s = moth_alloc(sizeof *s);
  if (!s)
    return moth_lua_raise(L, moth_no_memory(sizeof *s));
  lua_newtable(L);
  lua_pushvalue(L, -1);
  *s = (MothLuaScope){moth_lua_ref_new(L), innermost, 1};
  if (!s->list) {
    moth_free(s, sizeof *s);
    return moth_lua_raise(L, moth_no_memory(0));
  }
  innermost = s;
  return 1;
}

static int b_scope_end(lua_State *L) {
  moth_lua_sync(L);
  lua_settop(L, 1);
  if (!push_scope(L) || !lua_rawequal(L, 1, -1))
    return moth_lua_error(L, "scope_end: expected the list of the innermost scope, got %s",
                          luaL_typename(L, 1));
  MothLuaScope *s = innermost;
  innermost = s->outer;
  if (innermost)
    innermost->refs++;
  moth_lua_forget_scope(&s);
  return 0;
}

static int tensor_gc(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MOTH_MAGIC_TENSOR);
  if (h && h->u.t) {
    MothTensor *t = h->u.t;
    h->u.t = NULL;
    moth_tensor_release(t);
  }
  return 0;
}

static int tensor_eq(lua_State *L) {
  MothHandle *a = moth_lua_handle(L, 1, MOTH_MAGIC_TENSOR),
             *b = moth_lua_handle(L, 2, MOTH_MAGIC_TENSOR);
  lua_pushboolean(L, a && b && a->u.t && a->u.t == b->u.t);
  return 1;
}

static const double EXACT = 9007199254740992.0;

int64_t moth_lua_check_integer(lua_State *L, int idx, double low, double high) {
  double d = luaL_checknumber(L, idx);
  if (!(d >= low && d <= high) || d != floor(d))
    moth_lua_error(L, "expected an integer from %.0f to %.0f, got %.14g", low, high, d);
  return (int64_t)d;
}

MothTensor *moth_lua_check_tensor(lua_State *L, int idx, const char *what) {
  MothHandle *h = moth_lua_handle(L, idx, MOTH_MAGIC_TENSOR);
  if (!h)
    moth_lua_error(L, "%s: expected a tensor, got %s", what,
                   lua_isnone(L, idx) ? "nothing" : luaL_typename(L, idx));
  else if (!h->u.t)
    moth_lua_error(L, "%s: the tensor was released by free()", what);
  else
    return h->u.t;
  return NULL;
}

enum { LUA_TCDATA = 10 }; /* of LuaJIT; lua.h has no name for it */

bool moth_lua_int64(lua_State *L, int idx, int64_t *out) {
  if (lua_type(L, idx) != LUA_TCDATA || !luaL_callmeta(L, idx, "__tostring"))
    return false;
  const char *text =
      lua_tostring(L, -1); /* "-12LL" or "12ULL"; another cdata prints as "cdata<…" */
  char *end = NULL;
  bool ok = text && (text[0] == '-' || (text[0] >= '0' && text[0] <= '9'));
  if (ok) {
    errno = 0;
    *out = strtoll(text, &end, 10);
    ok = errno == 0 && (!strcmp(end, "LL") || !strcmp(end, "ULL"));
  }
  lua_pop(L, 1);
  return ok;
}

/* Functions of lua/moth/tensor/complex.lua: read(x) -> real and imaginary part, or nothing; make(re, im). */
static const char complex_read, complex_make;

static int b_complex_numbers(lua_State *L) {
  for (int i = 1; i <= 2; i++) {
    lua_pushlightuserdata(L, (void *)(uintptr_t)(i == 1 ? &complex_read : &complex_make));
    lua_pushvalue(L, i);
    lua_rawset(L, LUA_REGISTRYINDEX);
  }
  return 0;
}

static void push_registered(lua_State *L, const char *key) {
  lua_pushlightuserdata(L, (void *)(uintptr_t)key);
  lua_rawget(L, LUA_REGISTRYINDEX);
}

bool moth_lua_complex(lua_State *L, int idx, double *z) {
  if (lua_type(L, idx) != LUA_TCDATA)
    return false;
  lua_pushvalue(L, idx);
  push_registered(L, &complex_read);
  lua_insert(L, -2);
  lua_call(L, 1, 2);
  bool ok = lua_isnumber(L, -1);
  z[0] = lua_tonumber(L, -2);
  z[1] = lua_tonumber(L, -1);
  lua_pop(L, 2);
  return ok;
}

void moth_lua_push_complex(lua_State *L, double re, double im) {
  push_registered(L, &complex_make);
  lua_pushnumber(L, re);
  lua_pushnumber(L, im);
  lua_call(L, 2, 1);
}

void moth_lua_type(lua_State *L, int idx, int type) {
  if (lua_type(L, idx) != type)
    moth_lua_error(L, "argument %d: expected a %s, got %s", idx, lua_typename(L, type),
                   lua_isnone(L, idx) ? "nothing" : luaL_typename(L, idx));
}

double moth_lua_number(lua_State *L, int idx) {
  int64_t i;
  if (lua_type(L, idx) == LUA_TNUMBER)
    return lua_tonumber(L, idx);
  if (moth_lua_int64(L, idx, &i))
    return (double)i;
  moth_lua_type(L, idx, LUA_TNUMBER);
  return 0;
}

const char *moth_lua_bytes(lua_State *L, int idx, size_t *n) {
  moth_lua_type(L, idx, LUA_TSTRING);
  return lua_tolstring(L, idx, n);
}

const char *moth_lua_string(lua_State *L, int idx) {
  return moth_lua_bytes(L, idx, NULL);
}

const char *moth_lua_path(lua_State *L, int idx) {
  size_t n;
  const char *path = lua_tolstring(L, idx, &n);
  if (lua_type(L, idx) != LUA_TSTRING)
    moth_lua_error(L, "expected a path, got %s", luaL_typename(L, idx));
  else if (strlen(path) != n)
    moth_lua_error(L, "a path cannot hold the byte 0: '%s\\0…'", path);
  return path;
}

/* --- dtypes, devices, generators --------------------------------------------------------------- */

/* Interned: one userdata per code, in a registry table. */
static void push_interned(lua_State *L, void *table_key, uint64_t magic, int64_t code) {
  push_metatable(L, table_key); /* { [code] = userdata, meta = metatable } */
  lua_pushinteger(L, (lua_Integer)code);
  lua_rawget(L, -2);
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    MothHandle *h = lua_newuserdata(L, sizeof *h);
    h->magic = magic;
    h->u.code = code;
    lua_getfield(L, -2, "meta");
    lua_setmetatable(L, -2);
    lua_pushinteger(L, (lua_Integer)code);
    lua_pushvalue(L, -2);
    lua_rawset(L, -4);
  }
  lua_remove(L, -2);
}

void moth_lua_push_dtype(lua_State *L, MothDType d) {
  push_interned(L, &key_dtypes, MOTH_MAGIC_DTYPE, (int64_t)d);
}
void moth_lua_push_device(lua_State *L, MothDevice d) {
  push_interned(L, &key_devices, MOTH_MAGIC_DEVICE, (int64_t)d.type << 8 | d.index);
}

void moth_lua_push_generator(lua_State *L, MothGenerator *g) {
  MothHandle *h = lua_newuserdata(L, sizeof *h);
  h->magic = MOTH_MAGIC_GENERATOR;
  h->u.g = g;
  push_metatable(L, &key_generator);
  lua_setmetatable(L, -2);
}

MothDType moth_lua_check_dtype(lua_State *L, int idx) {
  MothHandle *h = moth_lua_handle(L, idx, MOTH_MAGIC_DTYPE);
  if (h)
    return (MothDType)h->u.code;
  if (lua_type(L, idx) == LUA_TSTRING) {
    int d = moth_dtype_find(lua_tostring(L, idx));
    if (d >= 0)
      return (MothDType)d;
    moth_lua_error(L, "'%s' is no dtype; there are " MOTH_LUA_DTYPES, lua_tostring(L, idx));
  }
  moth_lua_error(L, "expected a dtype such as moth.float32, got %s", luaL_typename(L, idx));
  return MOTH_FLOAT32;
}

MothDevice moth_lua_check_device(lua_State *L, int idx) {
  MothHandle *h = moth_lua_handle(L, idx, MOTH_MAGIC_DEVICE);
  MothDevice d = {MOTH_CPU, 0};
  if (h)
    return (MothDevice){(uint8_t)(h->u.code >> 8), (uint8_t)h->u.code};
  if (lua_type(L, idx) != LUA_TSTRING)
    moth_lua_error(L, "expected a device such as \"cpu\", got %s", luaL_typename(L, idx));
  MothStatus s = moth_device_parse(lua_tostring(L, idx), &d);
  if (s)
    moth_lua_raise(L, s);
  return d;
}

static int dtype_tostring(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MOTH_MAGIC_DTYPE);
  lua_pushfstring(L, "moth.%s", h ? moth_dtype_name((MothDType)h->u.code) : "?");
  return 1;
}

/* An unknown field: nil for names that begin with _, which libraries probe; else an error. */
static int no_field(lua_State *L, const char *what, const char *k, const char *fields) {
  if (k[0] == '_')
    return 0;
  return moth_lua_error(L, "a %s has no field '%s'; there are %s", what, k, fields);
}

static int dtype_index(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MOTH_MAGIC_DTYPE);
  const char *k = lua_tostring(L, 2);
  if (!h || !k)
    return 0;
  MothDType d = (MothDType)h->u.code;
  if (!strcmp(k, "name"))
    lua_pushstring(L, moth_dtype_name(d));
  else if (!strcmp(k, "itemsize"))
    lua_pushinteger(L, (lua_Integer)moth_dtype_size(d));
  else if (!strcmp(k, "is_floating_point"))
    lua_pushboolean(L, moth_dtype_is_float(d));
  else if (!strcmp(k, "is_complex"))
    lua_pushboolean(L, moth_dtype_is_complex(d));
  else
    return no_field(L, "dtype", k, "name, itemsize, is_floating_point, is_complex");
  return 1;
}

static int device_tostring(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MOTH_MAGIC_DEVICE);
  char buf[64];
  MothDevice d = {(uint8_t)(h ? h->u.code >> 8 : 0), (uint8_t)(h ? h->u.code : 0)};
  if (d.index == 0)
    lua_pushstring(L, moth_memory(d.type)->name);
  else
    lua_pushstring(L, moth_device_format(d, buf, sizeof buf));
  return 1;
}

static int device_index(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MOTH_MAGIC_DEVICE);
  const char *k = lua_tostring(L, 2);
  if (!h || !k)
    return 0;
  if (!strcmp(k, "type"))
    lua_pushstring(L, moth_memory((int)(h->u.code >> 8))->name);
  else if (!strcmp(k, "index"))
    lua_pushinteger(L, (lua_Integer)(h->u.code & 255));
  else
    return no_field(L, "device", k, "type, index");
  return 1;
}

static int generator_gc(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MOTH_MAGIC_GENERATOR);
  if (h && h->u.g) {
    moth_generator_release(h->u.g);
    h->u.g = NULL;
  }
  return 0;
}

/* --- errors ----------------------------------------------------------------------------------- */

/* Pushes two values: "file:line: " of the nearest Lua function outside moth's library (of the nearest Lua function
 * if all are moth's); and the public name of moth's function that was called there (B.names), or nil. */
static void push_where(lua_State *L) {
  lua_Debug ar;
  char own[128] = "";
  luaL_checkstack(L, 8, "error");
  push_metatable(L, &key_library);
  const char *library = lua_tostring(L, -1); /* the registry retains it */
  push_metatable(L, &key_names);
  lua_pushnil(L);
  for (int level = 0; lua_getstack(L, level, &ar); level++) {
    lua_getinfo(L, "Slf", &ar);
    char at[128];
    snprintf(at, sizeof at, "%s:%d: ", ar.short_src, ar.currentline);
    if (ar.currentline > 0 && (!library || strncmp(ar.source, library, strlen(library)) != 0)) {
      lua_pop(L, 1);
      strcpy(own, at);
      break;
    }
    lua_rawget(L, -3);
    if (lua_isnil(L, -1))
      lua_pop(L, 1);
    else
      lua_replace(L, -2); /* the outermost one counts */
    if (ar.currentline > 0 && !own[0])
      strcpy(own, at);
  }
  lua_pushstring(L, own);
  lua_replace(L, -4);
  lua_replace(L, -2);
}

const char *moth_lua_library(lua_State *L) {
  push_metatable(L, &key_library);
  const char *library = lua_tostring(L, -1);
  lua_pop(L, 1);
  return library;
}

void moth_lua_push_where(lua_State *L) {
  push_where(L);
  lua_pop(L, 1);
}

/* Renames a message after the function that the user called: "[max_dim] …; max_dim(…)" in a call of max becomes
 * "[max] …; max(…)". A message without a name in front gets it, unless it contains it already. */
static void push_renamed(lua_State *L, const char *text, const char *name) {
  const char *end = text[0] == '[' ? strstr(text, "] ") : NULL;
  if (strstr(text,
             MOTH_FOUND_LATER)) { /* the error of an earlier call, for which this one has waited */
    lua_pushstring(L, text);
    return;
  }
  if (!end) {
    const char *dot = strrchr(name, '.');
    if (strstr(text, dot ? dot + 1 : name))
      lua_pushstring(L, text);
    else
      lua_pushfstring(L, "[%s] %s", name, text);
    return;
  }
  char was[96];
  snprintf(was, sizeof was, "; %.*s(", (int)(end - text - 1), text + 1);
  const char *schema = strstr(text, was);
  if (schema) {
    lua_pushfstring(L, "[%s", name);
    lua_pushlstring(L, end, (size_t)(schema - end));
    lua_pushfstring(L, "; %s(%s", name, schema + strlen(was));
    lua_concat(L, 3);
  } else {
    lua_pushfstring(L, "[%s%s", name, end);
  }
}

static char key_trace;

/* Pushes a function of moth.trace, or nothing where that is not loaded. */
static bool push_trace(lua_State *L, const char *name) {
  if (!lua_checkstack(L, 8))
    return false;
  push_metatable(L, &key_trace);
  if (lua_istable(L, -1)) {
    lua_getfield(L, -1, name);
    lua_remove(L, -2);
    if (lua_isfunction(L, -1))
      return true;
  }
  lua_pop(L, 1);
  return false;
}

int moth_lua_pcall(lua_State *L, int nargs, int nresults) {
  int base = lua_gettop(L) - nargs;
  if (!push_trace(L, "keep"))
    return lua_pcall(L, nargs, nresults, 0);
  lua_insert(L, base);
  int status = lua_pcall(L, nargs, nresults, base);
  lua_remove(L, base);
  return status;
}

/* Pushes "; in features.2 (Conv2d) of Net" where a module's forward is running, or "". */
static void push_module(lua_State *L) {
  if (!push_trace(L, "place"))
    lua_pushliteral(L, "");
  else if (lua_pcall(L, 0, 1, 0) || !lua_isstring(L, -1)) {
    lua_pop(L, 1);
    lua_pushliteral(L, "");
  }
}

int moth_lua_error(lua_State *L, const char *fmt, ...) {
  char text[2048];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  push_where(L);
  const char *name = lua_tostring(L, -1);
  if (name)
    push_renamed(L, text, name);
  else
    lua_pushstring(L, text);
  lua_remove(L, -2);
  push_module(L);
  lua_concat(L, 3);
  return lua_error(L);
}

int moth_lua_raise(lua_State *L, MothStatus s) {
  if (s == MOTH_ERR_INTERRUPTED)
    return moth_lua_interrupted(L);
  if (s == MOTH_ERR_HOST) {
    push_metatable(L, &key_parked);
    lua_pushlightuserdata(L, &key_parked);
    lua_pushnil(L);
    lua_rawset(L, LUA_REGISTRYINDEX);
    if (push_trace(L, "rethrow")) {
      lua_insert(L, -2);
      lua_call(L, 1, 0);
    }
    return lua_error(L);
  }
  return moth_lua_error(L, "%s", moth_error_text(1));
}

void moth_lua_push_parked(lua_State *L) {
  push_metatable(L, &key_parked);
}

void moth_lua_pop_parked(lua_State *L) {
  moth_lua_park(L);
}

MothStatus moth_lua_no_state(void) {
  return moth_fail(MOTH_ERR_STATE, "a Lua function is needed here, but no Lua state is running");
}

MothStatus moth_lua_park(lua_State *L) {
  lua_pushlightuserdata(L, &key_parked);
  lua_insert(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
  return MOTH_ERR_HOST;
}

MothStatus moth_lua_call(lua_State *L, int nargs, int nresults) {
  enum { MAX_DEPTH = 100 };
  static _Thread_local int depth;
  if (depth == MAX_DEPTH) {
    lua_pop(L, nargs + 1);
    return moth_fail(MOTH_ERR_STATE,
                     "hooks, modes or functions of Lua's call each other %d deep: without end?",
                     MAX_DEPTH);
  }
  /* While Lua runs, a call through the FFI must not find a state: running Lua on a compiled trace crashes. Ops called
   * through the binding set it again. */
  lua_State *current = moth_lua_current;
  moth_lua_current = NULL;
  depth++;
  int failed = moth_lua_pcall(L, nargs, nresults);
  depth--;
  moth_lua_current = current;
  moth_lua_sync(L); /* it may have run coroutines, and other states */
  return failed ? moth_lua_park(L) : MOTH_OK;
}

/* --- opening ---------------------------------------------------------------------------------- */

static int b_library(lua_State *L) { /* (path prefix of moth's own Lua files, "@…") */
  lua_pushlightuserdata(L, &key_library);
  lua_pushvalue(L, 1);
  lua_rawset(L, LUA_REGISTRYINDEX);
  return 0;
}

static int b_set_trace(lua_State *L) { /* ({ keep =, rethrow =, place = }) of moth.trace */
  moth_lua_type(L, 1, LUA_TTABLE);
  lua_pushlightuserdata(L, &key_trace);
  lua_pushvalue(L, 1);
  lua_rawset(L, LUA_REGISTRYINDEX);
  return 0;
}

/* raise(message): an error at the user's line, for any number of moth's frames in between. */
static int b_raise(lua_State *L) {
  return moth_lua_error(L, "%s", moth_lua_string(L, 1));
}

void moth_lua_set_name(lua_State *L, const char *name) {
  push_metatable(L, &key_names);
  lua_pushvalue(L, -2);
  lua_pushstring(L, name);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

/* named(fn, name): a copy of the C function fn whose errors carry `name`; a Lua function is returned unchanged. */
static int b_named(lua_State *L) {
  moth_lua_type(L, 1, LUA_TFUNCTION);
  moth_lua_string(L, 2);
  lua_CFunction fn = lua_tocfunction(L, 1);
  if (fn) {
    int n = 0;
    while (lua_getupvalue(L, 1, n + 1))
      n++;
    lua_pushcclosure(L, fn, n);
    lua_replace(L, 1);
  }
  const char *name = lua_tostring(L, 2);
  lua_pushvalue(L, 1);
  moth_lua_set_name(L, name);
  return 1;
}

static int b_dtype(lua_State *L) {
  moth_lua_push_dtype(L, moth_lua_check_dtype(L, 1));
  return 1;
}

static int b_device(lua_State *L) {
  moth_lua_push_device(L, moth_lua_check_device(L, 1));
  return 1;
}

static int b_generator(lua_State *L) {
  MothGenerator *g = moth_generator_new(
      lua_isnoneornil(L, 1) ? 42 : (uint64_t)moth_lua_check_integer(L, 1, -EXACT, EXACT));
  if (!g)
    return moth_lua_raise(L, MOTH_ERR_MEMORY);
  moth_lua_push_generator(L, g);
  return 1;
}

static MothGenerator *generator_at(lua_State *L, int idx) {
  if (lua_isnoneornil(L, idx)) {
    moth_lua_here(L);
    return moth_default_generator();
  }
  MothHandle *h = moth_lua_handle(L, idx, MOTH_MAGIC_GENERATOR);
  if (!h)
    moth_lua_error(L, "expected a Generator, got %s", luaL_typename(L, idx));
  return h ? h->u.g : NULL;
}

static int b_generator_seed(lua_State *L) {
  moth_generator_seed(generator_at(L, 1), (uint64_t)moth_lua_check_integer(L, 2, -EXACT, EXACT));
  return 0;
}

/* The state as four numbers of 32 bits: seed high, seed low, offset high, offset low. */
static int b_generator_state(lua_State *L) {
  uint64_t seed, offset;
  moth_generator_get_state(generator_at(L, 1), &seed, &offset);
  lua_pushnumber(L, (lua_Number)(seed >> 32));
  lua_pushnumber(L, (lua_Number)(seed & 0xffffffffu));
  lua_pushnumber(L, (lua_Number)(offset >> 32));
  lua_pushnumber(L, (lua_Number)(offset & 0xffffffffu));
  return 4;
}

static int b_generator_set_state(lua_State *L) {
  uint64_t w[4];
  for (int i = 0; i < 4; i++) {
    lua_Number x = moth_lua_number(L, i + 2); /* may come from a file: any number */
    if (!(x >= 0 && x <= UINT32_MAX))
      return moth_lua_error(L, "set_state: expected what get_state gave");
    w[i] = (uint64_t)x;
  }
  moth_generator_set_state(generator_at(L, 1), w[0] << 32 | w[1], w[2] << 32 | w[3]);
  return 0;
}

static int b_is_tensor(lua_State *L) {
  lua_pushboolean(L, moth_lua_handle(L, 1, MOTH_MAGIC_TENSOR) != NULL);
  return 1;
}

static int b_is_dtype(lua_State *L) {
  lua_pushboolean(L, moth_lua_handle(L, 1, MOTH_MAGIC_DTYPE) != NULL);
  return 1;
}

static int b_is_device(lua_State *L) {
  lua_pushboolean(L, moth_lua_handle(L, 1, MOTH_MAGIC_DEVICE) != NULL);
  return 1;
}

static void new_metatable(lua_State *L, void *key, const luaL_Reg *fns, const char *name) {
  lua_newtable(L);
  for (; fns->name; fns++) {
    lua_pushcfunction(L, fns->func);
    lua_setfield(L, -2, fns->name);
  }
  lua_pushstring(L, name);
  lua_setfield(L, -2, "__name");
  if (key) {
    lua_pushlightuserdata(L, key);
    lua_pushvalue(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
  }
}

void moth_lua_open_handles(lua_State *L) { /* the binding's table is on top */
  static const luaL_Reg tensor[] = {{"__gc", tensor_gc}, {"__eq", tensor_eq}, {NULL, NULL}};
  static const luaL_Reg dtype[] = {
      {"__tostring", dtype_tostring}, {"__index", dtype_index}, {NULL, NULL}};
  static const luaL_Reg device[] = {
      {"__tostring", device_tostring}, {"__index", device_index}, {NULL, NULL}};
  static const luaL_Reg generator[] = {{"__gc", generator_gc}, {NULL, NULL}};
  static const luaL_Reg fns[] = {{"complex_numbers", b_complex_numbers},
                                 {"set_trace", b_set_trace},
                                 {"library", b_library},
                                 {"raise", b_raise},
                                 {"named", b_named},
                                 {"dtype", b_dtype},
                                 {"device", b_device},
                                 {"generator", b_generator},
                                 {"generator_seed", b_generator_seed},
                                 {"generator_state", b_generator_state},
                                 {"generator_set_state", b_generator_set_state},
                                 {"is_tensor", b_is_tensor},
                                 {"is_dtype", b_is_dtype},
                                 {"is_device", b_is_device},
                                 {"scope_begin", b_scope_begin},
                                 {"scope_end", b_scope_end},
                                 {NULL, NULL}};
  luaL_register(L, NULL, fns);
  lua_newtable(L); /* function -> its name in errors */
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "k");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_pushlightuserdata(L, &key_names);
  lua_pushvalue(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
  lua_setfield(L, -2, "names");
  new_metatable(L, &key_tensor, tensor, "moth.Tensor");
  lua_setfield(L, -2, "Tensor");
  new_metatable(L, &key_generator, generator, "moth.Generator");
  lua_setfield(L, -2, "Generator");
  lua_newtable(L);
  new_metatable(L, NULL, dtype, "moth.dtype");
  lua_setfield(L, -2, "meta");
  lua_pushlightuserdata(L, &key_dtypes);
  lua_insert(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
  lua_newtable(L);
  new_metatable(L, NULL, device, "moth.device");
  lua_setfield(L, -2, "meta");
  lua_pushlightuserdata(L, &key_devices);
  lua_insert(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
}
