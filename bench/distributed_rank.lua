-- One rank of bench/distributed.lua: prints "name seconds" lines on rank 0; distributed_rank.py is the same in PyTorch.
local now = require("moth.utils.system").now
local begun = now()
local moth = require "moth"
local dist, nn = moth.distributed, moth.nn
moth.set_num_threads(1)
local rank = tonumber(os.getenv "RANK")

local before = now()
dist.init_process_group("gloo", { timeout = 60 })
dist.barrier()
local joined = now() - before

local function say(name, value) if rank == 0 then print(name, value) end end
say("init", joined)
say("start", now() - begun)
if os.getenv "ONLY" == "init" then
  dist.destroy_process_group()
  return
end

local function median(list)
  table.sort(list)
  return list[math.ceil(#list / 2)]
end
local function timed(n, fn)
  local list = {}
  fn()
  fn()
  for i = 1, n do
    dist.barrier()
    local t = now()
    fn()
    list[i] = now() - t
  end
  return median(list), list[1]
end

for _, size in ipairs { { "4 KB", 2 ^ 12 }, { "1 MB", 2 ^ 20 }, { "25 MB", 25 * 2 ^ 20 } } do
  local name, bytes = unpack(size)
  local t = moth.ones(bytes / 4)
  local cpu = os.clock()
  local n = bytes > 2 ^ 21 and 15 or 100
  local middle, best = timed(n, function() dist.all_reduce(t) t:fill_(1) end)
  say("all_reduce " .. name, middle)
  say("best all_reduce " .. name, best)
  say("cpu all_reduce " .. name, (os.clock() - cpu) / (n + 2) / bytes * 2 ^ 30)
end

-- nine layers of 512 x 512 in buckets of 1 MB: how much of the communication backward hides
do
  local layers = {}
  for i = 1, 9 do layers[i] = nn.Linear(512, 512, { bias = false }) end
  local model = nn.Sequential(unpack(layers))
  local ddp = nn.parallel.DistributedDataParallel(model, { bucket_cap_mb = 1 })
  local x = moth.randn(256, 512)
  local function step() ddp(x):sum():backward() end
  for _ = 1, 3 do step() end
  local alone, with, sent = {}, {}, {}
  local buckets = {}
  for i = 1, #ddp:buckets() do buckets[i] = moth.ones(2 ^ 18) end
  for i = 1, 15 do
    dist.barrier()
    local t = now()
    ddp:no_sync(step)
    alone[i] = now() - t
    dist.barrier()
    t = now()
    step()
    with[i] = now() - t
    dist.barrier()
    t = now()
    for _, b in ipairs(buckets) do dist.all_reduce(b, { op = "avg" }) end
    sent[i] = now() - t
  end
  local function best(list)
    table.sort(list)
    return list[1]
  end
  say("hidden share", 1 - (best(with) - best(alone)) / best(sent))
  say("buckets", #buckets)
end

-- the network of examples/fashion_cnn.lua, batch 64
do
  local model = nn.Sequential(nn.Conv2d(1, 32, 3, { padding = 1 }), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, { padding = 1 }), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(),
    nn.Dropout(0.25), nn.Linear(128, 10))
  local ddp = nn.parallel.DistributedDataParallel(model)
  local optimizer = moth.optim.Adam(ddp:parameters(), { lr = 1e-3 })
  local x, labels = moth.rand(64, 1, 28, 28), moth.randint(1, 11, { 64 })
  say("CNN step", (timed(15, function()
    optimizer:zero_grad()
    nn.functional.cross_entropy(ddp(x), labels):backward()
    optimizer:step()
  end)))
end
dist.destroy_process_group()

