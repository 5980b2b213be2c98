/* Captured graphs: calls on a capturing stream are recorded, and a replay starts all of them at once.
 *
 * A replay runs the same kernels with the same arguments on the same memory. So the memory of a capture
 * comes from a pool of its own (alloc.cu), and random kernels read the start of their numbers from device
 * memory: a slot of two words per generator, {counter, seed}. Each replay sets the slot before it starts
 * the graph and advances the generator by the count of numbers that the graph draws. */
#include <stdio.h>
#include <string.h>

#include "cuda/runtime.h"
extern "C" {
#include "core/alloc.h"
}

int moth_cuda_captures;

struct Slot {
  Slot *next;
  MothGenerator *g;
  uint64_t *extra; /* on the device */
  uint64_t blocks; /* the count of random blocks that a replay draws */
};

struct MothCudaGraph {
  MothCudaGraph *next; /* in the list of capturing graphs */
  MothCudaStream *stream;
  unsigned long long id;
  uint64_t pool; /* referenced from begin to reset */
  cudaGraphExec_t exec;
  Slot *slots;
  bool capturing;
  char problem[256]; /* of the capture, or "" */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static MothCudaGraph *capturing;

MothCudaGraph *moth_cuda_capture_of(cudaStream_t stream) {
  if (!moth_cuda_any_capture())
    return nullptr;
  cudaStreamCaptureStatus status;
  unsigned long long id = 0;
  if (cudaStreamGetCaptureInfo(stream, &status, &id) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  if (status == cudaStreamCaptureStatusNone)
    return nullptr;
  MothLock guard(&lock);
  for (MothCudaGraph *g = capturing; g; g = g->next)
    if (g->id == id)
      return g;
  return nullptr;
}
uint64_t moth_cuda_capture_pool(cudaStream_t stream) {
  MothCudaGraph *g = moth_cuda_capture_of(stream);
  return g ? g->pool : 0;
}
bool moth_cuda_is_capturing(cudaStream_t stream) {
  return moth_cuda_capture_of(stream) != nullptr;
}

/* --- pools --------------------------------------------------------------------------------- */

struct GraphPool {
  GraphPool *next;
  uint64_t id;
  int users;
};
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static GraphPool *pools;

bool moth_cuda_pool_in_use(uint64_t id) {
  MothLock lock(&pools_lock);
  for (GraphPool *p = pools; p; p = p->next)
    if (p->id == id)
      return p->users > 0;
  return false;
}

uint64_t moth_cuda_pool_new(void) {
  static uint64_t ids;
  return __atomic_add_fetch(&ids, 1, __ATOMIC_RELAXED);
}
MothStatus moth_cuda_pool_hold(uint64_t id) {
  MothLock lock(&pools_lock);
  for (GraphPool *p = pools; p; p = p->next)
    if (p->id == id)
      return p->users++, MOTH_OK;
  GraphPool *p = (GraphPool *)moth_alloc(sizeof *p);
  if (!p)
    return moth_no_memory(sizeof *p);
  p->id = id;
  p->users = 1;
  p->next = pools;
  pools = p;
  return MOTH_OK;
}
void moth_cuda_pool_release(uint64_t id) {
  MothLock lock(&pools_lock);
  for (GraphPool **at = &pools; *at; at = &(*at)->next)
    if ((*at)->id == id) {
      GraphPool *p = *at;
      if (--p->users > 0)
        return;
      *at = p->next;
      moth_free(p, sizeof *p);
      return;
    }
}

/* --- random numbers ------------------------------------------------------------------------------ */

static Slot *slot_of(MothCudaGraph *graph, int device, MothGenerator *g) {
  for (Slot *s = graph->slots; s; s = s->next)
    if (s->g == g)
      return s;
  Slot *s = (Slot *)moth_alloc(sizeof *s);
  void *extra = s ? moth_cuda_alloc(device, 2 * sizeof(uint64_t)) : nullptr;
  if (!extra) {
    if (s)
      moth_free(s, sizeof *s);
    snprintf(graph->problem, sizeof graph->problem, "out of memory for a generator");
    return nullptr;
  }
  moth_generator_retain(g);
  s->g = g;
  s->extra = (uint64_t *)extra;
  s->blocks = 0;
  s->next = graph->slots;
  graph->slots = s;
  return s;
}

MothCudaPhilox moth_cuda_philox(int device, MothGenerator *g, int64_t words) {
  MothCudaGraph *graph =
      moth_cuda_any_capture() ? moth_cuda_capture_of(moth_cuda_stream(device)) : nullptr;
  Slot *s = graph ? slot_of(graph, device, g ? g : moth_default_generator()) : nullptr;
  if (!s) {
    MothPhilox p = moth_generator_take(g, words);
    return MothCudaPhilox{p.seed, p.offset, nullptr};
  }
  MothCudaPhilox p = {0, s->blocks, s->extra};
  s->blocks += ((uint64_t)words + 3) / 4;
  return p;
}

static __global__ void set_slot(uint64_t *extra, uint64_t counter, uint64_t seed) {
  extra[0] = counter;
  extra[1] = seed;
}

/* --- capture and replay ---------------------------------------------------------------------------- */

MothCudaGraph *moth_cuda_graph_new(void) {
  MothCudaGraph *g = (MothCudaGraph *)moth_alloc(sizeof *g);
  if (g)
    memset((void *)g, 0, sizeof *g);
  else
    moth_no_memory(0);
  return g;
}

MothStatus moth_cuda_graph_reset(MothCudaGraph *g) {
  if (g->capturing)
    moth_cuda_graph_end(g); /* the captured graph is released, too */
  MothStatus status = MOTH_OK;
  if (g->exec) {
    MothRelaxed relaxed;
    status = moth_cuda_check_on(g->stream->head.device.index, cudaGraphExecDestroy(g->exec),
                                "cudaGraphExecDestroy");
  }
  g->exec = nullptr;
  while (Slot *s = g->slots) {
    g->slots = s->next;
    moth_cuda_free(g->stream->head.device.index, s->extra, 2 * sizeof(uint64_t));
    moth_generator_release(s->g);
    moth_free(s, sizeof *s);
  }
  if (g->pool)
    moth_cuda_pool_release(g->pool);
  g->pool = 0;
  return status;
}
void moth_cuda_graph_free(MothCudaGraph *g) {
  moth_cuda_graph_reset(g);
  moth_free(g, sizeof *g);
}

MothStatus moth_cuda_graph_begin(MothCudaGraph *g, uint64_t pool, int mode) {
  static const cudaStreamCaptureMode modes[] = {
      cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed};
  if (g->capturing || g->exec)
    return moth_fail(MOTH_ERR_STATE, "the graph has been captured already; reset() it first");
  int device = moth_device_ops(MOTH_CUDA)->current();
  MothCudaStream *stream = moth_cuda_stream_of(device);
  MOTH_TRY(moth_cuda_set_device(device));
  pool = pool ? pool : moth_cuda_pool_new();
  MOTH_TRY(moth_cuda_pool_hold(pool));
  g->pool = pool;
  g->stream = stream;
  g->problem[0] = 0;
  __atomic_add_fetch(&moth_cuda_captures, 1, __ATOMIC_ACQ_REL);
  cudaStreamCaptureStatus status;
  cudaError_t e = cudaStreamBeginCapture(stream->s, modes[mode]);
  bool begun = e == cudaSuccess;
  if (begun)
    e = cudaStreamGetCaptureInfo(stream->s, &status, &g->id);
  if (e != cudaSuccess) {
    cudaGraph_t nothing;
    if (begun)
      cudaStreamEndCapture(stream->s, &nothing);
    __atomic_sub_fetch(&moth_cuda_captures, 1, __ATOMIC_ACQ_REL);
    moth_cuda_pool_release(pool);
    g->pool = 0;
    return moth_cuda_check_on(device, e, "cudaStreamBeginCapture");
  }
  g->capturing = true;
  MothLock guard(&lock);
  g->next = capturing;
  capturing = g;
  return MOTH_OK;
}

MothStatus moth_cuda_graph_end(MothCudaGraph *g) {
  if (!g->capturing)
    return moth_fail(MOTH_ERR_STATE, "capture_end without capture_begin");
  int device = g->stream->head.device.index;
  cudaGraph_t graph = nullptr;
  MothStatus status = moth_cuda_set_device(device);
  cudaError_t e = cudaStreamEndCapture(g->stream->s, &graph);
  {
    MothLock guard(&lock);
    MothCudaGraph **at = &capturing;
    while (*at != g)
      at = &(*at)->next;
    *at = g->next;
  }
  g->capturing = false;
  __atomic_sub_fetch(&moth_cuda_captures, 1, __ATOMIC_ACQ_REL);
  if (status == MOTH_OK)
    status = moth_cuda_check_on(device, e, "cudaStreamEndCapture");
  if (status == MOTH_OK && g->problem[0])
    status = moth_fail(MOTH_ERR_MEMORY, "%s", g->problem);
  if (status == MOTH_OK) {
    MothRelaxed relaxed;
    status = moth_cuda_check_on(device, cudaGraphInstantiate(&g->exec, graph, 0),
                                "cudaGraphInstantiate");
  }
  if (graph)
    cudaGraphDestroy(graph);
  if (status != MOTH_OK) {
    g->exec = nullptr;
    char why[512];
    snprintf(why, sizeof why, "%s", moth_last_error());
    moth_cuda_graph_reset(g);
    moth_fail(status, "%s", why);
  }
  return status;
}

MothStatus moth_cuda_graph_replay(MothCudaGraph *g) {
  if (!g->exec)
    return moth_fail(MOTH_ERR_STATE, "replay: the graph has not been captured");
  int device = g->stream->head.device.index;
  cudaStream_t stream = moth_cuda_stream(device);
  MOTH_TRY(moth_cuda_set_device(device));
  for (Slot *s = g->slots; s; s = s->next) {
    MothPhilox p = moth_generator_take(s->g, (int64_t)(s->blocks * 4));
    MOTH_TRY(moth_launch("set_slot", set_slot, 1, 1, 0, stream, s->extra, p.offset, p.seed));
  }
  return moth_cuda_check_on(device, cudaGraphLaunch(g->exec, stream), "cudaGraphLaunch");
}

uint64_t moth_cuda_graph_pool(const MothCudaGraph *g) {
  return g->pool;
}
