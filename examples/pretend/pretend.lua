-- A device of one's own, from a file of C outside of moth: tensors live there, modules move there, training runs; ops
-- for which it has no kernel run on the CPU.
--
--     build/moth examples/pretend/pretend.lua
local moth = require "moth"
local nn = moth.nn

local here = arg[0]:match("^(.*)/[^/]*$") or "."
local pretend = moth.cpp_extension.load { name = "pretend", sources = { here .. "/pretend.c" } }

local x = moth.arange(6):view(2, 3):float():to("pretend")
print(x + x)
print("a transposed view, a slice, a sum: " .. tostring(x:t():contiguous():size()), x[{ 2, {} }]:sum():item())

local function train(device)
  moth.manual_seed(0)
  local model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)):to(device)
  local opt = moth.optim.Adam(model:parameters(), { lr = 0.02 })
  local input = moth.randn(32, 4):to(device)
  local target = input:pow(2):sum(2, true)
  local loss
  for _ = 1, 50 do
    opt:zero_grad()
    loss = nn.functional.mse_loss(model(input), target)
    loss:backward()
    opt:step()
  end
  return loss:item()
end
local there, on_cpu = train("pretend"), train("cpu")
print(("the loss after training: %.4f, on the CPU %.4f; kernels of the device ran %d times"):format(there, on_cpu,
  pretend.launches():item()))
assert(math.abs(there - on_cpu) < 1e-3 * on_cpu)
