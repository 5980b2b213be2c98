--- JSON (RFC 8259): `moth.json`.
--
--     local json = moth.json
--     local t = json.decode '{"a": [1, 2.5, null], "b": {}}'     -- t.a[3] == json.null
--     print(json.encode { name = "x", sizes = json.array {} })   --> {"name":"x","sizes":[]}
--
-- Objects are tables with names, arrays are lists, null is json.null (that of lua-cjson), which is true in conditions.
-- Integers are exact: those beyond 2^53 are int64_t or uint64_t; numbers are read as the nearest double and written so
-- that reading gives the same. What JSON cannot say is an error that names the place: nan, functions, tables that are
-- neither lists nor objects, texts that are no UTF-8.
local ffi = require "ffi"
local B = require "moth_lua"
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"

pcall(ffi.cdef, "_Bool moth_utf8_is_valid(const char *text, size_t n);")
local C = ffi.load(B.soname)

local M = {}

local DEEPEST = 1000 -- as Python; src/io/json.h allows 1024

-- The metatable of arrays that are empty, or said to be arrays; such lists count as plain (utils/check.lua).
local Array = { __list = true }

--- What stands for null: the same as cjson.null.
M.null = B.json_null

--- A list of the elements of `t` that is an array even if it is empty: json.array {} is [], {} is an object.
M.array = signature("json.array(list t)", function(t)
  local out = {}
  for k = 1, #t do out[k] = t[k] end
  return setmetatable(out, Array)
end)

--- Whether a table is an array of json.array, or an empty one that was read.
M.is_array = signature("json.is_array(any t)", function(t) return type(t) == "table" and getmetatable(t) == Array end)

-- ---- reading -----------------------------------------------------------------------------------------

local int64, uint64 = ffi.typeof "int64_t", ffi.typeof "uint64_t"

--- The integer of a text: a number up to 2^53, else int64_t, or uint64_t where that is too small; nil: beyond 64 bits,
-- or no integer, which infinite numbers of the reader are.
local function long(text)
  local sign, digits = text:match "^(%-?)(%d+)$"
  if not digits or #digits > 20 then return nil end
  local value = uint64(0)
  for k = 1, #digits do
    local digit = digits:byte(k) - 48
    if value > (0xffffffffffffffffULL - digit) / 10ULL then return nil end
    value = value * 10ULL + digit
  end
  if sign == "-" then
    if value > 0x8000000000000000ULL then return nil end
    local negative = -ffi.cast(int64, value)
    return negative >= -2LL ^ 53 and tonumber(negative) or negative
  end
  if value <= 2ULL ^ 53 then return tonumber(value) end
  return value < 0x8000000000000000ULL and ffi.cast(int64, value) or value
end

M._whole = long

-- The same where all numbers are doubles.
local function nearest(text)
  local value = tonumber(text)
  return value - value == 0 and value or nil
end

-- Exact where that is possible.
local function either(text)
  local value = long(text)
  if value == nil then return nearest(text) end
  return value
end

-- Line and column of a byte, both from 1; the column counts characters.
local function place(text, at)
  local line, first = 1, 1
  for after in text:sub(1, at - 1):gmatch "\n()" do line, first = line + 1, after end
  local _, behind = text:sub(first, at - 1):gsub("[\128-\191]", "")
  return line, at - first + 1 - behind
end

--- The value of a text, or nil, why, line, column. null: what stands for null; nil: such members are left out.
-- integers: "exact", "number": those beyond 2^53 are rounded, or "either": those beyond 64 bits are. For moth's own
-- readers.
function M._read(text, null, max_depth, integers)
  local of_long = integers == "number" and nearest or integers == "either" and either or long
  local ok, value, why = B.json_decode(text, max_depth or DEEPEST, null, Array, of_long)
  if ok then return value end
  local line, column = place(text, value)
  if text:sub(1, 3) == "\239\187\191" then why = "it begins with a byte order mark, which JSON does not know" end
  return nil, why, line, column
end

--- The value of a JSON text. null: what stands for null (json.null); integers = "number": those beyond 2^53 are rounded
-- to doubles; max_depth: of arrays and objects in each other. An error names line and column.
M.decode = signature("json.decode(string text, *, any null?, 'exact'|'number' integers='exact', \z
  count max_depth=1000)", function(text, null, integers, max_depth)
  if null == nil then null = M.null end
  if max_depth > DEEPEST then check.fail("[json.decode] max_depth is at most %d, got %d", DEEPEST, max_depth) end
  local value, why, line, column = M._read(text, null, max_depth, integers)
  if why then
    if why:find "64%-bit integers" and integers == "exact" then
      why = why .. "\nHINT: integers = 'number' rounds long integers to doubles"
    end
    check.fail("[json.decode] line %d, column %d: %s", line, column, why)
  end
  return value
end)

-- ---- writing -----------------------------------------------------------------------------------------

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\b"] = "\\b",
  ["\f"] = "\\f" }
local function escaped(c) return escapes[c] or ("\\u%04x"):format(c:byte()) end

local function path_of(w)
  local parts = {}
  for k = 1, math.min(w.depth, 8) do
    local key = w.path[k]
    parts[k] = type(key) == "number" and ("[%d]"):format(key) or "." .. tostring(key)
  end
  return #parts == 0 and "the value" or table.concat(parts) .. (w.depth > 8 and "…" or "")
end
local function refuse(w, what, ...) check.fail("[json.encode] %s: " .. what, path_of(w), ...) end

local function quoted(w, text)
  if not C.moth_utf8_is_valid(text, #text) then
    refuse(w, "a text that is not UTF-8: %s", ("%q"):format(text:sub(1, 40)))
  end
  return '"' .. text:gsub('[%z\1-\31"\\\127]', escaped) .. '"'
end

local function number(w, v)
  if v ~= v or v == math.huge or v == -math.huge then
    if w.allow_nan then return v ~= v and "NaN" or v > 0 and "Infinity" or "-Infinity" end
    refuse(w, "JSON has no %s\nHINT: json.null in its place, or allow_nan = true, which Python reads", tostring(v))
  end
  if v == math.floor(v) and math.abs(v) <= 2 ^ 53 then
    return v == 0 and 1 / v < 0 and "-0.0" or ("%d"):format(v)
  end
  if w.digits then return ("%." .. w.digits .. "g"):format(v) end
  for digits = 15, 17 do
    local text = ("%." .. digits .. "g"):format(v)
    if tonumber(text) == v then return text end
  end
end

local write

-- Writes parts between brackets: count of them, part(k) writes the k-th.
local function bracketed(w, open, close, count, part)
  local out, indent = w.out, w.indent
  out[#out + 1] = open
  for k = 1, count do
    if k > 1 then out[#out + 1] = "," end
    if indent then out[#out + 1] = "\n" .. indent:rep(w.depth + 1) end
    part(k)
  end
  if indent and count > 0 then out[#out + 1] = "\n" .. indent:rep(w.depth) end
  out[#out + 1] = close
end

local function member(w, key, v)
  if w.depth == w.max_depth then
    refuse(w, "tables are nested deeper than %d; does one contain itself?", w.max_depth)
  end
  w.depth = w.depth + 1
  w.path[w.depth] = key
  write(w, v)
  w.depth = w.depth - 1
end

local function write_table(w, t)
  local n, count, names = #t, 0, {}
  for key in each(t) do
    local kind = type(key)
    if kind == "string" then
      names[#names + 1] = key
    elseif kind ~= "number" then
      refuse(w, "a table with a key of type %s; names of JSON are texts", kind)
    elseif key < 1 or key > n or key % 1 ~= 0 then
      refuse(w, "a table with the key %s is neither a list nor an object\nHINT: names as texts, json.null in holes",
        tostring(key))
    else
      count = count + 1
    end
  end
  if count < n then refuse(w, "a list with a hole\nHINT: json.null in its place") end
  if n > 0 and #names > 0 then
    refuse(w, "a table that has both elements and names ('%s') is neither a list nor an object", names[1])
  end
  if n > 0 or getmetatable(t) == Array and #names == 0 then
    return bracketed(w, "[", "]", n, function(k) member(w, k, t[k]) end)
  end
  table.sort(names)
  bracketed(w, "{", "}", #names, function(k)
    w.out[#w.out + 1] = quoted(w, names[k]) .. (w.indent and ": " or ":")
    member(w, names[k], t[names[k]])
  end)
end

-- Whether a table is data: plain, or a list that moth returns, as x:size() is.
local function is_data(t)
  local mt = getmetatable(t)
  return mt == nil or type(mt) == "table" and rawget(mt, "__name") == nil and not rawget(mt, "__module_name")
end

function write(w, v)
  local kind = type(v)
  if kind == "table" and is_data(v) then return write_table(w, v) end
  local text
  if kind == "string" then
    text = quoted(w, v)
  elseif kind == "number" then
    text = number(w, v)
  elseif kind == "boolean" then
    text = tostring(v)
  elseif v == nil or rawequal(v, M.null) then
    text = "null"
  elseif ffi.istype(int64, v) or ffi.istype(uint64, v) then
    text = tostring(v):match "^-?%d+"
  elseif B.is_tensor(v) then
    refuse(w, "a tensor\nHINT: x:tolist(), or x:item() for one number")
  else
    refuse(w, "a value of type %s", kind == "table" and tostring(rawget(getmetatable(v), "__name") or "table") or kind)
  end
  w.out[#w.out + 1] = text
end

--- A value as JSON, names sorted. indent: how many spaces, or the text, each level is moved to the right; digits: of
-- numbers that are no integers, as few as give the same number if not given; allow_nan: NaN and Infinity as Python has
-- them, which is no JSON.
M.encode = signature("json.encode(any value?, *, string|count indent?, count digits?, bool allow_nan=false, \z
  count max_depth=1000)", function(value, indent, digits, allow_nan, max_depth)
  if digits and digits > 17 then check.fail("[json.encode] digits must be from 1 to 17, got %d", digits) end
  local w = { out = {}, path = {}, depth = 0, digits = digits, allow_nan = allow_nan, max_depth = max_depth,
    indent = type(indent) == "number" and (" "):rep(indent) or indent }
  write(w, value)
  return table.concat(w.out)
end)

return M
