/* Ops as Lua tables: moth.library describes an op to C in one (the build's parser has read the schema), and asks for what C
 * knows of an op. */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "dispatch/define.h"
#include "dispatch/registry.h"
#include "lua/moth_lua.h"

/* --- reading ------------------------------------------------------------------------------------ */

/* The memory of an op and what it refers to: one block. Names and defaults are parts of the schema's text, which
 * bounds them. */
typedef struct Block {
  char *at, *end;
} Block;

static void *part(Block *b, size_t n) {
  char *p = b->at;
  n = (n + 15) & ~(size_t)15;
  b->at += n;
  return b->at <= b->end ? p : NULL;
}

/* Pops a string and copies it; NULL: it is none. */
static const char *copy_of(lua_State *L, Block *b) {
  char *copy = NULL;
  size_t n;
  const char *s = lua_isstring(L, -1) ? lua_tolstring(L, -1, &n) : NULL;
  if (s && (copy = part(b, n + 1)))
    memcpy(copy, s, n + 1);
  lua_pop(L, 1);
  return copy;
}
/* A copy of a field, or of an element, of the table on top. */
static const char *text_of(lua_State *L, Block *b, const char *key) {
  lua_getfield(L, -1, key);
  return copy_of(L, b);
}
static const char *element_of(lua_State *L, Block *b, int i) {
  lua_rawgeti(L, -1, i);
  return copy_of(L, b);
}
static double number_of(lua_State *L, const char *key, double other) {
  lua_getfield(L, -1, key);
  double n = lua_isnumber(L, -1) ? lua_tonumber(L, -1) : other;
  lua_pop(L, 1);
  return n;
}
static bool flag_of(lua_State *L, const char *key) {
  lua_getfield(L, -1, key);
  bool on = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return on;
}

/* The words of records, by the values of C. */
static const char *const types[] = {[MOTH_T_TENSOR] = "TENSOR",
                                    [MOTH_T_OPERAND] = "OPERAND",
                                    [MOTH_T_SCALAR] = "SCALAR",
                                    [MOTH_T_INT] = "INT",
                                    [MOTH_T_DIM] = "DIM",
                                    [MOTH_T_INDEX] = "INDEX",
                                    [MOTH_T_INDEX_BASE] = "INDEX_BASE",
                                    [MOTH_T_FLOAT] = "FLOAT",
                                    [MOTH_T_BOOL] = "BOOL",
                                    [MOTH_T_INTS] = "INTS",
                                    [MOTH_T_DIMS] = "DIMS",
                                    [MOTH_T_TENSORS] = "TENSORS",
                                    [MOTH_T_STRING] = "STRING",
                                    [MOTH_T_ENUM] = "ENUM",
                                    [MOTH_T_DTYPE] = "DTYPE",
                                    [MOTH_T_DEVICE] = "DEVICE",
                                    [MOTH_T_GENERATOR] = "GENERATOR"};
static const char *const memories[] = {[MOTH_MEMORY_NEW] = "new",
                                       [MOTH_MEMORY_VIEW] = "view",
                                       [MOTH_MEMORY_SELF] = "self",
                                       [MOTH_MEMORY_NONE] = "none",
                                       [MOTH_MEMORY_PARTS] = "parts"};
static const char *const amps[] = {[MOTH_AMP_KEEP] = "keep",
                                   [MOTH_AMP_LOW] = "low",
                                   [MOTH_AMP_HIGH] = "high",
                                   [MOTH_AMP_WIDEST] = "widest"};

static uint8_t word_of(lua_State *L, const char *key, const char *const *words, size_t n) {
  size_t found = 0;
  lua_getfield(L, -1, key);
  for (size_t i = 0; i < n && lua_isstring(L, -1); i++)
    if (words[i] && !strcmp(words[i], lua_tostring(L, -1)))
      found = i;
  lua_pop(L, 1);
  return (uint8_t)found;
}

static MothValue default_of(lua_State *L, Block *b, const MothArg *a) {
  MothValue v = moth_v_none();
  lua_getfield(L, -1, "value");
  if (lua_type(L, -1) == LUA_TBOOLEAN) {
    v = moth_v_bool(lua_toboolean(L, -1));
  } else if (lua_type(L, -1) == LUA_TNUMBER) {
    double d = lua_tonumber(L, -1);
    if (a->count) { /* one number for all elements */
      int64_t *list = part(b, sizeof *list * a->count);
      for (int i = 0; list && i < a->count; i++)
        list[i] = moth_whole(d);
      v = moth_v_ints(list, a->count);
    } else if (a->type == MOTH_T_FLOAT || d != (double)moth_whole(d)) {
      v = moth_v_float(d);
    } else {
      v = moth_v_int(moth_whole(d));
    }
  } else if (lua_type(L, -1) == LUA_TSTRING) {
    lua_pop(L, 1);
    return moth_v_string(text_of(L, b, "value"));
  }
  lua_pop(L, 1);
  return v;
}

static void read_arg(lua_State *L, Block *b, MothArg *a) {
  a->name = text_of(L, b, "name");
  a->type = word_of(L, "type", types, sizeof types / sizeof *types);
  a->optional = flag_of(L, "optional");
  a->has_default = flag_of(L, "default");
  a->mutated = flag_of(L, "mutated");
  a->holds = (uint8_t)number_of(L, "holds", MOTH_HOLDS_ANY);
  a->count = (uint8_t)number_of(L, "count", 0);
  a->like = (int8_t)number_of(L, "like_at", -1);
  a->of_result = flag_of(L, "of_result");
  a->all = flag_of(L, "all");
  a->repeats = flag_of(L, "repeats");
  a->low = number_of(L, "low", 0);
  a->high = number_of(L, "high", 0);
  a->open = flag_of(L, "open");
  lua_getfield(L, -1, "low");
  a->bounded = !lua_isnil(L, -1);
  lua_pop(L, 1);
  lua_getfield(L, -1, "values");
  if (lua_istable(L, -1)) {
    size_t n = lua_objlen(L, -1);
    const char **words = part(b, sizeof *words * (n + 1)); /* ended by NULL */
    for (size_t i = 0; words && i < n; i++)
      words[i] = element_of(L, b, (int)i + 1);
    a->values = words;
  }
  lua_pop(L, 1);
  a->def = default_of(L, b, a);
}

/* Whether the table on top has a string under key; pops it. */
static bool has_text(lua_State *L, const char *key) {
  lua_getfield(L, -1, key);
  bool text = lua_type(L, -1) == LUA_TSTRING;
  lua_pop(L, 1);
  return text;
}

bool moth_lua_describes_op(lua_State *L) {
  double nargs = number_of(L, "nargs", 0), nresults = number_of(L, "nresults", 0);
  if (!has_text(L, "name") || !has_text(L, "schema") || !(nargs >= 0 && nargs <= MOTH_MAX_ARGS) ||
      !(nresults >= 0 && nresults <= MOTH_MAX_RESULTS))
    return false;
  lua_getfield(L, -1, "args");
  bool all = nargs < 1 || lua_istable(L, -1);
  for (int i = 1; i <= (int)nargs && all; i++) {
    lua_rawgeti(L, -1, i);
    all = lua_istable(L, -1) && has_text(L, "name");
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return all;
}

MothOp *moth_lua_read_op(lua_State *L) {
  int nargs = (int)number_of(L, "nargs", 0);
  size_t texts = 0;
  static const char *const keys[] = {"schema", "place", "doc"};
  for (int i = 0; i < 3; i++) {
    lua_getfield(L, -1, keys[i]);
    texts += 16 * lua_objlen(L, -1);
    lua_pop(L, 1);
  }
  size_t size = sizeof(MothOp) + 1024 + texts + (size_t)nargs * (sizeof(MothArg) + 64);
  Block b = {calloc(1, size), NULL};
  if (!b.at)
    return NULL;
  b.end = b.at + size;
  MothOp *op = part(&b, sizeof *op);
  MothArg *args = part(&b, sizeof *args * (size_t)(nargs ? nargs : 1));
  op->saves_for = part(&b, sizeof *op->saves_for * (size_t)(nargs ? nargs : 1));
  op->name = text_of(L, &b, "name");
  op->schema = text_of(L, &b, "schema");
  op->place = text_of(L, &b, "place");
  op->doc = text_of(L, &b, "doc");
  op->backward_name = text_of(L, &b, "node");
  op->args = args;
  op->nargs = (uint8_t)nargs;
  op->nresults = (uint8_t)number_of(L, "nresults", 0);
  op->kind = (uint8_t)number_of(L, "kind_code", MOTH_KIND_EXTERN);
  op->memory = word_of(L, "memory", memories, sizeof memories / sizeof *memories);
  op->amp = word_of(L, "amp", amps, sizeof amps / sizeof *amps);
  op->stats = (uint8_t)number_of(L, "stats", 0);
  op->inplace = flag_of(L, "inplace");
  op->returns_self = flag_of(L, "returns_self");
  op->factory = flag_of(L, "factory");
  op->drops = flag_of(L, "drops");
  op->draws = flag_of(L, "draws");
  op->repeats = flag_of(L, "repeats");
  op->differentiable = (uint32_t)number_of(L, "differentiable", 0);
  op->canonical = (uint32_t)number_of(L, "canonical_mask", 0);
  op->cond = -1;
  op->out_dtype = -1;
  op->dtypes = UINT16_MAX;
  op->own_complex = true;
  lua_getfield(L, -1, "args");
  for (int i = 0; i < nargs; i++) {
    lua_rawgeti(L, -1, i + 1);
    read_arg(L, &b, &args[i]);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return op;
}

/* moth_schema_reader: moth.library reads the text. */
static MothStatus read_schema(const MothOpDef *def, MothOp **out) {
  lua_State *L = moth_lua_current;
  if (!L)
    return moth_fail(MOTH_ERR_STATE,
                     "moth_op_define: schemas are read by moth's Lua modules, and no Lua state is "
                     "running; load the library by moth.library.load");
  if (!lua_checkstack(L, 16))
    return moth_fail(MOTH_ERR_STATE, "the Lua stack is full");
  int top = lua_gettop(L);
  lua_getglobal(L, "require");
  lua_pushliteral(L, "moth.library.definitions");
  MothStatus s = moth_lua_pcall(L, 1, 1) ? MOTH_ERR_STATE : MOTH_OK;
  if (s == MOTH_OK) {
    const char *const texts[] = {def->schema, def->kind, def->amp, def->doc, def->place};
    lua_getfield(L, -1, "read_allowed");
    for (int i = 0; i < 5; i++)
      lua_pushstring(L, texts[i]); /* nil of NULL */
    s = moth_lua_pcall(L, 5, 1) ? MOTH_ERR_VALUE : MOTH_OK;
  }
  if (s)
    s = moth_fail(s, "%s",
                  lua_isstring(L, -1) ? lua_tostring(L, -1) : "moth.library cannot be loaded");
  else if (!(*out = moth_lua_read_op(L)))
    s = moth_no_memory(0);
  lua_settop(L, top);
  return s;
}
__attribute__((constructor)) static void read_schemas(void) {
  moth_schema_reader = read_schema;
}

/* --- telling ------------------------------------------------------------------------------------ */

static void set_number(lua_State *L, const char *key, double n) {
  lua_pushnumber(L, n);
  lua_setfield(L, -2, key);
}
static void set_flag(lua_State *L, const char *key, bool on) {
  lua_pushboolean(L, on);
  lua_setfield(L, -2, key);
}
static void set_text(lua_State *L, const char *key, const char *text) {
  lua_pushstring(L, text); /* nil of NULL */
  lua_setfield(L, -2, key);
}

static void push_argument(lua_State *L, const MothArg *a) {
  lua_createtable(L, 0, 18);
  set_text(L, "name", a->name);
  set_text(L, "type", types[a->type]);
  set_flag(L, "optional", a->optional);
  set_flag(L, "has_default", a->has_default);
  set_flag(L, "mutated", a->mutated);
  set_number(L, "holds", a->holds);
  set_number(L, "count", a->count);
  set_number(L, "like", a->like);
  set_flag(L, "of_result", a->of_result);
  set_flag(L, "all", a->all);
  set_flag(L, "repeats", a->repeats);
  set_flag(L, "bounded", a->bounded);
  set_flag(L, "open", a->open);
  set_number(L, "low", a->low);
  set_number(L, "high", a->high);
  if (a->values) {
    lua_newtable(L);
    for (int i = 0; a->values[i]; i++) {
      lua_pushstring(L, a->values[i]);
      lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "values");
  }
  moth_lua_push_value(L, a, a->def);
  lua_setfield(L, -2, "default");
}

/* op_facts(name) -> what C knows of an op: { schema, place, doc, kind_code, args = { { name, type, … }, … }, … }, or nil */
static int b_op_facts(lua_State *L) {
  const MothOp *op = moth_op_find(moth_lua_string(L, 1));
  if (!op)
    return 0;
  lua_createtable(L, 0, 24);
  set_text(L, "schema", op->schema);
  set_text(L, "place", op->place);
  set_text(L, "doc", op->doc);
  set_text(L, "node", op->backward_name);
  set_text(L, "memory", memories[op->memory]);
  set_number(L, "kind_code", op->kind);
  set_number(L, "amp_code", op->amp);
  set_number(L, "nresults", op->nresults);
  set_number(L, "canonical", op->canonical);
  set_flag(L, "defined", op->defined);
  set_flag(L, "inplace", op->inplace);
  set_flag(L, "returns_self", op->returns_self);
  set_flag(L, "factory", op->factory);
  set_flag(L, "drops", op->drops);
  set_flag(L, "draws", op->draws);
  set_flag(L, "has_fake", op->fake != NULL);
  set_flag(L, "has_derivative", op->backward && op->differentiable);
  lua_createtable(L, op->nargs, 0);
  for (int i = 0; i < op->nargs; i++) {
    push_argument(L, &op->args[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "args");
  return 1;
}

void moth_lua_open_schemas(lua_State *L) {
  static const luaL_Reg fns[] = {{"op_facts", b_op_facts}, {NULL, NULL}};
  luaL_register(L, NULL, fns);
}
