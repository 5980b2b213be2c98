/* Streams and events of all devices. The public part is in moth.h; stream.c calls the functions of the device, and
 * queue.c has those of the CPU.
 *
 * A stream of the CPU is a thread with a queue of tasks. The default stream is the calling thread: its tasks run at
 * once. The error of a task that fails is kept by the stream; tasks behind it are skipped with the same error until
 * synchronize() has raised it.
 *
 * The dispatcher queues kernels on the thread's current CPU stream (dispatch/async.c). What they write is pending:
 * its storage holds the ticket of the work, and headers made from then on the key MOTH_KEY_PENDING. Code that reads
 * elements on the host calls moth_tensor_ready first. */
#ifndef MOTH_DEVICE_STREAM_H
#define MOTH_DEVICE_STREAM_H
#include "core/tensor.h"
#include "device/device.h"

struct MothStream { /* the first member of every device's streams */
  MothDevice device;
  int priority;
};

struct MothStreamOps {
  MothStatus (*create)(int index, int priority, MothStream **out);
  /* Both NULL: streams live as long as the process. */
  void (*retain)(MothStream *s);
  void (*release)(MothStream *s);
  /* Borrowed: the device's default one, and the current one of this thread. */
  MothStream *(*first)(int index);
  MothStream *(*current)(int index);
  void (*set)(MothStream *s); /* current on its device, for this thread */
  void *(*handle)(const MothStream *s);
  MothStatus (*synchronize)(MothStream *s);
  MothStatus (*synchronize_all)(int index); /* the device with all its streams */
  MothStatus (*query)(MothStream *s, bool *done);
  /* `later` waits for the present work of `earlier`. */
  MothStatus (*order)(MothStream *earlier, MothStream *later);
  /* t is used on s, too: its memory must not be reused before that is done. */
  MothStatus (*record_stream)(MothTensor *t, MothStream *s);
  /* The state of an event: made by the first record, where *state is NULL. */
  MothStatus (*event_record)(void **state, bool timing, MothStream *s);
  void (*event_free)(void *state);
  MothStatus (*event_wait)(void *state, MothStream *s); /* s waits */
  MothStatus (*event_query)(void *state, bool *done);
  MothStatus (*event_synchronize)(void *state);
  MothStatus (*event_elapsed)(void *from, void *to, double *ms); /* MOTH_ERR_STATE: not done yet */
};

/* NULL, with an error: the device has none. */
const MothStreamOps *moth_stream_ops(MothDevice d);
/* Makes s current on its device; returns the one before (borrowed, if it lives as long as the process). */
MothStream *moth_stream_swap(MothStream *s);
/* The current stream of the same device waits for the present work of s. */
MothStatus moth_stream_join(MothStream *s);

/* The current streams of this thread, and its current CUDA device: saved and restored where a thread runs several
 * coroutines. Costs nothing while no device but the CPU has streams in use. */
enum { MOTH_STREAM_MODES = 8 }; /* of the first CUDA devices */
typedef struct MothStreamModes {
  MothStream *cpu; /* retained */
  MothStream *cuda[MOTH_STREAM_MODES];
  int device;
} MothStreamModes;
/* `to` holds modes already, or is all zeros. */
MOTH_API void moth_streams_save(MothStreamModes *to);
MOTH_API void moth_streams_load(const MothStreamModes *from);
MOTH_API void moth_streams_forget(MothStreamModes *m);

/* --- the CPU's queues ---------------------------------------------------------------------------- */

extern const MothStreamOps moth_cpu_streams;

/* A piece of work in a queue, or a mark there: whether it is done, and its status. Reference-counted. */
typedef struct MothTicket MothTicket;
void moth_ticket_retain(MothTicket *t);
void moth_ticket_release(MothTicket *t); /* NULL: nothing */
bool moth_ticket_done(const MothTicket *t);
/* Waits; the error is that of the work. Ctrl-C ends the wait with MOTH_ERR_INTERRUPTED. */
MothStatus moth_ticket_wait(MothTicket *t);

/* This thread's current CPU stream, NULL: the thread itself. Borrowed. */
MOTH_API MothStream *moth_cpu_stream_now(void);
/* Set by the dispatcher: turns on or off that kernels of this thread are queued. */
extern void (*moth_cpu_stream_changed)(bool queued);
/* As moth_stream_submit; *ticket (NULL: not wanted) is owned. run and drop are called by the queue's thread. */
MothStatus moth_cpu_submit(MothStream *s, MothStatus (*run)(void *ctx), void (*drop)(void *ctx),
                           void *ctx, MothTicket **ticket);
/* s waits for the ticket. */
MothStatus moth_cpu_wait_for(MothStream *s, MothTicket *t);

/* The elements of t's storage are written by the work of this ticket (retained). */
void moth_tensor_set_pending(MothTensor *t, MothTicket *ticket);
/* The ticket of the work that writes to t (owned), or NULL. */
MothTicket *moth_tensor_ticket(MothTensor *t);
#endif
