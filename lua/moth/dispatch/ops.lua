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

local memory = { new = "new memory", view = "a view of %s", self = "%s, written to", none = "none",
  parts = "as its parts give them" }

-- The transformations that a compiler may apply to a call; they follow from the kind (src/ops/kinds.lua).
local function effects(op)
  local list = {}
  list[#list + 1] = op.fuses and "may be fused" or nil
  list[#list + 1] = op.drops and "dropped if unused" or nil
  list[#list + 1] = op.draws and "takes random numbers" or nil
  list[#list + 1] = op.repeats and not op.writes and "equal calls are one" or nil
  list[#list + 1] = op.writes and "writes " .. table.concat(op.writes, ", ") or nil
  return #list > 0 and table.concat(list, "; ") or "not fused"
end

-- The fields by which records say how an op is computed, in the order in which they are shown (docs/records.md).
local ways = { "let", "out", "scalar", "window", "over", "map", "join", "contract", "loop", "store", "start", "draw",
  "finish", "decompose", "expr", "update" }

-- A field's value. Of a text with several lines each begins with `indent`.
local function shown(v, indent)
  if type(v) ~= "table" then
    local lines, least = {}, math.huge
    for line in (tostring(v) .. "\n"):gmatch("([^\n]*)\n") do
      if line:find("%S") then
        lines[#lines + 1] = line
        least = math.min(least, #line:match("^ *"))
      end
    end
    if #lines < 2 then return (tostring(v):match("^%s*(.-)%s*$")) end
    for i, line in ipairs(lines) do lines[i] = "\n" .. indent .. line:sub(least + 1) end
    return table.concat(lines)
  end
  local parts, at = {}, {}
  for i, x in ipairs(v) do
    parts[i] = type(x) == "table" and table.concat(x, " < ") or shown(x, indent)
    at[i] = true
  end
  local names = {}
  for name in each(v) do if not at[name] then names[#names + 1] = name end end
  table.sort(names)
  for _, name in ipairs(names) do parts[#parts + 1] = name .. " = " .. shown(v[name], indent) end
  return table.concat(parts, ", ")
end

-- The patterns of the arguments, in their order.
local function dims_text(op)
  local parts = {}
  for _, a in ipairs(op.dims and op.args or {}) do
    if op.dims[a.name] then parts[#parts + 1] = ("%s = \"%s\""):format(a.name, op.dims[a.name]) end
  end
  return #parts > 0 and table.concat(parts, ", ") or nil
end

-- The conditions of a call, each on a line.
local function check_text(op)
  local parts = {}
  for i, c in ipairs(op.check or {}) do
    local text = type(c) == "string" and c or ("%s, else \"%s\""):format((c[1]:gsub("%s+", " ")), c[2])
    parts[i] = "\n    " .. text
  end
  return #parts > 0 and table.concat(parts) or nil
end

--- The table's record of an op, as text: schema, kind, memory of the results, effects, the fields by which it is
-- computed, kernels, promotion, dtypes, autocast, derivatives.
function M.describe(name)
  local op = M.get(name)
  if not op then
    check.fail("[ops.describe] there is no op named '%s'%s; see moth.ops.list()", name, check.suggest(name, M.list()))
  end
  local lines = { op.schema, op.doc ~= "" and "  " .. op.doc or nil }
  lines[#lines + 1] = "  defined at " .. op.place .. " (" .. op.kind .. ")"
  local function add(label, value) if value then lines[#lines + 1] = ("  %-12s %s"):format(label, value) end end
  local kernels = {}
  for k in each(B.kernels(name)) do kernels[#kernels + 1] = k end
  table.sort(kernels)
  add("results", memory[op.memory]:format(op.args[1] and op.args[1].name))
  add("calls", effects(op))
  add("dims", dims_text(op))
  for _, field in ipairs(ways) do
    add(field, op[field] ~= nil and shown(op[field], "    ") or nil)
    if field == "out" then add("check", check_text(op)) end
  end
  add("kernels", #kernels > 0 and table.concat(kernels, ", ") or "made of other ops")
  add("promotion", op.promote)
  add("dtypes", op.dtypes)
  add("autocast", op.amp)
  add("in-place", op.inplace and (name .. "_") or nil)
  if type(op.grad) == "table" then
    for _, a in ipairs(op.args) do add("d/d " .. a.name, op.grad[a.name]) end
  else
    add("derivative", op.grad)
  end
  return (table.concat(lines, "\n"):gsub(" +\n", "\n"))
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

-- ---- the reference page ----------------------------------------------------------------------------

local families = { -- in the order of the page; others follow under their own names
  { "create", "Creation" }, { "random", "Random numbers" }, { "pointwise", "Element by element" },
  { "reduce", "Reductions" }, { "view", "Shapes and views" }, { "index", "Indexing" },
  { "linalg", "Products of matrices" },
  { "decompositions", "Linear algebra" },
  { "nn", "Networks" },
}

local function entry(op, out)
  local function add(...) out[#out + 1] = string.format(...) end
  add("### %s\n\n    %s\n\n%s\n", op.name, op.schema, op.doc)
  local facts = {}
  local function fact(label, value) if value then facts[#facts + 1] = label .. " " .. value end end
  fact("In place:", op.inplace and "`" .. op.name .. "_`")
  fact("Kind:", op.kind)
  fact("Dtypes:", op.dtypes)
  for _, field in ipairs(ways) do
    if op[field] ~= nil and field ~= "scalar" then
      local text = shown(op[field], "      ")
      fact(field .. ":", text:find("\n", 1, true) and "\n" .. text .. "\n" or "`" .. text .. "`")
    end
  end
  if op.grad == "none" then
    facts[#facts + 1] = "No derivative."
  elseif type(op.grad) == "table" then
    for _, a in ipairs(op.args) do
      local formula = op.grad[a.name]
      if formula then fact("d/d" .. a.name .. ":", "`" .. formula:gsub("%s+", " ") .. "`") end
    end
  end
  local sample = op.samples and op.samples[1]
  if sample then fact("For example", ("`%s(%s)`."):format(op.name, sample)) end
  fact("Defined in", op.place)
  for _, text in ipairs(facts) do add("- %s", text) end
  add("")
end

--- The reference of all ops as Markdown, by family; `make docs` writes it to build/docs/ops.md.
function M.reference()
  local out, of, order = {}, { parts = {} }, {}
  for _, family in ipairs(families) do
    of[family[1]] = {}
    order[#order + 1] = family
  end
  for _, op in ipairs(require "moth.ops_table") do
    local key = op.internal and "parts" or op.family
    if not of[key] then
      of[key] = {}
      order[#order + 1] = { key, key:sub(1, 1):upper() .. key:sub(2) }
    end
    table.insert(of[key], op)
  end
  order[#order + 1] = { "parts", "Parts of other ops, derivatives and optimizers" }
  out[1] = "# The ops of moth " .. B.version_string .. [[


Generated from the op table, src/ops. An op is a function, `moth.relu(x)`, and if its first argument is a tensor a
method, `x:relu()`. Arguments with defaults may be given by name in a trailing table. `Dim` and `Index` count from 1.
The parts at the end are functions of `moth.ops.moth` alone: of interest to those who write backends.
How an op is computed (join, loop, decompose, expr …) is told in the language of records, docs/records.md: positions
count from 0 there.
]]
  for _, family in ipairs(order) do
    table.sort(of[family[1]], function(a, b) return a.name < b.name end)
    local links = {}
    for i, op in ipairs(of[family[1]]) do links[i] = ("[%s](#%s)"):format(op.name, op.name) end
    if #links > 0 then out[#out + 1] = ("**%s:** %s\n"):format(family[2], table.concat(links, ", ")) end
  end
  for _, family in ipairs(order) do
    if #of[family[1]] > 0 then out[#out + 1] = ("## %s\n"):format(family[2]) end
    for _, op in ipairs(of[family[1]]) do entry(op, out) end
  end
  return table.concat(out, "\n")
end

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
  "ops.list(string namespace?)", "ops.describe(string name)", "ops.reference()", "ops.object(string name)" })

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
