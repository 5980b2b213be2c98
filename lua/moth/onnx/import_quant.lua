--- ONNX's operators of quantized models.
local B = require "moth_lua"
local moth = require "moth"
local import = require "moth.onnx.import"
local small = require "moth.onnx.small"
local bytes = require "moth.onnx.bytes"
local rule = import.rule

local OWN = { any = true }

local ranges = { uint8 = { 0, 255 }, int8 = { -128, 127 }, uint16 = { 0, 65535 }, int16 = { -32768, 32767 },
  int32 = { -2 ^ 31, 2 ^ 31 - 1 }, uint4 = { 0, 15 }, int4 = { -8, 7 }, uint2 = { 0, 3 }, int2 = { -2, 1 } }

local function kind_of(t) return small.tag[t] or t:dtype().name end

-- A scale or zero point as it is broadcast over x: of one element, along an axis, or one for each block of it.
local function spread(c, v, x)
  if v:numel() == 1 then return v:reshape {} end
  local dim = c:dim(c.axis, x)
  if c.block_size == 0 then
    local shape = {}
    for i = 1, x:dim() do shape[i] = i == dim and v:numel() or 1 end
    return v:reshape(shape)
  end
  v = v:repeat_interleave(c.block_size, dim)
  return v:size(dim) > x:size(dim) and v:narrow(dim, 1, x:size(dim)) or v
end

rule("QuantizeLinear", "axis=1 saturate=1 block_size=0 output_dtype=0 precision=0", function(c, x, scale, zero)
  local kind = zero and kind_of(zero) or c.output_dtype ~= 0 and c:element(c.output_dtype) or "uint8"
  local wide = c.precision ~= 0 and B.dtype(c:element(c.precision)) or x:is_floating_point() and x:dtype()
    or scale:dtype()
  local v = x:to(wide) / spread(c, scale, x):to(wide)
  local range = ranges[kind]
  if not range then
    local k = small.kinds[kind] or c:fail("the type %s", kind)
    local out = small.round(k, v, c.saturate ~= 0)
    small.tag[out] = kind
    return out
  end
  local byte = range[2] - range[1] <= 255 -- what is cut to that is exact in float32
  local exact = byte and v:dtype() == moth.float32 and moth.float32 or moth.float64
  v = v:to(exact):round()
  if zero then v = v + spread(c, zero, x):to(exact) end
  local k = small.kinds[kind]
  local out = v:clamp(range[1], range[2]):to(byte and moth.int32 or moth.int64):to(B.dtype(k and k.dtype or kind))
  if k then small.tag[out] = kind end
  return out
end, OWN)

rule("DequantizeLinear", "axis=1 block_size=0 output_dtype=0", function(c, x, scale, zero)
  local dtype = c.output_dtype ~= 0 and B.dtype(c:element(c.output_dtype)) or scale:dtype()
  local v = x:to(moth.float32)
  if zero and not (small.kinds[kind_of(x)] or {}).e then v = v - spread(c, zero, x):to(moth.float32) end
  local y = (v * spread(c, scale, x):to(moth.float32)):to(dtype)
  if c.block_size == 0 then bytes.note(y, x, scale, zero, scale:numel() > 1 and c:dim(c.axis, x) or nil) end
  return y
end, OWN)

rule("DynamicQuantizeLinear", function(_, x)
  local low, high = x:amin():clamp { max = 0 }, x:amax():clamp { min = 0 }
  local width = high - low
  local scale = moth.where(width:eq(0), moth.ones_like(width), width) / 255
  local zero = (-low / scale):clamp(0, 255):round()
  local y = ((x / scale):round() + zero):clamp(0, 255)
  return y:to(moth.int32):to(moth.uint8), scale, zero:to(moth.int32):to(moth.uint8)
end, OWN)

-- ---- products ------------------------------------------------------------------------------------

rule("MatMulInteger", function(c, a, b, za, zb) return bytes.product(c, a, za, b, zb):to(moth.int32) end, OWN)

local function rescaled(y, scale, zero, kind)
  y = y * scale
  if zero then y = y + zero:to(moth.float64) end
  local range = ranges[kind]
  return y:round():clamp(range[1], range[2]):to(moth.int64):to(B.dtype(kind))
end

-- A scale with an element for each row or column, so that it multiplies the result.
local function factor(scale, n, along)
  scale = scale:to(moth.float64)
  if scale:numel() == 1 then return scale:reshape {} end
  if scale:dim() > 1 then return scale end
  local shape = {}
  for i = 1, n do shape[i] = i == along and scale:numel() or 1 end
  return scale:reshape(shape)
end

rule("QLinearMatMul", function(c, a, sa, za, b, sb, zb, sy, zy)
  local y = bytes.product(c, a, za, b, zb)
  local n = y:dim()
  return rescaled(y, factor(sa, n, n - 1) * factor(sb, n, n) / factor(sy, n, n - 1), zy,
    zy and zy:dtype().name or a:dtype().name)
end, OWN)

local CONV = "auto_pad='NOTSET' kernel_shape strides pads dilations group=1"

rule("ConvInteger", CONV, function(c, x, w, zx, zw)
  return bytes.convolution(c, x, zx, w, zw):to(moth.int32)
end, OWN)

rule("QLinearConv", CONV, function(c, x, sx, zx, w, sw, zw, sy, zy, bias)
  local y = bytes.convolution(c, x, zx, w, zw, bias)
  return rescaled(y, factor(sx, y:dim()) * factor(sw, y:dim(), 2) / factor(sy, y:dim()), zy,
    zy and zy:dtype().name or x:dtype().name)
end, OWN)
