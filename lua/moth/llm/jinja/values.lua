--- The values of chat templates (jinja/init.lua), and their operators, parts and calls.
--
-- Text, numbers, true and false are Lua's own. Lists (tuples, too), mappings in their order, namespaces and functions
-- are tables of the classes below, so that no name of a template reaches a table of Lua's; there is none of Python's
-- difference between 1 and 1.0. All that costs time or memory is paid for by `spend`.
local each = require "moth.each"
local unicode = require "moth.data.unicode"

local M = {}

local List, Dict, Namespace, Function, Undefined, Loop = {}, {}, {}, {}, {}, {}
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

function M.put(dict, key, value)
  if type(key) == "table" and key ~= NONE then fail "a mapping's key must be a text or a number" end
  if key ~= key then fail "a mapping's key is no number" end
  if dict.map[key] == nil then dict.keys[#dict.keys + 1] = key end
  dict.map[key] = value
  spend(2)
end
local put = M.put

local names = { [List] = "a list", [Dict] = "a mapping", [Namespace] = "a namespace", [Function] = "a function",
  [Loop] = "loop", string = "a text", number = "a number", boolean = "true or false" }
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

local function number_text(v)
  if v % 1 == 0 and math.abs(v) < 2 ^ 63 then return ("%d"):format(v) end
  if v ~= v or v == math.huge or v == -math.huge then return v ~= v and "nan" or v > 0 and "inf" or "-inf" end
  for digits = 15, 17 do
    local s = ("%." .. digits .. "g"):format(v)
    if tonumber(s) == v then return s end
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
    if o and type(v) ~= "number" then wrong(v, "tojson of %s", kind(v)) end
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
  if type(v) == "number" then return number_text(v) end
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
  if v == nil or v == NONE and default then return default end
  if type(v) == "boolean" then return v and 1 or 0 end
  if type(v) ~= "number" or v % 1 ~= 0 then wrong(v, "%s: expected a whole number, got %s", what, kind(v)) end
  return v
end
M.int_of = int_of

-- ---- what all values can do --------------------------------------------------------------------------------

function M.truth(v)
  if not v or v == NONE or v == "" or v == 0 or is(v, Undefined) then return false end
  if is(v, List) then return #v > 0 end
  if is(v, Dict) then return #v.keys > 0 end
  return true
end

local function number(v)
  if type(v) == "boolean" then return v and 1 or 0 end
  return type(v) == "number" and v or nil
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
  if type(a) == "string" and type(b) == "string" then return a < b end
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
    spend(1 + #all / 16)
    return all:find(string_of(v, "in"), 1, true) ~= nil
  end
  if is(all, Dict) then return all.map[v] ~= nil end
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
    return f(x, y)
  end
end
local function not_zero(f)
  return function(a, b)
    if b == 0 then fail "division by zero" end
    return f(a, b)
  end
end

-- "%s and %s" % (a, b)
local function formatted(pattern, args)
  local list_of, i = is(args, List) and args.tuple and args or { args }, 0
  local out = pattern:gsub("%%(.?)", function(c)
    if c == "%" then return "%" end
    i = i + 1
    if not c:find "[sdr]" or list_of[i] == nil then
      fail("%%: '%%%s' of a text is not supported, or has no value; there are %%s, %%r and %%d", c)
    end
    local v = c == "r" and shown(list_of[i], nil, 0) or text(list_of[i])
    spend(#v / 16)
    return v
  end)
  return out
end

M.operators = {
  ["+"] = function(a, b)
    if type(a) == "string" and type(b) == "string" then
      spend((#a + #b) / 16)
      return a .. b
    end
    if is(a, List) and is(b, List) then return joined(a, b) end
    local x, y = number(a), number(b)
    if x and y then return x + y end
    wrong(is(a, Undefined) and a or b, "%s + %s: expected two texts, two numbers or two lists", kind(a), kind(b))
  end,
  ["-"] = numbers(function(a, b) return a - b end, "-"),
  ["*"] = function(a, b)
    if type(a) == "string" or is(a, List) then return repeated(a, b) end
    if type(b) == "string" or is(b, List) then return repeated(b, a) end
    return numbers(function(x, y) return x * y end, "*")(a, b)
  end,
  ["/"] = numbers(not_zero(function(a, b) return a / b end), "/"),
  ["//"] = numbers(not_zero(function(a, b) return math.floor(a / b) end), "//"),
  ["%"] = function(a, b)
    if type(a) == "string" then return formatted(a, b) end
    return numbers(not_zero(function(x, y) return x % y end), "%%")(a, b)
  end,
  ["**"] = numbers(function(a, b) return a ^ b end, "**"),
  ["<"] = less, [">"] = function(a, b) return less(b, a) end,
  ["<="] = function(a, b) return not less(b, a) end, [">="] = function(a, b) return not less(a, b) end,
  ["=="] = equal, ["!="] = function(a, b) return not equal(a, b) end,
  ["in"] = function(a, b) return M.contains(b, a) end, ["not in"] = function(a, b) return not M.contains(b, a) end,
}

function M.negative(v)
  return -(number(v) or wrong(v, "- of %s", kind(v)))
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
  end
  if found == nil then return undefined(name) end
  return found
end
local attribute = M.attribute

--- v[key]
function M.item(v, key)
  spend(1)
  if is(v, Undefined) then wrong(v) end
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

--- A value of Lua (a text, a number, a list, a table with names; JSON's null) as one of these.
function M.of(v, depth)
  depth = depth or 0
  if depth > 50 then fail "values lie too deep in one another" end
  if type(v) == "userdata" then return NONE end
  if type(v) == "string" or type(v) == "number" or type(v) == "boolean" then return v end
  if type(v) ~= "table" then fail("a value is a %s", type(v)) end
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

M.string_of, M.kind, M.size, M.CHARACTER, M.WHITE = string_of, kind, size, CHARACTER, WHITE
M.number, M.path_of, M.shown, M.joined, M.length = number, path_of, shown, joined, length

return M
