--- Elements of tensors between JSON and bytes, and the names of dtypes on the wire. No ops: the front never computes.
local ffi = require "ffi"
local bit = require "bit"

-- pause(): called after each OFTEN elements, so that a large tensor does not stop other requests.
local M = { pause = function() end }
local OFTEN = 8192

local types = { -- moth's dtype: name on the wire, bytes, C type, least and greatest whole number
  bool = { "BOOL", 1, "uint8_t" },
  uint8 = { "UINT8", 1, "uint8_t", 0, 2 ^ 8 - 1 }, uint16 = { "UINT16", 2, "uint16_t", 0, 2 ^ 16 - 1 },
  uint32 = { "UINT32", 4, "uint32_t", 0, 2 ^ 32 - 1 }, uint64 = { "UINT64", 8, "uint64_t", 0, 2 ^ 53 },
  int8 = { "INT8", 1, "int8_t", -2 ^ 7, 2 ^ 7 - 1 }, int16 = { "INT16", 2, "int16_t", -2 ^ 15, 2 ^ 15 - 1 },
  int32 = { "INT32", 4, "int32_t", -2 ^ 31, 2 ^ 31 - 1 }, int64 = { "INT64", 8, "int64_t", -2 ^ 53, 2 ^ 53 },
  float16 = { "FP16", 2, "uint16_t" }, bfloat16 = { "BF16", 2, "uint16_t" },
  float32 = { "FP32", 4, "float" }, float64 = { "FP64", 8, "double" },
}
local arrays, pointers = {}, {}
for name, t in require("moth.each")(types) do
  arrays[name], pointers[name] = ffi.typeof(t[3] .. "[?]"), ffi.typeof("const " .. t[3] .. " *")
end

--- The name of a dtype on the wire; nil: it cannot be served.
function M.wire_name(dtype) return types[dtype] and types[dtype][1] end

--- Bytes of an element.
function M.size(dtype) return types[dtype][2] end

-- ---- numbers of 16 bits ----------------------------------------------------------------------------------

local word = ffi.new "union { float f; uint32_t u; }"

local function bfloat_of(v)
  word.f = v
  local u = word.u
  return bit.rshift(u + 0x7fff + bit.band(bit.rshift(u, 16), 1), 16)
end

local function half_of(v)
  local sign = (v < 0 or 1 / v < 0) and 0x8000 or 0
  v = math.abs(v)
  if v >= 65520 then return sign + 0x7c00 end
  local _, e = math.frexp(v)
  e = math.max(e - 1, -14)
  local scaled = v * 2 ^ (10 - e) -- the mantissa, with its leading one
  local m = math.floor(scaled)
  local rest = scaled - m
  if rest > 0.5 or rest == 0.5 and m % 2 == 1 then m = m + 1 end
  return sign + (m < 1024 and m or (e + 14) * 1024 + m)
end

local function of_half(u)
  local sign = u >= 0x8000 and -1 or 1
  local e, m = bit.band(bit.rshift(u, 10), 31), bit.band(u, 1023)
  if e == 31 then return m > 0 and 0 / 0 or sign / 0 end
  if e == 0 then return sign * m * 2 ^ -24 end
  return sign * (1024 + m) * 2 ^ (e - 25)
end

local function of_bfloat(u)
  word.u = bit.lshift(u, 16)
  return word.f
end

-- ---- reading -----------------------------------------------------------------------------------------------

-- Puts the elements of nested lists into one, up to more than `most`; the number of them.
local function flatten(data, out, n, most)
  for i = 1, #data do
    local v = data[i]
    if type(v) == "table" then
      n = flatten(v, out, n, most)
    else
      n = n + 1
      out[n] = v
    end
    if n > most then return n end
  end
  return n
end

--- Bytes of `count` elements from a list of JSON, which may be nested; nil, the index (from 0) of the wrong element or
-- nil, and what is expected.
function M.from_json(data, dtype, count)
  if type(data) ~= "table" then return nil, nil, "expected a list of numbers" end
  if type(data[1]) == "table" then
    local flat = {}
    flatten(data, flat, 0, count)
    data = flat
  end
  local n = #data
  if n ~= count then return nil, nil, ("expected %d elements, got %s%d"):format(count, n > count and ">= " or "", n) end
  local t = types[dtype]
  local array = arrays[dtype](math.max(n, 1))
  local low, high = t[4], t[5]
  for i = 1, n do
    local v = data[i]
    if dtype == "bool" then
      if v == true then v = 1 elseif v == false then v = 0 end
      if v ~= 0 and v ~= 1 then return nil, i - 1, "expected true or false" end
    elseif type(v) ~= "number" or v ~= v or v == math.huge or v == -math.huge then
      return nil, i - 1, "expected a number"
    elseif low then
      if v < low or v > high or v ~= math.floor(v) then
        return nil, i - 1, ("expected a whole number of %s from %.0f to %.0f"):format(t[1], low, high)
      end
    elseif dtype == "float32" and (v > 3.4028235677973366e38 or v < -3.4028235677973366e38)
      or dtype == "float16" and (v >= 65520 or v <= -65520) then
      return nil, i - 1, "expected a number within the range of " .. t[1]
    elseif dtype == "float16" then
      v = half_of(v)
    elseif dtype == "bfloat16" then
      v = bfloat_of(v)
    end
    array[i - 1] = v
    if i % OFTEN == 0 then M.pause() end
  end
  return ffi.string(array, n * t[2])
end

--- Elements as a JSON list; nil: there are NaN or infinite ones.
function M.to_json(bytes, dtype)
  local t = types[dtype]
  local p, n, out = ffi.cast(pointers[dtype], bytes), #bytes / t[2], {}
  local format = dtype == "float64" and "%.17g" or dtype == "float32" and "%.9g" or "%.5g"
  for i = 0, n - 1 do
    local v = p[i]
    if dtype == "bool" then
      out[i + 1] = v ~= 0 and "true" or "false"
    elseif t[4] then
      out[i + 1] = t[2] == 8 and tostring(v):match("^-?%d+") or ("%d"):format(v)
    else
      if dtype == "float16" then v = of_half(v) elseif dtype == "bfloat16" then v = of_bfloat(v) end
      if v - v ~= 0 then return nil end
      out[i + 1] = format:format(v)
    end
    if i % OFTEN == OFTEN - 1 then M.pause() end
  end
  return "[" .. table.concat(out, ",") .. "]"
end

return M
