/* Every structured typed kernel of CUDA: X(name, return type, parameters...). Each is a host function of
 * that name in one of the files of this folder; it launches and returns. Device pointers unless said. */
struct MothSegments; /* kernels/cuda/scatter.h; host memory, as what follows */
struct MothStepTable;
struct MothSgd;
struct MothAdam;
struct MothReduce;  /* kernels/cuda/reduce.h; host memory, as are the next */
struct MothSoftmax; /* kernels/cuda/softmax.h */
struct MothLoss;
struct MothNorm; /* kernels/cuda/norm.h */

#define MOTH_CUDA_TYPED_LIST(X)                                                                    \
  X(arange, MothStatus, cudaStream_t stream, void *out, int64_t n, double start, double step)      \
  X(linspace, MothStatus, cudaStream_t stream, void *out, int64_t n, double a, double b)           \
  X(random_uniform, MothStatus, cudaStream_t stream, void *out, int64_t n, MothCudaPhilox p,       \
    double lo, double hi)                                                                          \
  X(random_normal, MothStatus, cudaStream_t stream, void *out, int64_t n, MothCudaPhilox p,        \
    double mean, double std)                                                                       \
  X(random_bernoulli, MothStatus, cudaStream_t stream, void *out, int64_t n, MothCudaPhilox p,     \
    double probability)                                                                            \
  X(random_int, MothStatus, cudaStream_t stream, void *out, int64_t n, MothCudaPhilox p,           \
    int64_t lo, int64_t hi)                                                                        \
  X(bernoulli_each, MothStatus, cudaStream_t stream, void *out, const void *in, int64_t n,         \
    MothCudaPhilox p, MothFault *f, int op)                                                        \
  X(dropout, MothStatus, cudaStream_t stream, void *out, uint8_t *mask, const void *in, int64_t n, \
    MothCudaPhilox p, double probability)                                                          \
  X(sgd_step, MothStatus, cudaStream_t stream, const struct MothStepTable *t,                      \
    const struct MothSgd *h)                                                                       \
  X(adam_step, MothStatus, cudaStream_t stream, const struct MothStepTable *t,                     \
    const struct MothAdam *h)                                                                      \
  X(segment_sum, MothStatus, const struct MothSegments *s)                                         \
  X(segment_atomic, MothStatus, const struct MothSegments *s, bool *done)                          \
  X(gemm, MothStatus, cudaStream_t stream, const MothCudaGemm *g)                                  \
  X(reduce, MothStatus, const struct MothReduce *r)                                                \
  X(cumsum, MothStatus, int device, cudaStream_t stream, void *out, const void *in, int64_t outer, \
    int64_t n, int64_t inner)                                                                      \
  X(softmax, MothStatus, const struct MothSoftmax *s)                                              \
  X(softmax_backward, MothStatus, const struct MothSoftmax *s)                                     \
  X(cross_entropy, MothStatus, const struct MothLoss *l)                                           \
  X(cross_entropy_backward, MothStatus, const struct MothLoss *l)                                  \
  MOTH_CUDA_CONV_LIST(X)                                                                           \
  X(norm_rows, MothStatus, const struct MothNorm *m)                                               \
  X(norm_back_rows, MothStatus, const struct MothNorm *m)                                          \
  X(norm_channels, MothStatus, const struct MothNorm *m)                                           \
  X(norm_back_channels, MothStatus, const struct MothNorm *m)
