/* What several threads may do at once, for ThreadSanitizer (make tsan): allocate and free for each other,
 * share tensors and weights, run backward, draw from a generator of their own, save files.
 * Prints "ok" and returns 0, or the first difference. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/file.h"
#include "moth.h"
#include "moth_ops.h"

enum { THREADS = 4, ROUNDS = 200, N = 64 };

static MothTensor *shared; /* read by all */
static MothTensor *weight; /* requires grad; every thread differentiates by it */
static const char *folder;

/* A mailbox: what one thread has made another one frees. */
static MothTensor *box[THREADS];
static pthread_mutex_t box_lock = PTHREAD_MUTEX_INITIALIZER;

#define DO(call)                                                                                   \
  do {                                                                                             \
    if ((call) != MOTH_OK) {                                                                       \
      fprintf(stderr, "%s: %s\n", #call, moth_last_error());                                       \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

static void expect(MothTensor *t, double want, const char *what) {
  MothValue v;
  DO(moth_tensor_item(t, &v));
  if (v.u.d != want) {
    fprintf(stderr, "%s: got %g, expected %g\n", what, v.u.d, want);
    exit(1);
  }
}

static void exchange(int me, MothTensor *t) {
  pthread_mutex_lock(&box_lock);
  int other = (me + 1) % THREADS;
  MothTensor *old = box[other];
  box[other] = t;
  pthread_mutex_unlock(&box_lock);
  moth_tensor_release(old);
}

static void compute(int me) {
  MothTensor *y, *s;
  DO(moth_mul(moth_v_tensor(shared), moth_v_tensor(shared), &y));
  DO(moth_sum(y, moth_v_none(), false, moth_v_none(), &s));
  expect(s, 4.0 * N * N, "sum of squares");
  moth_tensor_release(s);
  exchange(me, y);
  DO(moth_matmul(shared, shared, &y));
  DO(moth_sum(y, moth_v_none(), false, moth_v_none(), &s));
  expect(s, 4.0 * N * N * N, "sum of product");
  moth_tensor_release(s);
  exchange(me, y);
}

static void differentiate(void) {
  MothTensor *y, *s, *g;
  DO(moth_mul(moth_v_tensor(weight), moth_v_tensor(shared), &y));
  DO(moth_sum(y, moth_v_none(), false, moth_v_none(), &s));
  DO(moth_grad(&s, NULL, 1, &weight, 1, false, false, false, &g));
  moth_tensor_release(s);
  moth_tensor_release(y);
  DO(moth_sum(g, moth_v_none(), false, moth_v_none(), &s));
  expect(s, 2.0 * N * N, "gradient");
  moth_tensor_release(s);
  moth_tensor_release(g);
}

static void draw(void) {
  MothGenerator *g = moth_generator_new(7);
  int64_t size[1] = {16};
  MothTensor *a, *s;
  DO(moth_randn(size, 1, moth_v_none(), moth_v_none(), g, &a));
  DO(moth_sum(a, moth_v_none(), false, moth_v_none(), &s));
  moth_tensor_release(a);
  moth_tensor_release(s);
  moth_generator_release(g);
  DO(moth_randn(size, 1, moth_v_none(), moth_v_none(), NULL, &a)); /* the default one, shared */
  moth_tensor_release(a);
}

static void save(int me, int round) {
  char path[600], text[64];
  snprintf(path, sizeof path, "%s/file%d", folder, round % 2);
  int n = snprintf(text, sizeof text, "thread %d round %d", me, round);
  MothPiece piece = {text, (size_t)n};
  DO(moth_file_write_atomic(path, &piece, 1));
}

static void *work(void *arg) {
  int me = (int)(intptr_t)arg;
  for (int i = 0; i < ROUNDS; i++) {
    compute(me);
    differentiate();
    draw();
    if (i % 10 == 0)
      save(me, i / 10);
    MothMemStats stats;
    moth_memory_stats(&stats);
    if (i % 50 == 0)
      moth_memory_empty_cache();
    bool was = moth_set_grad_enabled(i & 1);
    moth_set_grad_enabled(was);
  }
  return NULL;
}

int main(int argc, char **argv) {
  int64_t size[2] = {N, N};
  pthread_t threads[THREADS];
  folder = argc > 1 ? argv[1] : ".";
  DO(moth_full(size, 2, moth_v_float(2), moth_v_none(), moth_v_none(), &shared));
  DO(moth_full(size, 2, moth_v_float(3), moth_v_none(), moth_v_none(), &weight));
  DO(moth_tensor_set_requires_grad(weight, true));
  for (int i = 0; i < THREADS; i++)
    pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  for (int i = 0; i < THREADS; i++)
    moth_tensor_release(box[i]);
  moth_tensor_release(shared);
  moth_tensor_release(weight);
  puts("ok");
  return 0;
}
