/* Helpers of the structured CUDA kernels, as kernels/cpu/util.h. All work is queued on the current stream of the
 * tensors' device. */
#ifndef MOTH_CUDA_UTIL_H
#define MOTH_CUDA_UTIL_H
#include "kernels/cuda/table.h"
extern "C" {
#include "kernels/common/util.h"
}

/* dst = src, broadcast to dst's shape and converted to its dtype, on one device. They must not partly
 * overlap. */
MothStatus moth_cuda_copy(MothTensor *dst, const MothTensor *src);
/* Sets all elements of t to v. */
MothStatus moth_cuda_fill(MothTensor *t, MothValue v);
/* Zeros below (upper) or above the diagonals of a row-major t, in place. */
MothStatus moth_cuda_keep_triangle(MothTensor *t, bool upper, cudaStream_t stream);
/* t itself (retained) if it is row-major and of the dtype, else such a copy. The caller releases it. */
MothStatus moth_cuda_contiguous_as(const MothTensor *t, MothDType dtype, MothTensor **out);
/* The same, broadcast to a shape. */
MothStatus moth_cuda_broadcast_as(const MothTensor *t, MothDType dtype, int ndim,
                                  const int64_t *shape, MothTensor **out);
static inline MothStatus moth_cuda_contiguous(const MothTensor *t, MothTensor **out) {
  return moth_cuda_contiguous_as(t, (MothDType)t->dtype, out);
}
/* Where a call runs: its device, the device's current stream, its op. */
static inline MothStatus moth_cuda_run(const MothCall *c, MothCudaRun *run) {
  run->device = c->device.index;
  run->op = c->op->id;
  return moth_cuda_enter(c, &run->stream);
}
/* Owns a reference to a tensor, released at the end of its scope. */
struct MothOwned {
  MothTensor *t = nullptr;
  ~MothOwned() { moth_tensor_release(t); }
  MothTensor *operator->() const { return t; }
  operator MothTensor *() const { return t; }
};
#endif
