-- The lab's training step against PyTorch: equal weights, equal batches, dropout 0, 100 Adam steps.
-- Writes weights, batches and moth's losses to a safetensors file; lab.py trains the same and compares.
-- Usage: luajit spec/parity/lab.lua float64|float32 FILE
local moth = require "moth"
local nn, optim = moth.nn, moth.optim

local dtype, path = moth[arg[1]], arg[2]
local steps, batch = 100, 64
moth.manual_seed(7)
local net = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
  nn.Linear(256, 10))
local params = net:parameters()
if dtype ~= moth.float32 then
  net = net:to(dtype)
  params = net:parameters()
end
local out = {}
for i, p in ipairs(params) do out["p" .. i] = p:detach():clone() end
local x = moth.randn(steps, batch, 784, { dtype = dtype })
local centers = moth.randn(10, 784, { dtype = dtype })
local y = moth.randint(1, 11, { steps, batch })
x = x + centers:index_select(1, y:flatten()):view(steps, batch, 784) * 0.1
out.x, out.y = x, y - 1

local opt = optim.Adam(params, { lr = 1e-3 })
local criterion = nn.CrossEntropyLoss()
local losses = {}
for i = 1, steps do
  opt:zero_grad()
  local loss = criterion(net(x[i]), y[i])
  loss:backward()
  opt:step()
  losses[i] = loss:item()
end
out.losses = moth.tensor(losses, { dtype = moth.float64 })
moth.save_safetensors(out, path)
