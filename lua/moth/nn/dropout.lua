--- nn.Dropout: in training zeroes each element with probability p and scales the others by 1 / (1 - p).
local class = require "moth.class"
local check = require "moth.utils.check"
local Module = require "moth.nn.module"
local functional = require "moth.nn.functional"

local Dropout = class("Dropout", Module)

--- nn.Dropout(0.2), nn.Dropout(0.2, { inplace = true }) or nn.Dropout{ p = 0.2 }; p is 0.5 by default.
function Dropout:__init(p, o)
  if type(p) == "table" then p, o = p.p, p end
  o = check.options("nn.Dropout", o, "p inplace")
  self.p = check.number("nn.Dropout", "p", p == nil and 0.5 or p)
  if self.p < 0 or self.p > 1 then check.fail("nn.Dropout: p must be between 0 and 1, got %g", self.p) end
  self.inplace = o.inplace == true
end

--- x -> its shape
function Dropout:forward(x)
  if not self.training then return x end
  return functional.dropout(x, { p = self.p, training = true, inplace = self.inplace })
end

function Dropout:extra_repr() return ("p=%.14g, inplace=%s"):format(self.p, self.inplace and "True" or "False") end

--- nn.Dropout1d, 2d, 3d: the same of whole channels of (N, C, d1, …) or (C, d1, …).
local M = { Dropout = Dropout }
for n = 1, 3 do
  local name = ("Dropout%dd"):format(n)
  M[name] = class(name, Dropout)
  local fn = functional[("dropout%dd"):format(n)]
  M[name].forward = function(self, x)
    if not self.training then return x end
    return fn(x, { p = self.p, inplace = self.inplace })
  end
end

return M
