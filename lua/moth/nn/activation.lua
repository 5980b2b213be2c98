--- Activations as modules, made from one table: nn.ReLU(), nn.ReLU(true), nn.GELU("tanh"), nn.LeakyReLU(0.2), …
--
-- The table is that of moth.nn.functional_activation.
local B = require "moth_lua"
local class = require "moth.class"
local check = require "moth.utils.check"
local Module = require "moth.nn.module"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local ops = B.ops

-- A number, dimension or word as PyTorch's repr shows it.
local function show(p, value)
  if p.name == "lambd" then return ("%.14g"):format(value) end
  if type(value) == "string" then return ("%s='%s'"):format(p.name, value) end
  if p.type == "Dim" then return ("%s=%d"):format(p.name, value) end
  return value == math.floor(value) and ("%s=%.1f"):format(p.name, value) or ("%s=%.14g"):format(p.name, value)
end

local M = {}

local function make(row)
  local name, op, parameters = row[1], row[2], row[3]
  local cls = class(name, Module)
  cls.doc = row.doc
  local fn = ops[op] or function(...) return require("moth.nn.functional")[op](...) end
  local text = ("nn.%s(%s)"):format(name, parameters)
  local _, list = signature.parameters(text)
  if row.inplace then list[#list] = nil end
  local first, second = list[1] and list[1].name, list[2] and list[2].name

  cls.__init = signature.init(text, function(self, o)
    for key, value in each(o) do self[key] = value end
  end)

  if name == "GELU" then
    function cls:forward(x) return self.approximate == "tanh" and ops.gelu_tanh(x) or ops.gelu(x) end
  else
    function cls:forward(x)
      local run = self.inplace and row.inplace or fn
      if second then return run(x, self[first], self[second]) end
      if first then return run(x, self[first]) end
      return run(x)
    end
  end

  function cls:extra_repr()
    local parts = {}
    for i, p in ipairs(list) do parts[i] = show(p, self[p.name]) end
    if self.inplace then parts[#parts + 1] = "inplace=True" end
    return table.concat(parts, ", ")
  end

  return cls
end

for _, row in ipairs(require("moth.nn.functional_activation").rows) do M[row[1]] = make(row) end

--- nn.RReLU(lower, upper): leaky_relu with a random slope for each element while training, else with the mean slope.
M.RReLU = class("RReLU", Module)
M.RReLU.__init = signature.init("nn.RReLU(number lower=0.125, number upper=0.3333333333333333, bool inplace=false)",
  function(self, o)
    if o.lower > o.upper then
      check.fail("[nn.RReLU] lower must not be above upper, got %g and %g", o.lower, o.upper)
    end
    self.lower, self.upper, self.inplace = o.lower, o.upper, o.inplace
  end)
function M.RReLU:forward(x)
  return require("moth.nn.functional").rrelu(x, self.lower, self.upper, self.training, self.inplace)
end
function M.RReLU:extra_repr()
  return ("lower=%.16g, upper=%.16g%s"):format(self.lower, self.upper, self.inplace and ", inplace=True" or "")
end

--- nn.Softmax2d(): softmax over the channels of (N, C, H, W) or (C, H, W), at each place.
M.Softmax2d = class("Softmax2d", Module)
M.Softmax2d.__init = signature.init("nn.Softmax2d()", function() end)
function M.Softmax2d:forward(x) -- luacheck: ignore self
  local n = B.dim(check.tensor("nn.Softmax2d", "input", x))
  if n ~= 3 and n ~= 4 then check.fail("nn.Softmax2d: expected an input of 3 or 4 dimensions, got %d", n) end
  return ops.softmax(x, -3)
end

return M
