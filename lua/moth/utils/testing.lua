--- For specs: comparing tensors, making them. `moth.testing`.
local B = require "moth_lua"
local tensor = require "moth.tensor"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local ops = B.ops
local M = {}

--- rtol and atol by dtype: |actual - expected| <= atol + rtol * |expected|. Integers and bool must be equal.
M.tolerance = tensor.tolerance

local function shape_text(t) return "[" .. table.concat(B.size(t), ", ") .. "]" end

local function plain(x, dtype, what)
  if not B.is_tensor(x) then
    local kind = type(x)
    if kind ~= "number" and kind ~= "boolean" and kind ~= "table" then
      check.fail("[assert_close] %s must be a tensor, a number or a table, got %s", what, kind)
    end
    return B.tensor(x, dtype or kind == "number" and "float64" or nil) -- a number of Lua's beside another
  end
  if B.is_fake(x) then check.fail("[assert_close] %s is fake and has no values", what) end
  x = B.alias(x, false)
  if tostring(B.tensor_device(x)) ~= "cpu" then x = ops.to(x, { device = "cpu" }) end
  return x
end

--- "[2, 3]": the position of the k-th element (from 1) of a shape.
function M.coordinates(shape, k)
  local at = {}
  k = k - 1
  for d = #shape, 1, -1 do
    at[d] = k % shape[d] + 1
    k = math.floor(k / shape[d])
  end
  return "[" .. table.concat(at, ", ") .. "]"
end

local function element(t, k) return tostring(tensor.methods.item(ops.select(ops.reshape(t, { -1 }), 1, k))) end

-- The largest element of x (float64, NaN counts as infinite) and its position.
local function largest(x)
  local flat = ops.reshape(x, { -1 })
  flat = ops.masked_fill(flat, ops.isnan(flat), math.huge)
  local k = B.item(ops.argmax(flat))
  return B.item(ops.select(flat, 1, k)), k
end

-- True, or false and a message. Values that cannot be compared are an error.
local function compare(actual, expected, options)
  local function other_dtype(x) return B.is_tensor(x) and B.tensor_dtype(x) or nil end
  local a = plain(actual, other_dtype(expected), "the first argument")
  local b = plain(expected, other_dtype(actual), "the second argument")
  local function differ(text) return false, (options.message and options.message .. "\n" or "") .. text end
  if shape_text(a) ~= shape_text(b) then
    return differ(("the shapes are not equal: %s and %s"):format(shape_text(a), shape_text(b)))
  end
  local da, db = B.tensor_dtype(a).name, B.tensor_dtype(b).name
  if options.check_dtype ~= false and da ~= db then
    return differ(("the dtypes are not equal: %s and %s"):format(da, db))
  end
  if (options.rtol == nil) ~= (options.atol == nil) then
    check.fail("[assert_close] give rtol and atol both, or neither")
  end
  local rtol, atol = options.rtol, options.atol
  if not rtol then
    rtol, atol = 0, 0
    for _, d in ipairs { da, db } do -- the wider one of two
      local t = tensor.tolerance[d]
      if t then rtol, atol = math.max(rtol, t[1]), math.max(atol, t[2]) end
    end
  end
  local n = B.numel(a)
  if n == 0 then return true end
  local x, y = ops.to(a, { dtype = "float64" }), ops.to(b, { dtype = "float64" })
  local equal = ops.eq(a, b) -- compared in their own dtype: int64 beyond 2^53, infinities
  local difference = ops.abs(ops.sub(x, y))
  local fine = equal
  if rtol > 0 or atol > 0 then
    local close = ops.le(difference, ops.add(ops.mul(ops.abs(y), rtol), atol))
    fine = ops.logical_or(fine, ops.logical_and(close, ops.logical_and(ops.isfinite(x), ops.isfinite(y))))
  end
  if options.equal_nan then fine = ops.logical_or(fine, ops.logical_and(ops.isnan(x), ops.isnan(y))) end
  if B.item(ops.all(fine)) then return true end
  local wrong = ops.logical_not(fine)
  local count = B.item(ops.sum(wrong))
  local absolute = ops.where(wrong, difference, 0.0)
  local relative = ops.where(wrong, ops.div(difference, ops.abs(y)), 0.0)
  local most, at = largest(absolute)
  local ratio, ratio_at = largest(relative)
  return differ(("tensors are not close\n%d of %d elements differ (%.1f %%)\n"
    .. "greatest absolute difference: %.6g at %s (up to %.3g allowed): %s against %s\n"
    .. "greatest relative difference: %.6g at %s (up to %.3g allowed)"):format(count, n, 100 * count / n, most,
    M.coordinates(B.size(a), at), atol, element(a, at), element(b, at), ratio, M.coordinates(B.size(a), ratio_at),
    rtol))
end

--- Raises an error unless two tensors (or numbers, tables) have one shape and dtype and close elements.
-- options: rtol, atol (both or neither; else by dtype), equal_nan (false), check_dtype (true), message.
-- The error has the number of different elements, and the greatest absolute and relative difference with their indices.
-- Under busted it is also assert.is_close(actual, expected, options) and assert.is_not_close.
function M.assert_close(actual, expected, options)
  local ok, message = compare(actual, expected, options)
  if not ok then check.fail("%s", message) end
  return true
end

--- A tensor of random numbers that depends on nothing but its arguments: make_tensor({2, 3}, moth.float32, seed).
-- Floats lie in [low, high) (-9 to 9), integers are integral (-9 to 9; unsigned 0 to 9), bool is either.
-- options: low, high, requires_grad, noncontiguous (every second element of a larger tensor), exclude_zero.
function M.make_tensor(shape, dtype, seed, options)
  dtype = B.dtype(dtype or B.default_dtype())
  local name, float = dtype.name, dtype.is_floating_point
  local low, high = options.low or (name == "uint8" and 0 or -9), options.high or (float and 9 or 10)
  local g = B.generator(seed)
  local sizes = { unpack(shape) }
  local step = options.noncontiguous and #sizes > 0 and 2 or 1
  if step == 2 then sizes[#sizes] = 2 * sizes[#sizes] end
  local t
  if name == "bool" then
    t = ops.to(ops.randint(0, 2, sizes, { generator = g }), { dtype = dtype })
  elseif float then
    t = ops.rand(sizes, { dtype = "float64", generator = g })
    t = ops.to(ops.add(ops.mul(t, high - low), low), { dtype = dtype })
  else
    t = ops.to(ops.randint(low, high, sizes, { generator = g }), { dtype = dtype })
  end
  if options.exclude_zero then t = ops.masked_fill(t, ops.eq(t, 0), name == "bool" and true or 1) end
  if step == 2 then t = ops.slice(t, #sizes, 0, sizes[#sizes], 2) end
  if options.requires_grad then B.set_requires_grad(t, true) end
  return t
end

-- For busted, whose assertions are luassert's: assert.is_close, assert.is_not_close.
local luassert = package.loaded.luassert
if type(luassert) == "table" and luassert.register then
  require("say"):set("assertion.close.negative", "Expected tensors that are not close, got\n%s\nand\n%s")
  luassert:register("assertion", "close", function(state, arguments)
    local ok, message = compare(arguments[1], arguments[2], check.options("assert.is_close", arguments[3],
      "rtol atol equal_nan check_dtype message"))
    if not ok then state.failure_message = message end
    return ok
  end, "assertion.close.negative", "assertion.close.negative")
end

return signature.all(M, { "testing.coordinates(size[] shape, count k)",
  "testing.assert_close(any actual, any expected, *, number rtol?, number atol?, bool equal_nan=false, \z
    bool check_dtype=true, string message?)",
  "testing.make_tensor(size[] shape, dtype dtype?, size seed=42, *, number low?, number high?, \z
    bool requires_grad=false, bool noncontiguous=false, bool exclude_zero=false)" }, true)
