--- nn.PReLU: x, or weight x below 0, with one learned weight or one per channel.
local moth = require "moth"
local class = require "moth.class"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local Parameter = require "moth.nn.parameter"
local init = require "moth.nn.init_"

local PReLU = class("PReLU", Module)

--- num_parameters: 1, or the number of channels
PReLU.__init = signature.init("nn.PReLU(count num_parameters=1, number init=0.25, device device?, dtype dtype?)",
  function(self, o)
    self.num_parameters, self.init = o.num_parameters, o.init
    self.weight = Parameter(moth.empty({ o.num_parameters }, { dtype = o.dtype, device = o.device }))
    self:reset()
  end)

function PReLU:reset() init.constant_(self.weight, self.init) end

--- x (N, C, …) -> its shape
function PReLU:forward(x) return moth.prelu(x, self.weight) end

function PReLU:extra_repr() return ("num_parameters=%d"):format(self.num_parameters) end

return PReLU
