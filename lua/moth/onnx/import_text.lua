--- ONNX's operators on texts: values { kind = "strings", shape, n, … }.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local regex = require "moth.data.regex"
local import = require "moth.onnx.import"
local rule = import.rule
local OWN = { any = true }

local M = {}

local function texts(shape, list)
  local out, n = { kind = "strings", shape = shape }, 1
  for _, d in ipairs(shape) do n = n * d end
  out.n = n
  for i = 1, n do out[i] = list[i] end
  return out
end

-- Elements of a and b where they are broadcast over each other: fn(at, i, j), from 1; returns the shape.
local function broadcast(c, a, b, fn)
  local shape, n = {}, math.max(#a.shape, #b.shape)
  local total = 1
  for i = 1, n do
    local p, q = a.shape[i - n + #a.shape] or 1, b.shape[i - n + #b.shape] or 1
    if p ~= q and p ~= 1 and q ~= 1 then c:fail("the shapes cannot be broadcast together") end
    shape[i] = p == 1 and q or p
    total = total * shape[i]
  end
  local function place(v, at)
    local index, stride = 0, 1
    for i = n, 1, -1 do
      local here, size = at % shape[i], v.shape[i - n + #v.shape]
      at = (at - here) / shape[i]
      if size then
        if size ~= 1 then index = index + here * stride end
        stride = stride * size
      end
    end
    return index + 1
  end
  for at = 0, total - 1 do fn(at + 1, place(a, at), place(b, at)) end
  return shape
end

local function bools(list, shape)
  if #list == 0 then return moth.zeros(shape, { dtype = moth.bool }) end
  return moth.tensor(list):to(moth.bool):reshape(shape)
end

function M.equal(c, a, b)
  local list = {}
  local shape = broadcast(c, a, b, function(at, i, j) list[at] = a[i] == b[j] and 1 or 0 end)
  return bools(list, shape)
end

function M.where(condition, a, b)
  local flags = condition:reshape({ -1 }):totable()
  local list = {}
  for i = 1, a.n do list[i] = flags[i] and a[i] or b[i] end
  return texts(a.shape, list)
end

function M.reshape(v, shape)
  local known, open, out = 1, nil, {}
  for i, n in ipairs(shape) do
    out[i] = n
    if n == -1 then open = i else known = known * n end
  end
  if open then out[open] = v.n / known end
  return texts(out, v)
end

-- Texts as numbers, and the other way round.
function M.numbers(c, v, name)
  if name == "string" then return v end
  local list = {}
  for i = 1, v.n do
    local s = v[i]:lower()
    local sign = s:sub(1, 1) == "-" and -1 or 1
    local word = s:gsub("^[+-]", "")
    local n = (word == "inf" or word == "infinity") and sign * math.huge or word == "nan" and 0 / 0 or tonumber(v[i])
    list[i] = n or c:fail("'%s' is no number", v[i])
  end
  if #list == 0 then return moth.zeros(v.shape, { dtype = B.dtype(name) }) end
  return import.tensor(list, "float64"):to(B.dtype(name)):reshape(v.shape)
end

local function text_of(v, integer)
  if v == true then return "True" elseif v == false then return "False" end
  if v ~= v then return "NaN" elseif v == math.huge then return "INF" elseif v == -math.huge then return "-INF" end
  if integer then return ("%d"):format(v) end
  if v == math.floor(v) and math.abs(v) < 1e15 then return ("%.1f"):format(v) end
  return nil
end

function M.texts(c, x)
  local list, out, integer = c:list(x), {}, not x:is_floating_point()
  local digits = x:dtype() == moth.float64 and 17 or 9
  for i, v in ipairs(list) do
    out[i] = text_of(v, integer)
    for precision = 1, out[i] and 0 or digits do -- the shortest text that is this number
      out[i] = ("%%.%dg"):format(precision):format(v)
      local again = moth.tensor(tonumber(out[i]), { dtype = x:dtype() }):item()
      if again == v then break end
    end
  end
  return texts(x:size(), out)
end

function M.gather(c, v, index)
  local list, out = c:list(index), {}
  local width = v.n / math.max(v.shape[1] or 1, 1)
  if (c.axis or 0) ~= 0 then c:fail("of texts along axis %d", c.axis) end
  for _, i in ipairs(list) do
    if i < 0 then i = i + v.shape[1] end
    for k = 1, width do out[#out + 1] = v[i * width + k] end
  end
  local shape = {}
  for i, n in ipairs(index:size()) do shape[i] = n end
  for i = 2, #v.shape do shape[#shape + 1] = v.shape[i] end
  return texts(shape, out)
end

function M.concat(c, axis, ...)
  local first = ...
  if axis ~= 0 and axis ~= -#first.shape then c:fail("of texts along axis %d", axis) end
  local out, rows, shape = {}, 0, {}
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    rows = rows + v.shape[1]
    for k = 1, v.n do out[#out + 1] = v[k] end
  end
  for i, n in ipairs(first.shape) do shape[i] = i == 1 and rows or n end
  return texts(shape, out)
end

rule("StringConcat", function(c, a, b)
  local list = {}
  local shape = broadcast(c, a, b, function(at, i, j) list[at] = a[i] .. b[j] end)
  return texts(shape, list)
end, OWN)

-- Patterns are RE2's: near to Python's, but for \pL, \z and (?<name>…); \w, \d and \s are those of ASCII in both.
rule("RegexFullMatch", "pattern", function(c, v)
  local pattern = (c.pattern or ""):gsub("\\(.)(%a?)", function(kind, name)
    if kind == "z" then return "\\Z" .. name end
    return kind:lower() == "p" and name ~= "" and ("\\%s{%s}"):format(kind, name) or nil
  end):gsub("%(%?<(%a)", "(?P<%1")
  local find, why = regex.compile("(?a:\\A(?:" .. pattern .. ")\\Z)", "onnx.RegexFullMatch", "Python")
  if not find then c:fail("the pattern '%s': %s", c.pattern, why) end
  local list = {}
  for i = 1, v.n do list[i] = find(ffi.cast("const uint8_t *", v[i]), 0, #v[i]) and 1 or 0 end
  return bools(list, v.shape)
end, OWN)

rule("StringSplit", "delimiter maxsplit", function(c, v)
  local rows, most, counts = {}, 0, {}
  for i = 1, v.n do
    local parts, s = {}, v[i]
    if c.delimiter == nil or c.delimiter == "" then
      local at = s:find("%S")
      while at do
        local stop = s:find("%s", at)
        if not stop or c.maxsplit and #parts >= c.maxsplit then
          parts[#parts + 1] = s:sub(at)
          break
        end
        parts[#parts + 1] = s:sub(at, stop - 1)
        at = s:find("%S", stop)
      end
    else
      local at = 1
      while true do
        local from, to = s:find(c.delimiter, at, true)
        if not from or c.maxsplit and #parts >= c.maxsplit then
          parts[#parts + 1] = s:sub(at)
          break
        end
        parts[#parts + 1] = s:sub(at, from - 1)
        at = to + 1
      end
    end
    rows[i], counts[i] = parts, #parts
    most = math.max(most, #parts)
  end
  local list, shape = {}, {}
  for _, parts in ipairs(rows) do
    for k = 1, most do list[#list + 1] = parts[k] or "" end
  end
  for i, n in ipairs(v.shape) do shape[i] = n end
  shape[#shape + 1] = most
  return texts(shape, list), #counts > 0 and import.tensor(counts, "int64"):reshape(v.shape)
    or moth.zeros(v.shape, { dtype = moth.int64 })
end, OWN)

rule("StringNormalizer", "case_change_action='NONE' is_case_sensitive=0 locale stopwords", function(c, v)
  local action, stops = c.case_change_action, {}
  local function changed(s)
    if action == "LOWER" then return s:lower() elseif action == "UPPER" then return s:upper() end
    return s
  end
  local function key(s) return c.is_case_sensitive == 1 and s or s:lower() end
  for _, s in ipairs(c.stopwords or {}) do stops[key(s)] = true end
  local list, shape = {}, {}
  for i = 1, v.n do
    if v[i]:find("[\128-\255]") and action ~= "NONE" then c:fail("a text with letters beyond ASCII") end
    if not stops[key(v[i])] then list[#list + 1] = changed(v[i]) end
  end
  if #list == 0 then list[1] = "" end
  for i, n in ipairs(v.shape) do shape[i] = n end
  shape[#shape] = #list
  return texts(shape, list)
end, OWN)

local MOST = 2 ^ 26 -- elements of the result of TfIdfVectorizer

-- What lies behind each n-gram of the pool: trees of { [item] = { id =, … } }.
local function grams(c, pool)
  local tree, id = { next = {} }, 1
  for size, from in ipairs(c.ngram_counts) do
    local to = c.ngram_counts[size + 1] or #pool
    if from < 0 or from > to or to > #pool then
      c:fail("ngram_counts must rise from 0 to the size of the pool, %d: there is %d", #pool, from)
    end
    for at = from, to - size, size do
      if size >= c.min_gram_length and size <= c.max_gram_length then
        local node = tree
        for k = 1, size do
          local item = pool[at + k]
          node.next[item] = node.next[item] or { next = {} }
          node = node.next[item]
        end
        node.id = id
      end
      id = id + 1
    end
  end
  return tree
end

rule("TfIdfVectorizer", "max_gram_length max_skip_count min_gram_length mode ngram_counts ngram_indexes pool_int64s \z
  pool_strings weights", function(c, x)
  local is_text = not B.is_tensor(x)
  local shape, items = is_text and x.shape or x:size(), is_text and x or c:list(x)
  local tree = grams(c, is_text and c.pool_strings or c.pool_int64s)
  local rows, width, size = #shape == 2 and shape[1] or 1, shape[#shape] or 1, 0
  for _, at in ipairs(c.ngram_indexes) do
    size = math.max(size, at + 1)
    if at < 0 or rows * size > MOST then c:fail("the index %d of an n-gram is out of range", at) end
  end
  local counts = {}
  for i = 1, rows * size do counts[i] = 0 end
  for row = 0, rows - 1 do
    local least = c.min_gram_length
    for skip = 1, math.min(c.max_skip_count, width) + 1 do
      for start = 0, width - 1 do
        local node, at, length = tree, start, 1
        while length <= c.max_gram_length and at < width do
          node = node.next[items[row * width + at + 1]]
          if not node then break end
          if length >= least and node.id then
            local place = row * size + c.ngram_indexes[node.id] + 1
            counts[place] = counts[place] + 1
          end
          length, at = length + 1, at + skip
        end
      end
      if least == 1 then -- single items do not depend on the distance
        least = 2
        if least > c.max_gram_length then break end
      end
    end
  end
  local weights = {}
  for k, at in ipairs(c.ngram_indexes) do weights[at] = c.weights and c.weights[k] or 1 end
  for i, n in ipairs(counts) do
    local weight = weights[(i - 1) % size] or 1
    if c.mode == "IDF" then counts[i] = n > 0 and weight or 0
    elseif c.mode == "TFIDF" then counts[i] = n * weight
    end
  end
  local out = #counts > 0 and import.tensor(counts, "float32") or moth.zeros { 0 }
  return out:reshape(#shape == 2 and { rows, size } or { size })
end, { any = true, numbers = 1 })

return M
