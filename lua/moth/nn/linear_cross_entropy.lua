--- nn.LinearCrossEntropyLoss: cross entropy of logits that a linear layer makes.
local B = require "moth_lua"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local functional = require "moth.nn.functional"
local Module = require "moth.nn.module"
local Linear = require "moth.nn.linear"

local Loss = class("LinearCrossEntropyLoss", Module)

--- out_features: further sizes of the targets, behind the classes. ignore_index: of classes -100 if not given.
-- linear: the layer, (num_classes out_features, in_features)
Loss.__init = signature.init("nn.LinearCrossEntropyLoss(count in_features, count num_classes, *, \z
  count[] out_features?, bool bias=false, device device?, dtype dtype?, 'mean'|'sum'|'none' reduction='mean', \z
  Tensor weight?, int ignore_index?, number label_smoothing=0)", function(self, o)
  if o.weight and (B.dim(o.weight) ~= 1 or B.numel(o.weight) ~= o.num_classes) then
    check.fail("[nn.LinearCrossEntropyLoss] weight: expected a number for each of %d classes, got %s", o.num_classes,
      B.format(o.weight))
  end
  if o.label_smoothing < 0 or o.label_smoothing > 1 then
    check.fail("[nn.LinearCrossEntropyLoss] label_smoothing must be between 0 and 1, got %g", o.label_smoothing)
  end
  self.num_classes, self.out_features = o.num_classes, o.out_features or {}
  self.reduction, self.ignore_index, self.label_smoothing = o.reduction, o.ignore_index, o.label_smoothing
  if o.weight then self:register_buffer("weight", o.weight) end
  local n = o.num_classes
  for _, size in ipairs(self.out_features) do n = n * size end
  self.linear = Linear(o.in_features, n, { bias = o.bias, device = o.device, dtype = o.dtype })
end)

--- input (in_features) or (N, in_features); target: positions (), (N) or (N, out_features), or probabilities (C) or
-- (N, C, out_features)
function Loss:forward(input, target)
  local shape = { self.num_classes, unpack(self.out_features) }
  local bias = self.linear.bias and self.linear.bias:reshape(shape)
  shape[#shape + 1] = self.linear.in_features
  return functional.linear_cross_entropy(input, self.linear.weight:reshape(shape), target, { linear_bias = bias,
    weight = self.weight, reduction = self.reduction, ignore_index = self.ignore_index,
    label_smoothing = self.label_smoothing })
end

function Loss:extra_repr()
  local sizes = table.concat(self.out_features, ", ") .. (#self.out_features == 1 and "," or "")
  return ("in_features=%d, num_classes=%d, out_features=(%s), bias=%s, reduction=%s, ignore_index=%s, \z
    label_smoothing=%s, options=None"):format(self.linear.in_features, self.num_classes, sizes,
    self.linear.bias and "True" or "False", self.reduction, tostring(self.ignore_index or "None"),
    self.label_smoothing == math.floor(self.label_smoothing) and ("%.1f"):format(self.label_smoothing)
    or ("%.14g"):format(self.label_smoothing))
end

return Loss
