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

function Flatten:extra_repr() return ("start_dim=%d, end_dim=%d"):format(self.start_dim, self.end_dim) end

return Flatten
