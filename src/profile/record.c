/* See profile.h. */
#include "profile/profile.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

#include "autograd/node.h"
#include "comm/comm.h"
#include "core/alloc.h"
#include "core/error.h"
#include "device/cuda.h"
#include "dispatch/dispatch.h"
#include "dispatch/registry.h"
#include "profile/table.h"

int32_t (*moth_profile_here)(int frames);

enum { KNOWN = 256 };

/* A thread's part of a recording. */
typedef struct Track {
  MothProfileThread t;
  struct Track *next;
  int32_t number; /* from 0 */
  MothProfile *profile;
  int32_t open; /* the innermost event that has not ended; -1 */
  int64_t size; /* of shapes */
  /* Names that were looked up last, by their addresses. An address may be used again: the text is compared. */
  struct {
    uint64_t key;
    const char *text;
    uint32_t name;
  } known[KNOWN];
} Track;

struct MothProfile {
  MothProfileOptions o;
  uint64_t number;
  Track *tracks; /* in the order of their first events */
  Track **list;
  int ntracks;
  int64_t nchunks; /* that a track may have */
  _Atomic int64_t left;
  _Atomic int64_t lost, lost_since;
  int64_t thread;                                /* that began it */
  int64_t ticks0, ticks1, ns0, ns1, began, last; /* last: when devices were done, since ns0 */
  const MothCudaApi *cuda; /* NULL: devices are not traced; set atomically, under `lock` */
  const char *by_events;
  MothDeviceWork *work;
  int64_t nwork, work_size;
  MothNames names, places;
};

static MothProfile *current; /* guarded by `lock` where it is set; threads load it atomically */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t recordings;
/* The track of this thread in recording `number`. */
static _Thread_local struct {
  Track *track;
  uint64_t number;
} mine __attribute__((tls_model("initial-exec")));

/* --- the clock ---------------------------------------------------------------------------------------- */

static int64_t clock_ns(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Whether the processor's counter has one rate, whatever the processor does. */
static bool counter_is_steady(void) {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  return __get_cpuid(0x80000007u, &a, &b, &c, &d) && d & 1u << 8;
#else
  return false;
#endif
}

static bool by_counter;

static inline int64_t ticks(void) {
#if defined(__x86_64__)
  if (by_counter)
    return (int64_t)__rdtsc();
#endif
  return clock_ns(CLOCK_MONOTONIC);
}

/* --- tracks ------------------------------------------------------------------------------------------- */

static Track *new_track(MothProfile *p) {
  Track *t = calloc(1, sizeof *t);
  if (!t || !(t->t.chunks = calloc((size_t)p->nchunks, sizeof *t->t.chunks))) {
    free(t);
    return NULL;
  }
  t->profile = p;
  t->t.id = syscall(SYS_gettid);
  t->open = -1;
  pthread_mutex_lock(&lock);
  Track **at = &p->tracks;
  while (*at)
    at = &(*at)->next;
  *at = t;
  t->number = p->ntracks++;
  pthread_mutex_unlock(&lock);
  return t;
}

/* The track of this thread in the open recording; NULL: there is none, or no memory. */
static Track *track(void) {
  MothProfile *p = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
  if (!p)
    return NULL;
  if (__builtin_expect(mine.number != p->number, 0)) {
    mine.track = new_track(p);
    mine.number = p->number;
  }
  return mine.track;
}

static inline MothEvent *event_at(const Track *t, int64_t i) {
  return &t->t.chunks[i / MOTH_PROFILE_CHUNK][i % MOTH_PROFILE_CHUNK];
}

static MothEvent *lose(MothProfile *p) {
  if (atomic_fetch_add(&p->lost, 1) == 0)
    atomic_store(&p->lost_since, ticks());
  return NULL;
}

/* The next event of the track, opened; its time is still to be set. */
static MothEvent *next_event(Track *t, MothEventKind kind, uint32_t name) {
  int64_t i = t->t.n;
  MothProfile *p = t->profile;
  if (i % MOTH_PROFILE_CHUNK == 0 && !t->t.chunks[i / MOTH_PROFILE_CHUNK]) {
    MothEvent *chunk = NULL;
    if (i / MOTH_PROFILE_CHUNK < p->nchunks)
      chunk = malloc(sizeof *chunk * MOTH_PROFILE_CHUNK);
    if (!chunk)
      return lose(p);
    t->t.chunks[i / MOTH_PROFILE_CHUNK] = chunk;
  }
  if (atomic_fetch_sub_explicit(&p->left, 1, memory_order_relaxed) <= 0)
    return lose(p);
  MothEvent *e = event_at(t, i);
  *e = (MothEvent){
      .end = -1, .parent = t->open, .name = name, .place = -1, .shapes = -1, .kind = (uint8_t)kind};
  t->open = (int32_t)i;
  t->t.n = i + 1;
  return e;
}

/* What begin returns: the number of the recording, and that of the event. */
static inline int64_t token(const Track *t, int32_t at) {
  return (int64_t)((t->profile->number & 0xfffff) << 32) | at;
}

static inline uint32_t name_of(Track *t, const char *text, bool inplace) {
  uint64_t key = (uint64_t)(uintptr_t)text << 1 | inplace;
  uint32_t i = (uint32_t)(key * 0x9e3779b97f4a7c15u >> 56) % KNOWN;
  size_t n = strlen(text);
  if (t->known[i].key == key && strncmp(t->known[i].text, text, n) == 0 &&
      t->known[i].text[n] == (inplace ? '_' : 0))
    return t->known[i].name;
  char longer[128];
  if (inplace) {
    snprintf(longer, sizeof longer, "%s_", text);
    text = longer;
  }
  const char *own = "";
  int32_t name = moth_names_add(&t->profile->names, -1, text, 0, &own);
  if (name >= 0) {
    t->known[i].key = key;
    t->known[i].text = own;
    t->known[i].name = (uint32_t)name;
  }
  return name < 0 ? 0 : (uint32_t)name;
}

/* --- devices ------------------------------------------------------------------------------------------ */

static const MothCudaApi *start_trace(MothProfile *p) {
  const MothCudaApi *api = moth_cuda_opened();
  if (!api)
    return NULL;
  pthread_mutex_lock(&lock);
  if (!p->cuda && p == current && api->trace_start(&p->by_events) == MOTH_OK)
    __atomic_store_n(&p->cuda, api, __ATOMIC_RELEASE);
  api = p->cuda;
  pthread_mutex_unlock(&lock);
  return api;
}

/* NULL: nothing was done with CUDA yet. */
static inline const MothCudaApi *tracer(MothProfile *p) {
  const MothCudaApi *api = __atomic_load_n(&p->cuda, __ATOMIC_ACQUIRE);
  return api ? api : start_trace(p);
}

/* The CUDA device of a call, that of its arguments; -1: it has none. */
static int device_of(const MothCall *c) {
  if (c->device.type == MOTH_CUDA)
    return c->device.index;
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    uint32_t n = v.tag == MOTH_V_TENSOR ? 1 : v.tag == MOTH_V_TENSORS ? v.n : 0;
    for (uint32_t k = 0; k < n; k++) {
      MothDevice d = (v.tag == MOTH_V_TENSOR ? v.u.t : v.u.tensors[k])->device;
      if (d.type == MOTH_CUDA)
        return d.index;
    }
    if (v.tag == MOTH_V_DEVICE && v.u.i >> 8 == MOTH_CUDA)
      return (uint8_t)v.u.i;
  }
  return -1;
}

static int64_t device_live(const MothCudaApi *api, int device) {
  MothCudaMemory m;
  api->memory(device, &m);
  return m.allocated.current;
}

static uint64_t trace_id(const Track *t, int32_t at) {
  return ((uint64_t)t->number << 32 | (uint32_t)at) + 1;
}

/* MothEvent.traced: bit 0, the device's work is asked for; above it the number of the device whose memory is counted + 1.
 * Of ranges no work: coroutines may end them in another order. */
static void trace(Track *t, MothEvent *e, const MothCall *c) {
  const MothCudaApi *api = tracer(t->profile);
  if (!api)
    return;
  bool asks =
      e->kind == MOTH_EVENT_OP || e->kind == MOTH_EVENT_NODE || e->kind == MOTH_EVENT_COMPILED;
  int device = c ? device_of(c) : e->kind == MOTH_EVENT_COMPILED ? api->current() : -1;
  e->traced = asks;
  if (t->profile->o.memory) {
    int counted = device >= 0 ? device : api->current();
    e->traced |= (uint8_t)((counted + 1) << 1);
    e->device_bytes = -device_live(api, counted);
  }
  if (asks)
    api->trace_begin(trace_id(t, t->open), device);
}

static void untrace(Track *t, MothEvent *e, int32_t at) {
  const MothCudaApi *api = t->profile->cuda;
  if (e->traced & 1)
    api->trace_end(trace_id(t, at), t->t.n == at + 1 && e->kind != MOTH_EVENT_NODE);
  if (e->traced >> 1)
    e->device_bytes += device_live(api, (e->traced >> 1) - 1);
}

static int by_time(const void *a, const void *b) {
  const MothDeviceWork *x = a, *y = b;
  if (x->device != y->device)
    return x->device < y->device ? -1 : 1;
  if (x->stream != y->stream)
    return x->stream < y->stream ? -1 : 1;
  return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1)
                              : (x->end < y->end) - (x->end > y->end);
}

static void seen(void *ctx, const MothCudaWork *w) {
  MothProfile *p = ctx;
  if (p->nwork == p->work_size) {
    int64_t size = p->work_size ? 2 * p->work_size : 1024;
    MothDeviceWork *bigger = realloc(p->work, sizeof *bigger * (size_t)size);
    if (!bigger)
      return;
    p->work = bigger;
    p->work_size = size;
  }
  int64_t begin = w->begin - p->ns0, end = w->end - p->ns0;
  if (begin < 0)
    return;
  uint64_t id = w->id - 1;
  p->work[p->nwork++] =
      (MothDeviceWork){.begin = begin,
                       .end = end,
                       .bytes = w->bytes,
                       .stream = w->stream,
                       .name = w->name ? moth_names_add(&p->names, -1, w->name, 0, NULL) : -1,
                       .thread = w->id ? (int32_t)(id >> 32) : -1,
                       .event = w->id ? (int32_t)(uint32_t)id : -1,
                       .kind = w->kind,
                       .device = (uint8_t)w->device};
  p->last = end > p->last ? end : p->last;
}

static void stop_trace(MothProfile *p) {
  if (!p->cuda)
    return;
  p->cuda->trace_stop(seen, p);
  if (p->nwork)
    qsort(p->work, (size_t)p->nwork, sizeof *p->work, by_time);
}

/* The track that the event of a token is in; NULL: its recording has ended. */
static Track *track_of(int64_t token) {
  const MothProfile *p = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
  return p && mine.track && mine.number == p->number && token >= 0 &&
                 (uint64_t)token >> 32 == (p->number & 0xfffff)
             ? mine.track
             : NULL;
}

static void end_event(Track *t, int32_t at) {
  MothEvent *e = event_at(t, at);
  e->end = ticks();
  if (t->profile->o.memory)
    e->bytes += moth_alloc_live();
  if (__builtin_expect(e->traced, 0))
    untrace(t, e, at);
  /* Ranges of coroutines need not nest: only where it encloses the innermost one, that has ended, too. */
  for (int32_t i = t->open; i >= at; i = event_at(t, i)->parent)
    if (i == at) {
      t->open = e->parent;
      return;
    }
}

static bool in_call(const Track *t) {
  if (t->open < 0)
    return false;
  uint8_t kind = event_at(t, t->open)->kind;
  return kind == MOTH_EVENT_OP || kind == MOTH_EVENT_NODE;
}

/* --- what is seen ------------------------------------------------------------------------------------- */

/* Notes the tensors among n values; returns where, or -1. */
static int32_t add_shapes(Track *t, const MothValue *values, int n) {
  int64_t ntensors = 0;
  for (int i = 0; i < n; i++)
    ntensors += values[i].tag == MOTH_V_TENSOR    ? 1
                : values[i].tag == MOTH_V_TENSORS ? (int64_t)values[i].n
                                                  : 0;
  int64_t need = 1 + (2 + MOTH_MAX_DIMS) * ntensors, at = t->t.nshapes;
  if (at + need > t->size) {
    int64_t size = 2 * t->size + need + 1024;
    int64_t *bigger = realloc(t->t.shapes, sizeof *bigger * (size_t)size);
    if (!bigger)
      return -1;
    t->t.shapes = bigger;
    t->size = size;
  }
  if (at > INT32_MAX)
    return -1;
  int64_t *out = t->t.shapes + at;
  *out++ = ntensors;
  for (int i = 0; i < n; i++) {
    const MothValue *v = &values[i];
    uint32_t count = v->tag == MOTH_V_TENSOR ? 1 : v->tag == MOTH_V_TENSORS ? v->n : 0;
    for (uint32_t k = 0; k < count; k++) {
      const MothTensor *x = v->tag == MOTH_V_TENSOR ? v->u.t : v->u.tensors[k];
      *out++ = x->dtype;
      *out++ = x->ndim;
      for (int d = 0; d < x->ndim; d++)
        *out++ = x->shape[d];
    }
  }
  t->t.nshapes = out - t->t.shapes;
  return (int32_t)at;
}

static int64_t begin(MothEventKind kind, const char *name, bool inplace, const MothCall *c,
                     uint64_t seq) {
  Track *t = track();
  if (!t)
    return -1;
  const MothProfileOptions *o = &t->profile->o;
  bool inner = in_call(t);
  MothEvent *e = next_event(t, kind, name_of(t, name, inplace));
  if (!e)
    return -1;
  int64_t at = token(t, t->open);
  e->seq = seq;
  if (c && o->shapes)
    e->shapes = add_shapes(t, c->args, c->op->nargs);
  if (o->frames && !inner && kind != MOTH_EVENT_NODE && moth_profile_here)
    e->place = moth_profile_here(o->frames);
  if (o->memory)
    e->bytes = -moth_alloc_live();
  if (o->device)
    trace(t, e, c);
  e->begin = ticks();
  return at;
}

static int64_t begin_call(const MothCall *c) {
  return begin(MOTH_EVENT_OP, c->op->name, c->variant == MOTH_INPLACE && !c->op->returns_self, c,
               0);
}

static void end_call(int64_t at, const MothCall *c, MothStatus s) {
  Track *t = track_of(at);
  if (!t)
    return;
  end_event(t, (int32_t)at);
  MothEvent *e = event_at(t, (int32_t)at);
  e->failed = s != MOTH_OK;
  e->device = c->device.type;
  /* Not of calls that moth.compile has only noted. */
  if (s == MOTH_OK && t->profile->o.shapes &&
      !(c->op->nresults && c->results[0].tag == MOTH_V_TENSOR &&
        c->results[0].u.t->keys & MOTH_KEY_LAZY))
    e->results = add_shapes(t, c->results, c->op->nresults);
  if (s == MOTH_OK && c->op->nresults && c->results[0].tag == MOTH_V_TENSOR) {
    const MothTensor *r = c->results[0].u.t;
    if (r && r->grad && r->grad->node)
      e->seq = r->grad->node->seq;
  }
}

static int64_t begin_node(const MothNode *n) {
  return begin(MOTH_EVENT_NODE, n->name, false, NULL, n->seq == MOTH_SEQ_LEAF ? 0 : n->seq);
}

static int64_t begin_compiled(const char *name) {
  return moth_profile_begin(MOTH_EVENT_COMPILED, name);
}

static int64_t begin_collective(const char *op) {
  return moth_profile_begin(MOTH_EVENT_COLLECTIVE, op);
}

static const MothCommObserver collectives = {begin_collective, moth_profile_end};
static const MothObserver observer = {begin_call, end_call, begin_node, begin_compiled,
                                      moth_profile_end};

int64_t moth_profile_begin(MothEventKind kind, const char *name) {
  return begin(kind, name, false, NULL, 0);
}

void moth_profile_end(int64_t at) {
  Track *t = track_of(at);
  if (t)
    end_event(t, (int32_t)at);
}

int32_t moth_profile_intern(int32_t caller, const char *source, int32_t line) {
  MothProfile *p = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
  return p ? moth_names_add(&p->places, caller, source, line, NULL) : -1;
}

/* --- beginning and end -------------------------------------------------------------------------------- */

bool moth_profile_running(void) {
  return __atomic_load_n(&current, __ATOMIC_ACQUIRE) != NULL;
}

MothStatus moth_profile_start(const MothProfileOptions *o) {
  MothProfile *p = calloc(1, sizeof *p);
  if (!p)
    return moth_fail(MOTH_ERR_MEMORY, "profiler: out of memory");
  moth_names_init(&p->names);
  moth_names_init(&p->places);
  p->o = *o;
  if (p->o.max_events <= 0)
    p->o.max_events = 1000000;
  p->left = p->o.max_events;
  p->nchunks = p->o.max_events / MOTH_PROFILE_CHUNK + 1;
  pthread_mutex_lock(&lock);
  bool free_now = !current;
  if (free_now) {
    by_counter = counter_is_steady();
    p->number = ++recordings;
    p->thread = syscall(SYS_gettid);
    p->began = clock_ns(CLOCK_REALTIME);
    p->ns0 = clock_ns(CLOCK_MONOTONIC);
    p->ticks0 = ticks();
    __atomic_store_n(&current, p, __ATOMIC_RELEASE);
    __atomic_store_n(&moth_observer, &observer, __ATOMIC_RELEASE);
    __atomic_store_n(&moth_comm_observer, &collectives, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&lock);
  if (free_now)
    return MOTH_OK;
  moth_names_free(&p->names);
  moth_names_free(&p->places);
  free(p);
  return moth_fail(MOTH_ERR_STATE, "profiler: a recording is open; stop it first");
}

/* Ticks become ns since the beginning. */
static void convert(MothProfile *p) {
  double rate =
      p->ticks1 > p->ticks0 ? (double)(p->ns1 - p->ns0) / (double)(p->ticks1 - p->ticks0) : 1;
  for (Track *t = p->tracks; t; t = t->next) {
    t->t.n = p->o.max_events < t->t.n ? p->o.max_events : t->t.n;
    for (int64_t i = 0; i < t->t.n; i++) {
      MothEvent *e = event_at(t, i);
      bool open = e->end < 0;
      e->begin = (int64_t)((double)(e->begin - p->ticks0) * rate);
      e->end = open ? -1 : (int64_t)((double)(e->end - p->ticks0) * rate);
      e->bytes = open ? 0 : e->bytes - e->device_bytes; /* of the host */
      e->device_bytes = open ? 0 : e->device_bytes;
    }
  }
  if (p->lost)
    p->lost_since = (int64_t)((double)(p->lost_since - p->ticks0) * rate);
}

MothProfile *moth_profile_stop(void) {
  pthread_mutex_lock(&lock);
  MothProfile *p = current;
  if (p) {
    __atomic_store_n(&moth_observer, NULL, __ATOMIC_RELEASE);
    __atomic_store_n(&moth_comm_observer, NULL, __ATOMIC_RELEASE);
    __atomic_store_n(&current, NULL, __ATOMIC_RELEASE);
    p->ticks1 = ticks();
    p->ns1 = clock_ns(CLOCK_MONOTONIC);
  }
  pthread_mutex_unlock(&lock);
  if (!p)
    return NULL;
  p->list = calloc((size_t)p->ntracks + 1, sizeof *p->list);
  int n = 0;
  for (Track *t = p->tracks; t && p->list; t = t->next)
    p->list[n++] = t;
  p->ntracks = n;
  stop_trace(p);
  convert(p);
  return p;
}

void moth_profile_free(MothProfile *p) {
  if (!p)
    return;
  for (Track *t = p->tracks, *next; t; t = next) {
    next = t->next;
    for (int64_t i = 0; i < p->nchunks; i++)
      free(t->t.chunks[i]);
    free(t->t.chunks);
    free(t->t.shapes);
    free(t);
  }
  moth_names_free(&p->names);
  moth_names_free(&p->places);
  free(p->work);
  free(p->list);
  free(p);
}

/* --- reading ------------------------------------------------------------------------------------------ */

int moth_profile_threads(const MothProfile *p) {
  return p->ntracks;
}

const MothProfileThread *moth_profile_thread(const MothProfile *p, int i) {
  return &p->list[i]->t;
}

uint32_t moth_profile_names(const MothProfile *p) {
  return p->names.n;
}

const char *moth_profile_name_at(const MothProfile *p, uint32_t name) {
  return p->names.list[name].text;
}

int32_t moth_profile_places(const MothProfile *p) {
  return (int32_t)p->places.n;
}

MothPlace moth_profile_place_at(const MothProfile *p, int32_t place) {
  const MothName *n = &p->places.list[place];
  return (MothPlace){n->text, n->line, n->outer};
}

int64_t moth_profile_duration(const MothProfile *p) {
  return p->ns1 - p->ns0 > p->last ? p->ns1 - p->ns0 : p->last;
}

int64_t moth_profile_lost(const MothProfile *p, int64_t *since) {
  *since = p->lost ? p->lost_since : -1;
  return p->lost;
}

int64_t moth_profile_starter(const MothProfile *p) {
  return p->thread;
}

int64_t moth_profile_began(const MothProfile *p) {
  return p->began;
}

const MothDeviceWork *moth_profile_work(const MothProfile *p, int64_t *n) {
  *n = p->nwork;
  return p->work;
}

bool moth_profile_next(const MothProfile *p, MothWorkWalk *walk) {
  if (walk->at >= p->nwork)
    return false;
  const MothDeviceWork *last = walk->work, *w = &p->work[walk->at++];
  walk->work = w;
  walk->new_device = !last || last->device != w->device;
  walk->new_stream = walk->new_device || last->stream != w->stream;
  if (walk->new_stream) {
    walk->stream = walk->new_device ? 1 : walk->stream + 1;
    walk->end = 0;
  }
  walk->begin = w->begin > walk->end ? w->begin : walk->end;
  walk->end = w->end > walk->begin ? w->end : walk->begin;
  return true;
}

bool moth_profile_device(const MothProfile *p, const char **by_events) {
  *by_events = p->by_events;
  return p->cuda != NULL;
}
