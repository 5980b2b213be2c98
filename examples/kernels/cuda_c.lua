--- CUDA C++ by hand: compiled from a text, launched with a grid, threads and shared memory.
local moth = require "moth"
if not moth.cuda.is_available() then
  print("CUDA is not there: " .. tostring(moth.cuda.why()))
  return
end

local k = moth.cuda.compile([[
extern "C" __global__ void row_sums(const float *x, float *out, int columns) {
  extern __shared__ float part[];
  float sum = 0;
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    sum += x[(long long)blockIdx.x * columns + c];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half)
      part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0)
    out[blockIdx.x] = part[0];
}]], "row_sums")

local rows, columns, threads = 50, 1000, 128
local x = moth.randn(rows, columns):cuda()
local out = moth.empty(rows):cuda()
k:launch({ rows }, { threads }, threads * 4, x, out, columns)
moth.testing.assert_close(out, x:sum(2), { rtol = 1e-4, atol = 1e-4 })
local blocks, share = k:occupancy(threads, threads * 4)
print(("sums of %d rows are right; %d blocks of %d threads fit a multiprocessor (%.0f %%)"):format(rows,
  blocks, threads, share * 100))
