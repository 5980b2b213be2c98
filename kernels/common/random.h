/* Arguments of the typed random kernels, on every device. Element i of a call
 * is the same on each, for any number of threads: it comes from the words of a
 * Philox generator that belong to it. */
#ifndef MOTH_COMMON_RANDOM_H
#define MOTH_COMMON_RANDOM_H
#include <stdint.h>

enum {
  MOTH_RANDOM_UNIFORM,
  MOTH_RANDOM_NORMAL,
  MOTH_RANDOM_BERNOULLI,
  MOTH_RANDOM_INTEGERS,
  MOTH_RANDOM_DROPOUT
};
typedef struct MothRandom {
  int what;
  void *out;
  int64_t n;
  double a, b;    /* uniform: from, to; normal: mean, deviation; Bernoulli,
                     dropout: a probability */
  int64_t lo, hi; /* integers: in [lo, hi) */
  /* Dropout: out = in / (1 - a) where mask becomes 1, else 0. */
  const void *in;
  uint8_t *mask;
  /* The CPU: the elements [begin, end) of the call, and its words. */
  int64_t begin, end;
  uint64_t seed, offset;
} MothRandom;
#endif
