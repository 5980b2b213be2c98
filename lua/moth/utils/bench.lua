--- moth.bench: the speed of this machine. Times are medians; other work on the machine disturbs them.
local moth = require "moth"
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local now = require("moth.utils.system").now

local M = {}

--- The product of two n x n matrices: { n, seconds, gflops }, the median of `repeats` (5) runs after one to warm up.
-- Twice the n takes about eight times as long: 2 n^3 operations. @tparam[opt] table o repeats, dtype, device
function M.matmul(n, repeats, dtype, device)
  local like = { dtype = dtype, device = device }
  local a, b = moth.rand({ n, n }, like), moth.rand({ n, n }, like)
  local times = {}
  for i = 0, repeats do
    local start = now()
    local c = a:mm(b)
    if a:is_cuda() then moth.cuda.synchronize() end
    times[i] = now() - start
    c:free()
  end
  table.sort(times) -- the warm-up run is times[0]
  local seconds = times[math.ceil(#times / 2)]
  return { n = n, seconds = seconds, gflops = 2 * n ^ 3 / seconds / 1e9 }
end

--- Where the roofline of a machine puts a kernel that does `flops` operations and moves `bytes`: { intensity
-- (operations a byte), ridge (of the machine), bound = "memory" or "compute", seconds (the least it can take), flops
-- (a second, at most) }. peak: operations a second; bw: bytes a second.
--     moth.bench.roofline { flops = 2 * n, bytes = 12 * n, peak = 312e12, bw = 2e12 }.bound   -- "memory"
function M.roofline(flops, bytes, peak, bw)
  for name, v in each { flops = flops, bytes = bytes, peak = peak, bw = bw } do
    if v ~= v or v <= 0 or v == math.huge then
      check.fail("[bench.roofline] option '%s': expected a number above 0, got %s", name, tostring(v))
    end
  end
  local seconds = math.max(flops / peak, bytes / bw)
  return { intensity = flops / bytes, ridge = peak / bw, seconds = seconds, flops = flops / seconds,
    bound = flops / bytes < peak / bw and "memory" or "compute" }
end

return signature.all(M, { "bench.matmul(count n, *, count repeats=5, dtype dtype='float32', device device?)",
  "bench.roofline(*, number flops, number bytes, number peak, number bw)" })
