--- A product of matrices in tiles: tl.dot and pointers that advance.
local moth = require "moth"
local tl = moth.kernel.lang
local now = require("moth.utils.system").now

local matmul = moth.kernel.jit(function(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
  BLOCK_M, BLOCK_N, BLOCK_K)
  local m = tl.expand(tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), 2)
  local n = tl.expand(tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N), 1)
  local k = tl.arange(0, BLOCK_K)
  local a_ptrs = a_ptr + m * stride_am + tl.expand(k, 1) * stride_ak
  local b_ptrs = b_ptr + tl.expand(k, 2) * stride_bk + n * stride_bn
  local acc = tl.zeros({ BLOCK_M, BLOCK_N }, tl.float32)
  for from = 0, K - 1, BLOCK_K do
    local a = tl.load(a_ptrs, { mask = m < M and tl.expand(k, 1) < K - from, other = 0 })
    local b = tl.load(b_ptrs, { mask = tl.expand(k, 2) < K - from and n < N, other = 0 })
    acc = tl.dot(a, b, acc)
    a_ptrs = a_ptrs + BLOCK_K * stride_ak
    b_ptrs = b_ptrs + BLOCK_K * stride_bk
  end
  tl.store(c_ptr + m * N + n, acc, { mask = m < M and n < N })
end, { constexpr = { "BLOCK_M", "BLOCK_N", "BLOCK_K" }, name = "matmul" })

local tuned = moth.kernel.autotune(matmul, { key = { "M", "N", "K" }, reps = 2, configs = {
  { BLOCK_M = 32, BLOCK_N = 64, BLOCK_K = 32 }, { BLOCK_M = 64, BLOCK_N = 64, BLOCK_K = 64 } } })

local device = moth.cuda.is_available() and "cuda" or "cpu"
local size = moth.cli({ { "[N]", "rows of the matrices", 512, min = 1 } }).n

local function multiply(a, b)
  local M, K, N = a:size(1), a:size(2), b:size(2)
  local c = moth.empty({ M, N }, { dtype = a:dtype(), device = a:device() })
  local function grid(meta) return { moth.kernel.cdiv(M, meta.BLOCK_M), moth.kernel.cdiv(N, meta.BLOCK_N) } end
  tuned{ grid }(a, b, c, M, N, K, a:stride(1), a:stride(2), b:stride(1), b:stride(2))
  return c
end

for _, dtype in ipairs { moth.float32, moth.float16, moth.bfloat16 } do
  local a = moth.randn(size, size - 3):to(dtype):to(device)
  local b = moth.randn(size + 5, size - 3):to(dtype):to(device):t() -- a view: strides are arguments
  local c = multiply(a, b)
  local error_ = (c:float() - a:float():mm(b:float())):abs():max():item()
  local start = now()
  multiply(a, b)
  if device == "cuda" then moth.cuda.synchronize() end
  local took = now() - start
  print(("%s %dx%dx%d on %s: %.1f GFLOP/s, largest error %.2g"):format(dtype.name, size, size - 3, size + 5,
    device, 2 * size * (size - 3) * (size + 5) / took / 1e9, error_))
  assert(error_ < (dtype == moth.float32 and 1e-3 or 0.6))
end
