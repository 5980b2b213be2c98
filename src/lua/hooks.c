/* Hooks for Lua: of tensors, of nodes; watchers of nodes; callbacks at the end of backward; saved-tensor hooks.
 *
 * Their functions are in a table of their state (state.h) until the core releases them; those of tensors' hooks are
 * with the tensor's handle while only that can make them run (leaf.c). They run on the state that called backward, or
 * the op; a function of another state is an error. */
#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "lua/moth_lua.h"

static void retain_push(lua_State *L, MothTensor *t) {
  if (!t) {
    lua_pushnil(L);
    return;
  }
  moth_tensor_retain(t);
  moth_lua_push_tensor(L, t);
}

MothStatus moth_lua_push_hook(lua_State *L, const MothLuaRef *fn, int nargs) {
  if (!L)
    return moth_lua_no_state();
  if (!lua_checkstack(L, nargs + 8))
    return moth_fail(MOTH_ERR_STATE, "the Lua stack is full");
  if (!moth_lua_ref_push(L, fn))
    return MOTH_ERR_STATE;
  if (lua_isfunction(L, -1))
    return MOTH_OK;
  lua_pop(L, 1);
  return moth_fail(MOTH_ERR_STATE, "the function of a hook was collected with its tensor");
}

static MothStatus same_shape(const MothTensor *a, const MothTensor *b) {
  char old[200], new[200];
  if (a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof(int64_t) * a->ndim))
    return MOTH_OK;
  return moth_fail(MOTH_ERR_VALUE, "a hook has changed the size of the gradient: %s became %s",
                   moth_tensor_format(a, old, sizeof old), moth_tensor_format(b, new, sizeof new));
}

/* --- of tensors -------------------------------------------------------------------------------- */

static MothStatus run_hook(void *ctx, MothTensor *grad, MothTensor **out) {
  lua_State *L = moth_lua_current;
  MOTH_TRY(moth_lua_push_hook(L, ctx, 1));
  retain_push(L, grad);
  MOTH_TRY(moth_lua_call(L, 1, 1));
  MothHandle *r = moth_lua_handle(L, -1, MOTH_MAGIC_TENSOR);
  MothStatus s = MOTH_OK;
  if (r && r->u.t) {
    s = same_shape(grad, r->u.t);
    if (s == MOTH_OK)
      moth_tensor_retain(*out = r->u.t);
  } else if (!lua_isnil(L, -1)) {
    s = moth_fail(MOTH_ERR_TYPE, "a hook must return a tensor or nothing, got %s",
                  luaL_typename(L, -1));
  }
  lua_pop(L, 1);
  return s;
}

static MothStatus run_after(void *ctx, MothTensor *leaf, MothTensor **out) {
  lua_State *L = moth_lua_current;
  (void)out;
  MOTH_TRY(moth_lua_push_hook(L, ctx, 1));
  retain_push(L, leaf);
  MOTH_TRY(moth_lua_call(L, 1, 1));
  MothStatus s = MOTH_OK;
  if (!lua_isnil(L, -1))
    s = moth_fail(
        MOTH_ERR_TYPE,
        "a hook of register_post_accumulate_grad_hook must return nothing, got %s; change "
        "the .grad of the tensor that it is given",
        luaL_typename(L, -1));
  lua_pop(L, 1);
  return s;
}

static void release_ref(void *ctx) {
  moth_lua_ref_release(ctx);
}
static void use_ref(void *ctx) {
  moth_lua_ref_use(ctx);
}

MothLuaRef *moth_lua_hook_of(lua_State *L, const MothHook *h) {
  return h->release == release_ref && moth_lua_ref_is_own(L, h->ctx) ? h->ctx : NULL;
}

/* register_hook(t, fn[, after]) -> id, node (or nil). after: register_post_accumulate_grad_hook */
static int b_register_hook(lua_State *L) {
  bool after = lua_toboolean(L, 3);
  MothTensor *t =
      moth_lua_check_tensor(L, 1, after ? "register_post_accumulate_grad_hook" : "register_hook");
  moth_lua_type(L, 2, LUA_TFUNCTION);
  lua_settop(L, 2);
  lua_pushvalue(L, 2);
  MothLuaRef *fn = moth_lua_ref_new(L);
  if (!fn)
    return moth_lua_raise(L, moth_no_memory(0));
  MothHook hook = {.kind = after ? MOTH_HOOK_AFTER : MOTH_HOOK_GRAD,
                   .run = after ? run_after : run_hook,
                   .release = release_ref,
                   .use = use_ref,
                   .ctx = fn};
  int64_t id;
  lua_State *outer = moth_lua_current;
  moth_lua_current = L;
  MothStatus s = moth_tensor_add_hook(t, hook, &id);
  moth_lua_current = outer;
  if (s) {
    moth_lua_ref_release(fn);
    return moth_lua_raise(L, s);
  }
  retain_push(L, t); /* the one handle of a leaf: 1 may be another userdata */
  if (moth_lua_is_leaf(t))
    moth_lua_add_hook(L, lua_gettop(L), fn);
  else
    moth_lua_add_hook(L, 1, fn);
  lua_pushnumber(L, (lua_Number)id);
  MothNode *n = moth_tensor_node(t);
  if (n)
    moth_lua_push_node(L, n);
  else
    lua_pushnil(L);
  return 2;
}

/* has_hooks(t): whether functions look at the gradient of t, a leaf. */
static int b_has_hooks(lua_State *L) {
  const MothTensor *t = moth_lua_check_tensor(L, 1, "has_hooks");
  const MothHook *h = t->grad ? t->grad->hooks : NULL;
  while (h && h->kind != MOTH_HOOK_GRAD && h->kind != MOTH_HOOK_AFTER)
    h = h->next;
  lua_pushboolean(L, h != NULL);
  return 1;
}

static int64_t check_id(lua_State *L, int idx) {
  double id = moth_lua_number(L, idx);
  if (!(id >= 1 && id <= 9007199254740992.0) || id != floor(id))
    moth_lua_error(L, "remove_hook: expected what register_hook gave, got %.14g", id);
  return (int64_t)id;
}

static int b_remove_hook(lua_State *L) { /* (id, tensor or nil, node or nil) */
  MothTensor *t = lua_isnoneornil(L, 2) ? NULL : moth_lua_check_tensor(L, 2, "remove_hook");
  MothNode *n = lua_isnoneornil(L, 3) ? NULL : moth_lua_check_node(L, 3);
  moth_remove_hook(t, n, check_id(L, 1));
  moth_lua_drain(L);
  return 0;
}

/* --- of nodes ---------------------------------------------------------------------------------- */

/* Pushes gradients as a list { …, n = count }: nil is none. Of inputs, those that are tensors. */
static int push_gradients(lua_State *L, const MothNode *n, MothTensor *const *grads, int ngrads,
                          bool inputs) {
  int k = 0;
  lua_createtable(L, ngrads, 1);
  for (int i = inputs ? moth_lua_next_input(n, -1) : 0; i >= 0 && i < ngrads;
       i = inputs ? moth_lua_next_input(n, i) : i + 1) {
    retain_push(L, grads[i]);
    lua_rawseti(L, -2, ++k);
  }
  lua_pushinteger(L, k);
  lua_setfield(L, -2, "n");
  return k;
}

/* The value on top, which a hook returned, replaces the gradients: a list of as many, or a tensor if there is one
 * gradient. */
static MothStatus take_gradients(lua_State *L, const MothNode *n, MothTensor **grads, int ngrads,
                                 bool inputs, int count) {
  int k = 0;
  bool alone = moth_lua_handle(L, -1, MOTH_MAGIC_TENSOR) && count == 1;
  if (!alone && !lua_istable(L, -1))
    return moth_fail(MOTH_ERR_TYPE,
                     "a hook of %s must return a list of %d gradients or nothing, got %s", n->name,
                     count, luaL_typename(L, -1));
  if (!alone && (int)lua_objlen(L, -1) > count)
    return moth_fail(MOTH_ERR_VALUE, "a hook of %s returned %d gradients; expected %d", n->name,
                     (int)lua_objlen(L, -1), count);
  for (int i = inputs ? moth_lua_next_input(n, -1) : 0; i >= 0 && i < ngrads;
       i = inputs ? moth_lua_next_input(n, i) : i + 1) {
    if (alone)
      lua_pushvalue(L, -1);
    else
      lua_rawgeti(L, -1, ++k);
    MothHandle *h = moth_lua_handle(L, -1, MOTH_MAGIC_TENSOR);
    MothTensor *t = h ? h->u.t : NULL;
    MothStatus s = MOTH_OK;
    if (!t && lua_toboolean(L, -1))
      s = moth_fail(MOTH_ERR_TYPE, "a hook of %s returned %s as gradient %d; expected a tensor",
                    n->name, luaL_typename(L, -1), k);
    else if (t && grads[i])
      s = same_shape(grads[i], t);
    if (s == MOTH_OK && t != grads[i]) {
      moth_tensor_retain(t);
      moth_tensor_release(grads[i]);
      grads[i] = t;
    }
    lua_pop(L, 1);
    MOTH_TRY(s);
  }
  return MOTH_OK;
}

static MothStatus run_node_hook(void *ctx, MothNode *n, MothTensor **inputs, int ninputs,
                                MothTensor **results, int nresults) {
  lua_State *L = moth_lua_current;
  bool post = inputs != NULL;
  MOTH_TRY(moth_lua_push_hook(L, ctx, 4));
  int top = lua_gettop(L) - 1, nin = 0;
  if (post)
    nin = push_gradients(L, n, inputs, ninputs, true);
  int nout = push_gradients(L, n, results, nresults, false);
  MOTH_TRY(moth_lua_call(L, post ? 2 : 1, 1));
  MothStatus s = MOTH_OK;
  if (!lua_isnil(L, -1))
    s = post ? take_gradients(L, n, inputs, ninputs, true, nin)
             : take_gradients(L, n, results, nresults, false, nout);
  lua_settop(L, top);
  return s;
}

/* register_node_hook(node, fn, pre) -> id */
static int b_register_node_hook(lua_State *L) {
  MothNode *n = moth_lua_check_node(L, 1);
  moth_lua_type(L, 2, LUA_TFUNCTION);
  lua_pushvalue(L, 2);
  MothLuaRef *fn = moth_lua_ref_new(L);
  if (!fn)
    return moth_lua_raise(L, moth_no_memory(0));
  MothHook hook = {.kind = lua_toboolean(L, 3) ? MOTH_HOOK_PRE : MOTH_HOOK_POST,
                   .run_node = run_node_hook,
                   .release = release_ref,
                   .ctx = fn};
  int64_t id;
  MothStatus s = moth_node_add_hook(n, hook, &id);
  if (s) {
    moth_lua_ref_release(fn);
    return moth_lua_raise(L, s);
  }
  lua_pushnumber(L, (lua_Number)id);
  return 1;
}

static void release_note(void *ctx) {
  moth_lua_ref_release(ctx);
}

void moth_lua_push_metadata(lua_State *L, MothNode *n) {
  MothLuaRef *ref = moth_node_note(n, release_note);
  if (ref) {
    if (!moth_lua_ref_push(L, ref))
      moth_lua_raise(L, MOTH_ERR_STATE);
    return;
  }
  lua_newtable(L);
  lua_pushvalue(L, -1);
  ref = moth_lua_ref_new(L);
  MothHook note = {.kind = MOTH_HOOK_NOTE, .release = release_note, .ctx = ref};
  if (!ref || moth_node_add_hook(n, note, NULL) != MOTH_OK) {
    moth_lua_ref_release(ref);
    moth_lua_raise(L, moth_no_memory(0));
  }
}

/* --- scopes: watchers and saved-tensor hooks --------------------------------------------------- */

static char key_frame; /* registry: the metatable of what closes one */

/* Pushes a userdata that closes the frame; it takes over a reference. */
static void push_frame(lua_State *L, MothFrame *f) {
  MothHandle *h = lua_newuserdata(L, sizeof *h);
  h->magic = MOTH_MAGIC_FRAME;
  h->u.frame = f;
  lua_pushlightuserdata(L, &key_frame);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_setmetatable(L, -2);
}

void moth_lua_push_watcher(lua_State *L, MothWatcher *w) {
  push_frame(L, &w->frame);
  moth_watch_nodes(w);
}

typedef struct LuaWatcher {
  MothWatcher w;
  MothLuaRef *made, *begin, *finish;
} LuaWatcher;

static void drop_watcher(MothFrame *f) {
  LuaWatcher *w = (LuaWatcher *)f;
  moth_lua_ref_release(w->made);
  moth_lua_ref_release(w->begin);
  moth_lua_ref_release(w->finish);
  moth_free(w, sizeof *w);
}

/* Watches only the nodes of its own state, not of others that run on this thread. */
static bool is_seen(const MothLuaRef *fn) {
  return fn && (!moth_lua_current || moth_lua_ref_is_own(moth_lua_current, fn));
}

static MothStatus watch_made(void *ctx, MothNode *n) {
  const LuaWatcher *w = ctx;
  if (!is_seen(w->made))
    return MOTH_OK;
  MOTH_TRY(moth_lua_push_hook(moth_lua_current, w->made, 1));
  moth_lua_push_node(moth_lua_current, n);
  return moth_lua_call(moth_lua_current, 1, 0);
}

static MothStatus watch_begin(void *ctx, MothNode *n, MothTensor *const *grads, int ngrads) {
  const LuaWatcher *w = ctx;
  if (!is_seen(w->begin))
    return MOTH_OK;
  MOTH_TRY(moth_lua_push_hook(moth_lua_current, w->begin, 2));
  moth_lua_push_node(moth_lua_current, n);
  push_gradients(moth_lua_current, n, grads, ngrads, false);
  return moth_lua_call(moth_lua_current, 2, 0);
}

static MothStatus watch_end(void *ctx, MothNode *n, MothTensor *const *grads, int ngrads,
                            MothStatus status) {
  const LuaWatcher *w = ctx;
  lua_State *L = moth_lua_current;
  if (!is_seen(w->finish))
    return status;
  if (status != MOTH_OK) { /* the first error counts */
    if (!L || !lua_checkstack(L, 8))
      return status;
    moth_lua_push_parked(L);
    if (moth_lua_push_hook(L, w->finish, 3) == MOTH_OK) {
      moth_lua_push_node(L, n);
      lua_pushnil(L);
      lua_pushboolean(L, 0);
      if (moth_lua_pcall(L, 3, 0))
        lua_pop(L, 1);
    }
    moth_lua_pop_parked(L);
    return status;
  }
  MOTH_TRY(moth_lua_push_hook(L, w->finish, 3));
  moth_lua_push_node(L, n);
  push_gradients(L, n, grads, ngrads, true);
  lua_pushboolean(L, 1);
  return moth_lua_call(L, 3, 0);
}

static MothLuaRef *hold_field(lua_State *L, int idx, const char *name) {
  lua_getfield(L, idx, name);
  if (!lua_isnil(L, -1))
    return moth_lua_ref_new(L);
  lua_pop(L, 1);
  return NULL;
}

/* watch_nodes({ made =, begin =, finish = }) -> frame: made(node), begin(node, grads), finish(node, grads, ok) */
static int b_watch_nodes(lua_State *L) {
  moth_lua_type(L, 1, LUA_TTABLE);
  moth_lua_sync(L);
  LuaWatcher *w = moth_alloc(sizeof *w);
  if (!w)
    return moth_lua_raise(L, moth_no_memory(sizeof *w));
  *w = (LuaWatcher){.w = {.frame = {.refs = 2, .drop = drop_watcher},
                          .made = watch_made,
                          .begin = watch_begin,
                          .end = watch_end,
                          .ctx = w},
                    .made = hold_field(L, 1, "made"),
                    .begin = hold_field(L, 1, "begin"),
                    .finish = hold_field(L, 1, "finish")};
  moth_lua_push_watcher(L, &w->w);
  return 1;
}

typedef struct LuaSaved {
  MothSavedHooks h;
  MothLuaRef *pack, *unpack;
} LuaSaved;

static void drop_saved(MothFrame *f) {
  LuaSaved *s = (LuaSaved *)f;
  moth_lua_ref_release(s->pack);
  moth_lua_ref_release(s->unpack);
  if (s->h.disabled)
    moth_free((void *)(uintptr_t)s->h.disabled, strlen(s->h.disabled) + 1);
  moth_free(s, sizeof *s);
}

static MothStatus pack(void *ctx, MothTensor *t, void **packed) {
  const LuaSaved *s = ctx;
  lua_State *L = moth_lua_current;
  MOTH_TRY(moth_lua_push_hook(L, s->pack, 1));
  retain_push(L, t);
  MOTH_TRY(moth_lua_call(L, 1, 1));
  *packed = moth_lua_ref_new(L);
  return *packed ? MOTH_OK : moth_no_memory(0);
}

static MothStatus unpack(void *ctx, void *packed, MothTensor **out) {
  const LuaSaved *s = ctx;
  lua_State *L = moth_lua_current;
  MOTH_TRY(moth_lua_push_hook(L, s->unpack, 1));
  if (!moth_lua_ref_push(L, packed))
    return MOTH_ERR_STATE;
  MOTH_TRY(moth_lua_call(L, 1, 1));
  MothHandle *h = moth_lua_handle(L, -1, MOTH_MAGIC_TENSOR);
  MothStatus status = MOTH_OK;
  if (h && h->u.t)
    moth_tensor_retain(*out = h->u.t);
  else
    status = moth_fail(MOTH_ERR_TYPE, "saved_tensors_hooks: unpack must return a tensor, got %s",
                       h ? "a released one" : luaL_typename(L, -1));
  lua_pop(L, 1);
  return status;
}

static void drop_packed(void *ctx, void *packed) {
  (void)ctx;
  moth_lua_ref_release(packed);
}

static int open_saved(lua_State *L, LuaSaved *s) {
  MothStatus status = moth_open_saved_hooks(&s->h);
  if (status) {
    s->h.frame.refs = 1;
    moth_frame_release(&s->h.frame);
    return moth_lua_raise(L, status);
  }
  push_frame(L, &s->h.frame);
  return 1;
}

/* open_saved_hooks(pack, unpack) -> frame */
static int b_open_saved_hooks(lua_State *L) {
  moth_lua_type(L, 1, LUA_TFUNCTION);
  moth_lua_type(L, 2, LUA_TFUNCTION);
  moth_lua_sync(L);
  LuaSaved *s = moth_alloc(sizeof *s);
  if (!s)
    return moth_lua_raise(L, moth_no_memory(sizeof *s));
  lua_settop(L, 2);
  *s = (LuaSaved){.h = {.frame = {.refs = 2, .drop = drop_saved},
                        .hooks = {pack, unpack, drop_packed, NULL, s}}};
  s->unpack = moth_lua_ref_new(L);
  s->pack = moth_lua_ref_new(L);
  return open_saved(L, s);
}

/* disable_saved_hooks(message) -> frame */
static int b_disable_saved_hooks(lua_State *L) {
  const char *message = moth_lua_string(L, 1);
  moth_lua_sync(L);
  LuaSaved *s = moth_alloc(sizeof *s);
  char *copy = s ? moth_alloc(strlen(message) + 1) : NULL;
  if (!copy) {
    moth_free(s, sizeof *s);
    return moth_lua_raise(L, moth_no_memory(0));
  }
  strcpy(copy, message);
  *s = (LuaSaved){.h = {.frame = {.refs = 2, .drop = drop_saved}, .disabled = copy}};
  return open_saved(L, s);
}

static int frame_gc(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MOTH_MAGIC_FRAME);
  if (!h || !h->u.frame)
    return 0;
  MothFrame *f = h->u.frame;
  h->u.frame = NULL;
  if (f->drop == drop_saved)
    moth_close_saved_hooks((MothSavedHooks *)f);
  else
    moth_unwatch_nodes((MothWatcher *)f);
  moth_frame_release(f);
  return 0;
}

static int b_close_frame(lua_State *L) {
  moth_lua_sync(L);
  if (!moth_lua_handle(L, 1, MOTH_MAGIC_FRAME))
    return moth_lua_error(L, "expected what opened a scope, got %s", luaL_typename(L, 1));
  return frame_gc(L);
}

/* --- the end of backward ----------------------------------------------------------------------- */

static MothStatus run_callback(void *ctx, MothStatus status) {
  lua_State *L = moth_lua_current;
  if (!L)
    return moth_lua_no_state();
  if (!lua_checkstack(L, 12))
    return moth_fail(MOTH_ERR_STATE, "the Lua stack is full");
  int top = lua_gettop(L);
  moth_lua_push_parked(L);
  MothStatus s = moth_lua_push_hook(L, ctx, 1);
  if (s == MOTH_OK) {
    if (status == MOTH_OK)
      lua_pushnil(L);
    else if (status == MOTH_ERR_HOST)
      lua_pushvalue(L, top + 1);
    else
      lua_pushstring(L, moth_last_error());
    s = moth_lua_call(L, 1, 0);
  }
  lua_settop(L, top + 1);
  if (status == MOTH_ERR_HOST || s != MOTH_ERR_HOST)
    moth_lua_pop_parked(L);
  lua_settop(L, top);
  return s;
}

/* queue_callback(fn): fn(err) when the outermost backward is over */
static int b_queue_callback(lua_State *L) {
  moth_lua_type(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  MothLuaRef *fn = moth_lua_ref_new(L);
  MothStatus s = fn ? moth_queue_callback(run_callback, release_ref, fn) : moth_no_memory(0);
  if (s) {
    moth_lua_ref_release(fn);
    return moth_lua_raise(L, s);
  }
  return 0;
}

/* current_pass() -> a number of the pass that runs, or nil */
static int b_current_pass(lua_State *L) {
  int64_t pass = moth_current_pass();
  if (!pass)
    return 0;
  lua_pushnumber(L, (lua_Number)pass);
  return 1;
}

/* pass_runs(t) -> whether the pass that runs gives t's gradient */
static int b_pass_runs(lua_State *L) {
  bool yes;
  MothStatus s = moth_pass_runs(moth_lua_check_tensor(L, 1, "pass_runs"), &yes);
  if (s)
    return moth_lua_raise(L, s);
  lua_pushboolean(L, yes);
  return 1;
}

void moth_lua_open_hooks(lua_State *L) {
  static const luaL_Reg fns[] = {{"register_hook", b_register_hook},
                                 {"remove_hook", b_remove_hook},
                                 {"has_hooks", b_has_hooks},
                                 {"register_node_hook", b_register_node_hook},
                                 {"watch_nodes", b_watch_nodes},
                                 {"watch_anomalies", moth_lua_watch_anomalies},
                                 {"open_saved_hooks", b_open_saved_hooks},
                                 {"disable_saved_hooks", b_disable_saved_hooks},
                                 {"close_frame", b_close_frame},
                                 {"queue_callback", b_queue_callback},
                                 {"current_pass", b_current_pass},
                                 {"pass_runs", b_pass_runs},
                                 {NULL, NULL}};
  luaL_register(L, NULL, fns);
  lua_pushlightuserdata(L, &key_frame);
  lua_newtable(L);
  lua_pushcfunction(L, frame_gc);
  lua_setfield(L, -2, "__gc");
  lua_rawset(L, LUA_REGISTRYINDEX);
}
