/* Streams and events.
 *
 * Each thread has a current stream on each device, to begin with the device's default one. That is a
 * stream of our own: CUDA's legacy default stream would wait for all others. Other streams come from a
 * pool of a few of each priority, used round robin: no stream needs to be returned, and the next user of a
 * stream finds the memory that the allocator caches for it. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/runtime.h"
extern "C" {
#include "core/alloc.h"
#include "core/parallel.h"
}

namespace {

enum { PER_PRIORITY = 32, PRIORITIES = 2, NEVENTS = 64 };

struct Streams {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  MothCudaStream main; /* the default one */
  MothCudaStream pool[PRIORITIES][PER_PRIORITY];
  unsigned turn[PRIORITIES];
  int high; /* CUDA's value for high priority */
  cudaEvent_t *events;
  int nevents, capacity;
};
Streams per_device[MOTH_CUDA_MAX_DEVICES];

/* NULL: the device's default stream. */
thread_local MothCudaStream *current[MOTH_CUDA_MAX_DEVICES];

} // namespace

MothStatus moth_cuda_streams_open(int device) {
  Streams *d = &per_device[device];
  int least, greatest;
  MOTH_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  d->high = greatest < -1 ? -1 : greatest;
  d->main.head.device = MothDevice{MOTH_CUDA, (uint8_t)device};
  MOTH_CUDA_TRY(cudaStreamCreateWithFlags(&d->main.s, cudaStreamNonBlocking));
  return MOTH_OK;
}

MothCudaStream *moth_cuda_stream_of(int device) {
  MothCudaStream *s = current[device];
  return s ? s : &per_device[device].main;
}
cudaStream_t moth_cuda_stream(int device) {
  return moth_cuda_stream_of(device)->s;
}
MothCudaStream *moth_cuda_stream_default(int device) {
  return &per_device[device].main;
}
void moth_cuda_stream_set(MothCudaStream *s) {
  current[s->head.device.index] = s;
}
MothCudaStream *moth_cuda_stream_find(int device, cudaStream_t s) {
  Streams *d = &per_device[device];
  if (d->main.s == s)
    return &d->main;
  for (int p = 0; p < PRIORITIES; p++)
    for (int i = 0; i < PER_PRIORITY; i++)
      if (d->pool[p][i].s == s)
        return &d->pool[p][i];
  return nullptr;
}

MothStatus moth_cuda_stream_new(int device, int priority, MothCudaStream **out) {
  Streams *d = &per_device[device];
  int p = priority < 0;
  MOTH_TRY(moth_cuda_set_device(device));
  MothLock lock(&d->lock);
  MothCudaStream *s = &d->pool[p][d->turn[p]++ % PER_PRIORITY];
  if (!s->s) {
    MothRelaxed relaxed;
    cudaStream_t made;
    s->head.device = MothDevice{MOTH_CUDA, (uint8_t)device};
    s->head.priority = p ? d->high : 0;
    MOTH_CUDA_TRY(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, s->head.priority));
    __atomic_store_n(&s->s, made, __ATOMIC_RELEASE);
  }
  *out = s;
  return MOTH_OK;
}

/* Ctrl-C ends a wait of the host, where the host has a flag for it: then CUDA is polled, at first without a pause.
 * Queued work continues. */
enum { SPINS = 2000, PAUSE_NS = 20000, LONGEST_NS = 1000000 };
template <class Query> static cudaError_t wait_for(Query query, bool *interrupted) {
  const volatile sig_atomic_t *flag = moth_interrupt_flag();
  cudaError_t e = cudaErrorNotReady;
  long pause = PAUSE_NS;
  for (int i = 0; (e = query()) == cudaErrorNotReady; i++) {
    cudaGetLastError();
    if ((*interrupted = *flag != 0))
      return cudaSuccess;
    if (i < SPINS)
      continue;
    struct timespec t = {0, pause};
    nanosleep(&t, nullptr);
    pause = pause * 2 < (long)LONGEST_NS ? pause * 2 : (long)LONGEST_NS;
  }
  return e;
}
static bool has_flag(void) {
  return moth_interrupt_flag() != nullptr;
}

MothStatus moth_cuda_stream_wait(int device, cudaStream_t s) {
  bool interrupted = false;
  cudaError_t e = has_flag() ? wait_for([=]() { return cudaStreamQuery(s); }, &interrupted)
                             : cudaStreamSynchronize(s);
  if (interrupted)
    return moth_interrupted();
  return moth_cuda_check_on(device, e, "cudaStreamSynchronize");
}
MothStatus moth_cuda_stream_poll(int device, cudaStream_t s) {
  return has_flag() ? moth_cuda_stream_wait(device, s) : MOTH_OK;
}
MothStatus moth_cuda_device_wait(int device) {
  MOTH_TRY(moth_cuda_set_device(device));
  if (has_flag()) { /* polls moth's own streams; cudaDeviceSynchronize below waits for others */
    Streams *d = &per_device[device];
    MOTH_TRY(moth_cuda_stream_wait(device, d->main.s));
    for (int p = 0; p < PRIORITIES; p++)
      for (int i = 0; i < PER_PRIORITY; i++)
        if (cudaStream_t s = __atomic_load_n(&d->pool[p][i].s, __ATOMIC_ACQUIRE))
          MOTH_TRY(moth_cuda_stream_wait(device, s));
  }
  MOTH_CUDA_TRY(cudaDeviceSynchronize());
  return moth_cuda_take_fault(device);
}

MothStatus moth_cuda_stream_synchronize(MothCudaStream *s) {
  int device = s->head.device.index;
  MOTH_TRY(moth_cuda_set_device(device));
  MOTH_TRY(moth_cuda_stream_wait(device, s->s));
  return moth_cuda_take_fault(device);
}
MothStatus moth_cuda_stream_query(MothCudaStream *s, bool *done) {
  MOTH_TRY(moth_cuda_set_device(s->head.device.index));
  cudaError_t e = cudaStreamQuery(s->s);
  *done = e == cudaSuccess;
  if (e == cudaErrorNotReady)
    return cudaGetLastError(), MOTH_OK;
  return moth_cuda_check_on(s->head.device.index, e, "cudaStreamQuery");
}
MothStatus moth_cuda_stream_wait_stream(MothCudaStream *s, MothCudaStream *for_this) {
  MOTH_TRY(moth_cuda_set_device(s->head.device.index));
  MOTH_TRY(moth_cuda_set_device(for_this->head.device.index));
  return moth_cuda_order(for_this->head.device.index, for_this->s, s->head.device.index, s->s);
}

/* --- events without timing, pooled ------------------------------------------------------------------- */

MothStatus moth_cuda_event_take(int device, cudaEvent_t *e) {
  Streams *d = &per_device[device];
  {
    MothLock lock(&d->lock);
    if (d->nevents > 0) {
      *e = d->events[--d->nevents];
      return MOTH_OK;
    }
  }
  MOTH_TRY(moth_cuda_set_device(device));
  MothRelaxed relaxed;
  MOTH_CUDA_TRY(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
  return MOTH_OK;
}
void moth_cuda_event_give(int device, cudaEvent_t e) {
  Streams *d = &per_device[device];
  MothLock lock(&d->lock);
  if (d->nevents == d->capacity) {
    int capacity = d->capacity ? 2 * d->capacity : NEVENTS;
    cudaEvent_t *events = (cudaEvent_t *)realloc(d->events, sizeof *events * (size_t)capacity);
    if (!events) {
      cudaEventDestroy(e);
      return;
    }
    d->events = events;
    d->capacity = capacity;
  }
  d->events[d->nevents++] = e;
}

MothStatus moth_cuda_order(int device, cudaStream_t earlier, int later_device, cudaStream_t later) {
  if (earlier == later)
    return MOTH_OK;
  cudaEvent_t e;
  MOTH_TRY(moth_cuda_event_take(device, &e));
  MothStatus s = moth_cuda_check_on(device, cudaEventRecord(e, earlier), "cudaEventRecord");
  if (s == MOTH_OK)
    s = moth_cuda_check_on(later_device, cudaStreamWaitEvent(later, e, 0), "cudaStreamWaitEvent");
  moth_cuda_event_give(device, e); /* streams that wait for it are not affected */
  return s;
}

/* --- events of the user, and the table of it all --------------------------------------------------- */

namespace {

struct Event {
  cudaEvent_t e;
  int device;
};

MothCudaStream *ours(MothStream *s) {
  return reinterpret_cast<MothCudaStream *>(s);
}

MothStatus event_record(void **state, bool timing, MothStream *on) {
  MothCudaStream *s = ours(on);
  int device = on->device.index;
  MOTH_TRY(moth_cuda_set_device(device));
  Event *e = static_cast<Event *>(*state);
  if (!e) {
    MothRelaxed relaxed;
    e = static_cast<Event *>(moth_alloc(sizeof *e));
    if (!e)
      return moth_fail(MOTH_ERR_MEMORY, "out of memory: no event can be made");
    cudaError_t made =
        cudaEventCreateWithFlags(&e->e, timing ? cudaEventDefault : cudaEventDisableTiming);
    if (made != cudaSuccess) {
      moth_free(e, sizeof *e);
      return moth_cuda_check_on(device, made, "cudaEventCreateWithFlags");
    }
    e->device = device;
    *state = e;
  }
  return moth_cuda_check_on(device, cudaEventRecord(e->e, s->s), "cudaEventRecord");
}
void event_free(void *state) {
  Event *e = static_cast<Event *>(state);
  cudaEventDestroy(e->e);
  moth_free(e, sizeof *e);
}
MothStatus event_wait(void *state, MothStream *on) {
  int device = on->device.index;
  MOTH_TRY(moth_cuda_set_device(device));
  return moth_cuda_check_on(device,
                            cudaStreamWaitEvent(ours(on)->s, static_cast<Event *>(state)->e, 0),
                            "cudaStreamWaitEvent");
}
MothStatus event_query(void *state, bool *done) {
  Event *e = static_cast<Event *>(state);
  cudaError_t status = cudaEventQuery(e->e);
  *done = status == cudaSuccess;
  if (status == cudaErrorNotReady)
    return cudaGetLastError(), MOTH_OK;
  return moth_cuda_check_on(e->device, status, "cudaEventQuery");
}
MothStatus event_synchronize(void *state) {
  Event *e = static_cast<Event *>(state);
  bool interrupted = false;
  cudaError_t status = has_flag() ? wait_for([=]() { return cudaEventQuery(e->e); }, &interrupted)
                                  : cudaEventSynchronize(e->e);
  if (interrupted)
    return moth_interrupted();
  MOTH_TRY(moth_cuda_check_on(e->device, status, "cudaEventSynchronize"));
  return moth_cuda_take_fault(e->device);
}
MothStatus event_elapsed(void *from, void *to, double *ms) {
  float t = 0;
  Event *a = static_cast<Event *>(from), *b = static_cast<Event *>(to);
  cudaError_t status = cudaEventElapsedTime(&t, a->e, b->e);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return moth_fail(MOTH_ERR_STATE, "elapsed_time: the device has not come to both events yet; "
                                     "call synchronize() on the later one");
  }
  *ms = (double)t;
  return moth_cuda_check_on(a->device, status, "cudaEventElapsedTime");
}

MothStatus create(int device, int priority, MothStream **out) {
  MothCudaStream *s;
  MOTH_TRY(moth_cuda_stream_new(device, priority, &s));
  *out = &s->head;
  return MOTH_OK;
}
MothStream *first(int device) {
  return &moth_cuda_stream_default(device)->head;
}
MothStream *current_of(int device) {
  return &moth_cuda_stream_of(device)->head;
}
void set(MothStream *s) {
  moth_cuda_stream_set(ours(s));
}
void *handle(const MothStream *s) {
  return (void *)reinterpret_cast<const MothCudaStream *>(s)->s;
}
MothStatus synchronize(MothStream *s) {
  return moth_cuda_stream_synchronize(ours(s));
}
MothStatus query(MothStream *s, bool *done) {
  return moth_cuda_stream_query(ours(s), done);
}
MothStatus order(MothStream *earlier, MothStream *later) {
  return moth_cuda_stream_wait_stream(ours(later), ours(earlier));
}
MothStatus record_stream(MothTensor *t, MothStream *s) {
  return t->storage->data ? moth_cuda_record_stream(t->device.index, t->storage->data, ours(s)->s)
                          : MOTH_OK;
}

} // namespace

const MothStreamOps moth_cuda_streams = {create,
                                         nullptr,
                                         nullptr,
                                         first,
                                         current_of,
                                         set,
                                         handle,
                                         synchronize,
                                         moth_cuda_device_wait,
                                         query,
                                         order,
                                         record_stream,
                                         event_record,
                                         event_free,
                                         event_wait,
                                         event_query,
                                         event_synchronize,
                                         event_elapsed};
