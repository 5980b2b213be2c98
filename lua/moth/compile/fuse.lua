--- Which calls of a graph become one kernel: groups of pointwise calls over one iteration shape.
--
-- A group runs where its first user stands that is not in it, so all that it reads has been made. It is open until
-- then: a call joins the open groups whose values it uses, if its shape is theirs, and those become one. Operands of
-- other shapes are broadcast; values that are used outside are results.
local dtypes = require "moth.codegen.dtypes"
local formulas = require "moth.codegen.formulas"
local ops = require "moth.dispatch.ops"
local texts = require "moth.codegen.texts"

local M = {}

M.reader = formulas.reader(function(name) return texts[name] end)

-- Most calls and operands of a group: gcc takes long for more, and their pointers no longer fit the registers.
local CALLS, OPERANDS = 64, 24

local function name_of(object) return (tostring(object):gsub("^moth%.", "")) end

--- What kernels need to know of a value: dtype (of moth.codegen.dtypes), shape, stride.
function M.facts(meta) return { dtype = dtypes[name_of(meta.dtype)], shape = meta.shape, stride = meta.stride,
  device = meta.device } end

local function same(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do if a[i] ~= b[i] then return false end end
  return true
end

-- Row-major without gaps.
local function is_dense(m)
  local step = 1
  for i = #m.shape, 1, -1 do
    if m.shape[i] ~= 1 and m.stride[i] ~= step then return false end
    step = step * m.shape[i]
  end
  return true
end

-- A number as an argument of a formula of integers: one that no dtype changes.
local function is_small(v, d) return v == math.floor(v) and v <= 127 and v >= (d.kind == 4 and 0 or -128) end

local limits = { lowest = -math.huge, highest = math.huge }

--- How a call is computed, or nil if it is no pointwise call that a kernel computes as eager does: { dtype it computes
-- in, operands = values and numbers of the formula, parameters = its further numbers, mask = which operand is one }.
-- call: { target, plain, args, results }, whose tensors among args are values, tables with facts.
function M.formula(call)
  local op = call.plain and ops.get(call.target)
  if not op or op.kind ~= "pointwise" then return nil end
  if not tostring(op.kernels.cpu and op.kernels.cpu[1]):find("^moth_cpu_pointwise") then return nil end
  local result = call.results[1].facts
  if #call.results ~= 1 or not result.dtype or tostring(result.device) ~= "cpu" then return nil end
  if not is_dense(result) then return nil end
  local f = { name = op.scalar, operands = {}, parameters = {}, op = op }
  local d = op.out ~= "bool" and result.dtype or nil
  local tensors, numbers, converted = 0, {}, false
  for i, a in ipairs(op.args) do
    local v = call.args[i]
    if type(v) == "table" then
      local own = v.facts.dtype
      if not own or tostring(v.facts.device) ~= "cpu" then return nil end
      f.operands[#f.operands + 1] = v
      if op.cond == a.name then
        if own.name ~= "bool" then return nil end
        f.mask = #f.operands
      else
        d = d or own
        if own ~= d then return nil end
        tensors = tensors + 1
      end
    elseif a.type == "SCALAR" then
      if v == nil and d and d.is_float then v = limits[(op.limits or {})[a.name]] end
      if type(v) == "boolean" then v = v and 1 or 0 end
      if type(v) ~= "number" then return nil end
      f.parameters[#f.parameters + 1] = v
      numbers[#numbers + 1] = v
    else
      if type(v) ~= "number" then return nil end
      f.operands[#f.operands + 1] = v
      numbers[#numbers + 1] = v
      converted = true
    end
  end
  if tensors == 0 or not d or d.class == "uint" or not M.reader.has("m_" .. op.scalar, d.kind) then return nil end
  if not d.is_float then
    if op.promote == "float" or op.limits then return nil end
    if d.class == "bool" and converted then return nil end -- the common dtype is of integers
    for _, v in ipairs(numbers) do
      if not is_small(v, d) then return nil end
    end
  end
  f.dtype = d
  return f
end

local function leader(g)
  while g.into do g = g.into end
  return g
end

--- The steps of a graph: { call } or { group = { calls }, results = { values } }, in an order in which they can run.
-- calls: in program order, each value among their args with `call`, the call that makes it, or nil; value.kept: it is
-- an output.
function M.steps(calls)
  local steps = {}
  local function close(g)
    if g.closed then return end
    g.closed = true
    steps[#steps + 1] = g
  end
  local function each_value(args, n, fn)
    for i = 1, n do
      local v = args[i]
      if type(v) == "table" then
        if v.facts then fn(v) else each_value(v, v.n or #v, fn) end
      end
    end
  end
  for _, call in ipairs(calls) do
    local f = M.formula(call)
    local shape = f and call.results[1].facts.shape
    local own
    each_value(call.args, call.args.n, function(v)
      local g = v.call and v.call.group and leader(v.call.group)
      if not g or g.closed or g == own then return end
      local fits = f and same(g.shape, shape) and #g.calls < CALLS and g.noperands + #f.operands <= OPERANDS
      if fits and own and (#g.calls + #own.calls >= CALLS or g.noperands + own.noperands + #f.operands > OPERANDS) then
        fits = false
      end
      if not fits then
        close(g)
      elseif own then -- the two become one, in program order
        for _, c in ipairs(g.calls) do own.calls[#own.calls + 1] = c end
        table.sort(own.calls, function(a, b) return a.at < b.at end)
        own.noperands = own.noperands + g.noperands
        g.into, g.calls = own, nil
      else
        own = g
      end
    end)
    if f then
      own = own or { shape = shape, calls = {}, noperands = 0 }
      own.calls[#own.calls + 1] = call
      own.noperands = own.noperands + #f.operands
      call.formula, call.group = f, own
    else
      steps[#steps + 1] = { calls = { call } }
    end
  end
  for _, call in ipairs(calls) do
    if call.group then close(leader(call.group)) end
  end
  for _, call in ipairs(calls) do
    each_value(call.args, call.args.n, function(v)
      local mine = call.group and leader(call.group)
      if v.call and not (mine and v.call.group and leader(v.call.group) == mine) then v.kept = true end
    end)
  end
  for _, step in ipairs(steps) do
    step.fused = #step.calls > 1
    step.results = {}
    for _, call in ipairs(step.calls) do
      for _, v in ipairs(call.results) do
        if v.kept then step.results[#step.results + 1] = v end
      end
    end
  end
  return steps
end

return M
