--- ContinuousBernoulli: on [0, 1], with the density l exp(l x) / (exp(l) - 1) of the logits l.
--
-- All is computed from the logits, which may be far from 0, where probs round to 0 or 1. With a = |l| everything is
-- written for the side where exp does not overflow; near 0, where the formulas cancel, by the series of
-- s(l) = log(sinh(l / 2) / (l / 2)), an even function: the logarithm of the density is l (x - 1/2) - s(l).
local moth = require "moth"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Distribution = require "moth.distributions.distribution"
local util = require "moth.distributions.util"

-- s(l) is the sum of B(2n) / (2n (2n)!) l^(2n), with Bernoulli's numbers: to 1e-16 for |l| < 1.
local series = { 1 / 24, -1 / 2880, 1 / 181440, -1 / 9676800, 1 / 479001600, -691 / 15692092416000,
  1 / 1046139494400, -3617 / 170729965486080000 }

-- The k-th derivative of s at x (k = 0, 1, 2).
local function near_zero(x, k)
  local square, sum = x:square(), nil
  for n = #series, 1, -1 do
    local c, power = series[n], 2 * n
    for _ = 1, k do c, power = c * power, power - 1 end
    sum = sum and sum * square + c or square * 0 + c
  end
  if k == 0 then return sum * square end
  return k == 1 and sum * x or sum
end

-- Whether logits are far from 0; a = |l| there, else 1; l near 0, else 0. What a branch does not take is finite, so
-- that it has no gradient.
local function parts(l)
  local far = l:abs():ge(1)
  return far, moth.where(far, l:abs(), 1), moth.where(far, 0, l)
end
-- log((1 - exp(-a)) / a)
local function log_norm(a) return (-(-a):exp()):log1p() - a:log() end
-- The mean at -a.
local function low_mean(a) return a:reciprocal() - (-a):exp() / -(-a):expm1() end

-- The mean of log f(x) for a mean of x: of p's own is - entropy, of another distribution's - cross entropy.
local function mean_log(l, x)
  local far, a, near = parts(l)
  local side = l:gt(0):to(l:dtype())
  return moth.where(far, moth.where(far, l, 1) * (x - side) - log_norm(a), near * (x - 0.5) - near_zero(near, 0))
end

-- Values where |l| is not small by fn, else by the first terms of the series in l.
local function by_side(l, u, fn, first, second)
  local limit = util.finfo(l).eps ^ 0.25
  l, u = moth.broadcast_tensors(l, u)
  local small = l:abs():lt(limit)
  local a = moth.where(small, 1, l:abs())
  local near = moth.where(small, l, 0)
  local up = l:gt(0)
  return moth.where(small, u + near * first(u) + near:square() * second(u), moth.where(up, fn(a, u, true),
    fn(a, u, false)))
end

-- log(v + w exp(-a)) with v + w = 1.
local function log_mixed(a, v, w)
  local low = v:lt(0.5)
  return moth.where(low, moth.logaddexp(moth.where(low, v, 0.5):log(), w:log() - a), (moth.where(low, 0, w)
    * (-a):expm1()):log1p())
end

return function(C, binary, rate_of)
  binary(C)
  C.has_rsample = true
  --- On [0, 1], with a density that grows or falls exponentially: what a Bernoulli likelihood of grey values lacks.
  -- lims: of probs, between which PyTorch uses series; taken and not needed here.
  C.__init = signature.init("distributions.ContinuousBernoulli(Tensor|number probs?, Tensor|number logits?, \z
    number[] lims?, *, bool validate_args?)", function(self, o)
    self.lims = o.lims or { 0.499, 0.501 }
    if #self.lims ~= 2 then check.fail("[distributions.ContinuousBernoulli] 'lims' are two numbers") end
    self:begin_probs(o, 0)
    if self.given == "probs" then self.probs = util.clamp_probs(self.probs) end
  end)
  function C:lazy_probs() return util.clamp_probs(util.logits_to_probs(self.logits, true)) end
  function C:copied(shape)
    local new = Distribution.copied(self, shape)
    new.lims = self.lims
    return new
  end
  --- The mean of log_prob(x) over values whose mean is given.
  function C:mean_log(mean) return (mean_log(self.logits, mean)) end
  function C:get_mean()
    local far, a, near = parts(self.logits)
    local low = low_mean(a)
    return moth.where(far, moth.where(self.logits:gt(0), 1 - low, low), near_zero(near, 1) + 0.5)
  end
  function C:get_variance()
    local far, a, near = parts(self.logits)
    local y = a:reciprocal():square() - (-a):exp() / (-a):expm1():square()
    return moth.where(far, y, near_zero(near, 2))
  end
  function C:draw(shape, generator) return self:quantile(rate_of(self.logits, self:extended(shape), generator)) end
  function C:density(x) return (mean_log(self.logits, x)) end
  function C:distribution(x)
    local inside = x:clamp(0, 1)
    return by_side(self.logits, inside, function(a, u, up)
      local y = (-a * u):expm1() / (-a):expm1()
      return up and y * (a * (u - 1)):exp() or y
    end, function(u) return u * (u - 1) * 0.5 end, function(u) return u * (u - 1) * (u * 2 - 1) / 12 end)
  end
  function C:quantile(p)
    return by_side(self.logits, p, function(a, u, up)
      if up then return 1 + log_mixed(a, u, 1 - u) / a end
      return -log_mixed(a, 1 - u, u) / a
    end, function(u) return u * (1 - u) * 0.5 end, function(u) return u * (1 - u) * (1 - u * 2) / 6 end)
  end
  function C:entropy()
    local far, a, near = parts(self.logits)
    local low = a * low_mean(a)
    return moth.where(far, low + log_norm(a), near_zero(near, 0) - near * near_zero(near, 1))
  end
  return C
end
