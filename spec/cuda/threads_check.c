/* What several threads may do at once with CUDA: allocate on streams of their own, free for each other,
 * copy between devices and from pinned memory, capture graphs, empty the cache.
 * Prints "ok" and returns 0, or the first difference. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/defaults.h"
#include "device/cuda.h"
#include "device/device.h"
#include "moth.h"
#include "moth_ops.h"

enum { THREADS = 4, ROUNDS = 40, N = 700 };

static const MothCudaApi *cuda;
static MothTensor *shared; /* on cuda:0, read by all */
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
  MothTensor *host;
  DO(moth_to(t, moth_v_none(), moth_v_device((MothDevice){MOTH_CPU, 0}), false, false, &host));
  for (int i = 0; i < N; i += 233) {
    double got = ((float *)moth_tensor_data(host))[i];
    if (got != want) {
      fprintf(stderr, "%s: got %g at %d, expected %g\n", what, got, i, want);
      exit(1);
    }
  }
  moth_tensor_release(host);
}

/* What one thread has made another one frees. */
static void exchange(int me, MothTensor *t) {
  pthread_mutex_lock(&box_lock);
  int other = (me + 1) % THREADS;
  MothTensor *old = box[other];
  box[other] = t;
  pthread_mutex_unlock(&box_lock);
  moth_tensor_release(old);
}

static void compute(int me, int round) {
  MothTensor *x, *y, *z, *w;
  int64_t size[1] = {N};
  MothDevice here = {MOTH_CUDA, (uint8_t)(me % cuda->count())}, zero = {MOTH_CUDA, 0};
  DO(moth_full(size, 1, moth_v_float(me + round), moth_v_none(), moth_v_device(here), &x));
  DO(moth_mul(moth_v_tensor(x), moth_v_tensor(x), &y));
  DO(moth_to(y, moth_v_none(), moth_v_device(zero), false, true, &z));
  DO(moth_add(moth_v_tensor(z), moth_v_tensor(shared), moth_v_int(1), &w));
  expect(w, (double)(me + round) * (me + round) + 2, "sum of squares");
  exchange(me, x);
  exchange(me, y);
  exchange(me, z);
  moth_tensor_release(w);
}

static void copy_pinned(int me, int round) {
  MothTensor *x, *p, *y;
  int64_t size[1] = {N};
  MothDevice here = {MOTH_CUDA, (uint8_t)(me % cuda->count())};
  DO(moth_full(size, 1, moth_v_float(me - round), moth_v_none(), moth_v_none(), &x));
  DO(cuda->pin(x, &p));
  DO(moth_to(p, moth_v_none(), moth_v_device(here), true, false, &y));
  moth_tensor_release(p); /* the copy has not run yet */
  moth_tensor_release(x);
  expect(y, me - round, "pinned");
  exchange(me, y);
}

static void capture(int me) {
  MothTensor *x, *y;
  int64_t size[1] = {N};
  MothDevice zero = {MOTH_CUDA, 0};
  DO(moth_full(size, 1, moth_v_float(me), moth_v_none(), moth_v_device(zero), &x));
  MothCudaGraph *g = cuda->graph_new();
  cuda->set_current(0);
  DO(cuda->graph_begin(g, 0, MOTH_CUDA_THREAD_LOCAL));
  DO(moth_add(moth_v_tensor(x), moth_v_tensor(x), moth_v_int(1), &y));
  DO(cuda->graph_end(g));
  DO(cuda->graph_replay(g));
  expect(y, 2 * me, "graph");
  cuda->graph_free(g);
  moth_tensor_release(x);
  moth_tensor_release(y);
}

static void *work(void *arg) {
  int me = (int)(intptr_t)arg;
  for (int d = 0; d < cuda->count(); d++) {
    MothStream *s, *first;
    MothDevice device = {MOTH_CUDA, (uint8_t)d};
    DO(moth_stream_new(device, 0, &s));
    DO(moth_stream_default(device, &first));
    if (d == 0) /* after what the main thread did */
      DO(moth_stream_wait_stream(s, first));
    DO(moth_stream_set_current(s));
  }
  for (int i = 0; i < ROUNDS; i++) {
    compute(me, i);
    copy_pinned(me, i);
    if (i % 8 == me)
      capture(me);
    if (i % 10 == 0) {
      MothCudaMemory m;
      cuda->memory(0, &m);
      if (cuda->empty_cache(0) != MOTH_OK && !me)
        continue; /* another one captures */
    }
  }
  for (int d = 0; d < cuda->count(); d++) {
    MothStream *s;
    DO(moth_stream_current((MothDevice){MOTH_CUDA, (uint8_t)d}, &s));
    DO(moth_stream_synchronize(s));
  }
  return NULL;
}

/* The host's flag for Ctrl-C ends a wait; the work goes on. */
static void interrupt(void) {
  static volatile sig_atomic_t flag;
  MothDevice device = {MOTH_CUDA, 0};
  MothDefaults *d = moth_defaults_new();
  MothTensor *x, *y;
  int64_t size[1] = {N};
  d->interrupt = &flag;
  moth_defaults_use(d);
  DO(moth_full(size, 1, moth_v_float(0), moth_v_none(), moth_v_device(device), &x));
  for (int i = 0; i < 300; i++) {
    DO(moth_add(moth_v_tensor(x), moth_v_float(1), moth_v_int(1), &y));
    moth_tensor_release(x);
    x = y;
  }
  flag = 1;
  MothStatus s = moth_device_synchronize(device);
  flag = 0;
  if (s != MOTH_ERR_INTERRUPTED) {
    fprintf(stderr, "a wait was not interrupted: %d\n", (int)s);
    exit(1);
  }
  expect(x, 300, "interrupted");
  moth_tensor_release(x);
  moth_defaults_use(NULL);
  moth_defaults_free(d);
}

int main(void) {
  int64_t size[1] = {N};
  pthread_t threads[THREADS];
  cuda = moth_cuda_api();
  if (!cuda) {
    fprintf(stderr, "%s\n", moth_last_error());
    return 1;
  }
  DO(moth_full(size, 1, moth_v_float(2), moth_v_none(), moth_v_device((MothDevice){MOTH_CUDA, 0}),
               &shared));
  for (int i = 0; i < THREADS; i++)
    pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  for (int i = 0; i < THREADS; i++)
    moth_tensor_release(box[i]);
  moth_tensor_release(shared);
  interrupt();
  MothCudaMemory m;
  for (int d = 0; d < cuda->count(); d++) {
    DO(moth_device_synchronize((MothDevice){MOTH_CUDA, (uint8_t)d}));
    cuda->memory(d, &m);
    if (m.allocated.current || m.blocks.current) {
      fprintf(stderr, "cuda:%d: %lld bytes are left\n", d, (long long)m.allocated.current);
      return 1;
    }
    DO(cuda->empty_cache(d));
    cuda->memory(d, &m);
    if (m.reserved.current || m.active.current) {
      fprintf(stderr, "cuda:%d: %lld bytes stay reserved\n", d, (long long)m.reserved.current);
      return 1;
    }
  }
  puts("ok");
  return 0;
}
