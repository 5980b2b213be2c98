/* Graphs for Lua, and backends that are functions of Lua: lua/moth/compile/graph.lua makes objects of these. */
#include "graph/joint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "graph/plan.h"
#include "lua/moth_lua.h"

#define MAGIC_GRAPH 0x6d6f746847726170ull

static char key_graph_meta;
static const double MOST = 4294967295.0;

static MothGraph *check_graph(lua_State *L, int idx) {
  MothHandle *h = moth_lua_check_handle(L, idx, MAGIC_GRAPH, "graph");
  return h->u.other;
}

MothGraph *moth_lua_to_graph(lua_State *L, int idx) {
  return check_graph(L, idx);
}

static MothGraphNode *check_node(lua_State *L, MothGraph *g, int idx) {
  MothGraphNode *n = moth_graph_node(g, (uint32_t)moth_lua_check_integer(L, idx, 1, MOST));
  if (!n)
    moth_lua_error(L, "the node is not in the graph any more");
  return n;
}

static MothGraphRef check_ref(lua_State *L, MothGraph *g, int idx) {
  MothGraphNode *n = check_node(L, g, idx);
  int64_t result = moth_lua_check_integer(L, idx + 1, 1, MOTH_MAX_RESULTS);
  if (result > n->nresults)
    moth_lua_error(L, "%s has %d results, not %d", n->name, n->nresults, (int)result);
  return (MothGraphRef){n, (uint8_t)(result - 1)};
}

static int graph_gc(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MAGIC_GRAPH);
  if (h && h->u.other)
    moth_graph_release(h->u.other);
  if (h)
    h->u.other = NULL;
  return 0;
}

static void push_graph(lua_State *L, MothGraph *g) {
  MothHandle *h = moth_lua_new_handle(L, MAGIC_GRAPH, &key_graph_meta);
  h->u.other = g;
}

void moth_lua_push_graph(lua_State *L, MothGraph *g) {
  atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
  push_graph(L, g);
}

MothTensor **moth_lua_tensors(lua_State *L, int idx, uint32_t *n) {
  moth_lua_type(L, idx, LUA_TTABLE);
  *n = (uint32_t)lua_objlen(L, idx);
  MothTensor **list = lua_newuserdata(L, sizeof *list * ((size_t)*n + 1));
  for (uint32_t i = 0; i < *n; i++) {
    lua_rawgeti(L, idx, (int)i + 1);
    list[i] = moth_lua_check_tensor(L, -1, "graph");
    lua_pop(L, 1);
  }
  return list;
}

/* graph_noted(outputs, inputs) -> the graph of what is noted now */
static int c_graph_noted(lua_State *L) {
  uint32_t noutputs, ninputs;
  MothTensor **outputs = moth_lua_tensors(L, 1, &noutputs),
             **inputs = moth_lua_tensors(L, 2, &ninputs);
  const MothSegment *s = moth_segment_here();
  MothGraph *g;
  if (!s)
    return moth_lua_error(L, "nothing is noted");
  MothStatus status = moth_graph_of_segment(s, outputs, noutputs, inputs, (int)ninputs, &g);
  if (status)
    return moth_lua_raise(L, status);
  push_graph(L, g);
  return 1;
}

static int c_graph_text(lua_State *L) {
  char *text = moth_graph_text(check_graph(L, 1));
  if (!text)
    return moth_lua_error(L, "out of memory");
  lua_pushstring(L, text);
  free(text);
  return 1;
}

/* graph_nodes(g) -> the ids of its nodes, in order */
static int c_graph_nodes(lua_State *L) {
  const MothGraph *g = check_graph(L, 1);
  int i = 0;
  lua_createtable(L, (int)g->nnodes, 0);
  for (const MothGraphNode *n = g->first; n; n = n->next) {
    lua_pushnumber(L, n->id);
    lua_rawseti(L, -2, ++i);
  }
  return 1;
}

static void push_ref(lua_State *L, const MothGraphRef *r) {
  lua_createtable(L, 0, 2);
  lua_pushnumber(L, r->node->id);
  lua_setfield(L, -2, "node");
  lua_pushinteger(L, r->result + 1);
  lua_setfield(L, -2, "result");
}

static void push_list(lua_State *L, int n, const int64_t *list) {
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_pushnumber(L, (lua_Number)list[i]);
    lua_rawseti(L, -2, i + 1);
  }
}

/* Pushes the arguments: values of nodes as { node =, result = }, numbers of the graph as { number =, value =, varied = }; `n` is their
 * number. */
static void push_args(lua_State *L, const MothGraphNode *n) {
  const MothGraphRef *ref = n->refs;
  lua_createtable(L, n->op->nargs, 0);
  for (int i = 0; i < n->op->nargs; i++) {
    MothValue v = n->args[i].value;
    if (v.tag == MOTH_V_TENSOR) {
      push_ref(L, ref++);
    } else if (v.tag == MOTH_V_TENSORS) {
      lua_createtable(L, (int)v.n, 0);
      for (uint32_t k = 0; k < v.n; k++) {
        push_ref(L, ref++);
        lua_rawseti(L, -2, (int)k + 1);
      }
    } else {
      moth_lua_push_value(L, &n->op->args[i], v);
      if (n->args[i].number) {
        lua_createtable(L, 0, 3);
        lua_insert(L, -2);
        lua_setfield(L, -2, "value");
        lua_pushboolean(L, n->args[i].varied);
        lua_setfield(L, -2, "varied");
        lua_pushnumber(L, n->args[i].number);
        lua_setfield(L, -2, "number");
      }
    }
    lua_rawseti(L, -2, i + 1);
  }
  lua_pushinteger(L, n->op->nargs);
  lua_setfield(L, -2, "n");
}

/* Whether it is a call as an unchanged program makes it, that writes to nothing. */
static bool is_plain(const MothGraphNode *n) {
  bool plain = n->op && n->variant == MOTH_FUNCTIONAL && !n->op->returns_self &&
               !(n->modes.exclude & ~(uint32_t)MOTH_KEY_AUTOGRAD) &&
               !(n->modes.include & ~(uint32_t)MOTH_KEY_LAZY) &&
               n->modes.dtype == (uint8_t)moth_default_dtype();
  for (int i = 0; plain && i < n->op->nargs; i++)
    plain = !n->op->args[i].mutated;
  return plain;
}

/* graph_node(g, id) -> { kind, name, target, place, args, metas, tensor }, or nil */
static int c_graph_node(lua_State *L) {
  static const char *const kinds[] = {"placeholder", "get_attr", "call", "output"};
  MothGraph *g = check_graph(L, 1);
  const MothGraphNode *n = moth_graph_node(g, (uint32_t)moth_lua_check_integer(L, 2, 1, MOST));
  if (!n)
    return 0;
  lua_createtable(L, 0, 8);
  lua_pushstring(L, kinds[n->kind]);
  lua_setfield(L, -2, "kind");
  lua_pushstring(L, n->name);
  lua_setfield(L, -2, "name");
  lua_pushstring(L, n->place ? n->place : "");
  lua_setfield(L, -2, "place");
  if (n->op) {
    lua_pushfstring(L, "%s%s", n->op->name,
                    n->variant == MOTH_INPLACE && !n->op->returns_self ? "_" : "");
    lua_setfield(L, -2, "target");
    push_args(L, n);
  } else {
    lua_createtable(L, (int)n->nrefs, 0);
    for (uint32_t i = 0; i < n->nrefs; i++) {
      push_ref(L, &n->refs[i]);
      lua_rawseti(L, -2, (int)i + 1);
    }
    lua_pushnumber(L, n->nrefs);
    lua_setfield(L, -2, "n");
  }
  lua_setfield(L, -2, "args");
  if (n->tensor) {
    moth_tensor_retain(n->tensor);
    moth_lua_push_tensor(L, n->tensor);
    lua_setfield(L, -2, "tensor");
  }
  lua_pushboolean(L, is_plain(n));
  lua_setfield(L, -2, "plain");
  lua_pushboolean(L, n->modes.no_grad);
  lua_setfield(L, -2, "no_grad");
  if (n->modes.include & MOTH_KEY_AUTOCAST) {
    lua_createtable(L, 0, 2);
    for (int i = 0; i < 2; i++)
      if (n->modes.autocast[i]) {
        lua_pushstring(L, moth_dtype_name((MothDType)(n->modes.autocast[i] - 1)));
        lua_setfield(L, -2, i == MOTH_CPU ? "cpu" : "cuda");
      }
    lua_setfield(L, -2, "autocast");
  }
  if (n->op && n->variant == MOTH_OUT) {
    lua_createtable(L, n->nresults, 0);
    for (int i = 0; i < n->nresults; i++) {
      push_ref(L, &n->refs[n->nrefs - n->nresults + (uint32_t)i]);
      lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "out");
  }
  lua_createtable(L, n->nresults, 0);
  for (int i = 0; i < n->nresults; i++) {
    const MothTraceMeta *m = &n->metas[i];
    lua_createtable(L, 0, 5);
    push_list(L, m->ndim, m->dims);
    lua_setfield(L, -2, "shape");
    push_list(L, m->ndim, m->dims + m->ndim);
    lua_setfield(L, -2, "stride");
    moth_lua_push_dtype(L, (MothDType)m->dtype);
    lua_setfield(L, -2, "dtype");
    moth_lua_push_device(L, m->device);
    lua_setfield(L, -2, "device");
    lua_pushboolean(L, (m->keys & MOTH_KEY_AUTOGRAD) != 0);
    lua_setfield(L, -2, "requires_grad");
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "metas");
  return 1;
}

/* graph_fake(g, id, result) -> a fake tensor with the shape and dtype of a value */
static int c_graph_fake(lua_State *L) {
  MothGraphRef r = check_ref(L, check_graph(L, 1), 2);
  const MothTraceMeta *m = &r.node->metas[r.result];
  MothTensor *t;
  MothStatus s = moth_tensor_new_fake(m->ndim, m->dims, (MothDType)m->dtype, m->device, &t);
  if (s)
    return moth_lua_raise(L, s);
  memcpy(t->stride, m->dims + m->ndim, sizeof(int64_t) * m->ndim);
  t->contiguous = m->contiguous;
  moth_lua_push_tensor(L, t);
  return 1;
}

typedef struct Insert {
  MothGraph *g;
  MothGraphNode *before, *made;
  MothTensor **tensors;
  MothGraphRef *refs;
  uint32_t n;
} Insert;

static MothStatus insert_run(MothCall *c, void *ctx) {
  Insert *i = ctx;
  MOTH_TRY(moth_redispatch(c));
  if (!c->direct || i->made)
    return MOTH_OK;
  MothStatus s = moth_graph_insert(i->g, i->before, c, i->tensors, i->refs, i->n, &i->made);
  for (int k = 0; k < c->op->nresults && s != MOTH_OK; k++) {
    moth_tensor_release(c->results[k].u.t);
    c->results[k] = moth_v_none();
  }
  return s;
}

/* graph_fold(graph) -> how many values it holds now that it computed from constants. It must be one without writes. */
static int c_graph_fold(lua_State *L) {
  MothGraph *g = check_graph(L, 1);
  uint32_t n = 0;
  MothStatus s = moth_graph_fold(g, g, g->pinned, &n);
  if (s)
    return moth_lua_raise(L, s);
  if (n)
    moth_graph_eliminate(g);
  lua_pushinteger(L, (lua_Integer)n);
  return 1;
}

/* graph_insert(g, before or 0, fakes, ids, results, fn, args) -> id: the call of an op that fn(unpack(args)) is, with fakes
 * for the values results[i] of nodes ids[i] */
static int c_graph_insert(lua_State *L) {
  Insert i = {.g = check_graph(L, 1)};
  int64_t before = moth_lua_check_integer(L, 2, 0, MOST);
  moth_lua_sync(L);
  lua_settop(L, 7);
  i.before = before ? check_node(L, i.g, 2) : i.g->last; /* in front of the output */
  i.tensors = moth_lua_tensors(L, 3, &i.n);
  i.refs = lua_newuserdata(L, sizeof *i.refs * ((size_t)i.n + 1));
  for (uint32_t k = 0; k < i.n; k++) {
    lua_rawgeti(L, 4, (int)k + 1);
    lua_rawgeti(L, 5, (int)k + 1);
    i.refs[k] = check_ref(L, i.g, lua_gettop(L) - 1);
    lua_pop(L, 2);
  }
  lua_getfield(L, 7, "n");
  int nargs = (int)lua_tointeger(L, -1);
  lua_pop(L, 1);
  luaL_checkstack(L, nargs + 8, "graph");
  MothInterceptor which = {insert_run, &i, true, NULL, false};
  MothThread *t = moth_thread_state();
  MothStatus s = moth_intercept_push(true, which);
  if (s)
    return moth_lua_raise(L, s);
  uint32_t include = t->include;
  t->include |= MOTH_KEY_FAKE;
  lua_pushvalue(L, 6);
  for (int k = 1; k <= nargs; k++)
    lua_rawgeti(L, 7, k);
  s = moth_lua_call(L, nargs, 0);
  t->include = include;
  moth_intercept_pop(true, which);
  if (s)
    return moth_lua_raise(L, s);
  if (!i.made)
    return moth_lua_error(L, "the function calls no op of the table");
  lua_pushnumber(L, i.made->id);
  return 1;
}

static int c_graph_erase(lua_State *L) {
  MothGraph *g = check_graph(L, 1);
  MothStatus s = moth_graph_erase(g, check_node(L, g, 2));
  return s ? moth_lua_raise(L, s) : 0;
}

/* graph_replace(g, id, result, by id, by result, only the user with this id or nil) */
static int c_graph_replace(lua_State *L) {
  MothGraph *g = check_graph(L, 1);
  MothGraphRef from = check_ref(L, g, 2), to = check_ref(L, g, 4);
  MothGraphNode *only = lua_isnoneornil(L, 6) ? NULL : check_node(L, g, 6);
  MothStatus s = moth_graph_replace(g, from, to, only);
  return s ? moth_lua_raise(L, s) : 0;
}

static int c_graph_eliminate(lua_State *L) {
  lua_pushnumber(L, moth_graph_eliminate(check_graph(L, 1)));
  return 1;
}

static int c_graph_check(lua_State *L) {
  MothStatus s = moth_graph_check(check_graph(L, 1));
  return s ? moth_lua_raise(L, s) : 0;
}

/* graph_facts(g) -> number of numbers, whether it is for any sizes, whether it records or computes gradients */
static int c_graph_facts(lua_State *L) {
  const MothGraph *g = check_graph(L, 1);
  lua_pushnumber(L, g->nnumbers);
  lua_pushboolean(L, g->dynamic);
  bool grads = false;
  for (const MothGraphNode *n = g->first; n; n = n->next) {
    grads = grads || (n->op && moth_is_pass(n->op));
    for (int i = 0; i < n->nresults; i++)
      grads = grads || (n->kind == MOTH_NODE_CALL && n->metas[i].keys & MOTH_KEY_AUTOGRAD);
  }
  lua_pushboolean(L, grads);
  return 3;
}

/* graph_pin(g, number, 0 for all, or nil for the sizes) */
static int c_graph_pin(lua_State *L) {
  MothGraph *g = check_graph(L, 1);
  bool sizes = lua_isnoneornil(L, 2);
  uint32_t k = sizes ? 0 : (uint32_t)moth_lua_check_integer(L, 2, 0, MOST);
  moth_graph_pin(g, k, sizes);
  return 0;
}

/* graph_set_number(g, id, argument, number): the argument, a constant so far, is that number of the graph */
static int c_graph_set_number(lua_State *L) {
  MothGraph *g = check_graph(L, 1);
  MothGraphNode *n = check_node(L, g, 2);
  int i = (int)moth_lua_check_integer(L, 3, 1, MOTH_MAX_ARGS) - 1;
  uint32_t number = (uint32_t)moth_lua_check_integer(L, 4, 1, g->nnumbers);
  if (!n->op || i >= n->op->nargs ||
      (n->args[i].value.tag != MOTH_V_INT && n->args[i].value.tag != MOTH_V_FLOAT &&
       n->args[i].value.tag != MOTH_V_INTS))
    return moth_lua_error(L, "[graph.call] a number of the graph is an argument by its position");
  n->args[i].number = number;
  return 0;
}

/* The number at the top of the stack as argument a of an op. A list lies in a userdata that takes its place. */
static MothValue take_number(lua_State *L, const MothArg *a, const MothValue *recorded) {
  if (recorded->tag == MOTH_V_INTS) {
    uint32_t n = lua_istable(L, -1) ? (uint32_t)lua_objlen(L, -1) : 0;
    int64_t *ints = lua_newuserdata(L, sizeof *ints * ((size_t)n + 1));
    for (uint32_t i = 0; i < n; i++) {
      lua_rawgeti(L, -2, (int)i + 1);
      ints[i] = (int64_t)lua_tonumber(L, -1);
      lua_pop(L, 1);
    }
    lua_remove(L, -2);
    return moth_v_ints(ints, n);
  }
  double d = luaL_checknumber(L, -1);
  bool whole = d == floor(d) && fabs(d) <= 0x1p53;
  if (a->type == MOTH_T_FLOAT || !whole)
    return moth_v_float(d);
  return moth_v_int((int64_t)d - (a->type == MOTH_T_INDEX && d > 0));
}

/* The numbers of the list at idx, or NULL where there is none; lists among them stay on the stack. */
static MothValue *numbers_of(lua_State *L, const MothGraph *g, int idx) {
  if (!lua_istable(L, idx))
    return NULL;
  MothValue *list = lua_newuserdata(L, sizeof *list * ((size_t)g->nnumbers + 1));
  for (const MothGraphNode *n = g->first; n; n = n->next)
    for (int i = 0; n->args && i < n->op->nargs; i++) {
      const MothTraceArg *a = &n->args[i];
      if (!a->number)
        continue;
      luaL_checkstack(L, 8, "graph");
      lua_rawgeti(L, idx, (int)a->number);
      list[a->number - 1] = take_number(L, &n->op->args[i], &a->value);
      if (a->value.tag != MOTH_V_INTS)
        lua_pop(L, 1);
    }
  return list;
}

MothValue *moth_lua_graph_numbers(lua_State *L, const MothGraph *g, int idx) {
  return numbers_of(L, g, idx);
}

/* graph_run(g, inputs, numbers or nil for the recorded ones) -> { outputs } */
static int c_graph_run(lua_State *L) {
  MothGraph *g = check_graph(L, 1);
  uint32_t n;
  moth_lua_enter(L);
  lua_settop(L, 3);
  MothTensor **inputs = moth_lua_tensors(L, 2, &n);
  uint32_t noutputs = g->last && g->last->kind == MOTH_NODE_OUTPUT ? g->last->nrefs : 0;
  MothTensor **outputs = lua_newuserdata(L, sizeof *outputs * ((size_t)noutputs + 1));
  MothValue *numbers = numbers_of(L, g, 3);
  lua_State *outer = moth_lua_current;
  moth_lua_current = L;
  MothStatus s = moth_graph_run(g, inputs, n, numbers, outputs);
  moth_lua_current = outer;
  if (s)
    return moth_lua_raise(L, s);
  lua_createtable(L, (int)noutputs, 0);
  for (uint32_t i = 0; i < noutputs; i++) {
    moth_lua_push_tensor(L, outputs[i]);
    lua_rawseti(L, -2, (int)i + 1);
  }
  return 1;
}

/* copies(tensors) -> a list of copies, with histories of their own */
static int c_copies(lua_State *L) {
  uint32_t n;
  MothTensor **list = moth_lua_tensors(L, 1, &n);
  MothTensor **out = lua_newuserdata(L, sizeof *out * ((size_t)n + 1));
  MothStatus s = moth_tensor_copies(list, n, out);
  if (s)
    return moth_lua_raise(L, s);
  lua_createtable(L, (int)n, 0);
  for (uint32_t i = 0; i < n; i++) {
    moth_lua_push_tensor(L, out[i]);
    lua_rawseti(L, -2, (int)i + 1);
  }
  return 1;
}

/* --- backends ---------------------------------------------------------------------------------------------- */

/* Weak: [a trace's address] = its userdata, whose environment has `compile` (graph, inputs -> a callable) and, by the
 * numbers of the ends, lists of callables by the ids of their codes. */
static char key_backends;
/* Most sets of numbers or sizes that a segment is compiled for; where compiling takes longer than SLOW nanoseconds each. Of
 * other sizes by moth's own backends, which lay another plan of the same kernels, MOST_CODES are kept, and where that many
 * are there, one more comes each WAIT runs. */
enum { MOST_CODES = 64, MOST_SLOW_CODES = 8, SLOW = 20000000, WAIT = 256 };

void moth_lua_set_backend(lua_State *L, MothTrace *t, int trace, int backend) {
  t->host = t;
  lua_createtable(L, 0, 1);
  lua_pushvalue(L, backend);
  lua_setfield(L, -2, "compile");
  lua_setfenv(L, trace);
  lua_pushlightuserdata(L, &key_backends);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_pushlightuserdata(L, t);
  lua_pushvalue(L, trace);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

/* Whether the program still has value n, which is to be made. */
static bool is_wanted(const MothSegment *s, uint32_t n) {
  const MothTensor *t = s->values[n];
  return t->keys & MOTH_KEY_LAZY && atomic_load_explicit(&t->refs, memory_order_acquire) > 1;
}

static bool is_output(const MothTraceEnd *end, uint32_t n) {
  for (uint32_t i = 0; i < end->noutputs; i++)
    if (end->outputs[i] == n)
      return true;
  return false;
}

/* Whether a value is wanted that the callable of the end does not return. */
static bool wants_more(const MothSegment *s, const MothTraceEnd *end) {
  for (uint32_t n = 0; n < s->nvalues; n++)
    if (is_wanted(s, n) && !is_output(end, n))
      return true;
  return false;
}

/* Whether value i, which is lazy, shares memory with one of the n outputs, and not with a tensor from outside. */
static bool shares_with_output(const MothSegment *s, uint32_t i, const uint32_t *outputs,
                               uint32_t n) {
  const MothStorage *storage = s->shadows[i]->storage;
  bool shares = false;
  for (uint32_t k = 0; k < n && !shares; k++)
    shares = s->shadows[outputs[k]]->storage == storage;
  for (uint32_t k = 0; k < s->nvalues && shares; k++)
    shares = s->values[k]->keys & MOTH_KEY_LAZY || s->shadows[k]->storage != storage;
  return shares;
}

/* To the outputs come those that are wanted, and what shares memory with these: a write to one is seen in the others. What
 * is compiled returns them in their order, and is forgotten where there are more now. */
static MothStatus add_outputs(MothSegment *s, MothTraceEnd *end) {
  uint32_t *list = malloc(sizeof *list * ((size_t)s->nvalues + 1)), n = 0;
  if (!list)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory");
  MothStatus status = moth_shadow_prepare(s);
  if (status == MOTH_OK && !moth_end_classify(s, end))
    status = MOTH_ERR_MEMORY;
  if (status) {
    free(list);
    return status;
  }
  for (; n < end->noutputs; n++)
    list[n] = end->outputs[n];
  for (uint32_t i = 0; i < s->nvalues; i++)
    if (is_wanted(s, i) && !is_output(end, i))
      list[n++] = i;
  for (uint32_t i = 0, wanted = n; i < s->nvalues; i++) {
    bool there = !(s->values[i]->keys & MOTH_KEY_LAZY);
    for (uint32_t k = 0; k < wanted && !there; k++)
      there = list[k] == i;
    if (!there && shares_with_output(s, i, list, wanted))
      list[n++] = i;
  }
  if (n > end->noutputs)
    moth_end_forget(end);
  free(end->outputs);
  end->outputs = list;
  end->noutputs = n;
  return MOTH_OK;
}

/* Pushes a list of the numbers of this call. */
static void push_numbers(lua_State *L, const MothSegment *s, const MothTraceCode *c) {
  int n = 0;
  lua_createtable(L, (int)c->nnumbers, 0);
  for (uint32_t k = 0; k < s->nrecords; k++) {
    const MothRecord *r = s->records[k];
    for (int i = 0; i < r->op->nargs; i++)
      if (moth_arg_varies(r, i, c->dynamic)) {
        moth_lua_push_value(L, &r->op->args[i], r->args[i].value);
        lua_rawseti(L, -2, ++n);
      }
  }
}

/* Pushes the tensors from outside. */
static int push_inputs(lua_State *L, const MothSegment *s) {
  int n = 0;
  for (uint32_t k = 0; k < s->nrecords; k++) {
    const MothRecord *r = s->records[k];
    if (!lua_checkstack(L, (int)r->nnew + 8))
      return -1;
    for (uint32_t i = r->first; i < r->first + r->nnew; i++, n++) {
      moth_tensor_retain(s->values[i]);
      moth_lua_push_tensor(L, s->values[i]);
    }
  }
  return n;
}

static MothStatus too_many(void) {
  return moth_fail(MOTH_ERR_STATE, "the Lua stack is full");
}

static MothStatus graph_of(const MothSegment *s, const MothTraceEnd *end, MothGraph **g) {
  MothTensor **outputs = malloc(sizeof(MothTensor *) * ((size_t)end->noutputs + 1));
  if (!outputs)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory");
  for (uint32_t i = 0; i < end->noutputs; i++)
    outputs[i] = s->values[end->outputs[i]];
  MothStatus status = moth_graph_of_segment(s, outputs, end->noutputs, NULL, -1, g);
  free(outputs);
  return status;
}

/* Pushes the list of the tensors from outside. */
static MothStatus push_input_list(lua_State *L, const MothSegment *s) {
  int first = lua_gettop(L) + 1, n = push_inputs(L, s);
  if (n < 0)
    return too_many();
  lua_createtable(L, n, 0);
  lua_insert(L, first);
  for (int i = n; i > 0; i--)
    lua_rawseti(L, first, i);
  return MOTH_OK;
}

/* Pushes the list of an end's callables. */
static void push_codes(lua_State *L, const MothTraceEnd *end, int env) {
  lua_rawgeti(L, env, end->number);
  if (lua_istable(L, -1) && end->codes)
    return;
  lua_pop(L, 1);
  lua_newtable(L);
  lua_pushvalue(L, -1);
  lua_rawseti(L, env, end->number);
}

/* A difference between calls that concerns a backend. */
static void note(const MothTraceEnd *end, const char *what) {
  char text[512];
  snprintf(text, sizeof text, "graph %d: %s%s%s", end->number, what,
           end->last->place[0] ? ", at " : "", end->last->place);
  if (moth_trace_note(end->trace, false, text) && moth_trace_host.broke)
    moth_trace_host.broke(end->trace, NULL, text);
}

/* Has the backend compile the segment, for good where the end is settled; its callable goes to the list of its end. With it
 * comes whether it defers values that are no outputs; nil and true: the calls are to run one by one, always; nil alone:
 * they do so this time. A number behind them: after so many runs the end is settled, and the backend asked again. */
static MothStatus compile(lua_State *L, MothSegment *s, MothTraceEnd *end, int env) {
  MothGraph *g;
  int64_t begin = moth_trace_now();
  MOTH_TRY(graph_of(s, end, &g));
  push_codes(L, end, env);
  lua_getfield(L, env, "compile");
  push_graph(L, g);
  atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
  MothStatus status = push_input_list(L, s);
  if (status == MOTH_OK)
    lua_pushboolean(L, end->settled);
  if (status == MOTH_OK)
    status = moth_lua_call(L, 3, 3);
  bool flag = status == MOTH_OK && lua_toboolean(L, -2);
  bool none = status == MOTH_OK && lua_isnil(L, -3);
  if (status == MOTH_OK && !end->settled && !end->trial && lua_isnumber(L, -1))
    end->trial = end->runs + (int64_t)lua_tonumber(L, -1);
  if (status == MOTH_OK && (flag || !none)) {
    bool another = end->codes != NULL, resized = moth_end_is_resized(s, end);
    MothTraceCode *c =
        moth_end_add_code(s, end, g->dynamic, !g->dynamic || g->sizes_pinned, g->pinned);
    if (c) {
      c->defers = flag && !none;
      c->plain = flag && none;
      end->known = end->known || c->defers;
      lua_pop(L, 2);
      lua_rawseti(L, -2, c->id);
      c->resized = c->defers && resized;
      /* The first came with the end. */
      if (another && !c->resized) {
        note(end, "a backend compiled it again for other numbers or sizes");
        moth_trace_counters()->graphs++;
        moth_trace_counters()->recompiles++;
      }
    } else {
      status = moth_fail(MOTH_ERR_MEMORY, "out of memory");
    }
  }
  moth_graph_release(g);
  int64_t took = moth_trace_now() - begin;
  end->compile_ns += took;
  moth_trace_counters()->compile_ns += took;
  return status;
}

static MothStatus take_output(MothTensor *t, lua_State *L, int idx, uint32_t i, uint32_t n,
                              MothTensor **out) {
  MothHandle *h = moth_lua_handle(L, idx, MOTH_MAGIC_TENSOR);
  char a[256], b[256];
  if (!h || !h->u.t)
    return moth_fail(MOTH_ERR_TYPE,
                     "compile: the backend's function returned %s as output %u of %u",
                     luaL_typename(L, idx), i + 1, n);
  MothTensor *made = h->u.t;
  if (made->dtype != t->dtype || made->ndim != t->ndim || made->device.type != t->device.type ||
      memcmp(made->shape, t->shape, sizeof(int64_t) * t->ndim) != 0)
    return moth_fail(MOTH_ERR_VALUE, "compile: output %u of the backend's function is %s, not %s",
                     i + 1, moth_tensor_format(made, a, sizeof a),
                     moth_tensor_format(t, b, sizeof b));
  moth_tensor_retain(made);
  *out = made; /* its handle holds it */
  return moth_lazy_become(t, made);
}

/* Views of a tensor that the callable returned become views of the one that it has become: a write to either finds the
 * other's history. `made` are what it returned. */
static void relate_views(const MothSegment *s, const MothTraceEnd *end, MothTensor *const *made) {
  for (uint32_t i = 0; i < end->noutputs; i++) {
    MothTensor *t = s->values[end->outputs[i]];
    for (uint32_t k = 0; t->base && k < end->noutputs; k++)
      if (t->base == made[k]) {
        MothTensor *base = t->base;
        t->base = s->values[end->outputs[k]];
        moth_tensor_retain(t->base);
        moth_tensor_release(base);
        break;
      }
  }
}

/* Runs the plan, or the compiled segment at idx, and takes what it gives. */
static MothStatus run_direct(lua_State *L, MothPlan *p, int idx, MothSegment *s,
                             const MothTraceEnd *end) {
  enum { FEW = 64 };
  MothTensor *some[2 * FEW], **all = some;
  uint32_t n = 0, ninputs = 0;
  for (uint32_t k = 0; k < s->nrecords; k++)
    ninputs += s->records[k]->nnew;
  if (ninputs > FEW || end->noutputs > FEW)
    all = malloc(sizeof *all * ((size_t)ninputs + end->noutputs));
  if (!all)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory");
  for (uint32_t k = 0; k < s->nrecords; k++) {
    const MothRecord *r = s->records[k];
    for (uint32_t i = r->first; i < r->first + r->nnew; i++)
      all[n++] = s->values[i];
  }
  MothTensor **made = all + n;
  memset(made, 0, sizeof *made * end->noutputs);
  MothValue few[FEW], *numbers = few;
  uint32_t nnumbers = end->code->nnumbers;
  if (nnumbers > FEW && !(numbers = malloc(sizeof *numbers * nnumbers))) {
    if (all != some)
      free(all);
    return moth_fail(MOTH_ERR_MEMORY, "out of memory");
  }
  if (nnumbers)
    moth_segment_numbers(s, end->code->dynamic, numbers);
  const MothValue *given = nnumbers ? numbers : NULL;
  MothStatus status = p ? moth_plan_run(p, all, n, given, made, true)
                        : moth_lua_run_segment(L, idx, all, n, given, made);
  if (numbers != few)
    free(numbers);
  bool ran = status == MOTH_OK;
  for (uint32_t i = 0; i < end->noutputs && ran; i++)
    if (status == MOTH_OK)
      status = moth_lazy_become(s->values[end->outputs[i]], made[i]);
    else
      moth_tensor_release(made[i]);
  if (status == MOTH_OK)
    relate_views(s, end, made);
  if (all != some)
    free(all);
  return status;
}

/* Calls the callable and takes what it returns: a list, or values. */
static MothStatus run_code(lua_State *L, MothSegment *s, const MothTraceEnd *end, int env) {
  lua_rawgeti(L, env, end->number);
  int top = lua_gettop(L);
  lua_rawgeti(L, top, end->code->id);
  MothPlan *plan = moth_lua_to_plan(L, top + 1);
  if (plan || moth_lua_is_segment(L, top + 1))
    return run_direct(L, plan, top + 1, s, end);
  int n = push_inputs(L, s);
  if (n < 0)
    return too_many();
  if (end->code->nnumbers) {
    push_numbers(L, s, end->code);
    n++;
  }
  MothStatus status = moth_lua_call(L, n, LUA_MULTRET);
  bool list = lua_gettop(L) > top && lua_istable(L, top + 1);
  int got = list ? (int)lua_objlen(L, top + 1) : lua_gettop(L) - top;
  if (status == MOTH_OK && got < (int)end->noutputs)
    status = moth_fail(MOTH_ERR_VALUE, "compile: the backend's function returned %d of %u outputs",
                       got, end->noutputs);
  MothTensor **made = malloc(sizeof(MothTensor *) * ((size_t)end->noutputs + 1));
  if (status == MOTH_OK && !made)
    status = moth_fail(MOTH_ERR_MEMORY, "out of memory");
  for (uint32_t i = 0; i < end->noutputs && status == MOTH_OK; i++) {
    if (list)
      lua_rawgeti(L, top + 1, (int)i + 1);
    else
      lua_pushvalue(L, top + 1 + (int)i);
    status = take_output(s->values[end->outputs[i]], L, lua_gettop(L), i, end->noutputs, &made[i]);
    lua_pop(L, 1);
  }
  if (status == MOTH_OK)
    relate_views(s, end, made);
  free(made);
  return status;
}

/* Whether no code is made for what s has noted. env: the environment of the trace, where the codes are. */
static bool has_enough(lua_State *L, const MothSegment *s, MothTraceEnd *end, int env) {
  int kept = 0, others = 0;
  bool own = true;
  for (const MothTraceCode *c = end->codes; c; c = c->older) {
    kept++;
    others += !c->resized;
    own = own && c->defers;
  }
  if (!kept)
    return false;
  if (!own || !moth_end_is_resized(s, end))
    return (own ? others : end->ncodes) >=
           (end->compile_ns / end->ncodes > SLOW ? MOST_SLOW_CODES : MOST_CODES);
  if (kept < MOST_CODES)
    return false;
  if (end->runs - end->codes->made < WAIT)
    return true;
  lua_rawgeti(L, env, end->number);
  lua_pushnil(L);
  lua_rawseti(L, -2, moth_end_drop_oldest(end));
  lua_pop(L, 1);
  return false;
}

/* A full collection: what garbage holds is not wanted. With a large heap of Lua's at most a twentieth of the time goes
 * to it: then what garbage holds may be computed, too. */
static void collect(lua_State *L) {
  enum { LARGE = 256 << 10, SHARE = 20 }; /* in KB; in parts of the time */
  static _Thread_local int64_t until;
  int64_t start = moth_trace_now();
  if (start < until && lua_gc(L, LUA_GCCOUNT, 0) > LARGE)
    return;
  lua_gc(L, LUA_GCCOLLECT, 0);
  int64_t end = moth_trace_now();
  until = end + SHARE * (end - start);
}

static MothStatus run(MothSegment *s, MothTraceEnd *end, bool *done) {
  lua_State *L = moth_lua_current;
  MothThread *t = moth_thread_state();
  *done = false;
  if (!L || !lua_checkstack(L, 32))
    return MOTH_OK;
  for (uint32_t k = 0; t->saved_hooks && k < s->nrecords; k++)
    if (!s->records[k]->modes.no_grad)
      return MOTH_OK; /* the hooks (a checkpoint's) get what each call saves, in its order */
  if (end->trial && end->runs >= end->trial) {
    end->trial = 0;
    end->settled = true;
    moth_end_forget(end);
  }
  moth_end_select(s, end);
  if (end->code && end->code->plain)
    return MOTH_OK;
  int top = lua_gettop(L);
  lua_pushlightuserdata(L, &key_backends);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_pushlightuserdata(L, end->trace);
  lua_rawget(L, -2);
  if (!lua_isuserdata(L, -1)) {
    lua_settop(L, top);
    return MOTH_OK;
  }
  lua_getfenv(L, -1);
  int env = lua_gettop(L);
  if (!end->code && has_enough(L, s, end, env)) {
    note(end, "it has code for enough numbers or sizes; with others its calls run one by one");
    lua_settop(L, top);
    return MOTH_OK;
  }
  MothStatus status = MOTH_OK;
  if (end->code ? !end->code->defers && wants_more(s, end) : !end->known) {
    collect(L);
    if (end->codes && wants_more(s, end)) {
      if (end->code)
        moth_trace_counters()->recompiles++;
      moth_end_forget(end);
    }
  }
  bool recording = false;
  for (uint32_t k = 0; k < s->nrecords; k++)
    recording = recording || !s->records[k]->modes.no_grad;
  uint32_t include = t->include, exclude = t->exclude;
  bool no_grad = t->no_grad;
  t->include &= ~(uint32_t)MOTH_KEY_AUTOCAST; /* each node has its own */
  moth_set_grad_enabled(recording);
  if (!end->code) {
    bool known = end->classes != NULL;
    if (!end->known)
      status = add_outputs(s, end);
    if (status == MOTH_OK && !known && end->draws) /* else it was taken before */
      moth_generator_get_state(moth_default_generator(), &s->drawn[0], &s->drawn[1]);
    if (status == MOTH_OK)
      status = compile(L, s, end, env);
  }
  *done = status == MOTH_OK && end->code && !end->code->plain;
  if (*done && end->code->defers)
    moth_set_grad_enabled(false); /* none of its results has a history */
  if (*done)
    status = run_code(L, s, end, env);
  t->include = include;
  t->exclude = exclude;
  t->no_grad = no_grad;
  lua_settop(L, top);
  return status;
}

/* A check has found a difference: differs(graph, inputs, text) of the environment raises its error. */
static MothStatus differs(MothSegment *s, MothTraceEnd *end, const char *text) {
  lua_State *L = moth_lua_current;
  MothStatus status = MOTH_OK;
  MothGraph *g;
  if (!L || !lua_checkstack(L, 32))
    return moth_fail(MOTH_ERR_VALUE, "[compile] check: %s", text);
  int top = lua_gettop(L);
  lua_pushlightuserdata(L, &key_backends);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_pushlightuserdata(L, end->trace);
  lua_rawget(L, -2);
  if (lua_isuserdata(L, -1)) {
    lua_getfenv(L, -1);
    lua_getfield(L, -1, "differs");
    status = graph_of(s, end, &g);
    if (status == MOTH_OK) {
      push_graph(L, g);
      status = push_input_list(L, s);
    }
    if (status == MOTH_OK) {
      lua_pushfstring(L, "%s, graph %d: %s", end->trace->name, end->number, text);
      status = moth_lua_call(L, 3, 0);
    }
  }
  lua_settop(L, top);
  return status == MOTH_OK ? moth_fail(MOTH_ERR_VALUE, "[compile] check: %s, graph %d: %s",
                                       end->trace->name, end->number, text)
                           : status;
}

/* set_check(on) */
static int c_set_check(lua_State *L) {
  moth_segment_checks = lua_toboolean(L, 1);
  return 0;
}

void moth_lua_set_check(lua_State *L, MothTrace *t) {
  t->exact = lua_toboolean(L, 2);
  lua_getfenv(L, 1);
  lua_pushvalue(L, 3);
  if (t->host)
    lua_setfield(L, -2, "differs");
}

static void install(void) { /* once a process */
  moth_trace_host.run = run;
  moth_trace_host.differs = differs;
}

void moth_lua_open_graphs(lua_State *L) { /* the table of the compiler's functions is on top */
  static const luaL_Reg fns[] = {{"graph_noted", c_graph_noted},
                                 {"graph_text", c_graph_text},
                                 {"graph_nodes", c_graph_nodes},
                                 {"graph_node", c_graph_node},
                                 {"graph_fake", c_graph_fake},
                                 {"graph_insert", c_graph_insert},
                                 {"graph_erase", c_graph_erase},
                                 {"graph_fold", c_graph_fold},
                                 {"graph_replace", c_graph_replace},
                                 {"graph_eliminate", c_graph_eliminate},
                                 {"graph_check", c_graph_check},
                                 {"graph_run", c_graph_run},
                                 {"copies", c_copies},
                                 {"set_check", c_set_check},
                                 {"graph_facts", c_graph_facts},
                                 {"graph_pin", c_graph_pin},
                                 {"graph_set_number", c_graph_set_number},
                                 {NULL, NULL}};
  luaL_register(L, NULL, fns);
  moth_lua_open_plans(L);
  lua_pushlightuserdata(L, &key_graph_meta);
  lua_newtable(L);
  lua_pushcfunction(L, graph_gc);
  lua_setfield(L, -2, "__gc");
  lua_rawset(L, LUA_REGISTRYINDEX);
  lua_pushlightuserdata(L, &key_backends);
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "v");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, install);
  moth_lua_open_aot(L);
}
