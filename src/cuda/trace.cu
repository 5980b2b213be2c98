/* See trace.h. CUPTI gives records in buffers: of work (a kernel, a copy, a fill) with a correlation number, and of
 * calls of CUDA's API, which join that number to what was on the thread's stack of external numbers, ours. Source: CUPTI's
 * cupti_activity.h, whose numbers these are; the structs begin as those of all its versions since CUDA 11. */
#include "cuda/trace.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <unordered_map>
#include <vector>

#include "cuda/lib.h"

namespace {

int64_t now_ns() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* --- CUPTI ----------------------------------------------------------------------------------------- */

enum { MEMCPY = 1, MEMSET = 2, DRIVER = 4, RUNTIME = 5, KERNEL = 10, EXTERNAL = 39 };
const int kinds[] = {MEMCPY, MEMSET, DRIVER, RUNTIME, KERNEL, EXTERNAL};
enum { OURS = 3 /* CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0 */, BUFFER = 1 << 20 };

struct Kernel {
  uint32_t kind;
  uint8_t cache, shared_config;
  uint16_t registers;
  uint32_t partitioned[2];
  uint64_t start, end, completed;
  uint32_t device, context, stream;
  int32_t grid[3], block[3], shared[2];
  uint32_t local[2], correlation;
  int64_t grid_id;
  const char *name;
};
struct Copy {
  uint32_t kind;
  uint8_t what, from, to, flags;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation;
};
struct Fill {
  uint32_t kind, value;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation;
};
struct External {
  uint32_t kind, of;
  uint64_t id;
  uint32_t correlation, reserved;
};

typedef void (*Request)(uint8_t **buffer, size_t *size, size_t *most);
typedef void (*Complete)(void *context, uint32_t stream, uint8_t *buffer, size_t size,
                         size_t valid);
struct {
  int (*cuptiActivityRegisterCallbacks)(Request, Complete);
  int (*cuptiActivityEnable)(int kind);
  int (*cuptiActivityDisable)(int kind);
  int (*cuptiActivityFlushAll)(uint32_t flag);
  int (*cuptiActivityGetNextRecord)(uint8_t *buffer, size_t valid, void **record);
  int (*cuptiActivityPushExternalCorrelationId)(int kind, uint64_t id);
  int (*cuptiActivityPopExternalCorrelationId)(int kind, uint64_t *last);
  int (*cuptiGetTimestamp)(uint64_t *ns);
} cupti;

struct Full {
  uint8_t *at;
  size_t valid;
};
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
std::vector<Full> *full; /* buffers that CUPTI has given back; guarded by lock */
char why_not[600];
bool by_cupti;
uint64_t theirs; /* CUPTI's clock, and ours, when the trace began */
int64_t mine;

void request(uint8_t **buffer, size_t *size, size_t *most) {
  *buffer = static_cast<uint8_t *>(aligned_alloc(8, BUFFER));
  *size = *buffer ? BUFFER : 0;
  *most = 0;
}
void complete(void *, uint32_t, uint8_t *buffer, size_t, size_t valid) {
  MothLock l(&lock);
  full->push_back({buffer, valid});
}

void *open_library() {
  void *lib = nullptr;
#ifdef __CUDACC__
  if (moth_cuda_lib_open(MOTH_CUDA_CUPTI, &lib) != MOTH_OK)
    snprintf(why_not, sizeof why_not, "%.590s", moth_last_error());
#else /* NVIDIA's own traces no emulation: one that a test has put there */
  char path[512];
  const char *folder = moth_env_text("MOTH_CUDA_LIB");
  snprintf(path, sizeof path, "%.480s/libcupti.so.13", folder ? folder : "");
  if (!(lib = dlopen(path, RTLD_NOW | RTLD_LOCAL)))
    snprintf(why_not, sizeof why_not, "the emulation has no CUPTI");
#endif
  return lib;
}

bool find_cupti() {
  static int found = -1;
  if (found >= 0)
    return found == 1;
  found = 0;
  void *lib = open_library();
  if (!lib)
    return false;
  const char *absent = nullptr;
#define FIND(f)                                                                                    \
  *(void **)&cupti.f = dlsym(lib, #f);                                                             \
  absent = cupti.f ? absent : #f;
  FIND(cuptiActivityRegisterCallbacks)
  FIND(cuptiActivityEnable)
  FIND(cuptiActivityDisable)
  FIND(cuptiActivityFlushAll)
  FIND(cuptiActivityGetNextRecord)
  FIND(cuptiActivityPushExternalCorrelationId)
  FIND(cuptiActivityPopExternalCorrelationId)
  FIND(cuptiGetTimestamp)
#undef FIND
  full = new std::vector<Full>;
  int e = 0;
  if (absent)
    snprintf(why_not, sizeof why_not, "CUPTI lacks %s", absent);
  else if ((e = cupti.cuptiActivityRegisterCallbacks(request, complete)) != 0)
    snprintf(why_not, sizeof why_not, "cuptiActivityRegisterCallbacks failed: error %d", e);
  else
    found = 1;
  return found == 1;
}

bool start_cupti() {
  if (!find_cupti())
    return false;
  for (int kind : kinds) {
    int e = cupti.cuptiActivityEnable(kind);
    if (!e)
      continue;
    snprintf(why_not, sizeof why_not, "CUPTI refuses activity %d: error %d%s", kind, e,
             e == 35 ? " (the driver lets only root count: NVreg_RestrictProfilingToAdminUsers)"
                     : "");
    for (int k : kinds)
      cupti.cuptiActivityDisable(k);
    return false;
  }
  cupti.cuptiGetTimestamp(&theirs);
  mine = now_ns();
  return true;
}

void drop_buffers() {
  for (Full &b : *full)
    free(b.at);
  full->clear();
}

const char *copy_name(int what) {
  static const char *const names[] = {"copy",
                                      "copy host to device",
                                      "copy device to host",
                                      "copy",
                                      "copy",
                                      "copy",
                                      "copy",
                                      "copy",
                                      "copy within a device",
                                      "copy on a host",
                                      "copy between devices"};
  return names[what >= 0 && what < 11 ? what : 0];
}

void stop_cupti(MothCudaSeen seen, void *ctx) {
  cupti.cuptiActivityFlushAll(1);
  uint64_t last = 0;
  cupti.cuptiGetTimestamp(&last);
  double rate = last > theirs ? (double)(now_ns() - mine) / (double)(last - theirs) : 1;
  for (int kind : kinds)
    cupti.cuptiActivityDisable(kind);
  MothLock l(&lock);
  std::unordered_map<uint32_t, uint64_t> launchers;
  for (int pass = 0; pass < 2; pass++)
    for (Full &b : *full) {
      void *record = nullptr;
      while (cupti.cuptiActivityGetNextRecord(b.at, b.valid, &record) == 0) {
        uint32_t kind = *static_cast<uint32_t *>(record);
        if (pass == 0) {
          const External *x = static_cast<External *>(record);
          if (kind == EXTERNAL && x->of == OURS)
            launchers[x->correlation] = x->id;
          continue;
        }
        MothCudaWork w = {};
        char *plain = nullptr;
        uint32_t correlation;
        uint64_t start, end;
        if (kind == KERNEL) {
          const Kernel *k = static_cast<Kernel *>(record);
          int status;
          plain = k->name ? abi::__cxa_demangle(k->name, nullptr, nullptr, &status) : nullptr;
          w.name = plain ? plain : k->name ? k->name : "kernel";
          w.device = (int)k->device, w.stream = k->stream, correlation = k->correlation;
          start = k->start, end = k->end;
        } else if (kind == MEMCPY) {
          const Copy *c = static_cast<Copy *>(record);
          w.name = copy_name(c->what), w.kind = MOTH_CUDA_COPY, w.bytes = (int64_t)c->bytes;
          w.device = (int)c->device, w.stream = c->stream, correlation = c->correlation;
          start = c->start, end = c->end;
        } else if (kind == MEMSET) {
          const Fill *f = static_cast<Fill *>(record);
          w.name = "fill", w.kind = MOTH_CUDA_FILL, w.bytes = (int64_t)f->bytes;
          w.device = (int)f->device, w.stream = f->stream, correlation = f->correlation;
          start = f->start, end = f->end;
        } else {
          continue;
        }
        if (start >= theirs && end >= start) {
          w.begin = mine + (int64_t)((double)(start - theirs) * rate);
          w.end = mine + (int64_t)((double)(end - theirs) * rate);
          auto launcher = launchers.find(correlation);
          w.id = launcher == launchers.end() ? 0 : launcher->second;
          seen(ctx, &w);
        }
        free(plain);
      }
    }
  drop_buffers();
}

/* --- pairs of events ------------------------------------------------------------------------------- */

struct Pair {
  uint64_t id;
  cudaEvent_t from, to;
  int device;
  cudaStream_t stream;
};
struct Base { /* an event whose time on our clock is known */
  cudaEvent_t event;
  int64_t ns;
};
std::vector<Pair> *pairs; /* guarded by lock, as the two below */
std::vector<cudaEvent_t> *spare[MOTH_CUDA_MAX_DEVICES];
Base bases[MOTH_CUDA_MAX_DEVICES];
thread_local std::vector<Pair> open_pairs;

bool take(int device, cudaEvent_t *e) {
  MothLock l(&lock);
  if (!spare[device])
    spare[device] = new std::vector<cudaEvent_t>;
  if (!spare[device]->empty()) {
    *e = spare[device]->back();
    spare[device]->pop_back();
    return true;
  }
  MothRelaxed relaxed;
  return cudaEventCreate(e) == cudaSuccess;
}
void give(const Pair &p) {
  MothLock l(&lock);
  spare[p.device]->push_back(p.from);
  spare[p.device]->push_back(p.to);
}

/* The event from which times of a device are counted. */
bool has_base(int device) {
  Base *b = &bases[device];
  if (b->event)
    return true;
  cudaEvent_t e;
  cudaStream_t s = moth_cuda_stream_default(device)->s;
  if (!take(device, &e) || cudaStreamSynchronize(s) != cudaSuccess ||
      cudaEventRecord(e, s) != cudaSuccess || cudaEventSynchronize(e) != cudaSuccess)
    return false;
  b->ns = now_ns();
  b->event = e;
  return true;
}

void begin_pair(uint64_t id, int device) {
  if (moth_cuda_set_device(device) != MOTH_OK)
    return;
  Pair p = {id, nullptr, nullptr, device, moth_cuda_stream(device)};
  if (moth_cuda_is_capturing(p.stream) || !has_base(device) || !take(device, &p.from) ||
      !take(device, &p.to) || cudaEventRecord(p.from, p.stream) != cudaSuccess)
    return;
  open_pairs.push_back(p);
}

void end_pair(uint64_t id, bool leaf) {
  while (!open_pairs.empty() && open_pairs.back().id > id) { /* of calls that did not end */
    give(open_pairs.back());
    open_pairs.pop_back();
  }
  if (open_pairs.empty() || open_pairs.back().id != id)
    return;
  Pair p = open_pairs.back();
  open_pairs.pop_back();
  if (leaf && !moth_cuda_is_capturing(p.stream) && cudaEventRecord(p.to, p.stream) == cudaSuccess) {
    MothLock l(&lock);
    if (!pairs)
      pairs = new std::vector<Pair>;
    pairs->push_back(p);
  } else {
    give(p);
  }
}

void stop_pairs(MothCudaSeen seen, void *ctx) {
  std::vector<Pair> list;
  {
    MothLock l(&lock);
    if (pairs)
      list.swap(*pairs);
  }
  for (const Pair &p : list) {
    float from, length;
    const Base *b = &bases[p.device];
    if (cudaEventElapsedTime(&from, b->event, p.from) == cudaSuccess &&
        cudaEventElapsedTime(&length, p.from, p.to) == cudaSuccess) {
      MothCudaWork w = {};
      w.id = p.id;
      w.begin = b->ns + (int64_t)((double)from * 1e6);
      w.end = w.begin + (int64_t)((double)length * 1e6);
      w.device = p.device;
      w.stream = (uint64_t)(uintptr_t)p.stream;
      seen(ctx, &w);
    }
    give(p);
  }
  for (int d = 0; d < MOTH_CUDA_MAX_DEVICES; d++)
    if (bases[d].event) {
      MothLock l(&lock);
      spare[d]->push_back(bases[d].event);
      bases[d].event = nullptr;
    }
}

} // namespace

MothStatus moth_cuda_trace_start(const char **by_events) {
  by_cupti = start_cupti();
  *by_events = by_cupti ? nullptr : why_not;
  return MOTH_OK;
}

void moth_cuda_trace_begin(uint64_t id, int device) {
  if (by_cupti)
    cupti.cuptiActivityPushExternalCorrelationId(OURS, id);
  else if (device >= 0)
    begin_pair(id, device);
}

void moth_cuda_trace_end(uint64_t id, bool leaf) {
  uint64_t last;
  if (by_cupti)
    cupti.cuptiActivityPopExternalCorrelationId(OURS, &last);
  else
    end_pair(id, leaf);
}

MothStatus moth_cuda_trace_stop(MothCudaSeen seen, void *ctx) {
  MothStatus s = MOTH_OK;
  for (int i = 0; i < moth_cuda_device_count() && s == MOTH_OK; i++)
    if (moth_cuda_stream_default(i)->s)
      s = moth_cuda_device_wait(i);
  if (by_cupti)
    stop_cupti(seen, ctx);
  else
    stop_pairs(seen, ctx);
  return s;
}
