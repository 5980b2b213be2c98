--- Complex numbers. One of them is LuaJIT's cdata of type complex, as in 2i: moth gives it arithmetic, so that
-- moth.tensor{ 1 + 2i, 3 } and x * 2i work. Fields re and im; methods abs, angle and conj. Called by
-- moth.tensor.functions with the tables that the functions of tensors go into.
local ffi = require "ffi"
local B = require "moth_lua"
local ops = B.ops
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"

local number, single = ffi.typeof("complex"), ffi.typeof("complex float")
local int64, uint64 = ffi.typeof("int64_t"), ffi.typeof("uint64_t")
local istype = ffi.istype

local function make(re, im) return number(re, im) end
-- The parts of a complex number; nothing for other values.
local function read(v)
  if istype(number, v) or istype(single, v) then return v.re, v.im end
end
B.complex_numbers(read, make)

-- ---- arithmetic of numbers ------------------------------------------------------------------------------

-- The parts of any number; nothing for other values.
local function parts(v)
  if type(v) == "number" then return v, 0 end
  if istype(int64, v) or istype(uint64, v) then return tonumber(v), 0 end
  return read(v)
end

local function quotient(a, b, c, d)
  if math.abs(c) >= math.abs(d) then -- Smith's division: no overflow in between
    local r = d / c
    local s = c + d * r
    return make((a + b * r) / s, (b - a * r) / s)
  end
  local r = c / d
  local s = c * r + d
  return make((a * r + b) / s, (b * r - a) / s)
end

local function power(a, b, c, d)
  if d == 0 and c == math.floor(c) and math.abs(c) <= 64 then
    local z = make(1, 0)
    for _ = 1, math.abs(c) do z = make(z.re * a - z.im * b, z.re * b + z.im * a) end
    return c < 0 and quotient(1, 0, z.re, z.im) or z
  end
  if a == 0 and b == 0 then return make(0, 0) end
  local size, angle = math.log(math.sqrt(a * a + b * b)), math.atan2(b, a)
  local re, im = math.exp(c * size - d * angle), d * size + c * angle
  return make(re * math.cos(im), re * math.sin(im))
end

-- fn of four parts; where an operand is a tensor, the op of this name.
local function arithmetic(name, fn)
  return function(x, y)
    local now = require "moth_lua" -- the type keeps its arithmetic if moth is loaded again
    if now.is_tensor(x) or now.is_tensor(y) then return (now.ops[name](x, y)) end
    local a, b = parts(x)
    local c, d = parts(y)
    if not b or not d then
      check.fail("attempt to perform arithmetic on a complex number and a %s", type(b and y or x))
    end
    return fn(a, b, c, d)
  end
end

local methods_of_number = {
  abs = function(z) return math.sqrt(z.re * z.re + z.im * z.im) end,
  angle = function(z) return math.atan2(z.im, z.re) end,
  conj = function(z) return make(z.re, -z.im) end,
}
-- Another library may have given the type its own arithmetic.
pcall(ffi.metatype, number, {
  __add = arithmetic("add", function(a, b, c, d) return make(a + c, b + d) end),
  __sub = arithmetic("sub", function(a, b, c, d) return make(a - c, b - d) end),
  __mul = arithmetic("mul", function(a, b, c, d) return make(a * c - b * d, a * d + b * c) end),
  __div = arithmetic("div", quotient),
  __pow = arithmetic("pow", power),
  __unm = function(z) return make(-z.re, -z.im) end,
  __eq = function(x, y)
    local a, b = parts(x)
    local c, d = parts(y)
    return b ~= nil and a == c and b == d
  end,
  __tostring = function(z)
    local im = ("%.14g"):format(z.im)
    return ("%.14g%s%si"):format(z.re, im:find("^-") and "" or "+", im)
  end,
  __index = function(_, key)
    return methods_of_number[key]
      or error(("a complex number has no field '%s'; there are re, im, abs, angle, conj"):format(tostring(key)), 2)
  end,
})

return function(F, methods)
  local function done(...) return ... end
  local function is_complex(x) return B.is_tensor(x) and B.tensor_dtype(x).is_complex end

  -- Defines a function and a method under the name in the signature.
  local function both(text, fn)
    local name, checked = text:match("^[%w_]+"), signature(text, fn)
    F[name], methods[name] = checked, checked
  end

  --- Whether the dtype is complex64 or complex128.
  both("is_complex(Tensor input)", function(x) return B.tensor_dtype(x).is_complex end)
  -- moth computes conjugates and negatives at once: there is nothing to resolve.
  for _, name in ipairs { "resolve_conj", "resolve_neg" } do
    --- The tensor itself: moth computes conjugates and negatives at once.
    both(name .. "(Tensor input)", function(x) return x end)
  end
  --- False: moth computes conjugates and negatives at once.
  for _, name in ipairs { "is_conj", "is_neg" } do both(name .. "(Tensor input)", function() return false end) end

  --- moth.complex(2, 3): a number. moth.complex(re, im): a tensor of two float tensors.
  local of_tensors = ops.complex
  local function complex(re, im, ...)
    if type(re) == "number" and type(im) == "number" and select("#", ...) == 0 then return make(re, im) end
    return done(of_tensors(re, im, ...))
  end
  B.names[complex] = "complex"
  F.complex = complex

  -- fn(x, …) for complex x, else the function that is there.
  local function front(name, fn)
    local plain = methods[name] or ops[name]
    --- The op of this name, of complex numbers, too.
    local function call(x, ...)
      if is_complex(x) then return done(fn(plain, x, ...)) end
      return done(plain(x, ...))
    end
    B.names[call] = name
    if F[name] or ops[name] then F[name] = call end
    methods[name] = call
  end
  -- The variance of complex numbers is that of both parts together.
  front("var", function(var, x, ...) return (ops.add(var(ops.real(x), ...), var(ops.imag(x), ...))) end)
  front("std", function(_, x, ...) return (ops.sqrt(F.var(x, ...))) end)
  front("sinc", function(_, x)
    local zero = ops.eq(x, 0)
    local turn = ops.mul(ops.masked_fill(x, zero, 1), math.pi)
    return (ops.masked_fill(ops.div(ops.sin(turn), turn), zero, 1))
  end)
  front("softsign", function(_, x) return (ops.div(x, ops.add(ops.abs(x), 1))) end)
  -- The largest real part, which is taken out of exponents.
  local function largest(...)
    local m = B.alias((...), false)
    return (ops.masked_fill(m, ops.logical_not(ops.isfinite(m)), 0))
  end
  front("logsumexp", function(_, x, dim, keepdim)
    if type(dim) == "table" and dim.dim then dim, keepdim = dim.dim, dim.keepdim end
    local m = largest(ops.amax(ops.real(x), dim, true))
    local y = ops.add(ops.log(ops.sum(ops.exp(ops.sub(x, m)), dim, true)), m)
    return keepdim and y or (ops.reshape(y, B.size(ops.sum(B.alias(x, false), dim))))
  end)
  local exponents = F.logsumexp
  local function logsumexp(x, ...) -- integers, too
    local kind = B.is_tensor(x) and B.tensor_dtype(x)
    if kind and not kind.is_floating_point and not kind.is_complex then x = ops.to(x, { dtype = B.default_dtype() }) end
    return done(exponents(x, ...))
  end
  B.names[logsumexp] = "logsumexp"
  F.logsumexp, methods.logsumexp = logsumexp, logsumexp
  -- The one with the larger real part keeps its imaginary part, beyond pi, too.
  local function logaddexp(x, y)
    local first = ops.ge(ops.real(x), ops.real(y))
    local large, small = ops.where(first, x, y), ops.where(first, y, x)
    local none = ops.eq(ops.real(large), -math.huge) -- both are: exp(-inf - -inf) would be NaN
    local between = ops.masked_fill(ops.sub(small, large), none, 0)
    return (ops.where(none, small, ops.add(large, ops.log1p(ops.exp(between)))))
  end
  front("logaddexp", function(_, x, y) return logaddexp(x, y) end)
  front("logcumsumexp", function(_, x, dim)
    if type(dim) == "table" then dim = dim.dim end
    local n, step = B.dim(x) == 0 and 1 or B.size(x, dim), 1
    while step < n do -- sums of 2, 4, 8 … elements
      x = ops.cat({ ops.narrow(x, dim, 1, step),
        logaddexp(ops.narrow(x, dim, step + 1, n - step), ops.narrow(x, dim, 1, n - step)) }, dim)
      step = step * 2
    end
    return x
  end)
  front("pad", function(pad, x, sizes, mode, value)
    if type(mode) == "table" then mode, value = mode.mode, mode.value end
    if not read(value) then return (pad(x, sizes, mode or "constant", value or 0)) end
    if mode ~= nil and mode ~= "constant" then check.fail("[pad] mode '%s' takes no value", tostring(mode)) end
    local inside = ops.pad(ops.ones_like(B.alias(x, false), { dtype = "bool" }), sizes)
    return (ops.where(inside, pad(x, sizes), ops.fill_(ops.empty({}, { dtype = B.tensor_dtype(x),
      device = B.tensor_device(x) }), value)))
  end)
  for _, name in ipairs { "any", "all", "nonzero", "argwhere", "nonzero_static" } do
    front(name, function(fn, x, ...) return fn(ops.ne(x, 0), ...) end)
  end

  -- full(size, 2i): a real one, then the number written to it.
  local function filled(name, factory)
    local plain = methods[name] or ops[name] or require("moth.tensor").methods[name]
    local function call(...)
      for i = 1, select("#", ...) do
        if read((select(i, ...))) then
          local n, list = select("#", ...), { ... }
          local z, o = list[i], list[n]
          list[i] = 0
          if type(o) ~= "table" or i == n then n, o = n + 1, {} end
          local options = {}
          for key, value in each(o) do options[key] = value end
          local like = B.is_tensor(list[1]) and B.tensor_dtype(list[1])
          options.dtype = options.dtype or like and like.is_complex and like
            or (like or B.default_dtype()).name == "float64" and "complex128" or "complex64"
          list[n] = options
          return (ops.fill_(plain(unpack(list, 1, n)), z))
        end
      end
      return done(plain(...))
    end
    B.names[call] = name
    if factory then F[name] = call end
    if not factory then methods[name] = call end
    if name == "full_like" then F[name] = call end
  end
  filled("full", true)
  filled("full_like")
  filled("new_full")
end
