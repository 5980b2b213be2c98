--- Regular expressions of tokenizer.json files over UTF-8: those of Oniguruma (Ruby's syntax) as far as such files use
-- them: literals, classes (nested, &&, ranges, \p{…}), groups, alternatives, greedy, lazy and possessive repeats, looks
-- ahead and behind, anchors, (?i). No captures, no references.
--
-- A pattern becomes a tree of nodes, and the tree functions (i) -> end or nil that call the one for what follows:
-- backtracking. A pattern is a stranger's: the steps of one search are counted.
local ffi = require "ffi"
local check = require "moth.utils.check"
local each = require "moth.each"
local forms = require "moth.data.forms"
local unicode = require "moth.data.unicode"

local M = {}

local decode = unicode.decode
local MOST_STEPS = 5e6 -- of one search
local BEHIND = 64 -- bytes that (?<=…) looks back at most

-- What is searched: n bytes at p. One search at a time.
local p, n, steps, source

local function step()
  steps = steps + 1
  if steps > MOST_STEPS then check.fail("[data.Tokenizer] the pattern %s takes too many steps", source) end
end

-- ---- sets of characters ------------------------------------------------------------------------------

-- A set is a function (code point or -1) -> bool.
local function none(set) return function(c) return not set(c) end end
local function both(a, b) return function(c) return a(c) and b(c) end end
local function either(list)
  if #list == 1 then return list[1] end
  return function(c)
    for k = 1, #list do
      if list[k](c) then return true end
    end
    return false
  end
end
local function between(a, b) return function(c) return c >= a and c <= b end end

local function of_categories(names)
  local table_of, numbers = unicode.categories()
  local has = ffi.new("bool[?]", #numbers + 1)
  for k in each(forms.set(names)) do has[k] = true end
  return function(c) return c >= 0 and has[table_of[c]] end
end

local function of_script(name)
  local first, last = {}, {}
  if not unicode.each_of_script(name, function(a, b) first[#first + 1], last[#last + 1] = a, b end) then return nil end
  return function(c)
    local low, high = 1, #first
    while low <= high do
      local middle = math.floor((low + high) / 2)
      if c > last[middle] then
        low = middle + 1
      elseif c < first[middle] then
        high = middle - 1
      else
        return true
      end
    end
    return false
  end
end

local function space(c) return c >= 0 and unicode.is_space(c) end
local named = {
  alpha = "L M Nl", digit = "Nd", alnum = "L M Nl Nd", upper = "Lu", lower = "Ll", punct = "P S", cntrl = "Cc",
}

local words_set
local function word() -- letters, marks, digits, connectors, and letters in circles
  words_set = words_set or either { of_categories "L M Nd Nl Pc", between(0x24b6, 0x24e9), between(0x1f130, 0x1f149),
    between(0x1f150, 0x1f169), between(0x1f170, 0x1f189) }
  return words_set
end
--- Whether a code point is of a word.
function M.is_word(c) return c >= 0 and word()(c) end

-- With its other cases: a letter matches those of the same lower case.
local function any_case(set)
  local function small(c)
    return c == 0x17f and 0x73 or c == 0x212a and 0x6b or c >= 0 and forms.lower_point(c) or c
  end
  return function(c)
    if set(c) then return true end
    local low = small(c)
    if low ~= c and set(low) then return true end
    local up = forms.upper_point(low)
    return up ~= nil and set(up) or low == 0x73 and set(0x17f) or low == 0x6b and set(0x212a)
  end
end

-- ---- reading -----------------------------------------------------------------------------------------

-- A reader: text, at (the byte to be read), icase.
local function wrong(r, what) error({ regex = what .. (" at its byte %d"):format(r.at) }, 0) end

local function peek(r, s) return r.text:sub(r.at, r.at + #s - 1) == s end
local function accept(r, s)
  if not peek(r, s) then return false end
  r.at = r.at + #s
  return true
end

local function next_point(r)
  local c, after = decode(ffi.cast("const uint8_t *", r.text), r.at - 1, #r.text)
  if c < 0 then wrong(r, "a byte that is no UTF-8") end
  r.at = after + 1
  return c
end

local function property(r, negative)
  local caret, name = r.text:match("^{(%^?)([%w_ ]+)}", r.at)
  if not name then
    name = r.text:match("^%a", r.at)
    if not name then wrong(r, "\\p without a name") end
    r.at = r.at + 1
  else
    r.at = r.at + #caret + #name + 2
  end
  local group = name:lower():gsub("[ _]", "")
  local known = group == "space" or group == "whitespace"
  local set
  if known then
    set = space
  elseif named[group] then
    set = of_categories(named[group])
  elseif unicode.category(name) then
    set = of_categories(name)
  else
    set = of_script(name:sub(1, 1):upper() .. name:sub(2):lower())
  end
  if not set then wrong(r, "a property that is not known, " .. name .. ",") end
  if caret == "^" then negative = not negative end
  return negative and none(set) or set
end

local controls = { n = 10, r = 13, t = 9, f = 12, v = 11, a = 7, e = 27 }

-- Behind a backslash: a code point, or a set.
local function escape(r)
  local c = r.text:sub(r.at, r.at)
  if c == "" then wrong(r, "a backslash at the end") end
  if not c:find "%w" then return next_point(r) end
  r.at = r.at + 1
  if controls[c] then return controls[c] end
  if c == "s" then return nil, space end
  if c == "S" then return nil, none(space) end
  if c == "d" then return nil, of_categories "Nd" end
  if c == "D" then return nil, none(of_categories "Nd") end
  if c == "w" then return nil, word() end
  if c == "W" then return nil, none(word()) end
  if c == "p" or c == "P" then return nil, property(r, c == "P") end
  if c == "x" or c == "u" then
    local hex = r.text:match("^{(%x+)}", r.at)
    if hex then
      r.at = r.at + #hex + 2
    else
      hex = r.text:match(c == "u" and "^%x%x%x%x" or "^%x%x?", r.at)
      if not hex then wrong(r, "\\" .. c .. " without digits") end
      r.at = r.at + #hex
    end
    return tonumber(hex, 16)
  end
  wrong(r, "\\" .. c .. ", which is not known,")
end

local function class(r) -- behind its [
  local negative, list, all = accept(r, "^"), {}, nil
  local function join()
    local set = #list > 0 and either(list) or function() return false end
    all, list = all and both(all, set) or set, {}
  end
  local first = true
  while first or not peek(r, "]") do
    first = false
    if r.at > #r.text then wrong(r, "a [ without ]") end
    local posix_not, posix = r.text:match("^%[:(%^?)(%a+):%]", r.at)
    if posix then
      r.at = r.at + #posix_not + #posix + 4
      local set = posix == "space" and space or posix == "word" and word()
        or named[posix] and of_categories(named[posix])
      if not set then wrong(r, "[:" .. posix .. ":], which is not known,") end
      list[#list + 1] = posix_not == "^" and none(set) or set
    elseif accept(r, "[") then
      list[#list + 1] = class(r)
    elseif accept(r, "&&") then
      join()
    else
      local c, set
      if accept(r, "\\") then c, set = escape(r) else c = next_point(r) end
      if set then
        list[#list + 1] = set
      else
        local last = c
        if peek(r, "-") and not peek(r, "-]") and not peek(r, "-[") then
          r.at = r.at + 1
          if accept(r, "\\") then last, set = escape(r) else last = next_point(r) end
          if set or last < c then wrong(r, "a range that is none") end
        end
        list[#list + 1] = between(c, last)
      end
    end
  end
  r.at = r.at + 1
  join()
  if r.icase then all = any_case(all) end
  return negative and none(all) or all
end

local alternatives

local function group(r) -- behind its (
  local icase, node = r.icase
  if accept(r, "?") then
    local kind
    for _, name in ipairs { ":", "=", "!", "<=", "<!", ">" } do
      if accept(r, name) then
        kind = name
        break
      end
    end
    if not kind then
      local on, off, behind = r.text:match("^(%a*)%-?(%a*)([:)])", r.at)
      if not on or (on .. off):find "[^i]" then wrong(r, "a group (? that is not known") end
      r.icase = on == "i" or off == "" and r.icase
      r.at = r.text:find("[:)]", r.at) + 1
      if behind == ")" then return { "list" } end -- for the rest of the group around it
      kind = ":"
    end
    node = alternatives(r)
    if kind == "=" or kind == "!" then node = { "ahead", node, kind == "!" } end
    if kind == "<=" or kind == "<!" then node = { "behind", node, kind == "<!" } end
    if kind == ">" then node = { "atomic", node } end
  else
    node = alternatives(r)
  end
  if not accept(r, ")") then wrong(r, "a ( without )") end
  r.icase = icase
  return node
end

local anchors = { A = "first", z = "last", Z = "last line", b = "edge", B = "no edge" }

local function atom(r)
  if accept(r, "(") then return group(r) end
  if accept(r, "[") then return { "set", class(r) } end
  if accept(r, ".") then return { "set", function(c) return c ~= 10 end } end
  if accept(r, "^") then return { "at", "line" } end
  if accept(r, "$") then return { "at", "line end" } end
  if accept(r, "\\") then
    local place = anchors[r.text:sub(r.at, r.at)]
    if place then
      r.at = r.at + 1
      return { "at", place }
    end
    local c, set = escape(r)
    set = set or between(c, c)
    return { "set", r.icase and any_case(set) or set, char = not r.icase and c }
  end
  if r.text:find("^[*+?]", r.at) then wrong(r, "nothing to repeat") end
  local c = next_point(r)
  local set = between(c, c)
  return { "set", r.icase and any_case(set) or set, char = not r.icase and c }
end

local function repeats(r, node)
  while true do
    local least, most, counted
    if accept(r, "*") then
      least, most = 0, math.huge
    elseif accept(r, "+") then
      least, most = 1, math.huge
    elseif accept(r, "?") then
      least, most = 0, 1
    else
      local a, comma, b = r.text:match("^{(%d*)(,?)(%d*)}", r.at)
      if not a or a == "" and b == "" then return node end
      r.at = r.text:find("}", r.at, true) + 1
      least, counted = tonumber(a) or 0, true
      most = comma == "" and least or tonumber(b) or math.huge
      if most < least or least > 1000 then wrong(r, "a count of repeats that is none") end
    end
    local lazy = accept(r, "?")
    local possessive = not lazy and not counted and accept(r, "+") -- x{2}+ is a repeat of x{2}
    node = { "repeat", node, least, most, lazy }
    if possessive then node = { "atomic", node } end
  end
end

function alternatives(r)
  local all, icase = { "either" }, r.icase
  r.depth = (r.depth or 0) + 1
  if r.depth > 100 then wrong(r, "groups that are too deep") end
  repeat
    local list = { "list" }
    while r.at <= #r.text and not peek(r, "|") and not peek(r, ")") do list[#list + 1] = repeats(r, atom(r)) end
    all[#all + 1] = #list == 2 and list[2] or list
  until not accept(r, "|")
  r.icase, r.depth = icase, r.depth - 1
  return #all == 2 and all[2] or all
end

-- ---- functions ---------------------------------------------------------------------------------------

local build = {}
local function compile(node, k) return build[node[1]](node, k) end

-- Whether a set has the character at i; where the next one begins.
local function tester(set)
  local ascii = ffi.new("bool[128]")
  for c = 0, 127 do ascii[c] = set(c) end
  return function(i)
    local b = p[i]
    if b < 128 then return ascii[b], i + 1 end
    local c, after = decode(p, i, n)
    return set(c), after
  end
end

-- Where the character before i begins, as decode cut it.
local function before(i)
  local j = i - 1
  if p[j] < 0x80 or p[j] > 0xbf then return j end
  for k = j - 1, math.max(j - 3, 0), -1 do
    if p[k] < 0x80 or p[k] > 0xbf then
      local c, after = decode(p, k, n)
      return c >= 0 and after == i and k or j
    end
  end
  return j
end

function build.set(node, k)
  local test = tester(node[2])
  return function(i)
    if i >= n then return nil end
    local yes, after = test(i)
    if yes then return k(after) end
  end
end

function build.list(node, k)
  for at = #node, 2, -1 do k = compile(node[at], k) end
  return k
end

function build.either(node, k)
  local all = {}
  for at = 2, #node do all[#all + 1] = compile(node[at], k) end
  return function(i)
    step()
    for at = 1, #all do
      local j = all[at](i)
      if j then return j end
    end
  end
end

-- Of one set: a loop, without a call for each character.
local function repeat_set(node, k)
  local test, least, most, lazy = tester(node[2][2]), node[3], node[4], node[5]
  if lazy then
    return function(i)
      local count = 0
      while true do
        if count >= least then
          step()
          local j = k(i)
          if j then return j end
        end
        if count == most or i >= n then return nil end
        local yes, after = test(i)
        if not yes then return nil end
        i, count = after, count + 1
      end
    end
  end
  return function(i)
    local count = 0
    while count < most and i < n do
      local yes, after = test(i)
      if not yes then break end
      i, count = after, count + 1
    end
    while count >= least do
      step()
      local j = k(i)
      if j then return j end
      if count == 0 then return nil end
      i, count = before(i), count - 1
    end
  end
end

build["repeat"] = function(node, k)
  if node[2][1] == "set" then return repeat_set(node, k) end
  local least, most, lazy = node[3], node[4], node[5]
  local count, last = 0, -1 -- of the run that is going on
  local body
  local function on(i)
    local mine, from = count, last
    local function more()
      if mine >= most or mine >= least and i == from then return nil end
      count, last = mine + 1, i
      local j = body(i)
      count, last = mine, from
      return j
    end
    step()
    if lazy and mine >= least then return k(i) or more() end
    local j = more()
    if not j and mine >= least then j = k(i) end
    return j
  end
  body = compile(node[2], on)
  return function(i)
    local mine, from = count, last
    count, last = 0, -1
    local j = on(i)
    count, last = mine, from
    return j
  end
end

local function itself(i) return i end

function build.atomic(node, k)
  local inner = compile(node[2], itself)
  return function(i)
    local j = inner(i)
    return j and k(j)
  end
end

function build.ahead(node, k)
  local inner, negative = compile(node[2], itself), node[3]
  return function(i)
    if (inner(i) == nil) == negative then return k(i) end
  end
end

function build.behind(node, k)
  local stop
  local inner, negative = compile(node[2], function(i) return i == stop and i or nil end), node[3]
  return function(i)
    local outer, found = stop, false
    stop = i
    for j = i, math.max(i - BEHIND, 0), -1 do
      if inner(j) then
        found = true
        break
      end
    end
    stop = outer
    if found ~= negative then return k(i) end
  end
end

local function is_word(i)
  if i < 0 or i >= n then return false end
  return word()((decode(p, i, n)))
end
local function edge(i) return (i > 0 and is_word(before(i))) ~= is_word(i) end
local places = {
  line = function(i) return i == 0 or p[i - 1] == 10 and i < n end,
  ["line end"] = function(i) return i == n or p[i] == 10 end,
  first = function(i) return i == 0 end,
  last = function(i) return i == n end,
  ["last line"] = function(i) return i == n or i == n - 1 and p[i] == 10 end,
  edge = edge,
  ["no edge"] = function(i) return not edge(i) end,
}
function build.at(node, k)
  local here = places[node[2]]
  return function(i)
    if here(i) then return k(i) end
  end
end

--- The search of a pattern: find(p, i, n) gives the first and the end of the first match from place i on in n bytes at
-- p (from 0, the end not included), or nil.
-- @return nil and why, where it is none that is known
function M.compile(pattern)
  local r = { text = pattern, at = 1 }
  local ok, node = pcall(function()
    local all = alternatives(r)
    if r.at <= #pattern then wrong(r, "a ) without (") end
    return all
  end)
  if not ok then
    if type(node) == "table" and node.regex then return nil, node.regex end
    error(node, 0)
  end
  local match = compile(node, itself)
  return function(bytes, i, count)
    p, n, steps, source = bytes, count, 0, pattern
    while i <= n do
      local fine, j = pcall(match, i)
      if not fine then
        if not tostring(j):find "stack overflow" then error(j, 0) end
        check.fail("[data.Tokenizer] the pattern %s nests too deeply in a text of %d bytes", pattern, count)
      end
      if j then return i, j end
      if i >= n then return nil end
      local _, after = decode(p, i, n)
      i = after
    end
  end
end


return M
