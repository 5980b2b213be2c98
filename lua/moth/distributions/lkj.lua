--- LKJCholesky, of correlation matrices, and GeneralizedPareto, of tails.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Distribution = require "moth.distributions.distribution"
local constraints = require "moth.distributions.constraints"
local util = require "moth.distributions.util"

local M = {}

--- Cholesky factors (dim, dim) of correlation matrices, with a density that goes as the matrix's determinant to the
-- power of concentration - 1: even for 1, near the unit matrix above (Lewandowski, Kurowicka and Joe 2009).
local LKJ = class("LKJCholesky", Distribution)
M.LKJCholesky = LKJ
LKJ.params = { { "concentration", constraints.positive } }
function LKJ.get_support() return constraints.corr_cholesky end
LKJ.__init = signature.init("distributions.LKJCholesky(size dim, Tensor|number concentration=1, *, \z
  bool validate_args?)", function(self, o)
    if o.dim < 2 then check.fail("[distributions.LKJCholesky] dim must be at least 2, got %d", o.dim) end
    self:begin(o, "concentration")
    self.dim, self.event_shape = o.dim, util.shape { o.dim, o.dim }
  end)
function LKJ:copied(shape)
  local new = Distribution.copied(self, shape)
  new.dim = self.dim
  return new
end
-- The onion method: the rows are directions on spheres, whose lengths are roots of Beta samples.
function LKJ:draw(shape, generator)
  local n, o = self.dim, util.options(self.concentration, generator)
  local before = moth.F.pad(moth.arange(n - 1, util.options(self.concentration)), { 1, 0 })
  local top = (self.concentration + (n - 2) / 2):unsqueeze(-1) - before * 0.5
  local full = util.shape(shape, self.batch_shape, { n })
  local g = { generator = generator }
  local a = moth.standard_gamma((before + 0.5):expand(full), g)
  local b = moth.standard_gamma(top:expand(full), g)
  local y = (a / (a + b)):unsqueeze(-1)
  local normal = moth.randn(self:extended(shape), o):tril(-1)
  local norm = normal:square():sum(-1, true):sqrt()
  local w = y:sqrt() * normal / norm:clamp(util.finfo(norm).tiny)
  return w + (1 - w:square():sum(-1)):clamp(util.finfo(w).tiny):sqrt():diag_embed()
end
function LKJ:density(x)
  local n, c = self.dim, self.concentration
  local logs = x:diagonal(0, -2, -1):narrow(-1, 2, n - 1):log()
  local order = (c - 1):unsqueeze(-1) * 2 + n - moth.arange(2, n + 1, util.options(c))
  local alpha = c + (n - 1) / 2
  local normal = (n - 1) / 2 * math.log(math.pi) + (alpha - 0.5):mvlgamma(n - 1) - alpha:lgamma() * (n - 1)
  return (order * logs):sum(-1) - normal
end

--- What is above loc in a sample that is large: exponential for concentration 0, heavier above, bounded below.
local GeneralizedPareto = class("GeneralizedPareto", Distribution)
M.GeneralizedPareto = GeneralizedPareto
GeneralizedPareto.has_rsample = true
GeneralizedPareto.params = { { "loc", constraints.real }, { "scale", constraints.positive },
  { "concentration", constraints.real } }
GeneralizedPareto.__init = signature.init("distributions.GeneralizedPareto(Tensor|number loc, Tensor|number scale, \z
  Tensor|number concentration, *, bool validate_args?)",
  function(self, o) self:begin(o, "loc", "scale", "concentration") end)
-- Where concentration is 0, and the concentration with ones there.
local function parts(self)
  local zero = self.concentration:abs():le(1e-8)
  return zero, moth.where(zero, 1, self.concentration)
end
function GeneralizedPareto:get_support()
  local c = self.concentration
  local falls = c:lt(0)
  local high = moth.where(falls, self.loc - self.scale / moth.where(falls, c, -1), math.huge)
  return constraints.interval(self.loc, high)
end
function GeneralizedPareto:get_mean()
  local valid = self.concentration:lt(1)
  return util.where(valid, self.loc + self.scale / (1 - moth.where(valid, self.concentration, 0.5)), 0 / 0)
end
function GeneralizedPareto:get_mode() return self.loc end
function GeneralizedPareto:get_variance()
  local valid = self.concentration:lt(0.5)
  local c = moth.where(valid, self.concentration, 0.25)
  return util.where(valid, self.scale:square() / ((1 - c):square() * (1 - c * 2)), 0 / 0)
end
function GeneralizedPareto:draw(shape, generator)
  return self:quantile(moth.rand(self:extended(shape), util.options(self.loc, generator)))
end
function GeneralizedPareto:density(x)
  local zero, c = parts(self)
  local z = (x - self.loc) / self.scale
  return -self.scale:log() - moth.where(zero, z, (1 / c + 1) * (c * z):log1p())
end
--- log of the probability of more than a value, and of less.
GeneralizedPareto.log_survival_function = signature.method("log_survival_function(Tensor|number value)",
  function(self, x)
    local zero, c = parts(self)
    local z = (util.like(x, self.loc) - self.loc) / self.scale
    return (moth.where(zero, -z, -(c * z):log1p() / c))
  end)
--- The logarithm of cdf.
GeneralizedPareto.log_cdf = signature.method("log_cdf(Tensor|number value)", function(self, x)
  return ((-self:log_survival_function(x):exp()):log1p())
end)
function GeneralizedPareto:distribution(x) return -self:log_survival_function(x):expm1() end
function GeneralizedPareto:quantile(p)
  local zero, c = parts(self)
  local rest = (-p):log1p()
  return moth.where(zero, self.loc - self.scale * rest, self.loc + self.scale / c * (-c * rest):expm1())
end
function GeneralizedPareto:entropy() return self.scale:log() + self.concentration + 1 end

return M
