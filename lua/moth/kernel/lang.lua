--- moth.kernel.lang: the functions of kernels, `local tl = moth.kernel.lang`. They mean something inside of a function
-- given to moth.kernel.jit only; docs/kernel.md says what each does. Dimensions count from 1, as everywhere in moth;
-- program ids, arange and what argmax gives are offsets, and count from 0.
local B = require "moth_lua"
local check = require "moth.utils.check"
local dtypes = require "moth.codegen.dtypes"
local each = require "moth.each"
local reader = require "moth.kernel.reader"
local tile = require "moth.codegen.tile"

local M = { builders = {}, names = {}, modules = {} }
local tl = {}
M.tl = tl

local const, of_node = reader.const, reader.of_node

-- A function of tl. parameters: "x y dim?"; those after `|` are options, by name only. build(c, a): a value, or
-- nothing.
local function define(names, parameters, build)
  local list, optional, named = {}, {}, nil
  for word in parameters:gmatch("%S+") do
    if word == "|" then
      named = #list
    else
      local name = word:gsub("?", "")
      list[#list + 1] = name
      optional[name] = word ~= name or named ~= nil
    end
  end
  local positional = named or #list
  local first = names:match("%S+")
  local usage = "tl." .. first .. "(" .. parameters:gsub(" | ", ", { "):gsub("(%S) (%S)", "%1, %2")
    .. (named and " })" or ")")
  local function builder(c, args, n)
    local a, last = {}, args[n]
    local options = n > 0 and last.k == "table" and #last.t == 0 and last.t
    -- An empty table is a list where one is expected next.
    if options and next(options) == nil and (list[n] == "shape") then options = nil end
    if options then n = n - 1 end
    if n > positional then c:fail("%s takes %d arguments, got %d", usage, positional, n) end
    for i = 1, n do a[list[i]] = args[i] end
    for key, v in each(options or {}) do
      if type(key) ~= "string" or optional[key] == nil then
        c:fail("%s has no option '%s'%s", usage, tostring(key), check.suggest(tostring(key), list))
      elseif a[key] then
        c:fail("%s: '%s' is given twice", usage, key)
      end
      a[key] = v
    end
    for _, name in ipairs(list) do
      if a[name] and a[name].k == "const" and a[name].v == nil then a[name] = nil end
      if not a[name] and not optional[name] then c:fail("%s: '%s' is missing", usage, name) end
    end
    a.usage = usage
    return build(c, a)
  end
  for name in names:gmatch("%S+") do
    M.builders[name] = builder
    --- A function of kernels: docs/kernel.md has all of them with arguments, shapes and dtypes.
    local function outside()
      check.fail("[kernel] tl.%s is for kernels: functions given to moth.kernel.jit", name)
    end
    tl[name] = outside
    M.names[outside] = name
  end
end

--- Calls a function of tl with values; a list of values.
function M.build(c, name, args, n)
  local v = M.builders[name](c, args, n)
  return v and v.k == "values" and v.list or { v }
end

-- A constant integer.
local function integer(c, a, name, default)
  local v = a[name]
  if not v then return default end
  if v.k ~= "const" or type(v.v) ~= "number" or v.v ~= math.floor(v.v) then
    c:fail("%s: '%s' is a constant of the kernel, an integer; got %s%s", a.usage, name, reader.describe(v),
      v.k == "node" and "; declare its parameter in `constexpr`" or "")
  end
  return v.v
end

local function flag(c, a, name)
  local v = a[name]
  if not v then return false end
  if v.k ~= "const" or type(v.v) ~= "boolean" then c:fail("%s: '%s' is true or false", a.usage, name) end
  return v.v
end

local function dimension(c, a, x, default)
  local d = integer(c, a, "dim", default)
  if not d then return nil end
  local n = #x.shape
  if d == 0 and n == 1 then return 1 end -- of one dimension, there is nothing to mistake
  if d < -n or d > n or d == 0 then
    c:fail("%s: dim %d of %s: dimensions count from 1", a.usage, d, tile.describe(x))
  end
  return d < 0 and d + n + 1 or d
end

local limit = 2 ^ 20
local function shape_of(c, a, name)
  local v, shape = a[name], {}
  if v.k == "const" then v = { k = "table", t = { v } } end
  if v.k ~= "table" then c:fail("%s: '%s' is a list of sizes", a.usage, name) end
  for i, size in ipairs(v.t) do
    if size.k ~= "const" or type(size.v) ~= "number" or size.v < 1 or size.v ~= math.floor(size.v) then
      c:fail("%s: sizes are constants of the kernel, of at least 1; got %s%s", a.usage, reader.describe(size),
        size.k == "node" and "; declare its parameter in `constexpr`" or "")
    end
    shape[i] = size.v
  end
  if tile.numel(shape) > limit then
    c:fail("%s: a block of %s has more than %d elements", a.usage, tile.shape_text(shape), limit)
  end
  return shape
end

local function dtype_of(c, a, name, default)
  local v = a[name]
  if not v then return default end
  if v.k == "dtype" then return v.d end
  local d = v.k == "const" and type(v.v) == "string" and rawget(dtypes, v.v)
  if type(d) ~= "table" then
    c:fail("%s: '%s' is a dtype such as tl.float32, got %s", a.usage, name, reader.describe(v))
  end
  return d
end

local function pointer(c, a)
  local v = a.pointer
  if v.k ~= "ptr" then
    c:fail("%s: expected a pointer (a tensor of the launch, plus offsets), got %s", a.usage, reader.describe(v))
  end
  return v
end

local function maybe(c, v) return v and c:node(v) end

-- ---- programs and blocks ------------------------------------------------------------------------

local function axis(c, a)
  local k = integer(c, a, "axis", 0)
  if k < 0 or k > 2 then c:fail("%s: axis is 0, 1 or 2, got %d", a.usage, k) end
  return k
end
define("program_id", "axis?", function(c, a)
  return of_node(c.b:pure { op = "program_id", axis = axis(c, a), d = dtypes.int64, shape = {}, weak = true })
end)
define("num_programs", "axis?", function(c, a)
  return of_node(c.b:pure { op = "num_programs", axis = axis(c, a), d = dtypes.int64, shape = {}, weak = true })
end)
define("arange", "start stop", function(c, a)
  local lo, hi = integer(c, a, "start"), integer(c, a, "stop")
  if hi <= lo then c:fail("%s: an empty range from %d to %d", a.usage, lo, hi) end
  if hi - lo > limit then c:fail("%s: a block of [%d] has more than %d elements", a.usage, hi - lo, limit) end
  return of_node(c.b:pure { op = "arange", lo = lo, d = dtypes.int64, shape = { hi - lo } })
end)
define("full", "shape value dtype?", function(c, a)
  local shape, v = shape_of(c, a, "shape"), c:node(a.value)
  local d = dtype_of(c, a, "dtype", v.weak and (v.d.is_float and dtypes.float32 or dtypes.int64) or v.d)
  return of_node(c.b:broadcast(c.b:cast(v, d), shape))
end)
define("zeros", "shape dtype?", function(c, a)
  local d = dtype_of(c, a, "dtype", dtypes.float32)
  return of_node(c.b:broadcast(c.b:cast(c.b:const(0), d), shape_of(c, a, "shape")))
end)

-- ---- memory -------------------------------------------------------------------------------------

define("load", "pointer mask? other?", function(c, a)
  local p = pointer(c, a)
  if a.other and not a.mask then c:fail("%s: `other` stands where the mask is false; there is no mask", a.usage) end
  return of_node(c.b:load(p.root, p.d, p.off, maybe(c, a.mask), maybe(c, a.other)))
end)
define("store", "pointer value mask?", function(c, a)
  local p = pointer(c, a)
  c.b:store(p.root, p.d, p.off, c:node(a.value, "the value"), maybe(c, a.mask))
end)
local atomic_dtypes = { int32 = true, int64 = true, uint32 = true, uint64 = true, float32 = true, float64 = true }
for _, kind in ipairs { "add", "max", "min", "and", "or", "xor", "xchg" } do
  define("atomic_" .. kind, "pointer value mask?", function(c, a)
    local p = pointer(c, a)
    if not atomic_dtypes[p.d.name] or p.d.is_float and (kind == "and" or kind == "or" or kind == "xor") then
      c:fail("%s has no %s", a.usage, p.d.name)
    end
    return of_node(c.b:atomic(kind, p.root, p.d, p.off, c:node(a.value), maybe(c, a.mask)))
  end)
end
define("atomic_cas", "pointer compare value mask?", function(c, a)
  local p = pointer(c, a)
  if not atomic_dtypes[p.d.name] then c:fail("%s has no %s", a.usage, p.d.name) end
  return of_node(c.b:atomic("cas", p.root, p.d, p.off, c:node(a.value), maybe(c, a.mask), c:node(a.compare)))
end)
define("debug_barrier barrier", "", function(c) c.b:put { op = "barrier", d = dtypes.int64, shape = {} } end)

-- ---- formulas -----------------------------------------------------------------------------------

for name in ([[exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sqrt
  rsqrt reciprocal erf erfc sigmoid log_sigmoid silu gelu gelu_tanh mish softsign relu relu6 floor ceil round trunc abs
  neg sign square lgamma digamma isnan isinf isfinite logical_not bitwise_not]]):gmatch("%S+") do
  define(name, "x", function(c, a)
    if a.x.k == "const" and type(a.x.v) == "number" and (name == "floor" or name == "ceil" or name == "abs") then
      return const(math[name](a.x.v))
    end
    return of_node(c.b:unary(name, c:node(a.x)))
  end)
end

for _, pair in ipairs { "lt", "le", "gt", "ge", "eq", "ne", "add", "sub", "mul", "div", "remainder", "fmod", "pow",
  "atan2", "hypot", "copysign", "logaddexp", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor",
  "shift_left", "shift_right" } do
  local operators = { add = true, sub = true, mul = true, div = true, remainder = true, pow = true }
  define(pair, "x y", function(c, a)
    if operators[pair] then return c:arith(pair, a.x, a.y) end
    if a.x.k == "const" and a.y.k == "const" and (pair == "maximum" or pair == "minimum")
      and type(a.x.v) == "number" and type(a.y.v) == "number" then
      return const(pair == "maximum" and math.max(a.x.v, a.y.v) or pair == "minimum" and math.min(a.x.v, a.y.v))
    end
    return of_node(c.b:binary(pair, c:node(a.x), c:node(a.y)))
  end)
end
for name, op in each { logical_and = "bitwise_and", logical_or = "bitwise_or", logical_xor = "bitwise_xor" } do
  define(name, "x y", function(c, a)
    return of_node(c.b:binary(op, c.b:cast(c:node(a.x), dtypes.bool), c.b:cast(c:node(a.y), dtypes.bool)))
  end)
end

local function integers(c, a)
  for _, name in ipairs { "x", "y" } do
    local v = a[name]
    if v.k == "node" and v.node.d.is_float or v.k == "const" and (type(v.v) ~= "number" or v.v ~= math.floor(v.v)) then
      c:fail("%s needs integers, got %s", a.usage, reader.describe(v))
    end
  end
  return a.x.k == "const" and a.y.k == "const"
end
define("floordiv", "x y", function(c, a)
  if integers(c, a) then return const(math.floor(a.x.v / a.y.v)) end
  return of_node(c.b:binary("div_floor", c:node(a.x), c:node(a.y)))
end)
define("cdiv", "x y", function(c, a)
  if integers(c, a) then return const(math.ceil(a.x.v / a.y.v)) end
  local x, y = c:node(a.x), c:node(a.y)
  return of_node(c.b:binary("div_floor", c.b:binary("add", x, c.b:binary("sub", y, c.b:const(1))), y))
end)
define("fma", "x y z", function(c, a) return c:arith("add", c:arith("mul", a.x, a.y), a.z) end)
define("clamp", "x min max", function(c, a)
  return of_node(c.b:binary("minimum", c.b:binary("maximum", c:node(a.x), c:node(a.min)), c:node(a.max)))
end)
define("where", "condition x y", function(c, a)
  if a.condition.k == "const" then return c:truth(a.condition) and a.x or a.y end
  if a.x.k == "ptr" and a.y.k == "ptr" and a.x.root == a.y.root then
    return { k = "ptr", root = a.x.root, d = a.x.d, name = a.x.name,
      off = c.b:where(c:node(a.condition), a.x.off, a.y.off) }
  end
  return of_node(c.b:where(c:node(a.condition), c:node(a.x), c:node(a.y)))
end)
local predicates = {} -- formulas of ops whose results are truths
define("formula", "name dtype x? y? z? w?", function(c, a)
  local name = a.name.k == "const" and a.name.v
  local d = dtype_of(c, a, "dtype")
  if not next(predicates) then
    for _, op in ipairs(require "moth.ops_table") do
      if op.kind == "pointwise" and op.out == "bool" then predicates[op.scalar] = true end
    end
  end
  if type(name) ~= "string" or not require("moth.kernel.native").reader.has("m_" .. name, d.kind) then
    c:fail("%s: there is no formula %s of %s in kernels/math.h", a.usage, reader.describe(a.name), d.name)
  end
  local list = {}
  for _, key in ipairs { "x", "y", "z", "w" } do
    if a[key] then list[#list + 1] = c:node(a[key]) end
  end
  return of_node(c.b:exact(name, d.form ~= 0 and dtypes.float32 or d,
    predicates[name] and dtypes.bool or d.form ~= 0 and dtypes.float32 or d, unpack(list)))
end)
define("to cast", "x dtype", function(c, a)
  return of_node(c.b:cast(c:node(a.x), dtype_of(c, a, "dtype")))
end)

-- ---- shapes -------------------------------------------------------------------------------------

-- What changes shapes takes pointers, too: it changes their offsets.
local function of_shape(names, parameters, build)
  define(names, parameters, function(c, a)
    if a.x.k == "ptr" then
      return { k = "ptr", root = a.x.root, d = a.x.d, name = a.x.name, off = build(c, a, a.x.off) }
    end
    return of_node(build(c, a, c:node(a.x)))
  end)
end
of_shape("expand expand_dims unsqueeze", "x dim", function(c, a, x)
  local n, d = #x.shape + 1, integer(c, a, "dim")
  if d < 0 then d = d + n + 1 end
  if d < 1 or d > n then c:fail("%s: dim %d of a block that will have %d; dimensions count from 1", a.usage, d, n) end
  return c.b:expand(x, d)
end)
of_shape("broadcast_to", "x shape", function(c, a, x) return c.b:broadcast(x, shape_of(c, a, "shape")) end)
of_shape("reshape view", "x shape", function(c, a, x)
  local shape = shape_of(c, a, "shape")
  if tile.numel(shape) ~= tile.numel(x.shape) then
    c:fail("%s: %s has not the number of elements of %s", a.usage, tile.describe(x), tile.shape_text(shape))
  end
  return c.b:reshape(x, shape)
end)
of_shape("flatten ravel", "x", function(c, _, x) return c.b:reshape(x, { tile.numel(x.shape) }) end)
of_shape("trans t", "x", function(c, a, x)
  if #x.shape ~= 2 then c:fail("%s takes a block of two dimensions, got %s; tl.permute(x, { … })", a.usage,
    tile.describe(x)) end
  return c.b:permute(x, { 2, 1 })
end)
of_shape("permute", "x shape", function(c, a, x)
  local dims, seen = shape_of(c, a, "shape"), {}
  for _, d in ipairs(dims) do seen[d] = true end
  for d = 1, math.max(#dims, #x.shape) do
    if not seen[d] or #dims ~= #x.shape then
      c:fail("%s: { %s } is no order of the dimensions of %s", a.usage, table.concat(dims, ", "), tile.describe(x))
    end
  end
  return c.b:permute(x, dims)
end)

-- ---- reductions, scans, products ----------------------------------------------------------------

for _, kind in ipairs { "sum", "prod", "max", "min", "argmax", "argmin", "any", "all" } do
  define(kind, "x dim? keepdim?", function(c, a)
    local x = c:node(a.x)
    if #x.shape == 0 then c:fail("%s takes a block, got %s", a.usage, tile.describe(x)) end
    local dim = dimension(c, a, x)
    if kind:find("^arg") and not dim then
      if #x.shape > 1 then c:fail("%s: say which dimension of %s", a.usage, tile.describe(x)) end
      dim = 1
    end
    local y = c.b:reduce(kind, x, dim)
    if flag(c, a, "keepdim") then
      if not dim then c:fail("%s: keepdim needs a dim", a.usage) end
      y = c.b:expand(y, dim)
    end
    return of_node(y)
  end)
end
for name, kind in each { cumsum = "sum", cumprod = "prod", cummax = "max", cummin = "min" } do
  define(name, "x dim? | reverse?", function(c, a)
    local x = c:node(a.x)
    if #x.shape == 0 then c:fail("%s takes a block, got %s", a.usage, tile.describe(x)) end
    return of_node(c.b:scan(kind, x, dimension(c, a, x, 1), flag(c, a, "reverse")))
  end)
end
-- Element i of p along a dimension of that size, which goes. A maximum with what is below all keeps NaN and -0.
local function pick(c, x, i, p, dim)
  local at = c.b:pure { op = "arange", lo = 0, d = dtypes.int64, shape = { p } }
  for _ = dim + 1, #x.shape do at = c.b:expand(at, #at.shape + 1) end
  local here = c.b:binary("eq", at, c.b:const(i))
  if x.d.class == "bool" then return c.b:reduce("any", c.b:where(here, x, c.b:const(false)), dim) end
  local kind, rest = "sum", 0
  if x.d.is_float then kind, rest = "max", -math.huge end
  return c.b:reduce(kind, c.b:where(here, x, c.b:const(rest, x.d)), dim)
end

-- Neighbours are joined by a function of the program, again and again, so that it need not be commutative.
define("reduce", "x dim combine keepdim?", function(c, a)
  local given = a.x.k == "table" and a.x.t or { a.x }
  local list, n = {}, #given
  for i = 1, n do
    list[i] = c:node(given[i])
    local d = tile.computed(list[i].d)
    list[i] = c.b:cast(list[i], d)
    if #list[i].shape == 0 or not tile.same(list[i].shape, list[1].shape) then
      c:fail("%s takes a block, or blocks of one shape, got %s", a.usage, tile.describe(list[i]))
    end
  end
  if n == 0 then c:fail("%s takes a block, or a list of blocks", a.usage) end
  if a.combine.k ~= "fn" then
    c:fail("%s: 'combine' is a function of %d values that returns %d", a.usage, 2 * n, n)
  end
  local dim = dimension(c, a, list[1])
  local left = list[1].shape[dim]
  while left > 1 do
    local p = 2
    while left % p > 0 do p = p + 1 end
    if p > 61 then c:fail("%s: a dimension of %d: use one with small divisors, as a power of 2", a.usage, left) end
    local shape = { unpack(list[1].shape) }
    shape[dim] = left / p
    table.insert(shape, dim + 1, p)
    left = left / p
    local joined
    for i = 0, p - 1 do
      local values = {}
      for k, x in ipairs(list) do values[k] = of_node(pick(c, c.b:reshape(x, shape), i, p, dim + 1)) end
      if joined then
        local args = { unpack(joined) }
        for k = 1, n do args[n + k] = values[k] end
        values = c:call(c.frame, a.combine, args, 2 * n)
        for k = 1, n do
          if not values[k] then c:fail("%s: 'combine' returns %d values, not %d", a.usage, #values, n) end
          local y = c.b:cast(c:node(values[k]), list[k].d)
          values[k] = of_node(c.b:broadcast(y, joined[k].node.shape))
        end
      end
      joined = values
    end
    for k = 1, n do list[k] = joined[k].node end
  end
  for k, x in ipairs(list) do -- a dimension of 1 is left
    local shape = { unpack(x.shape) }
    if not flag(c, a, "keepdim") then table.remove(shape, dim) end
    local all = x.d.class == "bool" and "any" or x.d.is_float and "max" or "sum"
    list[k] = of_node(#shape > 0 and c.b:reshape(x, shape) or c.b:reduce(all, x, dim))
  end
  return n == 1 and list[1] or { k = "values", list = list }
end)
define("dot", "a b acc?", function(c, a)
  local x, y, acc = c:node(a.a), c:node(a.b), maybe(c, a.acc)
  if #x.shape ~= 2 or #y.shape ~= 2 or x.shape[2] ~= y.shape[1] then
    c:fail("%s: expected blocks [M, K] and [K, N], got %s and %s", a.usage, tile.describe(x), tile.describe(y))
  end
  return of_node(c.b:dot(x, y, acc))
end)

-- ---- random numbers -----------------------------------------------------------------------------

for name, d in each { rand = dtypes.float32, randn = dtypes.float32, randint = dtypes.int64 } do
  define(name, "seed offset", function(c, a)
    local seed, offset = c:node(a.seed), c:node(a.offset)
    for _, x in ipairs { seed, offset } do
      if x.d.is_float then c:fail("%s needs integers, got %s", a.usage, tile.describe(x)) end
    end
    return of_node(c.b:random(name .. "_at", d, seed, offset))
  end)
end

-- ---- at compile time ----------------------------------------------------------------------------

define("static_range", "start stop step?", function(c, a)
  local from, to, step = integer(c, a, "start"), integer(c, a, "stop"), integer(c, a, "step", 1)
  if step == 0 then c:fail("%s: a step of 0", a.usage) end
  return { k = "range", from = from, to = to, step = step }
end)
define("static_assert", "condition message?", function(c, a)
  local v = c:truth(a.condition)
  if type(v) ~= "boolean" then c:fail("%s: the condition is no constant of the kernel", a.usage) end
  if not v then c:fail("%s", a.message and tostring(a.message.v) or "static_assert failed") end
end)
define("multiple_of max_contiguous assume", "x hint?", function(_, a) return a.x end)

for _, d in ipairs(dtypes) do
  tl[d.name] = B.dtype(d.name)
end

-- ---- what kernels find by name ------------------------------------------------------------------

local of_dtype = setmetatable({}, { __mode = "k" })
--- The record of a dtype of moth's, or nil.
function M.dtype(v)
  if v ~= nil and not of_dtype[v] and B.is_dtype(v) then of_dtype[v] = dtypes[v.name] end
  return v ~= nil and of_dtype[v] or nil
end

for name, f in each { exp = "exp", log = "log", log10 = "log10", sin = "sin", cos = "cos", tan = "tan", asin = "asin",
  acos = "acos", atan = "atan", atan2 = "atan2", sqrt = "sqrt", sinh = "sinh", cosh = "cosh", tanh = "tanh",
  floor = "floor", ceil = "ceil", abs = "abs", fmod = "fmod", pow = "pow", max = "maximum", min = "minimum" } do
  M.names[math[name]] = f
end
M.modules[math], M.modules[tl] = "math", "tl"
M.globals = { math = math }

--- A field of one of the modules.
function M.field(t, key) return rawget(t, key) or (t ~= math and t ~= tl and t[key] or nil) end
function M.suggest(t, key)
  local names = {}
  for name in each(t) do names[#names + 1] = name end
  return check.suggest(key, names)
end
function M.suggest_method(key)
  local names = {}
  for name in each(M.builders) do names[#names + 1] = name end
  return check.suggest(key, names)
end
function M.describe(v) return B.is_tensor(v) and "a tensor" or "a " .. type(v) end

return M
