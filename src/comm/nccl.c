/* NCCL: opened when it is first wanted, so that moth is built and runs without it.
 *
 * A call waits, on the group's stream, for what its caller's stream had to do when it was made, and the group's thread
 * watches its event: so it sees deadlines and faults, and aborts. As all ranks have the control connections of the tcp
 * engine, who is missing, has died, or called something else is named as there. */
#include "comm/nccl.h"

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/wire.h"
#include "core/alloc.h"
#include "core/environment.h"
#include "core/error.h"
#include "device/cuda.h"

/* Of nccl.h: its results, types and reductions are numbers that do not change. */
typedef struct Id {
  char bytes[128];
} Id;
enum { SUCCESS = 0, IN_PROGRESS = 7 };
enum {
  INT8 = 0,
  UINT8 = 1,
  INT32 = 2,
  INT64 = 4,
  FLOAT16 = 6,
  FLOAT32 = 7,
  FLOAT64 = 8,
  BFLOAT16 = 9
};
enum { SUM = 0, PROD = 1, MAX = 2, MIN = 3, AVG = 4 };

static struct {
  int (*get_id)(Id *id);
  int (*init)(void **comm, int size, Id id, int rank);
  int (*destroy)(void *comm);
  int (*abort)(void *comm);
  int (*async_error)(void *comm, int *error);
  const char *(*text)(int error);
  int (*all_reduce)(const void *in, void *out, size_t n, int type, int op, void *comm,
                    void *stream);
  int (*broadcast)(const void *in, void *out, size_t n, int type, int root, void *comm,
                   void *stream);
  int (*reduce)(const void *in, void *out, size_t n, int type, int op, int root, void *comm,
                void *stream);
  int (*all_gather)(const void *in, void *out, size_t n, int type, void *comm, void *stream);
  int (*reduce_scatter)(const void *in, void *out, size_t n, int type, int op, void *comm,
                        void *stream);
  int (*send)(const void *in, size_t n, int type, int peer, void *comm, void *stream);
  int (*recv)(void *out, size_t n, int type, int peer, void *comm, void *stream);
  int (*begin)(void);
  int (*end)(void);
} N;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool opened;

static void open_library(void) {
  const char *path = moth_env_text("MOTH_NCCL_LIBRARY");
  void *lib = dlopen(path ? path : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  static const struct {
    const char *name;
    void *to;
  } names[] = {{"ncclGetUniqueId", &N.get_id},
               {"ncclCommInitRank", &N.init},
               {"ncclCommDestroy", &N.destroy},
               {"ncclCommAbort", &N.abort},
               {"ncclCommGetAsyncError", &N.async_error},
               {"ncclGetErrorString", &N.text},
               {"ncclAllReduce", &N.all_reduce},
               {"ncclBroadcast", &N.broadcast},
               {"ncclReduce", &N.reduce},
               {"ncclAllGather", &N.all_gather},
               {"ncclReduceScatter", &N.reduce_scatter},
               {"ncclSend", &N.send},
               {"ncclRecv", &N.recv},
               {"ncclGroupStart", &N.begin},
               {"ncclGroupEnd", &N.end}};
  opened = lib != NULL;
  for (size_t i = 0; opened && i < sizeof names / sizeof *names; i++) {
    void *found = dlsym(lib, names[i].name);
    opened = found != NULL;
    memcpy(names[i].to, &found, sizeof found);
  }
}

bool moth_nccl_available(void) {
  pthread_once(&once, open_library);
  return opened && !moth_cuda_why();
}

typedef struct Nccl {
  void *comm;
  int device;
  MothStream *stream;
  MothEvent *done;
} Nccl;

static MothStatus failed(const char *what, int error) {
  return moth_fail(MOTH_ERR_IO, "NCCL: %s: %s", what, N.text(error));
}

MothStatus moth_nccl_connect(MothTcp *e, MothStore *store, const char *key, double deadline) {
  MothGroup *g = e->group;
  const MothCudaApi *cuda = moth_cuda_api();
  if (!moth_nccl_available() || !cuda)
    return moth_fail(MOTH_ERR_STATE, "%s",
                     moth_cuda_why() ? moth_cuda_why()
                                     : "the library of NCCL is not there: install libnccl2, or set "
                                       "MOTH_NCCL_LIBRARY to its path");
  char name[300];
  Id id;
  MothBytes value, asked = {name, (size_t)snprintf(name, sizeof name, "%s/nccl", key)};
  void *block = NULL;
  if (g->rank == 0) {
    int error = N.get_id(&id);
    if (error)
      return failed("no identifier", error);
    if (g->size > 1)
      MOTH_TRY(moth_store_set(store, asked, (MothBytes){id.bytes, sizeof id.bytes}));
  } else {
    double left = deadline - moth_wire_now();
    MOTH_TRY(moth_store_get(store, 1, &asked, left > 0 ? left : 0, &value, &block));
    if (value.n == sizeof id.bytes)
      memcpy(id.bytes, value.data, sizeof id.bytes);
    free(block);
    if (value.n != sizeof id.bytes)
      return moth_fail(MOTH_ERR_IO, "rank 0 published nonsense");
  }
  Nccl *n = calloc(1, sizeof *n);
  if (!n)
    return moth_no_memory(sizeof *n);
  e->nccl = n;
  n->device = cuda->current();
  g->device = (MothDevice){MOTH_CUDA, (unsigned char)n->device};
  MOTH_TRY(moth_stream_new(g->device, -1, &n->stream));
  MOTH_TRY(moth_event_new(MOTH_CUDA, false, &n->done));
  int error = N.init(&n->comm, g->size, id, g->rank);
  return error ? failed("the ranks could not be connected", error) : MOTH_OK;
}

void moth_nccl_close(MothTcp *e) {
  Nccl *n = e->nccl;
  if (!n)
    return;
  if (n->comm && atomic_load(&e->group->broken))
    N.abort(n->comm);
  else if (n->comm)
    N.destroy(n->comm);
  moth_event_free(n->done);
  moth_stream_release(n->stream);
  free(n);
  e->nccl = NULL;
}

/* --- calls -------------------------------------------------------------------------------------- */

static int type_of(MothDType dtype) {
  switch (dtype) {
  case MOTH_BOOL:
  case MOTH_UINT8:
    return UINT8;
  case MOTH_INT8:
    return INT8;
  case MOTH_INT32:
    return INT32;
  case MOTH_INT64:
    return INT64;
  case MOTH_FLOAT16:
    return FLOAT16;
  case MOTH_FLOAT32:
    return FLOAT32;
  case MOTH_FLOAT64:
    return FLOAT64;
  case MOTH_BFLOAT16:
    return BFLOAT16;
  default:
    return -1;
  }
}

static int reduction_of(int reduce) {
  switch (reduce) {
  case MOTH_COMM_SUM:
    return SUM;
  case MOTH_COMM_AVG:
    return AVG;
  case MOTH_COMM_PROD:
    return PROD;
  case MOTH_COMM_MIN:
    return MIN;
  case MOTH_COMM_MAX:
    return MAX;
  default:
    return -1;
  }
}

MothStatus moth_nccl_check(const MothCommRequest *r) {
  bool reduces = r->op == MOTH_COMM_ALL_REDUCE || r->op == MOTH_COMM_REDUCE ||
                 r->op == MOTH_COMM_REDUCE_SCATTER;
  if (reduces && (type_of(r->dtype) < 0 || reduction_of(r->reduce) < 0))
    return moth_fail(MOTH_ERR_TYPE, "[%s] NCCL has no %s of %s: use another dtype, or a gloo group",
                     moth_comm_op_name(r->op), moth_comm_reduce_name(r->reduce),
                     moth_dtype_name(r->dtype));
  return MOTH_OK;
}

/* Pieces for and from each rank, of the given bytes; negative: none. */
static int exchange(const MothRun *r, void *stream) {
  const MothWork *w = r->w;
  const Nccl *n = r->e->nccl;
  const int size = r->g->size, rank = r->g->rank, root = w->head.root;
  const int64_t in = w->nin * w->itemsize, out = w->nout * w->itemsize;
  const char *from = w->in;
  char *to = w->out;
  int error = N.begin();
  for (int i = 0; i < size && !error; i++) {
    int64_t give = -1, take = -1;
    switch (w->head.op) {
    case MOTH_COMM_GATHER:
      give = i == root ? in : -1;
      take = rank == root ? in : -1;
      break;
    case MOTH_COMM_SCATTER:
      give = rank == root ? out : -1;
      take = i == root ? out : -1;
      break;
    case MOTH_COMM_PERMUTE:
      give = i == w->splits[0] / w->itemsize ? in : -1;
      take = i == w->splits[size] / w->itemsize ? in : -1;
      break;
    default:
      give = w->splits ? w->splits[i] : in / size;
      take = w->splits ? w->splits[size + i] : out / size;
      break;
    }
    if (give > 0)
      error = N.send(from, (size_t)give, INT8, i, n->comm, stream);
    if (take > 0 && !error)
      error = N.recv(to, (size_t)take, INT8, i, n->comm, stream);
    bool moves_in = w->head.op == MOTH_COMM_SCATTER || w->head.op == MOTH_COMM_ALL_TO_ALL;
    bool moves_out = w->head.op == MOTH_COMM_GATHER || w->head.op == MOTH_COMM_ALL_TO_ALL;
    from += moves_in && give > 0 ? give : 0;
    to += moves_out && take > 0 ? take : 0;
  }
  int end = N.end();
  return error ? error : end;
}

static int queue(const MothRun *r, void *stream) {
  const MothWork *w = r->w;
  const Nccl *n = r->e->nccl;
  const size_t count = (size_t)w->nin;
  const int type = type_of((MothDType)w->head.dtype), op = reduction_of(w->head.reduce);
  switch (w->head.op) {
  case MOTH_COMM_ALL_REDUCE:
    return N.all_reduce(w->in, w->out, count, type, op, n->comm, stream);
  case MOTH_COMM_REDUCE:
    return N.reduce(w->in, w->out, count, type, op, w->head.root, n->comm, stream);
  case MOTH_COMM_REDUCE_SCATTER:
    return N.reduce_scatter(w->in, w->out, (size_t)w->nout, type, op, n->comm, stream);
  case MOTH_COMM_BROADCAST:
    return N.broadcast(w->in, w->out, (size_t)(w->nout * w->itemsize), INT8, w->head.root, n->comm,
                       stream);
  case MOTH_COMM_ALL_GATHER:
    return N.all_gather(w->in, w->out, (size_t)(w->nin * w->itemsize), INT8, n->comm, stream);
  default:
    return exchange(r, stream);
  }
}

static bool broke(MothRun *r, const char *why) {
  moth_group_fault(r->g, "NCCL on rank %d: %s", moth_group_world_rank(r->g, r->g->rank), why);
  return false;
}

/* Ends what is queued on the device: its memory must not be written to when the call has failed. */
static bool stop(MothRun *r) {
  Nccl *n = r->e->nccl;
  if (n->comm)
    N.abort(n->comm);
  n->comm = NULL;
  return false;
}

bool moth_nccl_run(MothRun *r) {
  Nccl *n = r->e->nccl;
  bool done = false;
  int error = 0;
  moth_cuda_api()->set_current(n->device);
  if (!n->comm)
    return broke(r, "its communicator was aborted");
  if (r->w->ready && moth_event_wait(r->w->ready, n->stream) != MOTH_OK)
    return broke(r, moth_last_error());
  error = queue(r, moth_stream_handle(n->stream));
  if (error)
    return broke(r, N.text(error)), stop(r);
  if (moth_event_record(n->done, n->stream) != MOTH_OK)
    return broke(r, moth_last_error()), stop(r);
  r->g->stats.bytes_sent += r->w->nin * r->w->itemsize;
  for (int nap = 0;; nap = nap < 1 ? nap + 1 : 1) {
    if (moth_event_query(n->done, &done) != MOTH_OK)
      return broke(r, moth_last_error()), stop(r);
    if (done)
      return true;
    struct pollfd alarm = {.fd = r->e->alarm[0], .events = POLLIN};
    poll(&alarm, 1, nap);
    if (alarm.revents) /* broken or closing */
      return stop(r);
    if (N.async_error(n->comm, &error) || (error != SUCCESS && error != IN_PROGRESS))
      return broke(r, N.text(error)), stop(r);
    if (moth_wire_now() >= r->w->deadline)
      return moth_tcp_timed_out(r), stop(r);
    if (!moth_tcp_stalled(r))
      return stop(r);
  }
}
