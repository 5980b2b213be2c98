--- A chain of small element-wise ops: a call and a pass over memory for each, or one kernel.
local moth = require "moth"
local tl = moth.kernel.lang
local now = require("moth.utils.system").now

local fused = moth.kernel.jit(function(x, out, n, BLOCK)
  local i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
  local v = tl.load(x + i, { mask = i < n })
  local y = tl.tanh(v * 2 + 1) * tl.sigmoid(v) - v * v / 2
  tl.store(out + i, y, { mask = i < n })
end, { constexpr = { "BLOCK" }, name = "chain" })

local function eager(x) return (x * 2 + 1):tanh() * x:sigmoid() - x * x / 2 end

local device = moth.cuda.is_available() and "cuda" or "cpu"
local function seconds(f, n)
  f()
  local best = math.huge
  for _ = 1, 5 do
    local start = now()
    for _ = 1, n do f() end
    if device == "cuda" then moth.cuda.synchronize() end
    best = math.min(best, (now() - start) / n)
  end
  return best
end

local most = moth.cli({ { "[N]", "elements at most", 1000000, min = 1 } }).n
print(("tanh(2x + 1) sigmoid(x) - x^2 / 2 on %s: 8 ops, or one kernel"):format(device))
print("  elements    8 ops      kernel   ratio")
for _, n in ipairs { 10, 1000, 100000, most } do
  local x = moth.randn(n):to(device)
  local out = moth.empty_like(x)
  local grid, blocks = { moth.kernel.cdiv(n, 1024) }, { BLOCK = 1024 }
  local times = math.max(1, math.floor(1e5 / n))
  local a = seconds(function() eager(x):free() end, times)
  local b = seconds(function() fused:launch(grid, x, out, n, blocks) end, times)
  moth.testing.assert_close(out, eager(x), { rtol = 1e-5, atol = 1e-6 })
  print(("%10d %8.1f us %8.1f us %6.1f"):format(n, a * 1e6, b * 1e6, a / b))
end
