/* Shared by the parts of the emulation: fiber.cc runs a kernel, stream.cc decides when, memory.cc allocates and
 * copies, graph.cc records streams, runtime.cc is the rest of the API.
 *
 * One mutex guards all of it: API functions lock it (MOTH_EMU_ENTER), functions declared here expect it locked.
 * Kernels and host functions run under it. */
#ifndef MOTH_EMU_EMU_H
#define MOTH_EMU_EMU_H
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "emu/api.h"

#if defined(__SANITIZE_ADDRESS__)
#define MOTH_EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MOTH_EMU_ASAN 1
#endif
#endif
#ifdef MOTH_EMU_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n)   ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

/* The bytes of memory that nothing has written: NaN in every floating-point format. */
enum { MOTH_EMU_PATTERN = 0xff };

struct MothEmuRandom {
  uint64_t state;
  uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    return (state ^= state << 17) * 0x2545f4914f6cdd1dull;
  }
  /* In [0, n). */
  unsigned below(unsigned n) { return (unsigned)((next() >> 32) * n >> 32); }
};
uint64_t moth_emu_seed(void);

/* --- runtime.cc --------------------------------------------------------------------------------- */

struct MothEmuDevice {
  cudaStream_t legacy; /* its default stream */
  cudaError_t sticky;  /* of a kernel that failed; ends with cudaDeviceReset */
  size_t used;         /* bytes of memory */
};
enum { MOTH_EMU_MAX_DEVICES = 8 };
extern MothEmuDevice moth_emu_devices[MOTH_EMU_MAX_DEVICES];
int moth_emu_device_count(void);
size_t moth_emu_memory_limit(void);
extern thread_local int moth_emu_device_now;
extern thread_local bool moth_emu_in_host_function;
extern std::mutex moth_emu_mutex;

/* Keeps an error for cudaGetLastError. */
cudaError_t moth_emu_note(cudaError_t e);
/* Why an API function must fail at once: a sticky error, or a call from a host function. */
cudaError_t moth_emu_barred(void);
#define MOTH_EMU_ENTER()                                                                           \
  if (moth_emu_in_host_function)                                                                   \
    return moth_emu_note(cudaErrorNotPermitted);                                                   \
  std::lock_guard<std::mutex> moth_emu_lock(moth_emu_mutex);                                       \
  if (cudaError_t barred = moth_emu_barred())                                                      \
  return moth_emu_note(barred)
#define MOTH_EMU_TRY(call)                                                                         \
  do {                                                                                             \
    if (cudaError_t tried = (call))                                                                \
      return moth_emu_note(tried);                                                                 \
  } while (0)

/* --- fiber.cc ----------------------------------------------------------------------------------- */

/* Runs a kernel now, to its end. moth_emu_error() says why it failed. */
cudaError_t moth_emu_run(const char *name, const std::function<void()> &f, dim3 grid, dim3 block,
                         size_t shared);
void moth_emu_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* --- stream.cc ---------------------------------------------------------------------------------- */

/* A position in a queue: one operation, and whether it has run. */
struct MothEmuMark {
  cudaStream_t stream;
  uint64_t at;
  bool done;
  double ms; /* when it ran */
};
typedef std::shared_ptr<MothEmuMark> MothEmuMarkRef;
typedef std::function<cudaError_t()> MothEmuWork;
struct MothEmuOp {
  MothEmuWork work; /* may be empty */
  std::vector<MothEmuMarkRef> after;
  MothEmuMarkRef mark;
  uint64_t number; /* in the order of calls, over all streams */
};
struct MothEmuCapture;
struct MothEmuStream {
  int device;
  unsigned flags;
  int priority;
  bool legacy, gone;
  std::deque<MothEmuOp> queue;
  uint64_t popped; /* how many have run: the position of queue[0] */
  uint64_t need;   /* the position up to which the current call must run it */
  bool joins;      /* the current call runs it, too, though nothing needs it */
  MothEmuMarkRef last;
  std::shared_ptr<MothEmuCapture> capture;
  std::vector<int> tail; /* nodes of the capture that the next one comes after */
};
struct MothEmuEvent {
  int device;
  unsigned flags;
  MothEmuMarkRef mark;
  std::shared_ptr<MothEmuCapture> capture; /* the capture in which it was recorded, if any */
  std::vector<int> nodes;
};

/* The stream of a handle: NULL is the current device's default stream. */
cudaError_t moth_emu_stream(cudaStream_t handle, cudaStream_t *s);
cudaStream_t moth_emu_stream_new(int device, unsigned flags, int priority);
void moth_emu_stream_delete(cudaStream_t s);
/* Queues (or captures) work behind the operations of the stream, and behind `after`. */
cudaError_t moth_emu_put(cudaStream_t s, MothEmuWork work,
                         const std::vector<MothEmuMarkRef> &after = {},
                         MothEmuMarkRef *mark = nullptr);
/* Runs until the mark has run; until the device is idle. */
cudaError_t moth_emu_wait(const MothEmuMarkRef &mark);
cudaError_t moth_emu_wait_device(int device);
/* Drops what is queued on a device. */
void moth_emu_drop(int device);

/* --- memory.cc ---------------------------------------------------------------------------------- */

void moth_emu_memory_reset(int device);
/* Called before and after a device works: see MOTH_CUDA_EMU_PROTECT. */
void moth_emu_protect(bool closed);

/* --- graph.cc ----------------------------------------------------------------------------------- */

struct MothEmuNode {
  MothEmuWork work;
  std::vector<int> after;
  int branch;
};
struct MothEmuCapture {
  unsigned long long id;
  cudaStreamCaptureMode mode;
  cudaStream_t origin;
  const void *thread;
  bool invalid;
  std::vector<MothEmuNode> nodes;
  std::vector<cudaStream_t> streams; /* branches: the origin is the first */
};
cudaError_t moth_emu_capture(cudaStream_t s, MothEmuWork work);
void moth_emu_join(cudaStream_t s, const std::shared_ptr<MothEmuCapture> &capture);
/* For calls that a capture forbids: the error, after spoiling the capture. */
cudaError_t moth_emu_unsafe(void);
cudaError_t moth_emu_spoil(cudaStream_t s, cudaError_t e);
cudaError_t moth_emu_spoil_blocking(int device);
#endif
