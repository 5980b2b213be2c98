#include "core/random.h"

#include "core/alloc.h"
#include "core/defaults.h"
#include "core/error.h"

MothGenerator *moth_default_generator(void) {
  return &moth_defaults()->generator;
}

MothGenerator *moth_generator_new(uint64_t seed) {
  MothGenerator *g = moth_alloc(sizeof *g);
  if (!g) {
    moth_no_memory(0);
    return NULL;
  }
  g->refs = 1;
  pthread_mutex_init(&g->lock, NULL);
  g->seed = seed;
  g->offset = 0;
  return g;
}

void moth_generator_retain(MothGenerator *g) {
  if (g)
    __atomic_fetch_add(&g->refs, 1, __ATOMIC_RELAXED);
}

void moth_generator_release(MothGenerator *g) {
  if (g && __atomic_fetch_sub(&g->refs, 1, __ATOMIC_ACQ_REL) == 1) {
    pthread_mutex_destroy(&g->lock);
    moth_free(g, sizeof *g);
  }
}

void moth_generator_seed(MothGenerator *g, uint64_t seed) {
  moth_generator_set_state(g, seed, 0);
}

void moth_generator_get_state(const MothGenerator *g, uint64_t *seed, uint64_t *offset) {
  MothGenerator *lockable = (MothGenerator *)(uintptr_t)g;
  uint64_t now[2] = {0, 0};
  if (g) {
    pthread_mutex_lock(&lockable->lock);
    now[0] = g->seed;
    now[1] = g->offset;
    pthread_mutex_unlock(&lockable->lock);
  }
  if (seed)
    *seed = now[0];
  if (offset)
    *offset = now[1];
}

void moth_generator_set_state(MothGenerator *g, uint64_t seed, uint64_t offset) {
  if (!g)
    return;
  pthread_mutex_lock(&g->lock);
  g->seed = seed;
  g->offset = offset;
  pthread_mutex_unlock(&g->lock);
}

MothPhilox moth_generator_take(MothGenerator *g, int64_t n) {
  if (!g)
    g = &moth_defaults()->generator;
  pthread_mutex_lock(&g->lock);
  MothPhilox p = {g->seed, g->offset};
  g->offset += ((uint64_t)n + 3) / 4;
  pthread_mutex_unlock(&g->lock);
  return p;
}
