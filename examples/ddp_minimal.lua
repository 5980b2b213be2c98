--- The smallest training in several processes: what a script needs beside that of one process is marked.
--
--     moth run --nproc-per-node 2 examples/ddp_minimal.lua
local moth = require "moth"
local nn, data = moth.nn, moth.data
local dist = moth.distributed -- (1)

dist.init_process_group("gloo") -- (2)
moth.manual_seed(0)
local x = moth.randn(512, 10)
local y = x:mm(moth.randn(10, 1)):tanh()
local set = data.TensorDataset(x, y)

local sampler = data.DistributedSampler(set:size(), { shuffle = true }) -- (3) each rank has another part
local loader = data.DataLoader(set, { batch_size = 32, sampler = sampler })
local model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1))
local net = nn.parallel.DistributedDataParallel(model) -- (4) averages gradients during backward
local opt = moth.optim.Adam(net:parameters(), { lr = 0.01 })

local first, last
for epoch = 1, 10 do
  sampler:set_epoch(epoch) -- (5) another order
  local sum, n = 0, 0
  for a, b in loader:iter() do
    opt:zero_grad()
    local loss = nn.functional.mse_loss(net(a), b)
    loss:backward()
    opt:step()
    sum, n = sum + loss:item(), n + 1
  end
  last = sum / n
  first = first or last
  if dist.get_rank() == 0 then print(("epoch %2d, loss %.4f"):format(epoch, last)) end -- (6) one rank prints
end
assert(last < first / 4)
if dist.get_rank() == 0 then
  local path = os.tmpname()
  moth.save(model:state_dict(), path) -- (7) and saves
  os.remove(path)
end
dist.destroy_process_group() -- (8)
