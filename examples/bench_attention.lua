--- Bytes that attention moves: with its matrix of weights in memory, and tile by tile; and where a roofline puts both.
local moth = require "moth"
local now = require("moth.utils.system").now
local F = moth.nn.functional

local heads, D, block = 8, 64, 128
local device = moth.cuda.is_available() and "cuda" or "cpu"
local most = moth.cli({ { "[N]", "tokens at most", 1024, min = 1 } }).n

local function seconds(f)
  f()
  local best = math.huge
  for _ = 1, 3 do
    local start = now()
    f()
    if device == "cuda" then moth.cuda.synchronize() end
    best = math.min(best, now() - start)
  end
  return best
end

local function standard(q, k, v)
  return moth.matmul(moth.matmul(q, k:transpose(3, 4)):mul(1 / math.sqrt(D)):softmax(4), v)
end

print(("attention of %d heads of %d, float32, on %s; memory or compute bound on an A100 (19.5 TFLOP/s, 2 TB/s)"):format(
  heads, D, device))
print("      T        bytes moved (MB)      FLOP/byte            bound by            ms here")
print("          standard     flash      standard   flash   standard  flash      standard  flash")
local T = 128
while T <= most do
  local flops = 4 * heads * T * T * D
  -- q, k, v and the result; the weights are written and read for scale, softmax and the second product.
  local own = 4 * heads * T * D * 4
  local full = own + 6 * heads * T * T * 4
  -- For each block of rows of q, all of k and v once more.
  local tiles = own + (math.ceil(T / block) - 1) * 2 * heads * T * D * 4
  local a = moth.bench.roofline { flops = flops, bytes = full, peak = 19.5e12, bw = 2e12 }
  local b = moth.bench.roofline { flops = flops, bytes = tiles, peak = 19.5e12, bw = 2e12 }
  local function random() return moth.randn(1, heads, T, D):to(device) end
  local q, k, v = random(), random(), random()
  moth.testing.assert_close(F.scaled_dot_product_attention(q, k, v), standard(q, k, v), { rtol = 1e-3, atol = 1e-4 })
  local slow = seconds(function() return standard(q, k, v) end)
  local fast = seconds(function() return F.scaled_dot_product_attention(q, k, v) end)
  print(("%7d %10.1f %9.1f %12.1f %8.1f   %-9s %-9s %8.2f %7.2f"):format(T, full / 1e6, tiles / 1e6, a.intensity,
    b.intensity, a.bound, b.bound, slow * 1e3, fast * 1e3))
  assert(tiles <= full and b.intensity >= a.intensity)
  T = T * 2
end
