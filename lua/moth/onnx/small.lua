--- ONNX's types below moth's: floats of 8 and 4 bits, whose values are held in float32, and integers of 4 and 2 bits,
-- held in int8 and uint8.
local ffi = require "ffi"
local B = require "moth_lua"

local M = {}

--- The kinds of tensors that hold such values, by tensor.
M.tag = setmetatable({}, { __mode = "k" })

-- bits; of floats those of the exponent and the mantissa, the exponent's bias, whether there are infinities, and the
-- largest value.
M.kinds = {
  float8e4m3fn = { code = 17, bits = 8, dtype = "float32", e = 4, m = 3, bias = 7, most = 448 },
  float8e4m3fnuz = { code = 18, bits = 8, dtype = "float32", e = 4, m = 3, bias = 8, most = 240, uz = true },
  float8e5m2 = { code = 19, bits = 8, dtype = "float32", e = 5, m = 2, bias = 15, most = 57344, inf = true },
  float8e5m2fnuz = { code = 20, bits = 8, dtype = "float32", e = 5, m = 2, bias = 16, most = 57344, uz = true },
  uint4 = { code = 21, bits = 4, dtype = "uint8" },
  int4 = { code = 22, bits = 4, dtype = "int8" },
  float4e2m1 = { code = 23, bits = 4, dtype = "float32", e = 2, m = 1, bias = 1, most = 6, finite = true },
  float8e8m0 = { code = 24, bits = 8, dtype = "float32", e = 8, m = 0, bias = 127, most = 2 ^ 127 },
  uint2 = { code = 25, bits = 2, dtype = "uint8" },
  int2 = { code = 26, bits = 2, dtype = "int8" },
}
for name, kind in require("moth.each")(M.kinds) do kind.name = name end

-- The value of a code.
local function float_of(k, v)
  if k.e == 8 then return v == 255 and 0 / 0 or 2 ^ (v - 127) end
  local sign = v >= 2 ^ (k.e + k.m) and -1 or 1
  local rest = v % 2 ^ (k.e + k.m)
  local exponent, mantissa = math.floor(rest / 2 ^ k.m), rest % 2 ^ k.m
  if k.uz then
    if v == 128 then return 0 / 0 end
  elseif k.inf then
    if exponent == 31 then return mantissa == 0 and sign * math.huge or 0 / 0 end
  elseif not k.finite and rest == 127 then
    return 0 / 0
  end
  if exponent == 0 then return sign * mantissa * 2 ^ (1 - k.bias - k.m) end
  return sign * (1 + mantissa / 2 ^ k.m) * 2 ^ (exponent - k.bias)
end

local function value_of(k, v)
  if k.e then return float_of(k, v) end
  if k.dtype == "int8" and v >= 2 ^ (k.bits - 1) then return v - 2 ^ k.bits end
  return v
end

--- Writes the n values of packed bytes to memory of the type that holds them.
function M.unpack(kind, bytes, n, out)
  local values, per = {}, 8 / kind.bits
  for v = 0, 2 ^ kind.bits - 1 do values[v] = value_of(kind, v) end
  local size = 2 ^ kind.bits
  for i = 0, n - 1 do
    local byte = bytes[math.floor(i / per)]
    out[i] = values[math.floor(byte / size ^ (i % per)) % size]
  end
end

--- Bytes of elements, as they are in files: the inverse of unpack, of a contiguous tensor in host memory.
function M.pack(kind, t)
  local n, per = t:numel(), 8 / kind.bits
  local out = ffi.new("uint8_t[?]", math.max(math.ceil(n / per), 1))
  local codes = {}
  for v = 2 ^ kind.bits - 1, 0, -1 do codes[value_of(kind, v)] = v end
  local nan = kind.uz and 128 or kind.e == 8 and 255 or 127
  local list = t:reshape({ -1 }):totable()
  for i = 0, n - 1 do
    local v = list[i + 1]
    local code = v ~= v and nan or codes[v]
    if v == 0 and 1 / v < 0 and not kind.uz then code = 2 ^ (kind.bits - 1) end
    out[math.floor(i / per)] = out[math.floor(i / per)] + code * 2 ^ (kind.bits * (i % per))
  end
  return out, math.ceil(n / per)
end

--- Rounds a tensor to the values of a kind, to even. saturate: what is too large becomes the largest value, else
-- infinity or NaN.
function M.round(kind, x, saturate, how)
  if not kind.e then -- integers keep their lowest bits
    local v = x:is_floating_point() and x:trunc() or x
    v = v:to(B.dtype "int64"):remainder(2 ^ kind.bits)
    if kind.dtype == "int8" then v = v - v:ge(2 ^ (kind.bits - 1)):to(B.dtype "int64") * 2 ^ kind.bits end
    return v:to(B.dtype(kind.dtype))
  end
  local wide = x:to(B.dtype "float64")
  local size = wide:abs()
  -- The exponent, exactly: log2 may be off by one at powers of two.
  local positive = size:gt(0):logical_and(size:lt(math.huge))
  local safe = B.ops.where(positive, size, 1)
  local exponent = safe:log2():floor()
  exponent = exponent + B.ops.exp2(exponent + 1):le(safe):to(B.dtype "float64")
  exponent = exponent - B.ops.exp2(exponent):gt(safe):to(B.dtype "float64")
  if kind.e == 8 then -- powers of two
    local low = B.ops.exp2(exponent)
    local up = safe:gt(low)
    if how == "down" then up = up:logical_and(safe:lt(0))
    elseif how == "nearest" then up = up:logical_and(safe:ge(low * 1.5))
    end
    exponent = (exponent + up:to(B.dtype "float64")):clamp(-127, saturate and 127 or 128)
    local out = B.ops.where(exponent:gt(127), 0 / 0, B.ops.exp2(exponent))
    out = B.ops.where(positive, out, B.ops.where(size:eq(0), 2 ^ -127, saturate and 2 ^ 127 or 0 / 0))
    return B.ops.where(wide:isnan(), 0 / 0, out):to(B.dtype "float32")
  end
  local step = B.ops.exp2(exponent:clamp { min = 1 - kind.bias } - kind.m)
  local out = (safe / step):round() * step
  local over = out:gt(kind.most)
  local beyond = (kind.finite or saturate) and kind.most or kind.inf and math.huge or 0 / 0
  out = B.ops.where(over, beyond, out)
  out = B.ops.where(positive, out, B.ops.where(size:eq(0), 0.0, beyond))
  out = B.ops.where(wide:isnan(), kind.finite and 0.0 or 0 / 0, out)
  local negative = wide:signbit()
  if kind.finite then negative = negative:logical_xor(wide:isnan()) end -- a NaN is 0, of the other sign
  if kind.uz then negative = negative:logical_and(out:ne(0)) end
  return B.ops.where(negative:logical_and(out:isnan():logical_not()), -out, out):to(B.dtype "float32")
end

return M
