-- Checks the expressions by which records compute their ops, so that a mistake is an error of the build: unknown names,
-- a wrong number of results, texts that do not parse. lua/moth/records evaluates them.
local define = require "define"
local expr = require "expr"
local formula = require "formula"
local schema = require "schema"
local source = require "moth.lang.source"

local M = {}

-- The names in loops, beside arguments, names of `over` and `define` (lua/moth/records/loops.lua).
local in_loops = {}
for name in ([[out sizes window load at insert remove first last join length items broadcast within given where both either
  negate eq ne lt le gt ge floor_divide remainder minimum maximum abs add sub mul div pixel hit windows ravel unravel ipairs inf]])
  :gmatch("[%w_]+") do in_loops[name] = true end

local keywords = {}
for name in ([[and break do else elseif end false for function if in local nil not or repeat return then true until
  while]]):gmatch("%a+") do keywords[name] = true end

-- A loop is Lua: it may use its own locals, arguments and these names.
local function check_loop(op, what, text, own)
  local chunk, err = source.chunk(text)
  if not chunk then schema.fail(op, what .. ": " .. err) end
  local declared = {}
  local plain = text:gsub("%-%-[^\n]*", ""):gsub('"[^"]*"', "")
  for names in plain:gmatch("local%s+([%w_%s,]+)") do
    for name in names:gmatch("[%w_]+") do declared[name] = true end
  end
  for names in plain:gmatch("for%s+([%w_%s,]-)%s*[=i]n?%s") do
    for name in names:gmatch("[%w_]+") do declared[name] = true end
  end
  for name, names in plain:gmatch("function%s+([%w_]*)%s*%(([%w_%s,]*)%)") do
    declared[name] = true
    for param in names:gmatch("[%w_]+") do declared[param] = true end
  end
  for before, name in (" " .. plain):gmatch("([^%w_])([%a_][%w_]*)") do
    local known = before == "." or keywords[name] or declared[name] or in_loops[name] or op.index[name] or own[name]
    if not known then schema.fail(op, ("%s: '%s' is no argument or function of a loop"):format(what, name)) end
  end
end

local function check_expression(op, what, text, ops, count, extra)
  local graph
  graph = expr.graph(function(name)
    if extra and extra[name] then return graph.node("leaf", extra[name], {}, name) end
    local a = op.index[name]
    if a then
      local leaf = graph.node("leaf", formula.kind_of[a.type], {}, name)
      leaf.values = a.values or false
      return leaf
    end
  end, ops, define)
  local ok, results = pcall(graph.evaluate, text, op.place)
  if not ok then schema.fail(op, what .. ": " .. tostring(results)) end
  if count and #results ~= count then
    schema.fail(op, ("%s gives %d values, there should be %d"):format(what, #results, count))
  end
end

--- ops: by name.
function M.check(op, ops)
  local of_state = { s0 = "tensor", s1 = "tensor", s2 = "tensor", count = "number", x = "tensor" }
  local own = {}
  if type(op.over) == "table" then
    for _, pair in ipairs(op.over) do own[pair[1]] = true end
    for _, pair in ipairs(op.over) do check_loop(op, "over " .. pair[1], pair[2], {}) end
  elseif op.over then
    check_expression(op, "over", op.over, ops, 1)
  end
  if op.decompose then check_expression(op, "decompose", op.decompose, ops, op.nresults) end
  if op.finish then check_expression(op, "finish", op.finish, ops, op.nresults, of_state) end
  if op.start then check_expression(op, "start", op.start, ops, 1) end
  if op.loop then check_loop(op, "loop", op.loop, own) end
  if op.map and op.kind == "window" then check_loop(op, "map", op.map, own)
  elseif op.map then check_expression(op, "map", op.map, ops, 1, of_state) end
  for name, text in pairs(op.window or {}) do check_expression(op, "window." .. name, text, ops, 1) end
  for name in (op.contract or ""):gmatch("([%w_]+) [%a*]+") do
    if not op.index[name] then schema.fail(op, "contract names '" .. name .. "', which is no argument") end
  end
  if op.update then
    local kinds, count = {}, 0
    for element, list in pairs(type(op.over) == "table" and op.over or {}) do
      if not op.index[list] then schema.fail(op, "over names '" .. list .. "', which is no argument") end
      kinds[element] = "tensor"
    end
    for name in op.update[1]:gmatch("[%w_]+") do
      local target = op.index[kinds[name] and op.over[name] or name]
      if not target or not target.mutated then
        schema.fail(op, "update names '" .. name .. "', which is not written to")
      end
      count = count + 1
    end
    check_expression(op, "update", op.update[2], ops, count, kinds)
  end
end

return M
