/* Sequences. */

__global__ void __launch_bounds__(256)
    arange_kernel(stored *out, int64_t n, double start, double step) {
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
#if MOTH_IS_FLOAT
  out[i] = STORE((real)(start + (double)i * step));
#else
  out[i] = STORE((real)((int64_t)start + i * (int64_t)step));
#endif
}
static MothStatus arange(cudaStream_t stream, void *out, int64_t n, double start, double step) {
  return moth_launch("arange", arange_kernel, dim3((unsigned)moth_ceil_div(n, 256)), dim3(256), 0,
                     stream, (stored *)out, n, start, step);
}
