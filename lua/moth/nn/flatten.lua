--- nn.Flatten: dimensions start_dim to end_dim as one; by default all but the first, the batch.
local class = require "moth.class"
local check = require "moth.utils.check"
local Module = require "moth.nn.module"

local Flatten = class("Flatten", Module)

--- Dimensions count from 1: nn.Flatten() is nn.Flatten(2, -1).
function Flatten:__init(start_dim, end_dim)
  self.start_dim, self.end_dim = start_dim or 2, end_dim or -1
  for _, name in ipairs({ "start_dim", "end_dim" }) do
    local d = self[name]
    if type(d) ~= "number" or d == 0 or d ~= math.floor(d) then
      check.fail("nn.Flatten: %s is a dimension, counted from 1 (or from the end by -1); got %s", name, tostring(d))
    end
  end
end

--- (B, C, H, W) -> (B, C*H*W)
function Flatten:forward(x) return x:flatten(self.start_dim, self.end_dim) end

-- The listing is PyTorch's, in which dimensions count from 0.
function Flatten:extra_repr()
  local function from_zero(d) return d > 0 and d - 1 or d end
  return ("start_dim=%d, end_dim=%d"):format(from_zero(self.start_dim), from_zero(self.end_dim))
end

return Flatten
