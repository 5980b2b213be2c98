--- Programs of the tile IR run step by step in Lua (MOTH_KERNEL_INTERPRET=1): slow, and every access to memory is
-- checked against the tensor that its pointer came with. Programs run one after the other, from 0 on; floats are
-- computed in double precision and rounded to their dtype after each step.
local ffi = require "ffi"
local bit = require "bit"
local B = require "moth_lua"
local check = require "moth.utils.check"
local native = require "moth.kernel.native"
local tile = require "moth.codegen.tile"

local M = {}

pcall(ffi.cdef, "double erf(double); double erfc(double); double expm1(double); double log1p(double); \z
  double exp2(double); double log2(double); double hypot(double, double); double lgamma(double); double rint(double); \z
  double asinh(double); double acosh(double); double atanh(double); double copysign(double, double); \z
  double atan2(double, double);")
local C = ffi.C

-- ---- numbers ------------------------------------------------------------------------------------

local single = ffi.new("union { float f; uint32_t u; }")
local function to_float(v)
  single.f = v
  return tonumber(single.f)
end

-- v as a float of `digits` significant bits and exponents down to `least`, up to `most`.
local function rounded(v, digits, least, most)
  if v ~= v or v == 0 or v == math.huge or v == -math.huge then return v end
  local _, e = math.frexp(v)
  local unit = math.ldexp(1, math.max(e - digits, least))
  v = C.rint(v / unit) * unit
  if math.abs(v) >= most then return v > 0 and math.huge or -math.huge end
  return v
end

local narrow = {
  float64 = function(v) return v end,
  float32 = to_float,
  float16 = function(v) return rounded(v, 11, -24, 65520) end,
  bfloat16 = function(v) return rounded(v, 8, -133, math.ldexp(1, 128)) end,
  bool = function(v) return v ~= 0 and 1 or 0 end,
}
local function integer(d)
  local size, signed = 2 ^ (8 * d.size), d.kind == 3
  return function(v)
    if d.size == 8 then
      if math.abs(v) > 2 ^ 53 then
        error(("an integer of %.17g: the interpreter holds them up to 2^53"):format(v), 0)
      end
      return v
    end
    v = v % size
    return signed and v >= size / 2 and v - size or v
  end
end
local function narrowing(d)
  narrow[d.name] = narrow[d.name] or integer(d)
  return narrow[d.name]
end

-- From a float to an integer: towards zero, to the nearest there is, NaN 0.
local function truncated(v, d)
  if v ~= v then return 0 end
  v = v < 0 and math.ceil(v) or math.floor(v)
  local size = 2 ^ (8 * d.size)
  local lo, hi = d.kind == 3 and -size / 2 or 0, d.kind == 3 and size / 2 - 1 or size - 1
  return math.max(lo, math.min(hi, v))
end

local function flag(v) return v and 1 or 0 end
local function nan_first(f)
  return function(a, b)
    if a ~= a then return a elseif b ~= b then return b end
    return f(a, b)
  end
end

local formulas = {
  add = function(a, b, alpha) return a + (alpha or 1) * b end,
  sub = function(a, b, alpha) return a - (alpha or 1) * b end,
  where = function(c, a, b) return c ~= 0 and a or b end, masked_fill = function(a, c, b) return c ~= 0 and b or a end,
  lerp = function(a, b, w) return a + w * (b - a) end, addcmul = function(a, b, c, k) return a + k * b * c end,
  addcdiv = function(a, b, c, k) return a + k * b / c end, clamp = function(a, lo, hi)
    return a ~= a and a or math.min(math.max(a, lo), hi)
  end, lowest = function() return -math.huge end, highest = function() return math.huge end,
  mul = function(a, b) return a * b end,
  div = function(a, b) return a / b end, neg = function(a) return -a end, abs = math.abs,
  square = function(a) return a * a end, relu = function(a) return a < 0 and 0 or a end,
  sign = function(a) return a > 0 and 1 or a < 0 and -1 or a end,
  lt = function(a, b) return flag(a < b) end, le = function(a, b) return flag(a <= b) end,
  gt = function(a, b) return flag(a > b) end, ge = function(a, b) return flag(a >= b) end,
  eq = function(a, b) return flag(a == b) end, ne = function(a, b) return flag(a ~= b) end,
  logical_not = function(a) return flag(a == 0) end,
  maximum = nan_first(math.max), minimum = nan_first(math.min),
  exp = math.exp, log = function(a) return math.log(a) end, log10 = math.log10,
  sin = math.sin, cos = math.cos, tan = math.tan, asin = math.asin, acos = math.acos, atan = math.atan,
  sinh = math.sinh, cosh = math.cosh, tanh = math.tanh, sqrt = math.sqrt,
  pow = function(a, b) return a ^ b end, floor = math.floor, ceil = math.ceil,
  round = function(a) return C.rint(a) end, trunc = function(a) return a < 0 and math.ceil(a) or math.floor(a) end,
  rsqrt = function(a) return 1 / math.sqrt(a) end, reciprocal = function(a) return 1 / a end,
  sigmoid = function(a) return 1 / (1 + math.exp(-a)) end, silu = function(a) return a / (1 + math.exp(-a)) end,
  isnan = function(a) return flag(a ~= a) end, isinf = function(a) return flag(math.abs(a) == math.huge) end,
  isfinite = function(a) return flag(a - a == 0) end, fmod = math.fmod,
}
for _, name in ipairs { "erf", "erfc", "expm1", "log1p", "exp2", "log2", "hypot", "lgamma", "asinh", "acosh", "atanh",
  "copysign", "atan2" } do
  formulas[name] = function(a, b)
    if b then return tonumber(C[name](a, b)) end
    return tonumber(C[name](a))
  end
end
-- The rest as ops of one element.
local ops = { gelu = "gelu", mish = "mish", softsign = "softsign", relu6 = "relu6", log_sigmoid = "logsigmoid",
  digamma = "digamma", logaddexp = "logaddexp" }
local function by_op(name)
  local moth = require "moth"
  local f = moth[ops[name]]
  return function(...)
    local list = {}
    for i = 1, 3 do
      local v = (select(i, ...))
      list[i] = v and moth.tensor({ v }, { dtype = moth.float64 })
    end
    return f(unpack(list)):item()
  end
end
formulas.gelu_tanh = function(x)
  return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ^ 3)))
end

-- Word i of a seed's stream: Philox-4x32-10, as in kernels/math_bits.h.
local function random_word(seed, i)
  local block = math.floor(i / 4)
  local v = { [0] = block % 2 ^ 32, math.floor(block / 2 ^ 32), 0, 0 }
  local key0, key1 = seed % 2 ^ 32, math.floor(seed / 2 ^ 32) % 2 ^ 32
  local function product(a, b) -- upper and lower word
    local p = ffi.cast("uint64_t", a) * ffi.cast("uint64_t", b)
    return tonumber(bit.rshift(p, 32)), tonumber(bit.band(p, 0xffffffffULL))
  end
  local function xor(a, b, c) return bit.bxor(bit.tobit(a), bit.tobit(b), bit.tobit(c)) % 2 ^ 32 end
  for _ = 1, 10 do
    local high0, low0 = product(v[0], 0xd2511f53)
    local high1, low1 = product(v[2], 0xcd9e8d57)
    v = { [0] = xor(high1, v[1], key0), low1, xor(high0, v[3], key1), low0 }
    key0, key1 = (key0 + 0x9e3779b9) % 2 ^ 32, (key1 + 0xbb67ae85) % 2 ^ 32
  end
  return v[i % 4]
end
local function uniform(word) return math.floor(word / 256) * 2 ^ -24 end
formulas.randint_at = random_word
formulas.rand_at = function(seed, i) return uniform(random_word(seed, i)) end
formulas.randn_at = function(seed, i)
  local first, second = random_word(seed, i - i % 2), random_word(seed, i - i % 2 + 1)
  local r = math.sqrt(-2 * math.log((math.floor(first / 256) + 1) * 2 ^ -24))
  local quadrant, rest = math.floor(second / 2 ^ 30), math.floor(second % 2 ^ 30 / 64)
  local angle = ((rest - 2 ^ 23) * 2 ^ -24 + quadrant) * math.pi / 2
  return r * (i % 2 == 0 and math.cos or math.sin)(angle)
end

-- Integers: division rounds down, by zero it gives 0; bits through 64-bit integers.
local function bits(f)
  return function(a, b)
    return tonumber(f(ffi.cast("int64_t", a), ffi.cast("int64_t", b or 0)))
  end
end
local integers = {
  div_floor = function(a, b) return b == 0 and 0 or math.floor(a / b) end,
  div_trunc = function(a, b) return b == 0 and 0 or truncated(a / b, { size = 8, kind = 3 }) end,
  remainder = function(a, b) return b == 0 and 0 or a - math.floor(a / b) * b end,
  fmod = function(a, b) return b == 0 and 0 or math.fmod(a, b) end,
  bitwise_and = bits(bit.band), bitwise_or = bits(bit.bor), bitwise_xor = bits(bit.bxor),
  bitwise_not = bits(bit.bnot),
  shift_left = function(a, b) return (b < 0 or b > 63) and 0 or a * 2 ^ b end,
  shift_right = function(a, b) return math.floor(a / 2 ^ math.min(math.max(b, 0), 63)) end,
}
formulas.div_floor = function(a, b) return math.floor(a / b) end
formulas.remainder = function(a, b) return a - math.floor(a / b) * b end

local function formula(n)
  local d = n.compute
  if d.class == "bool" and n.name == "bitwise_not" then return formulas.logical_not end
  if not d.is_float and integers[n.name] then return integers[n.name] end
  if not formulas[n.name] then formulas[n.name] = by_op(n.name) end
  return formulas[n.name]
end

-- ---- memory -------------------------------------------------------------------------------------

local pointers = { float32 = "float *", float64 = "double *", float16 = "uint16_t *", bfloat16 = "uint16_t *",
  int8 = "int8_t *", uint8 = "uint8_t *", int16 = "int16_t *", int32 = "int32_t *", int64 = "int64_t *",
  bool = "uint8_t *", uint16 = "uint16_t *", uint32 = "uint32_t *", uint64 = "uint64_t *" }

local function from_half(u)
  local sign, e, m = u >= 32768 and -1 or 1, math.floor(u / 1024) % 32, u % 1024
  if e == 31 then return m > 0 and 0 / 0 or sign * math.huge end
  if e == 0 then return sign * math.ldexp(m, -24) end
  return sign * math.ldexp(1024 + m, e - 25)
end
local function to_half(v)
  if v ~= v then return 32256 end
  local sign = (v < 0 or 1 / v < 0) and 32768 or 0
  v = math.abs(narrow.float16(v))
  if v == math.huge then return sign + 31744 end
  if v < math.ldexp(1, -14) then return sign + math.ldexp(v, 24) end
  local m, e = math.frexp(v)
  return sign + (e + 14) * 1024 + (m * 2048 - 1024)
end

-- An argument of the launch: its memory, and how many elements of it there are from its first one on.
local function memory(x, d)
  return { data = ffi.cast(pointers[d.name], B.data_ptr(x)), reach = native.reach(x), d = d, x = x }
end

local function get(m, at)
  local v = tonumber(m.data[at])
  if m.d.form == 1 then return from_half(v) end
  if m.d.form == 2 then
    single.u = v * 65536
    return tonumber(single.f)
  end
  return m.d.class == "bool" and flag(v ~= 0) or v
end
local function put(m, at, v)
  if m.d.form == 1 then
    v = to_half(v)
  elseif m.d.form == 2 then
    single.f = narrow.bfloat16(v)
    v = v ~= v and 0x7fc0 or math.floor(single.u / 65536)
  end
  m.data[at] = v
end

-- ---- programs -----------------------------------------------------------------------------------

local Run = {}
Run.__index = Run

function Run:fail(s, message, ...)
  local shown = message:format(...)
  error(setmetatable({ text = ("%s: [kernel] %s, program (%d, %d, %d): %s"):format(s.place, self.prog.name,
    self.pid[0], self.pid[1], self.pid[2], shown) }, M.Error), 0)
end
M.Error = { __tostring = function(e) return e.text end }

function Run:reach(s, offset, element, what)
  local m = self.memory[s.root]
  if offset < 0 or offset >= m.reach then
    self:fail(s, "%s%s", native.outside_text(what, self.prog.params[s.root + 1].name, offset, element, m.x),
      (s.op == "load" and s[2] or s.op == "store" and s[3] or s.mask == true) and "; the mask is true there"
        or "; give a mask")
  end
  return m
end

-- Position k (from 0) of a shape as a list of positions, and back.
local function unravel(k, shape)
  local idx = {}
  for i = #shape, 1, -1 do
    idx[i] = k % shape[i]
    k = math.floor(k / shape[i])
  end
  return idx
end
local function ravel(idx, shape)
  local k = 0
  for i, size in ipairs(shape) do k = k * size + idx[i] end
  return k
end

-- A view: out[k] = x[map(positions)].
local function moved(n, x, map)
  local out = {}
  for k = 0, tile.numel(n.shape) - 1 do out[k] = x[ravel(map(unravel(k, n.shape)), n[1].shape)] end
  return out
end

local evaluate = {}

function evaluate.const(_, n) return { [0] = n.value } end
function evaluate.param(run, n) return { [0] = run.values[n.index + 1] } end
function evaluate.program_id(run, n) return { [0] = run.pid[n.axis] } end
function evaluate.num_programs(run, n) return { [0] = run.grid[n.axis] } end
function evaluate.arange(_, n)
  local out = {}
  for k = 0, n.shape[1] - 1 do out[k] = n.lo + k end
  return out
end
function evaluate.apply(run, n)
  local f, round, out = formula(n), narrowing(n.d), {}
  local a, b, c = n[1] and run.v[n[1]], n[2] and run.v[n[2]], n[3] and run.v[n[3]]
  for k = 0, tile.numel(n.shape) - 1 do out[k] = round(f(a[k], b and b[k], c and c[k])) end
  return out
end
function evaluate.cast(run, n)
  local x, from, to, out = run.v[n[1]], n[1].d, n.d, {}
  local round = narrowing(to)
  for k = 0, tile.numel(n.shape) - 1 do
    local v = x[k]
    if from.is_float and not to.is_float and to.class ~= "bool" then v = truncated(v, to) end
    out[k] = round(v)
  end
  return out
end
function evaluate.where(run, n)
  local c, x, y, out = run.v[n[1]], run.v[n[2]], run.v[n[3]], {}
  for k = 0, tile.numel(n.shape) - 1 do out[k] = c[k] ~= 0 and x[k] or c[k] == 0 and y[k] end
  return out
end
function evaluate.broadcast(run, n)
  local shape, skip = n[1].shape, #n.shape - #n[1].shape
  return moved(n, run.v[n[1]], function(idx)
    local out = {}
    for k, size in ipairs(shape) do out[k] = size == 1 and 0 or idx[k + skip] end
    return out
  end)
end
function evaluate.expand(run, n) return run.v[n[1]] end
function evaluate.reshape(run, n) return run.v[n[1]] end
function evaluate.permute(run, n)
  return moved(n, run.v[n[1]], function(idx)
    local out = {}
    for k, dim in ipairs(n.dims) do out[dim] = idx[k] end
    return out
  end)
end
function evaluate.var(run, n) return run.vars[n.var] end
function evaluate.load(run, n)
  local offset, mask, other, out = run.v[n[1]], n[2] and run.v[n[2]], n[3] and run.v[n[3]], {}
  for k = 0, tile.numel(n.shape) - 1 do
    if mask and mask[k] == 0 then
      out[k] = other[k]
    else
      out[k] = get(run:reach(n, offset[k], k, "load of"), offset[k])
    end
  end
  return out
end

local joins = {
  sum = function(a, x) return a + x end, prod = function(a, x) return a * x end,
  max = nan_first(math.max), min = nan_first(math.min),
  any = math.max, all = math.min,
}
-- Which element wins: the first of equals, and the first NaN.
local function beats(kind, x, best)
  if best ~= best then return false end
  return x ~= x or kind == "argmax" and x > best or kind == "argmin" and x < best
end

function evaluate.reduce(run, n)
  local x, shape, out, best = run.v[n[1]], n[1].shape, {}, {}
  local round = narrowing(n.d)
  for k = 0, tile.numel(shape) - 1 do
    local idx, at = unravel(k, shape), 0
    if n.dim then
      local position = table.remove(idx, n.dim)
      at = ravel(idx, n.shape)
      if n.kind:find("^arg") and (best[at] == nil or beats(n.kind, x[k], best[at])) then
        best[at], out[at] = x[k], position
      end
    end
    if not n.kind:find("^arg") then out[at] = out[at] and round(joins[n.kind](out[at], x[k])) or x[k] end
  end
  return out
end
function evaluate.scan(run, n)
  local x, shape, out = run.v[n[1]], n.shape, {}
  local round, total = narrowing(n.d), tile.numel(n.shape)
  for i = 0, total - 1 do
    local k = n.reverse and total - 1 - i or i
    local idx = unravel(k, shape)
    idx[n.dim] = idx[n.dim] + (n.reverse and 1 or -1)
    local before = idx[n.dim] >= 0 and idx[n.dim] < shape[n.dim] and out[ravel(idx, shape)]
    out[k] = before and round(joins[n.kind](before, x[k])) or x[k]
  end
  return out
end
function evaluate.dot(run, n)
  local a, b, acc, out = run.v[n[1]], run.v[n[2]], n[3] and run.v[n[3]], {}
  local rows, columns, inner = n.shape[1], n.shape[2], n[1].shape[2]
  local round = narrowing(n.d)
  for i = 0, rows - 1 do
    for j = 0, columns - 1 do
      local sum = acc and acc[i * columns + j] or 0
      for k = 0, inner - 1 do sum = sum + a[i * inner + k] * b[k * columns + j] end
      out[i * columns + j] = round(sum)
    end
  end
  return out
end

local changes = {
  add = joins.sum, max = math.max, min = math.min, xchg = function(_, v) return v end,
  ["and"] = integers.bitwise_and, ["or"] = integers.bitwise_or, xor = integers.bitwise_xor,
}
function evaluate.atomic(run, n)
  local offset, value, out = run.v[n[1]], run.v[n[2]], {}
  local mask = n.mask and run.v[n[3]]
  local compare = n.kind == "cas" and run.v[n.mask and n[4] or n[3]]
  local round = narrowing(n.d)
  for k = 0, tile.numel(n.shape) - 1 do
    out[k] = 0
    if not mask or mask[k] ~= 0 then
      local m = run:reach(n, offset[k], k, "atomic on")
      local old = get(m, offset[k])
      out[k] = old
      if compare then
        if old == compare[k] then put(m, offset[k], value[k]) end
      else
        put(m, offset[k], round(changes[n.kind](old, value[k])))
      end
    end
  end
  return out
end

function Run:list(list)
  for _, s in ipairs(list) do
    local op = s.op
    if evaluate[op] then
      local ok, result = pcall(evaluate[op], self, s)
      if not ok then
        if getmetatable(result) == M.Error then error(result, 0) end
        self:fail(s, "%s", tostring(result))
      end
      self.v[s] = result
    elseif op == "store" then
      local offset, value, mask = self.v[s[1]], self.v[s[2]], s[3] and self.v[s[3]]
      for k = 0, tile.numel(s.shape) - 1 do
        if not mask or mask[k] ~= 0 then put(self:reach(s, offset[k], k, "store to"), offset[k], value[k]) end
      end
    elseif op == "assign" then
      self.vars[s.var] = self.v[s[1]]
    elseif op == "if" then
      local left = self:list(self.v[s[1]][0] ~= 0 and s.yes or s.no)
      if left then return left end
    elseif op == "for" then
      for i = self.v[s[1]][0], self.v[s[2]][0], s.step do
        self.v[s.index] = { [0] = i }
        local left = self:list(s.body)
        if left == "break" then break elseif left then return left end
      end
    elseif op == "loop" then
      while true do
        local left = self:list(s.body)
        if left == "break" then break elseif left then return left end
      end
    elseif op == "break" or op == "return" then
      return op
    end
  end
end

--- Prepares a program for running: { run(values, gx, gy, gz) }.
function M.compile(prog)
  local function run(values, gx, gy, gz)
    local r = setmetatable({ prog = prog, values = values, memory = {}, grid = { [0] = gx, gy, gz } }, Run)
    for i, p in ipairs(prog.params) do
      if p.pointer then
        r.memory[i - 1] = memory(values[i], p.d)
      end
    end
    for z = 0, gz - 1 do
      for y = 0, gy - 1 do
        for x = 0, gx - 1 do
          r.pid, r.v, r.vars = { [0] = x, y, z }, {}, {}
          local ok, e = pcall(r.list, r, prog.body)
          if not ok then
            if getmetatable(e) == M.Error then error(e.text, 0) end
            check.fail("[kernel] %s: %s", prog.name, tostring(e))
          end
        end
      end
    end
  end
  return { run = run }
end

return M
