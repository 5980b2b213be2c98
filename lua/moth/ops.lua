--- The op table, as data: moth.ops.list(), moth.ops.describe "sigmoid".
local B = require "moth_lua"
local M = {}

local by_name
local function records()
  if not by_name then
    by_name = {}
    for _, op in ipairs(require "moth.ops_table") do by_name[op.name] = op end
  end
  return by_name
end

--- The record of an op: schema, kind, grad, samples, doc …; nil if there is none.
function M.get(name) return records()[name] end

--- The names of all ops, sorted.
function M.list()
  local names = {}
  for name in pairs(records()) do names[#names + 1] = name end
  table.sort(names)
  return names
end

--- What the table says of an op, as text.
function M.describe(name)
  local op = records()[name]
  if not op then error(("there is no op named '%s'; see moth.ops.list()"):format(tostring(name)), 2) end
  local lines = { op.schema, "  " .. op.doc, "  defined at " .. op.place .. " (" .. op.kind .. ")" }
  local function add(label, value) if value then lines[#lines + 1] = ("  %-12s %s"):format(label, value) end end
  local kernels = {}
  for k in pairs(B.kernels(name)) do kernels[#kernels + 1] = k end
  table.sort(kernels)
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
  return table.concat(lines, "\n")
end

return M
