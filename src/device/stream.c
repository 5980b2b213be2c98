#include "device/stream.h"

#include <stdlib.h>

#include "core/alloc.h"

struct MothEvent {
  MothDevice device; /* its index is that of the stream in which it was recorded first */
  bool timing;
  void *state; /* NULL: never recorded */
};

static const MothStreamOps *ops_of(const MothStream *s) {
  return moth_device_ops((MothDeviceType)s->device.type)->streams;
}

const MothStreamOps *moth_stream_ops(MothDevice d) {
  if (moth_device_check(d) != MOTH_OK)
    return NULL;
  const MothStreamOps *ops = moth_device_ops((MothDeviceType)d.type)->streams;
  if (!ops)
    moth_fail(MOTH_ERR_VALUE, "device '%s' has no streams", moth_memory(d.type)->name);
  return ops;
}

/* --- streams ------------------------------------------------------------------------------------- */

MothStatus moth_stream_new(MothDevice device, int priority, MothStream **out) {
  MOTH_TRY(moth_given("stream_new", out));
  const MothStreamOps *ops = moth_stream_ops(device);
  return ops ? ops->create(device.index, priority, out) : MOTH_ERR_VALUE;
}
static MothStatus give(MothStream *s, MothStream **out) {
  moth_stream_retain(s);
  *out = s;
  return MOTH_OK;
}
MothStatus moth_stream_default(MothDevice device, MothStream **out) {
  MOTH_TRY(moth_given("stream_default", out));
  const MothStreamOps *ops = moth_stream_ops(device);
  return ops ? give(ops->first(device.index), out) : MOTH_ERR_VALUE;
}
MothStatus moth_stream_current(MothDevice device, MothStream **out) {
  MOTH_TRY(moth_given("stream_current", out));
  const MothStreamOps *ops = moth_stream_ops(device);
  return ops ? give(ops->current(device.index), out) : MOTH_ERR_VALUE;
}
void moth_stream_retain(MothStream *s) {
  if (s && ops_of(s)->retain)
    ops_of(s)->retain(s);
}
void moth_stream_release(MothStream *s) {
  if (s && ops_of(s)->release)
    ops_of(s)->release(s);
}
MothStatus moth_stream_set_current(MothStream *s) {
  MOTH_TRY(moth_given("stream_set_current", s));
  ops_of(s)->set(s);
  return MOTH_OK;
}
MothDevice moth_stream_device(const MothStream *s) {
  return s ? s->device : (MothDevice){MOTH_CPU, 0};
}
int moth_stream_priority(const MothStream *s) {
  return s ? s->priority : 0;
}
void *moth_stream_handle(const MothStream *s) {
  return s ? ops_of(s)->handle(s) : NULL;
}
MothStatus moth_stream_synchronize(MothStream *s) {
  MOTH_TRY(moth_given("stream_synchronize", s));
  return ops_of(s)->synchronize(s);
}
MothStatus moth_device_synchronize(MothDevice device) {
  const MothStreamOps *ops = moth_stream_ops(device);
  return ops ? ops->synchronize_all(device.index) : MOTH_ERR_VALUE;
}
MothStatus moth_stream_query(MothStream *s, bool *done) {
  MOTH_TRY(moth_given("stream_query", s && done));
  return ops_of(s)->query(s, done);
}

/* The host waits between devices of different types: neither can wait for the other's queues. */
MothStatus moth_stream_wait_stream(MothStream *s, MothStream *other) {
  MOTH_TRY(moth_given("stream_wait_stream", s && other));
  return ops_of(s) == ops_of(other) ? ops_of(s)->order(other, s)
                                    : ops_of(other)->synchronize(other);
}

MothStatus moth_stream_submit(MothStream *s, MothStatus (*run)(void *ctx), void (*drop)(void *ctx),
                              void *ctx) {
  MOTH_TRY(moth_given("stream_submit", s && run));
  if (s->device.type != MOTH_CPU)
    return moth_fail(MOTH_ERR_VALUE, "stream_submit: functions run on streams of the cpu only");
  return moth_cpu_submit(s, run, drop, ctx, NULL);
}

MothStatus moth_tensor_record_stream(MothTensor *t, MothStream *s) {
  MOTH_TRY(moth_given("record_stream", t && s));
  if (t->device.type != s->device.type) {
    char a[32], b[32];
    return moth_fail(MOTH_ERR_VALUE, "record_stream: the tensor is on %s, the stream on %s",
                     moth_device_format(t->device, a, sizeof a),
                     moth_device_format(s->device, b, sizeof b));
  }
  return ops_of(s)->record_stream(t, s);
}

MothStream *moth_stream_swap(MothStream *s) {
  MothStream *before = ops_of(s)->current(s->device.index);
  if (before != s)
    ops_of(s)->set(s);
  return before;
}
MothStatus moth_stream_join(MothStream *s) {
  return ops_of(s)->order(s, ops_of(s)->current(s->device.index));
}

/* --- modes of coroutines --------------------------------------------------------------------------- */

/* CUDA's device is read only if the backend is open: a mode must not open it. */
static const MothDeviceOps *open_cuda(void) {
  const MothDeviceOps *ops = moth_device_ops(MOTH_CUDA);
  return ops->streams ? ops : NULL;
}
static bool is_there(const MothDeviceOps *ops, int index) {
  return !ops->memory.why_not(index);
}

void moth_streams_save(MothStreamModes *to) {
  MothStream *before = to->cpu;
  to->cpu = moth_cpu_stream_now();
  moth_stream_retain(to->cpu);
  moth_stream_release(before);
  const MothDeviceOps *ops = open_cuda();
  if (!ops)
    return;
  to->device = ops->current();
  for (int i = 0; i < MOTH_STREAM_MODES; i++)
    to->cuda[i] = is_there(ops, i) ? ops->streams->current(i) : NULL;
}
void moth_streams_load(const MothStreamModes *from) {
  if (from->cpu != moth_cpu_stream_now())
    moth_cpu_streams.set(from->cpu ? from->cpu : moth_cpu_streams.first(0));
  const MothDeviceOps *ops = open_cuda();
  if (!ops)
    return;
  for (int i = 0; i < MOTH_STREAM_MODES && is_there(ops, i); i++)
    ops->streams->set(from->cuda[i] ? from->cuda[i] : ops->streams->first(i));
  ops->set_current(from->device);
}
void moth_streams_forget(MothStreamModes *m) {
  moth_stream_release(m->cpu);
  m->cpu = NULL;
}

/* --- events -------------------------------------------------------------------------------------- */

/* Of the current device of a type that has streams. */
static MothStream *current_of(int type) {
  const MothDeviceOps *ops = moth_device_ops((MothDeviceType)type);
  return ops->streams->current(ops->current ? ops->current() : 0);
}
static const MothStreamOps *ops_of_event(const MothEvent *e) {
  return moth_device_ops((MothDeviceType)e->device.type)->streams;
}

MothStatus moth_event_new(MothDeviceType type, bool timing, MothEvent **out) {
  MothDevice device = {(uint8_t)type, 0};
  MOTH_TRY(moth_given("event_new", out));
  if (!moth_stream_ops(device))
    return MOTH_ERR_VALUE;
  MothEvent *e = moth_alloc(sizeof *e);
  if (!e)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: no event can be made");
  *e = (MothEvent){.device = device, .timing = timing};
  *out = e;
  return MOTH_OK;
}
void moth_event_free(MothEvent *e) {
  if (!e)
    return;
  if (e->state)
    ops_of_event(e)->event_free(e->state);
  moth_free(e, sizeof *e);
}
MothStatus moth_event_record(MothEvent *e, MothStream *s) {
  MOTH_TRY(moth_given("event_record", e));
  if (!s)
    s = current_of(e->device.type);
  if (e->device.type != s->device.type || (e->state && e->device.index != s->device.index)) {
    char a[32], b[32];
    return moth_fail(MOTH_ERR_VALUE, "the event belongs to %s, the stream to %s",
                     moth_device_format(e->device, a, sizeof a),
                     moth_device_format(s->device, b, sizeof b));
  }
  e->device = s->device;
  return ops_of(s)->event_record(&e->state, e->timing, s);
}
MothStatus moth_event_wait(MothEvent *e, MothStream *s) {
  MOTH_TRY(moth_given("event_wait", e));
  if (!e->state)
    return MOTH_OK;
  if (!s)
    s = current_of(e->device.type);
  return e->device.type == s->device.type ? ops_of(s)->event_wait(e->state, s)
                                          : ops_of_event(e)->event_synchronize(e->state);
}
MothStatus moth_event_query(MothEvent *e, bool *done) {
  MOTH_TRY(moth_given("event_query", e && done));
  *done = true;
  return e->state ? ops_of_event(e)->event_query(e->state, done) : MOTH_OK;
}
MothStatus moth_event_synchronize(MothEvent *e) {
  MOTH_TRY(moth_given("event_synchronize", e));
  return e->state ? ops_of_event(e)->event_synchronize(e->state) : MOTH_OK;
}
MothStatus moth_event_elapsed(MothEvent *from, MothEvent *to, double *ms) {
  MOTH_TRY(moth_given("event_elapsed", from && to && ms));
  if (!from->timing || !to->timing)
    return moth_fail(MOTH_ERR_STATE, "elapsed_time: both events must be made with "
                                     "{enable_timing = true}");
  if (!from->state || !to->state)
    return moth_fail(MOTH_ERR_STATE, "elapsed_time: both events must have been recorded");
  if (from->device.type != to->device.type || from->device.index != to->device.index) {
    char a[32], b[32];
    return moth_fail(MOTH_ERR_VALUE, "elapsed_time: the events belong to %s and %s",
                     moth_device_format(from->device, a, sizeof a),
                     moth_device_format(to->device, b, sizeof b));
  }
  return ops_of_event(from)->event_elapsed(from->state, to->state, ms);
}
