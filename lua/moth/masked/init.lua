--- moth.masked: reductions of the elements where a mask is true: moth.masked.sum(x, 2, { mask = m }). What is masked
-- out counts as the identity of the reduction; without a mask all elements count.
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local ops = B.ops

local M = {}
local inf = math.huge

local function mask_of(name, x, mask)
  if mask == nil then return nil end
  if B.tensor_dtype(mask).name ~= "bool" then check.fail("[%s] mask must be bool, got %s", name, B.format(mask)) end
  return ops.expand(mask, B.size(x))
end
local function converted(x, dtype) return dtype and ops.to(x, { dtype = dtype }) or x end
-- x with an identity where the mask is false.
local function filled(x, mask, identity)
  if not mask then return x end
  local kind = B.tensor_dtype(x)
  if math.abs(identity) == inf and not kind.is_floating_point and not kind.is_complex then
    local limits = require("moth.tensor").iinfo(kind)
    identity = identity > 0 and limits.max or limits.min
    if limits.bits == 64 then identity = identity > 0 and 0x7fffffffffffffffLL or -0x7fffffffffffffffLL - 1LL end
  end
  return ops.where(mask, x, ops.full({}, identity, { dtype = kind, device = B.tensor_device(x) }))
end
local function list(dim) return type(dim) == "number" and { dim } or dim end
local function count(x, mask, dim, keepdim)
  mask = mask or ops.ones_like(x, { dtype = "bool" })
  return ops.sum(mask, dim, keepdim)
end

-- Reductions over dims: the op of x with the identity filled in.
local function reduction(name, identity, op)
  --- The reduction of this name over dim (without it all dimensions) of the elements where mask is true.
  M[name] = signature(name .. "(Tensor input, Dim|Dim[] dim?, *, bool keepdim=false, dtype dtype?, Tensor mask?)",
    function(x, dim, keepdim, dtype, mask)
      x = converted(x, dtype)
      return (op(filled(x, mask_of(name, x, mask), identity), list(dim), keepdim))
    end)
end
reduction("sum", 0, ops.sum)
reduction("prod", 1, ops.prod)
reduction("amax", -inf, ops.amax)
reduction("amin", inf, ops.amin)
reduction("logsumexp", -inf, function(x, dim, keepdim)
  local kind = B.tensor_dtype(x)
  if not kind.is_floating_point and not kind.is_complex then x = ops.to(x, { dtype = B.default_dtype() }) end
  local logsumexp = require("moth.tensor").methods.logsumexp -- complex numbers, too
  if not dim then
    dim = {}
    for d = 1, B.dim(x) do dim[d] = d end
  end
  return logsumexp(x, dim, keepdim)
end)

-- Of one dimension, in the shape of input.
local function along(name, identity, op)
  --- The op of this name along dim, in the shape of input; where mask is false elements count as the op's identity.
  M[name] = signature(name .. "(Tensor input, Dim dim, *, dtype dtype?, Tensor mask?)", function(x, dim, dtype, mask)
    x = converted(x, dtype)
    return (op(filled(x, mask_of(name, x, mask), identity), dim))
  end)
end
local function same_dtype(op) -- sums of integers, too, keep their dtype
  return function(x, dim) return ops.to(op(x, dim), { dtype = B.tensor_dtype(x) }) end
end
along("cumsum", 0, same_dtype(ops.cumsum))
along("cumprod", 1, same_dtype(ops.cumprod))
along("softmax", -inf, ops.softmax)
along("log_softmax", -inf, ops.log_softmax)
along("softmin", inf, function(x, dim) return ops.softmax(ops.neg(x), dim) end)

local function position(name, identity, op)
  --- The position, from 1, of the largest or smallest element where mask is true.
  M[name] = signature(name .. "(Tensor input, Dim dim?, *, bool keepdim=false, dtype dtype?, Tensor mask?)",
    function(x, dim, keepdim, dtype, mask)
      x = converted(x, dtype)
      return (op(filled(x, mask_of(name, x, mask), identity), dim, keepdim))
    end)
end
position("argmax", -inf, ops.argmax)
position("argmin", inf, ops.argmin)

local function as_float(x)
  local d = B.tensor_dtype(x)
  return (d.is_floating_point or d.is_complex) and x or ops.to(x, { dtype = B.default_dtype() })
end
--- The mean of what the mask leaves; NaN where it leaves nothing.
M.mean = signature("mean(Tensor input, Dim|Dim[] dim?, *, bool keepdim=false, dtype dtype?, Tensor mask?)",
  function(x, dim, keepdim, dtype, mask)
    x, mask = as_float(converted(x, dtype)), mask_of("mean", x, mask)
    return (ops.div(ops.sum(filled(x, mask, 0), list(dim), keepdim), count(x, mask, list(dim), keepdim)))
  end)

local function variance(x, dim, correction, keepdim, mask)
  x, dim = as_float(x), list(dim)
  local n = count(x, mask, dim, true)
  local mean = ops.div(ops.sum(filled(x, mask, 0), dim, true), n)
  local off = ops.sub(x, mean)
  if B.tensor_dtype(x).is_complex then off = ops.abs(off) end
  local squares = filled(ops.square(off), mask, 0)
  local total = ops.sum(squares, dim, keepdim)
  if not keepdim then n = ops.reshape(n, B.size(total)) end
  return ops.div(total, ops.clamp(ops.sub(n, correction), 0))
end
for _, name in ipairs({ "var", "std" }) do
  --- Variance or standard deviation of what the mask leaves; correction: what is taken from the count (unbiased: 1).
  M[name] = signature(name .. "(Tensor input, Dim|Dim[] dim?, bool unbiased?, *, number correction=1, \z
    bool keepdim=false, dtype dtype?, Tensor mask?)", function(x, dim, unbiased, correction, keepdim, dtype, mask)
    if unbiased ~= nil then correction = unbiased and 1 or 0 end
    local v = variance(converted(x, dtype), dim, correction, keepdim, mask_of(name, x, mask))
    return name == "std" and ops.sqrt(v) or v
  end)
end

local function norm(x, ord, dim, keepdim, mask)
  return ops.norm(filled(x, mask, ord < 0 and inf or 0), ord, dim, keepdim)
end
--- The norm of order ord of what the mask leaves.
M.norm = signature("norm(Tensor input, number ord=2, Dim|Dim[] dim?, *, bool keepdim=false, dtype dtype?, \z
  Tensor mask?)",
  function(x, ord, dim, keepdim, dtype, mask)
    x = converted(x, dtype)
    return (norm(x, ord, list(dim), keepdim, mask_of("norm", x, mask)))
  end)
--- input over its norm along dim (eps at least), both of what the mask leaves.
M.normalize = signature("normalize(Tensor input, number ord, Dim dim, *, number eps=1e-12, dtype dtype?, \z
  Tensor mask?)",
  function(x, ord, dim, eps, dtype, mask)
    x, mask = converted(x, dtype), mask_of("normalize", x, mask)
    return (ops.div(filled(x, mask, 0), ops.clamp(norm(x, ord, { dim }, true, mask), eps)))
  end)
--- The median along dim of what the mask leaves; NaN elements count as masked out, too.
M.median = signature("median(Tensor input, Dim dim=-1, *, bool keepdim=false, dtype dtype?, Tensor mask?)",
  function(x, dim, keepdim, dtype, mask)
    x = converted(x, dtype)
    if not B.tensor_dtype(x).is_floating_point then check.fail("[median] expected floats, got %s", B.format(x)) end
    local nanmedian = require("moth.tensor.functions").functions.nanmedian
    return (nanmedian(filled(x, mask_of("median", x, mask), 0 / 0), dim, keepdim))
  end)
--- log(exp(input) + exp(other)), each with a mask of its own.
M.logaddexp = signature("logaddexp(Tensor input, Tensor other, *, dtype dtype?, Tensor input_mask?, \z
  Tensor other_mask?)",
  function(x, y, dtype, mask, other_mask)
    x, y = converted(x, dtype), converted(y, dtype)
    return (ops.logaddexp(filled(x, mask_of("logaddexp", x, mask), -inf),
      filled(y, mask_of("logaddexp", y, other_mask), -inf)))
  end)

return M
