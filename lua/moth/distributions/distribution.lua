--- Distribution: the base of all distributions.
--
-- batch_shape: how many distributions a tensor of parameters makes; event_shape: the shape of one sample of each.
-- Samples have the shape sample_shape .. batch_shape .. event_shape, log_prob gives sample_shape .. batch_shape.
-- Fields that are computed when asked for: mean, mode, variance, stddev, support (a constraint), and of some classes
-- probs and logits.
--
-- A class has
--   params                     the names of its parameters with their constraints, for validation, expand and printing
--   has_rsample                whether draw gives gradients to the parameters (reparametrised samples)
--   draw(shape, generator)     samples of the shape shape .. batch_shape .. event_shape
--   density(value)             log_prob, of a checked value; distribution(value), quantile(value): cdf, icdf
--   get_mean() …               what the field `mean` reads; lazy_probs(): computed once, with its gradient
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local util = require "moth.distributions.util"

local Distribution = class("Distribution")
Distribution.has_rsample, Distribution.has_enumerate_support = false, false
Distribution.params = {} -- { { name, constraint }, … }
local validation = true

function Distribution.__index(self, key)
  local cls = getmetatable(self)
  local value = cls[key]
  if value ~= nil or type(key) ~= "string" then return value end
  local get = cls["get_" .. key]
  if get then return get(self) end
  local lazy = cls["lazy_" .. key]
  if lazy then
    value = moth.enable_grad(lazy, self)
    rawset(self, key, value)
  end
  return value
end

--- A distribution of one's own: class("My", moth.distributions.Distribution), with an __init that calls this one.
Distribution.__init = signature.init("distributions.Distribution(size[] batch_shape?, size[] event_shape?, *, \z
  bool validate_args?)", function(self, o)
  self.batch_shape, self.event_shape = util.shape(o.batch_shape or {}), util.shape(o.event_shape or {})
  self:validates(o.validate_args)
end)
--- Whether arguments and values are checked where a distribution does not say so itself (default: true).
Distribution.set_default_validate_args = signature("set_default_validate_args(bool value)", function(value)
  validation = value
end)

--- The name in messages.
function Distribution:where() return "distributions." .. getmetatable(self).__name end
--- Sets whether arguments and values are checked; nil: the default.
function Distribution:validates(own)
  if own == nil then own = validation end
  self.validate_args = own
end

--- For constructors of classes whose parameters are numbers or tensors that are broadcast: o are the options, the
-- names those of the parameters.
function Distribution:begin(o, ...)
  local n, names, values = select("#", ...), { ... }, {}
  for i = 1, n do values[i] = o[names[i]] end
  values = { util.broadcast(unpack(values)) }
  for i = 1, n do self[names[i]] = values[i] end
  self.batch_shape, self.event_shape = util.shape(B.size(values[1])), util.shape {}
  self:validates(o.validate_args)
  if self.validate_args then self:verify() end
end

--- The parameters against their constraints.
function Distribution:verify()
  for _, param in ipairs(self.params) do
    local value = rawget(self, param[1])
    if value ~= nil then
      util.verify(self:where(), ("argument '%s'"):format(param[1]), param[2], value)
    end
  end
end

--- For classes with probs or logits: that which is given, with event_dim dimensions of classes at its end.
function Distribution:begin_probs(o, event_dim)
  local where = self:where()
  local name, value = util.one_of(where, o, "probs", "logits")
  value = util.broadcast(value)
  local ndim = B.dim(value)
  if ndim < event_dim then check.fail("[%s] '%s' must have at least one dimension, got a 0-dim tensor", where, name) end
  self:validates(o.validate_args)
  self[name], self.given = value, name
  if self.validate_args then self:verify() end
  self.batch_shape, self.event_shape = util.part(B.size(value), 1, ndim - event_dim), util.shape {}
end
--- What was given, probs or logits.
function Distribution:param() return self[self.given] end
--- The shape of probs or logits.
function Distribution:get_param_shape() return util.shape(B.size(self:param())) end

local shape_text = "(int|int[] sample_shape?, *, Generator generator?)"
local function sample_shape(where, shape)
  if shape == nil then return {} end
  if type(shape) == "number" then shape = { shape } end
  for _, n in ipairs(shape) do
    if n < 0 then check.fail("[%s] sizes must not be negative, got %d", where, n) end
  end
  return shape
end

--- The shape of samples: shape .. batch_shape .. event_shape.
function Distribution:extended(shape) return util.shape(shape, self.batch_shape, self.event_shape) end

--- Samples, without a gradient: d:sample(), d:sample{ 1000 }, d:sample{ 3, 2, generator = g }.
Distribution.sample = signature.method("sample" .. shape_text, function(self, shape, generator)
  return (moth.no_grad(self.draw, self, sample_shape("sample", shape), generator))
end)
--- Samples with a gradient to the parameters: as functions of them and of random numbers that do not depend on them.
Distribution.rsample = signature.method("rsample" .. shape_text, function(self, shape, generator)
  if not self.has_rsample then
    check.fail("[rsample] samples of %s have no derivative; use sample() and log_prob (as REINFORCE does)",
      class.name(self))
  end
  return (self:draw(sample_shape("rsample", shape), generator))
end)
--- n samples: sample { n }.
Distribution.sample_n = signature.method("sample_n(size n)", function(self, n) return (self:sample { n }) end)

-- What has no closed form.
local function missing(name)
  --- What a field reads (mean, mode, variance: batch_shape .. event_shape; support: a constraint), the entropy
  -- (batch_shape), cdf or icdf of a value: an error where the class has no closed form.
  return function(self)
    check.fail("[%s] %s has no closed form for %s", name, name, class.name(self))
  end
end
--- draw(shape, generator): samples of the shape shape .. batch_shape .. event_shape; what a class defines.
function Distribution:draw() check.fail("[sample] %s has no sampler", class.name(self)) end
--- density(value): log_prob of a value that was checked; what a class defines.
function Distribution:density() check.fail("[log_prob] %s has no log_prob", class.name(self)) end
Distribution.distribution, Distribution.quantile = missing "cdf", missing "icdf"
Distribution.entropy = missing "entropy"
for _, key in ipairs({ "mean", "mode", "variance", "support" }) do
  Distribution["get_" .. key] = missing(key)
end
--- The standard deviation, batch_shape .. event_shape.
function Distribution:get_stddev() return self.variance:sqrt() end
--- exp of the entropy, batch_shape.
function Distribution:perplexity() return (self:entropy():exp()) end

-- The tensor of a value, checked: its shape goes with the distribution's, and it lies in the support.
local function checked(self, name, value)
  if type(value) == "number" then
    local param = self.params[1] and self[self.params[1][1]]
    value = moth.tensor(value, B.is_tensor(param) and util.options(param) or nil)
  end
  local event, size = self.event_shape, B.size(value)
  if #size < #event then
    check.fail("[%s] the value must have the event's dimensions %s at its end, got %s", name, tostring(event),
      B.format(value))
  end
  local own = util.shape(self.batch_shape, event)
  for k = 0, math.min(#own, #size) - 1 do
    local a, b = size[#size - k], own[#own - k]
    if a ~= b and a ~= 1 and b ~= 1 or k < #event and a ~= b then
      check.fail("[%s] a value of shape %s does not go with batch_shape %s and event_shape %s", name,
        tostring(util.shape(size)), tostring(self.batch_shape), tostring(event))
    end
  end
  if self.validate_args and name == "log_prob" then util.verify("log_prob", "the value", self.support, value) end
  return value
end
local function of_value(name, method)
  --- log_prob: the logarithm of the density (or of the probability) of a value; cdf: the probability that a sample is
  -- at most value; icdf: its inverse. Of sample_shape .. batch_shape.
  Distribution[name] = signature.method(name .. "(Tensor|number value)", function(self, value)
    return (self[method](self, checked(self, name, value)))
  end)
end
of_value("log_prob", "density")
of_value("cdf", "distribution")
of_value("icdf", "quantile")

--- All values that a discrete distribution takes: (n) .. batch_shape .. event_shape, or with expand = false ones
-- instead of batch_shape.
Distribution.enumerate_support = signature.method("enumerate_support(bool expand=true)", function(self, expand)
  if not self.has_enumerate_support then
    check.fail("[enumerate_support] %s has no finite support", class.name(self))
  end
  return (self:enumerate(expand))
end)
--- Values (n) in the shape that enumerate_support gives.
function Distribution:enumerated(values, expand)
  local n = B.size(values, 1)
  values = values:view(util.shape({ n }, moth.ones(#self.batch_shape):tolist()))
  return expand and values:expand(util.shape({ n }, self.batch_shape)) or values
end

--- The same distribution for a larger batch_shape; parameters are expanded, not copied.
Distribution.expand = signature.method("expand(size[]|size batch_shape)", function(self, shape)
  if type(shape) == "number" then shape = { shape } end
  return (self:expanded(util.shape(shape)))
end)
--- What expand gives, for a shape that was checked.
function Distribution:expanded(shape)
  local new = self:copied(shape)
  for _, param in ipairs(self.params) do
    local name, value = param[1], rawget(self, param[1])
    if value ~= nil then
      local size = B.size(value)
      new[name] = value:expand(util.shape(shape, util.part(size, #size - param[2].event_dim + 1)))
    end
  end
  return new
end
--- An instance of the same class with the same event_shape and another batch_shape, for expanded().
function Distribution:copied(shape)
  local new = setmetatable({}, getmetatable(self))
  new.batch_shape, new.event_shape = shape, self.event_shape
  new.validate_args, new.given = self.validate_args, rawget(self, "given")
  return new
end

function Distribution:__tostring()
  local parts = {}
  for _, param in ipairs(self.params) do
    local value = rawget(self, param[1])
    if B.is_tensor(value) then
      parts[#parts + 1] = ("%s: %s"):format(param[1], B.numel(value) == 1 and not B.is_fake(value)
        and ("%g"):format(value:detach():item(unpack(moth.ones(B.dim(value)):tolist()))) or tostring(value:size()))
    end
  end
  return ("%s(%s)"):format(class.name(self), table.concat(parts, ", "))
end

signature.type("Distribution", function(v) return class.is_a(v, Distribution) end, "a distribution")

return Distribution
