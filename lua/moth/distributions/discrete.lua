--- Bernoulli, Geometric, Binomial, NegativeBinomial, Poisson, ContinuousBernoulli (in continuous_bernoulli.lua): counts
-- and yes or no. Counts are numbers from 0.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Distribution = require "moth.distributions.distribution"
local constraints = require "moth.distributions.constraints"
local util = require "moth.distributions.util"
local continuous = require "moth.distributions.continuous_bernoulli"

local M = {}
local NAN = 0 / 0
local of_probs = "Tensor|number probs?, Tensor|number logits?, *, bool validate_args?)"

local function define(name, support)
  local cls = class(name, Distribution)
  M[name] = cls
  cls.get_support = type(support) == "function" and support or function() return support end
  return cls
end
-- Classes of yes-or-no probabilities: probs and logits, whichever is not given.
local function binary(cls)
  cls.params = { { "probs", constraints.unit_interval }, { "logits", constraints.real } }
  function cls:lazy_probs() return util.logits_to_probs(self.logits, true) end
  function cls:lazy_logits() return util.probs_to_logits(self.probs, true) end
  cls.chances = util.chances
end
local function rate_of(t, shape, generator) return moth.rand(shape, util.options(t, generator)) end

local Bernoulli = define("Bernoulli", constraints.boolean)
binary(Bernoulli)
Bernoulli.has_enumerate_support = true
--- 1 with probability probs, else 0.
Bernoulli.__init = signature.init("distributions.Bernoulli(" .. of_probs, function(self, o) self:begin_probs(o, 0) end)
function Bernoulli:get_mean() return self.probs end
function Bernoulli:get_mode() return util.where(self.probs:eq(0.5), NAN, self.probs:ge(0.5):to(self.probs:dtype())) end
function Bernoulli:get_variance()
  local _, _, p, rest = self:chances()
  return p * rest
end
function Bernoulli:draw(shape, generator)
  return (self.probs:expand(self:extended(shape)):bernoulli { generator = generator })
end
function Bernoulli:density(x) return -util.bce(util.broadcast(self.logits, x)) end
function Bernoulli:entropy() return util.bce(self.logits, self.probs) end
--- What enumerate_support gives: all values.
function Bernoulli:enumerate(expand)
  return self:enumerated(moth.arange(2, util.options(self:param())), expand)
end

M.ContinuousBernoulli = continuous(define("ContinuousBernoulli", constraints.unit_interval), binary, rate_of)

local Geometric = define("Geometric", constraints.nonnegative_integer)
binary(Geometric)
--- The number of failures before the first success: 0, 1, …
Geometric.__init = signature.init("distributions.Geometric(" .. of_probs, function(self, o)
  self:begin_probs(o, 0)
  if self.validate_args and self.given == "probs" then
    util.verify("distributions.Geometric", "argument 'probs'", constraints.positive, self.probs)
  end
end)
function Geometric:get_mean() return self.given == "logits" and (-self.logits):exp() or 1 / self.probs - 1 end
function Geometric:get_mode() return self.probs:zeros_like() end
function Geometric:get_variance()
  if self.given == "probs" then return (1 / self.probs - 1) / self.probs end
  local odds = (-self.logits):exp()
  return odds * (1 + odds)
end
function Geometric:draw(shape, generator)
  local u = rate_of(self.probs, self:extended(shape), generator):clamp(util.finfo(self.probs).tiny)
  return (u:log() / (-self.probs):log1p()):floor()
end
function Geometric:density(x)
  if self.given == "probs" then
    local p = util.where(self.probs:eq(1):logical_and(x:eq(0)), 0, self.probs)
    return moth.special.xlog1py(x, -p) + self.probs:log()
  end
  local yes, no = self:chances()
  return util.times(x, no) + yes
end
function Geometric:entropy()
  local l = self.logits
  if self.given == "logits" then return (util.log_softplus(l) - l):exp() - moth.F.logsigmoid(l) end
  local yes, no, p, rest = self:chances()
  return -util.times(rest, no) / p - yes
end

-- Classes with total_count beside probs or logits.
local function counted(self, o, constraint)
  self:begin_probs(o, 0)
  local count, param = util.broadcast(o.total_count == nil and 1 or o.total_count, self:param())
  self.total_count, self[self.given] = count, param
  self.batch_shape = util.shape(B.size(param))
  if self.validate_args then util.verify(self:where(), "argument 'total_count'", constraint, count) end
end
local function with_count(cls, constraint)
  binary(cls)
  cls.params = { { "total_count", constraint }, unpack(cls.params) }
end

local Binomial = define("Binomial", function(self) return constraints.integer_interval(0, self.total_count) end)
with_count(Binomial, constraints.nonnegative_integer)
Binomial.has_enumerate_support = true
--- Successes in total_count trials.
Binomial.__init = signature.init("distributions.Binomial(Tensor|number total_count=1, " .. of_probs, function(self, o)
  counted(self, o, constraints.nonnegative_integer)
end)
function Binomial:get_mean() return self.total_count * self.probs end
function Binomial:get_mode() return ((self.total_count + 1) * self.probs):floor():minimum(self.total_count) end
function Binomial:get_variance()
  local _, _, p, rest = self:chances()
  return self.total_count * p * rest
end
function Binomial:draw(shape, generator)
  shape = self:extended(shape)
  return (moth.binomial(self.total_count:expand(shape), self.probs:expand(shape), { generator = generator }))
end
function Binomial:density(x)
  local n, l = self.total_count, self.logits
  return util.times(x, moth.F.logsigmoid(l)) + util.times(n - x, moth.F.logsigmoid(-l)) + (n + 1):lgamma()
    - (x + 1):lgamma() - (n - x + 1):lgamma()
end
local function one_count(self, name)
  local n = self.total_count:amax():item()
  if n ~= self.total_count:amin():item() then
    check.fail("[%s] total_count must be the same for the whole batch", name)
  end
  return n
end
--- What enumerate_support gives: all values.
function Binomial:enumerate(expand)
  local n = one_count(self, "enumerate_support")
  return self:enumerated(moth.arange(n + 1, util.options(self:param())), expand)
end
function Binomial:entropy()
  one_count(self, "entropy")
  local p = self:density(self:enumerate(false))
  return -util.times(p:exp(), p):sum(1)
end

local NegativeBinomial = define("NegativeBinomial", constraints.nonnegative_integer)
with_count(NegativeBinomial, constraints.nonnegative)
--- Successes, each of probability probs, before total_count failures (which need not be an integer).
NegativeBinomial.__init = signature.init("distributions.NegativeBinomial(Tensor|number total_count, " .. of_probs,
  function(self, o) counted(self, o, constraints.nonnegative) end)
function NegativeBinomial:get_mean() return self.total_count * self.logits:exp() end
function NegativeBinomial:get_mode() return ((self.total_count - 1) * self.logits:exp()):floor():clamp(0) end
function NegativeBinomial:get_variance() return self.mean / (-self.logits):sigmoid() end
function NegativeBinomial:draw(shape, generator)
  shape = self:extended(shape)
  local o = { generator = generator }
  local rate = moth.standard_gamma(self.total_count:expand(shape), o) * self.logits:exp()
  return (moth.poisson(rate, o))
end
function NegativeBinomial:density(x)
  local n, logits = self.total_count, self.logits
  local weight = n * moth.F.logsigmoid(-logits) + x * moth.F.logsigmoid(logits)
  local norm = (1 + x):lgamma() + n:lgamma() - (n + x):lgamma()
  return weight - util.where((n + x):eq(0), 0, norm)
end

local Poisson = define("Poisson", constraints.nonnegative_integer)
Poisson.params = { { "rate", constraints.nonnegative } }
--- Events in a unit of time at a rate.
Poisson.__init = signature.init("distributions.Poisson(Tensor|number rate, *, bool validate_args?)", function(self, o)
  self:begin(o, "rate")
end)
function Poisson:get_mean() return self.rate end
function Poisson:get_mode() return self.rate:floor() end
function Poisson:get_variance() return self.rate end
function Poisson:draw(shape, generator)
  return (moth.poisson(self.rate:expand(self:extended(shape)), { generator = generator }))
end
function Poisson:density(x) return x:xlogy(self.rate) - self.rate - (x + 1):lgamma() end

return M
