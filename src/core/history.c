/* See history.h. Memory of the record itself comes from malloc: it is not part of what is recorded. */
#include "core/history.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/error.h"

enum { TRACE_MAX = 2048, HOLDERS = 3 };

typedef struct Trace {
  char *text;
  uint64_t hash;
} Trace;

static struct Record {
  MothHistoryBlock *blocks; /* a hash table by address, its size a power of two */
  size_t nslots, nblocks;
  MothHistoryEvent *events; /* a ring */
  int64_t capacity, nevents;
  Trace *traces;     /* number i is traces[i - 1] */
  uint32_t *by_hash; /* numbers, open addressing, twice as many slots as traces */
  uint32_t ntraces, trace_slots;
  uint32_t serial;
  int64_t start;
  void (*describe)(char *text, size_t n);
} record;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool on;

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* --- traces ----------------------------------------------------------------------------------- */

static uint64_t hash_of(const char *text) {
  uint64_t h = 0xcbf29ce484222325u;
  for (; *text; text++)
    h = (h ^ (unsigned char)*text) * 0x100000001b3u;
  return h;
}

static bool grow_traces(void) {
  uint32_t slots = record.trace_slots ? record.trace_slots * 2 : 256;
  uint32_t *by_hash = calloc(slots, sizeof *by_hash);
  Trace *traces = realloc(record.traces, sizeof *traces * (slots / 2));
  if (traces)
    record.traces = traces;
  if (!by_hash || !traces) {
    free(by_hash);
    return false;
  }
  for (uint32_t i = 0; i < record.ntraces; i++) {
    uint64_t at = traces[i].hash;
    while (by_hash[at & (slots - 1)])
      at++;
    by_hash[at & (slots - 1)] = i + 1;
  }
  free(record.by_hash);
  record.by_hash = by_hash;
  record.trace_slots = slots;
  return true;
}

/* The number of a text; 0: none, or no memory. */
static uint32_t intern(const char *text) {
  if (!text[0] || (record.ntraces * 2 >= record.trace_slots && !grow_traces()))
    return 0;
  uint64_t hash = hash_of(text), at = hash;
  for (;; at++) {
    uint32_t *slot = &record.by_hash[at & (record.trace_slots - 1)];
    if (!*slot) {
      char *copy = strdup(text);
      if (!copy)
        return 0;
      record.traces[record.ntraces++] = (Trace){copy, hash};
      return *slot = record.ntraces;
    }
    if (record.traces[*slot - 1].hash == hash && !strcmp(record.traces[*slot - 1].text, text))
      return *slot;
  }
}

const char *moth_history_trace(uint32_t trace) {
  pthread_mutex_lock(&lock);
  const char *text = trace && trace <= record.ntraces ? record.traces[trace - 1].text : "";
  pthread_mutex_unlock(&lock);
  return text;
}

/* --- blocks ----------------------------------------------------------------------------------- */

static MothHistoryBlock *slot_of(MothHistoryBlock *slots, size_t n, const void *p) {
  size_t at = ((uintptr_t)p >> 6) * 0x9E3779B97F4A7C15u >> 16;
  while (slots[at & (n - 1)].address && slots[at & (n - 1)].address != p)
    at++;
  return &slots[at & (n - 1)];
}

static bool grow_blocks(void) {
  size_t n = record.nslots ? record.nslots * 2 : 1024;
  MothHistoryBlock *slots = calloc(n, sizeof *slots);
  if (!slots)
    return false;
  for (size_t i = 0; i < record.nslots; i++)
    if (record.blocks[i].address)
      *slot_of(slots, n, record.blocks[i].address) = record.blocks[i];
  free(record.blocks);
  record.blocks = slots;
  record.nslots = n;
  return true;
}

/* Frees a slot, and moves those behind it that would not be found any more. */
static void remove_block(MothHistoryBlock *b) {
  size_t mask = record.nslots - 1, hole = (size_t)(b - record.blocks);
  record.blocks[hole].address = NULL;
  record.nblocks--;
  for (size_t i = (hole + 1) & mask; record.blocks[i].address; i = (i + 1) & mask) {
    MothHistoryBlock moved = record.blocks[i];
    record.blocks[i].address = NULL;
    *slot_of(record.blocks, record.nslots, moved.address) = moved;
  }
}

static void note(int64_t bytes, uint32_t serial, uint32_t trace, MothDevice device) {
  MothHistoryEvent e = {bytes, now_ns() - record.start, serial, trace, device};
  if (record.capacity)
    record.events[record.nevents % record.capacity] = e;
  record.nevents++;
}

static void watch(const void *p, int64_t bytes, MothDevice device) {
  char text[TRACE_MAX] = "";
  if (bytes > 0 && record.describe)
    record.describe(text, sizeof text);
  pthread_mutex_lock(&lock);
  if (!on) {
    pthread_mutex_unlock(&lock);
    return;
  }
  if (bytes > 0 && ((record.nblocks + 1) * 2 < record.nslots || grow_blocks())) {
    uint32_t trace = intern(text);
    MothHistoryBlock *b = slot_of(record.blocks, record.nslots, p);
    record.nblocks += !b->address;
    *b = (MothHistoryBlock){p, bytes, -1, now_ns() - record.start, trace, ++record.serial, device};
    note(bytes, b->serial, trace, device);
  } else if (bytes < 0) {
    MothHistoryBlock *b = record.nslots ? slot_of(record.blocks, record.nslots, p) : NULL;
    if (b && b->address) {
      note(-b->bytes, b->serial, b->trace, device);
      remove_block(b);
    } else {
      note(bytes, 0, 0, device);
    }
  }
  pthread_mutex_unlock(&lock);
}

void moth_history_mark(const void *p, int64_t nbytes) {
  pthread_mutex_lock(&lock);
  MothHistoryBlock *b = on && record.nslots && p ? slot_of(record.blocks, record.nslots, p) : NULL;
  if (b && b->address)
    b->nbytes = nbytes;
  pthread_mutex_unlock(&lock);
}

/* --- starting, reading ------------------------------------------------------------------------ */

static void clear(void) {
  for (uint32_t i = 0; i < record.ntraces; i++)
    free(record.traces[i].text);
  free(record.traces);
  free(record.by_hash);
  free(record.blocks);
  free(record.events);
  memset(&record, 0, sizeof record);
}

MothStatus moth_history_start(int64_t capacity, void (*describe)(char *text, size_t n)) {
  MothStatus s = MOTH_OK;
  moth_history_stop();
  pthread_mutex_lock(&lock);
  clear();
  record.capacity = capacity > 0 ? capacity : 0;
  if (record.capacity) {
    record.events = capacity < INT32_MAX ? calloc((size_t)capacity, sizeof *record.events) : NULL;
    if (!record.events) {
      record.capacity = 0;
      s = moth_fail(MOTH_ERR_MEMORY, "no memory for a record of %lld allocations",
                    (long long)capacity);
    }
  }
  record.describe = describe;
  record.start = now_ns();
  on = s == MOTH_OK;
  pthread_mutex_unlock(&lock);
  if (s == MOTH_OK)
    moth_alloc_set_watch(watch);
  return s;
}

void moth_history_stop(void) {
  moth_alloc_set_watch(NULL);
  on = false;
}

bool moth_history_on(void) {
  return on;
}

static int by_serial(const void *a, const void *b) {
  const MothHistoryBlock *x = a, *y = b;
  return x->serial < y->serial ? -1 : x->serial > y->serial;
}

int64_t moth_history_blocks(MothHistoryBlock **out) {
  int64_t n = 0;
  pthread_mutex_lock(&lock);
  *out = malloc(sizeof **out * (record.nblocks + 1));
  for (size_t i = 0; i < record.nslots && *out; i++)
    if (record.blocks[i].address)
      (*out)[n++] = record.blocks[i];
  pthread_mutex_unlock(&lock);
  if (*out)
    qsort(*out, (size_t)n, sizeof **out, by_serial);
  return *out ? n : -1;
}

int64_t moth_history_events(MothHistoryEvent **out) {
  pthread_mutex_lock(&lock);
  int64_t n = record.nevents < record.capacity ? record.nevents : record.capacity;
  *out = malloc(sizeof **out * (size_t)(n + 1));
  for (int64_t i = 0; i < n && *out; i++)
    (*out)[i] = record.events[(record.nevents - n + i) % record.capacity];
  pthread_mutex_unlock(&lock);
  return *out ? n : -1;
}

/* --- for errors ------------------------------------------------------------------------------- */

typedef struct Held {
  int64_t bytes, n;
} Held;

void moth_history_holders(char *text, size_t n) {
  text[0] = 0;
  if (!on) {
    snprintf(text, n,
             "; after moth.memory.record_history(true) this error says which lines hold most");
    return;
  }
  pthread_mutex_lock(&lock);
  Held *held = calloc((size_t)record.ntraces + 1, sizeof *held);
  for (size_t i = 0; i < record.nslots && held; i++) {
    const MothHistoryBlock *b = &record.blocks[i];
    if (b->address) {
      held[b->trace].bytes += b->bytes;
      held[b->trace].n++;
    }
  }
  for (int k = 0; k < HOLDERS && held; k++) {
    uint32_t best = 0;
    for (uint32_t i = 1; i <= record.ntraces; i++)
      best = held[i].bytes > held[best].bytes || !best ? i : best;
    if (!best || held[best].bytes <= 0)
      break;
    const char *where = record.traces[best - 1].text;
    int line = (int)strcspn(where, "\n");
    size_t at = strlen(text);
    snprintf(text + at, n - at, "%s%.1f MB in %lld blocks from %.*s",
             k ? ", " : "; most is held by ", (double)held[best].bytes / 1e6,
             (long long)held[best].n, line, where);
    held[best].bytes = 0;
  }
  free(held);
  pthread_mutex_unlock(&lock);
}
