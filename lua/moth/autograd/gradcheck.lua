--- Gradients against finite differences: gradcheck and gradgradcheck (also moth.autograd.gradcheck).
-- Inputs are float64: in lower precision differences are mostly rounding.
local ffi = require "ffi"
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local ops = B.ops
local M = {}

local is_tensor = B.is_tensor

local function pack(...) return { n = select("#", ...), ... } end

local function is_float(x) return B.tensor_dtype(x).is_floating_point end

local coordinates = require("moth.utils.testing").coordinates

-- A copy of the elements as a C array, and their number.
local function values(t)
  local flat = ops.to(B.alias(t, false), { dtype = "float64", device = "cpu" })
  if not B.is_contiguous(flat) then flat = ops.clone(flat) end
  local n = B.numel(flat)
  local copy = ffi.new("double[?]", n)
  ffi.copy(copy, B.pointer(flat), n * 8)
  return copy, n, flat -- flat is returned to keep it alive until here
end

-- The elements of a float64 tensor for writes below autograd: their row-major values on the host (on the CPU the
-- tensor's own), and a function that copies them to the tensor.
local function writable(t)
  if B.tensor_device(t).type == "cpu" then return ffi.cast("double*", B.pointer(t)), function() end end
  local host, here = ops.to(B.alias(t, false), { device = "cpu" }), B.alias(t, false)
  return ffi.cast("double*", B.pointer(host)), function() ops.copy_(here, host) end
end

-- The outputs of fn that have derivatives, in order.
local function outputs_of(fn, inputs)
  local results, out = pack(fn(unpack(inputs, 1, inputs.n))), {}
  for i = 1, results.n do
    if is_tensor(results[i]) and is_float(results[i]) then out[#out + 1] = { tensor = results[i], place = i } end
  end
  return out
end

-- Row o of the Jacobian of `out` by all checked inputs: one pointer (nil: zeros) per input.
local function row(out, o, checked)
  local seed = ops.zeros_like(B.alias(out.tensor, false))
  local p, put = writable(seed)
  p[o - 1] = 1
  put()
  local list = {}
  for i, c in ipairs(checked) do list[i] = c.tensor end
  local grads = pack(require("moth.autograd").collect({ out.tensor }, list, { seed }, true, false, true))
  local rows = {}
  for i = 1, #checked do
    if grads[i] ~= nil then
      local found, count = values(grads[i])
      rows[i] = { p = found, n = count }
    end
  end
  return rows
end

-- fn with pairs of floats in place of complex inputs and results: its gradient by both parts is, together, the complex
-- one of PyTorch's convention, and its differences are those along 1 and i.
local function in_parts(fn, inputs)
  if is_tensor(inputs) then inputs = { inputs } end
  local n = inputs.n or #inputs
  local list, complex = { n = n }, {}
  for i = 1, n do
    local x = inputs[i]
    list[i] = x
    if is_tensor(x) and B.tensor_dtype(x).is_complex and B.requires_grad(x) then
      list[i] = B.set_requires_grad(ops.clone(ops.view_as_real(B.alias(x, false))), true)
      complex[i] = true
    end
  end
  local function parts(y)
    return is_tensor(y) and B.tensor_dtype(y).is_complex and ops.view_as_real(y) or y
  end
  local function wrapped(first, ...)
    if select("#", ...) == 0 then return parts(first) end
    local results = { first, ... }
    for i = 1, select("#", ...) + 1 do results[i] = parts(results[i]) end
    return unpack(results, 1, select("#", ...) + 1)
  end
  return function(...)
    local args = { ... }
    for i in each(complex) do args[i] = ops.view_as_complex(args[i]) end
    return wrapped(fn(unpack(args, 1, math.max(n, select("#", ...)))))
  end, list
end

local function compare(name, fn, inputs, eps, atol, rtol, repeats)
  if is_tensor(inputs) then inputs = { inputs } end
  local n = inputs.n or #inputs
  local analytic, checked = { n = n }, {}
  for i = 1, n do
    analytic[i] = inputs[i]
    if is_tensor(inputs[i]) and B.requires_grad(inputs[i]) then
      if B.tensor_dtype(inputs[i]).name ~= "float64" then
        check.fail("[%s] input %d is %s; differences need float64", name, i, B.tensor_dtype(inputs[i]).name)
      end
      checked[#checked + 1] = { tensor = inputs[i], place = i }
    end
  end
  if #checked == 0 then check.fail("[%s] no input requires grad", name) end

  -- by autograd
  local outs = outputs_of(fn, analytic)
  local jacobian = {}
  for o, out in ipairs(outs) do
    if B.tensor_dtype(out.tensor).name ~= "float64" then
      check.fail("[%s] output %d is %s; differences need float64", name, out.place, B.tensor_dtype(out.tensor).name)
    end
    jacobian[o] = {}
    if B.requires_grad(out.tensor) then
      for k = 1, B.numel(out.tensor) do jacobian[o][k] = row(out, k, checked) end
    end
  end

  -- a second run must give the same bits
  if repeats then
    local again = outputs_of(fn, analytic)
    for o, out in ipairs(again) do
      local a, na = values(out.tensor)
      local b, nb = values(outs[o].tensor)
      if na ~= nb or ffi.string(a, na * 8) ~= ffi.string(b, nb * 8) then
        check.fail("[%s] output %d is not the same on a second run", name, out.place)
      end
      if B.requires_grad(out.tensor) and na > 0 then
        for i, g in each(row(out, na, checked)) do
          local first = jacobian[o][na][i]
          if not first or ffi.string(g.p, g.n * 8) ~= ffi.string(first.p, first.n * 8) then
            check.fail("[%s] the gradient of input %d is not the same on a second run", name, checked[i].place)
          end
        end
      end
    end
  end

  -- by differences: every input gets a copy, which is changed below autograd
  local numeric = { n = n }
  for i = 1, n do numeric[i] = inputs[i] end
  for _, c in ipairs(checked) do
    local copy = ops.clone(B.alias(c.tensor, false))
    numeric[c.place] = B.set_requires_grad(copy, true)
    c.copy = copy
  end
  local function run()
    local list = outputs_of(fn, numeric)
    for o, out in ipairs(list) do list[o] = values(out.tensor) end
    return list
  end
  for i, c in ipairs(checked) do
    local x, put = writable(c.copy)
    local shape = B.size(c.copy)
    for o, out in ipairs(outs) do
      local first = jacobian[o][1] and jacobian[o][1][i]
      if first and first.n ~= B.numel(c.tensor) then
        check.fail("[%s] the gradient of input %d by output %d has %d elements, the input %d", name, c.place,
          out.place, first.n,
          B.numel(c.tensor))
      end
    end
    for k = 1, B.numel(c.copy) do
      local was = x[k - 1]
      x[k - 1] = was + eps
      put()
      local high = run()
      x[k - 1] = was - eps
      put()
      local low = run()
      x[k - 1] = was
      put()
      for o, out in ipairs(outs) do
        local rows = jacobian[o]
        for m = 1, B.numel(out.tensor) do
          local want = (high[o][m - 1] - low[o][m - 1]) / (2 * eps)
          local g = rows[m] and rows[m][i]
          local got = g and g.p[k - 1] or 0
          if not (math.abs(got - want) <= atol + rtol * math.abs(want)) then -- luacheck: ignore 581 (NaN)
            check.fail("[%s] the derivative of output %d%s by input %d%s is %.9g by autograd, %.9g by differences",
              name,
              out.place, coordinates(B.size(out.tensor), m), c.place, coordinates(shape, k), got, want)
          end
        end
      end
    end
  end
  return true
end

--- Compares the gradients of fn(inputs…) by autograd with central differences, element by element.
-- inputs: a table of float64 and complex128 tensors (those that require grad are checked; other values are passed on).
-- eps (1e-6), atol (1e-5), rtol (1e-3), repeats (true: a second run must give the same bits).
-- Returns true; an error names output, input, element and both values.
function M.gradcheck(fn, inputs, eps, atol, rtol, repeats)
  fn, inputs = in_parts(fn, inputs)
  return compare("gradcheck", fn, inputs, eps, atol, rtol, repeats)
end

--- The same for the gradients of fn: their derivatives by the inputs and by the incoming gradients.
function M.gradgradcheck(fn, inputs, eps, atol, rtol, repeats)
  fn, inputs = in_parts(fn, inputs)
  local n = inputs.n or #inputs
  local places, all = {}, { n = n }
  for i = 1, n do
    all[i] = inputs[i]
    if is_tensor(inputs[i]) and B.requires_grad(inputs[i]) then places[#places + 1] = i end
  end
  -- incoming gradients: fixed numbers without a pattern
  local outs, seeds = outputs_of(fn, all), 0
  for o, out in ipairs(outs) do
    if B.tensor_dtype(out.tensor).name ~= "float64" then
      check.fail("[gradgradcheck] output %d is %s; differences need float64", out.place,
        B.tensor_dtype(out.tensor).name)
    end
    local v = ops.clone(B.alias(out.tensor, false))
    local p, put = writable(v)
    for k = 0, B.numel(v) - 1 do p[k] = math.sin(12.9898 * (k + 1) + 78.233 * o) + 0.1 end
    put()
    all.n = all.n + 1
    all[all.n] = B.set_requires_grad(v, true)
    seeds = seeds + 1
  end
  local function first(...)
    local args = { ... }
    local results, roots, grads, list = outputs_of(function() return fn(unpack(args, 1, n)) end, { n = 0 }), {}, {},
      {}
    for o, out in ipairs(results) do
      if B.requires_grad(out.tensor) then
        roots[#roots + 1], grads[#grads + 1] = out.tensor, args[n + o]
      end
    end
    for k, i in ipairs(places) do list[k] = args[i] end
    if #roots == 0 then return end
    return require("moth.autograd").collect(roots, list, grads, true, true, true)
  end
  return compare("gradgradcheck", first, all, eps, atol, rtol, repeats)
end

for _, name in ipairs({ "gradcheck", "gradgradcheck" }) do
  M[name] = signature(name .. "(callable func, Tensor|table inputs, number eps=1e-6, number atol=1e-5, \z
    number rtol=1e-3, bool repeats=true)", M[name])
end
return M
