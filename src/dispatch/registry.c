/* The ops by id and by name.
 *
 * By id: chunks of pointers that never move, so that readers need no lock. By name: a hash table with open addressing;
 * a larger one replaces it, and the old one is kept for concurrent readers. Writers lock one mutex. */
#include "dispatch/registry.h"
#include "core/alloc.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 512, NCHUNKS = 128 }; /* 65536: as many as an id of 16 bits can name */

typedef struct Names {
  struct Names *older; /* the table that this one has replaced */
  size_t mask, used;   /* used: also the entries of removed ops */
  _Atomic(MothOp *) at[];
} Names;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(_Atomic(MothOp *) *) chunks[NCHUNKS];
static _Atomic int count;
static _Atomic(Names *) names;
static MothOp removed; /* marks an entry that look-ups skip and the next op reuses */

/* FNV-1a */
static size_t hash(const char *name) {
  uint64_t h = 14695981039346656037ull;
  for (; *name; name++)
    h = (h ^ (unsigned char)*name) * 1099511628211ull;
  return (size_t)(h ^ h >> 32);
}

static Names *new_names(size_t n) {
  Names *t = calloc(1, sizeof *t + n * sizeof t->at[0]);
  if (t)
    t->mask = n - 1;
  return t;
}

static void put(Names *t, MothOp *op) {
  size_t i = hash(op->name) & t->mask;
  while (t->at[i] && t->at[i] != &removed)
    i = (i + 1) & t->mask;
  t->used += !t->at[i];
  atomic_store_explicit(&t->at[i], op, memory_order_release);
}

/* The entry of the op of this name, or NULL. */
static _Atomic(MothOp *) *place_of(const char *name) {
  Names *t = atomic_load_explicit(&names, memory_order_acquire);
  for (size_t i = t ? hash(name) & t->mask : 0; t; i = (i + 1) & t->mask) {
    MothOp *op = atomic_load_explicit(&t->at[i], memory_order_acquire);
    if (!op)
      return NULL;
    if (op != &removed && !strcmp(op->name, name))
      return &t->at[i];
  }
  return NULL;
}

/* A table with a free entry. At most two thirds of it are in use. */
static Names *with_place(void) {
  Names *old = names;
  if (old && old->used * 3 < old->mask * 2)
    return old;
  size_t live = 0;
  for (size_t i = 0; old && i <= old->mask; i++)
    live += old->at[i] && old->at[i] != &removed;
  Names *t = new_names(old ? (live * 2 > old->mask ? 2 : 1) * (old->mask + 1) : 1024);
  if (!t)
    return NULL;
  for (size_t i = 0; old && i <= old->mask; i++)
    if (old->at[i] && old->at[i] != &removed)
      put(t, old->at[i]);
  t->older = old;
  atomic_store_explicit(&names, t, memory_order_release);
  return t; /* the old one is kept: another thread may be reading it */
}

static MothStatus add(MothOp *op) {
  int id = count;
  if (place_of(op->name))
    return moth_fail(MOTH_ERR_VALUE, "there is an op named '%s' already: %s", op->name,
                     moth_op_find(op->name)->place);
  if (id >= CHUNK * NCHUNKS)
    return moth_fail(MOTH_ERR_STATE, "more than %d ops were defined", CHUNK * NCHUNKS);
  _Atomic(MothOp *) *chunk = chunks[id / CHUNK];
  if (!chunk) {
    chunk = calloc(CHUNK, sizeof *chunk);
    chunks[id / CHUNK] = chunk;
  }
  Names *t = chunk ? with_place() : NULL;
  if (!t)
    return moth_no_memory(0);
  op->id = (uint16_t)id;
  op->gone = false;
  chunk[id % CHUNK] = op;
  put(t, op);
  atomic_store_explicit(&count, id + 1, memory_order_release);
  return MOTH_OK;
}

MothStatus moth_registry_add(MothOp *op) {
  pthread_mutex_lock(&lock);
  MothStatus s = add(op);
  pthread_mutex_unlock(&lock);
  return s;
}

MothStatus moth_registry_remove(MothOp *op) {
  pthread_mutex_lock(&lock);
  _Atomic(MothOp *) *place = op && !op->gone ? place_of(op->name) : NULL;
  bool found = place && *place == op;
  if (found) {
    *place = &removed;
    op->gone = true;
  }
  pthread_mutex_unlock(&lock);
  return found ? MOTH_OK : moth_fail(MOTH_ERR_STATE, "the op is not in the registry");
}

int moth_registry_count(void) {
  return atomic_load_explicit(&count, memory_order_acquire);
}

MothOp *moth_registry_at(int id) {
  return id >= 0 && id < moth_registry_count() ? chunks[id / CHUNK][id % CHUNK] : NULL;
}

const MothOp *moth_op_find(const char *name) {
  _Atomic(MothOp *) *place = name ? place_of(name) : NULL;
  MothOp *op = place ? *place : NULL;
  return op == &removed ? NULL : op;
}

MothStatus moth_op_set_loops(const char *name, MothDeviceType backend, const void *loops) {
  MothOp *op = (MothOp *)moth_op_find(name);
  if (!op)
    return moth_fail(MOTH_ERR_VALUE, "there is no op named '%s'", name);
  __atomic_store_n(&op->loops[backend], loops, __ATOMIC_RELEASE);
  return MOTH_OK;
}

MothStatus moth_op_register(const char *name, MothDeviceType backend, MothKernel kernel) {
  MothOp *op = (MothOp *)moth_op_find(name);
  if (!op)
    return moth_fail(MOTH_ERR_VALUE, "there is no op named '%s'", name ? name : "NULL");
  if ((unsigned)backend >= MOTH_NDEVICES || !kernel)
    return moth_fail(MOTH_ERR_TYPE, "op_register: %s is no %s", kernel ? "this" : "NULL",
                     kernel ? "type of device" : "kernel");
  __atomic_store_n(&op->kernels[backend], kernel, __ATOMIC_RELEASE);
  return MOTH_OK;
}
