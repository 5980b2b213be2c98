--- Takes the calls of a graph apart, by their records (docs/records.md), into what kernels are made of:
--
--   map     an element of the result from those of the operands at its place: { name, dtype, operands,
--           parameters }
--           or, of a list that is put together, where its pieces begin: { cat, dim, operands }
--   reduce  { join, dims, x }: the dimensions of a set become 1
--   view    other sizes and strides of a value
--
-- All else is a call of the library. The records' texts are run on fake tensors, and the ops that they call are noted;
-- those are taken apart in turn. A call is a table { target, fn, args, results, at, unit, owner }, its arguments in
-- Lua's form; a value is { facts, call, fake }. The unit stands for the call of the graph that it is a part of, the
-- owner for the call that eager runs as one kernel: where its field `apart` is false it stays whole.
local B = require "moth_lua"
local dtypes = require "moth.codegen.dtypes"
local graphs = require "moth.compile.graph"
local records = require "moth.records"
local each = require "moth.each"
local symbols = require "moth.compile.symbols"

-- Classes of dtypes that generated kernels do not compute in.
local apart = { uint = true, complex = true }

--- Whether kernels are generated for a device: "cpu", or one of CUDA.
local function able(device) return device == "cpu" or device:find("^cuda") ~= nil end
local M = {}
local rgraph = records.graph

M.reader = require("moth.kernel.native").reader

local function name_of(object) return (tostring(object):gsub("^moth%.", "")) end

--- Of a value: dtype (of moth.codegen.dtypes), shape, stride, device.
function M.facts(meta)
  return { dtype = dtypes[name_of(meta.dtype)], shape = meta.shape, stride = meta.stride,
    device = tostring(meta.device) }
end

--- Where calls are taken apart for any sizes, those of the graph as symbols (moth.compile.templates); else nil.
M.open = nil

local function facts_of(fake, args)
  local shape = M.open and M.open:shape(fake, args) or B.size(fake)
  return { dtype = dtypes[name_of(B.tensor_dtype(fake))], shape = shape,
    stride = M.open and M.open:stride(fake, shape) or B.stride(fake), device = tostring(B.tensor_device(fake)) }
end

-- Whether v is a number, or a symbol for one.
local function is_plain(v) return type(v) == "number" or symbols.is(v) end

local function is_value(v) return type(v) == "table" and v.facts ~= nil end
M.is_value = is_value
local is_number = graphs.is_number

--- Calls fn for each value among arguments.
function M.each_value(args, n, fn)
  for i = 1, n do
    local v = args[i]
    if type(v) == "table" then
      if v.facts then fn(v) elseif not is_number(v) then M.each_value(v, v.n or #v, fn) end
    end
  end
end

--- The value that stands for v.
function M.resolve(v)
  while v.same do v = v.same end
  return v
end

local resolve = M.resolve

--- The value whose memory a view shows.
function M.root(v)
  while v.call and v.call.view do v = v.call.args[1] end
  return v
end

--- Row-major without gaps.
function M.is_dense(m)
  local step = 1
  for i = #m.shape, 1, -1 do
    if m.shape[i] ~= 1 and m.stride[i] ~= step then return false end
    step = step * m.shape[i]
  end
  return true
end

function M.same(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do if a[i] ~= b[i] then return false end end
  return true
end

--- The dimensions by which a value's elements differ, false for others.
function M.plain_axes(shape)
  local axes = {}
  for i, size in ipairs(shape) do axes[i] = size > 1 and i or false end
  return axes
end

local function numel(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return n
end
M.numel = numel

-- Whether elements lie without gaps, in some order of the dimensions.
local function is_packed(m)
  local order = {}
  for i, size in ipairs(m.shape) do
    if size ~= 1 then order[#order + 1] = i end
  end
  table.sort(order, function(a, b) return m.stride[a] > m.stride[b] end)
  local step = 1
  for k = #order, 1, -1 do
    if m.stride[order[k]] ~= step then return false end
    step = step * m.shape[order[k]]
  end
  return true
end

-- ---- pointwise calls --------------------------------------------------------------------------------

local limits = { lowest = -math.huge, highest = math.huge }

-- Whether an integer dtype has the number.
local function holds(d, v)
  if v ~= math.floor(v) then return false end
  local bits = d.size * 8
  local low = d.kind == 4 and 0 or -2 ^ (bits - 1)
  return v >= math.max(low, -2 ^ 53) and v < math.min(low + 2 ^ bits, 2 ^ 53)
end

-- A number of the graph as a kernel takes it: itself, where a float may be any; else its value.
local function number_of(v, d, op)
  if not is_number(v) then return v end
  local is_alpha = v.value == 1 and (op.name == "add" or op.name == "sub")
  if d.is_float and type(v.value) == "number" and not is_alpha then return v end
  return v:pin()
end

--- How a call is computed element by element, or nil: { name, dtype that it computes in, operands = values and numbers,
-- parameters = further numbers, mask = which operand is one, op }.
function M.formula(call)
  local op = call.record
  if not op or op.kind ~= "pointwise" or #call.results ~= 1 then return nil end
  if not tostring(op.kernels.cpu and op.kernels.cpu[1]):find("^moth_cpu_pointwise") then return nil end
  local result = call.results[1].facts
  if not result.dtype or not able(result.device) or not is_packed(result) then return nil end
  local f = { name = op.scalar, operands = {}, parameters = {}, op = op }
  local d = op.out ~= "bool" and result.dtype or nil
  local tensors, others = {}, {}
  for i, a in ipairs(op.args) do
    local v = call.args[i]
    if is_value(v) then
      if not v.facts.dtype or v.facts.device ~= result.device or apart[v.facts.dtype.class] then return nil end
      if op.cond ~= a.name then tensors[#tensors + 1] = v end
    elseif a.type ~= "SCALAR" then
      others[#others + 1] = v
    end
  end
  if not d and #tensors == 1 and #others == 0 then
    d = tensors[1].facts.dtype
  elseif not d and #tensors + #others == 2 then
    local list = {}
    for i, v in ipairs(tensors) do list[i] = v.fake() end
    if #tensors == 1 then list[2] = symbols.hint(is_number(others[1]) and others[1].value or others[1]) end
    if type(list[2]) == "boolean" then return nil end
    d = dtypes[name_of(B.result_type(list[1], list[2]))]
  end
  if not d or apart[d.class] or not M.reader.has("m_" .. op.scalar, d.kind) then return nil end
  -- C compilers have no vectors of float16: rounding to it between ops takes longer than eager's passes over memory do.
  if d.name == "float16" and result.device == "cpu" then return nil end
  if op.promote == "float" and not d.is_float then return nil end
  if not d.is_float and op.limits then return nil end
  local any = false
  for i, a in ipairs(op.args) do
    local v = number_of(call.args[i], d, op)
    if type(v) == "boolean" then v = v and 1 or 0 end
    if is_value(v) then
      f.operands[#f.operands + 1] = v
      any = true
      if op.cond == a.name then
        if v.facts.dtype.name ~= "bool" then return nil end
        f.mask = #f.operands
      end
    elseif a.type == "SCALAR" then
      if v == nil and d.is_float then v = limits[(op.limits or {})[a.name]] end
      if v == nil or not is_plain(v) and not is_number(v) then return nil end
      f.parameters[#f.parameters + 1] = v
    else
      if not is_plain(v) and not is_number(v) then return nil end
      f.operands[#f.operands + 1] = v
      if d.class == "bool" then return nil end -- the common dtype is of integers
    end
    if is_plain(v) and not d.is_float and not holds(d, v) then return nil end
  end
  if not any then return nil end
  f.dtype = d
  return f
end

local copies = { to_copy = true, clone = true }

-- A copy in another dtype or order, as a map.
local function copy_of(call)
  local x, out = call.args[1], call.results[1] and call.results[1].facts
  if not copies[call.target] or not is_value(x) or not x.facts.dtype or not out.dtype then return nil end
  if x.facts.device ~= out.device or not able(out.device) then return nil end
  if apart[x.facts.dtype.class] or apart[out.dtype.class] then return nil end
  return is_packed(out) and { copy = true, operands = { x }, parameters = {}, dtype = out.dtype } or nil
end

local PIECES = 4 -- of a list that is put together: each is a comparison for each element

-- A list of tensors put together, as a map: { cat = where the pieces begin in dimension `dim`, … }.
local function cat_of(call)
  local list, out = call.args[1], call.results[1] and call.results[1].facts
  if call.target ~= "cat" or not call.record or type(list) ~= "table" or not out.dtype or not able(out.device) then
    return nil
  end
  local dim, from, at, n = call.args[2] or 1, {}, 0, list.n or #list
  dim = dim > 0 and dim or dim + #out.shape + 1
  if n < 2 or n > PIECES or not is_packed(out) or apart[out.dtype.class] then return nil end
  for i = 1, n do
    local v = list[i]
    if not is_value(v) or v.facts.dtype ~= out.dtype or #v.facts.shape ~= #out.shape then return nil end
    if v.facts.device ~= out.device then return nil end
    if numel(v.facts.shape) == 0 then return nil end
    from[i] = at
    at = at + v.facts.shape[dim]
  end
  return { cat = from, dim = dim, operands = list, parameters = {}, dtype = out.dtype, op = call.record, name = "cat" }
end

-- The copy of a value into an input at the end of a plain graph, as a map whose result lies there.
local function write_of(call)
  local x, v = call.args[1], call.args[2]
  if call.target ~= "copy_" or not is_value(x) or not is_value(v) or x.call then return nil end
  local to, from = x.facts, v.facts
  if not to.dtype or not from.dtype or to.device ~= from.device or not able(to.device) then return nil end
  if apart[to.dtype.class] or apart[from.dtype.class] or not is_packed(to) then return nil end
  if not M.same(to.shape, from.shape) then return nil end
  call.into = x
  return { copy = true, operands = { v }, parameters = {}, dtype = to.dtype }
end

-- ---- noting what records do --------------------------------------------------------------------------

local joins = { sum = true, prod = true, max = true, min = true, any = true, all = true, welford = true, lse = true }

-- Numbers for the symbols among arguments.
local function hints(v)
  if type(v) ~= "table" then return symbols.hint(v) end
  local list = {}
  for i = 1, v.n or #v do list[i] = hints(v[i]) end
  return list
end

-- A tracer: runs fn on fakes, returns its results and the calls that it made.
local function traced(fn)
  local log = {}
  local was, fake = rgraph.trace, B.set_fake(true)
  rgraph.trace = function(name, op, n, args, canonical)
    local given = args
    if M.open then
      given = {}
      for i = 1, n do given[i] = hints(args[i]) end
    end
    local results = { op(unpack(given, 1, n)) }
    for _, r in ipairs(M.open and results or {}) do M.open:shape(r, args) end
    log[#log + 1] = { name = name, fn = op, n = n, args = args, canonical = canonical, results = results }
    return unpack(results)
  end
  local out = { pcall(fn) }
  rgraph.trace = was
  B.set_fake(fake)
  if not out[1] then return nil, out[2] end
  return { unpack(out, 2) }, log
end

local of_state = { key = "state", s0 = "tensor", s1 = "tensor", s2 = "tensor", count = "number", x = "tensor" }

local function with(values, more)
  local out = {}
  for name, v in each(values) do out[name] = v end
  for name, v in each(more) do out[name] = v end
  return out
end

local reducing = { sum = "sum", prod = "prod", amax = "max", amin = "min", any = "any", all = "all" }
local op_of = { sum = "sum", prod = "prod", max = "amax", min = "amin", any = "any", all = "all" }

-- A call as a reduction: { join, dims, x }, if it is one that keeps dimensions and the dtype.
local function reduction_of(call)
  local join, x, out = reducing[call.target], call.args[1], call.results[1] and call.results[1].facts
  if not join or not is_value(x) or not out.dtype or #out.shape ~= #x.facts.shape or #out.shape == 0 then return nil end
  local d = x.facts.dtype
  if not d or apart[d.class] or not able(x.facts.device) or numel(x.facts.shape) == 0 then return nil end
  if join == "any" or join == "all" then
    if d.name ~= "bool" then return nil end
  elseif out.dtype ~= d or d.class == "bool" or d.form ~= 0 and (join == "sum" or join == "prod") then
    return nil
  elseif (join == "sum" or join == "prod") and not d.is_float and d.name ~= "int64" then
    return nil
  end
  local dims = {}
  local given = call.args[2]
  if given == nil then
    for k = 1, #out.shape do dims[k] = true end
  end
  for _, k in ipairs(type(given) == "number" and { given } or given or {}) do
    dims[k > 0 and k or k + #out.shape + 1] = true
  end
  for k, size in ipairs(x.facts.shape) do
    if out.shape[k] ~= (dims[k] and 1 or size) then return nil end
  end
  return { join = join, dims = dims, x = x }
end

-- A reduction of x over dims (from 0) that keeps the dimensions.
local function reduction(join, x, dims) return rgraph.call(op_of[join], x, dims, true) end

-- A record of kind reduce, by simple joins.
local function reduce(record, values)
  local op = rgraph.op
  local x, was = values.self, rgraph.dtype_of(values.self)
  local sums = record.join == "sum" or record.join == "prod"
  local dtype = values.dtype or (sums and rgraph.class_of(x) ~= "float" and "int64")
  local half = was == "float16" or was == "bfloat16"
  if half and (record.join ~= "max" and record.join ~= "min") then
    x = op.to(x, dtype == "float64" and dtype or "float32")
  elseif dtype and dtype ~= was then
    x = op.to(x, dtype)
  end
  if record.map then x = rgraph.evaluate(record, record.map, with(values, { x = x }), of_state) end
  local dims, shape, count = values.dim, B.size(values.self), 1
  if dims == nil then
    dims = {}
    for d = 0, #shape - 1 do dims[d + 1] = d end
  elseif type(dims) == "number" then
    dims = #shape > 0 and { dims } or {}
  end
  for _, d in ipairs(dims) do count = count * shape[d + 1] end
  local state
  if record.join == "welford" then
    local mean = op.div(reduction("sum", x, dims), count)
    local c = op.sub(x, mean)
    state = { count, mean, reduction("sum", op.mul(c, c), dims) }
  elseif record.join == "lse" then
    local top = reduction("max", x, dims)
    top = op.where(op.eq(op.abs(top), math.huge), 0, top)
    state = { top, reduction("sum", op.exp(op.sub(x, top)), dims) }
  else
    state = { reduction(record.join, x, dims) }
  end
  local y = state[1]
  if record.finish then
    y = rgraph.evaluate(record, record.finish, with(values, { s0 = state[1], s1 = state[2], s2 = state[3],
      count = count }), record.join == "welford" and { key = "welford", s0 = "number", s1 = "tensor", s2 = "tensor" }
      or of_state)
  end
  local out = values.dtype or half and was
  if out and rgraph.dtype_of(y) ~= out then y = op.to(y, out) end
  if not values.keepdim then
    local kept, gone = {}, {}
    for _, d in ipairs(dims) do gone[d] = true end
    for d, size in ipairs(shape) do
      if not gone[d - 1] then kept[#kept + 1] = size end
    end
    if #kept ~= #shape then y = op.reshape(y, kept) end
  end
  return y
end

-- What takes a call apart: a function of canonical arguments and the log, or nil.
local function way_of(record, values)
  if record.kind == "reduce" then
    if not joins[record.join] or record.nresults ~= 1 then return nil end
    local x = values.self
    local class = rgraph.class_of(x)
    if class == "uint" or B.numel(x) == 0 or B.dim(x) == 0 then return nil end
    if class == "bool" and (record.join == "max" or record.join == "min") then return nil end
    return function() return reduce(record, values) end
  elseif record.kind == "composite" and record.expr then
    return function() return rgraph.evaluate(record, record.expr, values) end
  elseif (record.kind == "fused" or record.kind == "random") and record.decompose then
    return function() return rgraph.evaluate(record, record.decompose, values) end
  elseif record.kind == "matmul" and record.contract and record.finish then
    -- The product alone, by the same op: without the arguments that `finish` adds.
    local given, lacking = {}, false
    for i, a in ipairs(record.args) do
      local v = values[a.name]
      if not record.contract:find("%f[%w_]" .. a.name .. "%f[^%w_]") and B.is_tensor(v) then
        if not a.optional then return nil end
        v, lacking = nil, true
      end
      given[i] = v
    end
    if not lacking then return nil end
    return function()
      local s0 = rgraph.call(record.name, unpack(given, 1, #record.args))
      return rgraph.evaluate(record, record.finish, with(values, { s0 = s0 }), of_state)
    end
  end
end

-- ---- taking apart -----------------------------------------------------------------------------------

-- The fake of a value, or of each in a list.
local function fake_of(v)
  if is_number(v) then return v:pin() end
  if type(v) ~= "table" then return v end
  if v.facts then return v.fake() end
  local list = {}
  for i = 1, v.n or #v do list[i] = fake_of(v[i]) end
  return list
end

local function known(call) -- what it is without being taken apart
  call.map = M.formula(call) or copy_of(call) or write_of(call) or cat_of(call)
  if call.map then return true end
  if call.record and call.record.memory == "view" then
    call.view = true
    return true
  end
  call.reduce = reduction_of(call)
  return call.reduce ~= nil
end

local function takes_graphs(call)
  local fits, device = true, nil
  M.each_value(call.args, call.args.n, function(v)
    device = device or v.facts.device
    fits = fits and v.facts.dtype ~= nil and v.facts.device == device and able(device)
  end)
  return fits
end

local expand

-- Whether an op takes positions that count from where a call says.
local function has_base(record)
  for _, a in ipairs(record.args) do
    if a.type == "INDEX_BASE" then return true end
  end
  return false
end

-- The calls of a log as calls with values; `values` knows the fakes. draws: one of them may draw random numbers.
local function read_log(log, values, unit, owner, out, draws)
  local function value_of(v)
    if B.is_tensor(v) then
      if not values[v] then return nil, true end
      return resolve(values[v])
    end
    if type(v) ~= "table" then return v end
    local list = { n = #v }
    for i = 1, #v do
      local one, lost = value_of(v[i])
      if lost then return nil, true end
      list[i] = one
    end
    return list
  end
  for _, entry in ipairs(log) do
    local call = { target = entry.name, fn = B.ops[entry.name], args = { n = entry.n }, results = {}, unit = unit,
      record = rgraph.record(entry.name), canonical = entry.canonical }
    for i = 1, entry.n do
      local v, lost = value_of(entry.args[i])
      if lost then return false end
      call.args[i] = v
    end
    for i, r in ipairs(entry.results) do
      if values[r] then
        call.alias = true -- its argument
      else
        local fake = r
        values[r] = { facts = facts_of(r, entry.args), call = call, fake = function() return fake end }
      end
      call.results[i] = values[r]
    end
    if not call.fn or call.record.writes or has_base(call.record) then return false end
    if call.record.draws and not draws then return false end
    draws = draws and not call.record.draws
    if not call.alias and not expand(call, values, out, owner) then return false end
  end
  return true
end

-- Adds the parts of a call to `out`: the call itself where it cannot be taken apart. `values`: fake -> value. False: a
-- part of it cannot be run.
function expand(call, values, out, owner)
  local unit = call.unit
  call.owner = owner or call
  if not unit.whole and known(call) then
    out[#out + 1] = call
    return true
  end
  local record = call.record
  local given = {}
  if not owner and record and record.kind ~= "composite" then
    unit.count = unit.count + 1
    owner = unit.owners[unit.count] or {}
    unit.owners[unit.count], call.owner = owner, owner
  end
  local opens = unit.apart ~= false and not unit.whole and not (owner and owner.apart == false)
  if record and opens and takes_graphs(call) then
    if call.canonical then
      for i, a in ipairs(record.args) do given[a.name] = call.canonical[i] end
    else
      for i, a in ipairs(record.args) do
        local v = call.args[i]
        if v ~= nil then
          given[a.name] = fake_of(v)
          M.each_value({ v }, 1, function(x) values[x.fake()] = values[x.fake()] or x end)
        end
      end
      given = records.canonical(record, given)
    end
    local way = way_of(record, given)
    local results, log = nil, nil
    if way then results, log = traced(way) end
    local parts, mine = {}, {}
    local fits = results and read_log(log, values, unit, owner, parts, record.draws)
    for _, part in ipairs(fits and record.kind == "fused" and parts or {}) do
      fits = fits and (part.map or part.reduce or part.view) -- else its kernel is better
    end
    for i, v in ipairs(fits and call.results or {}) do
      mine[i] = B.is_tensor(results[i]) and values[results[i]]
      mine[i] = mine[i] and resolve(mine[i])
      local there = mine[i] and mine[i].facts
      fits = fits and mine[i].call and there.dtype == v.facts.dtype and M.same(there.shape, v.facts.shape)
      for k, size in ipairs(fits and there.shape or {}) do
        fits = fits and (size == 1 or there.stride[k] == v.facts.stride[k])
      end
    end
    if fits then
      for _, part in ipairs(parts) do out[#out + 1] = part end
      for i, v in ipairs(call.results) do v.same = mine[i] end
      return true
    end
  end
  out[#out + 1] = call
  return true
end

-- Arguments with the values that stand for those of `given`.
local function resolved(given)
  local list = { n = given.n or #given }
  for i = 1, list.n do
    local v = given[i]
    if type(v) == "table" and not is_number(v) then v = v.facts and resolve(v) or resolved(v) end
    list[i] = v
  end
  return list
end

--- Marks copies, as `idle`, of what nobody else uses, where neither is written to: the value itself may take their
-- place.
function M.find_idle(calls, outputs)
  local uses, written, from = {}, {}, {}
  local function use(v) uses[v] = (uses[v] or 0) + 1 end
  for _, call in ipairs(calls) do
    M.each_value(call.given, call.given.n, use)
    if call.record and call.record.memory == "view" then from[call.results[1]] = call.given[1] end
    if call.barrier then
      M.each_value(call.given, call.given.n, function(v)
        while v do
          written[v] = true
          v = from[v]
        end
      end)
    end
  end
  M.each_value(outputs, outputs.n or #outputs, use)
  for _, call in ipairs(calls) do
    local x, y = call.given[1], call.results[1]
    call.idle = call.target == "clone" and call.record and is_value(x) and x.call ~= nil and not from[x]
      and #x.call.results == 1 and uses[x] == 1 and not written[x] and not written[y] and not x.call.barrier
      and x.facts.dtype == y.facts.dtype and M.same(x.facts.shape, y.facts.shape)
      and M.same(x.facts.stride, y.facts.stride) or false
  end
end

--- Takes calls of a graph apart, whose arguments are `given`. A call whose unit.apart is false stays whole; one whose
-- unit.whole is true is the library's.
function M.expand(calls)
  local out, values = {}, {}
  for _, call in ipairs(calls) do
    call.map, call.view, call.into, call.reduce = nil, nil, nil, nil
    for _, v in ipairs(call.results) do v.same = nil end
  end
  for _, call in ipairs(calls) do
    call.args, call.unit.count = resolved(call.given), 0
    if call.idle then
      call.results[1].same = call.args[1]
    else
      expand(call, values, out)
    end
  end
  for i, call in ipairs(out) do call.at = i end
  return out
end

return M
