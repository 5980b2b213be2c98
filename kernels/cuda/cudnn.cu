/* Convolution by cuDNN's backend API, opened when the first one is made.
 *
 * A product is a graph of one operation. The engine that cuDNN's heuristics (mode A, then the fallback
 * list) put first, and for which a plan can be made, is kept with its plan in a table by shape, dtype and
 * device; a shape without any is kept, too, and goes to moth's own kernel. Of a full set the plan that was
 * made first goes. Handles belong to one thread and device at a time, so the lock is held while work is
 * queued. Workspace comes from the caching allocator, for each call.
 *
 * Engines may add up in an order of their own, but the same one each time: those that are marked as
 * nondeterministic are passed over. */
#include "kernels/cuda/util.h"

#ifdef __CUDACC__
#include <cudnn.h>
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "cuda/lib.h"
extern "C" {
#include "core/log.h"
#include "no_cuda/settings.h"
}

enum { SETS = 128, WAYS = 4, CONFIGS = 32 };

#define DNN_FUNCTIONS(X)                                                                           \
  X(cudnnCreate)                                                                                   \
  X(cudnnSetStream)                                                                                \
  X(cudnnGetErrorString)                                                                           \
  X(cudnnBackendCreateDescriptor)                                                                  \
  X(cudnnBackendDestroyDescriptor)                                                                 \
  X(cudnnBackendFinalize)                                                                          \
  X(cudnnBackendSetAttribute)                                                                      \
  X(cudnnBackendGetAttribute)                                                                      \
  X(cudnnBackendExecute)

static struct {
#define DNN_MEMBER(f) decltype(&::f) f;
  DNN_FUNCTIONS(DNN_MEMBER)
} dnn;
static bool missing;
static cudnnHandle_t handles[MOTH_CUDA_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_library(void) {
#define DNN_TEXT2(x) #x
#define DNN_TEXT(x)  DNN_TEXT2(x)
  static const char *const sonames[] = {"libcudnn.so." DNN_TEXT(CUDNN_MAJOR), "libcudnn.so",
                                        nullptr};
  void *library;
  if (moth_cuda_lib_open("cuDNN", sonames, &library) != MOTH_OK) {
    moth_log_write("cuda", "convolutions by our own kernel: %s", moth_last_error());
    missing = true;
    return;
  }
#define DNN_FIND(f)                                                                                \
  dnn.f = reinterpret_cast<decltype(dnn.f)>(dlsym(library, #f));                                   \
  missing = missing || !dnn.f;
  DNN_FUNCTIONS(DNN_FIND)
  if (missing)
    moth_log_write("cuda", "convolutions by our own kernel: cuDNN lacks functions");
}

/* A descriptor, destroyed at the end of its scope unless it was taken. */
struct Desc {
  cudnnBackendDescriptor_t d = nullptr;
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  explicit Desc(cudnnBackendDescriptorType_t type) {
    status = dnn.cudnnBackendCreateDescriptor(type, &d);
  }
  Desc(const Desc &) = delete;
  ~Desc() {
    if (d)
      dnn.cudnnBackendDestroyDescriptor(d);
  }
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
           const void *values) {
    if (status == CUDNN_STATUS_SUCCESS)
      status = dnn.cudnnBackendSetAttribute(d, name, type, n, values);
  }
  void set(cudnnBackendAttributeName_t name, const Desc &other) {
    if (status == CUDNN_STATUS_SUCCESS)
      status = other.status;
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other.d);
  }
  bool finish() {
    if (status == CUDNN_STATUS_SUCCESS)
      status = dnn.cudnnBackendFinalize(d);
    return status == CUDNN_STATUS_SUCCESS;
  }
  cudnnBackendDescriptor_t take() {
    cudnnBackendDescriptor_t t = d;
    d = nullptr;
    return t;
  }
};

/* --- plans -------------------------------------------------------------------------------------- */

/* Bytes are compared: there is no padding in it. */
struct Key {
  int64_t size[8]; /* n c h w k oh ow groups */
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  uint8_t device, dtype, mode, tf32;
  uint8_t align_a, align_b, align_out, none;
};
static_assert(sizeof(Key) == 136, "the bytes of a key are compared");

struct Plan {
  Key key;
  bool used;
  cudnnBackendDescriptor_t plan; /* NULL: there is none for this shape */
  int64_t workspace;
};

static Plan plans[SETS][WAYS];
static uint8_t oldest[SETS];

static uint8_t alignment(const void *p) {
  uint8_t n = 1;
  while (n < 64 && (uintptr_t)p % (2u * n) == 0)
    n = (uint8_t)(2 * n);
  return n;
}

static unsigned hash(const Key *key) {
  uint64_t h = 0, word;
  for (size_t i = 0; i < sizeof *key; i += 8) {
    memcpy(&word, reinterpret_cast<const char *>(key) + i, 8);
    h = (h ^ word) * 0x9e3779b97f4a7c15ull;
    h ^= h >> 29;
  }
  return (unsigned)(h % SETS);
}

static cudnnDataType_t data_type(int dtype) {
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

static void tensor(Desc *t, int64_t id, int dtype, int64_t align, const int64_t size[4]) {
  int64_t stride[4] = {size[1] * size[2] * size[3], size[2] * size[3], size[3], 1};
  cudnnDataType_t type = data_type(dtype);
  t->set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
  t->set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  t->set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
  t->set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, size);
  t->set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
  t->finish();
}

/* Some engine of these that is deterministic, needs no TF32 unless that is allowed, and has a plan. */
static bool notes_fit(cudnnBackendDescriptor_t config, bool tf32, bool wide) {
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
    if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
      return false;
    if (wide && !tf32 && notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)
      return false;
    if (wide && !tf32 && notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE)
      return false;
  }
  return true;
}

static bool choose(cudnnHandle_t handle, const Desc &graph, cudnnBackendHeurMode_t mode, Plan *p) {
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
    if (!notes_fit(configs[i], p->key.tf32, p->key.dtype == MOTH_FLOAT32))
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

/* Ids of the tensors: 1 the input, 2 the weight, 3 the result (or their gradients). */
static void make_plan(cudnnHandle_t handle, const MothConv *g, Plan *p) {
  const Key *key = &p->key;
  int mode = key->mode;
  int64_t x_size[4] = {g->n, g->c, g->h, g->w}, y_size[4] = {g->n, g->k, g->oh, g->ow};
  int64_t w_size[4] = {g->k, g->c / g->groups, g->kernel[0], g->kernel[1]};
  /* which of a, b and out they are */
  int64_t ax = mode == MOTH_CONV_INPUT ? key->align_out : key->align_b;
  int64_t aw = mode == MOTH_CONV_WEIGHT ? key->align_out : key->align_a;
  int64_t ay = mode == MOTH_CONV_FORWARD ? key->align_out
               : mode == MOTH_CONV_INPUT ? key->align_b
                                         : key->align_a;
  Desc x(CUDNN_BACKEND_TENSOR_DESCRIPTOR), w(CUDNN_BACKEND_TENSOR_DESCRIPTOR),
      y(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor(&x, 1, key->dtype, ax, x_size);
  tensor(&w, 2, key->dtype, aw, w_size);
  tensor(&y, 3, key->dtype, ay, y_size);

  Desc conv(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  cudnnDataType_t compute = key->dtype == MOTH_FLOAT64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  cudnnConvolutionMode_t cross = CUDNN_CROSS_CORRELATION;
  int64_t dims = 2;
  conv.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims);
  conv.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  conv.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &cross);
  conv.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, g->padding);
  conv.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, g->padding);
  conv.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, g->dilation);
  conv.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, g->stride);
  conv.finish();

  struct {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t conv, x, w, y, alpha, beta;
  } const names[3] = {
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
  };
  Desc op(names[mode].type);
  double one = 1, zero = 0;
  float one_f = 1, zero_f = 0;
  bool wide = key->dtype == MOTH_FLOAT64;
  cudnnBackendAttributeType_t number = wide ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
  op.set(names[mode].conv, conv);
  op.set(names[mode].x, x);
  op.set(names[mode].w, w);
  op.set(names[mode].y, y);
  op.set(names[mode].alpha, number, 1, wide ? (const void *)&one : &one_f);
  op.set(names[mode].beta, number, 1, wide ? (const void *)&zero : &zero_f);
  op.finish();

  Desc graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, op);
  if (!graph.finish()) {
    moth_log_write("cuda", "cuDNN refuses a convolution: %s",
                   dnn.cudnnGetErrorString(graph.status));
    return;
  }
  if (!choose(handle, graph, CUDNN_HEUR_MODE_A, p) &&
      !choose(handle, graph, CUDNN_HEUR_MODE_FALLBACK, p))
    moth_log_write("cuda", "cuDNN has no engine for a convolution of %lld to %lld channels",
                   (long long)g->c, (long long)g->k);
}

static Plan *find_plan(cudnnHandle_t handle, const MothConv *g, const Key *key) {
  unsigned set = hash(key);
  for (int i = 0; i < WAYS; i++)
    if (plans[set][i].used && !memcmp(&plans[set][i].key, key, sizeof *key))
      return &plans[set][i];
  Plan *p = &plans[set][oldest[set]];
  oldest[set] = (uint8_t)((oldest[set] + 1) % WAYS);
  if (p->plan)
    dnn.cudnnBackendDestroyDescriptor(p->plan);
  memset(p, 0, sizeof *p);
  p->key = *key;
  p->used = true;
  make_plan(handle, g, p);
  return p;
}

static MothStatus dnn_check(cudnnStatus_t s, const char *what) {
  if (s == CUDNN_STATUS_SUCCESS)
    return MOTH_OK;
  return moth_fail(MOTH_ERR_STATE, "%s: %s", what, dnn.cudnnGetErrorString(s));
}

static MothStatus run_locked(int device, cudaStream_t stream, const MothConv *g, const Key *key,
                             const void *x, const void *w, const void *y, bool *done) {
  if (!handles[device])
    MOTH_TRY(dnn_check(dnn.cudnnCreate(&handles[device]), "cudnnCreate"));
  cudnnHandle_t handle = handles[device];
  Plan *p = find_plan(handle, g, key);
  if (!p->plan)
    return MOTH_OK;
  MOTH_TRY(dnn_check(dnn.cudnnSetStream(handle, stream), "cudnnSetStream"));
  MothScratch work;
  MOTH_TRY(work.take(device, (size_t)p->workspace));
  Desc pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  const void *pointers[3] = {x, w, y};
  int64_t ids[3] = {1, 2, 3};
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, ids);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers);
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &work.p);
  pack.finish();
  MOTH_TRY(dnn_check(pack.status, "cuDNN's arguments of a convolution"));
  MOTH_TRY(dnn_check(dnn.cudnnBackendExecute(handle, p->plan, pack.d), "cudnnBackendExecute"));
  *done = true;
  return MOTH_OK;
}

MothStatus moth_cudnn_conv(int device, cudaStream_t stream, MothConvMode mode, MothDType dtype,
                           const MothConv *g, const void *a, const void *b, void *out, bool *done) {
  *done = false;
  pthread_once(&once, open_library);
  if (missing)
    return MOTH_OK;
  Key key;
  memset(&key, 0, sizeof key);
  const int64_t size[8] = {g->n, g->c, g->h, g->w, g->k, g->oh, g->ow, g->groups};
  memcpy(key.size, size, sizeof size);
  memcpy(key.kernel, g->kernel, sizeof g->kernel);
  memcpy(key.stride, g->stride, sizeof g->stride);
  memcpy(key.padding, g->padding, sizeof g->padding);
  memcpy(key.dilation, g->dilation, sizeof g->dilation);
  key.device = (uint8_t)device;
  key.dtype = (uint8_t)dtype;
  key.mode = (uint8_t)mode;
  key.tf32 = dtype == MOTH_FLOAT32 && moth_cuda_settings.allow_tf32;
  key.align_a = alignment(a);
  key.align_b = alignment(b);
  key.align_out = alignment(out);
  const void *x = mode == MOTH_CONV_INPUT ? out : b;
  const void *w = mode == MOTH_CONV_WEIGHT ? out : a;
  const void *y = mode == MOTH_CONV_FORWARD ? out : mode == MOTH_CONV_INPUT ? b : a;
  pthread_mutex_lock(&lock);
  MothStatus s = run_locked(device, stream, g, &key, x, w, y, done);
  pthread_mutex_unlock(&lock);
  return s;
}
#else
MothStatus moth_cudnn_conv(int, cudaStream_t, MothConvMode, MothDType, const MothConv *,
                           const void *, const void *, void *, bool *done) {
  *done = false;
  return MOTH_OK;
}
#endif
