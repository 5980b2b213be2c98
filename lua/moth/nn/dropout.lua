--- nn.Dropout: in training zeroes each element with probability p and scales the others by 1 / (1 - p).
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local functional = require "moth.nn.functional"
local each = require "moth.each"

local Dropout = class("Dropout", Module)

--- nn.Dropout(0.2), nn.Dropout(0.2, true) or nn.Dropout{ p = 0.2 }
local function init(name)
  return signature.init(("nn.%s(number p=0.5, bool inplace=false)"):format(name), function(self, o)
    if not (o.p >= 0 and o.p <= 1) then check.fail("[nn.%s] p must be between 0 and 1, got %g", name, o.p) end
    self.p, self.inplace = o.p, o.inplace
  end)
end
Dropout.__init = init("Dropout")

--- x -> its shape
function Dropout:forward(x)
  if not self.training then return x end
  return functional.dropout(x, self.p, true, self.inplace)
end

function Dropout:extra_repr() return ("p=%.14g, inplace=%s"):format(self.p, self.inplace and "True" or "False") end

--- nn.Dropout1d, 2d, 3d: the same of whole channels of (N, C, d1, …) or (C, d1, …).
local M = { Dropout = Dropout }
for n = 1, 3 do
  local name = ("Dropout%dd"):format(n)
  M[name] = class(name, Dropout)
  M[name].__init = init(name)
  local fn = functional[("dropout%dd"):format(n)]
  M[name].forward = function(self, x)
    if not self.training then return x end
    return fn(x, self.p, true, self.inplace)
  end
end

--- nn.AlphaDropout and nn.FeatureAlphaDropout, of whole channels: dropout that keeps mean and variance of what SELU
-- gives.
for name, form in each({ AlphaDropout = "alpha_dropout", FeatureAlphaDropout = "feature_alpha_dropout" }) do
  M[name] = class(name, Dropout)
  M[name].__init = init(name)
  local fn = functional[form]
  M[name].forward = function(self, x) return fn(x, self.p, self.training, self.inplace) end
end

return M
