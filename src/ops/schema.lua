-- Reads the op table: parses schemas, checks records, gives each its id. Used by the generator only.
local M = {}

M.types = { -- schema type -> { enum, C parameters(name), how a call packs them, how a kernel unpacks them }
  Tensor = "TENSOR", Operand = "OPERAND", Scalar = "SCALAR", int = "INT", Dim = "DIM", Index = "INDEX",
  index_base = "INDEX_BASE", float = "FLOAT", bool = "BOOL", ["int[]"] = "INTS", ["Dim[]"] = "DIMS",
  ["Tensor[]"] = "TENSORS", string = "STRING", dtype = "DTYPE", device = "DEVICE", Generator = "GENERATOR",
}

M.families = { "pointwise", "activation", "create", "view", "reduce", "linalg", "index", "sort", "nn", "norm", "conv",
  "attention", "random" }

local function fail(op, what)
  error(("%s: %s: %s"):format(op.place or "?", op.name or "?", what), 0)
end
M.fail = fail

local function split_args(text)
  local out, depth, from = {}, 0, 1
  for i = 1, #text do
    local c = text:sub(i, i)
    if c == "(" then depth = depth + 1 elseif c == ")" then depth = depth - 1
    elseif c == "," and depth == 0 then out[#out + 1] = text:sub(from, i - 1); from = i + 1 end
  end
  if text:sub(from):match("%S") then out[#out + 1] = text:sub(from) end
  return out
end

local function parse_arg(op, text)
  text = text:match("^%s*(.-)%s*$")
  if text == "index_base" then
    return { name = "index_base", type = "INDEX_BASE", default = "0" }
  end
  local head, default = text:match("^(.-)%s*=%s*(.+)$")
  head = head or text
  local ty, name = head:match("^(%S+)%s+([%a_][%w_]*)$")
  if not ty then fail(op, "cannot read argument '" .. text .. "'") end
  local mutated, optional = ty:find("!", 1, true) ~= nil, ty:find("?", 1, true) ~= nil
  ty = ty:gsub("[!?]", "")
  local enum = M.types[ty]
  if not enum then fail(op, "unknown type '" .. ty .. "'") end
  return { name = name, type = enum, default = default, optional = optional, mutated = mutated }
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

local kinds = { pointwise = true, structured = true, view = true, composite = true }

--- All records, in order, checked: { name, args, kind, ... , place = "src/ops/x.lua:12" }.
function M.load(dir)
  local ops, by_name = {}, {}
  for _, family in ipairs(M.families) do
    local path = dir .. "/" .. family .. ".lua"
    local chunk = assert(loadfile(path, "t"))
    setfenv(chunk, {}) -- pure data
    local lines = lines_of(path)
    for _, op in ipairs(chunk()) do
      op.schema, op.family = op[1], family
      op.place = ("src/ops/%s.lua:%d"):format(family, lines[op.schema] or 0)
      parse(op)
      if by_name[op.name] then fail(op, "defined twice") end
      if not kinds[op.kind] then fail(op, "unknown kind " .. tostring(op.kind)) end
      if op.grad == nil then fail(op, "grad is missing: a formula per input, \"none\" or \"composite\"") end
      if not op.doc then fail(op, "doc is missing") end
      if not op.samples then fail(op, "samples are missing") end
      op.errors = op.errors or {} -- beside those that the specs make of the schema (spec/ops/errors_spec.lua)
      if op.kind ~= "composite" and op.kind ~= "pointwise" and not op.shape then fail(op, "shape is missing") end
      by_name[op.name] = op
      op.id = #ops
      ops[#ops + 1] = op
    end
  end
  return ops, by_name
end

return M
