--- One program of records at several sizes: what differs between them is a formula of the open dimensions.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local tree = require "moth.lang.tree"
local sizes = require "moth.compile.sizes"
local follow = require "moth.export.follow"
local same_structure = require("moth.export.inputs").same_structure

local M = {}

local WHERE = "export"

function M.point_text(point)
  local parts = {}
  for _, name in ipairs(tree.keys(point)) do parts[#parts + 1] = ("%s = %d"):format(name, point[name]) end
  return table.concat(parts, ", ")
end

local point_text = M.point_text

--- The sizes to record at: the example's, then one dimension at a time, then several together; the names of the
-- dimensions; which of the sizes are far ones. given: { dims, example }.
function M.points_of(given, wide)
  local names = tree.keys(given.dims)
  local points, probes, far = { given.example }, {}, {}
  for _, name in ipairs(names) do
    local first_far
    probes[name], first_far = sizes.probes(given.dims[name], given.example[name], wide)
    for i, n in ipairs(probes[name]) do
      local point = follow.at(given.example, name, n)
      points[#points + 1] = point
      far[point] = i >= first_far
    end
  end
  for k = 1, #names > 1 and 5 or 0 do
    local point, differs = {}, 0
    for i, name in ipairs(names) do
      local list = probes[name]
      local at = k <= 3 and k + i - 1 or #list - (k + i) % 3 -- near ones, then far ones
      point[name] = list[(at - 1) % math.max(#list, 1) + 1] or given.example[name]
      if point[name] ~= given.example[name] then differs = differs + 1 end
    end
    if differs > 1 then
      points[#points + 1] = point
      far[point] = k > 3
    end
  end
  return points, names, far
end

--- Makes something at several sizes, and one thing of all: make(point), then merge(list, points, known, follow), where
-- follow(values) is the formula of numbers that differ. If there is none, both are done again, at more sizes. A far
-- size at which make fails is left out: a table of positions may end before it. failed(message, point, example) tells
-- of another failure.
function M.at_sizes(given, make, merge, failed)
  local again = {}
  local expressions = given.expressions or given.nodes and follow.expressions_of(given) or {}
  for _, wide in ipairs { false, true } do
    local all, names, far = M.points_of(given, wide)
    for _, point in ipairs(follow.turns(expressions, all, names, given.dims, given.guards)) do
      all[#all + 1], far[point] = point, true
    end
    local points, made = {}, {}
    for _, point in ipairs(all) do
      local ok, one = pcall(make, point)
      if not ok and not far[point] then failed(one, point, all[1]) end
      if ok then points[#points + 1], made[#made + 1] = point, one end
    end
    local known = follow.known(points, names, expressions)
    local ok, result = pcall(merge, made, points, known, function(values)
      local f = known:solve(values)
      if f == nil and not wide then error(again, 0) end
      return f
    end)
    if ok then return result end
    if result ~= again then error(result, 0) end
  end
end

-- The comparison of sizes that is another one at a point: what a difference comes from, most likely.
local function because(about)
  for _, point in ipairs(about.points) do
    local holds, g = follow.holds(about.guards, point)
    if not holds then
      return ("; the program compares: %s, but not with %s"):format(sizes.guard_text(g), point_text(point))
    end
  end
  return about.lost and "\nwhere it is no plain number: " .. tostring(about.lost):match "[^\n]*" or ""
end

local function differs(about, i, node, other, what)
  local points = about.points
  local a = node and ("%s at %s"):format(node.op, node.at) or "the end"
  local b = other and ("%s at %s"):format(other.op, other.at) or "the end"
  check.fail("[%s] %s: with %s it is %s, with %s it is %s%s\nHINT: a branch or loop that depends on a size is recorded "
    .. "as it ran; take the dimension out of dynamic_shapes, or export one program for each case", WHERE, what,
    point_text(points[1]), a, point_text(points[i]), b, because(about))
end

local function same_constant(a, b)
  local x, y = a.tensor, b.tensor
  return x:dtype() == y:dtype() and moth.equal(x, y)
end

-- The size of a result: a number, a formula, or "?" where it is neither.
local function merge_size(list, about) return about.known:solve(list) or "?" end

-- The inputs of branches, which have the sizes of the operands: a list that both branches of a record share is left.
local function merge_inputs(parts, about)
  local inputs = {}
  for k, input in ipairs(parts[1].inputs) do
    local shape = {}
    for d = 1, #input.shape do
      local list = {}
      for i, part in ipairs(parts) do list[i] = part.inputs[k].shape[d] or -1 end
      shape[d] = merge_size(list, about)
    end
    inputs[k] = { name = input.name, dtype = input.dtype, shape = shape, device = input.device }
  end
  parts[1].inputs = inputs
end

local function same_state(a, b, state)
  a, b = state[a.name], state[b.name]
  return a == b or a.kind == "constant" and b.kind == "constant" and same_constant(a, b)
end

local function kind_of(v) return type(v) == "table" and not B.is_dtype(v) and v.kind or type(v) end

local merge_records

-- What the records' values have in common: a constant or a formula. about: { points, known, state, follow, guards,
-- lost }.
local function merge(list, node, where, about)
  local first, points = list[1], about.points
  local kind = kind_of(first)
  local same, other = true, nil
  for i = 2, #points do
    local v = list[i]
    if kind_of(v) ~= kind then differs(about, i, node, node, where .. " is of another kind") end
    if v ~= first and (v == v or first == first) then -- NaN, too
      same, other = false, other or i
    end
  end
  if same then return first end
  if kind == "number" then
    local f = about.follow(list)
    if f == nil then
      check.fail("[%s] %s of %s (%s) depends on a size in no way that can be followed: it is %s with %s, %s with %s%s\n"
        .. "HINT: sums, products and quotients of sizes can be followed; give this dimension a fixed size", WHERE,
        where, node.op, node.at, tostring(first), point_text(points[1]), tostring(list[other]),
        point_text(points[other]), because(about))
    end
    return f
  elseif kind == "value" or kind == "device" then
    for i = 2, #points do
      if list[i].name ~= first.name then differs(about, i, node, node, where .. " is another value") end
    end
    return first
  elseif kind == "state" then
    for i = 2, #points do
      if not same_state(first, list[i], about.state) then
        check.fail("[%s] %s of %s (%s) is a tensor that Lua makes anew at each call, and which depends on a size: make "
          .. "it by ops (arange, full, …)", WHERE, where, node.op, node.at)
      end
    end
    return first
  elseif kind == "list" then
    local out = { kind = "list", n = first.n }
    for i = 2, #points do
      if list[i].n ~= first.n then differs(about, i, node, node, where .. " has another length") end
    end
    for k = 1, first.n do
      local items = {}
      for i = 1, #points do items[i] = list[i][k] end
      out[k] = merge(items, node, where, about)
    end
    return out
  elseif kind == "program" then
    local parts = {}
    for i = 1, #points do parts[i] = list[i].program end
    merge_inputs(parts, about)
    merge_records(parts, about)
    return first
  end
  return check.fail("[%s] %s of %s (%s) is %s with %s, but %s with %s", WHERE, where, node.op, node.at, tostring(first),
    point_text(points[1]), tostring(list[other]), point_text(points[other]))
end

function merge_records(records, about)
  local out = records[1]
  for i = 2, #records do
    for k = 1, math.max(#out.nodes, #records[i].nodes) do
      local a, b = out.nodes[k], records[i].nodes[k]
      if not a or not b or a.op ~= b.op or #a.out ~= #b.out or a.args.n ~= b.args.n then
        differs(about, i, a, b, "the calls depend on a size")
      end
      for r, meta in ipairs(a.metas) do
        if meta.dtype ~= b.metas[r].dtype then
          differs(about, i, a, b, ("the dtype depends on a size, %s or %s"):format(meta.dtype, b.metas[r].dtype))
        end
      end
    end
  end
  for k, node in ipairs(out.nodes) do
    for j = 1, node.args.n do
      local list = {}
      for i, record in ipairs(records) do list[i] = record.nodes[k].args[j] end
      node.args[j] = merge(list, node, "argument " .. j, about)
    end
    for r, meta in ipairs(node.metas) do
      for d = 1, #meta.shape do
        local list = {}
        for i, record in ipairs(records) do list[i] = record.nodes[k].metas[r].shape[d] or -1 end
        meta.shape[d] = merge_size(list, about)
      end
    end
  end
  for i = 2, #records do
    if table.concat(records[i].outputs, " ") ~= table.concat(out.outputs, " ") then
      local constants = false
      for j, name in ipairs(out.outputs) do
        constants = constants or about.state[name] ~= nil and about.state[records[i].outputs[j]] ~= nil
      end
      if not constants then check.fail("[%s] the results depend on a size", WHERE) end
    end
  end
  return out
end

-- What the function returns: tables of the same keys, whose ends are tensors, constants, or numbers that sizes tell.
local function merge_results(records, about)
  local out = records[1].results
  local node = { op = "the function", at = "what it returns" }
  for i = 2, #records do
    local other = records[i].results
    local same = same_structure(out.spec, other.spec)
    for k, leaf in ipairs(out.leaves) do same = same and leaf.tensor == other.leaves[k].tensor end
    if not same then
      check.fail("[%s] the number or the keys of the results depend on a size: they differ with %s and with %s", WHERE,
        point_text(about.points[1]), point_text(about.points[i]))
    end
  end
  for k, leaf in ipairs(out.leaves) do
    if not leaf.tensor then
      local list = {}
      for i, record in ipairs(records) do list[i] = record.results.leaves[k].constant end
      leaf.constant = merge(list, node, "value " .. k, about)
    end
  end
end

--- The program of records of one function.
function M.records(records, about)
  if #records == 1 then return records[1] end
  local merged = merge_records(records, about)
  merge_results(records, about)
  return merged
end

local holds_at

-- Whether a value of a program is that of a record at these sizes.
local function is_at(v, other, dims, state)
  local kind = kind_of(v)
  if kind == "size" then
    local n = sizes.evaluate(v, dims)
    local unit = math.abs(n) > 2 ^ 24 and n % 1 == 0 and 1e-7 or 1e-14 -- the program may compute in float32
    return type(other) == "number" and (n == other or math.abs(n - other) < unit * math.abs(n))
  end
  if kind_of(other) ~= kind then return false end
  if kind == "value" or kind == "device" then return v.name == other.name end
  if kind == "state" then return same_state(v, other, state) end
  if kind == "program" then return holds_at(v.program, other.program, dims, state) end
  if kind ~= "list" then return v == other or v ~= v and other ~= other end
  for i = 1, v.n do
    if not is_at(v[i], other[i], dims, state) then return false end
  end
  return v.n == other.n
end

-- Whether a program is what a record at these sizes says.
function holds_at(program, record, dims, state)
  if #program.nodes ~= #record.nodes then return false end
  for k, a in ipairs(program.nodes) do
    local b = record.nodes[k]
    if a.op ~= b.op or a.args.n ~= b.args.n then return false end
    for j = 1, a.args.n do
      if not is_at(a.args[j], b.args[j], dims, state) then return false end
    end
  end
  local results = program.results.leaves or {} -- those of branches are tensors
  for k, leaf in ipairs(results) do
    local other = record.results.leaves[k] or {}
    if leaf.tensor ~= other.tensor or not is_at(leaf.constant, other.constant, dims, state) then return false end
  end
  return #results == #(record.results.leaves or {})
end


M.holds_at = holds_at

--- Dimensions that are equal in the example, but not at a point: "m and n", or nil.
function M.equal_names(point, example)
  local names = tree.keys(point)
  for i, a in ipairs(names) do
    for k = i + 1, #names do
      local b = names[k]
      if example[a] == example[b] and point[a] ~= point[b] then return a .. " and " .. b end
    end
  end
end

return M
