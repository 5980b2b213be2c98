--- nn.Bilinear: x1^T A x2 + b over the last dimensions.
local moth = require "moth"
local class = require "moth.class"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local Parameter = require "moth.nn.parameter"
local functional = require "moth.nn.functional"
local init = require "moth.nn.init_"

local Bilinear = class("Bilinear", Module)

--- weight (out, in1, in2), bias (out)
Bilinear.__init = signature.init("nn.Bilinear(count in1_features, count in2_features, count out_features, \z
  bool bias=true, device device?, dtype dtype?)", function(self, o)
  self.in1_features, self.in2_features, self.out_features = o.in1_features, o.in2_features, o.out_features
  local like = { dtype = o.dtype, device = o.device }
  self.weight = Parameter(moth.empty({ o.out_features, o.in1_features, o.in2_features }, like))
  if o.bias then self.bias = Parameter(moth.empty({ o.out_features }, like)) end
  self:reset()
end)

--- PyTorch's default: both uniform within ±1 / sqrt(in1_features).
function Bilinear:reset()
  local bound = 1 / math.sqrt(self.in1_features)
  init.uniform_(self.weight, -bound, bound)
  if self.bias then init.uniform_(self.bias, -bound, bound) end
end

--- x1 (…, in1), x2 (…, in2) -> (…, out)
function Bilinear:forward(x1, x2) return functional.bilinear(x1, x2, self.weight, self.bias) end

function Bilinear:extra_repr()
  return ("in1_features=%d, in2_features=%d, out_features=%d, bias=%s"):format(self.in1_features, self.in2_features,
    self.out_features, self.bias and "True" or "False")
end

return Bilinear
