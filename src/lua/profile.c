/* The recorder (profile/profile.h) for lua/moth/profiler. */
#include "profile/profile.h"

#include <string.h>

#include "core/dtype.h"
#include "core/environment.h"
#include "lua/moth_lua.h"
#include "profile/nvtx.h"

#define MAGIC_PROFILE 0x6d6f74685072666cull

static char key_meta;

/* --- the line of the program --------------------------------------------------------------------------- */

enum { MOST_FRAMES = 12, LEVELS = 60 };

int moth_lua_frames(lua_State *L, int most, MothLuaFrame *found) {
  lua_Debug ar;
  const char *library = moth_lua_library(L);
  size_t length = library ? strlen(library) : 0;
  int n = 0;
  for (int level = 0; n < most && level < LEVELS && lua_getstack(L, level, &ar); level++) {
    lua_getinfo(L, "Sl", &ar);
    if (ar.currentline <= 0 || (length && strncmp(ar.source, library, length) == 0))
      continue;
    found[n++] = (MothLuaFrame){ar.source, ar.currentline};
  }
  return n;
}

const char *moth_lua_source_name(const char *source, char *text, size_t size) {
  size_t n = strcspn(source, "\n"), from = *source == '@' || *source == '=';
  size_t skip = n - from >= size ? n - size + 1 : from; /* the end of a long path says more */
  memcpy(text, source + skip, n - skip);
  text[n - skip] = 0;
  return text;
}

static int32_t here(int frames) {
  lua_State *L = moth_lua_current;
  MothLuaFrame found[MOST_FRAMES];
  char text[256];
  if (!L || !lua_checkstack(L, 8))
    return -1;
  int32_t place = -1;
  for (int n = moth_lua_frames(L, frames, found); n-- > 0;)
    place = moth_profile_intern(place, moth_lua_source_name(found[n].source, text, sizeof text),
                                found[n].line);
  return place;
}

/* frames(n) -> "train.lua:12\ntrain.lua:30\n": at most n lines, the innermost first */
static int b_frames(lua_State *L) {
  MothLuaFrame found[MOST_FRAMES];
  char text[MOST_FRAMES * 280], *at = text, source[256];
  int n = moth_lua_frames(L, (int)moth_lua_check_integer(L, 1, 1, MOST_FRAMES), found);
  for (int i = 0; i < n; i++)
    at += sprintf(at, "%s:%d\n", moth_lua_source_name(found[i].source, source, sizeof source),
                  found[i].line);
  lua_pushlstring(L, text, (size_t)(at - text));
  return 1;
}

/* --- functions ------------------------------------------------------------------------------------------- */

/* profile_start(max_events, shapes, memory, frames, device) */
static int b_start(lua_State *L) {
  MothProfileOptions o = {.max_events = moth_lua_check_integer(L, 1, 1, 2147483647),
                          .shapes = lua_toboolean(L, 2),
                          .memory = lua_toboolean(L, 3),
                          .device = lua_toboolean(L, 5),
                          .frames = (int32_t)moth_lua_check_integer(L, 4, 0, MOST_FRAMES)};
  moth_profile_here = here;
  MothStatus s = moth_profile_start(&o);
  return s ? moth_lua_raise(L, s) : 0;
}

static int profile_gc(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MAGIC_PROFILE);
  if (h && h->u.other)
    moth_profile_free(h->u.other);
  if (h)
    h->u.other = NULL;
  return 0;
}

/* profile_stop() -> the recording, or nil */
static int b_stop(lua_State *L) {
  MothHandle *h = lua_newuserdata(L, sizeof *h);
  h->magic = MAGIC_PROFILE;
  h->u.other = NULL;
  lua_pushlightuserdata(L, &key_meta);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_setmetatable(L, -2);
  h->u.other = moth_profile_stop();
  return h->u.other ? 1 : 0;
}

static const MothProfile *check(lua_State *L) {
  MothHandle *h = moth_lua_check_handle(L, 1, MAGIC_PROFILE, "recording");
  return h->u.other;
}

static int b_running(lua_State *L) {
  lua_pushboolean(L, moth_profile_running());
  return 1;
}

/* profile_begin(kind, name) -> token */
static int b_begin(lua_State *L) {
  int64_t kind = moth_lua_check_integer(L, 1, MOTH_EVENT_RANGE, MOTH_EVENT_COLLECTIVE);
  const char *name = luaL_checkstring(L, 2);
  moth_lua_sync(L);
  lua_State *outer = moth_lua_current;
  moth_lua_current = L;
  lua_pushnumber(L, (lua_Number)moth_profile_begin((MothEventKind)kind, name));
  moth_lua_current = outer;
  return 1;
}

static int b_end(lua_State *L) {
  moth_profile_end(moth_whole(luaL_checknumber(L, 1)));
  return 0;
}

static void set_number(lua_State *L, const char *name, int64_t value) {
  lua_pushnumber(L, (lua_Number)value);
  lua_setfield(L, -2, name);
}

/* profile_info(recording) -> { threads, names, places, duration, lost, lost_since, began, work, nwork, device, by_events }. The pointers in `threads` live
 * as long as the recording. Numbers of names and places count from 0, places are { source, line, caller }. */
static int b_info(lua_State *L) {
  const MothProfile *p = check(L);
  lua_createtable(L, 0, 8);
  lua_newtable(L);
  for (int i = 0; i < moth_profile_threads(p); i++) {
    const MothProfileThread *t = moth_profile_thread(p, i);
    lua_createtable(L, 0, 4);
    set_number(L, "id", t->id);
    set_number(L, "n", t->n);
    lua_pushlightuserdata(L, (void *)t->chunks);
    lua_setfield(L, -2, "chunks");
    lua_pushlightuserdata(L, t->shapes);
    lua_setfield(L, -2, "shapes");
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "threads");
  lua_newtable(L);
  for (uint32_t i = 0; i < moth_profile_names(p); i++) {
    lua_pushstring(L, moth_profile_name_at(p, i));
    lua_rawseti(L, -2, (int)i);
  }
  lua_setfield(L, -2, "names");
  lua_newtable(L);
  for (int32_t i = 0; i < moth_profile_places(p); i++) {
    MothPlace at = moth_profile_place_at(p, i);
    lua_createtable(L, 0, 3);
    lua_pushstring(L, at.source);
    lua_setfield(L, -2, "source");
    set_number(L, "line", at.line);
    set_number(L, "caller", at.caller);
    lua_rawseti(L, -2, i);
  }
  lua_setfield(L, -2, "places");
  int64_t since;
  set_number(L, "duration", moth_profile_duration(p));
  set_number(L, "lost", moth_profile_lost(p, &since));
  set_number(L, "lost_since", since);
  set_number(L, "began", moth_profile_began(p));
  set_number(L, "thread", moth_profile_starter(p));
  int64_t n;
  const char *by_events;
  lua_pushlightuserdata(L, (void *)moth_profile_work(p, &n));
  lua_setfield(L, -2, "work");
  set_number(L, "nwork", n);
  lua_pushboolean(L, moth_profile_device(p, &by_events));
  lua_setfield(L, -2, "device");
  lua_pushstring(L, by_events); /* or nil */
  lua_setfield(L, -2, "by_events");
  return 1;
}

/* nvtx("push" | "pop" | "mark", text) -> whether a tool is attached */
static int b_nvtx(lua_State *L) {
  static const char *const names[] = {"push", "pop", "mark", NULL};
  static bool (*const calls[])(const char *) = {moth_nvtx_push, NULL, moth_nvtx_mark};
  int what = luaL_checkoption(L, 1, NULL, names);
  lua_pushboolean(L, calls[what] ? calls[what](moth_lua_string(L, 2)) : moth_nvtx_pop());
  return 1;
}

/* nvtx_why() -> a text, or nil */
static int b_nvtx_why(lua_State *L) {
  lua_pushstring(L, moth_nvtx_why());
  return 1;
}

/* profile_write_chrome(recording, path), profile_write_perfetto(recording, path) */
static int b_write_chrome(lua_State *L) {
  const MothProfile *p = check(L);
  MothStatus s = moth_profile_write_chrome(p, luaL_checkstring(L, 2));
  return s ? moth_lua_raise(L, s) : 0;
}
static int b_write_perfetto(lua_State *L) {
  const MothProfile *p = check(L);
  MothStatus s = moth_profile_write_perfetto(p, luaL_checkstring(L, 2));
  return s ? moth_lua_raise(L, s) : 0;
}

void moth_lua_open_profile(lua_State *L) {
  static const luaL_Reg fns[] = {{"start", b_start},
                                 {"stop", b_stop},
                                 {"running", b_running},
                                 {"begin", b_begin},
                                 {"finish", b_end},
                                 {"info", b_info},
                                 {"write_chrome", b_write_chrome},
                                 {"write_perfetto", b_write_perfetto},
                                 {"frames", b_frames},
                                 {"nvtx", b_nvtx},
                                 {"nvtx_why", b_nvtx_why},
                                 {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, fns);
  lua_pushboolean(L, moth_env_flag("MOTH_NVTX", false));
  lua_setfield(L, -2, "nvtx_wanted");
  set_number(L, "event_size", sizeof(MothEvent));
  set_number(L, "work_size", sizeof(MothDeviceWork));
  set_number(L, "chunk", MOTH_PROFILE_CHUNK);
  lua_newtable(L); /* dtypes by their codes in shapes */
  for (int d = 0; d < MOTH_NDTYPES; d++) {
    lua_createtable(L, 0, 2);
    lua_pushstring(L, moth_dtype_name((MothDType)d));
    lua_setfield(L, -2, "name");
    set_number(L, "size", (int64_t)moth_dtype_size((MothDType)d));
    lua_rawseti(L, -2, d);
  }
  lua_setfield(L, -2, "dtypes");
  lua_setfield(L, -2, "profile");
  lua_pushlightuserdata(L, &key_meta);
  lua_newtable(L);
  lua_pushcfunction(L, profile_gc);
  lua_setfield(L, -2, "__gc");
  lua_rawset(L, LUA_REGISTRYINDEX);
}
