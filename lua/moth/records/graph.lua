--- Evaluates expressions (src/ops/expr.lua): the graph of a text is made once, then its nodes are computed on tensors
-- by moth's own ops; of `when` only the branch taken. Positions count from 0.
local B = require "moth_lua"
local each = require "moth.each"
local exporting = require "moth.export.active"
local expr = require "moth.records.expr"
local define = require "moth.records.define"
local shapes = require "moth.records.shapes"
local M = {}

local is_tensor, is_node = B.is_tensor, expr.is_node

-- ---- calling ops -----------------------------------------------------------------------------------

local by_name
--- The record of an op, nil if there is none.
function M.record(name)
  if not by_name then
    by_name = {}
    for _, op in ipairs(require "moth.ops_table") do by_name[op.name] = op end
  end
  return by_name[name]
end

local function from_one(d) return d >= 0 and d + 1 or d end

-- Converts a canonical value to the form that Lua's callers use.
local as_given = {
  DIM = from_one, INDEX = from_one,
  DIMS = function(v)
    if type(v) == "number" then return from_one(v) end
    local list = {}
    for i, d in ipairs(v) do list[i] = from_one(d) end
    return list
  end,
  BOOL = function(v)
    if type(v) == "number" then return v ~= 0 end
    return v
  end,
}

local functions = { [0] = {}, [1] = {} } -- by the base of positions in index tensors

--- While it is not nil, calls are made by it: M.trace(name, fn, n, args, canonical), fn(unpack(args, 1, n)) being the
-- call as Lua makes it, `canonical` its arguments as records count them.
M.trace = nil

local HOLDS_INDEX = 2 -- MothArg.holds: src/dispatch/dispatch.h

-- The result that is positions, of ops that give some.
local gives_positions = { argmax = 1, argmin = 1, argsort = 1, nonzero = 1, max_dim = 2, min_dim = 2, sort = 2,
  topk = 2, kthvalue = 2, max_pool1d_with_indices = 2, max_pool2d_with_indices = 2, max_pool3d_with_indices = 2,
  adaptive_max_pool2d_with_indices = 2, adaptive_max_pool3d_with_indices = 2, native_running_max = 2,
  native_running_min = 2 }

--- Whether an op takes or gives positions.
function M.has_positions(name)
  for _, a in ipairs(M.record(name).args) do
    if a.type == "INDEX_BASE" then return true end
  end
  return false
end

-- The call with positions from 1, its index tensors and results moved by one.
local function from_one_call(name, args, n)
  local at = 0
  for _, a in ipairs(B.op_facts(name).args) do
    if a.type ~= "INDEX_BASE" then
      at = at + 1
      if a.holds == HOLDS_INDEX and args[at] ~= nil then args[at] = B.ops.add(args[at], 1) end
    end
  end
  local results = { functions[1][name](unpack(args, 1, n)) }
  local k = gives_positions[name]
  if k then results[k] = B.ops.sub(results[k], 1) end
  return unpack(results)
end

--- Calls an op by name. Positions count from 0, those in index tensors from the argument index_base (0).
function M.call(name, ...)
  local args, n, base, given = {}, 0, 0, select("#", ...)
  for i, a in ipairs(M.record(name).args) do
    local v
    if i <= given then v = (select(i, ...)) end
    if a.type == "INDEX_BASE" then
      base = v or 0
    else
      if i > given then
        if not a.optional and not a.default then break end -- the op reports the missing argument
        if a.default and a.default ~= "none" then
          v = a.default:match("^'(.*)'$") or tonumber(a.default)
          if v == nil then v = a.default == "true" end
        end
      end
      n = n + 1
      if v ~= nil and as_given[a.type] then v = as_given[a.type](v) end
      args[n] = v
    end
  end
  local shifted = base == 0 and exporting() and M.has_positions(name)
  if shifted then base = 1 end
  local fn = functions[base][name]
  if not fn then
    fn = B.op(name, base)
    functions[base][name] = fn
  end
  if shifted then return from_one_call(name, args, n) end
  if M.trace then return M.trace(name, fn, n, args, { ... }) end
  return fn(unpack(args, 1, n))
end
local call = M.call

--- op.add(x, y): M.call("add", x, y).
M.op = setmetatable({}, { __index = function(t, name)
  local function fn(...) return call(name, ...) end
  rawset(t, name, fn)
  return fn
end })

-- ---- tensors and lists -----------------------------------------------------------------------------

function M.dtype_of(t) return B.tensor_dtype(t).name end
function M.device_of(t) return tostring(B.tensor_device(t)) end
local dtype_of, device_of = M.dtype_of, M.device_of

function M.product(list)
  local n = 1
  for _, v in ipairs(list) do n = n * v end
  return n
end
local product = M.product

local classes
local function class_of(t) -- a tensor, or the name of a dtype
  if not classes then
    classes = {}
    for _, class in ipairs { "float", "int", "bool", "uint", "complex" } do
      for _, name in ipairs(require("moth.ops_table").classes[class]) do classes[name] = class end
    end
  end
  return classes[type(t) == "string" and t or dtype_of(t)]
end
M.class_of = class_of

local function element(list, i)
  if #list == 0 then return 1 end -- a 0-dim tensor
  return list[(i < 0 and i + #list or i) + 1]
end

local function range(from, stop)
  local out = {}
  for i = from, stop - 1 do out[#out + 1] = i end
  return out
end

local makers = {
  list = function(...) return { ... } end,
  join = function(a, b)
    local out = { unpack(a) }
    for _, v in ipairs(b) do out[#out + 1] = v end
    return out
  end,
  first_n = function(l, n) return { unpack(l, 1, n) } end,
  last_n = function(l, n) return { unpack(l, #l - n + 1) } end,
  drop_n = function(l, n) return { unpack(l, n + 1) } end,
  replace = function(l, i, v)
    local out = { unpack(l) }
    out[(i < 0 and i + #l or i) + 1] = v
    return out
  end,
  insert = function(l, i, v)
    local out = { unpack(l) }
    table.insert(out, i + 1, v)
    return out
  end,
  remove = function(l, i)
    local out = { unpack(l) }
    table.remove(out, i + 1)
    return out
  end,
  ones_n = function(n)
    local out = {}
    for i = 1, n do out[i] = 1 end
    return out
  end,
  range = range,
  inverse = function(dims)
    local out = {}
    for i, d in ipairs(dims) do out[(d < 0 and d + #dims or d) + 1] = i - 1 end
    return out
  end,
  merged = function(l, from, to)
    local out = {}
    for i, v in ipairs(l) do
      if i - 1 > from and i - 1 <= to then out[#out] = out[#out] * v else out[#out + 1] = v end
    end
    return out
  end,
  inferred = function(sizes, n)
    local out, known, unknown = {}, 1, nil
    for i, v in ipairs(sizes) do
      if v == -1 then unknown = i else known = known * v end
      out[i] = v
    end
    if unknown then out[unknown] = n / known end
    return out
  end,
  others = function(n, dims)
    local taken, out = {}, {}
    for _, d in ipairs(dims) do taken[d] = true end
    for d = 0, n - 1 do if not taken[d] then out[#out + 1] = d end end
    return out
  end,
  wide = function(a, b)
    local out, n = {}, math.max(#a, #b)
    for i = 1, n do
      local x, y = a[#a - n + i] or 1, b[#b - n + i] or 1
      out[i] = x == 1 and y or x
    end
    return out
  end,
  kept = function(shape, dim)
    local out = { unpack(shape) }
    local dims = dim == nil and range(0, #shape) or type(dim) == "number" and { dim } or dim
    for _, d in ipairs(dims) do out[(d < 0 and d + #shape or d) + 1] = 1 end
    return out
  end,
}

local function number(v)
  if type(v) == "boolean" then return v and 1 or 0 end
  return v
end

local function same_list(a, b)
  for i = 1, math.max(#a, #b) do if a[i] ~= b[i] then return false end end
  return true
end

local epsilon = { float64 = 2 ^ -52, float32 = 2 ^ -23, float16 = 2 ^ -10, bfloat16 = 2 ^ -7, complex128 = 2 ^ -52,
  complex64 = 2 ^ -23 }

-- The value of a node from the values of its arguments; `when`, ops and leaves are handled below.
local rules = {
  none = function() return nil end,
  shape = function(t) return B.size(t) end,
  stride = function(t) return B.stride(t) end,
  ndim = function(t) return B.dim(t) end,
  numel = function(t) return B.numel(t) end,
  dtype = dtype_of, device = device_of, at = element, product = product,
  length = function(l) return #l end,
  least = function(l) return math.min(math.huge, unpack(l)) end,
  doublings = function(n)
    local k = 0
    while 2 ^ k < n do k = k + 1 end
    return k
  end,
  tensors = function(...) return { ... } end,
  wrap = function(d, n) return d < 0 and d + n or d end,
  working = function(t)
    local dtype = dtype_of(t)
    return (dtype == "float16" or dtype == "bfloat16") and "float32" or dtype
  end,
  real_of = function(t)
    local dtype = dtype_of(t)
    return dtype == "complex64" and "float32" or dtype == "complex128" and "float64" or dtype
  end,
  complex_of = function(t)
    local dtype = dtype_of(t)
    return (dtype == "float64" or dtype == "complex128") and "complex128" or "complex64"
  end,
  eps_of = function(t) return epsilon[dtype_of(t)] end,
  reach = function(size, stride, offset)
    local n = offset + 1
    for i, d in ipairs(size) do
      if d == 0 then return offset end
      n = n + (d - 1) * stride[i]
    end
    return n
  end,
  power_of = function(x, y) return x ^ y end,
  log_of = function(x) return math.log(x) end,
  as_number = function(x) return number(x) end,
  default_to = function(x, y)
    if x == nil then return y end
    return x
  end,
  number_add = function(a, b) return number(a) + number(b) end,
  number_sub = function(a, b) return number(a) - number(b) end,
  number_mul = function(a, b) return number(a) * number(b) end,
  number_div = function(a, b) return number(a) / number(b) end,
  given = function(x) return x ~= nil end,
  negate = function(a) return not a end,
  is_float = function(t) return class_of(t) == "float" end,
  is_complex = function(t) return class_of(t) == "complex" end,
  is_int = function(t) return class_of(t) == "int" end,
  is_number = function(x) return not is_tensor(x) end,
  is_on_cpu = function(t) return device_of(t) == "cpu" end,
  number_floor_divide = function(a, b) return math.floor(a / b) end,
  number_remainder = function(a, b) return a % b end,
  is_list = function(x) return type(x) == "table" end,
  is_contiguous = function(t) return B.is_contiguous(t) end,
  viewable = function(t, size)
    local ok, err = pcall(M.op.view, t, size)
    return ok or not tostring(err):find("not compatible", 1, true)
  end,
  same_dtype = function(a, b) return dtype_of(a) == dtype_of(b) end,
  same_list = same_list,
  overlaps = function(size, stride)
    local order, reach = {}, 0
    for i, n in ipairs(size) do if n > 1 then order[#order + 1] = i end end
    table.sort(order, function(a, b) return stride[a] < stride[b] end)
    for _, i in ipairs(order) do
      if stride[i] <= reach then return true end
      reach = reach + stride[i] * (size[i] - 1)
    end
    return false
  end,
  records = function(x) return is_tensor(x) and B.requires_grad(x) and B.grad_enabled() end,
  text_eq = function(a, b) return a == b end,
  text_ne = function(a, b) return a ~= b end,
  cond_eq = function(a, b) return number(a) == number(b) end,
  cond_ne = function(a, b) return number(a) ~= number(b) end,
  cond_lt = function(a, b) return number(a) < number(b) end,
  cond_le = function(a, b) return number(a) <= number(b) end,
  cond_gt = function(a, b) return number(a) > number(b) end,
  cond_ge = function(a, b) return number(a) >= number(b) end,
}
for name, fn in each(makers) do rules[name] = fn end
for name, fn in each(shapes) do rules[name] = fn end

-- ---- evaluating ------------------------------------------------------------------------------------

local kind_of = {
  TENSOR = "tensor", OPERAND = "any", INTS = "list", DIMS = "list", TENSORS = "tensors", STRING = "string",
}

-- Ops by name, as expressions see them.
local known = setmetatable({}, { __index = function(_, name) return M.record(name) end })

local makes_tensors = { op = true, ops = true, beside = true, written = true, fold = true }

-- The nodes of a text: a leaf for each name that it uses. kinds.pure: it computes no tensors.
local function graph_of(op, text, kinds)
  local graph
  graph = expr.graph(function(name)
    if kinds and kinds[name] then return graph.node("leaf", kinds[name], {}, name) end
    for _, a in ipairs(op.args) do
      if a.name == name then return graph.node("leaf", kind_of[a.type] or "number", {}, name) end
    end
  end, kinds and kinds.pure and {} or known, define)
  local outputs = graph.evaluate(text, op.name)
  for i = 1, kinds and kinds.pure and #graph or 0 do
    if makes_tensors[graph[i].what] then error(("'%s': a shape rule computes no tensors"):format(text), 0) end
  end
  return graph, outputs
end

local graphs = setmetatable({}, { __mode = "k" }) -- record -> text -> outputs

local function outputs_of(op, text, kinds)
  local of = graphs[op]
  if not of then
    of = {}
    graphs[op] = of
  end
  local key = kinds and table.concat({ text, kinds.key }, "\0") or text
  if not of[key] then
    local graph, outputs = graph_of(op, text, kinds)
    of[key] = { graph = graph, outputs = outputs }
  end
  return of[key].outputs
end

--- Reads the text; an unknown name is an error. Returns the kinds of its values: "tensor", "number", "list" …
function M.check(op, text, kinds)
  local found = {}
  for i, x in ipairs(outputs_of(op, text, kinds)) do found[i] = expr.kind_of(x) end
  return found
end

local NONE = {}

--- The values of the text. values: by name, of the op's arguments and of the names that `kinds` adds (name -> kind of
-- value; `key` identifies the set).
function M.evaluate(op, text, values, kinds)
  local known_values = {}
  local value

  local function all(list, from)
    local out = {}
    for i = from or 1, #list do out[i] = value(list[i]) end
    return out
  end

  local function compute(node)
    local what, args = node.what, node.args
    if what == "leaf" then return values[node.more] end
    if what == "when" then return value(args[value(args[1]) and 2 or 3]) end
    if what == "both" then return value(args[1]) and value(args[2]) end
    if what == "either" then return value(args[1]) or value(args[2]) end
    if what == "fold" then
      local made, outer = value(args[1]), known_values
      for k = 0, value(args[2]) - 1 do -- values of one pass are not used in the next
        known_values = setmetatable({ [node.acc] = made, [node.k] = k }, { __index = outer })
        made = value(args[3])
      end
      known_values = outer
      return made
    end
    if what == "dtype_named" then return node.more end
    if what == "op" then return (call(node.more, unpack(all(args), 1, #args))) end
    if what == "beside" then return (call(node.more, unpack(all(args, 2), 2, #args))) end
    if what == "matched" then return value(node.args[1]) end
    if what == "written" then
      value(args[2])
      return value(args[1])
    end
    if what == "ops" then return { call(node.more, unpack(all(args), 1, #args)) } end
    if what == "result" then return value(args[1])[node.more + 1] end
    return rules[what](unpack(all(args), 1, #args))
  end

  function value(x)
    if not is_node(x) then return x end
    local v = known_values[x]
    if v == nil then
      v = compute(x)
      known_values[x] = v == nil and NONE or v
    end
    if v == NONE then return nil end
    return v
  end

  local outputs = outputs_of(op, text, kinds)
  local out = {}
  for i, x in ipairs(outputs) do out[i] = value(x) end
  return unpack(out, 1, #outputs)
end

return M
