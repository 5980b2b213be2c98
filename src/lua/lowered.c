/* The calls of kernels and views that a graph comes down to (graph/plan_note.c), as Lua tables, for files that other programs
 * run: moth.edge. Positions in them count from 0. */
#include <inttypes.h>
#include <stdio.h>

#include "graph/plan_steps.h"
#include "lua/moth_lua.h"

static void field(lua_State *L, const char *name, double n) {
  lua_pushnumber(L, n);
  lua_setfield(L, -2, name);
}

/* An integer: a number, or its digits as text where a double does not hold it. */
static void push_integer(lua_State *L, int64_t i) {
  char digits[32];
  if (i > -(INT64_C(1) << 53) && i < INT64_C(1) << 53) {
    lua_pushnumber(L, (double)i);
    return;
  }
  snprintf(digits, sizeof digits, "%" PRId64, i);
  lua_pushstring(L, digits);
}

static void push_list(lua_State *L, int ndim, const int64_t *list) {
  lua_createtable(L, ndim, 0);
  for (int i = 0; i < ndim; i++) {
    push_integer(L, list[i]);
    lua_rawseti(L, -2, i + 1);
  }
}

/* { dtype =, shape =, stride =, whole = row-major, from the first element of its storage, kind = "input", "held" or "made",
 * input = its number, tensor = that of the graph } */
static void push_value(lua_State *L, const MothPlanValue *v) {
  const MothTensor *t = v->fake;
  lua_createtable(L, 0, 6);
  lua_pushstring(L, moth_dtype_name((MothDType)t->dtype));
  lua_setfield(L, -2, "dtype");
  push_list(L, t->ndim, t->shape);
  lua_setfield(L, -2, "shape");
  push_list(L, t->ndim, t->stride);
  lua_setfield(L, -2, "stride");
  lua_pushboolean(L, t->contiguous && t->offset == 0);
  lua_setfield(L, -2, "whole");
  lua_pushstring(L, v->place == MOTH_PLACE_INPUT  ? "input"
                    : v->place == MOTH_PLACE_HELD ? "held"
                                                  : "made");
  lua_setfield(L, -2, "kind");
  if (v->place == MOTH_PLACE_INPUT)
    field(L, "input", v->input + 1.0);
  if (v->held) {
    moth_tensor_retain(v->held);
    moth_lua_push_tensor(L, v->held);
    lua_setfield(L, -2, "tensor");
  }
}

/* { kind, what }: "int", "float", "bool", "ints", "value", "values" (from 1), "string", "dtype", "device", "generator". */
static void push_arg(lua_State *L, MothValue v, const uint32_t **refs) {
  static const char *const kinds[] = {
      [MOTH_V_BOOL] = "bool",          [MOTH_V_INT] = "int",     [MOTH_V_FLOAT] = "float",
      [MOTH_V_TENSOR] = "value",       [MOTH_V_INTS] = "ints",   [MOTH_V_TENSORS] = "values",
      [MOTH_V_STRING] = "string",      [MOTH_V_DTYPE] = "dtype", [MOTH_V_DEVICE] = "device",
      [MOTH_V_GENERATOR] = "generator"};
  lua_createtable(L, 2, 0);
  lua_pushstring(L, kinds[v.tag]);
  lua_rawseti(L, -2, 1);
  switch ((MothTag)v.tag) {
  case MOTH_V_BOOL:
    lua_pushboolean(L, v.u.b);
    break;
  case MOTH_V_INT:
    push_integer(L, v.u.i);
    break;
  case MOTH_V_FLOAT:
    lua_pushnumber(L, v.u.d);
    break;
  case MOTH_V_TENSOR:
    lua_pushnumber(L, *(*refs)++ + 1.0);
    break;
  case MOTH_V_INTS:
    push_list(L, (int)v.n, v.u.ints);
    break;
  case MOTH_V_TENSORS:
    lua_createtable(L, (int)v.n, 0);
    for (uint32_t i = 0; i < v.n; i++) {
      lua_pushnumber(L, *(*refs)++ + 1.0);
      lua_rawseti(L, -2, (int)i + 1);
    }
    break;
  case MOTH_V_STRING:
    lua_pushstring(L, v.u.s);
    break;
  case MOTH_V_DTYPE:
    lua_pushstring(L, moth_dtype_name((MothDType)v.u.i));
    break;
  default:
    lua_pushboolean(L, 1);
  }
  lua_rawseti(L, -2, 2);
}

/* { node = the id of the graph's, op =, place =, dynamic = sizes of results depend on elements, is_self, geometry, args =
 * { n = … }, results = values, targets = values, writes = arguments that it writes to } */
static void push_call(lua_State *L, const MothPlan *p, const MothPlanCall *c) {
  const uint32_t *refs = c->refs;
  lua_createtable(L, 0, 12);
  field(L, "node", p->node_ids[c->node]);
  lua_pushstring(L, c->op->name);
  lua_setfield(L, -2, "op");
  lua_pushstring(L, c->place);
  lua_setfield(L, -2, "place");
  lua_pushboolean(L, !c->op->shape && !c->op->returns_self);
  lua_setfield(L, -2, "dynamic");
  lua_pushboolean(L, c->op->returns_self || c->op->memory == MOTH_MEMORY_SELF);
  lua_setfield(L, -2, "is_self");
  lua_pushboolean(L, c->op->geometry);
  lua_setfield(L, -2, "geometry");
  lua_createtable(L, c->op->nargs, 1);
  field(L, "n", c->op->nargs);
  for (int i = 0; i < c->op->nargs; i++) {
    if (c->args[i].tag == MOTH_V_NONE)
      continue;
    push_arg(L, c->args[i], &refs);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "args");
  lua_createtable(L, c->ntargets, 0);
  for (int i = 0; i < c->ntargets; i++) {
    lua_pushnumber(L, c->refs[c->nrefs - c->ntargets + (uint32_t)i] + 1.0);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "targets");
  lua_createtable(L, c->op->nargs, 0); /* arguments that it writes to */
  for (int i = 0, n = 0; i < c->op->nargs; i++)
    if (c->op->args[i].mutated) {
      lua_pushnumber(L, i + 1.0);
      lua_rawseti(L, -2, ++n);
    }
  lua_setfield(L, -2, "writes");
  lua_createtable(L, c->op->nresults, 0);
  for (int i = 0; i < c->op->nresults; i++) {
    lua_pushnumber(L, c->result[i] + 1.0);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "results");
}

/* By the ids of nodes lists of the values of their results. */
static void push_nodes(lua_State *L, const MothPlan *p, const MothGraph *g) {
  lua_newtable(L);
  for (const MothGraphNode *n = g->first; n; n = n->next) {
    if (n->kind == MOTH_NODE_OUTPUT)
      continue;
    lua_createtable(L, n->nresults, 0);
    for (uint32_t i = 0; i < n->nresults; i++) {
      lua_pushnumber(L, p->refs_of[p->slots_of[n->id] + i] + 1.0);
      lua_rawseti(L, -2, (int)i + 1);
    }
    lua_rawseti(L, -2, (int)n->id);
  }
}

/* graph_lowered(graph) -> { values, calls, outputs = values, nodes = values by the ids of nodes } */
int moth_lua_graph_lowered(lua_State *L) {
  MothGraph *g = moth_lua_to_graph(L, 1);
  MothPlan *p;
  moth_lua_enter(L);
  lua_State *outer = moth_lua_current;
  moth_lua_current = L;
  MothStatus s = moth_plan_new(g, &p);
  moth_lua_current = outer;
  if (s)
    return moth_lua_raise(L, s);
  moth_lua_push_plan(L, p); /* releases it, also after an error */
  luaL_checkstack(L, 20, "graph");
  lua_createtable(L, 0, 3);
  lua_createtable(L, (int)p->nvalues, 0);
  for (uint32_t i = 0; i < p->nvalues; i++) {
    push_value(L, &p->values[i]);
    lua_rawseti(L, -2, (int)i + 1);
  }
  lua_setfield(L, -2, "values");
  lua_createtable(L, (int)p->ncalls, 0);
  for (uint32_t i = 0; i < p->ncalls; i++) {
    push_call(L, p, &p->calls[i]);
    lua_rawseti(L, -2, (int)i + 1);
  }
  lua_setfield(L, -2, "calls");
  lua_createtable(L, (int)p->noutputs, 0);
  for (uint32_t i = 0; i < p->noutputs; i++) {
    lua_pushnumber(L, p->outputs[i] + 1.0);
    lua_rawseti(L, -2, (int)i + 1);
  }
  lua_setfield(L, -2, "outputs");
  push_nodes(L, p, g);
  lua_setfield(L, -2, "nodes");
  return 1;
}
