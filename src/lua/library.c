/* Ops defined from Lua, and libraries of C that define ops.
 *
 * The op itself belongs to the process; the functions that it calls belong to the running Lua state: a table of the
 * registry has them, by the op's id. States that define the same op (workers that load the same module) share it. It
 * is undefined when the last of them undefines it or is closed; calling it from a state that has not defined it is an
 * error. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "dispatch/define.h"
#include "dispatch/registry.h"
#include "dispatch/subclass.h"
#include "lua/moth_lua.h"

static char key_defs, key_owner; /* registry: { [id] = functions }, and the Owner */

typedef struct Owner { /* what this state has defined */
  MothOp **ops;
  int n, size;
} Owner;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of MothOp.users */

/* --- calling what was defined ------------------------------------------------------------------- */

/* Pushes the functions that this state has for an op. */
static MothStatus push_def(lua_State **out, const MothOp *op) {
  lua_State *L = *out = moth_lua_current;
  if (!L)
    return moth_fail(MOTH_ERR_STATE,
                     "'%s' is computed by a Lua function, but no Lua state is running", op->name);
  if (!lua_checkstack(L, op->nargs + 16))
    return moth_fail(MOTH_ERR_STATE, "the Lua stack is full");
  lua_pushlightuserdata(L, &key_defs);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_rawgeti(L, -1, op->id);
  lua_remove(L, -2);
  if (lua_istable(L, -1))
    return MOTH_OK;
  lua_pop(L, 1);
  return moth_fail(MOTH_ERR_STATE,
                   op->gone ? "'%s' is not defined any more: its library was destroyed"
                            : "'%s' was defined by another Lua state: define it in this one, too",
                   op->name);
}

static void push_arguments(lua_State *L, const MothCall *c) {
  for (int i = 0; i < c->op->nargs; i++)
    moth_lua_push_value(L, &c->op->args[i], c->args[i]);
}

/* Makes the values from index `first` on the call's results. */
static MothStatus take(lua_State *L, MothCall *c, const char *what, int first) {
  const MothOp *op = c->op;
  int n = lua_gettop(L) - first + 1;
  if (op->returns_self && n == 0) { /* it wrote to its argument */
    if (c->results[0].tag != MOTH_V_TENSOR) {
      moth_tensor_retain(c->args[0].u.t);
      c->results[0] = c->args[0];
    }
    return MOTH_OK;
  }
  if (n != op->nresults)
    return moth_fail(MOTH_ERR_TYPE,
                     "the %s function of '%s' returned %d value%s, where its schema says %d: %s",
                     what, op->name, n, n == 1 ? "" : "s", op->nresults, op->schema);
  for (int i = 0; i < n; i++) {
    MothHandle *h = moth_lua_handle(L, first + i, MOTH_MAGIC_TENSOR);
    if (!h || !h->u.t)
      return moth_fail(
          MOTH_ERR_TYPE,
          "the %s function of '%s' returned %s for result %d, where a tensor is due: %s", what,
          op->name, h ? "a released tensor" : luaL_typename(L, first + i), i + 1, op->schema);
    if (op->returns_self) {
      if (h->u.t != c->args[0].u.t)
        return moth_fail(MOTH_ERR_VALUE,
                         "the %s function of '%s' returned another tensor than '%s', which the "
                         "schema says it returns: %s",
                         what, op->name, op->args[0].name, op->schema);
      return take(L, c, what, lua_gettop(L) + 1);
    }
    moth_tensor_retain(h->u.t);
    if (c->results[i].tag == MOTH_V_TENSOR)
      moth_tensor_release(c->results[i].u.t);
    c->results[i] = moth_v_tensor(h->u.t);
  }
  return MOTH_OK;
}

/* Calls the function def[key], else def[other], with the arguments of the call, for its results. */
static MothStatus run(MothCall *c, const char *what, const char *key, const char *other,
                      uint32_t include, uint32_t exclude) {
  lua_State *L;
  MOTH_TRY(push_def(&L, c->op));
  int top = lua_gettop(L);
  lua_getfield(L, top, key);
  if (lua_isnil(L, -1) && other) {
    lua_pop(L, 1);
    lua_getfield(L, top, other);
  }
  if (lua_isnil(L, -1)) {
    lua_settop(L, top - 1);
    return moth_fail(MOTH_ERR_STATE, "this Lua state has no %s function of '%s'", what,
                     c->op->name);
  }
  push_arguments(L, c);
  MothThread keep = *moth_thread_state();
  moth_thread_state()->include |= include;
  moth_thread_state()->exclude |= exclude;
  MothStatus s = moth_lua_call(L, c->op->nargs, LUA_MULTRET);
  moth_thread_state()->include = keep.include;
  moth_thread_state()->exclude = keep.exclude;
  if (s == MOTH_OK) {
    lua_remove(L, top);
    s = take(L, c, what, top);
  }
  lua_settop(L, top - 1);
  return s;
}

enum { OPAQUE = MOTH_KEY_AUTOGRAD | MOTH_KEY_AUTOCAST | MOTH_KEY_BELOW | MOTH_KEY_SUBCLASS };

static MothStatus lua_kernel(MothCall *c) {
  const char *device = moth_memory(c->device.type)->name;
  return run(c, device, device, "all", 0, OPAQUE);
}
static MothStatus lua_fake(MothCall *c) {
  return run(c, "fake", "fake", NULL, MOTH_KEY_FAKE, OPAQUE);
}
static MothStatus lua_composite(MothCall *c) {
  return run(c, "composite", "composite", NULL, 0, 0);
}

/* Runs the op unrecorded, then lets def.autograd(args, results) give its results a history. */
static MothStatus lua_autograd(MothCall *c) {
  lua_State *L;
  if (c->variant != MOTH_FUNCTIONAL)
    return moth_fail(MOTH_ERR_STATE,
                     "the derivative is a function, which knows of no writing in place: call '%s' "
                     "without _, or define the derivative by formulas",
                     c->op->name);
  MOTH_TRY(moth_autograd_below(c));
  MothStatus s = push_def(&L, c->op);
  if (s == MOTH_OK) {
    int top = lua_gettop(L);
    lua_getfield(L, top, "autograd");
    lua_createtable(L, c->op->nargs, 0);
    for (int i = 0; i < c->op->nargs; i++) {
      moth_lua_push_value(L, &c->op->args[i], c->args[i]);
      lua_rawseti(L, -2, i + 1);
    }
    lua_createtable(L, c->op->nresults, 0);
    for (int i = 0; i < c->op->nresults; i++) {
      moth_tensor_retain(c->results[i].u.t);
      moth_lua_push_tensor(L, c->results[i].u.t);
      lua_rawseti(L, -2, i + 1);
    }
    s = moth_lua_call(L, 2, LUA_MULTRET);
    if (s == MOTH_OK) {
      lua_remove(L, top);
      s = take(L, c, "autograd", top);
    }
    lua_settop(L, top - 1);
  }
  for (int i = 0; s && i < c->op->nresults; i++) {
    if (c->results[i].tag == MOTH_V_TENSOR)
      moth_tensor_release(c->results[i].u.t);
    c->results[i] = moth_v_none();
  }
  return s;
}

/* --- derivatives -------------------------------------------------------------------------------- */

/* Pushes what a node has saved, by name: positions count from 0, as in the records' formulas. */
static MothStatus push_saved(lua_State *L, MothNode *n) {
  static const MothArg plain = {.name = "saved", .type = MOTH_T_INT};
  const MothOp *op = n->op;
  lua_newtable(L);
  for (int i = 0; i < op->nargs + op->nresults; i++) {
    bool arg = i < op->nargs;
    int k = arg ? i : i - op->nargs;
    MothValue v;
    MOTH_TRY(arg ? moth_node_arg(n, k, &v) : moth_node_result(n, k, &v));
    if (v.tag == MOTH_V_NONE)
      continue;
    if (v.tag == MOTH_V_TENSOR)
      moth_lua_push_tensor(L, v.u.t); /* it came owned */
    else
      moth_lua_push_value(L, arg && op->args[k].type == MOTH_T_ENUM ? &op->args[k] : &plain, v);
    if (arg)
      lua_setfield(L, -2, op->args[k].name);
    else {
      lua_pushfstring(L, k ? "result%d" : "result", k);
      lua_insert(L, -2);
      lua_rawset(L, -3);
    }
  }
  return MOTH_OK;
}

/* Takes the gradient of an argument; the engine reduces it to the shape of a broadcast argument, and converts its
 * dtype. */
static MothStatus take_gradient(lua_State *L, const MothNode *n, const char *arg, int edge,
                                MothTensor **out) {
  MothHandle *h = moth_lua_handle(L, -1, MOTH_MAGIC_TENSOR);
  if (lua_isnil(L, -1))
    return MOTH_OK;
  if (!h || !h->u.t)
    return moth_fail(MOTH_ERR_TYPE, "the derivative of '%s' by '%s' is %s, where a tensor is due",
                     n->op->name, arg, luaL_typename(L, -1));
  moth_tensor_retain(h->u.t);
  out[edge] = h->u.t;
  return MOTH_OK;
}

/* def.backward(saved, grads, need) -> { [argument] = gradient }, by name; of a list of tensors a list. */
static MothStatus lua_backward(MothNode *n, MothTensor *const *grads, uint32_t need,
                               MothTensor **out) {
  lua_State *L;
  const MothOp *op = n->op;
  MOTH_TRY(push_def(&L, op));
  int top = lua_gettop(L);
  MothStatus status;
  lua_getfield(L, top, "backward");
  MOTH_GO(push_saved(L, n));
  lua_createtable(L, op->nresults, 0);
  for (int i = 0; i < op->nresults; i++) {
    moth_tensor_retain(grads[i]);
    moth_lua_push_tensor(L, grads[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_newtable(L);
  for (int i = 0; i < op->nargs; i++)
    if (need >> i & 1) {
      lua_pushboolean(L, 1);
      lua_setfield(L, -2, op->args[i].name);
    }
  MOTH_GO(moth_lua_call(L, 3, 1));
  for (int i = 0; i < op->nargs; i++) {
    int edge = moth_node_edge(n, i);
    if (!(need >> i & 1))
      continue;
    lua_getfield(L, top + 1, op->args[i].name);
    if (op->args[i].type != MOTH_T_TENSORS) {
      MOTH_GO(take_gradient(L, n, op->args[i].name, edge, out));
    } else if (lua_istable(L, -1)) {
      int end = i + 1 < op->nargs ? moth_node_edge(n, i + 1) : n->ninputs;
      for (int k = edge; k < end; k++) {
        lua_rawgeti(L, -1, k - edge + 1);
        MOTH_GO(take_gradient(L, n, op->args[i].name, k, out));
        lua_pop(L, 1);
      }
    }
    lua_pop(L, 1);
  }
done:
  lua_settop(L, top - 1);
  return status;
}

/* --- defining ----------------------------------------------------------------------------------- */

static Owner *owner_of(lua_State *L) {
  lua_pushlightuserdata(L, &key_owner);
  lua_rawget(L, LUA_REGISTRYINDEX);
  Owner *o = lua_touserdata(L, -1);
  lua_pop(L, 1);
  return o;
}

static void leave(MothOp *op) {
  pthread_mutex_lock(&lock);
  bool last = --op->users == 0;
  if (last)
    moth_op_undefine(op);
  pthread_mutex_unlock(&lock);
}

static void leave_all(Owner *o) {
  for (int i = 0; i < o->n; i++)
    leave(o->ops[i]);
  free(o->ops);
  *o = (Owner){0};
}

static int owner_gc(lua_State *L) {
  leave_all(lua_touserdata(L, 1));
  return 0;
}

/* Whether a and b, of the same name, are the same op. */
static bool is_same(const MothOp *a, const MothOp *b) {
  return a->ctx == &key_defs && !strcmp(a->schema, b->schema) && a->kind == b->kind &&
         a->amp == b->amp && a->inplace == b->inplace && a->differentiable == b->differentiable &&
         (a->nargs == 0 || a->saves_for[0] == b->saves_for[0]);
}

/* define_op(parsed, saves) -> id. saves: names, for derivatives that are formulas. */
static int b_define_op(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  Owner *o = owner_of(L);
  const char *saves = luaL_optstring(L, 2, NULL);
  lua_settop(L, 2);
  lua_pushvalue(L, 1);
  if (!moth_lua_describes_op(L))
    return moth_lua_error(L, "the table describes no op: moth.library makes it of a schema");
  if (o->n == o->size) {
    MothOp **more = realloc(o->ops, sizeof *more * (size_t)(o->size + 64));
    if (!more)
      return moth_lua_raise(L, moth_no_memory(sizeof *more * (size_t)(o->size + 64)));
    o->ops = more;
    o->size += 64;
  }
  MothOp *op = moth_lua_read_op(L);
  if (!op)
    return moth_lua_raise(L, moth_no_memory(0));
  MothOpDef def = {.saves = saves, .inplace = op->inplace, .ctx = &key_defs};
  pthread_mutex_lock(&lock);
  MothOp *there = (MothOp *)moth_op_find(op->name);
  MothStatus s = MOTH_OK;
  if (there && is_same(there, op)) {
    free(op);
    op = there;
  } else {
    uint32_t differentiable = op->differentiable;
    s = moth_op_complete(&def, op);
    if (s == MOTH_OK)
      op->differentiable = differentiable;
  }
  if (s == MOTH_OK)
    op->users++;
  pthread_mutex_unlock(&lock);
  if (s)
    return moth_lua_raise(L, s);
  o->ops[o->n++] = op;
  lua_pushlightuserdata(L, &key_defs);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_newtable(L);
  lua_rawseti(L, -2, op->id);
  lua_pushinteger(L, op->id);
  return 1;
}

static MothOp *own_op(lua_State *L, int idx) {
  const MothOp *op = moth_op_find(moth_lua_string(L, idx));
  Owner *o = owner_of(L);
  for (int i = 0; op && i < o->n; i++)
    if (o->ops[i] == op)
      return o->ops[i];
  moth_lua_error(L, "'%s' was not defined in this Lua state", lua_tostring(L, idx));
  return NULL;
}

/* undefine_op(name) */
static int b_undefine_op(lua_State *L) {
  MothOp *op = own_op(L, 1);
  Owner *o = owner_of(L);
  for (int i = 0; i < o->n; i++)
    if (o->ops[i] == op)
      o->ops[i] = o->ops[--o->n];
  lua_pushlightuserdata(L, &key_defs);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_pushnil(L);
  lua_rawseti(L, -2, op->id);
  leave(op);
  return 0;
}

/* implement(name, key, fn): key is a type of device, all, fake, composite, backward or autograd */
static int b_implement(lua_State *L) {
  MothOp *op = own_op(L, 1);
  const char *key = moth_lua_string(L, 2);
  moth_lua_type(L, 3, LUA_TFUNCTION);
  int device = moth_device_find(key);
  if (device >= 0) {
    __atomic_store_n(&op->kernels[device], lua_kernel, __ATOMIC_RELEASE);
  } else if (!strcmp(key, "all")) {
    for (int i = 0; i < MOTH_NDEVICES; i++)
      __atomic_store_n(&op->kernels[i], lua_kernel, __ATOMIC_RELEASE);
  } else if (!strcmp(key, "fake")) {
    op->fake = lua_fake;
  } else if (!strcmp(key, "composite")) {
    op->composite = lua_composite;
  } else if (!strcmp(key, "backward") || !strcmp(key, "autograd")) {
    bool formulas = key[0] == 'b';
    op->backward = formulas ? lua_backward : NULL;
    op->autograd = formulas ? NULL : lua_autograd;
    op->keep = op->kind == MOTH_KIND_COMPOSITE; /* in place of the derivatives of its parts */
  } else {
    return moth_lua_error(L, "'%s' is no type of device", key);
  }
  lua_pushlightuserdata(L, &key_defs);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_rawgeti(L, -1, op->id);
  lua_pushvalue(L, 3);
  lua_setfield(L, -2, key);
  return 0;
}

/* op_id(name) -> a number that no other op has had, or nil */
static int b_op_id(lua_State *L) {
  const MothOp *op = moth_op_find(moth_lua_string(L, 1));
  if (op)
    lua_pushinteger(L, op->id);
  return op ? 1 : 0;
}

/* defined_ops() -> { names of the ops that were defined at run time, by whatever state } */
static int b_defined_ops(lua_State *L) {
  lua_newtable(L);
  for (int i = 0, n = 0; i < moth_registry_count(); i++) {
    const MothOp *op = moth_registry_at(i);
    if (op->defined && !op->gone) {
      lua_pushstring(L, op->name);
      lua_rawseti(L, -2, ++n);
    }
  }
  return 1;
}

/* inplace_op(name) -> the function of its in-place variant, or nil */
static int b_inplace_op(lua_State *L) {
  const MothOp *op = moth_op_find(moth_lua_string(L, 1));
  if (op && op->inplace)
    moth_lua_push_op(L, (MothLuaEntry){op, MOTH_INPLACE, 1, 0});
  return op && op->inplace;
}

/* What each library has defined: opened again, by any state, it defines nothing more. */
typedef struct Loaded {
  struct Loaded *next;
  void *library;
  int first, end;
} Loaded;
static Loaded *loaded;

static Loaded *find_loaded(void *library, int first) {
  pthread_mutex_lock(&lock);
  Loaded *l = loaded;
  while (l && l->library != library)
    l = l->next;
  if (!l && (l = malloc(sizeof *l))) {
    *l = (Loaded){loaded, library, first, moth_registry_count()};
    loaded = l;
  }
  pthread_mutex_unlock(&lock);
  return l;
}

/* library_path() -> the folder of libmoth.so */
static int b_library_path(lua_State *L) {
  Dl_info info;
  const char *path = dladdr(__extension__(void *) moth_version, &info) ? info.dli_fname : "";
  const char *end = strrchr(path, '/');
  char *real = realpath(path, NULL);
  if (real && (end = strrchr(real, '/')))
    lua_pushlstring(L, real, (size_t)(end - real));
  else
    lua_pushliteral(L, ".");
  free(real);
  return 1;
}

/* load_library(path) -> { names of the ops that it has defined }. It stays for the life of the process. */
static int b_load_library(lua_State *L) {
  const char *path = moth_lua_path(L, 1);
  moth_lua_enter(L);
  int first = moth_registry_count();
  lua_State *outer = moth_lua_current;
  moth_lua_current = L;
  moth_library_error(); /* clears the error of an earlier library */
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  moth_lua_current = outer;
  if (!library)
    return moth_lua_error(L, "library.load: %s", dlerror());
  const char *error = moth_library_error();
  if (error)
    return moth_lua_error(L, "library.load: %s", error);
  const Loaded *l = find_loaded(library, first);
  lua_newtable(L);
  for (int i = l ? l->first : first, n = 0; l && i < l->end; i++)
    if (!moth_registry_at(i)->gone) {
      lua_pushstring(L, moth_registry_at(i)->name);
      lua_rawseti(L, -2, ++n);
    }
  return 1;
}

void moth_lua_open_library(lua_State *L) {
  static const luaL_Reg fns[] = {{"define_op", b_define_op},
                                 {"undefine_op", b_undefine_op},
                                 {"implement", b_implement},
                                 {"op_id", b_op_id},
                                 {"defined_ops", b_defined_ops},
                                 {"inplace_op", b_inplace_op},
                                 {"load_library", b_load_library},
                                 {"library_path", b_library_path},
                                 {NULL, NULL}};
  luaL_register(L, NULL, fns);
  if (owner_of(L)) /* moth is opened again in this state: the ops of its old modules end */
    leave_all(owner_of(L));
  lua_pushlightuserdata(L, &key_defs);
  lua_newtable(L);
  lua_rawset(L, LUA_REGISTRYINDEX);
  lua_pushlightuserdata(L, &key_owner);
  Owner *o = lua_newuserdata(L, sizeof *o);
  *o = (Owner){0};
  lua_newtable(L);
  lua_pushcfunction(L, owner_gc);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
}
