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
local function once(fn)
  dist.barrier()
  local t = now()
  fn()
  return now() - t
end
local function timed(n, fn)
  local list = {}
  fn()
  fn()
  for i = 1, n do list[i] = once(fn) end
  return median(list), list[1]
end

-- Nine layers of 512 x 512 in buckets of 1 MB, over a link that is slow and leaves the processor free
-- (bench/distributed.lua makes it): how much of the communication backward hides. All three are measured in turn.
local function hidden()
  local layers = {}
  for i = 1, 9 do layers[i] = nn.Linear(512, 512, { bias = false }) end
  local model = nn.Sequential(unpack(layers))
  local ddp = nn.parallel.DistributedDataParallel(model, { bucket_cap_mb = 1 })
  local x = moth.randn(512, 512)
  local function step() ddp(x):sum():backward() end
  for _ = 1, 3 do step() end
  local alone, with, sent, buckets = {}, {}, {}, {}
  for i = 1, 9 do buckets[i] = moth.ones(2 ^ 18) end
  -- By the records of a step: the part of the time in which buckets travel that lies before the last gradient.
  local last_gradient, shares = 0, {}
  layers[1].weight:register_hook(function() last_gradient = now() end)
  local function share()
    local record, busy, exposed = dist.flight_record(), 0, 0
    for i = #record, 1, -1 do
      local call = record[i]
      if call.op ~= "all_reduce" then break end
      busy = busy + call.done - call.begun
      exposed = exposed + math.max(0, call.done - math.max(call.begun, last_gradient))
    end
    return 1 - exposed / busy
  end
  for i = 1, 25 do
    alone[i] = once(function() ddp:no_sync(step) end)
    with[i] = once(step)
    shares[i] = share()
    sent[i] = once(function() for _, b in ipairs(buckets) do dist.all_reduce(b, { op = "avg" }) end end)
  end
  for _, list in ipairs { alone, with, sent } do table.sort(list) end
  say("step alone", alone[1])
  say("step with", with[1])
  say("communication", sent[1])
  say("share before the last gradient", median(shares))
  say("hidden share", 1 - (with[1] - alone[1]) / sent[1])
end

-- What DistributedDataParallel adds to a backward for each parameter, beside communication: 4000 parameters of one
-- number, a group of one rank. The best of 45.
local function hooks()
  local model, list, group, n = nn.Module(), {}, nil, 4000
  for r = 0, dist.get_world_size() - 1 do group = dist.new_group { r } or group end
  for i = 1, n do
    list[i] = nn.Parameter(moth.ones(1))
    model:register_parameter("p" .. i, list[i])
  end
  function model.forward() return moth.cat(list) end
  local ddp = nn.parallel.DistributedDataParallel(model, { gradient_as_bucket_view = true, process_group = group })
  local loss
  local function step() loss:backward() end
  local with, without = {}, {}
  for i = 1, 45 do
    loss = ddp():sum()
    without[i] = once(function() ddp:no_sync(step) end)
    loss = ddp():sum()
    with[i] = once(step)
  end
  table.sort(with)
  table.sort(without)
  say("hook", (with[1] - without[1]) / n)
end

if os.getenv "ONLY" == "hidden" then
  hidden()
  dist.destroy_process_group()
  return
end
hooks()
if os.getenv "ONLY" == "hooks" then return end

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

