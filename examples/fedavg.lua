--- Federated averaging: each rank is a client with data of its own, which it never sends. In each round some clients
-- take the model, train it for a few steps, and send the difference, compressed; the mean of the differences changes
-- the model.
--
--     moth run --nproc-per-node 3 examples/fedavg.lua
local moth = require "moth"
local dist, nn = moth.distributed, moth.nn

dist.init_process_group("gloo")
local rank, size = dist.get_rank(), dist.get_world_size()

-- Clients differ: each has the points of one direction of the plane, and few of the others.
moth.manual_seed(10 + rank)
local center = moth.tensor { math.cos(2 * math.pi * rank / size), math.sin(2 * math.pi * rank / size) }
local x = moth.randn(200, 2):mul(0.7):add(center)
local y = x:select(2, 1):mul(x:select(2, 2)):gt(0):to(moth.int64):add(1)
moth.manual_seed(99)
local test = moth.randn(500, 2)
local answers = test:select(2, 1):mul(test:select(2, 2)):gt(0):to(moth.int64):add(1)

local function network() return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)) end
moth.manual_seed(1)
local model = network() -- the same on all
local residual = {} -- what compression has left out, sent later

-- The difference in half precision; what is lost is added to the next one.
local function compressed(name, delta)
  if residual[name] then delta = delta + residual[name] end
  local short = delta:to(moth.float16)
  residual[name] = delta - short:to(moth.float32)
  return short
end

local function accuracy() return model(test):argmax(2):eq(answers):to(moth.float32):mean():item() end

local first = accuracy()
for round = 1, 20 do
  local absent = round % size -- one client sleeps in each round
  local taking_part = size == 1 or rank ~= absent
  local own = network()
  own:load_state_dict(model:state_dict())
  if taking_part then
    local opt = moth.optim.SGD(own:parameters(), { lr = 0.3 })
    for _ = 1, 10 do
      opt:zero_grad()
      nn.functional.cross_entropy(own(x), y):backward()
      opt:step()
    end
  end
  moth.no_grad(function()
    for name, p in model:named_parameters() do
      local delta = moth.zeros_like(p):to(moth.float16)
      if taking_part then delta = compressed(name, own:get_parameter(name):detach() - p:detach()) end
      dist.all_reduce(delta)
      p:detach():add_(delta:to(moth.float32) / math.max(size - 1, 1))
    end
  end)
  if rank == 0 and round % 5 == 0 then print(("round %2d: accuracy %.3f"):format(round, accuracy())) end
end
assert(accuracy() > first and accuracy() > 0.8)
dist.destroy_process_group()
