--- Computes an op on tensors by its record (decompose, loop, …), with moth's own ops, so that it has derivatives.
--
--     local records = require "moth.records"
--     local y = records.run(moth.ops.get "softmax", { self = x, dim = 0 })
--
-- It is slow and plain. The specs compare it with the kernels (spec/ops/records_spec.lua); docs/records.md has the
-- fields. Arguments are canonical: positions count from 0, dimensions are not negative, lists are lists;
-- records.canonical makes them from the arguments of a call in Lua.
local B = require "moth_lua"
local graph = require "moth.records.graph"
local joins = require "moth.records.joins"
local loops = require "moth.records.loops"
local each = require "moth.each"
local op, call = graph.op, graph.call
local M = {}

local is_tensor = B.is_tensor

-- ---- arguments -------------------------------------------------------------------------------------

local function first_tensor(record, values)
  for _, a in ipairs(record.args) do
    local v = values[a.name]
    if is_tensor(v) then return v end
    if type(v) == "table" and is_tensor(v[1]) then return v[1] end
  end
end

--- Canonical arguments of an op from the named arguments of a call in Lua.
function M.canonical(record, given)
  local values = {}
  local first = first_tensor(record, given)
  local ndim = first and B.dim(first) or 0
  local function dim(d, extra) return d > 0 and d - 1 or d + ndim + (extra or 0) end
  for _, a in ipairs(record.args) do
    local v = given[a.name]
    if v == nil then
      if a.type == "INDEX_BASE" then v = 1
      elseif a.type == "DIMS" and record.kind == "reduce" then
        v = {}
        for d = 0, ndim - 1 do v[d + 1] = d end
      end
    elseif a.type == "DIM" then
      v = dim(v, a.of_result and 1)
    elseif a.type == "INDEX" then
      v = v > 0 and v - 1 or v
    elseif a.type == "DIMS" then
      local list = {}
      for i, d in ipairs(type(v) == "number" and { v } or v) do list[i] = dim(d) end
      v = list
    elseif a.type == "INTS" and type(v) == "number" then
      v = { v }
    elseif a.type == "DTYPE" then
      v = B.dtype(v).name
    elseif a.type == "DEVICE" then
      v = tostring(v)
    elseif a.type == "TENSORS" and is_tensor(v) then
      v = { v }
    end
    if a.count then -- int[2]: the default if not given, one number for both
      local default = a.default ~= "none" and (values[a.default] or { tonumber(a.default) })
      if default and (v == nil or #v == 0) then v = default end
      if v and #v == 1 then
        local number = v[1]
        v = {}
        for i = 1, a.count do v[i] = number end
      end
    end
    values[a.name] = v
  end
  return values
end

local function positional(record, values)
  local list = {}
  for i, a in ipairs(record.args) do list[i] = values[a.name] end
  return unpack(list, 1, #record.args)
end

--- Shapes and dtypes of the results, { { shape =, dtype =, device = } … }, from a call with fake tensors.
function M.metas(record, values)
  local function fake(t) return op.empty(B.size(t), graph.dtype_of(t), graph.device_of(t)) end
  local was = B.set_fake(true)
  local ok, results = pcall(function()
    local fakes = {}
    for _, a in ipairs(record.args) do
      local v = values[a.name]
      if is_tensor(v) then v = fake(v)
      elseif type(v) == "table" and is_tensor(v[1]) then
        local list = {}
        for i, t in ipairs(v) do list[i] = fake(t) end
        v = list
      end
      fakes[a.name] = v
    end
    return { call(record.name, positional(record, fakes)) }
  end)
  B.set_fake(was)
  if not ok then error(results, 0) end
  local metas = {}
  for i, t in ipairs(results) do
    metas[i] = { shape = B.size(t), dtype = graph.dtype_of(t), device = graph.device_of(t) }
  end
  return metas
end

-- ---- by kind ---------------------------------------------------------------------------------------

local of_state = { key = "state", s0 = "tensor", s1 = "tensor", s2 = "tensor", count = "number", x = "tensor" }

local function with(values, more)
  local out = {}
  for name, v in each(values) do out[name] = v end
  for name, v in each(more) do out[name] = v end
  return out
end

-- The results of `finish` for a state; without it the state.
local function finish(record, values, state, more)
  if not record.finish then return unpack(state) end
  more = with(more or {}, { s0 = state[1], s1 = state[2], s2 = state[3] })
  return graph.evaluate(record, record.finish, with(values, more), of_state)
end

-- Moves `dims` to the end: returns the tensor as (kept sizes …, elements), and the kept sizes.
local function rows(x, dims)
  local reduced, order, kept, count = {}, {}, {}, 1
  local shape = B.size(x)
  for _, d in ipairs(dims) do reduced[d] = true end
  for d = 0, #shape - 1 do
    if not reduced[d] then
      order[#order + 1] = d
      kept[#kept + 1] = shape[d + 1]
    end
  end
  for d = 0, #shape - 1 do
    if reduced[d] then
      order[#order + 1] = d
      count = count * shape[d + 1]
    end
  end
  local size = { unpack(kept) }
  size[#size + 1] = count
  return op.reshape(op.permute(x, order), size), kept, count
end

local function with_dims(y, shape, dims)
  local size = { unpack(shape) }
  for _, d in ipairs(dims) do size[d + 1] = 1 end
  return op.reshape(y, size)
end

-- The elements to join: self in the dtype of sums, through `map`.
local function mapped(record, values)
  local x = values.self
  local sums = record.join == "sum" or record.join == "prod"
  local dtype = values.dtype or (sums and graph.class_of(x) ~= "float" and "int64")
  if dtype then x = op.to(x, dtype) end
  if record.map then x = graph.evaluate(record, record.map, with(values, { x = x }), of_state) end
  return x
end

local function reduce(record, values)
  local x = mapped(record, values)
  local dims = values.dim
  if dims == nil then
    dims = {}
    for d = 0, B.dim(x) - 1 do dims[d + 1] = d end
  elseif type(dims) == "number" then
    dims = B.dim(x) > 0 and { dims } or {}
  end
  local join = joins[record.join]
  local all, kept, count = rows(x, dims)
  local state
  for i = 0, count - 1 do
    local position = join.positions and op.full(kept, i, "int64", graph.device_of(x)) or nil
    local s = join.one(op.select(all, -1, i), position)
    state = state and join.join(state, s) or s
  end
  if not state then -- no elements: the result still has a derivative
    local identity = op.full(kept, join.identity, graph.dtype_of(x), graph.device_of(x))
    state = { graph.class_of(x) == "float" and op.add(identity, op.sum(x)) or identity }
  end
  local results = { finish(record, values, state, { count = count }) }
  if values.keepdim then
    for i, y in ipairs(results) do results[i] = with_dims(y, B.size(x), dims) end
  end
  return unpack(results)
end

local function scan(record, values)
  local x, join, parts, state = mapped(record, values), joins[record.join], {}, nil
  if B.dim(x) == 0 or B.numel(x) == 0 then return op.clone(x) end
  for i = 0, B.size(x)[values.dim + 1] - 1 do
    local s = join.one(op.select(x, values.dim, i))
    state = state and join.join(state, s) or s
    parts[i + 1] = state[1]
  end
  return op.stack(parts, values.dim)
end

-- "self ik, mat2 kj -> ij": letters are dimensions, letters missing after the arrow are summed over; * is any
-- dimensions.
local function contract(record, values)
  local inputs, out = record.contract:match("^(.-)%s*%->%s*(.*)$")
  local sizes, letters, operands, many = {}, {}, {}, 0
  for name, subscripts in inputs:gmatch("([%w_]+)%s+([%a%*]+)") do
    local x = values[name]
    local named = #subscripts:gsub("%*", "")
    if subscripts:find("%*") then many = B.dim(x) - named end
    operands[#operands + 1] = { x, subscripts }
  end
  local function expanded(subscripts) -- replaces * by new letters
    local extra = ""
    for i = 1, many do extra = extra .. string.char(64 + i) end
    return (subscripts:gsub("%*", extra))
  end
  out = expanded(out)
  for c in out:gmatch(".") do letters[#letters + 1] = c end
  for _, o in ipairs(operands) do
    o[2] = expanded(o[2])
    local d = 0
    for c in o[2]:gmatch(".") do
      d = d + 1
      if not sizes[c] and not out:find(c, 1, true) then letters[#letters + 1] = c end
      sizes[c] = B.size(o[1])[d]
    end
  end
  local total
  for _, o in ipairs(operands) do
    local order, size = {}, {}
    for i, c in ipairs(letters) do
      local d = o[2]:find(c, 1, true)
      if d then order[#order + 1] = d - 1 end
      size[i] = d and sizes[c] or 1
    end
    local x = op.reshape(op.permute(o[1], order), size)
    total = total and op.mul(total, x) or x
  end
  local over = {}
  for i = #out, #letters - 1 do over[#over + 1] = i end
  return finish(record, values, { #over > 0 and op.sum(total, over) or total })
end

local drawn = {
  uniform = function(shape, dtype, device, g) return op.rand(shape, dtype, device, g) end,
  normal = function(shape, dtype, device, g) return op.randn(shape, dtype, device, g) end,
}

-- One random number for each element of the first argument, for `finish`.
local function random(record, values)
  local self = values.self
  local s = drawn[record.draw](B.size(self), graph.dtype_of(self), graph.device_of(self), values.generator)
  return finish(record, values, { s })
end

local function by_loop(record, values, metas)
  if record.store then
    local start = record.start and graph.evaluate(record, record.start, values) or values.self
    return finish(record, values, { loops.scatter(record, values, start) })
  end
  local m = (metas or M.metas(record, values))[1]
  return loops.gather(record, values, m.shape, m.dtype, m.device)
end

local function by_window(record, values, metas)
  local m = (metas or M.metas(record, values))[1]
  local state = loops.window(record, values, m.shape, m.dtype, m.device)
  if not state then -- nothing to join: the result must still have a derivative
    local zero = op.zeros(m.shape, m.dtype, m.device)
    for _, a in ipairs(record.args) do
      local x = values[a.name]
      if is_tensor(x) and graph.class_of(x) == "float" then zero = op.add(zero, op.mul(op.sum(x), 0)) end
    end
    state = { zero }
  end
  return finish(record, values, state)
end

--- The record's ways of computing its op, a list of "decompose", "expr", "reduce", "contract", "window", "scan",
-- "loop", "draw" and "update", the preferred one first; empty if it has none.
function M.ways(record)
  local list = {}
  local function way(name, told) if told then list[#list + 1] = name end end
  way("decompose", record.decompose)
  way("expr", record.expr)
  way("reduce", record.kind == "reduce")
  way("contract", record.contract)
  way("window", record.map and record.kind == "window")
  way("scan", record.join and (record.kind == "scan" or record.kind == "composite"))
  way("loop", record.loop)
  way("draw", record.draw and record.finish)
  way("update", record.update)
  return list
end

local ways = {
  decompose = function(record, values) return graph.evaluate(record, record.decompose, values) end,
  expr = function(record, values) return graph.evaluate(record, record.expr, values) end,
  reduce = reduce, scan = scan, contract = contract, window = by_window, loop = by_loop, draw = random,
  update = function() end,
}

--- The results of an op by its record, for canonical arguments. way: one of M.ways, by default the first; metas: of the
-- results, if the caller has them. Tensors that the op writes to stay unchanged: M.updates returns the new values.
function M.run(record, values, way, metas)
  way = way or M.ways(record)[1]
  if not way then error(("the record of %s does not say how it is computed"):format(record.name), 2) end
  return ways[way](record, values, metas)
end

--- The writes of an op: a list of { argument, position in its list (from 1) or nil, value }.
function M.updates(record, values)
  local out = {}
  if not record.update then return out end
  local names = {}
  for name in record.update[1]:gmatch("[%w_]+") do names[#names + 1] = name end
  local function of(bound, kinds, targets, k)
    local any
    for _, name in ipairs(names) do any = any or bound[name] ~= nil end
    if not any then return end
    local new = { graph.evaluate(record, record.update[2], bound, kinds) }
    for i, name in ipairs(names) do
      if bound[name] ~= nil then out[#out + 1] = { targets[name] or name, k, new[i] } end
    end
  end
  if not record.over then
    of(values, nil, {})
    return out
  end
  local kinds = { key = "over" } -- element -> its list
  for element, _ in each(record.over) do kinds[element] = "tensor" end
  local n
  for _, list in each(record.over) do n = math.max(n or 0, #values[list]) end
  for k = 1, n do
    local bound = with(values, {})
    for element, list in each(record.over) do bound[element] = values[list][k] end
    of(bound, kinds, record.over, k)
  end
  return out
end

M.graph, M.joins, M.loops = graph, joins, loops
return M
