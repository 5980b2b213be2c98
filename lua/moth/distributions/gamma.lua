--- Gamma, InverseGamma, Chi2, Beta, Dirichlet, StudentT, FisherSnedecor: made of gamma samples, whose gradients are
-- those of a sample whose probability to be exceeded stays.
local moth = require "moth"
local class = require "moth.class"
local signature = require "moth.utils.signature"
local Distribution = require "moth.distributions.distribution"
local constraints = require "moth.distributions.constraints"
local util = require "moth.distributions.util"

local M = {}
local positive, real = constraints.positive, constraints.real
local NAN = 0 / 0

local function define(name, base, support, params)
  local cls = class(name, base)
  M[name], cls.params, cls.has_rsample = cls, params, true
  cls.get_support = function() return support end
  return cls
end
local function standard_gamma(shape, concentration, generator)
  return (moth.standard_gamma(concentration:expand(shape), { generator = generator }))
end

local Gamma = define("Gamma", Distribution, constraints.nonnegative, { { "concentration", positive },
  { "rate", positive } })
--- Of shape concentration and scale 1 / rate: the sum of that many exponential waiting times.
Gamma.__init = signature.init("distributions.Gamma(Tensor|number concentration, Tensor|number rate, *, \z
  bool validate_args?)", function(self, o) self:begin(o, "concentration", "rate") end)
function Gamma:get_mean() return self.concentration / self.rate end
function Gamma:get_mode() return ((self.concentration - 1) / self.rate):clamp(0) end
function Gamma:get_variance() return self.concentration / self.rate:square() end
function Gamma:draw(shape, generator)
  local x = standard_gamma(self:extended(shape), self.concentration, generator) / self.rate
  return x:clamp(util.finfo(x).tiny)
end
function Gamma:density(x)
  local a = self.concentration
  return a:xlogy(self.rate) + (a - 1):xlogy(x) - self.rate * x - a:lgamma()
end
function Gamma:distribution(x) return self.concentration:igamma(self.rate * x) end
function Gamma:entropy()
  local a = self.concentration
  return a - self.rate:log() + a:lgamma() + (1 - a) * a:digamma()
end

local InverseGamma = define("InverseGamma", Distribution, positive, Gamma.params)
--- 1 / X of a gamma X.
InverseGamma.__init = signature.init("distributions.InverseGamma(Tensor|number concentration, Tensor|number rate, *, \z
  bool validate_args?)", function(self, o) self:begin(o, "concentration", "rate") end)
function InverseGamma:get_mean()
  local a = self.concentration
  return util.where(a:gt(1), self.rate / (a - 1), math.huge)
end
function InverseGamma:get_mode() return self.rate / (self.concentration + 1) end
function InverseGamma:get_variance()
  local a = self.concentration
  return util.where(a:gt(2), self.rate:square() / ((a - 1):square() * (a - 2)), math.huge)
end
function InverseGamma:draw(shape, generator)
  local x = standard_gamma(self:extended(shape), self.concentration, generator)
  return self.rate / x:clamp(util.finfo(x).tiny)
end
function InverseGamma:density(x)
  local a = self.concentration
  return a:xlogy(self.rate) - (a + 1) * x:log() - self.rate / x - a:lgamma()
end
function InverseGamma:distribution(x) return self.concentration:igammac(self.rate / x) end
function InverseGamma:entropy()
  local a = self.concentration
  return a + self.rate:log() + a:lgamma() - (1 + a) * a:digamma()
end

local Chi2 = define("Chi2", Gamma, constraints.nonnegative, { { "df", positive } })
--- The sum of df squares of standard normal numbers.
Chi2.__init = signature.init("distributions.Chi2(Tensor|number df, *, bool validate_args?)", function(self, o)
  self:begin(o, "df")
end)
function Chi2:lazy_concentration() return self.df * 0.5 end
function Chi2:lazy_rate() return self.df:full_like(0.5) end

-- Logarithms of gamma samples up to a common factor do not underflow for small concentrations: a sample of a + 1, times
-- u^(1 / a).
local function log_gamma(concentration, generator)
  local u = moth.rand(concentration:size(), util.options(concentration, generator))
  return moth.standard_gamma(concentration + 1, { generator = generator }):log() + (-u):log1p() / concentration
end
local dirichlet
local function sample_dirichlet(concentration, generator)
  dirichlet = dirichlet or moth.autograd.Function {
    name = "Dirichlet",
    forward = function(ctx, c, g)
      local x = log_gamma(c, g):softmax(-1)
      ctx:save_for_backward(x, c)
      return x
    end,
    backward = function(ctx, grad)
      local x, c = ctx:saved_tensors()
      local total = c:sum(-1, true):expand(c:size())
      return moth.ops.moth.dirichlet_grad(x, c, total) * (grad - (x * grad):sum(-1, true)), nil
    end,
  }
  return (dirichlet(concentration, generator))
end

local Dirichlet = define("Dirichlet", Distribution, constraints.simplex,
  { { "concentration", constraints.independent(positive, 1) } })
--- Probabilities of classes: concentration (…, K).
Dirichlet.__init = signature.init("distributions.Dirichlet(Tensor concentration, *, bool validate_args?)",
  function(self, o)
    local c = util.broadcast(o.concentration)
    if c:dim() < 1 then
      require("moth.utils.check").fail("[distributions.Dirichlet] 'concentration' must have at least one dimension")
    end
    local size = c:size()
    self.concentration = c
    self.batch_shape, self.event_shape = util.part(size, 1, #size - 1), util.part(size, #size)
    self:validates(o.validate_args)
    if self.validate_args then self:verify() end
  end)
function Dirichlet:get_mean() return self.concentration / self.concentration:sum(-1, true) end
function Dirichlet:get_mode()
  local c = self.concentration
  local above = (c - 1):clamp(0)
  local corner = moth.F.one_hot(c:argmax(-1), c:size(-1)):to(c:dtype())
  return util.where(c:lt(1):all(-1, true), corner, above / above:sum(-1, true))
end
function Dirichlet:get_variance()
  local c = self.concentration
  local total = c:sum(-1, true)
  return c * (total - c) / (total:square() * (total + 1))
end
function Dirichlet:draw(shape, generator)
  return sample_dirichlet(self.concentration:expand(self:extended(shape)), generator)
end
function Dirichlet:density(x)
  local c = self.concentration
  return (c - 1):xlogy(x):sum(-1) + c:sum(-1):lgamma() - c:lgamma():sum(-1)
end
function Dirichlet:entropy()
  local c = self.concentration
  local k, total = c:size(-1), c:sum(-1)
  return c:lgamma():sum(-1) - total:lgamma() - (k - total) * total:digamma() - ((c - 1) * c:digamma()):sum(-1)
end

local Beta = define("Beta", Distribution, constraints.unit_interval, { { "concentration1", positive },
  { "concentration0", positive } })
--- A probability: concentration1 for yes, concentration0 for no.
Beta.__init = signature.init("distributions.Beta(Tensor|number concentration1, Tensor|number concentration0, *, \z
  bool validate_args?)", function(self, o) self:begin(o, "concentration1", "concentration0") end)
local function pair(self) return moth.stack({ self.concentration1, self.concentration0 }, -1) end
function Beta:get_mean() return self.concentration1 / (self.concentration1 + self.concentration0) end
function Beta:get_mode()
  return Dirichlet(pair(self), { validate_args = false }).mode:select(-1, 1)
end
function Beta:get_variance()
  local total = self.concentration1 + self.concentration0
  return self.concentration1 * self.concentration0 / (total:square() * (total + 1))
end
function Beta:draw(shape, generator)
  local c = pair(self)
  local x = sample_dirichlet(c:expand(util.shape(self:extended(shape), { 2 })), generator):select(-1, 1)
  return x
end
function Beta:density(x)
  local a, b = self.concentration1, self.concentration0
  return (a - 1):xlogy(x) + moth.special.xlog1py(b - 1, -x) + (a + b):lgamma() - a:lgamma() - b:lgamma()
end
function Beta:entropy()
  local a, b = self.concentration1, self.concentration0
  local n = a + b
  return a:lgamma() + b:lgamma() - n:lgamma() - (2 - n) * n:digamma() - (a - 1) * a:digamma() - (b - 1) * b:digamma()
end

local StudentT = define("StudentT", Distribution, real, { { "df", positive }, { "loc", real }, { "scale", positive } })
--- A normal number of which the deviation is estimated, too, with df degrees of freedom.
StudentT.__init = signature.init("distributions.StudentT(Tensor|number df, Tensor|number loc=0, \z
  Tensor|number scale=1, *, bool validate_args?)", function(self, o) self:begin(o, "df", "loc", "scale") end)
function StudentT:get_mean() return util.where(self.df:gt(1), self.loc, NAN) end
function StudentT:get_mode() return self.loc end
function StudentT:get_variance()
  local d = self.df
  local finite = d:gt(2)
  local y = util.where(finite, self.scale:square() * d / (moth.where(finite, d, 3) - 2), math.huge)
  return util.where(d:gt(1), y, NAN)
end
function StudentT:draw(shape, generator)
  shape = self:extended(shape)
  local x = moth.randn(shape, util.options(self.df, generator))
  local z = standard_gamma(shape, self.df * 0.5, generator) * 2
  return self.loc + self.scale * x * (z:clamp(util.finfo(z).tiny) / self.df):rsqrt()
end
function StudentT:density(x)
  local d, y = self.df, (x - self.loc) / self.scale
  local z = self.scale:log() + d:log() * 0.5 + 0.5 * math.log(math.pi) + (d * 0.5):lgamma() - ((d + 1) * 0.5):lgamma()
  return (d + 1) * -0.5 * (y:square() / d):log1p() - z
end
function StudentT:entropy()
  local d = self.df
  local half, more = d * 0.5, (d + 1) * 0.5
  local beta = half:lgamma() + math.log(math.pi) * 0.5 - more:lgamma()
  return self.scale:log() + more * (more:digamma() - half:digamma()) + d:log() * 0.5 + beta
end

local FisherSnedecor = define("FisherSnedecor", Distribution, positive, { { "df1", positive }, { "df2", positive } })
--- The ratio of two estimated variances, of df1 and df2 degrees of freedom.
FisherSnedecor.__init = signature.init("distributions.FisherSnedecor(Tensor|number df1, Tensor|number df2, *, \z
  bool validate_args?)", function(self, o) self:begin(o, "df1", "df2") end)
function FisherSnedecor:get_mean()
  return util.where(self.df2:gt(2), self.df2 / (self.df2 - 2), NAN)
end
function FisherSnedecor:get_mode()
  local a, b = self.df1, self.df2
  return util.where(a:gt(2), (a - 2) / a * b / (b + 2), NAN)
end
function FisherSnedecor:get_variance()
  local a, b = self.df1, self.df2
  local y = b:square() * 2 * (a + b - 2) / (a * (b - 2):square() * (b - 4))
  return util.where(b:gt(4), y, NAN)
end
function FisherSnedecor:draw(shape, generator)
  shape = self:extended(shape)
  local x = standard_gamma(shape, self.df1 * 0.5, generator) / self.df1
  local y = standard_gamma(shape, self.df2 * 0.5, generator) / self.df2
  local tiny = util.finfo(x).tiny
  return (x / y:clamp(tiny)):clamp(tiny)
end
function FisherSnedecor:density(x)
  local a, b = self.df1 * 0.5, self.df2 * 0.5
  local ratio = self.df1 / self.df2
  local norm = a:lgamma() + b:lgamma() - (a + b):lgamma() - a * ratio:log()
  return (a - 1) * x:log() - (a + b) * (ratio * x):log1p() - norm
end

return M
