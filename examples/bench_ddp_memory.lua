--- What DistributedDataParallel takes in memory: the peak of a training step in one process, and of the same step on
-- two, with gradients that are copied to buckets and with gradients that are views of them.
--
--     moth examples/bench_ddp_memory.lua [--quick]
--
-- It starts a second process of itself; both report over tcp on this machine.
local moth = require "moth"
local nn, F, dist = moth.nn, moth.F, require "moth.distributed"
local now = require("moth.utils.system").now

local quick = moth.cli({ { "--quick", "a short run" } }).quick
local rank = tonumber(os.getenv "RANK" or "0")
local store, other
if not os.getenv "RANK" then
  store = dist.TCPStore("127.0.0.1", 0, { is_master = true })
  other = assert(io.popen(("RANK=1 PORT=%d '%s' '%s' %s"):format(store.port, arg[-1], arg[0], arg[1] or ""), "r"))
else
  store = dist.TCPStore("127.0.0.1", tonumber(os.getenv "PORT"), {})
end

local batch, width, depth = 32, quick and 128 or 1024, 6
local function make()
  moth.manual_seed(1)
  local layers = {}
  for i = 1, depth do layers[i] = nn.Sequential(nn.Linear(width, width), nn.GELU()) end
  return nn.Sequential(layers)
end
local x, y = moth.randn(batch, width), moth.randn(batch, width)

-- The peak of the last of three steps above what was there before the model, in MB; its time in ms.
local function measure(wrap)
  collectgarbage()
  collectgarbage()
  local before = moth.cpu.memory_allocated()
  local model = wrap(make())
  local opt = moth.optim.SGD(model:parameters(), { lr = 0.01, momentum = 0.9 })
  local took
  for _ = 1, 3 do -- the buckets are laid out anew in the second one
    collectgarbage()
    moth.cpu.reset_peak_memory_stats()
    local start = now()
    opt:zero_grad { set_to_none = false }
    F.mse_loss(model(x), y):backward()
    opt:step()
    took = now() - start
  end
  return (moth.cpu.max_memory_allocated() - before) / 1e6, took * 1e3
end

local rows = { { "one process", measure(function(m) return m end) } }
dist.init_process_group("gloo", { store = store, rank = rank, world_size = 2 })
for _, as_view in ipairs { false, true } do
  rows[#rows + 1] = { as_view and "two, gradients are views of buckets" or "two, gradients and buckets",
    measure(function(m) return nn.parallel.DistributedDataParallel(m, { gradient_as_bucket_view = as_view }) end) }
end
dist.barrier()
dist.destroy_process_group()
if rank == 1 then return end

local parameters = depth * (width * width + width) * 4 / 1e6
print(("%d layers of %d, batch %d: parameters %.1f MB, gradients and momentum as much each"):format(depth, width, batch,
  parameters))
print(("%-38s %10s %10s %9s"):format("", "peak, MB", "more, MB", "step, ms"))
for _, row in ipairs(rows) do
  print(("%-38s %10.1f %10.1f %9.1f"):format(row[1], row[2], row[2] - rows[1][2], row[3]))
end
other:close()
