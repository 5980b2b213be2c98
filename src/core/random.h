/* Generators: Philox-4x32-10 keyed by the seed, at a running counter. An op that needs n values takes
 * a range of counters with moth_generator_take; value i comes from counter offset + i / 4 for any number
 * of threads and on any device (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"). */
#ifndef MOTH_CORE_RANDOM_H
#define MOTH_CORE_RANDOM_H
#include <pthread.h>

#include "moth.h"

struct MothGenerator {
  int64_t refs; /* atomic */
  pthread_mutex_t lock;
  uint64_t seed, offset;
};

typedef struct MothPhilox {
  uint64_t seed;
  uint64_t offset; /* in units of four 32-bit words */
} MothPhilox;

/* g = NULL: the default generator. n: how many 32-bit words the op uses. */
MOTH_API MothPhilox moth_generator_take(MothGenerator *g, int64_t n);
#endif
