--- A custom module: two layers, from (32, 512) to (32, 10).
local moth = require "moth"
local nn = moth.nn

local SimpleModel = nn.class("SimpleModel")

function SimpleModel:__init(hidden)
  self.fc1 = nn.Linear(512, hidden)
  self.fc2 = nn.Linear(hidden, 10)
end

function SimpleModel:forward(x) return self.fc2(self.fc1(x):relu()) end

moth.manual_seed(0)
local model = SimpleModel(256)
print(model)
print("output shape: " .. tostring(model(moth.randn(32, 512)):size()))
for name, p in model:named_parameters() do print(("%-12s %s"):format(name, tostring(p:size()))) end
