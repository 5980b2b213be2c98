--- Elements of tensors between JSON and bytes, and the names of dtypes on the wire. No ops: the front never computes.
local ffi = require "ffi"
local bit = require "bit"
local each = require "moth.each"
local B = require "moth_lua"

ffi.cdef [[
typedef struct { int64_t at; int32_t depth, state, failed; } moth_numbers;
int64_t moth_json_skip_numbers(const char *text, int64_t size, int64_t at, int64_t *count);
int64_t moth_json_read_numbers(const char *text, int64_t size, moth_numbers *r, double *out, int64_t most);
char *moth_json_write_numbers(char *out, const double *values, int64_t n, int digits);]]
local C = ffi.load(B.soname)

-- pause(): called after each OFTEN elements, so that a large tensor does not stop other requests.
local M = { pause = function() end }
local OFTEN = 8192

-- moth's dtype: name on the wire, bytes, C type, least and greatest whole number; of 64 bits those that no other number
-- is read as: doubles stand between text and elements, and 2^53 + 1 is 2^53 then.
local types = {
  bool = { "BOOL", 1, "uint8_t" },
  uint8 = { "UINT8", 1, "uint8_t", 0, 2 ^ 8 - 1 }, uint16 = { "UINT16", 2, "uint16_t", 0, 2 ^ 16 - 1 },
  uint32 = { "UINT32", 4, "uint32_t", 0, 2 ^ 32 - 1 }, uint64 = { "UINT64", 8, "uint64_t", 0, 2 ^ 53 - 1 },
  int8 = { "INT8", 1, "int8_t", -2 ^ 7, 2 ^ 7 - 1 }, int16 = { "INT16", 2, "int16_t", -2 ^ 15, 2 ^ 15 - 1 },
  int32 = { "INT32", 4, "int32_t", -2 ^ 31, 2 ^ 31 - 1 }, int64 = { "INT64", 8, "int64_t", 1 - 2 ^ 53, 2 ^ 53 - 1 },
  float16 = { "FP16", 2, "uint16_t" }, bfloat16 = { "BF16", 2, "uint16_t" },
  float32 = { "FP32", 4, "float" }, float64 = { "FP64", 8, "double" },
}
local arrays, pointers = {}, {}
for name, t in each(types) do
  arrays[name], pointers[name] = ffi.typeof(t[3] .. "[?]"), ffi.typeof("const " .. t[3] .. " *")
end

--- The name of a dtype on the wire; nil: it cannot be served.
function M.wire_name(dtype) return types[dtype] and types[dtype][1] end

--- Whether two values of JSON are equal.
function M.same(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  for key, value in each(a) do
    if not M.same(value, b[key]) then return false end
  end
  for key in each(b) do
    if a[key] == nil then return false end
  end
  return true
end

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

local buffer = ffi.new("double[?]", OFTEN) -- between text and elements; never used across a pause
local count_of = ffi.new "int64_t[1]"

-- Puts n numbers of the buffer into an array from element `at` on; the number of those that fit, and what is expected
-- of the next.
local function put(array, at, n, dtype)
  local t = types[dtype]
  local low, high = t[4], t[5]
  if low then
    for i = 0, n - 1 do
      local v = buffer[i]
      if not (v >= low and v <= high and v == math.floor(v)) then
        return i, ("expected a whole number of %s from %.0f to %.0f"):format(t[1], low, high)
      end
      array[at + i] = v
    end
    return n
  end
  local most = dtype == "float32" and 3.4028235677973366e38 or dtype == "float16" and 65519.99 or math.huge
  local rounded = dtype == "float16" and half_of or dtype == "bfloat16" and bfloat_of
  for i = 0, n - 1 do
    local v = buffer[i]
    if v - v ~= 0 then return i, "expected a number" end
    if v > most or v < -most then return i, "expected a number within the range of " .. t[1] end
    if dtype == "bool" and v ~= 0 and v ~= 1 then return i, "expected true or false" end
    array[at + i] = rounded and rounded(v) or v
  end
  return n
end

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
  local array = arrays[dtype](math.max(n, 1))
  for at = 0, n - 1, OFTEN do
    local part, wrong = math.min(OFTEN, n - at), nil
    for i = 0, part - 1 do
      local v = data[at + i + 1]
      if dtype == "bool" and type(v) == "boolean" then v = v and 1 or 0 end
      if type(v) ~= "number" then
        part, wrong = i, dtype == "bool" and "expected true or false" or "expected a number"
        break
      end
      buffer[i] = v
    end
    local good, why = put(array, at, part, dtype)
    if why or wrong then return nil, at + good, why or wrong end
    if at + part < n then M.pause() end
  end
  return ffi.string(array, n * types[dtype][2])
end

--- Skips a list of numbers in a text of JSON, which may be nested, from its '[' at `at` on: the position behind it and
-- how many there are; nil: there is something else in it.
function M.skip(text, at)
  local stop = tonumber(C.moth_json_skip_numbers(text, #text, at - 1, count_of))
  if stop > 0 then return stop + 1, tonumber(count_of[0]) end
end

--- As from_json, from a text: the list that M.skip has found at `at`, of n elements.
function M.from_text(text, at, n, dtype, count)
  if n ~= count then return nil, nil, ("expected %d elements, got %d"):format(count, n) end
  local array, state, done = arrays[dtype](math.max(n, 1)), ffi.new "moth_numbers", 0
  state.at = at - 1
  repeat
    local part = tonumber(C.moth_json_read_numbers(text, #text, state, buffer, math.min(OFTEN, n - done + 1)))
    if done + part > n then return nil, n, "expected the end" end
    local good, why = put(array, done, part, dtype)
    if why then return nil, done + good, why end
    done = done + part
    if state.failed ~= 0 then return nil, done, "expected a number" end
    if state.depth > 0 then M.pause() end
  until state.depth == 0
  if done ~= n then return nil, done, "expected a number" end
  return ffi.string(array, n * types[dtype][2])
end

-- ---- writing -----------------------------------------------------------------------------------------------

local text_of = ffi.new("char[?]", 32 * OFTEN)

-- The elements p[first] … p[last] as JSON; nil: there are NaN or infinite ones.
local function part_of(p, first, last, dtype, digits)
  for i = first, last do
    local v = p[i]
    if dtype == "float16" then v = of_half(v) elseif dtype == "bfloat16" then v = of_bfloat(v) end
    v = tonumber(v)
    if v - v ~= 0 then return nil end
    buffer[i - first] = v
  end
  local stop = C.moth_json_write_numbers(text_of, buffer, last - first + 1, digits)
  return ffi.string(text_of, stop - text_of)
end

--- Elements as a JSON list; nil: there are NaN or infinite ones.
function M.to_json(bytes, dtype)
  local t = types[dtype]
  local p, n, out = ffi.cast(pointers[dtype], bytes), #bytes / t[2], {}
  if dtype == "bool" or dtype == "int64" or dtype == "uint64" then
    for i = 0, n - 1 do
      local v = p[i]
      out[i + 1] = dtype ~= "bool" and tostring(v):match "^-?%d+" or v ~= 0 and "true" or "false"
      if i % OFTEN == OFTEN - 1 then M.pause() end
    end
    return "[" .. table.concat(out, ",") .. "]"
  end
  local digits = (dtype == "float16" or dtype == "bfloat16") and 5 or dtype == "float32" and 9 or 17
  for first = 0, n - 1, OFTEN do
    local part = part_of(p, first, math.min(first + OFTEN, n) - 1, dtype, digits)
    if not part then return nil end
    out[#out + 1] = part
    if first + OFTEN < n then M.pause() end
  end
  return "[" .. table.concat(out, ",") .. "]"
end

return M
