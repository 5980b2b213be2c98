/* What convolutions cannot do without: their products of matrices, on operands that lie in the cache, and
 * one pass over the bytes that come and go. */
#include "floor.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_MAJOR = 101, N = 111 };

static float *scratch(int64_t floats) {
  static float *p;
  static int64_t have;
  if (floats > have) {
    free(p);
    p = aligned_alloc(64, ((size_t)floats * 4 + 63) & ~(size_t)63);
    for (int64_t i = 0; i < floats; i++)
      p[i] = 0.5f;
    have = floats;
  }
  return p;
}

/* list: { m, n, k, how many times } of `count` products; bytes: read half of them, write half. */
void floor_products(const int64_t *list, int count, int64_t bytes, int threads, int64_t times) {
  int64_t most = bytes / 4;
  for (int i = 0; i < count; i++) {
    const int64_t *p = list + 4 * i;
    int64_t need = (p[0] * p[1] + p[1] * p[2] + p[0] * p[2]) * threads;
    most = need > most ? need : most;
  }
  float *f = scratch(most + 64);
  int keep = omp_get_max_threads();
  floor_blas_threads(1);
  for (int64_t t = 0; t < times; t++) {
    for (int i = 0; i < count; i++) {
      int m = (int)list[4 * i], n = (int)list[4 * i + 1], k = (int)list[4 * i + 2];
      int64_t each = (int64_t)m * n + (int64_t)n * k + (int64_t)m * k;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
      for (int64_t j = 0; j < list[4 * i + 3]; j++) {
        float *a = f + (threads > 1 ? omp_get_thread_num() : 0) * each;
        float *b = a + (int64_t)m * k, *c = b + (int64_t)n * k;
        floor_sgemm(ROW_MAJOR, N, N, m, n, k, 1, a, k, b, n, 0, c, n);
      }
    }
    int64_t half = bytes / 8, step = half / threads + 1;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t j = 0; j < threads; j++) {
      int64_t from = j * step, to = from + step < half ? from + step : half;
      if (from < to)
        memcpy(f + half + from, f + from, (size_t)(to - from) * 4);
    }
  }
  omp_set_num_threads(keep);
}
