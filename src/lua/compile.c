/* moth.compile's recorder for Lua, and the gate in front of the binding's functions.
 *
 * While calls of ops are noted and have not run (graph/trace.h), tensors lack their elements, and others will still be
 * written to. So each C function of the binding but the ops first has the notes run, unless it stands in the list of
 * those that cannot tell the difference: a function added later is safe without thinking of this. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/environment.h"
#include "core/log.h"
#include "dispatch/lazy.h"
#include "graph/trace.h"
#include "lua/moth_lua.h"

/* --- the gate ----------------------------------------------------------------------------------------- */

/* When a function may run while calls are noted. */
typedef enum Gate {
  GATE_ALWAYS = 1, /* it looks at nothing that they change */
  GATE_ASKING,     /* without arguments, when it only tells a setting */
  GATE_NOTED, /* the same; with them, too, while a whole function is captured: each call's node says the setting */
  GATE_HISTORY, /* while none of them gives a history to a tensor that was there */
  GATE_OTHERS,  /* the same, and its tensors are there */
  GATE_CAPTURE  /* while a whole function is captured: it looks at nothing then */
} Gate;

static const struct {
  const char *name;
  Gate gate;
} open_ones[] = {{"size", GATE_ALWAYS},
                 {"stride", GATE_ALWAYS},
                 {"dim", GATE_ALWAYS},
                 {"numel", GATE_ALWAYS},
                 {"itemsize", GATE_ALWAYS},
                 {"is_contiguous", GATE_ALWAYS},
                 {"is_fake", GATE_ALWAYS},
                 {"is_lazy", GATE_ALWAYS},
                 {"tensor_dtype", GATE_ALWAYS},
                 {"tensor_device", GATE_ALWAYS},
                 {"format", GATE_ALWAYS},
                 {"class_of", GATE_ALWAYS},
                 {"set_trace", GATE_ALWAYS},
                 {"library", GATE_ALWAYS},
                 {"lower_sizes", GATE_ALWAYS},
                 {"raise", GATE_ALWAYS},
                 {"named", GATE_ALWAYS},
                 {"dtype", GATE_ALWAYS},
                 {"device", GATE_ALWAYS},
                 {"generator", GATE_ALWAYS},
                 {"is_tensor", GATE_ALWAYS},
                 {"is_dtype", GATE_ALWAYS},
                 {"is_device", GATE_ALWAYS},
                 {"scope_begin", GATE_ALWAYS},
                 {"scope_end", GATE_ALWAYS},
                 {"grad_enabled", GATE_ALWAYS},
                 {"set_autocast", GATE_ALWAYS},
                 {"autocast_state", GATE_ALWAYS},
                 {"set_grad_enabled", GATE_ALWAYS},
                 {"open_modes", GATE_ALWAYS},
                 {"close_modes", GATE_ALWAYS},
                 {"device_types", GATE_ALWAYS},
                 {"op", GATE_ALWAYS},
                 {"kernels", GATE_ALWAYS},
                 {"op_facts", GATE_ALWAYS},
                 {"op_id", GATE_ALWAYS},
                 {"defined_ops", GATE_ALWAYS},
                 {"promote", GATE_ALWAYS},
                 {"result_type", GATE_ALWAYS},
                 {"cuda_why", GATE_ALWAYS},
                 {"library_path", GATE_ALWAYS},
                 {"tensor", GATE_ALWAYS},
                 {"default_dtype", GATE_NOTED},
                 {"num_threads", GATE_ASKING},
                 {"cpu_level", GATE_ASKING},
                 {"requires_grad", GATE_HISTORY},
                 {"item", GATE_OTHERS},
                 {"totable", GATE_OTHERS},
                 {"version", GATE_OTHERS},
                 {"is_leaf", GATE_OTHERS},
                 {"grad_fn", GATE_OTHERS},
                 {"get_grad", GATE_ALWAYS},
                 {"gradients", GATE_ALWAYS},
                 {"set_grad", GATE_ALWAYS},
                 {"zero_grads", GATE_ALWAYS},
                 {"backward", GATE_ALWAYS}, /* these two break the graph themselves */
                 {"grad", GATE_ALWAYS},
                 {"detach", GATE_OTHERS},
                 {"alias", GATE_OTHERS},
                 {"shares_storage", GATE_OTHERS},
                 {"extremes", GATE_CAPTURE},
                 {"storage_offset", GATE_CAPTURE}};

static bool any_lazy(lua_State *L) {
  for (int i = lua_gettop(L); i > 0; i--) {
    const MothHandle *h = moth_lua_handle(L, i, MOTH_MAGIC_TENSOR);
    if (h && h->u.t && h->u.t->keys & MOTH_KEY_LAZY)
      return true;
  }
  return false;
}

static _Thread_local bool is_aside; /* calls are not noted now: aside(true) */

static bool is_captured(void) {
  const MothRecorder *recorder = moth_recorder_open();
  return recorder && recorder->trace->capture;
}

static bool is_open(lua_State *L, Gate gate) {
  if (is_aside && !any_lazy(L))
    return true;
  switch (gate) {
  case GATE_ALWAYS:
    return true;
  case GATE_ASKING:
    return lua_isnoneornil(L, 1);
  case GATE_NOTED:
    return lua_isnoneornil(L, 1) || is_captured();
  case GATE_HISTORY:
    return !(moth_unrun & MOTH_UNRUN_HISTORY);
  case GATE_CAPTURE:
    return is_captured();
  case GATE_OTHERS:
    return !(moth_unrun & MOTH_UNRUN_WRITES) && !any_lazy(L);
  }
  return false;
}

static MothStatus run_notes(lua_State *L, const char *reason) {
  lua_State *outer = moth_lua_current;
  moth_lua_current = L;
  MothStatus s = reason ? moth_segment_break(reason) : moth_segment_run();
  moth_lua_current = outer;
  return s;
}

static void revive(lua_State *L, int idx) {
  const MothHandle *h = moth_lua_handle(L, idx, MOTH_MAGIC_TENSOR);
  if (!h || !h->u.t || !(h->u.t->keys & MOTH_KEY_LAZY))
    return;
  lua_State *outer = moth_lua_current;
  moth_lua_current = L;
  MothStatus s = moth_lazy_revive(h->u.t);
  moth_lua_current = outer;
  if (s)
    moth_lua_raise(L, s);
}

/* Makes the tensors among the arguments, and in lists among them, that a segment has left. */
static void revive_arguments(lua_State *L) {
  for (int i = lua_gettop(L); i > 0; i--) {
    revive(L, i);
    for (int k = 1, n = lua_istable(L, i) ? (int)lua_objlen(L, i) : 0; k <= n; k++) {
      luaL_checkstack(L, 8, "compile");
      lua_rawgeti(L, i, k);
      revive(L, lua_gettop(L));
      lua_pop(L, 1);
    }
  }
}

enum { GATED_FN = 1, GATED_NAME, GATED_GATE };

static int gated(lua_State *L) {
  lua_CFunction fn = lua_tocfunction(L, lua_upvalueindex(GATED_FN));
  if (__builtin_expect(moth_unrun != 0, 0)) {
    moth_lua_sync(L); /* another coroutine has them run without a break */
    if (moth_unrun && !is_open(L, (Gate)lua_tointeger(L, lua_upvalueindex(GATED_GATE)))) {
      MothStatus s = run_notes(L, lua_tostring(L, lua_upvalueindex(GATED_NAME)));
      if (s)
        return moth_lua_raise(L, s);
    }
  }
  if (__builtin_expect(atomic_load_explicit(&moth_ndeferred, memory_order_relaxed) != 0, 0) &&
      !moth_unrun)
    revive_arguments(L);
  return fn(L);
}

static bool has_upvalue(lua_State *L) {
  bool has = lua_getupvalue(L, -1, 1) != NULL;
  if (has)
    lua_pop(L, 1);
  return has;
}

/* Puts the gate in front of the C functions of the table on top that have no upvalues, and of those in its tables. */
static void gate_table(lua_State *L, bool nested) {
  static const char *const others[] = {"ops",       "internal", "names",   "Tensor",
                                       "Generator", "Released", "compiled"};
  luaL_checkstack(L, 12, "opening");
  lua_newtable(L); /* what changes: a table must not be changed while it is walked */
  lua_pushnil(L);
  while (lua_next(L, -3)) {
    const char *name = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : NULL;
    bool skip = !name;
    for (size_t i = 0; !skip && nested && i < sizeof others / sizeof *others; i++)
      skip = !strcmp(name, others[i]);
    if (!skip && nested && lua_istable(L, -1)) {
      gate_table(L, false);
    } else if (!skip && lua_iscfunction(L, -1) && !has_upvalue(L)) {
      int gate = 0;
      for (size_t i = 0; nested && i < sizeof open_ones / sizeof *open_ones; i++)
        if (!strcmp(name, open_ones[i].name))
          gate = (int)open_ones[i].gate;
      if (gate != GATE_ALWAYS) {
        lua_pushvalue(L, -2);
        lua_pushvalue(L, -2);
        lua_pushstring(L, name);
        lua_pushinteger(L, gate);
        lua_pushcclosure(L, gated, 3);
        lua_rawset(L, -5);
      }
    }
    lua_pop(L, 1);
  }
  lua_pushnil(L);
  while (lua_next(L, -2)) {
    lua_pushvalue(L, -2);
    lua_insert(L, -2);
    lua_rawset(L, -5);
  }
  lua_pop(L, 1);
}

/* --- what the recorder asks -------------------------------------------------------------------------------- */

static bool verbose;

static void place(char *text, size_t n) {
  lua_State *L = moth_lua_current;
  text[0] = 0;
  if (!L || !lua_checkstack(L, 16))
    return;
  moth_lua_push_where(L);
  snprintf(text, n, "%s", lua_tostring(L, -1));
  lua_pop(L, 1);
  size_t at = strlen(text);
  if (at >= 2 && !strcmp(text + at - 2, ": "))
    text[at - 2] = 0;
}

static MothStatus failed(const char *place_of, MothStatus s) {
  lua_State *L = moth_lua_current;
  if (!L || !lua_checkstack(L, 16))
    return s;
  lua_pushfstring(L, "%s%s%s", place_of, place_of[0] ? ": " : "", moth_error_text(1));
  return moth_lua_park(L);
}

static void broke(const MothTrace *t, const char *reason, const char *where) {
  lua_State *L = moth_lua_current;
  if (!reason) {
    if (moth_log_on("recompiles"))
      moth_log_write("recompiles", "%s: %s", t->name, where);
    return;
  }
  if (moth_log_on("graph_breaks") || verbose)
    moth_log_write("graph_breaks", "%s: %s%s%s", t->name, reason, where[0] ? ", at " : "", where);
  if (verbose && L && lua_checkstack(L, 16)) {
    luaL_traceback(L, L, NULL, 0);
    fprintf(stderr, "%s\n", lua_tostring(L, -1));
    lua_pop(L, 1);
  }
}

/* --- traces and calls for Lua ---------------------------------------------------------------------------------- */

#define MAGIC_TRACE    0x6d6f746854726163ull
#define MAGIC_RECORDER 0x6d6f746852656364ull

static char key_trace_meta, key_recorder_meta;

static void push_object(lua_State *L, void *what, uint64_t magic, void *meta) {
  MothHandle *h = lua_newuserdata(L, sizeof *h);
  h->magic = magic;
  h->u.other = what;
  lua_pushlightuserdata(L, meta);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_setmetatable(L, -2);
}

static MothTrace *check_trace(lua_State *L, int idx) {
  MothHandle *h = moth_lua_handle(L, idx, MAGIC_TRACE);
  if (!h)
    moth_lua_error(L, "expected a trace, got %s", luaL_typename(L, idx));
  return h ? h->u.other : NULL;
}

static int trace_gc(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MAGIC_TRACE);
  if (h && h->u.other)
    moth_trace_release(h->u.other);
  if (h)
    h->u.other = NULL;
  return 0;
}

/* A call that did not end: its coroutine was dropped, and had nothing noted when it was left. */
static int recorder_gc(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MAGIC_RECORDER);
  if (h && h->u.other) {
    MothRecorder *r = h->u.other;
    r->closed = true;
    moth_recorder_release(r);
    h->u.other = NULL;
  }
  return 0;
}

/* trace_new(name, limit, fullgraph, dynamic (0 as shapes come, 1 yes, 2 no), capture, backend or nil) -> trace */
static int c_trace_new(lua_State *L) {
  lua_settop(L, 6);
  MothTrace *t = moth_trace_new(moth_lua_string(L, 1));
  if (!t)
    return moth_lua_raise(L, MOTH_ERR_MEMORY);
  t->limit = (int)lua_tointeger(L, 2);
  t->fullgraph = lua_toboolean(L, 3);
  t->policy = (uint8_t)lua_tointeger(L, 4);
  t->dynamic = t->policy == MOTH_DYNAMIC_ON;
  t->capture = lua_toboolean(L, 5);
  push_object(L, t, MAGIC_TRACE, &key_trace_meta);
  if (!lua_isnoneornil(L, 6))
    moth_lua_set_backend(L, t, 7, 6);
  return 1;
}

/* trace_open(trace): sizes are not compared from now on */
static int c_trace_open(lua_State *L) {
  check_trace(L, 1)->dynamic = true;
  return 0;
}

/* trace_check(trace, exact, differs) */
static int c_trace_check(lua_State *L) {
  moth_lua_set_check(L, check_trace(L, 1));
  return 0;
}

/* begin(trace) -> call */
static int c_begin(lua_State *L) {
  MothTrace *t = check_trace(L, 1);
  MothRecorder *r;
  moth_lua_enter(L);
  lua_State *outer = moth_lua_current;
  moth_lua_current = L;
  MothStatus s = moth_recorder_begin(t, &r);
  moth_lua_current = outer;
  if (s)
    return moth_lua_raise(L, s);
  push_object(L, r, MAGIC_RECORDER, &key_recorder_meta);
  return 1;
}

/* finish(call) -> whether what was noted has failed, the error: raised by the caller, who has more to close */
static int c_finish(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MAGIC_RECORDER);
  moth_lua_sync(L);
  if (!h || !h->u.other)
    return 0;
  MothRecorder *r = h->u.other;
  h->u.other = NULL;
  lua_State *outer = moth_lua_current;
  moth_lua_current = L;
  MothStatus s = moth_recorder_end(r);
  moth_lua_current = outer;
  moth_recorder_release(r);
  if (!s)
    return 0;
  lua_pushboolean(L, true);
  if (s == MOTH_ERR_HOST)
    moth_lua_push_parked(L);
  else if (s == MOTH_ERR_INTERRUPTED)
    lua_pushliteral(L, "interrupted");
  else
    lua_pushstring(L, moth_error_text(1));
  return 2;
}

static int c_recording(lua_State *L) {
  moth_lua_sync(L);
  lua_pushboolean(L, moth_recording());
  return 1;
}

/* pause(why) -> the call that notes no more, or nothing; resume(call) */
static int c_pause(lua_State *L) {
  moth_lua_sync(L);
  MothStatus s = run_notes(L, moth_lua_string(L, 1));
  if (s)
    return moth_lua_raise(L, s);
  MothRecorder *r = moth_recorder_open();
  if (!r)
    return 0;
  atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
  r->closed = true;
  push_object(L, r, MAGIC_RECORDER, &key_recorder_meta);
  return 1;
}
static int c_resume(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MAGIC_RECORDER);
  moth_lua_sync(L);
  if (h && h->u.other) {
    ((MothRecorder *)h->u.other)->closed = false;
    moth_recorder_release(h->u.other);
    h->u.other = NULL;
  }
  return 0;
}

/* aside(on) -> was: from now on calls run as they come, and are not noted; what is noted waits. Tensors of the record may
 * not be used. */
static int c_aside(lua_State *L) {
  moth_lua_sync(L);
  bool on = lua_toboolean(L, 1);
  moth_segment_pass(on);
  lua_pushboolean(L, is_aside);
  is_aside = on;
  return 1;
}

/* break_graph(reason): what is noted runs now */
static int c_break(lua_State *L) {
  moth_lua_sync(L);
  MothStatus s = run_notes(L, moth_lua_string(L, 1));
  return s ? moth_lua_raise(L, s) : 0;
}

static void number_field(lua_State *L, const char *name, double n) {
  lua_pushnumber(L, n);
  lua_setfield(L, -2, name);
}

static int c_counters(lua_State *L) {
  const MothTraceCounters *c = moth_trace_counters();
  lua_createtable(L, 0, 8);
  number_field(L, "calls", (double)c->calls);
  number_field(L, "graphs", (double)c->graphs);
  number_field(L, "graph_breaks", (double)c->breaks);
  number_field(L, "recompiles", (double)c->recompiles);
  number_field(L, "recorded", (double)c->recorded);
  number_field(L, "followed", (double)c->followed);
  number_field(L, "skipped", (double)c->skipped);
  number_field(L, "compile_seconds", (double)c->compile_ns * 1e-9);
  number_field(L, "hits", (double)c->hits);
  number_field(L, "hit_seconds", (double)c->hit_ns * 1e-9);
  number_field(L, "call_seconds", (double)c->call_ns * 1e-9);
  number_field(L, "peak_bytes", (double)c->peak_bytes);
  return 1;
}
static int c_reset_counters(lua_State *L) {
  (void)L;
  *moth_trace_counters() = (MothTraceCounters){0};
  return 0;
}

/* clock() -> nanoseconds; progress() -> a number that grows with what is recorded, compiled or run as it came */
static int c_clock(lua_State *L) {
  lua_pushnumber(L, (double)moth_trace_now());
  return 1;
}
static int c_progress(lua_State *L) {
  const MothTraceCounters *c = moth_trace_counters();
  lua_pushnumber(L, (double)(c->recorded + c->graphs + c->recompiles + c->skipped));
  return 1;
}

/* is_compiled(trace) -> whether a backend has made code of a segment */
static int c_is_compiled(lua_State *L) {
  const MothTrace *t = check_trace(L, 1);
  bool any = false;
  for (const MothTraceEnd *end = t->ends; end; end = end->older)
    for (const MothTraceCode *c = end->codes; c; c = c->older)
      any = any || !c->plain;
  lua_pushboolean(L, any);
  return 1;
}

/* in_trial(trace) -> whether a segment runs code that will be replaced */
static int c_in_trial(lua_State *L) {
  const MothTraceEnd *end = check_trace(L, 1)->ends;
  while (end && !end->trial)
    end = end->older;
  lua_pushboolean(L, end != NULL);
  return 1;
}

static int c_set_verbose(lua_State *L) {
  lua_pushboolean(L, verbose);
  if (!lua_isnoneornil(L, 1))
    verbose = lua_toboolean(L, 1);
  return 1;
}

/* notes(trace) -> { { text =, count =, is_break = }, … }, oldest first, and whether the trace was given up */
static int c_notes(lua_State *L) {
  const MothTrace *t = check_trace(L, 1);
  int n = 0;
  for (const MothTraceNote *note = t->notes; note; note = note->next)
    n++;
  lua_createtable(L, n, 0);
  for (const MothTraceNote *note = t->notes; note; note = note->next) {
    lua_createtable(L, 0, 3);
    lua_pushstring(L, note->text);
    lua_setfield(L, -2, "text");
    number_field(L, "count", (double)note->count);
    lua_pushboolean(L, note->is_break);
    lua_setfield(L, -2, "is_break");
    lua_rawseti(L, -2, n--);
  }
  lua_pushboolean(L, t->off);
  return 2;
}

void moth_lua_leave_notes(lua_State *L) {
  lua_State *outer = moth_lua_current;
  moth_lua_current = L;
  MothStatus s = moth_segment_run();
  moth_lua_current = outer;
  if (s)
    moth_segment_late(s);
}

static void install(void) { /* once a process */
  verbose = moth_env_flag("MOTHDYNAMO_VERBOSE", moth_env_flag("TORCHDYNAMO_VERBOSE", false));
  moth_trace_host.place = place;
  moth_trace_host.failed = failed;
  moth_trace_host.broke = broke;
}

void moth_lua_open_compile(lua_State *L) { /* the binding's table is on top, and complete */
  static const luaL_Reg fns[] = {{"trace_new", c_trace_new},
                                 {"begin", c_begin},
                                 {"trace_check", c_trace_check},
                                 {"trace_open", c_trace_open},
                                 {"finish", c_finish},
                                 {"recording", c_recording},
                                 {"pause", c_pause},
                                 {"resume", c_resume},
                                 {"aside", c_aside},
                                 {"break_graph", c_break},
                                 {"counters", c_counters},
                                 {"reset_counters", c_reset_counters},
                                 {"set_verbose", c_set_verbose},
                                 {"clock", c_clock},
                                 {"progress", c_progress},
                                 {"is_compiled", c_is_compiled},
                                 {"in_trial", c_in_trial},
                                 {"notes", c_notes},
                                 {NULL, NULL}};
  gate_table(L, true);
  lua_newtable(L);
  luaL_register(L, NULL, fns);
  moth_lua_open_graphs(L);
  lua_setfield(L, -2, "compile");
  static const struct {
    char *key;
    lua_CFunction gc;
  } metas[] = {{&key_trace_meta, trace_gc}, {&key_recorder_meta, recorder_gc}};
  for (int i = 0; i < 2; i++) {
    lua_pushlightuserdata(L, metas[i].key);
    lua_newtable(L);
    lua_pushcfunction(L, metas[i].gc);
    lua_setfield(L, -2, "__gc");
    lua_rawset(L, LUA_REGISTRYINDEX);
  }
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, install);
}
