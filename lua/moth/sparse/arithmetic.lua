--- Methods of sparse tensors: functions of elements, + - * /. Their results are sparse where all other elements stay 0;
-- + and - with a dense tensor are dense, and the rest is an error.
local B = require "moth_lua"
local class = require "moth.class"
local check = require "moth.utils.check"
local T = require "moth.sparse.tensor"
local Pattern = require "moth.sparse.pattern"
local ops = B.ops
local Sparse, methods, is_sparse, method, new, with = T.SparseTensor, T.methods, T.is_sparse, T.method, T.new, T.with

-- Functions whose value at 0 is 0.
for name in ([[abs neg sign sgn sqrt square sin sinh asin asinh tan tanh atan atanh expm1 log1p floor ceil trunc round
  relu erf erfinv deg2rad rad2deg conj real imag isnan isinf]]):gmatch("%S+") do
  method(name .. "()", function(s)
    s = s:coalesce()
    return with(s, ops[name](s.elements))
  end)
end
methods.negative, methods.absolute = methods.neg, methods.abs

local function same_size(name, a, b)
  if tostring(a:size()) ~= tostring(b:size()) then
    check.fail("[%s] sparse tensors are not broadcast: the sizes are %s and %s", name, tostring(a:size()),
      tostring(b:size()))
  end
  if #a.pattern.size ~= #b.pattern.size then
    check.fail("[%s] the tensors have %d and %d sparse dimensions", name, #a.pattern.size, #b.pattern.size)
  end
end

local function no_number(name, v)
  if T.is_number(v) then
    check.fail("[%s] a sparse tensor and a number make a dense one: use s:to_dense()", name)
  end
end
-- a + alpha b
local function add(name, a, b, alpha)
  no_number(name, a)
  no_number(name, b)
  if not is_sparse(a) or not is_sparse(b) then
    local x = is_sparse(a) and a:to_dense() or a
    return (ops.add(x, is_sparse(b) and b:to_dense() or b, alpha))
  end
  same_size(name, a, b)
  local right = alpha == 1 and b.elements or ops.mul(b.elements, alpha)
  if a.pattern == b.pattern then return with(a, ops.add(a.elements, right)) end
  local p = Pattern("coo", a.pattern.size, ops.cat({ a.pattern:indices(), b.pattern:indices() }, 2))
  local dtype = B.promote(a:dtype(), B.tensor_dtype(right))
  local values = ops.cat({ ops.to(a.elements, { dtype = dtype }), ops.to(right, { dtype = dtype }) }, 1)
  return T.as(new(p, values, a.full):coalesce(), a)
end
method("add(Sparse|Tensor|number other, number|complex alpha=1)",
  function(a, b, alpha) return add("add", a, b, alpha) end)
method("sub(Sparse|Tensor|number other, number|complex alpha=1)",
  function(a, b, alpha) return add("sub", a, b, -alpha) end)
function T.reversed.add(a, b, alpha) return add("add", a, b, alpha or 1) end
function T.reversed.sub(a, b, alpha) return add("sub", a, b, -(alpha or 1)) end
-- x:add_(s): only the rows of s change.
local function add_to(x, s, alpha)
  if tostring(x:size()) ~= tostring(s:size()) then
    check.fail("[add_] the sizes differ: %s and %s", tostring(x:size()), tostring(s:size()))
  end
  local values = alpha == 1 and s.elements or ops.mul(s.elements, alpha)
  if not B.is_contiguous(x) then return (ops.add_(x, new(s.pattern, values, s.full):to_dense())) end
  local rows = ops.view(x, T.behind(Pattern.total(s.pattern.size), T.dense_size(s)))
  ops.index_add_(rows, 1, s.pattern:flat(), ops.to(values, { dtype = B.tensor_dtype(x) }))
  return x
end
function T.reversed.add_(x, s, alpha) return add_to(x, s, alpha or 1) end
function T.reversed.sub_(x, s, alpha) return add_to(x, s, -(alpha or 1)) end

-- The products of elements that both have.
local function common(a, b)
  same_size("mul", a, b)
  if a.pattern == b.pattern and a.pattern:is_sorted() then return with(a, ops.mul(a.elements, b.elements)) end
  local like = a
  a, b = a:to_sparse_coo():coalesce(), b:to_sparse_coo():coalesce()
  local x, y = a.pattern:flat(), b.pattern:flat()
  local n = B.numel(y)
  local found, at
  if n == 0 then
    found = ops.zeros({ 0 }, { dtype = "int64", device = a:device() })
    at = found
  else
    at = ops.clamp(ops.searchsorted(y, x), nil, n)
    found = ops.reshape(ops.nonzero(ops.eq(ops.index_select(y, 1, at), x)), { -1 })
    at = ops.index_select(at, 1, found)
  end
  local p = Pattern("coo", a.pattern.size, ops.index_select(a.pattern:indices(), 2, found))
  p.sorted = true
  local values = ops.mul(ops.index_select(a.elements, 1, found), ops.index_select(b.elements, 1, at))
  return T.as(new(p, values, a.full), like)
end
local function scalar(v) return T.is_number(v) or B.is_tensor(v) and B.dim(v) == 0 end
-- The elements of a dense tensor, broadcast to the size of s, at its places.
local function elements_of(name, s, x)
  if B.dim(x) > #s.full then
    check.fail("[%s] a sparse tensor of %d dimensions and a dense one of %d", name, #s.full, B.dim(x))
  end
  return T.at_places(name, ops.expand(x, s.full), s)
end
local function mul(a, b)
  if not is_sparse(a) then a, b = b, a end
  if scalar(b) then return with(a, ops.mul(a.elements, b)) end
  if is_sparse(b) then return common(a, b) end
  return with(a, ops.mul(a.elements, elements_of("mul", a, b)))
end
local function div(a, b)
  if not is_sparse(a) or is_sparse(b) then
    check.fail("[div] a sparse tensor cannot be a divisor: most of its elements are 0; use s:to_dense()")
  end
  return with(a, ops.div(a.elements, scalar(b) and b or elements_of("div", a, b)))
end
method("mul(Sparse|Tensor|number|complex other)", mul)
method("div(Sparse|Tensor|number|complex other)", div)
T.reversed.mul, T.reversed.div = mul, div
method("pow(number exponent)", function(s, e)
  if e <= 0 then check.fail("[pow] 0 to the power of %g is not 0; use s:to_dense():pow(%g)", e, e) end
  s = s:coalesce()
  return with(s, ops.pow(s.elements, e))
end)

local function operator(key, name, fn)
  Sparse[key] = function(a, b)
    for _, v in ipairs({ a, b }) do
      if not (is_sparse(v) or B.is_tensor(v) or T.is_number(v)) then
        check.fail("[%s] expected a tensor or a number, got %s", name, class.name(v))
      end
    end
    return (fn(a, b))
  end
end
operator("__add", "add", function(a, b) return (add("add", a, b, 1)) end)
operator("__sub", "sub", function(a, b) return (add("sub", a, b, -1)) end)
operator("__mul", "mul", mul)
operator("__div", "div", div)
function Sparse.__pow(a, b)
  if not is_sparse(a) then check.fail("[pow] a sparse exponent: use s:to_dense()") end
  return (a:pow(b))
end
function Sparse.__unm(a) return a:neg() end
