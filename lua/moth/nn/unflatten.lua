--- nn.Unflatten: splits one dimension into several.
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"

local Unflatten = class("Unflatten", Module)

--- One of the sizes may be -1.
Unflatten.__init = signature.init("nn.Unflatten(Dim dim, int[] unflattened_size)", function(self, o)
  if #o.unflattened_size == 0 then check.fail("[nn.Unflatten] unflattened_size is empty") end
  self.dim, self.unflattened_size = o.dim, o.unflattened_size
end)

--- nn.Unflatten(2, {3, 4}): (B, 12) -> (B, 3, 4)
function Unflatten:forward(x)
  return check.tensor("nn.Unflatten", "input", x):unflatten(self.dim, self.unflattened_size)
end

function Unflatten:extra_repr()
  local sizes = self.unflattened_size
  return ("dim=%d, unflattened_size=(%s%s)"):format(self.dim, table.concat(sizes, ", "), #sizes == 1 and "," or "")
end

return Unflatten
