--- Local SGD: ranks train by themselves and average their parameters each N steps: N times less is sent. Prints how far
-- they drift apart meanwhile, and what that costs beside averaging each step.
--
--     moth run --nproc-per-node 2 examples/local_sgd.lua
local moth = require "moth"
local dist, nn = moth.distributed, moth.nn

dist.init_process_group("gloo")
local rank = dist.get_rank()
local STEPS = 96

local function flat(model)
  local list = {}
  for _, p in model:named_parameters() do list[#list + 1] = p:detach():reshape(-1) end
  return moth.cat(list)
end

local function average(model)
  moth.no_grad(function()
    for _, p in model:named_parameters() do dist.all_reduce(p:detach(), { op = "avg" }) end
  end)
end

-- Trains, averaging each n steps; returns the last loss and the largest distance to the mean of the ranks.
local function train(n)
  moth.manual_seed(1)
  local model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
  local opt, far, before = moth.optim.SGD(model:parameters(), { lr = 0.1 }), 0, dist.stats().bytes_sent
  local sum = moth.zeros(1)
  for step = 1, STEPS do
    moth.manual_seed(100 * step + rank) -- other samples on each rank
    local x = moth.randn(32, 16)
    opt:zero_grad()
    local loss = nn.functional.mse_loss(model(x), x:sum(2, true):sin())
    loss:backward()
    opt:step()
    if step > STEPS - 16 then sum:add_(loss:detach() / 16) end
    if step % n == 0 then
      local own = flat(model)
      average(model)
      far = math.max(far, (own - flat(model)):norm():item())
    end
  end
  local sent = dist.stats().bytes_sent - before
  dist.all_reduce(sum, { op = "avg" })
  return sum:item(), far, sent
end

for _, n in ipairs { 1, 4, 16 } do
  local loss, far, sent = train(n)
  if rank == 0 then
    print(("averaged each %2d steps: loss %.3f, at most %.3f from the mean, %6.0f KB sent"):format(n, loss, far,
      sent / 1024))
  end
end
dist.destroy_process_group()
