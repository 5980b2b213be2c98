/* CUDA for Lua: what lua/moth/cuda/init.lua is made of. Graphs are userdata that begin with a magic number, as all
 * handles do. Streams and events: stream.c. Devices are numbers from 0. */
#include <stdio.h>
#include <string.h>

#include "device/cuda.h"
#include "device/device.h"
#include "lua/moth_lua.h"

#define MAGIC_GRAPH   0x6d6f746867726170ull
#define MAGIC_PROGRAM 0x6d6f746870726f67ull

typedef struct Handle { /* of the size of a MothHandle */
  union {
    MothCudaGraph *graph;
    MothCudaProgram *program;
  } u;
  uint64_t magic;
} Handle;
_Static_assert(sizeof(Handle) == sizeof(MothHandle), "handles have one size");

static char key_graph, key_program;

static const MothCudaApi *need(lua_State *L) {
  const MothCudaApi *api = moth_cuda_api();
  if (!api)
    moth_lua_raise(L, MOTH_ERR_STATE);
  return api;
}
/* A device index, or nothing: the current one. */
static int device_at(lua_State *L, int idx) {
  const MothCudaApi *api = need(L);
  if (lua_isnoneornil(L, idx))
    return api->current();
  MothDevice d = {MOTH_CUDA, 0};
  if (lua_type(L, idx) == LUA_TNUMBER) {
    double n = lua_tonumber(L, idx);
    if (n != (double)(int)n || n < 0 || n > 255)
      moth_lua_error(L, "expected a device's index from 0, got %.14g", n);
    d.index = (uint8_t)n;
  } else {
    d = moth_lua_check_device(L, idx);
    if (d.type != MOTH_CUDA)
      moth_lua_error(L, "expected a CUDA device such as \"cuda:0\" or 0");
  }
  moth_lua_done(L, moth_device_check(d));
  return d.index;
}

/* --- devices ------------------------------------------------------------------------------------ */

static int b_count(lua_State *L) {
  const MothCudaApi *api = moth_cuda_api();
  lua_pushinteger(L, api ? api->count() : 0);
  return 1;
}
static int b_device(lua_State *L) { /* ([device]) -> the index that it means */
  lua_pushinteger(L, device_at(L, 1));
  return 1;
}
static int b_set_device(lua_State *L) {
  moth_lua_sync(L);
  need(L)->set_current(device_at(L, 1));
  return 0;
}
static void field(lua_State *L, const char *name, double value) {
  lua_pushnumber(L, value);
  lua_setfield(L, -2, name);
}
static int b_properties(lua_State *L) {
  MothCudaInfo f;
  int device = device_at(L, 1);
  need(L)->info(device, &f);
  lua_createtable(L, 0, 9);
  lua_pushstring(L, f.name);
  lua_setfield(L, -2, "name");
  field(L, "major", f.major);
  field(L, "minor", f.minor);
  field(L, "total_memory", (double)f.total);
  field(L, "multi_processor_count", f.multiprocessors);
  field(L, "max_threads_per_multi_processor", f.threads_per_multiprocessor);
  field(L, "warp_size", f.warp);
  field(L, "shared_memory_per_block", (double)f.shared_per_block);
  field(L, "L2_cache_size", (double)f.l2);
  return 1;
}
/* --- memory ------------------------------------------------------------------------------------- */

static int b_mem_get_info(lua_State *L) {
  size_t available, total;
  int device = device_at(L, 1);
  moth_lua_done(L, need(L)->mem_get_info(device, &available, &total));
  lua_pushnumber(L, (lua_Number)available);
  lua_pushnumber(L, (lua_Number)total);
  return 2;
}

static void counts(lua_State *L, const char *name, MothCudaCount c) {
  struct {
    const char *what;
    int64_t n;
  } part[] = {
      {"current", c.current}, {"peak", c.peak}, {"allocated", c.allocated}, {"freed", c.freed}};
  for (int i = 0; i < 4; i++) {
    char key[64];
    snprintf(key, sizeof key, "%s.all.%s", name, part[i].what);
    field(L, key, (double)part[i].n);
  }
}
/* memory_stats([device]) -> { ["allocated_bytes.all.current"] = …, … } */
static int b_memory_stats(lua_State *L) {
  MothCudaMemory m;
  int device = device_at(L, 1);
  need(L)->memory(device, &m);
  lua_createtable(L, 0, 32);
  counts(L, "allocated_bytes", m.allocated);
  counts(L, "active_bytes", m.active);
  counts(L, "requested_bytes", m.requested);
  counts(L, "reserved_bytes", m.reserved);
  counts(L, "allocation", m.blocks);
  counts(L, "segment", m.segments);
  field(L, "num_alloc_retries", (double)m.retries);
  field(L, "num_ooms", (double)m.ooms);
  return 1;
}

typedef struct Block {
  const void *segment, *p;
  size_t segment_size, size;
  void *stream;
  bool small, is_private;
  uint8_t state;
} Block;
typedef struct Blocks {
  const MothCudaApi *api;
  Block *list;
  size_t n, capacity;
} Blocks;

static void note_block(void *ctx, const void *segment, size_t segment_size, bool small,
                       bool is_private, const MothStream *stream, const void *p, size_t size,
                       int state) {
  Blocks *b = ctx;
  if (b->n < b->capacity)
    b->list[b->n] = (Block){segment, p,          segment_size,  size, moth_stream_handle(stream),
                            small,   is_private, (uint8_t)state};
  b->n++;
}
/* memory_snapshot([device]) -> list of segments, with a list of blocks each. The heap is locked while it is read: Lua
 * values are made after that. */
static int b_memory_snapshot(lua_State *L) {
  static const char *const states[] = {"inactive", "active_allocated", "active_pending_free"};
  int device = device_at(L, 1);
  Blocks b = {need(L), NULL, 0, 0};
  do {
    b.capacity = b.n + 64;
    b.n = 0;
    b.list = lua_newuserdata(L, b.capacity * sizeof *b.list);
    b.api->visit(device, note_block, &b);
  } while (b.n > b.capacity);
  lua_newtable(L);
  const void *segment = NULL;
  int segments = 0, blocks = 0;
  for (size_t i = 0; i < b.n; i++) {
    Block *k = &b.list[i];
    if (k->segment != segment) {
      if (segment) {
        lua_setfield(L, -2, "blocks");
        lua_rawseti(L, -2, ++segments);
      }
      segment = k->segment;
      blocks = 0;
      lua_createtable(L, 0, 8);
      field(L, "address", (double)(uintptr_t)k->segment);
      field(L, "total_size", (double)k->segment_size);
      field(L, "device", device);
      field(L, "stream", (double)(uintptr_t)k->stream);
      lua_pushstring(L, k->small ? "small" : "large");
      lua_setfield(L, -2, "segment_type");
      lua_pushboolean(L, k->is_private);
      lua_setfield(L, -2, "is_private");
      lua_newtable(L);
    }
    lua_createtable(L, 0, 3);
    field(L, "address", (double)(uintptr_t)k->p);
    field(L, "size", (double)k->size);
    lua_pushstring(L, states[k->state]);
    lua_setfield(L, -2, "state");
    lua_rawseti(L, -2, ++blocks);
  }
  if (segment) {
    lua_setfield(L, -2, "blocks");
    lua_rawseti(L, -2, ++segments);
  }
  return 1;
}

static int b_reset_peak(lua_State *L) {
  int device = device_at(L, 1);
  need(L)->reset_peak(device);
  return 0;
}
static int b_reset_accumulated(lua_State *L) {
  int device = device_at(L, 1);
  need(L)->reset_accumulated(device);
  return 0;
}
static int b_empty_cache(lua_State *L) { /* of all devices */
  const MothCudaApi *api = need(L);
  MothStatus s = MOTH_OK;
  for (int i = 0; i < api->count() && s == MOTH_OK; i++) {
    MothCudaMemory m;
    api->memory(i, &m);
    if (m.reserved.current)
      s = api->empty_cache(i);
  }
  return moth_lua_done(L, s);
}
static int b_set_fraction(lua_State *L) { /* (fraction[, device]) */
  double fraction = moth_lua_number(L, 1);
  int device = device_at(L, 2);
  if (!(fraction > 0 && fraction <= 1))
    return moth_lua_error(L, "expected a fraction above 0, up to 1, got %g", fraction);
  need(L)->set_fraction(device, fraction);
  return 0;
}
/* pin(t) -> a copy in pinned memory, or t itself if it is pinned */
static int b_pin(lua_State *L) {
  MothTensor *t = moth_lua_check_tensor(L, 1, "pin_memory"), *out;
  const MothCudaApi *api = need(L);
  if (moth_tensor_is_fake(t) || api->is_pinned(t)) {
    lua_pushvalue(L, 1);
    return 1;
  }
  if (t->device.type != MOTH_CPU)
    return moth_lua_error(L, "pin_memory: only tensors on the cpu can be pinned, this one is on %s",
                          moth_memory(t->device.type)->name);
  MothStatus s = api->pin(t, &out);
  if (s)
    return moth_lua_raise(L, s);
  moth_lua_push_tensor(L, out);
  return 1;
}
static int b_is_pinned(lua_State *L) {
  MothTensor *t = moth_lua_check_tensor(L, 1, "is_pinned");
  /* only the backend makes pinned memory, which is foreign to the CPU's allocator */
  bool maybe = t->device.type == MOTH_CPU && t->storage->foreign && !moth_cuda_why();
  lua_pushboolean(L, maybe && need(L)->is_pinned(t));
  return 1;
}
static int b_pinned_memory(lua_State *L) {
  int64_t live, cached;
  need(L)->pinned_memory(&live, &cached);
  lua_pushnumber(L, (lua_Number)live);
  lua_pushnumber(L, (lua_Number)cached);
  return 2;
}
static int b_empty_pinned_cache(lua_State *L) {
  return moth_lua_done(L, need(L)->empty_pinned_cache());
}

/* --- graphs ------------------------------------------------------------------------------------- */

static MothCudaGraph *graph_at(lua_State *L, int idx) {
  return ((Handle *)moth_lua_check_handle(L, idx, MAGIC_GRAPH, "moth.cuda.CUDAGraph"))->u.graph;
}
static int b_graph_new(lua_State *L) {
  const MothCudaApi *api = need(L);
  Handle *h = moth_lua_new_handle(L, MAGIC_GRAPH, &key_graph);
  h->u.graph = api->graph_new();
  return h->u.graph ? 1 : moth_lua_raise(L, MOTH_ERR_MEMORY);
}
static int graph_gc(lua_State *L) {
  Handle *h = (Handle *)moth_lua_handle(L, 1, MAGIC_GRAPH);
  if (h && h->u.graph)
    need(L)->graph_free(h->u.graph);
  if (h)
    h->u.graph = NULL;
  return 0;
}
static int b_graph_begin(lua_State *L) { /* (graph, pool or 0, mode) */
  static const char *const modes[] = {"global", "thread_local", "relaxed", NULL};
  MothCudaGraph *g = graph_at(L, 1);
  double pool = luaL_optnumber(L, 2, 0);
  int mode = luaL_checkoption(L, 3, "global", modes);
  return moth_lua_done(L, need(L)->graph_begin(g, (uint64_t)pool, mode));
}
static int b_graph_end(lua_State *L) {
  return moth_lua_done(L, need(L)->graph_end(graph_at(L, 1)));
}
static int b_graph_replay(lua_State *L) {
  moth_lua_enter(L);
  return moth_lua_done(L, need(L)->graph_replay(graph_at(L, 1)));
}
static int b_graph_reset(lua_State *L) {
  return moth_lua_done(L, need(L)->graph_reset(graph_at(L, 1)));
}
static int b_graph_pool(lua_State *L) {
  lua_pushnumber(L, (lua_Number)need(L)->graph_pool(graph_at(L, 1)));
  return 1;
}
static int b_pool_new(lua_State *L) {
  lua_pushnumber(L, (lua_Number)need(L)->pool_new());
  return 1;
}
static int b_is_capturing(lua_State *L) {
  int device = device_at(L, 1);
  lua_pushboolean(L, need(L)->is_capturing(device));
  return 1;
}

/* --- programs compiled at run time ------------------------------------------------------------------ */

/* The strings of the list at idx, as an array in a userdata that is pushed; the list keeps them alive. */
static const char **strings_at(lua_State *L, int idx, int *n) {
  luaL_checktype(L, idx, LUA_TTABLE);
  *n = (int)lua_objlen(L, idx);
  const char **list = lua_newuserdata(L, sizeof *list * (size_t)(*n ? *n : 1));
  for (int i = 0; i < *n; i++) {
    lua_rawgeti(L, idx, i + 1);
    moth_lua_type(L, -1, LUA_TSTRING);
    list[i] = lua_tostring(L, -1);
    lua_pop(L, 1);
  }
  return list;
}
static MothStatus push_image(void *ctx, const char *image, size_t n) {
  lua_pushlstring(ctx, image, n);
  return MOTH_OK;
}
/* program(device, name, text, kernels, header names, headers, options, image or nil) -> program, its image if it was
 * compiled */
static int b_program(lua_State *L) {
  int device = device_at(L, 1), nheaders;
  MothCudaSource s = {.name = moth_lua_string(L, 2), .text = moth_lua_string(L, 3)};
  lua_settop(L, 8);
  s.kernels = strings_at(L, 4, &s.nkernels);
  s.header_names = strings_at(L, 5, &s.nheaders);
  s.headers = strings_at(L, 6, &nheaders);
  s.options = strings_at(L, 7, &s.noptions);
  if (nheaders != s.nheaders)
    return moth_lua_error(L, "expected as many headers as names");
  if (!lua_isnoneornil(L, 8)) {
    moth_lua_type(L, 8, LUA_TSTRING);
    s.image = lua_tolstring(L, 8, &s.image_size);
  }
  const MothCudaApi *api = need(L);
  Handle *h = moth_lua_new_handle(L, MAGIC_PROGRAM, &key_program);
  int top = lua_gettop(L);
  s.made = push_image;
  s.ctx = L;
  luaL_checkstack(L, 4, "program");
  moth_lua_done(L, api->program_new(device, &s, &h->u.program));
  return 1 + lua_gettop(L) - top;
}
static int program_gc(lua_State *L) {
  Handle *h = (Handle *)moth_lua_handle(L, 1, MAGIC_PROGRAM);
  if (h && h->u.program)
    need(L)->program_free(h->u.program);
  if (h)
    h->u.program = NULL;
  return 0;
}
MothCudaProgram *moth_lua_cuda_program(lua_State *L, int idx) {
  return ((Handle *)moth_lua_check_handle(L, idx, MAGIC_PROGRAM, "program of moth.cuda"))
      ->u.program;
}
static MothCudaFunction *kernel_at(lua_State *L, int idx) { /* (program, i from 1) */
  MothCudaFunction *f = NULL;
  MothCudaProgram *p = moth_lua_cuda_program(L, idx);
  moth_lua_done(L, need(L)->program_kernel(p, (int)moth_lua_number(L, idx + 1) - 1, &f));
  return f;
}
/* launch(program, i, device, gx, gy, gz, bx, by, bz, shared, the bytes of each argument …) */
static int b_launch(lua_State *L) {
  enum { FIRST = 11, MOST = 128 };
  MothCudaFunction *f = kernel_at(L, 1);
  int device = device_at(L, 3), n = lua_gettop(L) - FIRST + 1;
  unsigned size[6];
  void *args[MOST];
  for (int i = 0; i < 6; i++)
    size[i] = (unsigned)moth_lua_check_integer(L, 4 + i, 0, 2147483647);
  size_t shared = (size_t)moth_lua_check_integer(L, 10, 0, 2147483647);
  if (n > MOST)
    return moth_lua_error(L, "a kernel has %d arguments at most, got %d", MOST, n);
  for (int i = 0; i < n; i++) {
    size_t length;
    args[i] = (void *)(uintptr_t)moth_lua_bytes(L, FIRST + i, &length);
  }
  return moth_lua_done(L, need(L)->launch(f, device, size, size + 3, shared, args));
}
static int b_occupancy(lua_State *L) { /* (program, i, device, threads, shared) -> blocks */
  MothCudaFunction *f = kernel_at(L, 1);
  int device = device_at(L, 3), blocks = 0;
  int threads = (int)moth_lua_check_integer(L, 4, 1, 1024);
  size_t shared = (size_t)moth_lua_check_integer(L, 5, 0, 2147483647);
  moth_lua_done(L, need(L)->occupancy(f, device, threads, shared, &blocks));
  lua_pushinteger(L, blocks);
  return 1;
}

/* --- libraries, choices ------------------------------------------------------------------------- */

static int
b_library(lua_State *L) { /* (i, from 1) -> name, version or nil, why not; nil at the end */
  const char *name;
  int64_t version;
  MothStatus s = need(L)->library((int)moth_lua_number(L, 1) - 1, &name, &version);
  lua_pushstring(L, name); /* or nil */
  if (s == MOTH_OK) {
    lua_pushnumber(L, (lua_Number)version);
    return 2;
  }
  lua_pushnil(L);
  lua_pushstring(L, moth_error_text(1));
  return 3;
}
/* What lua/moth/utils/deterministic.lua does about what is not deterministic: of the process, as moth_deterministic. */
static int strictness;
static int
b_deterministic(lua_State *L) { /* ([on, warn_only]) -> what it was; "error", "warn" or nil */
  static const char *const words[] = {NULL, "error", "warn"};
  bool was = moth_deterministic;
  int strict = strictness;
  if (!lua_isnoneornil(L, 1)) {
    moth_deterministic = lua_toboolean(L, 1);
    strictness = !moth_deterministic ? 0 : lua_toboolean(L, 2) ? 2 : 1;
  }
  lua_pushboolean(L, was);
  lua_pushstring(L, words[strict]);
  return 2;
}

static void new_class(lua_State *L, void *key, const char *name, const char *event,
                      lua_CFunction fn) {
  lua_newtable(L);
  lua_pushcfunction(L, fn);
  lua_setfield(L, -2, event);
  lua_pushfstring(L, "moth.cuda.%s", name);
  lua_setfield(L, -2, "__name");
  lua_pushlightuserdata(L, key);
  lua_pushvalue(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
  lua_setfield(L, -2, name);
}

void moth_lua_open_cuda(
    lua_State *L) { /* the binding's table is on top: all goes into its field cuda */
  static const luaL_Reg fns[] = {{"count", b_count},
                                 {"device", b_device},
                                 {"set_device", b_set_device},
                                 {"properties", b_properties},
                                 {"mem_get_info", b_mem_get_info},
                                 {"memory_stats", b_memory_stats},
                                 {"memory_snapshot", b_memory_snapshot},
                                 {"reset_peak", b_reset_peak},
                                 {"reset_accumulated", b_reset_accumulated},
                                 {"empty_cache", b_empty_cache},
                                 {"set_fraction", b_set_fraction},
                                 {"pin", b_pin},
                                 {"is_pinned", b_is_pinned},
                                 {"pinned_memory", b_pinned_memory},
                                 {"empty_pinned_cache", b_empty_pinned_cache},
                                 {"graph_new", b_graph_new},
                                 {"graph_begin", b_graph_begin},
                                 {"graph_end", b_graph_end},
                                 {"graph_replay", b_graph_replay},
                                 {"graph_reset", b_graph_reset},
                                 {"graph_pool", b_graph_pool},
                                 {"pool_new", b_pool_new},
                                 {"is_capturing", b_is_capturing},
                                 {"program", b_program},
                                 {"launch", b_launch},
                                 {"occupancy", b_occupancy},
                                 {"library", b_library},
                                 {"deterministic", b_deterministic},
                                 {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, fns);
  new_class(L, &key_graph, "CUDAGraph", "__gc", graph_gc);
  new_class(L, &key_program, "Program", "__gc", program_gc);
  lua_setfield(L, -2, "cuda");
}
