--- Where memory goes: a breakdown by purpose, by module, a snapshot by line, the difference of two, a picture over
-- time, a leak that is found, an estimate.
--
--     moth examples/memory_tools.lua [picture.svg]
local moth = require "moth"
local nn, optim, memory = moth.nn, moth.optim, moth.memory

moth.manual_seed(0)
local net = nn.Sequential(nn.Conv2d(1, 16, 3, { padding = 1 }), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
  nn.Conv2d(16, 32, 3, { padding = 1 }), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 14 * 14, 10))
local optimizer = optim.AdamW(net:parameters(), { lr = 1e-3 })
local x, y = moth.randn(64, 1, 28, 28), moth.randint(1, 11, { 64 })

print("one step, by purpose (the prediction has computed nothing):")
print(tostring(memory.breakdown(net, optimizer, x)) .. "\n")

print("by module:")
print(tostring(memory.by_module(net, x)) .. "\n")

local losses = {}
local function step()
  optimizer:zero_grad()
  local loss = moth.F.cross_entropy(net(x), y)
  loss:backward()
  optimizer:step()
  losses[#losses + 1] = loss -- the mistake: loss:item() would keep a number
end

memory.record_history(true)
step()
local before = memory.snapshot()
step()
print(tostring(memory.diff(before, memory.snapshot())) .. "\n")
local picture = moth.cli({ { "[FILE]", "the memory over time, as a picture" } }).file
if picture then
  memory.timeline({ title = "two training steps" }):save(picture)
  print("memory over time: " .. picture .. "\n")
end
memory.record_history(false)

print("a leak check of the same loop:")
print(tostring(moth.memory.leak_check(step)) .. "\n")

print("7 billion parameters with AdamW in float32:")
print(tostring(select(2, memory.estimate { params = 7e9, optimizer = "AdamW" })))
