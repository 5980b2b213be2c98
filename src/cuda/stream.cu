/* Streams and events.
 *
 * Each thread has a current stream on each device, to begin with the device's default one. That is a
 * stream of our own: CUDA's legacy default stream would wait for all others. Other streams come from a
 * pool of a few of each priority and are handed out in turn, so that nobody has to give one back, and
 * what the allocator keeps for a stream is found by those that get it next. */
#include <stdlib.h>
#include <string.h>

#include "cuda/runtime.h"
extern "C" {
#include "core/alloc.h"
}

namespace {

enum { PER_PRIORITY = 32, PRIORITIES = 2, NEVENTS = 64 };

struct Streams {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  MothCudaStream main; /* the default one */
  MothCudaStream pool[PRIORITIES][PER_PRIORITY];
  unsigned turn[PRIORITIES];
  int high; /* CUDA's number of the high priority */
  cudaEvent_t *events;
  int nevents, room;
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
  d->main.device = device;
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
  current[s->device] = s;
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
    s->device = device;
    s->priority = p ? d->high : 0;
    MOTH_CUDA_TRY(cudaStreamCreateWithPriority(&s->s, cudaStreamNonBlocking, s->priority));
  }
  *out = s;
  return MOTH_OK;
}

MothStatus moth_cuda_stream_synchronize(MothCudaStream *s) {
  MOTH_TRY(moth_cuda_set_device(s->device));
  MOTH_CUDA_TRY(cudaStreamSynchronize(s->s));
  return moth_cuda_take_fault(s->device);
}
MothStatus moth_cuda_stream_query(MothCudaStream *s, bool *done) {
  MOTH_TRY(moth_cuda_set_device(s->device));
  cudaError_t e = cudaStreamQuery(s->s);
  *done = e == cudaSuccess;
  if (e == cudaErrorNotReady)
    return cudaGetLastError(), MOTH_OK;
  return moth_cuda_check_on(s->device, e, "cudaStreamQuery");
}
MothStatus moth_cuda_stream_wait_stream(MothCudaStream *s, MothCudaStream *for_this) {
  MOTH_TRY(moth_cuda_set_device(s->device));
  MOTH_TRY(moth_cuda_set_device(for_this->device));
  return moth_cuda_order(for_this->device, for_this->s, s->device, s->s);
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
  if (d->nevents == d->room) {
    int room = d->room ? 2 * d->room : NEVENTS;
    cudaEvent_t *events = (cudaEvent_t *)realloc(d->events, sizeof *events * (size_t)room);
    if (!events) {
      cudaEventDestroy(e);
      return;
    }
    d->events = events;
    d->room = room;
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
  moth_cuda_event_give(device, e); /* what waits for it keeps what was recorded */
  return s;
}

/* --- events of the user ------------------------------------------------------------------------------ */

struct MothCudaEvent {
  cudaEvent_t e; /* from the first record on */
  int device;
  bool timing;
};

MothCudaEvent *moth_cuda_event_new(bool timing) {
  MothCudaEvent *e = (MothCudaEvent *)moth_alloc(sizeof *e);
  if (!e)
    return nullptr;
  e->e = nullptr;
  e->device = -1;
  e->timing = timing;
  return e;
}
void moth_cuda_event_free(MothCudaEvent *e) {
  if (e->e)
    cudaEventDestroy(e->e);
  moth_free(e, sizeof *e);
}
MothStatus moth_cuda_event_record(MothCudaEvent *e, MothCudaStream *s) {
  MOTH_TRY(moth_cuda_set_device(s->device));
  if (!e->e) {
    MothRelaxed relaxed;
    MOTH_CUDA_TRY(
        cudaEventCreateWithFlags(&e->e, e->timing ? cudaEventDefault : cudaEventDisableTiming));
    e->device = s->device;
  }
  if (e->device != s->device)
    return moth_fail(MOTH_ERR_VALUE, "the event belongs to cuda:%d, the stream to cuda:%d",
                     e->device, s->device);
  return moth_cuda_check_on(s->device, cudaEventRecord(e->e, s->s), "cudaEventRecord");
}
MothStatus moth_cuda_event_wait(MothCudaEvent *e, MothCudaStream *s) {
  if (!e->e)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_set_device(s->device));
  return moth_cuda_check_on(s->device, cudaStreamWaitEvent(s->s, e->e, 0), "cudaStreamWaitEvent");
}
MothStatus moth_cuda_event_query(MothCudaEvent *e, bool *done) {
  *done = true;
  if (!e->e)
    return MOTH_OK;
  cudaError_t status = cudaEventQuery(e->e);
  *done = status == cudaSuccess;
  if (status == cudaErrorNotReady)
    return cudaGetLastError(), MOTH_OK;
  return moth_cuda_check_on(e->device, status, "cudaEventQuery");
}
MothStatus moth_cuda_event_synchronize(MothCudaEvent *e) {
  if (!e->e)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_check_on(e->device, cudaEventSynchronize(e->e), "cudaEventSynchronize"));
  return moth_cuda_take_fault(e->device);
}
MothStatus moth_cuda_event_elapsed(MothCudaEvent *from, MothCudaEvent *to, double *ms) {
  float t;
  if (!from->timing || !to->timing)
    return moth_fail(MOTH_ERR_STATE, "elapsed_time: both events must be made with "
                                     "{enable_timing = true}");
  if (!from->e || !to->e)
    return moth_fail(MOTH_ERR_STATE, "elapsed_time: both events must have been recorded");
  if (from->device != to->device)
    return moth_fail(MOTH_ERR_VALUE, "elapsed_time: the events belong to cuda:%d and cuda:%d",
                     from->device, to->device);
  cudaError_t status = cudaEventElapsedTime(&t, from->e, to->e);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return moth_fail(MOTH_ERR_STATE, "elapsed_time: the device has not come to both events yet; "
                                     "call synchronize() on the later one");
  }
  *ms = (double)t;
  return moth_cuda_check_on(from->device, status, "cudaEventElapsedTime");
}
