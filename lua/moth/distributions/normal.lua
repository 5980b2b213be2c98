--- Normal, HalfNormal: bells. LogNormal and LogisticNormal are transformed ones (transformed.lua).
local moth = require "moth"
local class = require "moth.class"
local signature = require "moth.utils.signature"
local Distribution = require "moth.distributions.distribution"
local constraints = require "moth.distributions.constraints"
local util = require "moth.distributions.util"

local M = {}
local LOG_2PI = math.log(2 * math.pi)

local Normal = class("Normal", Distribution)
M.Normal = Normal
Normal.params = { { "loc", constraints.real }, { "scale", constraints.positive } }
Normal.has_rsample, Normal.get_support = true, function() return constraints.real end

--- Of mean loc and deviation scale.
Normal.__init = signature.init("distributions.Normal(Tensor|number loc, Tensor|number scale, *, bool validate_args?)",
  function(self, o) self:begin(o, "loc", "scale") end)
function Normal:get_mean() return self.loc end
function Normal:get_mode() return self.loc end
function Normal:get_stddev() return self.scale end
function Normal:get_variance() return self.scale * self.scale end
function Normal:draw(shape, generator)
  return self.loc + self.scale * moth.randn(self:extended(shape), util.options(self.loc, generator))
end
function Normal:density(x)
  return ((x - self.loc) / self.scale):square() * -0.5 - self.scale:log() - 0.5 * LOG_2PI
end
function Normal:distribution(x) return (((x - self.loc) / self.scale * math.sqrt(0.5)):erf() + 1) * 0.5 end
function Normal:quantile(p) return self.loc + self.scale * (p * 2 - 1):erfinv() * math.sqrt(2) end
function Normal:entropy() return self.scale:log() + 0.5 * (1 + LOG_2PI) end

local HalfNormal = class("HalfNormal", Distribution)
M.HalfNormal = HalfNormal
HalfNormal.params = { { "scale", constraints.positive } }
HalfNormal.has_rsample, HalfNormal.get_support = true, function() return constraints.nonnegative end

--- |X| of a normal X of mean 0 and deviation scale.
HalfNormal.__init = signature.init("distributions.HalfNormal(Tensor|number scale, *, bool validate_args?)",
  function(self, o) self:begin(o, "scale") end)
function HalfNormal:get_mean() return self.scale * math.sqrt(2 / math.pi) end
function HalfNormal:get_mode() return self.scale:zeros_like() end
function HalfNormal:get_variance() return self.scale * self.scale * (1 - 2 / math.pi) end
function HalfNormal:draw(shape, generator)
  return self.scale * moth.randn(self:extended(shape), util.options(self.scale, generator)):abs()
end
function HalfNormal:density(x)
  local y = (x / self.scale):square() * -0.5 - self.scale:log() + 0.5 * math.log(2 / math.pi)
  return util.where(x:ge(0), y, -math.huge)
end
function HalfNormal:distribution(x) return (x / self.scale * math.sqrt(0.5)):erf() end
function HalfNormal:quantile(p) return self.scale * p:erfinv() * math.sqrt(2) end
function HalfNormal:entropy() return self.scale:log() + 0.5 * math.log(math.pi / 2) + 0.5 end

return M
