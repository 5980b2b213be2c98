/* Every structured typed kernel of CUDA: X(name, return type, parameters...). Each is a host function of
 * that name in one of the files of this folder; it launches and returns. Device pointers unless said. */
#define MOTH_CUDA_TYPED_LIST(X)                                                                    \
  X(arange, MothStatus, cudaStream_t stream, void *out, int64_t n, double start, double step)      \
  X(conv_simt, MothStatus, cudaStream_t stream, int mode, const MothConv *g, const void *a,        \
    const void *b, const void *bias, void *out)                                                    \
  X(conv_bias, MothStatus, cudaStream_t stream, const MothConv *g, void *out, const void *bias)    \
  X(im2col, MothStatus, cudaStream_t stream, const MothConv *g, void *out, const void *in)         \
  X(col2im, MothStatus, cudaStream_t stream, const MothConv *g, void *out, const void *in)         \
  X(max_pool, MothStatus, cudaStream_t stream, const MothPool *p, const void *in, void *out,       \
    int64_t *at, int64_t base)                                                                     \
  X(max_pool_backward, MothStatus, cudaStream_t stream, const MothPool *p, const void *g,          \
    const int64_t *at, int64_t base, void *out, MothFault *fault, int op)                          \
  X(avg_pool, MothStatus, cudaStream_t stream, const MothPool *p, const void *in, void *out)       \
  X(avg_pool_backward, MothStatus, cudaStream_t stream, const MothPool *p, const void *g, void *out)
