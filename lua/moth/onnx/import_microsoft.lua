--- Operators of onnxruntime's domain, com.microsoft, that its tools for quantised models write: those of the form
-- QOperator, types of 16 and 4 bits, and weights of few bits in blocks.
local B = require "moth_lua"
local moth = require "moth"
local bytes = require "moth.onnx.bytes"
local import = require "moth.onnx.import"
require "moth.onnx.import_quant" -- rules that these go on from
require "moth.onnx.import_window"
local rule = import.rule

local OWN = { domain = "com.microsoft", any = true }
local WINDOW = "auto_pad='NOTSET' kernel_shape strides pads dilations ceil_mode=0 count_include_pad=0 channels_last=0"

for name, attributes in require "moth.each" {
  QuantizeLinear = "axis=1 saturate=1 block_size=0 output_dtype=0 precision=0",
  DequantizeLinear = "axis=1 block_size=0 output_dtype=0",
} do
  rule(name, attributes, import.loaded("", name).run, OWN)
end

local function one(c, t, what)
  if t and t:numel() ~= 1 then c:fail("%s has %d elements: expected one", what, t:numel()) end
  return t and t:reshape {}
end

local function floats(c, x, scale, zero)
  x = x:to(moth.float32)
  if zero then x = x - one(c, zero, "a zero point"):to(moth.float32) end
  return x * one(c, scale, "a scale")
end

local ranges = { uint8 = { 0, 255 }, int8 = { -128, 127 } }

-- y in the type of the zero point (nil: of `like`).
local function quantised(c, y, scale, zero, like)
  local dtype = (zero or like):dtype()
  local range = ranges[dtype.name] or c:fail("results of %s", dtype.name)
  y = (y / one(c, scale, "a scale")):round()
  if zero then y = y + one(c, zero, "a zero point"):to(y:dtype()) end
  return y:clamp(range[1], range[2]):to(moth.int32):to(dtype)
end

for name, fn in require "moth.each" { QLinearAdd = moth.add, QLinearMul = moth.mul } do
  rule(name, function(c, a, sa, za, b, sb, zb, sy, zy)
    return quantised(c, fn(floats(c, a, sa, za), floats(c, b, sb, zb)), sy, zy, a)
  end, OWN)
end

-- Of one input: what the operator of floats gives.
local function of_one(name, attributes, fn)
  rule(name, attributes, function(c, x, sx, zx, sy, zy)
    if c.channels_last == 1 then c:fail("channels_last = 1") end
    return quantised(c, fn(c, floats(c, x, sx, zx)), sy, zy, x)
  end, OWN)
end
of_one("QLinearSigmoid", "", function(_, x) return x:sigmoid() end)
of_one("QLinearLeakyRelu", "alpha=0.01", function(c, x) return moth.nn.functional.leaky_relu(x, c.alpha) end)
of_one("QLinearGlobalAveragePool", "channels_last=0", import.loaded("", "GlobalAveragePool").run)
of_one("QLinearAveragePool", WINDOW, import.loaded("", "AveragePool").run)
of_one("QLinearReduceMean", "axes keepdims=1", function(c, x)
  local dims = {}
  for i, axis in ipairs(c.axes or {}) do dims[i] = c:dim(axis, x) end
  for i = 1, c.axes and 0 or x:dim() do dims[i] = i end
  return x:mean(dims, c.keepdims == 1)
end)
of_one("QLinearSoftmax", "axis=-1 opset=13", function(c, x)
  local dim = c:dim(c.axis, x)
  if c.node.attributes.opset >= 13 then return x:softmax(dim) end -- c.opset is the domain's
  local size = x:size() -- before 13, of all dimensions from the axis on
  return x:flatten(dim):softmax(-1):reshape(size)
end)

rule("QLinearConcat", "axis", function(c, sy, zy, ...)
  local list, n = {}, select("#", ...)
  for i = 1, n, 3 do
    local x, scale, zero = select(i, ...)
    list[#list + 1] = floats(c, x, scale, zero)
  end
  return quantised(c, moth.cat(list, c:dim(c.axis, list[1])), sy, zy, (...))
end, OWN)

-- y = alpha sa sb ((a - za) (b - zb) + bias), as bytes where it has a scale.
rule("QGemm", "alpha=1 transA=0 transB=0", function(c, a, sa, za, b, sb, zb, bias, sy, zy)
  if c.transA == 1 then a = a:t() end
  if c.transB == 1 then b = b:t() end
  local y = bytes.product(c, a, za, b, zb)
  if bias then y = y + bias:to(moth.float64) end
  local function wide(s) return s:numel() == 1 and s:reshape {}:to(moth.float64) or s:to(moth.float64) end
  y = y * (wide(sa) * wide(sb)) * c.alpha
  return sy and quantised(c, y, sy:to(moth.float64), zy, a) or y:to(sa:dtype())
end, OWN)

-- The values of packed bytes, the first in the lower bits: (…, n) -> (…, n * 8 / bits).
local function unpacked(b, bits)
  if bits == 8 then return b:to(moth.float32) end
  local parts, rest = {}, b:to(moth.float32)
  for i = 1, 8 / bits do
    local more = (rest / 2 ^ bits):floor()
    parts[i], rest = rest - more * 2 ^ bits, more
  end
  return moth.stack(parts, -1):flatten(-2)
end

-- The floats (N, K) of a weight in blocks (N, blocks, bytes).
local function of_blocks(c, b, scale, zero)
  local n, blocks = c.N, math.ceil(c.K / c.block_size)
  local w, middle = unpacked(b:reshape { n, blocks, -1 }, c.bits), 2 ^ (c.bits - 1)
  if zero and not zero:is_floating_point() then
    zero = unpacked(zero:reshape { n, -1 }, c.bits):narrow(2, 1, blocks)
  end
  w = (w - (zero and zero:to(moth.float32):reshape { n, blocks, 1 } or middle)) * scale:to(moth.float32)
    :reshape { n, blocks, 1 }
  return w:flatten(2):narrow(2, 1, c.K):contiguous()
end

rule("MatMulNBits", "K N bits=4 block_size accuracy_level=0", function(c, a, b, scale, zero, order, bias)
  if order then c:fail("an order of columns (g_idx)") end
  if not (c.K and c.N and c.block_size) then c:fail("it has no K, N or block_size") end
  if c.bits ~= 2 and c.bits ~= 4 and c.bits ~= 8 then c:fail("bits = %d", c.bits) end
  local static = c.run.static
  local constant = static[b] == "constant" and static[scale] == "constant"
    and (zero == nil or static[zero] == "constant")
  local w = constant and c.node.dense
  if not w then
    w = constant and import.aside(of_blocks, c, b, scale, zero) or of_blocks(c, b, scale, zero)
    if constant then c.node.dense = w end
  end
  if constant then static[w] = "constant" end
  return B.ops.linear(a, w:to(a:dtype()), bias)
end, OWN)
