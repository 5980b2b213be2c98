/* Streams of the CPU. See stream.h.
 *
 * One lock guards all queues: tasks run for microseconds at least, and an event may connect any two queues. A thread
 * starts with the first task and ends when the stream is released and nothing is queued. A child of fork has no such
 * threads: tasks that its parent had queued fail there, and new work starts new threads. At exit tasks that have not
 * begun are dropped, and running ones are waited for (at most EXIT_SECONDS). */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/parallel.h"
#include "device/stream.h"

enum { EXIT_SECONDS = 3, POLL_NS = 5000000 };

struct MothTicket {
  _Atomic int refs;
  const void *stream; /* only compared */
  bool done;
  MothStatus status;
  char *message; /* of an error */
  int64_t at;    /* ns, when it was done */
};

typedef struct Task {
  struct Task *next;
  MothTicket *ticket;
  MothTicket *after; /* of a task that only waits: for this */
  MothStatus (*run)(void *ctx);
  void (*drop)(void *ctx);
  void *ctx;
  int num_threads;
} Task;

typedef struct Queue {
  MothStream head;
  struct Queue *next; /* in the list of all queues */
  int refs;           /* under the lock, as all of this */
  bool thread;        /* it has one */
  Task *first, **last;
  Task *running;
  MothStatus failed; /* until synchronize raises it */
  char *message;
  pthread_cond_t work;
} Queue;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t done; /* signalled when a ticket is done */
static Queue *queues;
static int nrunning; /* tasks */
static bool quitting;

static MothStream default_stream = {{MOTH_CPU, 0}, 0};
static _Thread_local MothStream *current; /* retained; NULL: the default one */
void (*moth_cpu_stream_changed)(bool queued);

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static MothStatus no_memory(void) {
  return moth_fail(MOTH_ERR_MEMORY, "out of memory: the work cannot be queued");
}
/* Waits for `done`, for at most so many ns. */
static void wait_done_for(int64_t ns) {
  int64_t until = now_ns() + ns;
  struct timespec t = {until / 1000000000, until % 1000000000};
  pthread_cond_timedwait(&done, &lock, &t);
}

/* --- tickets ------------------------------------------------------------------------------------- */

static MothTicket *ticket_new(const void *stream) {
  MothTicket *t = calloc(1, sizeof *t);
  if (t) {
    t->refs = 1;
    t->stream = stream;
  }
  return t;
}
void moth_ticket_retain(MothTicket *t) {
  t->refs++;
}
void moth_ticket_release(MothTicket *t) {
  if (!t || --t->refs > 0)
    return;
  free(t->message);
  free(t);
}
bool moth_ticket_done(const MothTicket *t) {
  pthread_mutex_lock(&lock);
  bool is = t->done;
  pthread_mutex_unlock(&lock);
  return is;
}

/* Under the lock. */
static void finish(MothTicket *t, MothStatus status, const char *message) {
  t->status = status;
  t->message = status != MOTH_OK && message ? strdup(message) : NULL;
  t->at = now_ns();
  t->done = true;
}
static MothStatus raise_error(MothStatus status, const char *message) {
  return moth_fail(status, "in queued work: %s", message ? message : "out of memory");
}

/* Under the lock; false: interrupted. */
static bool wait_more(const volatile sig_atomic_t *flag) {
  if (!flag)
    pthread_cond_wait(&done, &lock);
  else if (*flag)
    return false;
  else
    wait_done_for(POLL_NS);
  return true;
}

MothStatus moth_ticket_wait(MothTicket *t) {
  const volatile sig_atomic_t *flag = moth_interrupt_flag();
  bool go_on = true;
  pthread_mutex_lock(&lock);
  while (!t->done && go_on)
    go_on = wait_more(flag);
  MothStatus s = t->status;
  pthread_mutex_unlock(&lock);
  return !go_on ? moth_interrupted() : s == MOTH_OK ? MOTH_OK : raise_error(s, t->message);
}

/* --- tasks --------------------------------------------------------------------------------------- */

static void task_free(Task *t) {
  if (t->drop)
    t->drop(t->ctx);
  moth_ticket_release(t->after);
  moth_ticket_release(t->ticket);
  free(t);
}

static void set_failed(Queue *q, MothStatus s, const char *message) {
  q->failed = s;
  free(q->message);
  q->message = message ? strdup(message) : NULL;
}

/* Called under the lock, which is released while the task runs. */
static void run_task(Queue *q, Task *t) {
  q->running = t;
  nrunning++;
  while (t->after && !t->after->done && !quitting)
    pthread_cond_wait(&done, &lock);
  if (t->after && t->after->done && t->after->status != MOTH_OK && q->failed == MOTH_OK)
    set_failed(q, t->after->status, t->after->message);
  bool skip = q->failed != MOTH_OK;
  pthread_mutex_unlock(&lock);
  MothStatus s = MOTH_OK;
  char *message = NULL;
  if (t->run && !skip) {
    moth_set_num_threads(t->num_threads);
    s = t->run(t->ctx);
    message = s == MOTH_OK ? NULL : strdup(moth_last_error());
  }
  if (t->drop) /* before others are woken: they find the memory free */
    t->drop(t->ctx);
  t->drop = NULL;
  pthread_mutex_lock(&lock);
  if (s != MOTH_OK)
    set_failed(q, s, message);
  free(message);
  finish(t->ticket, q->failed, q->message);
  q->running = NULL;
  nrunning--;
  pthread_cond_broadcast(&done);
  task_free(t);
}

static void queue_free(Queue *q) {
  Queue **at = &queues;
  while (*at != q)
    at = &(*at)->next;
  *at = q->next;
  pthread_cond_destroy(&q->work);
  free(q->message);
  free(q);
}

static void *work(void *p) {
  Queue *q = p;
  pthread_mutex_lock(&lock);
  for (;;) {
    while (!q->first && q->refs > 0 && !quitting)
      pthread_cond_wait(&q->work, &lock);
    Task *t = q->first;
    if (!t || quitting)
      break;
    q->first = t->next;
    if (!q->first)
      q->last = &q->first;
    run_task(q, t);
  }
  q->thread = false;
  if (q->refs == 0 && !quitting)
    queue_free(q);
  pthread_mutex_unlock(&lock);
  return NULL;
}

static MothStatus start(Queue *q) {
  pthread_attr_t attr;
  pthread_t thread;
  sigset_t all, before;
  sigfillset(&all);
  pthread_attr_init(&attr);
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* signals go to the host's threads */
  int e = pthread_create(&thread, &attr, work, q);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attr);
  q->thread = e == 0;
  return e ? moth_fail(MOTH_ERR_STATE, "a thread for a CPU stream cannot be started: %s",
                       strerror(e))
           : MOTH_OK;
}

/* From here on the queue owns the task. */
static MothStatus put(Queue *q, Task *t) {
  MothStatus s = MOTH_OK;
  pthread_mutex_lock(&lock);
  if (quitting)
    s = moth_fail(MOTH_ERR_STATE, "the process is exiting: nothing can be queued");
  else if (!q->thread)
    s = start(q);
  if (s == MOTH_OK) {
    *q->last = t;
    q->last = &t->next;
    pthread_cond_signal(&q->work);
  }
  pthread_mutex_unlock(&lock);
  if (s != MOTH_OK) {
    t->drop = NULL; /* the caller keeps ctx */
    task_free(t);
  }
  return s;
}

static Task *task_new(Queue *q) {
  Task *t = calloc(1, sizeof *t);
  if (!t || !(t->ticket = ticket_new(q))) {
    free(t);
    return NULL;
  }
  t->num_threads = moth_num_threads();
  return t;
}

MothStatus moth_cpu_submit(MothStream *s, MothStatus (*run)(void *ctx), void (*drop)(void *ctx),
                           void *ctx, MothTicket **ticket) {
  if (s == &default_stream) {
    MothTicket *t = ticket ? ticket_new(s) : NULL;
    if (ticket && !t)
      return no_memory();
    MothStatus status = run(ctx);
    if (status != MOTH_OK) {
      moth_ticket_release(t);
      return status;
    }
    if (t)
      finish(*ticket = t, MOTH_OK, NULL);
    if (drop)
      drop(ctx);
    return MOTH_OK;
  }
  Queue *q = (Queue *)s;
  Task *t = task_new(q);
  if (!t)
    return no_memory();
  t->run = run;
  t->drop = drop;
  t->ctx = ctx;
  MothTicket *mine = t->ticket;
  moth_ticket_retain(mine);
  MothStatus status = put(q, t);
  if (status == MOTH_OK && ticket)
    *ticket = mine;
  else
    moth_ticket_release(mine);
  return status;
}

/* --- streams ------------------------------------------------------------------------------------- */

static MothStatus create(int index, int priority, MothStream **out) {
  Queue *q = calloc(1, sizeof *q);
  if (!q)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: no stream can be made");
  q->head.device = (MothDevice){MOTH_CPU, (uint8_t)index};
  q->head.priority = priority < 0 ? -1 : 0;
  q->refs = 1;
  q->last = &q->first;
  pthread_cond_init(&q->work, NULL);
  pthread_mutex_lock(&lock);
  q->next = queues;
  queues = q;
  pthread_mutex_unlock(&lock);
  *out = &q->head;
  return MOTH_OK;
}
static void retain(MothStream *s) {
  if (s == &default_stream)
    return;
  pthread_mutex_lock(&lock);
  ((Queue *)s)->refs++;
  pthread_mutex_unlock(&lock);
}
static void release(MothStream *s) {
  Queue *q = (Queue *)s;
  if (s == &default_stream)
    return;
  pthread_mutex_lock(&lock);
  if (--q->refs == 0) {
    if (q->thread)
      pthread_cond_signal(&q->work); /* the thread ends when the queue is empty, and frees it */
    else if (!quitting)
      queue_free(q);
  }
  pthread_mutex_unlock(&lock);
}
static MothStream *first(int index) {
  (void)index;
  return &default_stream;
}
MothStream *moth_cpu_stream_now(void) {
  return current;
}
static MothStream *current_of(int index) {
  (void)index;
  return current ? current : &default_stream;
}
static void set(MothStream *s) {
  MothStream *before = current;
  current = s == &default_stream ? NULL : s;
  if (current)
    retain(current);
  if (before)
    release(before);
  if (moth_cpu_stream_changed)
    moth_cpu_stream_changed(current != NULL);
}
static void *handle(const MothStream *s) {
  return (void *)(uintptr_t)s;
}

/* Takes the error of a queue. Under the lock. */
static MothStatus take_failed(Queue *q) {
  MothStatus s = q->failed;
  if (s != MOTH_OK)
    raise_error(s, q->message);
  set_failed(q, MOTH_OK, NULL);
  return s;
}
static bool is_idle(const Queue *q) {
  return !q->first && !q->running;
}
static MothStatus synchronize(MothStream *s) {
  Queue *q = (Queue *)s;
  if (s == &default_stream)
    return MOTH_OK;
  const volatile sig_atomic_t *flag = moth_interrupt_flag();
  bool go_on = true;
  pthread_mutex_lock(&lock);
  while (!is_idle(q) && go_on)
    go_on = wait_more(flag);
  MothStatus status = go_on ? take_failed(q) : MOTH_OK;
  pthread_mutex_unlock(&lock);
  return go_on ? status : moth_interrupted();
}
static MothStatus synchronize_all(int index) {
  (void)index;
  const volatile sig_atomic_t *flag = moth_interrupt_flag();
  MothStatus status = MOTH_OK;
  bool go_on = true, idle = false;
  pthread_mutex_lock(&lock);
  while (!idle && go_on) {
    idle = true;
    for (Queue *q = queues; q; q = q->next)
      idle = idle && is_idle(q);
    if (!idle)
      go_on = wait_more(flag);
  }
  for (Queue *q = queues; q && go_on && status == MOTH_OK; q = q->next)
    status = take_failed(q);
  pthread_mutex_unlock(&lock);
  return go_on ? status : moth_interrupted();
}
static MothStatus query(MothStream *s, bool *is) {
  pthread_mutex_lock(&lock);
  *is = s == &default_stream || is_idle((Queue *)s);
  pthread_mutex_unlock(&lock);
  return MOTH_OK;
}

/* --- events, order ------------------------------------------------------------------------------- */

MothStatus moth_cpu_wait_for(MothStream *s, MothTicket *ticket) {
  if (s == &default_stream)
    return moth_ticket_wait(ticket);
  if (ticket->stream == s)
    return MOTH_OK;
  Task *t = task_new((Queue *)s);
  if (!t)
    return no_memory();
  t->after = ticket;
  moth_ticket_retain(ticket);
  return put((Queue *)s, t);
}
/* A mark behind all that s holds. */
static MothStatus mark(MothStream *s, MothTicket **out) {
  if (s == &default_stream) {
    if (!(*out = ticket_new(s)))
      return no_memory();
    finish(*out, MOTH_OK, NULL);
    return MOTH_OK;
  }
  return moth_cpu_submit(s, NULL, NULL, NULL, out);
}
static MothStatus order(MothStream *earlier, MothStream *later) {
  MothTicket *t;
  if (earlier == later || earlier == &default_stream)
    return MOTH_OK;
  MOTH_TRY(mark(earlier, &t));
  MothStatus s = moth_cpu_wait_for(later, t);
  moth_ticket_release(t);
  return s;
}
static MothStatus record_stream(MothTensor *t, MothStream *s) {
  (void)t; /* tasks retain the tensors that they use */
  (void)s;
  return MOTH_OK;
}

static MothStatus event_record(void **state, bool timing, MothStream *s) {
  (void)timing;
  MothTicket *t;
  MOTH_TRY(mark(s, &t));
  moth_ticket_release(*state);
  *state = t;
  return MOTH_OK;
}
static void event_free(void *state) {
  moth_ticket_release(state);
}
static MothStatus event_wait(void *state, MothStream *s) {
  return moth_cpu_wait_for(s, state);
}
static MothStatus event_query(void *state, bool *is) {
  *is = moth_ticket_done(state);
  return MOTH_OK;
}
static MothStatus event_synchronize(void *state) {
  return moth_ticket_wait(state);
}
static MothStatus event_elapsed(void *from, void *to, double *ms) {
  const MothTicket *a = from, *b = to;
  pthread_mutex_lock(&lock);
  bool both = a->done && b->done;
  *ms = both ? (double)(b->at - a->at) / 1e6 : 0;
  pthread_mutex_unlock(&lock);
  return both ? MOTH_OK
              : moth_fail(MOTH_ERR_STATE,
                          "elapsed_time: the stream has not come to both events yet; "
                          "call synchronize() on the later one");
}

const MothStreamOps moth_cpu_streams = {
    .create = create,
    .retain = retain,
    .release = release,
    .first = first,
    .current = current_of,
    .set = set,
    .handle = handle,
    .synchronize = synchronize,
    .synchronize_all = synchronize_all,
    .query = query,
    .order = order,
    .record_stream = record_stream,
    .event_record = event_record,
    .event_free = event_free,
    .event_wait = event_wait,
    .event_query = event_query,
    .event_synchronize = event_synchronize,
    .event_elapsed = event_elapsed,
};

/* --- pending tensors ------------------------------------------------------------------------------ */

void moth_tensor_set_pending(MothTensor *t, MothTicket *ticket) {
  moth_ticket_retain(ticket);
  pthread_mutex_lock(&lock);
  MothTicket *before = t->storage->pending;
  t->storage->pending = ticket;
  pthread_mutex_unlock(&lock);
  t->keys |= MOTH_KEY_PENDING;
  moth_ticket_release(before);
}
MothTicket *moth_tensor_ticket(MothTensor *t) {
  pthread_mutex_lock(&lock);
  MothTicket *ticket = t->storage->pending;
  if (ticket)
    moth_ticket_retain(ticket);
  pthread_mutex_unlock(&lock);
  return ticket;
}

static MothStatus await(MothTensor *t) {
  MothTicket *ticket = moth_tensor_ticket(t);
  if (ticket) {
    MothStatus s = moth_ticket_wait(ticket);
    pthread_mutex_lock(&lock);
    bool clear = s == MOTH_OK && t->storage->pending == ticket;
    if (clear)
      t->storage->pending = NULL;
    pthread_mutex_unlock(&lock);
    if (clear)
      moth_ticket_release(ticket);
    moth_ticket_release(ticket);
    MOTH_TRY(s);
  }
  t->keys &= ~(uint32_t)MOTH_KEY_PENDING;
  return MOTH_OK;
}
static void drain(void) {
  pthread_mutex_lock(&lock);
  for (Queue *q = queues; q;)
    if (is_idle(q)) {
      q = q->next;
    } else {
      pthread_cond_wait(&done, &lock);
      q = queues; /* the list may have changed */
    }
  pthread_mutex_unlock(&lock);
}
static void drop_pending(void *ticket) {
  moth_ticket_release(ticket);
}

/* --- fork, exit ------------------------------------------------------------------------------------ */

static void before_fork(void) {
  pthread_mutex_lock(&lock);
}
static void after_fork_parent(void) {
  pthread_mutex_unlock(&lock);
}
static void init_done(void) {
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&done, &attr);
  pthread_condattr_destroy(&attr);
}
/* Tasks are not freed: their memory belongs to threads that the child does not have. */
static void after_fork_child(void) {
  static const char lost[] = "it was queued before fork, and runs in the parent process only";
  for (Queue *q = queues; q; q = q->next) {
    if (q->running && !q->running->ticket->done)
      finish(q->running->ticket, MOTH_ERR_STATE, lost);
    for (Task *t = q->first; t; t = t->next)
      finish(t->ticket, MOTH_ERR_STATE, lost);
    if (q->first || q->running)
      set_failed(q, MOTH_ERR_STATE, lost);
    q->first = q->running = NULL;
    q->last = &q->first;
    q->thread = false;
    pthread_cond_init(&q->work, NULL);
  }
  nrunning = 0;
  init_done();
  pthread_mutex_unlock(&lock);
}

static void at_exit(void) {
  pthread_mutex_lock(&lock);
  quitting = true;
  for (Queue *q = queues; q; q = q->next) {
    for (Task *t = q->first; t; t = t->next)
      finish(t->ticket, MOTH_ERR_STATE, "the process is exiting");
    q->first = NULL;
    q->last = &q->first;
    pthread_cond_signal(&q->work);
  }
  pthread_cond_broadcast(&done);
  int64_t until = now_ns() + EXIT_SECONDS * (int64_t)1000000000;
  while (nrunning > 0 && now_ns() < until)
    wait_done_for(50000000);
  pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void queue_init(void) {
  init_done();
  pthread_atfork(before_fork, after_fork_parent, after_fork_child);
  moth_tensor_await = await;
  moth_pending_drop = drop_pending;
  moth_pending_drain = drain;
  atexit(at_exit);
}
