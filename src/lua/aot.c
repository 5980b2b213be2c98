/* moth.compile.aot: segments as plain graphs (graph/aot.h), in handles whose environments have `compile`, `forward` and, by
 * number, the callables of backward graphs. */
#include "graph/aot.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "lua/moth_lua.h"

#define MAGIC_AOT 0x6d6f746841686561ull

static char key_aot_meta;

static int aot_gc(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MAGIC_AOT);
  if (h)
    moth_aot_free(h->u.other);
  if (h)
    h->u.other = NULL;
  return 0;
}

/* --- compiling -------------------------------------------------------------------------------------------- */

/* Has `compile` of the environment at index env compile g: its callable is on top. `kind`: "forward" or "backward". */
static MothStatus compile(lua_State *L, const MothAot *a, int env, const char *kind, MothGraph *g,
                          MothTensor *const *inputs, uint32_t n, const MothJoint *joint) {
  lua_getfield(L, env, "compile");
  lua_pushstring(L, kind);
  moth_lua_push_graph(L, g);
  lua_createtable(L, (int)n, 0);
  for (uint32_t i = 0; i < n; i++) {
    moth_tensor_retain(inputs[i]);
    moth_lua_push_tensor(L, inputs[i]);
    lua_rawseti(L, -2, (int)i + 1);
  }
  if (joint)
    moth_lua_push_graph(L, joint->graph);
  else
    lua_pushnil(L);
  lua_pushnumber(L, (lua_Number)a->joint->nroots);
  lua_pushboolean(L, a->joint->nresults == 0);
  return moth_lua_call(L, 6, 1);
}

static MothAot *check_aot(lua_State *L, int idx) {
  MothHandle *h = moth_lua_check_handle(L, idx, MAGIC_AOT, "compiled segment");
  return h->u.other;
}

static int aot_run(lua_State *L);

/* aot_new(graph, inputs, compile, separate, recompute) -> a function of the inputs, the joint graph; or nil, why the segment runs
 * as recorded. compile(kind, graph, inputs, joint graph, number of roots,
 * whether no gradient is wanted) returns a function of a graph's inputs. */
static int c_aot_new(lua_State *L) {
  uint32_t n;
  MothGraph *program = moth_lua_to_graph(L, 1);
  bool separate = lua_toboolean(L, 4), recompute = lua_toboolean(L, 5);
  lua_settop(L, 3);
  MothTensor **inputs = moth_lua_tensors(L, 2, &n);
  MothHandle *h = moth_lua_new_handle(L, MAGIC_AOT, &key_aot_meta);
  int handle = lua_gettop(L);
  MothAot *a = h->u.other = calloc(1, sizeof *a);
  if (!a || !(a->inputs = calloc((size_t)n + 1, sizeof *a->inputs)))
    return moth_lua_raise(L, moth_no_memory(((size_t)n + 1) * sizeof *a->inputs));
  atomic_fetch_add_explicit(&program->refs, 1, memory_order_relaxed);
  a->program = program;
  a->ninputs = n;
  a->separate = separate;
  a->recompute = recompute;
  for (uint32_t i = 0; i < n; i++) {
    MothStatus s = moth_tensor_fake_of(inputs[i], &a->inputs[i].fake);
    if (s)
      return moth_lua_raise(L, s);
    a->inputs[i].requires_grad = moth_tensor_requires_grad(inputs[i]);
  }
  bool as_recorded;
  MothStatus s = moth_aot_prepare(a, inputs, &as_recorded);
  if (as_recorded) {
    lua_pushnil(L);
    lua_pushstring(L, moth_error_text(1));
    return 2;
  }
  if (s)
    return moth_lua_raise(L, s);
  lua_createtable(L, 2, 2);
  int env = lua_gettop(L);
  lua_pushvalue(L, 3);
  lua_setfield(L, env, "compile");
  s = compile(L, a, env, "forward", a->parts.forward, inputs, n, a->joint);
  if (s)
    return moth_lua_raise(L, s);
  for (uint32_t k = 0; k < program->nnumbers; k++)
    if (a->pinned[k] || a->parts.forward->pinned[k])
      moth_graph_pin(program, k + 1, false);
  moth_graph_pin(program, 0, true);
  lua_setfield(L, env, "forward");
  lua_setfenv(L, handle);
  lua_pushvalue(L, handle);
  lua_pushcclosure(L, aot_run, 1);
  moth_lua_push_graph(L, a->joint->graph);
  return 2;
}

/* aot_parts(function) -> joint, forward and backward graph (or nil) */
static int c_aot_parts(lua_State *L) {
  moth_lua_type(L, 1, LUA_TFUNCTION);
  if (lua_tocfunction(L, 1) != aot_run || !lua_getupvalue(L, 1, 1))
    return moth_lua_error(L, "the function is no compiled segment");
  const MothAot *a = check_aot(L, -1);
  moth_lua_push_graph(L, a->joint->graph);
  moth_lua_push_graph(L, a->parts.forward);
  if (a->parts.backward)
    moth_lua_push_graph(L, a->parts.backward);
  else
    lua_pushnil(L);
  return 3;
}

/* --- running ------------------------------------------------------------------------------------------------- */

/* What the function left above `top`: a list, or values. */
static MothStatus take(lua_State *L, int top, MothTensor **out, uint32_t want) {
  MothStatus status = MOTH_OK;
  bool list = lua_istable(L, top + 1);
  uint32_t got = list ? (uint32_t)lua_objlen(L, top + 1) : (uint32_t)(lua_gettop(L) - top);
  if (got < want)
    status =
        moth_fail(MOTH_ERR_VALUE, "compile: a compiled graph returned %u of %u outputs", got, want);
  for (uint32_t i = 0; i < want && status == MOTH_OK; i++) {
    if (list)
      lua_rawgeti(L, top + 1, (int)i + 1);
    MothHandle *h = moth_lua_handle(L, list ? -1 : top + 1 + (int)i, MOTH_MAGIC_TENSOR);
    if (h && h->u.t)
      moth_tensor_retain(out[i] = h->u.t);
    else
      status =
          moth_fail(MOTH_ERR_TYPE, "compile: output %u of a compiled graph is no tensor", i + 1);
    if (list)
      lua_pop(L, 1);
  }
  for (uint32_t i = 0; i < want && status != MOTH_OK; i++) {
    moth_tensor_release(out[i]);
    out[i] = NULL;
  }
  return status;
}

/* Calls what is on top of the stack, and pops it, with n tensors and the numbers of g: out gets `want` of what it gives. */
static MothStatus call(lua_State *L, const MothGraph *g, MothTensor *const *inputs, uint32_t n,
                       const MothValue *numbers, MothTensor **out, uint32_t want) {
  int top = lua_gettop(L) - 1;
  MothPlan *plan = moth_lua_to_plan(L, top + 1);
  MothStatus status = MOTH_OK;
  if (plan) {
    status = moth_plan_run(plan, inputs, n, g->nnumbers ? numbers : NULL, out, true);
    lua_settop(L, top);
    return status;
  }
  if (!lua_checkstack(L, (int)n + 16))
    return moth_fail(MOTH_ERR_STATE, "the Lua stack is full");
  for (uint32_t i = 0; i < n; i++) {
    moth_tensor_retain(inputs[i]);
    moth_lua_push_tensor(L, inputs[i]);
  }
  if (g->nnumbers)
    lua_createtable(L, (int)g->nnumbers, 0);
  for (uint32_t k = 0; k < g->nnumbers; k++) {
    const MothValue *v = &numbers[k];
    if (v->tag == MOTH_V_INT || v->tag == MOTH_V_FLOAT)
      lua_pushnumber(L, v->tag == MOTH_V_INT ? (lua_Number)v->u.i : v->u.d);
    else
      lua_pushboolean(L, false); /* a constant of the graph */
    lua_rawseti(L, -2, (int)k + 1);
  }
  status = moth_lua_call(L, (int)n + (g->nnumbers > 0), LUA_MULTRET);
  if (status == MOTH_OK)
    status = take(L, top, out, want);
  lua_settop(L, top);
  return status;
}

static MothStatus run_forward(lua_State *L, int handle, MothAotRun *r, int64_t *versions) {
  const MothAot *a = r->aot;
  bool was = moth_set_grad_enabled(false);
  MothStatus status = moth_aot_begin(r, versions);
  if (status == MOTH_OK) {
    lua_getfenv(L, handle);
    lua_getfield(L, -1, "forward");
    status = call(L, a->parts.forward, r->inputs, a->ninputs, r->numbers, r->made,
                  a->joint->nroots + a->parts.nextra);
  }
  moth_set_grad_enabled(was);
  MOTH_TRY(status);
  MOTH_TRY(moth_aot_end(r, versions));
  if (!a->joint->nresults)
    return MOTH_OK;
  lua_pushvalue(L, handle);
  MothLuaRef *ref = moth_lua_ref_new(L);
  return ref ? moth_aot_record(r, ref) : moth_no_memory(0);
}

/* Runs the segment whose handle is at index `handle`; given: its numbers, or NULL. outputs, NULL before, are the
 * caller's. */
static MothStatus run_segment(lua_State *L, int handle, MothTensor **inputs, const MothValue *given,
                              MothTensor **outputs) {
  MothAot *a = ((MothHandle *)lua_touserdata(L, handle))->u.other;
  uint32_t n = a->ninputs, nmade = a->joint->nroots + a->parts.nextra;
  uint32_t nnumbers = a->program->nnumbers;
  size_t size = sizeof(MothTensor *) * ((size_t)n + nmade + 1) +
                sizeof(MothValue) * ((size_t)nnumbers + 1) + sizeof(int64_t) * ((size_t)n + 1);
  MothValue *values = calloc(1, size);
  if (!values)
    return moth_no_memory(size);
  int64_t *versions = (int64_t *)(values + nnumbers + 1);
  MothTensor **list = (MothTensor **)(versions + n + 1);
  MothAotRun r = {.aot = a,
                  .inputs = inputs,
                  .made = list,
                  .outputs = outputs,
                  .before = list + nmade,
                  .numbers = values};
  moth_graph_numbers(a->program, given, values);
  MothStatus s;
  if (moth_aot_fits(a, inputs, values)) {
    s = run_forward(L, handle, &r, versions);
  } else { /* call by call, which records the history */
    bool was = moth_set_grad_enabled(true);
    s = moth_graph_run(a->program, inputs, n, given, outputs);
    moth_set_grad_enabled(was);
  }
  for (uint32_t i = 0; i < nmade; i++)
    moth_tensor_release(r.made[i]);
  for (uint32_t i = 0; i < n; i++)
    moth_tensor_release(r.before[i]);
  free(values);
  for (uint32_t i = 0; i < a->joint->noutputs && s != MOTH_OK; i++) {
    moth_tensor_release(outputs[i]);
    outputs[i] = NULL;
  }
  return s;
}

/* The compiled segment: a function of its inputs, and a list of its numbers if it has some, that returns the list of its
 * outputs. */
static int aot_run(lua_State *L) {
  const MothAot *a = check_aot(L, lua_upvalueindex(1));
  uint32_t n = a->ninputs, noutputs = a->joint->noutputs, nnumbers = a->program->nnumbers;
  uint32_t got = (uint32_t)lua_gettop(L);
  bool numbered = got == n + 1 && lua_istable(L, (int)got);
  if (got != n + numbered)
    return moth_lua_error(L, "the compiled graph has %d inputs, got %d", (int)n, (int)got);
  luaL_checkstack(L, 32, "compile");
  lua_pushvalue(L, lua_upvalueindex(1));
  int handle = lua_gettop(L);
  size_t tensors = (size_t)n + noutputs + 1;
  MothTensor **inputs = lua_newuserdata(L, sizeof *inputs * tensors), **outputs = inputs + n;
  memset(inputs, 0, sizeof *inputs * tensors);
  for (uint32_t i = 0; i < n; i++)
    inputs[i] = moth_lua_check_tensor(L, (int)i + 1, "compile");
  const MothValue *given =
      numbered && nnumbers ? moth_lua_graph_numbers(L, a->program, (int)n + 1) : NULL;
  lua_State *outer = moth_lua_current;
  moth_lua_current = L;
  MothStatus s = run_segment(L, handle, inputs, given, outputs);
  moth_lua_current = outer;
  if (s)
    return moth_lua_raise(L, s);
  moth_lua_push_tensors(L, outputs, noutputs);
  return 1;
}

bool moth_lua_is_segment(lua_State *L, int idx) {
  return lua_tocfunction(L, idx) == aot_run;
}

MothStatus moth_lua_run_segment(lua_State *L, int idx, MothTensor **inputs, uint32_t n,
                                const MothValue *numbers, MothTensor **outputs) {
  lua_getupvalue(L, idx, 1);
  int handle = lua_gettop(L);
  const MothAot *a = ((MothHandle *)lua_touserdata(L, handle))->u.other;
  MothStatus s =
      a->ninputs == n
          ? run_segment(L, handle, inputs, numbers, outputs)
          : moth_fail(MOTH_ERR_VALUE, "the compiled graph has %u inputs, got %u", a->ninputs, n);
  lua_settop(L, handle - 1);
  return s;
}

/* --- for graph/aot_backward.c --------------------------------------------------------------------------------- */

static void release_handle(void *handle) {
  moth_lua_ref_release(handle);
}

static MothStatus enter(void *handle, MothAotPlace *place) {
  lua_State *L = moth_lua_current;
  if (!L)
    return moth_lua_no_state();
  if (!lua_checkstack(L, 32))
    return moth_fail(MOTH_ERR_STATE, "the Lua stack is full");
  if (!moth_lua_ref_push(L, handle))
    return MOTH_ERR_STATE;
  lua_getfenv(L, -1);
  *place = (MothAotPlace){L, lua_gettop(L)};
  return MOTH_OK;
}

static void leave(const MothAotPlace *place) {
  lua_settop(place->state, place->at - 2);
}

static MothStatus compile_backward(const MothAotPlace *place, const MothAot *a, int number,
                                   MothGraph *g, MothTensor *const *inputs, uint32_t n) {
  MOTH_TRY(compile(place->state, a, place->at, "backward", g, inputs, n, NULL));
  lua_rawseti(place->state, place->at, number);
  return MOTH_OK;
}

static MothPlan *plan_of(const MothAotPlace *place, int number) {
  lua_State *L = place->state;
  lua_rawgeti(L, place->at, number);
  MothPlan *plan = moth_lua_to_plan(L, lua_gettop(L));
  lua_pop(L, 1); /* the environment holds it */
  return plan;
}

static MothStatus call_backward(const MothAotPlace *place, int number, const MothGraph *g,
                                MothTensor *const *inputs, uint32_t n, const MothValue *numbers,
                                MothTensor **out, uint32_t want) {
  lua_rawgeti(place->state, place->at, number);
  return call(place->state, g, inputs, n, numbers, out, want);
}

void moth_lua_open_aot(lua_State *L) { /* the table of the compiler's functions is on top */
  static const luaL_Reg fns[] = {{"aot_new", c_aot_new}, {"aot_parts", c_aot_parts}, {NULL, NULL}};
  moth_aot_host =
      (MothAotHost){release_handle, enter, leave, compile_backward, plan_of, call_backward};
  luaL_register(L, NULL, fns);
  lua_pushlightuserdata(L, &key_aot_meta);
  lua_newtable(L);
  lua_pushcfunction(L, aot_gc);
  lua_setfield(L, -2, "__gc");
  lua_rawset(L, LUA_REGISTRYINDEX);
}
