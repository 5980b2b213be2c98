--- A model whose layers are on several ranks: a batch goes through them in micro-batches. Prints the schedule, trains,
-- and compares the gradients of a step with those of one process.
--
--     moth run --nproc-per-node 2 examples/pipeline.lua [--schedule 1f1b] [--svg schedule.svg]
local moth = require "moth"
local dist, nn = moth.distributed, moth.nn

local options = moth.cli { { "--schedule NAME", "", "1f1b" }, { "--svg FILE", "a picture of the schedule" } }

dist.init_process_group("gloo")
local rank = dist.get_rank()

local function model()
  moth.manual_seed(1)
  local layers = {}
  for i = 1, 8 do layers[i] = nn.Sequential(nn.Linear(32, 32), nn.Tanh()) end
  layers[9] = nn.Linear(32, 1)
  return nn.Sequential(layers)
end
moth.manual_seed(2)
local x = moth.randn(64, 32)
local y = x:sum(2, true):mul(0.3):sin()

-- One process
local whole = model()
nn.functional.mse_loss(whole(x), y):backward()

-- Layers on ranks: pipe has those of this one. `whole` is there for the comparison only; for a large model a list of
-- functions makes each layer where it belongs: dist.pipeline { function() return Block() end, … }.
local pipe = dist.pipeline(model(), { microbatches = 8, schedule = options.schedule })
local loss = pipe:step(x, y, nn.functional.mse_loss)
local worst = 0
for name, p in pipe:named_parameters() do
  worst = math.max(worst, (p.grad - whole:get_parameter(name).grad):abs():max():item())
end
assert(worst < 1e-6, worst)
print(("rank %d has %d of %d parameters; their gradients differ by %.1e from those of one process"):format(rank,
  #pipe:parameters(), #whole:parameters(), worst))

if rank == 0 then
  pipe:print_schedule()
  if options.svg then pipe.schedule:picture():save(options.svg) end
end
local opt, first = moth.optim.Adam(pipe:parameters(), { lr = 0.01 }), loss:item()
for _ = 1, 60 do
  opt:zero_grad()
  loss = pipe:step(x, y, nn.functional.mse_loss)
  opt:step()
end
assert(loss:item() < first / 5)
if rank == 0 then print(("loss %.3f, after 60 steps %.4f"):format(first, loss:item())) end
dist.destroy_process_group()
