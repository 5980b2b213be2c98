--- moth.signal.windows: windows of M points, by PyTorch's names. sym (true): the same from both ends; false: one period
-- of M points, for spectra.
local B = require "moth_lua"
local check = require "moth.utils.check"
local lazy = require "moth.lang.lazy"
local signature = require "moth.utils.signature"
local ops = B.ops

local W = {}
local options = ", *, %sbool sym=true, dtype dtype?, device device?, bool requires_grad=false"

-- Defines W[name](M, …): fn(o, first, last, …) makes it of M points from `first` by steps, `o` the options of linspace.
local function window(name, positional, named, fn)
  W[name] = signature(("%s(size M%s" .. options .. ")"):format(name, positional, named), function(m, ...)
    local list, n = { ... }, select("#", ...)
    local sym, dtype, device, requires_grad = unpack(list, n - 3, n)
    local o = { dtype = dtype, device = device }
    if dtype and not B.dtype(dtype).is_floating_point then
      check.fail("[%s] expected a float dtype, got %s", name, B.dtype(dtype).name)
    end
    local y
    if m == 0 then
      y = ops.empty({ 0 }, o)
    else
      y = fn(m, sym, o, unpack(list, 1, n - 4))
    end
    return requires_grad and B.set_requires_grad(y, true) or y
  end)
end
-- start + k step for k = 0 … m - 1.
local function line(m, start, step, o) return ops.linspace(start, start + (m - 1) * step, m, o) end
-- The number of steps from end to end.
local function spans(m, sym) return sym and m - 1 or m end

local function cosines(m, sym, o, a)
  if m == 1 then return ops.ones({ 1 }, o) end
  local k, y = line(m, 0, 2 * math.pi / spans(m, sym), o), nil
  for i, weight in ipairs(a) do
    local term = ops.mul(ops.cos(ops.mul(k, i - 1)), i % 2 == 1 and weight or -weight)
    y = y and ops.add(y, term) or term
  end
  return y
end
--- The sum of (-1)^i a_i cos(2 pi i k / (M - 1)).
window("general_cosine", ", number[] a", "", function(m, sym, o, a)
  if #a == 0 then check.fail("[general_cosine] a must hold at least one number") end
  return cosines(m, sym, o, a)
end)
--- alpha - (1 - alpha) cos(2 pi k / (M - 1)).
window("general_hamming", "", "number alpha=0.54, ", function(m, sym, o, alpha)
  return cosines(m, sym, o, { alpha, 1 - alpha })
end)
local function weighted(name, a)
  window(name, "", "", function(m, sym, o) return cosines(m, sym, o, a) end)
end
--- 0.54 - 0.46 cos(2 pi k / (M - 1)).
weighted("hamming", { 0.54, 0.46 })
--- 0.5 - 0.5 cos(2 pi k / (M - 1)).
weighted("hann", { 0.5, 0.5 })
--- A sum of three cosines: 0.42, 0.5, 0.08.
weighted("blackman", { 0.42, 0.5, 0.08 })
--- A sum of four cosines with very low side lobes (Nuttall 1981).
weighted("nuttall", { 0.3635819, 0.4891775, 0.1365995, 0.0106411 })
--- A triangle that ends at 0.
window("bartlett", "", "", function(m, sym, o)
  if m == 1 then return ops.ones({ 1 }, o) end
  return ops.sub(1, ops.abs(line(m, -1, 2 / spans(m, sym), o)))
end)
--- Half a period of a sine.
window("cosine", "", "", function(m, sym, o)
  local step = math.pi / ((sym or m == 1) and m or m + 1)
  return ops.sin(line(m, 0.5 * step, step, o))
end)
--- exp(-|k - center| / tau); a center of one's own needs sym = false.
window("exponential", "", "number center?, number tau=1, ", function(m, sym, o, center, tau)
  if tau <= 0 then check.fail("[exponential] tau must be positive, got %g", tau) end
  if center and sym then check.fail("[exponential] center must not be given for a symmetric window") end
  center = center or ((sym or m == 1) and m - 1 or m) / 2
  return ops.exp(ops.neg(ops.abs(line(m, -center / tau, 1 / tau, o))))
end)
--- exp(-(k - center)^2 / (2 std^2)).
window("gaussian", "", "number std=1, ", function(m, sym, o, std)
  if std <= 0 then check.fail("[gaussian] std must be positive, got %g", std) end
  local step = 1 / (std * math.sqrt(2))
  return ops.exp(ops.neg(ops.square(line(m, -((sym or m == 1) and m - 1 or m) / 2 * step, step, o))))
end)
--- I0(beta sqrt(1 - (2 k / (M - 1) - 1)^2)) / I0(beta).
window("kaiser", "", "number beta=12, ", function(m, sym, o, beta)
  if beta < 0 then check.fail("[kaiser] beta must not be negative, got %g", beta) end
  if m == 1 then return ops.ones({ 1 }, o) end
  local k = ops.clamp(line(m, -beta, 2 * beta / spans(m, sym), o), -beta, beta)
  local top = ops.i0(ops.full({}, beta, o))
  return ops.div(ops.i0(ops.sqrt(ops.sub(beta * beta, ops.square(k)))), top)
end)

return { windows = lazy.strict(W, "moth.signal.windows") }
