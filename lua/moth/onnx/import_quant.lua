--- ONNX's operators of quantized models. Products of bytes go through the int8 kernels (linear_int8, conv2d_int8), whose
-- sums are exact; those that they have no form for are computed in float64, where they are exact, too.
local B = require "moth_lua"
local moth = require "moth"
local import = require "moth.onnx.import"
local small = require "moth.onnx.small"
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
  return (v * spread(c, scale, x):to(moth.float32)):to(dtype)
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

-- x - zero in float64; along: the dimension in which zero has an element each.
local function centred(x, zero, along)
  x = x:to(moth.float64)
  if not zero then return x end
  zero = zero:to(moth.float64)
  if zero:dim() == 1 and zero:numel() > 1 then
    local shape = {}
    for i = 1, x:dim() do shape[i] = i == along and zero:numel() or 1 end
    zero = zero:reshape(shape)
  elseif zero:numel() == 1 then
    zero = zero:reshape {}
  end
  return x - zero
end

-- What int8 kernels take of a weight: w as int8, its zero point for that (nil: 0), and what else `make` gives; of a
-- constant once for all runs.
local function weight_of(c, b, zero, make)
  local static = c.run.static
  local constant = static[b] == "constant" and (zero == nil or static[zero] == "constant")
  local own = constant and c.node.int8
  if not own or own.of ~= b then
    local function parts()
      local w, z = b, zero and zero:to(moth.float64)
      if b:dtype() == moth.uint8 then
        w = (b:to(moth.int32) - 128):to(moth.int8)
        z = z and z - 128 or moth.full({}, -128, { dtype = moth.float64 })
      end
      if z and c:known(zero or b) and import.aside(function() return z:eq(0):all():item() end) then z = nil end
      return make(w, z)
    end
    own = constant and import.aside(parts) or parts()
    own.of = b
    if constant then c.node.int8 = own end
  end
  if constant then
    for _, t in require("moth.each")(own) do
      if B.is_tensor(t) then static[t] = "constant" end
    end
  end
  return own
end

local function is_byte(x) return x:dtype() == moth.uint8 or x:dtype() == moth.int8 end

-- x and its zero point (float64, nil: 0) as uint8.
local function as_uint8(x, zero)
  zero = zero and zero:to(moth.float64)
  if x:dtype() == moth.uint8 then return x, zero end
  return (x:to(moth.int32) + 128):to(moth.uint8), zero and zero + 128 or 128
end

-- The sums of (a - za) * (b - zb), in float64: a by the int8 kernel, less what the zero points are of them.
local function product(c, a, za, b, zb)
  local k = b:size(1)
  local plain = is_byte(a) and is_byte(b) and b:dim() == 2 and a:dim() >= 2 and k > 0 and k <= 65536 and a:numel() > 0
    and b:numel() > 0 and (not za or za:numel() == 1) and (not zb or zb:numel() == 1 or zb:dim() == 1)
  if not plain then return centred(a, za, a:dim() - 1):matmul(centred(b, zb, b:dim())) end
  local own = weight_of(c, b, zb, function(w, z)
    w = w:t():contiguous()
    return { w = w, zero = z and z:reshape { -1 }, sums = w:to(moth.float64):sum(2),
      ones = moth.ones({ w:size(1) }, { dtype = moth.float64, device = w:device() }) }
  end)
  if c.node.int8 == own and not own.packed and not B.compile.recording() and own.w:device().type == "cpu" then
    own.packed = moth.pack_int8(own.w)
  end
  local x, zero = as_uint8(a, za)
  local packed = not B.compile.recording() and own.packed or nil
  local y = moth.linear_int8(x, own.w, own.ones, nil, 1, 0, false, packed)
  if zero and B.is_tensor(zero) then zero = zero:reshape {} end
  if zero then y = y - own.sums * zero end
  if own.zero then
    local rows = x:to(moth.float64):sum(-1, true)
    y = y - (zero and rows - zero * k or rows) * own.zero
  end
  return y
end

-- The same of a convolution of images; weights without zero points, the input's is a known number.
local function convolved(c, x, zx, w, zw, bias)
  bias = bias and bias:to(moth.float64)
  if x:dim() == 4 and is_byte(x) and is_byte(w) and x:numel() > 0 and w:numel() > 0 and (not zx or zx:numel() == 1)
      and (not zx or c:known(zx)) and w:numel() / w:size(1) <= 65536 then
    local own = weight_of(c, w, zw, function(v, z)
      return { w = v, zero = z, ones = moth.ones({ v:size(1) }, { dtype = moth.float64, device = v:device() }) }
    end)
    if not own.zero then
      local number = c:number(zx, 0) + (x:dtype() == moth.int8 and 128 or 0)
      return c:convolution(as_uint8(x), own.w, bias, function(image, weight, b, strides, padding, dilations, groups)
        return moth.conv2d_int8(image, weight, own.ones, b, 1, number, strides, padding, dilations, groups)
      end, number)
    end
  end
  return c:convolution(centred(x, zx), centred(w, zw, 1), bias)
end

rule("MatMulInteger", function(c, a, b, za, zb) return product(c, a, za, b, zb):to(moth.int32) end, OWN)

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
  local y = product(c, a, za, b, zb)
  local n = y:dim()
  return rescaled(y, factor(sa, n, n - 1) * factor(sb, n, n) / factor(sy, n, n - 1), zy,
    zy and zy:dtype().name or a:dtype().name)
end, OWN)

local CONV = "auto_pad='NOTSET' kernel_shape strides pads dilations group=1"

rule("ConvInteger", CONV, function(c, x, w, zx, zw)
  return convolved(c, x, zx, w, zw):to(moth.int32)
end, OWN)

rule("QLinearConv", CONV, function(c, x, sx, zx, w, sw, zw, sy, zy, bias)
  local y = convolved(c, x, zx, w, zw, bias)
  return rescaled(y, factor(sx, y:dim()) * factor(sw, y:dim(), 2) / factor(sy, y:dim()), zy,
    zy and zy:dtype().name or x:dtype().name)
end, OWN)
