--- The methods, tests and filters of chat templates (jinja/init.lua). An entry of methods and filters is
-- { names of arguments (nil: it takes the tables themselves), f }; a test is f.
local each = require "moth.each"
local format = require "moth.llm.jinja.format"
local unicode = require "moth.data.unicode"
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
  if by == nil or by == NONE then
    spend(#s / 4)
    return list(split_words(s, most))
  end
  if string_of(by, "split") == "" then fail "split: the separator is empty" end
  local out, from = {}, 1
  while #out ~= most do
    local first, last = V.search(s, by, from)
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
    local first, last = V.search(s, old, from)
    if not first then break end
    out[#out + 1], out[#out + 2], from = s:sub(from, first - 1), new, last + 1
    spend(1 + #new / 16)
  end
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
  local at = V.search(s, string_of(what, "find"))
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

local function separator(by, what)
  if string_of(by, what) == "" then fail("%s: the separator is empty", what) end
  return by
end

-- The last place of a part: its first and last byte, or nil.
local function last_of(s, part)
  local first, last = V.search(s:reverse(), part:reverse())
  if first then return #s - last + 1, #s - first + 1 end
end

local function rfind(s, what)
  local first = last_of(s, string_of(what, "rfind"))
  return first and size(s:sub(1, first - 1)) or -1
end

local function rsplit(s, by, most)
  most = int_of(most, "rsplit", -1)
  local reversed, rest, out = {}, s, {}
  if by == nil or by == NONE then
    spend(#s / 4)
    local words = split_words(s, -1)
    if most < 0 or #words <= most then return list(words) end
    rest = strip(s, "r") -- what is left of the words keeps the white space before it
    for k = 0, most - 1 do
      reversed[#reversed + 1] = words[#words - k]
      rest = strip(rest:sub(1, #rest - #words[#words - k]), "r")
    end
  else
    separator(by, "rsplit")
    while #reversed ~= most do
      local first, last = last_of(rest, by)
      if not first then break end
      reversed[#reversed + 1], rest = rest:sub(last + 1), rest:sub(1, first - 1)
      spend(#rest / 16)
    end
  end
  reversed[#reversed + 1] = rest
  for k = #reversed, 1, -1 do out[#out + 1] = reversed[k] end
  return list(out)
end

local function justified(align)
  return function(s, width, fill)
    fill = fill == nil and " " or string_of(fill, "a fill character")
    if size(fill) ~= 1 then fail "the fill character must be one character" end
    return format.pad(s, int_of(width, "a width"), align, fill)
  end
end

-- In the middle, as str.center does it: of an odd rest, the larger part is left where the width is odd.
local function centered(s, width, fill)
  width = int_of(width, "center", 80)
  local missing = width - size(s)
  if missing <= 0 then return s end
  local left = math.floor(missing / 2) + (missing % 2 == 1 and width % 2 == 1 and 1 or 0)
  return justified "<"(justified ">"(s, width - missing + left, fill), width, fill)
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
  find = { { "sub" }, find }, rfind = { { "sub" }, rfind },
  index = { { "sub" }, function(s, what)
    local at = find(s, what)
    return at >= 0 and at or fail("index: the text has no '%s'", what)
  end },
  count = { { "sub" }, function(s, what) return #split(s, what) - 1 end },
  join = { { "items" }, function(by, values) return join(values, by) end },
  rsplit = { { "sep", "maxsplit" }, rsplit },
  partition = { { "sep" }, function(s, by)
    local first, last = V.search(s, separator(by, "partition"))
    if not first then return list { s, "", "", tuple = true } end
    return list { s:sub(1, first - 1), by, s:sub(last + 1), tuple = true }
  end },
  rpartition = { { "sep" }, function(s, by)
    local first, last = last_of(s, separator(by, "rpartition"))
    if not first then return list { "", "", s, tuple = true } end
    return list { s:sub(1, first - 1), by, s:sub(last + 1), tuple = true }
  end },
  ljust = { { "width", "fillchar" }, justified "<" }, rjust = { { "width", "fillchar" }, justified ">" },
  center = { { "width", "fillchar" }, centered },
  zfill = { { "width" }, function(s, width)
    local sign, rest = s:match "^([-+]?)(.*)$"
    return sign .. format.pad(rest, int_of(width, "zfill") - #sign, ">", "0")
  end },
  swapcase = { {}, function(s)
    return (s:gsub("%a", function(c) return c:lower() == c and c:upper() or c:lower() end))
  end },
  format = { nil, format.braces }, casefold = { {}, lower },
  isalnum = { {}, function(s) return s:find "^[%w\128-\255]+$" ~= nil end },
  isnumeric = { {}, function(s) return s:find "^%d+$" ~= nil end },
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

-- What may name a filter or a test: no list, no mapping.
local function name_of(v, what)
  if is(v, List) and not v.tuple or is(v, Dict) then fail("the test '%s' of %s", what, kind(v)) end
  return v
end

local function swapped(name) return function(v, other) return V.operators[name](v, other) end end

F.tests = {
  defined = function(v) return not is(v, Undefined) end, undefined = function(v) return is(v, Undefined) end,
  none = function(v) return v == NONE end, string = function(v) return type(v) == "string" end,
  number = function(v) return number(v) ~= nil end,
  integer = function(v) return type(v) == "number" and not V.is_float(v) end, float = V.is_float,
  boolean = function(v) return type(v) == "boolean" end,
  ["true"] = function(v) return v == true end, ["false"] = function(v) return v == false end,
  mapping = function(v) return is(v, Dict) end,
  callable = function(v) return is(v, Function) or is(v, Undefined) end,
  sequence = function(v) return type(v) == "string" or is(v, List) or is(v, Dict) or is(v, Undefined) end,
  odd = function(v) return (number(v) or wrong(v, "odd: of %s", kind(v))) % 2 == 1 end,
  even = function(v) return (number(v) or wrong(v, "even: of %s", kind(v))) % 2 == 0 end,
  divisibleby = function(v, n) return equal(V.operators["%"](v, n), 0) end,
  sameas = function(v, other) return v == other end,
  lower = function(v) return methods.string.islower[2](text(v)) end,
  upper = function(v) return methods.string.isupper[2](text(v)) end,
  filter = function(v) return F.filters[name_of(v, "filter")] ~= nil end,
  test = function(v) return F.tests[name_of(v, "test")] ~= nil end,
  equalto = equal, eq = equal, ["=="] = equal, ne = swapped "!=", lt = less, lessthan = less, le = swapped "<=",
  gt = swapped ">", greaterthan = swapped ">", ge = swapped ">=", ["in"] = swapped "in", ["!="] = swapped "!=",
  ["<"] = less, ["<="] = swapped "<=", [">"] = swapped ">", [">="] = swapped ">=",
  escaped = function() fail "the test 'escaped' is not supported: texts do not know whether they are" end,
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
  precision = int_of(precision, "round", 0)
  local x, scale = number(v) or wrong(v, "round of %s", kind(v)), 10 ^ precision
  if how == "floor" or how == "ceil" then return V.float(math[how](x * scale) / scale) end
  if how ~= nil and how ~= "common" then fail "round: the method must be common, ceil or floor" end
  if precision >= 0 and not V.is_float(v) then return x end
  if precision > 0 then return V.float(tonumber(format.digits(x, "f", math.min(precision, 400)))) end
  x = x * scale
  local down = math.floor(x)
  x = (x - down > 0.5 or x - down == 0.5 and down % 2 == 1) and down + 1 or down
  return V.is_float(v) and V.float(x / scale) or x / scale
end

-- The number that a value, or a text, is.
local function parsed(v)
  if is(v, Undefined) then wrong(v) end
  local s = type(v) == "string" and strip(v, "lr")
  if s and not s:find "^[-+]?[%d.]" then return nil end -- nor "inf": of a text, a number of digits
  return s and V.decimal((s:gsub("^[-+]?0[xXbB].*", ""))) or number(v)
end

local function to_float(v, default)
  local x = parsed(v)
  if not x then return default == nil and V.float(0) or default end
  return V.float(x)
end

local prefixes = { [2] = "0[bB]", [8] = "0[oO]", [16] = "0[xX]" }
local function to_int(v, default, base)
  base = int_of(base, "int", 10)
  if type(v) == "string" and base ~= 10 then
    if not prefixes[base] and (base < 2 or base > 36) then fail "int: the base must be from 2 to 36" end
    local sign, digits = strip(v, "lr"):match "^([-+]?)(%w+)$"
    if digits and prefixes[base] then digits = digits:gsub("^" .. prefixes[base], "") end
    local x = digits and tonumber(digits, base)
    if x then return sign == "-" and -x or x end
  end
  local x = parsed(v)
  if not x or math.abs(x) == math.huge then return default == nil and 0 or default end
  if math.abs(x) > 2 ^ 53 then fail "int: a whole number of over 53 bits" end
  return x < 0 and math.ceil(x) or math.floor(x)
end

local function indent(s, width, first, blank)
  local by = type(width) == "string" and width or (" "):rep(math.min(int_of(width, "indent", 4), 1000))
  local out = {}
  for line in (string_of(s, "indent") .. "\n"):gmatch "([^\n]*)\n" do
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
    if type(k) == "table" then k = number(k) or shown(k, nil, 0) end
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

-- ---- filters that cut and group -----------------------------------------------------------------------------

local function batch(values, count, fill)
  local out, part = {}, {}
  count = int_of(count, "batch")
  for _, v in ipairs(items(values, "batch")) do
    if #part == count then
      out[#out + 1], part = list(part), {}
    end
    part[#part + 1] = v
  end
  if #part > 0 then
    if fill ~= nil and fill ~= NONE and #part < count then
      spend(count - #part)
      for k = #part + 1, count do part[k] = fill end
    end
    out[#out + 1] = list(part)
  end
  return list(out)
end

local function slices(values, count, fill)
  local all, out, at = items(values, "slice"), {}, 0
  count = int_of(count, "slice")
  if count < 1 then fail "slice: the number of slices must be above 0" end
  spend(count * 10)
  local least, longer = math.floor(#all / count), #all % count
  for k = 1, count do
    local part = {}
    for i = 1, least + (k <= longer and 1 or 0) do part[i] = all[at + i] end
    at = at + #part
    if fill ~= nil and fill ~= NONE and k > longer then part[#part + 1] = fill end
    out[k] = list(part)
  end
  return list(out)
end

local function groupby(values, path, default, sensitive)
  local function value(v)
    local found = path_of(v, path)
    return is(found, Undefined) and default ~= nil and default or found
  end
  local function key(v)
    v = value(v)
    return type(v) == "string" and not truth(sensitive) and v:lower() or v
  end
  local out, last = {}, nil
  spend(50 * #items(values, "groupby"))
  for _, v in ipairs(sorted(items(values), key)) do
    local k = key(v)
    if not last or not equal(k, last.key) then
      last = { key = k, part = list {}, name = value(v) }
      out[#out + 1] = list { last.name, last.part, tuple = true, fields = { grouper = 1, list = 2 } }
    end
    last.part[#last.part + 1] = v
  end
  return list(out)
end

local function truncate(s, most, inside, ending, leeway)
  if not is(s, List) and not is(s, Dict) then string_of(s, "truncate") end
  if type(s) ~= "string" and V.length(s) <= int_of(most, "truncate", 255) + 5 then return s end
  s, most, ending = string_of(s, "truncate"), int_of(most, "truncate", 255), ending == nil and "..." or text(ending)
  leeway = int_of(leeway, "truncate", 5)
  if most < size(ending) then fail("truncate: expected a length of at least %d, got %d", size(ending), most) end
  if leeway < 0 then fail("truncate: leeway is %d", leeway) end
  if size(s) <= most + leeway then return s end
  local cut = V.slice(s, 0, most - size(ending))
  return (truth(inside) and cut or cut:match "^(.*) " or cut) .. ending
end

local units = { "k", "M", "G", "T", "P", "E", "Z", "Y" }
local function filesize(v, binary)
  local bytes, base = parsed(v), truth(binary) and 1024 or 1000
  if not bytes then wrong(v, "filesizeformat of %s", kind(v)) end
  if bytes == 1 then return "1 Byte" end
  if bytes < base then return ("%d Bytes"):format(bytes) end
  local k = 1
  while k < #units and bytes / base ^ k >= base do k = k + 1 end
  return ("%.1f %s%s"):format(bytes / base ^ k, base == 1024 and units[k]:upper() .. "i" or units[k], "B")
end

-- Of letters, digits and "_".
local function wordcount(s)
  local categories, names, count, inside = nil, nil, 0, false
  for c in text(s):gmatch(CHARACTER) do
    local is_word = c:find "^[%w_]"
    if not is_word and c:byte() >= 128 then
      if not categories then categories, names = unicode.categories() end
      is_word = (names[categories[unicode.point(c)]] or ""):find "^[LN]"
    end
    if is_word and not inside then count = count + 1 end
    inside = is_word
  end
  return count
end

local function escaped(v) return (text(v):gsub("[&<>'\"]", escapes)) end

local entities = { amp = "&", lt = "<", gt = ">", quot = '"', apos = "'", nbsp = "\194\160" }
local function striptags(v)
  local s = text(v)
  for _, marks in ipairs { { "<!--", "-->" }, { "<", ">" } } do
    local out, from = {}, 1
    while true do
      local first, behind = V.search(s, marks[1], from)
      local _, last = nil, nil
      if first then _, last = V.search(s, marks[2], behind + 1) end
      if not last then break end
      out[#out + 1], from = s:sub(from, first - 1), last + 1
    end
    s = table.concat(out) .. s:sub(from)
  end
  s = table.concat(split_words(s, -1), " ")
  return (s:gsub("&(#?)([xX]?)(%w+);", function(sign, hex, name)
    if sign == "" then
      return entities[hex .. name] or fail("striptags: the entity '&%s;' is not known", hex .. name)
    end
    local n = tonumber(name, hex ~= "" and 16 or 10)
    return n and n > 0 and n <= 0x10ffff and unicode.char(n) or nil
  end))
end

local function quoted_url(v, in_query)
  local s = text(v):gsub(in_query and "[^%w_.~ -]" or "[^%w_.~/-]", function(c) return ("%%%02X"):format(c:byte()) end)
  return in_query and s:gsub(" ", "+") .. "" or s
end

local function urlencode(v)
  local pairs_of = is(v, Dict) and methods[Dict].items[2](v) or is(v, List) and v
  if not pairs_of then return quoted_url(v) end
  local out = {}
  for i, pair in ipairs(pairs_of) do
    local parts = items(pair, "urlencode")
    if #parts ~= 2 then fail "urlencode: expected pairs of a name and a value" end
    out[i] = quoted_url(parts[1], true) .. "=" .. quoted_url(parts[2], true)
  end
  return table.concat(out, "&")
end

local function xmlattr(v, space)
  local out = {}
  for _, pair in ipairs(F.pairs(is(v, Undefined) and wrong(v) or v)) do
    if pair[2] ~= NONE and not is(pair[2], Undefined) then
      if text(pair[1]):find "[%s/>=]" then fail("xmlattr: '%s' is no name of an attribute", text(pair[1])) end
      out[#out + 1] = ('%s="%s"'):format(escaped(pair[1]), escaped(pair[2]))
    end
  end
  local s = table.concat(out, " ")
  return (s ~= "" and (space == nil or truth(space)) and " " or "") .. s
end

local function attr(v, name)
  if is(v, Dict) then return V.method(v, string_of(name, "attr")) or undefined(name) end
  return V.attribute(v, string_of(name, "attr"))
end

F.filters = {
  attr = { { "name" }, attr },
  batch = { { "linecount", "fill_with" }, batch }, slice = { { "slices", "fill_with" }, slices },
  center = { { "width" }, function(v, width) return centered(text(v), width) end },
  filesizeformat = { { "binary" }, filesize },
  format = { nil, function(v, args, kwargs)
    if #args > 0 and #kwargs > 0 then fail "format: expected values by place or by name, not both" end
    args.tuple = true
    if #kwargs == 0 then return format.percent(text(v), list(args)) end
    local named = V.dict()
    for _, key in ipairs(kwargs) do V.put(named, key, kwargs[key]) end
    return format.percent(text(v), named)
  end },
  groupby = { { "attribute", "default", "case_sensitive" }, groupby },
  striptags = { {}, striptags },
  truncate = { { "length", "killwords", "end", "leeway" }, truncate },
  urlencode = { {}, urlencode }, xmlattr = { { "autospace" }, xmlattr }, wordcount = { {}, wordcount },
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
  escape = { {}, escaped }, forceescape = { {}, escaped },
  int = { { "default", "base" }, to_int }, float = { { "default" }, to_float },
  round = { { "precision", "method" }, round },
  abs = { {}, function(v)
    local x = math.abs(number(v) or wrong(v, "abs of %s", kind(v)))
    return V.is_float(v) and V.float(x) or x
  end },
  unique = { { "case_sensitive", "attribute" }, unique },
  sort = { { "reverse", "case_sensitive", "attribute" }, function(v, reverse, sensitive, path)
    return sorted(items(v, "sort"), key_of(path, sensitive), reverse)
  end },
  dictsort = { { "case_sensitive", "by", "reverse" }, function(v, sensitive, by, reverse)
    return sorted(F.pairs(is(v, Undefined) and wrong(v) or v), key_of(by == "value" and 1 or 0, sensitive), reverse)
  end },
  reverse = { {}, function(v)
    return V.slice(type(v) == "string" and v or joined(items(v, "reverse"), {}), nil, nil, -1)
  end },
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
for name, why in each { random = "a text must come out the same each time", pprint = "use tojson",
  urlize = "it is for web pages", wordwrap = "it is for pages of text" } do
  F.filters[name] = { nil, function() fail("the filter '%s' is not supported: %s", name, why) end }
end

--- value | name(args)
function F.filter(v, name, args, kwargs)
  local f = F.filters[name] or fail("there is no filter '%s'", name)
  V.visit(v)
  if not f[1] then return f[2](v, args, kwargs) end
  return f[2](v, unpack(V.bind(name, f[1], args, kwargs), 1, #f[1]))
end

return F
