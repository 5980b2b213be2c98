/* Every structured typed kernel: X(name, return type, parameters...). */
struct MothSgd; /* kernels/cpu/optimizer.h */
struct MothAdam;
struct MothConvPlanes; /* kernels/cpu/conv.h */
struct MothConvStrip;
struct MothConvDots;
struct MothPoolPlanes; /* kernels/cpu/pool.h */

#define MOTH_TYPED_LIST(X)                                                                         \
  X(fill, void, void *out, int64_t n, MothParam value)                                             \
  X(arange, void, void *out, int64_t n, double start, double step)                                 \
  X(random_uniform, void, void *out, int64_t begin, int64_t end, uint64_t seed, uint64_t offset,   \
    double lo, double hi)                                                                          \
  X(random_normal, void, void *out, int64_t begin, int64_t end, uint64_t seed, uint64_t offset,    \
    double mean, double std)                                                                       \
  X(random_bernoulli, void, void *out, int64_t begin, int64_t end, uint64_t seed, uint64_t offset, \
    double p)                                                                                      \
  X(random_int, void, void *out, int64_t begin, int64_t end, uint64_t seed, uint64_t offset,       \
    int64_t lo, int64_t hi)                                                                        \
  X(dropout, void, void *out, uint8_t *mask, const void *in, int64_t begin, int64_t end,           \
    uint64_t seed, uint64_t offset, double p)                                                      \
  X(reduce_rows, void, int op, const char *in, int64_t row_stride, int64_t rows, int64_t step,     \
    int64_t n, const MothParam *shift, MothParam *acc)                                             \
  X(reduce_cols, void, int op, const char *in, int64_t row_stride, int64_t rows, int64_t step,     \
    int64_t cols, const MothParam *shift, MothParam *acc)                                          \
  X(reduce_store, void, char *out, int64_t step, const MothParam *acc, int64_t n, double divisor)  \
  X(arg_rows, void, int min, const void *in, int64_t rows, int64_t n, int64_t *pos, void *value)   \
  X(arg_cols, void, int min, const void *in, int64_t n, int64_t step, int64_t cols, int64_t *pos,  \
    void *value)                                                                                   \
  X(cumsum_rows, void, void *out, const void *in, int64_t rows, int64_t n)                         \
  X(cumsum_cols, void, void *out, const void *in, int64_t n, int64_t step, int64_t cols)           \
  X(softmax_rows, void, int log, void *out, const void *in, int64_t rows, int64_t n)               \
  X(softmax_cols, void, int log, void *out, const void *in, int64_t n, int64_t step, int64_t cols) \
  X(softmax_backward_rows, void, int log, void *out, const void *grad, const void *y,              \
    int64_t rows, int64_t n)                                                                       \
  X(softmax_backward_cols, void, int log, void *out, const void *grad, const void *y, int64_t n,   \
    int64_t step, int64_t cols)                                                                    \
  X(cross_entropy_rows, void, const void *in, int64_t rows, int64_t n, const int64_t *target,      \
    const double *weight, double total, double smoothing, double *loss)                            \
  X(cross_entropy_grad_rows, void, void *out, const void *in, int64_t rows, int64_t n,             \
    const int64_t *target, const double *weight, double total, double smoothing,                   \
    const double *grad, int64_t step)                                                              \
  X(sgd_step, void, void *param, const void *grad, void *buffer, int64_t n,                        \
    const struct MothSgd *h)                                                                       \
  X(adam_step, void, void *param, const void *grad, void *avg, void *avg_sq, void *max_sq,         \
    int64_t n, const struct MothAdam *h)                                                           \
  X(index_outside, bool, const void *in, int64_t n, int64_t base, int64_t size, int64_t *from_0)   \
  X(scatter_add_lines, void, void *out, int64_t out_step, const int64_t *index,                    \
    int64_t index_step, const void *src, int64_t src_step, int64_t n, int64_t lines,               \
    const int64_t *offsets)                                                                        \
  X(index_add_rows, void, void *out, const void *src, const int64_t *index, int64_t n,             \
    int64_t width, int64_t step)                                                                   \
  X(conv_lanes, int64_t, void)                                                                     \
  X(conv_pack, void, void *out, const void *weight, int64_t row, const int32_t *at, int64_t m,     \
    int64_t kk)                                                                                    \
  X(conv_planes, void, const struct MothConvPlanes *p)                                             \
  X(conv_strip, void, const struct MothConvStrip *s)                                               \
  X(conv_dots, void, const struct MothConvDots *d)                                                 \
  X(max_pool_planes, void, const struct MothPoolPlanes *p)                                         \
  X(max_pool_planes_backward, void, const struct MothPoolPlanes *p)                                \
  X(avg_pool_planes, void, const struct MothPoolPlanes *p)                                         \
  X(avg_pool_planes_backward, void, const struct MothPoolPlanes *p)                                \
  X(sort_keys, void, uint64_t *keys, const void *in, int64_t step, int64_t n, int descending)      \
  X(norm_rows, void, void *out, const void *in, int64_t rows, int64_t n, const void *weight,       \
    const void *bias, double eps, int rms, void *mean, void *rstd)                                 \
  X(norm_back_rows, void, void *dx, const void *grad, const void *in, int64_t rows, int64_t n,     \
    const void *weight, int rms, const void *mean, const void *rstd, void *dweight, void *dbias)   \
  X(norm_moments, void, const void *in, int64_t lines, int64_t n, double *mean, double *m2)        \
  X(norm_dots, void, const void *grad, const void *in, int64_t lines, int64_t n,                   \
    const double *center, double *sum, double *dot)                                                \
  X(norm_lines, void, void *out, const void *grad, const void *in, int64_t lines, int64_t n,       \
    const double *k)                                                                               \
  X(norm_moments_cols, void, const void *in, int64_t n, int64_t step, int64_t cols, double *mean,  \
    double *m2)                                                                                    \
  X(norm_dots_cols, void, const void *grad, const void *in, int64_t n, int64_t step, int64_t cols, \
    const double *center, double *sum, double *dot)                                                \
  X(norm_cols, void, void *out, const void *grad, const void *in, int64_t n, int64_t step,         \
    int64_t cols, const double *k)
