--- Activations of language models, by the names that config.json of Hugging Face has for them.
local moth = require "moth"
local nn = require "moth.nn"
local check = require "moth.utils.check"
local each = require "moth.each"

local F = nn.functional

local M = {}

M.known = {
  silu = F.silu, relu = F.relu, relu6 = F.relu6, tanh = moth.tanh, sigmoid = moth.sigmoid, mish = F.mish,
  gelu = function(x) return F.gelu(x) end, gelu_tanh = function(x) return F.gelu(x, "tanh") end,
  gelu_10 = function(x) return F.gelu(x):clamp(-10, 10) end,
  quick_gelu = function(x) return x * (x * 1.702):sigmoid() end,
  relu2 = function(x) return F.relu(x):square() end,
  leaky_relu = function(x) return F.leaky_relu(x, 0.01) end, linear = function(x) return x end,
  laplace = function(x) return (1 + ((x - 0.707107) / (0.282095 * math.sqrt(2))):erf()) * 0.5 end,
}

-- Other names of them.
local same = { swish = "silu", gelu_python = "gelu", gelu_pytorch_tanh = "gelu_tanh", gelu_new = "gelu_tanh",
  gelu_fast = "gelu_tanh", gelu_accurate = "gelu_tanh", gelu_python_tanh = "gelu_tanh" }
for name, other in each(same) do M.known[name] = M.known[other] end

--- The names, as an error lists them.
function M.names()
  local names = {}
  for name in each(M.known) do names[#names + 1] = name end
  table.sort(names)
  return table.concat(names, ", ", 1, #names - 1) .. " and " .. names[#names]
end

--- The name itself, of several for one function always the same; an error names the others. where: who asks, field:
-- what the name is called there.
function M.of(name, where, field)
  if not M.known[name] then
    check.fail("[%s] %s = %s is not supported; there are %s", where, field or "hidden_act", tostring(name), M.names())
  end
  return same[name] or name
end

return M
