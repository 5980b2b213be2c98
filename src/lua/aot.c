/* moth.compile.aot: a segment as plain graphs, forward. See aot.h, and lua/moth/compile/aot.lua for what a plain graph
 * is. */
#include "lua/aot.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "graph/plan.h"
#include "ops/create.h"

static char key_aot_meta;

static void free_aot(MothAot *a) {
  if (!a)
    return;
  moth_graph_release(a->program);
  moth_joint_free(a->joint);
  moth_joint_parts_free(&a->parts);
  for (uint32_t i = 0; a->inputs && i < a->ninputs; i++)
    moth_tensor_release(a->inputs[i].fake);
  while (a->backward) {
    MothAotBackward *b = a->backward;
    a->backward = b->next;
    free(b->key);
    free(b->given);
    free(b->takes);
    free(b->wanted);
    moth_graph_release(b->graph);
    free(b->pinned);
    free(b->numbers);
    free(b->gradient);
    free(b);
  }
  moth_generator_release(a->generator);
  free(a->inputs);
  free(a->saved_at);
  free(a->pinned);
  free(a);
}

static int aot_gc(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MOTH_MAGIC_AOT);
  if (h)
    free_aot(h->u.other);
  if (h)
    h->u.other = NULL;
  return 0;
}

/* --- compiling -------------------------------------------------------------------------------------------- */

/* Which inputs a node saves, and where: those that backward uses, then all others, from which the segment can be run
 * again. */
static MothStatus plan_saved(MothAot *a) {
  a->saved_at = malloc(sizeof *a->saved_at * ((size_t)a->ninputs + 1));
  if (!a->saved_at)
    return moth_no_memory(sizeof *a->saved_at * ((size_t)a->ninputs + 1));
  for (uint32_t i = 0; i < a->ninputs; i++)
    a->saved_at[i] = -1;
  for (uint32_t i = 0; i < a->parts.nsaved; i++)
    if (a->parts.saved[i].input >= 0)
      a->saved_at[a->parts.saved[i].input] = (int32_t)i;
  a->nkept = a->parts.nsaved;
  for (uint32_t i = 0; i < a->ninputs; i++)
    if (a->saved_at[i] < 0)
      a->saved_at[i] = (int32_t)a->nkept++;
  return MOTH_OK;
}

static bool takes_generator(const MothOp *op) {
  for (int i = 0; i < op->nargs; i++)
    if (op->args[i].type == MOTH_T_GENERATOR)
      return true;
  return false;
}

/* The generator that the calls draw from: at most one can be set back. */
static MothStatus find_generator(MothAot *a) {
  for (const MothGraphNode *n = a->program->first; n; n = n->next) {
    MothGenerator *g = NULL;
    bool draws = n->kind == MOTH_NODE_CALL && n->op->draws;
    for (int i = 0; n->kind == MOTH_NODE_CALL && i < n->op->nargs; i++)
      if (n->args[i].value.tag == MOTH_V_GENERATOR) {
        g = n->args[i].value.u.g;
        draws = true;
      }
    if (n->kind == MOTH_NODE_CALL && n->op->composite) /* dropout, randn_like: their parts may */
      draws = draws || takes_generator(n->op);
    if (draws && a->draws && g != a->generator)
      return moth_fail(MOTH_ERR_STATE, "it draws from several generators");
    if (draws && !a->draws && (a->generator = g))
      moth_generator_retain(g);
    a->draws = a->draws || draws;
  }
  return MOTH_OK;
}

static MothStatus check_aliases(const MothAot *a, MothTensor *const *inputs) {
  for (uint32_t i = 0; a->writes && i < a->ninputs; i++)
    for (uint32_t k = 0; a->joint->written[i] && k < a->ninputs; k++)
      if (k != i && inputs[k]->storage == inputs[i]->storage)
        return moth_fail(MOTH_ERR_STATE, "an input is written to that shares memory with another");
  return MOTH_OK;
}

MothStatus moth_aot_compile(lua_State *L, const MothAot *a, int env, const char *kind, MothGraph *g,
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

enum { SMALL = 1 << 14 };

/* Traces and divides. Its errors say why the segment runs as recorded. */
static MothStatus prepare(MothAot *a, MothTensor *const *inputs) {
  MOTH_TRY(find_generator(a));
  for (const MothGraphNode *n = a->program->first; n; n = n->next)
    a->passes = a->passes || (n->op && moth_is_pass(n->op));
  MothJointTrace how = {
      .inputs = a->inputs, .ninputs = a->ninputs, .derive = true, .separate = a->separate};
  MothStatus status = moth_joint_trace(a->program, &how, &a->joint);
  if (status != MOTH_OK && a->passes && strstr(moth_last_error(), "a second time")) {
    how.derive = false;
    status = moth_joint_trace(a->program, &how, &a->joint);
    a->freed = status == MOTH_OK;
    if (a->freed && a->joint->nresults > 1) /* which of them? */
      status =
          moth_fail(MOTH_ERR_STATE, "backward is called in it, and it returns several results");
  }
  if (status == MOTH_OK && !(a->pinned = calloc((size_t)a->program->nnumbers + 1, sizeof(bool))))
    status = moth_no_memory(((size_t)a->program->nnumbers + 1) * sizeof(bool));
  if (status == MOTH_OK && a->program->nnumbers)
    status = moth_joint_find_numbers(a->joint, a->program, &how, a->pinned, &a->kinds);
  MOTH_TRY(status);
  a->copies = a->joint->nresults > 0 && !a->passes;
  for (uint32_t i = 0; i < a->ninputs; i++)
    if (a->joint->written[i]) {
      a->writes = true;
      a->copies = a->copies && a->inputs[i].fake->numel <= SMALL;
    }
  MOTH_TRY(check_aliases(a, inputs));
  moth_joint_find_inner(a->joint);
  if (a->passes && !a->freed && a->joint->nresults) /* it could not be run again */
    return moth_fail(MOTH_ERR_STATE,
                     "backward is called in it, and a result may be differentiated");
  return MOTH_OK;
}

static MothAot *check_aot(lua_State *L, int idx) {
  MothHandle *h = moth_lua_check_handle(L, idx, MOTH_MAGIC_AOT, "compiled segment");
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
  MothHandle *h = moth_lua_new_handle(L, MOTH_MAGIC_AOT, &key_aot_meta);
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
  if (prepare(a, inputs) != MOTH_OK) {
    lua_pushnil(L);
    lua_pushstring(L, moth_error_text(1));
    return 2;
  }
  MothStatus s = moth_joint_simplify(a->joint, program, a->pinned);
  if (s == MOTH_OK)
    s = moth_joint_divide(a->joint, NULL, a->recompute, &a->parts);
  if (s == MOTH_OK)
    s = plan_saved(a);
  if (s)
    return moth_lua_raise(L, s);
  lua_createtable(L, 2, 2);
  int env = lua_gettop(L);
  lua_pushvalue(L, 3);
  lua_setfield(L, env, "compile");
  s = moth_aot_compile(L, a, env, "forward", a->parts.forward, inputs, n, a->joint);
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

MothStatus moth_aot_call(lua_State *L, const MothGraph *g, MothTensor *const *inputs, uint32_t n,
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

/* Whether the segment is what was compiled. */
static bool fits(const MothAot *a, MothTensor *const *inputs, const MothValue *numbers) {
  if (!moth_joint_takes(numbers, a->program->nnumbers, a->pinned, a->kinds))
    return false;
  for (uint32_t i = 0; i < a->ninputs; i++) {
    if (moth_tensor_requires_grad(inputs[i]) != a->inputs[i].requires_grad)
      return false;
    if (a->joint->offsets && inputs[i]->offset != a->inputs[i].fake->offset)
      return false;
  }
  return check_aliases(a, inputs) == MOTH_OK;
}

static MothStatus check_made(const MothAot *a, MothTensor *const *made) {
  const MothGraphNode *end = a->parts.forward->last;
  char x[256], y[200];
  for (uint32_t i = 0; i < end->nrefs; i++) {
    const MothTraceMeta *m = &end->refs[i].node->metas[end->refs[i].result];
    const MothTensor *t = made[i];
    if (t->dtype != m->dtype || t->ndim != m->ndim || t->contiguous != m->contiguous ||
        memcmp(t->shape, m->dims, sizeof(int64_t) * m->ndim) != 0)
      return moth_fail(MOTH_ERR_VALUE, "compile: output %u of a compiled graph is %s%s, not %s %s",
                       i + 1, moth_tensor_format(t, x, sizeof x),
                       t->contiguous == m->contiguous ? "" : " with other strides",
                       moth_dtype_name((MothDType)m->dtype),
                       moth_shape_format(m->ndim, m->dims, y, sizeof y));
  }
  return MOTH_OK;
}

/* A tensor in src's memory with the geometry of o. */
static MothStatus part_of(MothTensor *src, const MothJointOutput *o, MothTensor **out) {
  MOTH_TRY(moth_tensor_alias(src, false, out));
  MothTensor *t = *out;
  int64_t begin = src->offset * moth_itemsize(src) + o->offset;
  t->keys = (t->keys & ~(uint32_t)MOTH_KEY_OPT_IN) | (o->fake->keys & MOTH_KEY_OPT_IN);
  t->dtype = o->fake->dtype; /* complex numbers may be seen as their parts */
  t->ndim = o->fake->ndim;
  t->numel = o->fake->numel;
  t->contiguous = o->fake->contiguous;
  t->offset = begin / moth_itemsize(t);
  t->data = t->storage->data ? (char *)t->storage->data + t->offset * moth_itemsize(t) : NULL;
  memcpy(t->shape, o->fake->shape, sizeof(int64_t) * t->ndim);
  memcpy(t->stride, o->fake->stride, sizeof(int64_t) * t->ndim);
  return MOTH_OK;
}

/* The segment's outputs, of the roots. */
static MothStatus make_outputs(const MothAot *a, MothTensor *const *inputs, MothTensor *const *made,
                               MothTensor **outputs) {
  const MothJoint *j = a->joint;
  for (uint32_t i = 0; i < j->nroots; i++)
    *moth_version_of(made[i]) = j->roots[i].version;
  for (uint32_t i = 0; i < j->noutputs; i++) {
    const MothJointOutput *o = &j->outputs[i];
    if (o->whole)
      moth_tensor_retain(outputs[i] = made[o->root]);
    else
      MOTH_TRY(part_of(o->root >= 0 ? made[o->root] : inputs[o->input], o, &outputs[i]));
  }
  for (uint32_t i = 0; i < j->noutputs; i++) {
    const MothJointOutput *o = &j->outputs[i];
    MothTensor *base = o->base >= 0 ? outputs[o->base] : NULL, *apart = NULL;
    if (!base && o->base_input >= 0) {
      base = inputs[o->base_input]->base ? inputs[o->base_input]->base : inputs[o->base_input];
      if (moth_tensor_requires_grad(base) && !moth_tensor_requires_grad(o->fake->base)) {
        MOTH_TRY(moth_tensor_alias(base, false, &apart)); /* a view of x:detach() */
        base = apart;
      }
    }
    if (base)
      moth_tensor_retain(outputs[i]->base = base);
    moth_tensor_release(apart);
  }
  return MOTH_OK;
}

static MothStatus run_forward(lua_State *L, int handle, MothAotRun *r, int64_t *versions) {
  MothAot *a = r->aot;
  MothStatus status = MOTH_OK;
  if (a->draws)
    moth_generator_get_state(moth_aot_generator(a), &r->generator[0], &r->generator[1]);
  bool was = moth_set_grad_enabled(false);
  for (uint32_t i = 0; i < a->ninputs; i++) {
    versions[i] = *moth_version_of(r->inputs[i]);
    if (a->copies && a->joint->written[i] && status == MOTH_OK)
      status = moth_clone(r->inputs[i], &r->before[i]);
  }
  if (status == MOTH_OK) {
    lua_getfenv(L, handle);
    lua_getfield(L, -1, "forward");
    status = moth_aot_call(L, a->parts.forward, r->inputs, a->ninputs, r->numbers, r->made,
                           a->joint->nroots + a->parts.nextra);
  }
  moth_set_grad_enabled(was);
  MOTH_TRY(status);
  MOTH_TRY(check_made(a, r->made));
  for (uint32_t i = 0; i < a->ninputs; i++)
    if (a->joint->written[i])
      *moth_version_of(r->inputs[i]) = versions[i] + a->joint->written[i];
  MOTH_TRY(make_outputs(a, r->inputs, r->made, r->outputs));
  if (!a->joint->nresults)
    return MOTH_OK;
  lua_pushvalue(L, handle);
  status = moth_aot_record(L, r);
  lua_pop(L, 1);
  return status;
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
  if (fits(a, inputs, values)) {
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

void moth_lua_open_aot(lua_State *L) { /* the table of the compiler's functions is on top */
  static const luaL_Reg fns[] = {{"aot_new", c_aot_new}, {"aot_parts", c_aot_parts}, {NULL, NULL}};
  luaL_register(L, NULL, fns);
  lua_pushlightuserdata(L, &key_aot_meta);
  lua_newtable(L);
  lua_pushcfunction(L, aot_gc);
  lua_setfield(L, -2, "__gc");
  lua_rawset(L, LUA_REGISTRYINDEX);
}
