--- Four ways to run one network: forward alone, a training step, with checkpoints, with accumulated gradients. Memory
-- above the model's, and time.
--
--     moth examples/bench_autograd_memory.lua [--quick]
local moth = require "moth"
local nn, utils, F = moth.nn, moth.utils, moth.F

local quick = arg[1] == "--quick"
local batch, width, depth = quick and 64 or 128, quick and 128 or 512, 8
local device = moth.cuda.is_available() and "cuda" or "cpu"
local memory = device == "cuda" and moth.cuda or moth.cpu

moth.manual_seed(0)
local blocks = {}
for i = 1, depth do
  blocks[i] = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
end
local model = nn.Sequential(blocks):to(device)
local parameters = model:parameters()
for _, p in ipairs(parameters) do p.grad = moth.zeros_like(p) end -- they are there in training all the time
local x, y = moth.randn(batch, width, { device = device }), moth.randn(batch, width, { device = device })

local function loss(a, b, checkpointed)
  local v = a
  for i = 1, depth do v = checkpointed and utils.checkpoint(model[i], v) or model[i](v) end
  return F.mse_loss(v, b)
end

local function measure(fn)
  local least, peak = math.huge, 0
  for _ = 1, quick and 2 or 4 do
    model:zero_grad { set_to_none = false }
    collectgarbage()
    collectgarbage()
    local before = memory.memory_allocated()
    memory.reset_peak_memory_stats()
    local start = os.clock()
    fn()
    if device == "cuda" then moth.cuda.synchronize() end
    least, peak = math.min(least, os.clock() - start), memory.max_memory_allocated() - before
  end
  return peak / 1e6, least * 1e3
end

local rows = {
  { "forward only (no gradients)", function() moth.no_grad(loss, x, y) end, "no graph" },
  { "forward + backward", function() loss(x, y):backward() end, "activations are kept" },
  { "with checkpoints", function() loss(x, y, true):backward() end, "computed again instead of kept" },
  { "accumulation (8 parts)", function()
    for i = 0, 7 do
      local n = batch / 8
      (loss(x:narrow(1, i * n + 1, n), y:narrow(1, i * n + 1, n)) / 8):backward()
    end
  end, ("batch %d in parts of %d"):format(batch, batch / 8) },
}
print(("%-28s %12s %10s  %s"):format("", "memory (MB)", "time (ms)", "notes"))
for _, row in ipairs(rows) do
  local mb, ms = measure(row[2])
  print(("%-28s %12.2f %10.2f  %s"):format(row[1], mb, ms, row[3]))
end
