--- nn.Unflatten: splits one dimension into several.
local class = require "moth.class"
local check = require "moth.utils.check"
local Module = require "moth.nn.module"

local Unflatten = class("Unflatten", Module)

--- @tparam int dim counted from 1 @tparam table sizes one may be -1
function Unflatten:__init(dim, sizes)
  if type(dim) ~= "number" or dim == 0 or dim ~= math.floor(dim) then
    check.fail("nn.Unflatten: dim is a dimension, counted from 1 (or from the end by -1); got %s", tostring(dim))
  end
  if type(sizes) ~= "table" or #sizes == 0 then check.fail("nn.Unflatten: sizes must be a list of integers") end
  self.dim, self.unflattened_size = dim, sizes
end

--- nn.Unflatten(2, {3, 4}): (B, 12) -> (B, 3, 4)
function Unflatten:forward(x) return x:unflatten(self.dim, self.unflattened_size) end

-- The listing is PyTorch's, in which dimensions count from 0.
function Unflatten:extra_repr()
  local d, sizes = self.dim, self.unflattened_size
  return ("dim=%d, unflattened_size=(%s%s)"):format(d > 0 and d - 1 or d, table.concat(sizes, ", "),
    #sizes == 1 and "," or "")
end

return Unflatten
