--- nn.Flatten: dimensions start_dim to end_dim as one; by default all but the first, the batch.
local B = require "moth_lua"
local class = require "moth.class"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"

local Flatten = class("Flatten", Module)

--- Dimensions count from 1: nn.Flatten() is nn.Flatten(2, -1).
Flatten.__init = signature.init("nn.Flatten(Dim start_dim=2, Dim end_dim=-1)", function(self, o)
  self.start_dim, self.end_dim = o.start_dim, o.end_dim
end)

--- (B, C, H, W) -> (B, C*H*W)
function Flatten:forward(x) return B.ops.flatten(x, self.start_dim, self.end_dim) end

-- The listing is PyTorch's, in which dimensions count from 0.
function Flatten:extra_repr()
  local function from_zero(d) return d > 0 and d - 1 or d end
  return ("start_dim=%d, end_dim=%d"):format(from_zero(self.start_dim), from_zero(self.end_dim))
end

return Flatten
