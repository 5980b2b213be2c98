/* When garbage is collected.
 *
 * LuaJIT does not see native bytes, so the growth of the live bytes drives its collector. A cycle (mark, sweep,
 * finalizers) takes time in proportion to the Lua heap, whatever it frees: its cost is measured, and a cycle begins
 *  - after 8 MB of growth, if it takes at most a thirtieth of the time since the last one;
 *  - after 64 MB or half of the live bytes, if it takes at most a twentieth;
 *  - in any case after twice the growth of the last cycle, and after one that is bounded by the Lua heap and by the
 *    memory that the system has left.
 * With a small Lua heap the first is nearly always the case: blocks are reused while they are still in the cache, and
 * few new pages are touched. A cycle is done in slices between ops, spread over a quarter of that growth, so that no op
 * waits for a whole one. Full collections, which do wait, run only before an allocation fails, and after the growth that
 * a program has set (moth.memory.set_gc_pressure).
 *
 * LuaJIT also runs cycles of its own, and programs call collectgarbage: a sentinel, a userdata that nothing refers to,
 * tells by its finalizer that one is at its end.
 * At the end of a cycle, each few seconds, blocks that nobody has taken since are returned to the system, if more is
 * cached than a share of the live bytes.
 * Small dropped tensors are few bytes in Lua, but many cache lines: LuaJIT's next cycle is set to begin at
 * one and a half of its memory, not at twice, unless the program has chosen a pause itself. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "lua/moth_lua.h"

enum { LUA_PAUSE = 200, PAUSE = 150 }; /* percent; the first is LuaJIT's own */
enum {
  SOME = 8 << 20,
  PRESSURE = 64 << 20, /* the default of set_gc_pressure */
  RARELY = 30,         /* times the cost of a cycle have to pass after 8 MB */
  OFTEN = 20,          /* likewise after the pressure */
  PER_LUA_BYTE = 12,   /* bytes of growth that each byte of the Lua heap allows */
  OF_FREE = 8,         /* the part of the free memory that growth may take */
  SMALL_HEAP = 4096,   /* KB of Lua whose cycle is done at once */
  SLICES = 64,         /* at most, of a cycle */
  STEP = 16,           /* KB of debt for lua_gc: some 35 us */
  PER_STEP = 32,       /* KB of the Lua heap that such a step gets through */
  SLICE = 32,          /* steps: the shortest slice */
  FREE_READ_NS = 100000000,
  KEEP = 128 << 20 /* bytes that are cached in any case */
};
static const int64_t TRIM_NS = 5000000000; /* longer than most training steps */

_Thread_local MothLuaGrowth moth_lua_growth MOTH_LUA_TLS = {0, SOME};
_Thread_local bool moth_lua_collected MOTH_LUA_TLS;

typedef struct Driver {
  int64_t ended;     /* when the last cycle ended, ns */
  int64_t spent;     /* ns, in the slices of this cycle */
  int64_t heap;      /* KB of Lua at its begin; 0: no cycle is being driven */
  int64_t slice;     /* steps in each of its slices */
  int64_t piece;     /* bytes of growth between its slices */
  int64_t growth;    /* at which it began, or the last one */
  int32_t slices;    /* done */
  bool swept;        /* the sentinel was finalized in it */
  float ns_per_kb;   /* measured in the last one; a guess at first */
  int64_t free_then; /* bytes that the system had left when it was last asked */
  int64_t asked;     /* when that was, ns */
  int64_t trimmed;   /* when unused blocks were last returned, ns */
} Driver;
static _Thread_local Driver driver MOTH_LUA_TLS = {.ns_per_kb = 400};

static _Atomic int64_t pressure = PRESSURE;
static _Atomic int64_t cycles, full;
static char key_sentinel;

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Processor time: on a busy machine a cycle costs no more than on a quiet one. */
static int64_t spent_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void moth_lua_collections(int64_t *cycles_driven, int64_t *forced) {
  *cycles_driven = atomic_load(&cycles);
  *forced = atomic_load(&full);
}

void moth_lua_collect_all(lua_State *L, int times) {
  for (int i = 0; i < times; i++) {
    atomic_fetch_add(&full, 1);
    lua_gc(L, LUA_GCCOLLECT, 0);
  }
}

/* For allocators that run out of memory within a call: frees the state's garbage tensors. */
static bool collect(void) {
  if (!moth_lua_current)
    return false;
  moth_lua_collect_all(moth_lua_current, 2);
  moth_lua_collected = true;
  return true;
}

__attribute__((constructor)) static void offer_collector(void) {
  moth_alloc_collect = collect;
}

/* A number in a file of the system, behind a word ("" for none); INT64_MAX where there is none. */
static int64_t read_number(const char *path, const char *word) {
  char text[2048];
  FILE *f = fopen(path, "re");
  if (!f)
    return INT64_MAX;
  size_t n = fread(text, 1, sizeof text - 1, f);
  fclose(f);
  text[n] = 0;
  const char *at = strstr(text, word);
  long long value;
  return at && sscanf(at + strlen(word), "%lld", &value) == 1 ? value : INT64_MAX;
}

/* Bytes that this process can still take, as far as the system tells. */
static int64_t free_memory(void) {
  int64_t most = (int64_t)sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE);
  int64_t kb = read_number("/proc/meminfo", "MemAvailable:");
  if (kb != INT64_MAX)
    most = kb * 1024;
  int64_t group = read_number("/sys/fs/cgroup/memory.max", "");
  int64_t used = read_number("/sys/fs/cgroup/memory.current", "");
  if (group != INT64_MAX && used != INT64_MAX && group - used < most)
    most = group - used;
  struct rlimit r;
  if (getrlimit(RLIMIT_AS, &r) == 0 && r.rlim_cur != RLIM_INFINITY) {
    int64_t taken = read_number("/proc/self/statm", "");
    int64_t left = (int64_t)r.rlim_cur - (taken == INT64_MAX ? 0 : taken * sysconf(_SC_PAGESIZE));
    if (left < most)
      most = left;
  }
  return most > 0 ? most : 0;
}

/* The growth after which a cycle begins in any case; least: where the collector may take a twentieth of the time. */
static int64_t bound(int64_t least, int64_t heap, int64_t now) {
  Driver *d = &driver;
  int64_t most = heap * 1024 * PER_LUA_BYTE;
  if (most > 2 * d->growth)
    most = 2 * d->growth;
  if (most <= least)
    return least;
  if (!d->asked || now - d->asked > FREE_READ_NS) {
    d->free_then = free_memory();
    d->asked = now;
  }
  if (most > d->free_then / OF_FREE)
    most = d->free_then / OF_FREE;
  return most > least ? most : least;
}

static void end_cycle(int64_t now) {
  driver.ended = now;
  driver.heap = 0;
  driver.swept = false;
  moth_lua_growth.base = moth_alloc_live();
  moth_lua_growth.look = SOME < pressure ? SOME : pressure;
}

/* Begins a cycle if the growth is worth its cost. */
static bool begin_cycle(lua_State *L, int64_t growth, int64_t now) {
  Driver *d = &driver;
  int64_t live = moth_lua_growth.base, heap = lua_gc(L, LUA_GCCOUNT, 0) + 1;
  int64_t least = live / 2 > PRESSURE ? live / 2 : PRESSURE, passed = now - d->ended;
  int64_t limit = moth_alloc_limit();
  if (limit && (limit - live) / 2 < least)
    least = (limit - live) / 2 > SOME ? (limit - live) / 2 : SOME;
  double cost = (double)heap * (double)d->ns_per_kb;
  bool due = (double)passed >= cost * (growth < least ? RARELY : OFTEN);
  if (!due && (growth < least || (!limit && growth < bound(least, heap, now))))
    return false;
  d->heap = heap;
  d->spent = d->slices = 0;
  d->swept = false;
  d->growth = growth;
  d->slice = heap / PER_STEP / SLICES > SLICE ? heap / PER_STEP / SLICES : SLICE;
  d->piece =
      (growth > PRESSURE || limit ? growth : PRESSURE) / 4 / (heap / PER_STEP / d->slice + 1) + 1;
  return true;
}

/* The slices that the growth since the last one is due; ends the cycle if one was the last. */
static void run_slices(lua_State *L, int64_t growth) {
  Driver *d = &driver;
  int64_t start = spent_ns();
  bool last = d->swept, done;
  int64_t due = d->slices ? 1 + (growth - moth_lua_growth.look) / d->piece : 1;
  d->slices += (int32_t)(due < SLICES ? due : SLICES);
  int doublings = d->slices / (2 * SLICES); /* there is more to do than expected */
  int64_t steps = (due * d->slice) << (doublings < 8 ? doublings : 8);
  moth_lua_growth.look = growth + SOME; /* finalizers make tensors, or fail */
  do
    done = lua_gc(L, LUA_GCSTEP, STEP) != 0;
  while (!done && (--steps > 0 || d->heap <= SMALL_HEAP));
  d->spent += spent_ns() - start;
  if (!d->heap) /* a finalizer made so much that it ended the cycle */
    return;
  if (done || last) {
    float measured = (float)d->spent / (float)d->heap;
    d->ns_per_kb = measured > d->ns_per_kb * 0.75F ? measured : d->ns_per_kb * 0.75F;
    int64_t now = now_ns();
    atomic_fetch_add(&cycles, 1);
    end_cycle(now);
    if (now - d->trimmed > TRIM_NS) {
      d->trimmed = now;
      int64_t half = moth_alloc_live() / 2;
      moth_alloc_trim(half > KEEP ? half : KEEP);
    }
  } else {
    moth_lua_growth.look = moth_alloc_live() - moth_lua_growth.base + d->piece;
  }
}

void moth_lua_grown(lua_State *L, int64_t growth) {
  int64_t set = atomic_load_explicit(&pressure, memory_order_relaxed), now = now_ns();
  if (set != PRESSURE) { /* the program's own rule */
    int64_t half = moth_lua_growth.base / 2;
    if (growth > (half > set ? half : set)) {
      moth_lua_collect_all(L, 1);
      end_cycle(now_ns());
      return;
    }
  }
  if (driver.heap || begin_cycle(L, growth, now)) {
    run_slices(L, growth);
    return;
  }
  int64_t step = growth / 8 > SOME ? growth / 8 : SOME;
  if (set != PRESSURE && step > set)
    step = set;
  moth_lua_growth.look = growth + step;
}

static void push_sentinel(lua_State *L) {
  lua_newuserdata(L, 1);
  lua_pushlightuserdata(L, &key_sentinel);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_setmetatable(L, -2);
}

/* Finalizers run youngest first: those of the garbage that was made since the last cycle have run. */
static int sentinel_gc(lua_State *L) {
  moth_lua_growth.base = moth_alloc_live();
  if (driver.heap) {
    driver.swept = true;
    moth_lua_growth.look = driver.piece;
  } else {
    end_cycle(now_ns());
  }
  push_sentinel(L);
  return 0;
}

/* gc_pressure(bytes or nil) -> the bytes before */
static int b_gc_pressure(lua_State *L) {
  lua_pushnumber(L, (lua_Number)pressure);
  if (!lua_isnoneornil(L, 1)) {
    pressure = moth_lua_check_integer(L, 1, 0, 9e15);
    moth_lua_growth.look = SOME < pressure ? SOME : pressure;
  }
  return 1;
}

/* trim_cache(bytes to keep): for tests */
static int b_trim_cache(lua_State *L) {
  moth_alloc_trim(moth_lua_check_integer(L, 1, 0, 9e15));
  return 0;
}

void moth_lua_open_collector(lua_State *L) { /* the binding's table is on top */
  int pause = lua_gc(L, LUA_GCSETPAUSE, PAUSE);
  if (pause != LUA_PAUSE)
    lua_gc(L, LUA_GCSETPAUSE, pause);
  lua_pushcfunction(L, b_gc_pressure);
  lua_setfield(L, -2, "gc_pressure");
  lua_pushcfunction(L, b_trim_cache);
  lua_setfield(L, -2, "trim_cache");
  lua_pushlightuserdata(L, &key_sentinel);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, sentinel_gc);
  lua_setfield(L, -2, "__gc");
  lua_rawset(L, LUA_REGISTRYINDEX);
  push_sentinel(L);
  lua_pop(L, 1);
}
