--- Lab: four ways to cut a training, told apart by what a rank keeps and what it sends; which one a model needs; what
-- each costs.
--
--     moth run --nproc-per-node 2 examples/lab_patterns.lua
local moth = require "moth"
local dist, nn = moth.distributed, moth.nn
dist.init_process_group "gloo"
local rank, ranks = dist.get_rank(), dist.get_world_size()
local function say(...) if rank == 0 then print(string.format(...)) end end

local WIDTH, BATCH = 256, 8 * ranks
local function new_model()
  moth.manual_seed(1)
  return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
end
moth.manual_seed(2)
local x, y = moth.randn(BATCH, WIDTH), moth.randn(BATCH, WIDTH)
local loss_fn = nn.functional.mse_loss
-- The part of the batch that is this rank's, where the batch is cut.
local function mine(t) return t:narrow(1, rank * BATCH / ranks + 1, BATCH / ranks) end
local bytes = 0
for _, p in ipairs(new_model():parameters()) do bytes = bytes + 4 * p:numel() end

-- 1. Run each, and look: parameters of this rank, and the collectives of one step with the bytes that it sends.
local patterns = {
  { "DDP", "the batch", function()
    local net = nn.parallel.DistributedDataParallel(new_model())
    return net, function() loss_fn(net(mine(x)), mine(y)):backward() end
  end },
  { "FSDP", "parameters", function()
    local net = new_model()
    for i = 1, 3, 2 do dist.fully_shard(net[i]) end
    dist.fully_shard(net)
    return net, function() loss_fn(net(mine(x)), mine(y)):backward() end
  end },
  { "TP", "matrices", function()
    local mesh = dist.device_mesh({ ranks }, { "tp" })
    local net = dist.tp.parallelize(nn.Sequential(new_model()), mesh.tp, { ["0"] = "hidden" })
    return net, function() loss_fn(net(x), y):backward() end
  end },
  { "PP", "layers", function()
    local pipe = dist.pipeline(new_model(), { microbatches = 4 })
    return pipe, function() pipe:step(x, y, loss_fn) end
  end },
}
say("1. one step of %d KB of parameters on %d ranks:", bytes / 1024, ranks)
for _, pattern in ipairs(patterns) do
  local net, step = pattern[3]()
  step() -- buckets and layouts are made in the first one
  local before = dist.stats()
  step()
  local after, calls, held = dist.stats(), {}, 0
  for _, name in ipairs { "all_reduce", "all_gather", "reduce_scatter", "send", "recv" } do
    local n = after.calls[name] - before.calls[name]
    if n > 0 then calls[#calls + 1] = n .. " " .. name end
  end
  for _, p in ipairs(net:parameters()) do held = held + p:numel() * 4 end
  say("   %-5s cuts %-11s a rank holds %3.0f %%, sends %5.0f KB: %s", pattern[1], pattern[2], 100 * held / bytes,
    (after.bytes_sent - before.bytes_sent) / 1024, table.concat(calls, ", "))
end

-- 2. Predict: which of them a model needs, from its size and the memory of a device.
say("2. which one:")
for _, case in ipairs { { 350e6, 24e9, 4 }, { 7e9, 80e9, 8 }, { 70e9, 80e9, 8 }, { 405e9, 80e9, 1024 } } do
  local name, reason = dist.advise { params = case[1], gpu_mem = case[2], gpus = case[3] }
  say("   %6.2f billion parameters, %4d devices of %d GB: %s (%s)", case[1] / 1e9, case[3], case[2] / 1e9, name, reason)
end

-- 3. Limits: what each costs that cannot be had back.
say("3. limits:")
local e = dist.estimate { params = 350e6, world = 4, bw = 600e9, compute = 0.08, pp = 4, microbatches = 8, tp = 8,
  layers = 32 }
for line in tostring(e):gmatch "[^\n]+" do say("   %s", line) end
local breaks = moth.compile.explain(function(t)
  if t:sum():item() > 0 then return t * 2 end
  return -t
end, x)
say("   a branch on a value: %d break of a compiled graph", breaks.graph_break_count)
dist.destroy_process_group()
