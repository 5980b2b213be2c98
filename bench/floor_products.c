/* The least work of a network: its matrix products, on operands in the cache, and for each op one pass over its
 * operands and results. */
#include "floor.h"

#include <omp.h>
#include <stddef.h>

enum { ROW_MAJOR = 101, N = 111 };

static float *scratch(int64_t floats) {
  static float *p;
  static int64_t have;
  if (floats > have) {
    floor_release(p);
    p = floor_buffer(floats * 4);
    for (int64_t i = 0; i < floats; i++)
      p[i] = 0.5f;
    have = floats;
  }
  return p;
}

/* Sums part `part` of `parts` of `reads` floats, and writes the same part of `writes`, chunk by chunk, to `to` or (NULL)
 * in place. By ordinary stores, so that the next op finds results in the cache: memcpy bypasses it from some size on. */
static void pass(float *from, int64_t reads, float *to, int64_t writes, int part, int parts) {
  enum { PIECE = 256, AHEAD = 1024, LANES = 64 };
  int64_t pieces = ((reads > writes ? reads : writes) + PIECE - 1) / PIECE;
  float lane[LANES] = {0};
  for (int64_t k = pieces * part / parts; k < pieces * (part + 1) / parts; k++) {
    int64_t first = reads * k / pieces, end = reads * (k + 1) / pieces;
    for (int64_t i = first; i + LANES <= end; i += LANES)
      for (int l = 0; l < LANES; l++)
        lane[l] += from[i + l];
    int64_t j = writes * k / pieces, n = writes * (k + 1) / pieces - j;
    float *o = to ? to + j : from + first;
    for (int64_t i = 0; to && i < n; i += 16)
      __builtin_prefetch(o + AHEAD + i, 1);
    for (int64_t i = 0; i + LANES <= n; i += LANES)
      for (int l = 0; l < LANES; l++)
        o[i + l] = lane[l];
  }
}

static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/* products: { m, n, k, repetitions }; passes: { floats read, floats written, whether in place }. */
void floor_products(const int64_t *products, int n_products, const int64_t *passes, int n_passes,
                    int threads, int64_t times) {
  int64_t most = 0;
  for (const int64_t *p = products; p < products + 4 * n_products; p += 4)
    most = larger(most, (p[0] * p[1] + p[1] * p[2] + p[0] * p[2]) * threads);
  for (const int64_t *p = passes; p < passes + 3 * n_passes; p += 3)
    most = larger(most, p[0] + p[1]);
  float *f = scratch(most + 64);
  int keep = omp_get_max_threads();
  floor_blas_threads(1);
  for (int64_t t = 0; t < times; t++) {
    for (const int64_t *p = products; p < products + 4 * n_products; p += 4) {
      int m = (int)p[0], n = (int)p[1], k = (int)p[2];
      int64_t each = (int64_t)m * n + (int64_t)n * k + (int64_t)m * k;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
      for (int64_t j = 0; j < p[3]; j++) {
        float *a = f + (threads > 1 ? omp_get_thread_num() : 0) * each;
        float *b = a + (int64_t)m * k, *c = b + (int64_t)n * k;
        floor_sgemm(ROW_MAJOR, N, N, m, n, k, 1, a, k, b, n, 0, c, n);
      }
    }
    for (const int64_t *p = passes; p < passes + 3 * n_passes; p += 3) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
      for (int j = 0; j < threads; j++)
        pass(f, p[0], p[2] ? NULL : f + p[0], p[1], j, threads);
    }
  }
  omp_set_num_threads(keep);
}
