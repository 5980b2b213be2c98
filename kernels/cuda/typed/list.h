/* Every structured typed kernel of CUDA: X(name, return type, parameters...). Each is a host function of
 * that name in one of the files of this folder; it launches and returns. Device pointers unless said. */
struct MothReduce;  /* kernels/cuda/reduce.h; host memory, as are the next */
struct MothSoftmax; /* kernels/cuda/softmax.h */
struct MothLoss;

#define MOTH_CUDA_TYPED_LIST(X)                                                                    \
  X(arange, MothStatus, cudaStream_t stream, void *out, int64_t n, double start, double step)      \
  X(reduce, MothStatus, const struct MothReduce *r)                                                \
  X(cumsum, MothStatus, int device, cudaStream_t stream, void *out, const void *in, int64_t outer, \
    int64_t n, int64_t inner)                                                                      \
  X(softmax, MothStatus, const struct MothSoftmax *s)                                              \
  X(softmax_backward, MothStatus, const struct MothSoftmax *s)                                     \
  X(cross_entropy, MothStatus, const struct MothLoss *l)                                           \
  X(cross_entropy_backward, MothStatus, const struct MothLoss *l)
