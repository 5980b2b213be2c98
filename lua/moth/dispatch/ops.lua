--- The op table, as data: moth.ops.list(), moth.ops.describe "sigmoid".
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local M = {}

local by_name
local function records()
  if not by_name then
    by_name = {}
    for _, op in ipairs(require "moth.ops_table") do by_name[op.name] = op end
  end
  return by_name
end

local function definitions() return require "moth.library.definitions" end

--- The record of an op: schema, kind, grad, samples, doc …; nil if there is none.
function M.get(name) return records()[name] or definitions().record(name) end

--- The names of the dtypes that an op computes in.
function M.dtypes(name)
  local list, record = {}, M.get(name)
  if not record then check.fail("[ops.dtypes] there is no op named '%s'", name) end
  for class in record.takes:gmatch("%a+") do
    for _, dtype in ipairs(require("moth.ops_table").classes[class]) do list[#list + 1] = dtype end
  end
  return list
end

--- The names of all ops of the table, sorted; of a namespace, those that moth.library has defined in it.
function M.list(space)
  local names = {}
  for name in each(space and {} or records()) do names[#names + 1] = name end
  for _, name in ipairs(space and B.defined_ops() or {}) do
    if name:sub(1, #space + 2) == space .. "::" then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

--- What the reference says of an op, as text: schema, how it is called, kind, memory of the results, shapes, dtypes,
-- derivatives, errors, an example.
function M.describe(name)
  local op = M.get(name)
  if not op then
    check.fail("[ops.describe] there is no op named '%s'%s; see moth.ops.list()", name, check.suggest(name, M.list()))
  end
  return require("moth.reference.entry").text(require("moth.reference.op").entry(op))
end

-- ---- ops as objects --------------------------------------------------------------------------------

--     moth.ops.moth.add.Tensor(x, y)      -- x + y, both tensors
--     moth.ops.moth.add.Scalar(x, 2)
--     moth.ops.moth.relu(x)
--
-- An op has name, schema, tags (its kind, "inplace", "nondeterministic") and is called like the function of its name.
-- An op whose second operand may be a tensor or a number has the overloads Tensor and Scalar, any other op `default`;
-- an overload takes only its kind of operand.
local Op = {}
Op.__index = Op

function Op.__call(self, ...)
  local at = self.operand
  if at then
    local given = (select(at, ...))
    if B.is_tensor(given) ~= (self.overload == "Tensor") then
      error(("%s: %s must be a %s, got %s"):format(self.name, self.operand_name,
        self.overload == "Tensor" and "tensor" or "number", B.is_tensor(given) and "a tensor" or type(given)), 2)
    end
  end
  return self.fn(...)
end

function Op:__tostring() return self.name:find("::", 1, true) and self.name or "moth::" .. self.name end

-- The first argument after `self` that is a tensor or a number, and its position.
local function operand_of(record)
  for i, a in ipairs(record.args) do
    if i > 1 and a.type == "OPERAND" then return i, a.name end
  end
end

local function new_op(record, name, fn, overload)
  local tags = { record.kind }
  if name ~= record.name then tags[#tags + 1] = "inplace" end
  if not record.repeats then tags[#tags + 1] = "nondeterministic" end
  local op = { name = overload and name .. "." .. overload or name, overload = overload, schema = record.schema,
    tags = tags, fn = fn }
  local at, operand = operand_of(record)
  if not overload then
    for _, o in ipairs(at and { "Tensor", "Scalar" } or { "default" }) do op[o] = new_op(record, name, fn, o) end
  elseif at then
    op.operand, op.operand_name = at, operand
  end
  return setmetatable(op, Op)
end

--- All ops as objects, by name; those that end in _ work in place.
local objects = {}
for name in each(B.ops) do
  objects[name] = function()
    local record = records()[name] or records()[(name:gsub("_$", ""))]
    return record and new_op(record, name, B.ops[name])
  end
end
M.moth = require("moth.lang.lazy")({}, "moth.ops.moth", objects)

-- ---- ops that were defined at run time ---------------------------------------------------------------

-- moth.ops.mylib: the ops of a namespace, moth.ops.mylib.relu2. Ops that were found are cached until they are
-- undefined.
local function namespace(space)
  local found = setmetatable({}, { __mode = "v" })
  return setmetatable({}, { __module_name = "moth.ops." .. space,
    __names = function()
      local list = {}
      for _, name in ipairs(B.defined_ops()) do
        list[#list + 1] = name:match("^" .. space .. "::(.*)$")
      end
      return list
    end,
    __index = function(t, key)
      if type(key) ~= "string" then return nil end
      local name = space .. "::" .. key
      local id = B.op_id(name)
      local op = found[key]
      if op and op.id == id then return op end
      if id then
        op = new_op(M.get(name), name, B.op(name))
      else
        name = name:match("^(.*)_$")
        id = name and B.op_id(name)
        local fn = id and B.inplace_op(name)
        if not fn then
          if key:sub(1, 1) == "_" then return nil end
          check.fail("moth.ops.%s has no '%s'%s", space, key, check.suggest(key, getmetatable(t).__names()))
        end
        op = new_op(M.get(name), name .. "_", fn)
      end
      op.id = id
      found[key] = op
      return op
    end })
end

--- The op of a name, as an object: "add_", "mylib::relu2".
function M.object(name)
  local space, short = name:match("^(.-)::(.*)$")
  if space then return M[space][short] end
  return M.moth[name]
end

signature.all(M, { "ops.get(string name)", "ops.dtypes(string name)",
  "ops.list(string namespace?)", "ops.describe(string name)", "ops.object(string name)" })

local spaces = {}
return setmetatable(M, { __module_name = "moth.ops", __index = function(_, key)
  if type(key) ~= "string" or key:sub(1, 1) == "_" then return nil end
  for _, name in ipairs(B.defined_ops()) do
    if name:sub(1, #key + 2) == key .. "::" then
      spaces[key] = spaces[key] or namespace(key)
      return spaces[key]
    end
  end
  check.fail("moth.ops has no '%s'; the namespaces of ops are moth and those of moth.library", key)
end })
