--- Four ways to run one network: forward alone, a training step, with checkpoints, with accumulated gradients. Memory
-- above the model's, and time; then whether their orders are as they must be.
--
--     moth examples/bench_autograd_memory.lua [--quick]
local moth = require "moth"
local nn, utils, F = moth.nn, moth.utils, moth.F

local quick = moth.cli({ { "--quick", "a short run" } }).quick
local batch, width, depth = quick and 256 or 512, quick and 128 or 256, 8
moth.set_num_threads(1) -- on a machine that does other things, too, threads wait for one another
local device = moth.cuda.is_available() and "cuda" or "cpu"
local memory = device == "cuda" and moth.cuda or moth.cpu
local now = utils.system.now

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

local function measure(row)
  model:zero_grad { set_to_none = false }
  collectgarbage()
  collectgarbage()
  local before = memory.memory_allocated()
  memory.reset_peak_memory_stats()
  local start = now()
  row.run()
  if device == "cuda" then moth.cuda.synchronize() end
  row.ms = math.min(row.ms or math.huge, (now() - start) * 1e3)
  row.mb = (memory.max_memory_allocated() - before) / 1e6
end

local rows = {
  { name = "forward only (no gradients)", run = function() moth.no_grad(loss, x, y) end, notes = "no graph" },
  { name = "forward + backward", run = function() loss(x, y):backward() end, notes = "activations are kept" },
  { name = "with checkpoints", run = function() loss(x, y, true):backward() end,
    notes = "computed again instead of kept" },
  { name = "accumulation (8 parts)", run = function()
    for i = 0, 7 do
      local n = batch / 8
      (loss(x:narrow(1, i * n + 1, n), y:narrow(1, i * n + 1, n)) / 8):backward()
    end
  end, notes = ("batch %d in parts of %d"):format(batch, batch / 8) },
}
for _ = 1, quick and 2 or 6 do -- in turn, so that what slows the machine slows all of them
  for _, row in ipairs(rows) do measure(row) end
end
print(("%-28s %12s %10s  %s"):format("", "memory (MB)", "time (ms)", "notes"))
for _, row in ipairs(rows) do print(("%-28s %12.2f %10.2f  %s"):format(row.name, row.mb, row.ms, row.notes)) end

-- Whether the rows, by their numbers, rise in this order.
local function order(what, field, wanted)
  local names, holds = {}, true
  for i, k in ipairs(wanted) do
    names[i] = rows[k].name:match "^[%a+ ]+%a"
    holds = holds and (i == 1 or rows[wanted[i - 1]][field] < rows[k][field])
  end
  print(("%-6s %s: %s"):format(what, table.concat(names, " < "), holds and "holds" or "does not hold"))
end
order("memory", "mb", { 1, 4, 3, 2 })
order("time", "ms", { 1, 2, 4, 3 })
