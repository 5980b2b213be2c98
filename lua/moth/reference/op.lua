--- What the reference says of an op, from its record (docs/records.md).
local B = require "moth_lua"
local each = require "moth.each"
local M = {}

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

-- The fields by which records say how an op is computed, in the order in which they are shown.
local ways = { "let", "out", "scalar", "window", "over", "map", "join", "contract", "loop", "store", "start", "draw",
  "finish", "decompose", "expr", "update" }

-- Lines of code, each begun with `indent`; a single line as it is.
local function laid_out(text, indent)
  local lines, least = {}, math.huge
  for line in (text .. "\n"):gmatch("([^\n]*)\n") do
    if line:find("%S") then
      lines[#lines + 1] = line
      least = math.min(least, #line:match("^ *"))
    end
  end
  if #lines < 2 then return (text:match("^%s*(.-)%s*$")) end
  for i, line in ipairs(lines) do lines[i] = "\n" .. indent .. line:sub(least + 1) end
  return table.concat(lines)
end

-- A field's value.
local function shown(v, indent)
  if type(v) ~= "table" then return laid_out(tostring(v), indent) end
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

-- Where the shapes of the results come from, if no patterns say it.
local function shapes_text(op)
  if op.dims or type(op.out) == "table" then return nil end
  local rule = op.kernels.shape
  if op.kind == "pointwise" then return "that of the tensors, broadcast together" end
  if op.kind == "composite" then return "those that its parts give" end
  if op.shape == "dynamic" then return "they depend on the elements" end
  return op.shape and rule and "by the rule at " .. rule[2] or nil
end

-- "moth.relu, x:relu, x:relu_": how users call it.
local function calls_text(op)
  local moth, list = require "moth", {}
  local at = op.name:match("^linalg_(.*)") and "linalg" or op.name:match("^special_(.*)") and "special"
  local short = at and op.name:sub(#at + 2)
  if at and rawget(moth[at], short) then list[1] = ("moth.%s.%s"):format(at, short) end
  if rawget(moth, op.name) then list[#list + 1] = "moth." .. op.name end
  local methods = require("moth.tensor").methods
  if methods[op.name] then list[#list + 1] = "x:" .. op.name end
  if op.inplace and methods[op.name .. "_"] then list[#list + 1] = "x:" .. op.name .. "_" end
  local space, own = op.name:match("^(.-)::(.*)$")
  if space then list[#list + 1] = ("moth.ops.%s.%s"):format(space, own) end
  return #list > 0 and table.concat(list, ", ") or op.internal and "moth.ops.moth." .. op.name or nil
end

-- Calls that are refused, each with the part of its message that matters. The records have patterns of Lua.
local function errors_text(op)
  local parts = {}
  for i, e in ipairs(op.errors or {}) do
    local message = e[2]:gsub("%%(%p)", "%1"):gsub("%.%-", "…"):gsub("|", " or ")
    parts[i] = ("\n    %s(%s): %s"):format(op.name, e[1], message)
  end
  return #parts > 0 and table.concat(parts) or nil
end

local function example_text(op)
  if not op.example then return nil end
  local code = op.example[1]
  if not code:find("\n") then code = "print(" .. code .. ")" end
  code = code:gsub("return ([^\n]*)$", function(values) return "print(" .. values .. ")" end)
  return "\n    " .. code:gsub("\n", "\n    ") .. "\n      " .. op.example[2]:gsub("\n", "\n      ")
end

-- A row for each formula: one may be that of several arguments.
local function derivatives(op, add)
  if type(op.grad) ~= "table" then
    return add("derivative", op.grad == "composite" and "that of its parts" or op.grad)
  end
  local names, order = {}, {}
  for _, a in ipairs(op.args) do
    local formula = op.grad[a.name]
    if formula and not names[formula] then order[#order + 1] = formula end
    if formula then names[formula] = names[formula] and names[formula] .. ", " .. a.name or a.name end
  end
  for _, formula in ipairs(order) do add("d/d " .. names[formula], laid_out(formula, "    ")) end
end

--- The entry of an op: { head, doc, place, kind, rows = { { label, text }, … } }. A text that begins with a line break
-- has lines of their own.
function M.entry(op)
  local name, rows = op.name, {}
  local function add(label, value) if value then rows[#rows + 1] = { label, value } end end
  local kernels = {}
  for k in each(B.kernels(name)) do kernels[#kernels + 1] = k end
  table.sort(kernels)
  add("called", calls_text(op))
  add("results", memory[op.memory]:format(op.args[1] and op.args[1].name))
  add("calls", effects(op))
  add("shapes", shapes_text(op))
  add("dims", dims_text(op))
  for _, field in ipairs(ways) do
    add(field, op[field] ~= nil and shown(op[field], "    ") or nil)
    if field == "out" then add("check", check_text(op)) end
  end
  add("kernels", #kernels > 0 and table.concat(kernels, ", ") or op.kind ~= "view" and "made of other ops" or nil)
  add("promotion", op.promote)
  add("dtypes", op.dtypes or (op.kind == "view" and "all") or (op.kind == "composite" and "those of its parts") or nil)
  add("autocast", op.amp)
  add("in-place", op.inplace and (name .. "_") or nil)
  derivatives(op, add)
  add("errors", errors_text(op))
  add("example", example_text(op))
  return { path = name, head = op.schema, doc = op.doc ~= "" and op.doc or nil, place = op.place, kind = op.kind,
    rows = rows, op = op }
end

return M
