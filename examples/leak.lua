--- Memory that grows by a graph that is kept, and the line that keeps it.
--
--     moth examples/leak.lua
local moth = require "moth"
local nn = moth.nn

moth.manual_seed(0)
local model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
local x, y = moth.randn(128, 64), moth.randn(128, 1)

local history = {}
local function leaking()
  local loss = nn.functional.mse_loss(model(x), y)
  history[#history + 1] = loss -- the tensor, and with it its graph
end
local function clean()
  local loss = nn.functional.mse_loss(model(x), y)
  history[#history + 1] = loss:item()
end

print("1. The step that keeps its loss:")
print(tostring(moth.debug.leak_check(leaking, { steps = 5 })))
history = {}
print("2. The same with loss:item():")
print(tostring(moth.debug.leak_check(clean, { steps = 5 })))
