--- Distributions made of others: Independent, MixtureSameFamily.
local B = require "moth_lua"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Distribution = require "moth.distributions.distribution"
local constraints = require "moth.distributions.constraints"
local util = require "moth.distributions.util"

local M = {}

local Independent = class("Independent", Distribution)
M.Independent = Independent
--- The last dimensions of batch_shape as part of the event: log_prob sums over them.
Independent.__init = signature.init("distributions.Independent(Distribution base_distribution, \z
  size reinterpreted_batch_ndims, *, bool validate_args?)", function(self, o)
  local base, n = o.base_distribution, o.reinterpreted_batch_ndims
  local rank = #base.batch_shape
  if n > rank then
    check.fail("[distributions.Independent] reinterpreted_batch_ndims is %d, batch_shape %s has %d dimensions", n,
      tostring(base.batch_shape), rank)
  end
  self.base_dist, self.reinterpreted_batch_ndims = base, n
  self.batch_shape = util.part(base.batch_shape, 1, rank - n)
  self.event_shape = util.shape(util.part(base.batch_shape, rank - n + 1), base.event_shape)
  self:validates(o.validate_args)
end)
function Independent.__index(self, key)
  if key == "has_rsample" or key == "has_enumerate_support" then
    local base = rawget(self, "base_dist")
    return base and base[key] and (key == "has_rsample" or self.reinterpreted_batch_ndims == 0)
  end
  return Distribution.__index(self, key)
end
for _, key in ipairs({ "mean", "mode", "variance", "stddev" }) do
  Independent["get_" .. key] = function(self) return self.base_dist[key] end
end
function Independent:get_support()
  return constraints.independent(self.base_dist.support, self.reinterpreted_batch_ndims)
end
function Independent:draw(shape, generator) return self.base_dist:draw(shape, generator) end
function Independent:density(x) return util.sum_last(self.base_dist:density(x), self.reinterpreted_batch_ndims) end
function Independent:entropy() return util.sum_last(self.base_dist:entropy(), self.reinterpreted_batch_ndims) end
--- What enumerate_support gives: all values.
function Independent:enumerate(expand) return self.base_dist:enumerate(expand) end
function Independent:expanded(shape)
  local new = self:copied(shape)
  local own = #self.event_shape - #self.base_dist.event_shape
  new.base_dist = self.base_dist:expand(util.shape(shape, util.part(self.event_shape, 1, own)))
  new.reinterpreted_batch_ndims = self.reinterpreted_batch_ndims
  return new
end
function Independent:__tostring()
  return ("Independent(%s, %d)"):format(tostring(self.base_dist), self.reinterpreted_batch_ndims)
end

local Mixture = class("MixtureSameFamily", Distribution)
M.MixtureSameFamily = Mixture
--- One of K distributions, the last dimension of component's batch_shape, chosen by a Categorical.
Mixture.__init = signature.init("distributions.MixtureSameFamily(Distribution mixture_distribution, \z
  Distribution component_distribution, *, bool validate_args?)", function(self, o)
  local mixture, component, where = o.mixture_distribution, o.component_distribution, "distributions.MixtureSameFamily"
  if class.name(mixture) ~= "Categorical" then
    check.fail("[%s] mixture_distribution must be a Categorical, got %s", where, class.name(mixture))
  end
  local batch = component.batch_shape
  local k = B.size(mixture:param(), -1)
  if #batch == 0 or batch[#batch] ~= k then
    check.fail("[%s] component_distribution must have %d distributions in the last dimension of its batch_shape, \z
      got %s", where, k, tostring(batch))
  end
  local own = util.part(batch, 1, #batch - 1)
  if #mixture.batch_shape > 0 and not util.same(mixture.batch_shape, own) then
    check.fail("[%s] batch_shape %s of the mixture does not go with %s of the components", where,
      tostring(mixture.batch_shape), tostring(batch))
  end
  self.mixture, self.component = mixture, component
  self.mixture_distribution, self.component_distribution = mixture, component
  self.batch_shape, self.event_shape = own, util.shape(component.event_shape)
  self:validates(o.validate_args)
end)
-- Weights beside the components' values, with ones for the event.
local function weights(self)
  local p = self.mixture.probs
  for _ = 1, #self.event_shape do p = p:unsqueeze(-1) end
  return p
end
local function at(self) return -1 - #self.event_shape end
function Mixture:get_support() return self.component.support end
function Mixture:get_mean() return (weights(self) * self.component.mean):sum(at(self)) end
function Mixture:get_variance()
  local p, mean = weights(self), self.component.mean
  local within = (p * self.component.variance):sum(at(self))
  return within + (p * (mean - self.mean:unsqueeze(at(self))):square()):sum(at(self))
end
function Mixture:draw(shape, generator)
  local choice = self.mixture:expand(self.batch_shape):draw(shape, generator)
  local x = self.component:draw(shape, generator) -- shape .. batch_shape .. (K) .. event_shape
  local dim, size = B.dim(x) + 1 + at(self), B.size(x)
  choice = choice:unsqueeze(-1)
  for _ = 1, #self.event_shape do choice = choice:unsqueeze(-1) end
  size[dim] = 1
  return x:gather(dim, choice:expand(size)):squeeze(dim)
end
local function padded(self, x) return x:unsqueeze(at(self)) end
function Mixture:density(x)
  return (self.component:density(padded(self, x)) + self.mixture.logits):logsumexp(-1)
end
function Mixture:distribution(x)
  return (self.component:distribution(padded(self, x)) * self.mixture.probs):sum(-1)
end
function Mixture:expanded(shape)
  local new = self:copied(shape)
  local k = self.component.batch_shape[#self.component.batch_shape]
  new.component, new.mixture = self.component:expand(util.shape(shape, { k })), self.mixture:expand(shape)
  new.mixture_distribution, new.component_distribution = new.mixture, new.component
  return new
end
function Mixture:__tostring()
  return ("MixtureSameFamily(%s, %s)"):format(tostring(self.mixture), tostring(self.component))
end

return M
