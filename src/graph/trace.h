/* The recorder: calls of ops are noted while a program runs and run later, in segments.
 *
 * A compiled callable owns a tree of records. While it is called, a recorder (an interceptor above all else) takes each
 * call that the program makes: it is compared with the records that followed at this place so far. If one is equal, its
 * results are known: lazy tensors are handed out, headers with shape, strides and dtype, and nothing runs. If none is, a
 * record is made: the call runs on fakes ("shadows", shadow.c), through Autocast and Autograd, which says what its
 * results are. The calls noted run (run.c) when the callable returns, and before anybody can see that they have not:
 * whoever asks for elements, versions, histories, or changes anything that they depend on. Then each lazy tensor becomes
 * a real one, under the same header, so that nothing in the program holds a stand-in.
 *
 * What is compared, of a call: op, variant, the modes in force, which values its tensors are, sizes and other
 * constants; of a tensor from outside, at its first use: dtype, device, sizes, strides, requires_grad. Numbers of
 * pointwise ops are parameters. What Lua reads needs no comparison: Lua runs on each call.
 *
 * One segment is noted at a time on a thread. Another coroutine, or another state, finds it run. */
#ifndef MOTH_GRAPH_TRACE_H
#define MOTH_GRAPH_TRACE_H
#include "dispatch/dispatch.h"

/* Of moth_unrun: a call that is noted may give a tensor a history that was there before. */
enum { MOTH_UNRUN_HISTORY = 4 };

/* What decides about a call beside its arguments. */
typedef struct MothTraceModes {
  uint32_t include, exclude;
  uint8_t autocast[MOTH_NDEVICES];
  uint8_t no_grad, dtype; /* the default dtype */
} MothTraceModes;

/* A tensor as records know it. `dims`: ndim sizes, then ndim strides. */
typedef struct MothTraceMeta {
  uint32_t keys; /* of device, stored dtype and Autograd */
  uint8_t dtype, ndim;
  MothDevice device;
  bool contiguous;
  uint8_t place; /* of a tensor from outside: MOTH_TRACE_LEAF, … */
  int64_t numel, offset;
  int64_t *dims;
} MothTraceMeta;
enum { MOTH_TRACE_LEAF = 1, MOTH_TRACE_VIEW = 2, MOTH_TRACE_OF_GRAPH = 4 };

/* An argument that is no tensor, or the tag and length of one that is. */
typedef struct MothTraceArg {
  MothValue value; /* lists and strings are the record's own */
  bool free;       /* the last call's: not compared */
  bool varied;     /* it has differed between calls */
  uint32_t number; /* in a graph: its place among the graph's numbers, from 1; 0: a constant */
} MothTraceArg;

typedef struct MothTraceEnd MothTraceEnd;
typedef struct MothTraceCode MothTraceCode;
/* What a record has known for other sizes: arguments, inputs, results. */
typedef struct MothRecordFit {
  uint64_t sizes, parent_sizes;
  uint16_t varying[2];
  MothTraceArg *args;
  MothTraceMeta *inputs;
  MothTraceMeta metas[]; /* op->nresults */
} MothRecordFit;
typedef struct MothRecordKnown {
  uint64_t key; /* of the sizes */
  MothRecordFit *fit;
} MothRecordKnown;

typedef struct MothRecord {
  const MothOp *op;
  uint8_t variant;
  bool writes;
  bool any_number;   /* whether a number is integral decides nothing */
  uint32_t dtypes;   /* bits by dtype, of the tensors */
  uint32_t nnumbers; /* the tensors among arguments, then targets, by their numbers */
  uint32_t first,
      nnew; /* number of the first new value; how many of the tensors come from outside */
  uint32_t
      result[MOTH_MAX_RESULTS]; /* numbers of the results; below first + nnew: one that was there */
  uint32_t *numbers;
  uint64_t sizes,
      parent_sizes; /* stamps: the sizes it knows, and those of its parent that they follow from */
  MothTraceModes modes;
  uint16_t varying[2]; /* bits of arguments: numbers that may differ from call to call; and sizes */
  MothTraceArg *args;
  MothTraceMeta *inputs;                 /* nnew */
  MothTraceMeta metas[MOTH_MAX_RESULTS]; /* dims NULL: none */
  uint64_t key;                          /* of the sizes that it knows */
  MothRecordKnown *known;                /* other sizes, which have come before */
  uint32_t nknown, next_known;           /* next: which is replaced */
  char *place;                           /* "file:line" of the program, or "" */
  struct MothRecord *parent, *child, *sibling;
  MothTraceEnd *end; /* a segment has ended here */
} MothRecord;

typedef struct MothTrace MothTrace;
typedef struct MothGraphPlan MothGraphPlan;

/* A place where a segment has ended. The segment begins behind another end, or at the beginning of the trace. */
struct MothTraceEnd {
  MothRecord *last; /* of the segment */
  MothRecord *next; /* what came after it */
  MothTrace *trace;
  MothTraceEnd *older; /* the list of a trace */
  int number;          /* from 1 */
  int64_t runs;
  char *reason, *where; /* of the break; NULL: the callable returned */
  MothTraceCode *codes; /* what the backend has made of it and is kept, newest first */
  int ncodes;           /* all that it has made */
  MothTraceCode *code;  /* the one that holds for this call; NULL: none has been made */
  int64_t compile_ns;   /* what making the codes took */
  int64_t trial; /* runs at which the backend is asked again, for code to stay; 0: it has been */
  bool settled;  /* it is asked for code to stay */
  bool known;    /* what the program holds is known: a code that defers the rest was made */
  uint32_t noutputs;
  uint32_t *outputs; /* numbers of the values that the codes return */
  uint32_t *classes; /* of each value: the first one that shares its storage; NULL: not known yet */
  bool draws;        /* a call may draw random numbers */
};

/* An argument of a call of a segment. */
typedef struct MothTracePin {
  uint32_t record, arg;
  MothValue value; /* a list is the pin's own */
} MothTracePin;

/* What a backend has made of a segment. It gets the segment's numbers (moth_segment_numbers) with its tensors, but may
 * hold for some of their values only: those are pins. `sized`: it holds for one set of sizes. */
struct MothTraceCode {
  MothTraceCode *older;
  int id;             /* among those of its end, from 1 */
  int64_t made, used; /* runs of the end when it was made, and when it was selected last */
  bool defers;        /* makes its outputs only: other values that are held stay lazy */
  bool plain;         /* the backend wants the calls to run one by one */
  bool dynamic;       /* sizes among arguments are numbers, too */
  bool sized;
  bool resized;   /* of a backend of moth's own: earlier ones are for other sizes */
  uint64_t stamp; /* of the segment's last record, when its sizes were `sizes` */
  uint32_t npins, nsizes, nnumbers;
  MothTracePin *pins;
  int64_t *sizes;
};

/* A difference that made a new record where there was one, and breaks, oldest last. */
typedef struct MothTraceNote {
  struct MothTraceNote *next;
  bool is_break;
  int64_t count;
  char text[];
} MothTraceNote;

typedef enum MothTraceDynamic {
  MOTH_DYNAMIC_AUTO,
  MOTH_DYNAMIC_ON,
  MOTH_DYNAMIC_OFF
} MothTraceDynamic;

/* A callable. */
struct MothTrace {
  MothRefs refs;
  MothRecord *first;
  MothTraceEnd *ends; /* newest first */
  MothTraceNote *notes;
  int nends;
  int nways, limit; /* differences between calls: where records or ends were added to a known way */
  bool fullgraph, capture; /* capture: what was noted is not run */
  bool dynamic;            /* sizes are not compared */
  bool off;                /* over the limit: runs as if it were not compiled */
  bool exact;              /* its segments give the bits of the calls themselves */
  uint8_t policy;          /* MothTraceDynamic */
  void *host;              /* not NULL: segments run by moth_trace_host.run */
  const char *name;        /* for messages; the trace's own */
};

/* One call of a callable. */
typedef struct MothRecorder {
  MothRefs refs;
  MothTrace *trace;
  MothTraceEnd *after; /* the end behind which it is; NULL: the beginning */
  bool closed;
  MothStatus late_status; /* moth_segment_late */
  char late[512];
  int64_t began, compile_ns; /* when; the counter's value then */
} MothRecorder;

/* The calls of a thread that are noted and have not run. */
typedef struct MothSegment {
  MothRecorder *recorder; /* retained */
  MothRecord *last;
  MothRecord **records;
  MothTensor **values;  /* retained; of a lazy one `number` is its place here */
  MothTensor **shadows; /* owned; by number; NULL: not made */
  MothTensor **scratch; /* for the lists of one call */
  uint32_t *numbers, *last_use;
  uint32_t nrecords, nvalues;
  uint32_t nshadowed,
      ntentative; /* records that have run on shadows; shadows of values behind nvalues */
  uint32_t records_cap, values_cap, numbers_cap;
  struct MothShadowPair *pairs; /* tensors from outside and their bases, with their shadows */
  uint32_t npairs, pairs_cap;
  bool inferred;     /* the next record has run on shadows */
  bool running;      /* calls pass */
  bool keeps;        /* run one by one: values stay until the end */
  uint64_t drawn[2]; /* state of the default generator before the segment runs, if it draws */
  bool copies;       /* shadows of tensors from outside have elements (check.c) */
} MothSegment;

typedef struct MothShadowPair {
  MothTensor *real, *shadow; /* both retained */
  MothTensor *leaf; /* where the gradient of `shadow` ends; retained; NULL: it needs none */
} MothShadowPair;

typedef struct MothTraceCounters {
  int64_t calls, graphs, breaks, recompiles, recorded, followed, skipped, compile_ns;
  int64_t hits, hit_ns, call_ns; /* hits: calls in which nothing was recorded or compiled */
  int64_t
      peak_bytes; /* the most that one run of a plan has held: intermediate values and outputs */
} MothTraceCounters;
/* Of this thread. */
MOTH_API MothTraceCounters *moth_trace_counters(void);

/* What the host adds; each may be NULL. */
typedef struct MothTraceHost {
  /* Writes "file:line" of the program into text. */
  void (*place)(char *text, size_t n);
  /* An error of a call that has run late becomes one of the host's, which names the call's place ("file:line" or ""); the
   * new status. */
  MothStatus (*failed)(const char *place, MothStatus s);
  /* A break, whose reason is new to the trace. */
  void (*broke)(const MothTrace *t, const char *reason, const char *where);
  /* Runs a segment of a trace with a host: makes the lazy tensors real that the program still has. *done: false where the
   * calls are to run one by one. */
  MothStatus (*run)(MothSegment *s, MothTraceEnd *end, bool *done);
  /* A check has found a difference, `text`; s has not run. Returns an error. */
  MothStatus (*differs)(MothSegment *s, MothTraceEnd *end, const char *text);
} MothTraceHost;
MOTH_API extern MothTraceHost moth_trace_host;

/* name is copied. NULL: no memory. */
MOTH_API MothTrace *moth_trace_new(const char *name);
MOTH_API void moth_trace_release(MothTrace *t);

/* Begins a call of t on this thread: *out has one reference for the caller. */
MOTH_API MothStatus moth_recorder_begin(MothTrace *t, MothRecorder **out);
/* Runs what is noted and ends the call; errors are those of the calls. */
MOTH_API MothStatus moth_recorder_end(MothRecorder *r);
MOTH_API void moth_recorder_release(MothRecorder *r);
/* The innermost call here that notes; NULL: none. */
MOTH_API MothRecorder *moth_recorder_open(void);
/* Noted calls have failed where no error could be raised: the end of the call of the callable raises it. */
MOTH_API void moth_segment_late(MothStatus s);
/* Whether calls of this thread are being noted, or the notes of one are running. */
MOTH_API bool moth_recording(void);

/* Runs what is noted. */
MOTH_API MothStatus moth_segment_run(void);
/* The same, where the program leaves what can be recorded: counted as a break, also if nothing is noted. With fullgraph an
 * error, and nothing runs. */
MOTH_API MothStatus moth_segment_break(const char *reason);
/* As moth_backward and moth_grad (which must give all gradients), noted as calls: *why NULL. Else nothing is done, and
 * *why says what keeps it from being noted. */
MOTH_API MothStatus moth_trace_backward(MothTensor **roots, MothTensor **grads, int n, bool retain,
                                        bool create, const char **why);
MOTH_API MothStatus moth_trace_grad(MothTensor **roots, MothTensor **grads, int n,
                                    MothTensor **inputs, int ninputs, bool retain, bool create,
                                    MothTensor **out, const char **why);
/* Whether the op runs the engine (backward.c): roots, gradients, leaves, leaves with gradients, these, retain. */
MOTH_API bool moth_is_pass(const MothOp *op);
/* Whether calls of this thread run as they come, though a call of a callable is open: so while backward runs the hooks of the
 * program. Returns what it was. */
MOTH_API bool moth_segment_pass(bool on);
/* The segment of this thread; NULL: none was ever noted. */
MOTH_API MothSegment *moth_segment_here(void);

/* --- between the files of this folder ------------------------------------------------------------------ */

/* Runs the call on values. varying: its arguments that differ from call to call (moth_arg_varies, with sizes), in their
 * order; NULL: those of the last call. */
MothStatus moth_record_call(const MothRecord *r, MothSegment *s, MothTensor **values,
                            const MothValue *varying, MothValue *results);
MothStatus moth_record_new(MothSegment *s, const MothCall *c, uint32_t nnumbers, uint32_t nnew,
                           MothTensor *const *fresh, MothRecord **out);
void moth_record_free(MothRecord *r);
/* What r knows changes places with what k does. */
void moth_record_swap(MothRecord *r, MothRecordKnown *k);
/* What r knows becomes what `now`, which is freed, does; r keeps what it was. False: no memory, and nothing is done. */
bool moth_record_refit(MothRecord *r, MothRecord *now);
bool moth_trace_value_same(const MothValue *a, const MothValue *b); /* but for what tensors are */
/* Memory for n items of a list of cap; false: there is none, the error is set. */
bool moth_grow(void *list, uint32_t *cap, size_t n, size_t size);
/* Text that grows. */
typedef struct MothGrownText {
  char *s;
  uint32_t n, cap;
  bool failed;
} MothGrownText;
__attribute__((format(printf, 2, 3))) void moth_text_put(MothGrownText *t, const char *fmt, ...);
/* An argument that is no tensor, as Lua writes it. */
void moth_text_value(MothGrownText *t, const MothArg *a, const MothValue *v);
/* The text, for free(); NULL: no memory. */
char *moth_text_end(MothGrownText *t);
/* Whether two geometries show the same: the stride of a dimension of one element, or of no elements, tells nothing. */
bool moth_same_strides(int ndim, int64_t numel, const int64_t *shape, const int64_t *a,
                       const int64_t *b);
/* What is in a list of integers becomes a part of a hash. */
static inline void moth_mix(uint64_t *h, const int64_t *list, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    *h = (*h ^ (uint64_t)list[i]) * 0x9e3779b97f4a7c15ull;
    *h ^= *h >> 29;
  }
}
/* Frees a list or string, or releases a generator. */
void moth_trace_value_free(MothValue v);
/* A copy that owns its list or string, or retains its generator; tensors are left out. */
bool moth_trace_value_copy(MothValue *to, const MothValue *v);
/* Whether the number v, which is not compared, may be argument i of r without being asked about again: another number
 * can be an error where the last was none (out of the range of a dtype; a negative power of integers). */
bool moth_record_takes(const MothRecord *r, int i, const MothValue *v);
bool moth_meta_of(const MothTensor *t, bool outside, MothTraceMeta *m);
/* A fake with the facts of m, in a storage as large as it needs. */
MothStatus moth_meta_fake(const MothTraceMeta *m, MothTensor **out);
/* The thread's modes, for a call that is noted. */
void moth_trace_modes(MothTraceModes *m);
/* Makes the shadows of all values before `upto`, and those of the records' results. */
MOTH_API MothStatus moth_shadow_prepare(MothSegment *s);
/* Until moth_quiet_end nobody sees the calls, and all that is made is fake, unless s copies. */
typedef struct MothQuiet {
  uint32_t include, exclude;
  MothFrame *saved_hooks, *watchers;
  bool running;
} MothQuiet;
void moth_quiet_begin(MothSegment *s, MothQuiet *q);
void moth_quiet_end(MothSegment *s, const MothQuiet *q);
/* Until moth_clean_end nothing that the program or its observers have set is in force, and no call is noted. NULL: no
 * memory. */
typedef struct MothClean {
  MothModes was;
  MothSegment *segment;
  bool running;
} MothClean;
MothClean *moth_clean_begin(void);
void moth_clean_end(MothClean *a);
/* The shadow of a tensor from outside, borrowed: with s->copies a copy, whose storage others share as theirs do. */
MothStatus moth_shadow_outside(MothSegment *s, MothTensor *t, MothTensor **out);
void moth_shadow_drop_pairs(MothSegment *s);
/* A tensor in the memory of `other`, from an offset in elements on, with the geometry of t. */
MothStatus moth_alias_as(MothTensor *other, const MothTensor *t, int64_t offset, MothTensor **out);
/* A lazy tensor with the facts of m. */
MothStatus moth_lazy_make(const MothTraceMeta *m, MothTensor **out);
/* Runs r, which is to be the next record, on shadows, its new tensors from outside in `fresh`: sets the results' numbers
 * and metas. What it made is tentative until r is accepted; moth_shadow_undo drops it. */
MothStatus moth_shadow_infer(MothSegment *s, MothRecord *r, MothTensor *const *fresh);
void moth_shadow_undo(MothSegment *s);
void moth_shadow_drop(MothSegment *s);
/* Runs what s has noted and goes to its end, *end (may be NULL). */
MothStatus moth_segment_finish(MothSegment *s, MothTraceEnd **end);
/* Runs the records of s one by one. */
MothStatus moth_segment_run_each(MothSegment *s);
/* Whether each segment runs twice on copies first, as it is compiled and one by one: MOTH_COMPILE_CHECK (check.c). An
 * error where results, effects or gradients differ. */
MOTH_API extern _Atomic bool moth_segment_checks; /* of all threads */
MothStatus moth_segment_check(MothSegment *s, MothTraceEnd *end);
/* Copies, which share storages as the tensors do, with histories of their own: out[i] is the caller's. */
MOTH_API MothStatus moth_tensor_copies(MothTensor *const *in, uint32_t n, MothTensor **out);
/* Values that s has not made and that are held stay lazy, to be computed when they are looked at. The calls must write
 * to nothing and draw no random numbers; values that share memory with an output must be outputs. */
MothStatus moth_segment_defer(MothSegment *s, MothTraceEnd *end);
/* Sets classes and draws of `end`: all values of s have shadows. False: no memory. */
MOTH_API bool moth_end_classify(const MothSegment *s, MothTraceEnd *end);
/* Whether the op may draw random numbers. */
MOTH_API bool moth_op_draws(const MothOp *op);
/* Whether a call of the op, in whatever variant, writes to an argument. */
bool moth_op_writes(const MothOp *op);
/* How many tensors an argument is, and the one with number k among them. */
static inline uint32_t moth_ntensors(MothValue v) {
  return v.tag == MOTH_V_TENSOR ? 1 : v.tag == MOTH_V_TENSORS ? v.n : 0;
}
static inline MothTensor *moth_tensor_at(MothValue v, uint32_t k) {
  return v.tag == MOTH_V_TENSOR ? v.u.t : v.u.tensors[k];
}
/* How many tensors the arguments are. */
uint32_t moth_args_ntensors(const MothOp *op, const MothValue *args);
/* Gives tensors, in their order, to those of args that are tensors. Returns the ones behind these: the targets. */
MothTensor **moth_args_fill(const MothOp *op, MothValue *args, MothTensor **tensors);

/* Hides the interceptors that the program has pushed inside the call of r (dispatch/lazy.h). */
typedef struct MothHidden MothHidden;
void moth_recorder_hide_inner(const MothRecorder *r, MothHidden *h);
/* The records that may come next, siblings of the one that is returned. */
MothRecord *moth_segment_next(MothSegment *s);
/* The leaves from outside that backward of these roots, values of s, gives gradients to; gradients NULL: ones. Why that
 * cannot be told; NULL: it was. All values have shadows. */
const char *moth_shadow_backward(MothSegment *s, MothTensor *const *roots, uint32_t n,
                                 MothTensor *const *gradients, MothTensor **leaves,
                                 uint32_t *nleaves);
/* Why autograd.grad fails, or leaves what s knows; NULL: each input gets a gradient. */
const char *moth_shadow_gradients(MothSegment *s, MothTensor *const *roots, uint32_t n,
                                  MothTensor *const *gradients, MothTensor *const *inputs,
                                  uint32_t ninputs);
void moth_gradients_drop(const MothSegment *s);
void moth_gradients_forget(void);

/* --- numbers.c: what differs from call to call ------------------------------------------------------------ */

/* Whether argument i of r is a number that may differ from call to call; sizes: so may sizes and lists of them. */
static inline bool moth_arg_varies(const MothRecord *r, int i, bool sizes) {
  return r->varying[sizes] >> i & 1;
}
/* Sets r->varying: its arguments are known. */
void moth_record_vary(MothRecord *r);
/* The numbers of what s has noted, this call's, by calls and arguments; how many. out NULL: counts. Lists belong to the
 * records. sizes: as moth_arg_varies. */
MOTH_API uint32_t moth_segment_numbers(const MothSegment *s, bool sizes, MothValue *out);
/* end->code becomes one that holds for this call; NULL: there is none. */
MOTH_API void moth_end_select(const MothSegment *s, MothTraceEnd *end);
/* A code of `end` for what s has noted, which becomes end->code. pinned: for each of its numbers, whether it holds for this
 * value alone; NULL: none. NULL: no memory. */
MOTH_API MothTraceCode *moth_end_add_code(const MothSegment *s, MothTraceEnd *end, bool dynamic,
                                          bool sized, const bool *pinned);
/* Whether what s has noted differs from what each code of its end, which has some, is for in its sizes. */
MOTH_API bool moth_end_is_resized(const MothSegment *s, const MothTraceEnd *end);
/* Frees the code of `end`, which has some, that was used longest ago; its id. */
MOTH_API int moth_end_drop_oldest(MothTraceEnd *end);
/* Frees all codes of `end`. */
MOTH_API void moth_end_forget(MothTraceEnd *end);
/* t, lazy, becomes made, which is released. */
MOTH_API MothStatus moth_lazy_become(MothTensor *t, MothTensor *made);
/* Counts a way; over the limit: one warning, and calls run as they come from then on. */
MOTH_API void moth_trace_new_way(MothTrace *t);
MOTH_API bool moth_trace_note(MothTrace *t, bool is_break, const char *text);
MOTH_API int64_t moth_trace_now(void); /* nanoseconds */
#endif
