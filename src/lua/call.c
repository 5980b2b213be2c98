/* Calling ops from Lua: one C function for all of them.
 *
 * Arguments are read by the schema: positions in order, then keywords from a trailing table. A list may
 * be written as a table or, where no number follows it, as plain numbers: x:view(2, 6). Dim and Index
 * arguments count from 1 (or from the end, negative); index_base is 1. Everything is checked here:
 * kinds, integrality, ranges; what is wrong is an error that names op and argument. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lua/moth_lua.h"
#include "no_cuda/cuda.h"

enum { MAX_INTS = 96 };

typedef struct Reader {
  lua_State *L;
  const MothOp *op;
  int64_t ints[MAX_INTS];
  int nints;
} Reader;

static const char *op_name(const MothOp *op, int variant, char *buf, size_t n) {
  snprintf(buf, n, "%s%s", op->name, variant == MOTH_INPLACE && !op->returns_self ? "_" : "");
  return buf;
}

static int bad(const Reader *r, const MothArg *a, const char *expected, int idx) {
  lua_State *L = r->L;
  if (lua_type(L, idx) == LUA_TNUMBER)
    return moth_lua_error(L, "[%s] argument '%s': expected %s, got %.14g; %s", r->op->name, a->name,
                          expected, lua_tonumber(L, idx), r->op->schema);
  if (lua_type(L, idx) == LUA_TSTRING)
    return moth_lua_error(L, "[%s] argument '%s': expected %s, got the string '%.40s'; %s",
                          r->op->name, a->name, expected, lua_tostring(L, idx), r->op->schema);
  return moth_lua_error(L, "[%s] argument '%s': expected %s, got %s; %s", r->op->name, a->name,
                        expected, luaL_typename(L, idx), r->op->schema);
}

static int64_t read_int(const Reader *r, const MothArg *a, int idx) {
  double d = lua_tonumber(r->L, idx);
  if (lua_type(r->L, idx) != LUA_TNUMBER || d != floor(d) || fabs(d) > 9007199254740992.0)
    bad(r, a, "an integer", idx);
  return (int64_t)d;
}

/* A position as Lua counts, from 1, to the C API's, from 0. */
static int64_t read_position(const Reader *r, const MothArg *a, int idx) {
  int64_t i = read_int(r, a, idx);
  if (i == 0)
    moth_lua_error(r->L, "[%s] argument '%s' is 0: moth counts from 1 (and from the end by -1)",
                   r->op->name, a->name);
  return i > 0 ? i - 1 : i;
}

static MothValue read_number(lua_State *L, int idx) {
  double d = lua_tonumber(L, idx);
  if (d == floor(d) && fabs(d) <= 9007199254740992.0)
    return moth_v_int((int64_t)d);
  return moth_v_float(d);
}

static void push_int(Reader *r, const MothArg *a, int64_t i) {
  if (r->nints == MAX_INTS)
    moth_lua_error(r->L, "[%s] argument '%s': the list is too long", r->op->name, a->name);
  r->ints[r->nints++] = i;
}

static MothValue read_ints(Reader *r, const MothArg *a, int idx, int last) {
  lua_State *L = r->L;
  int first = r->nints, top = lua_gettop(L);
  bool dims = a->type == MOTH_T_DIMS;
  if (lua_type(L, idx) == LUA_TTABLE) {
    int n = (int)lua_objlen(L, idx);
    lua_pushnil(L);
    if (n == 0 && lua_next(L, idx)) /* { key = … } is no list */
      bad(r, a, dims ? "dimensions" : "sizes", idx);
    lua_settop(L, top);
    for (int i = 1; i <= n; i++) {
      lua_rawgeti(L, idx, i);
      push_int(r, a, dims ? read_position(r, a, -1) : read_int(r, a, -1));
      lua_pop(L, 1);
    }
  } else {
    if (lua_type(L, idx) != LUA_TNUMBER)
      bad(r, a, dims ? "dimensions" : "sizes", idx);
    for (int i = idx; i <= last; i++)
      push_int(r, a, dims ? read_position(r, a, i) : read_int(r, a, i));
  }
  return moth_v_ints(r->ints + first, (uint32_t)(r->nints - first));
}

static MothValue read_tensors(Reader *r, const MothArg *a, int idx) {
  lua_State *L = r->L;
  if (lua_type(L, idx) != LUA_TTABLE)
    bad(r, a, "a table of tensors", idx);
  size_t n = lua_objlen(L, idx);
  int top = lua_gettop(L);
  lua_pushnil(L);
  if (n == 0 && lua_next(L, idx)) /* { key = … } is no list */
    bad(r, a, "a table of tensors", idx);
  lua_settop(L, top);
  MothTensor **list =
      lua_newuserdata(L, sizeof *list * (n ? n : 1)); /* stays on the stack for the call */
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, idx, (int)i + 1);
    MothHandle *h = moth_lua_handle(L, -1, MOTH_MAGIC_TENSOR);
    if (!h || !h->u.t)
      moth_lua_error(L, "[%s] argument '%s': element %d is %s, not a tensor", r->op->name, a->name,
                     (int)i + 1, h ? "a released tensor" : luaL_typename(L, -1));
    else
      list[i] = h->u.t;
    lua_pop(L, 1);
  }
  return moth_v_tensors(list, (uint32_t)n);
}

/* The value at idx, of this type (to `last` for a list of plain numbers), for argument a. */
static MothValue read_value(Reader *r, const MothArg *a, int idx, int last, int type) {
  lua_State *L = r->L;
  if (type == LUA_TNIL) {
    if (!a->optional && !a->has_default)
      bad(r, a, a->type == MOTH_T_TENSOR ? "a tensor" : "a value", idx);
    return a->def;
  }
  switch ((MothType)a->type) {
  case MOTH_T_TENSOR:
  case MOTH_T_OPERAND: {
    MothHandle *h = moth_lua_handle(L, idx, MOTH_MAGIC_TENSOR);
    if (h && !h->u.t)
      moth_lua_error(L, "[%s] argument '%s': the tensor was released by free()", r->op->name,
                     a->name);
    if (h)
      return moth_v_tensor(h->u.t);
    if (a->type == MOTH_T_OPERAND && type == LUA_TNUMBER)
      return read_number(L, idx);
    if (a->type == MOTH_T_OPERAND && type == LUA_TBOOLEAN)
      return moth_v_bool(lua_toboolean(L, idx));
    bad(r, a, a->type == MOTH_T_OPERAND ? "a tensor or a number" : "a tensor", idx);
    break;
  }
  case MOTH_T_SCALAR:
    if (type == LUA_TNUMBER)
      return read_number(L, idx);
    if (type == LUA_TBOOLEAN)
      return moth_v_bool(lua_toboolean(L, idx));
    bad(r, a, "a number", idx);
    break;
  case MOTH_T_INT:
    return moth_v_int(read_int(r, a, idx));
  case MOTH_T_DIM:
  case MOTH_T_INDEX:
    return moth_v_int(read_position(r, a, idx));
  case MOTH_T_INDEX_BASE:
    return moth_v_int(1);
  case MOTH_T_FLOAT:
    if (type != LUA_TNUMBER)
      bad(r, a, "a number", idx);
    return moth_v_float(lua_tonumber(L, idx));
  case MOTH_T_BOOL:
    if (type != LUA_TBOOLEAN)
      bad(r, a, "true or false", idx);
    return moth_v_bool(lua_toboolean(L, idx));
  case MOTH_T_INTS:
  case MOTH_T_DIMS:
    return read_ints(r, a, idx, last);
  case MOTH_T_TENSORS:
    return read_tensors(r, a, idx);
  case MOTH_T_STRING:
    if (type != LUA_TSTRING)
      bad(r, a, "a string", idx);
    return moth_v_string(lua_tostring(L, idx));
  case MOTH_T_DTYPE:
    if (type == LUA_TSTRING ? moth_dtype_find(lua_tostring(L, idx)) < 0
                            : !moth_lua_handle(L, idx, MOTH_MAGIC_DTYPE))
      bad(r, a, "a dtype (" MOTH_LUA_DTYPES ")", idx);
    return moth_v_dtype(moth_lua_check_dtype(L, idx));
  case MOTH_T_DEVICE:
    if (type != LUA_TSTRING && !moth_lua_handle(L, idx, MOTH_MAGIC_DEVICE))
      bad(r, a, "a device such as \"cpu\"", idx);
    MothDevice device;
    if (type == LUA_TSTRING && moth_device_parse(lua_tostring(L, idx), &device))
      moth_lua_error(L, "[%s] argument '%s': %s", r->op->name, a->name, moth_last_error());
    return moth_v_device(moth_lua_check_device(L, idx));
  case MOTH_T_GENERATOR: {
    MothHandle *h = moth_lua_handle(L, idx, MOTH_MAGIC_GENERATOR);
    if (!h)
      bad(r, a, "a Generator", idx);
    else
      return moth_v_generator(h->u.g);
    break;
  }
  }
  return moth_v_none();
}

static bool takes_list(const MothArg *a) {
  return a->type == MOTH_T_INTS || a->type == MOTH_T_DIMS || a->type == MOTH_T_TENSORS;
}

/* A table that is no list: keywords. An empty one is an empty list where a list is due. */
static bool is_keywords(lua_State *L, int idx, const MothArg *a) {
  if (lua_type(L, idx) != LUA_TTABLE || lua_objlen(L, idx) > 0)
    return false;
  lua_pushnil(L);
  if (!lua_next(L, idx))
    return !a || !takes_list(a);
  lua_pop(L, 2);
  return true;
}

/* Plain numbers go into a list as far as they reach, unless a number is due after the list. */
static bool greedy(const MothOp *op, int i) {
  if (i + 1 >= op->nargs)
    return true;
  switch ((MothType)op->args[i + 1].type) {
  case MOTH_T_INT:
  case MOTH_T_SCALAR:
  case MOTH_T_FLOAT:
  case MOTH_T_DIM:
  case MOTH_T_INDEX:
  case MOTH_T_INTS:
  case MOTH_T_DIMS:
    return false;
  default:
    return true;
  }
}

static void read_keywords(Reader *r, int idx, MothValue *args, bool *given, bool *requires_grad,
                          bool *pinned, MothTensor **out) {
  lua_State *L = r->L;
  lua_pushnil(L);
  while (lua_next(L, idx)) {
    const char *k = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : NULL;
    int found = -1;
    for (int i = 0; k && i < r->op->nargs; i++)
      if (!strcmp(k, r->op->args[i].name) && r->op->args[i].type != MOTH_T_INDEX_BASE)
        found = i;
    if (found >= 0) {
      if (given[found])
        moth_lua_error(L, "[%s] argument '%s' is given twice; %s", r->op->name, k, r->op->schema);
      int top = lua_gettop(L);
      args[found] = read_value(r, &r->op->args[found], top, top, lua_type(L, top));
      given[found] = true;
      if (lua_gettop(L) > top) /* a list's memory: it must lie below the key and outlive the loop */
        lua_insert(L, -3);
    } else if (k && r->op->factory && !strcmp(k, "requires_grad")) {
      *requires_grad = lua_toboolean(L, -1);
    } else if (k && !strcmp(k, "out") && r->op->nresults == 1) {
      *out = moth_lua_check_tensor(L, -1, "option 'out'");
    } else if (k && r->op->factory && !strcmp(k, "pin_memory")) {
      *pinned = lua_toboolean(L, -1);
    } else {
      moth_lua_error(L, "[%s] unknown option '%s'; %s", r->op->name, k ? k : luaL_typename(L, -2),
                     r->op->schema);
    }
    lua_pop(L, 1);
  }
}

static MothStatus run(lua_State *L, const MothOp *op, MothVariant variant, MothValue *args,
                      MothTensor **target, MothValue *results) {
  MothCall c = {
      .op = op, .args = args, .results = results, .variant = (uint8_t)variant, .target = target};
  lua_State *outer = moth_lua_current;
  moth_lua_current = L;
  moth_lua_collected = false;
  MothStatus s = moth_dispatch(&c);
  /* Garbage may hold what is missing; a device's allocator has looked there itself. */
  if (__builtin_expect(s == MOTH_ERR_MEMORY, 0) && !moth_lua_collected) {
    lua_gc(L, LUA_GCCOLLECT, 0);
    lua_gc(L, LUA_GCCOLLECT, 0);
    moth_memory_empty_cache();
    s = moth_dispatch(&c);
  }
  moth_lua_current = outer;
  return s;
}

/* What a factory made with {pin_memory = true}, in pinned memory where there is CUDA. */
static MothStatus pin(MothTensor **t) {
  const MothCudaApi *api = moth_cuda_why() ? NULL : moth_cuda_api();
  MothTensor *there;
  if (!api || moth_tensor_is_fake(*t))
    return MOTH_OK;
  if ((*t)->device.type != MOTH_CPU)
    return moth_fail(MOTH_ERR_VALUE,
                     "pin_memory: only tensors on the cpu can be pinned, this one is on %s",
                     moth_device_ops((MothDeviceType)(*t)->device.type)->name);
  MOTH_TRY(api->pin(*t, &there));
  moth_tensor_release(*t);
  *t = there;
  return MOTH_OK;
}

enum { ENTRY = 1, META }; /* op_call's upvalues; META: the metatable of tensors */

static int op_call(lua_State *L) {
  const MothLuaEntry *entry = lua_touserdata(L, lua_upvalueindex(ENTRY));
  const MothOp *op = entry->op;
  MothVariant variant = entry->variant;
  MothValue args[MOTH_MAX_ARGS], results[MOTH_MAX_RESULTS];
  bool given[MOTH_MAX_ARGS] = {false}, requires_grad = false, pinned = false;
  MothTensor *self = NULL, *out = NULL;
  Reader r;
  moth_lua_enter(L);
  r.L = L;
  r.op = op;
  r.nints = 0;
  int top = lua_gettop(L), at = 1, i = 0;
  for (; i < op->nargs && at <= top; i++) {
    const MothArg *a = &op->args[i];
    MothHandle *h;
    if (a->type <= MOTH_T_OPERAND && (h = moth_lua_handle(L, at, MOTH_MAGIC_TENSOR)) && h->u.t) {
      args[i] = moth_v_tensor(h->u.t); /* the most usual, in the fewest calls */
      given[i] = true;
      at++;
      continue;
    }
    if (a->type == MOTH_T_INDEX_BASE) {
      args[i] = moth_v_int(entry->index_base);
      given[i] = true;
      continue;
    }
    int last = at, type = lua_type(L, at);
    if (type == LUA_TTABLE && at == top && is_keywords(L, at, a))
      break;
    if ((a->type == MOTH_T_INTS || a->type == MOTH_T_DIMS) && type == LUA_TNUMBER && greedy(op, i))
      while (last < top && lua_type(L, last + 1) == LUA_TNUMBER)
        last++;
    args[i] = read_value(&r, a, at, last, type);
    given[i] = type != LUA_TNIL;
    at = last + 1;
  }
  if (at == top && is_keywords(L, at, NULL)) {
    read_keywords(&r, at, args, given, &requires_grad, &pinned, &out);
    at++;
  }
  if (at <= top && !(at == top && lua_isnil(L, at)))
    moth_lua_error(L, "[%s] too many arguments; %s", op->name, op->schema);
  for (i = 0; i < op->nargs; i++) {
    if (given[i])
      continue;
    const MothArg *a = &op->args[i];
    if (a->type == MOTH_T_INDEX_BASE)
      args[i] = moth_v_int(entry->index_base);
    else if (a->optional || a->has_default)
      args[i] = a->def;
    else if (a->type == MOTH_T_INTS && op->factory) /* moth.randn(): 0-dim */
      args[i] = moth_v_ints(r.ints, 0);
    else
      moth_lua_error(L, "[%s] argument '%s' is missing; %s", op->name, a->name, op->schema);
  }
  for (i = 0; entry->floats >> i; i++)
    if (entry->floats >> i & 1 && args[i].tag == MOTH_V_INT)
      args[i] = moth_v_float((double)args[i].u.i);
  MothTensor **target = NULL;
  if (variant == MOTH_INPLACE) {
    char name[96];
    if (args[0].tag != MOTH_V_TENSOR)
      moth_lua_error(L, "[%s] argument '%s': expected a tensor, got %s",
                     op_name(op, (int)variant, name, sizeof name), op->args[0].name,
                     luaL_typename(L, 1));
    self = args[0].u.t;
    target = &self;
  } else if (out) {
    variant = MOTH_OUT;
    target = &out;
  }
  MothStatus s = run(L, op, variant, args, target, results);
  if (__builtin_expect(s != MOTH_OK, 0))
    return moth_lua_raise(L, s);
  if (pinned) {
    s = pin(&results[0].u.t);
    if (s) {
      moth_tensor_release(results[0].u.t);
      return moth_lua_raise(L, s);
    }
  }
  if (requires_grad) {
    s = moth_tensor_set_requires_grad(results[0].u.t, true);
    if (s) {
      moth_tensor_release(results[0].u.t);
      return moth_lua_raise(L, s);
    }
  }
  for (i = 0; i < op->nresults; i++) {
    MothTensor *t = results[i].u.t;
    MothHandle *first = NULL;
    if (i == 0 && args[0].tag == MOTH_V_TENSOR && args[0].u.t == t)
      first = moth_lua_handle(L, 1, MOTH_MAGIC_TENSOR);
    if (first && first->u.t == t) { /* self: the same handle */
      moth_tensor_release(t);
      lua_pushvalue(L, 1);
    } else {
      moth_lua_push_tensor_with(L, t, lua_upvalueindex(META));
    }
  }
  return op->nresults;
}

void moth_lua_push_op(lua_State *L, MothLuaEntry entry) {
  MothLuaEntry *own = lua_newuserdata(L, sizeof *own);
  if (entry.op->returns_self)
    entry.variant = MOTH_INPLACE;
  *own = entry;
  moth_lua_push_tensor_meta(L);
  lua_pushcclosure(L, op_call, 2);
}

void moth_lua_push_value(lua_State *L, const MothArg *a, MothValue v) {
  switch ((MothTag)v.tag) {
  case MOTH_V_NONE:
    lua_pushnil(L);
    break;
  case MOTH_V_BOOL:
    lua_pushboolean(L, v.u.b);
    break;
  case MOTH_V_INT:
    lua_pushnumber(L, (lua_Number)moth_as_lua_counts(a, v.u.i));
    break;
  case MOTH_V_FLOAT:
    lua_pushnumber(L, v.u.d);
    break;
  case MOTH_V_TENSOR:
    moth_tensor_retain(v.u.t);
    moth_lua_push_tensor(L, v.u.t);
    break;
  case MOTH_V_INTS:
    lua_createtable(L, (int)v.n, 0);
    for (uint32_t i = 0; i < v.n; i++) {
      lua_pushnumber(L, (lua_Number)moth_as_lua_counts(a, v.u.ints[i]));
      lua_rawseti(L, -2, (int)i + 1);
    }
    break;
  case MOTH_V_TENSORS:
    lua_createtable(L, (int)v.n, 0);
    for (uint32_t i = 0; i < v.n; i++) {
      moth_tensor_retain(v.u.tensors[i]);
      moth_lua_push_tensor(L, v.u.tensors[i]);
      lua_rawseti(L, -2, (int)i + 1);
    }
    break;
  case MOTH_V_STRING:
    lua_pushstring(L, v.u.s);
    break;
  case MOTH_V_DTYPE:
    moth_lua_push_dtype(L, (MothDType)v.u.i);
    break;
  case MOTH_V_DEVICE:
    moth_lua_push_device(L, (MothDevice){(uint8_t)(v.u.i >> 8), (uint8_t)v.u.i});
    break;
  case MOTH_V_GENERATOR:
    moth_generator_retain(v.u.g);
    moth_lua_push_generator(L, v.u.g);
    break;
  }
}

/* The binding's table gets `ops`: name -> function, with name_ for in-place variants. */
void moth_lua_open_calls(lua_State *L) {
  lua_createtable(L, 0, 2 * moth_nops);
  for (int i = 0; i < moth_nops; i++) {
    const MothOp *op = &moth_ops[i];
    moth_lua_push_op(L, (MothLuaEntry){op, MOTH_FUNCTIONAL, 1, 0});
    lua_setfield(L, -2, op->name);
    if (op->inplace) {
      char name[96];
      moth_lua_push_op(L, (MothLuaEntry){op, MOTH_INPLACE, 1, 0});
      lua_setfield(L, -2, op_name(op, MOTH_INPLACE, name, sizeof name));
    }
  }
  lua_setfield(L, -2, "ops");
}
