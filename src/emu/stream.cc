/* The queues. See api.h for what they are for.
 *
 * An operation may run when it is the first of its stream and the marks that it comes after have run. A call that
 * waits sets on each stream how far it must run (`need`); the other streams run or not at random: work that nobody
 * waits for can be early or late. */
#include <time.h>

#include <algorithm>
#include <unordered_set>

#include "emu/emu.h"

namespace {

enum { MAX_QUEUED = 10000 };

struct Queues {
  std::unordered_set<cudaStream_t> streams; /* all but destroyed ones that are empty */
  std::unordered_set<cudaEvent_t> events;
  std::vector<cudaStream_t> busy; /* those with queued operations */
  size_t queued = 0;
  uint64_t numbers = 0;
  MothEmuRandom random{moth_emu_seed()};
};
/* Never destroyed: threads may outlive static objects. */
Queues &q = *new Queues;

double now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

bool ready(cudaStream_t s) {
  for (const MothEmuMarkRef &m : s->queue.front().after)
    if (!m->done)
      return false;
  return true;
}

void pop(cudaStream_t s) {
  s->queue.front().mark->done = true;
  s->queue.pop_front();
  s->popped++;
  q.queued--;
  if (s->queue.empty()) {
    q.busy.erase(std::find(q.busy.begin(), q.busy.end(), s));
    if (s->gone) {
      q.streams.erase(s);
      delete s;
    }
  }
}

void step(cudaStream_t s) {
  MothEmuOp &op = s->queue.front();
  cudaError_t e = op.work ? op.work() : cudaSuccess;
  op.mark->ms = now_ms();
  if (e != cudaSuccess) {
    moth_emu_devices[s->device].sticky = e;
    moth_emu_drop(s->device);
  } else {
    pop(s);
  }
}

/* Sets `need` for a mark: its stream up to it, and the marks that these operations come after. */
void require(const MothEmuMarkRef &mark) {
  std::vector<MothEmuMark *> list{mark.get()};
  while (!list.empty()) {
    MothEmuMark *m = list.back();
    list.pop_back();
    if (m->done)
      continue;
    cudaStream_t s = m->stream;
    uint64_t from = std::max(s->need, s->popped);
    for (uint64_t p = from; p <= m->at; p++)
      for (const MothEmuMarkRef &a : s->queue[p - s->popped].after)
        list.push_back(a.get());
    s->need = std::max(from, m->at + 1);
  }
}

/* Runs one operation, a random one of those that may run. */
void step_any() {
  cudaStream_t can[64], *list = can;
  std::vector<cudaStream_t> more;
  if (q.busy.size() > 64) {
    more.resize(q.busy.size());
    list = more.data();
  }
  unsigned n = 0;
  for (cudaStream_t s : q.busy)
    if ((s->joins || s->popped < s->need) && ready(s))
      list[n++] = s;
  if (n)
    step(list[n == 1 ? 0 : q.random.below(n)]);
}

/* Runs until the marks have run; at most `limit` operations. */
cudaError_t run(const std::vector<MothEmuMarkRef> &marks, size_t limit) {
  bool done = true;
  for (const MothEmuMarkRef &m : marks)
    done = done && m->done;
  if (done)
    return cudaSuccess;
  for (cudaStream_t s : q.busy) {
    s->need = 0;
    s->joins = q.random.below(2);
  }
  unsigned devices = 0;
  for (const MothEmuMarkRef &m : marks)
    if (!m->done) {
      devices |= 1u << m->stream->device;
      require(m);
    }
  moth_emu_protect(false);
  for (const MothEmuMarkRef &m : marks)
    while (!m->done && limit-- > 0)
      step_any();
  moth_emu_protect(true);
  for (int d = 0; d < moth_emu_device_count(); d++)
    if (devices >> d & 1 && moth_emu_devices[d].sticky)
      return moth_emu_devices[d].sticky;
  return cudaSuccess;
}

/* A poll runs a few operations. */
cudaError_t poll(const MothEmuMarkRef &mark) {
  return run({mark}, q.random.below(3));
}

bool blocking(cudaStream_t s) {
  return !s->legacy && !(s->flags & cudaStreamNonBlocking);
}

} // namespace

cudaError_t moth_emu_stream(cudaStream_t handle, cudaStream_t *s) {
  if (!handle) {
    MothEmuDevice *d = &moth_emu_devices[moth_emu_device_now];
    if (!d->legacy) {
      d->legacy = moth_emu_stream_new(moth_emu_device_now, 0, 0);
      d->legacy->legacy = true;
    }
    handle = d->legacy;
  }
  if (!q.streams.count(handle) || handle->gone)
    return cudaErrorInvalidResourceHandle;
  *s = handle;
  return cudaSuccess;
}

cudaStream_t moth_emu_stream_new(int device, unsigned flags, int priority) {
  cudaStream_t s = new MothEmuStream();
  s->device = device;
  s->flags = flags;
  s->priority = priority;
  q.streams.insert(s);
  return s;
}
/* Queued work still runs. */
void moth_emu_stream_delete(cudaStream_t s) {
  s->gone = true;
  if (s->queue.empty()) {
    q.streams.erase(s);
    delete s;
  }
}

cudaError_t moth_emu_put(cudaStream_t s, MothEmuWork work, const std::vector<MothEmuMarkRef> &after,
                         MothEmuMarkRef *mark) {
  if (s->capture)
    return moth_emu_capture(s, std::move(work));
  MothEmuOp op;
  op.work = std::move(work);
  for (const MothEmuMarkRef &m : after)
    if (m && !m->done)
      op.after.push_back(m);
  if (s->legacy) {
    if (cudaError_t e = moth_emu_spoil_blocking(s->device))
      return e;
    for (cudaStream_t other : q.busy)
      if (other->device == s->device && blocking(other))
        op.after.push_back(other->last);
  } else if (blocking(s)) {
    cudaStream_t legacy = moth_emu_devices[s->device].legacy;
    if (legacy && !legacy->queue.empty())
      op.after.push_back(legacy->last);
  }
  op.mark = std::make_shared<MothEmuMark>();
  op.mark->stream = s;
  op.mark->at = s->popped + s->queue.size();
  op.number = q.numbers++;
  s->last = op.mark;
  if (mark)
    *mark = op.mark;
  if (s->queue.empty())
    q.busy.push_back(s);
  s->queue.push_back(std::move(op));
  if (++q.queued <= MAX_QUEUED)
    return cudaSuccess;
  cudaStream_t oldest = q.busy[0];
  for (cudaStream_t other : q.busy)
    if (other->queue.front().number < oldest->queue.front().number)
      oldest = other;
  return moth_emu_wait(oldest->queue.front().mark);
}

cudaError_t moth_emu_wait(const MothEmuMarkRef &mark) {
  return mark ? run({mark}, SIZE_MAX) : cudaSuccess;
}
cudaError_t moth_emu_wait_device(int device) {
  std::vector<MothEmuMarkRef> marks;
  for (cudaStream_t s : q.busy)
    if (s->device == device)
      marks.push_back(s->last);
  return run(marks, SIZE_MAX);
}
void moth_emu_drop(int device) {
  for (size_t i = q.busy.size(); i-- > 0;)
    if (q.busy[i]->device == device)
      for (cudaStream_t s = q.busy[i]; i < q.busy.size() && q.busy[i] == s;)
        pop(s);
}
size_t moth_emu_queued(void) {
  std::lock_guard<std::mutex> lock(moth_emu_mutex);
  return q.queued;
}

/* --- streams ------------------------------------------------------------------------------------ */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
  MOTH_EMU_ENTER();
  if (flags > cudaStreamNonBlocking)
    return moth_emu_note(cudaErrorInvalidValue);
  priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
  *s = moth_emu_stream_new(moth_emu_device_now, flags, priority);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
  return cudaStreamCreateWithPriority(s, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t *s) {
  return cudaStreamCreateWithPriority(s, cudaStreamDefault, 0);
}
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority) {
  MOTH_EMU_ENTER();
  MOTH_EMU_TRY(moth_emu_stream(s, &s));
  *priority = s->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t s, unsigned *flags) {
  MOTH_EMU_ENTER();
  MOTH_EMU_TRY(moth_emu_stream(s, &s));
  *flags = s->flags;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  MOTH_EMU_ENTER();
  if (!s || !q.streams.count(s) || s->gone || s->legacy)
    return moth_emu_note(cudaErrorInvalidResourceHandle);
  if (s->capture)
    MOTH_EMU_TRY(moth_emu_spoil(s, cudaErrorStreamCaptureUnsupported));
  moth_emu_stream_delete(s);
  return cudaSuccess;
}
/* The stream of a call that cannot be captured. */
static cudaError_t not_captured(cudaStream_t given, cudaStream_t *s) {
  MOTH_EMU_TRY(moth_emu_stream(given, s));
  return (*s)->capture ? moth_emu_note(moth_emu_spoil(*s, cudaErrorStreamCaptureUnsupported))
                       : cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  MOTH_EMU_ENTER();
  MOTH_EMU_TRY(not_captured(s, &s));
  if (s->legacy) { /* the legacy stream waits for the blocking streams, too */
    MOTH_EMU_TRY(moth_emu_put(s, nullptr));
  }
  MOTH_EMU_TRY(moth_emu_wait(s->last));
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
  MOTH_EMU_ENTER();
  MOTH_EMU_TRY(not_captured(s, &s));
  if (!s->last || s->last->done)
    return cudaSuccess;
  MothEmuMarkRef last = s->last;
  MOTH_EMU_TRY(poll(last));
  return last->done ? cudaSuccess : moth_emu_note(cudaErrorNotReady);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *data) {
  MOTH_EMU_ENTER();
  MOTH_EMU_TRY(moth_emu_stream(s, &s));
  MOTH_EMU_TRY(moth_emu_put(s, [=]() {
    moth_emu_in_host_function = true;
    moth_emu_protect(true);
    f(data);
    moth_emu_protect(false);
    moth_emu_in_host_function = false;
    return cudaSuccess;
  }));
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
  MOTH_EMU_ENTER();
  MOTH_EMU_TRY(moth_emu_unsafe());
  MOTH_EMU_TRY(moth_emu_wait_device(moth_emu_device_now));
  return cudaSuccess;
}

/* --- events ------------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
  MOTH_EMU_ENTER();
  if (flags > 7)
    return moth_emu_note(cudaErrorInvalidValue);
  *e = new MothEmuEvent();
  (*e)->device = moth_emu_device_now;
  (*e)->flags = flags;
  q.events.insert(*e);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) {
  return cudaEventCreateWithFlags(e, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  MOTH_EMU_ENTER();
  if (!q.events.erase(e))
    return moth_emu_note(cudaErrorInvalidResourceHandle);
  delete e;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  MOTH_EMU_ENTER();
  MOTH_EMU_TRY(moth_emu_stream(s, &s));
  if (!q.events.count(e) || e->device != s->device)
    return moth_emu_note(cudaErrorInvalidResourceHandle);
  if (s->capture) {
    if (s->capture->invalid)
      return moth_emu_note(cudaErrorStreamCaptureInvalidated);
    e->capture = s->capture;
    e->nodes = s->tail;
    e->mark.reset();
    return cudaSuccess;
  }
  e->capture.reset();
  MOTH_EMU_TRY(moth_emu_put(s, nullptr, {}, &e->mark));
  return cudaSuccess;
}
/* Waiting for an event of a capture adds the stream to it. */
static cudaError_t wait_captured(cudaStream_t s, cudaEvent_t e) {
  if (e->capture->invalid)
    return cudaErrorStreamCaptureInvalidated;
  if (s->legacy)
    return moth_emu_spoil(e->capture->origin, cudaErrorStreamCaptureImplicit);
  if (s->capture && s->capture != e->capture)
    return moth_emu_spoil(s, cudaErrorStreamCaptureIsolation);
  if (!s->capture)
    moth_emu_join(s, e->capture);
  for (int n : e->nodes)
    if (std::find(s->tail.begin(), s->tail.end(), n) == s->tail.end())
      s->tail.push_back(n);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  MOTH_EMU_ENTER();
  MOTH_EMU_TRY(moth_emu_stream(s, &s));
  if (!q.events.count(e))
    return moth_emu_note(cudaErrorInvalidResourceHandle);
  if (e->capture && e->capture->origin)
    MOTH_EMU_TRY(wait_captured(s, e));
  else if (s->capture)
    MOTH_EMU_TRY(e->mark ? moth_emu_spoil(s, cudaErrorStreamCaptureIsolation) : cudaSuccess);
  else if (e->mark && !e->mark->done)
    MOTH_EMU_TRY(moth_emu_put(s, nullptr, {e->mark}));
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  MOTH_EMU_ENTER();
  if (!q.events.count(e))
    return moth_emu_note(cudaErrorInvalidResourceHandle);
  if (e->capture)
    return moth_emu_note(cudaErrorCapturedEvent);
  MOTH_EMU_TRY(moth_emu_unsafe());
  if (!e->mark || e->mark->done)
    return cudaSuccess;
  MothEmuMarkRef mark = e->mark;
  MOTH_EMU_TRY(poll(mark));
  return mark->done ? cudaSuccess : moth_emu_note(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  MOTH_EMU_ENTER();
  if (!q.events.count(e))
    return moth_emu_note(cudaErrorInvalidResourceHandle);
  if (e->capture)
    return moth_emu_note(cudaErrorCapturedEvent);
  MOTH_EMU_TRY(moth_emu_unsafe());
  MOTH_EMU_TRY(moth_emu_wait(e->mark));
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
  MOTH_EMU_ENTER();
  if (!q.events.count(a) || !q.events.count(b) || a->device != b->device || !a->mark || !b->mark ||
      a->flags & cudaEventDisableTiming || b->flags & cudaEventDisableTiming)
    return moth_emu_note(cudaErrorInvalidResourceHandle);
  if (!a->mark->done || !b->mark->done)
    return moth_emu_note(cudaErrorNotReady);
  *ms = (float)(b->mark->ms - a->mark->ms);
  return cudaSuccess;
}
