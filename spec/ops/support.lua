--- What the specs of spec/ops share: samples of op records made into tensors, layouts, references, comparing.
--
-- A record's sample is the text of an argument list. It is evaluated in an environment with seeded makers (randn,
-- rand, randint, tensor); nothing of it depends on moth's generator. MOTH_SEED changes the data, MOTH_OP=name (a
-- Lua pattern, or several with commas) restricts a run to some ops, MOTH_CASES=1000 runs all cases with three sets of
-- data, MOTH_CASES=10 leaves out large tensors. MOTH_DEVICE=cuda puts the tensors there (references stay on the CPU)
-- and MOTH_FRACTION=0.1 runs a tenth of the cases, chosen by the seed. A failure is one line that repeats it.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"

ffi.cdef [[
double erf(double); double expm1(double); double log1p(double); double nearbyint(double); double lgamma(double);
]]

local S = {}
-- Ops of complex numbers alone are checked in spec/ops/complex_spec.lua.
S.records = {}
for _, op in ipairs(require "moth.ops_table") do
  if not (op.none or ""):find("complex_spec", 1, true) then table.insert(S.records, op) end
end
S.ops = B.ops
S.seed = tonumber(os.getenv("MOTH_SEED")) or 1234
local wanted = tonumber(os.getenv("MOTH_CASES"))
--- How often the cases are run, each time with other data.
S.rounds = wanted and wanted >= 1000 and 3 or 1
--- Whether large tensors are left out (slow under tools).
S.small = wanted ~= nil and wanted < 100
S.dtypes = { "float64", "float32", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool" }
S.layouts = { "contiguous", "transposed", "strided", "offset", "expanded" }
S.class = { float64 = "float", float32 = "float", float16 = "float", bfloat16 = "float", bool = "bool" }
for _, d in ipairs(S.dtypes) do S.class[d] = S.class[d] or "int" end
S.tolerance = { float64 = { 1e-7, 1e-7 }, float32 = { 1.3e-6, 1e-5 }, float16 = { 1e-3, 1e-5 }, bfloat16 = { 1.6e-2,
  1e-5 } }
S.bits = { int8 = 8, uint8 = 8, int16 = 16, int32 = 32, int64 = 64 }
local largest = { float64 = math.huge, float32 = 3.4028235677973366e38, float16 = 65520,
  bfloat16 = 3.3961775292304957e38 }

--- Where the operands of all cases lie.
S.device = os.getenv("MOTH_DEVICE") or "cpu"
S.fraction = tonumber(os.getenv("MOTH_FRACTION")) or 1

local is_tensor = B.is_tensor
local function dtype_of(t) return B.tensor_dtype(t).name end
S.dtype_of = dtype_of

--- The records that MOTH_OP asks for.
function S.selected()
  local only, out = os.getenv("MOTH_OP"), {}
  local function asked(name)
    for pattern in (only .. ","):gmatch("(.-),") do
      if name == pattern or name:find("^" .. pattern .. "$") then return true end
    end
  end
  for _, op in ipairs(S.records) do
    if not only or asked(op.name) then out[#out + 1] = op end
  end
  return out
end

-- A few ops of every family: run under tools that slow them down a hundredfold.
local quick = {
  add = true, div = true, exp = true, where = true, clamp = true, sum = true, amax = true, var = true, mm = true,
    linear = true,
  cat = true, gather = true, softmax = true, cross_entropy = true, view = true, index_select = true, copy_ = true,
    full = true,
}
--- The title of an op's spec.
function S.title(op) return op.name .. (quick[op.name] and " #quick" or "") end

-- random numbers ----------------------------------------------------------------------------------

local state = 0
local function seed(n) state = (n * 2654435761 + 12345) % 2 ^ 32 end
S.reseed = seed
local function uniform() -- two steps of a 32-bit congruence
  state = (state * 1664525 + 1013904223) % 2 ^ 32
  local high = math.floor(state / 2 ^ 8)
  state = (state * 1664525 + 1013904223) % 2 ^ 32
  return (high + math.floor(state / 2 ^ 8) / 2 ^ 24) / 2 ^ 24
end
S.uniform = uniform
local function normal()
  return math.sqrt(-2 * math.log(1 - uniform())) * math.cos(2 * math.pi * uniform())
end

local function product(shape)
  local n = 1
  for _, s in ipairs(shape) do n = n * s end
  return n
end
S.product = product

-- Writes numbers into a row-major CPU tensor, by element.
local writer = {
  float64 = "double*", float32 = "float*", int8 = "int8_t*", uint8 = "uint8_t*", int16 = "int16_t*",
    int32 = "int32_t*",
  int64 = "int64_t*", bool = "uint8_t*",
}
local function on_cpu(t) return B.tensor_device(t).type == "cpu" and t or B.ops.to(t, { device = "cpu" }) end
--- A row-major tensor of this shape and dtype from a flat list of numbers (bool: 0 and 1).
function S.make(shape, dtype, data, device)
  device = device or S.device
  if device ~= "cpu" then return B.ops.to(S.make(shape, dtype, data, "cpu"), { device = device }) end
  if not writer[dtype] then
    return B.ops.to(S.make(shape, "float64", data, "cpu"), { dtype = dtype })
  end
  local t = B.ops.empty(shape, { dtype = dtype })
  local p = ffi.cast(writer[dtype], B.pointer(t))
  for i = 1, #data do p[i - 1] = data[i] end
  return t
end

local function flatten(v, out)
  if type(v) == "table" then
    for i = 1, #v do flatten(v[i], out) end
  elseif type(v) == "boolean" then
    out[#out + 1] = v and 1 or 0
  else
    out[#out + 1] = v
  end
  return out
end
--- The elements of any tensor as a flat list of numbers, read one by one (no kernel is involved).
function S.values(t)
  return flatten(B.totable(on_cpu(B.requires_grad(t) and B.alias(t, false) or t)), {})
end

-- samples -----------------------------------------------------------------------------------------

local function environment(options)
  local dtype, scale = options.dtype or "float64", options.scale or function(n) return n end
  local function sizes(...)
    local shape = type((...)) == "table" and (...) or { ... }
    local out = {}
    for i, s in ipairs(shape) do out[i] = scale(s) end
    return out
  end
  local function maker(gen)
    return function(...)
      local shape, data = sizes(...), {}
      for i = 1, product(shape) do data[i] = gen() end
      return S.make(shape, dtype, data)
    end
  end
  local env = { inf = math.huge, nan = 0 / 0, math = math, bit = bit, moth = moth }
  for _, d in ipairs(S.dtypes) do env[d] = moth[d] end
  env.randn = maker(options.integers and function() return math.floor(uniform() * 7) - 3 end or normal)
  env.rand = maker(options.integers and function() return math.floor(uniform() * 3) + 1 end or uniform)
  env.zeros = maker(function() return 0 end)
  function env.randint(low, high, size)
    local shape, data = sizes(size), {}
    for i = 1, product(shape) do data[i] = low + math.floor(uniform() * (high - low)) end
    return S.make(shape, "int64", data)
  end
  -- The identity; symmetric and symmetric positive-definite matrices.
  function env.eye(n)
    n = scale(n)
    local data = {}
    for i = 1, n * n do data[i] = (i - 1) % (n + 1) == 0 and 1 or 0 end
    return S.make({ n, n }, dtype, data)
  end
  function env.sym(...)
    local x = env.randn(...)
    return B.ops.add(x, B.ops.transpose(x, -2, -1))
  end
  function env.spd(...)
    local x = env.randn(...)
    local n = B.size(x, -1)
    local wide = B.ops.mul(B.ops.eye(n, { dtype = dtype, device = S.device }), n)
    return B.ops.add(B.ops.matmul(x, B.ops.transpose(x, -2, -1)), wide)
  end
  env.view_as_complex = B.ops.view_as_complex
  function env.tensor(v, o)
    if o then return B.ops.to(moth.tensor(v, o), { device = S.device }) end
    local t = B.ops.to(moth.tensor(v, { dtype = dtype }), { device = S.device })
    if options.smooth then -- away from kinks, steps and infinities
      local data = S.values(t)
      for i, x in ipairs(data) do data[i] = (x - x ~= 0 and 1.7 or x) + 0.0371 end
      t = S.make(B.size(t), dtype, data)
    end
    return t
  end
  return env
end

--- The arguments that a sample stands for: { n = count, ... }.
-- options: dtype of floats (float64), seed, scale (a function of sizes), integers (fill with them), smooth.
function S.evaluate(text, options)
  options = options or {}
  seed(options.seed or S.seed)
  local chunk = assert(loadstring("return " .. text, "=sample"))
  setfenv(chunk, environment(options))
  local function pack(...) return { n = select("#", ...), ... } end
  return pack(chunk())
end

--- Is v a table of options (keywords)?
function S.is_options(v)
  return type(v) == "table" and #v == 0 and next(v) ~= nil
end

--- Every tensor of an argument list, lists included, through fn(tensor, argument record or nil).
function S.map(op, args, fn)
  local out = { n = args.n }
  for i = 1, args.n do
    local v, a = args[i], op.args[i]
    if is_tensor(v) then
      out[i] = fn(v, a)
    elseif type(v) == "table" and is_tensor(v[1]) then
      out[i] = {}
      for k = 1, #v do out[i][k] = fn(v[k], a) end
    elseif S.is_options(v) then
      out[i] = {}
      for k, x in pairs(v) do out[i][k] = is_tensor(x) and fn(x, nil) or x end
    else
      out[i] = v
    end
  end
  return out
end

--- Arguments by name, keywords and defaults included; a missing one is nil.
function S.bind(op, args)
  local bound, at = {}, 1
  local given = args.n
  local options = S.is_options(args[args.n]) and args[args.n] or {}
  if next(options) then given = given - 1 end
  for _, a in ipairs(op.args) do
    if a.type == "INDEX_BASE" then
      bound[a.name] = 1
    else
      local v
      if at <= given then v = args[at] end
      at = at + 1
      if v == nil then v = options[a.name] end
      if v == nil and a.default and a.default ~= "none" then
        if a.default == "true" or a.default == "false" then v = a.default == "true"
        elseif tonumber(a.default) then
          v = tonumber(a.default)
          if (a.type == "DIM" or a.type == "INDEX") and v >= 0 then v = v + 1 end
        else v = a.default:match("^'(.*)'$")
        end
      end
      bound[a.name] = v
    end
  end
  return bound
end

-- dtypes and layouts ------------------------------------------------------------------------------

--- The number that a float64 sample element becomes in an integer dtype or bool.
local function as_integer(x, dtype)
  if x ~= x then x = 1 elseif x == math.huge then x = 3 elseif x == -math.huge then x = -3 end
  if dtype == "bool" then return x > 0 and 1 or 0 end
  x = math.floor(x + 0.5)
  if dtype == "uint8" then x = math.abs(x) end
  if dtype == "int8" or dtype == "uint8" then x = math.max(-120, math.min(120, x)) end
  return x
end

function S.cast(t, dtype)
  local from = dtype_of(t)
  if from == dtype then return t end
  local data = S.values(t)
  if S.class[dtype] ~= "float" then
    for i, x in ipairs(data) do data[i] = as_integer(x, dtype) end
  end
  return S.make(B.size(t), dtype, data)
end

local pad = { float = 0 / 0, int = 12, bool = 1 }

--- The same elements in another layout (expanded: the first row for all). nil where the shape does not allow it.
-- Second result: a function that says whether the unused elements around are as they were.
function S.layout(t, kind)
  local ops, shape, dim, dtype = B.ops, B.size(t), B.dim(t), dtype_of(t)
  local fill = pad[S.class[dtype]]
  local out, around
  if kind == "contiguous" then
    return t, function() return true end
  elseif kind == "transposed" then
    if dim < 2 then return nil end
    out = ops.transpose(ops.clone(ops.transpose(t, 1, -1)), 1, -1)
  elseif kind == "strided" then
    if dim == 0 or B.numel(t) == 0 then return nil end
    local wide = { unpack(shape) }
    wide[dim] = 2 * wide[dim]
    local data = {}
    for i, x in ipairs(S.values(t)) do data[2 * i - 1], data[2 * i] = x, fill end
    local whole = S.make(wide, dtype, data)
    out = ops.slice(whole, dim, 0, wide[dim], 2)
    around = ops.slice(whole, dim, 1, wide[dim], 2)
  elseif kind == "offset" then
    local data, n = { fill, fill, fill }, B.numel(t)
    for _, x in ipairs(S.values(t)) do data[#data + 1] = x end
    data[#data + 1], data[#data + 2] = fill, fill
    local whole = S.make({ n + 5 }, dtype, data)
    out = ops.view(ops.narrow(whole, 1, 4, n), shape)
    around = ops.narrow(whole, 1, n + 4, 2)
  elseif kind == "expanded" then
    if dim == 0 or shape[1] < 2 then return nil end
    local row = { unpack(shape) }
    row[1] = 1
    local data = S.values(t)
    local n, first = product(row), {}
    for i = 1, n do first[i] = data[i] end
    out = ops.expand(S.make(row, dtype, first), shape)
  end
  return out, function()
    if not around then return true end
    for _, x in ipairs(S.values(around)) do
      if not (x == fill or (x ~= x and fill ~= fill)) then return false end
    end
    return true
  end
end

-- promotion, written out once more ----------------------------------------------------------------

local rank = { bool = 1, uint8 = 2, int8 = 3, int16 = 4, int32 = 5, int64 = 6, float16 = 7, bfloat16 = 8,
  float32 = 9, float64 = 10 }
local order = { bool = 1, int = 2, float = 3 }
--- The common dtype of two.
function S.promote(a, b)
  if a == b then return a end
  if rank[a] > rank[b] then a, b = b, a end
  if a == "uint8" and b == "int8" then return "int16" end
  if a == "float16" and b == "bfloat16" then return "float32" end
  return b
end

--- The dtype of an operation between tensors and numbers: what has dimensions counts before 0-dim tensors, these
-- before numbers; the lesser kinds count only if of a higher class.
function S.result_type(operands)
  local best = {}
  for _, v in ipairs(operands) do
    local kind, d
    if is_tensor(v) then
      kind, d = B.dim(v) > 0 and 1 or 2, dtype_of(v)
    elseif type(v) == "boolean" then
      kind, d = 3, "bool"
    else
      kind, d = 3, v == math.floor(v) and math.abs(v) <= 2 ^ 53 and "int64" or "float32"
    end
    best[kind] = best[kind] and S.promote(best[kind], d) or d
  end
  local result
  for kind = 1, 3 do
    if best[kind] and (not result or order[S.class[best[kind]]] > order[S.class[result]]) then
      result = result and S.promote(result, best[kind]) or best[kind]
    end
  end
  return result
end

-- references --------------------------------------------------------------------------------------

-- digamma (n = 0) and its derivatives: by the reflection formula below 0, by the recurrence up to 20, there by the
-- asymptotic series (Abramowitz and Stegun 6.3.18, 6.4.11, 6.4.7).
local bernoulli = { 1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510 }
-- At a pole it is the limit from the right.
local function polygamma(x, n)
  if x <= 0 and x == math.floor(x) and n > 0 then return n % 2 == 1 and math.huge or -math.huge end
  local factorial, sum = 1, 0
  for k = 2, n do factorial = factorial * k end
  local sign = n % 2 == 0 and -1 or 1 -- (-1)^(n+1)
  while x < 20 do -- psi_n(x) = psi_n(x + 1) + sign n! / x^(n+1)
    sum = sum + sign * factorial / x ^ (n + 1)
    x = x + 1
  end
  local series = n == 0 and math.log(x) - 1 / (2 * x) or factorial / n / x ^ n + factorial / (2 * x ^ (n + 1))
  local rising = n == 0 and 1 or factorial * (n + 1) / 2 -- (2k + n - 1)! / (2k)! at k = 1
  for k, b in ipairs(bernoulli) do
    if n == 0 then
      series = series - b / (2 * k * x ^ (2 * k))
    else
      series = series + b * rising / x ^ (2 * k + n)
      rising = rising * (2 * k + n) * (2 * k + n + 1) / ((2 * k + 1) * (2 * k + 2))
    end
  end
  return sum + (n == 0 and series or sign * series)
end

local function ref_environment(dtype)
  local C = ffi.C
  local lib = { erf = C.erf, expm1 = C.expm1, log1p = C.log1p, round = C.nearbyint, lgamma = C.lgamma,
    polygamma = polygamma, math = math, bit = bit, special = require "ops.special_references", select = select }
  if dtype == "bool" then lib.bit = { band = bit.band, bor = bit.bor, bxor = bit.bxor,
    bnot = function(x) return 1 - x end } end
  return lib
end

local function to_number(v)
  if type(v) == "boolean" then return v and 1 or 0 end
  return v
end

--- The result of a pointwise op by its record's `ref`, element by element in Lua's doubles: shape, flat list.
-- `dtype` is the compute dtype: numbers given as operands are rounded to it, as the kernel does.
function S.reference(op, args, dtype)
  local bound = S.bind(op, args)
  local env = ref_environment(dtype)
  local fn = assert(loadstring("return " .. op.ref, "=ref of " .. op.name))
  setfenv(fn, env)
  local shape, operands = {}, {}
  for _, a in ipairs(op.args) do
    local v = bound[a.name]
    if is_tensor(v) then
      local mask = op.cond == a.name
      -- the kernel brings operands to the compute dtype first
      if not mask and S.class[dtype] == "float" and dtype_of(v) ~= dtype then v = S.make(B.size(v), dtype,
        S.values(v)) end
      operands[#operands + 1] = { name = a.name, shape = B.size(v), data = S.values(v), mask = mask }
      shape = moth.broadcast_shapes(shape, B.size(v))
    elseif a.type == "OPERAND" and v ~= nil then
      env[a.name] = S.values(moth.tensor(v, { dtype = dtype }))[1]
    else
      env[a.name] = to_number(v)
    end
  end
  local n, dim = product(shape), #shape
  for _, o in ipairs(operands) do
    local step, strides = 1, {}
    for d = dim, 1, -1 do
      local s = o.shape[#o.shape - dim + d] or 1
      strides[d] = s == 1 and 0 or step
      step = step * s
    end
    o.strides = strides
  end
  local out, position = {}, {}
  for d = 1, dim do position[d] = 0 end
  for i = 1, n do
    for _, o in ipairs(operands) do
      local at = 1
      for d = 1, dim do at = at + position[d] * o.strides[d] end
      local v = o.data[at]
      if o.mask then v = v ~= 0 end
      env[o.name] = v
    end
    out[i] = to_number(fn())
    local d = dim
    while d > 0 do
      position[d] = position[d] + 1
      if position[d] < shape[d] then break end
      position[d] = 0
      d = d - 1
    end
  end
  return shape, out
end

-- comparing ---------------------------------------------------------------------------------------

local function wrap(x, dtype)
  local n = 2 ^ S.bits[dtype]
  x = x < 0 and math.ceil(x) or math.floor(x)
  if dtype == "int64" then return x end
  x = x % n
  if dtype ~= "uint8" and x >= n / 2 then x = x - n end
  return x
end

--- nil if the elements agree, else a text that says where they do not.
-- `want` are float64 values; they are brought into the range of dtype first.
function S.compare(got, want, dtype, tolerance)
  if #got ~= #want then return ("%d elements, expected %d"):format(#got, #want) end
  local class = S.class[dtype]
  local rtol, atol = 0, 0
  if class == "float" then rtol, atol = tolerance[1], tolerance[2] end
  for i = 1, #want do
    local g, w = got[i], want[i]
    local fine
    if class == "bool" then
      fine = (g ~= 0) == (w ~= 0)
    elseif class == "int" then
      fine = w ~= w or math.abs(w) >= 2 ^ 53 or g == wrap(w, dtype)
    elseif w ~= w then
      fine = g ~= g
    else
      if math.abs(w) >= largest[dtype] then w = w > 0 and math.huge or -math.huge end
      fine = g == w or math.abs(g - w) <= atol + rtol * math.abs(w)
    end
    if not fine then
      return ("element %d is %.9g, expected %.9g (difference %.3g)"):format(i, g, w, math.abs(g - w))
    end
  end
end

function S.same_shape(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do if a[i] ~= b[i] then return false end end
  return true
end
function S.show(shape) return "[" .. table.concat(shape, ", ") .. "]" end

--- The bytes of a tensor, for comparing bit by bit.
function S.bytes(t)
  t = on_cpu(B.alias(t, false))
  return dtype_of(t) .. S.show(B.size(t)) .. B.bytes(B.is_contiguous(t) and t or B.ops.clone(t))
end

-- counting ----------------------------------------------------------------------------------------

--- Collects the cases of a spec file: counter.case(where, fn) runs one; counter.check() raises what failed.
function S.counter(what)
  local c = { known = 0, total = 0, refused = 0, failures = {}, here = 0 }
  -- A case's place in [0, 1): of its name and the seed.
  local function lot(where)
    local h = S.seed
    for k = 1, #where do h = (h * 31 + where:byte(k)) % 2147483647 end
    return h % 9973 / 9973
  end
  function c.case(where, fn, ...)
    c.known = c.known + 1
    if S.fraction < 1 and lot(where) >= S.fraction then return true end
    c.total = c.total + 1
    if os.getenv("MOTH_TRACE") then io.stderr:write(what, ": ", where, "\n") end
    local ok, err = pcall(fn, ...)
    if not ok then
      c.failures[#c.failures + 1] = ("%s seed %d: %s"):format(where, S.seed, tostring(err))
    end
    return ok
  end
  --- Ends an op's spec: errors with its failures, at most ten lines.
  function c.check()
    local failures = c.failures
    c.failures = {}
    if #failures == 0 then return end
    local n = #failures
    for i = n, 11, -1 do failures[i] = nil end
    error(("%d failed; repeat with MOTH_OP=… MOTH_SEED=%d\n%s"):format(n, S.seed, table.concat(failures, "\n")), 0)
  end
  return c
end

-- derivatives --------------------------------------------------------------------------------------

function S.call(name, args) return S.ops[name](unpack(args, 1, args.n)) end

--- Of which arguments does an op have a derivative? All floats of a composite; false: unimplemented.
function S.differentiable(op, name)
  if op.grad == "composite" then return true end
  if type(op.grad) ~= "table" then return nil end
  local formula = op.grad[name]
  if formula == "unimplemented" then return false end
  if op.name == "standard_gamma" then return nil end -- not that of equal random bits: spec/distributions checks it
  return formula ~= nil or nil
end

function S.has_derivative(op)
  if op.grad == "none" then return false end
  if op.name:find("^%w+_like$") or op.name == "empty" then return false end
  return true
end

-- Ops that read one triangle of symmetric matrices: their derivative is that along symmetric matrices.
local symmetric = {}
for name in ("linalg_cholesky_ex linalg_cholesky native_eigh linalg_eigh linalg_eigvalsh"):gmatch "%S+" do
  symmetric[name] = true
end

--- A sample as a function of its float tensors: fn, inputs. `want` says which arguments take part.
function S.as_function(op, name, text, data, want)
  local base = S.evaluate(text, { seed = data, smooth = true })
  local inputs = {}
  local args = S.map(op, base, function(t, a)
    if S.dtype_of(t) ~= "float64" or not a or want(a.name) == nil then return t end
    inputs[#inputs + 1] = B.set_requires_grad(S.ops.clone(t), true)
    return { input = #inputs }
  end)
  local mutates = op.returns_self or name ~= op.name
  local function fn(...)
    local given = { ... }
    local full = { n = args.n }
    for i = 1, args.n do
      local v = args[i]
      if type(v) == "table" and v.input then
        v = given[v.input]
        if symmetric[op.name] then v = S.ops.mul(S.ops.add(v, S.ops.transpose(v, -2, -1)), 0.5) end
        if i == 1 and mutates then v = S.ops.clone(v) end
      elseif type(v) == "table" and type(v[1]) == "table" and v[1].input then
        local list = {}
        for k, x in ipairs(v) do list[k] = given[x.input] end
        v = list
      elseif i == 1 and mutates and B.is_tensor(v) then
        v = S.ops.clone(v)
      end
      full[i] = v
    end
    moth.manual_seed(11)
    if op.stats == 1 then return (S.call(name, full)) end
    return S.call(name, full)
  end
  return fn, inputs
end

return S
