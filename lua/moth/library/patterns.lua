--- Shape rules as patterns, of ops that are defined at run time: dims = { x = "N *", weight = "N : x" }, out = "N *".
-- The language is that of the op table's records, and so is its parser (src/ops/patterns.lua). Here patterns are
-- matched and expressions computed when the op is called.
local B = require "moth_lua"
local check = require "moth.utils.check"
local each = require "moth.each"
local patterns = require "moth.records.patterns"
local M = {}

local function shape_text(sizes) return "[" .. table.concat(sizes, ", ") .. "]" end

local function same(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do if a[i] ~= b[i] then return false end end
  return true
end

-- A pattern with the sizes that are known; only its words, with `plain`.
local function pattern_text(words, known, plain)
  local parts = {}
  for _, word in ipairs(words) do
    local value = not plain and known[word.name or word.star]
    if type(value) == "table" then
      for _, size in ipairs(value) do parts[#parts + 1] = tostring(size) end
    else
      parts[#parts + 1] = value and tostring(value) or word.text
    end
  end
  return shape_text(parts)
end

-- The value of an expression of the rule.
local function compute(f, text) return (f.graph.evaluate(f.op, text, f.values, f.kinds)) end

-- Notes in f.values what the names of a pattern stand for in sizes.
local function match(f, input, sizes)
  local name, words, known = input.arg.name, input.words, f.values
  local count, open, all = 0, nil, true
  local extent = {}
  for i, word in ipairs(words) do
    local value = known[word.name or word.star]
    extent[i] = 1
    if word.length then extent[i] = compute(f, word.length)
    elseif word.star then extent[i] = value and #value end
    if word.star and not extent[i] then open, extent[i] = i, 0 end
    all = all and (value or word.number) ~= nil
    count = count + extent[i]
  end
  local most = not open and count or words[open].one and count + 1 or math.huge
  if #sizes < count or #sizes > most then
    if all then
      check.fail("[%s] %s must have the shape %s, got %s", f.op.name, name, pattern_text(words, known),
        shape_text(sizes))
    end
    local number = most == math.huge and "at least " .. count or most > count and count .. " or " .. most
      or tostring(count)
    local plural = (most == 1 or (most == math.huge and count == 1)) and "" or "s"
    check.fail("[%s] %s must have %s dimension%s, %s, got %s", f.op.name, name, number, plural,
      pattern_text(words, known, true), shape_text(sizes))
  end
  if open then extent[open] = #sizes - count end
  local at, before = 0, setmetatable({}, { __index = known })
  for i, word in ipairs(words) do
    local key = word.name or word.star
    local value = word.star and { unpack(sizes, at + 1, at + extent[i]) } or sizes[at + 1]
    at = at + extent[i]
    local wanted = word.number or before[key]
    if wanted == nil then
      before[key] = value
      f.from[key] = f.from[key] or name
    elseif type(wanted) == "table" and not same(wanted, value) or type(wanted) ~= "table" and wanted ~= value then
      local from = key and f.from[key]
      local reason = not from and "" or word.star and ("; the dimensions %s are those of %s"):format(word.text, from)
        or ("; %s = %d as in %s"):format(word.text, wanted, from)
      local text = pattern_text(words, from == name and before or known)
      check.fail("[%s] %s must have the shape %s, got %s%s", f.op.name, name, text, shape_text(sizes), reason)
    end
  end
  for key, value in each(before) do known[key] = value end
end

local function match_dtype(f, input, t)
  local wanted, own = input.dtype, B.tensor_dtype(t).name
  local other = f.op.index[wanted]
  if other then
    local theirs = B.tensor_dtype(f.values[wanted]).name
    if own ~= theirs then
      check.fail("[%s] %s and %s must have the same dtype, got %s and %s", f.op.name, wanted, input.arg.name, theirs,
        own)
    end
  elseif wanted == "inexact" then
    local class = f.graph.class_of(t)
    if class ~= "float" and class ~= "complex" then
      check.fail("[%s] %s must have a float or complex dtype, got %s", f.op.name, input.arg.name, own)
    end
  elseif (patterns.is_class(wanted) and f.graph.class_of(t) or own) ~= wanted then
    check.fail("[%s] %s must have %s %s dtype, got %s", f.op.name, input.arg.name,
      patterns.is_class(wanted) and "a" or "the", wanted, own)
  end
end

-- Lists of tensors: as many as the first has, or none, and each tensor matched with those at its place.
local function match_lists(f, lists)
  local first = lists[1] and f.values[lists[1].arg.name] or {}
  for _, input in ipairs(lists) do
    local list = f.values[input.arg.name] or {}
    if #list ~= 0 and #list ~= #first then
      check.fail("[%s] %s must be as many as %s: expected %d, got %d", f.op.name, input.arg.name, lists[1].arg.name,
        #first, #list)
    end
  end
  local all = f.values
  for k = 1, #first do
    f.values = setmetatable({}, { __index = all }) -- what is bound holds for this place
    for _, input in ipairs(lists) do
      local t = (all[input.arg.name] or {})[k]
      if t then
        match(f, input, B.size(t))
        f.values[input.arg.name] = t
        if input.dtype then match_dtype(f, input, t) end
      end
    end
  end
  f.values = all
end

local function match_all(f, inputs)
  for _, input in ipairs(inputs) do
    local v = f.values[input.arg.name]
    if B.is_tensor(v) then
      match(f, input, B.size(v))
      if input.dtype then match_dtype(f, input, v) end
    elseif type(v) == "table" then
      match(f, input, v)
    end
  end
end

local function conditions(f, checks)
  for _, c in ipairs(checks) do
    if type(c) == "string" then
      compute(f, c) -- fails itself
    elseif not compute(f, c[1]) then
      check.fail("[%s] %s", f.op.name, (c[2]:gsub("{(.-)}", function(text)
        local v, a = compute(f, text), f.op.index[text]
        if a and (a.type == "DIM" or a.type == "INDEX") and v >= 0 then v = v + 1 end -- as the caller counts
        return type(v) == "table" and shape_text(v) or tostring(v)
      end)))
    end
  end
end

local function result(f, output)
  local sizes = { dtype = output.dtype }
  if output.dtype and not patterns.dtypes[output.dtype] then
    local v = f.values[output.dtype]
    sizes.dtype = B.is_tensor(v) and B.tensor_dtype(v).name or compute(f, output.dtype)
  end
  for _, word in ipairs(output.words) do
    local value = word.number or f.values[word.name or word.star]
    if word.expression then value = compute(f, word.expression) end
    for _, size in ipairs(type(value) == "table" and value or { value }) do sizes[#sizes + 1] = size end
  end
  return sizes
end

-- The names of a rule as kinds of values, for the graphs of its expressions.
local function kinds_of(rule)
  local kinds, names = { pure = true }, {}
  for name, known in each(rule.names) do
    if not known.element then
      kinds[name] = known.kind
      names[#names + 1] = name .. "=" .. known.kind
    end
  end
  table.sort(names)
  kinds.key = "shape " .. table.concat(names, " ")
  return kinds
end

--- The shape rule of an op: a function of the arguments that returns { size …, dtype = } for each result. An error says
-- what is wrong in its patterns.
function M.rule(op)
  local ok, rule = pcall(patterns.read, op)
  if not ok then error(op.name .. ": " .. rule, 0) end
  local graph = require "moth.records.graph"
  local kinds = kinds_of(rule)
  local function read(what, text)
    local fine, err = pcall(graph.check, op, text, kinds)
    if not fine then error(("%s: %s: %s"):format(op.name, what, err), 0) end
  end
  for _, inputs in ipairs { rule.inputs, rule.later, rule.lists } do
    for _, input in ipairs(inputs) do
      for _, word in ipairs(input.words) do if word.length then read("dims." .. input.arg.name, word.length) end end
    end
  end
  for _, let in ipairs(rule.lets) do read("let " .. let.name, let.text) end
  for _, c in ipairs(op.check or {}) do
    read("check", type(c) == "string" and c or c[1])
    if type(c) == "table" then for text in c[2]:gmatch("{(.-)}") do read("check", text) end end
  end
  for _, output in ipairs(rule.outputs) do
    for _, word in ipairs(output.words) do if word.expression then read("out", word.expression) end end
    if output.dtype and not patterns.dtypes[output.dtype] then read("out", output.dtype) end
  end
  return function(...)
    local given = {}
    for i, a in ipairs(op.args) do given[a.name] = (select(i, ...)) end
    local values = require("moth.records").canonical(op, given)
    local f = { op = op, graph = graph, kinds = kinds, from = {}, values = values }
    conditions(f, rule.first)
    match_all(f, rule.inputs)
    for _, let in ipairs(rule.lets) do f.values[let.name] = compute(f, let.text) end
    match_all(f, rule.later)
    match_lists(f, rule.lists)
    conditions(f, rule.checks)
    if op.returns_self and #rule.outputs == 0 then return B.size(values[op.args[1].name]) end
    local shapes = {}
    for i, output in ipairs(rule.outputs) do shapes[i] = result(f, output) end
    return unpack(shapes, 1, #rule.outputs)
  end
end

return M
