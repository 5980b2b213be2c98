/* The recorder of moth.profiler: calls of ops, nodes of backward and named ranges, of all threads, with their times.
 *
 * A thread writes its events to a list of its own, in the order of their beginnings; nothing is formatted meanwhile. An
 * event knows the one in which it began (parent). One recording is open in a process at a time. */
#ifndef MOTH_PROFILE_PROFILE_H
#define MOTH_PROFILE_PROFILE_H
#include "moth.h"

typedef enum MothEventKind {
  MOTH_EVENT_OP,     /* a call of an op; parts of composites are calls in it */
  MOTH_EVENT_NODE,   /* of a backward */
  MOTH_EVENT_RANGE,  /* record_function */
  MOTH_EVENT_MODULE, /* the forward of a module */
  MOTH_EVENT_STEP,   /* of a schedule */
  MOTH_EVENT_LOADER, /* the wait for a batch */
  MOTH_EVENT_OPTIMIZER,
  MOTH_EVENT_COMPILED,  /* a segment of a compiled function, a kernel of the program's own */
  MOTH_EVENT_COLLECTIVE /* a call between processes: its wait, and on a group's thread all of it */
} MothEventKind;

typedef struct MothEvent { /* 64 bytes */
  int64_t begin,
      end; /* ns since the recording began; end < begin: it was open when the recording ended */
  int64_t
      bytes; /* live bytes behind it less those before it (exact to 64 KB per thread); with `memory` */
  int64_t device_bytes; /* the same of the CUDA device of the call */
  uint64_t seq;         /* of the node that the call recorded, or that ran; 0: none */
  int32_t parent;       /* number of an event of the same thread; -1 */
  uint32_t name;        /* of moth_profile_name_at */
  int32_t place;        /* of moth_profile_place_at; -1: not known */
  int32_t shapes;       /* of the arguments: position in the thread's shapes; -1: none */
  int32_t results;      /* the same of the results */
  uint8_t kind;         /* MothEventKind */
  uint8_t device;       /* MothDeviceType */
  uint8_t failed;
  uint8_t traced; /* of record.c */
} MothEvent;

/* Work of a CUDA device. */
typedef struct MothDeviceWork {
  int64_t begin, end; /* ns since the recording began */
  int64_t bytes;      /* of copies and fills */
  uint64_t stream;    /* as CUDA or CUPTI numbers it */
  int32_t name;       /* of moth_profile_name_at; -1: the call's, which was measured as a whole */
  int32_t thread, event; /* the call that launched it; -1: not known */
  uint8_t kind;          /* MothCudaWorkKind */
  uint8_t device;
} MothDeviceWork;

enum { MOTH_PROFILE_CHUNK = 1 << 16 }; /* events */

typedef struct MothProfileThread {
  int64_t id; /* the system's number of the thread */
  int64_t n;  /* events: chunks[i / MOTH_PROFILE_CHUNK][i % MOTH_PROFILE_CHUNK] */
  MothEvent **chunks;
  int64_t nshapes; /* of each call: the number of tensors, then dtype, ndim and sizes of each */
  int64_t *shapes;
} MothProfileThread;

typedef struct MothProfile MothProfile;

typedef struct MothProfileOptions {
  int64_t max_events; /* of all threads; 0: a million. When it is reached, recording stops. */
  bool shapes, memory;
  bool device;    /* what CUDA devices do, once CUDA has been opened */
  int32_t frames; /* Lua frames kept of each outermost call: 0 to 12 */
} MothProfileOptions;

/* Begins a recording. MOTH_ERR_STATE: there is one; MOTH_ERR_MEMORY. */
MOTH_API MothStatus moth_profile_start(const MothProfileOptions *o);
/* Ends it. The caller owns the result; NULL: there was none. */
MOTH_API MothProfile *moth_profile_stop(void);
MOTH_API void moth_profile_free(MothProfile *p);
MOTH_API bool moth_profile_running(void);

/* A range of the calling thread: what begin returned goes to end. -1: nothing is recorded. */
MOTH_API int64_t moth_profile_begin(MothEventKind kind, const char *name);
MOTH_API void moth_profile_end(int64_t at);

/* What was recorded. Numbers count from 0. */
MOTH_API int moth_profile_threads(const MothProfile *p);
MOTH_API const MothProfileThread *moth_profile_thread(const MothProfile *p, int i);
MOTH_API uint32_t moth_profile_names(const MothProfile *p);
MOTH_API const char *moth_profile_name_at(const MothProfile *p, uint32_t name);
/* A Lua frame: "file", its line, and the frame that called it (-1: not kept). */
typedef struct MothPlace {
  const char *source;
  int32_t line, caller;
} MothPlace;
MOTH_API int32_t moth_profile_places(const MothProfile *p);
MOTH_API MothPlace moth_profile_place_at(const MothProfile *p, int32_t place);
/* ns from the beginning to the end; events that found no place; when the first of them came (ns). */
MOTH_API int64_t moth_profile_duration(const MothProfile *p);
MOTH_API int64_t moth_profile_lost(const MothProfile *p, int64_t *since);
/* The system's number of the thread that began it. */
MOTH_API int64_t moth_profile_starter(const MothProfile *p);
/* Nanoseconds of CLOCK_REALTIME when it began. */
MOTH_API int64_t moth_profile_began(const MothProfile *p);

/* What devices did, by device, stream and time. */
MOTH_API const MothDeviceWork *moth_profile_work(const MothProfile *p, int64_t *n);
/* A walk over it for a trace: {0}, then moth_profile_next until it returns false. Clocks of devices are coarse: what begins
 * before the end of what was there before begins with that. */
typedef struct MothWorkWalk {
  int64_t at; /* of the next */
  const MothDeviceWork *work;
  bool new_device, new_stream; /* the first of its device, of its stream */
  int stream;                  /* from 1 on each device */
  int64_t begin, end;
} MothWorkWalk;
bool moth_profile_next(const MothProfile *p, MothWorkWalk *walk);
/* Whether devices were recorded; *by_events: NULL, or why they were not by CUPTI but by pairs of events. */
MOTH_API bool moth_profile_device(const MothProfile *p, const char **by_events);

/* Writes it as Chrome's trace format (JSON), which Perfetto and chrome://tracing open. Source: "Trace Event Format"
 * (Google). MOTH_ERR_IO with a message. */
MOTH_API MothStatus moth_profile_write_chrome(const MothProfile *p, const char *path);
/* The same as Perfetto's own trace: smaller, for a million events and more. */
MOTH_API MothStatus moth_profile_write_perfetto(const MothProfile *p, const char *path);

/* Set by the host: the place of the call that it is at, of at most `frames` frames, by moth_profile_intern; -1: none. */
MOTH_API extern int32_t (*moth_profile_here)(int frames);
MOTH_API int32_t moth_profile_intern(int32_t caller, const char *source, int32_t line);
#endif
