#include "core/random.h"

#include <pthread.h>
#include <stdatomic.h>

#include "core/alloc.h"
#include "core/error.h"

struct MothGenerator {
  _Atomic int64_t refs;
  pthread_mutex_t lock;
  uint64_t seed, offset;
};

/* Lives as long as the process: its count never reaches 0. */
static MothGenerator default_generator = {1, PTHREAD_MUTEX_INITIALIZER, 42, 0};

MothGenerator *moth_default_generator(void) {
  return &default_generator;
}

MothGenerator *moth_generator_new(uint64_t seed) {
  MothGenerator *g = moth_alloc(sizeof *g);
  if (!g) {
    moth_fail(MOTH_ERR_MEMORY, "out of memory: could not allocate a generator");
    return NULL;
  }
  g->refs = 1;
  pthread_mutex_init(&g->lock, NULL);
  g->seed = seed;
  g->offset = 0;
  return g;
}

void moth_generator_retain(MothGenerator *g) {
  atomic_fetch_add(&g->refs, 1);
}

void moth_generator_release(MothGenerator *g) {
  if (g && atomic_fetch_sub(&g->refs, 1) == 1) {
    pthread_mutex_destroy(&g->lock);
    moth_free(g, sizeof *g);
  }
}

void moth_generator_seed(MothGenerator *g, uint64_t seed) {
  moth_generator_set_state(g, seed, 0);
}

void moth_generator_get_state(const MothGenerator *g, uint64_t *seed, uint64_t *offset) {
  *seed = g->seed;
  *offset = g->offset;
}

void moth_generator_set_state(MothGenerator *g, uint64_t seed, uint64_t offset) {
  pthread_mutex_lock(&g->lock);
  g->seed = seed;
  g->offset = offset;
  pthread_mutex_unlock(&g->lock);
}

MothPhilox moth_generator_take(MothGenerator *g, int64_t n) {
  if (!g)
    g = &default_generator;
  pthread_mutex_lock(&g->lock);
  MothPhilox p = {g->seed, g->offset};
  g->offset += ((uint64_t)n + 3) / 4;
  pthread_mutex_unlock(&g->lock);
  return p;
}
