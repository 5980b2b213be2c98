/* The caching allocator.
 *
 * Three ways, by size:
 *  - small (up to 32 KB): a free list per size class and thread, without locks. A list that grows too
 *    long moves half of its blocks to the shared list of its class; an empty one refills from there,
 *    and the shared list from slabs.
 *  - large: size classes at eight steps per doubling (at most 12.5 % waste), shared lists under one
 *    lock. Blocks from 2 MB up are mapped on huge pages: a fresh 40 MB result otherwise spends most
 *    of its time in page faults. Blocks of sizes that do not come again are cut or given back once those
 *    in use and those that wait are half as much again as was ever in use (make_way).
 * - guarded (MOTH_GUARD=1) or uncached (MOTH_CACHE=0, and always under AddressSanitizer, which cannot check a cached
 * block): each block is a mapping or malloc of its own.
 *
 * Counting: each thread counts its own bytes and adds them to the global figures every 64 KB, so that
 * live and peak are exact to 64 KB per thread and small blocks cost no atomic operation. */
#include "core/alloc.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/environment.h"

enum {
  ALIGN = 64,
  SMALL_MAX = 32 * 1024,
  NSMALL = 64, /* size classes of small blocks */
  NLARGE = 40 * 8,
  THREAD_KEEP =
      64 *
      1024, /* bytes of one class that a thread caches before it moves some to the shared list */
  SLAB = 256 * 1024,
  COUNT_STEP = 64 * 1024,
#if defined(__aarch64__)
  PAGE = 65536, /* of some systems; a multiple of the other sizes */
#else
  PAGE = 4096,
#endif
  HUGE_PAGE = 2 * 1024 * 1024
};

typedef struct Block {
  struct Block *next;
} Block;

typedef struct List {
  Block *head;
  int n;
} List;

static inline void *take(List *l) { /* NULL: it is empty */
  Block *b = l->head;
  if (b) {
    l->head = b->next;
    l->n--;
  }
  return b;
}

static inline void put(List *l, void *p) {
  Block *b = p;
  b->next = l->head;
  l->head = b;
  l->n++;
}

typedef struct Cache {
  List lists[NSMALL];
  int64_t live_delta;
  int64_t allocs_delta;
  bool failed_by_order;
} Cache;

/* A pointer, since the static TLS of a library that is opened at run time is scarce. */
static _Thread_local Cache *cache __attribute__((tls_model("initial-exec")));
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static List shared[NSMALL];
static List large[NLARGE];
static int idle[NLARGE]; /* the blocks of each that nobody has taken since moth_alloc_trim */
static uint64_t used[NLARGE], uses; /* when each had a block taken or put */
static int64_t most_live;           /* in use at once, of late */
static void *slabs;                 /* list of slabs, so that they stay reachable */
static pthread_key_t thread_key;

static _Atomic int64_t live, device_live, peak, cached, allocs, system_allocs;
bool (*moth_alloc_collect)(void);
void (*moth_alloc_watch)(const void *p, int64_t bytes, MothDevice device);
static _Atomic int64_t limit; /* of host memory; 0: none */
static _Atomic int64_t fail_countdown;
static _Atomic bool fail_forever;
static bool guarded, uncached;
/* Whether blocks are cached, no failure is simulated, nothing is recorded or limited: one test for the usual case. */
static _Atomic bool plain = true;

static void set_plain(void) {
  atomic_store(&plain, !guarded && !uncached && !atomic_load(&limit) &&
                           atomic_load(&fail_countdown) == 0 && !moth_alloc_watch);
}

static __attribute__((noinline)) void flush_counts(Cache *c) {
  int64_t now = atomic_fetch_add(&live, c->live_delta) + c->live_delta;
  atomic_fetch_add(&allocs, c->allocs_delta);
  c->live_delta = c->allocs_delta = 0;
  int64_t p = atomic_load(&peak);
  while (now > p && !atomic_compare_exchange_weak(&peak, &p, now)) {
  }
}

static void thread_exit(void *p) {
  Cache *c = p;
  flush_counts(c);
  pthread_mutex_lock(&lock);
  for (int i = 0; i < NSMALL; i++) {
    while (c->lists[i].head)
      put(&shared[i], take(&c->lists[i]));
  }
  pthread_mutex_unlock(&lock);
  cache = NULL;
  free(c);
}

static Cache *new_cache(void) {
  Cache *c = calloc(1, sizeof *c);
  if (!c)
    return NULL;
  pthread_setspecific(thread_key, c);
  return cache = c;
}

static inline Cache *my_cache(void) {
  Cache *c = cache;
  if (__builtin_expect(c != NULL, 1))
    return c;
  return new_cache();
}

/* Locks around fork: else a thread that the child does not have could own the lock. */
static void lock_for_fork(void) {
  pthread_mutex_lock(&lock);
}
static void unlock_after_fork(void) {
  pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void alloc_init(void) {
  pthread_key_create(&thread_key, thread_exit);
  pthread_atfork(lock_for_fork, unlock_after_fork, unlock_after_fork);
  guarded = moth_env_flag("MOTH_GUARD", false);
  uncached = !moth_env_flag("MOTH_CACHE", true);
#if defined(__SANITIZE_ADDRESS__)
  uncached = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
  uncached = true;
#endif
#endif
  set_plain();
}

bool moth_alloc_guarded(void) {
  return guarded;
}
int64_t moth_alloc_live(void) {
  return atomic_load_explicit(&live, memory_order_relaxed) +
         atomic_load_explicit(&device_live, memory_order_relaxed) + (cache ? cache->live_delta : 0);
}
void moth_alloc_count_device(int64_t bytes) {
  atomic_fetch_add_explicit(&device_live, bytes, memory_order_relaxed);
}

static inline void count_in(Cache *c, int64_t bytes) {
  c->live_delta += bytes;
  c->allocs_delta += bytes > 0;
  if (__builtin_expect(c->live_delta > COUNT_STEP || c->live_delta < -COUNT_STEP, 0))
    flush_counts(c);
}

static void count(int64_t bytes) {
  Cache *c = my_cache();
  if (c)
    count_in(c, bytes);
}

static bool should_fail(void) {
  if (__builtin_expect(atomic_load_explicit(&fail_countdown, memory_order_relaxed) == 0, 1))
    return false;
  if (atomic_load(&fail_countdown) == 1) {
    if (!atomic_load(&fail_forever))
      atomic_store(&fail_countdown, 0);
    return true;
  }
  atomic_fetch_sub(&fail_countdown, 1);
  return false;
}

bool moth_alloc_failed_by_order(void) {
  return cache && cache->failed_by_order;
}

bool moth_alloc_must_fail(void) {
  return should_fail();
}

/* --- size classes ----------------------------------------------------------------------------- */

/* Small classes: 64..1024 by 64 (16 of them), then four steps per doubling up to 32 KB. */
static inline int small_class(size_t n, size_t *size) {
  if (n <= 1024) {
    size_t k = n ? (n + 63) / 64 : 1;
    *size = k * 64;
    return (int)k - 1;
  }
  int e = 63 - __builtin_clzll(n - 1); /* 2^e <= n - 1 */
  size_t step = (size_t)1 << (e - 2);
  size_t k = (n - 1) / step - 3; /* 1..4: n lies in (2^e + (k-1) step, 2^e + k step] */
  *size = ((size_t)1 << e) + k * step;
  return 16 + (e - 10) * 4 + (int)k - 1;
}

/* Large classes: eight steps per doubling. */
static inline int large_class(size_t n, size_t *size) {
  int e = 63 - __builtin_clzll(n - 1);
  size_t step = (size_t)1 << (e - 3);
  size_t k = (n - 1) / step - 7; /* 1..8 */
  *size = ((size_t)1 << e) + k * step;
  return (e - 15) * 8 + (int)k - 1;
}

/* --- the system ------------------------------------------------------------------------------- */

static void *map_block(size_t size) {
  if (size < HUGE_PAGE)
    return aligned_alloc(ALIGN, size);
  /* 2 MB aligned: maps more and unmaps the ends. */
  char *p =
      mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    return NULL;
  size_t head = (size_t)(-(uintptr_t)p & (HUGE_PAGE - 1));
  size_t whole = (size + PAGE - 1) & ~(size_t)(PAGE - 1);
  if (head)
    munmap(p, head);
  size_t tail = size + HUGE_PAGE - head - whole;
  if (tail)
    munmap(p + head + whole, tail);
  madvise(p + head, whole, MADV_HUGEPAGE);
  return p + head;
}

static void unmap_block(void *p, size_t size) {
  if (size < HUGE_PAGE)
    free(p);
  else
    munmap(p, (size + PAGE - 1) & ~(size_t)(PAGE - 1));
}

static void *guard_alloc(size_t n) {
  size_t whole = (n + PAGE - 1) & ~(size_t)(PAGE - 1);
  char *p = mmap(NULL, whole + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    return NULL;
  mprotect(p + whole, PAGE, PROT_NONE);
  return p + whole - n; /* right-aligned: the byte after the block faults */
}

static void guard_free(void *p, size_t n) {
  size_t whole = (n + PAGE - 1) & ~(size_t)(PAGE - 1);
  munmap((char *)p + n - whole, whole + PAGE);
}

/* --- small ------------------------------------------------------------------------------------ */

static void *refill(Cache *c, int k, size_t size) {
  pthread_mutex_lock(&lock);
  if (!shared[k].head) {
    char *slab = aligned_alloc(ALIGN, SLAB);
    if (!slab) {
      pthread_mutex_unlock(&lock);
      return NULL;
    }
    atomic_fetch_add(&system_allocs, 1);
    *(void **)slab = slabs;
    slabs = slab;
    for (size_t at = ALIGN; at + size <= SLAB; at += size)
      put(&shared[k], slab + at);
  }
  int want = (int)(THREAD_KEEP / 2 / size) + 1;
  List *l = &c->lists[k];
  while (want-- > 0 && shared[k].head)
    put(l, take(&shared[k]));
  pthread_mutex_unlock(&lock);
  return take(l);
}

static __attribute__((noinline)) void share_half(Cache *c, int k) {
  List *l = &c->lists[k];
  pthread_mutex_lock(&lock);
  for (int n = l->n / 2; n > 0; n--)
    put(&shared[k], take(l));
  pthread_mutex_unlock(&lock);
}

static inline void push(Cache *c, int k, size_t size, void *p) {
  List *l = &c->lists[k];
  put(l, p);
  if (__builtin_expect(l->n * (int64_t)size > THREAD_KEEP && l->n > 8, 0))
    share_half(c, k);
}

/* --- large ------------------------------------------------------------------------------------ */

static size_t size_of_large(int k) {
  return ((size_t)1 << (k / 8 + 15)) + (size_t)(k % 8 + 1) * ((size_t)1 << (k / 8 + 12));
}

/* A block of class k that is cut from one of up to twice its size, which waits; NULL: there is none. Under the lock. */
static void *cut(int k, size_t size) {
  for (int j = k + 1; size >= HUGE_PAGE && j < NLARGE && j <= k + 8; j++) {
    char *p = take(&large[j]);
    if (!p)
      continue;
    size_t had = size_of_large(j), whole = (size + PAGE - 1) & ~(size_t)(PAGE - 1);
    idle[j] = large[j].n < idle[j] ? large[j].n : idle[j];
    munmap(p + whole, ((had + PAGE - 1) & ~(size_t)(PAGE - 1)) - whole);
    atomic_fetch_sub(&cached, (int64_t)(had - size));
    return p;
  }
  return NULL;
}

/* Gives back blocks of at least `bytes` of the classes that were used least recently, the oldest ones first; all, if they are
 * fewer. Under the lock. */
static void give_back(int64_t bytes) {
  while (bytes > 0) {
    int k = -1;
    for (int j = 0; j < NLARGE; j++)
      if (large[j].head && (k < 0 || used[j] < used[k]))
        k = j;
    if (k < 0)
      return;
    Block **at = &large[k].head;
    while ((*at)->next)
      at = &(*at)->next;
    Block *last = *at;
    *at = NULL;
    large[k].n--;
    idle[k] = large[k].n < idle[k] ? large[k].n : idle[k];
    size_t size = size_of_large(k);
    atomic_fetch_sub(&cached, (int64_t)size);
    bytes -= (int64_t)size;
    unmap_block(last, size);
  }
}

/* Before a block of class k is mapped. A program of changing sizes would else keep blocks of all of them. */
static void *make_way(int k, size_t size) {
  enum { LITTLE = 32 << 20 };
  int64_t now = atomic_load(&live) + (int64_t)size,
          most = most_live = now > most_live ? now : most_live;
  most += most / 2 > LITTLE ? most / 2 : LITTLE;
  int64_t over = now + atomic_load(&cached) - most;
  if (over <= 0)
    return NULL;
  void *p = cut(k, size);
  if (!p)
    give_back(over);
  return p;
}

static void *large_alloc(size_t n, size_t *size) {
  int k = large_class(n, size);
  if (k >= NLARGE)
    return NULL;
  pthread_mutex_lock(&lock);
  void *p = take(&large[k]);
  if (large[k].n < idle[k])
    idle[k] = large[k].n;
  used[k] = ++uses;
  if (!p)
    p = make_way(k, *size);
  pthread_mutex_unlock(&lock);
  if (p) {
    atomic_fetch_sub(&cached, (int64_t)*size);
    return p;
  }
  atomic_fetch_add(&system_allocs, 1);
  p = map_block(*size);
  if (!p && atomic_load(&cached) > 0) {
    moth_memory_empty_cache();
    p = map_block(*size);
  }
  return p;
}

static void *alloc_apart(size_t size) {
  void *p =
      guarded ? guard_alloc(size) : aligned_alloc(ALIGN, (size + ALIGN - 1) & ~(size_t)(ALIGN - 1));
  if (p)
    count((int64_t)size);
  return p;
}

static bool above_limit(size_t n) {
  int64_t most = atomic_load_explicit(&limit, memory_order_relaxed);
  int64_t now = atomic_load_explicit(&live, memory_order_relaxed) + (cache ? cache->live_delta : 0);
  return most && now + (int64_t)n > most;
}

static void *alloc_cached(size_t n) {
  size_t size;
  if (n <= SMALL_MAX) {
    Cache *c = my_cache();
    if (!c)
      return NULL;
    int k = small_class(n, &size);
    void *p = take(&c->lists[k]);
    if (!p)
      p = refill(c, k, size);
    if (p)
      count_in(c, (int64_t)size);
    return p;
  }
  if (n > (size_t)INT64_MAX / 4)
    return NULL;
  void *p = large_alloc(n, &size);
  if (p)
    count((int64_t)size);
  return p;
}

static int64_t counted_size(size_t n);

/* The bytes of this thread's last allocation that failed. */
static _Thread_local size_t refused;

MothStatus moth_no_memory(size_t bytes) {
  if (!bytes)
    bytes = refused;
  refused = 0;
  return bytes ? moth_fail(MOTH_ERR_MEMORY, "out of memory: could not allocate %zu bytes", bytes)
               : moth_fail(MOTH_ERR_MEMORY, "out of memory");
}

static __attribute__((noinline)) void *alloc_any(size_t n) {
  if (atomic_load_explicit(&plain, memory_order_relaxed)) {
    void *p = alloc_cached(n);
    if (!p)
      refused = n;
    return p;
  }
  Cache *c = my_cache();
  bool ordered = should_fail();
  if (c)
    c->failed_by_order = ordered;
  void *p = NULL;
  if (!ordered && n <= (size_t)INT64_MAX - 2 * HUGE_PAGE && !above_limit(n))
    p = guarded || uncached ? alloc_apart(n ? n : 1) : alloc_cached(n);
  if (!p)
    refused = n;
  void (*watch)(const void *, int64_t, MothDevice) = moth_alloc_watch;
  if (p && watch)
    watch(p, counted_size(n), (MothDevice){MOTH_CPU, 0});
  return p;
}

static __attribute__((noinline)) void free_any(void *p, size_t n) {
  size_t size;
  if (!p)
    return;
  void (*watch)(const void *, int64_t, MothDevice) = moth_alloc_watch;
  if (watch)
    watch(p, -counted_size(n), (MothDevice){MOTH_CPU, 0});
  if (guarded || uncached) {
    size = n ? n : 1;
    count(-(int64_t)size);
    if (guarded)
      guard_free(p, size);
    else
      free(p);
    return;
  }
  if (n <= SMALL_MAX) {
    Cache *c = my_cache();
    if (!c)
      return; /* the block stays in its slab */
    int k = small_class(n, &size);
    count_in(c, -(int64_t)size);
    push(c, k, size, p);
    return;
  }
  int k = large_class(n, &size);
  count(-(int64_t)size);
  atomic_fetch_add(&cached, (int64_t)size);
  pthread_mutex_lock(&lock);
  put(&large[k], p);
  used[k] = ++uses;
  pthread_mutex_unlock(&lock);
}

/* The fast path of headers and small data, two blocks for each op: the classes of 64-byte steps. */
static inline bool is_tiny(const Cache *c, size_t n) {
  return c && n - 1 < 1024 && atomic_load_explicit(&plain, memory_order_relaxed);
}

void *moth_alloc(size_t n) {
  Cache *c = cache;
  if (__builtin_expect(is_tiny(c, n), 1)) {
    size_t k = (n - 1) / 64;
    void *p = take(&c->lists[k]);
    if (__builtin_expect(p != NULL, 1)) {
      count_in(c, 64 * (int64_t)(k + 1));
      return p;
    }
  }
  return alloc_any(n);
}

void moth_free(void *p, size_t n) {
  Cache *c = cache;
  if (__builtin_expect(p && is_tiny(c, n), 1)) {
    size_t k = (n - 1) / 64, size = 64 * (k + 1);
    count_in(c, -(int64_t)size);
    push(c, (int)k, size, p);
    return;
  }
  free_any(p, n);
}

/* The bytes by which a block of n bytes is counted. */
static int64_t counted_size(size_t n) {
  size_t size = n ? n : 1;
  if (guarded || uncached)
    return (int64_t)size;
  if (n <= SMALL_MAX)
    small_class(n, &size);
  else
    large_class(n, &size);
  return (int64_t)size;
}

void moth_alloc_discard(void *p, size_t n) {
  uintptr_t from = ((uintptr_t)p + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
  uintptr_t to = ((uintptr_t)p + n) & ~(uintptr_t)(PAGE - 1);
  if (n > SMALL_MAX && to > from)
    madvise((void *)from, to - from, MADV_DONTNEED);
  count(-counted_size(n));
}

void moth_alloc_take_up(void *p, size_t n) {
  (void)p; /* the system maps fresh pages when they are touched */
  count(counted_size(n));
}

/* --- public ----------------------------------------------------------------------------------- */

void moth_memory_stats(MothMemStats *out) {
  if (!out)
    return;
  if (my_cache())
    flush_counts(cache);
  out->live = atomic_load(&live);
  out->peak = atomic_load(&peak);
  out->cached = atomic_load(&cached);
  out->allocs = atomic_load(&allocs);
  out->system = atomic_load(&system_allocs);
}

void moth_memory_reset_peak(void) {
  if (my_cache())
    flush_counts(cache);
  atomic_store(&peak, atomic_load(&live));
}

void moth_alloc_trim(int64_t keep) {
  pthread_mutex_lock(&lock);
  most_live = most_live / 4 * 3 > atomic_load(&live) ? most_live / 4 * 3 : atomic_load(&live);
  pthread_mutex_unlock(&lock);
  for (int k = NLARGE - 1; k >= 0; k--) {
    size_t size = size_of_large(k);
    pthread_mutex_lock(&lock);
    int n = (idle[k] + 1) / 2, most = (int)((atomic_load(&cached) - keep) / (int64_t)size);
    if (n > most)
      n = most > 0 ? most : 0;
    Block **at = &large[k].head; /* the last ones: they have been idle for longest */
    for (int i = n; i < large[k].n; i++)
      at = &(*at)->next;
    Block *drop = *at;
    *at = NULL;
    large[k].n -= n;
    idle[k] = large[k].n;
    atomic_fetch_sub(&cached, (int64_t)size * n);
    pthread_mutex_unlock(&lock);
    while (drop) {
      Block *next = drop->next;
      unmap_block(drop, size);
      drop = next;
    }
  }
}

void moth_memory_empty_cache(void) {
  pthread_mutex_lock(&lock);
  for (int k = 0; k < NLARGE; k++) {
    size_t size = size_of_large(k);
    while (large[k].head) {
      atomic_fetch_sub(&cached, (int64_t)size);
      unmap_block(take(&large[k]), size);
    }
    idle[k] = 0;
  }
  pthread_mutex_unlock(&lock);
}

void moth_memory_fail_at(int64_t n, bool forever) {
  atomic_store(&fail_forever, forever);
  atomic_store(&fail_countdown, n > 0 ? n : 0);
  set_plain();
}

void moth_alloc_set_watch(void (*watch)(const void *, int64_t, MothDevice)) {
  moth_alloc_watch = watch;
  set_plain();
}

int64_t moth_alloc_set_limit(int64_t bytes) {
  int64_t was = atomic_exchange(&limit, bytes > 0 ? bytes : 0);
  set_plain();
  return was;
}

int64_t moth_alloc_limit(void) {
  return atomic_load(&limit);
}
