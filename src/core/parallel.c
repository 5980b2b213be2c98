#include "core/parallel.h"

#include <omp.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/error.h"

static int num_threads;

__attribute__((constructor)) static void threads_init(void) {
  const char *s = getenv("MOTH_NUM_THREADS");
  if (!s)
    s = getenv("OMP_NUM_THREADS");
  num_threads = s ? atoi(s) : (int)sysconf(_SC_NPROCESSORS_ONLN);
  if (num_threads < 1)
    num_threads = 1;
}

int moth_num_threads(void) {
  return num_threads;
}

MothStatus moth_set_num_threads(int n) {
  if (n < 1 || n > 1024)
    return moth_fail(MOTH_ERR_VALUE, "set_num_threads: expected 1 to 1024, got %d", n);
  num_threads = n;
  return MOTH_OK;
}

void moth_parallel_for(int64_t n, int64_t grain, MothRange fn, void *ctx) {
  if (n <= 0)
    return;
  if (grain < 1)
    grain = 1;
  if (n <= grain) {
    fn(ctx, 0, n);
    return;
  }
  int64_t pieces = (n + grain - 1) / grain;
  int threads = moth_num_threads();
  if (threads > pieces)
    threads = (int)pieces;
  if (threads <= 1 || omp_in_parallel()) {
    fn(ctx, 0, n);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    int k = omp_get_thread_num(), m = omp_get_num_threads();
    int64_t begin = pieces * k / m * grain, end = pieces * (k + 1) / m * grain;
    if (end > n)
      end = n;
    if (begin < end)
      fn(ctx, begin, end);
  }
}
