--- What checkpoints save and what they cost: a transformer of 12 layers, each layer a checkpoint; a deep network in
-- segments.
--
--     moth examples/bench_checkpoint.lua [--quick]
local moth = require "moth"
local nn, utils = moth.nn, moth.utils

local quick = moth.cli({ { "--quick", "a short run" } }).quick
local width, tokens, batch, layers = quick and 64 or 256, quick and 32 or 64, quick and 4 or 8, 12
local device = moth.cuda.is_available() and "cuda" or "cpu"
local memory = device == "cuda" and moth.cuda or moth.cpu

local function settle()
  for _ = 1, 3 do
    collectgarbage()
    moth.zeros(1)
  end
  return memory.memory_allocated()
end

-- Bytes that forward leaves for backward, and the seconds of forward and backward (the least of some runs).
local function measure(model, x, runs)
  local saved, forward, backward = 0, math.huge, math.huge
  for _ = 1, runs do
    model:zero_grad()
    local before = settle()
    local t0 = os.clock()
    local y = model(x):sum()
    if device == "cuda" then moth.cuda.synchronize() end
    local t1 = os.clock()
    saved = settle() - before
    local t2 = os.clock()
    y:backward()
    if device == "cuda" then moth.cuda.synchronize() end
    forward, backward = math.min(forward, t1 - t0), math.min(backward, os.clock() - t2)
  end
  return saved, forward, backward
end

local function transformer(checkpointed)
  moth.manual_seed(0)
  local list = {}
  for i = 1, layers do
    list[i] = nn.TransformerEncoderLayer(width, 4, { dim_feedforward = 4 * width, dropout = 0 })
    if checkpointed then utils.checkpoint_wrapper(list[i]) end
  end
  return nn.Sequential(list):to(device)
end

local x = moth.randn(batch, tokens, width, { device = device, requires_grad = true })
local runs = quick and 2 or 3
print(("a transformer of %d layers, width %d, %d x %d tokens"):format(layers, width, batch, tokens))
print(("%-22s %12s %12s %12s"):format("", "saved (MB)", "forward (ms)", "backward (ms)"))
local s1, f1, b1 = measure(transformer(false), x, runs)
local s2, f2, b2 = measure(transformer(true), x, runs)
print(("%-22s %12.2f %12.1f %12.1f"):format("plain", s1 / 1e6, f1 * 1e3, b1 * 1e3))
print(("%-22s %12.2f %12.1f %12.1f"):format("each layer", s2 / 1e6, f2 * 1e3, b2 * 1e3))
print(("saved: 1/%.1f; backward %+.0f %%, the whole step %+.0f %%"):format(s1 / s2, 100 * (b2 / b1 - 1),
  100 * ((f2 + b2) / (f1 + b1) - 1)))
local between = (layers - 1) * x:numel() * 4
print(("between its layers lie %.2f MB: %.0f %% of what is saved"):format(between / 1e6, 100 * between / s2))

print("\nN layers of tanh in sqrt(N) segments: tensors that are kept")
for _, n in ipairs { 16, 64, 256 } do
  local list = {}
  for i = 1, n do list[i] = nn.Tanh() end
  local seq = nn.Sequential(list)
  local v = moth.randn(64, 256, { device = device, requires_grad = true })
  local before = settle()
  local y = utils.checkpoint_sequential(seq, math.sqrt(n), v)
  local kept = (settle() - before) / (64 * 256 * 4)
  y:sum():backward()
  print(("  N = %3d  sqrt(N) = %2d  plain %3d  checkpointed %5.1f"):format(n, math.sqrt(n), n, kept))
end
