/* Autograd for Lua: backward, gradients, nodes, functions written in Lua. Hooks are in hooks.c.
 *
 * The backward of a Function lies in a table of the registry until its node is freed; freeing the node only notes the
 * number, and the state removes the value when it next makes a handle. C calls it with lua_pcall on the running
 * state. An error that it raises is kept, the engine unwinds by status, and the outermost frame raises the same
 * object again. */
#include <string.h>

#include "core/alloc.h"
#include "graph/trace.h"
#include "lua/moth_lua.h"

static void retain_push(lua_State *L, MothTensor *t) {
  moth_tensor_retain(t);
  moth_lua_push_tensor(L, t);
}

static int check_count(lua_State *L, int idx) {
  double n = luaL_checknumber(L, idx);
  if (!(n >= 0 && n <= UINT16_MAX))
    moth_lua_error(L, "expected a count of at most %d, got %g", UINT16_MAX, n);
  return (int)n;
}

/* A table of tensors as a C array, in a userdata that stays on the stack. nil elements are NULL where
 * `holes`; n is given then. */
static MothTensor **tensor_array(lua_State *L, int idx, int *n, bool holes, const char *what) {
  moth_lua_type(L, idx, LUA_TTABLE);
  if (!holes)
    *n = (int)lua_objlen(L, idx);
  MothTensor **list = lua_newuserdata(L, sizeof *list * (size_t)(*n ? *n : 1));
  for (int i = 0; i < *n; i++) {
    lua_rawgeti(L, idx, i + 1);
    list[i] = holes && !moth_lua_handle(L, -1, MOTH_MAGIC_TENSOR)
                  ? NULL
                  : moth_lua_check_tensor(L, -1, what);
    lua_pop(L, 1);
  }
  return list;
}

/* backward(roots, gradients, retain_graph, create_graph) */
static int b_backward(lua_State *L) {
  int n = 0;
  moth_lua_enter(L);
  lua_settop(L, 4);
  MothTensor **roots = tensor_array(L, 1, &n, false, "backward");
  MothTensor **grads =
      lua_isnoneornil(L, 2) ? NULL : tensor_array(L, 2, &n, true, "backward: gradient");
  lua_State *outer = moth_lua_current;
  const char *why = NULL;
  bool retain = lua_toboolean(L, 3), create = lua_toboolean(L, 4), noted = false;
  MothStatus s = MOTH_OK;
  moth_lua_current = L;
  if (moth_unrun) {
    s = moth_trace_backward(roots, grads, n, retain, create, &why);
    noted = !why;
    if (s == MOTH_OK && why)
      s = moth_segment_break(why);
  }
  if (s == MOTH_OK && !noted) {
    bool pass = moth_segment_pass(true);
    s = moth_backward(roots, grads, n, retain, create);
    moth_segment_pass(pass);
  }
  moth_lua_current = outer;
  return s ? moth_lua_raise(L, s) : 0;
}

/* grad(outputs, inputs, gradients, retain, create, allow_unused, of_gradients) -> one value per input. of_gradients:
 * with create, the results have a history by `gradients` alone. */
static int b_grad(lua_State *L) {
  int n = 0, ninputs = 0;
  moth_lua_enter(L);
  lua_settop(L, 7);
  MothTensor **roots = tensor_array(L, 1, &n, false, "grad: output");
  MothTensor **inputs = tensor_array(L, 2, &ninputs, false, "grad: input");
  MothTensor **grads =
      lua_isnoneornil(L, 3) ? NULL : tensor_array(L, 3, &n, true, "grad: gradient");
  MothTensor **out = lua_newuserdata(L, sizeof *out * (size_t)(ninputs ? ninputs : 1));
  lua_State *outer = moth_lua_current;
  const char *why = NULL;
  bool retain = lua_toboolean(L, 4), create = lua_toboolean(L, 5), noted = false;
  MothStatus s = MOTH_OK;
  moth_lua_current = L;
  if (moth_unrun) {
    memset(out, 0, sizeof *out * (size_t)ninputs);
    s = moth_trace_grad(roots, grads, n, inputs, ninputs, retain, create, out, &why);
    noted = !why;
    if (s == MOTH_OK && why)
      s = moth_segment_break(why);
  }
  if (s == MOTH_OK && !noted) {
    bool pass = moth_segment_pass(true);
    moth_grad_of_gradients(lua_toboolean(L, 7));
    s = moth_grad(roots, grads, n, inputs, ninputs, retain, create, lua_toboolean(L, 6), out);
    moth_grad_of_gradients(false); /* also where it failed before it reset this */
    moth_segment_pass(pass);
  }
  moth_lua_current = outer;
  if (s)
    return moth_lua_raise(L, s);
  luaL_checkstack(L, ninputs, "grad");
  for (int i = 0; i < ninputs; i++) {
    if (out[i])
      moth_lua_push_tensor(L, out[i]);
    else
      lua_pushnil(L);
  }
  return ninputs;
}

static int b_get_grad(lua_State *L) {
  MothTensor *g = moth_tensor_grad(moth_lua_check_tensor(L, 1, "grad"));
  if (!g)
    return 0;
  retain_push(L, g);
  return 1;
}

static int b_set_grad(lua_State *L) {
  MothTensor *g = lua_isnoneornil(L, 2) ? NULL : moth_lua_check_tensor(L, 2, "grad");
  MothStatus s = moth_tensor_set_grad(moth_lua_check_tensor(L, 1, "grad"), g);
  return s ? moth_lua_raise(L, s) : 0;
}

/* gradients(params) -> those that have a gradient (params itself where all have), their gradients. */
static int b_gradients(lua_State *L) {
  moth_lua_type(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  int n = (int)lua_objlen(L, 1), found = 0;
  lua_createtable(L, n, 0);
  for (int i = 1; i <= n; i++) {
    lua_rawgeti(L, 1, i);
    MothTensor *g = moth_tensor_grad(moth_lua_check_tensor(L, -1, "grad"));
    lua_pop(L, 1);
    if (g) {
      retain_push(L, g);
      lua_rawseti(L, 2, ++found);
    }
  }
  if (found == n)
    return 2;
  lua_createtable(L, found, 0);
  for (int i = 1, k = 0; i <= n; i++) {
    lua_rawgeti(L, 1, i);
    if (moth_tensor_grad(moth_lua_check_tensor(L, -1, "grad")))
      lua_rawseti(L, 3, ++k);
    else
      lua_pop(L, 1);
  }
  lua_insert(L, 2);
  return 2;
}

/* zero_grads(params): sets every .grad of the list to nil, in one call. */
static int b_zero_grads(lua_State *L) {
  moth_lua_type(L, 1, LUA_TTABLE);
  int n = (int)lua_objlen(L, 1);
  for (int i = 1; i <= n; i++) {
    lua_rawgeti(L, 1, i);
    moth_tensor_set_grad(moth_lua_check_tensor(L, -1, "zero_grad"), NULL);
    lua_pop(L, 1);
  }
  return 0;
}

static int b_requires_grad(lua_State *L) {
  lua_pushboolean(L, moth_tensor_requires_grad(moth_lua_check_tensor(L, 1, "requires_grad")));
  return 1;
}
static int b_set_requires_grad(lua_State *L) {
  MothStatus s = moth_tensor_set_requires_grad(moth_lua_check_tensor(L, 1, "requires_grad_"),
                                               lua_isnoneornil(L, 2) || lua_toboolean(L, 2));
  if (s)
    return moth_lua_raise(L, s);
  lua_settop(L, 1);
  MothTensor *t = moth_lua_check_tensor(L, 1, "requires_grad_");
  if (moth_lua_is_leaf(t))
    moth_lua_add_leaf(L, t, 1);
  return 1;
}
static int b_is_leaf(lua_State *L) {
  lua_pushboolean(L, moth_tensor_is_leaf(moth_lua_check_tensor(L, 1, "is_leaf")));
  return 1;
}
static int b_retain_grad(lua_State *L) {
  MothStatus s = moth_tensor_retain_grad(moth_lua_check_tensor(L, 1, "retain_grad"));
  return s ? moth_lua_raise(L, s) : 0;
}
static int b_grad_enabled(lua_State *L) {
  moth_lua_sync(L);
  lua_pushboolean(L, moth_grad_enabled());
  return 1;
}
static int b_set_grad_enabled(lua_State *L) {
  moth_lua_sync(L);
  lua_pushboolean(L, moth_set_grad_enabled(lua_toboolean(L, 1)));
  return 1;
}

/* --- nodes ------------------------------------------------------------------------------------- */

/* A node as Lua sees it: a userdata that holds a reference. */
static char key_node;

void moth_lua_push_node(lua_State *L, MothNode *n) {
  MothHandle *h = lua_newuserdata(L, sizeof *h);
  h->magic = MOTH_MAGIC_NODE;
  h->u.n = n;
  moth_node_retain(n);
  lua_pushlightuserdata(L, &key_node);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_setmetatable(L, -2);
}

MothNode *moth_lua_check_node(lua_State *L, int idx) {
  MothHandle *h = moth_lua_handle(L, idx, MOTH_MAGIC_NODE);
  if (h && h->u.n)
    return h->u.n;
  moth_lua_error(L, "expected a grad_fn, got %s", h ? "a released one" : luaL_typename(L, idx));
  return NULL;
}

static int node_gc(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MOTH_MAGIC_NODE);
  if (h) {
    moth_node_release(h->u.n);
    h->u.n = NULL;
  }
  return 0;
}
static int node_name(lua_State *L) {
  lua_pushstring(L, moth_lua_check_node(L, 1)->name);
  return 1;
}
/* id() -> a key for tables, the same for every userdata of the node */
static int node_id(lua_State *L) {
  lua_pushlightuserdata(L, moth_lua_check_node(L, 1));
  return 1;
}
static int node_tostring(lua_State *L) {
  lua_pushfstring(L, "<%s>", moth_lua_check_node(L, 1)->name);
  return 1;
}
static int node_eq(lua_State *L) {
  MothHandle *a = moth_lua_handle(L, 1, MOTH_MAGIC_NODE),
             *b = moth_lua_handle(L, 2, MOTH_MAGIC_NODE);
  lua_pushboolean(L, a && b && a->u.n == b->u.n);
  return 1;
}
/* The next input after `i` that is a tensor or may be one (numbers are counted as inputs, too); -1: there is none. */
int moth_lua_next_input(const MothNode *n, int i) {
  for (i++; i < n->ninputs; i++) {
    int a = n->op ? n->op->nargs - 1 : 0;
    while (n->op && a > 0 && n->edge_of[a] > i)
      a--;
    int type = n->op ? n->op->args[a].type : MOTH_T_TENSOR;
    if (type == MOTH_T_TENSOR || type == MOTH_T_OPERAND || type == MOTH_T_TENSORS)
      return i;
  }
  return -1;
}

/* next_functions() -> { { node, n }, ... }, one for each input: the node that made the input, as its n-th result
 * (from 1), and that gets its gradient; nil if the input needs none. */
static int node_next(lua_State *L) {
  MothNode *n = moth_lua_check_node(L, 1);
  lua_createtable(L, n->ninputs, 0);
  for (int i = -1, k = 1; (i = moth_lua_next_input(n, i)) >= 0; k++) {
    lua_createtable(L, 2, 0);
    if (n->inputs[i].node) {
      moth_lua_push_node(L, n->inputs[i].node);
      lua_rawseti(L, -2, 1);
    }
    lua_pushinteger(L, n->inputs[i].nr + 1);
    lua_rawseti(L, -2, 2);
    lua_rawseti(L, -2, k);
  }
  return 1;
}
/* Methods, and two fields. `variable`: the leaf that an accumulator adds to. `metadata`: a table for users, one for
 * each node. */
static int node_index(lua_State *L) {
  MothNode *n = moth_lua_check_node(L, 1);
  lua_pushvalue(L, 2);
  lua_rawget(L, lua_upvalueindex(1));
  const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
  if (lua_isnil(L, -1) && n->seq == MOTH_SEQ_LEAF && strcmp(key, "variable") == 0) {
    moth_tensor_retain(n->ctx);
    moth_lua_push_tensor(L, n->ctx);
  } else if (lua_isnil(L, -1) && strcmp(key, "metadata") == 0) {
    moth_lua_push_metadata(L, n);
  }
  return 1;
}
/* For completion: the names of the methods and fields. */
static int node_names(lua_State *L) {
  int n = 0;
  lua_newtable(L);
  lua_pushliteral(L, "variable");
  lua_rawseti(L, -2, ++n);
  lua_pushliteral(L, "metadata");
  lua_rawseti(L, -2, ++n);
  for (lua_pushnil(L); lua_next(L, lua_upvalueindex(1));) {
    lua_pop(L, 1);
    lua_pushvalue(L, -1);
    lua_rawseti(L, -3, ++n);
  }
  return 1;
}
/* saved() -> { names of what is saved } as "self", "result" */
static int node_saved(lua_State *L) {
  MothNode *n = moth_lua_check_node(L, 1);
  lua_newtable(L);
  for (int i = 0; i < n->nsaved; i++) {
    int slot = n->saved[i].slot;
    if (slot >= 16)
      lua_pushfstring(L, slot > 16 ? "result%d" : "result", slot - 16);
    else
      lua_pushstring(L, n->op ? n->op->args[slot].name : "?");
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int b_grad_fn(lua_State *L) {
  MothTensor *t = moth_lua_check_tensor(L, 1, "grad_fn");
  MothNode *n;
  uint16_t nr;
  if (moth_tensor_is_leaf(t) && !t->base)
    return 0;
  MothStatus s = moth_gradient_edge(t, &n, &nr);
  if (s)
    return moth_lua_raise(L, s);
  if (!n)
    return 0;
  if (n->seq != MOTH_SEQ_LEAF)
    moth_lua_push_node(L, n);
  else
    lua_pushnil(L);
  moth_node_release(n);
  return 1;
}

/* --- functions written in Lua ------------------------------------------------------------------ */

typedef struct LuaFunction {
  MothLuaRef *fn; /* function(node, needs, ...) -> table of gradients */
  char name[48];
} LuaFunction;

static void drop_function(MothNode *n) {
  LuaFunction *f = n->ctx;
  moth_lua_ref_release(f->fn);
  moth_free(f, sizeof *f);
}

static MothStatus backward_function(MothNode *n, MothTensor *const *grads, uint32_t need,
                                    MothTensor **out) {
  lua_State *L = moth_lua_current;
  LuaFunction *f = n->ctx;
  if (!L)
    return moth_lua_no_state();
  if (!lua_checkstack(L, n->nresults + 8))
    return moth_fail(MOTH_ERR_STATE, "the Lua stack is full");
  if (!moth_lua_ref_push(L, f->fn))
    return MOTH_ERR_STATE;
  moth_lua_push_node(L, n);
  lua_pushnumber(L, (lua_Number)need);
  lua_pushboolean(L, n->released);
  for (int i = 0; i < n->nresults; i++)
    if (grads[i])
      retain_push(L, grads[i]);
    else
      lua_pushnil(L);
  MOTH_TRY(moth_lua_call(L, 3 + n->nresults, 1));
  MothStatus s = MOTH_OK;
  if (!lua_istable(L, -1)) {
    s = moth_fail(MOTH_ERR_TYPE, "the backward of %s returned no table", n->name);
  } else {
    for (int i = 0; i < n->ninputs && s == MOTH_OK; i++) {
      lua_rawgeti(L, -1, i + 1);
      MothHandle *h = moth_lua_handle(L, -1, MOTH_MAGIC_TENSOR);
      if (h && h->u.t) {
        if (n->inputs[i].node) {
          moth_tensor_retain(h->u.t);
          out[i] = h->u.t;
        }
      } else if (lua_toboolean(L, -1)) {
        s = moth_fail(MOTH_ERR_TYPE,
                      "the backward of %s returned %s for input %d; expected a tensor or nil",
                      n->name, luaL_typename(L, -1), i + 1);
      }
      lua_pop(L, 1);
    }
  }
  lua_pop(L, 1);
  return s;
}

static int b_increment_version(lua_State *L) {
  ++*moth_version_of(moth_lua_check_tensor(L, 1, "increment_version"));
  return 0;
}

/* record(name, fn, inputs, ninputs, outputs[, saved, nsaved, ofs, nkept, keeps_none]) -> node: outputs (new tensors, or
 * inputs that were written to) get a history. keeps_none: fn gets nil for results without a gradient. saved[i] is kept with the node; ofs[i]: it has the elements of that output (from 1). The last nkept of
 * them are not checked for changes, and stay when backward frees the graph. */
static int b_record(lua_State *L) {
  size_t len;
  const char *name = moth_lua_bytes(L, 1, &len);
  moth_lua_type(L, 2, LUA_TFUNCTION);
  lua_settop(L, 10);
  bool keeps_none = lua_toboolean(L, 10);
  bool saves = !lua_isnil(L, 6);
  int n = check_count(L, 4), nout = 0, nsaved = saves ? check_count(L, 7) : 0,
      nkept = saves ? check_count(L, 9) : 0;
  if (saves)
    moth_lua_type(L, 8, LUA_TTABLE);
  MothTensor **inputs = tensor_array(L, 3, &n, true, "Function");
  MothTensor **outputs = tensor_array(L, 5, &nout, false, "Function: result");
  MothTensor **saved = saves ? tensor_array(L, 6, &nsaved, true, "Function: saved tensor") : NULL;
  LuaFunction *f = moth_alloc(sizeof *f);
  if (!f)
    return moth_lua_raise(L, moth_no_memory(sizeof *f));
  if (len >= sizeof f->name)
    len = sizeof f->name - 1;
  memcpy(f->name, name, len);
  f->name[len] = 0;
  lua_pushvalue(L, 2);
  f->fn = moth_lua_ref_new(L);
  if (!f->fn) {
    moth_free(f, sizeof *f);
    return moth_lua_raise(L, moth_no_memory(0));
  }
  MothNode *node;
  lua_State *outer = moth_lua_current; /* watchers and hooks of what it saves may run Lua */
  moth_lua_current = L;
  MothStatus s = moth_function_record(f->name, backward_function, drop_function, f, inputs, n,
                                      outputs, nout, nsaved, &node);
  if (s) {
    moth_lua_current = outer;
    moth_lua_ref_release(f->fn);
    moth_free(f, sizeof *f);
    return moth_lua_raise(L, s);
  }
  node->keeps_none = keeps_none;
  for (int i = 0; i < nsaved && !s; i++) {
    lua_rawgeti(L, 8, i + 1);
    double of = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : 0;
    lua_pop(L, 1);
    s = moth_function_save(node, saved[i], of >= 1 && of <= nout ? (int)of - 1 : -1,
                           i >= nsaved - nkept);
  }
  moth_lua_current = outer;
  moth_lua_push_node(L, node);
  moth_node_release(node);
  return s ? moth_lua_raise(L, s) : 1;
}

/* saved(node, first, last) -> the saved values first … last that `record` got (from 1); results with their history */
static int b_saved(lua_State *L) {
  MothNode *n = moth_lua_check_node(L, 1);
  int first = check_count(L, 2), last = check_count(L, 3);
  luaL_checkstack(L, last, "saved tensors");
  for (int i = first; i <= last; i++) {
    MothTensor *t;
    lua_State *outer = moth_lua_current;
    moth_lua_current = L;
    MothStatus s = moth_function_saved(n, i - 1, &t);
    moth_lua_current = outer;
    if (s)
      return moth_lua_raise(L, s);
    if (t)
      moth_lua_push_tensor(L, t);
    else
      lua_pushnil(L);
  }
  return last < first ? 0 : last - first + 1;
}

void moth_lua_open_autograd(lua_State *L) {
  static const luaL_Reg fns[] = {{"increment_version", b_increment_version},
                                 {"backward", b_backward},
                                 {"grad", b_grad},
                                 {"get_grad", b_get_grad},
                                 {"set_grad", b_set_grad},
                                 {"gradients", b_gradients},
                                 {"zero_grads", b_zero_grads},
                                 {"requires_grad", b_requires_grad},
                                 {"set_requires_grad", b_set_requires_grad},
                                 {"is_leaf", b_is_leaf},
                                 {"retain_grad", b_retain_grad},
                                 {"grad_enabled", b_grad_enabled},
                                 {"set_grad_enabled", b_set_grad_enabled},
                                 {"grad_fn", b_grad_fn},
                                 {"record", b_record},
                                 {"saved", b_saved},
                                 {NULL, NULL}};
  static const luaL_Reg node[] = {{"name", node_name},
                                  {"id", node_id},
                                  {"next_functions", node_next},
                                  {"saved", node_saved},
                                  {NULL, NULL}};
  luaL_register(L, NULL, fns);
  lua_newtable(L);
  lua_pushcfunction(L, node_gc);
  lua_setfield(L, -2, "__gc");
  lua_pushcfunction(L, node_tostring);
  lua_setfield(L, -2, "__tostring");
  lua_pushcfunction(L, node_eq);
  lua_setfield(L, -2, "__eq");
  lua_newtable(L);
  luaL_register(L, NULL, node);
  lua_pushvalue(L, -1); /* the binding's `Node`: lua/moth adds methods to it */
  lua_setfield(L, -4, "Node");
  lua_pushvalue(L, -1);
  lua_pushcclosure(L, node_names, 1);
  lua_setfield(L, -3, "__names");
  lua_pushcclosure(L, node_index, 1);
  lua_setfield(L, -2, "__index");
  lua_pushlightuserdata(L, &key_node);
  lua_insert(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
}
