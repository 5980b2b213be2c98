--- nn.Linear: x W^T + b over the last dimension.
local moth = require "moth"
local class = require "moth.class"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local Parameter = require "moth.nn.parameter"
local init = require "moth.nn.init_"

local Linear = class("Linear", Module)

--- weight (out, in), bias (out)
Linear.__init = signature.init("nn.Linear(size in_features, size out_features, bool bias=true, device device?, \z
  dtype dtype?)", function(self, o)
  self.in_features, self.out_features = o.in_features, o.out_features
  local like = { dtype = o.dtype, device = o.device }
  self.weight = Parameter(moth.empty({ o.out_features, o.in_features }, like))
  if o.bias then self.bias = Parameter(moth.empty({ o.out_features }, like)) end
  self:reset()
end)

--- PyTorch's default: both uniform within ±1 / sqrt(in_features).
function Linear:reset()
  init.kaiming_uniform_(self.weight, { a = math.sqrt(5) })
  if self.bias and self.in_features > 0 then
    local bound = 1 / math.sqrt(self.in_features)
    init.uniform_(self.bias, -bound, bound)
  elseif self.bias then
    init.zeros_(self.bias)
  end
end

--- x (…, in) -> (…, out)
function Linear:forward(x) return moth.linear(x, self.weight, self.bias) end

function Linear:extra_repr()
  return ("in_features=%d, out_features=%d, bias=%s"):format(self.in_features, self.out_features,
    self.bias and "True" or "False")
end

return Linear
