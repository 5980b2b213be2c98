--- Layers between prepare and convert: float weights, with observers or fake-quantisers.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local Module = require "moth.nn.module"
local observers = require "moth.quantization.observer"
local specs = require "moth.quantization.spec"
local weights = require "moth.quantization.weights"
local layers = require "moth.quantization.layers"

local M = {}

local Prepared = class("Prepared", Module)
Prepared.__prepared = true

--- Is m a layer that convert quantises?
function M.is(m) return Module.is(m) and m.__prepared == true end

local function adopt(self, layer, spec)
  self.spec = spec
  local _, computed = specs.class_of(layer)
  if computed then
    self.source = layer -- weight and bias come of its parameters
    return
  end
  self.weight = layer.weight -- the same parameters: an optimizer may have them already
  if layer.bias then self.bias = layer.bias end
end

local function floats(self)
  local from = self.source or self
  return from.weight, from.bias
end

-- Gives a layer the observers of its qconfig, or what rounds in training.
local function look(self, qconfig, rounds)
  local spec, where = self.spec, "quantization." .. (rounds and "prepare_qat" or "prepare")
  if spec.kind == "embedding" then return end
  for _, role in ipairs { "activation", "weight" } do
    local o = qconfig[role](spec.kind)
    local fake = Module.is(o) and not observers.is(o) and (o.calculate_qparams or o.bits == 4)
    if not (fake or observers.is(o)) then
      check.fail("[%s] layer '%s': the qconfig's %s gave %s, no observer", where, spec.path, role, class.name(o))
    elseif rounds and not fake then
      check.fail("[%s] layer '%s': the qconfig's %s gave a %s, which does not round: get_default_qat_qconfig gives \z
        one for training, FakeQuantize(observer) rounds", where, spec.path, role, o.__name)
    end
    local inner = fake and o.observer or o
    if role == "activation" and inner.per_channel then
      check.fail("[%s] layer '%s': activations have one scale; the qconfig's %s is for channels", where, spec.path,
        inner.__name)
    elseif role == "weight" and observers.is(inner) then
      if not inner.symmetric or inner.dtype ~= moth.int8 then
        check.fail("[%s] weights are symmetric int8; the qconfig's observer of weights is %s of %s", where,
          inner.qscheme, inner.dtype.name)
      elseif inner.per_channel and inner.ch_axis ~= 1 then
        check.fail("[%s] weights have a scale for each row: ch_axis must be 1, got %d", where, inner.ch_axis)
      end
    end
    self[role == "weight" and "weight_observer" or "input_observer"] = rounds and o or inner
  end
end

--- x (…, embedding_dim) -> (…, num_embeddings), as nn.Embedding's
function Prepared:as_linear(x) return moth.linear(x, (floats(self))) end

function Prepared:extra_repr() return self.spec.text .. (self.spec.relu and ", relu=True" or "") end

local classes = { linear = "QuantizedLinear", conv2d = "QuantizedConv2d", conv1d = "QuantizedConv1d" }

-- int8 of a weight by the observer of the qconfig.
local function int8_by(observer, w, path)
  local o = observer.observer or observer
  if w:numel() > 0 and not moth.isfinite(w):all():item() then
    check.fail("[quantization.convert] the weight of layer '%s' has elements that are inf or nan", path)
  end
  o:reset()
  o(w)
  local scale, zero = o:calculate_qparams()
  if not o.per_channel then scale, zero = scale:expand(w:size(1)):contiguous(), zero:expand(w:size(1)):contiguous() end
  return moth.quantize_per_channel(w, scale, zero, 1, moth.int8):clamp(o.quant_min, o.quant_max), scale
end

-- The int8 layer of these floats.
local function converted(self, path, w, b)
  local spec = self.spec
  w, b = w:detach():to(moth.float32), b and b:detach():to(moth.float32)
  if spec.kind == "embedding" then return layers.QuantizedEmbedding(spec, weights.int8_weight(w)) end
  if self.weight_observer.bits == 4 then
    local group = self.weight_observer.group
    local q, scale = weights.int4_weight(w, group)
    return layers.Int4Linear(spec, q, scale, b, group, w:size(2))
  end
  if not self.input_observer:seen() then
    check.fail("[quantization.convert] the observer of layer '%s' %s; qconfig = false leaves a layer as it is", path,
      self.input_observer:missing())
  end
  local q, scale = int8_by(self.weight_observer, w, path)
  local input_scale, zero = self.input_observer:calculate_qparams()
  local o = self.input_observer.observer or self.input_observer
  if o.dtype == moth.int8 then zero = zero + 128 end -- kernels take uint8: the same values
  return layers[classes[spec.kind]](spec, q, scale, b, input_scale, zero)
end

local Observed = class("ObservedLayer", Prepared)
function Observed:__init(layer, spec, qconfig)
  adopt(self, layer, spec)
  look(self, qconfig, false)
end
function Observed:forward(x)
  if self.input_observer then x = self.input_observer(x) end
  return specs.apply(self.spec, x, floats(self))
end
function Observed:convert(path) return moth.no_grad(converted, self, path, floats(self)) end
M.ObservedLayer = Observed

local Fake = class("FakeQuantizedLayer", Prepared)
--- norm: the batch norm behind the layer, whose running statistics are folded into the weight that is rounded.
function Fake:__init(layer, spec, qconfig, norm)
  adopt(self, layer, spec)
  look(self, qconfig, true)
  if norm then self.norm, self.bn_frozen = norm, false end
end

local function factor_of(norm)
  local f = (norm.running_var + norm.eps):rsqrt()
  return norm.weight and f * norm.weight or f
end

local function along(f, ndim, dim)
  local shape = {}
  for i = 1, ndim do shape[i] = 1 end
  shape[dim] = f:size(1)
  return f:view(shape)
end

function Fake:forward(x)
  local spec, norm, w, b = self.spec, self.norm, floats(self)
  if spec.kind == "embedding" then return specs.apply(spec, x, w) end
  if self.weight_observer.bits ~= 4 then x = self.input_observer(x) end
  if not norm then return specs.apply(spec, x, self.weight_observer(w), b) end
  local factor, relu = factor_of(norm), spec.relu
  w = self.weight_observer(w * along(factor, w:dim(), 1))
  spec.relu = false
  local y = specs.apply(spec, x, w)
  spec.relu = relu
  local channels = spec.kind == "linear" and y:dim() or y:dim() - (spec.kind == "conv2d" and 2 or 1)
  y = y / along(factor, y:dim(), channels)
  if b then y = y + along(b, y:dim(), channels) end
  norm.training = self.training and not self.bn_frozen
  y = norm(y)
  return relu and y:relu() or y
end

function Fake:convert(path)
  return moth.no_grad(function()
    local norm, w, b = self.norm, floats(self)
    if norm then
      local factor = factor_of(norm)
      w = w * along(factor, w:dim(), 1)
      b = (b and b - norm.running_mean or -norm.running_mean) * factor
      if norm.bias then b = b + norm.bias end
    end
    return converted(self, path, w, b)
  end)
end
M.FakeQuantizedLayer = Fake

return M
