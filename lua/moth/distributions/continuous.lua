--- Distributions of one number whose samples are functions of a uniform number: Uniform, Exponential, Laplace, Cauchy,
-- HalfCauchy, Gumbel, Weibull, Pareto, Kumaraswamy.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Distribution = require "moth.distributions.distribution"
local constraints = require "moth.distributions.constraints"
local util = require "moth.distributions.util"

local M = {}
local EULER = 0.57721566490153286
local positive, real = constraints.positive, constraints.real

-- A class with rsample whose parameters are broadcast. { name, constraint } for each.
local function define(name, support, ...)
  local cls = class(name, Distribution)
  M[name], cls.params, cls.has_rsample = cls, { ... }, true
  cls.get_support = type(support) == "function" and support or function() return support end
  local names, text = {}, {}
  for i, p in ipairs(cls.params) do names[i], text[i] = p[1], "Tensor|number " .. p[1] .. (p[3] or "") end
  cls.__init = signature.init(("distributions.%s(%s, *, bool validate_args?)"):format(name, table.concat(text, ", ")),
    function(self, o)
      self:begin(o, unpack(names))
      if cls.verified and self.validate_args then cls.verified(self) end
    end)
  return cls
end
-- Uniform numbers in [0, 1), or in (0, 1) where the logarithm is taken.
local function uniform(self, like, shape, generator)
  return moth.rand(self:extended(shape), util.options(like, generator))
end
local function open(self, like, shape, generator)
  return uniform(self, like, shape, generator):clamp(util.finfo(like).tiny, 1 - util.finfo(like).eps / 2)
end

--- Evenly in [low, high).
local Uniform = define("Uniform", function(self) return constraints.interval(self.low, self.high) end, { "low", real },
  { "high", real })
--- Raises where low is not below high.
function Uniform:verified()
  if not B.batch_values(self.low:lt(self.high)):all():item() then
    check.fail("[distributions.Uniform] 'low' must be below 'high'")
  end
end
function Uniform:get_mean() return (self.low + self.high) * 0.5 end
function Uniform:get_mode() return self.low * (0 / 0) end
function Uniform:get_stddev() return (self.high - self.low) * math.sqrt(1 / 12) end
function Uniform:get_variance() return (self.high - self.low):square() / 12 end
function Uniform:draw(shape, generator)
  return self.low + uniform(self, self.low, shape, generator) * (self.high - self.low)
end
function Uniform:density(x)
  local inside = x:ge(self.low):logical_and(x:lt(self.high))
  return util.where(inside, -(self.high - self.low):log(), -math.huge)
end
function Uniform:distribution(x) return ((x - self.low) / (self.high - self.low)):clamp(0, 1) end
function Uniform:quantile(p) return p * (self.high - self.low) + self.low end
function Uniform:entropy() return (self.high - self.low):log() end

--- Waiting times of a process with `rate` events in a unit of time.
local Exponential = define("Exponential", constraints.nonnegative, { "rate", positive })
function Exponential:get_mean() return self.rate:reciprocal() end
function Exponential:get_mode() return self.rate:zeros_like() end
function Exponential:get_stddev() return self.rate:reciprocal() end
function Exponential:get_variance() return self.rate:pow(-2) end
function Exponential:draw(shape, generator)
  return -(-uniform(self, self.rate, shape, generator)):log1p() / self.rate
end
function Exponential:density(x) return self.rate:log() - self.rate * x end
function Exponential:distribution(x) return -(-self.rate * x):expm1() end
function Exponential:quantile(p) return -(-p):log1p() / self.rate end
function Exponential:entropy() return 1 - self.rate:log() end

--- Two exponential distributions back to back around loc.
local Laplace = define("Laplace", real, { "loc", real }, { "scale", positive })
function Laplace:get_mean() return self.loc end
function Laplace:get_mode() return self.loc end
function Laplace:get_variance() return self.scale:square() * 2 end
function Laplace:get_stddev() return self.scale * math.sqrt(2) end
function Laplace:draw(shape, generator)
  local u = open(self, self.loc, shape, generator) * 2 - 1
  return self.loc - self.scale * u:sign() * (-u:abs()):clamp(util.finfo(u).eps - 1):log1p()
end
function Laplace:density(x) return -(self.scale * 2):log() - (x - self.loc):abs() / self.scale end
function Laplace:distribution(x)
  local d = x - self.loc
  return 0.5 - d:sign() * (-d:abs() / self.scale):expm1() * 0.5
end
function Laplace:quantile(p)
  local t = p - 0.5
  return self.loc - self.scale * t:sign() * (t:abs() * -2):log1p()
end
function Laplace:entropy() return 1 + (self.scale * 2):log() end

--- The ratio of two normal numbers; it has no mean.
local Cauchy = define("Cauchy", real, { "loc", real }, { "scale", positive })
function Cauchy:get_mean() return self.loc * (0 / 0) end
function Cauchy:get_mode() return self.loc end
function Cauchy:get_variance() return self.loc:full_like(math.huge) end
function Cauchy:draw(shape, generator)
  local u = uniform(self, self.loc, shape, generator)
  return self.loc + self.scale * ((u - 0.5) * math.pi):tan()
end
function Cauchy:density(x)
  return -math.log(math.pi) - self.scale:log() - ((x - self.loc) / self.scale):square():log1p()
end
function Cauchy:distribution(x) return ((x - self.loc) / self.scale):atan() / math.pi + 0.5 end
function Cauchy:quantile(p) return ((p - 0.5) * math.pi):tan() * self.scale + self.loc end
function Cauchy:entropy() return self.scale:log() + math.log(4 * math.pi) end

--- |X| of a Cauchy X around 0.
local HalfCauchy = define("HalfCauchy", constraints.nonnegative, { "scale", positive })
function HalfCauchy:get_mean() return self.scale:full_like(math.huge) end
function HalfCauchy:get_mode() return self.scale:zeros_like() end
function HalfCauchy:get_variance() return self.scale:full_like(math.huge) end
function HalfCauchy:draw(shape, generator)
  return self.scale * (uniform(self, self.scale, shape, generator) * (math.pi / 2)):tan()
end
function HalfCauchy:density(x)
  local y = math.log(2 / math.pi) - self.scale:log() - (x / self.scale):square():log1p()
  return util.where(x:ge(0), y, -math.huge)
end
function HalfCauchy:distribution(x) return (x / self.scale):atan() * (2 / math.pi) end
function HalfCauchy:quantile(p) return (p * (math.pi / 2)):tan() * self.scale end
function HalfCauchy:entropy() return self.scale:log() + math.log(2 * math.pi) end

--- The largest of many numbers.
local Gumbel = define("Gumbel", real, { "loc", real }, { "scale", positive })
function Gumbel:get_mean() return self.loc + self.scale * EULER end
function Gumbel:get_mode() return self.loc end
function Gumbel:get_stddev() return self.scale * (math.pi / math.sqrt(6)) end
function Gumbel:get_variance() return self.stddev:square() end
function Gumbel:draw(shape, generator) return self:quantile(open(self, self.loc, shape, generator)) end
function Gumbel:density(x)
  local y = (self.loc - x) / self.scale
  return y - y:exp() - self.scale:log()
end
function Gumbel:distribution(x) return (-((self.loc - x) / self.scale):exp()):exp() end
function Gumbel:quantile(p) return self.loc - self.scale * (-p:log()):log() end
function Gumbel:entropy() return self.scale:log() + (1 + EULER) end

--- Lifetimes: exponential for concentration 1.
local Weibull = define("Weibull", positive, { "scale", positive }, { "concentration", positive })
function Weibull:get_mean() return self.scale * (1 + self.concentration:reciprocal()):lgamma():exp() end
function Weibull:get_mode()
  local k = self.concentration
  return self.scale * ((k - 1) / k):pow(k:reciprocal())
end
function Weibull:get_variance()
  local r = self.concentration:reciprocal()
  return self.scale:square() * ((1 + r * 2):lgamma():exp() - ((1 + r):lgamma() * 2):exp())
end
function Weibull:draw(shape, generator) return self:quantile(open(self, self.scale, shape, generator)) end
function Weibull:density(x)
  local k, z = self.concentration, x / self.scale
  return (k / self.scale):log() + (k - 1) * z:log() - z:pow(k)
end
function Weibull:distribution(x) return -(-(x / self.scale):pow(self.concentration)):expm1() end
function Weibull:quantile(p) return self.scale * (-(-p):log1p()):pow(self.concentration:reciprocal()) end
function Weibull:entropy()
  local k = self.concentration
  return (1 - k:reciprocal()) * EULER + (self.scale / k):log() + 1
end

--- A power law above scale.
local Pareto = define("Pareto", function(self) return constraints.greater_than_eq(self.scale) end,
  { "scale", positive }, { "alpha", positive })
function Pareto:get_mean()
  local a = self.alpha
  return util.where(a:le(1), math.huge, a:clamp(1) * self.scale / (a:clamp(1) - 1))
end
function Pareto:get_mode() return self.scale end
function Pareto:get_variance()
  local a = self.alpha:clamp(2)
  return util.where(self.alpha:le(2), math.huge, self.scale:square() * a / ((a - 1):square() * (a - 2)))
end
function Pareto:draw(shape, generator) return self:quantile(open(self, self.scale, shape, generator)) end
function Pareto:density(x)
  return self.alpha:log() + self.alpha * self.scale:log() - (self.alpha + 1) * x:log()
end
function Pareto:distribution(x) return 1 - (self.scale / x):pow(self.alpha) end
function Pareto:quantile(p) return self.scale * (-(-p):log1p() / self.alpha):exp() end
function Pareto:entropy() return (self.scale / self.alpha):log() + 1 + self.alpha:reciprocal() end

--- On [0, 1], as Beta, with a closed form of its cdf.
local Kumaraswamy = define("Kumaraswamy", constraints.unit_interval, { "concentration1", positive },
  { "concentration0", positive })
local function moment(self, n)
  local b = self.concentration0
  local a = 1 + self.concentration1:reciprocal() * n
  return (a:lgamma() + b:lgamma() - (a + b):lgamma() + b:log()):exp()
end
function Kumaraswamy:get_mean() return moment(self, 1) end
function Kumaraswamy:get_variance() return moment(self, 2) - moment(self, 1):square() end
function Kumaraswamy:get_mode()
  local a, b = self.concentration1, self.concentration0
  local y = (((a - 1) / (a * b - 1)):log() / a):exp()
  return util.where(a:lt(1):logical_or(b:lt(1)), 0 / 0, y)
end
function Kumaraswamy:draw(shape, generator)
  return self:quantile(open(self, self.concentration1, shape, generator))
end
function Kumaraswamy:density(x)
  local a, b = self.concentration1, self.concentration0
  return a:log() + b:log() + (a - 1):xlogy(x) + moth.special.xlog1py(b - 1, -x:pow(a))
end
function Kumaraswamy:distribution(x)
  local one = x:ge(1) -- the logarithm of 0 has no gradient
  local y = moth.where(one, 0.5, x):pow(self.concentration1)
  return moth.where(one, 1, -((-y):log1p() * self.concentration0):expm1())
end
function Kumaraswamy:quantile(p)
  return (-((-p):log1p() / self.concentration0):expm1()):pow(self.concentration1:reciprocal())
end
function Kumaraswamy:entropy()
  local a, b = self.concentration1, self.concentration0
  local harmonic = (b + 1):digamma() + EULER
  return 1 - b:reciprocal() + (1 - a:reciprocal()) * harmonic - a:log() - b:log()
end

return M
