/* Internal header of the CUDA runtime: device.cu opens it, alloc.cu and pinned.cu manage memory,
 * stream.cu streams and events, graph.cu captures. Kernels need cuda.h only. */
#ifndef MOTH_CUDA_RUNTIME_H
#define MOTH_CUDA_RUNTIME_H
#include <pthread.h>

#include "cuda/cuda.h"
extern "C" {
#include "device/cuda.h"
#include "device/stream.h"
#include "dispatch/registry.h"
}

struct MothLock {
  pthread_mutex_t *m;
  explicit MothLock(pthread_mutex_t *mutex) : m(mutex) { pthread_mutex_lock(m); }
  ~MothLock() { pthread_mutex_unlock(m); }
  MothLock(const MothLock &) = delete;
};

int moth_cuda_device_count(void);
/* moth_cuda_check for a call on a given device instead of the current one. */
MothStatus moth_cuda_check_on(int device, cudaError_t e, const char *what);

/* --- alloc.cu ----------------------------------------------------------------------------------- */

void moth_cuda_memory_open(int device);
void moth_cuda_memory_stats(int device, MothCudaMemory *out);
void moth_cuda_memory_visit(int device, MothCudaVisit visit, void *ctx);
void moth_cuda_memory_reset_peak(int device);
void moth_cuda_memory_reset_accumulated(int device);
MothStatus moth_cuda_empty_cache(int device);
void moth_cuda_set_fraction(int device, double fraction);

/* --- pinned.cu ---------------------------------------------------------------------------------- */

/* Pinned host memory, or NULL with the reason in moth_last_error(). */
void *moth_cuda_pinned_alloc(size_t n);
void moth_cuda_pinned_free(void *p);
MothStatus moth_cuda_pin(MothTensor *t, MothTensor **out);
/* An uninitialised row-major tensor in pinned memory. */
MothStatus moth_cuda_pinned_new(int ndim, const int64_t *shape, MothDType dtype, MothTensor **out);
bool moth_cuda_is_pinned(const MothTensor *t);
void moth_cuda_pinned_stats(int64_t *live, int64_t *cached);
MothStatus moth_cuda_pinned_empty(void);

/* --- stream.cu ---------------------------------------------------------------------------------- */

struct MothCudaStream {
  MothStream head;
  cudaStream_t s;
};
extern const MothStreamOps moth_cuda_streams;
/* The host waits; Ctrl-C ends that. moth_cuda_device_wait raises faults, too. */
MothStatus moth_cuda_stream_wait(int device, cudaStream_t s);
/* To be called before a wait that nothing can end: waits only where there is a flag for Ctrl-C. */
MothStatus moth_cuda_stream_poll(int device, cudaStream_t s);
MothStatus moth_cuda_device_wait(int device);

MothStatus moth_cuda_streams_open(int device);
MothCudaStream *moth_cuda_stream_of(int device); /* this thread's current one */
MothCudaStream *moth_cuda_stream_find(int device, cudaStream_t s);
MothStatus moth_cuda_stream_new(int device, int priority, MothCudaStream **out);
MothCudaStream *moth_cuda_stream_default(int device);
void moth_cuda_stream_set(MothCudaStream *s);
MothStatus moth_cuda_stream_synchronize(MothCudaStream *s);
MothStatus moth_cuda_stream_query(MothCudaStream *s, bool *done);
MothStatus moth_cuda_stream_wait_stream(MothCudaStream *s, MothCudaStream *for_this);
/* Events without timing, from a pool of each device. */
MothStatus moth_cuda_event_take(int device, cudaEvent_t *e);
void moth_cuda_event_give(int device, cudaEvent_t e);

/* --- graph.cu ----------------------------------------------------------------------------------- */

/* How many captures are under way: 0 is the fast answer to all questions below. */
extern int moth_cuda_captures;
static inline bool moth_cuda_any_capture(void) {
  return __atomic_load_n(&moth_cuda_captures, __ATOMIC_ACQUIRE) != 0;
}
/* The graph that the stream's work is recorded into, or NULL; its pool (0: none). */
MothCudaGraph *moth_cuda_capture_of(cudaStream_t stream);
uint64_t moth_cuda_capture_pool(cudaStream_t stream);
/* Memory pools used by graphs only; each graph holds a reference to its own. */
uint64_t moth_cuda_pool_new(void);
MothStatus moth_cuda_pool_hold(uint64_t pool);
void moth_cuda_pool_release(uint64_t pool);
bool moth_cuda_pool_in_use(uint64_t pool);
MothCudaGraph *moth_cuda_graph_new(void);
void moth_cuda_graph_free(MothCudaGraph *g);
MothStatus moth_cuda_graph_begin(MothCudaGraph *g, uint64_t pool, int mode);
MothStatus moth_cuda_graph_end(MothCudaGraph *g);
MothStatus moth_cuda_graph_replay(MothCudaGraph *g);
MothStatus moth_cuda_graph_reset(MothCudaGraph *g);
uint64_t moth_cuda_graph_pool(const MothCudaGraph *g);

/* During its lifetime this thread may make calls that a capture forbids; they belong to no graph. (Needed
 * even without a known capture: another thread may begin one at any time.) */
struct MothRelaxed {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  MothRelaxed() { cudaThreadExchangeStreamCaptureMode(&mode); }
  ~MothRelaxed() { cudaThreadExchangeStreamCaptureMode(&mode); }
  MothRelaxed(const MothRelaxed &) = delete;
};
#endif
