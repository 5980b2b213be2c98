--- The methods, tests and filters of chat templates (jinja/init.lua). An entry of methods and filters is
-- { names of arguments (nil: it takes the tables themselves), f }; a test is f.
local each = require "moth.each"
local V = require "moth.llm.jinja.values"

local F = {}

local List, Dict, Function, Undefined, NONE = V.List, V.Dict, V.Function, V.Undefined, V.NONE
local fail, wrong, spend, is, list, undefined = V.fail, V.wrong, V.spend, V.is, V.list, V.undefined
local text, strip, truth, items, equal, less = V.text, V.strip, V.truth, V.items, V.equal, V.less
local int_of, string_of, kind, size, CHARACTER, WHITE = V.int_of, V.string_of, V.kind, V.size, V.CHARACTER,
  V.WHITE
local number, path_of, shown, joined, length = V.number, V.path_of, V.shown, V.joined, V.length

local function split_words(s, most)
  local out, word, rest = {}, {}, nil
  for c in s:gmatch(CHARACTER) do
    if rest then
      rest[#rest + 1] = c
    elseif not WHITE[c] then
      if #word == 0 and #out == most then rest = { c } else word[#word + 1] = c end
    elseif #word > 0 then
      out[#out + 1], word = table.concat(word), {}
    end
  end
  if #word > 0 then out[#out + 1] = table.concat(word) end
  if rest then out[#out + 1] = table.concat(rest) end
  return out
end

local function split(s, by, most)
  most = int_of(most, "split", -1)
  spend(#s / 4)
  if by == nil or by == NONE then return list(split_words(s, most)) end
  if string_of(by, "split") == "" then fail "split: the separator is empty" end
  local out, from = {}, 1
  while #out ~= most do
    local first, last = s:find(by, from, true)
    if not first then break end
    out[#out + 1], from = s:sub(from, first - 1), last + 1
  end
  out[#out + 1] = s:sub(from)
  return list(out)
end

local function replace(s, old, new, count)
  s, old, new = text(s), string_of(old, "replace"), string_of(new, "replace")
  count = int_of(count, "replace", -1)
  local out, from = {}, 1
  if old == "" then
    if count >= 0 then fail "replace: the text to be replaced is empty" end
    spend(#s * (1 + #new / 16))
    return new .. s:gsub(CHARACTER, function(c) return c .. new end)
  end
  while #out ~= 2 * count do
    local first, last = s:find(old, from, true)
    if not first then break end
    out[#out + 1], out[#out + 2], from = s:sub(from, first - 1), new, last + 1
    spend(1 + #new / 16)
  end
  spend(#s / 16)
  return table.concat(out) .. s:sub(from)
end

local function starts(s, what, last)
  if is(what, List) then
    for _, one in ipairs(what) do if starts(s, one, last) then return true end end
    return false
  end
  string_of(what, "startswith, endswith")
  if last then return what == "" or s:sub(-#what) == what end
  return s:sub(1, #what) == what
end

local function find(s, what)
  local at = s:find(string_of(what, "find"), 1, true)
  return at and size(s:sub(1, at - 1)) or -1
end

local function join(values, by, path)
  local out = {}
  for i, v in ipairs(items(values, "join")) do
    out[i] = text(path and path_of(v, path) or v)
    spend(1 + (#out[i] + #by) / 16)
  end
  return table.concat(out, by)
end

local function capitalize(s) return (s:gsub("^%a", string.upper)) end
local function lower(s)
  V.visit(s)
  return text(s):lower()
end

local methods = V.methods
methods.string = {
  strip = { { "chars" }, function(s, c) return strip(s, "lr", c) end },
  lstrip = { { "chars" }, function(s, c) return strip(s, "l", c) end },
  rstrip = { { "chars" }, function(s, c) return strip(s, "r", c) end },
  split = { { "sep", "maxsplit" }, split },
  splitlines = { {}, function(s)
    local out = {}
    for line in s:gsub("\r\n?", "\n"):gsub("([^\n])$", "%1\n"):gmatch "([^\n]*)\n" do out[#out + 1] = line end
    spend(#out)
    return list(out)
  end },
  startswith = { { "prefix" }, starts },
  endswith = { { "suffix" }, function(s, what) return starts(s, what, true) end },
  removeprefix = { { "prefix" }, function(s, p) return starts(s, p) and s:sub(#p + 1) or s end },
  removesuffix = { { "suffix" }, function(s, p) return starts(s, p, true) and s:sub(1, #s - #p) or s end },
  replace = { { "old", "new", "count" }, replace },
  upper = { {}, string.upper }, lower = { {}, string.lower },
  title = { {}, function(s) return (s:lower():gsub("[%a\128-\255]+", capitalize)) end },
  capitalize = { {}, function(s) return capitalize(s:lower()) end },
  find = { { "sub" }, find },
  index = { { "sub" }, function(s, what)
    local at = find(s, what)
    return at >= 0 and at or fail("index: the text has no '%s'", what)
  end },
  count = { { "sub" }, function(s, what) return #split(s, what) - 1 end },
  join = { { "items" }, function(by, values) return join(values, by) end },
  isdigit = { {}, function(s) return s:find "^%d+$" ~= nil end },
  isalpha = { {}, function(s) return s:find "^[%a\128-\255]+$" ~= nil end },
  isspace = { {}, function(s) return s ~= "" and strip(s, "lr") == "" end },
  isupper = { {}, function(s) return s:find "%u" ~= nil and not s:find "%l" end },
  islower = { {}, function(s) return s:find "%l" ~= nil and not s:find "%u" end },
}
methods[Dict] = {
  get = { { "key", "default" }, function(d, key, default)
    if d.map[key] ~= nil then return d.map[key] end
    return default == nil and NONE or default
  end },
  keys = { {}, function(d) return joined(d.keys, {}) end },
  values = { {}, function(d)
    local out = {}
    for i, key in ipairs(d.keys) do out[i] = d.map[key] end
    spend(#out)
    return list(out)
  end },
  items = { {}, function(d)
    local out = {}
    for i, key in ipairs(d.keys) do out[i] = list { key, d.map[key], tuple = true } end
    return list(out)
  end },
  copy = { {}, function(d) return d end }, -- nothing can change it
}
methods[List] = {
  index = { { "value" }, function(l, v)
    for i, item in ipairs(l) do if equal(item, v) then return i - 1 end end
    fail "index: the list has no such value"
  end },
  count = { { "value" }, function(l, v)
    local n = 0
    for _, item in ipairs(l) do if equal(item, v) then n = n + 1 end end
    return n
  end },
  copy = { {}, function(l) return l end },
}
for class, more in each { [List] = "append extend insert pop remove reverse sort clear",
  [Dict] = "pop popitem update setdefault clear" } do
  for name in more:gmatch "%a+" do
    methods[class][name] = { nil, function() fail("%s: a template cannot change a list or a mapping", name) end }
  end
end

-- ---- tests -------------------------------------------------------------------------------------------------

local function swapped(name) return function(v, other) return V.operators[name](v, other) end end

F.tests = {
  defined = function(v) return not is(v, Undefined) end, undefined = function(v) return is(v, Undefined) end,
  none = function(v) return v == NONE end, string = function(v) return type(v) == "string" end,
  number = function(v) return type(v) == "number" or type(v) == "boolean" end,
  integer = function(v) return type(v) == "number" and v % 1 == 0 end,
  float = function(v) return type(v) == "number" and v % 1 ~= 0 end,
  boolean = function(v) return type(v) == "boolean" end,
  ["true"] = function(v) return v == true end, ["false"] = function(v) return v == false end,
  mapping = function(v) return is(v, Dict) end, callable = function(v) return is(v, Function) end,
  sequence = function(v) return type(v) == "string" or is(v, List) or is(v, Dict) or is(v, Undefined) end,
  odd = function(v) return int_of(v, "odd") % 2 == 1 end, even = function(v) return int_of(v, "even") % 2 == 0 end,
  divisibleby = function(v, n) return V.operators["%"](v, n) == 0 end,
  sameas = function(v, other) return v == other end,
  lower = function(v) return text(v) == lower(v) end, upper = function(v) return lower(v):upper() == text(v) end,
  filter = function(v) return F.filters[v] ~= nil end, test = function(v) return F.tests[v] ~= nil end,
  equalto = equal, eq = equal, ["=="] = equal, ne = swapped "!=", lt = less, lessthan = less, le = swapped "<=",
  gt = swapped ">", greaterthan = swapped ">", ge = swapped ">=", ["in"] = swapped "in",
}
F.tests.iterable = F.tests.sequence

-- ---- filters -----------------------------------------------------------------------------------------------

-- The key by which values are sorted and compared: small letters unless case_sensitive.
local function key_of(path, sensitive)
  return function(v)
    if path then v = path_of(v, path) end
    return type(v) == "string" and not truth(sensitive) and v:lower() or v
  end
end

local function sorted(values, key, reverse)
  local out = {}
  for i, v in ipairs(values) do out[i] = { key(v), v, i } end
  spend(#out * 10)
  local down = truth(reverse)
  table.sort(out, function(a, b)
    local x, y = a, b
    if down then x, y = b, a end
    if less(x[1], y[1]) then return true end
    return not less(y[1], x[1]) and a[3] < b[3]
  end)
  for i, entry in ipairs(out) do out[i] = entry[2] end
  return list(out)
end

local function chosen(values, wanted, test, args, get)
  local out = {}
  local f = test and (F.tests[test] or fail("there is no test '%s'", text(test))) or truth
  for _, v in ipairs(truth(values) and items(values, "select") or {}) do
    spend(1)
    if truth(f(get(v), unpack(args))) == wanted then out[#out + 1] = v end
  end
  return list(out)
end

local function selecting(wanted, by_attribute)
  return function(values, args)
    local path = by_attribute and args[1]
    local rest = { unpack(args, by_attribute and 2 or 1) }
    return chosen(values, wanted, table.remove(rest, 1), rest,
      path and function(v) return path_of(v, path) end or function(v) return v end)
  end
end

local function map(values, args, kwargs)
  local out = {}
  for i, v in ipairs(truth(values) and items(values, "map") or {}) do
    if kwargs.attribute ~= nil then
      out[i] = path_of(v, kwargs.attribute)
      if is(out[i], Undefined) and kwargs.default ~= nil then out[i] = kwargs.default end
    else
      out[i] = F.filter(v, string_of(args[1], "map"), { unpack(args, 2) }, kwargs)
    end
    spend(1)
  end
  return list(out)
end

local function extreme(before)
  return function(values, sensitive, path)
    local best, key = nil, key_of(path, sensitive)
    for _, v in ipairs(items(values)) do
      if best == nil or before(key(v), key(best)) then best = v end
    end
    return best == nil and undefined "the least of nothing" or best
  end
end

local function round(v, precision, how)
  local scale = 10 ^ int_of(precision, "round", 0)
  local x = (number(v) or wrong(v, "round of %s", kind(v))) * scale
  if how == "floor" or how == "ceil" then return math[how](x) / scale end
  local down = math.floor(x)
  return (x - down > 0.5 or x - down == 0.5 and down % 2 == 1) and (down + 1) / scale or down / scale
end

local function to_number(whole)
  return function(v, default)
    local x = type(v) == "string" and tonumber((strip(v, "lr"):gsub("^0[xX].*", ""))) or number(v)
    if not x or x ~= x then return default == nil and 0 or default end
    return whole and (x < 0 and math.ceil(x) or math.floor(x)) or x
  end
end

local function indent(s, width, first, blank)
  local by = type(width) == "string" and width or (" "):rep(math.min(int_of(width, "indent", 4), 1000))
  local out = {}
  for line in (text(s) .. "\n"):gmatch "([^\n]*)\n" do
    local is_first = #out == 0
    if is_first and truth(first) or not is_first and (line ~= "" or truth(blank)) then line = by .. line end
    out[#out + 1] = line
    spend(1 + #by / 16)
  end
  return table.concat(out, "\n")
end

local function unique(values, sensitive, path)
  local out, seen, key = {}, {}, key_of(path, sensitive)
  for _, v in ipairs(items(values)) do
    local k = key(v)
    if type(k) == "table" then k = shown(k, nil, 0) end
    if not seen[k] then out[#out + 1], seen[k] = v, true end
  end
  return list(out)
end

local function tojson(v, width, ascii, separators, sorted_keys)
  local o = { item = ", ", key = ": ", sorted = truth(sorted_keys) }
  if truth(ascii) then fail "tojson: ensure_ascii=true is not supported" end
  if width and width ~= NONE then
    o.indent = type(width) == "string" and width or (" "):rep(math.min(int_of(width, "tojson"), 100))
    o.item = ","
  end
  if separators and separators ~= NONE then
    if not is(separators, List) then wrong(separators, "tojson: separators are two texts") end
    o.item, o.key = string_of(separators[1], "tojson"), string_of(separators[2], "tojson")
  end
  return shown(v, o, 0)
end

local function at_end(which)
  return function(v)
    local all = items(v, which)
    if #all == 0 then return undefined("the " .. which .. " of nothing") end
    return all[which == "first" and 1 or #all]
  end
end

local escapes = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ["'"] = "&#39;", ['"'] = "&#34;" }
function F.pairs(v)
  if is(v, Undefined) then return list {} end
  if not is(v, Dict) then fail("items: expected a mapping, got %s", kind(v)) end
  return methods[Dict].items[2](v)
end

F.filters = {
  trim = { { "chars" }, function(v, c) return strip(text(v), "lr", c) end },
  length = { {}, length }, count = { {}, length },
  join = { { "d", "attribute" }, function(v, by, path) return join(v, by and text(by) or "", path) end },
  tojson = { { "indent", "ensure_ascii", "separators", "sort_keys" }, tojson },
  default = { { "default_value", "boolean" }, function(v, default, falsy)
    if is(v, Undefined) or truth(falsy) and not truth(v) then return default == nil and "" or default end
    return v
  end },
  upper = { {}, function(v) return text(v):upper() end }, lower = { {}, lower },
  title = { {}, function(v)
    return (lower(v):gsub("^%a", string.upper):gsub("([-%s({%[<])(%a)", function(c, x) return c .. x:upper() end))
  end },
  capitalize = { {}, function(v) return capitalize(lower(v)) end },
  replace = { { "old", "new", "count" }, replace },
  first = { {}, at_end "first" }, last = { {}, at_end "last" },
  list = { {}, function(v) return joined(items(v, "list"), {}) end },
  items = { {}, F.pairs },
  map = { nil, map },
  select = { nil, selecting(true) }, reject = { nil, selecting(false) },
  selectattr = { nil, selecting(true, true) }, rejectattr = { nil, selecting(false, true) },
  string = { {}, text }, safe = { {}, text },
  escape = { {}, function(v) return (text(v):gsub("[&<>'\"]", escapes)) end },
  int = { { "default" }, to_number(true) }, float = { { "default" }, to_number(false) },
  round = { { "precision", "method" }, round },
  abs = { {}, function(v) return math.abs(number(v) or wrong(v, "abs of %s", kind(v))) end },
  unique = { { "case_sensitive", "attribute" }, unique },
  sort = { { "reverse", "case_sensitive", "attribute" }, function(v, reverse, sensitive, path)
    return sorted(items(v, "sort"), key_of(path, sensitive), reverse)
  end },
  dictsort = { { "case_sensitive", "by", "reverse" }, function(v, sensitive, by, reverse)
    return sorted(F.pairs(v), key_of(by == "value" and 1 or 0, sensitive), reverse)
  end },
  reverse = { {}, function(v) return V.slice(is(v, Dict) and joined(v.keys, {}) or v, nil, nil, -1) end },
  sum = { { "attribute", "start" }, function(v, path, start)
    local total = start == nil and 0 or start
    for _, one in ipairs(items(v, "sum")) do total = V.operators["+"](total, path and path_of(one, path) or one) end
    return total
  end },
  min = { { "case_sensitive", "attribute" }, extreme(less) },
  max = { { "case_sensitive", "attribute" }, extreme(function(a, b) return less(b, a) end) },
  indent = { { "width", "first", "blank" }, indent },
}
F.filters.d, F.filters.e = F.filters.default, F.filters.escape

--- value | name(args)
function F.filter(v, name, args, kwargs)
  local f = F.filters[name] or fail("there is no filter '%s'", name)
  V.visit(v)
  if not f[1] then return f[2](v, args, kwargs) end
  return f[2](v, unpack(V.bind(name, f[1], args, kwargs), 1, #f[1]))
end

return F
