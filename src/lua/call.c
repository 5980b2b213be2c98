/* Calling ops from Lua: one C function for all of them.
 *
 * Arguments are read by the schema: positions in order, then keywords from a trailing table. Values without a name in
 * that table are the list where a list is expected, moth.cat{ a, b, dim = 2 }, else the next arguments by position,
 * moth.linspace{ 0, 1, 5, dtype = … } (lua/moth/utils/signature.lua does the same for functions made in Lua). A list
 * may be written as a table or, where no number follows it, as plain numbers: x:view(2, 6). Dim and Index arguments
 * count from 1 (or from the end, negative); index_base is 1. Everything is checked here: types, integrality, ranges;
 * an error names op and argument. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "device/cuda.h"
#include "dispatch/registry.h"
#include "lua/moth_lua.h"

enum { MAX_INTS = 96 };

typedef struct Table {
  int n;      /* the elements of its list */
  bool named; /* it has fields with names */
  bool empty, plain;
  double astray; /* the position of an element behind a hole, or 0 */
} Table;

typedef struct Reader {
  lua_State *L;
  const MothOp *op;
  int64_t ints[MAX_INTS];
  int nints;
  int looked_at; /* the stack index of the table that was examined last */
  Table table;   /* this */
  int mixed;     /* where the trailing table is a list with options behind it, else 0 */
} Reader;

static const char *op_name(const MothOp *op, int variant, char *buf, size_t n) {
  snprintf(buf, n, "%s%s", op->name, variant == MOTH_INPLACE && !op->returns_self ? "_" : "");
  return buf;
}

enum { LUA_TCDATA = 10 }; /* of LuaJIT; lua.h has no name for it */
static const double EXACT =
    9007199254740992.0; /* 2^53: beyond it Lua numbers cannot represent all integers */

static int bad(const Reader *r, const MothArg *a, const char *expected, int idx) {
  lua_State *L = r->L;
  double d = lua_tonumber(L, idx);
  if (lua_type(L, idx) == LUA_TNUMBER && d == floor(d) && fabs(d) > EXACT && isfinite(d))
    return moth_lua_error(L,
                          "[%s] argument '%s': expected %s, got %.17g, which is beyond 2^53, where "
                          "Lua's numbers skip "
                          "integers; give it as an int64_t, such as %.0fLL; %s",
                          r->op->name, a->name, expected, d, fabs(d) < 9e18 ? d : 9e18,
                          r->op->schema);
  if (lua_type(L, idx) == LUA_TNUMBER)
    return moth_lua_error(L, "[%s] argument '%s': expected %s, got %.14g; %s", r->op->name, a->name,
                          expected, lua_tonumber(L, idx), r->op->schema);
  if (lua_type(L, idx) == LUA_TSTRING)
    return moth_lua_error(L, "[%s] argument '%s': expected %s, got the string '%.40s'; %s",
                          r->op->name, a->name, expected, lua_tostring(L, idx), r->op->schema);
  return moth_lua_error(L, "[%s] argument '%s': expected %s, got %s; %s", r->op->name, a->name,
                        expected, luaL_typename(L, idx), r->op->schema);
}

/* A complex number as a 0-dim tensor, which takes its place on the stack. */
static MothValue complex_operand(lua_State *L, int idx, const double *z) {
  MothTensor *t;
  MothStatus s = moth_tensor_new(0, NULL, MOTH_COMPLEX128, (MothDevice){MOTH_CPU, 0}, &t);
  if (s != MOTH_OK)
    moth_lua_raise(L, s);
  memcpy(t->data, z, 2 * sizeof *z);
  t->is_number = true;
  moth_lua_push_tensor(L, t);
  lua_replace(L, idx);
  return moth_v_tensor(t);
}

static int64_t read_int(const Reader *r, const MothArg *a, int idx) {
  double d = lua_tonumber(r->L, idx);
  int64_t i;
  if (lua_type(r->L, idx) == LUA_TNUMBER && d == floor(d) && fabs(d) <= EXACT)
    return (int64_t)d;
  if (!moth_lua_int64(r->L, idx, &i))
    bad(r, a, "an integer", idx);
  return i;
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
  if (d == floor(d) && fabs(d) <= EXACT)
    return moth_v_int((int64_t)d);
  return moth_v_float(d);
}

/* --- tables ------------------------------------------------------------------------------------- */

/* Counts the elements and names of the table at idx. Objects (modules, classes) are no options. */
static Table look_at(const Reader *r, int idx) {
  lua_State *L = r->L;
  Table t = {(int)lua_objlen(L, idx), false, true, !lua_getmetatable(L, idx), 0};
  if (!t.plain)
    lua_pop(L, 1);
  lua_pushnil(L);
  while (lua_next(L, idx)) {
    lua_pop(L, 1);
    t.empty = false;
    if (lua_type(L, -1) != LUA_TNUMBER) {
      t.named = t.plain;
      if (t.n == 0) { /* options alone: read_keywords sees the rest */
        lua_pop(L, 1);
        break;
      }
    } else {
      double k = lua_tonumber(L, -1);
      if (t.plain && (k < 1 || k > t.n || k != floor(k)))
        t.astray = k;
    }
  }
  return t;
}

static void no_hole(const Reader *r, const MothArg *a, Table t) {
  if (t.astray != 0)
    moth_lua_error(
        r->L,
        "[%s] argument '%s': the list has a hole: it has element %.14g and none before it; %s",
        r->op->name, a ? a->name : "?", t.astray, r->op->schema);
}

static void push_int(Reader *r, const MothArg *a, int64_t i) {
  if (r->nints == MAX_INTS)
    moth_lua_error(r->L, "[%s] argument '%s': the list is too long", r->op->name, a->name);
  r->ints[r->nints++] = i;
}

/* The number of elements of the list at idx; its names are options if it is the last argument. */
static int read_list(const Reader *r, const MothArg *a, const char *expected, int idx) {
  if (lua_type(r->L, idx) != LUA_TTABLE)
    bad(r, a, expected, idx);
  Table t = r->looked_at == idx ? r->table : look_at(r, idx);
  no_hole(r, a, t);
  if (t.n == 0 && !t.empty)
    bad(r, a, expected, idx);
  if (t.named && idx != r->mixed)
    moth_lua_error(r->L,
                   "[%s] argument '%s': a list has no named fields; options go into the last "
                   "argument; %s",
                   r->op->name, a->name, r->op->schema);
  return t.n;
}

static MothValue read_ints(Reader *r, const MothArg *a, int idx, int last) {
  lua_State *L = r->L;
  int first = r->nints, type = lua_type(L, idx);
  bool dims = a->type == MOTH_T_DIMS;
  if (type == LUA_TNUMBER || type == LUA_TCDATA) {
    for (int i = idx; i <= last; i++)
      push_int(r, a, dims ? read_position(r, a, i) : read_int(r, a, i));
  } else {
    int n = read_list(r, a, dims ? "dimensions" : "sizes", idx);
    for (int i = 1; i <= n; i++) {
      lua_rawgeti(L, idx, i);
      push_int(r, a, dims ? read_position(r, a, -1) : read_int(r, a, -1));
      lua_pop(L, 1);
    }
  }
  return moth_v_ints(r->ints + first, (uint32_t)(r->nints - first));
}

static MothValue read_tensors(Reader *r, const MothArg *a, int idx) {
  lua_State *L = r->L;
  size_t n = (size_t)read_list(r, a, "a table of tensors", idx);
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

/* A 0-dim tensor, or one of one element, where a number stands: its value. */
static bool tensor_number(const Reader *r, const MothArg *a, int idx, MothValue *out) {
  MothHandle *h = moth_lua_handle(r->L, idx, MOTH_MAGIC_TENSOR);
  if (!h || !h->u.t || h->u.t->ndim || moth_dtype_is_complex((MothDType)h->u.t->dtype))
    return false;
  if (moth_tensor_requires_grad(h->u.t))
    moth_lua_error(r->L,
                   "[%s] argument '%s': a number has no gradient, and this tensor requires one; "
                   "give x:item() or x:detach()",
                   r->op->name, a->name);
  if (moth_tensor_item(h->u.t, out) != MOTH_OK)
    moth_lua_error(r->L, "[%s] argument '%s': %s", r->op->name, a->name, moth_last_error());
  return true;
}

static const char *expected_of(const MothArg *a) {
  switch ((MothType)a->type) {
  case MOTH_T_TENSOR:
    return "a tensor";
  case MOTH_T_OPERAND:
    return "a tensor or a number";
  case MOTH_T_SCALAR:
  case MOTH_T_FLOAT:
    return "a number";
  case MOTH_T_INT:
  case MOTH_T_DIM:
  case MOTH_T_INDEX:
    return "an integer";
  case MOTH_T_INTS:
    return "sizes";
  case MOTH_T_DIMS:
    return "dimensions";
  case MOTH_T_TENSORS:
    return "a table of tensors";
  default:
    return "a value";
  }
}

/* The value at idx, of this type (to `last` for a list of plain numbers), for argument a. */
static MothValue read_value(Reader *r, const MothArg *a, int idx, int last, int type) {
  lua_State *L = r->L;
  MothValue value;
  if (type == LUA_TNIL) {
    if (!a->optional && !a->has_default)
      bad(r, a, expected_of(a), idx);
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
    int64_t i;
    if (a->type == MOTH_T_OPERAND && type == LUA_TNUMBER)
      return read_number(L, idx);
    if (a->type == MOTH_T_OPERAND && type == LUA_TBOOLEAN)
      return moth_v_bool(lua_toboolean(L, idx));
    if (a->type == MOTH_T_OPERAND && moth_lua_int64(L, idx, &i))
      return moth_v_int(i);
    double z[2];
    if (a->type == MOTH_T_OPERAND && moth_lua_complex(L, idx, z))
      return complex_operand(L, idx, z);
    bad(r, a, a->type == MOTH_T_OPERAND ? "a tensor or a number" : "a tensor", idx);
    break;
  }
  case MOTH_T_SCALAR: {
    int64_t i;
    if (type == LUA_TNUMBER)
      return read_number(L, idx);
    if (type == LUA_TBOOLEAN)
      return moth_v_bool(lua_toboolean(L, idx));
    if (moth_lua_int64(L, idx, &i))
      return moth_v_int(i);
    if (tensor_number(r, a, idx, &value))
      return value;
    bad(r, a, "a number", idx);
    break;
  }
  case MOTH_T_INT:
    if (type == LUA_TUSERDATA && tensor_number(r, a, idx, &value) && value.tag == MOTH_V_INT)
      return value;
    return moth_v_int(read_int(r, a, idx));
  case MOTH_T_INDEX:
    if (type == LUA_TUSERDATA && tensor_number(r, a, idx, &value) && value.tag == MOTH_V_INT) {
      lua_pushnumber(L, moth_as_double(value));
      int64_t position = read_position(r, a, lua_gettop(L));
      lua_pop(L, 1);
      return moth_v_int(position);
    }
    return moth_v_int(read_position(r, a, idx));
  case MOTH_T_DIM:
    return moth_v_int(read_position(r, a, idx));
  case MOTH_T_INDEX_BASE:
    return moth_v_int(1);
  case MOTH_T_FLOAT: {
    int64_t i;
    if (type == LUA_TNUMBER)
      return moth_v_float(lua_tonumber(L, idx));
    if (moth_lua_int64(L, idx, &i))
      return moth_v_float((double)i);
    if (tensor_number(r, a, idx, &value))
      return moth_v_float(moth_as_double(value));
    bad(r, a, "a number", idx);
    break;
  }
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
  case MOTH_T_ENUM:
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
      moth_lua_error(L, "[%s] argument '%s': %s", r->op->name, a->name, moth_error_text(1));
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

/* The last argument is a table, at idx, in the position of argument a (NULL: all arguments are read). True if it
 * holds options. Its elements without names are argument a's list, or go onto the stack before it, as the next
 * arguments. */
static bool take_mixed(Reader *r, int idx, const MothArg *a) {
  lua_State *L = r->L;
  Table t = look_at(r, idx);
  r->looked_at = idx;
  r->table = t;
  if (!t.named)
    return t.empty && t.plain && !(a && takes_list(a));
  no_hole(r, a, t);
  if (t.n == 0)
    return true;
  if (a && takes_list(a)) {
    lua_rawgeti(L, idx, 1);
    bool list = lua_type(L, -1) != LUA_TTABLE;
    lua_pop(L, 1);
    if (list) {
      r->mixed = idx;
      return false;
    }
  }
  luaL_checkstack(L, t.n + 4, r->op->name);
  r->looked_at = 0;
  for (int i = 1; i <= t.n; i++) {
    lua_rawgeti(L, idx + i - 1, i);
    lua_insert(L, idx + i - 1);
  }
  r->mixed = idx + t.n;
  return false;
}

static bool is_number(int type) {
  return type == LUA_TNUMBER || type == LUA_TCDATA;
}

/* Reads plain numbers, all that follow, as a list, unless the argument after the list is a number. */
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

/* "; did you mean 'dim'?" for an unknown option, or "" (moth.utils.check.suggest). */
static const char *push_suggestion(const Reader *r, const char *k) {
  lua_State *L = r->L;
  luaL_checkstack(L, 8, r->op->name);
  lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
  lua_getfield(L, -1, "moth.utils.check");
  if (lua_type(L, -1) != LUA_TTABLE)
    return "";
  lua_getfield(L, -1, "suggest");
  lua_pushstring(L, k);
  lua_newtable(L);
  int n = 0;
  for (int i = 0; i < r->op->nargs; i++)
    if (r->op->args[i].type != MOTH_T_INDEX_BASE) {
      lua_pushstring(L, r->op->args[i].name);
      lua_rawseti(L, -2, ++n);
    }
  static const char *const more[] = {"out", "requires_grad", "pin_memory"};
  for (int i = 0; i < (r->op->factory ? 3 : 1); i++) {
    lua_pushstring(L, more[i]);
    lua_rawseti(L, -2, ++n);
  }
  const char *text = lua_pcall(L, 2, 1, 0) == 0 ? lua_tostring(L, -1) : NULL;
  return text ? text : "";
}

static bool read_switch(const Reader *r, const char *k) {
  if (lua_type(r->L, -1) != LUA_TBOOLEAN)
    moth_lua_error(r->L, "[%s] option '%s': expected true or false, got %s", r->op->name, k,
                   luaL_typename(r->L, -1));
  return lua_toboolean(r->L, -1);
}

/* The value on top, a memory_format of PyTorch's: moth's tensors are row-major, and it says nothing. */
static void read_memory_format(lua_State *L, const Reader *r) {
  static const char *const known[] = {"contiguous_format", "preserve_format", "channels_last",
                                      "channels_last_3d"};
  const char *given = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (!strcmp(given, known[i]))
      return;
  moth_lua_error(L,
                 "[%s] option 'memory_format' must be moth.contiguous_format, preserve_format, "
                 "channels_last or channels_last_3d",
                 r->op->name);
}

static void read_keywords(Reader *r, int idx, MothValue *args, bool *given, bool *requires_grad,
                          bool *pinned, MothTensor **out) {
  lua_State *L = r->L;
  lua_pushnil(L);
  while (lua_next(L, idx)) {
    if (r->mixed && lua_type(L, -2) == LUA_TNUMBER) { /* of the list, read already */
      lua_pop(L, 1);
      continue;
    }
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
      *requires_grad = read_switch(r, k);
    } else if (k && !strcmp(k, "out") && r->op->nresults == 1) {
      *out = moth_lua_check_tensor(L, -1, "option 'out'");
    } else if (k && r->op->factory && !strcmp(k, "pin_memory")) {
      *pinned = read_switch(r, k);
    } else if (k && !strcmp(k, "memory_format")) {
      read_memory_format(L, r);
    } else {
      if (!k)
        k = luaL_typename(L, -2);
      moth_lua_error(L, "[%s] unknown option '%s'%s; %s", r->op->name, k, push_suggestion(r, k),
                     r->op->schema);
    }
    lua_pop(L, 1);
  }
}

static MothStatus run(lua_State *L, const MothOp *op, MothVariant variant, MothValue *args,
                      MothTensor **target, MothValue *results, bool direct) {
  MothCall c = {.op = op,
                .args = args,
                .results = results,
                .variant = (uint8_t)variant,
                .direct = direct,
                .target = target};
  lua_State *outer = moth_lua_current;
  moth_lua_current = L;
  moth_lua_collected = false;
  MothStatus s = moth_dispatch(&c);
  /* Collecting garbage may free enough memory for a second try; a device's allocator has collected already. */
  if (__builtin_expect(s == MOTH_ERR_MEMORY, 0) && !moth_lua_collected) {
    moth_lua_collect_all(L, 2);
    moth_memory_empty_cache();
    s = moth_dispatch(&c);
  }
  moth_lua_current = outer;
  return s;
}

/* Copies the result of a factory with {pin_memory = true} to pinned memory, where there is CUDA. */
static MothStatus pin(MothTensor **t) {
  const MothCudaApi *api = moth_cuda_why() ? NULL : moth_cuda_api();
  MothTensor *there;
  if (!api || moth_tensor_is_fake(*t))
    return MOTH_OK;
  if ((*t)->device.type != MOTH_CPU)
    return moth_fail(MOTH_ERR_VALUE,
                     "pin_memory: only tensors on the cpu can be pinned, this one is on %s",
                     moth_memory((*t)->device.type)->name);
  MOTH_TRY(api->pin(*t, &there));
  moth_tensor_release(*t);
  *t = there;
  return MOTH_OK;
}

/* Options of a call besides the arguments of its schema. */
typedef struct Options {
  bool requires_grad, pinned;
  MothTensor *out;
} Options;

/* The usual call, in the fewest instructions: tensors and numbers by position, defaults for the rest. False: the call
 * is of another form, and nothing is read yet. */
static inline bool read_plain(lua_State *L, const MothLuaEntry *entry, int top, MothValue *args) {
  const MothOp *op = entry->op;
  int i = 0;
  if (top > op->nargs || entry->floats)
    return false;
  for (; i < top; i++) {
    const MothArg *a = &op->args[i];
    if (a->type <= MOTH_T_OPERAND) {
      MothHandle *h = moth_lua_handle(L, i + 1, MOTH_MAGIC_TENSOR);
      if (h && h->u.t) {
        args[i] = moth_v_tensor(h->u.t);
        continue;
      }
    }
    if (lua_type(L, i + 1) != LUA_TNUMBER)
      return false;
    double d = lua_tonumber(L, i + 1);
    switch ((MothType)a->type) {
    case MOTH_T_OPERAND:
    case MOTH_T_SCALAR:
      args[i] = read_number(L, i + 1);
      break;
    case MOTH_T_FLOAT:
      args[i] = moth_v_float(d);
      break;
    case MOTH_T_INT:
    case MOTH_T_DIM:
    case MOTH_T_INDEX:
      if (!(fabs(d) <= EXACT) || (double)(int64_t)d != d || (a->type != MOTH_T_INT && d == 0))
        return false;
      args[i] = moth_v_int(a->type != MOTH_T_INT && d > 0 ? (int64_t)d - 1 : (int64_t)d);
      break;
    default:
      return false;
    }
  }
  for (; i < op->nargs; i++) {
    const MothArg *a = &op->args[i];
    if (a->type == MOTH_T_INDEX_BASE)
      args[i] = moth_v_int(entry->index_base);
    else if (a->optional || a->has_default)
      args[i] = a->def;
    else
      return false;
  }
  return true;
}

/* Any call. */
static __attribute__((noinline)) void read_all(Reader *r, const MothLuaEntry *entry, int top,
                                               MothValue *args, Options *options) {
  lua_State *L = r->L;
  const MothOp *op = r->op;
  bool given[MOTH_MAX_ARGS] = {false};
  int at = 1, i = 0;
  r->nints = 0;
  r->mixed = r->looked_at = 0;
  if (lua_isnil(L, top)) { /* nil behind a table: an optional argument that a wrapper passed on */
    int last = top;
    while (last > 1 && lua_isnil(L, last))
      last--;
    if (lua_type(L, last) == LUA_TTABLE)
      top = last;
    lua_settop(L, top);
  }
  for (; i < op->nargs && at <= top; i++) {
    const MothArg *a = &op->args[i];
    if (a->type == MOTH_T_INDEX_BASE) {
      args[i] = moth_v_int(entry->index_base);
      given[i] = true;
      continue;
    }
    int last = at, type = lua_type(L, at);
    if (type == LUA_TTABLE && at == top) {
      if (r->mixed || take_mixed(r, at, a))
        break;
      if (r->mixed > at) { /* the table's values precede it on the stack now */
        top = r->mixed;
        i--;
        continue;
      }
    }
    if ((a->type == MOTH_T_INTS || a->type == MOTH_T_DIMS) && is_number(type) && greedy(op, i))
      while (last < top && is_number(lua_type(L, last + 1)))
        last++;
    args[i] = read_value(r, a, at, last, type);
    given[i] = type != LUA_TNIL;
    if (r->mixed == at)
      break; /* it was the list, and holds the options, too */
    at = last + 1;
  }
  if (at == top && lua_type(L, at) == LUA_TTABLE && (r->mixed || take_mixed(r, at, NULL))) {
    read_keywords(r, at, args, given, &options->requires_grad, &options->pinned, &options->out);
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
      args[i] = moth_v_ints(r->ints, 0);
    else
      moth_lua_error(L, "[%s] argument '%s' is missing; %s", op->name, a->name, op->schema);
  }
  for (i = 0; entry->floats >> i; i++)
    if (entry->floats >> i & 1 && args[i].tag == MOTH_V_INT)
      args[i] = moth_v_float((double)args[i].u.i);
}

/* Applies the options of a factory (requires_grad, pin_memory) to its result. */
static MothStatus finish_factory(const Options *options, MothTensor **made) {
  MothStatus s = options->pinned ? pin(made) : MOTH_OK;
  if (s == MOTH_OK && options->requires_grad)
    s = moth_tensor_set_requires_grad(*made, true);
  if (s)
    moth_tensor_release(*made);
  return s;
}

/* Objects that compute ops themselves, such as sparse tensors: tables whose metatable has a function __op(name, …).
 * Pushes that of the first one among the arguments, or at the head of a list. */
static bool push_handler(lua_State *L, int top) {
  for (int i = 1; i <= top; i++) {
    if (lua_type(L, i) != LUA_TTABLE)
      continue;
    if (luaL_getmetafield(L, i, "__op"))
      return true;
    lua_rawgeti(L, i, 1);
    if (lua_type(L, -1) == LUA_TTABLE && luaL_getmetafield(L, -1, "__op")) {
      lua_remove(L, -2);
      return true;
    }
    lua_pop(L, 1);
  }
  return false;
}

static int call_handler(lua_State *L, const MothOp *op, MothVariant variant, int top) {
  char name[96];
  lua_insert(L, 1);
  lua_pushstring(L, op_name(op, (int)variant, name, sizeof name));
  lua_insert(L, 2);
  lua_call(L, top + 1, LUA_MULTRET);
  return lua_gettop(L);
}

/* A function of lua/moth/compile/symbols.lua, while sizes are symbols there: the number, or the copy of a list with the
 * numbers, for each. */
static const char lower_sizes;
static _Atomic int lowering; /* states in which it is set */

static int b_lower_sizes(lua_State *L) {
  lua_settop(L, 1);
  lowering += lua_isnil(L, 1) ? -1 : 1;
  lua_pushlightuserdata(L, (void *)(uintptr_t)&lower_sizes);
  lua_insert(L, 1);
  lua_rawset(L, LUA_REGISTRYINDEX);
  return 0;
}

static void lower_args(lua_State *L, int top) {
  lua_pushlightuserdata(L, (void *)(uintptr_t)&lower_sizes);
  lua_rawget(L, LUA_REGISTRYINDEX);
  for (int i = 1; i <= top && lua_type(L, top + 1) == LUA_TFUNCTION; i++)
    if (lua_type(L, i) == LUA_TCDATA || lua_type(L, i) == LUA_TTABLE) {
      lua_pushvalue(L, top + 1);
      lua_pushvalue(L, i);
      lua_call(L, 1, 1);
      lua_replace(L, i);
    }
  lua_settop(L, top);
}

enum { ENTRY = 1, META }; /* op_call's upvalues; META: the metatable of tensors */

static int op_call(lua_State *L) {
  const MothLuaEntry *entry = lua_touserdata(L, lua_upvalueindex(ENTRY));
  const MothOp *op = entry->op;
  MothVariant variant = entry->variant;
  MothValue args[MOTH_MAX_ARGS], results[MOTH_MAX_RESULTS];
  MothTensor *self = NULL, **target = NULL;
  Options options = {false, false, NULL};
  Reader r; /* holds the lists */
  moth_lua_enter(L);
  int top = lua_gettop(L);
  if (!read_plain(L, entry, top, args)) {
    if (__builtin_expect(lowering != 0, 0))
      lower_args(L, top);
    if (__builtin_expect(push_handler(L, top), 0))
      return call_handler(L, op, variant, top);
    r.L = L;
    r.op = op;
    read_all(&r, entry, top, args, &options);
  }
  if (variant == MOTH_INPLACE) {
    char name[96];
    if (args[0].tag != MOTH_V_TENSOR)
      moth_lua_error(L, "[%s] argument '%s': expected a tensor, got %s",
                     op_name(op, (int)variant, name, sizeof name), op->args[0].name,
                     luaL_typename(L, 1));
    self = args[0].u.t;
    target = &self;
  } else if (options.out) {
    variant = MOTH_OUT;
    target = &options.out;
  }
  bool forwarded = entry->index_base == 0 && moth_lua_current; /* from C */
  MothStatus s = run(L, op, variant, args, target, results,
                     !(options.pinned || options.requires_grad || forwarded));
  if (s == MOTH_OK && (options.pinned || options.requires_grad))
    s = finish_factory(&options, &results[0].u.t);
  if (__builtin_expect(s != MOTH_OK, 0))
    return moth_lua_raise(L, s);
  for (int i = 0; i < op->nresults; i++) {
    MothTensor *t = results[i].u.t;
    MothHandle *first = NULL;
    if (i == 0 && op->nargs && args[0].tag == MOTH_V_TENSOR && args[0].u.t == t)
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
    if (a->type == MOTH_T_ENUM)
      lua_pushstring(L, a->values[v.u.i]);
    else
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

/* The binding's table gets `ops`: name -> function, with name_ for in-place variants; and `internal`, the names of
 * those that only ops.moth has. */
void moth_lua_open_calls(lua_State *L) {
  int n = moth_registry_count();
  lua_newtable(L);
  for (int i = 0; i < n; i++)
    if (moth_registry_at(i)->internal) {
      lua_pushboolean(L, true);
      lua_setfield(L, -2, moth_registry_at(i)->name);
    }
  lua_setfield(L, -2, "internal");
  lua_createtable(L, 0, 2 * n);
  for (int i = 0; i < n; i++) {
    const MothOp *op = moth_registry_at(i);
    if (op->defined) /* at run time, by another state or before moth was opened again */
      continue;
    moth_lua_push_op(L, (MothLuaEntry){op, MOTH_FUNCTIONAL, 1, 0});
    lua_setfield(L, -2, op->name);
    if (op->inplace) {
      char name[96];
      op_name(op, MOTH_INPLACE, name, sizeof name);
      moth_lua_push_op(L, (MothLuaEntry){op, MOTH_INPLACE, 1, 0});
      moth_lua_set_name(L, name);
      lua_setfield(L, -2, name);
    }
  }
  lua_setfield(L, -2, "ops");
  lua_pushcfunction(L, b_lower_sizes);
  lua_setfield(L, -2, "lower_sizes");
}
