-- Reads the op table: parses schemas, checks records, gives each its id. The parser and the checks are installed, too,
-- for ops that are defined at run time.
--
-- A record's keys and their values are listed here; any other is an error of the build, with file and line. So is a
-- tensor argument of a differentiable op without a derivative: it needs a formula, "no" (constant: its gradient is zero
-- everywhere or meaningless) or "unimplemented" (an error when needed). Mask and IndexTensor arguments need none.
local kinds = require "kinds"

local M = {}

M.types = { -- schema type -> MothType
  Tensor = "TENSOR", Mask = "TENSOR", IndexTensor = "TENSOR", Operand = "OPERAND", Scalar = "SCALAR", int = "INT", Dim = "DIM", Index = "INDEX",
  index_base = "INDEX_BASE", float = "FLOAT", bool = "BOOL", ["int[]"] = "INTS", ["Dim[]"] = "DIMS",
  ["Tensor[]"] = "TENSORS", string = "STRING", enum = "ENUM", dtype = "DTYPE", device = "DEVICE", Generator = "GENERATOR",
}

M.families = { "pointwise", "activation", "create", "view", "reduce", "linalg", "decompositions", "index", "sort", "nn", "norm",
  "conv", "conv3d", "attention", "paged", "random", "special", "fft", "near", "places", "statistics", "optim",
  "amp", "collective", "sparse", "quantization" }

local function fail(op, what)
  error(("%s: %s: %s"):format(op.place or "?", op.name or "?", what), 0)
end
M.fail = fail

local function split_args(text)
  local out, depth, from = {}, 0, 1
  for i = 1, #text do
    local c = text:sub(i, i)
    if c == "(" or c == "[" then depth = depth + 1 elseif c == ")" or c == "]" then depth = depth - 1
    elseif c == "," and depth == 0 then out[#out + 1] = text:sub(from, i - 1); from = i + 1 end
  end
  if text:sub(from):match("%S") then out[#out + 1] = text:sub(from) end
  return out
end

-- "int[2]? stride=1 >= 1": parses the range. Returns the argument without it, low, high, whether low is excluded.
local function parse_range(op, text)
  local rest, low, high = text:match("^(.-)%s+in%s*%[(.-),(.-)%]$")
  local operator
  if not rest then
    rest, operator, low = text:match("^(.-)%s+(>=?)%s*(%-?[%d.]+)$")
    high = "inf"
  end
  if not rest then return text end
  low, high = tonumber(low), high == "inf" and math.huge or tonumber(high)
  if not low or not high then fail(op, "cannot read the range of argument '" .. text .. "'") end
  return rest, low, high, operator == ">"
end

-- An argument is `type name`, then, each if it has one: `=default`, a range (`in [low,high]`, `>= low`, `> low`) for
-- numbers and the elements of lists, `of result` (a Dim of the result, which has one dimension more than the first
-- tensor), `repeated` (a Dim[] may name a dimension twice). Types may have `?` (may be none) and `!` (written to).
-- int[2] takes one number for both; its default is a number for both, or the name of another argument.
-- src/dispatch/canonical.c makes arguments canonical by their types.
local function parse_arg(op, text)
  text = text:match("^%s*(.-)%s*$")
  if text == "index_base" then
    return { name = "index_base", type = "INDEX_BASE", written = "index_base", default = "0" }
  end
  local a = {}
  local function word(pattern)
    local rest = text:match("^(.-)%s+" .. pattern .. "$")
    text = rest or text
    return rest ~= nil
  end
  a.repeats, a.of_result = word "repeated", word "of result"
  text, a.low, a.high, a.open = parse_range(op, text)
  local head, default = text:match("^(.-)%s*=%s*(.+)$")
  head = head or text
  local ty, name = head:match("^(%S+)%s+([%a_][%w_]*)$")
  if not ty then fail(op, "cannot read argument '" .. text .. "'") end
  a.name, a.default = name, default
  a.mutated, a.optional = ty:find("!", 1, true) ~= nil, ty:find("?", 1, true) ~= nil
  ty = ty:gsub("[!?]", "")
  local values = ty:match("^enum(%b())$")
  if values then
    a.values, ty = {}, "enum"
    for value in values:gmatch("'([%w_]+)'") do a.values[#a.values + 1] = value end
    if #a.values < 2 then fail(op, "enum of argument '" .. name .. "' needs values, as in enum('mean','sum')") end
  end
  local count = ty:match("^int%[(%d+)%]$")
  if count then a.count, ty = tonumber(count), "int[]" end
  a.type, a.written = M.types[ty], ty
  if not a.type then fail(op, "unknown type '" .. ty .. "'") end
  if a.low and not (a.type == "FLOAT" or a.type == "INT" or a.count) then
    fail(op, ("argument '%s': a range is for int, float and int[n]"):format(name))
  end
  if (a.repeats and a.type ~= "DIMS") or (a.of_result and a.type ~= "DIM") then
    fail(op, ("argument '%s': `repeated` is for Dim[], `of result` for Dim"):format(name))
  end
  if a.values and default and default ~= "none" then
    local known = false
    for _, value in ipairs(a.values) do known = known or default == "'" .. value .. "'" end
    if not known then fail(op, ("the default %s of argument '%s' is none of its values"):format(default, name)) end
  end
  return a
end

local function parse(op)
  local name, args, results = op.schema:match("^([%w_]+)(%b())%s*%->%s*(.+)$")
  if not name then fail(op, "cannot read schema: " .. op.schema) end
  op.name, op.args, op.index = name, {}, {}
  for _, text in ipairs(split_args(args:sub(2, -2))) do
    local a = parse_arg(op, text)
    op.args[#op.args + 1] = a
    a.at = #op.args - 1
    op.index[a.name] = a
  end
  for _, a in ipairs(op.args) do -- int[2] stride=kernel_size
    if a.count and a.default and a.default ~= "none" and not tonumber(a.default) then
      a.like = op.index[a.default]
      if not (a.like and a.like.count == a.count) then
        fail(op, ("the default %s of argument '%s' is no number and no int[%d]"):format(a.default, a.name, a.count))
      end
    end
  end
  op.returns_self = results == "self"
  if results == "()" then
    op.nresults = 0
  elseif results:sub(1, 1) == "(" then
    op.nresults = #split_args(results:sub(2, -2))
  else
    op.nresults = 1
  end
end

-- The line of each record in its file, by its schema.
local function lines_of(path)
  local lines, n = {}, 0
  for line in io.lines(path) do
    n = n + 1
    local schema = line:match('^{%s*"([^"]+)"')
    if schema then lines[schema] = n end
  end
  return lines
end

-- ---- fields of a record ----------------------------------------------------------------------------

local function one_of(...)
  local set, names = {}, table.concat({ ... }, ", ")
  for _, v in ipairs({ ... }) do set[v] = true end
  return function(v) return set[v] == true, "one of: " .. names end
end

local function is(kind) return function(v) return type(v) == kind, "a " .. kind end end
local function flag(v) return v == true, "true, or absent" end

local function dtype_classes(v)
  local known = { float = true, int = true, bool = true, uint = true, complex = true }
  if type(v) ~= "string" then return false, "a list of float, int, bool, uint, complex" end
  for class in (v .. ","):gmatch("(.-),") do
    if not known[class] then return false, "a list of float, int, bool, uint, complex, as \"float,int\"" end
  end
  return true
end

-- { dtype = { rtol, atol }, …, why = "text" }
local function tolerance(v)
  local what = "{ dtype = { rtol, atol }, why = \"text\" }"
  if type(v) ~= "table" or type(v.why) ~= "string" then return false, what end
  for key, pair in pairs(v) do
    if key ~= "why" and not (key:find("^b?float%d+$") and type(pair) == "table" and #pair == 2) then
      return false, what
    end
  end
  return true
end

local function strings(v)
  if type(v) ~= "table" or #v == 0 then return false, "a list of texts, at least one" end
  for _, text in ipairs(v) do if type(text) ~= "string" then return false, "a list of texts" end end
  return true
end

local function pair_of_strings(v)
  return type(v) == "table" and #v == 2 and type(v[1]) == "string" and type(v[2]) == "string", "two strings"
end

local function pairs_of_strings(v)
  for _, pair in ipairs(type(v) == "table" and v or { false }) do
    if type(pair) ~= "table" or type(pair[1]) ~= "string" or type(pair[2]) ~= "string" then
      return false, "a list of { arguments, pattern of the message }"
    end
  end
  return true
end

local function derivative(v)
  if type(v) == "table" then return true end
  return v == "none" or v == "composite" or v == "unimplemented",
    "a formula per input, \"none\", \"composite\" or \"unimplemented\""
end

-- { { condition, message[, "type"] }, "call of a function that has its own message", … }
local function conditions(v)
  for _, c in ipairs(type(v) == "table" and v or { false }) do
    if type(c) ~= "string" and (type(c) ~= "table" or type(c[1]) ~= "string" or type(c[2]) ~= "string" or (c[3] and c[3] ~= "type")) then
      return false, "a list of { condition, message, \"type\" or nothing }"
    end
  end
  return true
end

local function limits(v)
  for _, limit in pairs(type(v) == "table" and v or { false }) do
    if limit ~= "lowest" and limit ~= "highest" and limit ~= "natural" then
      return false, "{ argument = \"lowest\" | \"highest\" | \"natural\" }"
    end
  end
  return true
end

local subscripts = "texts as \"self ik, mat2 kj -> ij\""
local function contraction(v)
  if type(v) ~= "string" then return false, subscripts end
  return v:find("^[%w_]+ [%a*]+, [%w_]+ [%a*]+ %-> [%a*]+$") ~= nil, subscripts
end

-- { name = "expression" }
local function named_texts(v)
  for name, text in pairs(type(v) == "table" and v or { false }) do
    if type(name) ~= "string" or type(text) ~= "string" then return false, "{ name = \"expression\" }" end
  end
  return true
end

local function text_or_texts(v)
  if type(v) == "string" then return true end
  local ok = strings(v)
  return ok, "a text, or a list of texts"
end

-- The range of a loop: the coordinates of a shape, its own coordinates, or lists of tensors.
local function over(v)
  if type(v) == "string" then return true end
  if type(v) == "table" and #v == 0 then return named_texts(v) end
  for _, pair in ipairs(type(v) == "table" and v or { false }) do
    if type(pair) ~= "table" or type(pair[1]) ~= "string" or type(pair[2]) ~= "string" then
      return false, "the expression of a shape, a list of { name, size }, or { element = \"list of tensors\" }"
    end
  end
  return true
end

local function update(v)
  return type(v) == "table" and type(v[1]) == "string" and type(v[2]) == "string" and #v == 2,
    "{ names, separated by commas, their new values }"
end

local keys = {
  kind = one_of(unpack(kinds.names)), -- mandatory
  doc = is "string", samples = strings, errors = pairs_of_strings,
  example = pair_of_strings, -- of the ops of the table: examples.lua
  onnx = function(v) -- of the ops of the table: onnx.lua
    return type(v) == "string" and loadstring("return " .. v) ~= nil, "an expression of Lua"
  end,
  positions = is "string", -- of the ops of the table: positions.lua
  grad = derivative,
  scalar = is "string", promote = one_of("same", "float", "self"), dtypes = dtype_classes,
  limits = limits,
  map = is "string", finish = is "string", loop = is "string", start = is "string", decompose = is "string",
  join = one_of("sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "argmax_pool", "welford", "lse"),
  contract = contraction, window = named_texts, over = over, update = update, store = is "string",
  draw = one_of("uniform", "normal", "bits", "int"),
  shape = is "string", dims = named_texts, let = named_texts, out = text_or_texts, check = conditions, expr = is "string",
  amp = one_of("keep", "low", "high", "widest"),
  ref = is "string", reference = is "string", none = is "string",
  tolerance = tolerance,
  kernel = one_of("all devices"), -- that of the CPU serves all devices that have none of their own
  batch = one_of("front", "fold", "loop", "matmul"), -- batch.lua
  inplace = flag, keep = flag, cross_device = flag,
  collective = flag, -- all ranks call it in the same order: never left out, nor two made one
  holomorphic = function(v) return v == false, "false, or absent" end,
  parts = is "string",
  absent = flag, -- gradients of results that have none are `none` in formulas, not zeros
  stats = function(v) return type(v) == "number" and v >= 1, "the number of results that have a derivative" end,
}

local function closest(name, set)
  local best, least
  for key in pairs(set) do -- the letters in common, in order
    local at, same = 1, 0
    for i = 1, #name do
      local found = key:find(name:sub(i, i), at, true)
      if found then same, at = same + 1, found + 1 end
    end
    local off = #name + #key - 2 * same
    if not least or off < least or (off == least and key < best) then best, least = key, off end
  end
  return best
end

-- The shapes of results: by the kind, by patterns, or by a C rule.
local function check_shape(op)
  local patterns = op.dims or op.let or op.out
  if op.kind == "composite" then
    if patterns or op.shape then fail(op, "the parts of a composite give its shapes: no dims, let, out or shape") end
    if op.check and not op.expr then fail(op, "check needs an expr") end
  elseif op.kind == "pointwise" then
    if op.dims or op.let or op.check or op.shape then fail(op, "pointwise ops have one shape rule: no dims, let, check or shape") end
    if op.out ~= nil and op.out ~= "bool" and op.out ~= "real" then fail(op, ("out = %s: expected bool, real, or nothing"):format(tostring(op.out))) end
  elseif op.shape then
    if patterns or op.check then fail(op, "shape names a C rule: dims, let, out and check go without it") end
  elseif op.kind == "view" then
    fail(op, "shape is missing: the C rule of a view gives its strides")
  elseif op.out == nil and op.nresults > 0 and not kinds.gives_shape(op) then
    fail(op, "out is missing: the shapes of the results as patterns (or shape, a C rule)")
  end
end

local function check(op)
  for key, value in pairs(op.record) do
    if key ~= 1 then
      local test = keys[key]
      if not test then
        fail(op, ("unknown key '%s'; did you mean '%s'?"):format(tostring(key), closest(tostring(key), keys)))
      end
      local ok, expected = test(value)
      if not ok then fail(op, ("%s = %s: expected %s"):format(key, tostring(value), expected)) end
    end
  end
  for _, key in ipairs({ "kind", "doc", "samples" }) do
    if op[key] == nil then fail(op, key .. " is missing") end
  end
  if op.grad == nil then fail(op, "grad is missing: a formula per input, \"none\" or \"composite\"") end
  local mistake = kinds.mistake(op)
  if mistake then fail(op, mistake) end
  if op.dtypes and (op.kind == "view" or op.kind == "composite") then -- these take all dtypes
    fail(op, ("a record of kind %s has no dtypes"):format(op.kind))
  end
  check_shape(op)
  if op.store and op.store ~= "add" and op.store ~= "last" and (op.index[op.store] or {}).type ~= "BOOL" then
    fail(op, ("store = %s: expected add, last, or the name of a bool argument"):format(op.store))
  end
  local sources = (op.ref and 1 or 0) + (op.reference and 1 or 0) + (op.none and 1 or 0)
  if sources ~= 1 then
    fail(op, "needs one of ref (an expression), reference (a name in spec/ops/references) or none = \"why\"")
  end
  for name in pairs(op.limits or {}) do
    if not op.index[name] then fail(op, ("limits names '%s', which is no argument"):format(name)) end
  end
  if op.stats and op.stats >= op.nresults then fail(op, "stats: there are only " .. op.nresults .. " results") end
end

-- Every tensor argument that can have a gradient must have an entry; constants ("no") are then removed, so that only
-- formulas are left.
local function check_grad(op)
  if type(op.grad) ~= "table" then return end
  local given = {}
  for names in pairs(op.grad) do
    for name in names:gmatch("[%w_]+") do
      if not op.index[name] then fail(op, "grad names '" .. name .. "', which is no argument") end
      given[name] = true
    end
  end
  for _, a in ipairs(op.args) do
    local tensor = a.written == "Tensor" or a.written == "Operand" or a.written == "Tensor[]"
    if tensor and not given[a.name] then
      fail(op, ("the derivative by %s is missing: a formula, \"no\" (constant) or \"unimplemented\""):format(a.name))
    elseif given[a.name] and not tensor then
      fail(op, ("grad names %s, which is of type %s and has no derivative"):format(a.name, a.written))
    end
  end
  local formulas = {}
  for names, formula in pairs(op.grad) do if formula ~= "no" then formulas[names] = formula end end
  op.grad = formulas
end

--- Sets what canonical.c reads: arg.all, and op.canonical, the arguments (from 0) that it handles.
local function canonical(op)
  op.canonical = {}
  for _, a in ipairs(op.args) do
    a.all = a.type == "DIMS" and op.kind == "reduce"
    if a.type == "DIM" or a.type == "DIMS" or a.type == "INDEX" or a.type == "ENUM" or a.count or a.low
      or a.written == "Mask" or a.written == "IndexTensor" then
      op.canonical[#op.canonical + 1] = a.at
    end
  end
end

-- The parts that other ops, derivatives and optimizers are made of: not on `moth`, nor on tensors, but among the objects
-- of moth.ops.moth. So are those of moth.special and moth.linalg.
local function is_internal(name)
  return name:find("_backward") ~= nil or name:find("^special_") ~= nil or name:find("^amp_") ~= nil or name:find("^comm_") ~= nil or name:find("^native_") ~= nil or name:find("_forward$") ~= nil
    or name:find("_step$") ~= nil or name:find("_double") ~= nil or name:find("_grad$") ~= nil
end

-- The op of a record, checked by itself.
local function read(record, family, line)
  local op = { record = record }
  for key, value in pairs(record) do op[key] = value end
  op.schema, op.family = op[1], family
  op.place = ("src/ops/%s.lua:%d"):format(family, line or 0)
  parse(op)
  check(op)
  check_grad(op)
  for key, value in pairs(kinds.facts(op)) do op[key] = value end
  op.internal = is_internal(op.name)
  for _, a in ipairs(op.kind == "pointwise" and op.args or {}) do
    if a.written == "Mask" then op.cond = a.name end
  end
  canonical(op)
  op.errors = op.errors or {} -- beside the errors that the specs derive from the schema (spec/ops/errors_spec.lua)
  return op
end

--- Calls fn for each item, and raises the messages of all errors as one, a line each.
function M.each_checked(items, fn)
  local problems = {}
  for _, item in ipairs(items) do
    local ok, message = pcall(fn, item)
    if not ok then problems[#problems + 1] = tostring(message) end
  end
  if #problems > 0 then error(table.concat(problems, "\n"), 0) end
end

-- Gives records a field that stands in a file of its own, by op. That each op of users has an example is asserted by
-- spec/reference/examples_spec.lua: a new op builds without.
local function add_field(field, path, records)
  local values = assert(loadfile(path, "t"))()
  M.each_checked(records, function(r)
    local name = r[1][1]:match("^[%w_]+")
    r[1][field], values[name] = values[name], nil
  end)
  local name = next(values)
  if name then fail({ place = path, name = name }, "there is no such op") end
end

--- All records, in order, checked: { name, args, kind, ... , place = "src/ops/x.lua:12" }; and by name.
function M.load(dir)
  local ops, by_name, records, blocks = {}, {}, {}, require "blocks"
  for _, family in ipairs(M.families) do
    local path = dir .. "/" .. family .. ".lua"
    local chunk = assert(loadfile(path, "t"))
    setfenv(chunk, { blocks = blocks }) -- pure data
    local lines = lines_of(path)
    for _, record in ipairs(chunk()) do
      local line = lines[record[1]]
      record[1] = record[1]:gsub("enum%(blocks%)", blocks.enum())
      records[#records + 1] = { record, family, line }
    end
  end
  add_field("example", dir .. "/examples.lua", records)
  add_field("onnx", dir .. "/onnx.lua", records)
  add_field("positions", dir .. "/positions.lua", records)
  M.each_checked(records, function(r)
    local op = read(unpack(r, 1, 3))
    if by_name[op.name] then fail(op, "defined twice") end
    by_name[op.name] = op
    op.id = #ops
    ops[#ops + 1] = op
  end)
  return ops, by_name
end

-- ---- ops that are defined at run time (lua/moth/library) ----------------------------------------------

M.check_grad, M.canonical, M.values = check_grad, canonical, keys

-- What is wrong with a schema, and in which column of its text.
local function complain(text, what)
  local part = what:match("'(.-)'")
  local column = part and text:find(part, 1, true)
  error(("%s%s; the schema is %s"):format(what, column and (" (column %d)"):format(column) or "", text), 0)
end

--- A schema with a namespace, "mylib::relu2(Tensor self) -> Tensor", as a record; an error says where it is wrong.
function M.read(text, place)
  local head = text:match("^%s*([^(]*)")
  local namespace, name = head:match("^([%a_][%w_]*)::([%a_][%w_]*)%s*$")
  if not namespace then complain(text, ("expected a name such as mylib::relu2, got '%s'"):format(head)) end
  local at = text:find("(", 1, true)
  if not at then complain(text, "expected '(' and the arguments behind the name") end
  local args, results = text:match("^(%b())%s*%->%s*(.-)%s*$", at)
  if not args then
    complain(text, text:find("->", at, true) and "the parentheses of '" .. text:sub(at) .. "' do not match"
      or "expected '-> Tensor' or other results behind the arguments")
  end
  local list = results:match("^%((.*)%)$") or results
  for _, result in ipairs(results == "self" and {} or split_args(list)) do
    if not result:match("^%s*Tensor%s*$") and not result:match("^%s*Tensor%s+[%a_][%w_]*%s*$") then
      complain(text, ("cannot read result '%s': expected Tensor, (Tensor, Tensor), self or ()"):format(result))
    end
  end
  local op = { schema = name .. args .. " -> " .. results, place = place }
  local ok, err = pcall(parse, op)
  if not ok then complain(text, (tostring(err):gsub("^.-: .-: ", "", 1))) end
  local seen = {}
  for _, a in ipairs(op.args) do
    if seen[a.name] then complain(text, ("argument '%s' is there twice"):format(a.name)) end
    seen[a.name] = true
  end
  if #op.args > 16 then complain(text, ("%d arguments: an op has at most 16"):format(#op.args)) end
  if op.nresults > 4 then complain(text, ("%d results: an op has at most 4"):format(op.nresults)) end
  if op.returns_self and not (op.args[1] and op.args[1].type == "TENSOR" and op.args[1].mutated) then
    complain(text, "-> self: the first argument must be a Tensor! that is written to")
  end
  op.name, op.schema = namespace .. "::" .. name, namespace .. "::" .. op.schema
  return op
end

return M
