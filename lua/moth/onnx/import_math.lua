--- ONNX's elementwise operators, conversions, softmax and cumulative sums.
local B = require "moth_lua"
local moth = require "moth"
local import = require "moth.onnx.import"
local small = require "moth.onnx.small"
local rule = import.rule
local F = moth.nn.functional

local function is_float(x) return x:is_floating_point() end

-- ---- of one tensor -------------------------------------------------------------------------------

for op, name in require "moth.each" { Abs = "abs", Acos = "acos", Acosh = "acosh", Asin = "asin", Asinh = "asinh",
  Atan = "atan", Atanh = "atanh", Ceil = "ceil", Cos = "cos", Cosh = "cosh", Erf = "erf", Exp = "exp", Floor = "floor",
  Log = "log", Neg = "neg", Reciprocal = "reciprocal", Relu = "relu", Round = "round", Sigmoid = "sigmoid",
  Sign = "sign", Sin = "sin", Sinh = "sinh", Softplus = "softplus", Softsign = "softsign", Sqrt = "sqrt", Tan = "tan",
  Tanh = "tanh", IsNaN = "isnan", Mish = "mish", BitwiseNot = "bitwise_not" } do
  local fn = B.ops[name]
  rule(op, "consumed_inputs", function(_, x) return fn(x) end)
end

rule("Softplus", function(_, x) return x:relu() + (-x:abs()):exp():log1p() end)
rule("Not", function(_, x) return x:logical_not() end)
rule("Identity", function(_, x) return x end, { any = true })
rule("Elu", "alpha=1 consumed_inputs", function(c, x) return F.elu(x, c.alpha) end)
rule("Celu", "alpha=1", function(c, x) return F.celu(x, c.alpha) end)
rule("Selu", "alpha=1.67326319217681884765625 gamma=1.05070102214813232421875 consumed_inputs", function(c, x)
  return x:clamp { min = 0 } * c.gamma + (x:clamp { max = 0 }:exp() - 1) * (c.alpha * c.gamma)
end)
rule("LeakyRelu", "alpha=0.01 consumed_inputs", function(c, x) return F.leaky_relu(x, c.alpha) end)
rule("HardSigmoid", "alpha=0.2 beta=0.5 consumed_inputs", function(c, x)
  return (x * c.alpha + c.beta):clamp(0, 1)
end)
rule("HardSwish", function(_, x) return F.hardswish(x) end)
rule("Swish", "alpha=1", function(c, x) return x * (x * c.alpha):sigmoid() end)
rule("ThresholdedRelu", "alpha=1", function(c, x) return moth.where(x:gt(c.alpha), x, moth.zeros_like(x)) end)
rule("Shrink", "lambd=0.5 bias=0", function(c, x)
  local low, high, zero = x:lt(-c.lambd), x:gt(c.lambd), moth.zeros_like(x)
  return moth.where(low, (x + c.bias):to(x:dtype()), moth.where(high, (x - c.bias):to(x:dtype()), zero))
end)
rule("Gelu", "approximate='none'", function(c, x)
  return c.approximate == "tanh" and B.ops.gelu_tanh(x) or B.ops.gelu(x)
end)
rule("IsInf", "detect_negative=1 detect_positive=1", function(c, x)
  if not is_float(x) then return moth.zeros_like(x, { dtype = moth.bool }) end
  local inf = x:isinf()
  if c.detect_negative == 0 then inf = inf:logical_and(x:gt(0)) end
  if c.detect_positive == 0 then inf = inf:logical_and(x:lt(0)) end
  return inf
end)
-- A bound that is a number of the file, or none.
local function is_fixed(c, v)
  return not B.is_tensor(v) or c.run.static[v] == "constant" and v:numel() == 1
end
rule("Clip", "min max consumed_inputs", function(c, x, low, high)
  low, high = low or c.min, high or c.max
  if (low or high) and x:is_floating_point() and is_fixed(c, low) and is_fixed(c, high) then
    return moth.clamp(x, c:number(low), c:number(high))
  end
  if low then x = moth.maximum(x, B.is_tensor(low) and low or moth.full({}, low, { dtype = x:dtype() })) end
  if high then x = moth.minimum(x, B.is_tensor(high) and high or moth.full({}, high, { dtype = x:dtype() })) end
  return x
end)
rule("PRelu", "consumed_inputs", function(_, x, slope) return moth.where(x:lt(0), slope * x, x) end)
rule("Dropout", "seed ratio=0.5 is_test consumed_inputs", function(c, x, ratio, training)
  local p = c:number(ratio, c.ratio)
  if not training or c:number(training) == 0 or p == 0 then return x, moth.ones_like(x, { dtype = moth.bool }) end
  local mask = moth.rand(x:size(), { device = x:device() }):ge(p)
  return x * mask / (1 - p), mask
end, { numbers = 23, draws = true })

-- ---- of two --------------------------------------------------------------------------------------

-- Up to opset 6 the second operand of these could be laid along an axis of the first.
local function aligned(c, a, b)
  if c.broadcast ~= 1 or c.opset >= 7 or not c.axis then return b end
  for _ = 1, a:dim() - c.axis - b:dim() do b = b:unsqueeze(-1) end
  return b
end
local function binary(names, fn)
  rule(names, "axis broadcast consumed_inputs", function(c, a, b) return fn(a, aligned(c, a, b), c) end)
end
binary("Add", function(a, b) return a + b end)
binary("Sub", function(a, b) return a - b end)
binary("Mul", function(a, b) return a * b end)
binary("Div", function(a, b)
  if is_float(a) then return a / b end
  return B.ops.div_trunc(a, b)
end)
binary("Pow", function(a, b)
  if not is_float(a) and is_float(b) then return a:to(moth.float64):pow(b:to(moth.float64)):to(a:dtype()) end
  return a:pow(b:dtype() == a:dtype() and b or b:to(a:dtype())):to(a:dtype())
end)
rule("Mod", "fmod=0", function(c, a, b) return c.fmod == 1 and a:fmod(b) or a:remainder(b) end)
for op, name in require "moth.each" { Less = "lt", LessOrEqual = "le", Greater = "gt",
  GreaterOrEqual = "ge" } do
  binary(op, function(a, b) return B.ops[name](a, b) end)
end
for op, name in require "moth.each" { And = "logical_and", Or = "logical_or", Xor = "logical_xor" } do
  binary(op, function(a, b) return B.ops[name](a, b) end)
end
for op, name in require "moth.each" { BitwiseAnd = "bitwise_and", BitwiseOr = "bitwise_or",
  BitwiseXor = "bitwise_xor" } do
  rule(op, function(_, a, b) return B.ops[name](a, b) end)
end
rule("BitShift", "direction", function(c, a, b)
  if c.direction == "LEFT" then return a:bitwise_left_shift(b) end
  return a:bitwise_right_shift(b)
end)

rule("Equal", "axis broadcast", function(c, a, b)
  if B.is_tensor(a) then return a:eq(aligned(c, a, b)) end
  return require("moth.onnx.import_text").equal(c, a, b)
end)

-- ---- of several ----------------------------------------------------------------------------------

local function several(op, fn)
  rule(op, "consumed_inputs", function(_, first, ...)
    for i = 1, select("#", ...) do first = fn(first, (select(i, ...))) end
    return first
  end)
end
several("Sum", function(a, b) return a + b end)
several("Max", function(a, b) return moth.maximum(a, b) end)
several("Min", function(a, b) return moth.minimum(a, b) end)
rule("Mean", "consumed_inputs", function(c, first, ...)
  for i = 1, select("#", ...) do first = first + (select(i, ...)) end
  return first / c.n
end)
rule("Where", function(_, condition, a, b)
  if not B.is_tensor(a) then return require("moth.onnx.import_text").where(condition, a, b) end
  return moth.where(condition, a, b)
end, { any = "moves" })

-- ---- types ---------------------------------------------------------------------------------------

-- Values out of an integer's range: what C does with 64 bits is cut to the lower ones.
local function cast(c, x, name)
  if not B.is_tensor(x) then return require("moth.onnx.import_text").numbers(c, x, name) end
  if name == "string" then return require("moth.onnx.import_text").texts(c, x) end
  local kind = small.kinds[name]
  local from = small.tag[x]
  if kind then
    if from == name then return x end
    local out = small.round(kind, x, c.saturate ~= 0, c.round_mode or "up")
    small.tag[out] = name
    return out
  end
  local dtype = B.dtype(name)
  local own = x:dtype().name
  if dtype.is_floating_point or dtype.is_complex or name == "bool" then return x:to(dtype) end
  if own:find("^uint%d%d$") and name:find("int8$") then x = x:to(moth.int64) end
  if name:find("^uint%d%d$") and is_float(x) then x = x:to(moth.int64) end
  return x:to(dtype)
end
rule("Cast", "to saturate=1 round_mode='up'", function(c, x) return cast(c, x, c:element(c.to)) end, { any = true })
rule("CastLike", "saturate=1 round_mode='up'", function(c, x, like)
  if not B.is_tensor(like) then return cast(c, x, "string") end
  return cast(c, x, small.tag[like] or like:dtype().name)
end, { any = true })
rule("BitCast", "to", function(c, x)
  local name = c:element(c.to)
  if small.kinds[name] or small.tag[x] then c:fail("between types of less than a byte, or of 8 bit floats") end
  local dtype = B.dtype(name)
  if dtype.itemsize ~= x:element_size() then c:fail("the types are not of the same size") end
  if c.run.recording and not c:known(x) then c:fail("it needs the elements of a tensor") end
  local out = B.ops.empty(x:size(), { dtype = dtype })
  local from = B.ops.contiguous(B.ops.to(x, { device = "cpu" }))
  local ffi = require "ffi"
  if out:numel() > 0 then
    ffi.copy(ffi.cast("void *", B.pointer(out)), ffi.cast("const void *", B.pointer(from)),
      out:numel() * dtype.itemsize)
  end
  return B.ops.to(out, { device = x:device() })
end, { any = true })

-- ---- softmax, cumulative sums --------------------------------------------------------------------

local function softmax(name, fn)
  rule(name, "axis", function(c, x)
    if c.opset >= 13 then return fn(x, c:dim(c.axis or -1, x)) end
    local axis = c:dim(c.axis or 1, x)
    local rows = 1
    for i = 1, axis - 1 do rows = rows * x:size(i) end
    return fn(x:reshape { rows, -1 }, 2):reshape(x:size())
  end)
end
local function first_of_max(x, dim)
  local n = x:size(dim)
  local shape = {}
  for i = 1, x:dim() do shape[i] = i == dim and n or 1 end
  local at = x:argmax(dim, true)
  return moth.arange(1, n + 1, { dtype = moth.int64, device = x:device() }):reshape(shape):eq(at):to(x:dtype())
end
softmax("Softmax", function(x, dim) return x:softmax(dim) end)
softmax("LogSoftmax", function(x, dim) return x:log_softmax(dim) end)
softmax("Hardmax", first_of_max)

local function cumulative(name, one, fn)
  rule(name, "exclusive=0 reverse=0", function(c, x, axis)
    local dim = c:dim(c:number(axis), x)
    if c.reverse == 1 then x = x:flip { dim } end
    local out = fn(x, dim):to(x:dtype())
    if c.exclusive == 1 then
      local shape = x:size()
      shape[dim] = 1
      out = moth.cat({ moth.full(shape, one, { dtype = x:dtype(), device = x:device() }),
        out:narrow(dim, 1, x:size(dim) - 1) }, dim)
    end
    return c.reverse == 1 and out:flip { dim } or out
  end, { numbers = 2 })
end
cumulative("CumSum", 0, function(x, dim) return x:cumsum(dim) end)
cumulative("CumProd", 1, function(x, dim) return x:cumprod(dim) end)

rule("SwiGLU", "alpha=1", function(c, a, b) return a * (a * c.alpha):sigmoid() * b end)

-- ---- random --------------------------------------------------------------------------------------

local function random(name, fn)
  rule("Random" .. name, "dtype=1 shape seed mean=0 scale=1 low=0 high=1", function(c)
    return fn(c, c.shape, B.dtype(c:element(c.dtype)), c.device)
  end, { draws = true })
  rule("Random" .. name .. "Like", "dtype seed mean=0 scale=1 low=0 high=1", function(c, x)
    return fn(c, x:size(), c.dtype and B.dtype(c:element(c.dtype)) or x:dtype(), x:device())
  end, { draws = true })
end
random("Normal", function(c, shape, dtype, device)
  return (moth.randn(shape, { device = device }) * c.scale + c.mean):to(dtype)
end)
random("Uniform", function(c, shape, dtype, device)
  return (moth.rand(shape, { device = device }) * (c.high - c.low) + c.low):to(dtype)
end)
rule("Bernoulli", "dtype seed", function(c, x)
  return moth.rand(x:size(), { device = x:device() }):lt(x:to(moth.float32)):to(c.dtype
    and B.dtype(c:element(c.dtype)) or x:dtype())
end, { draws = true })
rule("Multinomial", "dtype=6 sample_size=1 seed", function(c, x)
  local out = x:to(moth.float32):softmax(2):multinomial(c.sample_size, true) - 1
  return out:to(B.dtype(c:element(c.dtype)))
end, { draws = true })

return { cast = cast }
