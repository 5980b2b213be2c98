--- Which observers, or fake-quantisers, the layers of a model get.
local check = require "moth.utils.check"
local class = require "moth.class"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local observers = require "moth.quantization.observer"
local fake = require "moth.quantization.fake_quantize"

local M = {}

local QConfig = class("QConfig")
M.QConfig = QConfig

--- activation, weight: functions that make a module for each layer, or classes of observers.
QConfig.__init = signature.init("quantization.QConfig(*, callable activation, callable weight)", function(self, o)
  for _, role in ipairs { "activation", "weight" } do
    local make = o[role]
    if Module.is(make) then
      check.fail("[quantization.QConfig] %s: each layer gets an observer of its own: expected a function or a class, \z
        got a %s", role, make.__name)
    end
    self[role] = type(make) == "function" and make or function() return make() end
  end
end)

local backends = { fbgemm = true, x86 = true, onednn = true, qnnpack = false } -- a scale for each channel?

local function channels_of(where, backend)
  if backends[backend] == nil then
    check.fail("[%s] there is no backend '%s': fbgemm, x86, onednn (a scale for each channel of a weight), \z
      qnnpack (one for all)", where, backend)
  end
  return backends[backend]
end

--- For prepare: activations as uint8 by histograms, weights as symmetric int8.
M.get_default_qconfig = signature("quantization.get_default_qconfig(string backend='x86')", function(backend)
  local channels = channels_of("quantization.get_default_qconfig", backend)
  return QConfig {
    activation = function() return observers.HistogramObserver() end,
    weight = function()
      if channels then return observers.PerChannelMinMaxObserver { dtype = "int8" } end
      return observers.MinMaxObserver { dtype = "int8", qscheme = "per_tensor_symmetric" }
    end,
  }
end)

--- For prepare_qat: the same with moving averages, and rounding. weight_bits = 4: linear layers get weights of 4 bits
-- in groups, whose activations are not rounded in training.
M.get_default_qat_qconfig = signature("quantization.get_default_qat_qconfig(string backend='x86', *, \z
  int weight_bits=8, count group=32)", function(backend, bits, group)
  local channels = channels_of("quantization.get_default_qat_qconfig", backend)
  if bits ~= 8 and bits ~= 4 then
    check.fail("[quantization.get_default_qat_qconfig] weight_bits must be 8 or 4, got %d", bits)
  end
  if bits == 4 then require("moth.quantization.weights").check_group("quantization.get_default_qat_qconfig", group) end
  return QConfig {
    activation = function() return fake.FakeQuantize(observers.MovingAverageMinMaxObserver()) end,
    weight = function(kind)
      if bits == 4 and kind == "linear" then return fake.GroupFakeQuantize(group) end
      local observer = channels
        and observers.MovingAveragePerChannelMinMaxObserver { dtype = "int8", averaging_constant = 1 }
        or observers.MovingAverageMinMaxObserver { dtype = "int8", averaging_constant = 1,
          qscheme = "per_tensor_symmetric" }
      return fake.FakeQuantize(observer, { always = true })
    end,
  }
end)

return M
