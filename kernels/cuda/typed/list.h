/* Every structured typed kernel of CUDA: X(name, return type, parameters...). Each is a host function of
 * that name in one of the files of this folder; it launches and returns. Device pointers unless said. */
#define MOTH_CUDA_TYPED_LIST(X)                                                                    \
  X(arange, MothStatus, cudaStream_t stream, void *out, int64_t n, double start, double step)      \
  X(gemm, MothStatus, cudaStream_t stream, const MothCudaGemm *g)                                  \
  MOTH_CUDA_CONV_LIST(X)
