--- Shapes of results from patterns: dims = { x = "N C *", weight = "C" }, out = "N C *".
--
-- A pattern is a list of words, one for each dimension: a name stands for a size, and the same name for the same size
-- everywhere; a number for itself; `*` (or `*name`) for any dimensions, once in a pattern. Behind those of a result may
-- stand a dtype: "N bool". Several results have a list of patterns.
local B = require "moth_lua"
local check = require "moth.utils.check"
local M = {}

local function words(text)
  local list = {}
  for word in text:gmatch("%S+") do list[#list + 1] = word end
  return list
end

local function star_of(list, where)
  local star
  for i, word in ipairs(list) do
    if word:sub(1, 1) == "*" then
      if star then error(("%s: a pattern has one '*' at most"):format(where), 0) end
      star = i
    elseif not word:find("^%a[%w_]*$") and not word:find("^%d+$") then
      error(("%s: cannot read '%s'; expected a name, a number or '*'"):format(where, word), 0)
    end
  end
  return star
end

local function text_of(sizes) return "[" .. table.concat(sizes, ", ") .. "]" end

-- Notes in `known` what the names of a pattern stand for in sizes.
local function match(op, name, list, star, sizes, known)
  local fixed = #list - (star and 1 or 0)
  if #sizes < fixed or (not star and #sizes > fixed) then
    check.fail("[%s] argument '%s' has shape %s, but the op takes %s", op.name,
      name, text_of(sizes), table.concat(list, " "))
  end
  local at = 0
  for i, word in ipairs(list) do
    if i == star then
      local dims = {}
      for _ = 1, #sizes - fixed do
        at = at + 1
        dims[#dims + 1] = sizes[at]
      end
      local before = known[word]
      if before and text_of(before.value) ~= text_of(dims) then
        check.fail("[%s] argument '%s' has shape %s, whose %s is %s, where '%s' has %s", op.name,
          name, text_of(sizes), word,
          text_of(dims), before.from, text_of(before.value))
      end
      known[word] = known[word] or { value = dims, from = name }
    else
      at = at + 1
      local size, number = sizes[at], tonumber(word)
      local before = known[word]
      if number and size ~= number then
        check.fail("[%s] argument '%s' has shape %s: dimension %d must have size %d", op.name,
          name, text_of(sizes), at, number)
      elseif before and before.value ~= size then
        check.fail("[%s] argument '%s' has size %d in dimension %d, where '%s' has %s = %d; its shape is %s", op.name,
          name, size, at,
          before.from, word, before.value, text_of(sizes))
      end
      if not number then known[word] = before or { value = size, from = name } end
    end
  end
end

local function is_dtype_name(word) return (pcall(B.dtype, word)) end

--- The shape rule that patterns make: a function of the arguments that returns { size …, dtype = } for each result.
function M.rule(op, dims, out)
  local patterns, at = {}, {}
  for i, a in ipairs(op.args) do
    at[a.name] = i
    local text = dims[a.name]
    if text then
      if type(text) ~= "string" or a.type ~= "TENSOR" then
        error(("%s: dims.%s: expected a pattern of a tensor"):format(op.name, a.name), 0)
      end
      local list = words(text)
      patterns[#patterns + 1] = { name = a.name, at = i, list = list, star = star_of(list, "dims." .. a.name) }
    end
  end
  for name in require("moth.each")(dims) do
    if not at[name] then error(("%s: dims names '%s', which is no argument"):format(op.name, tostring(name)), 0) end
  end
  local results = type(out) == "table" and out or { out }
  if #results ~= op.nresults then
    error(("%s: out has %d pattern%s, the schema %d result%s"):format(op.name, #results, #results == 1 and "" or "s",
      op.nresults, op.nresults == 1 and "" or "s"), 0)
  end
  for i, text in ipairs(results) do
    local list, dtype = words(text), nil
    if #list > 0 and is_dtype_name(list[#list]) then dtype = table.remove(list) end
    star_of(list, "out")
    results[i] = { list = list, dtype = dtype }
  end
  return function(...)
    local known, shapes = {}, {}
    for _, p in ipairs(patterns) do
      local t = (select(p.at, ...))
      if t ~= nil then match(op, p.name, p.list, p.star, B.size(t), known) end
    end
    for i, r in ipairs(results) do
      local sizes = { dtype = r.dtype }
      for _, word in ipairs(r.list) do
        local value = tonumber(word) or known[word] and known[word].value
        if value == nil then
          check.fail("[%s] the size %s of result %d is known from no argument", op.name, word, i)
        end
        for _, size in ipairs(type(value) == "table" and value or { value }) do sizes[#sizes + 1] = size end
      end
      shapes[i] = sizes
    end
    return unpack(shapes)
  end
end

return M
