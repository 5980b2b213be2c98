/* The caching allocator of device memory.
 *
 * cudaMalloc and cudaFree synchronize with the device, so memory is taken from CUDA in segments and
 * allocated from them in blocks. Sizes are rounded to 512 bytes. Up to 1 MiB comes from segments of 2 MiB,
 * up to 10 MiB from segments of 20 MiB; a larger block has a segment of its own, rounded to 2 MiB. An arena
 * is a stream, a size class (small or large) and a pool (the shared one or a graph's). Its free blocks form
 * a tree ordered by size: the smallest sufficient block is taken and split; a freed block is merged with
 * its free neighbours.
 *
 * A block belongs to the stream that was current at its allocation. Once freed, it can be reused at once
 * on that stream, whose order keeps the two uses apart. If another stream has used it
 * (moth_cuda_record_stream), an event is recorded in that stream, and the block is reused only after the
 * event. None of this synchronizes with the device.
 *
 * The memory of a graph's capture is reserved for the graph's replays: it comes from a pool used by that
 * pool's graphs only, until the last of them is destroyed. */
#include <stdio.h>
#include <string.h>

#include "cuda/heap.h"
extern "C" {
#include "core/alloc.h"
#include "core/history.h"
}

namespace {

constexpr size_t ROUND = 512, SMALL = 1 << 20, SMALL_SEGMENT = 2 << 20, MEDIUM = 10 << 20,
                 MEDIUM_SEGMENT = 20 << 20, LARGE_ROUND = 2 << 20;

Heap heaps[MOTH_CUDA_MAX_DEVICES];

/* --- segments and blocks --------------------------------------------------------------------------- */

template <class T> T *make() {
  T *t = (T *)moth_alloc(sizeof(T));
  if (t)
    memset((void *)t, 0, sizeof(T));
  return t;
}
template <class T> void drop(T *t) {
  moth_free(t, sizeof(T));
}

Arena *find_arena(Heap *h, uint64_t pool, cudaStream_t stream, bool small) {
  for (Arena *a = h->arenas; a; a = a->next)
    if (a->stream == stream && a->small == small && a->pool == pool)
      return a;
  Arena *a = make<Arena>();
  if (a) {
    a->pool = pool;
    a->stream = stream;
    a->small = small;
    a->next = h->arenas;
    h->arenas = a;
  }
  return a;
}

#ifndef __CUDACC__
/* Ignores errors of a lost device: the next call reports them. */
void taken(cudaError_t e) {
  if (e != cudaSuccess)
    cudaGetLastError();
}
#endif
/* Marks memory as freed, but not that of pools: graphs replay into their free blocks. */
void mark_free(const Block *b, size_t n) {
#ifndef __CUDACC__
  if (!b->segment->arena->pool)
    taken(moth_emu_stale(b->p, n, b->segment->arena->stream));
#else
  (void)b;
  (void)n;
#endif
}
void mark_used(const Block *b) {
#ifndef __CUDACC__
  if (!b->segment->arena->pool)
    taken(moth_emu_fresh(b->p, b->asked, b->segment->arena->stream));
#else
  (void)b;
#endif
}

/* Frees b and merges it with its free neighbours. */
void release(Heap *h, Block *b) {
  b->state = FREE;
  b->events = 0;
  take(&h->stats.active, (int64_t)b->size);
  mark_free(b, b->asked); /* the rest of it was not used */
  Block *n = b->next, *p = b->prev;
  if (n && n->state == FREE) {
    remove(n);
    b->size += n->size;
    b->next = n->next;
    if (n->next)
      n->next->prev = b;
    drop(n);
  }
  if (p && p->state == FREE) {
    remove(p);
    p->size += b->size;
    p->next = b->next;
    if (b->next)
      b->next->prev = p;
    drop(b);
    b = p;
  }
  insert(h, b);
}

cudaError_t cuda_malloc(Heap *h, void **p, size_t size) {
  if (h->limit && (size_t)h->stats.reserved.current + size > h->limit)
    return cudaErrorMemoryAllocation;
  MothRelaxed relaxed;
  cudaError_t e = cudaMalloc(p, size);
  if (e != cudaSuccess)
    cudaGetLastError();
  return e;
}

/* A new segment as one free block. *e: CUDA's status. */
Block *new_segment(Heap *h, Arena *a, size_t size, cudaError_t *e) {
  Segment *s = make<Segment>();
  Block *b = make<Block>();
  void *p = nullptr;
  *e = s && b ? cuda_malloc(h, &p, size) : cudaErrorMemoryAllocation;
  if (*e != cudaSuccess) {
    drop(s);
    drop(b);
    return nullptr;
  }
  s->size = size;
  s->first = b;
  s->arena = a;
  s->next = h->segments;
  if (s->next)
    s->next->prev = s;
  h->segments = s;
  b->p = (char *)p;
  b->size = size;
  b->segment = s;
  insert(h, b);
#ifdef __SANITIZE_ADDRESS__
  mark_free(b, size);
#endif
  add(&h->stats.reserved, (int64_t)size);
  add(&h->stats.segments, 1);
  return b;
}

/* --- waiting for other streams ----------------------------------------------------------------------- */

void event_done(Heap *h, Pending *e) {
  moth_cuda_event_give(h->device, e->event);
  if (--e->block->events == 0)
    release(h, e->block);
  drop(e);
}

/* Frees blocks whose events have completed. A stream whose first event has not is not queried again. */
void process_events(Heap *h) {
  if (!h->first || moth_cuda_any_capture())
    return;
  MothRelaxed relaxed;
  enum { SEEN = 8 };
  cudaStream_t busy[SEEN];
  int nbusy = 0;
  h->last = nullptr;
  for (Pending **at = &h->first; *at;) {
    Pending *e = *at;
    bool asked = false;
    for (int i = 0; i < nbusy && !asked; i++)
      asked = busy[i] == e->stream;
    if (!asked && cudaEventQuery(e->event) == cudaSuccess) {
      *at = e->next;
      event_done(h, e);
      continue;
    }
    if (!asked) {
      cudaGetLastError();
      if (nbusy < SEEN)
        busy[nbusy++] = e->stream;
    }
    h->last = e;
    at = &e->next;
  }
}
void wait_events(Heap *h) {
  while (Pending *e = h->first) {
    cudaEventSynchronize(e->event);
    h->first = e->next;
    event_done(h, e);
  }
  h->last = nullptr;
}

/* Records an event in each stream that used a freed block. After a failure (a lost device, no memory)
 * the block is never reused. */
void wait_for_uses(Heap *h, Block *b) {
  b->state = WAITING;
  b->events = 1; /* until all are recorded */
  while (Use *u = b->uses) {
    Pending *e = make<Pending>();
    b->uses = u->next;
    if (e && moth_cuda_event_take(h->device, &e->event) == MOTH_OK &&
        cudaEventRecord(e->event, u->stream) == cudaSuccess) {
      e->block = b;
      e->stream = u->stream;
      (h->last ? h->last->next : h->first) = e;
      h->last = e;
    } else {
      drop(e);
    }
    b->events++;
    drop(u);
  }
  if (--b->events == 0)
    release(h, b);
}
void process_deferred(Heap *h) {
  if (!h->deferred || moth_cuda_any_capture())
    return;
  while (Block *b = h->deferred) {
    h->deferred = b->chain;
    wait_for_uses(h, b);
  }
}

/* --- freeing segments ---------------------------------------------------------------------------------- */

/* Returns wholly free segments to CUDA. */
size_t flush(Heap *h) {
  if (moth_cuda_any_capture())
    return 0;
  MothRelaxed relaxed;
  process_deferred(h);
  wait_events(h);
  size_t freed = 0;
  for (Segment *s = h->segments, *next; s; s = next) {
    Block *b = s->first;
    next = s->next;
    if (b->state != FREE || b->next || (s->arena->pool && moth_cuda_pool_in_use(s->arena->pool)))
      continue;
    if (cudaFree(b->p) != cudaSuccess) {
      cudaGetLastError();
      continue;
    }
    remove(b);
    freed += s->size;
    take(&h->stats.reserved, (int64_t)s->size);
    take(&h->stats.segments, 1);
    if (s->prev)
      s->prev->next = s->next;
    else
      h->segments = s->next;
    if (s->next)
      s->next->prev = s->prev;
    drop(b);
    drop(s);
  }
  for (Arena **at = &h->arenas; *at;) { /* those of released pools */
    Arena *a = *at;
    bool holds = !a->pool || a->root || moth_cuda_pool_in_use(a->pool);
    for (Segment *s = h->segments; s && !holds; s = s->next)
      holds = s->arena == a;
    if (holds) {
      at = &a->next;
      continue;
    }
    *at = a->next;
    drop(a);
  }
  return freed;
}

/* --- allocating ------------------------------------------------------------------------------------- */

Block *obtain(Heap *h, uint64_t pool, cudaStream_t stream, size_t size, cudaError_t *e) {
  *e = cudaErrorMemoryAllocation;
  if ((h->count >= h->capacity && !grow(h)))
    return nullptr;
  process_deferred(h);
  process_events(h);
  bool small = size <= SMALL;
  Arena *a = find_arena(h, pool, stream, small);
  if (!a)
    return nullptr;
  Block *b = best_fit(a, size);
  if (b)
    return b;
  size_t segment = small           ? SMALL_SEGMENT
                   : size < MEDIUM ? MEDIUM_SEGMENT
                                   : (size + LARGE_ROUND - 1) / LARGE_ROUND * LARGE_ROUND;
  b = new_segment(h, a, segment, e);
  if (b || *e != cudaErrorMemoryAllocation)
    return b;
  if (flush(h)) {
    h->stats.retries++;
    a = find_arena(h, pool, stream, small);
    if (a)
      b = new_segment(h, a, segment, e);
  }
  return b;
}

/* Uses the front of a free block; the rest stays free if it is large enough. */
void use(Heap *h, Block *b, size_t size, size_t asked) {
  remove(b);
  size_t rest = b->size - size;
  Block *tail =
      rest >= ROUND && (b->segment->arena->small || rest > SMALL) ? make<Block>() : nullptr;
  if (tail) {
    tail->p = b->p + size;
    tail->size = rest;
    tail->segment = b->segment;
    tail->prev = b;
    tail->next = b->next;
    if (b->next)
      b->next->prev = tail;
    b->next = tail;
    b->size = size;
    insert(h, tail);
  }
  b->state = USED;
  b->asked = asked;
  put_used(h, b);
  add(&h->stats.allocated, (int64_t)b->size);
  add(&h->stats.active, (int64_t)b->size);
  add(&h->stats.requested, (int64_t)asked);
  add(&h->stats.blocks, 1);
  moth_alloc_count_device((int64_t)b->size);
  mark_used(b);
}

const char *bytes(double n, char *buf) {
  static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  int u = 0;
  for (; n >= 1024 && u < 4; u++)
    n /= 1024;
  snprintf(buf, 32, u ? "%.2f %s" : "%.0f %s", n, units[u]);
  return buf;
}

void out_of_memory(Heap *h, size_t n, uint64_t pool) {
  char a[32], b[32], c[32], d[32], e[32], limit[64] = "", f[32], held[1024];
  size_t available = 0, total = moth_cuda_props(h->device)->total;
  {
    MothRelaxed relaxed;
    if (cudaMemGetInfo(&available, &total) != cudaSuccess)
      cudaGetLastError();
  }
  MothCudaMemory *m = &h->stats;
  if (h->limit)
    snprintf(limit, sizeof limit, ", %s allowed to this process", bytes((double)h->limit, f));
  int64_t cached = m->reserved.current - m->allocated.current;
  moth_history_holders(held, sizeof held);
  moth_fail(
      MOTH_ERR_MEMORY,
      "CUDA out of memory. Tried to allocate %s on cuda:%d (%s total%s, %s free, %s allocated in "
      "%lld tensors, %s reserved, %lld retries); HINT: %s%s",
      bytes((double)n, a), h->device, bytes((double)total, b), limit, bytes((double)available, c),
      bytes((double)m->allocated.current, d), (long long)m->blocks.current,
      bytes((double)m->reserved.current, e), (long long)m->retries,
      pool ? "a graph is being captured, and the cache cannot be flushed: call "
             "moth.cuda.empty_cache() before"
      : cached > m->allocated.current / 4
          ? "much is cached in pieces that are too small: moth.cuda.memory_summary() shows "
            "them; fewer different sizes help"
          : "smaller batches, moth.no_grad() where no gradient is needed, or x:free() and "
            "moth.scope() for what is done with",
      held);
}

/* *size: the bytes of the block. */
void *allocate(int device, size_t n, size_t *size_of) {
  Heap *h = &heaps[device];
  if (moth_cuda_set_device(device) != MOTH_OK)
    return nullptr;
  cudaStream_t stream = moth_cuda_stream(device);
  uint64_t pool = moth_cuda_any_capture() ? moth_cuda_capture_pool(stream) : 0;
  n = n ? n : 1;
  size_t size = (n + ROUND - 1) / ROUND * ROUND;
  for (bool collected = false;; collected = true) {
    {
      MothLock lock(&h->lock);
      cudaError_t e = cudaErrorMemoryAllocation;
      bool refused = n > SIZE_MAX / 4 || moth_alloc_must_fail();
      Block *b = refused ? nullptr : obtain(h, pool, stream, size, &e);
      if (b) {
        use(h, b, size, n);
        *size_of = b->size;
        return b->p;
      }
      if (e != cudaErrorMemoryAllocation) {
        moth_cuda_check_on(device, e, "cudaMalloc");
        return nullptr;
      }
      if (collected) {
        h->stats.ooms++;
        out_of_memory(h, n, pool);
        return nullptr;
      }
    }
    if (moth_alloc_collect)
      moth_alloc_collect();
  }
}

} // namespace

void *moth_cuda_alloc(int device, size_t n) {
  size_t size = 0;
  void *p = allocate(device, n, &size);
  if (p && moth_alloc_watch)
    moth_alloc_watch(p, (int64_t)size, MothDevice{MOTH_CUDA, (uint8_t)device});
  return p;
}

void moth_cuda_free(int device, void *p, size_t n) {
  Heap *h = &heaps[device];
  if (p && moth_alloc_watch)
    moth_alloc_watch(p, -(int64_t)n, MothDevice{MOTH_CUDA, (uint8_t)device});
  MothLock lock(&h->lock);
  Block **at = find_used(h, p);
  if (!at)
    return;
  Block *b = *at;
  *at = b->chain;
  b->chain = nullptr;
  h->count--;
  take(&h->stats.allocated, (int64_t)b->size);
  take(&h->stats.requested, (int64_t)b->asked);
  take(&h->stats.blocks, 1);
  moth_alloc_count_device(-(int64_t)b->size);
  if (!b->uses) {
    release(h, b);
  } else if (moth_cuda_any_capture()) {
    b->state = WAITING;
    b->chain = h->deferred;
    h->deferred = b;
  } else {
    wait_for_uses(h, b);
  }
}

MothStatus moth_cuda_record_stream(int device, void *p, cudaStream_t stream) {
  Heap *h = &heaps[device];
  MothLock lock(&h->lock);
  Block **at = find_used(h, p);
  if (!at)
    return moth_fail(MOTH_ERR_VALUE, "record_stream: the tensor's memory is not moth's");
  Block *b = *at;
  if (b->segment->arena->stream == stream)
    return MOTH_OK;
  for (Use *u = b->uses; u; u = u->next)
    if (u->stream == stream)
      return MOTH_OK;
  Use *u = make<Use>();
  if (!u)
    return moth_no_memory(0);
  u->stream = stream;
  u->next = b->uses;
  b->uses = u;
  return MOTH_OK;
}

void moth_cuda_memory_open(int device) {
  heaps[device].device = device;
}

/* --- figures -------------------------------------------------------------------------------- */

void moth_cuda_memory_stats(int device, MothCudaMemory *out) {
  MothLock lock(&heaps[device].lock);
  *out = heaps[device].stats;
}
void moth_cuda_memory_visit(int device, MothCudaVisit visit, void *ctx) {
  Heap *h = &heaps[device];
  MothLock lock(&h->lock);
  for (Segment *s = h->segments; s; s = s->next)
    for (Block *b = s->first; b; b = b->next)
      visit(ctx, s->first->p, s->size, s->arena->small, s->arena->pool != 0,
            reinterpret_cast<MothStream *>(moth_cuda_stream_find(device, s->arena->stream)), b->p,
            b->size, b->state);
}

static void each(MothCudaMemory *m, void (*f)(MothCudaCount *c)) {
  f(&m->allocated);
  f(&m->active);
  f(&m->requested);
  f(&m->reserved);
  f(&m->blocks);
  f(&m->segments);
}
void moth_cuda_memory_reset_peak(int device) {
  MothLock lock(&heaps[device].lock);
  each(&heaps[device].stats, [](MothCudaCount *c) { c->peak = c->current; });
}
void moth_cuda_memory_reset_accumulated(int device) {
  MothLock lock(&heaps[device].lock);
  MothCudaMemory *m = &heaps[device].stats;
  each(m, [](MothCudaCount *c) { c->allocated = c->freed = 0; });
  m->retries = m->ooms = 0;
}
MothStatus moth_cuda_empty_cache(int device) {
  if (moth_cuda_any_capture())
    return moth_fail(MOTH_ERR_STATE, "empty_cache: a graph is being captured");
  MOTH_TRY(moth_cuda_set_device(device));
  MothLock lock(&heaps[device].lock);
  flush(&heaps[device]);
  return MOTH_OK;
}
void moth_cuda_set_fraction(int device, double fraction) {
  Heap *h = &heaps[device];
  MothLock lock(&h->lock);
  h->limit = fraction >= 1 ? 0 : (size_t)(fraction * (double)moth_cuda_props(device)->total);
}
