/* Memory for Lua: statistics, the limit, the record of allocations with the lines of Lua that made them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/history.h"
#include "lua/moth_lua.h"

enum { DEPTH = 16 };

/* The state that has started the record, for allocations that no call of the binding leads to; it is retained. On the
 * thread `recorder` only. */
static lua_State *recording;
static int recording_ref = LUA_NOREF;
static _Thread_local bool recorder MOTH_LUA_TLS;
static char own_files[256]; /* the beginning of the chunk names of moth's own files */

/* A line for each level, the innermost first: "train.lua:12: matmul". The first one is the nearest outside moth, with the
 * name of what was called there. Nothing is pushed, so that no garbage is collected in the middle of an allocation. */
static void describe(char *text, size_t n) {
  lua_State *L = moth_lua_current ? moth_lua_current : recorder ? recording : NULL;
  lua_Debug ar;
  char first[160] = "", called[64] = "";
  size_t at = 0;
  text[0] = 0;
  for (int level = 0, lines = 0; L && lines < DEPTH && lua_getstack(L, level, &ar); level++) {
    lua_getinfo(L, "Sln", &ar);
    if (ar.currentline > 0) {
      bool own = own_files[0] && !strncmp(ar.source, own_files, strlen(own_files));
      if (!own && !first[0])
        snprintf(first, sizeof first, "%s:%d%s%s", ar.short_src, ar.currentline,
                 called[0] ? ": " : "", called);
      int wrote = snprintf(text + at, n - at, "\n%s:%d%s%s", ar.short_src, ar.currentline,
                           called[0] ? ": " : "", called);
      at += wrote > 0 && (size_t)wrote < n - at ? (size_t)wrote : 0;
      text[at] = 0;
      lines++;
    }
    snprintf(called, sizeof called, "%s", ar.name ? ar.name : "");
  }
  size_t head = strlen(first);
  if (head && head + at + 1 < n) {
    memmove(text + head, text, at + 1);
    memcpy(text, first, head);
  }
}

/* The state closes: its stack must not be read any more. */
static int end_recorder(lua_State *L) {
  (void)L;
  if (recorder && recording_ref != LUA_NOREF) {
    moth_history_stop();
    recording = NULL;
    recording_ref = LUA_NOREF;
  }
  return 0;
}

/* history_start(capacity, chunk names of moth's files) */
static int b_history_start(lua_State *L) {
  int64_t capacity = moth_lua_check_integer(L, 1, 0, INT32_MAX - 1);
  const char *own = moth_lua_string(L, 2);
  moth_history_stop();
  snprintf(own_files, sizeof own_files, "%s", own ? own : "");
  lua_getfield(L, LUA_REGISTRYINDEX, "moth.recorder");
  if (lua_isnil(L, -1)) { /* until the state closes */
    lua_newuserdata(L, 1);
    lua_newtable(L);
    lua_pushcfunction(L, end_recorder);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    lua_setfield(L, LUA_REGISTRYINDEX, "moth.recorder");
  }
  lua_pushthread(L);
  if (recording_ref != LUA_NOREF && recorder)
    luaL_unref(L, LUA_REGISTRYINDEX, recording_ref);
  recording_ref = luaL_ref(L, LUA_REGISTRYINDEX);
  recording = L;
  recorder = true;
  MothStatus s = moth_history_start(capacity, describe);
  return s ? moth_lua_raise(L, s) : 0;
}

static int b_history_stop(lua_State *L) {
  (void)L;
  moth_history_stop();
  return 0;
}

static int b_history_on(lua_State *L) {
  lua_pushboolean(L, moth_history_on());
  return 1;
}

static void set_number(lua_State *L, const char *name, double v) {
  lua_pushnumber(L, v);
  lua_setfield(L, -2, name);
}
static void set_device(lua_State *L, MothDevice d) {
  char name[32];
  lua_pushstring(L, moth_device_format(d, name, sizeof name));
  lua_setfield(L, -2, "device");
}

/* history_blocks() -> a list of { address, size, requested (of tensors), time (s), trace, serial, device } */
static int b_history_blocks(lua_State *L) {
  MothHistoryBlock *blocks;
  int64_t n = moth_history_blocks(&blocks);
  lua_newtable(L);
  for (int64_t i = 0; i < n; i++) {
    const MothHistoryBlock *b = &blocks[i];
    char address[32];
    lua_createtable(L, 0, 7);
    snprintf(address, sizeof address, "%p", b->address);
    lua_pushstring(L, address);
    lua_setfield(L, -2, "address");
    set_number(L, "size", (double)b->bytes);
    if (b->nbytes >= 0)
      set_number(L, "requested", (double)b->nbytes);
    set_number(L, "time", (double)b->time / 1e9);
    set_number(L, "trace", b->trace);
    set_number(L, "serial", b->serial);
    set_device(L, b->device);
    lua_rawseti(L, -2, (int)i + 1);
  }
  free(blocks);
  return 1;
}

/* history_events() -> a list of { bytes, time, trace, serial, device } */
static int b_history_events(lua_State *L) {
  MothHistoryEvent *events;
  int64_t n = moth_history_events(&events);
  lua_newtable(L);
  for (int64_t i = 0; i < n; i++) {
    const MothHistoryEvent *e = &events[i];
    lua_createtable(L, 0, 5);
    set_number(L, "bytes", (double)e->bytes);
    set_number(L, "time", (double)e->time / 1e9);
    set_number(L, "trace", e->trace);
    set_number(L, "serial", e->serial);
    set_device(L, e->device);
    lua_rawseti(L, -2, (int)i + 1);
  }
  free(events);
  return 1;
}

static int b_history_trace(lua_State *L) {
  lua_pushstring(L, moth_history_trace((uint32_t)moth_lua_check_integer(L, 1, 0, UINT32_MAX)));
  return 1;
}

/* memory_limit(bytes or nil) -> the limit before, 0: none */
static int b_memory_limit(lua_State *L) {
  int64_t was = moth_alloc_limit();
  if (!lua_isnoneornil(L, 1))
    moth_alloc_set_limit(moth_lua_check_integer(L, 1, 0, (int64_t)9e15));
  lua_pushnumber(L, (lua_Number)was);
  return 1;
}

void moth_lua_open_memory(lua_State *L) { /* the binding's table is on top */
  static const luaL_Reg fns[] = {
      {"history_start", b_history_start},   {"history_stop", b_history_stop},
      {"history_on", b_history_on},         {"history_blocks", b_history_blocks},
      {"history_events", b_history_events}, {"history_trace", b_history_trace},
      {"memory_limit", b_memory_limit},     {NULL, NULL}};
  luaL_register(L, NULL, fns);
}
