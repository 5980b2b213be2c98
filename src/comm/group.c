/* Groups: their queue and its thread, faults, the flight recorder. See comm.h. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/thread.h"
#include "comm/wire.h"
#include "core/alloc.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/parallel.h"

static pthread_mutex_t groups_lock = PTHREAD_MUTEX_INITIALIZER;
static MothGroup **groups; /* by number - 1; NULL: closed */
static int ngroups;

/* --- names -------------------------------------------------------------------------------------- */

static const char *const names[MOTH_COMM_NOPS] = {
    "all_reduce", "broadcast", "reduce",        "all_gather", "reduce_scatter", "all_to_all",
    "gather",     "scatter",   "permute_ranks", "barrier",    "send",           "recv"};

const char *moth_comm_op_name(int op) {
  return op >= 0 && op < MOTH_COMM_NOPS ? names[op] : "?";
}

static bool has_reduce(int op) {
  return op == MOTH_COMM_ALL_REDUCE || op == MOTH_COMM_REDUCE || op == MOTH_COMM_REDUCE_SCATTER;
}
static bool has_root(int op) {
  return op == MOTH_COMM_BROADCAST || op == MOTH_COMM_REDUCE || op == MOTH_COMM_GATHER ||
         op == MOTH_COMM_SCATTER;
}

const char *moth_comm_head_text(const MothCommHead *h, char *text, size_t n) {
  char shape[200] = "";
  if (h->op == MOTH_COMM_BARRIER) {
    snprintf(text, n, "#%lld barrier", (long long)h->seq);
    return text;
  }
  size_t at = 0;
  for (int i = 0; i < h->ndim && i < MOTH_COMM_DIMS && at < sizeof shape; i++)
    at += (size_t)snprintf(shape + at, sizeof shape - at, "%s%lld", i ? ", " : "",
                           (long long)h->shape[i]);
  char root[40] = "";
  if (has_root(h->op))
    snprintf(root, sizeof root, " (root %d)", (int)h->root);
  else if (h->op >= MOTH_COMM_SEND && h->root)
    snprintf(root, sizeof root, " (tag %d)", (int)h->root);
  snprintf(text, n, "#%lld %s%s%s%s%s of %s%s%s%s", (long long)h->seq, moth_comm_op_name(h->op),
           has_reduce(h->op) ? "(" : "", has_reduce(h->op) ? moth_comm_reduce_name(h->reduce) : "",
           has_reduce(h->op) ? ")" : "", root, moth_dtype_name((MothDType)h->dtype),
           h->count < 0 ? "" : " [", h->count < 0 ? "" : shape, h->count < 0 ? "" : "]");
  return text;
}

bool moth_comm_same_call(const MothCommHead *a, const MothCommHead *b) {
  return a->op == b->op && a->dtype == b->dtype && a->reduce == b->reduce && a->ndim == b->ndim &&
         a->root == b->root && a->seq == b->seq && a->count == b->count &&
         memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}

int moth_comm_debug(void) {
  static const char *const words[] = {"OFF", "INFO", "DETAIL", NULL};
  static _Atomic int level = -1;
  int now = atomic_load(&level);
  if (now < 0) {
    const char *name = moth_env_text("MOTH_DISTRIBUTED_DEBUG") ? "MOTH_DISTRIBUTED_DEBUG"
                                                               : "TORCH_DISTRIBUTED_DEBUG",
               *nccl = moth_env_text("NCCL_DEBUG");
    now = moth_env_choice(name, words);
    if (now < 0) /* NCCL's own variable makes the other engines talk, too */
      now = nccl && (strcmp(nccl, "INFO") == 0 || strcmp(nccl, "TRACE") == 0);
    atomic_store(&level, now);
  }
  return now;
}

/* --- works -------------------------------------------------------------------------------------- */

void moth_work_retain(MothWork *w) {
  atomic_fetch_add(&w->refs, 1);
}

void moth_work_release(MothWork *w) {
  if (!w || atomic_fetch_sub(&w->refs, 1) != 1)
    return;
  for (int i = 0; i < 2; i++)
    moth_tensor_release(w->tensors[i]);
  moth_event_free(w->ready);
  moth_group_release(w->group);
  free(w->splits);
  free(w->text);
  free(w);
}

/* Under the lock: the record of a work, while the ring still has it. */
static MothCommRecord *record_of(MothGroup *g, const MothWork *w) {
  return g->nrecords - w->record <= MOTH_COMM_RECORDS ? &g->records[w->record % MOTH_COMM_RECORDS]
                                                      : NULL;
}

static void note(MothGroup *g, MothWork *w, int state) {
  MothCommRecord *r = record_of(g, w);
  if (r) {
    r->state = state;
    r->peer = w->peer;
    r->t1 = w->t1;
    r->t2 = w->t2;
  }
}

void moth_work_begin(MothWork *w) {
  MothGroup *g = w->group;
  pthread_mutex_lock(&g->lock);
  w->t1 = moth_wire_now();
  w->deadline = w->t1 + w->timeout;
  atomic_store(&w->state, MOTH_WORK_RUNNING);
  note(g, w, MOTH_WORK_RUNNING);
  pthread_mutex_unlock(&g->lock);
}

void moth_work_finish(MothWork *w, const char *error) {
  MothGroup *g = w->group;
  pthread_mutex_lock(&g->lock);
  w->t2 = moth_wire_now();
  if (error) {
    char head[300];
    size_t n = strlen(error) + sizeof head + MOTH_COMM_WHERE + 32;
    w->text = malloc(n);
    moth_comm_head_text(&w->head, head, sizeof head);
    if (w->text)
      snprintf(w->text, n, "[%s] %s failed on rank %d: %s", moth_comm_op_name(w->head.op), head,
               moth_group_world_rank(g, g->rank), error);
  }
  note(g, w, error ? MOTH_WORK_FAILED : MOTH_WORK_DONE);
  if (!error && w->head.op < MOTH_COMM_SEND)
    atomic_store(&g->last->over, w->head.seq);
  atomic_store(&w->state, error ? MOTH_WORK_FAILED : MOTH_WORK_DONE);
  w->next = g->done; /* the reference of the queue: the user's thread drops it */
  g->done = w;
  if (g->waiting > 0)
    pthread_cond_broadcast(&g->changed);
  pthread_mutex_unlock(&g->lock);
}

static void drop_done(MothGroup *g) {
  pthread_mutex_lock(&g->lock);
  MothWork *w = g->done;
  g->done = NULL;
  pthread_mutex_unlock(&g->lock);
  while (w) {
    MothWork *next = w->next;
    moth_work_release(w);
    w = next;
  }
}

const MothCommObserver *moth_comm_observer;
static const MothCommObserver *observed(void) {
  return __atomic_load_n(&moth_comm_observer, __ATOMIC_ACQUIRE);
}

static MothStatus wait_for(MothWork *w, double timeout, bool *done) {
  MothGroup *g = w->group;
  const volatile sig_atomic_t *flag = moth_interrupt_flag();
  double until = timeout < 0 ? 1e18 : moth_wire_now() + timeout;
  bool stop = false;
  pthread_mutex_lock(&g->lock);
  g->waiting++;
  while (atomic_load(&w->state) < MOTH_WORK_DONE && !stop && moth_wire_now() < until) {
    moth_comm_wait(&g->lock, &g->changed, until, 0.05);
    stop = flag && *flag;
    bool late = atomic_load(&w->state) == MOTH_WORK_RUNNING &&
                (atomic_load(&g->broken) || moth_wire_now() > w->deadline);
    if (late && g->engine->expire) {
      pthread_mutex_unlock(&g->lock);
      g->engine->expire(g, w);
      pthread_mutex_lock(&g->lock);
    }
  }
  g->waiting--;
  pthread_mutex_unlock(&g->lock);
  drop_done(g);
  int state = atomic_load(&w->state);
  if (done)
    *done = state >= MOTH_WORK_DONE;
  if (state == MOTH_WORK_FAILED)
    return moth_fail(MOTH_ERR_IO, "%s", w->text ? w->text : "communication failed");
  if (state != MOTH_WORK_DONE && stop)
    return moth_interrupted();
  if (state != MOTH_WORK_DONE && !done)
    return moth_fail(MOTH_ERR_IO, "the call has not ended within %g s", timeout);
  return MOTH_OK;
}

MothStatus moth_work_wait(MothWork *w, double timeout, bool *done) {
  const MothCommObserver *o = observed();
  if (!o || atomic_load(&w->state) >= MOTH_WORK_DONE)
    return wait_for(w, timeout, done);
  int64_t at = o->begin(moth_comm_op_name(w->head.op));
  MothStatus s = wait_for(w, timeout, done);
  o->end(at);
  return s;
}

static MothWork *work_of(MothGroup *g, const MothCommRequest *r) {
  MothWork *w = calloc(1, sizeof *w);
  if (!w)
    return NULL;
  w->refs = 2; /* the caller's, and the queue's */
  w->group = g;
  moth_group_retain(g);
  MothCommHead *h = &w->head;
  h->magic = 0x6d6f7468;
  h->op = (uint8_t)r->op;
  h->dtype = (uint8_t)r->dtype;
  h->reduce = has_reduce(r->op) ? (uint8_t)r->reduce : 0;
  h->root = r->op >= MOTH_COMM_SEND ? r->tag : has_root(r->op) ? r->root : -1;
  h->sender = g->rank;
  h->count = r->ndim < 0 ? -1 : 1;
  h->ndim = (uint8_t)(r->ndim < 0 ? 0 : r->ndim < MOTH_COMM_DIMS ? r->ndim : MOTH_COMM_DIMS);
  for (int i = 0; i < r->ndim; i++) {
    h->count *= r->shape[i];
    if (i < MOTH_COMM_DIMS)
      h->shape[i] = r->shape[i];
  }
  w->peer = r->root;
  w->itemsize = moth_dtype_size(r->dtype);
  static char nothing[64]; /* for tensors without elements */
  w->in = r->in ? r->in : nothing;
  w->out = r->out ? r->out : nothing;
  w->nin = r->nin;
  w->nout = r->nout;
  w->timeout = r->timeout > 0 ? r->timeout : g->timeout;
  snprintf(w->where, sizeof w->where, "%s", r->where ? r->where : "");
  if (r->in_splits && r->out_splits) {
    w->splits = malloc(2 * (size_t)g->size * sizeof *w->splits);
    if (!w->splits) {
      w->refs = 1;
      moth_work_release(w);
      return NULL;
    }
    for (int i = 0; i < g->size; i++) {
      w->splits[i] = r->in_splits[i] * w->itemsize;
      w->splits[g->size + i] = r->out_splits[i] * w->itemsize;
    }
  }
  for (int i = 0; i < 2; i++) {
    w->tensors[i] = r->tensors[i];
    if (w->tensors[i])
      moth_tensor_retain(w->tensors[i]);
  }
  return w;
}

/* Of MOTH_DISTRIBUTED_DEBUG. */
static void say(const MothGroup *g, const char *text, const char *where) {
  fprintf(stderr, "[moth] rank %d group %s: %s%s%s\n", moth_group_world_rank(g, g->rank), g->name,
          text, where[0] ? " at " : "", where);
}

/* On the caller's thread, whose turn it is. What is put off is the first of the queue. */
static void attempt(MothGroup *g, MothWork *w) {
  moth_work_begin(w);
  bool done = g->engine->attempt(g, w);
  if (done)
    moth_work_finish(w, NULL);
  pthread_mutex_lock(&g->lock);
  g->running = NULL;
  if (!done) {
    w->next = g->first;
    g->first = w;
    if (!w->next)
      g->tail = &w->next;
  }
  if (g->first || g->closing)
    pthread_cond_broadcast(&g->changed);
  pthread_mutex_unlock(&g->lock);
}

MothStatus moth_comm_start(MothGroup *g, const MothCommRequest *r, MothWork **out) {
  MothCommBefore *before = r->op < MOTH_COMM_SEND ? atomic_load(&g->before) : NULL;
  if (before && pthread_equal(before->thread, pthread_self()))
    MOTH_TRY(before->run(before));
  drop_done(g);
  MOTH_TRY(moth_comm_check(g, r));
  MothWork *w = work_of(g, r);
  if (!w)
    return moth_fail(MOTH_ERR_MEMORY, "[%s] out of memory", moth_comm_op_name(r->op));
  if (r->device.type != MOTH_CPU) {
    MothStatus status = moth_event_new(r->device.type, false, &w->ready);
    if (status == MOTH_OK)
      status = moth_event_record(w->ready, NULL);
    if (status != MOTH_OK) {
      w->refs = 1;
      moth_work_release(w);
      return status;
    }
  }
  pthread_mutex_lock(&g->lock);
  if (g->closing || atomic_load(&g->broken)) {
    char text[MOTH_COMM_TEXT];
    snprintf(text, sizeof text, "%s",
             g->closing ? "it was destroyed; init_process_group makes a new one" : g->fault);
    pthread_mutex_unlock(&g->lock);
    w->refs = 1;
    moth_work_release(w);
    return moth_fail(MOTH_ERR_STATE, "[%s] the process group %s: %s", moth_comm_op_name(r->op),
                     g->closing ? "cannot be used" : "is broken", text);
  }
  w->head.seq = r->op < MOTH_COMM_SEND ? ++g->seq : ++g->messages;
  w->t0 = moth_wire_now();
  g->stats.calls[r->op]++;
  if (r->op < MOTH_COMM_SEND) {
    g->last->head = w->head;
    memcpy(g->last->where, w->where, sizeof g->last->where);
  }
  w->record = g->nrecords++;
  MothCommRecord *record = &g->records[w->record % MOTH_COMM_RECORDS];
  *record = (MothCommRecord){.head = w->head, .peer = w->peer, .t0 = w->t0};
  memcpy(record->where, w->where, sizeof record->where);
  bool direct = r->op >= MOTH_COMM_SEND && g->engine->post;
  bool tries = r->now && r->op < MOTH_COMM_SEND && g->engine->attempt && !w->ready && !g->first &&
               !g->running && !observed();
  if (tries) {
    g->running = w;
  } else if (!direct) {
    *g->tail = w;
    g->tail = &w->next;
    pthread_cond_broadcast(&g->changed);
  }
  pthread_mutex_unlock(&g->lock);
  if (moth_comm_debug() == 2) {
    char text[300];
    say(g, moth_comm_head_text(&w->head, text, sizeof text), w->where);
  }
  if (tries)
    attempt(g, w);
  if (direct) {
    moth_work_begin(w);
    g->engine->post(g, w);
  }
  *out = w;
  return MOTH_OK;
}

MothStatus moth_comm_run(MothGroup *g, const MothCommRequest *r) {
  MothWork *w = NULL;
  MothCommRequest now = *r;
  now.now = true;
  MOTH_TRY(moth_comm_start(g, &now, &w));
  MothStatus s = moth_work_wait(w, -1, NULL);
  moth_work_release(w);
  return s;
}

/* --- the thread --------------------------------------------------------------------------------- */

static bool run_seen(MothGroup *g, MothWork *w) {
  const MothCommObserver *o = observed();
  int64_t at = o ? o->begin(moth_comm_op_name(w->head.op)) : -1;
  bool fine = g->engine->run(g, w);
  if (o)
    o->end(at);
  return fine;
}

static void *run_group(void *data) {
  MothGroup *g = data;
  char text[MOTH_COMM_TEXT];
  for (;;) {
    pthread_mutex_lock(&g->lock);
    while (g->running || (!g->first && !g->closing))
      pthread_cond_wait(&g->changed, &g->lock);
    MothWork *w = g->first;
    if (w && !(g->first = w->next))
      g->tail = &g->first;
    g->running = w;
    bool closing = g->closing;
    pthread_mutex_unlock(&g->lock);
    if (!w)
      return NULL;
    moth_work_begin(w);
    if (!w->begun && moth_group_is_broken(g, text, sizeof text))
      moth_work_finish(w, text);
    else if (!w->begun && closing)
      moth_work_finish(w, "the process group was destroyed");
    else if (run_seen(g, w))
      moth_work_finish(w, NULL);
    else if (moth_group_is_broken(g, text, sizeof text))
      moth_work_finish(w, text);
    else
      moth_work_finish(w, "the process group was destroyed");
    pthread_mutex_lock(&g->lock);
    g->running = NULL;
    pthread_mutex_unlock(&g->lock);
  }
}

/* --- faults ------------------------------------------------------------------------------------- */

/* MOTH_DIST_DUMP=path: the last calls, one a line, into path.<rank>. */
static void dump(MothGroup *g) {
  const char *path = moth_env_text("MOTH_DIST_DUMP");
  char name[512], head[300];
  static const char *const states[] = {"queued", "running", "done", "failed"};
  if (!path)
    return;
  snprintf(name, sizeof name, "%s.%d", path, moth_group_world_rank(g, g->rank));
  FILE *f = fopen(name, "a");
  if (!f)
    return;
  fprintf(f, "rank %d of group %s is broken: %s\n", moth_group_world_rank(g, g->rank), g->name,
          g->fault);
  pthread_mutex_lock(&g->lock);
  int64_t from = g->nrecords > MOTH_COMM_RECORDS ? g->nrecords - MOTH_COMM_RECORDS : 0;
  for (int64_t i = from; i < g->nrecords; i++) {
    MothCommRecord *r = &g->records[i % MOTH_COMM_RECORDS];
    fprintf(f, "%s %s%s%s (%.3f ms)\n", states[r->state & 3],
            moth_comm_head_text(&r->head, head, sizeof head), r->where[0] ? " at " : "", r->where,
            r->t2 > 0 ? (r->t2 - r->t0) * 1e3 : -1.0);
  }
  pthread_mutex_unlock(&g->lock);
  fclose(f);
}

/* "; it was in #34 all_reduce(sum) of float32 [5] at train.lua:7", or what it had done. Under the lock, as the engine's state is needed. */
static void add_last(MothGroup *g, int world_rank, char *text, size_t n) {
  const MothCommLast *found = NULL;
  for (int i = 0; i < g->size && g->engine->last_of; i++)
    if (i != g->rank && moth_group_world_rank(g, i) == world_rank)
      found = g->engine->last_of(g, i);
  if (!found || found->head.seq <= 0)
    return;
  MothCommHead head = found->head;
  char call[300], where[MOTH_COMM_WHERE];
  memcpy(where, found->where, sizeof where);
  where[sizeof where - 1] = 0;
  bool over = atomic_load(&found->over) >= head.seq;
  size_t at = strlen(text);
  snprintf(text + at, n - at,
           over ? "; its last call, which had ended, was %s%s%s" : "; it was in %s%s%s",
           moth_comm_head_text(&head, call, sizeof call), where[0] ? " at " : "", where);
}

static void fault(MothGroup *g, int world_rank, const char *fmt, va_list args) {
  char text[MOTH_COMM_TEXT];
  vsnprintf(text, sizeof text, fmt, args);
  pthread_mutex_lock(&g->lock);
  bool first = !atomic_load(&g->broken) && !g->closed;
  if (first) {
    if (world_rank >= 0)
      add_last(g, world_rank, text, sizeof text);
    memcpy(g->fault, text, sizeof text);
    atomic_store(&g->broken, true);
    pthread_cond_broadcast(&g->changed);
    g->engine->wake(g); /* under the lock, which closing takes before it frees the engine's state */
  }
  pthread_mutex_unlock(&g->lock);
  if (first && moth_comm_debug())
    say(g, text, "");
  if (first)
    dump(g);
}

void moth_group_fault(MothGroup *g, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  fault(g, -1, fmt, args);
  va_end(args);
}

void moth_group_blame(MothGroup *g, int world_rank, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  fault(g, world_rank, fmt, args);
  va_end(args);
}

bool moth_group_is_broken(MothGroup *g, char *text, size_t n) {
  if (!atomic_load(&g->broken))
    return false;
  pthread_mutex_lock(&g->lock);
  snprintf(text, n, "%s", g->fault);
  pthread_mutex_unlock(&g->lock);
  return true;
}

/* --- the launcher's word ------------------------------------------------------------------------ */

static struct {
  MothStore *store;
  pthread_t thread;
  char key[128];
} watch;
static _Atomic bool watching;

static void *run_watch(void *data) {
  MothBytes value;
  void *block;
  (void)data;
  MothBytes key = {watch.key, strlen(watch.key)};
  if (moth_store_get(watch.store, 1, &key, 1e12, &value, &block) != MOTH_OK) {
    atomic_store(&watching, false); /* the store is gone: groups do without it */
    return NULL;
  }
  char text[MOTH_COMM_TEXT];
  int rank;
  snprintf(text, sizeof text, "%.*s", (int)(value.n < 1000 ? value.n : 1000), value.data);
  if (sscanf(text, "rank %d (", &rank) != 1)
    rank = -1;
  pthread_mutex_lock(&groups_lock);
  for (int i = 0; i < ngroups; i++)
    if (groups[i])
      moth_group_blame(groups[i], rank, "%s", text);
  pthread_mutex_unlock(&groups_lock);
  free(block);
  return NULL;
}

bool moth_comm_watched(void) {
  return atomic_load(&watching);
}

MothStatus moth_comm_watch(const char *host, int port, const char *token, const char *key) {
  moth_comm_unwatch();
  MOTH_TRY(moth_store_connect(host, port, token, 30, &watch.store));
  snprintf(watch.key, sizeof watch.key, "%s", key);
  atomic_store(&watching, true);
  if (moth_comm_thread(&watch.thread, "moth watch", run_watch, NULL)) {
    atomic_store(&watching, false);
    moth_store_free(watch.store);
    watch.store = NULL;
    return moth_fail(MOTH_ERR_MEMORY, "no thread could be started");
  }
  return MOTH_OK;
}

void moth_comm_unwatch(void) {
  if (!watch.store)
    return;
  moth_store_abort(watch.store);
  pthread_join(watch.thread, NULL);
  moth_store_free(watch.store);
  watch.store = NULL;
  atomic_store(&watching, false);
}

/* --- opening and closing ------------------------------------------------------------------------ */

/* At exit the other ranks hear that this one leaves, rather than that its connection broke. */
static void close_all(void) {
  for (int i = 0; i < ngroups; i++) {
    MothGroup *g = moth_group_find(i + 1);
    if (g) {
      moth_group_close(g);
      moth_group_release(g);
    }
  }
  moth_comm_unwatch();
}

static MothStatus enter(MothGroup *g) {
  pthread_mutex_lock(&groups_lock);
  static bool once;
  if (!once) {
    once = true;
    atexit(close_all);
  }
  int i = 0;
  while (i < ngroups && groups[i])
    i++;
  if (i == ngroups) {
    MothGroup **more = realloc(groups, (size_t)(ngroups + 64) * sizeof *more);
    if (more) {
      groups = more;
      memset(groups + ngroups, 0, 64 * sizeof *more);
      ngroups += 64;
    }
  }
  if (i < ngroups) {
    groups[i] = g;
    g->number = i + 1;
  }
  pthread_mutex_unlock(&groups_lock);
  return g->number ? MOTH_OK : moth_no_memory(0);
}

MothGroup *moth_group_find(int64_t number) {
  MothGroup *g = NULL;
  pthread_mutex_lock(&groups_lock);
  if (number >= 1 && number <= ngroups && (g = groups[number - 1]))
    moth_group_retain(g);
  pthread_mutex_unlock(&groups_lock);
  return g;
}

static void free_group(MothGroup *g) {
  pthread_mutex_destroy(&g->lock);
  pthread_cond_destroy(&g->changed);
  free((int *)g->ranks);
  free(g->records);
  free(g);
}

MothDevice moth_group_device(const MothGroup *g) {
  return g->device;
}
const char *moth_group_engine(const MothGroup *g) {
  return g->by;
}

void moth_group_retain(MothGroup *g) {
  atomic_fetch_add(&g->refs, 1);
}
void moth_group_release(MothGroup *g) {
  if (g && atomic_fetch_sub(&g->refs, 1) == 1)
    free_group(g);
}

MothStatus moth_group_new(const char *backend, int rank, int size, const int *ranks,
                          MothStore *store, const char *key, double timeout, MothGroup **out) {
  const MothEngine *engine = strcmp(backend, "local") == 0  ? &moth_engine_local
                             : strcmp(backend, "fake") == 0 ? &moth_engine_fake
                             : strcmp(backend, "gloo") == 0 ? &moth_engine_gloo
                             : strcmp(backend, "mpi") == 0  ? &moth_engine_mpi
                             : strcmp(backend, "tcp") == 0  ? &moth_engine_tcp
                             : strcmp(backend, "nccl") == 0 ? &moth_engine_nccl
                                                            : NULL;
  if (!engine)
    return moth_fail(MOTH_ERR_VALUE, "there is no backend '%s'", backend);
  if (size < 1 || rank < 0 || rank >= size)
    return moth_fail(MOTH_ERR_VALUE, "rank %d is none of the %d ranks, which count from 0", rank,
                     size);
  MothGroup *g = calloc(1, sizeof *g);
  if (!g)
    return moth_no_memory(sizeof *g);
  g->refs = 1;
  g->rank = rank;
  g->size = size;
  g->engine = engine;
  g->by = engine->name;
  g->timeout = timeout;
  g->tail = &g->first;
  g->last = &g->own_last;
  snprintf(g->name, sizeof g->name, "%s", key);
  moth_comm_lock(&g->lock, &g->changed);
  g->records = calloc(MOTH_COMM_RECORDS, sizeof *g->records);
  int *copy = ranks ? malloc((size_t)size * sizeof *copy) : NULL;
  if (!g->records || (ranks && !copy)) {
    free_group(g);
    return moth_no_memory(0);
  }
  if (ranks)
    memcpy(copy, ranks, (size_t)size * sizeof *copy);
  g->ranks = copy;
  MothStatus status = engine->open(g, store, key, timeout);
  if (status != MOTH_OK) {
    free_group(g);
    return status;
  }
  status = enter(g);
  if (status == MOTH_OK && moth_comm_thread(&g->thread, "moth comm", run_group, g))
    status = moth_fail(MOTH_ERR_MEMORY, "no thread could be started");
  g->has_thread = status == MOTH_OK;
  if (status != MOTH_OK) {
    moth_group_close(g);
    moth_group_release(g);
    return status;
  }
  *out = g;
  if (moth_comm_debug()) {
    char text[80];
    snprintf(text, sizeof text, "%d ranks joined, engine %s", size, g->by);
    say(g, text, "");
  }
  return MOTH_OK;
}

void moth_group_close(MothGroup *g) {
  pthread_mutex_lock(&g->lock);
  bool mine = !g->closing;
  g->closing = true;
  pthread_cond_broadcast(&g->changed);
  pthread_mutex_unlock(&g->lock);
  if (!mine)
    return;
  g->engine->wake(g);
  if (g->has_thread)
    pthread_join(g->thread, NULL);
  g->engine->close(g);
  pthread_mutex_lock(&groups_lock);
  if (g->number && groups[g->number - 1] == g)
    groups[g->number - 1] = NULL;
  pthread_mutex_unlock(&groups_lock);
  pthread_mutex_lock(&g->lock);
  g->closed = true;
  pthread_mutex_unlock(&g->lock);
  drop_done(g);
}
