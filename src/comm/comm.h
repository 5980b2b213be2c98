/* Communication between processes: groups, calls, engines.
 *
 * A group is a set of ranks (0 … size - 1) that communicate, through an engine. A call (MothWork) is made by the thread of
 * the user, is put into the group's queue, and runs on the group's own thread, in order, so that the order of the program
 * is the order of the calls on all ranks. A caller that waits at once may begin its call itself, since other threads would
 * have to be woken: `attempt`. Sends and receives do not wait in that queue: `post`. The threads of a group
 * run no Lua and take no references of tensors: a work holds its tensors until its user's thread is done with it.
 *
 * Each call has a number in its group and a head, which says what it is. Ranks compare heads before they use data: a
 * difference is a fault that quotes both. A fault breaks the group for good: it is told to all ranks, their calls fail
 * with its text, and so do all later ones. The other ranks can make a new group. */
#ifndef MOTH_COMM_H
#define MOTH_COMM_H
#include <pthread.h>
#include <stdatomic.h>

#include "comm/store.h"
#include "moth.h"

typedef enum MothCommOp {
  MOTH_COMM_ALL_REDUCE,
  MOTH_COMM_BROADCAST,
  MOTH_COMM_REDUCE,
  MOTH_COMM_ALL_GATHER,
  MOTH_COMM_REDUCE_SCATTER,
  MOTH_COMM_ALL_TO_ALL,
  MOTH_COMM_GATHER,
  MOTH_COMM_SCATTER,
  MOTH_COMM_PERMUTE, /* sends to one rank, receives from one */
  MOTH_COMM_BARRIER,
  MOTH_COMM_SEND,
  MOTH_COMM_RECV,
  MOTH_COMM_NOPS
} MothCommOp;

typedef enum MothCommReduce {
  MOTH_COMM_SUM,
  MOTH_COMM_AVG,
  MOTH_COMM_PROD,
  MOTH_COMM_MIN,
  MOTH_COMM_MAX,
  MOTH_COMM_BAND,
  MOTH_COMM_BOR,
  MOTH_COMM_BXOR,
  MOTH_COMM_NREDUCES
} MothCommReduce;

/* Sees waits for calls, and calls on the threads of groups, while a profile is recorded (src/profile). NULL: nothing is;
 * read and set atomically. */
typedef struct MothCommObserver {
  int64_t (*begin)(const char *op);
  void (*end)(int64_t at);
} MothCommObserver;
extern const MothCommObserver *moth_comm_observer;

/* "all_reduce"; "sum". The index of a word, or -1. */
MOTH_API const char *moth_comm_op_name(int op);
MOTH_API int moth_comm_reduce_of(const char *word);
const char *moth_comm_reduce_name(int reduce);
/* Whether numbers of this dtype can be reduced so. Errors: avg of integers, bits of floats, order of complex numbers. */
MOTH_API MothStatus moth_comm_check_reduce(int reduce, MothDType dtype);

enum { MOTH_COMM_DIMS = 8, MOTH_COMM_WHERE = 96, MOTH_COMM_TEXT = 1200, MOTH_COMM_RECORDS = 2000 };

/* What a call is; in front of all data that travels. 128 bytes. */
typedef struct MothCommHead {
  uint32_t magic;
  uint8_t op, dtype, reduce, ndim;
  int32_t root; /* the rank of broadcast, reduce, gather, scatter; the tag of send and recv */
  uint32_t step;
  int64_t seq;
  int64_t count;  /* elements that each rank gives; -1: ranks may differ */
  int64_t nbytes; /* of the data that follows */
  int64_t shape[MOTH_COMM_DIMS];
  int32_t sender;
  uint32_t spare[5];
} MothCommHead;
_Static_assert(sizeof(MothCommHead) == 128, "a head has 128 bytes");

typedef struct MothGroup MothGroup;
typedef struct MothWork MothWork;

/* What the user's thread asks for. Memory is contiguous: on the host, or, for collectives by NCCL, on `device`. */
typedef struct MothCommRequest {
  int op, reduce, root; /* root: also the peer of send and recv (-1: any) */
  int tag;
  MothDType dtype;
  MothDevice device;
  int ndim;
  const int64_t *shape; /* of what each rank gives, for comparison; ndim -1: ranks may differ */
  const void *in;
  void *out;
  int64_t nin, nout;                     /* elements, of all of `in` and `out` */
  const int64_t *in_splits, *out_splits; /* all_to_all: elements for and from each rank */
  MothTensor *tensors[2];                /* retained until the work is released; may be NULL */
  double timeout;                        /* seconds; <= 0: that of the group */
  bool now;                              /* the caller waits at once */
  const char *where;                     /* "file:line" of the user */
} MothCommRequest;

enum { MOTH_WORK_QUEUED, MOTH_WORK_RUNNING, MOTH_WORK_DONE, MOTH_WORK_FAILED };

struct MothWork {
  _Atomic int refs;
  _Atomic int state;
  MothGroup *group; /* retained */
  MothWork *next;
  MothCommHead head;
  const char *in;
  char *out;
  int64_t nin, nout, itemsize;
  int64_t record;  /* its number among all calls */
  int64_t *splits; /* all_to_all: the bytes for each rank, then those from each rank */
  int peer;        /* send, recv; afterwards the rank that sent */
  bool begun;      /* put off by attempt */
  MothTensor *tensors[2];
  MothEvent *ready;                     /* CUDA: what the caller's stream had to do before */
  double timeout, deadline, t0, t1, t2; /* t0: made, t1: begun, t2: done */
  char where[MOTH_COMM_WHERE];
  char *text; /* of an error */
};

/* What a rank has called last. Ranks of one host share it (shared.h): so the others can say what one that died was doing. */
typedef struct MothCommLast {
  MothCommHead head; /* of its last collective call; seq 0: none */
  char where[MOTH_COMM_WHERE];
  _Atomic int64_t over; /* the number of the last one that has ended */
} MothCommLast;

/* What a thread runs before its next collective call in a group: a call that other ranks may have made already. */
typedef struct MothCommBefore {
  MothStatus (*run)(struct MothCommBefore *b);
  pthread_t thread;
} MothCommBefore;

/* An engine. All but open and close may be called from several threads. Errors of open are in moth_last_error(). */
typedef struct MothEngine {
  const char *name;
  MothStatus (*open)(MothGroup *g, MothStore *store, const char *key, double timeout);
  /* On the group's thread: runs a call. False: the group is broken (moth_group_fault). */
  bool (*run)(MothGroup *g, MothWork *w);
  /* The same on the caller's thread, for microseconds. False: run is to go on with it, or the group is broken. May be NULL. */
  bool (*attempt)(MothGroup *g, MothWork *w);
  void (*post)(MothGroup *g, MothWork *w); /* send and recv: moth_work_finish when it is done */
  void (*wake)(MothGroup *g);              /* the group is broken or closing: run and posts end */
  void (*expire)(MothGroup *g,
                 MothWork *w); /* w waits, after its deadline or in a broken group; may be NULL */
  void (*close)(MothGroup *g);
  const MothCommLast *(*last_of)(MothGroup *g, int rank); /* NULL: it is not known; may be NULL */
} MothEngine;

extern const MothEngine moth_engine_tcp, moth_engine_gloo, moth_engine_mpi, moth_engine_nccl,
    moth_engine_local, moth_engine_fake;

/* A line of the flight recorder. */
typedef struct MothCommRecord {
  MothCommHead head;
  int peer, state;
  double t0, t1, t2;
  char where[MOTH_COMM_WHERE];
} MothCommRecord;

typedef struct MothCommStats {
  _Atomic int64_t bytes_sent, bytes_received;
  int64_t calls[MOTH_COMM_NOPS];
} MothCommStats;

struct MothGroup {
  _Atomic int refs;
  int number, rank, size;
  const MothEngine *engine;
  MothDevice device; /* of its collectives' memory */
  const char *by;    /* by what its data travels */
  void *state;       /* of the engine */
  double timeout;
  char name[64];
  const int *ranks;               /* in the default group; NULL: the same */
  MothCommBefore *_Atomic before; /* NULL: nothing */
  pthread_t thread;
  bool has_thread;
  pthread_mutex_t lock; /* of the fields below */
  pthread_cond_t changed;
  MothWork *first, **tail; /* the queue */
  MothWork *done;          /* works whose references the user's thread drops */
  int waiting;             /* threads, for works */
  MothWork *running;       /* by one thread at a time: the group's, or a caller's */
  _Atomic bool closing;
  bool closed;
  int64_t seq;                  /* of the last collective call made */
  int64_t messages;             /* the number of sends and receives */
  MothCommLast *last, own_last; /* last: own_last, or memory that others see */
  MothCommRecord *records;      /* a ring of MOTH_COMM_RECORDS */
  int64_t nrecords;
  _Atomic bool broken;
  char fault[MOTH_COMM_TEXT];
  MothCommStats stats;
};

/* Makes a group: all its ranks call this with the same key. backend: "tcp", "gloo", "mpi", "nccl", "local", "fake". store: not needed for
 * the latter two. ranks (may be NULL): the numbers of its ranks in messages. */
MOTH_API MothStatus moth_group_new(const char *backend, int rank, int size, const int *ranks,
                                   MothStore *store, const char *key, double timeout,
                                   MothGroup **out);
MOTH_API void moth_group_retain(MothGroup *g);
MOTH_API void moth_group_release(MothGroup *g);
/* Leaves: calls in progress fail, the others are told, threads end. */
MOTH_API void moth_group_close(MothGroup *g);
MOTH_API MothGroup *moth_group_find(int64_t number); /* retained; NULL: there is none */
/* Breaks the group with this text, unless it is broken; any thread. */
MOTH_API void moth_group_fault(MothGroup *g, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The same because of a rank, which the text begins with (its number in the default group; -1: of none): what it has called
 * last is added, where that is known. */
MOTH_API void moth_group_blame(MothGroup *g, int world_rank, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* By what its data travels: "shared memory", "tcp", "gloo", "mpi", "nccl"; or the engine's name. */
MOTH_API const char *moth_group_engine(const MothGroup *g);
/* Where its collectives take tensors beside the host: the CUDA device of its NCCL; else the host. Sends and receives: on
 * the host alone. */
MOTH_API MothDevice moth_group_device(const MothGroup *g);
MOTH_API bool moth_group_is_broken(MothGroup *g, char *text, size_t n);
/* A thread that waits for a key of the store, and breaks all groups of this process with its value. */
MOTH_API MothStatus moth_comm_watch(const char *host, int port, const char *token, const char *key);
MOTH_API void moth_comm_unwatch(void);
bool moth_comm_watched(void);

/* Starts a call: *out is owned. Errors: the group is broken or closed; memory. */
MOTH_API MothStatus moth_comm_start(MothGroup *g, const MothCommRequest *r, MothWork **out);
/* Waits for it, at most timeout seconds (< 0: no limit; the work has its own). Errors: those of the call. *done (may be
 * NULL): false where the time was over. Ctrl-C ends the wait. */
MOTH_API MothStatus moth_work_wait(MothWork *w, double timeout, bool *done);
MOTH_API void moth_work_retain(MothWork *w);
MOTH_API void moth_work_release(MothWork *w); /* on the user's thread */
/* Whether the sizes, splits, ranks, reduction of a request fit. moth_comm_start asks it. */
MothStatus moth_comm_check(const MothGroup *g, const MothCommRequest *r);
/* Start and wait. */
MOTH_API MothStatus moth_comm_run(MothGroup *g, const MothCommRequest *r);
/* For engines, any thread: the call is done, or has failed with this text. Takes a reference. */
void moth_work_finish(MothWork *w, const char *error);
void moth_work_begin(MothWork *w);

/* "#30 all_reduce(sum) of float32 [5, 2]" */
MOTH_API const char *moth_comm_head_text(const MothCommHead *h, char *text, size_t n);
bool moth_comm_same_call(const MothCommHead *a, const MothCommHead *b);
/* The rank's number in the default group. */
static inline int moth_group_world_rank(const MothGroup *g, int rank) {
  return g->ranks ? g->ranks[rank] : rank;
}

/* c[i] = a[i] op b[i]; n elements. c may be a or b. */
void moth_reduce_elements(int reduce, MothDType dtype, const void *a, const void *b, void *c,
                          int64_t n);
/* c[i] /= by: for avg. */
void moth_divide_elements(MothDType dtype, void *c, int64_t n, int by);

/* MOTH_DISTRIBUTED_DEBUG: 0 off, 1 info, 2 detail. */
int moth_comm_debug(void);
#endif
