--- kl_divergence(p, q): the mean of log p(x) - log q(x) over samples of p, by a registry of closed forms for pairs of
-- classes. register_kl(P, Q, fn) adds one; classes inherit those of their bases.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local D = require "moth.distributions"
local util = require "moth.distributions.util"
local matrices = require "moth.distributions.multivariate"

local M = {}
local forms = {} -- P -> { Q -> function }
local EULER, inf = 0.57721566490153286, math.huge

local function is_class(v)
  return type(v) == "table" and rawget(v, "__name") ~= nil and type(v.subclass) == "function"
end
signature.type("Class", is_class, "a class")

--- fn(p, q) computes kl_divergence of distributions of the classes p and q, and of their subclasses.
M.register_kl = signature("register_kl(Class p, Class q, callable fn)", function(p, q, fn)
  forms[p] = forms[p] or {}
  forms[p][q] = fn
end)
-- That of the nearest classes: of p first.
local function find(p, q)
  local a = getmetatable(p)
  while a do
    local b = forms[a] and getmetatable(q)
    while b do
      if forms[a][b] then return forms[a][b] end
      b = rawget(b, "super")
    end
    a = rawget(a, "super")
  end
end
--- A tensor of the batch_shape; may have a gradient.
M.kl_divergence = signature("kl_divergence(Distribution p, Distribution q)", function(p, q)
  local form = find(p, q)
  if not form then
    check.fail("[kl_divergence] there is no closed form for %s and %s: register_kl adds one, or take the mean of \z
      p:log_prob(x) - q:log_prob(x) over samples of p", class.name(p), class.name(q))
  end
  if not util.same(p.event_shape, q.event_shape) then
    check.fail("[kl_divergence] the event_shapes differ: %s and %s", tostring(p.event_shape), tostring(q.event_shape))
  end
  return (form(p, q))
end)

local function add(p, q, fn)
  forms[D[p]] = forms[D[p]] or {}
  forms[D[p]][D[q]] = fn
end
-- Inf where the condition holds.
local function except(condition, x) return util.where(condition, inf, x) end
local function infinite(names, others, key)
  for p in names:gmatch "%S+" do
    for q in others:gmatch "%S+" do
      add(p, q, function(a) return a[key]:full_like(inf) end)
    end
  end
end

-- ---- the same class --------------------------------------------------------------------------------

-- Of one trial. Where q's logits are given its probabilities are never 0, even if they round to it.
local function trial(p, q)
  local log_yes, log_no, yes, no = p:chances()
  local other_yes, other_no = q:chances()
  local y = util.times(yes, log_yes - other_yes) + util.times(no, log_no - other_no)
  if q.given == "logits" then return y end
  return except(q.probs:eq(0):logical_and(yes:gt(0)):logical_or(q.probs:eq(1):logical_and(no:gt(0))), y)
end
add("Bernoulli", "Bernoulli", trial)
add("Beta", "Beta", function(p, q)
  local a, b, c, d = p.concentration1, p.concentration0, q.concentration1, q.concentration0
  local n, m = a + b, c + d
  return c:lgamma() + d:lgamma() + n:lgamma() - a:lgamma() - b:lgamma() - m:lgamma() + (a - c) * a:digamma()
    + (b - d) * b:digamma() + (m - n) * n:digamma()
end)
add("Binomial", "Binomial", function(p, q)
  local n, m = p.total_count, q.total_count
  if B.batch_values(n:lt(m)):any():item() then
    check.fail("[kl_divergence] two Binomials: total_count of q must not be above that of p")
  end
  return except(n:gt(m), n * trial(p, q))
end)
add("Categorical", "Categorical", function(p, q)
  local t = p.probs * (p.logits - q.logits)
  if q.given == "probs" then t = except(q.probs:eq(0), t) end
  return util.where(p.probs:eq(0), 0, t):sum(-1)
end)
add("OneHotCategorical", "OneHotCategorical", forms[D.Categorical][D.Categorical])
add("ContinuousBernoulli", "ContinuousBernoulli", function(p, q)
  return -p:entropy() - q:mean_log(p.mean)
end)
add("Dirichlet", "Dirichlet", function(p, q)
  local a, b = p.concentration, q.concentration
  local n = a:sum(-1)
  return n:lgamma() - b:sum(-1):lgamma() - (a:lgamma() - b:lgamma()):sum(-1)
    + ((a - b) * (a:digamma() - n:digamma():unsqueeze(-1))):sum(-1)
end)
add("Exponential", "Exponential", function(p, q)
  local r = q.rate / p.rate
  return r - r:log() - 1
end)
add("Gamma", "Gamma", function(p, q)
  local a, b = p.concentration, q.concentration
  return b * (p.rate / q.rate):log() + b:lgamma() - a:lgamma() + (a - b) * a:digamma() + (q.rate - p.rate) * a / p.rate
end)
add("InverseGamma", "InverseGamma", forms[D.Gamma][D.Gamma])
add("Geometric", "Geometric", function(p, q)
  if p.given == "probs" then return trial(p, q) / p.probs end
  local l, yes = p.logits, p:chances()
  local other_yes, other_no = q:chances()
  local odds = q.given == "logits" and util.log_softplus(q.logits) or (-other_no):log() -- log(-log(1 - q))
  local y = yes - other_yes + (odds - l):exp() - (util.log_softplus(l) - l):exp()
  return q.given == "logits" and y or except(q.probs:eq(1), y)
end)
add("Gumbel", "Gumbel", function(p, q)
  local r, d = p.scale / q.scale, (q.loc - p.loc) / q.scale
  return r * EULER - r:log() - d + (d + (1 + r):lgamma()):exp() - (1 + EULER)
end)
local function normals(s, t, d)
  local r = (s / t):square()
  return (r + (d / t):square() - 1 - r:log()) * 0.5
end
add("Normal", "Normal", function(p, q) return normals(p.scale, q.scale, p.loc - q.loc) end)
add("HalfNormal", "HalfNormal", function(p, q) return normals(p.scale, q.scale, 0 * q.scale) end)
add("Laplace", "Laplace", function(p, q)
  local r, d = p.scale / q.scale, (p.loc - q.loc):abs()
  return d / q.scale - r:log() + r * (-d / p.scale):exp() - 1
end)
add("Cauchy", "Cauchy", function(p, q)
  return (((p.scale + q.scale):square() + (p.loc - q.loc):square()) / (p.scale * q.scale * 4)):log()
end)
add("HalfCauchy", "HalfCauchy", function(p, q)
  return ((p.scale + q.scale):square() / (p.scale * q.scale * 4)):log()
end)
add("Pareto", "Pareto", function(p, q)
  local r = q.alpha / p.alpha
  return except(p.scale:lt(q.scale), q.alpha * (p.scale / q.scale):log() - r:log() + r - 1)
end)
add("Poisson", "Poisson", function(p, q)
  return p.rate:xlogy(p.rate) - p.rate:xlogy(q.rate) - (p.rate - q.rate)
end)
add("Uniform", "Uniform", function(p, q)
  return except(q.low:gt(p.low):logical_or(q.high:lt(p.high)), ((q.high - q.low) / (p.high - p.low)):log())
end)

-- ---- combined, and vectors -------------------------------------------------------------------------

add("Independent", "Independent", function(p, q)
  if p.reinterpreted_batch_ndims ~= q.reinterpreted_batch_ndims then
    check.fail("[kl_divergence] two Independents with different reinterpreted_batch_ndims")
  end
  return util.sum_last(M.kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)
end)
add("TransformedDistribution", "TransformedDistribution", function(p, q)
  if p.all ~= q.all then check.fail("[kl_divergence] two TransformedDistributions with different transforms") end
  return M.kl_divergence(p.base_dist, q.base_dist)
end)
-- The squared norm of L^-1 x, of matrices.
local function squares(lower, x)
  local batch = moth.broadcast_shapes(util.part(lower:size(), 1, lower:dim() - 2), util.part(x:size(), 1, x:dim() - 2))
  local n = lower:size(-1)
  lower, x = lower:expand(util.shape(batch, { n, n })), x:expand(util.shape(batch, { n, x:size(-1) }))
  return matrices.solve(lower, x):square():sum { dim = { -2, -1 } }
end
add("MultivariateNormal", "MultivariateNormal", function(p, q)
  local n = p.event_shape[1]
  local far = matrices.mahalanobis(q.scale_tril, q.loc - p.loc)
  return matrices.half_log_det(q.scale_tril) - matrices.half_log_det(p.scale_tril)
    + (squares(q.scale_tril, p.scale_tril) + far - n) * 0.5
end)
-- Of W (…, n, r) and a diagonal against q of low rank.
local function against_low_rank(p, q, w, d)
  local a = q.cov_factor.mT / q.cov_diag:unsqueeze(-2)
  local trace = (w:square() / q.cov_diag:unsqueeze(-1)):sum { dim = { -2, -1 } } - squares(q.capacitance, a:matmul(w))
  if d then
    trace = trace + (d / q.cov_diag):sum(-1) - squares(q.capacitance, a * d:sqrt():unsqueeze(-2))
  end
  return trace + q:squared(q.loc - p.loc) - p.event_shape[1]
end
add("LowRankMultivariateNormal", "LowRankMultivariateNormal", function(p, q)
  return (q:log_det() - p:log_det() + against_low_rank(p, q, p.cov_factor, p.cov_diag)) * 0.5
end)
add("MultivariateNormal", "LowRankMultivariateNormal", function(p, q)
  return (q:log_det() + against_low_rank(p, q, p.scale_tril)) * 0.5 - matrices.half_log_det(p.scale_tril)
end)
add("LowRankMultivariateNormal", "MultivariateNormal", function(p, q)
  local trace = squares(q.scale_tril, p.cov_factor) + squares(q.scale_tril, p.cov_diag:sqrt():diag_embed())
  local far = matrices.mahalanobis(q.scale_tril, q.loc - p.loc)
  return matrices.half_log_det(q.scale_tril) + (trace + far - p:log_det() - p.event_shape[1]) * 0.5
end)

-- ---- different classes -----------------------------------------------------------------------------

local function square(x) return x:square() end
-- The cross entropy of p with a normal q needs p's mean and variance alone.
local function with_normal(name, key)
  add(name, "Normal", function(p, q)
    local far = square(p.mean - q.loc)
    return -p:entropy() + q.scale:log() + 0.5 * math.log(2 * math.pi) + (p.variance + far) / (square(q.scale) * 2)
      + 0 * p[key]
  end)
end
with_normal("Beta", "concentration1")
with_normal("ContinuousBernoulli", "probs")
with_normal("Exponential", "rate")
with_normal("Gamma", "rate")
with_normal("Gumbel", "loc")
with_normal("Laplace", "loc")
with_normal("Uniform", "low")
with_normal("HalfNormal", "scale")
add("Pareto", "Normal", function(p, q)
  local a = p.alpha
  local far = square(p.scale) * a / (a - 2) - q.loc * p.scale * a / (a - 1) * 2 + square(q.loc)
  return except(a:le(2), -p:entropy() + q.scale:log() + 0.5 * math.log(2 * math.pi) + far / (square(q.scale) * 2))
end)

-- With an exponential q its mean.
for _, name in ipairs({ "Beta", "ContinuousBernoulli", "Gamma" }) do
  add(name, "Exponential", function(p, q) return q.rate * p.mean - p:entropy() - q.rate:log() end)
end
add("Uniform", "Exponential", function(p, q)
  return except(p.low:lt(0), q.rate * p.mean - p:entropy() - q.rate:log())
end)
add("Pareto", "Exponential", function(p, q)
  return except(p.alpha:le(1), q.rate * p.mean - p:entropy() - q.rate:log())
end)
-- With a gamma q the mean and that of the logarithm.
local function with_gamma(p, q, mean_log)
  local a = q.concentration
  return -p:entropy() + a:lgamma() - a * q.rate:log() - (a - 1) * mean_log + q.rate * p.mean
end
add("Beta", "Gamma", function(p, q)
  local a = p.concentration1
  return with_gamma(p, q, a:digamma() - (a + p.concentration0):digamma())
end)
add("Exponential", "Gamma", function(p, q) return with_gamma(p, q, -p.rate:log() - EULER) end)
add("Uniform", "Gamma", function(p, q)
  local low, high = p.low, p.high
  return except(low:lt(0), with_gamma(p, q, (high:xlogy(high) - low:xlogy(low)) / (high - low) - 1))
end)
add("Pareto", "Gamma", function(p, q)
  return except(p.alpha:le(1), with_gamma(p, q, p.scale:log() + p.alpha:reciprocal()))
end)
-- With a Gumbel q the mean and that of exp(-x / scale).
local function with_gumbel(p, q, mean_exp)
  local d = q.loc / q.scale
  return -p:entropy() + q.scale:log() + p.mean / q.scale - d + d:exp() * mean_exp
end
add("Normal", "Gumbel", function(p, q)
  return with_gumbel(p, q, (square(p.scale / q.scale) * 0.5 - p.loc / q.scale):exp())
end)
add("Exponential", "Gumbel", function(p, q)
  local r = p.rate * q.scale
  return with_gumbel(p, q, r / (r + 1))
end)
add("Gamma", "Gumbel", function(p, q)
  return with_gumbel(p, q, (1 + (p.rate * q.scale):reciprocal()):pow(-p.concentration))
end)
add("Uniform", "Gumbel", function(p, q)
  local s = q.scale
  return with_gumbel(p, q, s / (p.high - p.low) * ((-p.low / s):exp() - (-p.high / s):exp()))
end)
add("Normal", "Laplace", function(p, q)
  local d = p.loc - q.loc
  local z = d / p.scale
  local mean = p.scale * math.sqrt(2 / math.pi) * (square(z) * -0.5):exp() + d * (z * math.sqrt(0.5)):erf()
  return -p:entropy() + (q.scale * 2):log() + mean / q.scale
end)
add("Bernoulli", "Poisson", function(p, q) return -p:entropy() - (p.probs * q.rate:log() - q.rate) end)
add("Beta", "ContinuousBernoulli", function(p, q)
  return -p:entropy() - q:mean_log(p.mean)
end)
add("Beta", "Uniform", function(p, q)
  return except(q.low:gt(0):logical_or(q.high:lt(1)), (q.high - q.low):log() - p:entropy())
end)
add("ContinuousBernoulli", "Uniform", function(p, q)
  return except(q.low:gt(0):logical_or(q.high:lt(1)), (q.high - q.low):log() - p:entropy())
end)
add("Uniform", "ContinuousBernoulli", function(p, q)
  local y = -p:entropy() - q:mean_log(p.mean)
  return except(p.low:lt(0):logical_or(p.high:gt(1)), y)
end)
add("Uniform", "Beta", function(p, q)
  local a, b, low, high = q.concentration1, q.concentration0, p.low, p.high
  local width, no, yes = high - low, 1 - high, 1 - low
  local log_x = (high:xlogy(high) - low:xlogy(low)) / width - 1
  local log_y = (yes:xlogy(yes) - no:xlogy(no)) / width - 1
  local y = -width:log() - (a - 1) * log_x - (b - 1) * log_y + a:lgamma() + b:lgamma() - (a + b):lgamma()
  return except(low:lt(0):logical_or(high:gt(1)), y)
end)
add("Uniform", "Pareto", function(p, q)
  local low, high = p.low, p.high
  local mean = (high:xlogy(high) - low:xlogy(low)) / (high - low) - 1
  local y = (q.alpha + 1) * mean - (high - low):log() - q.alpha:log() - q.alpha * q.scale:log()
  return except(low:lt(q.scale), y)
end)
add("Exponential", "Pareto", function(p) return p.rate:full_like(inf) end)
add("Gamma", "Pareto", function(p) return p.concentration:full_like(inf) end)

-- q is 0 where p is not.
infinite("Beta", "Pareto", "concentration1")
infinite("Exponential", "Beta ContinuousBernoulli Uniform", "rate")
infinite("Gamma", "Beta ContinuousBernoulli Uniform", "concentration")
infinite("Gumbel Laplace Normal", "Beta ContinuousBernoulli Exponential Gamma Pareto Uniform", "loc")
infinite("Pareto", "Beta ContinuousBernoulli Uniform", "alpha")
infinite("ContinuousBernoulli", "Pareto", "probs")
infinite("Poisson", "Bernoulli Binomial", "rate")

return M
