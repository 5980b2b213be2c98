--- Padding as modules: nn.ZeroPad1d … 3d, ConstantPad, ReflectionPad, ReplicationPad, CircularPad.
--
-- The padding is one number for all sides, or a table { before, after, … } from the last dimension on.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local each = require "moth.each"

local M = {}

local kinds = {
  ZeroPad = "constant", ConstantPad = "constant", ReflectionPad = "reflect", ReplicationPad = "replicate",
  CircularPad = "circular",
}

for kind, mode in each(kinds) do
  for n = 1, 3 do
    local name = kind .. n .. "d"
    local Pad = class(name, Module)
    M[name] = Pad

    local more = kind == "ConstantPad" and ", number value" or ""
    Pad.__init = signature.init(("nn.%s(int|int[] padding%s)"):format(name, more), function(self, o)
      local padding = o.padding
      if type(padding) == "number" then
        local list = {}
        for i = 1, 2 * n do list[i] = padding end
        padding = list
      end
      if #padding ~= 2 * n then
        check.fail("[nn.%s] padding is a number or a list of %d, got %d", name, 2 * n, #padding)
      end
      self.padding, self.value = padding, o.value
    end)

    function Pad:forward(x) return moth.pad(x, self.padding, mode, self.value or 0) end

    function Pad:extra_repr()
      local list = "(" .. table.concat(self.padding, ", ") .. ")"
      return self.value and ("padding=%s, value=%.14g"):format(list, self.value) or list
    end
  end
end

return M
