--- Evaluates loop expressions of records, which give one element of a result from its coordinates. All elements are
-- computed at once: a coordinate is a tensor of integers with the size of its dimension, and 1 for the others.
--
-- A loop is Lua (`for` and `if` over numbers are allowed). It sees the arguments by name, lists from 0, and
--
--   out                       the coordinates of the result's element; out[-1] is the last
--   load(x, coordinates[, mask, other])   an element of x, where mask is true, else other
--   at(list, d, i)            the list with i in place of coordinate d
--   first(list, n) last(list, n) join(a, b) insert(list, d, i) remove(list, d) length(list)
--   items(list)               a plain list, for ipairs
--   broadcast(x, out)         the coordinates of x where it is broadcast to out
--   within(i, n)              0 <= i < n
--   ravel(coordinates, shape) unravel(i, shape)   the place of an element in row-major order, and back
--   eq ne lt le gt ge both either negate where   of coordinates, values and numbers
--   floor_divide remainder minimum maximum abs   and + - *
--   given(x) x.shape x.ndim x.numel; sizes: the shape of the result
--
-- With `window`, numbers for each dimension d of it (0, 1):
--
--   window.size window.stride window.padding window.dilation
--   pixel(d, o, k)            where element k of window o lies
--   hit(d, i, k, n)           the window among n whose element k lies at i, and whether there is one
--   windows(d, size)          how many there are
local B = require "moth_lua"
local graph = require "moth.records.graph"
local joins = require "moth.records.joins"
local text_source = require "moth.lang.source"
local each = require "moth.each"
local op = graph.op
local M = {}

local is_tensor = B.is_tensor

-- ---- lists from 0 ----------------------------------------------------------------------------------

local List = {}
function List.__index(l, i)
  if type(i) ~= "number" then return List[i] end
  local items = rawget(l, "items")
  local v = items[(i < 0 and i + #items or i) + 1]
  if v == nil then error(("there is no element %d in a list of %d"):format(i, #items), 0) end
  return v
end
local function list(items) return setmetatable({ items = items }, List) end
local function items_of(l) return getmetatable(l) == List and rawget(l, "items") or l end

local function wrapped(l, d) return (d < 0 and d + #items_of(l) or d) + 1 end
local function changed(l, fn, ...)
  local out = { unpack(items_of(l)) }
  fn(out, ...)
  return list(out)
end

-- ---- tensors, as a loop sees them ------------------------------------------------------------------

-- A tensor that is read by load alone, or by its fields.
local Source = {}
function Source.__index(s, name)
  local t = rawget(s, "tensor")
  if name == "shape" then return list(B.size(t))
  elseif name == "stride" then return list(B.stride(t))
  elseif name == "ndim" then return B.dim(t)
  elseif name == "numel" then return B.numel(t)
  elseif name == "offset" then return B.storage_offset(t)
  elseif name == "dtype" then return graph.dtype_of(t) end
  error(("a tensor has no field '%s' in a loop; read it by load"):format(tostring(name)), 0)
end

-- Values and coordinates: tensors with operators.
local Value = {}
Value.__index = Value
local function unwrap(v) return getmetatable(v) == Value and v.tensor or v end
local function wrap(t) return is_tensor(t) and setmetatable({ tensor = t }, Value) or t end

local plain = {
  add = function(a, b) return a + b end, sub = function(a, b) return a - b end, mul = function(a, b) return a * b end,
  floor_divide = function(a, b) return b == 0 and 0 or math.floor(a / b) end,
  remainder = function(a, b) return b == 0 and 0 or a % b end,
  minimum = math.min, maximum = math.max, abs = math.abs, div = function(a, b) return a / b end,
  eq = function(a, b) return a == b end, ne = function(a, b) return a ~= b end,
  lt = function(a, b) return a < b end, le = function(a, b) return a <= b end,
  gt = function(a, b) return a > b end, ge = function(a, b) return a >= b end,
}

-- A fraction of an integer is computed in float64.
local function precise(a, b)
  if type(b) == "number" and b ~= math.floor(b) and graph.class_of(a) == "int" then return op.to(a, "float64") end
  return a
end

local function operator(name)
  return function(a, b)
    a, b = unwrap(a), unwrap(b)
    if is_tensor(a) then a = precise(a, b) elseif is_tensor(b) then b = precise(b, a) end
    if not is_tensor(a) and not is_tensor(b) then return plain[name](a, b) end
    if b == nil then return wrap(op[name](a)) end
    if (name == "minimum" or name == "maximum") and not is_tensor(a) then a, b = b, a end
    return wrap(op[name](a, b))
  end
end
Value.__add, Value.__sub, Value.__mul, Value.__div = operator "add", operator "sub", operator "mul", operator "div"
function Value.__unm(a) return wrap(op.neg(a.tensor)) end

local function logical(name, of_booleans)
  return function(a, b)
    a, b = unwrap(a), unwrap(b)
    if not is_tensor(a) and not is_tensor(b) then return of_booleans(a, b) end
    if not is_tensor(a) then a, b = b, a end
    if b == nil then return wrap(op[name](a)) end
    if not is_tensor(b) then return of_booleans(true, b) == of_booleans(false, b) and b or wrap(a) end
    return wrap(op[name](a, b))
  end
end

local function load(source, coordinates, mask, other)
  if getmetatable(source) ~= Source then return source end -- an operand that is a number
  local x = rawget(source, "tensor")
  local shape, where = B.size(x), items_of(coordinates)
  if #where ~= #shape then
    error(("load: %d coordinates for a tensor of %d dimensions"):format(#where, #shape), 0)
  end
  mask = unwrap(mask)
  if mask == false then return other end
  local step, linear = 1, nil
  for d = #shape, 1, -1 do
    local part = unwrap(operator "mul"(where[d], step))
    linear = linear and unwrap(operator "add"(linear, part)) or part
    step = step * shape[d]
  end
  linear = linear or 0
  if not is_tensor(linear) then linear = op.full({}, linear, "int64", graph.device_of(x)) end
  if is_tensor(mask) then
    linear = op.where(mask, linear, 0)
    if step == 0 then -- no element: `other` everywhere, with a derivative
      return wrap(op.add(op.full(B.size(linear), other, graph.dtype_of(x), graph.device_of(x)), op.sum(x)))
    end
  end
  local flat = op.index_select(op.reshape(x, { -1 }), 0, op.reshape(op.to(linear, "int64"), { -1 }))
  local v = op.reshape(flat, B.size(linear))
  if is_tensor(mask) then v = op.where(mask, v, unwrap(other)) end
  return wrap(v)
end

local base = {
  load = load,
  at = function(l, d, i) return changed(l, function(out) out[wrapped(l, d)] = i end) end,
  insert = function(l, d, i) return changed(l, function(out) table.insert(out, wrapped(l, d), i) end) end,
  remove = function(l, d) return changed(l, function(out) table.remove(out, wrapped(l, d)) end) end,
  first = function(l, n) return list({ unpack(items_of(l), 1, n) }) end,
  last = function(l, n) return list({ unpack(items_of(l), #items_of(l) - n + 1) }) end,
  join = function(a, b)
    return changed(a, function(out) for _, v in ipairs(items_of(b)) do out[#out + 1] = v end end)
  end,
  length = function(l) return #items_of(l) end,
  items = items_of,
  broadcast = function(source, coords)
    if getmetatable(source) ~= Source then return coords end
    local shape, here, to = B.size(rawget(source, "tensor")), items_of(coords), {}
    for d, size in ipairs(shape) do to[d] = size == 1 and 0 or here[#here - #shape + d] end
    return list(to)
  end,
  given = function(x) return x ~= nil end,
  where = function(c, a, b)
    c = unwrap(c)
    if not is_tensor(c) then return c and a or b end
    return wrap(op.where(c, unwrap(a), unwrap(b)))
  end,
  both = logical("logical_and", function(a, b) return a and b end),
  either = logical("logical_or", function(a, b) return a or b end),
  negate = logical("logical_not", function(a) return not a end),
  ipairs = ipairs, inf = math.huge,
}
for name in each(plain) do base[name] = operator(name) end
function base.ravel(coords, shape)
  local sizes, i = items_of(shape), 0
  for d, c in ipairs(items_of(coords)) do i = i * sizes[d] + c end
  return i
end
function base.unravel(i, shape)
  local sizes, out = items_of(shape), {}
  for d = #sizes, 1, -1 do
    out[d] = base.remainder(i, sizes[d])
    i = base.floor_divide(i, sizes[d])
  end
  return list(out)
end
function base.within(i, n) return base.both(base.ge(i, 0), base.lt(i, n)) end

-- The functions of a window.
local function of_window(w)
  local stride, padding, dilation = w.stride, w.padding, w.dilation
  return {
    window = w,
    pixel = function(d, o, k) return o * stride[d] - padding[d] + k * dilation[d] end,
    hit = function(d, i, k, n)
      local t = i + padding[d] - k * dilation[d]
      local o = base.floor_divide(t, stride[d])
      return o, base.both(base.eq(base.remainder(t, stride[d]), 0), base.within(o, n))
    end,
    windows = function(d, size)
      return math.floor((size + 2 * padding[d] - dilation[d] * (w.size[d] - 1) - 1) / stride[d]) + 1
    end,
  }
end

-- ---- evaluating ------------------------------------------------------------------------------------

-- A coordinate for each dimension of shape: the first stands in dimension `from` of a tensor of n dimensions.
local function coordinates(shape, device)
  local out = {}
  for d, size in ipairs(shape) do
    local view = {}
    for i = 1, #shape do view[i] = i == d and size or 1 end
    out[d] = wrap(op.reshape(op.arange(0, size, 1, "int64", device), view))
  end
  return list(out)
end

local function as_source(v)
  if is_tensor(v) then return setmetatable({ tensor = v }, Source) end
  if type(v) == "table" and is_tensor(v[1]) then
    local out = {}
    for i, t in ipairs(v) do out[i] = as_source(t) end
    return out
  end
  if type(v) == "table" and getmetatable(v) == nil then return list(v) end
  return v
end

-- The environment of a text of the record.
local function environment(record, values, more)
  local env = setmetatable({}, { __index = function(_, name)
    if base[name] == nil then error(("'%s' is no argument or function of a loop"):format(name), 0) end
    return base[name]
  end })
  for _, a in ipairs(record.args) do rawset(env, a.name, as_source(values[a.name])) end
  for name, v in each(more) do rawset(env, name, v) end
  -- an argument that is not given is nil, not a mistake
  local names = {}
  for _, a in ipairs(record.args) do names[a.name] = true end
  local index = getmetatable(env).__index
  getmetatable(env).__index = function(t, name)
    if names[name] then return nil end
    return index(t, name)
  end
  return env
end

local function run(text, record, env) return setfenv(assert(text_source.chunk(text, "=" .. record.name)), env)() end

-- The value as a tensor of this shape, dtype and device.
local function finished(v, shape, dtype, device)
  v = unwrap(v)
  if not is_tensor(v) then return op.full(shape, v, dtype, device) end
  if graph.dtype_of(v) ~= dtype then v = op.to(v, dtype) end
  return op.clone(op.expand(v, shape))
end
M.finished = finished

-- The numbers of a window: of `window` in the record, which names arguments or holds expressions of them.
local function window_of(record, values)
  if not record.window then return {} end
  local out = {}
  for name, text in each(record.window) do out[name] = list((graph.evaluate(record, text, values))) end
  return of_window(out)
end

--- A gather: one result of this shape, dtype and device.
function M.gather(record, values, shape, dtype, device)
  local more = window_of(record, values)
  more.out, more.sizes = coordinates(shape, device), list(shape)
  local env = environment(record, values, more)
  return finished(run(record.loop, record, env), shape, dtype, device)
end

--- A scatter: `loop` gives where and what for every coordinate of `over`; record.store says what happens there.
function M.scatter(record, values, target)
  local shape = graph.evaluate(record, record.over, values)
  local device = graph.device_of(target)
  local env = environment(record, values, { out = coordinates(shape, device), sizes = list(B.size(target)) })
  local where, what = run(record.loop, record, env)
  local size, linear, step = B.size(target), 0, 1
  for d = #size, 1, -1 do
    linear = base.add(base.mul(items_of(where)[d], step), linear)
    step = step * size[d]
  end
  linear = unwrap(linear)
  if not is_tensor(linear) then linear = op.full({}, linear, "int64", device) end
  local flat = op.reshape(target, { -1 })
  local at = op.reshape(op.expand(linear, shape), { -1 })
  local v = op.reshape(finished(what, shape, graph.dtype_of(target), device), { -1 })
  if record.store == "add" or values[record.store] then return op.reshape(op.index_add(flat, 0, at, v), size) end
  return op.reshape(op.index_copy(flat, 0, at, v), size)
end

-- The state of all elements of `over`, a list of { name, size }: joined one after the other, the last name the fastest.
local function folded(join, over, element)
  local state
  local here = {}
  local function walk(k)
    if k > #over then
      local s = join.one(element(here))
      state = state and join.join(state, s) or s
      return
    end
    for i = 0, over[k][2] - 1 do
      here[over[k][1]] = i
      walk(k + 1)
    end
  end
  walk(1)
  return state
end

--- Windows, and other reductions over coordinates of their own: `over` lists { name, size }, `map` gives for each of
-- them the values that are joined. Returns the state, tensors of this shape; nil if there is nothing to join.
function M.window(record, values, shape, dtype, device)
  local more, over = window_of(record, values), {}
  more.out, more.sizes = coordinates(shape, device), list(shape)
  for i, o in ipairs(record.over) do over[i] = { o[1], run(o[2], record, environment(record, values, more)) } end
  local join = joins[record.join]
  return folded(join, over, function(here)
    for name, i in each(here) do more[name] = i end
    local mapped = { run(record.map, record, environment(record, values, more)) }
    for i, v in ipairs(mapped) do
      mapped[i] = finished(v, shape, join.positions and i == 2 and "int64" or dtype, device)
    end
    return unpack(mapped)
  end)
end

return M
