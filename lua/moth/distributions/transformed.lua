--- TransformedDistribution: samples of a distribution, put through functions. LogNormal, LogisticNormal, the relaxed
-- distributions, whose samples have gradients: RelaxedBernoulli, RelaxedOneHotCategorical.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Distribution = require "moth.distributions.distribution"
local Independent = require("moth.distributions.combined").Independent
local constraints = require "moth.distributions.constraints"
local transforms = require "moth.distributions.transforms"
local util = require "moth.distributions.util"
local Normal = require("moth.distributions.normal").Normal

local M = {}

local Transformed = class("TransformedDistribution", Distribution)
M.TransformedDistribution = Transformed

-- base through a list of transforms; dimensions of the base that they mix belong to the event.
local function begin(self, base, list, validate)
  for i, t in ipairs(list) do
    if not class.is_a(t, transforms.Transform) then
      check.fail("[%s] transforms: expected a transform as element %d, got %s", self:where(), i, class.name(t))
    end
  end
  self.transforms = list
  local all = transforms.ComposeTransform(list)
  local whole = util.shape(base.batch_shape, base.event_shape)
  if #whole < all.domain.event_dim then
    check.fail("[%s] the transforms take events of %d dimensions, %s has %d in all", self:where(), all.domain.event_dim,
      class.name(base), #whole)
  end
  local out = all:forward_shape(whole)
  base = base:expand(util.part(all:inverse_shape(out), 1, #all:inverse_shape(out) - #base.event_shape))
  local more = all.domain.event_dim - #base.event_shape
  if more > 0 then base = Independent(base, more) end
  self.base_dist, self.all = base, all
  local event = all.codomain.event_dim + math.max(#base.event_shape - all.domain.event_dim, 0)
  self.batch_shape, self.event_shape = util.part(out, 1, #out - event), util.part(out, #out - event + 1)
  self:validates(validate)
end
--- Samples x of base, as transforms(x): a transform, or a list of them.
Transformed.__init = signature.init("distributions.TransformedDistribution(Distribution base_distribution, \z
  Transform|list transforms, *, bool validate_args?)", function(self, o)
  begin(self, o.base_distribution, class.is_a(o.transforms, transforms.Transform) and { o.transforms } or o.transforms,
    o.validate_args)
end)
function Transformed.__index(self, key)
  if key == "has_rsample" then return rawget(self, "base_dist").has_rsample end
  return Distribution.__index(self, key)
end
function Transformed:get_support()
  local last = self.all.codomain
  if #self.transforms == 0 then return self.base_dist.support end
  local more = #self.event_shape - last.event_dim
  return more > 0 and constraints.independent(last, more) or last
end
function Transformed:draw(shape, generator)
  return self.all:forward(self.base_dist:draw(shape, generator))
end
function Transformed:density(y)
  local event, sum = #self.event_shape, nil
  for i = #self.transforms, 1, -1 do
    local t = self.transforms[i]
    local x = t:backward(y)
    event = event + t.domain.event_dim - t.codomain.event_dim
    local own = util.sum_last(t:log_det(x, y), event - t.domain.event_dim)
    sum, y = sum and sum + own or own, x
  end
  local p = util.sum_last(self.base_dist:density(y), event - #self.base_dist.event_shape)
  return sum and p - sum or p
end
-- 1 - p where the functions fall.
local function turned(self, p)
  local sign = self.all.sign
  if sign == nil then check.fail("[cdf] %s has transforms without a sign", class.name(self)) end
  if type(sign) == "number" then return sign == 1 and p or 1 - p end
  return (p - 0.5) * sign + 0.5
end
function Transformed:distribution(y)
  return turned(self, self.base_dist:distribution(self.all:backward(y)))
end
function Transformed:quantile(p)
  return self.all:forward(self.base_dist:quantile(turned(self, p)))
end
function Transformed:expanded(shape)
  local new = self:copied(shape)
  local whole = self.all:inverse_shape(util.shape(shape, self.event_shape))
  new.transforms, new.all = self.transforms, self.all
  new.base_dist = self.base_dist:expand(util.part(whole, 1, #whole - #self.base_dist.event_shape))
  return new
end
function Transformed:__tostring()
  local parts = {}
  for i, t in ipairs(self.transforms) do parts[i] = tostring(t) end
  return ("%s(%s, [%s])"):format(class.name(self), tostring(self.base_dist), table.concat(parts, ", "))
end

-- A class made of a base and transforms; its parameters are the base's.
local function define(name, text, make, fields)
  local cls = class(name, Transformed)
  M[name] = cls
  cls.__init = signature.init(("distributions.%s(%s, *, bool validate_args?)"):format(name, text), function(self, o)
    local base, list = make(o)
    begin(self, base, list, o.validate_args)
  end)
  for _, key in ipairs(fields) do cls["get_" .. key] = function(self) return self.base_dist[key] end end
  return cls
end

--- exp of a normal number.
local LogNormal = define("LogNormal", "Tensor|number loc, Tensor|number scale", function(o)
  return Normal(o.loc, o.scale, { validate_args = o.validate_args }), { transforms.ExpTransform() }
end, { "loc", "scale" })
function LogNormal:get_mean() return (self.loc + self.scale:square() * 0.5):exp() end
function LogNormal:get_mode() return (self.loc - self.scale:square()):exp() end
function LogNormal:get_variance()
  local s = self.scale:square()
  return s:expm1() * (self.loc * 2 + s):exp()
end
function LogNormal:entropy() return self.base_dist:entropy() + self.loc end

--- Probabilities of K + 1 classes, from K normal numbers.
define("LogisticNormal", "Tensor loc, Tensor|number scale", function(o)
  local base = Normal(o.loc, o.scale, { validate_args = o.validate_args })
  if #base.batch_shape == 0 then
    check.fail("[distributions.LogisticNormal] 'loc' or 'scale' must have at least one dimension")
  end
  return base, { transforms.StickBreakingTransform() }
end, {})

-- log(p / (1 - p)) of a relaxed Bernoulli number.
local Logit = class("LogitRelaxedBernoulli", Distribution)
M.LogitRelaxedBernoulli = Logit
Logit.has_rsample = true
Logit.params = { { "probs", constraints.unit_interval }, { "logits", constraints.real } }
function Logit:get_support() return constraints.real end -- luacheck: ignore self
function Logit:lazy_probs() return util.logits_to_probs(self.logits, true) end
function Logit:lazy_logits() return util.probs_to_logits(self.probs, true) end
Logit.__init = signature.init("distributions.LogitRelaxedBernoulli(Tensor|number temperature, Tensor|number probs?, \z
  Tensor|number logits?, *, bool validate_args?)", function(self, o)
  self.temperature = o.temperature
  self:begin_probs(o, 0)
end)
function Logit:copied(shape)
  local new = Distribution.copied(self, shape)
  new.temperature = self.temperature
  return new
end
function Logit:draw(shape, generator)
  local p = util.clamp_probs(self.probs)
  local u = util.clamp_probs(moth.rand(self:extended(shape), util.options(p, generator)))
  return (u:log() - (-u):log1p() + p:log() - (-p):log1p()) / self.temperature
end
function Logit:density(x)
  local d = self.logits - x * self.temperature
  return util.like(self.temperature, d):log() + d - d:exp():log1p() * 2
end

--- Numbers in (0, 1) that tend to 0 and 1 as temperature falls (Maddison et al. 2016, Jang et al. 2016).
define("RelaxedBernoulli", "Tensor|number temperature, Tensor|number probs?, Tensor|number logits?", function(o)
  return Logit(o), { transforms.SigmoidTransform() }
end, { "probs", "logits", "temperature" })

-- The logarithm of a relaxed one-hot vector.
local Exp = class("ExpRelaxedCategorical", Distribution)
M.ExpRelaxedCategorical = Exp
Exp.has_rsample = true
Exp.params = { { "probs", constraints.simplex }, { "logits", constraints.real_vector } }
function Exp:get_support() return constraints.real_vector end -- luacheck: ignore self
function Exp:lazy_probs() return util.logits_to_probs(self.logits) end
function Exp:lazy_logits() return util.probs_to_logits(self.probs) end
Exp.__init = signature.init("distributions.ExpRelaxedCategorical(Tensor|number temperature, Tensor probs?, \z
  Tensor logits?, *, bool validate_args?)", function(self, o)
  local base = require("moth.distributions.categorical").Categorical { probs = o.probs, logits = o.logits,
    validate_args = o.validate_args }
  self.temperature, self.given = o.temperature, base.given
  self[base.given] = base[base.given]
  self.batch_shape, self.event_shape = base.batch_shape, util.shape { B.size(base:param(), -1) }
  self:validates(o.validate_args)
end)
Exp.copied = Logit.copied
function Exp:draw(shape, generator)
  local u = util.clamp_probs(moth.rand(self:extended(shape), util.options(self.logits, generator)))
  local scores = (self.logits - (-u:log()):log()) / self.temperature
  return scores - scores:logsumexp(-1, true)
end
function Exp:density(x)
  local k = self.event_shape[1]
  local t = util.like(self.temperature, x)
  local score = self.logits - x * t
  score = (score - score:logsumexp(-1, true)):sum(-1)
  return score + moth.lgamma(moth.full_like(t, k)) + t:log() * (k - 1)
end

--- Vectors of K probabilities that tend to one-hot ones as temperature falls.
define("RelaxedOneHotCategorical", "Tensor|number temperature, Tensor probs?, Tensor logits?", function(o)
  return Exp(o), { transforms.ExpTransform() }
end, { "probs", "logits", "temperature" })

return M
