/* Streams and events of all devices, for lua/moth/device/stream.lua. */
#include "device/stream.h"

#include "lua/moth_lua.h"

#define MAGIC_STREAM 0x6d6f746873747265ull
#define MAGIC_EVENT  0x6d6f746865766e74ull

typedef struct Handle { /* of the size of a MothHandle */
  union {
    MothStream *stream; /* owned */
    MothEvent *event;
  } u;
  uint64_t magic;
} Handle;
_Static_assert(sizeof(Handle) == sizeof(MothHandle), "handles have one size");

static char key_stream, key_event;

/* A device, or a name of one: "cpu", "cuda:1". */
static MothDevice device_at(lua_State *L, int idx) {
  MothDevice d = moth_lua_check_device(L, idx);
  moth_lua_done(L, moth_device_check(d));
  return d;
}
static MothStream *stream_at(lua_State *L, int idx) {
  return ((Handle *)moth_lua_check_handle(L, idx, MAGIC_STREAM, "moth.Stream"))->u.stream;
}

static MothStream *stream_or_null(lua_State *L, int idx) {
  moth_lua_sync(L);
  return lua_isnoneornil(L, idx) ? NULL : stream_at(L, idx);
}

/* --- streams ------------------------------------------------------------------------------------ */

static int b_new(lua_State *L) { /* (device, priority) */
  MothDevice d = device_at(L, 1);
  int priority = (int)luaL_optinteger(L, 2, 0);
  Handle *h = moth_lua_new_handle(L, MAGIC_STREAM, &key_stream);
  moth_lua_done(L, moth_stream_new(d, priority, &h->u.stream));
  return 1;
}
static int b_default(lua_State *L) { /* (device) */
  MothDevice d = device_at(L, 1);
  Handle *h = moth_lua_new_handle(L, MAGIC_STREAM, &key_stream);
  moth_lua_done(L, moth_stream_default(d, &h->u.stream));
  return 1;
}
static int b_current(lua_State *L) { /* (device) */
  moth_lua_sync(L);
  MothDevice d = device_at(L, 1);
  Handle *h = moth_lua_new_handle(L, MAGIC_STREAM, &key_stream);
  moth_lua_done(L, moth_stream_current(d, &h->u.stream));
  return 1;
}
static int b_set(lua_State *L) { /* (stream) */
  moth_lua_sync(L);
  return moth_lua_done(L, moth_stream_set_current(stream_at(L, 1)));
}
static int b_device(lua_State *L) {
  moth_lua_push_device(L, moth_stream_device(stream_at(L, 1)));
  return 1;
}
static int b_priority(lua_State *L) {
  lua_pushinteger(L, moth_stream_priority(stream_at(L, 1)));
  return 1;
}
static int b_handle(lua_State *L) {
  lua_pushnumber(L, (lua_Number)(uintptr_t)moth_stream_handle(stream_at(L, 1)));
  return 1;
}
static int b_synchronize(lua_State *L) {
  return moth_lua_done(L, moth_stream_synchronize(stream_at(L, 1)));
}
static int b_synchronize_device(lua_State *L) {
  return moth_lua_done(L, moth_device_synchronize(device_at(L, 1)));
}
static int b_query(lua_State *L) {
  bool is;
  moth_lua_done(L, moth_stream_query(stream_at(L, 1), &is));
  lua_pushboolean(L, is);
  return 1;
}
static int b_wait_stream(lua_State *L) { /* (stream, other): stream waits for other */
  MothStream *s = stream_at(L, 1);
  return moth_lua_done(L, moth_stream_wait_stream(s, stream_at(L, 2)));
}
static int b_record_stream(lua_State *L) { /* (tensor, stream) */
  MothTensor *t = moth_lua_check_tensor(L, 1, "record_stream");
  return moth_lua_done(L, moth_tensor_record_stream(t, stream_at(L, 2)));
}
static int stream_gc(lua_State *L) {
  Handle *h = (Handle *)moth_lua_handle(L, 1, MAGIC_STREAM);
  if (h) {
    moth_stream_release(h->u.stream);
    h->magic = 0;
  }
  return 0;
}
static int stream_eq(lua_State *L) {
  Handle *a = (Handle *)moth_lua_handle(L, 1, MAGIC_STREAM),
         *b = (Handle *)moth_lua_handle(L, 2, MAGIC_STREAM);
  lua_pushboolean(L, a && b && a->u.stream == b->u.stream);
  return 1;
}

/* --- events ------------------------------------------------------------------------------------- */

static MothEvent *event_at(lua_State *L, int idx) {
  return ((Handle *)moth_lua_check_handle(L, idx, MAGIC_EVENT, "moth.Event"))->u.event;
}
static int b_event_new(lua_State *L) { /* (device, timing) */
  MothDevice d = device_at(L, 1);
  bool timing = lua_toboolean(L, 2);
  Handle *h = moth_lua_new_handle(L, MAGIC_EVENT, &key_event);
  moth_lua_done(L, moth_event_new((MothDeviceType)d.type, timing, &h->u.event));
  return 1;
}
static int event_gc(lua_State *L) {
  Handle *h = (Handle *)moth_lua_handle(L, 1, MAGIC_EVENT);
  if (h) {
    moth_event_free(h->u.event);
    h->magic = 0;
  }
  return 0;
}
static int b_event_record(lua_State *L) { /* (event[, stream]) */
  MothEvent *e = event_at(L, 1);
  return moth_lua_done(L, moth_event_record(e, stream_or_null(L, 2)));
}
static int b_event_wait(lua_State *L) { /* (event[, stream]): the stream waits */
  MothEvent *e = event_at(L, 1);
  return moth_lua_done(L, moth_event_wait(e, stream_or_null(L, 2)));
}
static int b_event_query(lua_State *L) {
  bool is;
  moth_lua_done(L, moth_event_query(event_at(L, 1), &is));
  lua_pushboolean(L, is);
  return 1;
}
static int b_event_synchronize(lua_State *L) {
  return moth_lua_done(L, moth_event_synchronize(event_at(L, 1)));
}
static int b_event_elapsed(lua_State *L) { /* (from, to) */
  double ms;
  MothEvent *from = event_at(L, 1);
  moth_lua_done(L, moth_event_elapsed(from, event_at(L, 2), &ms));
  lua_pushnumber(L, ms);
  return 1;
}

static void new_class(lua_State *L, void *key, const char *name, lua_CFunction gc,
                      lua_CFunction eq) {
  lua_newtable(L);
  lua_pushcfunction(L, gc);
  lua_setfield(L, -2, "__gc");
  if (eq) {
    lua_pushcfunction(L, eq);
    lua_setfield(L, -2, "__eq");
  }
  lua_pushfstring(L, "moth.%s", name);
  lua_setfield(L, -2, "__name");
  lua_pushlightuserdata(L, key);
  lua_pushvalue(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
  lua_setfield(L, -2, name);
}

void moth_lua_open_streams(
    lua_State *L) { /* the binding's table is on top: into its field stream */
  static const luaL_Reg fns[] = {{"new", b_new},
                                 {"default", b_default},
                                 {"current", b_current},
                                 {"set", b_set},
                                 {"device", b_device},
                                 {"priority", b_priority},
                                 {"handle", b_handle},
                                 {"synchronize", b_synchronize},
                                 {"synchronize_device", b_synchronize_device},
                                 {"query", b_query},
                                 {"wait_stream", b_wait_stream},
                                 {"record_stream", b_record_stream},
                                 {"event_new", b_event_new},
                                 {"event_record", b_event_record},
                                 {"event_wait", b_event_wait},
                                 {"event_query", b_event_query},
                                 {"event_synchronize", b_event_synchronize},
                                 {"event_elapsed", b_event_elapsed},
                                 {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, fns);
  new_class(L, &key_stream, "Stream", stream_gc, stream_eq);
  new_class(L, &key_event, "Event", event_gc, NULL);
  lua_setfield(L, -2, "stream");
}
