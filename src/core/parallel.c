#include "core/parallel.h"

#include <malloc.h>
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "core/defaults.h"
#include "core/environment.h"
#include "core/error.h"

enum { MAX_THREADS = 1024 };
#define FEW (INT64_C(4) << 30) /* bytes of addresses */

_Thread_local const volatile sig_atomic_t *moth_stop __attribute__((tls_model("initial-exec")));

static int at_start;

/* After fork the child does not have the threads of OpenMP's team, and libgomp would wait for them for ever; it drops
 * a team only when the thread that started it ends. So the child's first thread runs loops alone; threads that the
 * child starts get teams of their own. */
static _Thread_local bool has_team, lost_team;
static void after_fork(void) {
  lost_team = lost_team || has_team;
}

__attribute__((constructor)) static void threads_init(void) {
  pthread_atfork(NULL, NULL, after_fork);
  if (moth_addresses_left() < FEW)
    mallopt(M_ARENA_MAX, 1); /* else malloc sets 64 MB aside for each thread */
  int machine = (int)sysconf(_SC_NPROCESSORS_ONLN);
  const char *openmp = getenv("OMP_NUM_THREADS"); /* "4" or, for levels, "4,2": libgomp checks it */
  int n = openmp ? atoi(openmp) : machine;
  n = n < 1 ? 1 : n < MAX_THREADS ? n : MAX_THREADS;
  at_start = (int)moth_env_integer("MOTH_NUM_THREADS", 1, MAX_THREADS, n);
}

int moth_num_threads_at_start(void) {
  return at_start;
}

int moth_num_threads(void) {
  return lost_team ? 1 : moth_defaults()->num_threads;
}

MothStatus moth_set_num_threads(int n) {
  if (n < 1 || n > MAX_THREADS)
    return moth_fail(MOTH_ERR_VALUE, "set_num_threads: expected 1 to %d, got %d", MAX_THREADS, n);
  moth_defaults()->num_threads = n;
  return MOTH_OK;
}

const volatile sig_atomic_t *moth_interrupt_flag(void) {
  return moth_defaults()->interrupt;
}

MothStatus moth_interrupted(void) {
  return moth_fail(MOTH_ERR_INTERRUPTED, "interrupted");
}

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Runs a range in parts of some 10 ms and checks the flag before each. Ranges of less than PARTS grains, of some 10
 * us each, are not split, as each part costs a start; with `fine` the first part is a grain. */
static void run(MothRange fn, void *ctx, int64_t begin, int64_t end, int64_t grain, bool fine) {
  enum { PARTS = 64, SHORT = 5000000, LONG = 15000000 };
  int64_t grains = (end - begin) / grain;
  if (__builtin_expect(!moth_stop, 1)) {
    fn(ctx, begin, end);
    return;
  }
  bool whole = !fine && grains < PARTS;
  int64_t part = whole ? end - begin : fine ? grain : grains / PARTS * grain;
  int64_t before = whole ? 0 : now_ns();
  while (begin < end && !moth_stopped()) {
    int64_t to = end - begin > part ? begin + part : end;
    fn(ctx, begin, to);
    begin = to;
    if (begin == end)
      return;
    int64_t now = now_ns();
    if (now - before < SHORT)
      part *= 2;
    else if (now - before > LONG && part > grain)
      part = part / grain / 2 * grain;
    before = now;
  }
}

/* libgomp ends the process where it cannot start a thread: for want of addresses (ulimit -v), or by a limit of threads
 * (ulimit -u, a container's). So as many are tried first, once for each size of a thread's team. */
typedef struct Trial {
  pthread_mutex_t lock;
  pthread_cond_t over;
  bool done;
} Trial;

static void *wait_for_end(void *trial) {
  Trial *t = trial;
  pthread_mutex_lock(&t->lock);
  while (!t->done)
    pthread_cond_wait(&t->over, &t->lock);
  pthread_mutex_unlock(&t->lock);
  return NULL;
}

static _Thread_local int team = 1; /* threads that this thread's loops can have */

/* How many of n threads there can be, this one among them. With fewer than n the program's number is lowered. Where
 * addresses are few, stacks get a quarter of them. */
static int tried(int n) {
  pthread_attr_t usual;
  size_t stack = 0;
  int64_t left = moth_addresses_left();
  int wanted = n;
  if (left < INT64_MAX && pthread_getattr_default_np(&usual) == 0) {
    pthread_attr_getstacksize(&usual, &stack);
    pthread_attr_destroy(&usual);
    int64_t most = stack ? left / 4 / (int64_t)stack : 0;
    n = team + most < n ? team + (int)most : n;
  }
  Trial t = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
  pthread_t threads[MAX_THREADS];
  int more = 0;
  while (team + more < n && pthread_create(&threads[more], NULL, wait_for_end, &t) == 0)
    more++;
  pthread_mutex_lock(&t.lock);
  t.done = true;
  pthread_cond_broadcast(&t.over);
  pthread_mutex_unlock(&t.lock);
  for (int k = 0; k < more; k++)
    pthread_join(threads[k], NULL);
  team += more;
  if (team < wanted)
    moth_defaults()->num_threads = team;
  return team;
}

/* libgomp is not built for ThreadSanitizer, which has to be told that threads begin after what was before the loop, and
 * that the loop ends after them. */
#ifdef __SANITIZE_THREAD__
void __tsan_acquire(void *at);
void __tsan_release(void *at);
#define ACQUIRE(at) __tsan_acquire(at)
#define RELEASE(at) __tsan_release(at)
#define UNSEEN      __attribute__((no_sanitize("thread"), noinline))
#else
#define ACQUIRE(at) (void)(at)
#define RELEASE(at) (void)(at)
#define UNSEEN
#endif

/* How long the threads of this thread's team take to start. That is some microseconds where processors are free, and some
 * hundred where other programs have them: a loop of that length is then quicker alone. */
static _Thread_local struct {
  int threads; /* of the last loop: a team of another size is made anew, which is not counted */
  int64_t ns;  /* mean of the last ones */
  int64_t at;  /* when the last one was */
} start;
enum {
  FREE = 20000,
  AGAIN = 20000000
}; /* what is always worth it; how long to go by an old mean */

static void note_start(int threads, int64_t ns, int64_t at) {
  if (start.threads == threads)
    start.ns += (ns - start.ns) / 4;
  start.threads = threads;
  start.at = at;
}

/* What the last grain of a loop took, by the loop and its grain; 0: not known. Loops that share a place are no harm. */
static _Atomic uint32_t costs[256];

static _Atomic uint32_t *cost_of(MothRange fn, int64_t grain) {
  uint64_t h = ((uint64_t)(uintptr_t)fn >> 4 ^ (uint64_t)grain << 20) * 0x9e3779b97f4a7c15;
  return &costs[h >> 56];
}
static void note_cost(_Atomic uint32_t *cost, int64_t ns) {
  *cost = (uint32_t)(ns < 1 ? 1 : ns < UINT32_MAX ? ns : UINT32_MAX);
}

/* Whether threads start so late that the first grain is run alone, to tell whether the loop is worth it: not where grains are
 * long, for that time would be lost. */
static bool is_doubtful(int threads, uint32_t cost, int64_t now) {
  return start.threads == threads && start.ns > FREE && now - start.at < AGAIN && cost &&
         cost < start.ns / 4;
}

UNSEEN static void loop(int64_t n, int64_t grain, MothRange fn, void *ctx, bool fine) {
  if (n <= 0)
    return;
  if (grain < 1)
    grain = 1;
  if (n <= grain) {
    run(fn, ctx, 0, n, grain, fine);
    return;
  }
  int64_t pieces = (n + grain - 1) / grain;
  int threads = omp_in_parallel() ? 1 : moth_num_threads();
  if (threads > pieces)
    threads = (int)pieces;
  if (threads > team)
    threads = tried(threads);
  if (threads <= 1) {
    run(fn, ctx, 0, n, grain, fine);
    return;
  }
  const volatile sig_atomic_t *flag = moth_stop;
  int64_t done = 0, before = now_ns();
  _Atomic uint32_t *cost = cost_of(fn, grain);
  if (!fine && is_doubtful(threads, *cost, before)) {
    run(fn, ctx, 0, grain, grain, fine);
    int64_t now = now_ns();
    note_cost(cost, now - before);
    if ((now - before) * (pieces - 1) / threads * (threads - 1) < start.ns) {
      run(fn, ctx, grain, n, grain, fine);
      return;
    }
    done = 1;
    before = now;
  }
  _Atomic int64_t late = 0;
  has_team = true;
  RELEASE(ctx);
#pragma omp parallel num_threads(threads)
  {
    ACQUIRE(ctx);
    int k = omp_get_thread_num(), m = omp_get_num_threads();
    int64_t begin = (done + (pieces - done) * k / m) * grain,
            end = (done + (pieces - done) * (k + 1) / m) * grain;
    int64_t since = k ? now_ns() - before : 0, most = late;
    while (since > most && !atomic_compare_exchange_weak(&late, &most, since)) {
    }
    if (end > n)
      end = n;
    moth_stop = flag;
    if (begin < end)
      run(fn, ctx, begin, end, grain, fine);
    if (k == 0)
      note_cost(cost, (now_ns() - before) / ((end - begin) / grain + 1));
    moth_stop = k ? NULL : flag;
    RELEASE(ctx);
  }
  ACQUIRE(ctx);
  note_start(threads, late, before);
}

void moth_parallel_for(int64_t n, int64_t grain, MothRange fn, void *ctx) {
  loop(n, grain, fn, ctx, false);
}

bool moth_parallel_for_launch(int64_t n, int64_t grain, MothRange fn, void *ctx) {
  const volatile sig_atomic_t *was = moth_stop, *flag = moth_interrupt_flag();
  moth_stop = flag;
  loop(n, grain, fn, ctx, true);
  moth_stop = was;
  return !flag || !*flag;
}
