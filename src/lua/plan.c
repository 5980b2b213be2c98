/* Plans (graph/plan.h) for Lua: callables that run a graph. */
#include "graph/plan.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "lua/moth_lua.h"

#define MAGIC_PLAN 0x6d6f7468506c616eull

static char key_plan_meta;
static const double MOST = 4294967295.0, FARTHEST = 9007199254740992.0;

MothPlan *moth_lua_to_plan(lua_State *L, int idx) {
  MothHandle *h = moth_lua_handle(L, idx, MAGIC_PLAN);
  return h ? h->u.other : NULL;
}

static MothPlan *check_plan(lua_State *L, int idx) {
  MothHandle *h = moth_lua_check_handle(L, idx, MAGIC_PLAN, "plan");
  return h->u.other;
}

void moth_lua_push_plan(lua_State *L, MothPlan *p) {
  MothHandle *h = moth_lua_new_handle(L, MAGIC_PLAN, &key_plan_meta);
  h->u.other = p;
}

static int plan_gc(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MAGIC_PLAN);
  if (h && h->u.other)
    moth_plan_release(h->u.other);
  if (h)
    h->u.other = NULL;
  return 0;
}

/* --- making ------------------------------------------------------------------------------------------------- */

static uint32_t field_list(lua_State *L, int idx, const char *name) {
  lua_getfield(L, idx, name);
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    lua_newtable(L);
  }
  moth_lua_type(L, lua_gettop(L), LUA_TTABLE);
  return (uint32_t)lua_objlen(L, -1);
}

static int64_t integer_at(lua_State *L, int list, uint32_t i, double low, double high) {
  lua_rawgeti(L, list, (int)i);
  int64_t n = moth_lua_check_integer(L, lua_gettop(L), low, high);
  lua_pop(L, 1);
  return n;
}

static int64_t integer_field(lua_State *L, int idx, const char *name, double low) {
  lua_getfield(L, idx, name);
  int64_t n = moth_lua_check_integer(L, lua_gettop(L), low, FARTHEST);
  lua_pop(L, 1);
  return n;
}

static MothGraphNode *node_at(lua_State *L, const MothGraph *g, int list, uint32_t i) {
  MothGraphNode *n = moth_graph_node(g, (uint32_t)integer_at(L, list, i, 1, MOST));
  if (!n)
    moth_lua_error(L, "plan: a node is not in the graph");
  return n;
}

/* Adds the values { { node, result }, … } of a list at the top of the stack, which is popped. */
static void read_values(lua_State *L, const MothGraph *g, MothGraphRef *to, uint32_t n) {
  int list = lua_gettop(L);
  for (uint32_t i = 0; i < n; i++) {
    lua_rawgeti(L, list, (int)i + 1);
    int at = lua_gettop(L);
    moth_lua_type(L, at, LUA_TTABLE);
    MothGraphNode *node = node_at(L, g, at, 1);
    int64_t result = integer_at(L, at, 2, 1, node->nresults);
    to[i] = (MothGraphRef){node, (uint8_t)(result - 1)};
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

/* The launch that the table at idx describes; its lists stay on the stack. */
static MothPlanLaunch read_launch(lua_State *L, int idx, uint32_t nat) {
  MothPlanLaunch l;
  size_t bytes;
  memset(&l, 0, sizeof l);
  lua_getfield(L, idx, "program");
  if (lua_isnil(L, -1)) {
    uintptr_t address = (uintptr_t)integer_field(L, idx, "fn", 1);
    memcpy(&l.fn, &address, sizeof l.fn);
    l.grain = integer_field(L, idx, "grain", 1);
    l.no_memory = (uint32_t)integer_field(L, idx, "no_memory", 0);
  } else {
    l.program = moth_lua_cuda_program(L, lua_gettop(L));
    l.kernel = (int)integer_field(L, idx, "kernel", 1) - 1;
    l.threads = (uint32_t)integer_field(L, idx, "threads", 1);
    l.shared = (uint32_t)integer_field(L, idx, "shared", 0);
  }
  lua_pop(L, 1);
  l.n = integer_field(L, idx, "n", 0);
  l.reach = (uint32_t)integer_field(L, idx, "reach", 0);
  l.outside = (uint32_t)integer_field(L, idx, "outside", 0);
  lua_getfield(L, idx, "slots");
  const char *slots = moth_lua_bytes(L, lua_gettop(L), &bytes);
  l.nslots = (uint32_t)(bytes / sizeof(uint64_t));
  uint64_t *copy = lua_newuserdata(L, bytes + 8);
  memcpy(copy, slots, bytes);
  l.slots = copy;
  uint32_t n = field_list(L, idx, "at");
  if (n != nat)
    moth_lua_error(L,
                   "plan: 'at' must have a slot for each result, operand and temporary: %d, got %d",
                   (int)nat, (int)n);
  int32_t *at = lua_newuserdata(L, sizeof *at * ((size_t)nat + 1));
  for (uint32_t i = 0; i < nat; i++)
    at[i] = (int32_t)integer_at(L, lua_gettop(L) - 1, i + 1, -1, 1e6);
  l.at = at;
  l.nnumbers = field_list(L, idx, "numbers");
  MothPlanNumber *numbers = lua_newuserdata(L, sizeof *numbers * ((size_t)l.nnumbers + 1));
  int list = lua_gettop(L) - 1;
  for (uint32_t i = 0; i < l.nnumbers; i++) {
    lua_rawgeti(L, list, (int)i + 1);
    int one = lua_gettop(L);
    moth_lua_type(L, one, LUA_TTABLE);
    lua_getfield(L, one, "is_float");
    numbers[i].is_float = lua_toboolean(L, -1);
    numbers[i].slot = (uint32_t)integer_field(L, one, "slot", 0);
    numbers[i].number = (uint32_t)integer_field(L, one, "number", 1);
    lua_settop(L, one - 1);
  }
  l.numbers = numbers;
  return l;
}

/* The table at idx: { nodes = ids, results = values, operands = values, temporaries = bytes of each, in_place =, launches = {
 * { fn = address, n =, grain =, slots = their bytes, at = slots from 0 (-1: none) of results, operands and temporaries,
 * numbers = { { slot =, number =, is_float = }, … }, no_memory =, reach =, outside = as in MothPlanLaunch; on a GPU, for fn and
 * grain: program = of moth_lua.cuda, kernel = from 1, threads =, shared = }, … }, text = its name }. */
static MothStatus add_kernel(lua_State *L, MothPlan *p, const MothGraph *g, int idx) {
  MothPlanKernel k = {0};
  luaL_checkstack(L, 64, "plan");
  k.nnodes = field_list(L, idx, "nodes");
  MothGraphNode **nodes = lua_newuserdata(L, sizeof *nodes * ((size_t)k.nnodes + 1));
  for (uint32_t i = 0; i < k.nnodes; i++)
    nodes[i] = node_at(L, g, lua_gettop(L) - 1, i + 1);
  k.nodes = nodes;
  k.nresults = field_list(L, idx, "results");
  k.noperands = field_list(L, idx, "operands");
  MothGraphRef *values =
      lua_newuserdata(L, sizeof *values * ((size_t)k.nresults + k.noperands + 1));
  int keep = lua_gettop(L);
  lua_pushvalue(L, keep - 2);
  read_values(L, g, values, k.nresults);
  lua_pushvalue(L, keep - 1);
  read_values(L, g, values + k.nresults, k.noperands);
  k.values = values;
  k.ntemporaries = field_list(L, idx, "temporaries");
  int64_t *bytes = lua_newuserdata(L, sizeof *bytes * ((size_t)k.ntemporaries + 1));
  for (uint32_t i = 0; i < k.ntemporaries; i++)
    bytes[i] = integer_at(L, lua_gettop(L) - 1, i + 1, 0, FARTHEST);
  k.temporaries = bytes;
  lua_getfield(L, idx, "in_place");
  k.in_place = lua_toboolean(L, -1);
  lua_getfield(L, idx, "text");
  k.text = lua_tostring(L, -1);
  k.nlaunches = field_list(L, idx, "launches");
  int list = lua_gettop(L);
  MothPlanLaunch *launches = lua_newuserdata(L, sizeof *launches * ((size_t)k.nlaunches + 1));
  for (uint32_t i = 0; i < k.nlaunches; i++) {
    luaL_checkstack(L, 16, "plan");
    lua_rawgeti(L, list, (int)i + 1);
    moth_lua_type(L, lua_gettop(L), LUA_TTABLE);
    launches[i] = read_launch(L, lua_gettop(L), k.nresults + k.noperands + k.ntemporaries);
  }
  k.launches = launches;
  return moth_plan_add_kernel(p, &k);
}

/* plan_new(graph, steps) -> a callable of the graph's inputs that returns its outputs. steps: the ids of nodes and tables
 * that describe kernels, in their order; nil: pointwise calls in blocks, for any sizes if the graph is. */
static int c_plan_new(lua_State *L) {
  MothGraph *g = moth_lua_to_graph(L, 1);
  MothPlan *p;
  moth_lua_enter(L);
  lua_settop(L, 2);
  lua_State *outer = moth_lua_current;
  moth_lua_current = L;
  bool any = lua_isnil(L, 2) && g->dynamic;
  MothStatus s = any ? moth_plan_new_any(g, &p) : moth_plan_new(g, &p);
  moth_lua_current = outer;
  if (s)
    return moth_lua_raise(L, s);
  moth_lua_push_plan(L, p); /* 3 */
  if (any)
    return 1;
  if (lua_isnil(L, 2))
    s = moth_plan_add_blocks(p);
  for (int i = 1, n = s || lua_isnil(L, 2) ? 0 : (int)lua_objlen(L, 2); i <= n && !s; i++) {
    lua_rawgeti(L, 2, i);
    if (lua_istable(L, 4)) {
      s = add_kernel(L, p, g, 4);
    } else {
      MothGraphNode *node = moth_graph_node(g, (uint32_t)moth_lua_check_integer(L, 4, 1, MOST));
      if (!node)
        return moth_lua_error(L, "plan: a node is not in the graph");
      s = moth_plan_add_node(p, node);
    }
    lua_settop(L, 3);
  }
  if (!s)
    s = moth_plan_finish(p);
  return s ? moth_lua_raise(L, s) : 1;
}

/* --- running --------------------------------------------------------------------------------------------------- */

/* plan(inputs …, a list of numbers or nothing): the outputs */
static int plan_call(lua_State *L) {
  MothPlan *p = check_plan(L, 1);
  moth_lua_enter(L);
  MothValue *numbers = NULL;
  int top = lua_gettop(L), n = top - 1;
  if (lua_istable(L, top)) {
    numbers = moth_lua_graph_numbers(L, moth_plan_graph(p), top);
    n--;
  }
  uint32_t noutputs = moth_plan_noutputs(p);
  MothTensor **inputs = lua_newuserdata(L, sizeof *inputs * ((size_t)n + noutputs + 1));
  MothTensor **outputs = inputs + n;
  for (int i = 0; i < n; i++)
    inputs[i] = moth_lua_check_tensor(L, i + 2, "plan");
  lua_State *outer = moth_lua_current;
  moth_lua_current = L;
  MothStatus s = moth_plan_run(p, inputs, (uint32_t)n, numbers, outputs, false);
  moth_lua_current = outer;
  if (s)
    return moth_lua_raise(L, s);
  luaL_checkstack(L, (int)noutputs + 8, "plan");
  for (uint32_t i = 0; i < noutputs; i++)
    moth_lua_push_tensor(L, outputs[i]);
  return (int)noutputs;
}

/* plan_freeze(plan, sources): a plan of whose sources plan_is_fresh tells whether they are as they were */
static int c_plan_freeze(lua_State *L) {
  uint32_t n;
  MothPlan *p = check_plan(L, 1);
  MothTensor **sources = moth_lua_tensors(L, 2, &n);
  MothStatus s = moth_plan_freeze(p, sources, n);
  return s ? moth_lua_raise(L, s) : 0;
}

static int c_plan_is_fresh(lua_State *L) {
  lua_pushboolean(L, moth_plan_is_fresh(check_plan(L, 1)));
  return 1;
}

/* plan_may_freeze(tensors, plan or nil) -> whether a frozen plan gives here and now what the calls give */
static int c_plan_may_freeze(lua_State *L) {
  uint32_t n;
  moth_lua_enter(L);
  MothPlan *p = moth_lua_to_plan(L, 2);
  MothTensor **tensors = moth_lua_tensors(L, 1, &n);
  lua_pushboolean(L, moth_plan_may_freeze(p, tensors, n));
  return 1;
}

static void number_field(lua_State *L, const char *name, double n) {
  lua_pushnumber(L, n);
  lua_setfield(L, -2, name);
}

/* plan_facts(plan) -> { steps, direct, dispatched, views, blocks, launches, fused, pure, needs_grad, arena_bytes,
 * peak_bytes } */
static int c_plan_facts(lua_State *L) {
  MothPlanFacts f = moth_plan_facts(check_plan(L, 1));
  lua_createtable(L, 0, 9);
  number_field(L, "steps", f.nsteps);
  number_field(L, "direct", f.ndirect);
  number_field(L, "dispatched", f.ndispatched);
  number_field(L, "views", f.nviews);
  number_field(L, "blocks", f.nblocks);
  number_field(L, "launches", f.nlaunched);
  number_field(L, "fused", f.nfused);
  lua_pushboolean(L, f.pure);
  lua_setfield(L, -2, "pure");
  lua_pushboolean(L, f.needs_grad);
  lua_setfield(L, -2, "needs_grad");
  number_field(L, "arena_bytes", (double)f.arena_bytes);
  number_field(L, "peak_bytes", (double)f.peak_bytes);
  return 1;
}

static int plan_text(lua_State *L) {
  char *text = moth_plan_text(check_plan(L, 1));
  if (!text)
    return moth_lua_raise(L, moth_no_memory(0));
  lua_pushstring(L, text);
  free(text);
  return 1;
}

void moth_lua_open_plans(lua_State *L) { /* the table of the compiler's functions is on top */
  static const luaL_Reg fns[] = {{"plan_new", c_plan_new},
                                 {"plan_facts", c_plan_facts},
                                 {"plan_freeze", c_plan_freeze},
                                 {"plan_is_fresh", c_plan_is_fresh},
                                 {"plan_may_freeze", c_plan_may_freeze},
                                 {"graph_lowered", moth_lua_graph_lowered},
                                 {NULL, NULL}};
  static const luaL_Reg meta[] = {
      {"__gc", plan_gc}, {"__call", plan_call}, {"__tostring", plan_text}, {NULL, NULL}};
  luaL_register(L, NULL, fns);
  lua_pushlightuserdata(L, &key_plan_meta);
  lua_newtable(L);
  luaL_register(L, NULL, meta);
  lua_rawset(L, LUA_REGISTRYINDEX);
}
