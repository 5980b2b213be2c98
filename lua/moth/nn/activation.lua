--- Activations as modules, made from one table: nn.ReLU(), nn.ReLU(true), nn.GELU("tanh"), nn.LeakyReLU(0.2), …
--
-- The table is that of moth.nn.functional_activation.
local B = require "moth_lua"
local class = require "moth.class"
local Module = require "moth.nn.module"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local ops = B.ops

-- A number, dimension or word as PyTorch's repr shows it.
local function show(p, value)
  if type(value) == "string" then return ("%s='%s'"):format(p.name, value) end
  if p.type == "Dim" then return ("%s=%d"):format(p.name, value > 0 and value - 1 or value) end
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
return M
