--- Products of bytes in ONNX models by the int8 kernels (linear_int8, conv2d_int8), whose sums are exact: of the
-- integer operators, and of floats that DequantizeLinear has just made of bytes. What the kernels have no form for is
-- computed in float64, where sums are exact, too.
local B = require "moth_lua"
local moth = require "moth"
local import = require "moth.onnx.import"

local M = {}

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

-- Packed once, but in no program that is recorded: that has its own way.
local function packed_of(c, own, ...)
  if c.node.int8 == own and not own.packed and not B.compile.recording() and own.w:device().type == "cpu" then
    own.packed = moth.pack_int8(own.w, ...)
  end
  return not B.compile.recording() and own.packed or nil
end

--- The sums of (a - za) * (b - zb), in float64: a by the int8 kernel, less what the zero points are of them.
function M.product(c, a, za, b, zb)
  local k = b:size(1)
  local plain = is_byte(a) and is_byte(b) and b:dim() == 2 and a:dim() >= 2 and k > 0 and k <= 65536 and a:numel() > 0
    and b:numel() > 0 and (not za or za:numel() == 1) and (not zb or zb:numel() == 1 or zb:dim() == 1)
  if not plain then return centred(a, za, a:dim() - 1):matmul(centred(b, zb, b:dim())) end
  local own = weight_of(c, b, zb, function(w, z)
    w = w:t():contiguous()
    return { w = w, zero = z and z:reshape { -1 }, sums = w:to(moth.float64):sum(2),
      ones = moth.ones({ w:size(1) }, { dtype = moth.float64, device = w:device() }) }
  end)
  local x, zero = as_uint8(a, za)
  local y = moth.linear_int8(x, own.w, own.ones, nil, 1, 0, false, packed_of(c, own))
  if zero and B.is_tensor(zero) then zero = zero:reshape {} end
  if zero then y = y - own.sums * zero end
  if own.zero then
    local rows = x:to(moth.float64):sum(-1, true)
    y = y - (zero and rows - zero * k or rows) * own.zero
  end
  return y
end

--- The same of a convolution of images; weights without zero points, the input's is a known number.
function M.convolution(c, x, zx, w, zw, bias)
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

-- ---- pairs of QuantizeLinear and DequantizeLinear --------------------------------------------------------

local sources = setmetatable({}, { __mode = "k" })

--- y is (x - zero) * scale, with an element of scale for each place of dimension `dim`; nil: one for all.
function M.note(y, x, scale, zero, dim)
  if is_byte(x) and y:dtype() == moth.float32 and scale:dtype() == moth.float32 then
    sources[y] = { x = x, scale = scale, zero = zero, dim = dim }
  end
end

-- The bytes behind activations with their scale and zero point as numbers, and behind a constant weight whose scales
-- belong to dimension `dim`; nil: they are others.
local function pair(c, x, w, dim)
  local a, b = sources[x], sources[w]
  if not a or not b or a.dim or b.dim and b.dim ~= dim or x:numel() == 0 or w:numel() == 0 then return nil end
  if not c:known(a.scale) or a.zero and not c:known(a.zero) then return nil end
  if c.run.static[b.x] ~= "constant" or b.scale:dim() > 1 then return nil end
  local scale, zero = c:number(a.scale), c:number(a.zero, 0)
  if not (scale > 0 and scale < math.huge) then return nil end
  return a, b, scale, a.x:dtype() == moth.int8 and zero + 128 or zero
end

local function scales(b, n)
  return b.scale:numel() == 1 and b.scale:reshape { 1 }:expand { n }:contiguous() or b.scale
end

local function is_bias(bias, n) return not bias or bias:dim() == 1 and bias:size(1) == n end

--- x (…, K) by w (K, N), or (N, K) if transposed, + bias; nil: they are not made of bytes.
function M.linear(c, x, w, bias, transposed)
  if w:dim() ~= 2 or x:dim() < 2 then return nil end
  local a, b, scale, zero = pair(c, x, w, transposed and 1 or 2)
  local n = w:size(transposed and 1 or 2)
  if not a or not is_bias(bias, n) or w:numel() / n > 65536 then return nil end
  local own = weight_of(c, b.x, b.zero, function(v, z)
    return { w = transposed and v or v:t():contiguous(), zero = z, scale = scales(b, n) }
  end)
  if own.zero then return nil end
  return moth.linear_int8(as_uint8(a.x), own.w, own.scale, bias, scale, zero, false, packed_of(c, own))
end

--- A convolution of images; nil: it is not of bytes.
function M.windows(c, x, w, bias)
  if x:dim() ~= 4 or w:dim() ~= 4 then return nil end
  local a, b, scale, zero = pair(c, x, w, 1)
  local n = w:size(1)
  if not a or not is_bias(bias, n) or w:numel() / n > 65536 then return nil end
  local own = weight_of(c, b.x, b.zero, function(v, z) return { w = v, zero = z, scale = scales(b, n) } end)
  if own.zero then return nil end
  return c:convolution(as_uint8(a.x), own.w, bias, function(image, weight, add, strides, padding, dilations, groups)
    local packed = packed_of(c, own, groups, dilations[2] > 1 and weight:size(4) > 1)
    return moth.conv2d_int8(image, weight, own.scale, add, scale, zero, strides, padding, dilations, groups, false,
      packed)
  end, zero)
end

return M
