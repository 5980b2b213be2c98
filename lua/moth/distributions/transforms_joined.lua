--- Transforms of parts of a tensor, CatTransform and StackTransform, and by a distribution,
-- CumulativeDistributionTransform.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local constraints = require "moth.distributions.constraints"
local transforms = require "moth.distributions.transforms"
local util = require "moth.distributions.util"

local M = {}
local Transform = transforms.Transform

-- What both have: `take` cuts a tensor into parts along dim, `join` puts them together.
local function begin(self, where, parts, dim, take, join)
  self.transforms, self.dim, self.take, self.join = parts, dim, take, join
  if #parts == 0 then check.fail("[%s] expected a list of transforms, got an empty one", where) end
  local inside, out = 0, 0
  for i, t in ipairs(parts) do
    if not class.is_a(t, Transform) then
      check.fail("[%s] part %d: expected a transform, got %s", where, i, class.name(t))
    end
    inside, out = math.max(inside, t.domain.event_dim), math.max(out, t.codomain.event_dim)
    self.bijective = (i == 1 or self.bijective) and t.bijective
  end
  local function of(key, event_dim)
    return constraints.Constraint("in the sets of the parts", function(x)
      local ok = {}
      for i, part in ipairs(take(self, x)) do
        ok[i] = part and self.transforms[i][key]:check(part)
        for _ = 1, event_dim - self.transforms[i][key].event_dim do ok[i] = ok[i]:all(-1) end
      end
      return (self:joined(ok, B.dim(x), event_dim, function(a, b) return a:logical_and(b) end))
    end, { event_dim = event_dim })
  end
  self.domain, self.codomain = of("domain", inside), of("codomain", out)
end
-- Values for each event of a tensor of `ndim` dimensions: joined where dim is not of the event, else added up.
local function joined(self, list, ndim, event_dim, add)
  local at = self.dim > 0 and self.dim or ndim + 1 + self.dim
  if at <= ndim - event_dim then return self.join(list, at) end
  local sum = list[1]
  for i = 2, #list do sum = add(sum, list[i]) end
  return sum
end

local function define(name, text, init)
  local cls = class(name, Transform)
  M[name] = cls
  cls.__init = signature.init(text, init)
  cls.joined = joined
  for _, key in ipairs({ "forward", "backward" }) do
    cls[key] = function(self, x)
      local list = {}
      for i, part in ipairs(self.take(self, x)) do list[i] = self.transforms[i][key](self.transforms[i], part) end
      return self.join(list, self.dim)
    end
  end
  function cls:log_det(x, y)
    local list, event_dim, ys = {}, self.domain.event_dim, self.take(self, y)
    for i, part in ipairs(self.take(self, x)) do
      local t = self.transforms[i]
      list[i] = util.sum_last(t:log_det(part, ys[i]), event_dim - t.domain.event_dim)
    end
    return (self:joined(list, B.dim(x), event_dim, function(a, b) return a + b end))
  end
  return cls
end

--- Each transform for its part of dimension dim, of the length that `lengths` has (1 each).
define("CatTransform", "transforms.CatTransform(list tseq, Dim dim=1, size[] lengths?)", function(self, o)
  local lengths, total = o.lengths or {}, 0
  for i = 1, #o.tseq do
    lengths[i] = lengths[i] or not o.lengths and 1 or nil
    total = total + (lengths[i] or 0)
  end
  if #lengths ~= #o.tseq then
    check.fail("[transforms.CatTransform] there are %d transforms and %d lengths", #o.tseq, #lengths)
  end
  self.lengths = lengths
  begin(self, "transforms.CatTransform", o.tseq, o.dim, function(t, x)
    if B.size(x, t.dim) ~= total then
      check.fail("[CatTransform] dimension %d must have size %d, got %s", t.dim, total, B.format(x))
    end
    return moth.split(x, lengths, t.dim)
  end, moth.cat)
end)

--- Each transform for one slice of dimension dim.
define("StackTransform", "transforms.StackTransform(list tseq, Dim dim=1)", function(self, o)
  begin(self, "transforms.StackTransform", o.tseq, o.dim, function(t, x)
    if B.size(x, t.dim) ~= #t.transforms then
      check.fail("[StackTransform] dimension %d must have size %d, got %s", t.dim, #t.transforms, B.format(x))
    end
    return moth.unbind(x, t.dim)
  end, moth.stack)
end)

--- The cdf of a distribution, whose inverse is its icdf.
local Cumulative = class("CumulativeDistributionTransform", Transform)
M.CumulativeDistributionTransform = Cumulative
Cumulative.codomain, Cumulative.sign = constraints.unit_interval, 1
Cumulative.__init = signature.init("transforms.CumulativeDistributionTransform(Distribution distribution)",
  function(self, o) self.distribution = o.distribution end)
function Cumulative:get_domain() return self.distribution.support end
function Cumulative.__index(self, key) -- the domain is the distribution's, not the base class's
  if key == "domain" then return Cumulative.get_domain(self) end
  return Transform.__index(self, key)
end
function Cumulative:forward(x) return self.distribution:cdf(x) end
function Cumulative:backward(y) return self.distribution:icdf(y) end
function Cumulative:log_det(x) return self.distribution:log_prob(x) end

--- The transform that changes nothing.
M.identity_transform = transforms.ComposeTransform {}

return M
