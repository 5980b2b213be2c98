--- VonMises: a bell on the circle.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local signature = require "moth.utils.signature"
local Distribution = require "moth.distributions.distribution"
local constraints = require "moth.distributions.constraints"
local util = require "moth.distributions.util"

local VonMises = class("VonMises", Distribution)
VonMises.params = { { "loc", constraints.real }, { "concentration", constraints.positive } }
function VonMises:get_support() return constraints.real end -- luacheck: ignore self

--- Angles around loc, in radians; samples lie in [-pi, pi). mean and variance are those of the circle.
VonMises.__init = signature.init("distributions.VonMises(Tensor|number loc, Tensor|number concentration, *, \z
  bool validate_args?)", function(self, o) self:begin(o, "loc", "concentration") end)
function VonMises:get_mean() return self.loc end
function VonMises:get_mode() return self.loc end
function VonMises:get_variance()
  return 1 - moth.special.i1e(self.concentration) / moth.special.i0e(self.concentration)
end
function VonMises:density(x)
  local k = self.concentration
  return k * ((x - self.loc):cos() - 1) - math.log(2 * math.pi) - moth.special.i0e(k):log()
end
-- Best and Fisher, "Efficient simulation of the von Mises distribution" (1979): rounds of rejection, in float64.
function VonMises:draw(shape, generator)
  shape = self:extended(shape)
  local k = self.concentration:double()
  local o = util.options(k, generator)
  local tau = (k:square() * 4 + 1):sqrt() + 1
  local rho = (tau - (tau * 2):sqrt()) / (k * 2)
  local r = util.where(k:lt(1e-5), 1 / k + k, (rho:square() + 1) / (rho * 2))
  local x = moth.zeros(shape, o)
  local done = moth.zeros(shape, { dtype = "bool", device = o.device })
  while not B.batch_values(done):all():item() do
    local u = moth.rand(util.shape({ 3 }, shape), o)
    local z = (u:select(1, 1) * math.pi):cos()
    local f = (r * z + 1) / (r + z)
    local c = k * (r - f)
    local u2 = u:select(1, 2)
    local accept = (c * (2 - c) - u2):gt(0):logical_or(((c / u2):log() + 1 - c):ge(0))
    x = moth.where(accept:logical_and(done:logical_not()), (u:select(1, 3) - 0.5):sign() * f:clamp(-1, 1):acos(), x)
    done = done:logical_or(accept)
  end
  return ((x + math.pi + self.loc:double()):remainder(2 * math.pi) - math.pi):to(self.loc:dtype())
end

return { VonMises = VonMises }
