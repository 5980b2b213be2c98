/* The binding: the only C that knows Lua.
 *
 * All of moth's objects in Lua (tensors, dtypes, devices, generators) are full userdata of two words: a pointer or
 * code, and a magic number. Another userdata is recognized by its size and magic before anything is read.
 *
 * Ops are called through one C function (call.c), whose first upvalue says op and variant; it reads
 * the Lua arguments by the op's schema. While a call runs, moth_lua_current is its state, so that
 * interceptors, hooks and custom functions may call Lua from within. */
#ifndef MOTH_LUA_H
#define MOTH_LUA_H
#include <lauxlib.h>
#include <lua.h>

#include "autograd/node.h"
#include "core/dtype.h"
#include "device/device.h"
#include "dispatch/dispatch.h"
#include "lua/state.h"
#include "moth.h"

#define MOTH_MAGIC_TENSOR    0x6d6f7468546e7372ull
#define MOTH_MAGIC_DTYPE     0x6d6f746844747970ull
#define MOTH_MAGIC_DEVICE    0x6d6f746844657669ull
#define MOTH_MAGIC_GENERATOR 0x6d6f746847656e65ull
#define MOTH_MAGIC_NODE      0x6d6f74684e6f6465ull
#define MOTH_MAGIC_MODE      0x6d6f74684d6f6465ull /* a mode; 0 once it is closed */
#define MOTH_MAGIC_COUNT     0x6d6f7468436f756eull /* counts of calls */
#define MOTH_MAGIC_FRAME     0x6d6f74684672616dull /* likewise: saved-tensor hooks, watchers of nodes */

#define MOTH_LUA_DTYPES                                                                            \
  "float32, float64, float16, bfloat16, int8, uint8, int16, int32, int64, bool, uint16, "          \
  "uint32, uint64"

/* The FFI takes a userdata for a pointer to its bytes: a tensor's is a MothTensor **. */
typedef struct MothHandle {
  union {
    MothTensor *t; /* NULL after t:free() */
    MothGenerator *g;
    MothNode *n;
    MothLuaRef *ref;
    MothFrame *frame;
    void *other;
    int64_t code;
  } u;
  uint64_t magic;
} MothHandle;

extern _Thread_local lua_State *moth_lua_current MOTH_LUA_TLS;
/* Whether a device's allocator has collected garbage during this call. */
extern _Thread_local bool moth_lua_collected MOTH_LUA_TLS;

/* The growth of the live bytes since the last cycle of the collector (collect.c): from `look` bytes above `base` on, who
 * makes a handle calls moth_lua_grown. */
typedef struct MothLuaGrowth {
  int64_t base, look;
} MothLuaGrowth;
extern _Thread_local MothLuaGrowth moth_lua_growth MOTH_LUA_TLS;
void moth_lua_grown(lua_State *L, int64_t growth);
/* Full collections, before an allocation fails. */
void moth_lua_collect_all(lua_State *L, int times);
/* The cycles that growth has driven, and the full collections, of all threads. */
void moth_lua_collections(int64_t *cycles, int64_t *full);

/* The handle at idx if it has this magic, else NULL. (A light userdata has no length.) */
static inline MothHandle *moth_lua_handle(lua_State *L, int idx, uint64_t magic) {
  MothHandle *h = lua_touserdata(L, idx);
  return h && lua_objlen(L, idx) == sizeof *h && h->magic == magic ? h : NULL;
}

/* The same; a Lua error that says "expected a <what>" instead of NULL. */
void *moth_lua_check_handle(lua_State *L, int idx, uint64_t magic, const char *what);
/* Pushes a handle that holds nothing yet, with the metatable that the registry has under key. */
void *moth_lua_new_handle(lua_State *L, uint64_t magic, void *key);

/* Makes a metatable with this finalizer, under key in the registry. */
void moth_lua_new_class(lua_State *L, void *key, const char *name, lua_CFunction gc);

/* The integer at idx; a Lua error if it is none, or not between low and high (at most 2^53: a number of Lua may be
 * anything, and C leaves casts of what does not fit undefined). */
int64_t moth_lua_check_integer(lua_State *L, int idx, double low, double high);
/* The tensor at idx; a Lua error that names `what` if there is none. */
MothTensor *moth_lua_check_tensor(lua_State *L, int idx, const char *what);
/* Pushes a handle that takes over one reference of t. */
void moth_lua_push_tensor(lua_State *L, MothTensor *t);
/* Pushes a list of n handles that take over one reference each. */
void moth_lua_push_tensors(lua_State *L, MothTensor **list, uint32_t n);
/* The same with the metatable at index `meta` (an upvalue is found faster than the registry's). */
void moth_lua_push_tensor_with(lua_State *L, MothTensor *t, int meta);
void moth_lua_push_tensor_meta(lua_State *L);
void moth_lua_push_dtype(lua_State *L, MothDType d);
void moth_lua_push_device(lua_State *L, MothDevice d);
void moth_lua_push_generator(lua_State *L, MothGenerator *g); /* takes over a reference */
MothDType moth_lua_check_dtype(lua_State *L, int idx);
MothDevice moth_lua_check_device(lua_State *L, int idx);

/* Pushes "file:line: " of the nearest Lua function that is not of moth's own files. */
void moth_lua_push_where(lua_State *L);
/* How sources of moth's own Lua functions begin; NULL: not known. The state retains it. */
const char *moth_lua_library(lua_State *L);
/* Whether an int64_t or uint64_t cdata that int64 can hold is at idx: its value. */
/* Whether the value is a complex number (a cdata), and its parts z[2]; pushes one. */
bool moth_lua_complex(lua_State *L, int idx, double *z);
void moth_lua_push_complex(lua_State *L, double re, double im);
bool moth_lua_int64(lua_State *L, int idx, int64_t *out);
/* The argument at idx; an error, at the user's line and with the name of the called function, if it is of another
 * type. */
void moth_lua_type(lua_State *L, int idx, int type);
double moth_lua_number(lua_State *L, int idx);
const char *moth_lua_string(lua_State *L, int idx);
const char *moth_lua_bytes(lua_State *L, int idx, size_t *n);
/* The path at idx; an error if it is no string, or contains a byte 0, which would end it in C. */
const char *moth_lua_path(lua_State *L, int idx);

/* Raises the message of a failed call, at the line of the user who made it. */
int moth_lua_raise(lua_State *L, MothStatus s);
/* The same if s is an error; else 0, for functions without results. */
static inline int moth_lua_done(lua_State *L, MothStatus s) {
  return s == MOTH_OK ? 0 : moth_lua_raise(L, s);
}
/* Raises a message of our own in the same way. */
int moth_lua_error(lua_State *L, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Errors call the function on top by this name. */
void moth_lua_set_name(lua_State *L, const char *name);
/* Keeps the error object on top of the stack; moth_lua_raise(L, MOTH_ERR_HOST) raises it again. */
MothStatus moth_lua_park(lua_State *L);

/* lua_pcall that notes the frames of an error (moth.trace), so that a traceback of the error that is raised again can
 * show them. */
int moth_lua_pcall(lua_State *L, int nargs, int nresults);
/* Pushes the kept error, or nil; keeps it again. For code that runs Lua while an error unwinds. */
void moth_lua_push_parked(lua_State *L);
void moth_lua_pop_parked(lua_State *L);
/* The error of code that needs Lua in a thread without a running state. */
MothStatus moth_lua_no_state(void);

/* The frames of Lua functions outside of moth's library from the innermost one on, at most `most`; returns how many. Their
 * sources live as long as these functions. */
typedef struct MothLuaFrame {
  const char *source;
  int line;
} MothLuaFrame;
int moth_lua_frames(lua_State *L, int most, MothLuaFrame *found);
/* "train.lua" of "@train.lua", in text; the first line of a chunk's text. */
const char *moth_lua_source_name(const char *source, char *text, size_t size);

/* Calls the function below its nargs arguments on the stack, from within a call of moth's; its error is kept. All Lua
 * that C runs is called here, so that endless recursion meets a limit. */
MothStatus moth_lua_call(lua_State *L, int nargs, int nresults);

/* Modes of coroutines (coroutine.c). Code that reads or changes a mode, or that has called Lua, calls moth_lua_sync.
 * An entry that may raise an error calls moth_lua_enter, which also polls Ctrl-C: before moth is opened, a host puts
 * a lightuserdata of its `volatile sig_atomic_t` into the registry under this name, and sets it to 1 to have
 * "interrupted" raised. */
#define MOTH_LUA_INTERRUPT "moth.interrupt"
extern _Thread_local int moth_lua_records MOTH_LUA_TLS;
void moth_lua_switch(lua_State *L);
void moth_lua_entered(lua_State *L);
int moth_lua_interrupted(lua_State *L); /* raises "interrupted" */
static inline void moth_lua_sync(lua_State *L) {
  moth_lua_here(L);
  if (__builtin_expect(moth_lua_records, 0))
    moth_lua_switch(L);
}
static inline void moth_lua_enter(lua_State *L) {
  moth_lua_here(L);
  if (__builtin_expect(moth_lua_records | *moth_lua_interrupt, 0))
    moth_lua_entered(L);
}
/* The innermost open moth.scope (handle.c): retains it in *to; makes it the current one; releases it. */
typedef struct MothLuaScope MothLuaScope;
void moth_lua_save_scope(MothLuaScope **to);
void moth_lua_load_scope(MothLuaScope *from);
void moth_lua_forget_scope(MothLuaScope **of);

/* Leaves (leaf.c): tensors on which the user set requires_grad. */
static inline bool moth_lua_is_leaf(const MothTensor *t) {
  return __builtin_expect(t->grad != NULL, 0) && t->grad->requires_grad;
}
/* Pushes t's handle and takes over a reference of t; false if it has none. */
bool moth_lua_push_leaf(lua_State *L, MothTensor *t);
/* Makes the handle at idx that of t, if t has none. */
void moth_lua_add_leaf(lua_State *L, MothTensor *t, int idx);
/* The function of a hook is referenced by its state (state.h), or by the handle of its tensor while only this handle
 * can make it run (leaf.c). Assigns ref to the tensor whose handle is at idx. */
void moth_lua_add_hook(lua_State *L, int idx, MothLuaRef *ref);
/* For state.c: pushes the table in which t's handle lists its hooks, { [ref] = true, or the function }; false: there
 * is none. */
bool moth_lua_push_hooks(lua_State *L, const MothTensor *t);

/* Nodes (autograd.c, hooks.c). */
void moth_lua_push_node(lua_State *L, MothNode *n);
MothNode *moth_lua_check_node(lua_State *L, int idx);
int moth_lua_next_input(const MothNode *n, int i);
/* Pushes a function that Lua has given as a hook, to be called with nargs arguments; an error where it cannot be. */
MothStatus moth_lua_push_hook(lua_State *L, const MothLuaRef *fn, int nargs);
/* Opens a watcher of nodes, and pushes the userdata that closes it; takes over two references. */
void moth_lua_push_watcher(lua_State *L, MothWatcher *w);
int moth_lua_watch_anomalies(lua_State *L); /* anomaly.c */
void moth_lua_push_metadata(lua_State *L, MothNode *n);
/* The function of hook h if that is one of this state's; else NULL. */
MothLuaRef *moth_lua_hook_of(lua_State *L, const MothHook *h);

/* Pushes the values of args as Lua sees them (positions from 1); returns how many. */
void moth_lua_push_value(lua_State *L, const MothArg *a, MothValue v);
/* An op as a Lua function. */
typedef struct MothLuaEntry {
  const MothOp *op;
  MothVariant variant;
  uint8_t index_base; /* 1; 0 where Lua forwards a call that came from C */
  uint32_t
      floats; /* bits of arguments that are floats though Lua's number is integral, in a forwarded call */
} MothLuaEntry;
void moth_lua_push_op(lua_State *L, MothLuaEntry entry);

/* The op that the table on top describes (schema.c); the caller frees it, unless it is registered. NULL: no memory. */
MothOp *moth_lua_read_op(lua_State *L);
/* Whether the table on top has what every op has: name, schema, arguments with names. */
bool moth_lua_describes_op(lua_State *L);

void moth_lua_open_handles(lua_State *L);
void moth_lua_open_collector(lua_State *L);
void moth_lua_open_calls(lua_State *L);
void moth_lua_open_tensor(lua_State *L);
void moth_lua_open_elements(lua_State *L);
void moth_lua_open_autograd(lua_State *L);
void moth_lua_open_func(lua_State *L);
void moth_lua_open_hooks(lua_State *L);
void moth_lua_open_coroutines(lua_State *L);
void moth_lua_open_leaves(lua_State *L);
void moth_lua_open_library(lua_State *L);
void moth_lua_open_schemas(lua_State *L);
void moth_lua_open_modes(lua_State *L);
void moth_lua_open_io(lua_State *L);
void moth_lua_open_foreign(lua_State *L);
void moth_lua_open_backends(lua_State *L);
void moth_lua_open_streams(lua_State *L);
void moth_lua_open_comm(lua_State *L);
void moth_lua_open_reducer(lua_State *L);
void moth_lua_open_unit(lua_State *L);
void moth_lua_open_processes(lua_State *L);
void moth_lua_open_threads(lua_State *L);
void moth_lua_open_memory(lua_State *L);
void moth_lua_open_media(lua_State *L);
void moth_lua_open_json(lua_State *L);
void moth_lua_open_profile(lua_State *L);
void moth_lua_open_cuda(lua_State *L);
/* The program of moth_lua.cuda at idx, or an error. */
struct MothCudaProgram *moth_lua_cuda_program(lua_State *L, int idx);
void moth_lua_open_compile(lua_State *L);
void moth_lua_open_graphs(lua_State *L);
void moth_lua_open_segments(lua_State *L);
/* The function at `backend` compiles the segments of the trace t, whose userdata is at `trace` (segment.c). */
struct MothTrace;
void moth_lua_set_backend(lua_State *L, struct MothTrace *t, int trace, int backend);
/* The arguments (trace, exact, differs) of trace_check: whether its results are compared to the bit, and what is called with
 * the graph, its inputs and a text where a check has found a difference. */
void moth_lua_set_check(lua_State *L, struct MothTrace *t);
/* The plan at idx, or NULL (plan.c). The graph at idx; a Lua error if there is none. */
struct MothPlan;
struct MothGraph;
void moth_lua_open_plans(lua_State *L);
struct MothPlan *moth_lua_to_plan(lua_State *L, int idx);
/* Takes over the reference. The calls of a graph as tables (lowered.c). */
void moth_lua_push_plan(lua_State *L, struct MothPlan *p);
int moth_lua_graph_lowered(lua_State *L);
struct MothGraph *moth_lua_to_graph(lua_State *L, int idx);
/* Whether a compiled segment with gradients is at idx (aot.c); runs it: outputs, all NULL before, are the caller's. */
bool moth_lua_is_segment(lua_State *L, int idx);
MothStatus moth_lua_run_segment(lua_State *L, int idx, MothTensor **inputs, uint32_t n,
                                const MothValue *numbers, MothTensor **outputs);
/* The numbers of the graph in the list at idx, in a userdata that is pushed; lists among them are pushed, too. */
MothValue *moth_lua_graph_numbers(lua_State *L, const struct MothGraph *g, int idx);
/* Pushes a graph, with a reference of its own. The tensors of the list at idx, in a userdata that is pushed. */
void moth_lua_push_graph(lua_State *L, struct MothGraph *g);
MothTensor **moth_lua_tensors(lua_State *L, int idx, uint32_t *n);
void moth_lua_open_aot(lua_State *L);
/* Another coroutine or state comes next: calls that were noted run (graph/trace.h). L may be NULL. */
void moth_lua_leave_notes(lua_State *L);

int luaopen_moth_lua(lua_State *L);
#endif
