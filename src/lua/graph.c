/* Graphs for Lua: lua/moth/compile/graph.lua makes objects of these. */
#include "graph/joint.h"

#include <math.h>
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
    return moth_lua_raise(L, moth_no_memory(0));
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
 * number. open: what moth_arg_is_open is { size = a number or a list }. */
static void push_args(lua_State *L, const MothGraphNode *n, bool open) {
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
      if (open && moth_arg_is_open(n, i)) {
        lua_createtable(L, 0, 1);
        lua_insert(L, -2);
        lua_setfield(L, -2, "size");
      } else if (n->args[i].number) {
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

/* graph_node(g, id, open, brief) -> { kind, name, target, default_dtype, place, args, metas, tensor }, or nil. brief: without
 * name, plain, no_grad, and with the sizes and names of dtypes alone of results; kind and tensor alone of get_attr. */
static int c_graph_node(lua_State *L) {
  static const char *const kinds[] = {"placeholder", "get_attr", "call", "output"};
  MothGraph *g = check_graph(L, 1);
  const MothGraphNode *n = moth_graph_node(g, (uint32_t)moth_lua_check_integer(L, 2, 1, MOST));
  bool open = lua_toboolean(L, 3), brief = lua_toboolean(L, 4);
  if (!n)
    return 0;
  lua_createtable(L, 0, 8);
  lua_pushstring(L, kinds[n->kind]);
  lua_setfield(L, -2, "kind");
  if (n->tensor) {
    moth_tensor_retain(n->tensor);
    moth_lua_push_tensor(L, n->tensor);
    lua_setfield(L, -2, "tensor");
    if (brief)
      return 1;
  }
  lua_pushstring(L, n->place ? n->place : "");
  lua_setfield(L, -2, "place");
  if (n->op) {
    lua_pushfstring(L, "%s%s", n->op->name,
                    n->variant == MOTH_INPLACE && !n->op->returns_self ? "_" : "");
    lua_setfield(L, -2, "target");
    lua_pushstring(L, moth_dtype_name((MothDType)n->modes.dtype));
    lua_setfield(L, -2, "default_dtype");
    push_args(L, n, open);
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
  if (!brief) {
    lua_pushstring(L, n->name);
    lua_setfield(L, -2, "name");
    lua_pushboolean(L, is_plain(n));
    lua_setfield(L, -2, "plain");
    lua_pushboolean(L, n->modes.no_grad);
    lua_setfield(L, -2, "no_grad");
  }
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
    if (brief) {
      lua_pushstring(L, moth_dtype_name((MothDType)m->dtype));
      lua_setfield(L, -2, "dtype");
    } else {
      moth_lua_push_dtype(L, (MothDType)m->dtype);
      lua_setfield(L, -2, "dtype");
      push_list(L, m->ndim, m->dims + m->ndim);
      lua_setfield(L, -2, "stride");
      moth_lua_push_device(L, m->device);
      lua_setfield(L, -2, "device");
      lua_pushboolean(L, (m->keys & MOTH_KEY_AUTOGRAD) != 0);
      lua_setfield(L, -2, "requires_grad");
    }
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

/* graph_form(g, id or nil) -> the form of g, or of a node's results; its sizes, as the bytes of doubles */
static int c_graph_form(lua_State *L) {
  MothGraph *g = check_graph(L, 1);
  MothGraphForm f;
  MothStatus s = moth_graph_form(g, lua_isnoneornil(L, 2) ? NULL : check_node(L, g, 2), &f);
  if (s)
    return moth_lua_raise(L, s);
  lua_pushlstring(L, f.text, f.length);
  lua_pushlstring(L, (const char *)f.sizes, f.nsizes * sizeof *f.sizes);
  moth_graph_form_free(&f);
  return 2;
}

/* graph_pins(g) -> { whether what is made of g holds for this value of the number, … }, { its value or false, … } */
static int c_graph_pins(lua_State *L) {
  const MothGraph *g = check_graph(L, 1);
  lua_createtable(L, (int)g->nnumbers, 0);
  for (uint32_t k = 0; k < g->nnumbers; k++) {
    lua_pushboolean(L, g->pinned[k]);
    lua_rawseti(L, -2, (int)k + 1);
  }
  lua_createtable(L, (int)g->nnumbers, 0);
  for (const MothGraphNode *n = g->first; n; n = n->next)
    for (int i = 0; n->op && i < n->op->nargs; i++)
      if (n->args[i].number) {
        const MothValue *v = &n->args[i].value;
        if (v->tag == MOTH_V_INT || v->tag == MOTH_V_FLOAT)
          moth_lua_push_value(L, &n->op->args[i], *v);
        else
          lua_pushboolean(L, false);
        lua_rawseti(L, -2, (int)n->args[i].number);
      }
  return 2;
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
      ints[i] = moth_whole(lua_tonumber(L, -1));
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
  moth_lua_push_tensors(L, outputs, noutputs);
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
  moth_lua_push_tensors(L, out, n);
  return 1;
}

void moth_lua_open_graphs(lua_State *L) { /* the table of the compiler's functions is on top */
  static const luaL_Reg fns[] = {{"graph_noted", c_graph_noted},
                                 {"graph_text", c_graph_text},
                                 {"graph_nodes", c_graph_nodes},
                                 {"graph_node", c_graph_node},
                                 {"graph_fake", c_graph_fake},
                                 {"graph_insert", c_graph_insert},
                                 {"graph_form", c_graph_form},
                                 {"graph_pins", c_graph_pins},
                                 {"graph_erase", c_graph_erase},
                                 {"graph_fold", c_graph_fold},
                                 {"graph_replace", c_graph_replace},
                                 {"graph_eliminate", c_graph_eliminate},
                                 {"graph_check", c_graph_check},
                                 {"graph_run", c_graph_run},
                                 {"copies", c_copies},
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
  moth_lua_open_segments(L);
  moth_lua_open_aot(L);
}
