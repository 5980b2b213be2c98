--- The values of chat templates (jinja/init.lua), and their operators, parts and calls.
--
-- Text, numbers, true and false are Lua's own. Lists (tuples, too), mappings in their order, namespaces and functions
-- are tables of the classes below, so that no name of a template reaches a table of Lua's. Python's whole floats (2.0),
-- too, are tables: all other numbers say by themselves which of its two kinds they are. All that costs time or memory
-- is paid for by `spend`.
local ffi = require "ffi"
local Object = require("moth.utils.ordered_json").Object
local each = require "moth.each"
local unicode = require "moth.data.unicode"

local M = {}

local List, Dict, Namespace, Function, Undefined, Loop, Float = {}, {}, {}, {}, {}, {}, {}
M.List, M.Dict, M.Namespace, M.Function, M.Undefined, M.Loop = List, Dict, Namespace, Function, Undefined, Loop
local NONE = {}
M.NONE = NONE

local Failure = {}
M.Failure = Failure

--- What runs: line (of the template), left (work that it may still do).
local run = { line = 0, left = math.huge }
M.run = run

local function fail(message, ...)
  if select("#", ...) > 0 then message = message:format(...) end
  if #message > 300 then message = message:sub(1, 200) .. " …" end
  error(setmetatable({ why = message, line = run.line }, Failure), 0)
end
M.fail = fail

--- Pays for work: one unit is about a step, 16 bytes, or a tenth of a table.
local function spend(n)
  run.left = run.left - n
  if run.left < 0 then fail "it goes on for too long, or makes too much text: a template may not" end
end
M.spend = spend

local function of(class, t)
  spend(10)
  return setmetatable(t, class)
end

function M.list(t) return of(List, t) end
local list = M.list
function M.dict() return of(Dict, { keys = {}, map = {} }) end
function M.namespace() return of(Namespace, { map = {} }) end
function M.undefined(name) return of(Undefined, { name = name or "a value" }) end
local undefined = M.undefined
--- names: those of its arguments, for f(…); left out: f(args, kwargs).
function M.callable(name, names, f) return of(Function, { name = name, names = names, f = f }) end

local function is(v, class) return getmetatable(v) == class and type(v) == "table" end
M.is = is

--- A float of Python's.
function M.float(v)
  if v % 1 ~= 0 then return v end
  spend(1)
  return setmetatable({ v = v }, Float)
end
local float = M.float

--- The number that a decimal text says, or nil. LuaJIT reads none of an exponent of many digits.
function M.decimal(s)
  local x = tonumber(s)
  if x then return x end
  local sign, digits, low = s:match "^([-+]?)([%d.]+)[eE]([-+]?)%d+$"
  if not digits or not tonumber(digits) then return nil end
  x = (low == "-" or tonumber(digits) == 0) and 0 or math.huge
  return sign == "-" and -x or x
end

--- The number that a value is, in either of its forms, or nil.
local function number(v)
  if type(v) == "number" then return v end
  if type(v) == "boolean" then return v and 1 or 0 end
  return is(v, Float) and v.v or nil
end

--- Whether a value is a float of Python's.
function M.is_float(v) return is(v, Float) or type(v) == "number" and v % 1 ~= 0 end
local is_float = M.is_float

function M.put(dict, key, value)
  if is(key, Float) then key = key.v end
  if type(key) == "table" and key ~= NONE then fail "a mapping's key must be a text or a number" end
  if key ~= key then fail "a mapping's key is no number" end
  if dict.map[key] == nil then dict.keys[#dict.keys + 1] = key end
  dict.map[key] = value
  spend(2)
end
local put = M.put

local names = { [List] = "a list", [Dict] = "a mapping", [Namespace] = "a namespace", [Function] = "a function",
  [Loop] = "loop", [Float] = "a number", string = "a text", number = "a number", boolean = "true or false" }
--- Pays for going through a value.
function M.visit(v)
  spend(type(v) == "string" and 1 + #v / 4 or type(v) == "table" and 1 + #(v.keys or v) or 1)
end

local function kind(v)
  if v == NONE then return "none" end
  return type(v) == "table" and names[getmetatable(v)] or names[type(v)]
end

-- An error about a value that does not do; a value that is undefined is told by its name.
local function wrong(v, message, ...)
  if is(v, Undefined) then fail("'%s' is undefined", v.name) end
  fail(message, ...)
end
M.wrong = wrong

local function joined(a, b)
  local out = {}
  for i = 1, #a do out[i] = a[i] end
  for i = 1, #b do out[#a + i] = b[i] end
  spend(#out)
  return list(out)
end

-- ---- text ------------------------------------------------------------------------------------------------

local CHARACTER = ".[\128-\191]*"

local function chars(s)
  local out = {}
  for c in s:gmatch(CHARACTER) do out[#out + 1] = c end
  spend(#out)
  return out
end

pcall(ffi.cdef, "void *memmem(const void *all, size_t n, const void *part, size_t m);")

--- Where `part` stands in s, from a byte on (1): its first and last byte, or nil. Its time is linear, as that of
-- string.find is not.
function M.search(s, part, from)
  from = from or 1
  local p = ffi.cast("const char *", s)
  local found = ffi.C.memmem(p + from - 1, #s - from + 1, part, #part)
  if found == nil then
    spend(1 + (#s - from + 1) / 16)
    return nil
  end
  local first = tonumber(ffi.cast("const char *", found) - p) + 1
  spend(1 + (first - from + #part) / 16)
  return first, first + #part - 1
end

local function size(s) return #s - select(2, s:gsub("[\128-\191]", "")) end

local WHITE = {}
for _, range in ipairs { { 9, 13 }, { 28, 32 } } do
  for b = range[1], range[2] do WHITE[string.char(b)] = true end
end
for c = 0x80, 0x3000 do
  if unicode.is_space(c) then WHITE[unicode.char(c)] = true end
end

--- Without the characters (left out: white space) at its left, right or both ends ("l", "r", "lr").
function M.strip(s, ends, characters)
  local set, from, to = WHITE, 1, #s
  if characters and characters ~= NONE then
    set = {}
    for _, c in ipairs(chars(M.string_of(characters, "strip"))) do set[c] = true end
  end
  while ends:find "l" and from <= to do
    local c = s:match("^" .. CHARACTER, from)
    if not set[c] then break end
    from = from + #c
  end
  while ends:find "r" and to >= from do
    local first = to
    while first > from and s:byte(first) >= 128 and s:byte(first) < 192 do first = first - 1 end
    if not set[s:sub(first, to)] then break end
    to = first - 1
  end
  spend(#s - to + from)
  return s:sub(from, to)
end

-- As Python writes a float, but for ".0" behind a whole one.
local function number_text(v)
  if v ~= v or v == math.huge or v == -math.huge then return v ~= v and "nan" or v > 0 and "inf" or "-inf" end
  for digits = 15, 17 do
    local s = ("%." .. digits .. "g"):format(v)
    if tonumber(s) == v then
      return math.abs(v) < 1e16 and s or (("%." .. digits - 1 .. "e"):format(v):gsub("%.?0*e", "e"))
    end
  end
end

local function quoted(s)
  local mark = s:find("'", 1, true) and not s:find('"', 1, true) and '"' or "'"
  local escapes = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\\"] = "\\\\", [mark] = "\\" .. mark }
  return mark .. s:gsub("[%c\\" .. mark .. "]", function(c) return escapes[c] or ("\\x%02x"):format(c:byte()) end)
    .. mark
end

local function json_text(s)
  local escapes = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\\"] = "\\\\", ['"'] = '\\"', ["\b"] = "\\b",
    ["\f"] = "\\f" }
  return '"' .. s:gsub('[%z\1-\31\\"]', function(c) return escapes[c] or ("\\u%04x"):format(c:byte()) end) .. '"'
end

local text

-- Of a value within a list: as Python shows it, or JSON. o: nil, or JSON's indent (a text), item and key separators.
local function shown(v, o, level)
  if level > 50 then fail "values lie too deep in one another" end
  if type(v) == "string" then
    spend(#v / 16)
    return (o and json_text or quoted)(v)
  end
  if not is(v, List) and not is(v, Dict) then
    if o and (v == NONE or type(v) == "boolean") then return v == NONE and "null" or tostring(v) end
    if o and not number(v) then wrong(v, "tojson of %s", kind(v)) end
    return is(v, Undefined) and "Undefined" or text(v)
  end
  local parts, between = {}, o and o.item or ", "
  local open, close = "", ""
  if o and o.indent then
    open, close = "\n" .. o.indent:rep(level + 1), "\n" .. o.indent:rep(level)
    between = between .. open
  end
  spend(#(v.keys or v) * (1 + #open / 16))
  if is(v, List) then
    for i, item in ipairs(v) do parts[i] = shown(item, o, level + 1) end
    if #parts == 0 then open, close = "", "" end
    local a, b = "[", "]"
    if v.tuple and not o then a, b = "(", #parts == 1 and ",)" or ")" end
    return a .. open .. table.concat(parts, between) .. close .. b
  end
  local keys = v.keys
  if o and o.sorted then
    keys = joined(keys, {})
    table.sort(keys, function(x, y) return tostring(x) < tostring(y) end)
  end
  for i, key in ipairs(keys) do
    local k = o and type(key) ~= "string" and json_text(shown(key, o, level)) or shown(key, o, level)
    parts[i] = k .. (o and o.key or ": ") .. shown(v.map[key], o, level + 1)
  end
  if #parts == 0 then open, close = "", "" end
  return "{" .. open .. table.concat(parts, between) .. close .. "}"
end

--- A value as the text that {{ }} writes.
function text(v)
  if type(v) == "string" then return v end
  if type(v) == "number" then
    return v % 1 == 0 and math.abs(v) < 2 ^ 63 and ("%d"):format(v) or number_text(v)
  end
  if is(v, Float) then return math.abs(v.v) < 1e16 and ("%.1f"):format(v.v) or number_text(v.v) end
  if type(v) == "boolean" then return v and "True" or "False" end
  if v == NONE then return "None" end
  if is(v, Undefined) then return "" end
  if is(v, List) or is(v, Dict) then return shown(v, nil, 0) end
  return "<" .. kind(v) .. ">"
end
M.text = text

local function string_of(v, what)
  if type(v) ~= "string" then wrong(v, "%s: expected a text, got %s", what, kind(v)) end
  return v
end

local function int_of(v, what, default)
  if v == nil and default == nil then fail("%s: a number is missing", what) end
  if v == nil or v == NONE and default then return default end
  if type(v) == "boolean" then return v and 1 or 0 end
  if type(v) ~= "number" or v % 1 ~= 0 then wrong(v, "%s: expected a whole number, got %s", what, kind(v)) end
  return v
end
M.int_of = int_of

-- ---- what all values can do --------------------------------------------------------------------------------

function M.truth(v)
  if not v or v == NONE or v == "" or number(v) == 0 or is(v, Undefined) then return false end
  if is(v, List) then return #v > 0 end
  if is(v, Dict) then return #v.keys > 0 end
  return true
end

function M.equal(a, b)
  spend(1)
  if a == b or is(a, Undefined) and is(b, Undefined) then return true end
  if number(a) and number(b) then return number(a) == number(b) end
  if is(a, List) and is(b, List) and #a == #b then
    for i = 1, #a do if not M.equal(a[i], b[i]) then return false end end
    return true
  elseif is(a, Dict) and is(b, Dict) and #a.keys == #b.keys then
    for _, k in ipairs(a.keys) do
      if b.map[k] == nil or not M.equal(a.map[k], b.map[k]) then return false end
    end
    return true
  end
  return false
end
local equal = M.equal

function M.less(a, b)
  spend(1)
  if type(a) == "string" and type(b) == "string" then
    spend(math.min(#a, #b) / 16)
    return a < b
  end
  if number(a) and number(b) then return number(a) < number(b) end
  if is(a, List) and is(b, List) then
    for i = 1, math.min(#a, #b) do
      if not equal(a[i], b[i]) then return M.less(a[i], b[i]) end
    end
    return #a < #b
  end
  wrong(is(a, Undefined) and a or b, "there is no order of %s and %s", kind(a), kind(b))
end
local less = M.less

--- The items of a value as a table (not to be written to).
function M.items(v, what)
  if is(v, List) then return v end
  if is(v, Dict) then return v.keys end
  if type(v) == "string" then return chars(v) end
  if is(v, Undefined) then return {} end
  fail("%s: expected a list, got %s", what or "for", kind(v))
end
local items = M.items

function M.contains(all, v)
  if type(all) == "string" then
    return M.search(all, string_of(v, "in")) ~= nil
  end
  if is(all, Dict) then return all.map[is(v, Float) and v.v or v] ~= nil end
  for _, item in ipairs(items(all, "in")) do
    if equal(item, v) then return true end
  end
  return false
end

local function length(v)
  if type(v) == "string" then
    spend(#v / 16)
    return size(v)
  end
  return #items(v, "length")
end

local function repeated(v, n)
  n = math.max(int_of(n, "*"), 0)
  spend(n * (is(v, List) and #v or 1 + #v / 16))
  if type(v) == "string" then return v:rep(n) end
  local out = {}
  for i = 1, n * #v do out[i] = v[(i - 1) % #v + 1] end
  return list(out)
end

local function numbers(f, sign)
  return function(a, b)
    local x, y = number(a), number(b)
    if not x or not y then
      wrong(is(a, Undefined) and a or b, "%s %s %s: expected two numbers", kind(a), sign, kind(b))
    end
    local result = f(x, y)
    if is_float(a) or is_float(b) then return float(result) end
    if math.abs(result) > 2 ^ 53 then fail("%s: a whole number of over 53 bits", sign) end
    return result
  end
end
local function not_zero(f)
  return function(a, b)
    if b == 0 then fail "division by zero" end
    return f(a, b)
  end
end

-- As Python's: the remainder has the divisor's sign, and is exact.
local function divided(x, y)
  local rest = math.fmod(x, y)
  local whole = (x - rest) / y
  if rest ~= 0 and (y < 0) ~= (rest < 0) then
    rest, whole = rest + y, whole - 1
  end
  local down = math.floor(whole)
  return whole - down > 0.5 and down + 1 or down, rest
end
local sum = numbers(function(a, b) return a + b end, "+")
local quotient = numbers(not_zero(function(a, b) return a / b end), "/")
local remainder = numbers(not_zero(function(a, b) return select(2, divided(a, b)) end), "%%")
local power = numbers(function(a, b)
  if a == 0 and b < 0 then fail "0 ** a negative number" end
  if a < 0 and b % 1 ~= 0 then fail "** of a negative number: complex numbers are not supported" end
  return a ^ b
end, "**")

M.operators = {
  ["+"] = function(a, b)
    if type(a) == "string" and type(b) == "string" then
      spend((#a + #b) / 16)
      return a .. b
    end
    if is(a, List) and is(b, List) then return joined(a, b) end
    if number(a) and number(b) then return sum(a, b) end
    wrong(is(a, Undefined) and a or b, "%s + %s: expected two texts, two numbers or two lists", kind(a), kind(b))
  end,
  ["-"] = numbers(function(a, b) return a - b end, "-"),
  ["*"] = function(a, b)
    if type(a) == "string" or is(a, List) then return repeated(a, b) end
    if type(b) == "string" or is(b, List) then return repeated(b, a) end
    return numbers(function(x, y) return x * y end, "*")(a, b)
  end,
  ["/"] = function(a, b) return float(number(quotient(a, b))) end,
  ["//"] = numbers(not_zero(function(a, b) return (divided(a, b)) end), "//"),
  ["%"] = function(a, b)
    if type(a) == "string" then return require("moth.llm.jinja.format").percent(a, b) end
    return remainder(a, b)
  end,
  ["**"] = function(a, b)
    local result = power(a, b)
    return number(b) < 0 and float(number(result)) or result
  end,
  ["<"] = less, [">"] = function(a, b) return less(b, a) end,
  ["<="] = function(a, b) return not less(b, a) end, [">="] = function(a, b) return not less(a, b) end,
  ["=="] = equal, ["!="] = function(a, b) return not equal(a, b) end,
  ["in"] = function(a, b) return M.contains(b, a) end, ["not in"] = function(a, b) return not M.contains(b, a) end,
}

function M.negative(v)
  local x = -(number(v) or wrong(v, "- of %s", kind(v)))
  return is_float(v) and float(x) or x
end

-- ---- parts -------------------------------------------------------------------------------------------------

--- v[a:b:c], each nil or a value.
function M.slice(v, from, to, step)
  step = int_of(step, "a slice", 1)
  if step == 0 then fail "a slice's step is 0" end
  if not is(v, List) and type(v) ~= "string" then wrong(v, "a slice of %s", kind(v)) end
  local all = is(v, List) and v or chars(v)
  local n, out = #all, {}
  local function place(at, default)
    at = int_of(at, "a slice", default)
    if at < 0 and at ~= default then at = at + n end
    return math.max(step < 0 and -1 or 0, math.min(at, step < 0 and n - 1 or n))
  end
  for i = place(from, step < 0 and n - 1 or 0), place(to, step < 0 and -1 or n) - (step < 0 and -1 or 1), step do
    out[#out + 1] = all[i + 1]
  end
  spend(#out)
  if type(v) == "string" then return table.concat(out) end
  out.tuple = v.tuple
  return list(out)
end

local methods = {} -- by name, of texts ("string") and classes: { arguments, f }; filters.lua has them
M.methods = methods

local function method(v, name)
  local class = type(v) == "string" and methods.string or methods[getmetatable(v)]
  local m = class and class[name]
  return m and M.callable(name, m[1], function(...)
    M.visit(v)
    return m[2](v, ...)
  end)
end

--- v.name
function M.attribute(v, name)
  spend(1)
  local found
  if is(v, Dict) then
    found = method(v, name)
    if found == nil then found = v.map[name] end
  elseif is(v, Namespace) then
    found = v.map[name]
  elseif is(v, Loop) then
    found = v.get(v, name)
  elseif is(v, Undefined) then
    wrong(v)
  elseif type(v) == "string" or is(v, List) then
    found = method(v, name)
    if found == nil and type(v) == "table" and v.fields then found = v[v.fields[name]] end -- of a tuple with names
  end
  if found == nil then return undefined(name) end
  return found
end
local attribute = M.attribute

--- v[key]
function M.item(v, key)
  spend(1)
  if is(v, Undefined) then wrong(v) end
  if type(key) == "boolean" and not (is(v, Dict) and v.map[key] ~= nil) or is(key, Float) and is(v, Dict) then
    key = number(key)
  end
  if is(v, Dict) and v.map[key] ~= nil then return v.map[key] end
  if type(key) == "string" then return attribute(v, key) end
  if type(key) == "number" and (is(v, List) or type(v) == "string") then
    local all = is(v, List) and v or chars(v)
    local found = all[key < 0 and #all + key + 1 or key + 1]
    if found ~= nil then return found end
  end
  return undefined(text(key))
end

-- "function.name", "0" of a value.
local function path_of(v, path)
  if type(path) == "number" then return M.item(v, path) end
  for part in string_of(path, "attribute"):gmatch "[^.]+" do v = M.item(v, tonumber(part) or part) end
  return v
end

-- ---- calls -------------------------------------------------------------------------------------------------

--- The values of named arguments, as a list that may have holes. kwargs has the names as a list, and their values.
function M.bind(what, names_of, args, kwargs)
  local out, n = {}, #names_of
  if #args > n then fail("%s: %d arguments; it takes %d at most", what, #args, n) end
  for i = 1, #args do out[i] = args[i] end
  for _, name in ipairs(kwargs) do
    local at = nil
    for i, other in ipairs(names_of) do at = other == name and i or at end
    if not at or out[at] ~= nil then
      fail("%s: %s '%s'", what, at and "there are two values for" or "there is no argument", name)
    end
    out[at] = kwargs[name]
  end
  return out
end

function M.call(v, args, kwargs)
  if not is(v, Function) then wrong(v, "%s is called, which is no function", kind(v)) end
  spend(5)
  if not v.names then return v.f(args, kwargs) end
  return v.f(unpack(M.bind(v.name, v.names, args, kwargs), 1, #v.names))
end

-- ---- Lua's values --------------------------------------------------------------------------------------------

--- A value of Lua (a text, a number, a list, a table with names; JSON's null; an object of ordered_json, whose names
-- keep their order) as one of these.
function M.of(v, depth)
  depth = depth or 0
  if depth > 50 then fail "values lie too deep in one another" end
  if type(v) == "userdata" or v == NONE then return NONE end
  if type(v) == "string" or type(v) == "number" or type(v) == "boolean" then return v end
  if type(v) ~= "table" then fail("a value is a %s", type(v)) end
  if getmetatable(v) == Object then
    local d = M.dict()
    for _, key in ipairs(v.keys) do put(d, key, M.of(v.map[key], depth + 1)) end
    return d
  end
  local out, count = {}, 0
  for _ in each(v) do count = count + 1 end
  if count == #v then
    for i = 1, #v do out[i] = M.of(v[i], depth + 1) end
    return list(out)
  end
  for key in each(v) do out[#out + 1] = key end
  table.sort(out, function(a, b) return tostring(a) < tostring(b) end)
  local d = M.dict()
  for _, key in ipairs(out) do put(d, key, M.of(v[key], depth + 1)) end
  return d
end

M.method = method
M.string_of, M.kind, M.size, M.CHARACTER, M.WHITE = string_of, kind, size, CHARACTER, WHITE
M.number, M.path_of, M.shown, M.joined, M.length = number, path_of, shown, joined, length

return M
