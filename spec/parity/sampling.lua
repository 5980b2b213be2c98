-- interpolate, grid_sample and affine_grid against PyTorch, values and gradients: sampling.py writes the cases.
-- Usage: python3 spec/parity/sampling.py FILE; luajit spec/parity/sampling.lua FILE
local moth = require "moth"
moth.set_default_dtype(moth.float64)

local file = assert(io.open(arg[1]))
local cases = require("cjson").decode(file:read("*a"))
file:close()

local function T(t) return moth.tensor(t.data):reshape(t.shape) end
local failed = 0
local function same(call, what, got, want)
  if tostring(got:size()) == tostring(want:size()) and got:allclose(want, 1e-8, 1e-8) then return end
  failed = failed + 1
  print(("%s: %s differs: %s, %s"):format(call, what, tostring(got:size()), tostring(want:size())))
end

for _, case in ipairs(cases) do
  local inputs = {}
  for i, t in ipairs(case.inputs) do inputs[i] = T(t):requires_grad_(true) end
  local run = assert(loadstring("local F, a, b = ... return " .. case.call))
  local y = run(moth.nn.functional, inputs[1], inputs[2])
  same(case.call, "the result", y:detach(), T(case.y))
  local total = (y * moth.arange(1, y:numel() + 1):to(moth.float64):view(y:size())):sum()
  if total:requires_grad() then total:backward() end
  for i, g in ipairs(case.grads) do
    same(case.call, "gradient " .. i, inputs[i].grad or moth.zeros(inputs[i]:size()), T(g))
  end
end
print(("sampling: %d cases against PyTorch, %d differ"):format(#cases, failed))
os.exit(failed == 0 and 0 or 1, true)
