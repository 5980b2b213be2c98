/* What the kernels of the edge library ask of moth: the thread that calls runs everything, nothing can be set. */
#include <string.h>

#include "core/alloc.h"
#include "core/defaults.h"
#include "core/error.h"
#include "core/parallel.h"
#include "device/device.h"
#include "dispatch/on_cpu.h"
#include "dispatch/parts.h"
#include "edge/ops.h"
#include "kernels/cpu/blas_open.h"
#include "kernels/cpu/loop.h"

int moth_isa;

/* The kernels' instruction set is the build's (EDGE_ISA); all else runs on any processor of the kind. */
MothStatus moth_edge_check_cpu(void) {
#if MOTH_EDGE_LEVEL > 0
  __builtin_cpu_init();
  bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("bmi2");
#if MOTH_EDGE_LEVEL > 1
  has = has && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512cd");
#endif
  if (!has)
    return moth_fail(
        MOTH_ERR_STATE,
        "[edge] this library was built with EDGE_ISA=%s, which this processor does not have: "
        "build it for generic",
        MOTH_EDGE_LEVEL > 1 ? "avx512" : "avx2");
#endif
  return MOTH_OK;
}

/* Products run by moth's own kernels. */
const MothBlas *moth_blas(void) {
  static const MothBlas none = {.path = "none", .core = "", .note = ""};
  return &none;
}

const MothOp *moth_edge_find_op(const char *name, uint32_t *hash) {
  int low = 0, high = moth_edge_op_count;
  while (low < high) {
    int mid = (low + high) / 2, order = strcmp(name, moth_edge_ops[mid].op->name);
    if (order == 0) {
      *hash = moth_edge_ops[mid].hash;
      return moth_edge_ops[mid].op;
    }
    if (order < 0)
      high = mid;
    else
      low = mid + 1;
  }
  return NULL;
}

_Thread_local const volatile sig_atomic_t *moth_stop;

void moth_parallel_for(int64_t n, int64_t grain, MothRange fn, void *ctx) {
  (void)grain;
  if (n > 0)
    fn(ctx, 0, n);
}

MothStatus moth_interrupted(void) {
  return moth_fail(MOTH_ERR_INTERRUPTED, "interrupted");
}

int moth_num_threads(void) {
  return 1;
}

int moth_num_threads_at_start(void) {
  return 1;
}

_Thread_local MothThread moth_thread;
MothThread *moth_thread_state(void) {
  return &moth_thread;
}

static MothDefaults defaults = {.dtype = MOTH_FLOAT32, .num_threads = 1};
_Thread_local MothDefaults *moth_defaults_now;
MothDefaults *moth_defaults_find(void) {
  return moth_defaults_now = &defaults;
}

/* --- the CPU, and no other device --------------------------------------------------------------------- */

bool moth_deterministic = true;

static const char *cpu_why_not(int index) {
  return index ? "there is one cpu device, cpu:0" : NULL;
}
static void *cpu_alloc(int index, size_t n) {
  (void)index;
  void *p = moth_alloc(n);
  if (!p)
    moth_fail(MOTH_ERR_MEMORY, "the arena is too small: the model's kernels need more memory than "
                               "when moth_edge_arena ran them");
  return p;
}
static void cpu_free(int index, void *p, size_t n) {
  (void)index;
  moth_free(p, n);
}
static MothStatus cpu_copy(int index, void *to, const void *from, size_t n) {
  (void)index;
  memcpy(to, from, n);
  return MOTH_OK;
}
static const MothDeviceOps cpu = {
    .memory = {"cpu", cpu_why_not, cpu_alloc, cpu_free, cpu_copy, cpu_copy}};
#define CPU &cpu.memory
const MothDeviceMemory *moth_memories[MOTH_NDEVICES] = {CPU, CPU, CPU, CPU, CPU, CPU, CPU, CPU};

MothStatus moth_device_check(MothDevice d) {
  return d.type == MOTH_CPU && !d.index
             ? MOTH_OK
             : moth_fail(MOTH_ERR_VALUE, "the edge library computes on the CPU");
}

const char *moth_device_format(MothDevice d, char *buf, size_t n) {
  (void)d;
  if (n > 3)
    memcpy(buf, "cpu", 4);
  return buf;
}

static MothStatus one_device(void) {
  return moth_fail(MOTH_ERR_TYPE, "the edge library computes on the CPU");
}
MothStatus moth_call_on_cpu(MothCall *c) {
  (void)c;
  return one_device();
}
MothStatus moth_host_fetch(MothHostCopy *c, MothTensor *t, bool elements) {
  (void)c;
  (void)t;
  (void)elements;
  return one_device();
}
MothStatus moth_host_send(const MothHostCopy *c) {
  (void)c;
  return one_device();
}
void moth_host_drop(MothHostCopy *c) {
  (void)c;
}
