--- moth.bench: the speed of this machine. Times are medians; other work on the machine disturbs them.
local moth = require "moth"
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

return signature.all(M, { "bench.matmul(count n, *, count repeats=5, dtype dtype='float32', device device?)" })
