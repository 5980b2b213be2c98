--- Special functions for `ref` of records, by their definitions: series and integrals, slow and simple.
local ffi = require "ffi"
ffi.cdef "double erfc(double); double tgamma(double);"
local C = ffi.C
local M = {}

function M.erfc(x) return C.erfc(x) end

-- x in [low, high] with a growing fn(x) = y.
local function bisect(fn, y, low, high)
  for _ = 1, 200 do
    local x = 0.5 * (low + high)
    if fn(x) < y then low = x else high = x end
  end
  return 0.5 * (low + high)
end
function M.erfinv(x)
  if x ~= x or math.abs(x) > 1 then return 0 / 0 end
  if math.abs(x) == 1 then return x * math.huge end
  if math.abs(x) < 1e-9 then return x * math.sqrt(math.pi) / 2 end
  return bisect(C.erf, x, -7, 7)
end
function M.ndtri(p)
  if p ~= p or p < 0 or p > 1 then return 0 / 0 end
  if p == 0 or p == 1 then return p == 1 and math.huge or -math.huge end
  return bisect(function(x) return 0.5 * C.erfc(-x / math.sqrt(2)) end, p, -40, 40)
end
function M.sinc_double(x)
  local t, sum, term = math.pi * x, 0, 1
  if math.abs(t) > 3 then
    local s = math.sin(t) / t
    return math.pi ^ 2 * (-s - 2 * (math.cos(t) - s) / t ^ 2)
  end
  for k = 0, 30 do -- sin(t) / t = sum of (-1)^k t^2k / (2k + 1)!
    if k > 0 then
      term = -term * t ^ 2 / (2 * k * (2 * k + 1))
      sum = sum + 2 * k * (2 * k - 1) * term / t ^ 2
    end
  end
  return math.pi ^ 2 * (t == 0 and -1 / 3 or sum)
end

-- The mean of fn over [0, pi], by the trapezoidal rule: exact for functions of period 2 pi.
local function around(fn, n)
  local sum = 0.5 * (fn(0) + fn(math.pi))
  for k = 1, n - 1 do sum = sum + fn(math.pi * k / n) end
  return sum / n
end
function M.besseli(n, x)
  return around(function(a) return math.exp(x * math.cos(a)) * math.cos(n * a) end, 200)
end
function M.besselj(n, x)
  return around(function(a) return math.cos(n * a - x * math.sin(a)) end, 200)
end
-- The integral of fn from 0 on, by Simpson's rule.
local function simpson(fn, last, n)
  local h, sum = last / n, 0
  for k = 0, n do sum = sum + fn(k * h) * (k == 0 and 1 or k == n and 1 or k % 2 == 1 and 4 or 2) end
  return sum * h / 3
end
function M.besselk(n, x)
  if x <= 0 then return x == 0 and math.huge or 0 / 0 end
  return simpson(function(t) return math.exp(-x * math.cosh(t)) * math.cosh(n * t) end, 12, 4000)
end
function M.bessely(n, x)
  if x <= 0 then return x == 0 and -math.huge or 0 / 0 end
  local sign = n % 2 == 0 and 1 or -1
  return simpson(function(a) return math.sin(x * math.sin(a) - n * a) end, math.pi, 2000) / math.pi
    - simpson(function(t)
      return (math.exp(n * t) + sign * math.exp(-n * t)) * math.exp(-x * math.sinh(t))
    end, 10, 20000) / math.pi
end
-- By its power series, c1 f(x) - c2 g(x).
function M.airy(x)
  local f, g, a, b = 0, 0, 1, x
  for k = 0, 60 do
    f, g = f + a, g + b
    a, b = a * x ^ 3 / ((3 * k + 2) * (3 * k + 3)), b * x ^ 3 / ((3 * k + 3) * (3 * k + 4))
  end
  return 0.355028053887817239 * f - 0.258819403792806798 * g
end
function M.zeta(s, q)
  local sum, n = 0, 200
  if s == 1 then return math.huge elseif s < 1 then return 0 / 0 end
  if q <= 0 and q == math.floor(q) then return math.huge end
  if q <= 0 and s ~= math.floor(s) then return 0 / 0 end
  for k = 0, n - 1 do sum = sum + (q + k) ^ -s end
  local a = q + n
  return sum + a ^ (1 - s) / (s - 1) + 0.5 * a ^ -s + s * a ^ (-s - 1) / 12
    - s * (s + 1) * (s + 2) * a ^ (-s - 3) / 720
end
function M.igamma(a, x)
  if a < 0 or x < 0 or a == 0 and x == 0 then return 0 / 0 end
  if a == 0 then return 1 end
  local sum, term = 0, 1 / C.tgamma(a + 1)
  for k = 1, 500 do
    sum = sum + term
    term = term * x / (a + k)
  end
  return x ^ a * math.exp(-x) * sum
end

-- The derivatives of samples by a parameter: -(dF/da) / p(x), by differences of F.
function M.standard_gamma_grad(a, x)
  local h = 1e-4 * a
  if a <= 0 or x < 0 then return 0 / 0 end
  if x == 0 then return 0 end
  local d = (M.igamma(a + h, x) - M.igamma(a - h, x)) / (2 * h)
  return -d * C.tgamma(a) / (x ^ (a - 1) * math.exp(-x))
end
-- The integral over t = x s^4 of t^(a - 1) (1 - t)^(b - 1) log(t), and without log.
local function incomplete_beta(a, b, x, log)
  return simpson(function(s)
    local t = x * s ^ 4
    return t <= 0 and 0 or 4 * x * s ^ 3 * t ^ (a - 1) * (1 - t) ^ (b - 1) * (log and math.log(t) or 1)
  end, 1, 4000)
end
function M.dirichlet_grad(x, a, total)
  local b = total - a
  local function psi(z) -- digamma
    local sum = 0
    while z < 20 do sum, z = sum - 1 / z, z + 1 end
    return sum + math.log(z) - 0.5 / z - 1 / (12 * z ^ 2) + 1 / (120 * z ^ 4)
  end
  if a <= 0 or b <= 0 or x < 0 or x > 1 then return 0 / 0 end
  if x == 0 then return 0 end
  if x == 1 then return (psi(total) - psi(a)) / b end
  if x > 0.5 then -- of 1 - F
    local y, h = 1 - x, 1e-4
    local function rest(c)
      return incomplete_beta(b, c, y) * C.tgamma(b + c) / (C.tgamma(b) * C.tgamma(c))
    end
    local beta = C.tgamma(a) * C.tgamma(b) / C.tgamma(total)
    return (rest(a + h) - rest(a - h)) / (2 * h) * beta / (x ^ (a - 1) * y ^ b)
  end
  local all = incomplete_beta(a, b, x)
  return -(incomplete_beta(a, b, x, true) - (psi(a) - psi(total)) * all) / (x ^ (a - 1) * (1 - x) ^ b)
end

local function terms(n, first, fn)
  n = n < 0 and math.ceil(n) or math.floor(n)
  local p, q = 1, first
  if n < 1 then return n < 0 and 0 or 1 end
  for k = 1, n - 1 do p, q = q, fn(k, p, q) end
  return q
end
function M.chebyshev(x, n, first) return terms(n, first, function(_, p, q) return 2 * x * q - p end) end
function M.hermite(x, n, scale)
  return terms(n, scale * x, function(k, p, q) return scale * (x * q - k * p) end)
end
function M.laguerre(x, n)
  return terms(n, 1 - x, function(k, p, q) return ((2 * k + 1 - x) * q - k * p) / (k + 1) end)
end
function M.legendre(x, n)
  return terms(n, x, function(k, p, q) return ((2 * k + 1) * x * q - k * p) / (k + 1) end)
end

function M.gcd(a, b)
  a, b = math.abs(a), math.abs(b)
  while b ~= 0 do a, b = b, a % b end
  return a
end
function M.trunc(x) return x < 0 and math.ceil(x) or math.floor(x) end
function M.shift_left(a, b) return b < 0 and 0 or a * 2 ^ b end

return M
