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
MOTH_TYPED MothStatus arange(const MothCudaRun *run, const MothSequence *s) {
  return moth_launch("arange", arange_kernel, dim3((unsigned)moth_ceil_div(s->n, 256)), dim3(256),
                     0, run->stream, (stored *)s->out, s->n, s->start, s->step);
}

/* Called from both ends, so that the last element is b. The product is rounded before the sum, as on the CPU:
 * integers truncate towards zero. */
__device__ __forceinline__ double linspace_at(double a, double step, double i) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(a, __dmul_rn(step, i));
#else
  double d = step * i;
  return a + d;
#endif
}
__device__ __forceinline__ stored linspace_store(double x) {
#if MOTH_IS_FLOAT
  return STORE((real)x);
#elif MOTH_REAL_KIND == 5
  return (stored)(x != 0);
#else
  x = x == x ? x : 0.0;
  x = x > -9223372036854775808.0 ? x : -9223372036854775808.0;
  return (stored)(x < 9223372036854774784.0 ? (long long)x : 9223372036854774784LL);
#endif
}
__global__ void __launch_bounds__(256)
    linspace_kernel(stored *out, int64_t n, double a, double b, double step) {
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  out[i] = linspace_store(i < n / 2 || n == 1 ? linspace_at(a, step, (double)i)
                                              : linspace_at(b, -step, (double)(n - 1 - i)));
}
MOTH_TYPED MothStatus linspace(const MothCudaRun *run, const MothSequence *s) {
  double step = s->n > 1 ? (s->end - s->start) / (double)(s->n - 1) : 0;
  return moth_launch("linspace", linspace_kernel, dim3((unsigned)moth_ceil_div(s->n, 256)),
                     dim3(256), 0, run->stream, (stored *)s->out, s->n, s->start, s->end, step);
}
