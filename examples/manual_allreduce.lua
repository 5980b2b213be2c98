--- What DistributedDataParallel does, by hand: each rank has a part of the batch; after backward the gradients of all
-- ranks are averaged, one after the other. The result is that of DistributedDataParallel, which sends them in buckets
-- while backward still runs, and that of one process with the whole batch.
--
--     moth run --nproc-per-node 2 examples/manual_allreduce.lua
local moth = require "moth"
local dist, nn = moth.distributed, moth.nn

dist.init_process_group("gloo")
local rank, size = dist.get_rank(), dist.get_world_size()

local function model()
  moth.manual_seed(1) -- the same weights on all ranks
  return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
end
moth.manual_seed(2)
local x, y = moth.randn(8 * size, 16), moth.randn(8 * size, 1)
local mine = { x:narrow(1, 8 * rank + 1, 8), y:narrow(1, 8 * rank + 1, 8) }

-- Trains for a few steps; after_backward may change the gradients.
local function train(net, inputs, targets, after_backward)
  local opt = moth.optim.SGD(net:parameters(), { lr = 0.1, momentum = 0.9 })
  for _ = 1, 10 do
    opt:zero_grad()
    nn.functional.mse_loss(net(inputs), targets):backward()
    after_backward(net)
    opt:step()
  end
end

local function average(net)
  for _, p in net:named_parameters() do dist.all_reduce(p.grad, { op = "avg" }) end
end
local function nothing() end

local by_hand, one = model(), model()
local ddp = nn.parallel.DistributedDataParallel(model())
train(by_hand, mine[1], mine[2], average)
train(ddp, mine[1], mine[2], nothing)
train(one, x, y, nothing)

local function distance(a, b)
  local most = 0
  for name, p in a:named_parameters() do
    most = math.max(most, (p - b:get_parameter(name)):abs():max():item())
  end
  return most
end
if rank == 0 then
  local to_ddp, to_one = distance(by_hand, ddp.module), distance(by_hand, one)
  print(("by hand and DistributedDataParallel differ by at most %.1e"):format(to_ddp))
  print(("by hand and one process with the whole batch by at most %.1e"):format(to_one))
  assert(to_ddp < 1e-6 and to_one < 1e-6)
end
dist.destroy_process_group()
