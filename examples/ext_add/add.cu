// The kernel of ext_add::add for CUDA.
#include <cuda_runtime.h>
#include <moth.h>

extern "C" MothStatus ext_add_prepare(MothCall *c, MothTensor **a, MothTensor **b,
                                      MothTensor **out);
extern "C" MothStatus ext_add_finish(MothCall *c, MothStatus s, MothTensor *a, MothTensor *b,
                                     MothTensor *out);

static __global__ void add(const float *a, const float *b, float *out, int64_t n) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = a[i] + b[i];
}

extern "C" MothStatus add_cuda(MothCall *c) {
  MothTensor *a, *b, *out;
  MothStatus s = ext_add_prepare(c, &a, &b, &out);
  int64_t n = s ? 0 : moth_tensor_numel(out);
  if (n > 0) {
    add<<<(unsigned)((n + 255) / 256), 256, 0, (cudaStream_t)moth_call_stream(c)>>>(
        (const float *)moth_tensor_data(a), (const float *)moth_tensor_data(b),
        (float *)moth_tensor_data(out), n);
    cudaError_t e = cudaGetLastError();
    if (e != cudaSuccess)
      s = moth_fail(MOTH_ERR_STATE, "CUDA: %s", cudaGetErrorString(e));
  }
  return ext_add_finish(c, s, a, b, out);
}
