/* Backends of compile that are functions of Lua: they compile the segments of a trace (graph/trace.h), whose callables run from
 * then on, for the numbers and sizes that each was made for. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "graph/plan.h"
#include "lua/moth_lua.h"

/* Weak: [a trace's address] = its userdata, whose environment has `compile` (graph, inputs -> a callable) and, by the
 * numbers of the ends, lists of callables by the ids of their codes. */
static char key_backends;
/* Most sets of numbers or sizes that a segment is compiled for; where compiling takes longer than SLOW nanoseconds each. Of
 * other sizes by moth's own backends, which lay another plan of the same kernels, MOST_CODES are kept, and where that many
 * are there, one more comes each WAIT runs. */
enum { MOST_CODES = 64, MOST_SLOW_CODES = 8, SLOW = 20000000, WAIT = 256 };

void moth_lua_set_backend(lua_State *L, MothTrace *t, int trace, int backend) {
  t->host = t;
  lua_createtable(L, 0, 1);
  lua_pushvalue(L, backend);
  lua_setfield(L, -2, "compile");
  lua_setfenv(L, trace);
  lua_pushlightuserdata(L, &key_backends);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_pushlightuserdata(L, t);
  lua_pushvalue(L, trace);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

/* Whether the program still has value n, which is to be made. */
static bool is_wanted(const MothSegment *s, uint32_t n) {
  const MothTensor *t = s->values[n];
  return t->keys & MOTH_KEY_LAZY && atomic_load_explicit(&t->refs, memory_order_acquire) > 1;
}

static bool is_output(const MothTraceEnd *end, uint32_t n) {
  for (uint32_t i = 0; i < end->noutputs; i++)
    if (end->outputs[i] == n)
      return true;
  return false;
}

/* Whether a value is wanted that the callable of the end does not return. */
static bool wants_more(const MothSegment *s, const MothTraceEnd *end) {
  for (uint32_t n = 0; n < s->nvalues; n++)
    if (is_wanted(s, n) && !is_output(end, n))
      return true;
  return false;
}

/* Whether value i, which is lazy, shares memory with one of the n outputs, and not with a tensor from outside. */
static bool shares_with_output(const MothSegment *s, uint32_t i, const uint32_t *outputs,
                               uint32_t n) {
  const MothStorage *storage = s->shadows[i]->storage;
  bool shares = false;
  for (uint32_t k = 0; k < n && !shares; k++)
    shares = s->shadows[outputs[k]]->storage == storage;
  for (uint32_t k = 0; k < s->nvalues && shares; k++)
    shares = s->values[k]->keys & MOTH_KEY_LAZY || s->shadows[k]->storage != storage;
  return shares;
}

/* To the outputs come those that are wanted, and what shares memory with these: a write to one is seen in the others. What
 * is compiled returns them in their order, and is forgotten where there are more now. */
static MothStatus add_outputs(MothSegment *s, MothTraceEnd *end) {
  uint32_t *list = malloc(sizeof *list * ((size_t)s->nvalues + 1)), n = 0;
  if (!list)
    return moth_no_memory(sizeof *list * ((size_t)s->nvalues + 1));
  MothStatus status = moth_shadow_prepare(s);
  if (status == MOTH_OK && !moth_end_classify(s, end))
    status = MOTH_ERR_MEMORY;
  if (status) {
    free(list);
    return status;
  }
  for (; n < end->noutputs; n++)
    list[n] = end->outputs[n];
  for (uint32_t i = 0; i < s->nvalues; i++)
    if (is_wanted(s, i) && !is_output(end, i))
      list[n++] = i;
  for (uint32_t i = 0, wanted = n; i < s->nvalues; i++) {
    bool there = !(s->values[i]->keys & MOTH_KEY_LAZY);
    for (uint32_t k = 0; k < wanted && !there; k++)
      there = list[k] == i;
    if (!there && shares_with_output(s, i, list, wanted))
      list[n++] = i;
  }
  if (n > end->noutputs)
    moth_end_forget(end);
  free(end->outputs);
  end->outputs = list;
  end->noutputs = n;
  return MOTH_OK;
}

/* Pushes a list of the numbers of this call. */
static void push_numbers(lua_State *L, const MothSegment *s, const MothTraceCode *c) {
  int n = 0;
  lua_createtable(L, (int)c->nnumbers, 0);
  for (uint32_t k = 0; k < s->nrecords; k++) {
    const MothRecord *r = s->records[k];
    for (int i = 0; i < r->op->nargs; i++)
      if (moth_arg_varies(r, i, c->dynamic)) {
        moth_lua_push_value(L, &r->op->args[i], r->args[i].value);
        lua_rawseti(L, -2, ++n);
      }
  }
}

/* Pushes the tensors from outside. */
static int push_inputs(lua_State *L, const MothSegment *s) {
  int n = 0;
  for (uint32_t k = 0; k < s->nrecords; k++) {
    const MothRecord *r = s->records[k];
    if (!lua_checkstack(L, (int)r->nnew + 8))
      return -1;
    for (uint32_t i = r->first; i < r->first + r->nnew; i++, n++) {
      moth_tensor_retain(s->values[i]);
      moth_lua_push_tensor(L, s->values[i]);
    }
  }
  return n;
}

static MothStatus too_many(void) {
  return moth_fail(MOTH_ERR_STATE, "the Lua stack is full");
}

static MothStatus graph_of(const MothSegment *s, const MothTraceEnd *end, MothGraph **g) {
  MothTensor **outputs = malloc(sizeof(MothTensor *) * ((size_t)end->noutputs + 1));
  if (!outputs)
    return moth_no_memory(sizeof(MothTensor *) * ((size_t)end->noutputs + 1));
  for (uint32_t i = 0; i < end->noutputs; i++)
    outputs[i] = s->values[end->outputs[i]];
  MothStatus status = moth_graph_of_segment(s, outputs, end->noutputs, NULL, -1, g);
  free(outputs);
  return status;
}

/* Pushes the list of the tensors from outside. */
static MothStatus push_input_list(lua_State *L, const MothSegment *s) {
  int first = lua_gettop(L) + 1, n = push_inputs(L, s);
  if (n < 0)
    return too_many();
  lua_createtable(L, n, 0);
  lua_insert(L, first);
  for (int i = n; i > 0; i--)
    lua_rawseti(L, first, i);
  return MOTH_OK;
}

/* Pushes the list of an end's callables. */
static void push_codes(lua_State *L, const MothTraceEnd *end, int env) {
  lua_rawgeti(L, env, end->number);
  if (lua_istable(L, -1) && end->codes)
    return;
  lua_pop(L, 1);
  lua_newtable(L);
  lua_pushvalue(L, -1);
  lua_rawseti(L, env, end->number);
}

/* A difference between calls that concerns a backend. */
static void note(const MothTraceEnd *end, const char *what) {
  char text[512];
  snprintf(text, sizeof text, "graph %d: %s%s%s", end->number, what,
           end->last->place[0] ? ", at " : "", end->last->place);
  if (moth_trace_note(end->trace, false, text) && moth_trace_host.broke)
    moth_trace_host.broke(end->trace, NULL, text);
}

/* Has the backend compile the segment, for good where the end is settled; its callable goes to the list of its end. With it
 * comes whether it defers values that are no outputs; nil and true: the calls are to run one by one, always; nil alone:
 * they do so this time. A number behind them: after so many runs the end is settled, and the backend asked again. */
static MothStatus compile(lua_State *L, MothSegment *s, MothTraceEnd *end, int env) {
  MothGraph *g;
  int64_t begin = moth_trace_now();
  MOTH_TRY(graph_of(s, end, &g));
  push_codes(L, end, env);
  lua_getfield(L, env, "compile");
  moth_lua_push_graph(L, g);
  MothStatus status = push_input_list(L, s);
  if (status == MOTH_OK)
    lua_pushboolean(L, end->settled);
  if (status == MOTH_OK)
    status = moth_lua_call(L, 3, 3);
  bool flag = status == MOTH_OK && lua_toboolean(L, -2);
  bool none = status == MOTH_OK && lua_isnil(L, -3);
  if (status == MOTH_OK && !end->settled && !end->trial && lua_isnumber(L, -1))
    end->trial = end->runs + moth_whole(lua_tonumber(L, -1));
  if (status == MOTH_OK && (flag || !none)) {
    bool another = end->codes != NULL, resized = moth_end_is_resized(s, end);
    MothTraceCode *c =
        moth_end_add_code(s, end, g->dynamic, !g->dynamic || g->sizes_pinned, g->pinned);
    if (c) {
      c->defers = flag && !none;
      c->plain = flag && none;
      end->known = end->known || c->defers;
      lua_pop(L, 2);
      lua_rawseti(L, -2, c->id);
      c->resized = c->defers && resized;
      /* The first came with the end. */
      if (another && !c->resized) {
        note(end, "a backend compiled it again for other numbers or sizes");
        moth_trace_counters()->graphs++;
        moth_trace_counters()->recompiles++;
      }
    } else {
      status = moth_no_memory(0);
    }
  }
  moth_graph_release(g);
  int64_t took = moth_trace_now() - begin;
  end->compile_ns += took;
  moth_trace_counters()->compile_ns += took;
  return status;
}

static MothStatus take_output(MothTensor *t, lua_State *L, int idx, uint32_t i, uint32_t n,
                              MothTensor **out) {
  MothHandle *h = moth_lua_handle(L, idx, MOTH_MAGIC_TENSOR);
  char a[256], b[256];
  if (!h || !h->u.t)
    return moth_fail(MOTH_ERR_TYPE,
                     "compile: the backend's function returned %s as output %u of %u",
                     luaL_typename(L, idx), i + 1, n);
  MothTensor *made = h->u.t;
  if (made->dtype != t->dtype || made->ndim != t->ndim || made->device.type != t->device.type ||
      memcmp(made->shape, t->shape, sizeof(int64_t) * t->ndim) != 0)
    return moth_fail(MOTH_ERR_VALUE, "compile: output %u of the backend's function is %s, not %s",
                     i + 1, moth_tensor_format(made, a, sizeof a),
                     moth_tensor_format(t, b, sizeof b));
  moth_tensor_retain(made);
  *out = made; /* its handle holds it */
  return moth_lazy_become(t, made);
}

/* Views of a tensor that the callable returned become views of the one that it has become: a write to either finds the
 * other's history. `made` are what it returned. */
static void relate_views(const MothSegment *s, const MothTraceEnd *end, MothTensor *const *made) {
  for (uint32_t i = 0; i < end->noutputs; i++) {
    MothTensor *t = s->values[end->outputs[i]];
    for (uint32_t k = 0; t->base && k < end->noutputs; k++)
      if (t->base == made[k]) {
        MothTensor *base = t->base;
        t->base = s->values[end->outputs[k]];
        moth_tensor_retain(t->base);
        moth_tensor_release(base);
        break;
      }
  }
}

/* Runs the plan, or the compiled segment at idx, and takes what it gives. */
static MothStatus run_direct(lua_State *L, MothPlan *p, int idx, MothSegment *s,
                             const MothTraceEnd *end) {
  enum { FEW = 64 };
  MothTensor *some[2 * FEW], **all = some;
  uint32_t n = 0, ninputs = 0;
  for (uint32_t k = 0; k < s->nrecords; k++)
    ninputs += s->records[k]->nnew;
  if (ninputs > FEW || end->noutputs > FEW)
    all = malloc(sizeof *all * ((size_t)ninputs + end->noutputs));
  if (!all)
    return moth_no_memory(sizeof *all * ((size_t)ninputs + end->noutputs));
  for (uint32_t k = 0; k < s->nrecords; k++) {
    const MothRecord *r = s->records[k];
    for (uint32_t i = r->first; i < r->first + r->nnew; i++)
      all[n++] = s->values[i];
  }
  MothTensor **made = all + n;
  memset(made, 0, sizeof *made * end->noutputs);
  MothValue few[FEW], *numbers = few;
  uint32_t nnumbers = end->code->nnumbers;
  if (nnumbers > FEW && !(numbers = malloc(sizeof *numbers * nnumbers))) {
    if (all != some)
      free(all);
    return moth_no_memory(0);
  }
  if (nnumbers)
    moth_segment_numbers(s, end->code->dynamic, numbers);
  const MothValue *given = nnumbers ? numbers : NULL;
  MothStatus status = p ? moth_plan_run(p, all, n, given, made, true)
                        : moth_lua_run_segment(L, idx, all, n, given, made);
  if (numbers != few)
    free(numbers);
  bool ran = status == MOTH_OK;
  for (uint32_t i = 0; i < end->noutputs && ran; i++)
    if (status == MOTH_OK)
      status = moth_lazy_become(s->values[end->outputs[i]], made[i]);
    else
      moth_tensor_release(made[i]);
  if (status == MOTH_OK)
    relate_views(s, end, made);
  if (all != some)
    free(all);
  return status;
}

/* Calls the callable and takes what it returns: a list, or values. */
static MothStatus run_code(lua_State *L, MothSegment *s, const MothTraceEnd *end, int env) {
  lua_rawgeti(L, env, end->number);
  int top = lua_gettop(L);
  lua_rawgeti(L, top, end->code->id);
  MothPlan *plan = moth_lua_to_plan(L, top + 1);
  if (plan || moth_lua_is_segment(L, top + 1))
    return run_direct(L, plan, top + 1, s, end);
  int n = push_inputs(L, s);
  if (n < 0)
    return too_many();
  if (end->code->nnumbers) {
    push_numbers(L, s, end->code);
    n++;
  }
  MothStatus status = moth_lua_call(L, n, LUA_MULTRET);
  bool list = lua_gettop(L) > top && lua_istable(L, top + 1);
  int got = list ? (int)lua_objlen(L, top + 1) : lua_gettop(L) - top;
  if (status == MOTH_OK && got < (int)end->noutputs)
    status = moth_fail(MOTH_ERR_VALUE, "compile: the backend's function returned %d of %u outputs",
                       got, end->noutputs);
  MothTensor **made = malloc(sizeof(MothTensor *) * ((size_t)end->noutputs + 1));
  if (status == MOTH_OK && !made)
    status = moth_no_memory(sizeof(MothTensor *) * ((size_t)end->noutputs + 1));
  for (uint32_t i = 0; i < end->noutputs && status == MOTH_OK; i++) {
    if (list)
      lua_rawgeti(L, top + 1, (int)i + 1);
    else
      lua_pushvalue(L, top + 1 + (int)i);
    status = take_output(s->values[end->outputs[i]], L, lua_gettop(L), i, end->noutputs, &made[i]);
    lua_pop(L, 1);
  }
  if (status == MOTH_OK)
    relate_views(s, end, made);
  free(made);
  return status;
}

/* Whether no code is made for what s has noted. env: the environment of the trace, where the codes are. */
static bool has_enough(lua_State *L, const MothSegment *s, MothTraceEnd *end, int env) {
  int kept = 0, others = 0;
  bool own = true;
  for (const MothTraceCode *c = end->codes; c; c = c->older) {
    kept++;
    others += !c->resized;
    own = own && c->defers;
  }
  if (!kept)
    return false;
  if (!own || !moth_end_is_resized(s, end))
    return (own ? others : end->ncodes) >=
           (end->compile_ns / end->ncodes > SLOW ? MOST_SLOW_CODES : MOST_CODES);
  if (kept < MOST_CODES)
    return false;
  if (end->runs - end->codes->made < WAIT)
    return true;
  lua_rawgeti(L, env, end->number);
  lua_pushnil(L);
  lua_rawseti(L, -2, moth_end_drop_oldest(end));
  lua_pop(L, 1);
  return false;
}

/* A full collection: what garbage holds is not wanted. With a large heap of Lua's at most a twentieth of the time goes
 * to it: then what garbage holds may be computed, too. */
static void collect(lua_State *L) {
  enum { LARGE = 256 << 10, SHARE = 20 }; /* in KB; in parts of the time */
  static _Thread_local int64_t until;
  int64_t start = moth_trace_now();
  if (start < until && lua_gc(L, LUA_GCCOUNT, 0) > LARGE)
    return;
  lua_gc(L, LUA_GCCOLLECT, 0);
  int64_t end = moth_trace_now();
  until = end + SHARE * (end - start);
}

static MothStatus run(MothSegment *s, MothTraceEnd *end, bool *done) {
  lua_State *L = moth_lua_current;
  MothThread *t = moth_thread_state();
  *done = false;
  if (!L || !lua_checkstack(L, 32))
    return MOTH_OK;
  for (uint32_t k = 0; t->saved_hooks && k < s->nrecords; k++)
    if (!s->records[k]->modes.no_grad)
      return MOTH_OK; /* the hooks (a checkpoint's) get what each call saves, in its order */
  if (end->trial && end->runs >= end->trial) {
    end->trial = 0;
    end->settled = true;
    moth_end_forget(end);
  }
  moth_end_select(s, end);
  if (end->code && end->code->plain)
    return MOTH_OK;
  int top = lua_gettop(L);
  lua_pushlightuserdata(L, &key_backends);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_pushlightuserdata(L, end->trace);
  lua_rawget(L, -2);
  if (!lua_isuserdata(L, -1)) {
    lua_settop(L, top);
    return MOTH_OK;
  }
  lua_getfenv(L, -1);
  int env = lua_gettop(L);
  if (!end->code && has_enough(L, s, end, env)) {
    note(end, "it has code for enough numbers or sizes; with others its calls run one by one");
    lua_settop(L, top);
    return MOTH_OK;
  }
  MothStatus status = MOTH_OK;
  if (end->code ? !end->code->defers && wants_more(s, end) : !end->known) {
    collect(L);
    if (end->codes && wants_more(s, end)) {
      if (end->code)
        moth_trace_counters()->recompiles++;
      moth_end_forget(end);
    }
  }
  bool recording = false;
  for (uint32_t k = 0; k < s->nrecords; k++)
    recording = recording || !s->records[k]->modes.no_grad;
  uint32_t include = t->include, exclude = t->exclude;
  bool no_grad = t->no_grad;
  t->include &= ~(uint32_t)MOTH_KEY_AUTOCAST; /* each node has its own */
  moth_set_grad_enabled(recording);
  if (!end->code) {
    bool known = end->classes != NULL;
    if (!end->known)
      status = add_outputs(s, end);
    if (status == MOTH_OK && !known && end->draws) /* else it was taken before */
      moth_generator_get_state(moth_default_generator(), &s->drawn[0], &s->drawn[1]);
    if (status == MOTH_OK)
      status = compile(L, s, end, env);
  }
  *done = status == MOTH_OK && end->code && !end->code->plain;
  if (*done && end->code->defers)
    moth_set_grad_enabled(false); /* none of its results has a history */
  if (*done)
    status = run_code(L, s, end, env);
  t->include = include;
  t->exclude = exclude;
  t->no_grad = no_grad;
  lua_settop(L, top);
  return status;
}

/* A check has found a difference: differs(graph, inputs, text) of the environment raises its error. */
static MothStatus differs(MothSegment *s, MothTraceEnd *end, const char *text) {
  lua_State *L = moth_lua_current;
  MothStatus status = MOTH_OK;
  MothGraph *g;
  if (!L || !lua_checkstack(L, 32))
    return moth_fail(MOTH_ERR_VALUE, "[compile] check: %s", text);
  int top = lua_gettop(L);
  lua_pushlightuserdata(L, &key_backends);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_pushlightuserdata(L, end->trace);
  lua_rawget(L, -2);
  if (lua_isuserdata(L, -1)) {
    lua_getfenv(L, -1);
    lua_getfield(L, -1, "differs");
    status = graph_of(s, end, &g);
    if (status == MOTH_OK) {
      moth_lua_push_graph(L, g);
      moth_graph_release(g);
      status = push_input_list(L, s);
    }
    if (status == MOTH_OK) {
      lua_pushfstring(L, "%s, graph %d: %s", end->trace->name, end->number, text);
      status = moth_lua_call(L, 3, 0);
    }
  }
  lua_settop(L, top);
  return status == MOTH_OK ? moth_fail(MOTH_ERR_VALUE, "[compile] check: %s, graph %d: %s",
                                       end->trace->name, end->number, text)
                           : status;
}

/* set_check(on) */
static int c_set_check(lua_State *L) {
  moth_segment_checks = lua_toboolean(L, 1);
  return 0;
}

void moth_lua_set_check(lua_State *L, MothTrace *t) {
  t->exact = lua_toboolean(L, 2);
  lua_getfenv(L, 1);
  lua_pushvalue(L, 3);
  if (t->host)
    lua_setfield(L, -2, "differs");
}

static void install(void) { /* once a process */
  moth_trace_host.run = run;
  moth_trace_host.differs = differs;
}

void moth_lua_open_segments(lua_State *L) {
  static const luaL_Reg fns[] = {{"set_check", c_set_check}, {NULL, NULL}};
  luaL_register(L, NULL, fns);
  lua_pushlightuserdata(L, &key_backends);
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "v");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, install);
}
