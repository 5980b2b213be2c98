/* cuDNN's backend API: see cudnn.h.
 *
 * The first engine of the heuristics for which a plan can be made is cached with its plan, by shape, dtype and
 * device; a shape without any is cached too, and uses moth's own kernel. A full set evicts its oldest plan.
 * Workspace comes from the caching allocator, for each call.
 *
 * Engines may sum in any order, but in the same one each time: engines marked as nondeterministic are skipped
 * unless the caller allows them. */
#include "kernels/cuda/cudnn.h"

#ifdef __CUDACC__
#include <dlfcn.h>
#include <pthread.h>

#include "cuda/lib.h"
extern "C" {
#include "core/log.h"
}

enum { SETS = 128, WAYS = 4, CONFIGS = 32 };

MothDnn dnn;
static bool missing;
static cudnnHandle_t handles[MOTH_CUDA_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static MothDnnPlan plans[SETS][WAYS];
static uint8_t oldest[SETS];

static void open_library(void) {
  static_assert(CUDNN_MAJOR == 9, "src/cuda/lib.cu opens cuDNN 9");
  void *library;
  if (moth_cuda_lib_open(MOTH_CUDA_CUDNN, &library) != MOTH_OK) {
    moth_log_write("cuda", "convolution and attention by our own kernels: %s", moth_last_error());
    missing = true;
    return;
  }
#define DNN_FIND(f)                                                                                \
  dnn.f = reinterpret_cast<decltype(dnn.f)>(dlsym(library, #f));                                   \
  missing = missing || !dnn.f;
  DNN_FUNCTIONS(DNN_FIND)
  if (missing)
    moth_log_write("cuda", "convolution and attention by our own kernels: cuDNN lacks functions");
}

bool moth_dnn_open(void) {
  pthread_once(&once, open_library);
  return !missing;
}

cudnnDataType_t moth_dnn_type(int dtype) {
  switch (dtype) {
  case MOTH_FLOAT64:
    return CUDNN_DATA_DOUBLE;
  case MOTH_FLOAT16:
    return CUDNN_DATA_HALF;
  case MOTH_BFLOAT16:
    return CUDNN_DATA_BFLOAT16;
  default:
    return CUDNN_DATA_FLOAT;
  }
}

uint8_t moth_dnn_alignment(const void *p) {
  uint8_t n = 1;
  while (n < 64 && (uintptr_t)p % (2u * n) == 0)
    n = (uint8_t)(2 * n);
  return n;
}

void moth_dnn_tensor(Desc *t, int64_t id, cudnnDataType_t type, int64_t align,
                     const int64_t size[4], const int64_t stride[4]) {
  t->set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
  t->set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  t->set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
  t->set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, size);
  t->set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
}

static unsigned hash(const MothDnnKey *key) {
  uint64_t h = 0, word;
  for (size_t i = 0; i < sizeof *key; i += 8) {
    memcpy(&word, reinterpret_cast<const char *>(key) + i, 8);
    h = (h ^ word) * 0x9e3779b97f4a7c15ull;
    h ^= h >> 29;
  }
  return (unsigned)(h % SETS);
}

/* Whether an engine's numerical notes fit the limits. */
static bool notes_fit(cudnnBackendDescriptor_t config, const MothDnnLimits &l) {
  Desc engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  int64_t n = 0;
  if (engine.status != CUDNN_STATUS_SUCCESS ||
      dnn.cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
                                   &engine.d) != CUDNN_STATUS_SUCCESS)
    return false;
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  if (dnn.cudnnBackendGetAttribute(engine.d, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                   CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n,
                                   notes) != CUDNN_STATUS_SUCCESS)
    return false;
  for (int64_t i = 0; i < n; i++) {
    if (!l.any_order && notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
      return false;
    if (l.wide && !l.tf32 && notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)
      return false;
    if (l.wide && !l.tf32 && notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE)
      return false;
  }
  return true;
}

static bool choose(cudnnHandle_t handle, const Desc &graph, cudnnBackendHeurMode_t mode,
                   const MothDnnLimits &limits, MothDnnPlan *p) {
  Desc heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (!heuristic.finish())
    return false;
  cudnnBackendDescriptor_t configs[CONFIGS] = {};
  int64_t n = 0;
  bool ready = true, found = false;
  for (int i = 0; i < CONFIGS && ready; i++)
    ready = dnn.cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configs[i]) ==
            CUDNN_STATUS_SUCCESS;
  if (ready && dnn.cudnnBackendGetAttribute(heuristic.d, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                            CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS, &n,
                                            configs) != CUDNN_STATUS_SUCCESS)
    n = 0;
  for (int64_t i = 0; i < n && i < CONFIGS && !found; i++) {
    if (!notes_fit(configs[i], limits))
      continue;
    Desc plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
             &configs[i]);
    int64_t count;
    if (!plan.finish() || dnn.cudnnBackendGetAttribute(
                              plan.d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                              &count, &p->workspace) != CUDNN_STATUS_SUCCESS)
      continue;
    p->plan = plan.take();
    found = true;
  }
  for (int i = 0; i < CONFIGS; i++)
    if (configs[i])
      dnn.cudnnBackendDestroyDescriptor(configs[i]);
  return found;
}

static MothStatus dnn_check(cudnnStatus_t s, const char *what) {
  if (s == CUDNN_STATUS_SUCCESS)
    return MOTH_OK;
  return moth_fail(MOTH_ERR_STATE, "%s: %s", what, dnn.cudnnGetErrorString(s));
}

MothDnnSession::MothDnnSession(int device, cudaStream_t stream) {
  pthread_mutex_lock(&lock);
  status = handles[device] ? MOTH_OK : dnn_check(dnn.cudnnCreate(&handles[device]), "cudnnCreate");
  handle = handles[device];
  if (status == MOTH_OK)
    status = dnn_check(dnn.cudnnSetStream(handle, stream), "cudnnSetStream");
}
MothDnnSession::~MothDnnSession() {
  pthread_mutex_unlock(&lock);
}

MothDnnPlan *MothDnnSession::find(const MothDnnKey &key) {
  unsigned set = hash(&key);
  for (int i = 0; i < WAYS; i++)
    if (plans[set][i].used && !memcmp(&plans[set][i].key, &key, sizeof key))
      return &plans[set][i];
  MothDnnPlan *p = &plans[set][oldest[set]];
  oldest[set] = (uint8_t)((oldest[set] + 1) % WAYS);
  if (p->plan)
    dnn.cudnnBackendDestroyDescriptor(p->plan);
  memset(p, 0, sizeof *p);
  p->key = key;
  return p;
}

bool MothDnnSession::choose(const Desc &graph, const MothDnnLimits &limits, MothDnnPlan *p) {
  return ::choose(handle, graph, CUDNN_HEUR_MODE_A, limits, p) ||
         ::choose(handle, graph, CUDNN_HEUR_MODE_FALLBACK, limits, p);
}

MothStatus MothDnnSession::run(int device, const MothDnnPlan *p, int n, const int64_t *ids,
                               const void *const *data) {
  MothScratch work;
  MOTH_TRY(work.take(device, (size_t)p->workspace));
  Desc pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, data);
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &work.p);
  pack.finish();
  MOTH_TRY(dnn_check(pack.status, "cuDNN's arguments"));
  return dnn_check(dnn.cudnnBackendExecute(handle, p->plan, pack.d), "cudnnBackendExecute");
}
#endif
