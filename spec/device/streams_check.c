/* What several threads may do at once with streams of the CPU: queue on streams of their own and on one that all
 * share, wait for each other's events, read each other's results, drop streams with work in them.
 * Prints "ok" and returns 0, or the first difference. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "moth.h"
#include "moth_ops.h"

enum { THREADS = 4, ROUNDS = 60, N = 300 };

static const MothDevice cpu = {MOTH_CPU, 0};
static MothStream *shared;
static _Atomic int64_t ran, dropped;

#define DO(call)                                                                                   \
  do {                                                                                             \
    if ((call) != MOTH_OK) {                                                                       \
      fprintf(stderr, "%s: %s\n", #call, moth_last_error());                                       \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

static MothStatus count(void *ctx) {
  atomic_fetch_add((_Atomic int64_t *)ctx, 1);
  return MOTH_OK;
}
static void drop(void *ctx) {
  (void)ctx;
  atomic_fetch_add(&dropped, 1);
}

static MothTensor *full(double value) {
  int64_t size[1] = {N};
  MothTensor *t;
  DO(moth_full(size, 1, moth_v_float(value), moth_v_dtype(MOTH_FLOAT32), moth_v_device(cpu), &t));
  return t;
}
static void expect(MothTensor *t, double want, const char *what) {
  const float *p = moth_tensor_data(t); /* waits */
  for (int i = 0; i < N; i += 97)
    if (!p || p[i] != want) {
      fprintf(stderr, "%s: got %g, expected %g\n", what, p ? p[i] : -1, want);
      exit(1);
    }
}

static void *work(void *arg) {
  int me = (int)(intptr_t)arg;
  for (int round = 0; round < ROUNDS; round++) {
    MothStream *mine, *host;
    MothEvent *e;
    MothTensor *x = full(me), *y, *z;
    DO(moth_stream_new(cpu, 0, &mine));
    DO(moth_stream_default(cpu, &host));
    DO(moth_event_new(MOTH_CPU, true, &e));
    DO(moth_stream_submit(shared, count, drop, &ran));
    DO(moth_stream_set_current(mine));
    DO(moth_add(moth_v_tensor(x), moth_v_float(round), moth_v_int(1), &y));
    moth_tensor_release(x);
    DO(moth_event_record(e, mine));
    DO(moth_stream_set_current(shared));
    DO(moth_event_wait(e, shared));
    DO(moth_mul(moth_v_tensor(y), moth_v_float(2), &z));
    DO(moth_stream_set_current(host));
    expect(z, 2.0 * (me + round), "queued");
    DO(moth_stream_wait_stream(mine, shared));
    bool done;
    DO(moth_stream_query(mine, &done));
    if (round % 3 == 0)
      DO(moth_stream_synchronize(mine));
    moth_event_free(e);
    moth_stream_release(mine); /* with a wait in it */
    moth_stream_release(host);
    moth_tensor_release(y);
    moth_tensor_release(z);
  }
  return NULL;
}

int main(void) {
  pthread_t threads[THREADS];
  DO(moth_stream_new(cpu, 0, &shared));
  for (intptr_t i = 0; i < THREADS; i++)
    pthread_create(&threads[i], NULL, work, (void *)i);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  DO(moth_device_synchronize(cpu));
  if (ran != THREADS * ROUNDS) {
    fprintf(stderr, "%lld tasks ran\n", (long long)ran);
    return 1;
  }
  moth_stream_release(shared);
  printf("ok\n");
  return 0;
}
