-- The tile IR: what one program of a kernel does with blocks, small arrays of a shape that is known when the kernel is
-- compiled. A program is { params, body, nvars }; a body is a list of statements in order. A value is a statement, too:
--   { op, d, shape, [1], [2], …, id, place }     d: a dtype of dtypes.lua; shape: a list of sizes, {} for a scalar;
--                                                weak: a number of the call or a constant, which adapts
-- Values:
--   const(value) · param(index) · program_id(axis) · num_programs(axis) · arange(lo) · index (of a `for`)
--   apply(name, compute; …)         a scalar formula of kernels/math*.h, or an operator, in the dtype `compute`;
--                                   exact: as the op of a record, "kept" out of sums that follow or "free"
--   apply(rand_at, randn_at or randint_at; seed, offset): random numbers of an element by its place, of int64s
--   cast(x) · where(c, a, b) · broadcast(x) · expand(x; dim) · permute(x; dims) · reshape(x)
--   load(off, mask, other; root)    elements of parameter `root` at offsets in elements; nothing is read where the mask
--                                   is false
--   reduce(x; kind, dim) · scan(x; kind, dim, reverse) · dot(a, b, acc)
--   atomic(off, value, mask; kind, root) · var(var)
-- Effects:
--   store(off, value, mask; root) · assign(value; var) · barrier
--   for { lo, hi, step, index, body } · loop { body } · if { cond, yes, no } · break · return
-- Integers are computed in 64 bits and 16-bit floats in float32: narrow dtypes are for memory.
-- kernel/reader.lua builds it, tile_plan.lua prepares it for printing, tile_print.lua prints it.
local dtypes = require "moth.codegen.dtypes"

local M = {}

--- The most operands of a value or an effect: those of fake_quantize_backward. Some may be missing (nil), as a mask may.
M.OPERANDS = 6

function M.numel(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return n
end

function M.same(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do if a[i] ~= b[i] then return false end end
  return true
end

function M.shape_text(shape) return "[" .. table.concat(shape, ", ") .. "]" end

--- A value for messages: "float32 [64, 64]", "a number".
function M.describe(x)
  if x.weak then return x.d.is_float and "a number" or "an integer" end
  if #x.shape == 0 then return "a scalar of " .. x.d.name end
  return x.d.name .. " " .. M.shape_text(x.shape)
end

local function category(d) return d.class == "bool" and 0 or d.is_float and 2 or 1 end

--- The dtype that a value of a dtype is computed in.
local function computed(d)
  if d.is_float then return d.name == "float64" and d or dtypes.float32 end
  if d.class == "bool" then return d end
  return d.name == "uint64" and d or dtypes.int64
end
M.computed = computed

-- The dtype that two are computed in together, and whether the result still adapts.
local function common(x, y)
  local cx, cy = category(x.d), category(y.d)
  if x.weak and y.weak then
    return (cx == 2 or cy == 2) and dtypes.float64 or dtypes.int64, true
  elseif x.weak or y.weak then
    local weak, other, cw, co = x, y, cx, cy
    if y.weak then weak, other, cw, co = y, x, cy, cx end
    if cw > co then return cw == 2 and dtypes.float32 or dtypes.int64, false end
    return computed(other.d), weak == nil
  end
  if #x.shape == 0 and #y.shape > 0 and cx <= cy then return computed(y.d), false end
  if #y.shape == 0 and #x.shape > 0 and cy <= cx then return computed(x.d), false end
  if cx ~= cy then return computed(cx > cy and x.d or y.d), false end
  if cx == 2 then
    return (x.d.name == "float64" or y.d.name == "float64") and dtypes.float64 or dtypes.float32, false
  end
  if cx == 1 then return x.d.name == "uint64" and y.d.name == "uint64" and x.d or dtypes.int64, false end
  return x.d, false
end
M.common = common

local Builder = {}
Builder.__index = Builder

--- A builder of programs. `fail(message, …)` raises an error at the place that is being read; `place()` says
-- where that is.
function M.builder(fail, place)
  return setmetatable({ fail = fail, place = place, list = {}, known = {}, nvars = 0, ids = 0 }, Builder)
end

--- A new list of statements, until `leave`, which returns it.
function Builder:enter()
  self.list = { outer = self.list }
  self.known = setmetatable({}, { __index = self.known, outer = self.known })
end

function Builder:leave()
  local list = self.list
  self.list, self.known = list.outer, getmetatable(self.known).outer
  list.outer = nil
  return list
end

function Builder:put(s)
  self.ids = self.ids + 1
  s.id, s.place = self.ids, self.place()
  self.list[#self.list + 1] = s
  return s
end

local fixed = { "value", "index", "axis", "lo", "name", "dim", "root", "exact", "stay" }

-- A value without effects: the same one again where it is there already.
function Builder:pure(n)
  local key = { n.op, n.d.name, M.shape_text(n.shape), n.weak and "w" or "", n.compute and n.compute.name or "",
    n.dims and table.concat(n.dims, ",") or "" }
  for _, field in ipairs(fixed) do
    local v = n[field]
    key[#key + 1] = type(v) == "number" and ("%.17g%s"):format(v, 1 / v == -math.huge and "-" or "") or tostring(v)
  end
  for _, operand in ipairs(n) do key[#key + 1] = operand.id end
  assert(#n <= M.OPERANDS, n.name)
  key = table.concat(key, " ")
  local found = self.known[key]
  if not found then
    found = self:put(n)
    self.known[key] = found
  end
  return found
end

--- A number or boolean of Lua as a value.
function Builder:const(v, d)
  if type(v) == "boolean" then
    return self:pure { op = "const", d = d or dtypes.bool, shape = {}, value = v and 1 or 0 }
  end
  local integral = v == math.floor(v) and math.abs(v) < 2 ^ 63
  local own = integral and dtypes.int64 or dtypes.float64
  return self:pure { op = "const", d = d or own, shape = {}, value = v, weak = not d }
end

function Builder:cast(x, d)
  if x.d == d and not x.weak then return x end
  if x.op == "const" then
    local v = x.value
    if d.class == "bool" then return self:const(v ~= 0, d) end
    if d.is_float or v == math.floor(v) and math.abs(v) < 2 ^ 53 then
      local size = d.size * 8
      local low = d.class ~= "uint" and d.name ~= "uint8" and -2 ^ (size - 1) or 0
      if d.is_float or (v >= low and v < low + 2 ^ size) then return self:const(v, d) end
    end
  elseif x.op == "broadcast" and not x.stay then -- fewer elements to convert
    return self:broadcast(self:cast(x[1], d), x.shape)
  end
  return self:pure { op = "cast", d = d, shape = x.shape, x }
end

function Builder:broadcast(x, shape)
  if M.same(x.shape, shape) then return x end
  local skip = #shape - #x.shape
  for i, size in ipairs(x.shape) do
    if skip < 0 or size ~= 1 and size ~= shape[i + skip] then
      self.fail("a block of shape %s does not broadcast to %s", M.shape_text(x.shape), M.shape_text(shape))
    end
  end
  if x.op == "broadcast" and not x.stay then x = x[1] end
  return self:pure { op = "broadcast", d = x.d, shape = shape, weak = x.weak, x }
end

--- The shape of values side by side.
function Builder:shapes(...)
  local out = {}
  for i = 1, select("#", ...) do
    local shape = (select(i, ...)).shape
    local n = math.max(#out, #shape)
    local joined = {}
    for k = 1, n do
      local a, b = out[k - n + #out] or 1, shape[k - n + #shape] or 1
      if a ~= b and a ~= 1 and b ~= 1 then
        self.fail("blocks of shapes %s and %s do not go together; tl.expand(x, dim) adds a dimension of size 1",
          M.shape_text(out), M.shape_text(shape))
      end
      joined[k] = a == 1 and b or a
    end
    out = joined
  end
  return out
end

--- A formula of values, all cast to `compute` and broadcast.
function Builder:apply(name, compute, d, weak, ...)
  local n = select("#", ...)
  local shape = self:shapes(...)
  local node = { op = "apply", name = name, compute = compute, d = d, shape = shape, weak = weak }
  for i = 1, n do
    local x = (select(i, ...))
    if x.d ~= compute then
      local was = x.weak
      x = self:cast(x, compute)
      if was and weak then x = x end
    end
    node[i] = self:broadcast(x, shape)
  end
  return self:pure(node)
end

--- A formula of kernels/math*.h as the record of an op names it, computed as eager does (the dialects' `exact`), in the
-- dtype `compute`; of dtype d.
function Builder:exact(name, compute, d, ...)
  local shape = self:shapes(...)
  local node = { op = "apply", exact = "kept", name = name, compute = compute, d = d, shape = shape }
  for i = 1, select("#", ...) do node[i] = self:broadcast(self:cast((select(i, ...)), compute), shape) end
  return self:pure(node)
end

--- A scalar as a block that is an array where it is made, on the CPU: compilers cannot compute with it ahead of a loop.
function Builder:stay(x, shape)
  return self:pure { op = "broadcast", d = x.d, shape = shape, stay = true, x }
end

-- Two integers that are constants, or one and what changes nothing.
local function folded(b, name, x, y, d, weak)
  local cx, cy = x.op == "const" and x.value, y.op == "const" and y.value
  if cx and cy then
    local v = name == "add" and cx + cy or name == "sub" and cx - cy or name == "mul" and cx * cy
    if v and math.abs(v) < 2 ^ 53 then return b:const(v, not weak and d or nil) end
  elseif (name == "add" or name == "sub") and cy == 0 and x.d == d and #x.shape >= #y.shape then
    return x
  elseif name == "add" and cx == 0 and y.d == d and #y.shape >= #x.shape then
    return y
  elseif name == "mul" and cy == 1 and x.d == d and #x.shape >= #y.shape then
    return x
  elseif name == "mul" and cx == 1 and y.d == d and #y.shape >= #x.shape then
    return y
  end
end

local compares = { lt = true, le = true, gt = true, ge = true, eq = true, ne = true }
local bits = { bitwise_and = true, bitwise_or = true, bitwise_xor = true, shift_left = true, shift_right = true }

--- A formula of two, by the rules of promotion.
function Builder:binary(name, x, y)
  local d, weak = common(x, y)
  if compares[name] then return self:apply(name, d, dtypes.bool, false, x, y) end
  if bits[name] then
    if d.is_float then
      self.fail("%s needs integers or masks, got %s and %s", name, M.describe(x), M.describe(y))
    end
    return self:apply(name, d, d, weak, x, y)
  end
  if d.class == "bool" then d = dtypes.int64 end
  if name == "div" and not d.is_float then d = weak and dtypes.float64 or dtypes.float32 end
  if (name == "atan2" or name == "hypot" or name == "copysign" or name == "logaddexp") and not d.is_float then
    d = weak and dtypes.float64 or dtypes.float32
  end
  if not d.is_float then
    local same = folded(self, name, x, y, d, weak)
    if same then return same end
  end
  return self:apply(name, d, d, weak, x, y)
end

local keeps = { neg = true, abs = true, sign = true, relu = true, square = true }
local rounds = { floor = true, ceil = true, round = true, trunc = true }
local tests = { isnan = true, isinf = true, isfinite = true }

--- A formula of one.
function Builder:unary(name, x)
  if name == "logical_not" then
    if x.op == "apply" and x.name == "logical_not" then return x[1] end
    return self:apply("logical_not", dtypes.bool, dtypes.bool, false, self:cast(x, dtypes.bool))
  elseif name == "bitwise_not" then
    if x.d.is_float then self.fail("bitwise_not needs an integer or a mask, got %s", M.describe(x)) end
    local d = computed(x.d)
    return self:apply(name, d, d, x.weak, x)
  end
  local d = computed(x.d)
  if d.class == "bool" then d = dtypes.int64 end
  if rounds[name] and not d.is_float then return x end
  if tests[name] then
    if not d.is_float then d = dtypes.float32 end
    return self:cast(self:apply(name, d, d, false, x), dtypes.bool)
  end
  if not keeps[name] and not d.is_float then d = x.weak and dtypes.float64 or dtypes.float32 end
  local y = self:apply(name, d, d, x.weak, x)
  if rounds[name] and x.weak then -- as in Lua: what is integral counts as an integer
    y = self:pure { op = "cast", d = dtypes.int64, shape = {}, weak = true, y }
  end
  return y
end

function Builder:where(c, x, y)
  local d, weak = common(x, y)
  if x.d == y.d and x.weak == y.weak then d, weak = x.d, x.weak end
  local shape = self:shapes(c, x, y)
  c = self:broadcast(self:cast(c, dtypes.bool), shape)
  if x.weak ~= weak or x.d ~= d then x = self:cast(x, d) end
  if y.weak ~= weak or y.d ~= d then y = self:cast(y, d) end
  return self:pure { op = "where", d = d, shape = shape, weak = weak, c, self:broadcast(x, shape),
    self:broadcast(y, shape) }
end

function Builder:expand(x, dim)
  local shape = { unpack(x.shape) }
  table.insert(shape, dim, 1)
  return self:pure { op = "expand", d = x.d, shape = shape, dim = dim, x }
end

function Builder:permute(x, dims)
  local shape = {}
  for i, dim in ipairs(dims) do shape[i] = x.shape[dim] end
  return self:pure { op = "permute", d = x.d, shape = shape, dims = dims, x }
end

function Builder:reshape(x, shape)
  if M.same(shape, x.shape) then return x end
  return self:pure { op = "reshape", d = x.d, shape = shape, x }
end

--- Removes a dimension or all of them: kinds sum, prod, max, min, any, all; argmax, argmin (positions from 0).
function Builder:reduce(kind, x, dim)
  local d = x.d
  if kind == "any" or kind == "all" then
    d = dtypes.bool
    x = self:cast(x, d)
  elseif kind == "argmax" or kind == "argmin" then
    d = dtypes.int64
    x = self:cast(x, computed(x.d))
  else
    d = computed(d)
    if d.class == "bool" then d = dtypes.int64 end
    x = self:cast(x, d)
  end
  local shape = {}
  for i, size in ipairs(x.shape) do
    if dim and i ~= dim then shape[#shape + 1] = size end
  end
  return self:put { op = "reduce", kind = kind, d = d, shape = shape, dim = dim, x }
end

function Builder:scan(kind, x, dim, reverse)
  local d = computed(x.d)
  if d.class == "bool" then d = dtypes.int64 end
  return self:put { op = "scan", kind = kind, d = d, shape = x.shape, dim = dim, reverse = reverse, self:cast(x, d) }
end

--- Random numbers of the dtype d: name of a formula of kernels/math_random.h.
function Builder:random(name, d, seed, offset)
  local shape = self:shapes(seed, offset)
  local function int64(x) return self:broadcast(self:cast(x, dtypes.int64), shape) end
  return self:pure { op = "apply", name = name, compute = d, d = d, shape = shape, int64(seed), int64(offset) }
end

function Builder:dot(a, b, acc)
  local d = common(a, b)
  if d.class == "bool" then d = dtypes.int64 end
  if acc then d = common({ d = d, shape = { 1 } }, { d = computed(acc.d), shape = { 1 } }) end
  local shape = { a.shape[1], b.shape[2] }
  if acc then acc = self:broadcast(self:cast(acc, d), shape) end
  return self:put { op = "dot", d = d, shape = shape, narrow = a.d == b.d and a.d.form ~= 0 and a.d or nil,
    self:cast(a, d), self:cast(b, d), acc }
end

-- Offset, mask (or nil) and a value of one shape; integers and masks as they are computed.
function Builder:access(offset, mask, value)
  local shape = self:shapes(offset, mask or offset, value or offset)
  if #shape > #offset.shape and #offset.shape == 0 then self.fail("a scalar pointer has one element, not %s; add a \z
      block of offsets to it", M.shape_text(shape)) end
  offset = self:broadcast(self:cast(offset, dtypes.int64), shape)
  if mask then mask = self:broadcast(self:cast(mask, dtypes.bool), shape) end
  return offset, mask, value and self:broadcast(value, shape), shape
end

function Builder:load(root, d, offset, mask, other)
  local shape
  offset, mask, other, shape = self:access(offset, mask, other and self:cast(other, d))
  if mask and not other then other = self:broadcast(self:const(d.class == "bool" and false or 0, d), shape) end
  local n = { op = "load", d = d, shape = shape, root = root, offset }
  if mask then n[2], n[3] = mask, other end
  return self:put(n)
end

function Builder:store(root, d, offset, value, mask)
  offset, mask, value = self:access(offset, mask, self:cast(value, d))
  return self:put { op = "store", root = root, shape = offset.shape, d = d, offset, value, mask }
end

--- kind: add, max, min, and, or, xor, xchg, cas (with `compare`); its value is what was there before.
function Builder:atomic(kind, root, d, offset, value, mask, compare)
  local shape
  offset, mask, value, shape = self:access(offset, mask, self:cast(value, d))
  compare = compare and self:broadcast(self:cast(compare, d), shape)
  return self:put { op = "atomic", kind = kind, root = root, d = d, shape = shape, mask = mask ~= nil,
    offset, value, mask or compare, mask and compare }
end

--- A variable: what control flow changes. Its type is fixed when `typed` says so.
function Builder:var()
  self.nvars = self.nvars + 1
  return { id = self.nvars }
end
function Builder:read(var) return self:put { op = "var", var = var, d = var.d, shape = var.shape, weak = var.weak } end
function Builder:assign(var, value)
  if value.d ~= var.d or value.weak ~= var.weak and not var.weak then value = self:cast(value, var.d) end
  return self:put { op = "assign", var = var, shape = var.shape, d = var.d, self:broadcast(value, var.shape) }
end

return M
