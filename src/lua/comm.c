/* The store, process groups and their calls, for lua/moth/distributed. */
#include "comm/comm.h"
#include "comm/interfaces.h"
#include "comm/nccl.h"
#include "comm/transport.h"

#include <stdlib.h>
#include <string.h>

#include "lua/moth_lua.h"

#define MAGIC_SERVER 0x6d6f746853727672ull
#define MAGIC_STORE  0x6d6f746853746f72ull
#define MAGIC_GROUP  0x6d6f746847727570ull
#define MAGIC_WORK   0x6d6f7468576f726bull

static char key_server, key_store, key_group, key_work;

static void *at(lua_State *L, int idx, uint64_t magic, const char *what) {
  void *p = ((MothHandle *)moth_lua_check_handle(L, idx, magic, what))->u.other;
  if (!p)
    moth_lua_error(L, "this %s was closed", what);
  return p;
}

static MothBytes bytes_at(lua_State *L, int idx) {
  MothBytes b;
  b.data = luaL_checklstring(L, idx, &b.n);
  return b;
}

/* --- the store ---------------------------------------------------------------------------------- */

static MothStore *store_at(lua_State *L, int idx) {
  return at(L, idx, MAGIC_STORE, "store");
}

/* (host or nil, port, token or nil) -> server, port, why it is open to everybody, or nil */
static int b_serve(lua_State *L) {
  const char *host = luaL_optstring(L, 1, NULL);
  int port = (int)luaL_checkinteger(L, 2);
  const char *token = luaL_optstring(L, 3, NULL);
  MothHandle *h = moth_lua_new_handle(L, MAGIC_SERVER, &key_server);
  MothStoreServer *s = NULL;
  moth_lua_done(L, moth_store_serve(host, port, token, &s));
  h->u.other = s;
  lua_pushinteger(L, moth_store_server_port(s));
  lua_pushstring(L, moth_store_server_open(s));
  return 3;
}
static int server_gc(lua_State *L) { /* also its close */
  MothHandle *h = moth_lua_handle(L, 1, MAGIC_SERVER);
  if (h) {
    moth_store_server_free(h->u.other);
    h->u.other = NULL;
  }
  return 0;
}

/* (wanted or nil) -> a list of { name, address } of the interfaces that other machines reach */
static int b_interfaces(lua_State *L) {
  MothInterface found[64];
  size_t n = moth_interfaces(luaL_optstring(L, 1, NULL), found, 64);
  lua_newtable(L);
  for (size_t i = 0, k = 0; i < n; i++) {
    if (found[i].is_loopback)
      continue;
    lua_createtable(L, 0, 2);
    lua_pushstring(L, found[i].name);
    lua_setfield(L, -2, "name");
    lua_pushstring(L, found[i].address);
    lua_setfield(L, -2, "address");
    lua_rawseti(L, -2, (int)++k);
  }
  return 1;
}
static int b_name_is_loopback(lua_State *L) { /* (host) -> boolean */
  lua_pushboolean(L, moth_name_is_loopback(luaL_checkstring(L, 1)));
  return 1;
}

static int b_connect(lua_State *L) { /* (host, port, token or nil, timeout) -> store */
  const char *host = luaL_checkstring(L, 1);
  int port = (int)luaL_checkinteger(L, 2);
  const char *token = luaL_optstring(L, 3, NULL);
  double timeout = luaL_checknumber(L, 4);
  MothHandle *h = moth_lua_new_handle(L, MAGIC_STORE, &key_store);
  MothStore *s = NULL;
  moth_lua_done(L, moth_store_connect(host, port, token, timeout, &s));
  h->u.other = s;
  return 1;
}
static int store_gc(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MAGIC_STORE);
  if (h) {
    moth_store_free(h->u.other);
    h->u.other = NULL;
  }
  return 0;
}
static int b_store_address(lua_State *L) {
  char text[128];
  lua_pushstring(L, moth_store_address(store_at(L, 1), text, sizeof text));
  return 1;
}
static int b_set(lua_State *L) { /* (store, key, value) */
  MothStore *s = store_at(L, 1);
  return moth_lua_done(L, moth_store_set(s, bytes_at(L, 2), bytes_at(L, 3)));
}
static int b_append(lua_State *L) { /* (store, key, value) */
  MothStore *s = store_at(L, 1);
  return moth_lua_done(L, moth_store_append(s, bytes_at(L, 2), bytes_at(L, 3)));
}

/* The keys of the list at idx, in a userdata that is pushed. */
static MothBytes *keys_at(lua_State *L, int idx, int *n) {
  luaL_checktype(L, idx, LUA_TTABLE);
  *n = (int)lua_objlen(L, idx);
  MothBytes *keys = lua_newuserdata(L, (size_t)(2 * *n + 1) * sizeof *keys);
  for (int i = 0; i < *n; i++) {
    lua_rawgeti(L, idx, i + 1);
    keys[i].data = luaL_checklstring(L, -1, &keys[i].n); /* the list retains it */
    lua_pop(L, 1);
  }
  return keys;
}

static int b_get(lua_State *L) { /* (store, keys, timeout) -> values */
  MothStore *s = store_at(L, 1);
  double timeout = luaL_checknumber(L, 3);
  int n;
  MothBytes *keys = keys_at(L, 2, &n), *values = keys + n;
  void *block = NULL;
  moth_lua_done(L, moth_store_get(s, n, keys, timeout, values, &block));
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_pushlstring(L, values[i].data, values[i].n);
    lua_rawseti(L, -2, i + 1);
  }
  free(block);
  return 1;
}
static int b_wait(lua_State *L) { /* (store, keys, timeout) */
  MothStore *s = store_at(L, 1);
  double timeout = luaL_checknumber(L, 3);
  int n;
  MothBytes *keys = keys_at(L, 2, &n);
  return moth_lua_done(L, moth_store_get(s, n, keys, timeout, NULL, NULL));
}
static int b_check(lua_State *L) { /* (store, keys) -> bool */
  MothStore *s = store_at(L, 1);
  int n;
  bool there;
  MothBytes *keys = keys_at(L, 2, &n);
  moth_lua_done(L, moth_store_check(s, n, keys, &there));
  lua_pushboolean(L, there);
  return 1;
}
static int b_add(lua_State *L) { /* (store, key, amount) -> number */
  MothStore *s = store_at(L, 1);
  int64_t now, amount = moth_lua_check_integer(L, 3, -9007199254740992.0, 9007199254740992.0);
  moth_lua_done(L, moth_store_add(s, bytes_at(L, 2), amount, &now));
  lua_pushnumber(L, (lua_Number)now);
  return 1;
}
static int b_compare_set(lua_State *L) { /* (store, key, expected, desired) -> value */
  MothStore *s = store_at(L, 1);
  MothBytes now;
  void *block = NULL;
  moth_lua_done(
      L, moth_store_compare_set(s, bytes_at(L, 2), bytes_at(L, 3), bytes_at(L, 4), &now, &block));
  lua_pushlstring(L, now.data, now.n);
  free(block);
  return 1;
}
static int b_delete(lua_State *L) { /* (store, key) -> bool */
  MothStore *s = store_at(L, 1);
  bool was;
  moth_lua_done(L, moth_store_delete(s, bytes_at(L, 2), &was));
  lua_pushboolean(L, was);
  return 1;
}
static int b_count(lua_State *L) { /* (store) -> number of keys */
  int64_t n;
  moth_lua_done(L, moth_store_count(store_at(L, 1), &n));
  lua_pushnumber(L, (lua_Number)n);
  return 1;
}

/* --- groups ------------------------------------------------------------------------------------- */

static MothGroup *group_at(lua_State *L, int idx) {
  return at(L, idx, MAGIC_GROUP, "process group");
}

/* The integers of the list at idx, in a userdata that is pushed; NULL, and nil, if there is none. */
static int64_t *integers_at(lua_State *L, int idx, int *n) {
  if (lua_isnoneornil(L, idx)) {
    *n = 0;
    lua_pushnil(L);
    return NULL;
  }
  luaL_checktype(L, idx, LUA_TTABLE);
  *n = (int)lua_objlen(L, idx);
  int64_t *list = lua_newuserdata(L, (size_t)(*n + 1) * sizeof *list);
  for (int i = 0; i < *n; i++) {
    lua_rawgeti(L, idx, i + 1);
    list[i] = moth_lua_check_integer(L, -1, -9007199254740992.0, 9007199254740992.0);
    lua_pop(L, 1);
  }
  return list;
}

/* (backend, rank, size, ranks or nil, store or nil, key, timeout, seconds for all to come) -> group, number */
static int b_group(lua_State *L) {
  const char *backend = luaL_checkstring(L, 1);
  int rank = (int)luaL_checkinteger(L, 2), size = (int)luaL_checkinteger(L, 3), n;
  MothStore *store = lua_isnoneornil(L, 5) ? NULL : store_at(L, 5);
  const char *key = luaL_checkstring(L, 6);
  double timeout = luaL_checknumber(L, 7), join = luaL_optnumber(L, 8, timeout);
  int64_t *list = integers_at(L, 4, &n);
  int *ranks = list ? lua_newuserdata(L, (size_t)(n + 1) * sizeof *ranks) : NULL;
  for (int i = 0; i < n; i++)
    ranks[i] = (int)list[i];
  if (ranks && n != size)
    return moth_lua_error(L, "a group of %d ranks needs as many numbers, got %d", size, n);
  MothHandle *h = moth_lua_new_handle(L, MAGIC_GROUP, &key_group);
  MothGroup *g = NULL;
  moth_lua_done(L, moth_group_new(backend, rank, size, ranks, store, key, join, &g));
  g->timeout = timeout;
  h->u.other = g;
  lua_pushinteger(L, g->number);
  return 2;
}
static int group_gc(lua_State *L) { /* also its close */
  MothHandle *h = moth_lua_handle(L, 1, MAGIC_GROUP);
  MothGroup *g = h ? h->u.other : NULL;
  if (g) {
    h->u.other = NULL;
    moth_group_close(g);
    moth_group_release(g);
  }
  return 0;
}
static int b_broken(lua_State *L) { /* (group) -> text or nil */
  char text[MOTH_COMM_TEXT];
  if (moth_group_is_broken(group_at(L, 1), text, sizeof text))
    lua_pushstring(L, text);
  else
    lua_pushnil(L);
  return 1;
}
static int b_break(lua_State *L) { /* (group, text): breaks it on all ranks */
  MothGroup *g = group_at(L, 1);
  moth_group_fault(g, "%s", luaL_checkstring(L, 2));
  return 0;
}
static int
b_stats(lua_State *L) { /* (group) -> { bytes_sent, bytes_received, calls = { all_reduce, … } } */
  MothGroup *g = group_at(L, 1);
  lua_newtable(L);
  lua_pushnumber(L, (lua_Number)atomic_load(&g->stats.bytes_sent));
  lua_setfield(L, -2, "bytes_sent");
  lua_pushnumber(L, (lua_Number)atomic_load(&g->stats.bytes_received));
  lua_setfield(L, -2, "bytes_received");
  lua_newtable(L);
  for (int i = 0; i < MOTH_COMM_NOPS; i++) {
    lua_pushnumber(L, (lua_Number)g->stats.calls[i]);
    lua_setfield(L, -2, moth_comm_op_name(i));
  }
  lua_setfield(L, -2, "calls");
  return 1;
}
static int
b_record(lua_State *
             L) { /* (group) -> list of { call, op, seq, bytes, state, where, made, begun, done } */
  static const char *const states[] = {"queued", "running", "done", "failed"};
  MothGroup *g = group_at(L, 1);
  char text[300];
  lua_newtable(L);
  for (int64_t i = g->nrecords > MOTH_COMM_RECORDS ? g->nrecords - MOTH_COMM_RECORDS : 0, k = 1;
       i < g->nrecords; i++, k++) {
    pthread_mutex_lock(&g->lock);
    MothCommRecord r = g->records[i % MOTH_COMM_RECORDS];
    pthread_mutex_unlock(&g->lock);
    lua_newtable(L);
    lua_pushstring(L, moth_comm_head_text(&r.head, text, sizeof text));
    lua_setfield(L, -2, "call");
    lua_pushstring(L, moth_comm_op_name(r.head.op));
    lua_setfield(L, -2, "op");
    lua_pushnumber(L, (lua_Number)r.head.seq);
    lua_setfield(L, -2, "seq");
    lua_pushnumber(L, (lua_Number)(r.head.count * moth_dtype_size((MothDType)r.head.dtype)));
    lua_setfield(L, -2, "bytes");
    lua_pushstring(L, states[r.state & 3]);
    lua_setfield(L, -2, "state");
    lua_pushstring(L, r.where);
    lua_setfield(L, -2, "where");
    lua_pushnumber(L, r.t0);
    lua_setfield(L, -2, "made");
    lua_pushnumber(L, r.t1);
    lua_setfield(L, -2, "begun");
    lua_pushnumber(L, r.t2);
    lua_setfield(L, -2, "done");
    lua_rawseti(L, -2, (int)k);
  }
  return 1;
}
static int b_watch(lua_State *L) { /* (host, port, token or nil, key) */
  return moth_lua_done(L, moth_comm_watch(luaL_checkstring(L, 1), (int)luaL_checkinteger(L, 2),
                                          luaL_optstring(L, 3, NULL), luaL_checkstring(L, 4)));
}
static int b_has_transport(lua_State *L) { /* ("gloo" or "mpi") -> boolean */
  lua_pushboolean(L, moth_transport_available(luaL_checkstring(L, 1)));
  return 1;
}
static int b_engine(lua_State *L) { /* (group) -> by what its data travels: "tcp", "gloo", … */
  lua_pushstring(L, moth_group_engine(group_at(L, 1)));
  return 1;
}
static int b_has_nccl(lua_State *L) {
  lua_pushboolean(L, moth_nccl_available());
  return 1;
}
static int
b_group_device(lua_State *L) { /* (group) -> "cpu", "cuda:0": where its collectives take tensors */
  char text[32];
  lua_pushstring(L, moth_device_format(moth_group_device(group_at(L, 1)), text, sizeof text));
  return 1;
}
static int b_unwatch(lua_State *L) {
  (void)L;
  moth_comm_unwatch();
  return 0;
}

/* --- calls -------------------------------------------------------------------------------------- */

static MothTensor *memory_at(lua_State *L, int idx, const char *op, MothDevice where) {
  if (lua_isnoneornil(L, idx))
    return NULL;
  MothTensor *t = moth_lua_check_tensor(L, idx, op);
  moth_lua_done(L, moth_tensor_ready(t));
  if (moth_tensor_is_fake(t) || !t->contiguous || t->device.type != where.type ||
      t->device.index != where.index)
    moth_lua_error(L, "[%s] expected contiguous elements on the device of the group", op);
  return t;
}

static int op_at(lua_State *L, int idx) {
  const char *name = luaL_checkstring(L, idx);
  for (int i = 0; i < MOTH_COMM_NOPS; i++)
    if (strcmp(name, moth_comm_op_name(i)) == 0)
      return i;
  return moth_lua_error(L, "there is no collective '%s'", name);
}

/* start(group, op, in, out, reduce, root, tag, timeout, uneven, in_splits, out_splits, now) -> work. uneven: the ranks
 * need not agree on sizes; now: the caller waits at once. */
static int b_start(lua_State *L) {
  moth_lua_enter(L);
  if (moth_unrun)
    moth_lua_leave_notes(L);
  lua_settop(L, 12);
  MothGroup *g = group_at(L, 1);
  int op = op_at(L, 2), nin_splits, nout_splits;
  const char *name = moth_comm_op_name(op);
  MothDevice where_to = op < MOTH_COMM_BARRIER ? moth_group_device(g) : (MothDevice){MOTH_CPU, 0};
  MothTensor *in = memory_at(L, 3, name, where_to), *out = memory_at(L, 4, name, where_to);
  int reduce = lua_isnil(L, 5) ? 0 : moth_comm_reduce_of(luaL_checkstring(L, 5));
  int root = (int)luaL_optinteger(L, 6, -1), tag = (int)luaL_optinteger(L, 7, 0);
  double timeout = luaL_optnumber(L, 8, 0);
  bool uneven = lua_toboolean(L, 9);
  int64_t *in_splits = integers_at(L, 10, &nin_splits),
          *out_splits = integers_at(L, 11, &nout_splits);
  MothTensor *any = in ? in : out;
  bool of_out = op == MOTH_COMM_REDUCE_SCATTER || op == MOTH_COMM_SCATTER;
  const MothTensor *like = of_out && out ? out : any;
  if (reduce < 0)
    return moth_lua_error(
        L, "[%s] there is no reduction '%s'; there are sum, avg, prod, min, max, band, bor, bxor",
        name, lua_tostring(L, 5));
  if (op != MOTH_COMM_BARRIER && !any)
    return moth_lua_error(L, "[%s] expected a tensor", name);
  if (in && out && in->dtype != out->dtype)
    return moth_lua_error(L, "[%s] the input is %s, the output %s: both need one dtype", name,
                          moth_dtype_name((MothDType)in->dtype),
                          moth_dtype_name((MothDType)out->dtype));
  if ((in_splits && nin_splits != g->size) || (out_splits && nout_splits != g->size))
    return moth_lua_error(L, "[%s] expected a split for each of %d ranks", name, g->size);
  if (op == MOTH_COMM_PERMUTE && !(in_splits && out_splits))
    return moth_lua_error(L, "[%s] expected a target and a source", name);
  moth_lua_push_where(L);
  char where[MOTH_COMM_WHERE];
  size_t n = 0;
  const char *text = lua_tolstring(L, -1, &n);
  while (n > 0 && (text[n - 1] == ' ' || text[n - 1] == ':'))
    n--;
  size_t skip = n >= sizeof where ? n - sizeof where + 1 : 0; /* the end tells more */
  memcpy(where, text + skip, n - skip);
  where[n - skip] = 0;
  MothCommRequest r = {.op = op,
                       .reduce = reduce,
                       .root = root,
                       .tag = tag,
                       .dtype = any ? (MothDType)any->dtype : MOTH_UINT8,
                       .device = where_to,
                       .ndim = uneven ? -1
                               : like ? like->ndim
                                      : 0,
                       .shape = like ? like->shape : NULL,
                       .in = in ? in->data : NULL,
                       .out = out ? out->data : NULL,
                       .nin = in ? in->numel : 0,
                       .nout = out ? out->numel : 0,
                       .in_splits = in_splits,
                       .out_splits = out_splits,
                       .tensors = {in, out},
                       .timeout = timeout,
                       .now = lua_toboolean(L, 12),
                       .where = where};
  MothHandle *h = moth_lua_new_handle(L, MAGIC_WORK, &key_work);
  MothWork *w = NULL;
  moth_lua_done(L, moth_comm_start(g, &r, &w));
  h->u.other = w;
  if (out)
    ++*moth_version_of(out);
  return 1;
}

static MothWork *work_at(lua_State *L, int idx) {
  return at(L, idx, MAGIC_WORK, "work");
}
static int
b_work_wait(lua_State *L) { /* (work[, timeout]) -> whether it is done; raises its error */
  moth_lua_enter(L);
  MothWork *w = work_at(L, 1);
  double timeout = luaL_optnumber(L, 2, -1);
  bool done = true;
  moth_lua_done(L, moth_work_wait(w, timeout, &done));
  lua_pushboolean(L, done);
  return 1;
}
static int b_work_state(
    lua_State *L) { /* (work) -> "queued", "running", "done", "failed"; its error; the peer */
  static const char *const states[] = {"queued", "running", "done", "failed"};
  MothWork *w = work_at(L, 1);
  int state = atomic_load(&w->state);
  lua_pushstring(L, states[state]);
  lua_pushstring(L, state == MOTH_WORK_FAILED ? w->text : NULL);
  lua_pushinteger(L, state == MOTH_WORK_DONE ? w->peer : -1);
  return 3;
}
static int work_gc(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MAGIC_WORK);
  if (h) {
    moth_work_release(h->u.other);
    h->u.other = NULL;
  }
  return 0;
}

void moth_lua_open_comm(lua_State *L) { /* the binding's table is on top: into its field comm */
  static const luaL_Reg fns[] = {{"serve", b_serve},
                                 {"server_close", server_gc},
                                 {"connect", b_connect},
                                 {"interfaces", b_interfaces},
                                 {"name_is_loopback", b_name_is_loopback},
                                 {"store_close", store_gc},
                                 {"store_address", b_store_address},
                                 {"store_set", b_set},
                                 {"store_append", b_append},
                                 {"store_get", b_get},
                                 {"store_wait", b_wait},
                                 {"store_check", b_check},
                                 {"store_add", b_add},
                                 {"store_compare_set", b_compare_set},
                                 {"store_delete", b_delete},
                                 {"store_count", b_count},
                                 {"group", b_group},
                                 {"group_close", group_gc},
                                 {"group_broken", b_broken},
                                 {"group_break", b_break},
                                 {"group_stats", b_stats},
                                 {"group_record", b_record},
                                 {"watch", b_watch},
                                 {"unwatch", b_unwatch},
                                 {"has_transport", b_has_transport},
                                 {"has_nccl", b_has_nccl},
                                 {"group_device", b_group_device},
                                 {"group_engine", b_engine},
                                 {"start", b_start},
                                 {"work_wait", b_work_wait},
                                 {"work_state", b_work_state},
                                 {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, fns);
  moth_lua_new_class(L, &key_server, "moth.StoreServer", server_gc);
  moth_lua_new_class(L, &key_store, "moth.Store", store_gc);
  moth_lua_new_class(L, &key_group, "moth.ProcessGroup", group_gc);
  moth_lua_new_class(L, &key_work, "moth.Work", work_gc);
  lua_setfield(L, -2, "comm");
}
