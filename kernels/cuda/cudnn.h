/* Shared by the uses of cuDNN (convolution, attention): the library, opened when first needed, descriptors of its
 * backend API, and a cache of plans. Under nvcc only. */
#ifndef MOTH_CUDA_CUDNN_H
#define MOTH_CUDA_CUDNN_H
#include "cuda/cuda.h"

#ifdef __CUDACC__
#include <cudnn.h>
#include <string.h>

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

struct MothDnn {
#define DNN_MEMBER(f) decltype(&::f) f;
  DNN_FUNCTIONS(DNN_MEMBER)
};
extern MothDnn dnn;

/* Opens cuDNN at the first call. Whether it is available; if not, the log says once why. */
bool moth_dnn_open(void);
cudnnDataType_t moth_dnn_type(int dtype);
/* The largest power of 2, up to 64, that divides an address. */
uint8_t moth_dnn_alignment(const void *p);

/* A descriptor, destroyed at the end of its scope unless its ownership was moved. */
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

/* A row-major or strided tensor of a graph. */
void moth_dnn_tensor(Desc *t, int64_t id, cudnnDataType_t type, int64_t align,
                     const int64_t size[4], const int64_t stride[4]);

/* The key of a plan; bytes are compared. number[0] distinguishes the uses. */
struct MothDnnKey {
  int64_t number[48];
};
struct MothDnnPlan {
  MothDnnKey key;
  bool used;
  cudnnBackendDescriptor_t plan; /* NULL: no engine supports the key */
  int64_t workspace;
};
/* Limits on the engines to choose from. */
struct MothDnnLimits {
  bool wide, tf32,
      any_order; /* wide: float32, where tf32 must be allowed; any_order: nondeterministic sums */
};

/* Owns cuDNN's handle of a device during its lifetime (a handle may be used by one thread at a time).
 * status: the result of acquiring it. */
struct MothDnnSession {
  cudnnHandle_t handle = nullptr;
  MothStatus status;
  MothDnnSession(int device, cudaStream_t stream);
  ~MothDnnSession();
  MothDnnSession(const MothDnnSession &) = delete;
  /* The cached plan, or a new one with used = false, to be filled in. */
  MothDnnPlan *find(const MothDnnKey &key);
  /* The first engine that cuDNN's heuristics name (mode A, then the fallback list), that fits the limits
   * and for which a plan can be made. */
  bool choose(const Desc &graph, const MothDnnLimits &limits, MothDnnPlan *p);
  MothStatus run(int device, const MothDnnPlan *p, int n, const int64_t *ids,
                 const void *const *data);
};
#endif
#endif
