--- A NaN in the middle of a run, and the three commands that find it.
--
--     moth examples/nan.lua
local moth = require "moth"
local nn = moth.nn

local Normalise = nn.class("Normalise")
function Normalise.__init() end
function Normalise.forward(_, x)
  local mean = x:mean(2, { keepdim = true })
  local deviation = ((x - mean) ^ 2):mean(2, { keepdim = true }):sqrt()
  local y = (x - mean) / deviation -- no epsilon: rows of equal numbers give 0 / 0
  return y
end

moth.manual_seed(0)
local model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), Normalise()), nn.Linear(8, 2))
local x = moth.randn(16, 4)
x[7]:fill_(-30) -- one sample for which ReLU gives zeros alone
model[1].bias.data:fill_(-20)
model[1].weight.data:abs_()

print("the loss: " .. tostring(model(x):square():mean():item()))
local found = moth.debug.find_nan(model, x)
print("1. find_nan: " .. tostring(found))
print(("   module %s, %s, its inputs were finite: %s"):format(found.module, found.op, tostring(found.inputs_finite)))

print("2. anomaly mode, for a step of a training loop:")
local ok, message = pcall(moth.autograd.detect_anomaly, function() model(x):square():mean():backward() end)
print("   " .. tostring(ok) .. ": " .. tostring(message):match("[^\n]*"))

print("3. with an epsilon in the square root the same step is clean:")
function Normalise.forward(_, v)
  local mean = v:mean(2, { keepdim = true })
  local y = (v - mean) / (((v - mean) ^ 2):mean(2, { keepdim = true }) + 1e-5):sqrt()
  return y
end
print("   find_nan: " .. tostring(moth.debug.find_nan(model, x)))
