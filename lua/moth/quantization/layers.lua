--- Layers with int8 and int4 weights: what convert, quantize_dynamic and quantize_weights put in place of float ones.
--
-- The state dict has the plain weight, its scale and zero_point, the bias, and of static layers input_scale and
-- input_zero_point. Weights are packed for the CPU's kernels when a layer is made, or loaded.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local class = require "moth.class"
local is_exported = require "moth.export.active"
local Module = require "moth.nn.module"
local signature = require "moth.utils.signature"
local state_dict = require "moth.nn.state_dict"

local M = {}

local Quantized = class("Quantized", Module)
Quantized.__quantized = true

-- The layout of the kernels; again where the weight is another one, or was written to.
local function packed(self)
  if is_exported() then return nil end -- files have no place for it
  local w, p = self.weight, rawget(self, "_packed")
  -- While a graph is recorded, nothing else may be asked of the tensor.
  if p and p.of == w and (B.compile.recording() or p.version == B.version(w)) then return p.tensor end
  if B.is_fake(w) or B.tensor_device(w).type ~= "cpu" then return nil end
  local spec = self.spec
  local dilation = spec.dilation and spec.dilation[#spec.dilation] or 1
  local apart = dilation > 1 and w:size(4) > 1
  p = { of = w, version = B.version(w), tensor = moth.pack_int8(w, spec.groups or 1, apart) }
  rawset(self, "_packed", p)
  return p.tensor
end

-- The numbers of the buffers, which ops take as numbers.
local function read_numbers(self)
  if self.input_scale then
    rawset(self, "_scale", self.input_scale:item())
    rawset(self, "_zero", self.input_zero_point:item())
  end
  if self._packs then packed(self) end
end

local function check_spec(self, spec)
  if type(spec) ~= "table" or moth.is_tensor(spec) or type(rawget(spec, "text")) ~= "string" then
    check.fail("[quantization.%s] layers of this class are made by convert, quantize_dynamic and quantize_weights",
      getmetatable(self).__name)
  end
end

local function begin(self, spec, weight, scale, bias)
  check_spec(self, spec)
  self.spec, self.training = spec, false
  self:register_buffer("weight", weight)
  self:register_buffer("scale", scale)
  if bias then self:register_buffer("bias", bias:detach():clone()) end
  state_dict.register(self, "load_state_dict_post", read_numbers)
end

--- The weight in floats.
function Quantized:dequantized()
  return moth.dequantize(self.weight, self.scale, 0, 1)
end

--- The bytes of all buffers in a file.
function Quantized:bytes()
  local n = 0
  for _, b in ipairs(self:buffers(false)) do n = n + b:numel() * b:element_size() end
  return n
end

function Quantized:extra_repr()
  local text = self.spec.text
  if self._scale then text = ("%s, scale=%.6g, zero_point=%d"):format(text, self._scale, self._zero) end
  return text .. (self.spec.relu and ", relu=True" or "")
end

local function make(name, fields)
  local cls = class(name, Quantized)
  for key, value in require("moth.each")(fields) do cls[key] = value end
  M[name] = cls
  return cls
end

local function with_zero_points(self, weight, scale)
  self:register_buffer("zero_point", moth.zeros(scale:size(1), { dtype = moth.int8 }))
  return weight
end

-- Static: the scale of the input is known.
local function static_init(self, spec, weight, scale, bias, input_scale, input_zero_point)
  begin(self, spec, weight, scale, bias)
  with_zero_points(self, weight, scale)
  self:register_buffer("input_scale", input_scale:reshape(1):to(moth.float32))
  self:register_buffer("input_zero_point", input_zero_point:reshape(1):to(moth.int64))
  read_numbers(self)
end

make("QuantizedLinear", { __init = static_init, _packs = true,
  forward = function(self, x)
    return moth.linear_int8(x, self.weight, self.scale, self.bias, self._scale, self._zero, self.spec.relu,
      packed(self))
  end })

make("QuantizedConv2d", { __init = static_init, _packs = true,
  forward = function(self, x)
    local s = self.spec
    return moth.conv2d_int8(x, self.weight, self.scale, self.bias, self._scale, self._zero, s.stride, s.padding,
      s.dilation, s.groups, s.relu, packed(self))
  end })

-- An image of one row.
make("QuantizedConv1d", { _packs = true,
  __init = function(self, spec, weight, ...)
    check_spec(self, spec)
    static_init(self, spec, weight:unsqueeze(3), ...)
  end,
  dequantized = function(self) return moth.dequantize(self.weight, self.scale, 0, 1):squeeze(3) end,
  forward = function(self, x)
    local s = self.spec
    local y = moth.conv2d_int8(x:unsqueeze(-2), self.weight, self.scale, self.bias, self._scale, self._zero,
      { 1, s.stride[1] }, { 0, s.padding[1] }, { 1, s.dilation[1] }, s.groups, s.relu, packed(self))
    return y:squeeze(-2)
  end })

make("DynamicQuantizedLinear", { _packs = true,
  __init = function(self, spec, weight, scale, bias)
    begin(self, spec, weight, scale, bias)
    with_zero_points(self, weight, scale)
    read_numbers(self)
  end,
  forward = function(self, x)
    return moth.linear_int8_dynamic(x, self.weight, self.scale, self.bias, self.spec.relu, packed(self))
  end })

make("QuantizedEmbedding", { _packs = false,
  __init = function(self, spec, weight, scale)
    begin(self, spec, weight, scale)
    with_zero_points(self, weight, scale)
  end,
  forward = function(self, index) return moth.embedding_int8(self.weight, self.scale, index) end,
  --- x (…, embedding_dim) -> (…, num_embeddings): products with the rows, as of a tied head
  as_linear = function(self, x)
    return moth.linear_int8_dynamic(x, self.weight, self.scale, nil, false, packed(self))
  end })

make("Int4Linear", { _packs = false,
  __init = function(self, spec, weight, scale, bias, group, columns)
    begin(self, spec, weight, scale, bias)
    self.group, self.columns = group, columns
  end,
  forward = function(self, x)
    if moth.is_tensor(x) and x:dim() > 0 and x:size(x:dim()) ~= self.columns then -- bytes of two tell no odd number
      check.fail("[Int4Linear] the input must have %d columns, got %s", self.columns, tostring(x:size()))
    end
    local y = moth.linear_int4(x, self.weight, self.scale, self.bias, self.group)
    return self.spec.relu and y:relu() or y
  end,
  dequantized = function(self)
    return require("moth.quantization.weights").dequantize_int4(self.weight, self.scale, self.group, self.columns)
  end,
  extra_repr = function(self) return ("%s, int4, group=%d"):format(Quantized.extra_repr(self), self.group) end })

--- Of models of PyTorch: there, they mark where tensors become int8 and floats again. Layers here take and give floats,
-- so that both give what they get.
for _, name in ipairs { "QuantStub", "DeQuantStub" } do
  M[name] = class(name, moth.nn.Identity)
  M[name].__init = signature.init(("quantization.%s()"):format(name), function() end)
end

--- Is m one of these layers?
function M.is(m) return Module.is(m) and m.__quantized == true end

return M
