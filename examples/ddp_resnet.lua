--- A residual network on images, in several processes, with the time of a step and the speedup over one process: the
-- first rank takes the same steps by itself before. On a machine with P idle cores P processes take the batch in about
-- 1/P of the time.
--
--     moth run --nproc-per-node 1 examples/ddp_resnet.lua
--     moth run --nproc-per-node 2 examples/ddp_resnet.lua [--steps 20] [--batch 64]
local moth = require "moth"
local dist, nn = moth.distributed, moth.nn

local options = moth.cli { { "--steps N", "", 20 }, { "--batch N", "images of all ranks", 64 } }
dist.init_process_group("gloo")
local rank, size = dist.get_rank(), dist.get_world_size()
local now = moth.utils.system.now

local Residual = nn.class("Residual")
function Residual:__init(planes)
  self.conv1, self.bn1 = nn.Conv2d(planes, planes, 3, { padding = 1, bias = false }), nn.BatchNorm2d(planes)
  self.conv2, self.bn2 = nn.Conv2d(planes, planes, 3, { padding = 1, bias = false }), nn.BatchNorm2d(planes)
end
function Residual:forward(x)
  local y = self.bn1(self.conv1(x)):relu()
  return (self.bn2(self.conv2(y)) + x):relu()
end

moth.manual_seed(1)
local model = nn.Sequential(nn.Conv2d(1, 16, 3, { padding = 1 }), Residual(16), nn.MaxPool2d(2), Residual(16),
  nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 16, 4))

-- Pictures of a bright quarter; which one is the class.
local per_rank = math.floor(options.batch / size)
local function batch(step, n)
  moth.manual_seed(1000 * step + rank)
  local x, y = moth.randn(n, 1, 16, 16), moth.randint(1, 5, { n })
  for i = 1, n do
    local k = y[i]:item() - 1
    x[i]:narrow(2, 1 + 8 * math.floor(k / 2), 8):narrow(3, 1 + 8 * (k % 2), 8):add_(0.7)
  end
  return x, y
end

-- The seconds of a step over n images, and the share of the last steps' images that are right.
local function train(net, n)
  local opt = moth.optim.SGD(net:parameters(), { lr = 0.05, momentum = 0.9 })
  local seconds, correct = 0, moth.zeros(1)
  for step = 1, options.steps do
    local x, y = batch(step, n)
    local start = now()
    opt:zero_grad()
    local out = net(x)
    nn.functional.cross_entropy(out, y):backward()
    opt:step()
    if step > 2 then seconds = seconds + now() - start end
    if step > options.steps - 5 then correct:add_(out:detach():argmax(2):eq(y):to(moth.float32):mean() / 5) end
  end
  return seconds / math.max(options.steps - 2, 1), correct
end

local alone = size > 1 and rank == 0 and train(model:clone(), per_rank * size)
dist.barrier()
local each, correct = train(nn.parallel.DistributedDataParallel(model), per_rank)
dist.all_reduce(correct, { op = "avg" })
if rank == 0 then
  print(("%d processes: %.1f ms a step, %.0f images a second; accuracy of the last steps %.2f"):format(size, each * 1e3,
    per_rank * size / each, correct:item()))
  if alone then
    print(("one process: %.1f ms a step for as many images; speedup %.2f"):format(alone * 1e3, alone / each))
  end
end
dist.destroy_process_group()
