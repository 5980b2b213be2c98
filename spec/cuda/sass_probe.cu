/* Kernels whose memory instructions are known: what spec/cuda/sass.lua is checked by. */
#include <stdint.h>

extern "C" {
__global__ void probe_128(const float4 *x, float4 *y) {
  y[threadIdx.x] = x[threadIdx.x];
}
__global__ void probe_64(const float2 *x, float2 *y) {
  y[threadIdx.x] = x[threadIdx.x];
}
__global__ void probe_32(const float *x, float *y) {
  y[threadIdx.x] = x[threadIdx.x];
}
__global__ void probe_8(const uint8_t *x, uint16_t *y) {
  y[threadIdx.x] = x[threadIdx.x];
}
__global__ void probe_shared(const float4 *x, float4 *y) {
  __shared__ float4 s[64];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x ^ 1];
}
/* 32 registers a thread for 60 numbers. */
__global__ void __launch_bounds__(1024, 2) probe_spill(const float *x, float *y) {
  float a[60];
  for (int i = 0; i < 60; i++)
    a[i] = x[threadIdx.x + i * 1024];
  for (int k = 0; k < (int)y[0]; k++)
    for (int i = 0; i < 60; i++)
      a[i] = a[i] * a[(i + 7) % 60] + (float)k;
  for (int i = 0; i < 60; i++)
    y[threadIdx.x + i * 1024] = a[i];
}
}
