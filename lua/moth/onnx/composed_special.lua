--- Special functions in other ops, as precise as float32: series, recurrences, rational functions and integrals that
-- converge fast. What ONNX has no operators for.
local B = require "moth_lua"
local moth = require "moth"
local ops = B.ops

local function operand(x) return type(x) == "number" and moth.full({}, x, { dtype = moth.float32 }) or x end

-- c1 x^(n-1) + … + cn
local function polynomial(x, c)
  local sum = moth.full_like(x, c[1])
  for i = 2, #c do sum = sum * x + c[i] end
  return sum
end

-- The mean of fn over n places of a circle's half, whose ends count half: an integral that converges faster than any
-- power of n, as fn is smooth and periodic.
local function mean_over_half_circle(x, n, fn)
  local angle = moth.arange(n + 1):to(x:dtype()) * (math.pi / n)
  local weight = moth.where(angle:eq(0):logical_or(moth.arange(n + 1):eq(n)), 0.5, 1) / n
  return (fn(x:unsqueeze(-1), angle) * weight:to(x:dtype())):sum(-1)
end

-- Bessel functions far from 0: (p, q) of order 0 or 1 by y = 1 / x.
local function far(order, x)
  local m = 4 * order * order
  local y = 1 / (8 * x)
  local p = 1 - (m - 1) * (m - 9) / 2 * y * y + (m - 1) * (m - 9) * (m - 25) * (m - 49) / 24 * y ^ 4
  local q = (m - 1) * y - (m - 1) * (m - 9) * (m - 25) / 6 * y ^ 3
  local angle = x - (2 * order + 1) * math.pi / 4
  return p, q, angle, (2 / (math.pi * x)):sqrt()
end

local FAR = 20

return function(M)
  -- ---- gamma -----------------------------------------------------------------------------------------

  local STEPS = 7 -- to where Stirling's series is good

  local function log_gamma_right(x)
    local product, y = x, x + STEPS
    for i = 1, STEPS - 1 do product = product * (x + i) end
    local z = 1 / y
    local series = z * (1 / 12 - z * z * (1 / 360 - z * z / 1260))
    return (y - 0.5) * y:log() - y + 0.5 * math.log(2 * math.pi) + series - product:log()
  end
  function M.lgamma(x)
    local left = x:lt(0.5)
    local right = log_gamma_right(moth.where(left, 1 - x, x))
    local sine = (x:frac() * math.pi):sin():abs()
    return moth.where(left, math.log(math.pi) - sine:log() - right, right)
  end
  local function digamma_right(x)
    local sum, y = moth.zeros_like(x), x + STEPS
    for i = 0, STEPS - 1 do sum = sum + 1 / (x + i) end
    local z = 1 / y
    return y:log() - 0.5 * z - z * z * (1 / 12 - z * z * (1 / 120 - z * z / 252)) - sum
  end
  function M.digamma(x)
    local left = x:lt(0)
    local right = digamma_right(moth.where(left, 1 - x, x))
    local f = x:frac() * math.pi
    local y = moth.where(left, right - math.pi / f:tan(), right)
    y = moth.where(left:logical_and(x:eq(x:floor())), 0 / 0, y)
    return moth.where(x:eq(0), -math.huge, y)
  end
  -- Euler's and Maclaurin's sum of (q + k)^-s.
  local function zeta(s, q)
    local n = 9
    local sum = q ^ -s
    for k = 1, n - 1 do sum = sum + (q + k) ^ -s end
    local a = q + n
    local power = a ^ -s
    sum = sum + power * a / (s - 1) + power / 2
    local factor, t = s, power / a
    for i, b in ipairs { 1 / 12, -1 / 720, 1 / 30240, -1 / 1209600 } do
      sum = sum + factor * t * b
      factor, t = factor * (s + 2 * i - 1) * (s + 2 * i), t / (a * a)
    end
    return sum
  end
  function M.special_zeta(s, q) return zeta(operand(s), operand(q)) end
  -- Of a negative x, by as many terms as bring it to the right of 0.
  function M.polygamma(x, n)
    if n == 0 then return ops.digamma(x) end
    local factorial = 1
    for i = 2, n do factorial = factorial * i end
    local sign = n % 2 == 1 and 1 or -1
    local function right(v) return sign * factorial * zeta(moth.full_like(v, n + 1), v) end
    local low = x:floor():clamp { max = 0 }
    local _, _, sum = moth.while_loop(function(k) return k:amin():lt(0) end, function(k, v, sum)
      local more = moth.where(k:lt(0), sign * factorial * v ^ -(n + 1), 0)
      return k + 1, moth.where(k:lt(0), v + 1, v), sum + more
    end, { low, x, moth.zeros_like(x) })
    return right(moth.where(x:lt(0), x - low, x)) + sum
  end
  function M.native_trigamma(x) return M.polygamma(x, 1) end

  -- The lower incomplete gamma function's share: a series left of a + 1, a continued fraction (Lentz) right of it.
  local function gamma_shares(a, x)
    local front = (a * x:log() - x - ops.lgamma(a)):exp()
    local zero = moth.zeros({}, { dtype = moth.int64 })
    local near = moth.minimum(x, a + 1)
    local _, sum = moth.while_loop(function(k) return k:lt(150) end, function(k, sum, term, b, v)
      term = term * v / (b + 1)
      return k + 1, sum + term, term, b + 1, v
    end, { zero, 1 / a, 1 / a, a * 1, near })
    local wide = moth.maximum(x, a + 1)
    local first = wide + 1 - a
    local _, _, _, _, h = moth.while_loop(function(k) return k:lt(80) end, function(k, b, c, d, h, a_)
      local i = (k + 1):to(b:dtype())
      local n = i * (a_ - i)
      b = b + 2
      d, c = 1 / (n * d + b), b + n / c
      return k + 1, b, c, d, h * d * c, a_
    end, { zero, first, moth.full_like(first, 1e30), 1 / first, 1 / first, a * 1 })
    local left = x:lt(a + 1)
    return moth.where(left, front * sum, 1 - front * h), moth.where(left, 1 - front * sum, front * h)
  end
  function M.igamma(a, x)
    a, x = moth.broadcast_tensors(a, x)
    return moth.where(x:eq(0), 0, (gamma_shares(a, x)))
  end
  function M.igammac(a, x)
    a, x = moth.broadcast_tensors(a, x)
    return moth.where(x:eq(0), 1, select(2, gamma_shares(a, x)))
  end

  -- ---- the normal distribution -----------------------------------------------------------------------

  -- Giles, "Approximating the erfinv function".
  function M.erfinv(x)
    local w = -((1 - x) * (1 + x)):log()
    local near = polynomial(w - 2.5, { 2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
      -0.00125372503, -0.00417768164, 0.246640727, 1.50140941 })
    local off = polynomial(w:clamp { min = 0 }:sqrt() - 3, { -0.000200214257, 0.000100950558, 0.00134934322,
      -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047, 1.00167406, 2.83297682 })
    local y = moth.where(w:lt(5), near, off) * x
    return moth.where(x:abs():eq(1), x * math.huge, y)
  end
  -- erfc(x) exp(x^2): Chebyshev's polynomials, of x >= 0 first.
  function M.special_erfcx(x)
    local t = 1 / (1 + 0.5 * x:abs())
    local right = t * polynomial(t, { 0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806,
      0.09678418, 0.37409196, 1.00002368, -1.26551223 }):exp()
    return moth.where(x:lt(0), 2 * (x * x):exp() - right, right)
  end
  function M.special_log_ndtr(x)
    local left = (ops.special_erfcx(-moth.minimum(x, moth.zeros_like(x)) / math.sqrt(2)) / 2):log() - x * x / 2
    local right = ops.log1p(-0.5 * (moth.maximum(x, moth.zeros_like(x)) / math.sqrt(2)):erfc())
    return moth.where(x:lt(0), left, right)
  end
  -- Acklam's rational functions.
  function M.special_ndtri(p)
    local c = { -7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838, -2.549732539343734,
      4.374664141464968, 2.938163982698783 }
    local d = { 7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996, 3.754408661907416, 1 }
    local q = p - 0.5
    local r = q * q
    local middle = q * polynomial(r, { -3.969683028665376e+01, 2.209460984245205e+02, -2.759285104469687e+02,
      1.383577518672690e+02, -3.066479806614716e+01, 2.506628277459239 })
      / polynomial(r, { -5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02, 6.680131188771972e+01,
        -1.328068155288572e+01, 1 })
    local least = moth.minimum(p, 1 - p)
    local t = (-2 * least:log()):sqrt()
    local tail = polynomial(t, c) / polynomial(t, d)
    local y = moth.where(least:lt(0.02425), moth.where(q:lt(0), tail, -tail), middle)
    return moth.where(p:eq(0), -math.huge, moth.where(p:eq(1), math.huge, y))
  end
  -- sinc'' of pi x.
  function M.sinc_double(x)
    local a = x * math.pi
    local s, c = a:sin(), a:cos()
    local far_off = (-s / a - 2 * c / (a * a) + 2 * s / (a * a * a)) * math.pi ^ 2
    local near = (-1 / 3 + a * a / 10 - a ^ 4 / 168) * math.pi ^ 2
    return moth.where(a:abs():lt(0.3), near, far_off)
  end

  -- ---- Bessel functions ------------------------------------------------------------------------------

  local function scaled_i(order)
    return function(x)
      local size = x:abs()
      local near = mean_over_half_circle(moth.where(size:gt(80), 80, size), 64,
        function(v, angle) return (v * (angle:cos() - 1)):exp() * (order == 1 and angle:cos() or 1) end)
      local y = 1 / (8 * moth.where(size:gt(80), size, 80))
      local m = 4 * order * order
      local away = (1 - (m - 1) * y + (m - 1) * (m - 9) / 2 * y * y) * (4 * y / math.pi):sqrt()
      local value = moth.where(size:gt(80), away, near)
      return order == 1 and moth.where(x:lt(0), -value, value) or value
    end
  end
  M.special_i0e, M.special_i1e = scaled_i(0), scaled_i(1)
  function M.i0(x) return M.special_i0e(x) * x:abs():exp() end
  function M.special_i1(x) return M.special_i1e(x) * x:abs():exp() end

  local function bessel_j(order)
    return function(x)
      local size = x:abs()
      local near = mean_over_half_circle(moth.where(size:gt(FAR), 0, size), 48,
        function(v, angle) return (angle * order - v * angle:sin()):cos() end)
      local p, q, angle, scale = far(order, moth.where(size:gt(FAR), size, FAR))
      local value = moth.where(size:gt(FAR), scale * (p * angle:cos() - q * angle:sin()), near)
      return order == 1 and moth.where(x:lt(0), -value, value) or value
    end
  end
  M.special_bessel_j0, M.special_bessel_j1 = bessel_j(0), bessel_j(1)

  -- The integral of exp(-x cosh t) cosh(order t), times exp(x).
  local function scaled_k(order)
    return function(x)
      local n = 96
      local t = moth.arange(n):to(x:dtype()) * (12 / n)
      local weight = moth.where(t:eq(0), 0.5, 1) * (12 / n)
      local bend = (t / 2):sinh():square() * 2 -- cosh t - 1
      local f = (-(x:unsqueeze(-1) * bend)):exp() * (order == 1 and t:cosh() or 1)
      return (f * weight):sum(-1)
    end
  end
  M.special_scaled_modified_bessel_k0, M.special_scaled_modified_bessel_k1 = scaled_k(0), scaled_k(1)
  function M.special_modified_bessel_k0(x) return M.special_scaled_modified_bessel_k0(x) * (-x):exp() end
  function M.special_modified_bessel_k1(x) return M.special_scaled_modified_bessel_k1(x) * (-x):exp() end

  -- ---- polynomials -----------------------------------------------------------------------------------

  -- By p(k + 1) = next(k, x, p(k), p(k - 1)), up to the largest degree among n.
  local function recurrence(first, next_)
    return function(x, n)
      x, n = operand(x), operand(n)
      local dtype = B.promote(x:dtype(), n:dtype())
      dtype = dtype.is_floating_point and dtype or moth.float32
      local v, degree = moth.broadcast_tensors(x:to(dtype), n:to(dtype):trunc())
      local one = moth.ones_like(v)
      local p1 = first(v)
      local start = moth.where(degree:lt(0), 0, moth.where(degree:eq(0), one, p1))
      local out = { moth.while_loop(function(k, _, _, _, n_) return k:lt(n_:amax()) end,
        function(k, before, p, result, n_, x_)
          local made = next_(k, x_, p, before)
          return k + 1, p, made, moth.where(n_:eq(k + 1), made, result), n_, x_
        end, { moth.ones({}, { dtype = dtype }), one, p1, start, degree, v }) }
      return out[4]
    end
  end
  local function chebyshev(first, shifted)
    local function at(x) return shifted and 2 * x - 1 or x end
    return recurrence(function(x) return first(at(x)) end, function(_, x, p, before) return 2 * at(x) * p - before end)
  end
  for name, first in require("moth.each") { t = function(x) return x * 1 end, u = function(x) return 2 * x end,
    v = function(x) return 2 * x - 1 end, w = function(x) return 2 * x + 1 end } do
    M["special_chebyshev_polynomial_" .. name] = chebyshev(first)
    M["special_shifted_chebyshev_polynomial_" .. name] = chebyshev(first, true)
  end
  M.special_hermite_polynomial_h = recurrence(function(x) return 2 * x end,
    function(k, x, p, before) return 2 * x * p - 2 * k * before end)
  M.special_hermite_polynomial_he = recurrence(function(x) return x * 1 end,
    function(k, x, p, before) return x * p - k * before end)
  M.special_laguerre_polynomial_l = recurrence(function(x) return 1 - x end,
    function(k, x, p, before) return ((2 * k + 1 - x) * p - k * before) / (k + 1) end)
  M.special_legendre_polynomial_p = recurrence(function(x) return x * 1 end,
    function(k, x, p, before) return ((2 * k + 1) * x * p - k * before) / (k + 1) end)
end
