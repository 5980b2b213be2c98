--- nn.PReLU: x, or weight x below 0, with one learned weight or one per channel.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local Module = require "moth.nn.module"
local Parameter = require "moth.nn.parameter"
local init = require "moth.nn.init_"

local PReLU = class("PReLU", Module)

--- @tparam[opt] int num_parameters 1, or the number of channels @tparam[opt] table o init (0.25), dtype, device
function PReLU:__init(num_parameters, o)
  if type(num_parameters) == "table" then num_parameters, o = num_parameters.num_parameters, num_parameters end
  o = check.options("nn.PReLU", o, "num_parameters init dtype device")
  self.num_parameters = check.integer("nn.PReLU", "num_parameters", num_parameters or 1, 1)
  self.init = check.number("nn.PReLU", "init", o.init or 0.25)
  self.weight = Parameter(moth.empty({ self.num_parameters }, { dtype = o.dtype, device = o.device }))
  self:reset()
end

function PReLU:reset() init.constant_(self.weight, self.init) end

--- x (N, C, …) -> its shape
function PReLU:forward(x) return moth.prelu(x, self.weight) end

function PReLU:extra_repr() return ("num_parameters=%d"):format(self.num_parameters) end

return PReLU
