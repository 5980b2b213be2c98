--- Categorical, OneHotCategorical, OneHotCategoricalStraightThrough, Multinomial: one of K classes, the last dimension
-- of probs or logits. Classes are positions: they count from 1.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Distribution = require "moth.distributions.distribution"
local constraints = require "moth.distributions.constraints"
local util = require "moth.distributions.util"

local M = {}
local params = { { "probs", constraints.simplex }, { "logits", constraints.real_vector } }
local positive_sum = constraints.Constraint("at least 0, with a sum above 0 along the last dimension", function(p)
  return p:ge(0):all(-1):logical_and(p:sum(-1):gt(0))
end, { event_dim = 1 })
local of_probs = "Tensor probs?, Tensor logits?, *, bool validate_args?)"

-- Reads probs, which are divided by their sum, or logits, from which their logsumexp is taken.
local function begin(self, o)
  local wanted = o.validate_args
  o.validate_args = false
  self:begin_probs(o, 1)
  self:validates(wanted)
  local given = self.given
  local value = self[given]
  if B.size(value, -1) < 1 then check.fail("[%s] there must be at least one class", self:where()) end
  if self.validate_args then
    util.verify(self:where(), ("argument '%s'"):format(given), given == "probs" and positive_sum or params[2][2],
      value)
  end
  self[given] = given == "probs" and value / value:sum(-1, true) or value - value:logsumexp(-1, true)
end
local function define(name, support)
  local cls = class(name, Distribution)
  M[name], cls.params, cls.get_support = cls, params, support
  function cls:lazy_probs() return util.logits_to_probs(self.logits) end
  function cls:lazy_logits() return util.probs_to_logits(self.probs) end
  return cls
end
local function draws(self, shape, generator)
  local k = B.size(self.probs, -1)
  local n, rows = util.numel(shape), self.probs:reshape { -1, k }
  if n * B.size(rows, 1) == 0 then
    return moth.zeros(util.shape(shape, self.batch_shape), { dtype = "int64", device = B.tensor_device(rows) })
  end
  local classes = rows:multinomial(n, true, { generator = generator }) -- (rows, n)
  return classes.T:reshape(util.shape(shape, self.batch_shape))
end

local Categorical = define("Categorical", function(self)
  return constraints.integer_interval(1, B.size(self:param(), -1))
end)
Categorical.has_enumerate_support = true
--- A class from 1 to K, int64. probs need not sum to 1.
Categorical.__init = signature.init("distributions.Categorical(" .. of_probs, begin)
function Categorical:get_mean() return self.probs:select(-1, 1) * (0 / 0) end
function Categorical:get_variance() return self.probs:select(-1, 1) * (0 / 0) end
function Categorical:get_mode() return self.probs:argmax(-1) end
Categorical.draw = draws
function Categorical:density(x)
  local logits = self.logits
  local shape = moth.broadcast_shapes(B.size(x), self.batch_shape)
  local at = x:long():expand(shape):unsqueeze(-1)
  return logits:expand(util.shape(shape, { B.size(logits, -1) })):gather(-1, at):squeeze(-1)
end
function Categorical:entropy()
  local logits = self.logits:clamp(util.finfo(self.logits).min)
  return -(self.probs * logits):sum(-1)
end
--- What enumerate_support gives: all values.
function Categorical:enumerate(expand)
  local k = B.size(self:param(), -1)
  return self:enumerated(moth.arange(1, k + 1, { device = B.tensor_device(self:param()) }), expand)
end

local OneHot = define("OneHotCategorical", function() return constraints.one_hot end)
OneHot.has_enumerate_support = true
local function begin_one_hot(self, o)
  begin(self, o)
  self.event_shape = util.shape { B.size(self:param(), -1) }
end
--- The same as vectors of K numbers, one of which is 1.
OneHot.__init = signature.init("distributions.OneHotCategorical(" .. of_probs, begin_one_hot)
local function one_hot(self, classes)
  return moth.F.one_hot(classes, self.event_shape[1]):to(B.tensor_dtype(self:param()))
end
function OneHot:get_mean() return self.probs end
function OneHot:get_variance() return self.probs * (1 - self.probs) end
function OneHot:get_mode() return one_hot(self, self.probs:argmax(-1)) end
function OneHot:draw(shape, generator) return one_hot(self, draws(self, shape, generator)) end
function OneHot:density(x) return util.where(x:eq(0), 0, x * self.logits):sum(-1) end
OneHot.entropy = Categorical.entropy
--- What enumerate_support gives: all values.
function OneHot:enumerate(expand)
  local k = self.event_shape[1]
  local ones = moth.ones(#self.batch_shape):tolist()
  local values = moth.eye(k, util.options(self:param())):view(util.shape({ k }, ones, { k }))
  return expand and values:expand(util.shape({ k }, self.batch_shape, { k })) or values
end

local StraightThrough = class("OneHotCategoricalStraightThrough", OneHot)
M.OneHotCategoricalStraightThrough = StraightThrough
StraightThrough.has_rsample = true
--- The same, whose samples have the gradient of probs: an estimate, biased (Bengio et al. 2013).
StraightThrough.__init = signature.init("distributions.OneHotCategoricalStraightThrough(" .. of_probs, begin_one_hot)
function StraightThrough:draw(shape, generator)
  local x = OneHot.draw(self, shape, generator)
  return x + (self.probs - self.probs:detach())
end

local Multinomial = define("Multinomial", function(self) return constraints.multinomial(self.total_count) end)
--- How often each class occurs in total_count draws.
Multinomial.__init = signature.init("distributions.Multinomial(size total_count=1, " .. of_probs, function(self, o)
  begin_one_hot(self, o)
  self.total_count = o.total_count
end)
function Multinomial:copied(shape)
  local new = Distribution.copied(self, shape)
  new.total_count = self.total_count
  return new
end
function Multinomial:get_mean() return self.probs * self.total_count end
function Multinomial:get_variance() return self.probs * (1 - self.probs) * self.total_count end
function Multinomial:draw(shape, generator)
  local n, rank = self.total_count, #shape
  local at = draws(self, util.shape({ n }, shape), generator) -- (n) .. shape .. batch_shape
  local order = {}
  for i = 1, rank + #self.batch_shape do order[i] = i + 1 end
  order[#order + 1] = 1
  local counts = moth.zeros(self:extended(shape), util.options(self:param()))
  at = at:permute(order)
  return (counts:scatter_add(-1, at, moth.ones(at:size(), util.options(self:param()))))
end
function Multinomial:density(x)
  return (x:sum(-1) + 1):lgamma() - (x + 1):lgamma():sum(-1) + util.where(x:eq(0), 0, x * self.logits):sum(-1)
end
function Multinomial:entropy()
  local n = self.total_count
  local k = moth.arange(1, n + 1, util.options(self:param()))
  for _ = 1, #self.batch_shape + 1 do k = k:unsqueeze(-1) end
  local p = self.probs -- of each class alone, counts are binomial
  local choose = (moth.full_like(k, n + 1)):lgamma() - (k + 1):lgamma() - (n - k + 1):lgamma()
  local binomial = (choose + k:xlogy(p) + moth.special.xlog1py(n - k, -p)):exp()
  local more = (binomial * (k + 1):lgamma()):sum { dim = { 1, -1 } }
  return Categorical.entropy(self) * n - moth.lgamma(moth.full_like(more, n + 1)) + more
end

return M
